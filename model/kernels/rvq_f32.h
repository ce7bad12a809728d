/* model/kernels/rvq_f32.h - float tables that rvq_c.c prepares, a few positions of them at a time
 * past several row blocks, for those who say how a tile of both is looked up.
 *
 * The includer defines before it: AT_ONCE, positions of a tile; GROUP, row blocks that meet them.
 */
#ifndef MODEL_KERNELS_RVQ_F32_H
#define MODEL_KERNELS_RVQ_F32_H

#include <stdalign.h>

#include "model/kernels/rvq.h"

struct tile {
    const float *table;
    const uint8_t *cell; /* of the first row */
    uint32_t positions, stages, entries;
};

/* The includer's: adds a tile to the n rows of a row block; acc has room for all ROWS, and what is
 * added to the others does not matter. */
static void add_tile(float *acc, const struct tile *t, uint32_t n, const struct rvq_shape *shape);

/* acc of n rows that begin at `index`, GROUP row blocks at most. */
static void group_sums(float *acc, const float *tables, const uint8_t *index,
                       const struct rvq_shape *shape, uint32_t n)
{
    struct tile t = {.stages = shape->stages, .entries = shape->entries};

    for (uint32_t p = 0; p < positions(shape); p += AT_ONCE) {
        t.table = tables + (size_t)p * shape->stages * shape->entries;
        t.positions = min_u32(positions(shape) - p, AT_ONCE);
        for (uint32_t r = 0; r < n; r += ROWS) {
            t.cell = index + r / ROWS * block_bytes(shape) + (size_t)p * ROWS * shape->cell_bytes;
            add_tile(acc + r, &t, min_u32(n - r, ROWS), shape);
        }
    }
}

/* Prepared by rvq_c.c: [position][stage][entry]. */
static void rows_f32(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                     const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += GROUP * ROWS) {
        uint32_t n = min_u32(r1 - r, GROUP * ROWS);
        alignas(64) float acc[GROUP * ROWS] = {0};

        group_sums(acc, prepared, index + r / ROWS * block_bytes(shape), shape, n);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = acc[i] * half_to_f32(scale[r + i]);
    }
}

#endif
