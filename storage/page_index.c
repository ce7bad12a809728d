#include "storage/page_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct page_slot {
    struct extent at; /* length 0: empty */
    uint32_t frame;
};

bool page_index_init(struct page_index *x, uint32_t n_max)
{
    uint32_t size = 4;

    while (size / 2 < n_max)
        size *= 2;
    x->mask = size - 1;
    x->slot = calloc(size, sizeof(*x->slot));
    return x->slot;
}

void page_index_release(struct page_index *x)
{
    free(x->slot);
    memset(x, 0, sizeof(*x));
}

static uint32_t home(const struct page_index *x, struct extent at)
{
    uint64_t h = at.offset / IO_ALIGN ^ (uint64_t)at.file << 40 ^ (uint64_t)at.length << 20;

    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93;
    return (uint32_t)(h ^ (h >> 32)) & x->mask;
}

/* The slot of this page, or the empty one where it would be. */
static uint32_t seek(const struct page_index *x, struct extent at)
{
    uint32_t i = home(x, at);

    while (x->slot[i].at.length && !extent_equal(x->slot[i].at, at))
        i = (i + 1) & x->mask;
    return i;
}

uint32_t page_index_find(const struct page_index *x, struct extent at)
{
    const struct page_slot *s = &x->slot[seek(x, at)];

    return s->at.length ? s->frame : NO_FRAME;
}

void page_index_add(struct page_index *x, struct extent at, uint32_t frame)
{
    struct page_slot *s = &x->slot[seek(x, at)];

    assert(at.length && !s->at.length);
    *s = (struct page_slot){.at = at, .frame = frame};
}

/* Close the gap with later entries that may stand there, so that no search stops too early. */
void page_index_remove(struct page_index *x, struct extent at)
{
    uint32_t gap = seek(x, at);

    assert(x->slot[gap].at.length);
    for (uint32_t i = (gap + 1) & x->mask; x->slot[i].at.length; i = (i + 1) & x->mask) {
        uint32_t from = home(x, x->slot[i].at);

        if (((i - from) & x->mask) >= ((i - gap) & x->mask)) {
            x->slot[gap] = x->slot[i];
            gap = i;
        }
    }
    x->slot[gap].at.length = 0;
}
