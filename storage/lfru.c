/* lfru.c - the page used least often leaves, among equals the one unused for longest; looked for
 * in a sample of 16 frames. Counts live as long as the page is resident and do not decay. */
#include "storage/policy.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 16 };

struct lfru_frame {
    uint64_t hits, last; /* since the load; when it was last loaded or used */
};

struct lfru {
    struct policy policy;
    unsigned n_frames;
    uint64_t now, random;
    struct lfru_frame frame[];
};

static int lfru_open(struct policy **out, unsigned n_frames, uint64_t seed, struct err *e)
{
    struct lfru *l = calloc(1, sizeof(*l) + n_frames * sizeof(l->frame[0]));

    if (!l)
        return err_set(e, ERR_NOMEM, "policy lfru: %u frames", n_frames);
    l->policy.ops = &policy_lfru;
    l->n_frames = n_frames;
    l->random = seed;
    *out = &l->policy;
    return 0;
}

static void lfru_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    struct lfru *l = (struct lfru *)p;

    (void)at, (void)kind;
    l->frame[frame] = (struct lfru_frame){.hits = 1, .last = ++l->now};
}

static void lfru_used(struct policy *p, unsigned frame)
{
    struct lfru *l = (struct lfru *)p;

    l->frame[frame].hits++;
    l->frame[frame].last = ++l->now;
}

/* splitmix64, scaled to a frame number. */
static unsigned random_frame(struct lfru *l)
{
    uint64_t z = l->random += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return (unsigned)(((z >> 32) * l->n_frames) >> 32);
}

static bool leaves_before(const struct lfru *l, unsigned a, unsigned b)
{
    const struct lfru_frame *x = &l->frame[a], *y = &l->frame[b];

    return x->hits != y->hits ? x->hits < y->hits : x->last < y->last;
}

static unsigned lfru_victim(struct policy *p, const uint64_t *free_to_go)
{
    struct lfru *l = (struct lfru *)p;
    unsigned first = l->n_frames;

    for (unsigned i = 0; i < SAMPLE; i++) {
        unsigned f = random_frame(l);

        if (!(free_to_go[f / 64] >> (f % 64) & 1))
            continue;
        if (first == l->n_frames || leaves_before(l, f, first))
            first = f;
    }
    if (first < l->n_frames)
        return first;
    for (unsigned base = 0; base < l->n_frames; base += 64)
        for (uint64_t bits = free_to_go[base / 64]; bits; bits &= bits - 1) {
            unsigned f = base + (unsigned)__builtin_ctzll(bits);

            if (first == l->n_frames || leaves_before(l, f, first))
                first = f;
        }
    assert(first < l->n_frames);
    return first;
}

static void lfru_close(struct policy *p)
{
    free(p);
}

const struct policy_ops policy_lfru = {
    .name = "lfru",
    .open = lfru_open,
    .loaded = lfru_loaded,
    .used = lfru_used,
    .victim = lfru_victim,
    .close = lfru_close,
};

const struct policy_ops *policy_named(const char *name)
{
    static const struct policy_ops *const all[] = {&policy_lfru, &policy_lru};

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(all[i]->name, name))
            return all[i];
    return NULL;
}
