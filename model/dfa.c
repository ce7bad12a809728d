#include "model/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/list.h"
#include "model/utf8.h"

uint32_t nfa_state(struct nfa *a)
{
    if (!list_room(&a->first, &a->cap, (size_t)a->n + 1, sizeof(*a->first))) {
        a->no_memory = true;
        return 0;
    }
    a->first[a->n] = NFA_NONE;
    return a->n++;
}

static void edge_add(struct nfa *a, uint32_t from, struct nfa_edge edge)
{
    if (!list_room(&a->edge, &a->cap_edges, (size_t)a->n_edges + 1, sizeof(*a->edge))) {
        a->no_memory = true;
        return;
    }
    if (from >= a->n)
        return; /* a state that memory was missing for */
    edge.next = a->first[from];
    a->edge[a->n_edges] = edge;
    a->first[from] = a->n_edges++;
}

void nfa_edge(struct nfa *a, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
    edge_add(a, from, (struct nfa_edge){.to = to, .lo = lo, .hi = hi});
}

void nfa_empty(struct nfa *a, uint32_t from, uint32_t to)
{
    edge_add(a, from, (struct nfa_edge){.to = to, .empty = true});
}

void nfa_release(struct nfa *a)
{
    free(a->first);
    free(a->edge);
    *a = (struct nfa){0};
}

/* Characters whose encodings have n bytes: split until all but the last differing byte is whole. */
static void chars_of_length(struct nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi,
                            unsigned n)
{
    char l[UTF8_CHAR_MAX], h[UTF8_CHAR_MAX];

    for (unsigned i = 1; i < n; i++) {
        uint32_t mask = ((uint32_t)1 << 6 * i) - 1;

        if ((lo & ~mask) == (hi & ~mask))
            break;
        if (lo & mask) {
            chars_of_length(a, from, to, lo, lo | mask, n);
            chars_of_length(a, from, to, (lo | mask) + 1, hi, n);
            return;
        }
        if ((hi & mask) != mask) {
            chars_of_length(a, from, to, lo, (hi & ~mask) - 1, n);
            chars_of_length(a, from, to, hi & ~mask, hi, n);
            return;
        }
    }
    utf8_put(l, lo);
    utf8_put(h, hi);
    for (unsigned i = 0; i < n; i++) {
        uint32_t next = i + 1 == n ? to : nfa_state(a);

        nfa_edge(a, from, next, (uint8_t)l[i], (uint8_t)h[i]);
        from = next;
    }
}

void nfa_chars(struct nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    static const struct {
        uint32_t lo, hi;
        unsigned n;
    } part[] = {{0, 0x7f, 1},
                {0x80, 0x7ff, 2},
                {0x800, 0xd7ff, 3},
                {0xe000, 0xffff, 3},
                {0x10000, 0x10ffff, 4}};

    for (unsigned i = 0; i < sizeof(part) / sizeof(*part); i++) {
        uint32_t l = lo > part[i].lo ? lo : part[i].lo, h = hi < part[i].hi ? hi : part[i].hi;

        if (l <= h)
            chars_of_length(a, from, to, l, h, part[i].n);
    }
}

struct dfa *dfa_new(unsigned n, unsigned n_classes)
{
    struct dfa *d = calloc(1, sizeof(*d));

    if (!d)
        return NULL;
    d->n = n;
    d->n_classes = n_classes;
    d->next = malloc(((size_t)n * n_classes + 1) * sizeof(*d->next));
    d->final = calloc(n + 1, 1);
    if (!d->next || !d->final) {
        dfa_close(d);
        return NULL;
    }
    memset(d->next, 0xff, (size_t)n * n_classes * sizeof(*d->next));
    return d;
}

struct dfa *dfa_copy(const struct dfa *d)
{
    struct dfa *c = dfa_new(d->n, d->n_classes);

    if (!c)
        return NULL;
    memcpy(c->class_of, d->class_of, sizeof(c->class_of));
    memcpy(c->next, d->next, (size_t)d->n * d->n_classes * sizeof(*c->next));
    memcpy(c->final, d->final, d->n);
    return c;
}

void dfa_close(struct dfa *d)
{
    if (!d)
        return;
    free(d->next);
    free(d->final);
    free(d);
}

