/* residual.c - the residual stream: plain addition, or K3's attention over finished blocks.
 *
 * act->x holds the running sum. With attention residuals the sum starts anew every attn_res_block
 * layers: before such a layer it is kept as a block, and each block of a layer reads a softmax
 * mixture of all kept blocks and the current sum, un-normalised (Kimi K3, arXiv:2607.24653).
 */
#include <math.h>
#include <string.h>

#include "model/kernels/poly.h"
#include "model/layers.h"

static unsigned blocks_before(const struct hparams *hp, unsigned layer, enum res_site site)
{
    /* layer L pushes before its mix when L mod block = 0; the mix itself reads what came before */
    unsigned pushed = (layer + hp->attn_res_block - 1) / hp->attn_res_block;

    return site == RES_MLP && layer % hp->attn_res_block == 0 ? pushed + 1 : pushed;
}

static const float *block_row(const struct run *r, unsigned block, unsigned row)
{
    return r->act->block + ((size_t)block * r->act->shape.rows + row) * r->model->hp.hidden;
}

/* out[d] = sum pi_i v_i[d] over n blocks and the sum p; pi = softmax of dot(norm(v_i), w). */
static void mix(const struct run *r, unsigned n, unsigned row, const float *p, const float *w,
                float *out)
{
    const struct kernels *k = &r->model->k;
    unsigned h = r->model->hp.hidden;
    float pi[FORMAT_LAYERS_MAX + 1], m, sum = 0;

    for (unsigned i = 0; i <= n; i++) {
        const float *v = i < n ? block_row(r, i, row) : p;

        pi[i] = k->dot(v, w, h) * (1 / sqrtf(k->dot(v, v, h) / (float)h + r->model->hp.eps));
    }
    m = pi[0];
    for (unsigned i = 1; i <= n; i++)
        m = pi[i] > m ? pi[i] : m;
    for (unsigned i = 0; i <= n; i++) {
        pi[i] = poly_exp(pi[i] - m);
        sum += pi[i];
    }
    k->scale(out, pi[n] / sum, p, h); /* the sum first: out may be p */
    for (unsigned i = 0; i < n; i++)
        k->axpy(out, pi[i] / sum, block_row(r, i, row), h);
}

struct mix_job {
    struct run *r;
    const float *w;
    unsigned n;
};

static void mix_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct mix_job *j = arg;
    struct act *a = j->r->act;

    (void)thread;
    for (unsigned t = t0; t < t1; t++)
        mix(j->r, j->n, t, a->x + t * a->hidden_w, j->w, a->mixed + t * a->hidden_w);
}

const float *residual_input(struct run *r, unsigned layer, enum res_site site)
{
    const struct hparams *hp = &r->model->hp;
    const struct layer *l = &r->model->layer[layer];
    struct act *a = r->act;
    struct mix_job j = {.r = r, .w = site == RES_MIX ? l->mix_res.both : l->mlp_res.both};
    const float *in = a->x;

    if (!hp->attn_res_block)
        return in;
    j.n = blocks_before(hp, layer, site);
    if (j.n) {
        team_for(r->team, r->rows->n, 1, mix_rows, &j);
        in = a->mixed;
    }
    if (site == RES_MIX && layer % hp->attn_res_block == 0) /* after the mix: keep the plain sum */
        for (unsigned t = 0; t < r->rows->n; t++)
            memcpy((float *)block_row(r, layer / hp->attn_res_block, t), a->x + t * a->hidden_w,
                   hp->hidden * sizeof(float));
    return in;
}

void residual_add(struct run *r, unsigned layer, enum res_site site, const float *y)
{
    const struct hparams *hp = &r->model->hp;
    struct act *a = r->act;
    bool anew = site == RES_MIX && hp->attn_res_block && layer % hp->attn_res_block == 0;

    for (unsigned t = 0; t < r->rows->n; t++) {
        float *x = a->x + t * a->hidden_w;
        const float *yt = y + t * a->hidden_w;

        if (anew)
            memcpy(x, yt, hp->hidden * sizeof(*x));
        else
            r->model->k.add(x, yt, hp->hidden);
    }
}

void residual_final(struct run *r, unsigned row, float *out)
{
    const struct hparams *hp = &r->model->hp;
    const float *x = r->act->x + row * r->act->hidden_w;

    if (hp->attn_res_block)
        mix(r, (hp->n_layers + hp->attn_res_block - 1) / hp->attn_res_block, row, x,
            r->model->out_res.both, out);
    else
        memcpy(out, x, hp->hidden * sizeof(*out));
}
