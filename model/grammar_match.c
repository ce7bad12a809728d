#include <stdlib.h>
#include <string.h>

#include "model/grammar_net.h"
#include "model/intern.h"
#include "model/token_trie.h"

#define LEAF_OF_TOKEN ((uint32_t)1 << 31) /* spot.leaf: an edge that takes a whole token */
#define KEY_NEW       (UINT32_MAX - 1)    /* the beginning of no key that is known */
#define SERIAL_MASK   (UINT32_MAX - 1)    /* of keys that end inside the tokens of a mask */

enum {
    STACK_ROOT = 0,         /* the stack that ends the answer when it is returned to */
    SPOTS_MAX = 1 << 14,    /* places kept from one token to the next; more are dropped, */
    BROAD_MAX = 64,         /* and of broad ones, which cost a walk over the tree each */
    WORK_MAX = 1 << 24,     /* steps of places in one mask; beyond, single bytes only */
    CACHE_BYTES = 6 << 20,  /* of masks and ways out; flushed when full */
    TABLES_BYTES = 6 << 20, /* of stacks and keys; swept when full */
    CACHE_ENTRIES = 1 << 10,
    BROAD = 64, /* first bytes */
};

/* A leaf in progress. stack: frames to return to when it ends, any of them. */
struct spot {
    uint32_t leaf, state;
    uint32_t count; /* LEAF_STRING: characters; LEAF_KEY: the key so far */
    uint32_t stack;
};

struct spots {
    struct spot *at;
    uint32_t n, cap;
};

struct place {
    struct spots spots;
    bool complete;
};

struct item { /* a node reached inside an activation */
    uint32_t node, reg, stack;
};

struct activation { /* a rule that is entered now, by any number of callers */
    uint32_t rule, depth;
    uint32_t first; /* of the callers, a list through `caller` */
};

struct caller {
    uint32_t frame, next;
};

/* What tokens do to one leaf in one state, whatever its stack. */
struct inside {
    uint32_t dfa, state, need, room; /* LEAF_STRING: characters that must and may still come */
    bool key;
    uint64_t *mask; /* tokens that stay in it, or end just with it (not so with keys) */
    uint32_t *out;  /* nodes of the tree where it can end */
    uint32_t n_out;
};

struct grammar_match {
    const struct grammar *g;
    const struct token_trie *trie;
    size_t n_words; /* of a mask */
    struct place place[MATCH_PLACES];

    struct intern frames; /* node, register, stack it returns to, depth */
    struct intern stacks; /* frames, ascending */
    struct intern keys;   /* key without its last byte, that byte, length */
    struct intern lists;  /* keys of an object: key, the list before, serial */
    struct intern taken;  /* leaf, key that it must not be */
    struct intern known;  /* keys that are one, or the beginning of one */
    uint32_t serial;      /* of the token being consumed */
    size_t sweep_at;      /* bytes of these tables */

    /* scratch of expand */
    struct item *item;
    struct activation *act;
    struct caller *caller;
    uint32_t *heap, *frame;
    size_t n_item, cap_item, n_act, cap_act, n_caller, cap_caller, n_heap, cap_heap, n_frame,
        cap_frame;
    struct intern seen, acts;

    struct intern returns;    /* stack, key or not */
    struct spots returned;    /* of all of them */
    uint32_t *returned_begin; /* [returns.n + 1] */
    bool *returned_complete;
    size_t cap_returned, cap_returned_complete;

    struct spots level[TOKEN_BYTES_MAX + 1], step, after_key;
    struct inside *inside;
    uint64_t **whole; /* masks, each of spot_sets' list with the same number */
    uint32_t n_inside, n_whole;
    size_t cap_whole;
    struct intern spot_sets;
    size_t cache_bytes;
    size_t work; /* of the mask being made */
    bool no_memory;
};

static bool room(struct grammar_match *m, void *list, size_t *cap, size_t used, size_t size)
{
    void **p = list, *q;

    if (used < *cap)
        return true;
    q = realloc(*p, (2 * used + 64) * size);
    if (!q) {
        m->no_memory = true;
        return false;
    }
    *p = q;
    *cap = 2 * used + 64;
    return true;
}

