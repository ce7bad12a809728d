#include "storage/history.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PAGES_PER_FRAME = 8 };

uint32_t history_size(unsigned n_frames, const struct policy_known *known)
{
    uint64_t n = known->n_pages ? known->n_pages : (uint64_t)n_frames * PAGES_PER_FRAME;

    n = n < POLICY_PAGES_MAX ? n : POLICY_PAGES_MAX;
    return n > n_frames ? (uint32_t)n : n_frames;
}

bool history_init(struct history *h, unsigned n_frames, uint32_t n_max)
{
    assert(n_max >= n_frames);
    *h = (struct history){.n_max = n_max, .oldest = NO_PAGE, .newest = NO_PAGE};
    h->of_frame = malloc(n_frames * sizeof(*h->of_frame));
    h->page = calloc(n_max, sizeof(*h->page));
    if (!page_index_init(&h->index, n_max) || !h->of_frame || !h->page)
        return false;
    memset(h->of_frame, 0xff, n_frames * sizeof(*h->of_frame));
    return true;
}

void history_release(struct history *h)
{
    page_index_release(&h->index);
    free(h->page);
    free(h->of_frame);
    memset(h, 0, sizeof(*h));
}

static void leave(struct history *h, uint32_t n)
{
    struct history_page *x = &h->page[n];

    x->frame = NO_FRAME;
    x->older = h->newest;
    x->newer = NO_PAGE;
    if (h->newest != NO_PAGE)
        h->page[h->newest].newer = n;
    else
        h->oldest = n;
    h->newest = n;
}

static void come_back(struct history *h, uint32_t n)
{
    struct history_page *x = &h->page[n];

    *(x->older != NO_PAGE ? &h->page[x->older].newer : &h->oldest) = x->newer;
    *(x->newer != NO_PAGE ? &h->page[x->newer].older : &h->newest) = x->older;
}

/* A number for a page that is not remembered. */
static uint32_t number(struct history *h, struct extent at)
{
    uint32_t n = h->n;

    if (n < h->n_max) {
        h->n++;
    } else {
        n = h->oldest; /* fewer frames than n_max hold a page just now, so one has left */
        come_back(h, n);
        page_index_remove(&h->index, h->page[n].at);
    }
    h->page[n].at = at;
    page_index_add(&h->index, at, n);
    return n;
}

uint32_t history_loaded(struct history *h, unsigned frame, struct extent at, bool *is_new)
{
    uint32_t n = page_index_find(&h->index, at);

    *is_new = n == NO_FRAME;
    if (h->of_frame[frame] != NO_PAGE)
        leave(h, h->of_frame[frame]);
    h->of_frame[frame] = NO_PAGE;
    if (*is_new)
        n = number(h, at);
    else if (h->page[n].frame == NO_FRAME)
        come_back(h, n);
    else /* it left unseen: dropped, trimmed, purged, or its read failed */
        h->of_frame[h->page[n].frame] = NO_PAGE;
    h->page[n].frame = frame;
    h->of_frame[frame] = n;
    return n;
}
