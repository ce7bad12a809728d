/* moe.c - routed experts: plan, hint, pin as they arrive, apply, combine in selection order.
 *
 * Each distinct expert of a pass is pinned once and used for every row that chose it; what it says
 * goes, unweighted, into the slot that the row's selection gave it. The sum over slots is taken at
 * the end in selection order, so the order of arrival never shows.
 */
#include <string.h>

#include "model/layers.h"
#include "model/router.h"

struct moe_job {
    struct run *r;
    const struct layer *l;
    unsigned layer;
    const float *u; /* router input and input of the shared experts: stride hidden_w */
    const float *z; /* input of the routed experts */
    size_t z_w;
    const struct expert *x; /* the expert at hand */
    const uint32_t *user;   /* its users: row * K + slot */
    atomic_int failed;      /* a router row that failed, + 1 */
};

static uint8_t *thread_table(struct moe_act *a, unsigned thread, enum matrix m)
{
    uint8_t *t = a->table + thread * a->tables_bytes;

    for (unsigned i = 0; i < m; i++)
        t += a->table_bytes[i];
    return t;
}

static uint8_t *kept_table(struct moe_act *a, unsigned row, enum matrix m)
{
    uint8_t *t = a->kept + row * (a->table_bytes[MATRIX_GATE] + a->table_bytes[MATRIX_UP]);

    return m == MATRIX_UP ? t + a->table_bytes[MATRIX_GATE] : t;
}

/* ---- routing ---- */

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

/* ---- one expert ---- */

enum { PREPARE_GRAIN = 32, ROWS_GRAIN = 64 };

/* The four steps of one expert for one row; ranges are split over the team when the row is alone,
 * and whole when each thread has rows of its own. */
struct one {
    struct moe_job *j;
    unsigned row, slot, thread;
    const uint8_t *table[2];
    float *g, *u;
};

static struct one one_of(struct moe_job *j, uint32_t user, unsigned thread)
{
    struct moe_act *a = &j->r->act->moe;
    unsigned K = j->r->model->hp.top_k;
    struct one o = {.j = j, .row = user / K, .slot = user % K, .thread = thread};

    for (unsigned m = 0; m < 2; m++)
        o.table[m] = o.row < a->kept_rows ? kept_table(a, o.row, m) : thread_table(a, thread, m);
    o.g = a->inner + (size_t)thread * 2 * a->inter_w;
    o.u = o.g + a->inter_w;
    return o;
}

static uint32_t positions(const struct rvq_shape *s)
{
    return s->cols / 8;
}

static void prepare_in(struct moe_job *j, unsigned row, uint8_t *gate, uint8_t *up, uint32_t p0,
                       uint32_t p1)
{
    const struct model *m = j->r->model;
    const float *x = j->z + row * j->z_w;

    m->k.rvq_prepare(gate, x, j->l->moe.codebook[MATRIX_GATE], &m->rvq[MATRIX_GATE], p0, p1);
    m->k.rvq_prepare(up, x, j->l->moe.codebook[MATRIX_UP], &m->rvq[MATRIX_UP], p0, p1);
}

static void apply_in(struct one *o, uint32_t r0, uint32_t r1)
{
    const struct model *m = o->j->r->model;
    const struct expert *x = o->j->x;

    m->k.rvq_rows(o->g, o->table[MATRIX_GATE], x->index[MATRIX_GATE], x->scale[MATRIX_GATE],
                  &m->rvq[MATRIX_GATE], r0, r1);
    m->k.rvq_rows(o->u, o->table[MATRIX_UP], x->index[MATRIX_UP], x->scale[MATRIX_UP],
                  &m->rvq[MATRIX_UP], r0, r1);
}

static void prepare_down(struct one *o, uint32_t p0, uint32_t p1)
{
    const struct model *m = o->j->r->model;

    m->k.rvq_prepare(thread_table(&o->j->r->act->moe, o->thread, MATRIX_DOWN), o->g,
                     o->j->l->moe.codebook[MATRIX_DOWN], &m->rvq[MATRIX_DOWN], p0, p1);
}

static void apply_down(struct one *o, uint32_t r0, uint32_t r1)
{
    const struct model *m = o->j->r->model;
    struct moe_act *a = &o->j->r->act->moe;
    float *out = a->slot + ((size_t)o->row * m->hp.top_k + o->slot) * m->hp.latent;

    m->k.rvq_rows(out, thread_table(a, o->thread, MATRIX_DOWN), o->j->x->index[MATRIX_DOWN],
                  o->j->x->scale[MATRIX_DOWN], &m->rvq[MATRIX_DOWN], r0, r1);
}

