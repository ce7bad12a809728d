/* moe.c - routed experts: plan, hint, pin as they arrive, apply, combine in selection order.
 *
 * Each distinct expert of a pass is pinned once and used for every row that chose it; what it says
 * goes, unweighted, into the slot that the row's selection gave it. The sum over slots is taken at
 * the end in selection order, so the order of arrival never shows.
 */
#include "model/moe.h"

#include <string.h>

#include "model/router.h"

static void route_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct moe_job *j = arg;
    const struct model *m = j->r->model;
    struct moe_act *a = &j->r->act->moe;
    unsigned K = m->hp.top_k;
    struct err e;

    for (unsigned t = t0; t < t1; t++)
        if (router_select(&m->hp, &m->k, a->score + (size_t)t * m->hp.n_experts, j->l->moe.bias,
                          a->route + (size_t)thread * 2 * m->hp.n_experts, a->id + t * K,
                          a->weight + t * K, &e))
            atomic_store(&j->failed, (int)t + 1);
}

/* Count the users of each expert; returns how many experts have any, listed in `wanted`: in
 * selection order for one row, ascending for many, which is also the order on disk. */
static unsigned plan(struct moe_job *j)
{
    struct moe_act *a = &j->r->act->moe;
    unsigned T = j->r->rows->n, K = j->r->model->hp.top_k, E = j->r->model->hp.n_experts, n = 0;

    memset(a->first, 0, (E + 1) * sizeof(*a->first));
    for (unsigned i = 0; i < T * K; i++)
        a->first[a->id[i] + 1]++;
    for (unsigned i = 0; T == 1 && i < K; i++)
        a->wanted[n++] = a->id[i];
    for (unsigned i = 0; T > 1 && i < E; i++)
        if (a->first[i + 1])
            a->wanted[n++] = (uint16_t)i;
    for (unsigned i = 0; i < E; i++)
        a->first[i + 1] += a->first[i];
    for (unsigned i = T * K; i-- > 0;) /* backwards, so that first[] ends as the start again */
        a->user[--a->first[a->id[i] + 1]] = i;
    memmove(a->first, a->first + 1, E * sizeof(*a->first));
    a->first[E] = T * K;
    return n;
}

static void tap_route(struct moe_job *j)
{
    const struct route_tap *tap = j->r->route;
    unsigned K = j->r->model->hp.top_k, T = j->r->rows->n;
    size_t at = (size_t)j->layer * T * K;

    if (!tap)
        return;
    memcpy(tap->id + at, j->r->act->moe.id, (size_t)T * K * sizeof(*tap->id));
    memcpy(tap->weight + at, j->r->act->moe.weight, (size_t)T * K * sizeof(*tap->weight));
}

static void combine_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct moe_job *j = arg;
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    struct moe_act *a = &j->r->act->moe;

    (void)thread;
    for (unsigned t = t0; t < t1; t++) {
        float *sum = a->sum + t * a->latent_w;

        memset(sum, 0, a->latent_w * sizeof(*sum));
        for (unsigned i = 0; i < hp->top_k; i++)
            m->k.axpy(sum, a->weight[t * hp->top_k + i],
                      a->slot + ((size_t)t * hp->top_k + i) * hp->latent, hp->latent);
        if (hp->latent_norm)
            m->k.rmsnorm(sum, sum, j->l->moe.latent_norm, hp->latent, hp->eps);
    }
}

struct add_job {
    struct moe_job *j;
    float *y;
};

static void add_shared(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct add_job *job = arg;
    struct run *r = job->j->r;
    struct moe_act *a = &r->act->moe;
    unsigned n = r->model->hp.hidden;

    (void)thread;
    for (unsigned t = t0; t < t1; t++) {
        float *y = job->y + t * r->act->hidden_w;

        if (!r->model->hp.latent_moe)
            memcpy(y, a->sum + t * a->latent_w, n * sizeof(*y));
        r->model->k.add(y, a->shared + (size_t)t * n, n);
    }
}

static int pin_all(struct moe_job *j, unsigned n, struct err *e)
{
    struct expert_source *src = j->r->experts;
    struct moe_act *a = &j->r->act->moe;

    while (n) {
        struct expert x;
        unsigned which;

        if (j->r->poll)
            j->r->poll(j->r->poll_arg);
        if (progress_cancelled(j->r->progress))
            return err_set(e, ERR_CANCELLED, "cancelled in layer %u", j->layer);
        if (src->ops->pin_any(src, j->layer, a->wanted, n, &which, &x, e))
            return e->code;
        lap(j->r->laps, LAP_PIN);
        expert_rows(j, &x, a->wanted[which]);
        src->ops->unpin(src, &x);
        lap(j->r->laps, LAP_EXPERTS);
        n--;
        memmove(a->wanted + which, a->wanted + which + 1, (n - which) * sizeof(*a->wanted));
    }
    return 0;
}

int moe_block(struct run *r, unsigned layer, const float *x, float *y, struct err *e)
{
    const struct model *m = r->model;
    const struct hparams *hp = &m->hp;
    struct moe_act *a = &r->act->moe;
    struct moe_job j = {
        .r = r, .l = &m->layer[layer], .layer = layer, .u = x, .z = x, .z_w = r->act->hidden_w};
    unsigned T = r->rows->n, n;

    product(r, &j.l->moe.router, x, r->act->hidden_w, a->score, hp->n_experts, T);
    atomic_init(&j.failed, 0);
    team_for(r->team, T, 1, route_rows, &j);
    if (atomic_load(&j.failed))
        return err_set(e, ERR_CORRUPT,
                       "layer %u: a router score of row %d is not finite; some weight or state is "
                       "damaged",
                       layer, atomic_load(&j.failed) - 1);
    tap_route(&j);
    n = plan(&j);
    r->experts->ops->hint(r->experts, layer, a->wanted, n, HINT_SURE);
    look_ahead(r, layer + 1, x); /* its guesses wait behind every sure read */
    lap(r->laps, LAP_ROUTE);
    ffn_rows(r, &j.l->ffn, x, a->shared, hp->hidden); /* while the experts are on their way */
    lap(r->laps, LAP_MLP);
    if (hp->latent_moe) {
        act_zero_padding(a->z, T, a->latent_w, hp->latent);
        product(r, &j.l->moe.latent_down, x, r->act->hidden_w, a->z, a->latent_w, T);
        j.z = a->z;
        j.z_w = a->latent_w;
    }
    expert_tables(&j);
    lap(r->laps, LAP_EXPERTS);
    if (pin_all(&j, n, e))
        return e->code; /* nothing was committed: every session is as it was */
    team_for(r->team, T, 1, combine_rows, &j);
    if (hp->latent_moe)
        product(r, &j.l->moe.latent_up, a->sum, a->latent_w, y, r->act->hidden_w, T);
    struct add_job add = {&j, y};
    team_for(r->team, T, 1, add_shared, &add);
    return 0;
}
