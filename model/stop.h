/* model/stop.h - stop strings, several at once, in bytes that arrive in fragments.
 *
 * An Aho-Corasick automaton. Its state is the longest end of the text so far that begins some stop
 * string: exactly what must be held back, and nothing else is. One stream per automaton.
 */
#ifndef MODEL_STOP_H
#define MODEL_STOP_H

#include <stddef.h>

#include "base/err.h"
#include "include/waste.h"

struct stop;

/* n may be 0: everything passes. Strings are copied. ERR_ARG: an empty string; ERR_NOMEM. */
int stop_open(struct stop **out, const waste_text *texts, unsigned n, struct err *e);
void stop_close(struct stop *s); /* NULL-safe */

/* The most that is ever held back: the longest string less one byte. */
size_t stop_held_max(const struct stop *s);

/* Take len bytes; out gets what can no longer belong to a stop string, at most len + stop_held_max
 * bytes, apart from bytes. Returns bytes written. *matched is the index of the string that is now
 * complete (of those that end here, the longest), or -1. After a match, out ends right before the
 * string, the rest is dropped and the automaton begins anew. */
size_t stop_feed(struct stop *s, const char *bytes, size_t len, char *out, int *matched);

/* The text ends here: what was held back, at most stop_held_max bytes. */
size_t stop_flush(struct stop *s, char *out);

#endif