static void split_apply_in(void *arg, unsigned r0, unsigned r1, unsigned thread)
{
    (void)thread;
    apply_in(arg, r0, r1);
}

static void split_prepare_down(void *arg, unsigned p0, unsigned p1, unsigned thread)
{
    (void)thread;
    prepare_down(arg, p0, p1);
}

static void split_apply_down(void *arg, unsigned r0, unsigned r1, unsigned thread)
{
    (void)thread;
    apply_down(arg, r0, r1);
}

static void split_prepare_in(void *arg, unsigned p0, unsigned p1, unsigned thread)
{
    struct one *o = arg;

    (void)thread;
    prepare_in(o->j, o->row, (uint8_t *)o->table[MATRIX_GATE], (uint8_t *)o->table[MATRIX_UP], p0,
               p1);
}

static void expert_alone(struct moe_job *j, uint32_t user)
{
    const struct model *m = j->r->model;
    struct one o = one_of(j, user, 0);

    if (o.row >= j->r->act->moe.kept_rows)
        team_for(j->r->team, positions(&m->rvq[MATRIX_GATE]), PREPARE_GRAIN, split_prepare_in, &o);
    team_for(j->r->team, m->hp.inter, ROWS_GRAIN, split_apply_in, &o);
    gated(m, o.g, o.g, o.u, m->hp.inter);
    team_for(j->r->team, positions(&m->rvq[MATRIX_DOWN]), PREPARE_GRAIN, split_prepare_down, &o);
    team_for(j->r->team, m->hp.latent, ROWS_GRAIN, split_apply_down, &o);
}

static void expert_users(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct moe_job *j = arg;
    const struct model *m = j->r->model;

    for (unsigned i = i0; i < i1; i++) {
        struct one o = one_of(j, j->user[i], thread);

        if (o.row >= j->r->act->moe.kept_rows)
            prepare_in(j, o.row, (uint8_t *)o.table[MATRIX_GATE], (uint8_t *)o.table[MATRIX_UP], 0,
                       positions(&m->rvq[MATRIX_GATE]));
        apply_in(&o, 0, m->hp.inter);
        gated(m, o.g, o.g, o.u, m->hp.inter);
        prepare_down(&o, 0, positions(&m->rvq[MATRIX_DOWN]));
        apply_down(&o, 0, m->hp.latent);
    }
}

static void expert_rows(struct moe_job *j, const struct expert *x, unsigned id)
{
    struct moe_act *a = &j->r->act->moe;
    unsigned n = a->first[id + 1] - a->first[id];

    j->x = x;
    j->user = a->user + a->first[id];
    for (unsigned i = 0; n < team_size(j->r->team) && i < n; i++)
        expert_alone(j, j->user[i]); /* fewer users than threads: each by all threads */
    if (n >= team_size(j->r->team))
        team_for(j->r->team, n, 1, expert_users, j);
}

/* ---- around them ---- */

struct keep_job {
    struct moe_job *j;
    unsigned row;
};

static void keep_tables(void *arg, unsigned p0, unsigned p1, unsigned thread)
{
    struct keep_job *k = arg;
    struct moe_act *a = &k->j->r->act->moe;

    (void)thread;
    prepare_in(k->j, k->row, kept_table(a, k->row, MATRIX_GATE), kept_table(a, k->row, MATRIX_UP),
               p0, p1);
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
        expert_rows(j, &x, a->wanted[which]);
        src->ops->unpin(src, &x);
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
    look_ahead(r, layer + 1, x);                      /* its guesses wait behind every sure read */
    ffn_rows(r, &j.l->ffn, x, a->shared, hp->hidden); /* while the experts are on their way */
    if (hp->latent_moe) {
        act_zero_padding(a->z, T, a->latent_w, hp->latent);
        product(r, &j.l->moe.latent_down, x, r->act->hidden_w, a->z, a->latent_w, T);
        j.z = a->z;
        j.z_w = a->latent_w;
    }
    for (unsigned row = 0; row < T && row < a->kept_rows; row++) {
        struct keep_job k = {&j, row};

        team_for(r->team, positions(&m->rvq[MATRIX_GATE]), PREPARE_GRAIN, keep_tables, &k);
    }
    if (pin_all(&j, n, e))
        return e->code; /* nothing was committed: every session is as it was */
    team_for(r->team, T, 1, combine_rows, &j);
    if (hp->latent_moe)
        product(r, &j.l->moe.latent_up, a->sum, a->latent_w, y, r->act->hidden_w, T);
    struct add_job add = {&j, y};
    team_for(r->team, T, 1, add_shared, &add);
    return 0;
}
