/* Rows of a weight times one vector or several, in registers.
 *
 * A block is some rows times some vectors: every weight of it is unpacked once, into a register,
 * and meets all vectors there; every lane of every (row, vector) is an accumulator of its own, so
 * the block's size changes no bits. A group of 128 columns is eight steps of sixteen lanes. Step j
 * of lane l is column 16j + l in Q8G, and column 8l + j in Q4G and Q3G, whose bytes are sixteen
 * words with a column in the same bits of each: for those x is put into [step][lane] order first,
 * once for a tile of rows that stays in the second-level cache while all vectors go by.
 *
 * A field becomes a float without a conversion. Under the exponent of 2^(23 - b), the bits of a
 * field at bit b weigh 1, 2, 4...: (word & mask) | exponent is 2^(23 - b) + field, exactly, and one
 * subtraction leaves the code. AVX-512 has a second way for fields that begin at bit 0: a permute
 * of a table of sixteen floats looks at the low four bits of each index only. The two ways keep
 * different execution units busy, so they take turns.
 */
#include <immintrin.h>
#include <string.h>

#include "model/kernels/gemv.h"

enum {
    ROWS = 4, /* of a block with one vector, and of what is folded at once */
#if defined(__AVX512F__)
    ROWS_MANY = 4,
    VECTORS = 4, /* of a block with several: 16 accumulators in 32 registers */
#else
    ROWS_MANY = 1,
    VECTORS = 8, /* 8 in 16 */
#endif
    CHUNK_GROUPS = 48, /* of all vectors of a block together: 24 KiB of x */
    TILE_ROWS = 128,
    TILE_BYTES = 256 << 10,
    AHEAD_BYTES = 8 << 10, /* of a prefetch: what memory has under way, and some more */
};

#include "model/kernels/gemv_tile.h"

/* The words of a Q4G or Q3G group, lanes [part * VEC, ...); step j is a field of each. A field is
 * its code plus half of what it can hold. */
INLINE uvec words(const int fmt, const uint8_t *group, unsigned part)
{
    uvec w = {0};

    if (fmt == FMT_Q4G) {
        memcpy(&w, group + part * sizeof(w), sizeof(w));
    } else if (fmt == FMT_Q3G) { /* 24 bits each: three bytes of every four, to begin with */
#if defined(__AVX512F__)
        const __m512i quarters =
            _mm512_setr_epi32(0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 0, 9, 10, 11, 0);
        const __m512i spread = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
        __m512i packed = _mm512_maskz_loadu_epi32(0x0fff, group);

        w = (uvec)_mm512_shuffle_epi8(_mm512_permutexvar_epi32(quarters, packed), spread);
#else
        const __m256i spread =
            _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, /* from byte 0 */
                             4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1); /* from 8 */
        const uint8_t *b = group + (size_t)part * 24;

        w = (uvec)_mm256_shuffle_epi8(_mm256_loadu2_m128i((const __m128i *)(const void *)(b + 8),
                                                          (const __m128i *)(const void *)b),
                                      spread);
#endif
    }
    return w;
}

/* (w & mask) | bits */
INLINE uvec select_bits(uvec w, uint32_t mask, uint32_t bits)
{
#if defined(__AVX512F__)
    return (uvec)_mm512_ternarylogic_epi32((__m512i)w, _mm512_set1_epi32((int)mask),
                                           _mm512_set1_epi32((int)bits), 0xea);
#else
    return (w & mask) | bits;
#endif
}

/* Codes of the field of `width` bits at bit b, b + width <= 23. */
INLINE vec field(uvec w, const unsigned width, const unsigned b)
{
    const float bias = (float)(1 << (width - 1));

#if defined(__AVX512F__)
    if (b == 0) { /* a fourth bit beside a field of three is not looked at */
        const __m512 codes =
            width == 4 ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
                       : _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);

        return (vec)_mm512_permutexvar_ps((__m512i)w, codes);
    }
#endif
    return (vec)select_bits(w, ((1u << width) - 1) << b, (127 + 23 - b) << 23) -
           lanes_all((float)(1u << (23 - b)) + bias);
}

/* The same by two shifts, w with the highest bit of every field flipped. Without 32 registers this
 * is the better way where the loads of many vectors leave none for masks. */
