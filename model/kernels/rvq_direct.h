/* model/kernels/rvq_direct.h - `direct`, for those who say what becomes of a row block. */
#ifndef MODEL_KERNELS_RVQ_DIRECT_H
#define MODEL_KERNELS_RVQ_DIRECT_H

#include <stdalign.h>

#include "model/kernels/rvq.h"

/* The includer's: acc[row][DIM] of the n rows of the row block at `index`, which is zero before;
 * acc is 32-byte aligned. stages and packed are constants where it matters. */
INLINE void direct_block(float *acc, const float *x, const float *codebook, const uint8_t *index,
                         uint32_t n, const struct rvq_shape *shape, const uint32_t stages,
                         const bool packed);

/* Prepared by rvq_c.c: the codebook's address in a line of its own, then x. */
static void rows_direct(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                        const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    const float *x = (const float *)(const void *)((const char *)prepared + LINE);
    const float *codebook;

    memcpy(&codebook, prepared, sizeof(codebook));
    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint8_t *at = index + r / ROWS * block_bytes(shape);
        uint32_t n = min_u32(r1 - r, ROWS);
        alignas(32) float acc[ROWS * DIM] = {0};

        BY_CELL(direct_block, shape, acc, x, codebook, at, n, shape);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = fold8(acc + i * DIM) * half_to_f32(scale[r + i]);
    }
}

#endif