static void spots_add(struct grammar_match *m, struct spots *s, struct spot x)
{
    size_t cap = s->cap;

    if (!room(m, &s->at, &cap, s->n, sizeof(*s->at)))
        return;
    s->cap = (uint32_t)cap;
    s->at[s->n++] = x;
}

static uint32_t put(struct grammar_match *m, struct intern *in, const uint32_t *word, uint32_t n)
{
    uint32_t i = intern_put(in, word, n, NULL);

    if (i == INTERN_NONE) {
        m->no_memory = true;
        return 0;
    }
    return i;
}

/* ---- stacks ---- */

enum { FRAME_NODE, FRAME_REG, FRAME_STACK, FRAME_DEPTH, FRAME_WORDS };

static uint32_t frame_put(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack,
                          uint32_t depth)
{
    return put(m, &m->frames, (const uint32_t[]){node, reg, stack, depth}, FRAME_WORDS);
}

/* Activations that run on this stack are so deep. */
static uint32_t stack_depth(const struct grammar_match *m, uint32_t stack)
{
    return intern_at(&m->frames, intern_at(&m->stacks, stack)[0])[FRAME_DEPTH] + 1;
}

static uint32_t stack_join(struct grammar_match *m, uint32_t a, uint32_t b);

struct return_to {
    uint32_t node, reg, frame;
};

static int by_return(const void *a, const void *b)
{
    const struct return_to *x = a, *y = b;

    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->reg != y->reg)
        return x->reg < y->reg ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* The stack of these frames, which are of one depth; those that return to the same node and
 * register become one. Sorts the list. */
static uint32_t stack_of(struct grammar_match *m, uint32_t *frame, uint32_t n)
{
    struct return_to *to;
    uint32_t kept = 0;

    if (n == 1)
        return put(m, &m->stacks, frame, n);
    to = malloc(n * sizeof(*to));
    if (!to) {
        m->no_memory = true;
        return STACK_ROOT;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *f = intern_at(&m->frames, frame[i]);

        to[i] = (struct return_to){f[FRAME_NODE], f[FRAME_REG], frame[i]};
    }
    qsort(to, n, sizeof(*to), by_return);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t a, b;

        if (!kept || to[i].node != to[kept - 1].node || to[i].reg != to[kept - 1].reg) {
            to[kept++] = to[i];
            continue;
        }
        if (to[i].frame == to[kept - 1].frame)
            continue;
        a = intern_at(&m->frames, to[kept - 1].frame)[FRAME_STACK];
        b = intern_at(&m->frames, to[i].frame)[FRAME_STACK];
        to[kept - 1].frame = frame_put(m, to[i].node, to[i].reg, stack_join(m, a, b),
                                       intern_at(&m->frames, to[i].frame)[FRAME_DEPTH]);
    }
    for (uint32_t i = 0; i < kept; i++)
        frame[i] = to[i].frame;
    free(to);
    qsort(frame, kept, sizeof(*frame), by_number);
    return put(m, &m->stacks, frame, kept);
}

static uint32_t stack_join(struct grammar_match *m, uint32_t a, uint32_t b)
{
    uint32_t na, nb, s;
    const uint32_t *fa = intern_list(&m->stacks, a, &na), *fb = intern_list(&m->stacks, b, &nb);
    uint32_t *both;

    if (a == b)
        return a;
    both = malloc((na + nb) * sizeof(*both));
    if (!both) {
        m->no_memory = true;
        return a;
    }
    memcpy(both, fa, na * sizeof(*both));
    memcpy(both + na, fb, nb * sizeof(*both));
    s = stack_of(m, both, na + nb);
    free(both);
    return s;
}

static uint32_t stack_push(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack)
{
    uint32_t frame = frame_put(m, node, reg, stack, stack_depth(m, stack));

    return put(m, &m->stacks, &frame, 1);
}

/* ---- keys ---- */

enum { KEY_BEFORE, KEY_BYTE, KEY_LENGTH, KEY_WORDS };
enum { LIST_KEY, LIST_BEFORE, LIST_SERIAL, LIST_WORDS }; /* list 0 is the empty one */

