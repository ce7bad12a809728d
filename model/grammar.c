#include "model/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
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

static uint64_t dfa_hash(const struct dfa *d) /* FNV-1a */
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < sizeof(d->class_of); i++)
        h = (h ^ d->class_of[i]) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < (size_t)d->n * d->n_classes; i++)
        h = (h ^ d->next[i]) * UINT64_C(0x100000001b3);
    for (unsigned i = 0; i < d->n; i++)
        h = (h ^ d->final[i]) * UINT64_C(0x100000001b3);
    return h;
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

/* ---- JSON strings ---- */

/* A chain of byte classes, written "0-7" or "89abAB", separated by blanks. */
static void chain(struct nfa *a, uint32_t from, uint32_t to, const char *const *set, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint32_t next = i + 1 == n ? to : nfa_state(a);

        for (const char *p = set[i]; *p; p += p[1] == '-' ? 3 : 1)
            nfa_edge(a, from, next, (uint8_t)p[0], (uint8_t)(p[1] == '-' ? p[2] : p[0]));
        from = next;
    }
}

#define HEX "0-9a-fA-F"
#define CHAIN(a, from, to, ...)                                                                    \
    chain(a, from, to, (const char *const[]){__VA_ARGS__},                                         \
          sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* \u0001 ... \uffff; surrogates in pairs only. */
static void escapes_u(struct nfa *a, uint32_t from, uint32_t body)
{
    CHAIN(a, from, body, "1-9a-cA-Ce-fE-F", HEX, HEX, HEX);
    CHAIN(a, from, body, "0", "1-9a-fA-F", HEX, HEX);
    CHAIN(a, from, body, "0", "0", "1-9a-fA-F", HEX);
    CHAIN(a, from, body, "0", "0", "0", "1-9a-fA-F");
    CHAIN(a, from, body, "dD", "0-7", HEX, HEX);
    CHAIN(a, from, body, "dD", "89abAB", HEX, HEX, "\\", "u", "dD", "c-fC-F", HEX, HEX);
}

enum spelling {
    ANY_SPELLING,
    ONE_SPELLING, /* of each character: texts are equal where their bytes are */
    NO_ESCAPES,   /* an attribute of markup: no character that would be written otherwise there */
};

/* State 0 waits for the quote, state 1 is between two characters. */
static struct dfa *string_dfa(enum spelling spelling, struct err *e)
{
    struct nfa a = {0};
    uint32_t start = nfa_state(&a), body = nfa_state(&a), end = nfa_state(&a);
    uint32_t escape = nfa_state(&a), u = nfa_state(&a);
    uint64_t work = 1 << 20;
    struct dfa *d = NULL;

    nfa_edge(&a, start, body, '"', '"');
    nfa_edge(&a, body, end, '"', '"');
    nfa_chars(&a, body, body, 0x20, '"' - 1);
    nfa_chars(&a, body, body, '"' + 1, '&' - 1);
    nfa_chars(&a, body, body, '&' + 1, '\\' - 1);
    nfa_chars(&a, body, body, '\\' + 1, 0x10ffff);
    if (spelling != NO_ESCAPES) {
        nfa_edge(&a, body, body, '&', '&');
        nfa_edge(&a, body, escape, '\\', '\\');
        CHAIN(&a, escape, body, "\"\\bfnrt");
    }
    if (spelling == ANY_SPELLING) {
        CHAIN(&a, escape, body, "/");
        CHAIN(&a, escape, u, "u");
        escapes_u(&a, u, body);
    }
    if (dfa_of_nfa(&d, &a, start, end, 256, &work, e))
        d = NULL;
    nfa_release(&a);
    return d;
}

struct dfa *grammar_string_dfa(uint32_t min, uint32_t max, struct err *e)
{
    uint32_t most = max == REPEAT_ANY ? min : max;
    struct dfa *one = string_dfa(ANY_SPELLING, e), *d;
    unsigned n;

    if (!one)
        return NULL;
    n = one->n;
    d = (uint64_t)n * (most + 1) > DFA_STATES_MAX ? NULL : dfa_new(n * (most + 1), one->n_classes);
    if (!d) {
        dfa_close(one);
        return NULL;
    }
    memcpy(d->class_of, one->class_of, sizeof(d->class_of));
    for (uint32_t k = 0; k <= most; k++)
        for (unsigned s = 0; s < n; s++) {
            d->final[k * n + s] = one->final[s];
            for (unsigned c = 0; c < 256; c++) {
                uint16_t to = dfa_next(one, s, (uint8_t)c);
                uint32_t then = k + (s == STRING_BODY && c != '"');

                if (to == DFA_DEAD || (s == STRING_BODY && c == '"' && k < min))
                    continue;
                if (then > most && max != REPEAT_ANY)
                    continue;
                then = then > most ? most : then;
                d->next[(size_t)(k * n + s) * d->n_classes + d->class_of[c]] =
                    (uint16_t)(then * n + to);
            }
        }
    dfa_close(one);
    if (!dfa_trim(d, e))
        return d;
    dfa_close(d);
    return NULL;
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
        struct dfa *d = string_dfa(spelling, b->e);

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

/* ---- properties of the network ---- */

static bool edge_skips(const struct grammar *g, const struct net_edge *x)
{
    switch (x->kind) {
    case EDGE_CALL:
        return g->rule[x->arg].nullable && !x->whole;
    case EDGE_LEAF:
        return g->leaf[x->arg].nullable;
    case EDGE_TOKEN:
    case EDGE_OTHER:
        return false;
    default:
        return true;
    }
}

static uint16_t at_most_never(unsigned h)
{
    return (uint16_t)(h < HEIGHT_NEVER ? h : HEIGHT_NEVER);
}

static bool edge_is_tail(const struct grammar *g, const struct net_edge *x)
{
    return g->node[x->to].end && g->node[x->to].first == NET_NONE;
}

/* What must still fit to go this way to the end. After one round of a repetition there is nothing
 * to ask for: the round before had the same height, and the rule was entered with that. */
static uint16_t edge_height(const struct grammar *g, const struct net_edge *x)
{
    unsigned rest = g->node[x->to].height, inside = 0;

    if (x->kind == EDGE_COUNT)
        return 0;
    if (x->kind == EDGE_CALL)
        inside = g->rule[x->arg].height + !edge_is_tail(g, x);
    return at_most_never(rest > inside ? rest : inside);
}

/* A repetition that must happen cannot be left at once. */
static bool edge_is_late(const struct net_edge *x)
{
    return x->kind == EDGE_ENOUGH && x->arg > 0;
}

/* Heights fall until nothing changes; what never falls below HEIGHT_NEVER cannot be finished. */
static void heights(struct build *b)
{
    struct grammar *g = b->g;

    for (size_t i = 0; i < g->n_node; i++)
        g->node[i].height = g->node[i].end ? 0 : HEIGHT_NEVER;
    for (size_t i = 0; i < g->n_rule; i++)
        g->rule[i].height = HEIGHT_NEVER;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = g->n_node; i-- > 0;)
            for (uint32_t k = g->node[i].first; k != NET_NONE; k = g->edge[k].next) {
                uint16_t h = edge_height(g, &g->edge[k]);

                if (!edge_is_late(&g->edge[k]) && h < g->node[i].height) {
                    g->node[i].height = h;
                    more = true;
                }
            }
        for (size_t i = 0; i < g->n_rule; i++) {
            uint16_t h = g->node[g->rule[i].start].height;

            if (h < g->rule[i].height) {
                g->rule[i].height = h;
                more = true;
            }
        }
    }
    for (size_t i = 0; i < g->n_edge; i++)
        g->edge[i].height = edge_height(g, &g->edge[i]);
}

