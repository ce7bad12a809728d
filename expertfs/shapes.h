/* expertfs/shapes.h - the published models' dimensions, and small ones of the same families.
 *
 * A shape is what a checkpoint's config.json says, nothing learned. shape_config gives the `config`
 * that a conversion of such a checkpoint has in its manifest.
 */
#ifndef EXPERTFS_SHAPES_H
#define EXPERTFS_SHAPES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

enum family { FAMILY_KIMI_LINEAR, FAMILY_K3, FAMILY_DEEPSEEK, FAMILY_KIMI_K2 };

struct shape_tower { /* of images: geometry of the encoder that lies beside the language model */
    unsigned hidden, heads, wide, inter, blocks; /* wide: of all heads, not hidden */
    unsigned grid;                               /* learned positions along a side */
};

struct shape {
    const char *name, *about;
    enum family family;
    unsigned n_layers, first_dense;
    unsigned last_full; /* 1-based: full attention besides every fourth layer; 0: every layer */
    unsigned hidden, vocab, n_ranks; /* n_ranks: tokens with bytes; control tokens follow */
    unsigned n_heads, q_lora, kv_lora, nope, rope, v_dim;
    unsigned kda_heads, kda_dim, a_log; /* a_log: values stored, at least kda_heads */
    unsigned dense_inter;
    unsigned n_experts, top_k, inter, latent, n_shared; /* latent 0: experts run at hidden */
    unsigned n_group, topk_group;
    unsigned attn_res_block;
    double routed_scale, eps, rope_theta, yarn_factor, yarn_beta_fast;
    unsigned yarn_original, max_positions;
    const struct shape_tower *tower; /* NULL: text only */
};

/* NULL: no such shape. i < shape_count(). */
unsigned shape_count(void);
const struct shape *shape_nth(unsigned i);
const struct shape *shape_find(const char *name);

/* A slice: the first `layers` layers, the first `experts` experts, top_k of them; 0 keeps. ERR_ARG:
 * more than the shape has, no MoE layer left, or a combination that cannot route. */
int shape_cut(struct shape *s, unsigned layers, unsigned experts, unsigned top_k, struct err *e);

bool shape_is_full_attention(const struct shape *s, unsigned layer); /* 0-based */
const char *shape_prefix(const struct shape *s);                     /* of tensor names */
const char *shape_arch(const struct shape *s);                       /* the manifest's `arch` */

/* NULL: out of memory. The caller decrefs. */
json_t *shape_config(const struct shape *s);
/* vision.json of a shape with a tower. NULL: out of memory. */
json_t *shape_vision(const struct shape *s);
/* specials.json of the family, ids at n_ranks and up. NULL: out of memory. */
json_t *shape_specials(const struct shape *s);

#endif
