#include "model/room.h"

#include <string.h>

void room_init(struct room *r, void *memory, size_t bytes)
{
    *r = (struct room){.base = memory, .bytes = bytes / 64 * 64};
}

/* Where a gap of `bytes` begins, with the link that a cell there hangs on; NULL: nowhere. */
static struct cell **gap_find(struct room *r, size_t bytes, size_t *off)
{
    struct cell **at = &r->first;

    *off = 0;
    while (*at && (*at)->off - *off < bytes) {
        *off = (*at)->off + (*at)->bytes;
        at = &(*at)->after;
    }
    return r->bytes - *off >= bytes ? at : NULL;
}

static void close_gaps(struct room *r)
{
    size_t off = 0;

    for (struct cell *c = r->first; c; c = c->after) {
        if (c->off != off)
            memmove(r->base + off, r->base + c->off, c->bytes);
        c->off = off;
        off += c->bytes;
    }
}

bool room_take(struct room *r, struct cell *c, size_t bytes)
{
    struct cell **at;
    size_t off;

    if (bytes > r->bytes || (bytes = (bytes + 63) / 64 * 64) > r->bytes - r->used)
        return false;
    at = gap_find(r, bytes, &off);
    if (!at) {
        close_gaps(r);
        at = gap_find(r, bytes, &off);
    }
    *c = (struct cell){.off = off, .bytes = bytes, .after = *at};
    *at = c;
    r->used += bytes;
    return true;
}

void room_give(struct room *r, struct cell *c)
{
    struct cell **at = &r->first;

    while (*at != c)
        at = &(*at)->after;
    *at = c->after;
    r->used -= c->bytes;
}
