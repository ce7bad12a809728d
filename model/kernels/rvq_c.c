/* Residual-VQ rows: what depends on x is prepared once, then indices turn into rows.
 *
 * Prepared, by profile (positions = cols / 8, blocks of 32 positions):
 *   f32      table float[position][stage][entry]
 *   i16, i8  scale float[block], padded to 64 bytes, then codes [position][stage][entry]
 *   direct   the codebook's address, padded to 64 bytes, then x
 */
#include <math.h>
#include <stdalign.h>
#include <stdbool.h>
#include <string.h>

#include "model/kernels/poly.h"
#include "model/kernels/rvq.h"

enum {
    OCT = VEC < (int)DIM ? (int)VEC : (int)DIM, /* the eight lanes of `direct`, as vectors */
    OCTS = DIM / OCT,
};

typedef float oct __attribute__((vector_size(4 * OCT)));

/* Codebook with the entries innermost: [stage][d][ENTRIES]. */
static void transpose(float *out, const float *codebook, const struct rvq_shape *shape)
{
    for (uint32_t s = 0; s < shape->stages; s++, out += DIM * ENTRIES) {
        for (unsigned d = 0; d < DIM; d++)
            for (uint32_t c = 0; c < shape->entries; c++)
                out[d * ENTRIES + c] = codebook[c * DIM + d];
        for (unsigned d = 0; d < DIM; d++)
            for (uint32_t c = shape->entries; c < ENTRIES; c++)
                out[d * ENTRIES + c] = 0;
        codebook += shape->entries * DIM;
    }
}

/* table[position][stage][entry] of positions [p0, p1). */
static void tables(float *table, const float *x, const float *transposed,
                   const struct rvq_shape *shape, uint32_t p0, uint32_t p1)
{
    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t s = 0; s < shape->stages; s++, table += shape->entries) {
            const float *book = transposed + s * DIM * ENTRIES;

            for (uint32_t c = 0; c < shape->entries; c += VEC) {
                uint32_t n = min_u32(shape->entries - c, VEC);
                vec acc = {0};

#pragma GCC unroll 8
                for (unsigned d = 0; d < DIM; d++)
                    acc = lanes_fma(lanes_all(x[p * DIM + d]), lanes_load(book + d * ENTRIES + c),
                                    acc);
                if (n == VEC)
                    lanes_store(table + c, acc);
                else
                    memcpy(table + c, &acc, n * sizeof(float));
            }
        }
}

static size_t prepared_bytes_f32(const struct rvq_shape *s)
{
    return round_up((size_t)positions(s) * s->stages * s->entries * sizeof(float));
}

static void prepare_f32(void *prepared, const float *x, const float *codebook,
                        const struct rvq_shape *shape, uint32_t p0, uint32_t p1)
{
    alignas(64) float transposed[STAGES * DIM * ENTRIES];

    transpose(transposed, codebook, shape);
    tables((float *)prepared + (size_t)p0 * shape->stages * shape->entries, x, transposed, shape,
           p0, p1);
}

INLINE void block_rows_f32(float *acc, const float *table, const uint8_t *cell, uint32_t n,
                           const struct rvq_shape *shape, const uint32_t stages, const bool packed)
{
    for (uint32_t p = 0; p < positions(shape); p++, table += stages * shape->entries) {
        for (uint32_t r = 0; r < n; r++) {
            const uint8_t *at = cell + r * (packed ? 3 : stages);
            float sum = table[entry(at, packed, 0)];

            for (uint32_t s = 1; s < stages; s++)
                sum = sum + table[s * shape->entries + entry(at, packed, s)];
            acc[r] = acc[r] + sum;
        }
        cell += ROWS * (packed ? 3 : stages);
    }
}

static void rows_f32(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                     const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += ROWS) {
        uint32_t n = min_u32(r1 - r, ROWS);
        float acc[ROWS] = {0};

        BY_CELL(block_rows_f32, shape, acc, prepared, index + r / ROWS * block_bytes(shape), n,
                shape);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = acc[i] * half_to_f32(scale[r + i]);
    }
}

