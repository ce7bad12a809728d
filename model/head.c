#include "model/head.h"

#include <math.h>
#include <string.h>

#include "model/sampler.h"

static void final_norm(struct run *r, unsigned row, float *out)
{
    const struct model *m = r->model;

    residual_final(r, row, out);
    m->k.rmsnorm(out, out, m->norm, m->hp.hidden, m->hp.eps);
}

void head_logits(struct run *r)
{
    const struct model *m = r->model;
    struct act *a = r->act;
    unsigned n = 0;

    for (unsigned i = 0; i < r->rows->n_spans; i++) {
        const struct span *s = &r->rows->span[i];
        float *last = a->last + n * a->hidden_w;

        if (!s->logits)
            continue;
        final_norm(r, s->row0 + s->n - 1, last);
        n++;
    }
    if (!n)
        return;
    product(r, &m->head, a->last, a->hidden_w, a->logits, m->hp.vocab, n);
    for (unsigned i = r->rows->n_spans; i-- > 0;) /* each span's own place, from the last on */
        if (r->rows->span[i].logits && --n != i)
            memcpy(a->logits + (size_t)i * m->hp.vocab, a->logits + (size_t)n * m->hp.vocab,
                   m->hp.vocab * sizeof(float));
}

struct score_job { /* some rows; act->h has their final norms, act->head their logits */
    struct run *r;
    unsigned n, row[HEAD_ROWS];
    unsigned bad[HEAD_ROWS]; /* the first logit that is not finite; vocab: none */
};

static void score_norms(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct score_job *j = arg;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        final_norm(j->r, j->row[i], j->r->act->h + i * j->r->act->hidden_w);
}

static void score_logits(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct score_job *j = arg;
    struct act *a = j->r->act;
    unsigned vocab = j->r->model->hp.vocab;

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        const float *logits = a->head + (size_t)i * vocab;

        j->bad[i] = 0;
        while (j->bad[i] < vocab && isfinite(logits[j->bad[i]]))
            j->bad[i]++;
        if (j->bad[i] == vocab)
            a->logprob[j->row[i]] = sampler_logprob(logits, vocab, j->r->rows->score[j->row[i]]);
    }
}

/* The position that a row's logits are about. */
static unsigned next_position(const struct rows *rows, unsigned row)
{
    const struct span *s = rows->span;

    while (row >= s->row0 + s->n)
        s++;
    return s->pos0 + row - s->row0 + 1;
}

static int score_some(struct score_job *j, struct err *e)
{
    struct run *r = j->r;
    struct act *a = r->act;
    unsigned vocab = r->model->hp.vocab;

    if (r->poll)
        r->poll(r->poll_arg);
    if (progress_cancelled(r->progress))
        return err_set(e, ERR_CANCELLED, "cancelled behind the last layer");
    team_for(r->team, j->n, 1, score_norms, j);
    product(r, &r->model->head, a->h, a->hidden_w, a->head, vocab, j->n);
    team_for(r->team, j->n, 1, score_logits, j);
    for (unsigned i = 0; i < j->n; i++)
        if (j->bad[i] < vocab)
            return err_set(e, ERR_CORRUPT,
                           "position %u: logit %u is not finite; some weight or state is damaged",
                           next_position(r->rows, j->row[i]), j->bad[i]);
    return 0;
}

int head_scores(struct run *r, struct err *e)
{
    struct score_job j = {.r = r};

    for (unsigned t = 0; t < r->rows->n; t++) {
        if (r->rows->score[t] >= 0)
            j.row[j.n++] = t;
        if (j.n == r->act->head_rows || (j.n && t + 1 == r->rows->n)) {
            if (score_some(&j, e))
                return e->code;
            j.n = 0;
        }
    }
    return 0;
}
