/* tests/support/io_script.h - an engine whose completions the test decides: no disk, no luck.
 *
 * A read of an extent gives bytes that follow from the extent, written when the read completes.
 * Which read completes next, and whether one does before somebody waits, is a setting; the n-th
 * read can fail. It does not allocate: embed it, io_script_init, and use `io` as an engine.
 */
#ifndef SUPPORT_IO_SCRIPT_H
#define SUPPORT_IO_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/io.h"

enum io_script_order { IO_SCRIPT_FIRST, IO_SCRIPT_LAST, IO_SCRIPT_RANDOM };

enum { IO_SCRIPT_DEPTH_MAX = 64, IO_SCRIPT_LOG = 256 };

struct io_script {
    struct io io; /* first */

    /* Settings; change them at any time. */
    unsigned depth;             /* most reads in flight */
    unsigned take_max;          /* most reads taken by one submit; 0 = any */
    enum io_script_order order; /* of the reads in flight, which completes next */
    bool held;                  /* a reap that does not wait gives only what was finished by name */
    unsigned fail_nth;          /* the n-th read taken since init fails; 0 = none */
    int fail_status;            /* with this, -EIO at first; its bytes are garbage */

    /* To look at. */
    unsigned n_reads;                 /* taken since init */
    unsigned n_failed;                /* failed since init */
    unsigned n_waits;                 /* reaps that had to wait */
    struct extent log[IO_SCRIPT_LOG]; /* read number i is log[i % IO_SCRIPT_LOG] */
    size_t arena_bytes;               /* what shrink said last; SIZE_MAX before */

    /* Its own. */
    uint64_t random;
    unsigned n_flight;
    struct flight {
        struct io_read *read;
        unsigned nth;
        bool finished;
    } flight[IO_SCRIPT_DEPTH_MAX]; /* in the order taken */
};

void io_script_init(struct io_script *s, unsigned depth, uint64_t seed);

/* Complete the read of this extent: the next reap gives it. False: it is not in flight. */
bool io_script_finish(struct io_script *s, struct extent at);

bool io_script_in_flight(const struct io_script *s, struct extent at);

/* The bytes that are at this extent, everywhere in the storage tests. */
void io_script_fill(void *dst, struct extent at);

/* Whether these are they. */
bool io_script_check(const void *bytes, struct extent at);

#endif
