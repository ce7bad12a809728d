/* model/budget.h - the memory plan: floor, recommendation, what a budget buys.
 *
 *     floor = trunk + state + scratch (at the smallest pass) + 2 top_k records (+ vision)
 *
 * Everything the engine takes is in one of these; scratch includes a process allowance for
 * what libraries take (tokenizer tables, stacks, code). A budget above the floor buys larger passes
 * with up to half of what is above, and frames with the rest (docs/MEMORY.md).
 */
#ifndef MODEL_BUDGET_H
#define MODEL_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/manifest.h"
#include "model/act.h"
#include "model/hparams.h"
#include "model/vision_shape.h"

enum { ROWS_MIN = 64, ROWS_DEFAULT = 512, CTX_DEFAULT = 4096, CTX_MAX = 1 << 24 };

struct facts { /* about a model, before anything is read or even downloaded */
    struct hparams hp;
    struct record_layout record; /* zeroed without experts */
    uint64_t trunk_bytes;        /* resident: tensors and codebooks in memory */
    uint64_t trunk_file_bytes, disk_bytes;
    uint64_t tokenizer_bytes; /* of the file; 0: none */
    uint64_t params_trunk, params_embed;
    unsigned n_tensors;
    uint64_t vision_weights;    /* resident; 0: no images were asked for */
    struct vision_shape vision; /* then */
    bool from_config;
    char arch[64];
};

/* From a container's manifest; dirfd to look at the size of its tokenizer. */
int facts_of_manifest(struct facts *out, const struct manifest *m, int dirfd, struct err *e);
/* Images are wanted, of at most `patches` (0: as the container says): what the tower takes. As
 * vision_shape_read and vision_weight_bytes. */
int facts_add_vision(struct facts *f, const struct manifest *m, int dirfd, uint32_t patches,
                     struct err *e);
/* From a release's config.json (the whole object): sizes as our converter makes them. */
int facts_of_config(struct facts *out, const json_t *config, struct err *e);

struct plan_request {
    uint64_t budget; /* 0 = choose */
    uint64_t usable; /* RAM to choose from */
    unsigned ctx, sessions, checkpoints, rows_max, threads;
    unsigned cpu; /* kernel level, which decides table sizes */
    enum profile profile;
};

struct plan {
    uint64_t trunk, state, scratch, cache_min, floor; /* at the smallest pass */
    uint64_t vision; /* tower, its buffers or a picture's pixels, rows that wait; part of floor */
    uint64_t checkpoints;  /* part of state */
    uint64_t scratch_rows; /* scratch at `rows` */
    uint64_t working_set, all_experts, recommended;
    uint64_t budget;
    bool chosen, fits;
    unsigned rows;    /* most rows of a pass */
    unsigned frames;  /* of record bytes each */
    uint64_t process; /* part of scratch that is not ours to map: the allowance */
};

/* Never fails: a budget below the floor, or a floor above usable RAM where the choice is ours,
 * gives fits = false. */
void plan_make(struct plan *out, const struct facts *f, const struct plan_request *r);

/* Resident bytes of one trunk entry: codes and scales, each padded to 64. */
static inline uint64_t budget_tensor_bytes(uint64_t payload, uint64_t scales)
{
    return align_up(payload, 64) + align_up(scales, 64);
}

#endif