/* Which rules can be passed without a byte. */
static void nullables(struct build *b, uint32_t *stack, uint32_t *mark)
{
    struct grammar *g = b->g;

    memset(mark, 0xff, g->n_node * sizeof(*mark));
    for (bool more = true; more;) {
        more = false;
        for (uint32_t r = 0; r < g->n_rule; r++) {
            uint32_t n = 0;

            if (g->rule[r].nullable || g->rule[r].height == HEIGHT_NEVER)
                continue;
            stack[n++] = g->rule[r].start;
            while (n && !g->rule[r].nullable) {
                uint32_t at = stack[--n];

                g->rule[r].nullable |= g->node[at].end;
                for (uint32_t k = g->node[at].first; k != NET_NONE; k = g->edge[k].next) {
                    const struct net_edge *x = &g->edge[k];

                    if (edge_is_late(x) || !edge_skips(g, x) || mark[x->to] == r)
                        continue;
                    mark[x->to] = r;
                    stack[n++] = x->to;
                }
            }
            more |= g->rule[r].nullable;
        }
    }
}

/* Nodes of rules that have a key in them. */
static void key_nodes(struct grammar *g, uint32_t *stack, uint32_t *mark)
{
    memset(mark, 0xff, g->n_node * sizeof(*mark));
    for (uint32_t r = 0; r < g->n_rule; r++) {
        uint32_t n = 1;
        bool keys = false;

        stack[0] = g->rule[r].start;
        mark[stack[0]] = r;
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = g->node[stack[i]].first; k != NET_NONE; k = g->edge[k].next) {
                const struct net_edge *x = &g->edge[k];

                keys |= x->kind == EDGE_LEAF && g->leaf[x->arg].kind == LEAF_KEY;
                if (mark[x->to] != r) {
                    mark[x->to] = r;
                    stack[n++] = x->to;
                }
            }
        for (uint32_t i = 0; i < n; i++)
            g->node[stack[i]].keys = keys;
    }
}

