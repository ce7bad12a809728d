/* tests/support/io_chaos.h - an engine between an engine and whoever uses it, where reads fail, are
 * late or overtake each other by chance, and where the drive can be away for a while. All of it
 * follows from the seed and the calls. Borrows the engine; embed it, and use `io` in its place. */
#ifndef SUPPORT_IO_CHAOS_H
#define SUPPORT_IO_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/io.h"

enum { IO_CHAOS_DEPTH_MAX = 64 };

struct io_chaos {
    struct io io; /* first */

    /* Settings; change them at any time. */
    unsigned fail_per_mille; /* of the reads: garbage in the first half, -EIO or -ENODATA */
    unsigned hold_per_mille; /* finished ones are kept back, and come out in any order */
    bool down;               /* every read that completes is -EIO */

    /* To look at. */
    uint64_t n_reads, n_failed, n_held_ever;

    /* Its own. */
    struct io *inner;
    uint64_t random;
    unsigned depth, in_flight, n_held;
    struct io_read *held[IO_CHAOS_DEPTH_MAX];
};

/* depth: as the inner engine was opened with, at most IO_CHAOS_DEPTH_MAX. */
void io_chaos_init(struct io_chaos *c, struct io *inner, unsigned depth, uint64_t seed);

#endif
