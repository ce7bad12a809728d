/* model/convert_names.h - a release's tensors, each with its place in a container.
 *
 * Every tensor of the checkpoint is an expert's matrix, a tensor of the trunk, or left out on
 * purpose (layers behind the last: heads for multi-token prediction). Everything that the
 * configuration asks for is there, with the shape it asks for: after tensor_map_init nothing is
 * missing.
 */
#ifndef MODEL_CONVERT_NAMES_H
#define MODEL_CONVERT_NAMES_H

#include "expertfs/safetensors.h"
#include "model/hparams.h"
#include "model/release.h"

enum naming {
    NAMING_MIXTRAL, /* block_sparse_moe.experts.0.w1, w3, w2 */
    NAMING_DEEPSEEK /* mlp.experts.0.gate_proj, up_proj, down_proj */
};

struct trunk_item {
    const struct source_tensor *source;
    char *name; /* in the container, prefix included; owned */
    int fmt;    /* FMT_F32, FMT_Q8G, FMT_Q4G, FMT_Q3G */
    unsigned rank;
    uint32_t dim[4]; /* in the container: the same elements in the same order, flattened perhaps */
};

struct trunk_widths {
    unsigned bits;   /* of matrices without a rule of their own: 4, 8 or 3 */
    unsigned router; /* of the router and b_proj: 8, or 0: like the others */
};

struct tensor_map {
    enum naming naming;
    unsigned first_dense, n_layers, n_experts; /* n_experts 0: a dense model */
    struct trunk_item *trunk;                  /* owned; ascending source names */
    unsigned n_trunk, n_dropped;
    bool vision;                         /* a vision tower is among the trunk */
    const struct source_tensor **expert; /* owned; tensor_map_expert */
};

/* known: entries {"name", "fmt", "shape"} of an earlier run's trunk, for tensors whose shard was
 * reclaimed since; NULL: none were. ERR_FORMAT names the tensor that is missing, too many, or of
 * another shape; ERR_UNSUPPORTED. */
int tensor_map_init(struct tensor_map *out, const struct checkpoint *c, const struct release *r,
                    const struct hparams *hp, const struct trunk_widths *w, const json_t *known,
                    struct err *e);
void tensor_map_release(struct tensor_map *m); /* of all zero, too */

static inline const struct source_tensor *
tensor_map_expert(const struct tensor_map *m, unsigned layer, unsigned expert, enum matrix k)
{
    return m->expert[((size_t)(layer - m->first_dense) * m->n_experts + expert) * MATRICES + k];
}

/* What a tensor's name says; for tests. */
enum source_role { ROLE_TRUNK, ROLE_EXPERT, ROLE_DROPPED };
struct source_place {
    enum source_role role;
    unsigned layer, expert;
    enum matrix matrix;
};
/* ERR_FORMAT: an expert's tensor of no known kind. */
int source_place(struct source_place *out, const char *name, const char *prefix, enum naming naming,
                 unsigned n_layers, struct err *e);

#endif
