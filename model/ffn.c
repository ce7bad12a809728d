/* ffn.c - the gated MLP of dense layers and of shared experts; products split over the team. */
#include "model/layers.h"

enum { UNIT = 16 }; /* rows that stay together */

struct product_job {
    const struct model *m;
    const struct product *p;
    unsigned n, T;
};

static unsigned units(const struct product *p)
{
    return (p->w->rows + UNIT - 1) / UNIT;
}

/* Units [u0, u1) of all products, one after the other. */
static void product_units(void *arg, unsigned u0, unsigned u1, unsigned thread)
{
    struct product_job *j = arg;

    (void)thread;
    for (const struct product *p = j->p; u1 && p < j->p + j->n; p++) {
        unsigned here = units(p);

        if (u0 < here) {
            unsigned r1 = u1 < here ? u1 * UNIT : p->w->rows;

            j->m->k.gemv(p->y, p->y_w, p->x, p->x_w, j->T, p->w, u0 * UNIT, r1);
        }
        u0 = u0 > here ? u0 - here : 0;
        u1 = u1 > here ? u1 - here : 0;
    }
}

void products(struct run *r, const struct product *p, unsigned n, unsigned T)
{
    struct product_job j = {r->model, p, n, T};
    unsigned all = 0;

    for (unsigned i = 0; i < n; i++)
        all += units(&p[i]);
    team_for(r->team, all, 1, product_units, &j);
}

void product(struct run *r, const struct tensor *w, const float *x, size_t x_w, float *y,
             size_t y_w, unsigned T)
{
    products(r, &(struct product){w, x, x_w, y, y_w}, 1, T);
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
    const struct product in[] = {{&w->gate, x, r->act->hidden_w, a->gate, a->inner_w},
                                 {&w->up, x, r->act->hidden_w, a->up, a->inner_w}};
    unsigned T = r->rows->n;

    products(r, in, 2, T);
    team_for(r->team, T, 1, gate_rows, &j);
    act_zero_padding(a->gate, T, a->inner_w, w->gate.rows);
    product(r, &w->down, a->gate, a->inner_w, y, y_w, T);
}

void ffn_block(struct run *r, unsigned layer, const float *x, float *y)
{
    const struct model *m = r->model;

    if (layer + 1 < m->hp.n_layers && m->layer[layer + 1].mlp == MLP_MOE)
        look_ahead(r, layer + 1, x); /* the first of them is worth a guess, too */
    ffn_rows(r, &m->layer[layer].ffn, x, y, r->act->hidden_w);
}