INLINE vec field_shifted(uvec w, const unsigned width, const unsigned b)
{
    return __builtin_convertvector((ivec)(w << (32 - width - b)) >> (32 - width), vec);
}

INLINE bool shifts(const unsigned T)
{
    return VEC == 8 && T > 1;
}

/* Codes of step j of those lanes, for T vectors. */
INLINE vec codes(const int fmt, const uint8_t *group, uvec w, unsigned part, const unsigned j,
                 const unsigned T)
{
    const unsigned width = fmt == FMT_Q4G ? 4 : 3, half = fmt == FMT_Q4G ? 16 : 12;

    if (fmt == FMT_Q8G) {
        const uint8_t *b = group + j * LANES + part * VEC;

#if defined(__AVX512F__)
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)b)));
#else
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(b)));
#endif
    }
    if (shifts(T))
        return field_shifted(w, width, width * j);
    if (VEC == 16 && j % 2 == 0)
        return field(w >> (width * j), width, 0);
    return field(j < 4 ? w : w >> half, width, width * (j % 4));
}

/* Rows and columns of an 8 x 8 matrix change places. */
INLINE void transpose8(float *out, size_t out_stride, const float *in, size_t in_stride)
{
    __m256 a[8], b[8];

    for (unsigned i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(in + i * in_stride);
    for (unsigned i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (unsigned i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (unsigned i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}

static void to_steps(float *out, const float *x)
{
    for (unsigned half = 0; half < 2; half++)
        transpose8(out + 8 * half, LANES, x + 64 * half, STEPS);
}

static void from_steps(float *out, const float *x)
{
    for (unsigned half = 0; half < 2; half++)
        transpose8(out + 64 * half, STEPS, x + 8 * half, LANES);
}

INLINE void widen(float *s, const uint16_t *half, uint32_t n)
{
    uint32_t g = 0;

#if defined(__AVX512F__)
    for (; g + 16 <= n; g += 16)
        _mm512_storeu_ps(
            s + g, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(half + g))));
    if (g < n) {
        __mmask16 rest = (__mmask16)((1u << (n - g)) - 1);

        _mm512_mask_storeu_ps(s + g, rest,
                              _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, half + g)));
    }
#else
    for (; g + 8 <= n; g += 8)
        _mm256_storeu_ps(
            s + g, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(half + g))));
    for (; g < n; g++)
        s[g] = _cvtsh_ss(half[g]);
#endif
}

/* acc[R][T][LANES] of rows [r, r + R), R and T constants. */
INLINE void block(const int fmt, float *acc, const struct tile *c, uint32_t r, const unsigned R,
                  const unsigned T)
{
    const uint8_t *row = c->data + r * c->row_bytes;
    float s[ROWS][CHUNK_GROUPS];

    for (unsigned i = 0; i < R; i++)
        widen(s[i], c->scale + (r + i) * c->scales, c->n_groups);
    for (unsigned part = 0; part < PARTS; part++) {
        vec a[ROWS][VECTORS];

#pragma GCC unroll 4
        for (unsigned i = 0; i < R; i++)
#pragma GCC unroll 8
            for (unsigned t = 0; t < T; t++)
                a[i][t] = lanes_load(acc + (i * T + t) * LANES + part * VEC);
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const float *x = c->x + (size_t)g * FORMAT_GROUP + part * VEC;
            const uint8_t *group = row + g * group_bytes(fmt);
            vec p[ROWS][VECTORS] = {0};
            uvec w[ROWS];

#pragma GCC unroll 4
            for (unsigned i = 0; i < R; i++) {
                w[i] = words(fmt, group + i * c->row_bytes, part) ^
                       (shifts(T) ? fmt == FMT_Q4G ? 0x88888888u : 0x00924924u : 0);
                if (T == 1 && part == 0)
                    for (unsigned line = 0; line < (fmt == FMT_Q8G ? 2 : 1); line++)
                        _mm_prefetch(group + i * c->row_bytes + c->ahead + line * 64, _MM_HINT_T0);
            }
#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++) {
                vec q[ROWS];

#pragma GCC unroll 4
                for (unsigned i = 0; i < R; i++)
                    q[i] = codes(fmt, group + i * c->row_bytes, w[i], part, j, T);
#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++) {
                    vec v = lanes_load(x + t * c->x_stride + j * LANES);

#pragma GCC unroll 4
                    for (unsigned i = 0; i < R; i++)
                        p[i][t] = lanes_fma(q[i], v, p[i][t]);
                }
            }
