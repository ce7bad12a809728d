/* cli/nearest.h - what somebody may have meant. */
#ifndef CLI_NEAREST_H
#define CLI_NEAREST_H

/* The nearest of n names by edit distance, the first of equals; NULL if none is near: more than an
 * edit for a short name, and for every four letters another. */
const char *nearest_name(const char *name, const char *const *names, unsigned n);

#endif
