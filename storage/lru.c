/* lru.c - the page unused for longest leaves. What everybody knows; the yardstick, not the default:
 * a token walks through all layers in a cycle, and cycles are what LRU is worst at. */
#include "storage/policy.h"

#include <assert.h>
#include <stdlib.h>

struct lru {
    struct policy policy;
    unsigned n_frames;
    uint64_t now;
    uint64_t last[]; /* [n_frames] when each was loaded or used */
};

static int lru_open(struct policy **out, unsigned n_frames, uint64_t seed,
                    const struct policy_known *known, struct err *e)
{
    struct lru *l = calloc(1, sizeof(*l) + n_frames * sizeof(l->last[0]));

    (void)seed, (void)known;
    if (!l)
        return err_set(e, ERR_NOMEM, "policy lru: %u frames", n_frames);
    l->policy.ops = &policy_lru;
    l->n_frames = n_frames;
    *out = &l->policy;
    return 0;
}

static void lru_used(struct policy *p, unsigned frame)
{
    struct lru *l = (struct lru *)p;

    l->last[frame] = ++l->now;
}

static void lru_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    (void)at, (void)kind;
    lru_used(p, frame);
}

static unsigned lru_victim(struct policy *p, const uint64_t *free_to_go)
{
    struct lru *l = (struct lru *)p;
    unsigned oldest = l->n_frames;

    for (unsigned base = 0; base < l->n_frames; base += 64)
        for (uint64_t bits = free_to_go[base / 64]; bits; bits &= bits - 1) {
            unsigned f = base + (unsigned)__builtin_ctzll(bits);

            if (oldest == l->n_frames || l->last[f] < l->last[oldest])
                oldest = f;
        }
    assert(oldest < l->n_frames);
    return oldest;
}

static void lru_close(struct policy *p)
{
    free(p);
}

const struct policy_ops policy_lru = {
    .name = "lru",
    .open = lru_open,
    .loaded = lru_loaded,
    .used = lru_used,
    .victim = lru_victim,
    .close = lru_close,
};
