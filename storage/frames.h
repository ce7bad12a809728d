/* storage/frames.h - the arena: one mapping cut into equal frames that hold pages. */
#ifndef STORAGE_FRAMES_H
#define STORAGE_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct frames {
    struct mem *mem;
    uint8_t *base;      /* IO_ALIGN-aligned */
    size_t frame_bytes; /* a multiple of IO_ALIGN */
    unsigned n;
};

/* n frames of frame_bytes each, huge pages advised, charged as MEM_POOL. ERR_BUDGET, ERR_NOMEM. */
int frames_open(struct frames *out, struct mem *mem, size_t frame_bytes, unsigned n, struct err *e);
void frames_close(struct frames *f);

/* Give the memory of the last `count` frames back to the system; they must not be used again. */
void frames_give_back(struct frames *f, unsigned count);

/* Bytes of the frames that lie on huge pages now: how far the advice was taken. Memory that nobody
 * has touched or registered yet lies on none. Reads /proc, for reports; 0 where it cannot. Memory
 * of others beside ours may be counted in, up to the size of ours. */
size_t frames_huge_bytes(const struct frames *f);

static inline uint8_t *frame_at(const struct frames *f, unsigned frame)
{
    return f->base + (size_t)frame * f->frame_bytes;
}

#endif