size_t dfa_bytes(const struct dfa *d)
{
    return sizeof(*d) + (size_t)d->n * (d->n_classes * sizeof(*d->next) + 1);
}

/* live[s]: s reaches a final state. By edges taken backwards, from a list of them. */
static int live_find(const struct dfa *d, uint8_t *live, struct err *e)
{
    size_t n_edges = (size_t)d->n * d->n_classes;
    uint32_t *head = malloc((d->n + 1) * sizeof(*head)),
             *stack = malloc((d->n + 1) * sizeof(*stack));
    uint32_t *next = malloc((n_edges + 1) * sizeof(*next));
    uint32_t n = 0;

    if (!head || !stack || !next) {
        free(head);
        free(stack);
        free(next);
        return err_set(e, ERR_NOMEM, "automaton of %u states", d->n);
    }
    memset(head, 0xff, d->n * sizeof(*head));
    for (size_t i = 0; i < n_edges; i++)
        if (d->next[i] != DFA_DEAD) {
            next[i] = head[d->next[i]];
            head[d->next[i]] = (uint32_t)i;
        }
    for (unsigned s = 0; s < d->n; s++)
        if ((live[s] = d->final[s]))
            stack[n++] = s;
    while (n) {
        uint32_t s = stack[--n];

        for (uint32_t i = head[s]; i != UINT32_MAX; i = next[i]) {
            uint32_t from = i / d->n_classes;

            if (!live[from]) {
                live[from] = 1;
                stack[n++] = from;
            }
        }
    }
    free(head);
    free(stack);
    free(next);
    return 0;
}

int dfa_trim(struct dfa *d, struct err *e)
{
    uint8_t *live = calloc(d->n + 1, 1);

    if (!live || live_find(d, live, e)) {
        free(live);
        return live ? e->code : err_set(e, ERR_NOMEM, "automaton of %u states", d->n);
    }
    for (size_t i = 0; i < (size_t)d->n * d->n_classes; i++)
        if (d->next[i] != DFA_DEAD && !live[d->next[i]])
            d->next[i] = DFA_DEAD;
    if (d->n && !live[0])
        d->n = 0;
    free(live);
    return 0;
}

/* Sets of NFA states, each a sorted run in one list, found by hash. */
struct sets {
    uint32_t *item, *begin; /* set i: item[begin[i]...begin[i + 1]) */
    uint32_t n, max, n_items;
    size_t cap_items;
    uint32_t *table, table_mask;
};

