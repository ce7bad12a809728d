/* lfru.c - the page used least often leaves, among equals the one unused for longest; looked for
 * in a sample of 16 frames. Counts do not decay, and a page that comes back has its old one. */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "storage/history.h"

enum { SAMPLE = 16 };

struct lfru_page {
    uint64_t hits, last; /* since it is remembered; when it was last loaded or used */
};

struct lfru {
    struct policy policy;
    unsigned n_frames;
    uint64_t now, random;
    struct history history;
    struct lfru_page *page; /* [history.n_max] */
};

static void lfru_close(struct policy *p)
{
    struct lfru *l = (struct lfru *)p;

    if (!l)
        return;
    free(l->page);
    history_release(&l->history);
    free(l);
}

static int lfru_open(struct policy **out, unsigned n_frames, uint64_t seed,
                     const struct policy_known *known, struct err *e)
{
    uint32_t n_max = history_size(n_frames, known);
    struct lfru *l = calloc(1, sizeof(*l));

    if (l)
        l->page = calloc(n_max, sizeof(*l->page));
    if (!l || !l->page || !history_init(&l->history, n_frames, n_max)) {
        lfru_close((struct policy *)l);
        return err_set(e, ERR_NOMEM, "policy lfru: %u frames", n_frames);
    }
    l->policy.ops = &policy_lfru;
    l->n_frames = n_frames;
    l->random = seed;
    *out = &l->policy;
    return 0;
}

static void lfru_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    struct lfru *l = (struct lfru *)p;
    bool is_new;
    struct lfru_page *x = &l->page[history_loaded(&l->history, frame, at, &is_new)];

    (void)kind;
    if (is_new)
        x->hits = 0;
    x->hits++;
    x->last = ++l->now;
}

static struct lfru_page *page_in(const struct lfru *l, unsigned frame)
{
    return &l->page[l->history.of_frame[frame]];
}

static void lfru_used(struct policy *p, unsigned frame)
{
    struct lfru *l = (struct lfru *)p;

    page_in(l, frame)->hits++;
    page_in(l, frame)->last = ++l->now;
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
    const struct lfru_page *x = page_in(l, a), *y = page_in(l, b);

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

const struct policy_ops policy_lfru = {
    .name = "lfru",
    .open = lfru_open,
    .loaded = lfru_loaded,
    .used = lfru_used,
    .victim = lfru_victim,
    .close = lfru_close,
};
