/* tests/model/grammar_walk.c - random answers under a grammar, for test_grammar.py to judge.
 *
 *     grammar_walk CONTAINER < REQUESTS
 *
 * A request is a line of JSON: {"schema": ..., "seed": N, "tokens": N}, or "grammar" with a text in
 * the place of "schema". The answer is a line, too: {"error": "..."}, or {"text": "...", "cut": N,
 * "complete": B, "tokens": N, "checked": N}: what random allowed tokens gave, `cut` bytes of it
 * before the whole was brought to an end with as little as possible. `checked` tokens of masks were
 * compared with what advancing says; a disagreement, or a mask without a token, is an error that
 * begins with "BROKEN".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/grammar.h"

enum { FINISH_MAX = 20000, TEXT_MAX = 1 << 22 };

struct walk {
    struct tokenizer *tokenizer;
    struct token_trie *trie;
    struct grammar *grammar;
    struct grammar_match *match;
    unsigned n_ranks, vocab, n_tokens, n_checked;
    uint64_t rng;
    char *text;
    size_t len;
    char error[600];
};

static uint32_t draw(struct walk *w, uint32_t n)
{
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->rng >> 33) % n);
}

static bool allowed(const uint64_t *mask, unsigned id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

static int broken(struct walk *w, const char *what, int32_t token)
{
    snprintf(w->error, sizeof(w->error), "BROKEN: %s (token %d) after %.*s", what, token,
             w->len < 300 ? (int)w->len : 300, w->text + (w->len < 300 ? 0 : w->len - 300));
    return -1;
}

/* The mask says what advancing says: for some tokens, those it allows among them. */
static int compare(struct walk *w, const uint64_t *mask)
{
    struct err e;

    for (unsigned i = 0; i < 24; i++) {
        unsigned id = draw(w, w->vocab);

        w->n_checked++;
        if (allowed(mask, id) != !match_advance(w->match, MATCH_BASE, MATCH_TRIAL, (int)id, &e))
            return broken(w, allowed(mask, id) ? "allowed by the mask alone" : "masked", (int)id);
    }
    return 0;
}

static int take(struct walk *w, int32_t token)
{
    const char *bytes;
    size_t len;
    struct err e;

    if (match_advance(w->match, MATCH_BASE, MATCH_BASE, token, &e))
        return broken(w, e.text, token);
    tokenizer_token_bytes(w->tokenizer, token, &bytes, &len);
    if (w->len + len < TEXT_MAX) {
        memcpy(w->text + w->len, bytes, len);
        w->len += len;
    }
    w->n_tokens++;
    return 0;
}

/* A random allowed token; every fourth draw prefers short ones, so that strings end. */
static int32_t any_token(struct walk *w, const uint64_t *mask)
{
    unsigned n = 0, pick, from = draw(w, w->vocab);

    for (unsigned i = 0; i < w->vocab / 64; i++)
        n += (unsigned)__builtin_popcountll(mask[i]);
    if (n == 0)
        return -1;
    if (n > 500 && draw(w, 3) == 0)
        for (unsigned i = 0; i < w->n_ranks; i++) {
            unsigned id = (from + i) % w->n_ranks;
            const char *bytes;
            size_t len;

            tokenizer_token_bytes(w->tokenizer, (int)id, &bytes, &len);
            if (allowed(mask, id) && memchr(bytes, '"', len))
                return (int)id;
        }
    pick = draw(w, n);
    for (unsigned id = 0; id < w->vocab; id++)
        if (allowed(mask, id) && pick-- == 0)
            return (int)id;
    return -1;
}

/* The byte that brings an answer nearest to its end, as a rule; any one where that leads nowhere.
 */
