/* grammar_match.c - where an answer stands: places, tokens, the life of a match. */
#include "model/grammar_match.h"

#include <stdlib.h>
#include <string.h>

enum {
    SPOTS_MAX = 1 << 14, /* places kept from one token to the next; more are dropped, */
    BROAD_MAX = 64,      /* and of broad ones, which cost a walk over the tree each */
};

static int by_spot(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct spot));
}

static bool same_reading(const struct grammar_match *m, const struct spot *a, const struct spot *b)
{
    return a->leaf == b->leaf && a->state == b->state && a->count == b->count &&
           stack_depth(m, a->stack) == stack_depth(m, b->stack);
}

/* A finished automaton that no byte continues. */
static bool spot_spent(const struct grammar *g, const struct spot *s)
{
    const struct dfa *d;

    if (s->leaf & LEAF_OF_TOKEN || g->leaf[s->leaf].kind != LEAF_DFA)
        return false;
    d = g->dfa[g->leaf[s->leaf].dfa];
    for (unsigned c = 0; c < d->n_classes; c++)
        if (d->next[(size_t)s->state * d->n_classes + c] != DFA_DEAD)
            return false;
    return true;
}

/* Between two tokens: sorted, spots that differ in their stacks only made one, few. */
static void spots_settle(struct grammar_match *m, struct spots *s)
{
    uint32_t n = 0, n_broad = 0;

    if (s->n)
        qsort(s->at, s->n, sizeof(*s->at), by_spot);
    for (uint32_t i = 0; i < s->n && n < SPOTS_MAX; i++) {
        if (spot_spent(m->g, &s->at[i]))
            continue;
        if (n >= BROAD_MAX && spot_broad(m->g, &s->at[i]) && ++n_broad > BROAD_MAX)
            continue;
        if (n && same_reading(m, &s->at[n - 1], &s->at[i]))
            s->at[n - 1].stack = stack_join(m, s->at[n - 1].stack, s->at[i].stack);
        else
            s->at[n++] = s->at[i];
    }
    s->n = n;
}

/* The bytes of a token, into m->level[0]. */
static void advance_bytes(struct grammar_match *m, const struct spots *from, int32_t token,
                          bool *complete)
{
    const char *bytes;
    size_t len;

    m->level[0].n = 0;
    tokenizer_token_bytes(m->trie->tokenizer, token, &bytes, &len);
    if ((unsigned)token >= m->trie->n_ranks || !len || len > TOKEN_BYTES_MAX)
        return;
    spots_copy(m, &m->level[0], from);
    for (size_t i = 0; i < len && m->level[0].n && !m->no_memory; i++) {
        struct spots swap = m->level[1];

        spots_step(m, &m->level[0], (uint8_t)bytes[i], false, &swap, complete);
        m->level[1] = m->level[0];
        m->level[0] = swap;
        if (!m->level[0].n && i + 1 < len)
            *complete = false;
    }
}

/* The leaves that take the token as a whole. */
static void advance_whole(struct grammar_match *m, const struct spots *from, int32_t token,
                          bool *complete)
{
    expand_begin(m);
    for (uint32_t i = 0; i < from->n; i++) {
        const struct net_edge *x;

        if (!(from->at[i].leaf & LEAF_OF_TOKEN))
            continue;
        x = &m->g->edge[from->at[i].leaf & ~LEAF_OF_TOKEN];
        if ((x->kind == EDGE_TOKEN) == (x->arg == (uint32_t)token))
            item_return(m, from->at[i].stack, complete);
    }
    expand_items(m, &m->level[0], complete);
}

int match_advance(struct grammar_match *m, enum match_place from, enum match_place to,
                  int32_t token, struct err *e)
{
    bool complete = false;

    if (tables_sweep(m, e))
        return e->code;
    m->serial = m->serial + 1 < SERIAL_MASK ? m->serial + 1 : 1;
    advance_bytes(m, &m->place[from].spots, token, &complete);
    advance_whole(m, &m->place[from].spots, token, &complete);
    spots_settle(m, &m->level[0]);
    if (m->no_memory)
        return match_no_memory(e);
    if (!m->level[0].n && !complete)
        return err_set(e, ERR_ARG, "token %d is not allowed by the grammar here", token);
    spots_copy(m, &m->place[to].spots, &m->level[0]);
    m->place[to].complete = complete;
    return m->no_memory ? match_no_memory(e) : 0;
}

void match_copy(struct grammar_match *m, enum match_place from, enum match_place to)
{
    if (from == to)
        return;
    spots_copy(m, &m->place[to].spots, &m->place[from].spots);
    m->place[to].complete = m->place[from].complete;
}

bool match_complete(const struct grammar_match *m, enum match_place at)
{
    return m->place[at].complete;
}

bool match_exhausted(const struct grammar_match *m, enum match_place at)
{
    return m->place[at].complete && !m->place[at].spots.n;
}

int match_reset(struct grammar_match *m, struct err *e)
{
    struct place *base = &m->place[MATCH_BASE];

    base->spots.n = 0;
    base->complete = false;
    expand_begin(m);
    item_push(m, m->g->rule[m->g->root].start, 0, STACK_ROOT);
    expand_items(m, &base->spots, &base->complete);
    spots_settle(m, &base->spots);
    match_copy(m, MATCH_BASE, MATCH_AFTER);
    match_copy(m, MATCH_BASE, MATCH_TRIAL);
    return m->no_memory ? match_no_memory(e) : 0;
}

int match_open(struct grammar_match **out, const struct grammar *g, const struct token_trie *trie,
               struct err *e)
{
    struct grammar_match *m = calloc(1, sizeof(*m));
    int rc;

    if (!m)
        return match_no_memory(e);
    m->g = g;
    m->trie = trie;
    m->n_words = (trie->vocab + 63) / 64;
    m->inside = calloc(CACHE_ENTRIES, sizeof(*m->inside));
    if (!m->inside || !intern_open(&m->seen) || !intern_open(&m->acts) ||
        !intern_open(&m->spot_sets))
        rc = match_no_memory(e);
    else
        rc = tables_open(m, e);
    m->sweep_at = 2 * tables_bytes(m) > TABLES_BYTES ? 2 * tables_bytes(m) : TABLES_BYTES;
    if (!rc)
        rc = match_reset(m, e);
    if (rc) {
        match_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void match_close(struct grammar_match *m)
{
    if (!m)
        return;
    if (m->spot_sets.table)
        masks_clear(m);
    for (unsigned i = 0; i < MATCH_PLACES; i++)
        free(m->place[i].spots.at);
    for (unsigned i = 0; i <= TOKEN_BYTES_MAX; i++)
        free(m->level[i].at);
    tables_close(m);
    intern_close(&m->seen);
    intern_close(&m->acts);
    intern_close(&m->spot_sets);
    free(m->step.at);
    free(m->after_key.at);
    free(m->returned.at);
    free(m->returned_begin);
    free(m->returned_complete);
    free(m->item);
    free(m->act);
    free(m->caller);
    free(m->heap);
    free(m->frame);
    free(m->inside);
    free(m->whole);
    free(m);
}
