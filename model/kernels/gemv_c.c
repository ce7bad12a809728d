/* Rows of a weight times one vector or several.
 *
 * A group of 128 columns is eight steps of sixteen lanes. Step j of lane l is column 16j + l in
 * Q8G, and column 8l + j in Q4G and Q3G, whose bytes are then sixteen words with a column in the
 * same bits of each. So x is put into [step][lane] order first, a chunk at a time for a tile of
 * rows; accumulators of the tile wait in memory between chunks, which keeps groups in order.
 */
#include <stdalign.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"
#include "model/kernels/gemv.h"

enum {
    TILE_ROWS = 64,
    TILE_VECTORS = 8,
    CHUNK_GROUPS = 32, /* of all vectors of a tile together: 16 KiB of x */
};

/* The sixteen words of a Q4G or Q3G group, lanes [part * VEC, ...); step j is a field of each. */
INLINE uvec words(const int fmt, const uint8_t *group, unsigned part)
{
    uvec w = {0};

    if (fmt == FMT_Q4G) {
        memcpy(&w, group + part * sizeof(w), sizeof(w));
        w = w ^ 0x88888888u; /* fields 0...15 stand for -8...7 */
    } else if (fmt == FMT_Q3G) {
        const uint8_t *b = group + (size_t)part * VEC * 3;

        for (unsigned l = 0; l < VEC; l++)
            w[l] = load_le32(b + 3 * l); /* 24 bits and a byte more: the row has a guard byte */
    }
    return w;
}

/* Codes of step j of those lanes, as floats. */
INLINE vec codes(const int fmt, const uint8_t *group, uvec words, unsigned part, unsigned j)
{
    ivec q;

    if (fmt == FMT_Q8G) {
        const int8_t *b = (const int8_t *)group + j * LANES + part * VEC;

        for (unsigned l = 0; l < VEC; l++)
            q[l] = b[l];
    } else if (fmt == FMT_Q4G) {
        q = (ivec)(words << (28 - 4 * j)) >> 28;
    } else {
        q = (ivec)(words >> (3 * j) & 7) - 4;
    }
    return __builtin_convertvector(q, vec);
}

INLINE void to_steps(const int fmt, float *out, const float *x)
{
    if (fmt == FMT_Q8G)
        memcpy(out, x, FORMAT_GROUP * sizeof(float));
    else
        for (unsigned j = 0; j < STEPS; j++)
            for (unsigned l = 0; l < LANES; l++)
                out[j * LANES + l] = x[l * STEPS + j];
}

INLINE void from_steps(const int fmt, float *out, const float *x)
{
    if (fmt == FMT_Q8G)
        memcpy(out, x, FORMAT_GROUP * sizeof(float));
    else
        for (unsigned l = 0; l < LANES; l++)
            for (unsigned j = 0; j < STEPS; j++)
                out[l * STEPS + j] = x[j * LANES + l];
}

/* acc[T][LANES] of one row, groups [0, n); steps: [n][T][128]. */
INLINE void row_groups(const int fmt, float *acc, const float *steps, const uint8_t *row,
                       const uint16_t *half, uint32_t n, const unsigned T)
{
    float s[CHUNK_GROUPS];

    for (uint32_t g = 0; g < n; g++)
        s[g] = half_to_f32(half[g]);
    for (unsigned part = 0; part < PARTS; part++) {
        vec a[TILE_VECTORS];

#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
            a[t] = lanes_load(acc + t * LANES + part * VEC);
        for (uint32_t g = 0; g < n; g++) {
            const float *x = steps + (size_t)g * T * FORMAT_GROUP + part * VEC;
            const uint8_t *group = row + g * group_bytes(fmt);
            uvec w = words(fmt, group, part);
            vec p[TILE_VECTORS] = {0};

#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++) {
                vec q = codes(fmt, group, w, part, j);

#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++)
                    p[t] = lanes_fma(q, lanes_load(x + t * FORMAT_GROUP + j * LANES), p[t]);
            }
#pragma GCC unroll 8
            for (unsigned t = 0; t < T; t++)
                a[t] = lanes_fma(lanes_all(s[g]), p[t], a[t]);
        }
#pragma GCC unroll 8
        for (unsigned t = 0; t < T; t++)
            lanes_store(acc + t * LANES + part * VEC, a[t]);
    }
}

