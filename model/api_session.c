/* api_session.c - sessions and how their tokens are chosen: a part of waste.h (see context.h). */
#include <math.h>
#include <string.h>

#include "model/context.h"

waste_status waste_session_open(waste_ctx *ctx, waste_session **out)
{
    struct err e = {0};
    waste_status st = ctx_enter(ctx);

    if (st != WASTE_OK)
        return st;
    if (!out)
        return ctx_refuse(ctx, "waste_session_open: out is needed");
    for (unsigned i = 0; i < ctx->n_sessions; i++)
        if (!ctx->session[i].s.open) {
            waste_session_reset(&ctx->session[i]);
            waste_session_sampling(&ctx->session[i], NULL);
            atomic_store(&ctx->session[i].s.cancel, false); /* of whoever had it before */
            ctx->session[i].s.open = true;
            *out = &ctx->session[i];
            return WASTE_OK;
        }
    err_set(&e, ERR_BUSY, "all %u sessions are open (opts.max_sessions)", ctx->n_sessions);
    return ctx_fail(ctx, &e);
}

void waste_session_close(waste_session *s)
{
    if (!s || s == &s->ctx->session[0])
        return;
    s->s.open = false;
    images_drop(s);
    grammar_drop(s);
}

waste_session *waste_session_default(waste_ctx *ctx)
{
    return ctx ? &ctx->session[0] : NULL;
}

int answer_begin(waste_session *s, struct err *e)
{
    if (s->match && match_reset(s->match, e))
        return e->code;
    think_limit_restart(&s->limit);
    return 0;
}

waste_status waste_session_reset(waste_session *s)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);
    struct err e = {0};

    if (st != WASTE_OK)
        return st;
    if (answer_begin(s, &e))
        return ctx_fail(s->ctx, &e);
    session_reset(&s->s);
    return WASTE_OK;
}

waste_status waste_state_reset(waste_ctx *ctx)
{
    return waste_session_reset(waste_session_default(ctx));
}

size_t waste_session_pos(const waste_session *s)
{
    return s ? s->s.pos : 0;
}

waste_status waste_session_ids(const waste_session *s, int32_t *out, size_t cap, size_t *n_out)
{
    if (!s || !n_out)
        return ctx_refuse(NULL, "waste_session_ids: session and n_out are needed");
    *n_out = s->s.pos;
    if (!out && !cap)
        return WASTE_OK;
    if (!out || cap < s->s.pos)
        return ctx_refuse(s->ctx, "waste_session_ids: the ids do not fit");
    memcpy(out, s->s.ids, s->s.pos * sizeof(*out));
    return WASTE_OK;
}

void waste_session_cancel(waste_session *s)
{
    if (s)
        atomic_store(&s->s.cancel, true);
}

void waste_sampling_init(waste_sampling *p)
{
    if (!p)
        return;
    memset(p, 0, sizeof(*p));
    p->size = sizeof(*p);
    p->top_p = 1;
    p->repeat_penalty = 1;
    p->repeat_window = 64;
    p->grammar_after = -1;
}

static int sampling_check(const waste_sampling *p, unsigned vocab, struct err *e)
{
    if (!isfinite(p->temperature) || p->temperature > 1e6f)
        return err_set(e, ERR_ARG, "temperature = %g is not usable", (double)p->temperature);
    if (!(p->top_p > 0) || !isfinite(p->top_p))
        return err_set(e, ERR_ARG, "top_p = %g is out of range: above 0, 1 = off",
                       (double)p->top_p);
    if (p->top_k < 0)
        return err_set(e, ERR_ARG, "top_k = %d is out of range: 0 = off", p->top_k);
    if (!(p->min_p >= 0) || p->min_p > 1)
        return err_set(e, ERR_ARG, "min_p = %g is out of range 0...1", (double)p->min_p);
    if (!(p->repeat_penalty > 0) || !isfinite(p->repeat_penalty))
        return err_set(e, ERR_ARG, "repeat_penalty = %g is out of range: above 0, 1 = off",
                       (double)p->repeat_penalty);
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return err_set(e, ERR_ARG, "presence_penalty, frequency_penalty must be finite");
    if (p->n_logit_bias > SAMPLER_BIAS_MAX || (p->n_logit_bias && !p->logit_bias))
        return err_set(e, ERR_ARG, "logit_bias: %zu entries, at most %d", p->n_logit_bias,
                       SAMPLER_BIAS_MAX);
    for (size_t i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].id < 0 || (unsigned)p->logit_bias[i].id >= vocab ||
            !isfinite(p->logit_bias[i].value))
            return err_set(e, ERR_ARG, "logit_bias: id %d (vocabulary of %u), value %g",
                           p->logit_bias[i].id, vocab, (double)p->logit_bias[i].value);
    if (p->n_logprobs > SAMPLER_TOP_MAX)
        return err_set(e, ERR_ARG, "n_logprobs = %u, at most %d", p->n_logprobs, SAMPLER_TOP_MAX);
    if (p->n_stop > SAMPLER_STOP_MAX || (p->n_stop && !p->stop_tokens))
        return err_set(e, ERR_ARG, "stop_tokens: %zu ids, at most %d", p->n_stop, SAMPLER_STOP_MAX);
    if (p->n_close > THINK_CLOSE_MAX || (p->n_close && !p->close_ids))
        return err_set(e, ERR_ARG, "close_ids: %u ids, at most %d", p->n_close, THINK_CLOSE_MAX);
    for (uint32_t i = 0; i < p->n_close; i++)
        if (p->close_ids[i] < 0 || (unsigned)p->close_ids[i] >= vocab)
            return err_set(e, ERR_ARG, "close_ids[%u] = %d is outside the vocabulary of %u", i,
                           p->close_ids[i], vocab);
    return 0;
}

waste_status waste_session_sampling(waste_session *s, const waste_sampling *from)
{
    waste_sampling p;
    struct sampler *to;
    struct err e = {0};
    waste_status st = ctx_enter(s ? s->ctx : NULL);

    if (st != WASTE_OK)
        return st;
    waste_sampling_init(&p);
    if (from) {
        if (from->size < sizeof(uint32_t) || from->size > 4096)
            return ctx_refuse(s->ctx, "waste_sampling.size: call waste_sampling_init first");
        memcpy(&p, from, from->size < sizeof(p) ? from->size : sizeof(p));
    }
    if (sampling_check(&p, s->ctx->model.hp.vocab, &e) || grammar_set(s, &p, &e))
        return ctx_fail(s->ctx, &e);
    to = &s->s.sampler;
    sampler_init(to);
    to->never = s->ctx->never;
    to->spared = s->ctx->spared;
    to->temperature = p.temperature;
    to->top_p = p.top_p;
    to->min_p = p.min_p;
    to->top_k = (unsigned)p.top_k;
    to->seed = p.seed;
    to->stream = p.stream;
    to->repeat_penalty = p.repeat_penalty;
    to->repeat_window = p.repeat_window;
    to->presence_penalty = p.presence_penalty;
    to->frequency_penalty = p.frequency_penalty;
    to->n_bias = (unsigned)p.n_logit_bias;
    for (unsigned i = 0; i < to->n_bias; i++) {
        to->bias_id[i] = p.logit_bias[i].id;
        to->bias[i] = p.logit_bias[i].value;
    }
    to->n_top = p.n_logprobs;
    to->n_stop = (unsigned)p.n_stop;
    if (to->n_stop)
        memcpy(to->stop, p.stop_tokens, p.n_stop * sizeof(*to->stop));
    think_limit_set(&s->limit, p.close_ids, p.n_close, p.close_after);
    return WASTE_OK;
}
