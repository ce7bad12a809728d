#include "model/rules.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"

enum { NFA_STATES_MAX = 1 << 14 };

void rules_release(struct rules *r)
{
    if (r->schemas.table)
        intern_close(&r->schemas);
    free(r->rule_of_schema);
    for (size_t i = 0; i < r->n_dfa; i++)
        dfa_close(r->dfa[i]);
    free(r->expr);
    free(r->kid);
    free(r->range);
    free(r->byte);
    free(r->rule);
    free(r->dfa);
    memset(r, 0, sizeof(*r));
}

int rules_fail(struct rules *r, const struct err *e)
{
    if (!r->failed.code)
        r->failed = *e;
    return r->failed.code;
}

/* Room for n more elements of `size` bytes behind the *used that are there. */
static bool room(struct rules *r, void *list, size_t *cap, size_t used, size_t n, size_t size,
                 size_t most)
{
    if (r->failed.code)
        return false;
    if (n > most - used) {
        err_set(&r->failed, ERR_LIMIT, "the grammar has more than %zu parts", most);
        return false;
    }
    if (list_room(list, cap, used + n, size))
        return true;
    err_set(&r->failed, ERR_NOMEM, "grammar of %zu parts", used + n);
    return false;
}

static uint32_t add(struct rules *r, struct expr x)
{
    if (!room(r, &r->expr, &r->cap_expr, r->n_expr, 1, sizeof(*r->expr), RULES_EXPRS_MAX))
        return 0;
    r->expr[r->n_expr] = x;
    return (uint32_t)r->n_expr++;
}

static uint32_t add_kids(struct rules *r, enum expr_kind kind, const uint32_t *kid, size_t n)
{
    struct expr x = {.kind = kind, .a = (uint32_t)r->n_kid, .n = (uint32_t)n};

    if (!room(r, &r->kid, &r->cap_kid, r->n_kid, n, sizeof(*r->kid), RULES_EXPRS_MAX))
        return 0;
    if (n)
        memcpy(r->kid + r->n_kid, kid, n * sizeof(*kid));
    r->n_kid += n;
    return add(r, x);
}

uint32_t rule_new(struct rules *r, const char *label, size_t len)
{
    uint32_t name = expr_bytes(r, label, len);

    if (!room(r, &r->rule, &r->cap_rule, r->n_rule, 1, sizeof(*r->rule), RULES_EXPRS_MAX))
        return 0;
    r->rule[r->n_rule] = (struct rule){.expr = EXPR_UNSET, .label = name};
    return (uint32_t)r->n_rule++;
}

uint32_t expr_never(struct rules *r)
{
    return add(r, (struct expr){.kind = EXPR_NEVER});
}

uint32_t expr_bytes(struct rules *r, const void *bytes, size_t n)
{
    struct expr x = {.kind = EXPR_BYTES, .a = (uint32_t)r->n_byte, .n = (uint32_t)n};

    if (!room(r, &r->byte, &r->cap_byte, r->n_byte, n, 1, RULES_BYTES_MAX))
        return 0;
    if (n)
        memcpy(r->byte + r->n_byte, bytes, n);
    r->n_byte += n;
    return add(r, x);
}

uint32_t expr_text(struct rules *r, const char *text)
{
    return expr_bytes(r, text, strlen(text));
}

