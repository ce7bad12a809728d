#include "model/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "model/gbnf.h"
#include "model/grammar_net.h"
#include "model/intern.h"
#include "model/json_schema.h"

enum {
    DFA_STATES = 2048,    /* more, and an expression becomes network */
    DFA_SIZE = 6000,      /* the same, for its size as written out */
    DFA_JOINED = 64,      /* larger ones stay apart from their neighbours, to be shared */
    SIZE_NEVER = 1 << 30, /* of what no automaton can do */
    DEPTH = 300,          /* of expressions inside each other */
    WORK = 64 << 20,      /* steps of determinisation, over a whole grammar */
};

struct build {
    struct grammar *g;
    struct rules *r;
    uint32_t *size;       /* [n_expr] of the expression written out; 0: not known yet */
    uint8_t *empty;       /* [n_expr] 1: may be empty, 2: may not; 0: not known yet */
    uint8_t *rule_empty;  /* [n_rule] */
    uint32_t *dfa_of;     /* [r->n_dfa] */
    uint32_t string[3];   /* automata, by enum spelling; NET_NONE until needed */
    struct intern shapes; /* hashes of automata */
    uint32_t *dfa_of_shape;
    size_t cap_shape;
    uint64_t work;
    unsigned depth;
    struct err *e;
    bool failed;
};

static void fail(struct build *b, int code, const char *what, size_t have, size_t most)
{
    if (!b->failed)
        err_set(b->e, code, "the grammar has %zu %s, at most %zu", have, what, most);
    b->failed = true;
}

static bool room(struct build *b, void *list, size_t *cap, size_t used, size_t size)
{
    void **p = list, *q;
    size_t more = 2 * used + 64;

    if (b->failed)
        return false;
    if (used < *cap)
        return true;
    if (b->g->bytes + (more - *cap) * size > GRAMMAR_BYTES_MAX) {
        fail(b, ERR_LIMIT, "bytes compiled", b->g->bytes + (more - *cap) * size, GRAMMAR_BYTES_MAX);
        return false;
    }
    q = realloc(*p, more * size);
    if (!q) {
        fail(b, ERR_NOMEM, "parts for which memory is missing", more, 0);
        return false;
    }
    b->g->bytes += (more - *cap) * size;
    *p = q;
    *cap = more;
    return true;
}

static uint32_t node_add(struct build *b)
{
    struct grammar *g = b->g;

    if (!room(b, &g->node, &g->cap_node, g->n_node, sizeof(*g->node)))
        return 0;
    g->node[g->n_node] = (struct net_node){.first = NET_NONE};
    return (uint32_t)g->n_node++;
}

static uint32_t edge_add(struct build *b, uint32_t from, enum edge_kind kind, uint32_t arg,
                         uint32_t to)
{
    struct grammar *g = b->g;

    if (!room(b, &g->edge, &g->cap_edge, g->n_edge, sizeof(*g->edge)))
        return 0;
    g->edge[g->n_edge] =
        (struct net_edge){.kind = (uint8_t)kind, .arg = arg, .to = to, .next = g->node[from].first};
    g->node[from].first = (uint32_t)g->n_edge;
    return (uint32_t)g->n_edge++;
}

static uint32_t rule_add(struct build *b)
{
    struct grammar *g = b->g;

    if (!room(b, &g->rule, &g->cap_rule, g->n_rule, sizeof(*g->rule)))
        return 0;
    g->rule[g->n_rule] = (struct net_rule){.start = NET_NONE};
    return (uint32_t)g->n_rule++;
}

static uint32_t leaf_add(struct build *b, struct leaf leaf)
{
    struct grammar *g = b->g;

    if (!room(b, &g->leaf, &g->cap_leaf, g->n_leaf, sizeof(*g->leaf)))
        return 0;
    g->leaf[g->n_leaf] = leaf;
    return (uint32_t)g->n_leaf++;
}

static bool dfa_same(const struct dfa *x, const struct dfa *y)
{
    return x->n == y->n && x->n_classes == y->n_classes &&
           !memcmp(x->class_of, y->class_of, sizeof(x->class_of)) &&
           !memcmp(x->next, y->next, (size_t)x->n * x->n_classes * sizeof(*x->next)) &&
           !memcmp(x->final, y->final, x->n);
}

