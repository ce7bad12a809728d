/* expertfs/quantise.h - f32 rows to the trunk's grouped formats, bit for bit as every writer does.
 *
 * Per group of 128 columns: amax = max |x|; s = max(amax, 1e-8) / Q; q = rint(x / s), clamped;
 * stored are q and f16(s). All in f32, so that a trunk is the same bytes on any machine.
 */
#ifndef EXPERTFS_QUANTISE_H
#define EXPERTFS_QUANTISE_H

#include <stdint.h>

#include "base/err.h"

/* The storage format of a tensor under the published policy; bits: 4, 8 or 3, of the matrices that
 * have no rule of their own. */
int trunk_fmt_policy(const char *name, const uint32_t *dim, unsigned rank, unsigned bits);

/* Bytes of one row of codes; *groups: scales a row (0 for F32). */
uint64_t trunk_row_bytes(int fmt, uint32_t cols, uint32_t *groups);

/* Quantise a row, padding included: codes[row bytes], scale[groups] f16. fmt: FMT_Q8G, FMT_Q4G,
 * FMT_Q3G. ERR_CORRUPT: a value is not finite, or too large for an f16 scale. */
int quantise_row(uint8_t *codes, uint16_t *scale, int fmt, const float *x, uint32_t cols,
                 struct err *e);

#endif