static uint32_t key_put(struct grammar_match *m, uint32_t key, uint8_t byte)
{
    uint32_t length = intern_at(&m->keys, key)[KEY_LENGTH] + 1;

    put(m, &m->known, &key, 1);
    return put(m, &m->keys, (const uint32_t[]){key, byte, length}, KEY_WORDS);
}

static uint32_t key_find(const struct grammar_match *m, uint32_t key, uint8_t byte)
{
    uint32_t to;

    if (key == KEY_NEW)
        return KEY_NEW;
    to = intern_find(&m->keys,
                     (const uint32_t[]){key, byte, intern_at(&m->keys, key)[KEY_LENGTH] + 1},
                     KEY_WORDS);
    return to == INTERN_NONE ? KEY_NEW : to;
}

/* May this key end here, in an object that has these? One key of an object and token at most. */
static bool key_allowed(const struct grammar_match *m, uint32_t leaf, uint32_t key, uint32_t list,
                        uint32_t serial)
{
    if (list && intern_at(&m->lists, list)[LIST_SERIAL] == serial)
        return false;
    if (key == KEY_NEW)
        return true;
    if (intern_find(&m->taken, (const uint32_t[]){leaf, key}, 2) != INTERN_NONE)
        return false;
    for (; list; list = intern_at(&m->lists, list)[LIST_BEFORE])
        if (intern_at(&m->lists, list)[LIST_KEY] == key)
            return false;
    return true;
}

/* ---- from nodes to the leaves that can come next, without a byte ---- */

static void item_push(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack)
{
    bool fresh = false;

    if (intern_put(&m->seen, (const uint32_t[]){node, reg, stack}, 3, &fresh) == INTERN_NONE)
        m->no_memory = true;
    if (fresh && room(m, &m->item, &m->cap_item, m->n_item, sizeof(*m->item)))
        m->item[m->n_item++] = (struct item){node, reg, stack};
}

static bool before(const struct grammar_match *m, uint32_t a, uint32_t b)
{
    return m->g->rule[m->act[a].rule].rank < m->g->rule[m->act[b].rule].rank;
}

