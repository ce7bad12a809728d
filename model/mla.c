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

/* Heads [h0, h1) of one span, all its rows: carry the query over, attend, carry the context back.
 */
static void attend_heads(void *arg, unsigned h0, unsigned h1, unsigned thread)
{
    struct mla_job *j = arg;
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    struct mla_act *a = &j->r->act->mla;
    unsigned stride = hparams_latent_stride(hp), width = hp->kv_lora + hp->rope;
    unsigned per_head = hp->nope + hp->v_dim, qd = hp->nope + hp->rope;
    float *query = a->query + (size_t)thread * stride,
          *scratch = a->scratch + thread * a->scratch_n;
    float *context = a->context + (size_t)thread * j->r->act->shape.rows * a->kv_lora_w;
    const float *keys = session_latent(j->span->session, j->nth, 0);

    act_zero_padding(context, j->span->n, a->kv_lora_w, hp->kv_lora);
    for (unsigned h = h0; h < h1; h++) {
        struct tensor values = rows_of(&j->w->kv_b, h * per_head + hp->nope, hp->v_dim);

        for (unsigned t = 0; t < j->span->n; t++) {
            size_t row = j->span->row0 + t;
            const float *q = a->q + (row * hp->n_heads + h) * qd;

            memset(query, 0, stride * sizeof(*query));
            m->k.axpy_rows(query, q, &j->w->kv_b, h * per_head, hp->nope);
            memcpy(query + hp->kv_lora, q + hp->nope, hp->rope * sizeof(*query));
            m->k.attend(context + t * a->kv_lora_w, query, keys, stride, j->span->pos0 + t + 1,
                        width, hp->kv_lora, hp->attn_scale, scratch);
        }
        m->k.gemv(a->o + j->span->row0 * a->out_w + h * hp->v_dim, a->out_w, context, a->kv_lora_w,
                  j->span->n, &values, 0, hp->v_dim);
    }
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

    if (hp->q_lora) {
        act_zero_padding(a->q_low, T, a->q_lora_w, hp->q_lora);
        product(r, &j->w->q_a, x, x_w, a->q_low, a->q_lora_w, T);
        team_for(r->team, T, 1, norm_low, j);
        product(r, &j->w->q_b, a->q_low, a->q_lora_w, a->q, qd, T);
    } else {
        product(r, &j->w->q, x, x_w, a->q, qd, T);
    }
    product(r, &j->w->kv_a, x, x_w, a->kv, hp->kv_lora + hp->rope, T);
    if (hp->mla_gate)
        product(r, &j->w->g, x, x_w, a->gate, (size_t)hp->n_heads * hp->v_dim, T);
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
        team_for(r->team, hp->n_heads, 1, attend_heads, &j);
    }
    if (hp->mla_gate)
        team_for(r->team, r->rows->n, 1, gate_rows, &j);
    product(r, &l->mla.o, a->o, a->out_w, y, r->act->hidden_w, r->rows->n);
}