struct ranking { /* scratch for walks over nodes, and what is left to be ranked */
    struct grammar *g;
    uint32_t *stack, *mark;     /* [n_node] */
    uint32_t *callers, *ranked; /* [n_rule] rules that begin with it and have no rank yet; a list */
    uint32_t *found;            /* [n_edge] */
};

/* The rules that rule r can begin with, into k->found; some more than once. */
static uint32_t beginnings(struct ranking *k, uint32_t r)
{
    const struct grammar *g = k->g;
    uint32_t n = 0, n_found = 0;

    k->mark[g->rule[r].start] = r;
    k->stack[n++] = g->rule[r].start;
    while (n) {
        uint32_t at = k->stack[--n];

        for (uint32_t i = g->node[at].first; i != NET_NONE; i = g->edge[i].next) {
            const struct net_edge *x = &g->edge[i];

            if (x->height >= HEIGHT_NEVER)
                continue;
            if (x->kind == EDGE_CALL)
                k->found[n_found++] = x->arg;
            if (!edge_skips(g, x) || k->mark[x->to] == r)
                continue;
            k->mark[x->to] = r;
            k->stack[n++] = x->to;
        }
    }
    return n_found;
}

/* Callers before what they begin with. A rule that can begin with itself never gets a rank. */
static int rank(struct ranking *k, const struct rules *r, struct err *e)
{
    struct grammar *g = k->g;
    uint32_t n = 0;

    memset(k->mark, 0xff, g->n_node * sizeof(*k->mark));
    for (uint32_t i = 0; i < g->n_rule; i++)
        for (uint32_t f = beginnings(k, i); f-- > 0;)
            k->callers[k->found[f]]++;
    memset(k->mark, 0xff, g->n_node * sizeof(*k->mark));
    for (uint32_t i = 0; i < g->n_rule; i++)
        if (!k->callers[i])
            k->ranked[n++] = i;
    for (uint32_t i = 0; i < n; i++) {
        g->rule[k->ranked[i]].rank = i;
        for (uint32_t f = beginnings(k, k->ranked[i]); f-- > 0;)
            if (!--k->callers[k->found[f]])
                k->ranked[n++] = k->found[f];
    }
    for (uint32_t i = 0; i < r->n_rule && n < g->n_rule; i++)
        if (k->callers[i]) {
            const struct expr *label = &r->expr[r->rule[i].label];
            char name[160];

            return err_set(
                e, ERR_UNSUPPORTED, "%s may begin with itself (or with one that does)",
                json_printable(name, sizeof(name), (const char *)&r->byte[label->a], label->n));
        }
    return 0;
}

static int properties(struct build *b)
{
    struct grammar *g = b->g;
    struct ranking k = {.g = g};
    const struct net_rule *root = &g->rule[g->root];
    int rc = 0;

    k.stack = calloc(g->n_node + g->n_edge + 1, sizeof(*k.stack));
    k.mark = calloc(g->n_node + 1, sizeof(*k.mark));
    k.callers = calloc(g->n_rule + 1, sizeof(*k.callers));
    k.ranked = calloc(g->n_rule + 1, sizeof(*k.ranked));
    k.found = calloc(g->n_edge + 1, sizeof(*k.found));
    if (!k.stack || !k.mark || !k.callers || !k.ranked || !k.found) {
        rc = err_set(b->e, ERR_NOMEM, "grammar of %zu nodes", g->n_node);
    } else {
        heights(b);
        nullables(b, k.stack, k.mark);
        key_nodes(g, k.stack, k.mark);
        if (root->height == HEIGHT_NEVER)
            rc = err_set(b->e, ERR_FORMAT, "nothing finite satisfies it");
        else if (root->height >= GRAMMAR_DEPTH_MAX)
            rc = err_set(b->e, ERR_LIMIT, "whatever satisfies it nests %u deep, at most %d",
                         root->height, GRAMMAR_DEPTH_MAX - 1);
        else
            rc = rank(&k, b->r, b->e);
    }
    free(k.stack);
    free(k.mark);
    free(k.callers);
    free(k.ranked);
    free(k.found);
    return rc;
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
    return b->failed ? b->e->code : properties(b);
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
