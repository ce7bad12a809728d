/* api_grammar.c - sessions whose answers a grammar limits: a part of waste.h (see context.h).
 *
 * A match has three places: BASE, before the token that was chosen and not yet fed; AFTER, behind
 * it; TRIAL, of the pass that runs. A pass that fails leaves the first two as they were. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "model/context.h"

/* What a text compiles to, for any number of sessions: those that are limited by the same text have
 * the same one, so that the next turn of a conversation with tools, and the alternatives of an
 * answer, compile nothing. It never changes; whoever lets go of it last frees it. */
struct waste_grammar {
    struct grammar *compiled;
    char *text;
    size_t len;
    int32_t kind, after;
    uint64_t control; /* control_hash of the tokenizer that control tokens were named to */
    atomic_uint users;
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

size_t waste_grammar_bytes(const waste_grammar *g)
{
    return g ? grammar_bytes(g->compiled) + g->len : 0;
}

void waste_grammar_close(waste_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->users, 1) > 1)
        return;
    grammar_close(g->compiled);
    free(g->text);
    free(g);
}

/* What a grammar knows of a tokenizer: which id each control token has. */
static uint64_t control_hash(const struct tokenizer *t)
{
    uint64_t h = HASH_BEGIN;

    for (unsigned i = 0; i < tokenizer_n_specials(t); i++) {
        const char *text;
        size_t len;
        int32_t id;

        tokenizer_special(t, i, &id, &text, &len);
        h = hash_bytes(hash_step(h, (uint32_t)id), text, len);
    }
    return h;
}

static int grammar_check(int32_t kind, int32_t after, const struct tokenizer *t, struct err *e)
{
    if (kind != WASTE_GRAMMAR_TEXT && kind != WASTE_GRAMMAR_JSON_SCHEMA)
        return err_set(e, ERR_ARG,
                       "grammar_kind = %d is none of WASTE_GRAMMAR_TEXT = %d, "
                       "WASTE_GRAMMAR_JSON_SCHEMA = %d",
                       kind, WASTE_GRAMMAR_TEXT, WASTE_GRAMMAR_JSON_SCHEMA);
    if (after >= 0 && !tokenizer_is_special(t, after))
        return err_set(e, ERR_ARG, "grammar_after = %d is no control token of this model", after);
    return 0;
}

/* With one user: the caller. */
static int grammar_make(struct waste_grammar **out, const struct tokenizer *t, int32_t kind,
                        const char *text, int32_t after, struct err *e)
{
    enum grammar_kind language =
        kind == WASTE_GRAMMAR_JSON_SCHEMA ? GRAMMAR_JSON_SCHEMA : GRAMMAR_TEXT;
    size_t len = strlen(text);
    struct waste_grammar *g;

    if (grammar_check(kind, after, t, e))
        return e->code;
    g = calloc(1, sizeof(*g));
    if (!g || !(g->text = malloc(len + 1))) {
        free(g);
        return err_set(e, ERR_NOMEM, "a grammar of %zu bytes", len);
    }
    memcpy(g->text, text, len + 1);
    g->len = len;
    g->kind = kind;
    g->after = after;
    g->control = control_hash(t);
    atomic_init(&g->users, 1);
    if (grammar_compile(&g->compiled, language, g->text, len, t, after, e)) {
        waste_grammar_close(g);
        return e->code;
    }
    *out = g;
    return 0;
}

waste_status waste_grammar_open(const waste_tokenizer *t, int32_t kind, const char *text,
                                int32_t after, waste_grammar **out)
{
    struct err e = {0};

    if (!t || !text || !out)
        return ctx_refuse(NULL, "waste_grammar_open: tokenizer, text and out are needed");
    *out = NULL;
    if (grammar_make(out, (const struct tokenizer *)(const void *)t, kind, text, after, &e))
        return thread_fail(&e);
    return WASTE_OK;
}

/* ---- in sessions ---- */

static bool used_in(const waste_ctx *ctx, const struct waste_grammar *g)
{
    for (unsigned i = 0; i < ctx->n_sessions; i++)
        if (ctx->session[i].grammar == g)
            return true;
    return false;
}

static struct waste_grammar *find(const waste_ctx *ctx, const waste_sampling *p)
{
    size_t len = strlen(p->grammar);

    for (unsigned i = 0; i < ctx->n_sessions; i++) {
        struct waste_grammar *g = ctx->session[i].grammar;

        if (g && g->kind == p->grammar_kind && g->after == p->grammar_after && g->len == len &&
            !memcmp(g->text, p->grammar, len))
            return g;
    }
    return NULL;
}

/* What a session had and has no longer. */
static void let_go(waste_ctx *ctx, struct waste_grammar *g, struct grammar_match *m)
{
    if (!g)
        return;
    match_close(m);
    mem_uncharge(&ctx->mem, MEM_OTHER, MATCH_BYTES_MAX);
    if (!used_in(ctx, g))
        mem_uncharge(&ctx->mem, MEM_OTHER, waste_grammar_bytes(g));
    waste_grammar_close(g);
}

void grammar_drop(waste_session *s)
{
    struct waste_grammar *g = s->grammar;
    struct grammar_match *m = s->match;

    s->grammar = NULL;
    s->match = NULL;
    let_go(s->ctx, g, m);
}

static int grammar_use(waste_session *s, struct waste_grammar *g, struct err *e)
{
    waste_ctx *ctx = s->ctx;
    struct waste_grammar *before = s->grammar;
    struct grammar_match *match_before = s->match, *m;
    uint64_t bytes = MATCH_BYTES_MAX + (used_in(ctx, g) ? 0 : waste_grammar_bytes(g));

    if (match_open(&m, g->compiled, ctx->trie, e))
        return e->code;
    if (ctx_reserve(ctx, bytes, "a grammar", e)) {
        match_close(m);
        return e->code;
    }
    atomic_fetch_add(&g->users, 1);
    s->grammar = g;
    s->match = m;
    let_go(ctx, before, match_before); /* last: it may be the same one */
    return 0;
}

/* Compiled by the host, found in a session, or made now; with a user that is the caller. */
static int grammar_get(struct waste_grammar **out, const waste_ctx *ctx, const waste_sampling *p,
                       struct err *e)
{
    struct waste_grammar *g = p->compiled ? p->compiled : find(ctx, p);

    if (!g)
        return grammar_make(out, ctx->tokenizer, p->grammar_kind, p->grammar, p->grammar_after, e);
    if (g->control != control_hash(ctx->tokenizer))
        return err_set(e, ERR_ARG,
                       "compiled: the control tokens of the tokenizer that this grammar was "
                       "compiled with are not this model's");
    atomic_fetch_add(&g->users, 1);
    *out = g;
    return 0;
}

int grammar_set(waste_session *s, const waste_sampling *p, struct err *e)
{
    struct waste_grammar *g;
    int rc;

    if (!p->grammar && !p->compiled) {
        grammar_drop(s);
        return 0;
    }
    if (trie_make(s->ctx, e) || grammar_get(&g, s->ctx, p, e))
        return e->code;
    rc = grammar_use(s, g, e);
    waste_grammar_close(g);
    return rc;
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
