/* tests/support/tiny_container.h - the golden mini container of docs/FORMAT.md, from its formulas.
 *
 * Three layers (dense KDA, MoE KDA, MoE MLA), four experts, every trunk format, a subnormal scale,
 * partial groups and partial index blocks, in 400 KB. Failures of the system end the test program
 * with a message: nothing here is what a test tests.
 */
#ifndef SUPPORT_TINY_CONTAINER_H
#define SUPPORT_TINY_CONTAINER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "expertfs/record.h"

enum tiny { TINY_VQ3R, TINY_VQ4P };

enum {
    TINY_LAYERS = 3,
    TINY_EXPERTS = 4,
    TINY_HIDDEN = 136,
    TINY_INTER = 72,
    TINY_TENSORS = 57,
    TINY_TRUNK_BYTES = 236432,
    TINY_RECORD_BYTES = 20480,
    TINY_BANK_BYTES = TINY_EXPERTS * TINY_RECORD_BYTES,
};

/* The parsed manifest, a new reference: change it, then tiny_manifest_write. */
json_t *tiny_manifest(enum tiny variant);
void tiny_manifest_write(const char *dir, const json_t *manifest);
/* Replace the member at a path like "layers.1.bytes" or "trunk.0.fmt" by the value that `json` is
 * the text of; NULL takes it away. In "trunk", 0 is lm_head.weight (Q8G, [64][136]), 1 the
 * embedding table and 56 model.norm.weight. */
void tiny_set(json_t *manifest, const char *path, const char *json);

struct record_layout tiny_layout(enum tiny variant);
/* One sealed record into out[TINY_RECORD_BYTES]. layer: 1 or 2. */
void tiny_record(uint8_t *out, enum tiny variant, unsigned layer, unsigned expert);

/* The whole container into an existing directory. */
void tiny_write(const char *dir, enum tiny variant);

/* A new empty directory under $TMPDIR; out holds its path. tiny_remove takes it and its files away.
 */
void tiny_dir(char *out, size_t out_bytes);
void tiny_remove(const char *dir);

/* A test's set-up and teardown: *state is the path of a new VQ3R container. */
int tiny_setup(void **state);
int tiny_teardown(void **state);

/* Files of a container, whole: read into fresh memory (free it), written anew. */
uint8_t *tiny_file_read(const char *dir, const char *name, size_t *bytes);
void tiny_file_write(const char *dir, const char *name, const void *bytes, size_t n);

#endif