static size_t prepared_bytes_direct(const struct rvq_shape *s)
{
    return LINE + round_up(s->cols * sizeof(float));
}

static void prepare_direct(void *prepared, const float *x, const float *codebook,
                           const struct rvq_shape *shape, uint32_t p0, uint32_t p1)
{
    (void)shape;
    if (p0 == 0) /* one writer */
        memcpy(prepared, &codebook, sizeof(codebook));
    memcpy((char *)prepared + LINE + p0 * DIM * sizeof(float), x + p0 * DIM,
           (p1 - p0) * DIM * sizeof(float));
}

INLINE oct oct_load(const float *p)
{
    oct v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE void block_rows_direct(float *acc, const float *x, const float *codebook,
                              const uint8_t *cell, uint32_t n, const struct rvq_shape *shape,
                              const uint32_t stages, const bool packed)
{
    for (uint32_t p = 0; p < positions(shape); p++, x += DIM) {
        for (uint32_t r = 0; r < n; r++) {
            const uint8_t *at = cell + r * (packed ? 3 : stages);

            for (unsigned o = 0; o < OCTS; o++) {
                float *a = acc + r * DIM + o * OCT;
                oct w = oct_load(codebook + entry(at, packed, 0) * DIM + o * OCT);
                oct xs = oct_load(x + o * OCT), sum = oct_load(a);

                for (uint32_t s = 1; s < stages; s++)
                    w = w + oct_load(codebook + (s * shape->entries + entry(at, packed, s)) * DIM +
                                     o * OCT);
                for (unsigned l = 0; l < OCT; l++)
                    sum[l] = fmaf(xs[l], w[l], sum[l]);
                memcpy(a, &sum, sizeof(sum));
            }
        }
        cell += ROWS * (packed ? 3 : stages);
    }
}

static void rows_direct(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                        const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    const float *x = (const float *)(const void *)((const char *)prepared + LINE);
    const float *codebook;

    memcpy(&codebook, prepared, sizeof(codebook));
    for (uint32_t r = r0; r < r1; r += ROWS) {
        uint32_t n = min_u32(r1 - r, ROWS);
        alignas(64) float acc[ROWS * DIM] = {0};

        BY_CELL(block_rows_direct, shape, acc, x, codebook, index + r / ROWS * block_bytes(shape),
                n, shape);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = fold8(acc + i * DIM) * half_to_f32(scale[r + i]);
    }
}

INLINE size_t prepared_bytes_codes(const struct rvq_shape *s, const size_t code_bytes)
{
    return codes_offset(s) + round_up((size_t)positions(s) * s->stages * s->entries * code_bytes);
}

/* Codes of n table values; returns their scale. */
INLINE float quantise(void *codes, const float *table, uint32_t n, const size_t code_bytes)
{
    const int32_t q = code_bytes == 2 ? 32767 : 127;
    int32_t max_bits = 0;
    float amax, inv;

    for (uint32_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(f32_to_bits(table[i]) & 0x7fffffffu);

        max_bits = bits > max_bits ? bits : max_bits;
    }
    amax = bits_to_f32((uint32_t)max_bits);
    if (max_bits >= 0x7f800000 || amax < 0x1p-100f) {
        memset(codes, 0, n * code_bytes);
        return max_bits >= 0x7f800000 ? bits_to_f32(0x7fc00000u) : 0.0f;
    }
    inv = (float)q / amax;
    for (uint32_t i = 0; i < n; i++) {
        int32_t code = (int32_t)(f32_to_bits(table[i] * inv + POLY_ROUND) - POLY_ROUND_BITS);

        code = code > q ? q : code;
        code = code < -q ? -q : code;
        if (code_bytes == 2)
            ((int16_t *)codes)[i] = (int16_t)code;
        else
            ((int8_t *)codes)[i] = (int8_t)code;
    }
    return amax / (float)q;
}

/* The scale is known after a whole block: its table waits on the stack, 256 KiB at most. */
INLINE void prepare_codes(void *prepared, const float *x, const float *codebook,
                          const struct rvq_shape *shape, uint32_t p0, uint32_t p1,
                          const size_t code_bytes)
{
    alignas(64) float transposed[STAGES * DIM * ENTRIES];
    alignas(64) float table[BLOCK * STAGES * ENTRIES];
    const uint32_t per_position = shape->stages * shape->entries;
    float *scale = prepared;
    char *codes = (char *)prepared + codes_offset(shape);

    transpose(transposed, codebook, shape);
    for (uint32_t p = p0; p < p1; p += BLOCK) {
        uint32_t n = min_u32(p1 - p, BLOCK);

        tables(table, x, transposed, shape, p, p + n);
        scale[p / BLOCK] = quantise(codes + (size_t)p * per_position * code_bytes, table,
                                    n * per_position, code_bytes);
    }
}

INLINE int32_t code_at(const void *codes, size_t i, const size_t code_bytes)
{
    return code_bytes == 2 ? ((const int16_t *)codes)[i] : ((const int8_t *)codes)[i];
}

INLINE void block_rows_codes(float *acc, const float *scale, const char *codes, const uint8_t *cell,
                             uint32_t n, const struct rvq_shape *shape, const size_t code_bytes,
                             const uint32_t stages, const bool packed)
{
    for (uint32_t p0 = 0; p0 < positions(shape); p0 += BLOCK, scale++) {
        int32_t sum[ROWS] = {0};

        for (uint32_t p = p0; p < min_u32(p0 + BLOCK, positions(shape)); p++) {
            for (uint32_t r = 0; r < n; r++) {
                const uint8_t *at = cell + r * (packed ? 3 : stages);
                int32_t total = sum[r];

                for (uint32_t s = 0; s < stages; s++)
                    total += code_at(codes, s * shape->entries + entry(at, packed, s), code_bytes);
                sum[r] = total;
            }
            cell += ROWS * (packed ? 3 : stages);
            codes += (size_t)stages * shape->entries * code_bytes;
        }
        for (uint32_t r = 0; r < n; r++)
            acc[r] = fmaf(*scale, (float)sum[r], acc[r]);
    }
}

INLINE void rows_codes(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                       const struct rvq_shape *shape, uint32_t r0, uint32_t r1,
                       const size_t code_bytes)
{
    const char *codes = (const char *)prepared + codes_offset(shape);

    for (uint32_t r = r0; r < r1; r += ROWS) {
        uint32_t n = min_u32(r1 - r, ROWS);
        float acc[ROWS] = {0};

        BY_CELL(block_rows_codes, shape, acc, prepared, codes,
                index + r / ROWS * block_bytes(shape), n, shape, code_bytes);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = acc[i] * half_to_f32(scale[r + i]);
    }
}

PREPARE_CODES(i16, prepared_bytes_codes, 2)
ROWS_CODES(i16, 2)
PREPARE_CODES(i8, prepared_bytes_codes, 1)
ROWS_CODES(i8, 1)

void K(rvq_fill)(struct kernels *k)
{
    static const struct {
        rvq_prepared_bytes_fn *bytes;
        rvq_prepare_fn *prepare;
        rvq_rows_fn *rows;
    } by_profile[PROFILES] = {
        [PROFILE_F32] = {prepared_bytes_f32, prepare_f32, rows_f32},
        [PROFILE_DIRECT] = {prepared_bytes_direct, prepare_direct, rows_direct},
        [PROFILE_I16] = {prepared_bytes_i16, prepare_i16, rows_i16},
        [PROFILE_I8] = {prepared_bytes_i8, prepare_i8, rows_i8},
    };

    k->rvq_prepared_bytes = by_profile[k->profile].bytes;
    k->rvq_prepare = by_profile[k->profile].prepare;
    k->rvq_rows = by_profile[k->profile].rows;
}
