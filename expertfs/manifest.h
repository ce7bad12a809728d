/* expertfs/manifest.h - manifest.json, read and bounded: what the files of a container are.
 *
 * Everything here comes from an untrusted file and has passed container checks J1-J8, the sizes of
 * F1, F3, F6 and F8 that size a record, T1-T9 (T6 against the real size of trunk.bin) and B1-B4,
 * B6, B7. What only the arithmetic needs (heads, ranks, flags, rotary, ...) stays in `config` and
 * is read by model/hparams.
 */
#ifndef EXPERTFS_MANIFEST_H
#define EXPERTFS_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "expertfs/format.h"
#include "expertfs/record.h"

struct trunk_entry {
    const char *name; /* borrowed from the JSON */
    int fmt;          /* FMT_F32, FMT_Q8G, FMT_Q4G, FMT_Q3G */
    unsigned rank;    /* 1...4 */
    uint32_t dim[4];
    uint64_t rows, cols;                 /* product of the leading dimensions, last dimension */
    uint32_t groups;                     /* ceil(cols / 128); 0 for F32 */
    uint64_t row_bytes;                  /* stride of a row of codes */
    uint64_t off, scale_off;             /* in trunk.bin; no alignment of any kind */
    uint64_t payload_bytes, scale_bytes; /* scale_bytes 0 for F32 */
};

struct bank {
    bool present;
    char file[256]; /* plain name inside the container */
    uint64_t bytes; /* experts * record bytes */
    uint32_t codebook_base;
};

struct manifest {
    json_t *root;         /* owned */
    const json_t *config; /* the text configuration; borrowed from root */
    const json_t *outer;  /* config._outer, or the release's outer object; may be NULL */
    char prefix[64];      /* of every text tensor's name: "" or "language_model." */
    char arch[64];        /* "kimi-linear", "kimi-k3", or the architecture string verbatim */
    unsigned n_layers, first_dense; /* MoE layers are [first_dense, n_layers) when n_experts > 0 */
    unsigned n_experts, top_k;
    unsigned hidden, latent, inter, vocab; /* latent = hidden unless the config says otherwise */
    struct record_layout record;           /* of every record; zeroed when n_experts is 0 */
    struct bank bank[FORMAT_LAYERS_MAX];
    struct trunk_entry *trunk; /* owned; sorted by name */
    unsigned n_trunk;
    char warning[160]; /* something odd but legal ("" when nothing) */
};

/* Parse manifest.json below dirfd; `dir` is for messages. */
int manifest_read(struct manifest *out, int dirfd, const char *dir, struct err *e);
/* The same from memory, for tests and fuzzing; trunk_bytes is the size T4 and T6 check against. */
int manifest_parse(struct manifest *out, const char *text, size_t len, uint64_t trunk_bytes,
                   struct err *e);
void manifest_release(struct manifest *m);

/* NULL when not listed. manifest_tensor puts the prefix before the name: all but the tower's. */
const struct trunk_entry *manifest_entry(const struct manifest *m, const char *name);
const struct trunk_entry *manifest_tensor(const struct manifest *m, const char *name);

/* Rule B5: has a bank, or one drive's piece of it, the bytes that it should? ERR_FORMAT. */
int manifest_check_bank_bytes(const char *file, uint64_t bytes, uint64_t wanted, struct err *e);

/* Rule B2: a file name that cannot lead out of its directory on any system. */
bool manifest_plain_name(const char *name);

static inline unsigned manifest_moe_layers(const struct manifest *m)
{
    return m->n_experts ? m->n_layers - m->first_dense : 0;
}

static inline bool manifest_is_moe(const struct manifest *m, unsigned layer)
{
    return m->n_experts > 0 && layer >= m->first_dense && layer < m->n_layers;
}

#endif
