/* Tables of bytes, for the lookups of rvq_vbmi: entries of a transposed codebook in the lanes, 32
 * positions against 16 entries that stay in registers, the block's maximum found on the way. */
#include <immintrin.h>
#include <stdalign.h>

#include "model/kernels/rvq.h"

enum { STRIPE = 64, STRIPES_MAX = STAGES * ENTRIES / STRIPE };

/* The eight components of 16 entries, entries in the lanes; entries beyond n are zero. */
INLINE void load_transposed(__m512 *out, const float *entry, uint32_t n)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const uint32_t floats = n * DIM;

    for (unsigned i = 0; i < 8; i++) {
        uint32_t left = floats > 16 * i ? floats - 16 * i : 0;

        out[i] = _mm512_maskz_loadu_ps((__mmask16)(left < 16 ? (1u << left) - 1 : 0xffff),
                                       entry + 16 * i);
    }
    /* Four perfect shuffles turn [16][8] into [8][16]. */
    for (unsigned step = 0; step < 4; step++) {
        __m512 in[8];

        for (unsigned i = 0; i < 8; i++)
            in[i] = out[i];
        for (unsigned i = 0; i < 4; i++) {
            out[2 * i] = _mm512_permutex2var_ps(in[i], low, in[i + 4]);
            out[2 * i + 1] = _mm512_permutex2var_ps(in[i], high, in[i + 4]);
        }
    }
}

/* table[position][STRIPE], the columns of these 16 entries, n positions. Returns the larger of max
 * and the largest magnitudes, as bits. */
INLINE __m512i sixteen(float *table, const float *x, const __m512 *book, uint32_t n, __m512i max)
{
    for (uint32_t p = 0; p < n; p++, x += DIM, table += STRIPE) {
        __m512 acc = _mm512_setzero_ps();

#pragma GCC unroll 8
        for (unsigned d = 0; d < DIM; d++)
            acc = _mm512_fmadd_ps(_mm512_set1_ps(x[d]), book[d], acc);
        _mm512_store_ps(table, acc);
        max = _mm512_max_epu32(max, _mm512_castps_si512(_mm512_abs_ps(acc)));
    }
    return max;
}

/* table[stripe][position][STRIPE] of n positions; returns the largest magnitude's bits. */
static uint32_t build(float *table, const float *x, const float *codebook,
                      const struct rvq_shape *shape, uint32_t n)
{
    __m512i max = _mm512_setzero_si512();

    for (uint32_t s = 0; s < shape->stages; s++, codebook += shape->entries * DIM)
        for (uint32_t c = 0; c < plane_bytes(shape); c += 16) {
            uint32_t left = c < shape->entries ? shape->entries - c : 0;
            __m512 book[DIM];

            load_transposed(book, codebook + (left ? c : 0) * DIM, min_u32(left, 16));
            max = sixteen(table + c % STRIPE, x, book, n, max);
            if (c % STRIPE == STRIPE - 16)
                table += BLOCK * STRIPE;
        }
    return _mm512_reduce_max_epu32(max);
}

/* Quarters of a register that hold four times sixteen bytes lane by lane, in order. */
INLINE __m512i in_order(__m512i lanes)
{
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), lanes);
}

INLINE void store(uint8_t *to, __m512i lanes)
{
    _mm512_store_si512(to, in_order(lanes));
}

/* 64 codes of a position as unsigned bytes. |value * inv| < Q + 0.5, for inv is Q / max rounded
 * once and the product once more: the clamp of the definition has nothing to do, nor have the packs
 * anything to saturate. */
INLINE void store_codes(uint8_t *high, const float *table, __m512 inv, uint32_t plane_bytes,
                        const unsigned planes)
{
    const __m512i sign = planes == 2 ? _mm512_set1_epi16(-32768) : _mm512_set1_epi8(-128);
    const __m512i low = _mm512_set1_epi16(255);
    __m512i code[4], word[2];

    for (unsigned i = 0; i < 4; i++)
        code[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(table + 16 * i), inv));
    for (unsigned i = 0; i < 2; i++)
        word[i] = _mm512_packs_epi32(code[2 * i], code[2 * i + 1]);
    if (planes == 1) {
        store(high, _mm512_xor_si512(_mm512_packs_epi16(word[0], word[1]), sign));
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        word[i] = _mm512_xor_si512(word[i], sign);
    store(high, _mm512_packus_epi16(_mm512_srli_epi16(word[0], 8), _mm512_srli_epi16(word[1], 8)));
    store(high + plane_bytes,
          _mm512_packus_epi16(_mm512_and_si512(word[0], low), _mm512_and_si512(word[1], low)));
}