static uint64_t dfa_hash(const struct dfa *d)
{
    uint64_t h = hash_bytes(HASH_BEGIN, d->class_of, sizeof(d->class_of));

    for (size_t i = 0; i < (size_t)d->n * d->n_classes; i++)
        h = hash_step(h, d->next[i]);
    return hash_bytes(h, d->final, d->n);
}

/* Where the number of an automaton like this is or belongs; NULL: nowhere. *fresh: it is new. */
static uint32_t *dfa_shape(struct build *b, const struct dfa *d, bool *fresh)
{
    uint64_t h = dfa_hash(d);
    uint32_t word[2] = {(uint32_t)h, (uint32_t)(h >> 32)};
    uint32_t i = intern_put(&b->shapes, word, 2, fresh);

    if (i != INTERN_NONE && i >= b->cap_shape) {
        uint32_t *more = realloc(b->dfa_of_shape, (2 * (size_t)i + 64) * sizeof(*more));

        if (!more) {
            fail(b, ERR_NOMEM, "automata for which memory is missing", b->g->n_dfa, 0);
            return NULL;
        }
        b->dfa_of_shape = more;
        b->cap_shape = 2 * (size_t)i + 64;
    }
    return i == INTERN_NONE ? NULL : &b->dfa_of_shape[i];
}

/* Tools have many arguments alike: equal automata are one. */
static uint32_t dfa_add(struct build *b, struct dfa *owned)
{
    struct grammar *g = b->g;
    bool fresh = true;
    uint32_t *number = dfa_shape(b, owned, &fresh);

    if (number && !fresh && dfa_same(g->dfa[*number], owned)) {
        dfa_close(owned);
        return *number;
    }
    b->g->bytes += dfa_bytes(owned);
    if (g->bytes > GRAMMAR_BYTES_MAX)
        fail(b, ERR_LIMIT, "bytes compiled", g->bytes, GRAMMAR_BYTES_MAX);
    if (!room(b, &g->dfa, &g->cap_dfa, g->n_dfa, sizeof(*g->dfa))) {
        dfa_close(owned);
        return 0;
    }
    g->dfa[g->n_dfa] = owned;
    if (number && fresh)
        *number = (uint32_t)g->n_dfa;
    return (uint32_t)g->n_dfa++;
}

/* ---- what an expression is, before it is built ---- */

static uint32_t size_sum(uint64_t a, uint64_t b)
{
    return a + b < SIZE_NEVER ? (uint32_t)(a + b) : SIZE_NEVER;
}

/* Written out as an automaton; SIZE_NEVER: it cannot be. A rule being sized contains itself. */
static uint32_t size_of(struct build *b, uint32_t expr)
{
    const struct expr *x = &b->r->expr[expr];
    uint64_t n = 1;

    if (b->size[expr])
        return b->size[expr];
    b->size[expr] = SIZE_NEVER;
    if (b->depth > DEPTH)
        return SIZE_NEVER;
    b->depth++;
    switch (x->kind) {
    case EXPR_BYTES:
        n = x->n + 1;
        break;
    case EXPR_CHARS:
        n = 4 * (uint64_t)x->n;
        break;
    case EXPR_DFA:
        n = b->r->dfa[x->a]->n;
        break;
    case EXPR_RULE:
        n = size_of(b, b->r->rule[x->a].expr);
        break;
    case EXPR_SEQ:
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n; i++)
            n = size_sum(n, size_of(b, b->r->kid[x->a + i]));
        break;
    case EXPR_REPEAT:
        n = size_of(b, b->r->kid[x->a]);
        n = n == SIZE_NEVER ? n : n * (x->max == REPEAT_ANY ? x->min + (uint64_t)1 : x->max);
        break;
    case EXPR_NEVER:
        break;
    default:
        n = SIZE_NEVER;
    }
    b->depth--;
    b->size[expr] = size_sum(n, 0);
    return b->size[expr];
}

