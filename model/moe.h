/* model/moe.h - what the parts of the MoE block share: moe.c plans and combines, expert.c applies.
 */
#ifndef MODEL_MOE_H
#define MODEL_MOE_H

#include <stdatomic.h>

#include "model/layers.h"

struct moe_job {
    struct run *r;
    const struct layer *l;
    unsigned layer;
    const float *u; /* router input and input of the shared experts: stride hidden_w */
    const float *z; /* input of the routed experts */
    size_t z_w;
    const struct expert *x; /* the expert at hand */
    const uint32_t *user;   /* its users: row * K + slot */
    atomic_int failed;      /* a router row that failed, + 1 */
};

/* Build the gate and up tables of the first rows, which serve every expert those rows chose. */
void expert_tables(struct moe_job *j);

/* What expert `id` says to every row that chose it, unweighted, into the rows' slots. */
void expert_rows(struct moe_job *j, const struct expert *x, unsigned id);

#endif