static int by_lo(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

unsigned char_ranges_negate(struct char_range *range, unsigned n, uint32_t most)
{
    unsigned m = 0;
    uint32_t next = 0;

    qsort(range, n, sizeof(*range), by_lo);
    for (unsigned i = 0; i < n; i++) {
        struct char_range x = range[i]; /* m <= i: what is written has been read */

        if (x.lo > next && next <= most)
            range[m++] = (struct char_range){next, x.lo - 1 < most ? x.lo - 1 : most};
        next = x.hi + 1 > next ? x.hi + 1 : next;
    }
    if (next <= most)
        range[m++] = (struct char_range){next, most};
    return m;
}

uint32_t expr_chars(struct rules *r, const struct char_range *range, size_t n)
{
    struct expr x = {.kind = EXPR_CHARS, .a = (uint32_t)r->n_range, .n = (uint32_t)n};

    if (!room(r, &r->range, &r->cap_range, r->n_range, n, sizeof(*range), RULES_EXPRS_MAX))
        return 0;
    if (n)
        memcpy(r->range + r->n_range, range, n * sizeof(*range));
    r->n_range += n;
    return add(r, x);
}

uint32_t expr_seq(struct rules *r, const uint32_t *kid, size_t n)
{
    return n == 1 ? kid[0] : n ? add_kids(r, EXPR_SEQ, kid, n) : expr_bytes(r, "", 0);
}

uint32_t expr_alt(struct rules *r, const uint32_t *kid, size_t n)
{
    return n == 1 ? kid[0] : n ? add_kids(r, EXPR_ALT, kid, n) : expr_never(r);
}

uint32_t expr_repeat(struct rules *r, uint32_t kid, uint32_t min, uint32_t max)
{
    struct expr x = {.kind = EXPR_REPEAT, .a = (uint32_t)r->n_kid, .n = 1, .min = min, .max = max};

    if (min == 1 && max == 1)
        return kid;
    if (max == 0)
        return expr_bytes(r, "", 0);
    if (!room(r, &r->kid, &r->cap_kid, r->n_kid, 1, sizeof(*r->kid), RULES_EXPRS_MAX))
        return 0;
    r->kid[r->n_kid++] = kid;
    return add(r, x);
}

uint32_t expr_rule(struct rules *r, uint32_t rule)
{
    return add(r, (struct expr){.kind = EXPR_RULE, .a = rule});
}

uint32_t expr_dfa(struct rules *r, struct dfa *owned)
{
    struct expr x = {.kind = owned->n ? EXPR_DFA : EXPR_NEVER, .a = (uint32_t)r->n_dfa};

    if (!room(r, &r->dfa, &r->cap_dfa, r->n_dfa, 1, sizeof(*r->dfa), RULES_EXPRS_MAX)) {
        dfa_close(owned);
        return 0;
    }
    r->dfa[r->n_dfa++] = owned;
    return add(r, x);
}

uint32_t expr_string(struct rules *r, uint32_t min, uint32_t max)
{
    return add(r,
               (struct expr){.kind = min > max ? EXPR_NEVER : EXPR_STRING, .min = min, .max = max});
}

uint32_t expr_key(struct rules *r, const uint32_t *names, size_t n, bool attribute)
{
    uint32_t x = add_kids(r, EXPR_KEY, names, n);

    if (!r->failed.code)
        r->expr[x].min = attribute;
    return x;
}

uint32_t expr_token(struct rules *r, enum expr_kind kind, int32_t id)
{
    return add(r, (struct expr){.kind = kind, .a = (uint32_t)id});
}

struct thompson {
    const struct rules *r;
    struct nfa nfa;
    unsigned depth; /* of rules and groups: a rule that contains itself never ends */
    bool fits;
};

static void put(struct thompson *t, const struct expr *x, uint32_t from, uint32_t to);

static void put_seq(struct thompson *t, const struct expr *x, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < x->n && t->fits; i++) {
        uint32_t next = i + 1 == x->n ? to : nfa_state(&t->nfa);

        put(t, &t->r->expr[t->r->kid[x->a + i]], from, next);
        from = next;
    }
}

static void put_repeat(struct thompson *t, const struct expr *x, uint32_t from, uint32_t to)
{
    const struct expr *kid = &t->r->expr[t->r->kid[x->a]];

    for (uint32_t i = 0; i < x->min && t->fits; i++) {
        uint32_t next = nfa_state(&t->nfa);

        put(t, kid, from, next);
        from = next;
    }
    if (x->max == REPEAT_ANY) {
        uint32_t loop = nfa_state(&t->nfa);

        nfa_empty(&t->nfa, from, loop);
        put(t, kid, loop, loop);
        nfa_empty(&t->nfa, loop, to);
        return;
    }
    nfa_empty(&t->nfa, from, to);
    for (uint32_t i = x->min; i < x->max && t->fits; i++) {
        uint32_t next = nfa_state(&t->nfa);

        put(t, kid, from, next);
        nfa_empty(&t->nfa, next, to);
        from = next;
    }
}

