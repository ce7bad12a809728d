/* model/kernels/gemv_tile.h - rows times vectors, a tile of rows and a chunk of x at a time, for
 * those who say how a block of both is done in registers.
 *
 * The includer defines before it: ROWS, of a block with one vector; ROWS_MANY, with several;
 * VECTORS of a block at most; CHUNK_GROUPS, of all its vectors together; TILE_ROWS; AHEAD_BYTES, of
 * a prefetch, or 0.
 */
#ifndef MODEL_KERNELS_GEMV_TILE_H
#define MODEL_KERNELS_GEMV_TILE_H

#include <stdalign.h>
#include <string.h>

#include "model/kernels/gemv.h"

struct tile { /* rows of a weight, a block of vectors, a chunk of groups */
    const uint8_t *data;
    const uint16_t *scale;
    size_t row_bytes, scales; /* strides between rows */
    const float *x;
    size_t x_stride; /* between vectors */
    uint32_t n_groups;
    size_t ahead; /* bytes from a group to one that is prefetched: whole blocks of rows */
};

/* The includer's: a group of x from its own order to [step][lane]. */
static void to_steps(float *out, const float *x);

/* The includer's: adds a chunk to acc[R][T][LANES] of rows [r, r + R), R and T constants. */
INLINE void block(const int fmt, float *acc, const struct tile *c, uint32_t r, const unsigned R,
                  const unsigned T);

/* Rows [r0, r0 + n), n <= TILE_ROWS, and T <= VECTORS vectors, T a constant. */
INLINE void tile(const int fmt, float *y, size_t y_stride, const float *x, size_t x_stride,
                 const struct tensor *w, uint32_t r0, uint32_t n, const unsigned T)
{
    const unsigned R = T == 1 ? ROWS : ROWS_MANY;
    const uint32_t chunk = CHUNK_GROUPS / T;
    const size_t block_bytes = R * w->row_bytes;
    alignas(64) float steps[CHUNK_GROUPS * FORMAT_GROUP];
    alignas(64) float acc[TILE_ROWS * VECTORS * LANES];
    uint32_t r;

    memset(acc, 0, (size_t)n * T * LANES * sizeof(float));
    for (uint32_t g0 = 0; g0 < w->groups; g0 += chunk) {
        struct tile c = {.data = w->data + r0 * w->row_bytes + g0 * group_bytes(fmt),
                         .scale = w->scale + (size_t)r0 * w->groups + g0,
                         .row_bytes = w->row_bytes,
                         .scales = w->groups,
                         .x = x + (size_t)g0 * FORMAT_GROUP,
                         .x_stride = x_stride,
                         .n_groups = min_u32(w->groups - g0, chunk),
                         .ahead = (AHEAD_BYTES + block_bytes - 1) / block_bytes * block_bytes};

        if (fmt != FMT_Q8G) {
            for (unsigned t = 0; t < T; t++)
                for (uint32_t g = 0; g < c.n_groups; g++)
                    to_steps(steps + (t * chunk + g) * FORMAT_GROUP,
                             c.x + t * x_stride + (size_t)g * FORMAT_GROUP);
            c.x = steps;
            c.x_stride = chunk * FORMAT_GROUP;
        }
        for (r = 0; r + R <= n; r += R)
            block(fmt, acc + (size_t)r * T * LANES, &c, r, R, T);
        for (; r < n; r++)
            block(fmt, acc + (size_t)r * T * LANES, &c, r, 1, T);
    }
    for (unsigned t = 0; t < T; t++) {
        for (r = 0; r + 4 <= n; r += 4) {
            four sums = fold_four(acc + (r * T + t) * LANES, T * LANES);

            memcpy(y + t * y_stride + r0 + r, &sums, sizeof(sums));
        }
        for (; r < n; r++)
            y[t * y_stride + r0 + r] = fold16(acc + ((size_t)r * T + t) * LANES);
    }
}

typedef void tile_fn(float *y, size_t y_stride, const float *x, size_t x_stride,
                     const struct tensor *w, uint32_t r0, uint32_t n);

#define TILE(fmt, T)                                                                               \
    static void tile_##fmt##_##T(float *y, size_t y_stride, const float *x, size_t x_stride,       \
                                 const struct tensor *w, uint32_t r0, uint32_t n)                  \
    {                                                                                              \
        tile(FMT_##fmt, y, y_stride, x, x_stride, w, r0, n, T);                                    \
    }
#define TILE_ENTRY(fmt, T) [T] = tile_##fmt##_##T,
#define UP_TO_4(X, fmt)    X(fmt, 1) X(fmt, 2) X(fmt, 3) X(fmt, 4)
#define UP_TO_8(X, fmt)    UP_TO_4(X, fmt) X(fmt, 5) X(fmt, 6) X(fmt, 7) X(fmt, 8)

/* tile_FMT_T of every format, and a table of them, [format][T]; up_to: of VECTORS. */
#define TILES(up_to) up_to(TILE, Q8G) up_to(TILE, Q4G) up_to(TILE, Q3G)
#define TILE_TABLE(up_to)                                                                          \
    {                                                                                              \
        [FMT_Q8G] = {up_to(TILE_ENTRY, Q8G)}, [FMT_Q4G] = {up_to(TILE_ENTRY, Q4G)}, [FMT_Q3G] = {  \
            up_to(TILE_ENTRY, Q3G)                                                                 \
        }                                                                                          \
    }

#endif
