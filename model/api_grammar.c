/* api_grammar.c - sessions whose answers a grammar limits: a part of waste.h (see context.h).
 *
 * A match has three places: BASE, before the token that was chosen and not yet fed; AFTER, behind
 * it; TRIAL, of the pass that runs. A pass that fails leaves the first two as they were. */
#include <stdlib.h>
#include <string.h>

#include "model/context.h"

/* What a text compiles to. Sessions that are limited by the same text have the same one: the next
 * turn of a conversation with tools, and the alternatives of an answer, compile nothing. */
struct shared_grammar {
    struct grammar *compiled;
    char *text;
    size_t len;
    int32_t kind, after;
    unsigned users; /* sessions */
    uint64_t charged;
};

static int trie_make(waste_ctx *ctx, struct err *e)
{
    unsigned vocab = ctx->model.hp.vocab;

    if (!ctx->tokenizer)
        return err_set(e, ERR_UNSUPPORTED, "a grammar needs a tokenizer: %s",
                       ctx->no_tokenizer.text);
    if (!ctx->allowed && !(ctx->allowed = malloc((vocab + 63) / 64 * sizeof(*ctx->allowed))))
        return err_set(e, ERR_NOMEM, "mask of %u ids", vocab);
    if (ctx->trie)
        return 0;
    if (token_trie_open(&ctx->trie, ctx->tokenizer, vocab, e))
        return e->code;
    if (ctx_reserve(ctx, token_trie_bytes(ctx->trie), "the tree of all tokens", e)) {
        token_trie_close(ctx->trie);
        ctx->trie = NULL;
        return e->code;
    }
    return 0;
}

static void shared_close(waste_ctx *ctx, struct shared_grammar *g)
{
    if (g->users)
        return;
    mem_uncharge(&ctx->mem, MEM_OTHER, g->charged);
    grammar_close(g->compiled);
    free(g->text);
    free(g);
}

static struct shared_grammar *shared_find(const waste_ctx *ctx, const waste_sampling *p, size_t len)
{
    for (unsigned i = 0; i < ctx->n_sessions; i++) {
        struct shared_grammar *g = ctx->session[i].grammar;

        if (g && g->kind == p->grammar_kind && g->after == p->grammar_after && g->len == len &&
            !memcmp(g->text, p->grammar, len))
            return g;
    }
    return NULL;
}

/* With no users yet. */
static int shared_make(struct shared_grammar **out, waste_ctx *ctx, const waste_sampling *p,
                       size_t len, struct err *e)
{
    enum grammar_kind kind =
        p->grammar_kind == WASTE_GRAMMAR_JSON_SCHEMA ? GRAMMAR_JSON_SCHEMA : GRAMMAR_TEXT;
    struct shared_grammar *g = calloc(1, sizeof(*g));
    uint64_t bytes;

    if (!g || !(g->text = malloc(len + 1))) {
        free(g);
        return err_set(e, ERR_NOMEM, "a grammar of %zu bytes", len);
    }
    memcpy(g->text, p->grammar, len + 1);
    g->len = len;
    g->kind = p->grammar_kind;
    g->after = p->grammar_after;
    if (grammar_compile(&g->compiled, kind, g->text, len, ctx->tokenizer, g->after, e)) {
        shared_close(ctx, g);
        return e->code;
    }
    bytes = grammar_bytes(g->compiled) + len;
    if (ctx_reserve(ctx, bytes, "a grammar", e)) {
        shared_close(ctx, g);
        return e->code;
    }
    g->charged = bytes;
    *out = g;
    return 0;
}

void grammar_drop(waste_session *s)
{
    struct shared_grammar *g = s->grammar;

    if (!g)
        return;
    match_close(s->match);
    mem_uncharge(&s->ctx->mem, MEM_OTHER, MATCH_BYTES_MAX);
    s->match = NULL;
    s->grammar = NULL;
    g->users--;
    shared_close(s->ctx, g);
}

static int grammar_use(waste_session *s, struct shared_grammar *g, struct err *e)
{
    struct grammar_match *m;

    if (match_open(&m, g->compiled, s->ctx->trie, e))
        return e->code;
    if (ctx_reserve(s->ctx, MATCH_BYTES_MAX, "a grammar", e)) {
        match_close(m);
        return e->code;
    }
    g->users++; /* first: it may be the one that goes */
    grammar_drop(s);
    s->grammar = g;
    s->match = m;
    return 0;
}