static void heap_push(struct grammar_match *m, uint32_t act)
{
    size_t i = m->n_heap;

    if (!room(m, &m->heap, &m->cap_heap, m->n_heap, sizeof(*m->heap)))
        return;
    m->n_heap++;
    for (; i > 0 && before(m, act, m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = act;
}

static uint32_t heap_pop(struct grammar_match *m)
{
    uint32_t top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, k;

    while ((k = 2 * i + 1) < m->n_heap) {
        k += k + 1 < m->n_heap && before(m, m->heap[k + 1], m->heap[k]);
        if (!before(m, m->heap[k], last))
            break;
        m->heap[i] = m->heap[k];
        i = k;
    }
    m->heap[i] = last;
    return top;
}

static void caller_add(struct grammar_match *m, uint32_t rule, uint32_t depth, uint32_t frame)
{
    bool fresh = false;
    uint32_t act = intern_put(&m->acts, (const uint32_t[]){rule, depth}, 2, &fresh);

    if (act == INTERN_NONE || !room(m, &m->act, &m->cap_act, act, sizeof(*m->act)) ||
        !room(m, &m->caller, &m->cap_caller, m->n_caller, sizeof(*m->caller))) {
        m->no_memory = true;
        return;
    }
    if (fresh) {
        m->act[act] = (struct activation){rule, depth, NET_NONE};
        heap_push(m, act);
    }
    m->caller[m->n_caller] = (struct caller){frame, m->act[act].first};
    m->act[act].first = (uint32_t)m->n_caller++;
}

static void call(struct grammar_match *m, const struct net_edge *x, const struct item *it,
                 uint32_t depth)
{
    const struct net_node *to = &m->g->node[x->to];
    uint32_t n;

    if (!to->end || to->first != NET_NONE) {
        caller_add(m, x->arg, depth + 1, frame_put(m, x->to, it->reg, it->stack, depth));
        return;
    }
    intern_list(&m->stacks, it->stack, &n); /* a tail call returns to whom we return to */
    for (uint32_t i = 0; i < n; i++)
        caller_add(m, x->arg, depth, intern_at(&m->stacks, it->stack)[i]);
}

static void leaf_begin(struct grammar_match *m, uint32_t leaf, bool keep, const struct net_edge *x,
                       const struct item *it, struct spots *out)
{
    const struct net_node *to = &m->g->node[x->to];
    bool tail = to->end && to->first == NET_NONE && !keep;
    uint32_t stack = tail ? it->stack : stack_push(m, x->to, it->reg, it->stack);

    spots_add(m, out, (struct spot){.leaf = leaf, .stack = stack});
}

static void follow(struct grammar_match *m, uint32_t edge, const struct item *it, uint32_t depth,
                   struct spots *out)
{
    const struct grammar *g = m->g;
    const struct net_edge *x = &g->edge[edge];

    if (depth + x->height > GRAMMAR_DEPTH_MAX)
        return;
    switch (x->kind) {
    case EDGE_CALL:
        call(m, x, it, depth);
        if (g->rule[x->arg].nullable && !x->whole)
            item_push(m, x->to, it->reg, it->stack);
        break;
    case EDGE_LEAF:
        leaf_begin(m, x->arg, g->leaf[x->arg].kind == LEAF_KEY, x, it, out);
        if (g->leaf[x->arg].nullable)
            item_push(m, x->to, it->reg, it->stack);
        break;
    case EDGE_TOKEN:
    case EDGE_OTHER:
        leaf_begin(m, LEAF_OF_TOKEN | edge, false, x, it, out);
        break;
    case EDGE_COUNT:
        item_push(m, x->to, it->reg < x->arg ? it->reg + 1 : x->arg, it->stack);
        break;
    case EDGE_ENOUGH:
        if (it->reg >= x->arg)
            item_push(m, x->to, it->reg, it->stack);
        break;
    case EDGE_BELOW:
        if (it->reg < x->arg || x->arg == REPEAT_ANY)
            item_push(m, x->to, it->reg, it->stack);
        break;
    default:
        item_push(m, x->to, it->reg, it->stack);
    }
}

static void item_return(struct grammar_match *m, uint32_t stack, bool *complete)
{
    uint32_t n;

    intern_list(&m->stacks, stack, &n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *f = intern_at(&m->frames, intern_at(&m->stacks, stack)[i]);

        if (f[FRAME_NODE] == NET_NONE)
            *complete = true;
        else
            item_push(m, f[FRAME_NODE], f[FRAME_REG], f[FRAME_STACK]);
    }
}

/* Everything reachable from the items that wait. entered: they are of rules that are entered now,
 * whose ends are of no interest: who called them has passed them by already. */
static void drain(struct grammar_match *m, bool entered, struct spots *out, bool *complete)
{
    for (; m->n_item && !m->no_memory;) {
        struct item it = m->item[--m->n_item];
        uint32_t depth = stack_depth(m, it.stack);

        if (m->g->node[it.node].end && !entered)
            item_return(m, it.stack, complete);
        for (uint32_t i = m->g->node[it.node].first; i != NET_NONE; i = m->g->edge[i].next)
            follow(m, i, &it, depth, out);
    }
}

/* The leaves that can follow the items pushed since expand_begin. Rules are entered in the order of
 * their ranks, so each once, with all of its callers. */
static void expand(struct grammar_match *m, struct spots *out, bool *complete)
{
    drain(m, false, out, complete);
    while (m->n_heap && !m->no_memory) {
        struct activation *act = &m->act[heap_pop(m)];

        m->n_frame = 0;
        for (uint32_t i = act->first; i != NET_NONE; i = m->caller[i].next)
            if (room(m, &m->frame, &m->cap_frame, m->n_frame, sizeof(*m->frame)))
                m->frame[m->n_frame++] = m->caller[i].frame;
        item_push(m, m->g->rule[act->rule].start, 0, stack_of(m, m->frame, (uint32_t)m->n_frame));
        drain(m, true, out, complete);
    }
}

static void expand_begin(struct grammar_match *m)
{
    m->n_item = m->n_heap = m->n_caller = 0;
    intern_clear(&m->seen);
    intern_clear(&m->acts);
}

/* ---- bytes ---- */

static bool spot_final(const struct grammar *g, const struct spot *s)
{
    const struct leaf *l = &g->leaf[s->leaf];

    return l->kind == LEAF_BYTES ? s->state == l->n : g->dfa[l->dfa]->final[s->state];
}

/* false: the leaf does not go on with this byte. known: keys that nobody knows stay so. */
static bool spot_step(struct grammar_match *m, struct spot *s, uint8_t byte, bool known)
{
    const struct leaf *l;
    uint16_t to;

    if (s->leaf & LEAF_OF_TOKEN)
        return false;
    l = &m->g->leaf[s->leaf];
    if (l->kind == LEAF_BYTES)
        return s->state < l->n && m->g->source.byte[l->a + s->state++] == byte;
    to = dfa_next(m->g->dfa[l->dfa], s->state, byte);
    if (to == DFA_DEAD)
        return false;
    if (l->kind == LEAF_STRING && s->state == STRING_BODY) {
        if (byte == '"' ? s->count < l->min : s->count >= l->max)
            return false;
        if (byte != '"' && (l->max != REPEAT_ANY || s->count < l->min))
            s->count++;
    }
    if (l->kind == LEAF_KEY && s->state != STRING_START &&
        !(s->state == STRING_BODY && byte == '"'))
        s->count = known ? key_find(m, s->count, byte) : key_put(m, s->count, byte);
    s->state = to;
    return true;
}

/* An object's key has ended: its list grows, where it may. */
static void key_return(struct grammar_match *m, const struct spot *s, uint32_t serial)
{
    uint32_t n;

    intern_list(&m->stacks, s->stack, &n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *f = intern_at(&m->frames, intern_at(&m->stacks, s->stack)[i]);
        uint32_t list = f[FRAME_REG], node = f[FRAME_NODE], stack = f[FRAME_STACK];
        uint32_t key = s->count;

        if (!key_allowed(m, s->leaf, s->count, list, serial))
            continue;
        if (serial == SERIAL_MASK)
            key = KEY_NEW;
        else
            put(m, &m->known, &key, 1);
        item_push(m, node, put(m, &m->lists, (const uint32_t[]){key, list, serial}, LIST_WORDS),
                  stack);
    }
}

/* What follows when a leaf with this stack ends; kept. */
static void return_cached(struct grammar_match *m, uint32_t stack, struct spots *out,
                          bool *complete)
{
    bool fresh = false;
    uint32_t i = intern_put(&m->returns, &stack, 1, &fresh);

    if (i == INTERN_NONE ||
        !room(m, &m->returned_begin, &m->cap_returned, i + 1, sizeof(*m->returned_begin)) ||
        !room(m, &m->returned_complete, &m->cap_returned_complete, i,
              sizeof(*m->returned_complete))) {
        m->no_memory = true;
        return;
    }
    if (fresh) {
        m->returned_complete[i] = false;
        m->returned_begin[i] = m->returned.n;
        expand_begin(m);
        item_return(m, stack, &m->returned_complete[i]);
        expand(m, &m->returned, &m->returned_complete[i]);
        m->returned_begin[i + 1] = m->returned.n;
    }
    *complete |= m->returned_complete[i];
    m->work += m->returned_begin[i + 1] - m->returned_begin[i];
    for (uint32_t k = m->returned_begin[i]; k < m->returned_begin[i + 1]; k++)
        spots_add(m, out, m->returned.at[k]);
}

/* out = in after one more byte. complete: the answer may end there. */
static void spots_step(struct grammar_match *m, const struct spots *in, uint8_t byte, bool known,
                       struct spots *out, bool *complete)
{
    uint32_t serial = known ? SERIAL_MASK : m->serial, n_final = 0, last = 0, n;

    out->n = 0;
    *complete = false;
    m->work += in->n;
    for (uint32_t i = 0; i < in->n; i++) {
        struct spot s = in->at[i];

        if (!spot_step(m, &s, byte, known))
            continue;
        if (spot_final(m->g, &s)) {
            n_final += m->g->leaf[s.leaf].kind == LEAF_KEY ? 2 : 1;
            last = out->n;
        }
        spots_add(m, out, s);
    }
    if (!n_final)
        return;
    n = out->n;
    if (n_final == 1) {
        return_cached(m, out->at[last].stack, out, complete);
    } else {
        expand_begin(m);
        for (uint32_t i = 0; i < n; i++) {
            const struct spot s = out->at[i];

            if (!spot_final(m->g, &s))
                continue;
            if (m->g->leaf[s.leaf].kind == LEAF_KEY)
                key_return(m, &s, serial);
            else
                item_return(m, s.stack, complete);
        }
        expand(m, out, complete);
    }
    m->step.n = 0; /* a key or text that has ended goes nowhere by itself */
    for (uint32_t i = 0; i < out->n; i++)
        if (i >= n || !spot_final(m->g, &out->at[i]) ||
            m->g->leaf[out->at[i].leaf].kind == LEAF_DFA)
            spots_add(m, &m->step, out->at[i]);
    {
        struct spots swap = *out;

        *out = m->step;
        m->step = swap;
    }
}

/* ---- places ---- */

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

/* A leaf that most tokens may go on with: what they do to it is worth keeping. */
static bool spot_broad(const struct grammar *g, const struct spot *s)
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

static void spots_copy(struct grammar_match *m, struct spots *to, const struct spots *from)
{
    to->n = 0;
    for (uint32_t i = 0; i < from->n; i++)
        spots_add(m, to, from->at[i]);
}

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "grammar: memory for the state of an answer");
}

