/* expertfs/trunk.h - the weights that are always resident: chosen, loaded once, then read-only.
 *
 * Two steps, so that the plan knows the bytes before any is read: trunk_want each tensor, ask
 * trunk_resident_bytes, then trunk_load. Tensors are placed 64-byte aligned whatever their offset
 * in the file. Rows of tensors that are not resident (the embedding table) are read one by one.
 */
#ifndef EXPERTFS_TRUNK_H
#define EXPERTFS_TRUNK_H

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"
#include "expertfs/container.h"

struct trunk;

enum { TRUNK_WINDOW_BYTES = 4 << 20 }; /* what trunk_load takes for its reads while it runs */

struct trunk_view {
    const struct trunk_entry *entry;
    const uint8_t *data;   /* rows * row_bytes, 64-byte aligned */
    const uint16_t *scale; /* [rows][groups] f16, 64-byte aligned; NULL for F32 */
};

int trunk_open(struct trunk **out, const struct container *c, struct err *e);
void trunk_close(struct trunk *t); /* NULL-safe */

/* Mark for loading; `entry` is one of the manifest's. Twice is once. */
void trunk_want(struct trunk *t, const struct trunk_entry *entry);
uint64_t trunk_resident_bytes(const struct trunk *t); /* what trunk_load will map */

/* Map and read what is wanted, in file order, `progress` (may be NULL) counting bytes. ERR_CORRUPT:
 * a scale or an F32 value that is not finite (rule T13). ERR_CANCELLED. */
int trunk_load(struct trunk *t, struct mem *mem, struct progress *progress, struct err *e);
/* CRC-32 of what trunk_load has read, in file order: together with container_fingerprint, which
 * weights these are. */
uint32_t trunk_crc(const struct trunk *t);
struct trunk_view trunk_at(const struct trunk *t, const struct trunk_entry *entry);

/* Decode one row of a tensor, from the file: out[cols] f32, w = scale * q, one product each
 * (rules T13, T14). Any thread. */
int trunk_read_row(const struct trunk *t, const struct trunk_entry *entry, uint64_t row, float *out,
                   struct err *e);

#endif
