#include "cli/bench/route_replay.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { NOWHERE = UINT32_MAX };

enum set { IN_USE, WANTED, MAY_GO, SETS }; /* of frames */

struct run {
    const struct routes *r;
    const struct policy_ops *ops;
    struct policy *policy;
    unsigned n_frames, words, n_used;
    uint32_t *frame_of; /* [n_layers * n_experts] or NOWHERE */
    uint32_t *page_in;  /* [n_frames] */
    bool *fresh;        /* [n_frames] not pinned since it was loaded */
    uint64_t *set[SETS];
    struct replay_counts n;
};

static void put(struct run *x, enum set s, unsigned f, bool in)
{
    uint64_t bit = UINT64_C(1) << (f % 64);

    x->set[s][f / 64] = in ? x->set[s][f / 64] | bit : x->set[s][f / 64] & ~bit;
}

static uint32_t page_of(const struct run *x, unsigned layer, unsigned id)
{
    return layer * x->r->n_experts + id;
}

/* What a sure claim may take in pool.c. */
static bool may_go(struct run *x)
{
    uint64_t any = 0;

    for (unsigned w = 0; w < x->words; w++)
        any |= x->set[MAY_GO][w] = x->set[IN_USE][w] & ~x->set[WANTED][w];
    return any;
}

static bool load(struct run *x, const struct route_call *c, unsigned id)
{
    uint32_t page = page_of(x, c->layer, id), f;

    if (x->n_used < x->n_frames) {
        f = x->n_used++;
    } else {
        if (!may_go(x))
            return false;
        f = x->ops->victim(x->policy, x->set[MAY_GO]);
        x->frame_of[x->page_in[f]] = NOWHERE;
        x->n.evictions++;
    }
    x->page_in[f] = page;
    x->frame_of[page] = f;
    x->fresh[f] = true;
    put(x, IN_USE, f, true);
    put(x, WANTED, f, true);
    x->ops->loaded(x->policy, f, route_extent(c->layer, id), HINT_SURE);
    return true;
}

/* Load what is still wished for, in order, until there is no frame. */
static unsigned start_wishes(struct run *x, const struct route_call *c, const bool *done,
                             unsigned next)
{
    const uint16_t *id = x->r->id + c->first;

    while (next < c->n && (done[next] || x->frame_of[page_of(x, c->layer, id[next])] != NOWHERE ||
                           load(x, c, id[next])))
        next++;
    return next;
}

static void pin(struct run *x, unsigned f)
{
    x->n.misses += x->fresh[f];
    x->n.hits += !x->fresh[f];
    if (!x->fresh[f])
        x->ops->used(x->policy, f);
    x->fresh[f] = false;
    put(x, WANTED, f, false);
}

/* One layer of one token. What is loaded is ready, so the first of the call that has a frame is
 * pinned first; its frame is nobody's victim while it is pinned. */
static void serve(struct run *x, const struct route_call *c, bool *done)
{
    const uint16_t *id = x->r->id + c->first;
    unsigned next;

    memset(x->set[WANTED], 0, x->words * sizeof(uint64_t));
    memset(done, 0, c->n);
    for (unsigned i = 0; i < c->n; i++) {
        uint32_t f = x->frame_of[page_of(x, c->layer, id[i])];

        if (f != NOWHERE)
            put(x, WANTED, f, true);
    }
    next = start_wishes(x, c, done, 0);
    for (unsigned left = c->n; left; left--) {
        unsigned i = 0;
        uint32_t f = NOWHERE;

        for (; i < c->n; i++)
            if (!done[i] && (f = x->frame_of[page_of(x, c->layer, id[i])]) != NOWHERE)
                break;
        assert(f != NOWHERE); /* the last page to be unpinned made room for the next */
        pin(x, f);
        done[i] = true;
        put(x, IN_USE, f, false);
        next = start_wishes(x, c, done, next);
        put(x, IN_USE, f, true);
        next = start_wishes(x, c, done, next);
    }
}

struct extent *replay_future(const struct routes *r)
{
    struct extent *future = malloc(r->n_ids * sizeof(*future));

    for (size_t i = 0; future && i < r->n_calls; i++)
        for (unsigned k = 0; k < r->call[i].n; k++)
            future[r->call[i].first + k] =
                route_extent(r->call[i].layer, r->id[r->call[i].first + k]);
    return future;
}

static int run_open(struct run *x, uint64_t seed, struct err *e)
{
    size_t n_pages = (size_t)x->r->n_layers * x->r->n_experts;
    struct extent *future = NULL;
    struct policy_known known;
    int rc;

    x->words = (x->n_frames + 63) / 64;
    x->frame_of = malloc(n_pages * sizeof(*x->frame_of));
    x->page_in = calloc(x->n_frames, sizeof(*x->page_in));
    x->fresh = calloc(x->n_frames, sizeof(*x->fresh));
    x->set[0] = calloc((size_t)x->words * SETS, sizeof(uint64_t));
    if (!x->frame_of || !x->page_in || !x->fresh || !x->set[0])
        return err_set(e, ERR_NOMEM, "replay of %u frames", x->n_frames);
    memset(x->frame_of, 0xff, n_pages * sizeof(*x->frame_of));
    for (unsigned s = 1; s < SETS; s++)
        x->set[s] = x->set[0] + (size_t)s * x->words;
    if (x->ops == &policy_belady && !(future = replay_future(x->r)))
        return err_set(e, ERR_NOMEM, "the requests ahead");
    known = replay_known(x->r, future);
    rc = x->ops->open(&x->policy, x->n_frames, seed, &known, e);
    free(future);
    return rc;
}

int replay(struct replay_counts *out, const struct routes *r, const struct policy_ops *policy,
           unsigned n_frames, uint64_t seed, struct err *e)
{
    struct run x = {.r = r, .ops = policy, .n_frames = n_frames};
    bool *done = malloc(ROUTES_CALL_MAX);
    int rc = !n_frames ? err_set(e, ERR_ARG, "a pool of 0 frames")
             : !done   ? err_set(e, ERR_NOMEM, "replay")
                       : run_open(&x, seed, e);

    for (size_t i = 0; !rc && i < r->n_calls; i++)
        serve(&x, &r->call[i], done);
    if (!rc)
        *out = x.n;
    policy->close(x.policy);
    free(x.set[0]);
    free(x.fresh);
    free(x.page_in);
    free(x.frame_of);
    free(done);
    return rc;
}
