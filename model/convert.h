/* model/convert.h - a published checkpoint becomes a container.
 *
 * Whatever can be missing or wrong is found by convert_open, before hours are spent. Layer by layer
 * is finished and synced; killed at any moment and run again with the same options, the bytes are
 * those of an undisturbed run, whatever the number of threads and the CPU. The directory opens as a
 * container only when all of it is there. One thread makes the calls.
 */
#ifndef MODEL_CONVERT_H
#define MODEL_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "model/reclaim.h"
#include "model/release_files.h"

struct convert_options { /* texts are borrowed until convert_close */
    const char *source, *dir;
    unsigned stages;              /* 0 = 3 */
    unsigned entries, index_bits; /* 0 = 256, 8; or, with 4 stages, 64, 6 (VQ4P) */
    unsigned trunk_bits;          /* 0 = 4; or 8, 3 */
    unsigned router_bits;         /* 8, or 0: as the trunk */
    unsigned sample;              /* experts that a layer's codebooks are fitted on; 0 = 12 */
    unsigned threads;             /* 0 = one per core */
    unsigned cpu;                 /* base/cpu.h bits of the kernels */
    enum reclaim_mode reclaim;
    bool resume;   /* only go on with an unfinished conversion */
    bool buffered; /* do not write past the page cache */
};

struct convert_plan { /* exact, but for side_bytes */
    const char *arch; /* borrowed */
    unsigned layers, moe_layers, experts, tensors, dropped;
    uint64_t record_bytes, bank_bytes, trunk_bytes, codebook_bytes, side_bytes, total_bytes;
    bool unfinished, complete; /* an earlier run's work is there */
};

struct convert_result {
    unsigned banks_kept; /* finished by an earlier run */
    uint64_t bytes;      /* written by this one */
    unsigned shards_reclaimed;
    uint64_t shard_bytes_reclaimed; /* with RECLAIM_DRY: that would have been */
    struct notices notices;
};

struct convert;

/* Read the source's headers and configuration, and look at the directory. ERR_ARG: also when it
 * holds something else. ERR_FORMAT, ERR_IO, ERR_UNSUPPORTED name the tensor, shard or key. */
int convert_open(struct convert **out, const struct convert_options *o, struct err *e);
void convert_close(struct convert *cv); /* NULL-safe */

const struct convert_plan *convert_plan(const struct convert *cv);

/* Do it; once. progress (may be NULL) counts bytes of what is left to make (PHASE_CONVERT); its
 * total is 0 until something is written. ERR_IO: the disk is too small, before anything is written,
 * or a read or write failed. ERR_CORRUPT: a value of the source is not finite. ERR_CANCELLED.
 * Finished files stay in every case. */
int convert_run(struct convert *cv, struct progress *progress, struct convert_result *result,
                struct err *e);

#endif
