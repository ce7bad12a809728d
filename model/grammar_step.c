/* grammar_step.c - one byte further: which leaves go on with it, and what can follow those that
 * end. */
#include "model/grammar_match.h"

void item_push(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack)
{
    bool fresh = false;

    if (intern_put(&m->seen, (const uint32_t[]){node, reg, stack}, 3, &fresh) == INTERN_NONE)
        m->no_memory = true;
    if (fresh && match_room(m, &m->item, &m->cap_item, m->n_item, sizeof(*m->item)))
        m->item[m->n_item++] = (struct item){node, reg, stack};
}

static bool before(const struct grammar_match *m, uint32_t a, uint32_t b)
{
    return m->g->rule[m->act[a].rule].rank < m->g->rule[m->act[b].rule].rank;
}

static void heap_push(struct grammar_match *m, uint32_t act)
{
    size_t i = m->n_heap;

    if (!match_room(m, &m->heap, &m->cap_heap, m->n_heap, sizeof(*m->heap)))
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

    if (act == INTERN_NONE || !match_room(m, &m->act, &m->cap_act, act, sizeof(*m->act)) ||
        !match_room(m, &m->caller, &m->cap_caller, m->n_caller, sizeof(*m->caller))) {
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

void item_return(struct grammar_match *m, uint32_t stack, bool *complete)
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
void expand_items(struct grammar_match *m, struct spots *out, bool *complete)
{
    drain(m, false, out, complete);
    while (m->n_heap && !m->no_memory) {
        struct activation *act = &m->act[heap_pop(m)];

        m->n_frame = 0;
        for (uint32_t i = act->first; i != NET_NONE; i = m->caller[i].next)
            if (match_room(m, &m->frame, &m->cap_frame, m->n_frame, sizeof(*m->frame)))
                m->frame[m->n_frame++] = m->caller[i].frame;
        item_push(m, m->g->rule[act->rule].start, 0, stack_of(m, m->frame, (uint32_t)m->n_frame));
        drain(m, true, out, complete);
    }
}

void expand_begin(struct grammar_match *m)
{
    m->n_item = m->n_heap = m->n_caller = 0;
    intern_clear(&m->seen);
    intern_clear(&m->acts);
}

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
void key_return(struct grammar_match *m, const struct spot *s, uint32_t serial)
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
            match_put(m, &m->known, &key, 1);
        item_push(m, node,
                  match_put(m, &m->lists, (const uint32_t[]){key, list, serial}, LIST_WORDS),
                  stack);
    }
}

void stack_return(struct grammar_match *m, uint32_t stack, struct spots *out, bool *complete)
{
    bool fresh = false;
    uint32_t i = intern_put(&m->returns, &stack, 1, &fresh);

    if (i == INTERN_NONE ||
        !match_room(m, &m->returned_begin, &m->cap_returned, i + 1, sizeof(*m->returned_begin)) ||
        !match_room(m, &m->returned_complete, &m->cap_returned_complete, i,
                    sizeof(*m->returned_complete))) {
        m->no_memory = true;
        return;
    }
    if (fresh) {
        m->returned_complete[i] = false;
        m->returned_begin[i] = m->returned.n;
        expand_begin(m);
        item_return(m, stack, &m->returned_complete[i]);
        expand_items(m, &m->returned, &m->returned_complete[i]);
        m->returned_begin[i + 1] = m->returned.n;
    }
    *complete |= m->returned_complete[i];
    m->work += m->returned_begin[i + 1] - m->returned_begin[i];
    for (uint32_t k = m->returned_begin[i]; k < m->returned_begin[i + 1]; k++)
        spots_add(m, out, m->returned.at[k]);
}

void spots_step(struct grammar_match *m, const struct spots *in, uint8_t byte, bool known,
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
        stack_return(m, out->at[last].stack, out, complete);
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
        expand_items(m, out, complete);
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