/* ---- masks ---- */

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

static void caches_clear(struct grammar_match *m)
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
    expand(m, &m->after_key, &complete);
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
            expand(m, level, &complete);
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
        return_cached(m, s->stack, level, &complete);
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
    const struct leaf *l = &m->g->leaf[s->leaf & ~LEAF_OF_TOKEN];
    uint32_t longest = m->trie->depth_max, need = 0, rest = 0xffff;

    if (s->leaf & LEAF_OF_TOKEN)
        return 0;
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
        caches_clear(m);
    m->after_key.n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        spots_add(m, &m->after_key, s->at[i]);
        if (!m->no_memory)
            m->after_key.at[i].count = count_for_mask(m, &s->at[i]);
    }
    if (m->no_memory)
        return no_memory(e);
    set = intern_put(&m->spot_sets, (const uint32_t *)(const void *)m->after_key.at,
                     s->n * (uint32_t)(sizeof(struct spot) / sizeof(uint32_t)), &fresh);
    if (set == INTERN_NONE)
        return no_memory(e);
    if (!fresh) {
        *mask = m->whole[set];
        return 0;
    }
    filled = calloc(m->n_words, sizeof(*filled));
    if (filled && room(m, &m->whole, &m->cap_whole, m->n_whole, sizeof(*m->whole))) {
        m->whole[m->n_whole++] = filled;
        m->cache_bytes += m->n_words * sizeof(*filled);
        mask_fill(m, s, filled);
    }
    if (!filled || m->no_memory) {
        caches_clear(m);
        return no_memory(e);
    }
    *mask = filled;
    return 0;
}

