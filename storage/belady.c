/* belady.c - the page whose next request is farthest away leaves: no policy can miss less often.
 * Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
 *
 * For replay: it is given the requests beforehand. A demand for a page takes its next request from
 * the list, so requests that are made together may come in any order. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "storage/page_index.h"
#include "storage/policy.h"

enum { NEVER = UINT32_MAX };

struct belady {
    struct policy policy;
    unsigned n_frames;
    uint32_t *after;         /* [n_future] the request for the same page after this one, or NEVER */
    uint32_t *next;          /* [n_pages] the next request for a page */
    uint32_t *of_frame;      /* [n_frames] the page it holds */
    struct page_index index; /* extent -> page */
};

static void belady_close(struct policy *p)
{
    struct belady *b = (struct belady *)p;

    if (!b)
        return;
    page_index_release(&b->index);
    free(b->of_frame);
    free(b->next);
    free(b->after);
    free(b);
}

/* From the end, so that next[] ends as the first request of each page. */
static void read_future(struct belady *b, const struct extent *at, uint32_t n)
{
    uint32_t n_pages = 0;

    while (n--) {
        uint32_t page = page_index_find(&b->index, at[n]);

        if (page == NO_FRAME) {
            page = n_pages++;
            page_index_add(&b->index, at[n], page);
            b->next[page] = NEVER;
        }
        b->after[n] = b->next[page];
        b->next[page] = n;
    }
}

static int belady_open(struct policy **out, unsigned n_frames, uint64_t seed,
                       const struct policy_known *known, struct err *e)
{
    struct belady *b;

    (void)seed;
    if (!known->n_future || known->n_future > INT32_MAX)
        return err_set(e, ERR_ARG, "policy belady: %zu requests ahead, 1...%d are possible",
                       known->n_future, INT32_MAX);
    b = calloc(1, sizeof(*b));
    if (b) {
        b->after = malloc(known->n_future * sizeof(*b->after));
        b->next = malloc(known->n_future * sizeof(*b->next));
        b->of_frame = calloc(n_frames, sizeof(*b->of_frame));
    }
    if (!b || !b->after || !b->next || !b->of_frame ||
        !page_index_init(&b->index, (uint32_t)known->n_future)) {
        belady_close((struct policy *)b);
        return err_set(e, ERR_NOMEM, "policy belady: %u frames", n_frames);
    }
    b->policy.ops = &policy_belady;
    b->n_frames = n_frames;
    read_future(b, known->future, (uint32_t)known->n_future);
    *out = &b->policy;
    return 0;
}

static void belady_used(struct policy *p, unsigned frame)
{
    struct belady *b = (struct belady *)p;
    uint32_t *next = &b->next[b->of_frame[frame]];

    if (*next != NEVER)
        *next = b->after[*next];
}

static void belady_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    struct belady *b = (struct belady *)p;

    b->of_frame[frame] = page_index_find(&b->index, at);
    assert(b->of_frame[frame] != NO_FRAME); /* it is among the requests */
    if (kind == HINT_SURE)
        belady_used(p, frame);
}

static unsigned belady_victim(struct policy *p, const uint64_t *free_to_go)
{
    struct belady *b = (struct belady *)p;
    unsigned last = b->n_frames;

    for (unsigned base = 0; base < b->n_frames; base += 64)
        for (uint64_t bits = free_to_go[base / 64]; bits; bits &= bits - 1) {
            unsigned f = base + (unsigned)__builtin_ctzll(bits);

            if (last == b->n_frames || b->next[b->of_frame[f]] > b->next[b->of_frame[last]])
                last = f;
        }
    assert(last < b->n_frames);
    return last;
}

const struct policy_ops policy_belady = {
    .name = "belady",
    .open = belady_open,
    .loaded = belady_loaded,
    .used = belady_used,
    .victim = belady_victim,
    .close = belady_close,
};