/* The codes of n positions, the last stripe first: it is still in L1. */
INLINE void quantise(uint8_t *bytes, const float *table, float inv, const struct rvq_shape *shape,
                     uint32_t n, const unsigned planes)
{
    const uint32_t plane = (uint32_t)plane_bytes(shape), per_plane = plane / STRIPE;
    const size_t step = (size_t)shape->stages * planes * plane;

    for (uint32_t i = shape->stages * per_plane; i-- > 0;) {
        uint8_t *to = bytes + i / per_plane * planes * plane + i % per_plane * STRIPE;
        const float *stripe = table + (size_t)i * BLOCK * STRIPE;

        for (uint32_t p = 0; p < n; p++)
            store_codes(to + p * step, stripe + p * STRIPE, _mm512_set1_ps(inv), plane, planes);
    }
}

static void zero_codes(uint8_t *bytes, const struct rvq_shape *shape, uint32_t n,
                       const unsigned planes)
{
    const size_t plane = plane_bytes(shape);

    for (size_t i = 0; i < n * shape->stages * planes; i++)
        memset(bytes + i * plane, planes == 2 && i % 2 ? 0 : 128, plane);
}

INLINE void prepare_codes(void *prepared, const float *x, const float *codebook,
                          const struct rvq_shape *shape, uint32_t p0, uint32_t p1,
                          const unsigned planes)
{
    const float q = planes == 2 ? 32767 : 127;
    alignas(64) float table[STRIPES_MAX * BLOCK * STRIPE];
    float *scale = prepared;
    uint8_t *bytes = (uint8_t *)prepared + codes_offset(shape);
    const size_t step = shape->stages * planes * plane_bytes(shape);

    for (uint32_t p = p0; p < p1; p += BLOCK) {
        uint32_t n = min_u32(p1 - p, BLOCK);
        uint32_t bits = build(table, x + p * DIM, codebook, shape, n);
        float amax = bits_to_f32(bits);

        if (bits >= 0x7f800000u || amax < 0x1p-100f) {
            scale[p / BLOCK] = bits >= 0x7f800000u ? bits_to_f32(0x7fc00000u) : 0.0f;
            zero_codes(bytes + p * step, shape, n, planes);
        } else {
            scale[p / BLOCK] = amax / q;
            quantise(bytes + p * step, table, q / amax, shape, n, planes);
        }
    }
}

/* 64 floats of a position as four planes of bytes, lowest first. */
INLINE void store_planes(uint8_t *to, const float *table, size_t plane)
{
    const __m512i apart =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i quad[4],
        pair[4]; /* byte b of four floats is word b of a lane, and then in register b */

    for (unsigned i = 0; i < 4; i++)
        quad[i] = _mm512_shuffle_epi8(_mm512_load_si512(table + 16 * i), apart);
    for (unsigned i = 0; i < 2; i++) {
        pair[i] = _mm512_unpacklo_epi32(quad[2 * i], quad[2 * i + 1]);
        pair[2 + i] = _mm512_unpackhi_epi32(quad[2 * i], quad[2 * i + 1]);
    }
    for (unsigned i = 0; i < 2; i++) {
        store(to + 2 * i * plane, _mm512_unpacklo_epi64(pair[2 * i], pair[2 * i + 1]));
        store(to + (2 * i + 1) * plane, _mm512_unpackhi_epi64(pair[2 * i], pair[2 * i + 1]));
    }
}

static size_t prepared_bytes_f32(const struct rvq_shape *s)
{
    return positions(s) * s->stages * sizeof(float) * plane_bytes(s);
}

/* bytes [position][stage][byte of a float][64 or 256 entries] */
static void prepare_f32(void *prepared, const float *x, const float *codebook,
                        const struct rvq_shape *shape, uint32_t p0, uint32_t p1)
{
    alignas(64) float table[STRIPES_MAX * BLOCK * STRIPE];
    const size_t plane = plane_bytes(shape), stage = sizeof(float) * plane;

    for (uint32_t p = p0; p < p1; p += BLOCK) {
        const float *stripe = table;
        uint32_t n = min_u32(p1 - p, BLOCK);
        uint8_t *to = (uint8_t *)prepared + p * shape->stages * stage;

        build(table, x + p * DIM, codebook, shape, n);
        for (uint32_t s = 0; s < shape->stages; s++)
            for (size_t c = 0; c < plane; c += STRIPE, stripe += BLOCK * STRIPE)
                for (uint32_t i = 0; i < n; i++)
                    store_planes(to + (i * shape->stages + s) * stage + c, stripe + i * STRIPE,
                                 plane);
    }
}

PREPARE_CODES(i16, byte_tables_bytes, 2)
PREPARE_CODES(i8, byte_tables_bytes, 1)

void rvq_by_hand_avx512(struct kernels *k)
{
    if (k->profile == PROFILE_F32) {
        k->rvq_prepared_bytes = prepared_bytes_f32;
        k->rvq_prepare = prepare_f32;
    }
    if (k->profile == PROFILE_I16) {
        k->rvq_prepared_bytes = prepared_bytes_i16;
        k->rvq_prepare = prepare_i16;
    }
    if (k->profile == PROFILE_I8) {
        k->rvq_prepared_bytes = prepared_bytes_i8;
        k->rvq_prepare = prepare_i8;
    }
}
