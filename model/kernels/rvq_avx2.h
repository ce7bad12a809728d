/* model/kernels/rvq_avx2.h - the cells of half a row block as one vector of entries per stage, rows
 * in order.
 */
#ifndef MODEL_KERNELS_RVQ_AVX2_H
#define MODEL_KERNELS_RVQ_AVX2_H

#include <immintrin.h>
#include <stdalign.h>

#include "model/kernels/rvq.h"

enum { HALF = ROWS / 2 };

INLINE __m256i load_halves(const uint8_t *low, const uint8_t *high)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
        _mm_loadu_si128((const __m128i *)(const void *)high), 1);
}

/* Where byte s of 16 rows of three lies in the i-th 16 of their 48 bytes; 128: elsewhere. */
INLINE __m256i thirds_in(unsigned i, unsigned s)
{
    alignas(16) uint8_t at[16];

    for (unsigned r = 0; r < 16; r++)
        at[r] = (uint8_t)((3 * r + s) / 16 == i ? (3 * r + s) % 16 : 128);
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(const void *)at));
}

/* Byte s of each of 32 rows of three, in order. */
INLINE void thirds(__m256i *e, const uint8_t *cell)
{
    __m256i v[3];

    for (unsigned i = 0; i < 3; i++)
        v[i] = load_halves(cell + 16 * i, cell + 48 + 16 * i);
#pragma GCC unroll 3
    for (unsigned s = 0; s < 3; s++)
        e[s] = _mm256_or_si256(_mm256_or_si256(_mm256_shuffle_epi8(v[0], thirds_in(0, s)),
                                               _mm256_shuffle_epi8(v[1], thirds_in(1, s))),
                               _mm256_shuffle_epi8(v[2], thirds_in(2, s)));
}

/* Byte s of each of 32 rows of two, in order. */
INLINE void halves_of(__m256i *e, const uint8_t *cell)
{
    const __m256i low = _mm256_set1_epi16(255);
    __m256i a = load_halves(cell, cell + 32), b = load_halves(cell + 16, cell + 48);

    e[0] = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
    e[1] = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
}

/* Bits of a where mask has ones, of b elsewhere. */
INLINE __m256i select_bits(char mask, __m256i a, __m256i b)
{
    __m256i m = _mm256_set1_epi8(mask);

    return _mm256_or_si256(_mm256_and_si256(m, a), _mm256_andnot_si256(m, b));
}

/* e[stage] of 32 rows; bits 6 and 7 of packed ones are left as they come. */
INLINE void entries_of(__m256i *e, const uint8_t *cell, const uint32_t stages, const bool packed)
{
    __m256i b[3];

    if (packed) {
        thirds(b, cell);
        e[0] = b[0];
        e[1] = select_bits(3, _mm256_srli_epi16(b[0], 6), _mm256_slli_epi16(b[1], 2));
        e[2] = select_bits(15, _mm256_srli_epi16(b[1], 4), _mm256_slli_epi16(b[2], 4));
        e[3] = _mm256_srli_epi16(b[2], 2);
    } else if (stages == 3) {
        thirds(e, cell);
    } else if (stages == 2) {
        halves_of(e, cell);
    } else {
        for (uint32_t s = 0; s < stages; s++) {
            alignas(32) uint8_t byte[HALF];

            for (unsigned r = 0; r < HALF; r++)
                byte[r] = cell[r * stages + s];
            e[s] = _mm256_load_si256((const __m256i *)(const void *)byte);
        }
    }
}

#endif