/* What is in the tables of every match: the root's stack, the empty key, the empty list, names. */
static int tables_open(struct grammar_match *m, struct err *e)
{
    const struct rules *r = &m->g->source;
    uint32_t bottom, empty = 0;

    if (!intern_open(&m->frames) || !intern_open(&m->stacks) || !intern_open(&m->keys) ||
        !intern_open(&m->lists) || !intern_open(&m->taken) || !intern_open(&m->known) ||
        !intern_open(&m->returns))
        return no_memory(e);
    bottom = frame_put(m, NET_NONE, 0, NET_NONE, UINT32_MAX);
    put(m, &m->stacks, &bottom, 1);
    put(m, &m->keys, (const uint32_t[]){0, 0, 0}, KEY_WORDS);
    put(m, &m->lists, (const uint32_t[]){0, 0, 0}, LIST_WORDS);
    for (uint32_t i = 0; i < m->g->n_leaf; i++) {
        const struct leaf *l = &m->g->leaf[i];

        for (uint32_t k = 0; l->kind == LEAF_KEY && k < l->n && !m->no_memory; k++) {
            const struct expr *name = &r->expr[r->kid[l->a + k]];
            uint32_t key = empty;

            for (uint32_t n = 0; n < name->n; n++)
                key = key_put(m, key, r->byte[name->a + n]);
            put(m, &m->known, &key, 1);
            put(m, &m->taken, (const uint32_t[]){i, key}, 2);
        }
        if (intern_bytes(&m->keys) > TABLES_BYTES)
            return err_set(e, ERR_LIMIT, "the names of properties take %zu bytes, at most %d",
                           intern_bytes(&m->keys), TABLES_BYTES);
    }
    return m->no_memory ? no_memory(e) : 0;
}