int grammar_set(waste_session *s, const waste_sampling *p, struct err *e)
{
    waste_ctx *ctx = s->ctx;
    struct shared_grammar *g;
    size_t len;

    if (!p->grammar) {
        grammar_drop(s);
        return 0;
    }
    if (p->grammar_kind != WASTE_GRAMMAR_TEXT && p->grammar_kind != WASTE_GRAMMAR_JSON_SCHEMA)
        return err_set(e, ERR_ARG,
                       "grammar_kind = %d is none of WASTE_GRAMMAR_TEXT = %d, "
                       "WASTE_GRAMMAR_JSON_SCHEMA = %d",
                       p->grammar_kind, WASTE_GRAMMAR_TEXT, WASTE_GRAMMAR_JSON_SCHEMA);
    if (trie_make(ctx, e))
        return e->code;
    if (p->grammar_after >= 0 && !tokenizer_is_special(ctx->tokenizer, p->grammar_after))
        return err_set(e, ERR_ARG, "grammar_after = %d is no control token of this model",
                       p->grammar_after);
    len = strlen(p->grammar);
    g = shared_find(ctx, p, len);
    if (!g && shared_make(&g, ctx, p, len, e))
        return e->code;
    if (grammar_use(s, g, e)) {
        shared_close(ctx, g);
        return e->code;
    }
    return 0;
}

static bool end_possible(const waste_ctx *ctx, int32_t id)
{
    return id >= 0 && (unsigned)id < ctx->model.hp.vocab && !(ctx->never && ctx->never[id]);
}

static void end_ids(waste_ctx *ctx, const int32_t *id, unsigned n, bool complete)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t bit = (uint64_t)1 << (id[i] & 63);

        if (!end_possible(ctx, id[i]))
            continue;
        if (complete)
            ctx->allowed[id[i] / 64] |= bit;
        else if (!tokenizer_is_special(ctx->tokenizer, id[i])) /* one that a grammar names stays */
            ctx->allowed[id[i] / 64] &= ~bit;
    }
}

int grammar_before(waste_session *s, bool fed, struct err *e)
{
    enum match_place at = fed ? MATCH_AFTER : MATCH_BASE;
    waste_ctx *ctx = s->ctx;
    struct sampler *sampler = &s->s.sampler;
    const uint64_t *mask;
    bool complete;

    sampler->allowed = NULL;
    if (!s->match)
        return 0;
    if (match_mask(s->match, at, &mask, e))
        return e->code;
    complete = match_complete(s->match, at);
    memcpy(ctx->allowed, mask, (ctx->model.hp.vocab + 63) / 64 * sizeof(*mask));
    end_ids(ctx, ctx->stop, ctx->n_stop, complete);
    end_ids(ctx, sampler->stop, sampler->n_stop, complete);
    sampler->allowed = ctx->allowed;
    return 0;
}

int grammar_after(waste_session *s, bool fed, int32_t token, bool *done, struct err *e)
{
    enum match_place at = fed ? MATCH_AFTER : MATCH_BASE;
    const waste_ctx *ctx = s->ctx;
    const struct sampler *sampler = &s->s.sampler;
    bool ends = ctx_ends_turn(ctx, &s->s, token), possible = false;

    *done = false;
    if (!s->match)
        return 0;
    if (match_advance(s->match, at, MATCH_TRIAL, token, e)) {
        if (!ends || e->code != ERR_ARG)
            return e->code;
        match_copy(s->match, at, MATCH_TRIAL);
        e->code = 0;
    }
    for (unsigned i = 0; i < ctx->n_stop; i++)
        possible |= end_possible(ctx, ctx->stop[i]);
    for (unsigned i = 0; i < sampler->n_stop; i++)
        possible |= end_possible(ctx, sampler->stop[i]);
    *done = !possible && match_exhausted(s->match, MATCH_TRIAL);
    return 0;
}

void grammar_commit(waste_session *s, bool fed, bool chosen)
{
    if (!s->match)
        return;
    if (fed)
        match_copy(s->match, MATCH_AFTER, MATCH_BASE);
    match_copy(s->match, chosen ? MATCH_TRIAL : MATCH_BASE, MATCH_AFTER);
}

int waste_session_grammar(const waste_session *s)
{
    if (!s || !s->match)
        return WASTE_GRAMMAR_NONE;
    if (match_exhausted(s->match, MATCH_AFTER))
        return WASTE_GRAMMAR_DONE;
    return match_complete(s->match, MATCH_AFTER) ? WASTE_GRAMMAR_COMPLETE : WASTE_GRAMMAR_CUT;
}
