/* model/reclaim.h - source shards that are deleted while they are converted, for disks that cannot
 * hold both.
 *
 * Every tensor has one consumer, a layer or the trunk; a shard may go when all consumers of its
 * tensors are done and on stable storage. The ledger `.reclaimed` beside the shards names one
 * before it is deleted, so that a later run knows it from one that was never downloaded.
 */
#ifndef MODEL_RECLAIM_H
#define MODEL_RECLAIM_H

#include "model/convert_names.h"

enum reclaim_mode { RECLAIM_OFF, RECLAIM_DRY, RECLAIM_ON };

struct reclaim;

/* RECLAIM_OFF: nothing is ever deleted. Checkpoint, map and prints, the shards' fingerprints
 * (convert_shards.h), must outlive it. ERR_ARG: source and container lie in each other, a shard
 * is a link, symbolic or hard (deleting it frees nothing), or the release has no index (the names
 * of its tensors would go with its one file). ERR_IO: the source is read-only. */
int reclaim_open(struct reclaim **out, struct checkpoint *c, const struct tensor_map *m,
                 const json_t *prints, const char *container, enum reclaim_mode mode,
                 struct err *e);
void reclaim_close(struct reclaim *r); /* NULL-safe */

/* This consumer is done, whether now or by an earlier run: delete (or with RECLAIM_DRY, count) what
 * nobody else needs. ERR_IO: also when a shard is no longer the one that was converted. */
int reclaim_trunk(struct reclaim *r, struct err *e);
int reclaim_layer(struct reclaim *r, unsigned layer, struct err *e);

/* Bytes on the disk of the shards that go when this one is done, after the trunk and all layers
 * before it; 0 with RECLAIM_OFF. */
enum { RECLAIM_TRUNK = -1 };
uint64_t reclaim_frees(const struct reclaim *r, int consumer);

unsigned reclaim_count(const struct reclaim *r); /* shards so far */
uint64_t reclaim_bytes(const struct reclaim *r); /* of them */

#endif
