/* model/layers.h - the blocks of a layer, one signature; what a pass needs; products by the team.
 *
 * y = block(x): rows->n rows to as many, never aliased. x and y have stride act->hidden_w; x is the
 * normed hidden state. Only the block that reads from disk can fail. Bits of a row depend on its
 * session's ids alone (docs/ARITHMETIC.md).
 */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "base/err.h"
#include "base/progress.h"
#include "expertfs/source.h"
#include "model/act.h"
#include "model/laps.h"
#include "model/model.h"
#include "model/rows.h"
#include "model/team.h"

/* What the routers chose, copied out for whoever asked: traces and the oracle's comparison. */
struct route_tap {
    uint16_t *id;   /* [n_layers][rows][K] in selection order; written for MoE layers */
    float *weight;  /* the same shape */
    int32_t *guess; /* [n_layers][K]: what was guessed for the layer; -1 = nothing */
};

struct run { /* what a pass needs; it keeps nothing */
    const struct rows *rows;
    const struct model *model;
    struct expert_source *experts; /* NULL: a model without */
    struct act *act;
    struct team *team;
    struct progress *progress;
    uint64_t done0; /* tokens done before this pass, to which progress->done adds its share */
    void (*poll)(
        void *arg); /* called between layers and experts, on the pass's thread; NULL: never */
    void *poll_arg;
    unsigned lookahead;      /* experts of the next MoE layer to guess; 0: none */
    float *tap;              /* [n_layers][rows][hidden]: x after each layer; NULL */
    struct route_tap *route; /* NULL */
    struct laps *laps;       /* NULL; its last_ns is when the pass began */
};

void kda_block(struct run *r, unsigned layer, const float *x, float *y);
void mla_block(struct run *r, unsigned layer, const float *x, float *y);
void ffn_block(struct run *r, unsigned layer, const float *x, float *y);
int moe_block(struct run *r, unsigned layer, const float *x, float *y, struct err *e);

/* The gated MLP of a dense layer or of the shared experts: y has stride y_w. */
void ffn_rows(struct run *r, const struct ffn_weights *w, const float *x, float *y, size_t y_w);

/* Ask the next MoE layer's router early: guesses of what `layer` will want, from the router input x
 * of the layer before it. A hint, nothing else. */
void look_ahead(struct run *r, unsigned layer, const float *x);

/* y[t] = W x[t] for T rows, split over the team. x is padded (kernels.h). */
void product(struct run *r, const struct tensor *w, const float *x, size_t x_w, float *y,
             size_t y_w, unsigned T);

/* Several that do not wait for each other, in one fork. */
struct product {
    const struct tensor *w;
    const float *x;
    size_t x_w;
    float *y;
    size_t y_w;
};
void products(struct run *r, const struct product *p, unsigned n, unsigned T);

/* Gated activation of the model: y = act(g, u); y may be g or u. */
void gated(const struct model *m, float *y, const float *g, const float *u, unsigned n);

/* The residual stream (residual.c): what a block reads, and where its output goes. */
enum res_site { RES_MIX, RES_MLP };
/* Rows the norm of this site reads: the sum itself, or K3's mix of finished blocks and sum. */
const float *residual_input(struct run *r, unsigned layer, enum res_site site);
/* Add the block's output to the sum. */
void residual_add(struct run *r, unsigned layer, enum res_site site, const float *y);
/* Row `row` as the final norm reads it, into out[hidden]. */
void residual_final(struct run *r, unsigned row, float *out);

#endif