static bool empty_of(struct build *b, uint32_t expr)
{
    const struct expr *x = &b->r->expr[expr];
    bool yes = false;

    if (b->empty[expr])
        return b->empty[expr] == 1;
    if (b->depth > DEPTH)
        return false;
    b->depth++;
    switch (x->kind) {
    case EXPR_BYTES:
        yes = x->n == 0;
        break;
    case EXPR_DFA:
        yes = b->r->dfa[x->a]->final[0];
        break;
    case EXPR_RULE:
        yes = b->rule_empty[x->a];
        break;
    case EXPR_SEQ:
        yes = true;
        for (uint32_t i = 0; i < x->n && yes; i++)
            yes = empty_of(b, b->r->kid[x->a + i]);
        break;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n && !yes; i++)
            yes = empty_of(b, b->r->kid[x->a + i]);
        break;
    case EXPR_REPEAT:
        yes = x->min == 0 || empty_of(b, b->r->kid[x->a]);
        break;
    default:
        break;
    }
    b->depth--;
    if (x->kind == EXPR_BYTES || x->kind == EXPR_DFA || yes)
        b->empty[expr] = yes ? 1 : 2; /* "no" may still change with the rules */
    return yes;
}

/* Which rules may be empty: grows until nothing changes. */
static void rules_empty(struct build *b)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < b->r->n_rule; i++)
            if (!b->rule_empty[i] && empty_of(b, b->r->rule[i].expr))
                b->rule_empty[i] = more = true;
    }
}

/* ---- network ---- */

static void emit(struct build *b, uint32_t expr, uint32_t from, uint32_t to);

static uint32_t leaf_dfa(struct build *b, struct dfa *owned)
{
    bool nullable;

    if (!owned) {
        fail(b, ERR_NOMEM, "automata for which memory is missing", b->g->n_dfa, 0);
        return 0;
    }
    nullable = owned->final[0];
    return leaf_add(
        b, (struct leaf){.kind = LEAF_DFA, .nullable = nullable, .dfa = dfa_add(b, owned)});
}

/* As an automaton, if it is one and not too large. */
static bool emit_regular(struct build *b, const struct expr *x, uint32_t size, uint32_t from,
                         uint32_t to)
{
    struct dfa *d;

    if (size > DFA_SIZE || !b->work)
        return false;
    if (rules_dfa(&d, b->r, x, DFA_STATES, &b->work, b->e)) {
        b->failed = true;
        return true;
    }
    if (!d)
        return false;
    if (!d->n) /* matches nothing: no edge */
        dfa_close(d);
    else
        edge_add(b, from, EDGE_LEAF, leaf_dfa(b, d), to);
    return true;
}

/* A rule, or an automaton of its own, that is large and may be used elsewhere, too. */
static bool stays_apart(struct build *b, uint32_t expr)
{
    enum expr_kind kind = b->r->expr[expr].kind;

    return (kind == EXPR_RULE || kind == EXPR_DFA) && size_of(b, expr) > DFA_JOINED;
}

/* Neighbours that are automata become one. */
static void emit_seq(struct build *b, const struct expr *x, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < x->n && !b->failed;) {
        uint32_t next, end = i, size = 0;

        while (end < x->n && !stays_apart(b, b->r->kid[x->a + end]) &&
               size_sum(size, size_of(b, b->r->kid[x->a + end])) <= DFA_SIZE)
            size += size_of(b, b->r->kid[x->a + end++]);
        end = end > i ? end : i + 1;
        next = end == x->n ? to : node_add(b);
        if (end - i > 1) {
            struct expr part = {.kind = EXPR_SEQ, .a = x->a + i, .n = end - i};

            if (!emit_regular(b, &part, size, from, next)) {
                end = i + 1; /* one at a time, then */
                next = end == x->n ? to : node_add(b);
                emit(b, b->r->kid[x->a + i], from, next);
            }
        } else {
            emit(b, b->r->kid[x->a + i], from, next);
        }
        from = next;
        i = end;
    }
}

/* A rule of its own with what expr is; returns its number. */
static uint32_t rule_of(struct build *b, uint32_t expr)
{
    uint32_t rule = rule_add(b), start = node_add(b), end = node_add(b);

    if (b->failed)
        return 0;
    b->g->rule[rule].start = start;
    b->g->node[end].end = true;
    emit(b, expr, start, end);
    return rule;
}

/* A rule that counts in its register. What may be empty is asked for no number of times, and a
 * time in which it was empty does not count. */
