/* expertfs/record.h - one expert's record: its layout, and whether bytes are that record.
 *
 * | header 48 | gate index | up index | down index | gate scales | up scales | down scales | 0... |
 *
 * An index stream is [row block of 64][position][row in block][stage byte]; a scale is one f16 per
 * output row. The layout follows from the configuration alone, never from the record.
 */
#ifndef EXPERTFS_RECORD_H
#define EXPERTFS_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/format.h"

struct record_layout {
    uint32_t latent, inter; /* gate, up: [inter][latent]; down: [latent][inter] */
    uint32_t stages, entries;
    uint32_t index_bits; /* 8: a byte per stage; 6: four stages in 3 bytes */
    uint32_t cell_bytes; /* per (row, position): stages, or 3 */
    uint32_t index_off[MATRICES], scale_off[MATRICES]; /* from the record's start */
    uint32_t used, bytes; /* checked part ends at used; bytes is a multiple of 4096 */
};

const char *matrix_name(enum matrix m); /* "gate", "up", "down" */

/* "VQ3R", "VQ2R" or "VQ4P", whatever the manifest calls it. */
const char *record_format_name(const struct record_layout *l);

/* Rows and columns of matrix m. */
static inline uint32_t record_rows(const struct record_layout *l, enum matrix m)
{
    return m == MATRIX_DOWN ? l->latent : l->inter;
}

static inline uint32_t record_cols(const struct record_layout *l, enum matrix m)
{
    return m == MATRIX_DOWN ? l->inter : l->latent;
}

/* ERR_FORMAT, ERR_UNSUPPORTED: dimensions or quantisation outside the format (rule F8); ERR_LIMIT:
 * a record beyond 2^31 bytes. */
int record_layout_init(struct record_layout *out, uint32_t latent, uint32_t inter, uint32_t stages,
                       uint32_t entries, uint32_t index_bits, struct err *e);

/* The header and the row scales: rules R2-R8 and R10, O(rows). Runs on every record that enters
 * memory. bytes: layout->bytes of them. ERR_FORMAT; ERR_UNSUPPORTED: reserved features;
 * ERR_CORRUPT: a scale that is not finite. */
int record_check(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                 unsigned expert, unsigned codebook_base, struct err *e);

/* Indices within the codebook (rule R9). Free unless entries < 256 with byte indices; a caller that
 * does not verify runs this, so that no index reaches past a table. ERR_CORRUPT. */
int record_check_indices(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                         unsigned expert, struct err *e);

/* The checksum over [48, used), and indices within the codebook: rules R11 and R9. ERR_CORRUPT. */
int record_verify(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                  unsigned expert, struct err *e);

/* Fill in the header of a record whose payload is in place, checksum included. */
void record_seal(const struct record_layout *l, uint8_t *bytes, unsigned layer, unsigned expert,
                 unsigned codebook_base);

#endif
