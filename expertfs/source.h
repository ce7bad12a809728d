/* expertfs/source.h - where experts come from: the seam between bytes and arithmetic.
 *
 * Above it nobody knows of disks, below it nobody of routers. One thread makes every call; other
 * threads may read a pinned expert.
 */
#ifndef EXPERTFS_SOURCE_H
#define EXPERTFS_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "expertfs/container.h"
#include "expertfs/hotlist.h"
#include "storage/pool.h"

struct expert {                      /* one pinned expert; layout in expertfs/record.h */
    const uint8_t *index[MATRICES];  /* RVQ indices, blocked */
    const uint16_t *scale[MATRICES]; /* f16, a scale per output row */
    struct page page;                /* keeps the pointers above alive */
};

/* The parts of a checked record. */
static inline struct expert expert_at(const struct record_layout *l, struct page page)
{
    struct expert x = {.page = page};

    for (unsigned m = 0; m < MATRICES; m++) {
        x.index[m] = page.bytes + l->index_off[m];
        x.scale[m] = (const uint16_t *)(const void *)(page.bytes + l->scale_off[m]);
    }
    return x;
}

struct expert_source;

/* ids are distinct experts of a MoE layer, n of them at most n_experts. */
struct expert_source_ops {
    void (*hint)(struct expert_source *s, unsigned layer, const uint16_t *ids, unsigned n,
                 enum hint kind);
    /* As pool_pin_any; the expert has passed record_check, and record_verify if asked for at open.
     * Bytes that have not are dropped and read once more before that is an error.
     * ERR_IO, ERR_FORMAT, ERR_CORRUPT, ERR_UNSUPPORTED: "layer 3 expert 17: ..."; nothing is
     * pinned, and a later pin reads again. ERR_BUSY as the pool has it. */
    int (*pin_any)(struct expert_source *s, unsigned layer, const uint16_t *ids, unsigned n,
                   unsigned *which, struct expert *out, struct err *e);
    void (*unpin)(struct expert_source *s, struct expert *x);
    /* Give memory back, down to the frames of one token in one layer; returns bytes. */
    size_t (*trim)(struct expert_source *s, size_t bytes);
    void (*stats)(const struct expert_source *s, struct pool_stats *out);
    void (*close)(struct expert_source *s); /* NULL-safe; not the container, not the pool */
};

struct expert_source {
    const struct expert_source_ops *ops;
};

/* Through a pool. container and pool are borrowed. verify: checksum every fresh record. */
int source_pool_open(struct expert_source **out, const struct container *c, struct pool *pool,
                     bool verify, struct err *e);

struct layer_use { /* pins since open, by where the bytes were */
    uint64_t resident, guessed, missed;
};
/* Of such a source: what a MoE layer's pins found. map: NULL, or [n_experts] values of enum
 * pool_has as it is now. */
struct layer_use source_pool_layer(const struct expert_source *s, unsigned layer, uint8_t *map);

/* Of such a source: how often each expert was pinned since open. The caller may make it all cold.
 */
struct hotlist *source_pool_uses(struct expert_source *s);
/* pool_warm with these experts, which the container has; returns how many the pool will look at. */
unsigned source_pool_warm(struct expert_source *s, const struct hot *hot, unsigned n);

/* Everything resident, for tests and small models: reads every record at open. mem may be NULL. */
int source_mem_open(struct expert_source **out, const struct container *c, struct mem *mem,
                    bool verify, struct err *e);

#endif
