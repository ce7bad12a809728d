/* expertfs/safetensors.h - a published checkpoint: index, shards, and tensors as f32.
 *
 * A checkpoint is a directory with model.safetensors.index.json and its shards, or with one
 * model.safetensors. Everything in it is untrusted. Low-precision encodings are undone while
 * reading: MXFP4 pairs (X_packed, X_scale) and block-scaled FP8 (X, X_scale_inv) appear as one
 * logical tensor X; companions are not listed. Any thread may read.
 */
#ifndef EXPERTFS_SAFETENSORS_H
#define EXPERTFS_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

struct file;

enum source_dtype {
    SOURCE_F32,
    SOURCE_F16,
    SOURCE_BF16,
    SOURCE_F8_E4M3,
    SOURCE_F8_E5M2,
    SOURCE_MXFP4
};

struct source_tensor { /* one logical tensor */
    const char *name;  /* borrowed from the checkpoint */
    enum source_dtype dtype;
    unsigned rank; /* 1...4; 0: its shard was reclaimed, and dtype, dim, rows and cols with it */
    uint32_t dim[4];
    uint64_t rows, cols;  /* product of the leading dimensions, last dimension; 1 row for rank 1 */
    unsigned shard;       /* of the payload */
    unsigned scale_shard; /* of the companion; the same when there is none */
};

struct checkpoint;

/* Open index (or single file), config.json, every shard that is there, and check each header
 * against its file. ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED name shard or tensor. A shard that is
 * listed and absent is an error unless it is in the `.reclaimed` ledger; one that is there is an
 * error if `.download-state` exists and does not vouch for it. What a shard holds and the index
 * does not list is checked and left out. */
int checkpoint_open(struct checkpoint **out, const char *dir, struct err *e);
void checkpoint_close(struct checkpoint *c); /* NULL-safe */

const json_t *checkpoint_config(const struct checkpoint *c); /* config.json, whole */
const char *checkpoint_dir(const struct checkpoint *c);
unsigned checkpoint_n_tensors(const struct checkpoint *c); /* ascending byte order of names */
const struct source_tensor *checkpoint_tensor(const struct checkpoint *c, unsigned i);
const struct source_tensor *checkpoint_find(const struct checkpoint *c,
                                            const char *name); /* or NULL */

/* Does an index name its tensors, so that they are known of a shard that is gone? */
bool checkpoint_indexed(const struct checkpoint *c);
unsigned checkpoint_n_shards(const struct checkpoint *c); /* ascending byte order of names */
const char *checkpoint_shard(const struct checkpoint *c, unsigned shard);
bool checkpoint_shard_present(const struct checkpoint *c, unsigned shard); /* false: reclaimed */
/* Is the file of this name below dirfd, which is the checkpoint's directory, the one that was
 * opened, and has nobody written to it since? Of one that is present. */
bool checkpoint_shard_untouched(const struct checkpoint *c, unsigned shard, int dirfd);
/* It is about to be deleted: from here on it is not present, and nobody may be reading from it. */
void checkpoint_shard_close(struct checkpoint *c, unsigned shard);

/* Rows [row, row + n) as f32, exact: out [n][cols], whose contents are lost on failure. ERR_IO,
 * also for a reclaimed shard; ERR_CORRUPT: a value or a scale that is not finite, named by its
 * place. */
int checkpoint_read(const struct checkpoint *c, const struct source_tensor *t, uint64_t row,
                    uint64_t n, float *out, struct err *e);

/* The same in two steps, for who has the bytes read elsewhere (expertfs/row_stream.h). */
struct source_part {         /* where bytes of rows lie */
    unsigned shard;          /* with bytes 0 as well */
    const struct file *file; /* of the shard, opened for direct reads where they work; borrowed */
    uint64_t off;            /* no multiple of anything */
    size_t bytes;
};

/* ERR_IO: a shard was reclaimed. */
int checkpoint_check_present(const struct checkpoint *c, const struct source_tensor *t,
                             struct err *e);
/* Payload and companion of rows [row, row + n), n > 0; both shards are present. Without a companion
 * the second has 0 bytes. */
void checkpoint_parts(const struct checkpoint *c, const struct source_tensor *t, uint64_t row,
                      uint64_t n, struct source_part part[2]);
/* From these bytes: out as checkpoint_read has it. payload may be the end of out itself. */
int checkpoint_widen(const struct checkpoint *c, const struct source_tensor *t, uint64_t row,
                     uint64_t n, const uint8_t *payload, const uint8_t *scales, float *out,
                     struct err *e);

#endif
