/* grammar_mask.c - the tokens that a place allows, all at once: a walk over the tree of all tokens,
 * of which what does not depend on the stacks is kept. */
#include "model/grammar_match.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORK_MAX = 1 << 24,    /* steps of places in one mask; beyond, single bytes only */
    CACHE_BYTES = 6 << 20, /* of masks and ways out; flushed when full */
    BROAD = 64,            /* first bytes */
};

bool spot_broad(const struct grammar *g, const struct spot *s)
{
    const struct leaf *l;
    unsigned n = 0;

    if (s->leaf & LEAF_OF_TOKEN)
        return false;
    l = &g->leaf[s->leaf];
    for (unsigned b = 0; b < 256 && l->kind != LEAF_BYTES; b++)
        n += dfa_next(g->dfa[l->dfa], s->state, (uint8_t)b) != DFA_DEAD;
    return n >= BROAD;
}

static void mark(uint64_t *mask, int32_t token)
{
    mask[token >> 6] |= (uint64_t)1 << (token & 63);
}

/* The bytes that lead to a node: those of any token below it. */
static const uint8_t *path(const struct token_trie *t, uint32_t node)
{
    const char *bytes;
    size_t len;

    while (t->node[node].token < 0)
        node++;
    tokenizer_token_bytes(t->tokenizer, t->node[node].token, &bytes, &len);
    return (const uint8_t *)bytes;
}

/* Tokens below node x that the spots in level[depth of x] let through. */
static void descend(struct grammar_match *m, uint32_t x, uint64_t *mask)
{
    const struct trie_node *node = m->trie->node;

    for (uint32_t i = x + 1; i < node[x].skip && m->work <= WORK_MAX && !m->no_memory;) {
        const struct spots *in = &m->level[node[i].depth - 1];
        struct spots *out = &m->level[node[i].depth];
        bool complete;

        spots_step(m, in, node[i].byte, true, out, &complete);
        if (!out->n && !complete) {
            i = node[i].skip;
            continue;
        }
        if (node[i].token >= 0)
            mark(mask, node[i].token);
        i++;
    }
}

static void inside_clear(struct grammar_match *m)
{
    for (uint32_t i = 0; i < m->n_inside; i++) {
        m->cache_bytes -=
            m->n_words * sizeof(*m->inside[i].mask) + m->inside[i].n_out * sizeof(uint32_t);
        free(m->inside[i].mask);
        free(m->inside[i].out);
    }
    m->n_inside = 0;
}

void masks_clear(struct grammar_match *m)
{
    inside_clear(m);
    for (uint32_t i = 0; i < m->n_whole; i++)
        free(m->whole[i]);
    m->n_whole = 0;
    m->cache_bytes = 0;
    intern_clear(&m->spot_sets);
}

/* Walk the whole tree with one leaf. */
static void inside_fill(struct grammar_match *m, struct inside *in, uint32_t *out)
{
    const struct trie_node *node = m->trie->node;
    const struct dfa *d = m->g->dfa[in->dfa];
    uint16_t state[TOKEN_BYTES_MAX + 1] = {(uint16_t)in->state};
    uint16_t count[TOKEN_BYTES_MAX + 1] = {0};
    bool counted = in->need || in->room != REPEAT_ANY;

    for (uint32_t i = 1; i < m->trie->n;) {
        unsigned depth = node[i].depth, from = state[depth - 1], n = count[depth - 1];
        uint16_t to = dfa_next(d, from, node[i].byte);
        bool quote = node[i].byte == '"', last;

        if (to == DFA_DEAD ||
            (counted && from == STRING_BODY && (quote ? n < in->need : n >= in->room))) {
            i = node[i].skip;
            continue;
        }
        state[depth] = to;
        count[depth] = (uint16_t)(n + (from == STRING_BODY && !quote));
        last = node[i].skip == i + 1;
        if (d->final[to] && (in->key || !last))
            out[in->n_out++] = i;
        if (node[i].token >= 0 && !(in->key && d->final[to]))
            mark(in->mask, node[i].token);
        i++;
    }
}

