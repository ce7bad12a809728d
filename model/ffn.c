/* ffn.c - the gated MLP of dense layers and of shared experts; products split over the team. */
#include "model/layers.h"

struct product_job {
    const struct model *m;
    const struct tensor *w;
    const float *x;
    float *y;
    size_t x_w, y_w;
    unsigned T;
};

static void product_rows(void *arg, unsigned r0, unsigned r1, unsigned thread)
{
    struct product_job *j = arg;

    (void)thread;
    j->m->k.gemv(j->y, j->y_w, j->x, j->x_w, j->T, j->w, r0, r1);
}

void product(struct run *r, const struct tensor *w, const float *x, size_t x_w, float *y,
             size_t y_w, unsigned T)
{
    struct product_job j = {r->model, w, x, y, x_w, y_w, T};

    team_for(r->team, w->rows, 16, product_rows, &j);
}

void gated(const struct model *m, float *y, const float *g, const float *u, unsigned n)
{
    if (m->hp.act == ACT_SITU)
        m->k.situ_mul(y, g, u, n, m->hp.situ_beta, m->hp.situ_lambda);
    else
        m->k.silu_mul(y, g, u, n);
}

struct gate_job {
    struct run *r;
    unsigned n;
};

static void gate_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct gate_job *j = arg;
    struct ffn_act *a = &j->r->act->ffn;

    (void)thread;
    for (unsigned t = t0; t < t1; t++)
        gated(j->r->model, a->gate + t * a->inner_w, a->gate + t * a->inner_w,
              a->up + t * a->inner_w, j->n);
}

void ffn_rows(struct run *r, const struct ffn_weights *w, const float *x, float *y, size_t y_w)
{
    struct ffn_act *a = &r->act->ffn;
    struct gate_job j = {r, w->gate.rows};
    unsigned T = r->rows->n;

    product(r, &w->gate, x, r->act->hidden_w, a->gate, a->inner_w, T);
    product(r, &w->up, x, r->act->hidden_w, a->up, a->inner_w, T);
    team_for(r->team, T, 1, gate_rows, &j);
    act_zero_padding(a->gate, T, a->inner_w, w->gate.rows);
    product(r, &w->down, a->gate, a->inner_w, y, y_w, T);
}

void ffn_block(struct run *r, unsigned layer, const float *x, float *y)
{
    ffn_rows(r, &r->model->layer[layer].ffn, x, y, r->act->hidden_w);
}