static uint64_t hash_words(const uint32_t *w, size_t n)
{
    uint64_t h = HASH_BEGIN;

    for (size_t i = 0; i < n; i++)
        h = (h ^ w[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return h;
}

/* The number of this set; UINT32_MAX: one too many, or no memory (*no_memory). */
static uint32_t sets_find(struct sets *s, const uint32_t *item, uint32_t n, bool *no_memory)
{
    uint32_t at = (uint32_t)hash_words(item, n) & s->table_mask;

    for (; s->table[at] != UINT32_MAX; at = (at + 1) & s->table_mask) {
        uint32_t i = s->table[at], len = s->begin[i + 1] - s->begin[i];

        if (len == n && !memcmp(s->item + s->begin[i], item, n * sizeof(*item)))
            return i;
    }
    if (s->n == s->max)
        return UINT32_MAX;
    if (!list_room(&s->item, &s->cap_items, (size_t)s->n_items + n, sizeof(*s->item))) {
        *no_memory = true;
        return UINT32_MAX;
    }
    memcpy(s->item + s->n_items, item, n * sizeof(*item));
    s->n_items += n;
    s->begin[s->n + 1] = s->n_items;
    s->table[at] = s->n;
    return s->n++;
}

struct subset { /* one dfa_of_nfa */
    const struct nfa *a;
    struct sets sets;
    uint8_t class_of[256], first_of[256]; /* byte -> class -> its first byte */
    unsigned n_classes;
    uint32_t *mark, *found, *stack, tick, n_found; /* [a->n] */
    uint64_t *work;
};

static void classes_find(struct subset *s)
{
    bool begins[257] = {[0] = true};
    unsigned c = 0;

    for (uint32_t i = 0; i < s->a->n_edges; i++)
        if (!s->a->edge[i].empty)
            begins[s->a->edge[i].lo] = begins[s->a->edge[i].hi + 1] = true;
    for (unsigned b = 0; b < 256; b++) {
        if (begins[b])
            s->first_of[c++] = (uint8_t)b;
        s->class_of[b] = (uint8_t)(c - 1);
    }
    s->n_classes = c;
}

static void reach(struct subset *s, uint32_t state)
{
    uint32_t n = 0;

    if (s->mark[state] == s->tick)
        return;
    s->mark[state] = s->tick;
    s->stack[n++] = state;
    while (n) {
        uint32_t at = s->stack[--n];

        s->found[s->n_found++] = at;
        for (uint32_t i = s->a->first[at]; i != NFA_NONE; i = s->a->edge[i].next) {
            const struct nfa_edge *x = &s->a->edge[i];

            if (x->empty && s->mark[x->to] != s->tick) {
                s->mark[x->to] = s->tick;
                s->stack[n++] = x->to;
            }
        }
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* The set in s->found, by number. */
static uint32_t found_set(struct subset *s, bool *no_memory)
{
    qsort(s->found, s->n_found, sizeof(*s->found), by_value);
    return sets_find(&s->sets, s->found, s->n_found, no_memory);
}

static void step_set(struct subset *s, uint32_t set, uint8_t byte)
{
    s->tick++;
    s->n_found = 0;
    for (uint32_t k = s->sets.begin[set]; k < s->sets.begin[set + 1]; k++)
        for (uint32_t i = s->a->first[s->sets.item[k]]; i != NFA_NONE; i = s->a->edge[i].next) {
            const struct nfa_edge *x = &s->a->edge[i];

            if (!x->empty && x->lo <= byte && byte <= x->hi)
                reach(s, x->to);
        }
}

/* 0: d->n states are in; 1: too many; ERR_NOMEM. */
static int subsets(struct subset *s, struct dfa *d, uint32_t start, uint32_t final)
{
    bool no_memory = false;

    s->tick = 1;
    reach(s, start);
    found_set(s, &no_memory);
    for (uint32_t at = 0; at < s->sets.n; at++) {
        uint64_t cost = (uint64_t)(s->sets.begin[at + 1] - s->sets.begin[at] + 1) * s->n_classes;

        if (cost > *s->work)
            return 1;
        *s->work -= cost;
        for (uint32_t k = s->sets.begin[at]; k < s->sets.begin[at + 1]; k++)
            d->final[at] |= s->sets.item[k] == final;
        for (unsigned c = 0; c < s->n_classes; c++) {
            uint32_t to;

            step_set(s, at, s->first_of[c]);
            if (!s->n_found)
                continue;
            to = found_set(s, &no_memory);
            if (to == UINT32_MAX)
                return no_memory ? ERR_NOMEM : 1;
            d->next[(size_t)at * s->n_classes + c] = (uint16_t)to;
        }
    }
    d->n = s->sets.n;
    return no_memory ? ERR_NOMEM : 0;
}

int dfa_of_nfa(struct dfa **out, const struct nfa *a, uint32_t start, uint32_t final,
               unsigned states, uint64_t *work, struct err *e)
{
    struct subset s = {.a = a, .work = work};
    struct dfa *d;
    int rc = ERR_NOMEM;

    *out = NULL;
    classes_find(&s);
    s.sets.max = states;
    s.sets.table_mask = 1;
    while (s.sets.table_mask < 2 * states)
        s.sets.table_mask = 2 * s.sets.table_mask + 1;
    d = dfa_new(states, s.n_classes);
    s.mark = calloc(a->n + 1, sizeof(*s.mark));
    s.found = malloc((a->n + 1) * sizeof(*s.found));
    s.stack = malloc((a->n + 1) * sizeof(*s.stack));
    s.sets.begin = calloc(states + 1, sizeof(*s.sets.begin));
    s.sets.table = malloc((s.sets.table_mask + 1) * sizeof(*s.sets.table));
    if (d && s.mark && s.found && s.stack && s.sets.begin && s.sets.table && !a->no_memory) {
        memset(s.sets.table, 0xff, (s.sets.table_mask + 1) * sizeof(*s.sets.table));
        memcpy(d->class_of, s.class_of, sizeof(d->class_of));
        rc = subsets(&s, d, start, final);
    }
    free(s.mark);
    free(s.found);
    free(s.stack);
    free(s.sets.begin);
    free(s.sets.table);
    free(s.sets.item);
    if (!rc)
        rc = dfa_trim(d, e);
    if (!rc) {
        uint16_t *fit = realloc(d->next, ((size_t)d->n * d->n_classes + 1) * sizeof(*fit));

        d->next = fit ? fit : d->next;
        *out = d;
        return 0;
    }
    dfa_close(d);
    return rc == 1 ? 0 : err_set(e, ERR_NOMEM, "automaton of at most %u states", states);
}

struct product { /* one dfa_both: pairs of states by number */
    const struct dfa *a, *b;
    uint32_t *pair, *table, n, max, mask;
};

static uint32_t pair_find(struct product *p, unsigned sa, unsigned sb)
{
    uint32_t key = sa << 16 | sb, at = (key * 0x9e3779b1u >> 7) & p->mask;

    for (; p->table[at] != UINT32_MAX; at = (at + 1) & p->mask)
        if (p->pair[p->table[at]] == key)
            return p->table[at];
    if (p->n == p->max)
        return UINT32_MAX;
    p->table[at] = p->n;
    p->pair[p->n] = key;
    return p->n++;
}

static bool pairs(struct product *p, struct dfa *d, uint64_t *work)
{
    uint8_t first_of[256];

    for (unsigned b = 256; b-- > 0;)
        first_of[d->class_of[b]] = (uint8_t)b;
    pair_find(p, 0, 0);
    for (uint32_t at = 0; at < p->n; at++) {
        unsigned sa = p->pair[at] >> 16, sb = p->pair[at] & 0xffff;

        if (*work < d->n_classes)
            return false;
        *work -= d->n_classes;
        d->final[at] = p->a->final[sa] && p->b->final[sb];
        for (unsigned c = 0; c < d->n_classes; c++) {
            unsigned ta = dfa_next(p->a, sa, first_of[c]), tb = dfa_next(p->b, sb, first_of[c]);
            uint32_t to;

            if (ta == DFA_DEAD || tb == DFA_DEAD)
                continue;
            to = pair_find(p, ta, tb);
            if (to == UINT32_MAX)
                return false;
            d->next[(size_t)at * d->n_classes + c] = (uint16_t)to;
        }
    }
    d->n = p->n;
    return true;
}

int dfa_both(struct dfa **out, const struct dfa *a, const struct dfa *b, unsigned states,
             uint64_t *work, struct err *e)
{
    struct product p = {.a = a, .b = b, .max = states, .mask = 1};
    int16_t seen[256][256];
    uint8_t class_of[256];
    unsigned n_classes = 0;
    struct dfa *d;
    bool fits = true;

    *out = NULL;
    memset(seen, 0xff, sizeof(seen));
    for (unsigned c = 0; c < 256; c++) {
        int16_t *at = &seen[a->class_of[c]][b->class_of[c]];

        if (*at < 0)
            *at = (int16_t)n_classes++;
        class_of[c] = (uint8_t)*at;
    }
    while (p.mask < 2 * states)
        p.mask = 2 * p.mask + 1;
    d = dfa_new(states, n_classes);
    p.pair = malloc((states + 1) * sizeof(*p.pair));
    p.table = malloc((p.mask + 1) * sizeof(*p.table));
    if (!d || !p.pair || !p.table) {
        err_set(e, ERR_NOMEM, "automaton of at most %u states", states);
    } else {
        memset(p.table, 0xff, (p.mask + 1) * sizeof(*p.table));
        memcpy(d->class_of, class_of, sizeof(class_of));
        d->n = 0;
        if (a->n && b->n)
            fits = pairs(&p, d, work);
        if (fits && !dfa_trim(d, e))
            *out = d;
    }
    free(p.pair);
    free(p.table);
    if (*out)
        return 0;
    dfa_close(d);
    return fits ? e->code : 0;
}
