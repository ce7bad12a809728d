/* kda.c - Kimi Delta Attention: projections of all rows at once, then the recurrence head by head,
 * span by span, in the recurrent form for prompts too (docs/ARITHMETIC.md has why). */
#include <math.h>
#include <string.h>

#include "model/layers.h"
#include "model/session.h"

struct kda_job {
    struct run *r;
    const struct kda_weights *w;
    const struct span *span;
    unsigned nth, n_span; /* KDA layer number; span number */
};

static float *edge_of(struct kda_job *j, unsigned qkv)
{
    const struct hparams *hp = &j->r->model->hp;
    size_t each = 2 * session_window_floats(hp);

    return j->r->act->kda.edge + (j->n_span * 3 + qkv) * each;
}

static float *linear_of(struct kda_act *a, unsigned qkv)
{
    return qkv == 0 ? a->q_lin : qkv == 1 ? a->k_lin : a->v_lin;
}

/* The convolution of a span's first rows reaches back into the session's window: lay that window
 * and the rows that follow it side by side, and leave the span's last rows as the next window. */
static void windows(struct kda_job *j)
{
    const struct hparams *hp = &j->r->model->hp;
    struct kda_act *a = &j->r->act->kda;
    size_t C = hparams_kda_channels(hp), back = hp->conv_taps - 1;
    const struct span *s = j->span;
    size_t head = s->n < back ? s->n : back;

    for (unsigned qkv = 0; qkv < 3; qkv++) {
        const float *old = session_window(s->session, j->nth, qkv, true);
        const float *rows = linear_of(a, qkv) + s->row0 * C;
        float *next = session_window(s->session, j->nth, qkv, false), *edge = edge_of(j, qkv);

        memcpy(edge, old, back * C * sizeof(float));
        memcpy(edge + back * C, rows, head * C * sizeof(float));
        if (s->n >= back)
            memcpy(next, rows + (s->n - back) * C, back * C * sizeof(float));
        else
            memcpy(next, edge + s->n * C, back * C * sizeof(float));
    }
}

/* Rows [t0, t1) of a span: convolution, norms, gates. */
static void prepare_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct kda_job *j = arg;
    const struct model *m = j->r->model;
    const struct hparams *hp = &m->hp;
    const struct kernels *k = &m->k;
    struct kda_act *a = &j->r->act->kda;
    unsigned C = hparams_kda_channels(hp), D = hp->kda_dim, H = hp->kda_heads;
    unsigned back = hp->conv_taps - 1;
    const float *conv[3] = {j->w->q_conv, j->w->k_conv, j->w->v_conv};
    float *out[3] = {a->q, a->k, a->v};
    float q_scale = (float)(1 / sqrt((double)D));

    (void)thread;
    for (unsigned t = t0; t < t1; t++) {
        size_t row = j->span->row0 + t;

        for (unsigned i = 0; i < 3; i++) {
            const float *rows = linear_of(a, i) + (size_t)j->span->row0 * C;
            const float *window = t < back ? edge_of(j, i) + t * C : rows + (t - back) * C;

            k->conv_silu(out[i] + row * C, window, rows + t * C, conv[i], C, hp->conv_taps);
        }
        for (unsigned h = 0; h < H; h++) {
            float *d = a->decay + row * C + h * D;

            k->l2norm(a->q + row * C + h * D, D, hp->l2_eps, q_scale);
            k->l2norm(a->k + row * C + h * D, D, hp->l2_eps, 1);
            k->decay(d, d, j->w->dt_bias + h * D, j->w->decay_rate[h], hp->gate_lower_bound, D);
        }
        k->sigmoid(a->beta + row * H, a->beta + row * H, H);
    }
}

/* What the heads answered, normed and gated, into the input of the output projection. */
static void gate_heads(const struct kda_job *j, unsigned h0, unsigned h1)
{
    const struct hparams *hp = &j->r->model->hp;
    const struct kernels *k = &j->r->model->k;
    struct kda_act *a = &j->r->act->kda;
    unsigned C = hparams_kda_channels(hp), D = hp->kda_dim;

    for (size_t t = j->span->row0; t < j->span->row0 + j->span->n; t++)
        for (unsigned h = h0; h < h1; h++) {
            float *out = a->gated + t * a->chan_w + h * D;

            k->rmsnorm(out, a->o + t * C + h * D, j->w->o_norm, D, hp->eps);
            k->sigmoid_mul(out, a->gate + t * C + h * D, D);
        }
}

/* Head after head, all rows of a span in turn: the state of a head stays in cache. */
static void recur_heads(void *arg, unsigned h0, unsigned h1, unsigned thread)
{
    struct kda_job *j = arg;
    const struct hparams *hp = &j->r->model->hp;
    struct kda_act *a = &j->r->act->kda;
    size_t at = (size_t)j->span->row0 * hparams_kda_channels(hp);
    struct delta_shape shape = {hp->kda_heads, hp->kda_dim, hp->kda_dim};

    (void)thread;
    j->r->model->k.delta_heads(
        a->o + at, session_state_to(j->span->session, j->nth),
        session_state_from(j->span->session, j->nth), a->q + at, a->k + at, a->v + at,
        a->decay + at, a->beta + (size_t)j->span->row0 * hp->kda_heads, j->span->n, &shape, h0, h1);
    gate_heads(j, h0, h1);
}

static void project(struct run *r, const struct kda_weights *w, const float *x)
{
    const struct hparams *hp = &r->model->hp;
    struct kda_act *a = &r->act->kda;
    unsigned C = hparams_kda_channels(hp), T = r->rows->n;
    size_t x_w = r->act->hidden_w;
    const struct product of_x[] = {
        {&w->q, x, x_w, a->q_lin, C},
        {&w->k, x, x_w, a->k_lin, C},
        {&w->v, x, x_w, a->v_lin, C},
        {&w->b, x, x_w, a->beta, hp->kda_heads},
        {&w->f_a, x, x_w, a->low_f, a->dim_w},
        hp->kda_full_gate ? (struct product){&w->g, x, x_w, a->gate, C}
                          : (struct product){&w->g_a, x, x_w, a->low_g, a->dim_w},
    };
    const struct product of_low[] = {{&w->f_b, a->low_f, a->dim_w, a->decay, C},
                                     {&w->g_b, a->low_g, a->dim_w, a->gate, C}};

    act_zero_padding(a->low_f, T, a->dim_w, hp->kda_dim);
    act_zero_padding(a->low_g, T, a->dim_w, hp->kda_dim);
    act_zero_padding(a->gated, T, a->chan_w, C);
    products(r, of_x, 6, T);
    products(r, of_low, hp->kda_full_gate ? 1 : 2, T);
}

void kda_block(struct run *r, unsigned layer, const float *x, float *y)
{
    const struct layer *l = &r->model->layer[layer];
    const struct kda_act *a = &r->act->kda;
    struct kda_job j = {.r = r, .w = &l->kda, .nth = l->nth};

    project(r, &l->kda, x);
    for (unsigned i = 0; i < r->rows->n_spans; i++) {
        j.span = &r->rows->span[i];
        j.n_span = i;
        windows(&j);
        team_for(r->team, j.span->n, 1, prepare_rows, &j);
        team_for(r->team, r->model->hp.kda_heads, 1, recur_heads, &j);
    }
    product(r, &l->kda.o, a->gated, a->chan_w, y, r->act->hidden_w, r->rows->n);
}
