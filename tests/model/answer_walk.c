/* tests/model/answer_walk.c - random answers to requests, for test_chat_grammar.py to judge.
 *
 *     answer_walk DIRECTORY < LINES
 *
 * The directory has a chat.json with the markers of IM_SPECIALS, for that format.
 * A line is {"format": "K3", "K2" or "chat.json", "request": ..., "effort": ..., "seed": N,
 * "tokens": N, "lenient": B, "schema": TEXT, "grammar": TEXT}; the answer is a line, too: {"error":
 * "..."}, {"free": true} when nothing is constrained, or what so many random allowed ids gave, and
 * what became of it when it was brought to its end: {"cut": MESSAGE, "cut_calls": N, "whole":
 * MESSAGE, "complete": B, "ended": B, "markers": "...", "ids": N}. `markers`: the control ids in
 * order, a letter each. A mask without a token, or an end that does not come, is an error that
 * begins with "BROKEN".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/chat_grammar.h"
#include "model/grammar.h"
#include "model/reply.h"
#include "tests/model/chat_fixture.h"

enum { VOCAB = 640, FINISH_MAX = 60000, IDS_MAX = 1 << 17 };

struct family {
    const char *name, *specials, *letters; /* of ids 600, 601, ... */
    struct tokenizer *tokenizer;
    struct token_trie *trie;
};

static struct family families[] = {
    {"K3", K3_SPECIALS, "??eocs????", NULL, NULL},
    {"K2", K2_SPECIALS, "??e????SXBAE", NULL, NULL},
    {"chat.json", "[" IM_SPECIALS "]", "??e????", NULL, NULL},
};

struct walk {
    const struct family *f;
    struct prompt *prompt;
    struct grammar *grammar;
    struct grammar_match *match;
    int32_t ids[IDS_MAX];
    size_t n;
    uint64_t rng;
    char error[700];
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

static int broken(struct walk *w, const char *what)
{
    snprintf(w->error, sizeof(w->error), "BROKEN: %s after %zu ids", what, w->n);
    return -1;
}

/* One of [from, to) that is allowed; -1: none. */
static int32_t some(struct walk *w, const uint64_t *mask, unsigned from, unsigned to)
{
    unsigned n = 0, pick;

    for (unsigned id = from; id < to; id++)
        n += allowed(mask, id);
    pick = n ? draw(w, n) : 0;
    for (unsigned id = from; n && id < to; id++)
        if (allowed(mask, id) && pick-- == 0)
            return (int32_t)id;
    return -1;
}

/* A marker every fourth time that there is one. */
static int32_t any_id(struct walk *w, const uint64_t *mask)
{
    int32_t id = draw(w, 4) == 0 ? some(w, mask, 600, VOCAB) : -1;

    return id >= 0 ? id : some(w, mask, 0, VOCAB);
}

/* What brings an answer nearest to its end, as a rule. */
static int32_t ending_id(struct walk *w, const uint64_t *mask, unsigned step)
{
    static const char order[] = "\"}]0123456789nullfalsetrue-,:[{";
    int32_t id = some(w, mask, 600, VOCAB);

    if (id >= 0 && allowed(mask, 604) && w->f == &families[0])
        return 604; /* close before open */
    if (id >= 0)
        return id;
    for (const char *c = order; *c && (step < 100 || draw(w, 2)); c++) {
        size_t n;
        struct err e;

        if (*c == '[' && draw(w, 2))
            continue;
        if (!tokenizer_encode(w->f->tokenizer, TOKEN_CONTENT, c, 1, &id, 1, &n, &e) && n == 1 &&
            allowed(mask, (unsigned)id))
            return id;
    }
    id = some(w, mask, 0, 256); /* single bytes */
    return id >= 0 ? id : some(w, mask, 0, VOCAB);
}

static int go(struct walk *w, size_t most, int32_t (*choose)(struct walk *, const uint64_t *))
{
    const uint64_t *mask;
    struct err e;

    for (size_t i = 0; i < most && !match_exhausted(w->match, MATCH_BASE); i++) {
        int32_t id;

        if (w->n == IDS_MAX)
            return broken(w, "no end");
        if (match_mask(w->match, MATCH_BASE, &mask, &e))
            return broken(w, e.text);
        id = choose ? choose(w, mask) : ending_id(w, mask, (unsigned)i);
        if (id < 0)
            return broken(w, "no id is allowed");
        if (match_advance(w->match, MATCH_BASE, MATCH_BASE, id, &e))
            return broken(w, e.text);
        w->ids[w->n++] = id;
    }
    return 0;
}

/* The reply to the first n ids, as a message; *complete: the model ended it. */
static json_t *read_back(struct walk *w, size_t n, bool *complete, unsigned *cut_calls)
{
    const waste_event *events;
    struct reply *r = NULL;
    json_t *message = NULL;
    struct str text;
    size_t n_events;
    struct err e;

    *complete = false;
    *cut_calls = 0;
    if (reply_open(&r, w->prompt, &e))
        return NULL;
    for (size_t i = 0; i <= n; i++) {
        int rc = i < n ? reply_feed(r, w->ids[i], &events, &n_events, &e)
                       : reply_end(r, &events, &n_events, &e);

        for (size_t k = 0; !rc && k < n_events; k++) {
            *cut_calls += events[k].kind == WASTE_CALL_CUT;
            *complete |= events[k].kind == WASTE_MESSAGE_END && events[k].complete;
        }
    }
    if (!reply_message(r, &text, &e))
        message = json_loadb(text.s, text.len, JSON_ALLOW_NUL, NULL);
    reply_close(r);
    return message;
}

static char *markers(const struct walk *w)
{
    char *text = calloc(w->n + 1, 1);
    size_t n = 0;

    for (size_t i = 0; text && i < w->n; i++)
        if (w->ids[i] >= 600)
            text[n++] = w->f->letters[w->ids[i] - 600];
    return text;
}

static json_t *answer(struct walk *w, size_t tokens)
{
    bool cut_complete, complete;
    unsigned cut_calls, more;
    size_t cut;
    json_t *out, *a, *b;
    char *letters;
    bool ended;

    if (go(w, tokens, any_id))
        return NULL;
    cut = w->n;
    if (go(w, FINISH_MAX, NULL))
        return NULL;
    if (!match_exhausted(w->match, MATCH_BASE)) {
        broken(w, "no end");
        return NULL;
    }
    ended = cut == w->n;
    a = read_back(w, cut, &cut_complete, &cut_calls);
    b = read_back(w, w->n, &complete, &more);
    letters = markers(w);
    if (cut_complete != ended || more || !a || !b || !letters) {
        broken(w, "the reply and the grammar disagree about the end");
        return NULL;
    }
    out = json_pack("{s:o, s:i, s:o, s:b, s:b, s:s, s:I}", "cut", a, "cut_calls", (int)cut_calls,
                    "whole", b, "complete", complete, "ended", ended, "markers", letters, "ids",
                    (json_int_t)w->n);
    free(letters);
    return out;
}

/* ---- a line ---- */

static struct str member(const json_t *line, const char *name)
{
    const json_t *v = json_object_get(line, name);

