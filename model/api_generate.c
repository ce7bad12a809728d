/* api_generate.c - the loop over steps for one session: a part of waste.h (see context.h). */
#include <stdio.h>
#include <string.h>

#include "model/context.h"
#include "model/utf8.h"

waste_status waste_eval(waste_ctx *ctx, const int32_t *ids, size_t n, const float **logits_out,
                        size_t *vocab_out)
{
    struct err e = {0};
    waste_item it = {.size = sizeof(it), .want = WASTE_WANT_LOGITS, .ids = ids, .n_ids = n};
    struct session *se;
    waste_status st;

    st = ctx_enter(ctx);
    if (st != WASTE_OK)
        return st;
    se = &ctx->session[0].s;
    it.session = &ctx->session[0];
    if (n > se->ctx - se->pos) {
        err_set(&e, ERR_ARG, "%zu ids do not fit: %u of %u positions are left", n,
                se->ctx - se->pos, se->ctx);
        return ctx_fail(ctx, &e);
    }
    st = step_end(ctx, step_feed(ctx, &it, &e), &e);
    if (st != WASTE_OK)
        return st;
    if (logits_out)
        *logits_out = it.logits;
    if (vocab_out)
        *vocab_out = ctx->model.hp.vocab;
    return WASTE_OK;
}

void waste_gen_params_init(waste_gen_params *p)
{
    if (!p)
        return;
    memset(p, 0, sizeof(*p));
    p->top_p = 1;
    p->max_tokens = 256;
}

struct gen { /* one waste_generate */
    waste_ctx *ctx;
    waste_token_cb cb;
    void *user;
    struct utf8 text;
    waste_counters before;
    uint64_t t0;
};

static void gen_mark(struct gen *g)
{
    g->before.size = sizeof(g->before);
    waste_get_counters(g->ctx, &g->before);
    g->t0 = now_ns();
}

/* Hand one token to the host; true: it wants no more. */
static bool gen_deliver(struct gen *g, unsigned index, const waste_item *it, bool last)
{
    char piece[UTF8_FEED_MAX(4096) + UTF8_FLUSH_MAX + 1];
    waste_counters c = {.size = sizeof(c)};
    const char *bytes = "";
    size_t len = 0, n;

    waste_get_counters(g->ctx, &c);
    if (g->ctx->tokenizer)
        tokenizer_token_bytes(g->ctx->tokenizer, it->token, &bytes, &len);
    n = utf8_feed(&g->text, bytes, len < 4096 ? len : 4096, piece);
    if (last)
        n += utf8_flush(&g->text, piece + n);
    piece[n] = 0;
    waste_token_info info = {
        .token_index = index,
        .token = it->token,
        .logprob = it->logprob,
        .experts_hit = (uint32_t)(c.hits_resident + c.hits_prefetch - g->before.hits_resident -
                                  g->before.hits_prefetch),
        .experts_missed = (uint32_t)(c.misses - g->before.misses),
        .bytes_read = c.bytes_read - g->before.bytes_read,
        .ms_total = (double)(now_ns() - g->t0) * 1e-6,
        .ms_io = (c.sec_io - g->before.sec_io) * 1e3,
    };
    return g->cb && g->cb(&info, piece, g->user);
}

static int generate(struct gen *g, const int32_t *ids, size_t n, unsigned max, struct err *e)
{
    waste_ctx *ctx = g->ctx;
    struct session *se = &ctx->session[0].s;
    waste_item it = {.size = sizeof(it),
                     .want = WASTE_WANT_TOKEN,
                     .session = &ctx->session[0],
                     .ids = ids,
                     .n_ids = n};

    gen_mark(g);
    if (images_check(it.session, ids, n, true, e) || step_feed(ctx, &it, e))
        return e->code;
    for (unsigned i = 0; i < max; i++) {
        int32_t id = it.token;
        bool last = i + 1 == max || it.stop || se->pos == se->ctx;
        bool done = gen_deliver(g, i, &it, last);

        gen_mark(g);
        if (se->pos == se->ctx) { /* chosen, but no position is left to put it in */
            snprintf(ctx->error.text, sizeof(ctx->error.text), "context full at %u positions",
                     se->ctx);
            return 0;
        }
        it.ids = &id;
        it.n_ids = 1;
        it.want = last || done ? 0 : WASTE_WANT_TOKEN; /* a delivered token is in the session */
        if (step_feed(ctx, &it, e))
            return e->code;
        if (done)
            return err_set(e, ERR_CANCELLED, "stopped by the callback after %u tokens", i + 1);
        if (last)
            return 0;
    }
    return 0;
}

waste_status waste_generate(waste_ctx *ctx, const int32_t *ids, size_t n,
                            const waste_gen_params *params, waste_token_cb cb, void *user)
{
    waste_gen_params p;
    waste_sampling sampling;
    struct err e = {0};
    struct gen g = {.ctx = ctx, .cb = cb, .user = user};
    struct session *se;
    waste_status st;

    st = ctx_enter(ctx);
    if (st != WASTE_OK)
        return st;
    waste_gen_params_init(&p);
    if (params)
        p = *params;
    se = &ctx->session[0].s;
    if (n >= se->ctx - se->pos) {
        err_set(&e, ERR_ARG, "%zu ids leave no position: %u of %u are free", n, se->ctx - se->pos,
                se->ctx);
        return ctx_fail(ctx, &e);
    }
    waste_sampling_init(&sampling);
    sampling.temperature = p.temperature;
    sampling.top_p = p.top_p;
    sampling.top_k = p.top_k;
    sampling.seed = p.seed;
    sampling.stop_tokens = p.stop_tokens;
    sampling.n_stop = p.n_stop;
    sampling.grammar = p.grammar;
    st = waste_session_sampling(&ctx->session[0], &sampling);
    if (st != WASTE_OK)
        return st;
    return step_end(ctx, generate(&g, ids, n, p.max_tokens, &e), &e);
}
