/* mla.c - multi-head latent attention, absorbed: the query is carried into the latent space, so
 * that one row of [c; k_r] per position serves every head (DeepSeek-V2, arXiv:2405.04434). */
#include <math.h>
#include <string.h>

#include "model/layers.h"
#include "model/session.h"

struct mla_job {
    struct run *r;
    const struct mla_weights *w;
    const struct span *span;
    unsigned nth; /* MLA layer number */
};

/* Pairs (2j, 2j + 1) turn by position * freq_j. */
static void rotate(float *x, const float *c, const float *s, unsigned pairs)
{
    for (unsigned j = 0; j < pairs; j++) {
        float a = x[2 * j], b = x[2 * j + 1];

        x[2 * j] = fmaf(a, c[j], -(b * s[j]));
        x[2 * j + 1] = fmaf(a, s[j], b * c[j]);
    }
}

/* Rows of a span: latent normed, keys and queries rotated, the row appended to the cache. */
static void append_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct mla_job *j = arg;
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    struct act *act = j->r->act;
    unsigned qd = hp->nope + hp->rope, pairs = hp->rope / 2, kv = hp->kv_lora + hp->rope;

    (void)thread;
    for (unsigned t = t0; t < t1; t++) {
        size_t row = j->span->row0 + t;
        float *src = act->mla.kv + row * kv;
        float *dst = session_latent(j->span->session, j->nth, j->span->pos0 + t);
        const float *c = act->rope_cos + row * pairs, *s = act->rope_sin + row * pairs;

        m->k.rmsnorm(dst, src, j->w->kv_norm, hp->kv_lora, hp->latent_eps);
        if (hp->mla_rotary) {
            rotate(src + hp->kv_lora, c, s, pairs);
            for (unsigned h = 0; h < hp->n_heads; h++)
                rotate(act->mla.q + (row * hp->n_heads + h) * qd + hp->nope, c, s, pairs);
        }
        memcpy(dst + hp->kv_lora, src + hp->kv_lora, hp->rope * sizeof(float));
    }
}

/* A run of rows of a matrix, as a matrix. */
static struct tensor rows_of(const struct tensor *w, uint32_t r0, uint32_t n)
{
    struct tensor v = *w;

    v.rows = n;
    v.data += r0 * w->row_bytes;
    v.scale = w->scale ? w->scale + (size_t)r0 * w->groups : NULL;
    return v;
}

struct group { /* of heads and rows of a span, at most MLA_QUERIES together, on one thread */
    unsigned h0, heads, t0, rows;
    float *query, *context, *scratch;
};

/* Queries carried over to the latent space: [row][head]. */
static void carry_queries(const struct mla_job *j, const struct group *g)
{
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    unsigned stride = hparams_latent_stride(hp), qd = hp->nope + hp->rope;

    for (unsigned i = 0; i < g->rows * g->heads; i++) {
        unsigned h = g->h0 + i % g->heads;
        size_t row = j->span->row0 + g->t0 + i / g->heads;
        const float *q = j->r->act->mla.q + (row * hp->n_heads + h) * qd;
        float *query = g->query + (size_t)i * stride;

        memset(query, 0, stride * sizeof(*query));
        m->k.axpy_rows(query, q, &j->w->kv_b, h * (hp->nope + hp->v_dim), hp->nope);
        memcpy(query + hp->kv_lora, q + hp->nope, hp->rope * sizeof(*query));
    }
}

/* Contexts carried back: each head's rows of values. */
static void carry_contexts(const struct mla_job *j, const struct group *g)
{
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    struct mla_act *a = &j->r->act->mla;
    float *o = a->o + ((size_t)j->span->row0 + g->t0) * a->out_w;

    for (unsigned i = 0; i < g->heads; i++) {
        unsigned h = g->h0 + i;
        struct tensor values =
            rows_of(&j->w->kv_b, h * (hp->nope + hp->v_dim) + hp->nope, hp->v_dim);

        m->k.gemv(o + (size_t)h * hp->v_dim, a->out_w, g->context + i * a->kv_lora_w,
                  g->heads * a->kv_lora_w, g->rows, &values, 0, hp->v_dim);
    }
}

static void attend_group(const struct mla_job *j, const struct group *g)
{
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    const struct attend_shape shape = {.heads = g->heads,
                                       .width = hp->kv_lora + hp->rope,
                                       .value_width = hp->kv_lora,
                                       .q_stride = hparams_latent_stride(hp),
                                       .key_stride = hparams_latent_stride(hp),
                                       .out_stride = j->r->act->mla.kv_lora_w,
                                       .scale = hp->attn_scale};

    carry_queries(j, g);
    m->k.attend(g->context, g->query, session_latent(j->span->session, j->nth, 0),
                j->span->pos0 + g->t0 + 1, g->rows, &shape, g->scratch);
    carry_contexts(j, g);
}

/* Heads [h0, h1) of one span: many rows of one head, or many heads of few rows, so that a block of
 * keys serves as many queries as there is room for. */