/* Rows [r0, r0 + n), n <= TILE_ROWS, and T <= TILE_VECTORS vectors, T a constant. */
INLINE void tile(const int fmt, float *y, size_t y_stride, const float *x, size_t x_stride,
                 const unsigned T, const struct tensor *w, uint32_t r0, uint32_t n)
{
    const uint32_t chunk = CHUNK_GROUPS / T;
    alignas(64) float steps[CHUNK_GROUPS * FORMAT_GROUP];
    alignas(64) float acc[TILE_ROWS * TILE_VECTORS * LANES];

    memset(acc, 0, (size_t)n * T * LANES * sizeof(float));
    for (uint32_t g0 = 0; g0 < w->groups; g0 += chunk) {
        uint32_t n_groups = min_u32(w->groups - g0, chunk);

        for (uint32_t g = 0; g < n_groups; g++)
            for (unsigned t = 0; t < T; t++)
                to_steps(fmt, steps + ((size_t)g * T + t) * FORMAT_GROUP,
                         x + t * x_stride + (size_t)(g0 + g) * FORMAT_GROUP);
        for (uint32_t r = 0; r < n; r++) {
            size_t row = r0 + r;

            row_groups(fmt, acc + (size_t)r * T * LANES, steps,
                       w->data + row * w->row_bytes + g0 * group_bytes(fmt),
                       w->scale + row * w->groups + g0, n_groups, T);
        }
    }
    for (uint32_t r = 0; r < n; r++)
        for (unsigned t = 0; t < T; t++)
            y[t * y_stride + r0 + r] = fold16(acc + ((size_t)r * T + t) * LANES);
}

INLINE void gemv_grouped(const int fmt, float *y, size_t y_stride, const float *x, size_t x_stride,
                         uint32_t T, const struct tensor *w, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += TILE_ROWS) {
        uint32_t n = min_u32(r1 - r, TILE_ROWS), t = 0;

        for (; FMA_IS_FAST && t + 8 <= T; t += 8)
            tile(fmt, y + t * y_stride, y_stride, x + t * x_stride, x_stride, 8, w, r, n);
        for (; FMA_IS_FAST && t + 4 <= T; t += 4)
            tile(fmt, y + t * y_stride, y_stride, x + t * x_stride, x_stride, 4, w, r, n);
        for (; t < T; t++)
            tile(fmt, y + t * y_stride, y_stride, x + t * x_stride, x_stride, 1, w, r, n);
    }
}

static void gemv_q8(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                    const struct tensor *w, uint32_t r0, uint32_t r1)
{
    gemv_grouped(FMT_Q8G, y, y_stride, x, x_stride, T, w, r0, r1);
}

static void gemv_q4(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                    const struct tensor *w, uint32_t r0, uint32_t r1)
{
    gemv_grouped(FMT_Q4G, y, y_stride, x, x_stride, T, w, r0, r1);
}

static void gemv_q3(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                    const struct tensor *w, uint32_t r0, uint32_t r1)
{
    gemv_grouped(FMT_Q3G, y, y_stride, x, x_stride, T, w, r0, r1);
}

static void gemv(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                 const struct tensor *w, uint32_t r0, uint32_t r1)
{
    static gemv_rows_fn *const by_format[] = {
        [FMT_F32] = gemv_f32, [FMT_Q8G] = gemv_q8, [FMT_Q4G] = gemv_q4, [FMT_Q3G] = gemv_q3};

    by_format[w->fmt](y, y_stride, x, x_stride, T, w, r0, r1);
}

/* A group of out stays in registers, in [step][lane] order, while the rows go by. */
INLINE void axpy_grouped(const int fmt, float *out, const float *x, const struct tensor *w,
                         uint32_t r0, uint32_t n)
{
    for (uint32_t g = 0; g < w->groups; g++) {
        uint32_t c0 = g * FORMAT_GROUP, n_cols = min_u32(w->cols - c0, FORMAT_GROUP);
        float plain[FORMAT_GROUP] = {0}, steps[FORMAT_GROUP];

        memcpy(plain, out + c0, n_cols * sizeof(float));
        to_steps(fmt, steps, plain);
        for (unsigned part = 0; part < PARTS; part++) {
            vec a[STEPS];

#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++)
                a[j] = lanes_load(steps + j * LANES + part * VEC);
            for (uint32_t i = 0; i < n; i++) {
                size_t r = (size_t)r0 + i;
                const uint8_t *group = w->data + r * w->row_bytes + g * group_bytes(fmt);
                uvec word = words(fmt, group, part);
                vec xs = lanes_all(x[i] * half_to_f32(w->scale[r * w->groups + g]));

#pragma GCC unroll 8
                for (unsigned j = 0; j < STEPS; j++)
                    a[j] = lanes_fma(xs, codes(fmt, group, word, part, j), a[j]);
            }
#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++)
                lanes_store(steps + j * LANES + part * VEC, a[j]);
        }
        from_steps(fmt, plain, steps);
        memcpy(out + c0, plain, n_cols * sizeof(float));
    }
}

AXPY_ROWS(axpy_grouped)

void K(gemv_fill)(struct kernels *k)
{
    k->gemv = gemv;
    k->axpy_rows = axpy_rows;
}
