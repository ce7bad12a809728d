/* model/room.h - memory taken once, given out in cells of any size, never fragmented.
 *
 * A cell belongs to whoever holds it; its bytes may move when another cell is taken, so they are
 * asked for anew each time (room_at). Nothing is allocated here. One thread.
 */
#ifndef MODEL_ROOM_H
#define MODEL_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cell {
    size_t off, bytes;  /* multiples of 64 */
    struct cell *after; /* the next one in memory */
};

struct room {
    uint8_t *base; /* 64-byte aligned, borrowed */
    size_t bytes, used;
    struct cell *first;
};

void room_init(struct room *r, void *memory, size_t bytes);
/* false: less than `bytes` are free. What is free in pieces is moved together. */
bool room_take(struct room *r, struct cell *c, size_t bytes);
void room_give(struct room *r, struct cell *c);

static inline uint8_t *room_at(const struct room *r, const struct cell *c)
{
    return r->base + c->off;
}

#endif
