/* cli/bench/provenance.h - what a figure cannot be read without: machine, build, time, load. */
#ifndef CLI_BENCH_PROVENANCE_H
#define CLI_BENCH_PROVENANCE_H

#include <jansson.h>
#include <stddef.h>

/* Facts that cannot be read are null. NULL: out of memory. The caller decrefs. */
json_t *provenance(void);

/* The file's file system and the block device below it. */
json_t *provenance_of_file(int fd);

/* [1, 5, 15 minutes], or null. */
json_t *load_average(void);

/* The first line of a small file, without white space at its ends; "" if it cannot be read.
 * Returns text. */
const char *first_line(char *text, size_t text_bytes, const char *path);

#endif