static void tables_close(struct grammar_match *m)
{
    intern_close(&m->frames);
    intern_close(&m->stacks);
    intern_close(&m->keys);
    intern_close(&m->lists);
    intern_close(&m->taken);
    intern_close(&m->known);
    intern_close(&m->returns);
}

static size_t tables_bytes(const struct grammar_match *m)
{
    return intern_bytes(&m->frames) + intern_bytes(&m->stacks) + intern_bytes(&m->keys) +
           intern_bytes(&m->lists) + intern_bytes(&m->taken) + intern_bytes(&m->known) +
           intern_bytes(&m->returns) + m->returned.cap * sizeof(struct spot);
}

/* ---- sweeping: what no place needs any more ---- */

struct sweep {
    struct grammar_match *m;
    struct intern frames, stacks, keys, lists; /* as they were */
    uint32_t *stack;                           /* old -> new; INTERN_NONE */
};

static uint32_t sweep_key(struct sweep *w, uint32_t old)
{
    uint32_t length, key = 0;
    uint8_t *bytes;

    if (old == KEY_NEW)
        return old;
    length = intern_at(&w->keys, old)[KEY_LENGTH];
    bytes = malloc(length + 1);
    if (!bytes) {
        w->m->no_memory = true;
        return 0;
    }
    for (uint32_t i = length; i-- > 0; old = intern_at(&w->keys, old)[KEY_BEFORE])
        bytes[i] = (uint8_t)intern_at(&w->keys, old)[KEY_BYTE];
    for (uint32_t i = 0; i < length; i++)
        key = key_put(w->m, key, bytes[i]);
    free(bytes);
    return key;
}

static uint32_t sweep_list(struct sweep *w, uint32_t old)
{
    uint32_t n = 0, list = 0, *chain;

    for (uint32_t i = old; i; i = intern_at(&w->lists, i)[LIST_BEFORE])
        n++;
    chain = malloc((n + 1) * sizeof(*chain));
    if (!chain) {
        w->m->no_memory = true;
        return 0;
    }
    for (uint32_t i = n; i-- > 0; old = intern_at(&w->lists, old)[LIST_BEFORE])
        chain[i] = old;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = sweep_key(w, intern_at(&w->lists, chain[i])[LIST_KEY]);

        put(w->m, &w->m->known, &key, 1);
        list = put(w->m, &w->m->lists,
                   (const uint32_t[]){key, list, intern_at(&w->lists, chain[i])[LIST_SERIAL]},
                   LIST_WORDS);
    }
    free(chain);
    return list;
}

