/* expertfs/writer.h - makes containers: trunk, codebooks, banks, side files, manifest last.
 *
 * At every instant the directory has no manifest, or one whose every byte is present and on stable
 * storage: each file is written as NAME.tmp, synced and renamed, and the manifest is the last. A
 * failure leaves finished files and no manifest; what was half written is removed by writer_close.
 * The writer holds an exclusive lock on the directory.
 *
 * One thread makes the calls, except writer_trunk_codes, writer_trunk_f32 and writer_record, which
 * any number of threads may make at once. Files are written as this machine stores numbers; it is
 * little-endian.
 */
#ifndef EXPERTFS_WRITER_H
#define EXPERTFS_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/record.h"

struct writer;

struct writer_options {
    const json_t *config; /* the manifest's `config`, aliases in place; a reference is taken */
    const char *arch;     /* "kimi-linear", "kimi-k3", or an architecture string */
    const char *prefix;   /* of every text tensor's name; added by the caller. "" when none */
    uint32_t stages, entries, index_bits;
    bool direct; /* write banks past the page cache where that works */
};

/* Create the directory if need be, lock it, take the dimensions from config. ERR_ARG: it already
 * has a manifest. ERR_BUSY: another process holds it. */
int writer_open(struct writer **out, const char *dir, const struct writer_options *o,
                struct err *e);
/* Were all banks so far written past the page cache? False also where nobody asked for it. */
bool writer_direct(const struct writer *w);
/* NULL-safe. Without writer_finish before it: temporaries are removed, finished files stay. */
void writer_close(struct writer *w);

const struct record_layout *writer_record_layout(const struct writer *w); /* NULL: no experts */

/* ERR_IO "need 19.2 GiB on /data, 12.0 GiB free" when the directory's volume has less. */
int writer_check_space(const struct writer *w, uint64_t need_bytes, struct err *e);
/* Bytes of a regular file in the directory, 0 when there is none. */
uint64_t writer_file_bytes(const struct writer *w, const char *name);

/* List a tensor; its place follows the previous one's. All are added before writer_trunk_begin or
 * writer_trunk_keep. *id is its number: 0, 1, ... */
int writer_trunk_add(struct writer *w, unsigned *id, const char *name, int fmt, const uint32_t *dim,
                     unsigned rank, struct err *e);
/* Bytes of the trunk as listed so far. */
uint64_t writer_trunk_bytes(const struct writer *w);
/* Is a trunk.bin of exactly this size there, from a run that was interrupted? Then it is kept, and
 * no rows are to be written. What is in it writer_trunk_read_sum tells, and writer_bank_check of a
 * bank. */
bool writer_trunk_keep(struct writer *w);
int writer_trunk_begin(struct writer *w, struct err *e);
/* Rows [row, row + n) as codes[n][row bytes] and scale[n][groups] (NULL for F32). Each row once. */
int writer_trunk_codes(struct writer *w, unsigned id, uint64_t row, uint64_t n, const void *codes,
                       const uint16_t *scale, struct err *e);
/* The same from x[n][cols] f32, quantised as the tensor's format says. */
int writer_trunk_f32(struct writer *w, unsigned id, uint64_t row, uint64_t n, const float *x,
                     struct err *e);
/* Every row is written: sync and rename. */
int writer_trunk_end(struct writer *w, struct err *e);
/* A checksum of all rows that were written, and what one tensor of a finished trunk.bin adds to it
 * when it is read back: any thread, and the tensors' sums make up the whole. */
uint64_t writer_trunk_sum(const struct writer *w);
int writer_trunk_read_sum(const struct writer *w, unsigned id, uint64_t *sum, struct err *e);

/* One stage of one matrix: f16 [entries][8]. Kept in memory until writer_finish. ERR_CORRUPT: an
 * entry is not finite. */
int writer_codebook(struct writer *w, unsigned layer, enum matrix m, unsigned stage,
                    const uint16_t *entries, struct err *e);
unsigned writer_codebook_base(const struct writer *w, unsigned layer);
/* The layer's codebooks are all given: keep them in a file of their own, codebooks-L{n}.bin, until
 * writer_finish has merged and removed it, with a CRC-32 behind them. For makers that cannot make
 * them again at once. */
int writer_codebooks_part(struct writer *w, unsigned layer, struct err *e);
/* Is such a file there, whole, from a run that was interrupted? Then its codebooks are given. */
bool writer_codebooks_keep(struct writer *w, unsigned layer);
/* [entries][8] f16, as given; borrowed. NULL: it was not. */
const uint16_t *writer_codebook_at(const struct writer *w, unsigned layer, enum matrix m,
                                   unsigned stage);

/* Is a finished bank there (size, headers of the first and the last record)? Then it is kept. */
bool writer_bank_keep(struct writer *w, unsigned layer);
int writer_bank_begin(struct writer *w, unsigned layer, struct err *e);
/* Seal a record whose payload is in place (header and checksum) and write it. bytes: the layout's,
 * page-aligned; the caller has zeroed the padding. Each expert once. */
int writer_record(struct writer *w, unsigned layer, unsigned expert, uint8_t *bytes, struct err *e);
int writer_bank_end(struct writer *w, unsigned layer, struct err *e);
/* Read one record of a finished bank back and check header and checksum: before its source is
 * deleted. scratch: a record's bytes. Any thread. */
int writer_bank_check(const struct writer *w, unsigned layer, unsigned expert, uint8_t *scratch,
                      struct err *e);

/* A small file beside the others, whole, replaced atomically. */
int writer_side_file(struct writer *w, const char *name, const void *bytes, size_t n,
                     struct err *e);
/* Remove a file that only an unfinished container has; not an error when absent. */
void writer_remove(struct writer *w, const char *name);

/* Once the trunk is listed: will the reader of manifests accept this one's? Before hours are
 * spent. ERR_FORMAT, ERR_LIMIT: what it says. */
int writer_check_manifest(const struct writer *w, const json_t *extra, struct err *e);
/* Codebooks, then the manifest; `extra` (may be NULL) holds private members of the manifest.
 * ERR_ARG: a tensor, codebook or bank is missing. ERR_FORMAT: the manifest's own reader refuses it.
 * From here on the container opens. */
int writer_finish(struct writer *w, const json_t *extra, struct err *e);

#endif