static uint32_t counter(struct build *b, const struct expr *x)
{
    uint32_t kid = b->r->kid[x->a];
    bool empty = empty_of(b, kid);
    uint32_t min = empty ? 0 : x->min, rule = rule_add(b), call;
    uint32_t start = node_add(b), end = node_add(b), first = node_add(b), last = node_add(b);

    if (b->failed)
        return 0;
    b->g->rule[rule].start = start;
    b->g->node[end].end = true;
    edge_add(b, last, EDGE_COUNT, x->max == REPEAT_ANY ? min : x->max, start);
    edge_add(b, start, EDGE_ENOUGH, min, end);
    edge_add(b, start, EDGE_BELOW, x->max, first);
    if (!empty) {
        emit(b, kid, first, last);
    } else {
        call = edge_add(b, first, EDGE_CALL, rule_of(b, kid), last);
        if (!b->failed)
            b->g->edge[call].whole = true;
    }
    return rule;
}

static void emit_repeat(struct build *b, const struct expr *x, uint32_t from, uint32_t to)
{
    uint32_t kid = b->r->kid[x->a];

    if (x->min == 0 && x->max == 1) {
        edge_add(b, from, EDGE_EMPTY, 0, to);
        emit(b, kid, from, to);
    } else if (x->max == REPEAT_ANY && x->min <= 1) {
        uint32_t first = node_add(b), last = node_add(b);

        edge_add(b, from, EDGE_EMPTY, 0, first);
        emit(b, kid, first, last);
        edge_add(b, last, EDGE_EMPTY, 0, first);
        edge_add(b, x->min || empty_of(b, kid) ? last : from, EDGE_EMPTY, 0, to);
        if (!x->min)
            edge_add(b, last, EDGE_EMPTY, 0, to);
        if (x->min && empty_of(b, kid))
            edge_add(b, from, EDGE_EMPTY, 0, to);
    } else {
        edge_add(b, from, EDGE_CALL, counter(b, x), to);
    }
}

static uint32_t string_leaf(struct build *b, const struct expr *x)
{
    bool key = x->kind == EXPR_KEY;
    enum spelling spelling = !key ? ANY_SPELLING : x->min ? NO_ESCAPES : ONE_SPELLING;
    uint32_t *dfa = &b->string[spelling];

    if (*dfa == NET_NONE) {
        struct dfa *d = json_text_string(spelling, b->e);

        if (!d) {
            b->failed = true;
            return 0;
        }
        *dfa = dfa_add(b, d);
    }
    return leaf_add(b, (struct leaf){.kind = key ? LEAF_KEY : LEAF_STRING,
                                     .dfa = *dfa,
                                     .a = x->a,
                                     .n = x->n,
                                     .min = key ? 0 : x->min,
                                     .max = key ? REPEAT_ANY : x->max});
}

static void emit_network(struct build *b, const struct expr *x, uint32_t from, uint32_t to)
{
    switch (x->kind) {
    case EXPR_SEQ:
        emit_seq(b, x, from, to);
        break;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n && !b->failed; i++)
            emit(b, b->r->kid[x->a + i], from, to);
        break;
    case EXPR_REPEAT:
        emit_repeat(b, x, from, to);
        break;
    case EXPR_RULE:
        edge_add(b, from, EDGE_CALL, x->a, to);
        break;
    case EXPR_STRING:
    case EXPR_KEY:
        edge_add(b, from, EDGE_LEAF, string_leaf(b, x), to);
        break;
    case EXPR_TOKEN:
        edge_add(b, from, EDGE_TOKEN, x->a, to);
        break;
    case EXPR_OTHER:
        edge_add(b, from, EDGE_OTHER, x->a, to);
        break;
    case EXPR_CHARS: /* more ranges than an automaton may have */
        if (!b->work)
            fail(b, ERR_LIMIT, "steps of work and more to be compiled", WORK, WORK);
        fail(b, ERR_LIMIT, "ranges in one class of characters", x->n, DFA_SIZE / 4);
        break;
    default: /* EXPR_NEVER: no edge */
        break;
    }
}

