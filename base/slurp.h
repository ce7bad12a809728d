/* base/slurp.h - a small file, whole. */
#ifndef BASE_SLURP_H
#define BASE_SLURP_H

#include <stddef.h>

#include "base/err.h"

/* The regular file `name` of the directory dirfd (or AT_FDCWD), all *n bytes of it and a NUL behind
 * them; the caller frees *bytes. No entry of that name: *bytes is NULL and 0 is returned. Never
 * waits for the other end of a FIFO. More than `most` bytes is ERR_LIMIT, a file that shrinks
 * meanwhile or is no regular one ERR_IO. */
int slurp(char **bytes, size_t *n, int dirfd, const char *name, size_t most, struct err *e);

#endif