static uint32_t sweep_stack(struct sweep *w, uint32_t old)
{
    uint32_t n, *frame;

    if (w->stack[old] != INTERN_NONE || old == STACK_ROOT)
        return old == STACK_ROOT ? old : w->stack[old];
    intern_list(&w->stacks, old, &n);
    frame = malloc(n * sizeof(*frame));
    if (!frame) {
        w->m->no_memory = true;
        return STACK_ROOT;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *f = intern_at(&w->frames, intern_at(&w->stacks, old)[i]);

        if (f[FRAME_NODE] == NET_NONE)
            frame[i] = intern_at(&w->m->stacks, STACK_ROOT)[0];
        else
            frame[i] = put(w->m, &w->m->frames,
                           (const uint32_t[]){f[FRAME_NODE],
                                              w->m->g->node[f[FRAME_NODE]].keys
                                                  ? sweep_list(w, f[FRAME_REG])
                                                  : f[FRAME_REG],
                                              sweep_stack(w, f[FRAME_STACK]), f[FRAME_DEPTH]},
                           FRAME_WORDS);
    }
    w->stack[old] = stack_of(w->m, frame, n);
    free(frame);
    return w->stack[old];
}

static int match_sweep(struct grammar_match *m, struct err *e)
{
    struct sweep w = {.m = m};
    size_t live;

    if (tables_bytes(m) <= m->sweep_at)
        return 0;
    w.frames = m->frames;
    w.stacks = m->stacks;
    w.keys = m->keys;
    w.lists = m->lists;
    m->frames = m->stacks = m->keys = m->lists = (struct intern){0};
    w.stack = malloc((w.stacks.n + 1) * sizeof(*w.stack));
    caches_clear(m);
    tables_close(m);
    m->returned.n = 0;
    if (!w.stack || tables_open(m, e)) {
        m->no_memory = true;
    } else {
        memset(w.stack, 0xff, (w.stacks.n + 1) * sizeof(*w.stack));
        for (unsigned p = 0; p < MATCH_PLACES; p++)
            for (uint32_t i = 0; i < m->place[p].spots.n; i++) {
                struct spot *s = &m->place[p].spots.at[i];

                s->stack = sweep_stack(&w, s->stack);
                if (!(s->leaf & LEAF_OF_TOKEN) && m->g->leaf[s->leaf].kind == LEAF_KEY)
                    s->count = sweep_key(&w, s->count);
            }
    }
    free(w.stack);
    intern_close(&w.frames);
    intern_close(&w.stacks);
    intern_close(&w.keys);
    intern_close(&w.lists);
    live = tables_bytes(m);
    m->sweep_at = 2 * live > TABLES_BYTES ? 2 * live : TABLES_BYTES;
    return m->no_memory ? no_memory(e) : 0;
}

/* ---- moving on ---- */

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
    expand(m, &m->level[0], complete);
}

int match_advance(struct grammar_match *m, enum match_place from, enum match_place to,
                  int32_t token, struct err *e)
{
    bool complete = false;

    if (match_sweep(m, e))
        return e->code;
    m->serial = m->serial + 1 < SERIAL_MASK ? m->serial + 1 : 1;
    advance_bytes(m, &m->place[from].spots, token, &complete);
    advance_whole(m, &m->place[from].spots, token, &complete);
    spots_settle(m, &m->level[0]);
    if (m->no_memory)
        return no_memory(e);
    if (!m->level[0].n && !complete)
        return err_set(e, ERR_ARG, "token %d is not allowed by the grammar here", token);
    spots_copy(m, &m->place[to].spots, &m->level[0]);
    m->place[to].complete = complete;
    return m->no_memory ? no_memory(e) : 0;
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
    expand(m, &base->spots, &base->complete);
    spots_settle(m, &base->spots);
    match_copy(m, MATCH_BASE, MATCH_AFTER);
    match_copy(m, MATCH_BASE, MATCH_TRIAL);
    return m->no_memory ? no_memory(e) : 0;
}

int match_open(struct grammar_match **out, const struct grammar *g, const struct token_trie *trie,
               struct err *e)
{
    struct grammar_match *m = calloc(1, sizeof(*m));
    int rc;

    if (!m)
        return no_memory(e);
    m->g = g;
    m->trie = trie;
    m->n_words = (trie->vocab + 63) / 64;
    m->inside = calloc(CACHE_ENTRIES, sizeof(*m->inside));
    if (!m->inside || !intern_open(&m->seen) || !intern_open(&m->acts) ||
        !intern_open(&m->spot_sets))
        rc = no_memory(e);
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
        caches_clear(m);
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
