/* model/convert_shards.h - which files a conversion is made from: a fingerprint of each shard.
 *
 * Two releases of one family have the same configuration, names and shapes; their weights differ. A
 * fingerprint is the file's size and a CRC-32 of its header and of samples of its payload: cheap to
 * take of a terabyte, and different for any two trained models. A few changed weights it need not
 * see.
 */
#ifndef MODEL_CONVERT_SHARDS_H
#define MODEL_CONVERT_SHARDS_H

#include "expertfs/safetensors.h"

/* *out: {"NAME": {"bytes": n, "crc": "89abcdef"}} of every shard below dirfd; of one that was
 * reclaimed what `known` says, an earlier run's list. With known, the shards must be those: ERR_ARG
 * names the first that is not, and `dir`, the container. The caller's to json_decref. */
int shards_identify(json_t **out, const struct checkpoint *c, int dirfd, const json_t *known,
                    const char *dir, struct err *e);

/* Is the file still the one in the list? ERR_IO: it is not. */
int shards_check_one(const json_t *list, int dirfd, const char *name, struct err *e);

#endif
