/* expertfs/synth_weights.h - seeded random weights of a shape: which tensors, and their bytes.
 *
 * Every value depends on (seed, tensor, element), or (seed, layer, expert, byte), alone: any thread
 * may make any part in any order. The widths are those of the published policy. Values are sized so
 * that activations stay near 1 through every layer, and the router so that its choices repeat from
 * token to token as a trained model's do (synth_weights.c says how).
 */
#ifndef EXPERTFS_SYNTH_WEIGHTS_H
#define EXPERTFS_SYNTH_WEIGHTS_H

#include <stdint.h>

#include "base/err.h"
#include "expertfs/record.h"
#include "expertfs/shapes.h"

enum synth_kind {
    SYNTH_MATRIX,  /* zero mean, standard deviation `std` */
    SYNTH_NORM,    /* around 1 */
    SYNTH_TAPS,    /* short convolution: neighbouring tokens mixed */
    SYNTH_A_LOG,   /* log of 1...16 (bounded gate: of 1...2) */
    SYNTH_DT_BIAS, /* so that a channel keeps 0.9...0.999 a token */
    SYNTH_BIAS,    /* the router's selection bias: popularity */
};

struct synth_tensor {
    char name[112];
    int fmt;
    unsigned rank;
    uint32_t dim[4];
    uint64_t rows;
    uint32_t cols, groups;
    uint64_t row_bytes;
    enum synth_kind kind;
    float std;
    uint64_t live_rows; /* rows from here on are zero */
    unsigned layer;
};

struct synth_weights {
    struct shape shape;
    uint64_t seed;
    struct synth_tensor *tensor; /* in the order in which they lie in trunk.bin */
    unsigned n_tensors;
};

int synth_weights_init(struct synth_weights *out, const struct shape *s, uint64_t seed,
                       struct err *e);
void synth_weights_release(struct synth_weights *w);

/* Rows [row, row + n) of tensor i: codes[n][row_bytes], scale[n][groups] f16. 8-byte aligned. */
void synth_rows(const struct synth_weights *w, unsigned i, uint64_t row, uint64_t n, void *codes,
                uint16_t *scale);

/* f16 [entries][8], zero mean; the stages shrink as those of a fitted residual quantiser do. */
void synth_codebook(const struct synth_weights *w, unsigned layer, enum matrix m, unsigned stage,
                    unsigned entries, uint16_t *out);

/* All of a record but its header: bytes[l->bytes], padding zeroed. Needs l->entries a power of 2
 * and l->index_bits 8. */
void synth_record(const struct synth_weights *w, const struct record_layout *l, unsigned layer,
                  unsigned expert, uint8_t *bytes);

#endif