static void attend_heads(void *arg, unsigned h0, unsigned h1, unsigned thread)
{
    const struct mla_job *j = arg;
    const struct hparams *hp = &j->r->model->hp;
    const struct mla_act *a = &j->r->act->mla;
    size_t query = (size_t)thread * MLA_QUERIES;
    unsigned rows = j->span->n < MLA_QUERIES ? j->span->n : MLA_QUERIES;
    struct group g = {.query = a->query + query * hparams_latent_stride(hp),
                      .context = a->context + query * a->kv_lora_w,
                      .scratch = a->scratch + thread * a->scratch_n};

    act_zero_padding(g.context, MLA_QUERIES, a->kv_lora_w, hp->kv_lora);
    for (g.h0 = h0; g.h0 < h1; g.h0 += g.heads) {
        g.heads = h1 - g.h0 < MLA_QUERIES / rows ? h1 - g.h0 : MLA_QUERIES / rows;
        for (g.t0 = 0; g.t0 < j->span->n; g.t0 += g.rows) {
            g.rows = j->span->n - g.t0 < rows ? j->span->n - g.t0 : rows;
            attend_group(j, &g);
        }
    }
}

/* Heads of a piece. Where a row's heads share a call, a piece is a thread's share of them, in calls
 * as large as there is room for and of whole tiles: each call reads all keys again, and queries
 * that do not fill a tile take as long as one that does. */
static unsigned head_grain(const struct mla_job *j)
{
    unsigned most = MLA_QUERIES / (j->span->n < MLA_QUERIES ? j->span->n : MLA_QUERIES);
    unsigned threads = team_size(j->r->team), share, calls, grain;

    if (most < ATTEND_QUERIES)
        return 1;
    share = (j->r->model->hp.n_heads + threads - 1) / threads;
    calls = (share + most - 1) / most;
    grain = (share + calls - 1) / calls;
    return (grain + ATTEND_QUERIES - 1) / ATTEND_QUERIES * ATTEND_QUERIES;
}

static void gate_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct mla_job *j = arg;
    struct mla_act *a = &j->r->act->mla;
    size_t n = (size_t)j->r->model->hp.n_heads * j->r->model->hp.v_dim;

    (void)thread;
    for (unsigned t = t0; t < t1; t++)
        j->r->model->k.sigmoid_mul(a->o + t * a->out_w, a->gate + t * n, (uint32_t)n);
}

static void norm_low(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct mla_job *j = arg;
    struct mla_act *a = &j->r->act->mla;
    const struct hparams *hp = &j->r->model->hp;

    (void)thread;
    for (unsigned t = t0; t < t1; t++) {
        float *q = a->q_low + t * a->q_lora_w;

        j->r->model->k.rmsnorm(q, q, j->w->q_norm, hp->q_lora, hp->latent_eps);
    }
}

static void project(struct mla_job *j, const float *x)
{
    struct run *r = j->r;
    const struct hparams *hp = &r->model->hp;
    struct mla_act *a = &r->act->mla;
    unsigned T = r->rows->n, qd = hp->n_heads * (hp->nope + hp->rope);
    size_t x_w = r->act->hidden_w;
    const struct product of_x[] = {
        hp->q_lora ? (struct product){&j->w->q_a, x, x_w, a->q_low, a->q_lora_w}
                   : (struct product){&j->w->q, x, x_w, a->q, qd},
        {&j->w->kv_a, x, x_w, a->kv, hp->kv_lora + hp->rope},
        {&j->w->g, x, x_w, a->gate, (size_t)hp->n_heads * hp->v_dim},
    };

    products(r, of_x, hp->mla_gate ? 3 : 2, T);
    if (hp->q_lora) {
        act_zero_padding(a->q_low, T, a->q_lora_w, hp->q_lora);
        team_for(r->team, T, 1, norm_low, j);
        product(r, &j->w->q_b, a->q_low, a->q_lora_w, a->q, qd, T);
    }
}

void mla_block(struct run *r, unsigned layer, const float *x, float *y)
{
    const struct layer *l = &r->model->layer[layer];
    const struct hparams *hp = &r->model->hp;
    struct mla_act *a = &r->act->mla;
    struct mla_job j = {.r = r, .w = &l->mla, .nth = l->nth};

    project(&j, x);
    act_zero_padding(a->o, r->rows->n, a->out_w, (size_t)hp->n_heads * hp->v_dim);
    for (unsigned i = 0; i < r->rows->n_spans; i++) {
        j.span = &r->rows->span[i];
        team_for(r->team, j.span->n, 1, append_rows, &j);
        team_for(r->team, hp->n_heads, head_grain(&j), attend_heads, &j);
    }
    if (hp->mla_gate)
        team_for(r->team, r->rows->n, 1, gate_rows, &j);
    product(r, &l->mla.o, a->o, a->out_w, y, r->act->hidden_w, r->rows->n);
}