static void put_bytes(struct thompson *t, const struct expr *x, uint32_t from, uint32_t to)
{
    if (!x->n)
        nfa_empty(&t->nfa, from, to);
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t next = i + 1 == x->n ? to : nfa_state(&t->nfa);
        uint8_t b = t->r->byte[x->a + i];

        nfa_edge(&t->nfa, from, next, b, b);
        from = next;
        if (t->nfa.n > NFA_STATES_MAX) {
            t->fits = false;
            return;
        }
    }
}

/* A copy of a ready automaton. */
static void put_dfa(struct thompson *t, const struct dfa *d, uint32_t from, uint32_t to)
{
    uint32_t base = t->nfa.n;

    if (d->n > NFA_STATES_MAX) {
        t->fits = false;
        return;
    }
    for (unsigned s = 0; s < d->n; s++)
        nfa_state(&t->nfa);
    nfa_empty(&t->nfa, from, base);
    for (unsigned s = 0; s < d->n; s++) {
        if (d->final[s])
            nfa_empty(&t->nfa, base + s, to);
        for (unsigned b = 0, end; b < 256; b = end) {
            uint16_t next = dfa_next(d, s, (uint8_t)b);

            for (end = b + 1; end < 256 && dfa_next(d, s, (uint8_t)end) == next;)
                end++;
            if (next != DFA_DEAD)
                nfa_edge(&t->nfa, base + s, base + next, (uint8_t)b, (uint8_t)(end - 1));
        }
    }
}

static void put(struct thompson *t, const struct expr *x, uint32_t from, uint32_t to)
{
    if (t->depth > 200 || t->nfa.n > NFA_STATES_MAX || t->nfa.n_edges > 16 * NFA_STATES_MAX)
        t->fits = false;
    if (!t->fits)
        return;
    t->depth++;
    switch (x->kind) {
    case EXPR_NEVER:
        break;
    case EXPR_BYTES:
        put_bytes(t, x, from, to);
        break;
    case EXPR_CHARS:
        for (uint32_t i = 0; i < x->n; i++)
            nfa_chars(&t->nfa, from, to, t->r->range[x->a + i].lo, t->r->range[x->a + i].hi);
        break;
    case EXPR_SEQ:
        put_seq(t, x, from, to);
        break;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n && t->fits; i++) { /* each on its own: an entry loops not */
            uint32_t a = nfa_state(&t->nfa), b = nfa_state(&t->nfa);

            nfa_empty(&t->nfa, from, a);
            put(t, &t->r->expr[t->r->kid[x->a + i]], a, b);
            nfa_empty(&t->nfa, b, to);
        }
        break;
    case EXPR_REPEAT:
        put_repeat(t, x, from, to);
        break;
    case EXPR_RULE:
        put(t, &t->r->expr[t->r->rule[x->a].expr], from, to);
        break;
    case EXPR_DFA:
        put_dfa(t, t->r->dfa[x->a], from, to);
        break;
    default:
        t->fits = false;
    }
    t->depth--;
}

int rules_dfa(struct dfa **out, const struct rules *r, const struct expr *x, unsigned states,
              uint64_t *work, struct err *e)
{
    struct thompson t = {.r = r, .fits = true};
    uint32_t from = nfa_state(&t.nfa), to = nfa_state(&t.nfa);
    int rc = 0;

    *out = NULL;
    put(&t, x, from, to);
    if (t.nfa.no_memory)
        rc = err_set(e, ERR_NOMEM, "automaton of %u states", t.nfa.n);
    else if (t.fits)
        rc = dfa_of_nfa(out, &t.nfa, from, to, states, work, e);
    *work -= *work < t.nfa.n ? *work : t.nfa.n;
    nfa_release(&t.nfa);
    return rc;
}