static const struct inside *inside_of(struct grammar_match *m, const struct spot *s)
{
    const struct leaf *l = &m->g->leaf[s->leaf];
    struct inside want = {.dfa = l->dfa, .state = s->state, .room = REPEAT_ANY};
    uint32_t longest = m->trie->depth_max, *out;

    if (l->kind == LEAF_STRING) {
        want.need = s->count < l->min ? l->min - s->count : 0;
        want.need = want.need < longest + 1 ? want.need : longest + 1;
        if (l->max != REPEAT_ANY && l->max - s->count < longest)
            want.room = l->max - s->count;
    }
    want.key = l->kind == LEAF_KEY;
    for (uint32_t i = 0; i < m->n_inside; i++)
        if (m->inside[i].dfa == want.dfa && m->inside[i].state == want.state &&
            m->inside[i].need == want.need && m->inside[i].room == want.room &&
            m->inside[i].key == want.key)
            return &m->inside[i];
    if (m->n_inside == CACHE_ENTRIES || m->cache_bytes > 2 * (size_t)CACHE_BYTES)
        inside_clear(m);
    want.mask = calloc(m->n_words, sizeof(*want.mask));
    out = malloc(m->trie->n * sizeof(*out));
    if (!want.mask || !out) {
        free(want.mask);
        free(out);
        m->no_memory = true;
        return NULL;
    }
    inside_fill(m, &want, out);
    want.out = realloc(out, (want.n_out + 1) * sizeof(*out));
    want.out = want.out ? want.out : out;
    m->cache_bytes += m->n_words * sizeof(*want.mask) + want.n_out * sizeof(*out);
    m->inside[m->n_inside] = want;
    return &m->inside[m->n_inside++];
}

/* A key that would end at node x: its number, as far as it is known. */
static uint32_t key_at(const struct grammar_match *m, const struct spot *s, uint32_t x)
{
    const uint8_t *bytes = path(m->trie, x);
    uint32_t key = s->count;

    for (unsigned i = s->state == STRING_START; i + 1 < m->trie->node[x].depth; i++)
        key = key_find(m, key, bytes[i]);
    return key;
}

/* Keys that nobody knows all end alike; the few that are known one by one. */
static void mask_of_key(struct grammar_match *m, const struct spot *s, const struct inside *in,
                        uint64_t *mask)
{
    const struct trie_node *node = m->trie->node;
    struct spot ended = {.leaf = s->leaf, .count = KEY_NEW, .stack = s->stack};
    bool complete = false;

    m->after_key.n = 0;
    expand_begin(m);
    key_return(m, &ended, SERIAL_MASK);
    if (!m->n_item)
        return; /* the second key of this object in one token */
    expand_items(m, &m->after_key, &complete);
    for (uint32_t i = 0; i < in->n_out && !m->no_memory; i++) {
        uint32_t x = in->out[i];
        struct spots *level = &m->level[node[x].depth];

        ended.count = key_at(m, s, x);
        if (ended.count == KEY_NEW) {
            spots_copy(m, level, &m->after_key);
        } else {
            level->n = 0;
            expand_begin(m);
            key_return(m, &ended, SERIAL_MASK);
            if (!m->n_item)
                continue;
            expand_items(m, level, &complete);
        }
        if (node[x].token >= 0)
            mark(mask, node[x].token);
        descend(m, x, mask);
    }
}

static void mask_of_spot(struct grammar_match *m, const struct spot *s, uint64_t *mask)
{
    const struct trie_node *node = m->trie->node;
    const struct inside *in;

    in = inside_of(m, s);
    if (!in)
        return;
    for (size_t i = 0; i < m->n_words; i++)
        mask[i] |= in->mask[i];
    if (in->key) {
        mask_of_key(m, s, in, mask);
        return;
    }
    for (uint32_t i = 0; i < in->n_out && !m->no_memory; i++) {
        struct spots *level = &m->level[node[in->out[i]].depth];
        bool complete = false;

        level->n = 0;
        stack_return(m, s->stack, level, &complete);
        descend(m, in->out[i], mask);
    }
}

