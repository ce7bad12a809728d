/* expert.c - one pinned expert, applied to the rows that chose it: gate and up from the row's
 * tables, activation, down. The team splits these steps when a row is alone with its expert, and
 * takes whole rows when many share one. */
#include "model/moe.h"

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

enum {
    PREPARE_GRAIN = 32,
    INNER_GRAIN = 8 * PREPARE_GRAIN, /* rows of gate and up that are so many positions of down */
    ROWS_GRAIN = 64,
    ROWS_TOGETHER = 256, /* kernels load a table once for as many; more of them are worth more, */
    ROWS_ENOUGH = 512,   /* up to here */
};

/* One expert for one row; ranges are split over the team when the row is alone, and whole when each
 * thread has rows of its own. */
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

/* From the input's tables to those of the inner vector, for inner channels [r0, r1). */
static void inner(struct one *o, uint32_t r0, uint32_t r1)
{
    apply_in(o, r0, r1);
    gated(o->j->r->model, o->g + r0, o->g + r0, o->u + r0, r1 - r0);
    prepare_down(o, r0 / 8, (r1 + 7) / 8);
}

static void split_inner(void *arg, unsigned r0, unsigned r1, unsigned thread)
{
    (void)thread;
    inner(arg, r0, r1);
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

/* Whether pieces of so many rows can keep all threads at work, but for a fifth of the time. */
static bool even(unsigned n, unsigned grain, unsigned threads)
{
    unsigned units = (n + grain - 1) / grain;

    return 4 * ((units + threads - 1) / threads * threads) <= 5 * units;
}

/* Rows of a piece: a thread's share in one, unless that is a lot. Each piece loads the whole table
 * of its input, so small ones are for many threads only. */
static unsigned piece(unsigned n, unsigned threads)
{
    unsigned grain = ROWS_TOGETHER, share;

    while (grain > ROWS_GRAIN && !even(n, grain, threads))
        grain /= 2;
    share = ((n + grain - 1) / grain + threads - 1) / threads * grain;
    return share < 2 * ROWS_ENOUGH ? share : ROWS_ENOUGH;
}

static void expert_alone(struct moe_job *j, uint32_t user)
{
    const struct model *m = j->r->model;
    unsigned threads = team_size(j->r->team), inter = m->hp.inter;
    struct one o = one_of(j, user, 0);

    if (o.row >= j->r->act->moe.kept_rows)
        team_for(j->r->team, positions(&m->rvq[MATRIX_GATE]), PREPARE_GRAIN, split_prepare_in, &o);
    if (even(inter, INNER_GRAIN, threads)) {
        team_for(j->r->team, inter, piece(inter, threads), split_inner, &o);
    } else { /* one fork more, for more threads than there are large pieces */
        team_for(j->r->team, inter, piece(inter, threads), split_apply_in, &o);
        gated(m, o.g, o.g, o.u, inter);
        team_for(j->r->team, positions(&m->rvq[MATRIX_DOWN]), PREPARE_GRAIN, split_prepare_down,
                 &o);
    }
    team_for(j->r->team, m->hp.latent, piece(m->hp.latent, threads), split_apply_down, &o);
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
        inner(&o, 0, m->hp.inter);
        apply_down(&o, 0, m->hp.latent);
    }
}

void expert_rows(struct moe_job *j, const struct expert *x, unsigned id)
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

void expert_tables(struct moe_job *j)
{
    struct run *r = j->r;

    for (unsigned row = 0; row < r->rows->n && row < r->act->moe.kept_rows; row++) {
        struct keep_job k = {j, row};

        team_for(r->team, positions(&r->model->rvq[MATRIX_GATE]), PREPARE_GRAIN, keep_tables, &k);
    }
}
