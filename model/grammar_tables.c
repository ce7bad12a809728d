/* grammar_tables.c - what a match remembers from token to token: stacks of calls, keys of objects.
 * Each is kept once and known by a number; sweeping keeps what some place still needs. */
#include "model/grammar_match.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"

bool match_room(struct grammar_match *m, void *list, size_t *cap, size_t used, size_t size)
{
    if (list_room(list, cap, used + 1, size))
        return true;
    m->no_memory = true;
    return false;
}

void spots_copy(struct grammar_match *m, struct spots *to, const struct spots *from)
{
    to->n = 0;
    for (uint32_t i = 0; i < from->n; i++)
        spots_add(m, to, from->at[i]);
}

int match_no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "grammar: memory for the state of an answer");
}

uint32_t match_put(struct grammar_match *m, struct intern *in, const uint32_t *word, uint32_t n)
{
    uint32_t i = intern_put(in, word, n, NULL);

    if (i == INTERN_NONE) {
        m->no_memory = true;
        return 0;
    }
    return i;
}

uint32_t frame_put(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack,
                   uint32_t depth)
{
    return match_put(m, &m->frames, (const uint32_t[]){node, reg, stack, depth}, FRAME_WORDS);
}

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

uint32_t stack_of(struct grammar_match *m, uint32_t *frame, uint32_t n)
{
    struct return_to *to;
    uint32_t kept = 0;

    if (n == 1)
        return match_put(m, &m->stacks, frame, n);
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
    return match_put(m, &m->stacks, frame, kept);
}

uint32_t stack_join(struct grammar_match *m, uint32_t a, uint32_t b)
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

uint32_t stack_push(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack)
{
    uint32_t frame = frame_put(m, node, reg, stack, stack_depth(m, stack));

    return match_put(m, &m->stacks, &frame, 1);
}

uint32_t key_put(struct grammar_match *m, uint32_t key, uint8_t byte)
{
    uint32_t length = intern_at(&m->keys, key)[KEY_LENGTH] + 1;

    match_put(m, &m->known, &key, 1);
    return match_put(m, &m->keys, (const uint32_t[]){key, byte, length}, KEY_WORDS);
}

uint32_t key_find(const struct grammar_match *m, uint32_t key, uint8_t byte)
{
    uint32_t to;

    if (key == KEY_NEW)
        return KEY_NEW;
    to = intern_find(&m->keys,
                     (const uint32_t[]){key, byte, intern_at(&m->keys, key)[KEY_LENGTH] + 1},
                     KEY_WORDS);
    return to == INTERN_NONE ? KEY_NEW : to;
}

bool key_allowed(const struct grammar_match *m, uint32_t leaf, uint32_t key, uint32_t list,
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

int tables_open(struct grammar_match *m, struct err *e)
{
    const struct rules *r = &m->g->source;
    uint32_t bottom, empty = 0;

    if (!intern_open(&m->frames) || !intern_open(&m->stacks) || !intern_open(&m->keys) ||
        !intern_open(&m->lists) || !intern_open(&m->taken) || !intern_open(&m->known) ||
        !intern_open(&m->returns))
        return match_no_memory(e);
    bottom = frame_put(m, NET_NONE, 0, NET_NONE, UINT32_MAX);
    match_put(m, &m->stacks, &bottom, 1);
    match_put(m, &m->keys, (const uint32_t[]){0, 0, 0}, KEY_WORDS);
    match_put(m, &m->lists, (const uint32_t[]){0, 0, 0}, LIST_WORDS);
    for (uint32_t i = 0; i < m->g->n_leaf; i++) {
        const struct leaf *l = &m->g->leaf[i];

        for (uint32_t k = 0; l->kind == LEAF_KEY && k < l->n && !m->no_memory; k++) {
            const struct expr *name = &r->expr[r->kid[l->a + k]];
            uint32_t key = empty;

            for (uint32_t n = 0; n < name->n; n++)
                key = key_put(m, key, r->byte[name->a + n]);
            match_put(m, &m->known, &key, 1);
            match_put(m, &m->taken, (const uint32_t[]){i, key}, 2);
        }
        if (intern_bytes(&m->keys) > TABLES_BYTES)
            return err_set(e, ERR_LIMIT, "the names of properties take %zu bytes, at most %d",
                           intern_bytes(&m->keys), TABLES_BYTES);
    }
    return m->no_memory ? match_no_memory(e) : 0;
}

void tables_close(struct grammar_match *m)
{
    intern_close(&m->frames);
    intern_close(&m->stacks);
    intern_close(&m->keys);
    intern_close(&m->lists);
    intern_close(&m->taken);
    intern_close(&m->known);
    intern_close(&m->returns);
}

size_t tables_bytes(const struct grammar_match *m)
{
    return intern_bytes(&m->frames) + intern_bytes(&m->stacks) + intern_bytes(&m->keys) +
           intern_bytes(&m->lists) + intern_bytes(&m->taken) + intern_bytes(&m->known) +
           intern_bytes(&m->returns) + m->returned.cap * sizeof(struct spot);
}

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

        match_put(w->m, &w->m->known, &key, 1);
        list = match_put(w->m, &w->m->lists,
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
            frame[i] = match_put(w->m, &w->m->frames,
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

int tables_sweep(struct grammar_match *m, struct err *e)
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
    masks_clear(m);
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
    return m->no_memory ? match_no_memory(e) : 0;
}