    return (struct str){json_string_value(v), json_string_length(v)};
}

static struct family *family_of(const char *name)
{
    for (size_t i = 0; name && i < sizeof(families) / sizeof(*families); i++)
        if (!strcmp(families[i].name, name))
            return &families[i];
    return NULL;
}

static int family_open(struct family *f, struct err *e)
{
    if (f->tokenizer)
        return 0;
    f->tokenizer = chat_tokenizer(f->specials);
    return token_trie_open(&f->trie, f->tokenizer, VOCAB, e);
}

static int begin(struct walk *w, struct chat *chat, const json_t *line, struct str *grammar,
                 struct err *e)
{
    struct chat_constraint k = {.lenient = json_is_true(json_object_get(line, "lenient")),
                                .schema = member(line, "schema"),
                                .grammar = member(line, "grammar")};
    char *request = json_dumps(json_object_get(line, "request"), JSON_COMPACT);
    int rc = request ? chat_render(chat, &w->prompt, request, strlen(request), e)
                     : err_set(e, ERR_ARG, "no request");

    free(request);
    if (!rc)
        rc = chat_grammar(w->prompt, &k, grammar, e);
    if (!rc && grammar->s)
        rc = grammar_compile(&w->grammar, GRAMMAR_TEXT, grammar->s, grammar->len, w->f->tokenizer,
                             -1, e);
    if (!rc && grammar->s)
        rc = match_open(&w->match, w->grammar, w->f->trie, e);
    return rc;
}

static struct chat *open_chat(const struct family *f, const char *directory, const char *effort,
                              struct err *e)
{
    struct thinking_rules rules = {.effort = effort ? effort : "none"};
    struct chat *c = NULL;

    if (!chat_open(&c, f->tokenizer, f == &families[2] ? directory : NULL, &rules, e))
        c->constrains = true;
    return c;
}

static json_t *one(const json_t *line, const char *directory)
{
    static struct walk w;
    struct family *f = family_of(member(line, "format").s);
    const char *effort = member(line, "effort").s;
    json_int_t tokens = json_integer_value(json_object_get(line, "tokens"));
    struct str grammar = {NULL, 0};
    struct chat *chat;
    json_t *out = NULL;
    struct err e = {0};

    if (!f || family_open(f, &e))
        return json_pack("{s:s}", "error", "BROKEN: no such format");
    w = (struct walk){.f = f, .rng = (uint64_t)json_integer_value(json_object_get(line, "seed"))};
    chat = open_chat(f, directory, effort, &e);
    if (!chat || begin(&w, chat, line, &grammar, &e))
        snprintf(w.error, sizeof(w.error), "%s", e.text);
    else if (!grammar.s)
        out = json_pack("{s:b}", "free", 1);
    else
        out = answer(&w, (size_t)tokens);
    if (out && w.prompt->note[0])
        json_object_set_new(out, "note", json_string(w.prompt->note));
    match_close(w.match);
    grammar_close(w.grammar);
    prompt_close(w.prompt);
    chat_close(chat);
    return out ? out : json_pack("{s:s}", "error", w.error);
}

int main(int argc, char **argv)
{
    size_t room = 0;
    char *text = NULL;

    while (argc == 2 && getline(&text, &room, stdin) > 0) {
        json_t *line = json_loads(text, JSON_ALLOW_NUL, NULL);
        json_t *out = one(line, argv[1]);

        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(line);
    }
    free(text);
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
        token_trie_close(families[i].trie);
        tokenizer_close(families[i].tokenizer);
    }
    return 0;
}