#pragma GCC unroll 4
            for (unsigned i = 0; i < R; i++)
#pragma GCC unroll 8
                for (unsigned t = 0; t < T; t++)
                    a[i][t] = lanes_fma(lanes_all(s[i][g]), p[i][t], a[i][t]);
        }
#pragma GCC unroll 4
        for (unsigned i = 0; i < R; i++)
#pragma GCC unroll 8
            for (unsigned t = 0; t < T; t++)
                lanes_store(acc + (i * T + t) * LANES + part * VEC, a[i][t]);
    }
}

#if defined(__AVX512F__)
#define UP_TO_VECTORS UP_TO_4
#else
#define UP_TO_VECTORS UP_TO_8
#endif
TILES(UP_TO_VECTORS)
static tile_fn *const tiles[][VECTORS + 1] = TILE_TABLE(UP_TO_VECTORS);

static void gemv_grouped(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                         const struct tensor *w, uint32_t r0, uint32_t r1)
{
    uint32_t rows = (uint32_t)(TILE_BYTES / w->row_bytes) / ROWS * ROWS;

    rows = rows < 4 * ROWS ? 4 * ROWS : min_u32(rows, TILE_ROWS);
    for (uint32_t r = r0; r < r1; r += rows)
        for (uint32_t t = 0, left, n; (left = T - t); t += n) {
            n = (left + VECTORS - 1) / VECTORS; /* blocks, and then vectors of the next one */
            n = (left + n - 1) / n;
            tiles[w->fmt][n](y + t * y_stride, y_stride, x + t * x_stride, x_stride, w, r,
                             min_u32(r1 - r, rows));
        }
}

static void gemv(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                 const struct tensor *w, uint32_t r0, uint32_t r1)
{
    (w->fmt == FMT_F32 ? gemv_f32 : gemv_grouped)(y, y_stride, x, x_stride, T, w, r0, r1);
}

/* A group of out stays in registers, in [step][lane] order, while the rows go by. */
INLINE void axpy_grouped(const int fmt, float *out, const float *x, const struct tensor *w,
                         uint32_t r0, uint32_t n)
{
    for (uint32_t g = 0; g < w->groups; g++) {
        uint32_t c0 = g * FORMAT_GROUP, n_cols = min_u32(w->cols - c0, FORMAT_GROUP);
        float plain[FORMAT_GROUP] = {0}, steps[FORMAT_GROUP];

        memcpy(plain, out + c0, n_cols * sizeof(float));
        if (fmt == FMT_Q8G)
            memcpy(steps, plain, sizeof(steps));
        else
            to_steps(steps, plain);
        for (unsigned part = 0; part < PARTS; part++) {
            vec a[STEPS];

#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++)
                a[j] = lanes_load(steps + j * LANES + part * VEC);
            for (uint32_t i = 0; i < n; i++) {
                size_t r = (size_t)r0 + i;
                const uint8_t *group = w->data + r * w->row_bytes + g * group_bytes(fmt);
                uvec word = words(fmt, group, part);
                vec xs = lanes_all(x[i] * _cvtsh_ss(w->scale[r * w->groups + g]));

#pragma GCC unroll 8
                for (unsigned j = 0; j < STEPS; j++)
                    a[j] = lanes_fma(xs, codes(fmt, group, word, part, j, 1), a[j]);
            }
#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++)
                lanes_store(steps + j * LANES + part * VEC, a[j]);
        }
        if (fmt == FMT_Q8G)
            memcpy(plain, steps, sizeof(plain));
        else
            from_steps(plain, steps);
        memcpy(out + c0, plain, n_cols * sizeof(float));
    }
}

AXPY_ROWS(axpy_grouped)

void K(gemv_fill)(struct kernels *k)
{
    k->gemv = gemv;
    k->axpy_rows = axpy_rows;
}
