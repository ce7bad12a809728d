/* expertfs/shard.h - one safetensors file: what its header lists, checked against the file.
 *
 * The header is untrusted. Afterwards every tensor has a known dtype, 1 to 4 dimensions of at least
 * 1, as many bytes as these need, all inside the file and none shared with another tensor.
 */
#ifndef EXPERTFS_SHARD_H
#define EXPERTFS_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "expertfs/safetensors.h"
#include "storage/file.h"

enum { STORED_NAME_MAX = 255 }; /* bytes of a tensor's name */

/* What a file may call an element's type: source_dtype, and the two that only packed payloads
 * have. */
enum { STORED_U8 = SOURCE_MXFP4 + 1, STORED_I8, STORED_DTYPES };

struct stored { /* one tensor as it is stored: a logical tensor or a half of one */
    char *name;
    unsigned shard;
    bool found; /* in its shard: what follows is known */
    unsigned dtype, rank;
    uint32_t dim[4];
    uint64_t off, bytes; /* in the file */
};

/* Read and check f's header. *list: malloc'ed, *n of them in no order, shard and found not set; the
 * names are borrowed from *header, which is the caller's to json_decref. ERR_IO: the file is
 * shorter than its header says; ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT. */
int shard_read(struct stored **list, unsigned *n, json_t **header, const struct file *f,
               struct err *e);

/* 1 to 255 bytes, no control byte. */
bool stored_name_fits(const char *name);
int stored_name_bad(const char *file, const char *name, struct err *e); /* ERR_FORMAT */

const char *stored_dtype_name(unsigned dtype);
/* "[3,4]" for a message; NULL is "(missing)". */
const char *stored_shape_text(char *out, size_t out_bytes, const struct stored *s);

#endif
