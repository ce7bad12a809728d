/* forward.c - the model, on one page. */
#include "model/forward.h"

#include <math.h>
#include <string.h>

#include "model/head.h"

/* Embedding rows from the file, or rows of images; cosines and sines of the rows' positions. */
static int begin(struct run *r, struct err *e)
{
    const struct model *m = r->model;
    const struct hparams *hp = &m->hp;
    struct act *a = r->act;

    for (unsigned t = 0; t < r->rows->n; t++)
        if (r->rows->image && r->rows->image[t])
            memcpy(a->x + t * a->hidden_w, r->rows->image[t], hp->hidden * sizeof(*a->x));
        else if (trunk_read_row(m->trunk, m->embed, (uint64_t)r->rows->token[t],
                                a->x + t * a->hidden_w, e))
            return e->code;
    for (unsigned i = 0; hp->mla_rotary && i < r->rows->n_spans; i++) {
        const struct span *s = &r->rows->span[i];

        for (unsigned t = 0; t < s->n; t++)
            for (unsigned j = 0; j < hp->rope / 2; j++) {
                size_t at = (size_t)(s->row0 + t) * (hp->rope / 2) + j;
                float angle = (float)(s->pos0 + t) * hp->rope_freq[j];

                a->rope_cos[at] = (float)cos((double)angle);
                a->rope_sin[at] = (float)sin((double)angle);
            }
    }
    return 0;
}

struct norm_job {
    struct run *r;
    const float *w, *x;
};

static void norm_rows(void *arg, unsigned t0, unsigned t1, unsigned thread)
{
    struct norm_job *j = arg;
    struct act *a = j->r->act;

    (void)thread;
    for (unsigned t = t0; t < t1; t++)
        j->r->model->k.rmsnorm(a->h + t * a->hidden_w, j->x + t * a->hidden_w, j->w,
                               j->r->model->hp.hidden, j->r->model->hp.eps);
}

static const float *norm(struct run *r, const float *w, const float *x)
{
    struct norm_job j = {r, w, x};

    team_for(r->team, r->rows->n, 1, norm_rows, &j);
    return r->act->h;
}

int forward(struct run *r, struct err *e)
{
    const struct model *m = r->model;
    float *y = r->act->y;

    if (begin(r, e))
        return e->code;
    lap(r->laps, LAP_OTHER);
    for (unsigned l = 0; l < m->hp.n_layers; l++) {
        const struct layer *layer = &m->layer[l];
        const float *h;

        atomic_store(&r->progress->done, r->done0 + (uint64_t)r->rows->n * l / m->hp.n_layers);
        if (r->poll)
            r->poll(r->poll_arg);
        if (progress_cancelled(r->progress))
            return err_set(e, ERR_CANCELLED, "cancelled before layer %u", l);
        lap(r->laps, LAP_OTHER);
        h = norm(r, layer->mix_norm, residual_input(r, l, RES_MIX));
        if (layer->mix == MIX_KDA)
            kda_block(r, l, h, y);
        else
            mla_block(r, l, h, y);
        residual_add(r, l, RES_MIX, y);
        lap(r->laps, LAP_MIX);
        h = norm(r, layer->mlp_norm, residual_input(r, l, RES_MLP));
        if (layer->mlp == MLP_DENSE)
            ffn_block(r, l, h, y);
        else if (moe_block(r, l, h, y, e))
            return e->code; /* nothing was committed: every session is as it was */
        residual_add(r, l, RES_MLP, y);
        lap(r->laps, layer->mlp == MLP_DENSE ? LAP_MLP : LAP_EXPERTS);
        for (unsigned t = 0; r->tap && t < r->rows->n; t++)
            memcpy(r->tap + ((size_t)l * r->rows->n + t) * m->hp.hidden,
                   r->act->x + t * r->act->hidden_w, m->hp.hidden * sizeof(float));
    }
    head_logits(r);
    if (r->rows->score && head_scores(r, e))
        return e->code;
    lap(r->laps, LAP_HEAD);
    return 0;
}
