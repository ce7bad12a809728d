/* expertfs/widen.h - the low-precision encodings of published checkpoints, as f32, exact.
 *
 * Every function writes n values at out and may be given raw bytes that lie at the end of the very
 * memory they fill: each value is read before its place is written.
 */
#ifndef EXPERTFS_WIDEN_H
#define EXPERTFS_WIDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FP4_BLOCK = 32 }; /* columns that share an E8M0 scale */

void widen_f32(float *out, const uint8_t *raw, size_t n); /* raw [n] little-endian */
void widen_f16(float *out, const uint8_t *raw, size_t n);
void widen_bf16(float *out, const uint8_t *raw, size_t n);

/* The 256 values of an 8-bit float. E4M3: bias 7, no infinities, 0x7f and 0xff are NaN. E5M2: the
 * upper half of a binary16. */
void widen_e4m3_table(float table[256]);
void widen_e5m2_table(float table[256]);
/* scale: f32 little-endian, one per `block` columns. value = table[byte] * scale. */
void widen_fp8(float *out, const uint8_t *raw, size_t n, const float table[256],
               const uint8_t *scale, uint32_t block);

/* E2M1, two a byte, the low nibble first; n a multiple of 32. scale: E8M0, one per 32 values:
 * 2^(e - 127), 0 for e = 0, NaN for e = 255. */
void widen_mxfp4(float *out, const uint8_t *raw, size_t n, const uint8_t *scale);

/* The index of the first value that is infinite or NaN; n when there is none. */
size_t widen_first_bad(const float *x, size_t n);

#endif
