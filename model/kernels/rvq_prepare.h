/* model/kernels/rvq_prepare.h - byte tables by way of floats, 32 positions at a time, for those who
 * say how the floats come about and how they become codes. */
#ifndef MODEL_KERNELS_RVQ_PREPARE_H
#define MODEL_KERNELS_RVQ_PREPARE_H

#include <stdalign.h>

#include "model/kernels/rvq.h"

/* The includer's: table[stage][position][plane_bytes] of n positions, n <= BLOCK; returns the
 * largest magnitude's bits. */
static uint32_t build(float *table, const float *x, const float *codebook,
                      const struct rvq_shape *shape, uint32_t n);

/* The includer's: the codes of one stage of one position. No clamp: |value * inv| < Q + 0.5, for
 * inv is Q / max rounded once and the product once more. */
INLINE void store_codes(uint8_t *to, const float *table, float inv, uint32_t plane,
                        const unsigned planes);

INLINE void prepare_codes(void *prepared, const float *x, const float *codebook,
                          const struct rvq_shape *shape, uint32_t p0, uint32_t p1,
                          const unsigned planes)
{
    const float q = planes == 2 ? 32767 : 127;
    const uint32_t plane = (uint32_t)plane_bytes(shape);
    alignas(64) float table[STAGES * BLOCK * ENTRIES];
    float *scale = prepared;
    uint8_t *to =
        (uint8_t *)prepared + codes_offset(shape) + (size_t)p0 * shape->stages * planes * plane;

    for (uint32_t p = p0; p < p1; p += BLOCK) {
        uint32_t n = min_u32(p1 - p, BLOCK);
        uint32_t bits = build(table, x + p * DIM, codebook, shape, n);
        float amax = bits_to_f32(bits);
        bool plain = bits < 0x7f800000u && amax >= 0x1p-100f;

        if (!plain) /* codes 0 */
            memset(table, 0, sizeof(table));
        scale[p / BLOCK] = plain ? amax / q : bits < 0x7f800000u ? 0.0f : bits_to_f32(0x7fc00000u);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t s = 0; s < shape->stages; s++, to += planes * plane)
                store_codes(to, table + (s * BLOCK + i) * plane, plain ? q / amax : 0, plane,
                            planes);
    }
}

#endif
