/* expertfs/synth.h - a container of a real model's shape with seeded random weights, so that a
 * machine can be measured before a terabyte is downloaded.
 *
 * The same options give the same bytes, whatever the number of threads and however often the work
 * was interrupted. While it is unfinished the directory has no manifest and opens as nothing.
 */
#ifndef EXPERTFS_SYNTH_H
#define EXPERTFS_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"

struct synth_options {
    const char *dir;
    const char *shape;               /* synth_shape(i) lists them */
    unsigned layers, experts, top_k; /* a slice: the first so many; 0 = as the shape has */
    uint64_t seed;                   /* below 2^53 */
    unsigned threads;                /* 0 = as many as pay */
    bool buffered;                   /* do not write past the page cache */
    bool vision;                     /* with the shape's tower for images */
};

struct synth_plan { /* exact sizes, from the shape alone */
    unsigned layers, moe_layers, experts, top_k, tensors;
    uint64_t record_bytes, bank_bytes; /* one record; one bank */
    uint64_t trunk_bytes, codebook_bytes,
        side_bytes; /* side: tokenizer, specials, manifest; about */
    uint64_t total_bytes;
};

struct synth_result {
    bool was_complete;   /* nothing was to be done */
    unsigned banks_kept; /* finished by an earlier, interrupted run */
    uint64_t bytes;      /* written by this run */
};

/* The i-th shape's name and one line about it; NULL behind the last. */
const char *synth_shape(unsigned i, const char **about);

/* What synth_run would write. ERR_ARG: no such shape, a slice of it that does not exist,
 * or a tower that it does not have. */
int synth_plan(struct synth_plan *out, const struct synth_options *o, struct err *e);

/* Make it, continuing what an interrupted run with the same options left. Counts bytes in progress
 * (may be NULL; PHASE_SYNTH), where kept files count as done. ERR_ARG: also when the directory
 * holds something else. ERR_IO: the disk is too small, before anything is written, or a write
 * failed. ERR_BUSY: another process is at it. ERR_CANCELLED: finished banks stay. */
int synth_run(const struct synth_options *o, struct progress *progress, struct synth_result *result,
              struct err *e);

#endif
