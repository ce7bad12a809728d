/* lookahead.c - guess what the next layer's router will choose, from this layer's router input. */
#include "model/layers.h"
#include "model/router.h"

void look_ahead(struct run *r, unsigned layer, const float *x)
{
    const struct model *m = r->model;
    struct moe_act *a = &r->act->moe;
    uint16_t id[FORMAT_TOP_K_MAX] = {0};
    const struct moe_weights *w;
    unsigned n;

    if (!r->lookahead || r->rows->n != 1 || layer >= m->hp.n_layers ||
        m->layer[layer].mlp != MLP_MOE) {
        r->experts->ops->hint(r->experts, layer - 1, id, 0, HINT_GUESS); /* forget older ones */
        return;
    }
    w = &m->layer[layer].moe;
    product(r, &w->router, x, r->act->hidden_w, a->guess, m->hp.n_experts, 1);
    n = router_guess(&m->hp, &m->k, a->guess, w->bias, id, r->lookahead);
    r->experts->ops->hint(r->experts, layer, id, n, HINT_GUESS);
    for (unsigned i = 0; r->route && r->route->guess && i < m->hp.top_k; i++)
        r->route->guess[layer * m->hp.top_k + i] = i < n ? id[i] : -1;
}