/* A token that an edge takes as a whole, or any but that one. */
static void mask_of_edge(const struct grammar_match *m, const struct net_edge *x, uint64_t *mask)
{
    bool had = mask[x->arg >> 6] >> (x->arg & 63) & 1;

    if (x->kind == EDGE_TOKEN) {
        mark(mask, (int32_t)x->arg);
        return;
    }
    memset(mask, 0xff, m->n_words * sizeof(*mask));
    if (!had)
        mask[x->arg >> 6] &= ~((uint64_t)1 << (x->arg & 63));
}

/* Too much work: the tokens of one byte that go on, so that there is always one. */
static void mask_of_bytes(struct grammar_match *m, const struct spots *s, uint64_t *mask)
{
    const struct trie_node *node = m->trie->node;
    bool complete;

    for (uint32_t i = 1; i < m->trie->n && !m->no_memory; i = node[i].skip) {
        spots_step(m, s, node[i].byte, true, &m->level[1], &complete);
        if (node[i].token >= 0 && (m->level[1].n || complete))
            mark(mask, node[i].token);
    }
}

static void mask_fill(struct grammar_match *m, const struct spots *s, uint64_t *mask)
{
    m->work = 0;
    for (uint32_t i = 0; i < s->n && !m->no_memory; i++) {
        const struct spot *x = &s->at[i];

        if (x->leaf & LEAF_OF_TOKEN)
            mask_of_edge(m, &m->g->edge[x->leaf & ~LEAF_OF_TOKEN], mask);
        else if (spot_broad(m->g, x))
            mask_of_spot(m, x, mask);
    }
    m->level[0].n = 0; /* narrow ones together: they soon part */
    for (uint32_t i = 0; i < s->n; i++)
        if (!(s->at[i].leaf & LEAF_OF_TOKEN) && !spot_broad(m->g, &s->at[i]))
            spots_add(m, &m->level[0], s->at[i]);
    descend(m, 0, mask);
    if (m->work > WORK_MAX)
        mask_of_bytes(m, s, mask);
}

/* The same for every state that lets the same tokens through. */
static uint32_t count_for_mask(const struct grammar_match *m, const struct spot *s)
{
    uint32_t longest = m->trie->depth_max, need = 0, rest = 0xffff;
    const struct leaf *l;

    if (s->leaf & LEAF_OF_TOKEN)
        return 0;
    l = &m->g->leaf[s->leaf];
    if (l->kind == LEAF_KEY)
        return intern_find(&m->known, &s->count, 1) == INTERN_NONE ? KEY_NEW : s->count;
    if (l->kind != LEAF_STRING)
        return 0;
    if (s->count < l->min)
        need = l->min - s->count < longest + 1 ? l->min - s->count : longest + 1;
    if (l->max != REPEAT_ANY && l->max - s->count < longest)
        rest = l->max - s->count;
    return need << 16 | rest;
}

int match_mask(struct grammar_match *m, enum match_place at, const uint64_t **mask, struct err *e)
{
    const struct spots *s = &m->place[at].spots;
    uint64_t *filled;
    bool fresh = false;
    uint32_t set;

    if (m->cache_bytes > CACHE_BYTES)
        masks_clear(m);
    m->after_key.n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        spots_add(m, &m->after_key, s->at[i]);
        if (!m->no_memory)
            m->after_key.at[i].count = count_for_mask(m, &s->at[i]);
    }
    if (m->no_memory)
        return match_no_memory(e);
    set = intern_put(&m->spot_sets, (const uint32_t *)(const void *)m->after_key.at,
                     s->n * (uint32_t)(sizeof(struct spot) / sizeof(uint32_t)), &fresh);
    if (set == INTERN_NONE)
        return match_no_memory(e);
    if (!fresh) {
        *mask = m->whole[set];
        return 0;
    }
    filled = calloc(m->n_words, sizeof(*filled));
    if (filled && match_room(m, &m->whole, &m->cap_whole, m->n_whole, sizeof(*m->whole))) {
        m->whole[m->n_whole++] = filled;
        m->cache_bytes += m->n_words * sizeof(*filled);
        mask_fill(m, s, filled);
    }
    if (!filled || m->no_memory) {
        masks_clear(m);
        return match_no_memory(e);
    }
    *mask = filled;
    return 0;
}
