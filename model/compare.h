/* model/compare.h - a container beside the checkpoint it was made from: how far off is it?
 *
 * Experts are compared as ||W - W'|| / ||W|| of each matrix. The trunk is quantised anew by its
 * published recipe and compared byte for byte.
 */
#ifndef MODEL_COMPARE_H
#define MODEL_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "expertfs/container.h"

struct compare_options {
    const char *source;
    unsigned sample;  /* experts a layer, spread evenly; 0 = 4 */
    bool all;         /* every expert, and every row of the trunk */
    unsigned threads; /* 0 = one per core */
};

struct compare_error { /* of one kind of matrix */
    uint64_t n;        /* compared */
    double least, mean, most;
    unsigned layer, expert; /* of the most */
};

struct compare_result {
    struct compare_error all[MATRICES];
    struct compare_error layer[FORMAT_LAYERS_MAX][MATRICES]; /* n 0: not an MoE layer */
    double limit;         /* above it something is wrong, whatever the weights */
    uint64_t n_over;      /* matrices above it */
    unsigned n_trunk;     /* tensors compared */
    uint64_t trunk_rows;  /* of them */
    unsigned n_different; /* tensors of which a byte differs */
    char different[160];  /* the first one's name; "" when none */
    char config[160];     /* a key of the configuration that has another value; "" when none */
};

/* progress (may be NULL): PHASE_VERIFY, done and total in source weights. ERR_FORMAT: they do not
 * belong together. ERR_IO, ERR_CORRUPT, ERR_CANCELLED. */
int compare_run(struct compare_result *out, const struct container *c,
                const struct compare_options *o, struct progress *progress, struct err *e);

#endif
