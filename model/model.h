/* model/model.h - a model's weights by name: every weight a named member.
 *
 * Filled once by weights_bind and weights_load, read-only afterwards; the tensors point into the
 * trunk.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "expertfs/codebook.h"
#include "expertfs/trunk.h"
#include "model/hparams.h"
#include "model/kernels/kernels.h"
#include "model/tensor.h"

enum mix { MIX_KDA, MIX_MLA };
enum mlp { MLP_DENSE, MLP_MOE };

struct kda_weights {
    struct tensor q, k, v;                 /* [C][hidden] */
    const float *q_conv, *k_conv, *v_conv; /* [C][taps], the last tap meets the newest */
    struct tensor f_a, f_b;                /* decay: [dim][hidden], [C][dim] */
    struct tensor b;                       /* beta: [heads][hidden] */
    struct tensor g, g_a, g_b;             /* output gate: full rank, or low rank */
    struct tensor o;                       /* [hidden][C] */
    const float *a_log, *dt_bias;          /* [>= heads], [C] */
    const float *o_norm;                   /* [dim] */
    float *decay_rate;                     /* [heads]: exp(A_log), filled at load */
};

struct mla_weights {
    struct tensor q;        /* [heads * (nope + rope)][hidden]; q_lora = 0 */
    struct tensor q_a, q_b; /* [q_lora][hidden], [heads * (nope + rope)][q_lora] */
    const float *q_norm;    /* [q_lora] */
    struct tensor kv_a;     /* [kv_lora + rope][hidden] */
    const float *kv_norm;   /* [kv_lora] */
    struct tensor kv_b;     /* per head: nope key rows, then v value rows; [..][kv_lora] */
    struct tensor g;        /* [heads * v][hidden], with an output gate */
    struct tensor o;        /* [hidden][heads * v] */
};

struct ffn_weights { /* a dense layer's MLP, or an MoE layer's shared experts, fused */
    struct tensor gate, up, down;
};

struct moe_weights {
    struct tensor router; /* [E][hidden] */
    const float *bias;    /* [E]; NULL: zeros */
    struct tensor latent_down, latent_up;
    const float *latent_norm;
    const float *codebook[MATRICES]; /* [stages][entries][8] */
};

struct res_weights { /* attention residual: norm and projection, and their product */
    const float *norm, *proj;
    float *both; /* [hidden], filled at load */
};

struct layer {
    unsigned nth; /* among the layers of its kind of mix */
    enum mix mix;
    enum mlp mlp;
    const float *mix_norm, *mlp_norm; /* [hidden] */
    struct kda_weights kda;
    struct mla_weights mla;
    struct ffn_weights ffn;
    struct moe_weights moe;
    struct res_weights mix_res, mlp_res;
};

struct model {
    struct hparams hp;
    struct kernels k;
    struct layer layer[FORMAT_LAYERS_MAX];
    const struct trunk_entry *embed; /* not resident: a row is read per token */
    struct tensor head;              /* [vocab][hidden] */
    const float *norm;               /* [hidden] */
    struct res_weights out_res;
    struct rvq_shape rvq[MATRICES];
    struct trunk *trunk;     /* borrowed */
    struct codebooks *books; /* borrowed */
};

#endif
