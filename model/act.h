/* model/act.h - every activation buffer: name, shape, one allocation.
 *
 * T is the most rows of a pass, B the most spans. A stride ending in _w is padded to 128 columns;
 * padding columns of what a gemv reads stay +0. The blocks of a layer run one after the other, so
 * their buffers share memory; x, h, y and what outlives a block do not.
 */
#ifndef MODEL_ACT_H
#define MODEL_ACT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/model.h"

enum { HEAD_ROWS = 16 }; /* most rows that are scored with one reading of the head */

struct act_shape {
    unsigned rows;  /* T */
    unsigned spans; /* B */
    unsigned threads;
};

struct kda_act {                  /* C channels, H heads, D = C / H */
    float *q_lin, *k_lin, *v_lin; /* [T][C] projections before the convolution */
    float *q, *k, *v;             /* [T][C] */
    float *decay;                 /* [T][C] */
    float *beta;                  /* [T][H] */
    float *low_f, *low_g;         /* [T][dim_w] inner vectors of the low-rank maps */
    float *gate;                  /* [T][C] */
    float *o;                     /* [T][C] */
    float *gated;                 /* [T][chan_w] */
    float *edge;                  /* [B][q, k, v][2 (taps - 1)][C] windows of a span's first rows */
    size_t dim_w, chan_w;
};

enum { MLA_QUERIES = 32 }; /* of rows and heads that meet a block of keys together */

struct mla_act {
    float *q_low;   /* [T][q_lora_w] */
    float *q;       /* [T][heads (nope + rope)] */
    float *kv;      /* [T][kv_lora + rope] */
    float *gate;    /* [T][heads v] */
    float *o;       /* [T][out_w] */
    float *query;   /* [threads][MLA_QUERIES][stride of the latent cache] */
    float *context; /* [threads][MLA_QUERIES][kv_lora_w] */
    float *scratch; /* [threads][scratch_n] */
    size_t q_lora_w, out_w, kv_lora_w, scratch_n;
};

struct ffn_act {
    float *gate, *up; /* [T][inner_w] */
    size_t inner_w;
};

struct moe_act {
    float *z;         /* [T][latent_w]: input of the experts; hidden when there is no latent */
    float *score;     /* [T][E] */
    uint16_t *id;     /* [T][K] in selection order */
    float *weight;    /* [T][K] */
    float *slot;      /* [T][K][latent]: what each chosen expert said, unweighted */
    float *sum;       /* [T][latent_w] */
    float *shared;    /* [T][hidden] */
    uint16_t *wanted; /* [E] distinct experts not yet applied */
    uint32_t *first;  /* [E + 1]: users of expert e are user[first[e]...first[e + 1]) */
    uint32_t *user;   /* [T K]: row * K + slot */
    uint8_t *table;   /* [threads][gate, up, down] prepared tables */
    uint8_t *kept;    /* [kept_rows][gate, up] tables that serve every expert of a row */
    float *inner;     /* [threads][2][inter_w] */
    float *guess;     /* [E] lookahead scores */
    float *route;     /* [threads][2 E] scratch of a row's selection */
    size_t latent_w, inter_w;
    size_t table_bytes[MATRICES], tables_bytes; /* of one thread: the sum */
    unsigned kept_rows;
};

struct act {
    struct act_shape shape;
    float *x;     /* [T][hidden_w] the residual stream: the running sum */
    float *mixed; /* [T][hidden_w] with attention residuals: the mix of blocks and sum */
    float *h;     /* [T][hidden_w] normed input of a block */
    float *y;     /* [T][hidden_w] output of a block */
    float *block; /* [n_blocks][T][hidden] finished blocks of the attention residual */
    float *rope_cos, *rope_sin; /* [T][rope / 2] */
    float *last;                /* [B][hidden_w] rows whose logits are wanted */
    float *logits;              /* [B][vocab] */
    float *choose;              /* sampler scratch */
    float *logprob;             /* [T] of rows.score */
    float *head;        /* [head_rows][vocab] logits of scored rows, in the blocks' memory */
    unsigned head_rows; /* HEAD_ROWS, or T if that is less */
    size_t hidden_w;
    struct kda_act kda;
    struct mla_act mla;
    struct ffn_act ffn;
    struct moe_act moe;

    struct mem *mem;
    void *memory;
    size_t bytes;
};

/* Bytes act_open takes for this shape, for the plan. hp, k and rvq as in struct model. */
size_t act_bytes(const struct hparams *hp, const struct kernels *k,
                 const struct rvq_shape rvq[MATRICES], struct act_shape shape);
int act_open(struct act *out, struct mem *mem, const struct model *m, struct act_shape shape,
             struct err *e);
void act_close(struct act *a);

static inline size_t act_pad(size_t n)
{
    return (n + 127) & ~(size_t)127;
}

/* Padding columns [n, width) of `rows` rows back to +0: shared memory has other traces. */
void act_zero_padding(float *p, unsigned rows, size_t width, size_t n);

#endif
