/* expertfs/codebook.h - the stage vectors of every MoE layer, widened to f32 once. */
#ifndef EXPERTFS_CODEBOOK_H
#define EXPERTFS_CODEBOOK_H

#include "base/err.h"
#include "base/mem.h"
#include "expertfs/container.h"

struct codebooks;

/* Bytes codebooks_open will charge (MEM_TRUNK) for so many MoE layers, for the plan. */
uint64_t codebooks_bytes(const struct record_layout *l, unsigned n_layers);
/* Read and check every referenced record (rules C1-C7); holes are legal. mem may be NULL. */
int codebooks_open(struct codebooks **out, const struct container *c, struct mem *mem,
                   struct err *e);
void codebooks_close(struct codebooks *cb); /* NULL-safe */

/* [stages][entries][8] f32, 64-byte aligned; borrowed. layer must be an MoE layer. */
const float *codebook_at(const struct codebooks *cb, unsigned layer, enum matrix m);

#endif
