/* grammar_properties.c - what a network means for whoever walks it: how deep each way goes at
 * least, which rules may be passed without a byte, in which order rules are entered. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/grammar_net.h"

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
static void heights(struct grammar *g)
{
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
static void nullables(struct grammar *g, uint32_t *stack, uint32_t *mark)
{
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

int net_properties(struct grammar *g, struct err *e)
{
    struct ranking k = {.g = g};
    const struct net_rule *root = &g->rule[g->root];
    int rc = 0;

    k.stack = calloc(g->n_node + g->n_edge + 1, sizeof(*k.stack));
    k.mark = calloc(g->n_node + 1, sizeof(*k.mark));
    k.callers = calloc(g->n_rule + 1, sizeof(*k.callers));
    k.ranked = calloc(g->n_rule + 1, sizeof(*k.ranked));
    k.found = calloc(g->n_edge + 1, sizeof(*k.found));
    if (!k.stack || !k.mark || !k.callers || !k.ranked || !k.found) {
        rc = err_set(e, ERR_NOMEM, "grammar of %zu nodes", g->n_node);
    } else {
        heights(g);
        nullables(g, k.stack, k.mark);
        key_nodes(g, k.stack, k.mark);
        if (root->height == HEIGHT_NEVER)
            rc = err_set(e, ERR_FORMAT, "nothing finite satisfies it");
        else if (root->height >= GRAMMAR_DEPTH_MAX)
            rc = err_set(e, ERR_LIMIT, "whatever satisfies it nests %u deep, at most %d",
                         root->height, GRAMMAR_DEPTH_MAX - 1);
        else
            rc = rank(&k, &g->source, e);
    }
    free(k.stack);
    free(k.mark);
    free(k.callers);
    free(k.ranked);
    free(k.found);
    return rc;
}