static int32_t closing_token(struct walk *w, const uint64_t *mask, unsigned step)
{
    static const char order[] = "\"}]0123456789nullfalsetrue-,:[{";

    unsigned from = draw(w, 256); /* the bytes are the first ids */
    bool random = step > 100 && draw(w, 2);

    for (const char *c = order; *c && !random; c++) {
        int32_t id;
        size_t n;
        struct err e;

        if (*c == '[' && draw(w, 2))
            continue;
        if (!tokenizer_encode(w->tokenizer, TOKEN_CONTENT, c, 1, &id, 1, &n, &e) && n == 1 &&
            allowed(mask, (unsigned)id))
            return id;
    }
    for (unsigned i = 0; i < w->vocab; i++) {
        unsigned id = i < 256 ? (from + i) % 256 : i;
        const char *bytes;
        size_t len;

        if (allowed(mask, id) &&
            (!tokenizer_token_bytes(w->tokenizer, (int)id, &bytes, &len) || len == 1))
            return (int)id;
    }
    return any_token(w, mask);
}

static int walk(struct walk *w, unsigned tokens, size_t *cut)
{
    const uint64_t *mask;
    struct err e;

    while (w->n_tokens < tokens && !match_exhausted(w->match, MATCH_BASE)) {
        if (match_complete(w->match, MATCH_BASE) && draw(w, 2))
            break;
        if (match_mask(w->match, MATCH_BASE, &mask, &e))
            return broken(w, e.text, -1);
        if (w->n_tokens % 4 == 0 && compare(w, mask))
            return -1;
        if (take(w, any_token(w, mask)))
            return -1;
    }
    *cut = w->len;
    for (unsigned i = 0; !match_complete(w->match, MATCH_BASE); i++) {
        if (i == FINISH_MAX)
            return broken(w, "no end", -1);
        if (match_mask(w->match, MATCH_BASE, &mask, &e))
            return broken(w, e.text, -1);
        if (take(w, closing_token(w, mask, i)))
            return -1;
    }
    return 0;
}

static json_t *answer(struct walk *w, const json_t *q)
{
    json_t *schema = json_object_get(q, "schema");
    char *text = schema ? json_dumps(schema, JSON_ENCODE_ANY)
                        : strdup(json_string_value(json_object_get(q, "grammar")));
    unsigned tokens = (unsigned)json_integer_value(json_object_get(q, "tokens"));
    json_t *out = NULL;
    size_t cut = 0;
    struct err e;
    int rc;

    w->rng = (uint64_t)json_integer_value(json_object_get(q, "seed"));
    w->len = w->n_tokens = w->n_checked = 0;
    w->grammar = NULL;
    w->match = NULL;
    rc = grammar_compile(&w->grammar, schema ? GRAMMAR_JSON_SCHEMA : GRAMMAR_TEXT, text,
                         strlen(text), w->tokenizer, -1, &e);
    if (!rc)
        rc = match_open(&w->match, w->grammar, w->trie, &e);
    if (rc)
        out = json_pack("{s:s}", "error", e.text);
    else if (walk(w, tokens, &cut))
        out = json_pack("{s:o}", "error", json_string_nocheck(w->error));
    else
        out = json_pack("{s:i, s:o, s:b, s:i, s:i}", "cut", (int)cut, "text",
                        json_stringn_nocheck(w->text, w->len), "complete", cut == w->len, "tokens",
                        (int)w->n_tokens, "checked", (int)w->n_checked);
    match_close(w->match);
    grammar_close(w->grammar);
    free(text);
    return out;
}

int main(int argc, char **argv)
{
    struct walk w = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct err e;

    if (argc != 2 || tokenizer_open(&w.tokenizer, argv[1], 0, &e)) {
        fprintf(stderr, "grammar_walk CONTAINER: %s\n", argc == 2 ? e.text : "one argument");
        return 1;
    }
    w.n_ranks = tokenizer_n_ranks(w.tokenizer);
    w.vocab = (w.n_ranks + 256 + 63) / 64 * 64;
    w.text = malloc(TEXT_MAX);
    if (!w.text || token_trie_open(&w.trie, w.tokenizer, w.vocab, &e))
        return 1;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_t *q, *out;

        if (json_parse(&q, line, (size_t)n, "request", &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        out = answer(&w, q);
        json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        printf("\n");
        fflush(stdout);
        json_decref(out);
        json_decref(q);
    }
    free(line);
    free(w.text);
    token_trie_close(w.trie);
    tokenizer_close(w.tokenizer);
    return 0;
}
