/* model/hparams.h - hyperparameters of a model, each with its bound.
 *
 * Read from config values, never from the presence of keys: false, null and absent are off. What is
 * not implemented (a rope type, an activation, a routing scheme) is refused here by name.
 */
#ifndef MODEL_HPARAMS_H
#define MODEL_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "expertfs/format.h"

enum activation { ACT_SILU, ACT_SITU };

enum { ROPE_DIM_MAX = 128, EOS_MAX = 16 };

struct hparams {
    unsigned n_layers, hidden, vocab;
    float eps;        /* of every RMSNorm but the latent ones */
    float latent_eps; /* of q_a_layernorm and kv_a_layernorm */
    float l2_eps;     /* of the L2 norm of q and k in KDA */

    /* KDA */
    bool is_kda[FORMAT_LAYERS_MAX]; /* by layer, 0-based */
    unsigned n_kda, n_mla;          /* layers of each kind */
    unsigned kda_heads, kda_dim, conv_taps;
    bool kda_full_gate;     /* g_proj, else g_a_proj and g_b_proj */
    float gate_lower_bound; /* 0: the softplus gate; below 0: the bounded one */

    /* MLA */
    unsigned n_heads, q_lora, kv_lora, nope, rope, v_dim;
    bool mla_rotary;                   /* rotate the rope part of q and k */
    bool mla_gate;                     /* sigmoid gate on the attention output */
    float attn_scale;                  /* YaRN's mu^2 included */
    float rope_freq[ROPE_DIM_MAX / 2]; /* radians per position, by pair */

    /* feed-forward */
    unsigned first_dense, dense_inter;
    unsigned n_experts, top_k, inter, latent; /* latent: width of an expert's input and output */
    unsigned n_shared;                        /* at least 1 */
    bool latent_moe, latent_norm;
    bool renormalize;
    float routed_scale;
    unsigned n_group, topk_group;
    enum activation act;
    float situ_beta, situ_lambda;

    unsigned attn_res_block; /* 0: plain residuals */

    unsigned n_eos; /* 0: the tokenizer's ranks + 2 */
    int32_t eos[EOS_MAX];
};

/* config: the text configuration (a manifest's, or a release's after text_config). ERR_FORMAT,
 * ERR_LIMIT, ERR_UNSUPPORTED name the key. */
int hparams_read(struct hparams *out, const json_t *config, struct err *e);

static inline bool hparams_is_moe(const struct hparams *hp, unsigned layer)
{
    return hp->n_experts > 0 && layer >= hp->first_dense;
}

/* Channels of a KDA layer's q, k, v. */
static inline unsigned hparams_kda_channels(const struct hparams *hp)
{
    return hp->kda_heads * hp->kda_dim;
}

/* Floats of one latent cache row: [c; k_r], padded to 16. */
static inline unsigned hparams_latent_stride(const struct hparams *hp)
{
    return (hp->kv_lora + hp->rope + 15) & ~15u;
}

#endif