static void emit(struct build *b, uint32_t expr, uint32_t from, uint32_t to)
{
    const struct expr *x = &b->r->expr[expr];

    if (b->failed)
        return;
    if (b->depth > DEPTH) {
        fail(b, ERR_LIMIT, "levels of groups", b->depth, DEPTH);
        return;
    }
    b->depth++;
    if (x->kind == EXPR_BYTES) {
        if (x->n)
            edge_add(b, from, EDGE_LEAF,
                     leaf_add(b, (struct leaf){.kind = LEAF_BYTES, .a = x->a, .n = x->n}), to);
        else
            edge_add(b, from, EDGE_EMPTY, 0, to);
    } else if (x->kind == EXPR_DFA) {
        if (b->dfa_of[x->a] == NET_NONE)
            b->dfa_of[x->a] = leaf_dfa(b, dfa_copy(b->r->dfa[x->a]));
        edge_add(b, from, EDGE_LEAF, b->dfa_of[x->a], to);
    } else if (x->kind == EXPR_RULE || !emit_regular(b, x, size_of(b, expr), from, to)) {
        emit_network(b, x, from, to); /* a rule is shared, not copied */
    }
    b->depth--;
}

/* Everything is allowed until this token comes, and then what the root rule says. */
static void begin_after(struct rules *r, int32_t after)
{
    uint32_t rule = rule_new(r, "the root", 8);
    uint32_t other = expr_repeat(r, expr_token(r, EXPR_OTHER, after), 0, REPEAT_ANY);
    uint32_t then = EXPR_SEQ(r, expr_token(r, EXPR_TOKEN, after), expr_rule(r, r->root));

    if (r->failed.code)
        return;
    r->rule[rule].expr = EXPR_SEQ(r, other, expr_repeat(r, then, 0, 1));
    r->root = rule;
}

static int build(struct build *b)
{
    struct rules *r = b->r;

    b->size = calloc(r->n_expr + 1, sizeof(*b->size));
    b->empty = calloc(r->n_expr + 1, 1);
    b->rule_empty = calloc(r->n_rule + 1, 1);
    b->dfa_of = malloc((r->n_dfa + 1) * sizeof(*b->dfa_of));
    if (!b->size || !b->empty || !b->rule_empty || !b->dfa_of)
        return err_set(b->e, ERR_NOMEM, "grammar of %zu parts", r->n_expr);
    memset(b->dfa_of, 0xff, r->n_dfa * sizeof(*b->dfa_of));
    rules_empty(b);
    for (size_t i = 0; i < r->n_rule; i++)
        rule_add(b);
    for (uint32_t i = 0; i < r->n_rule && !b->failed; i++) {
        uint32_t start = node_add(b), end = node_add(b);

        if (b->failed)
            break;
        b->g->rule[i].start = start;
        b->g->node[end].end = true;
        emit(b, r->rule[i].expr, start, end);
    }
    b->g->root = r->root;
    return b->failed ? b->e->code : net_properties(b->g, b->e);
}

int grammar_compile(struct grammar **out, enum grammar_kind kind, const char *text, size_t len,
                    const struct tokenizer *tokenizer, int32_t after, struct err *e)
{
    struct grammar *g;
    struct build b = {.string = {NET_NONE, NET_NONE, NET_NONE}, .work = WORK, .e = e};
    const char *what = kind == GRAMMAR_JSON_SCHEMA ? "schema" : "grammar";
    int rc;

    if (len > GRAMMAR_TEXT_MAX)
        return err_set(e, ERR_LIMIT, "%s of %zu bytes, at most %d", what, len, GRAMMAR_TEXT_MAX);
    g = calloc(1, sizeof(*g));
    if (!g)
        return err_set(e, ERR_NOMEM, "%s", what);
    b.g = g;
    b.r = &g->source;
    if (kind == GRAMMAR_JSON_SCHEMA)
        rc = json_schema_read(b.r, text, len, e);
    else
        rc = gbnf_read(b.r, text, len, tokenizer, e);
    if (!rc && after >= 0)
        begin_after(b.r, after);
    if (!rc && b.r->failed.code) {
        *e = b.r->failed;
        rc = e->code;
    }
    if (!rc && !intern_open(&b.shapes))
        rc = err_set(e, ERR_NOMEM, "%s", what);
    else if (!rc && build(&b))
        rc = err_wrap(e, "%s", what);
    if (b.shapes.table)
        intern_close(&b.shapes);
    free(b.dfa_of_shape);
    free(b.size);
    free(b.empty);
    free(b.rule_empty);
    free(b.dfa_of);
    if (rc) {
        grammar_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void grammar_close(struct grammar *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_dfa; i++)
        dfa_close(g->dfa[i]);
    rules_release(&g->source);
    free(g->node);
    free(g->edge);
    free(g->rule);
    free(g->leaf);
    free(g->dfa);
    free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return g->bytes;
}
