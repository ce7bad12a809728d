/* Residual VQ on AVX2 in integers: byte tables by pshufb.
 *
 * pshufb looks up among 16 and gives 0 where an index has its top bit set. The tables T_0 ... T_3
 * of 64 entries are kept as T_0, T_1 ^ T_0, T_2 ^ T_1, T_3 ^ T_2, and an index x meets the t-th as
 * x - 16 t: those up to x / 16 answer, the others see a negative number, and the exclusive or of
 * all is T_(x / 16). 256 entries are four such chains, looked up with the same four indices; bits 6
 * and 7 choose. */
#include "model/kernels/rvq_avx2.h"
#include "model/kernels/rvq_prepare.h"

enum { CHAIN = 4, AHEAD = 4 << 10 /* bytes */ };

/* The eight components of 8 entries, entries in the lanes; entries beyond n are zero. */
INLINE void load_transposed(__m256 *out, const float *codebook, uint32_t n)
{
    for (unsigned i = 0; i < 8; i++)
        out[i] = i < n ? _mm256_loadu_ps(codebook + i * DIM) : _mm256_setzero_ps();
    for (unsigned step = 0; step < 3; step++) { /* perfect shuffles */
        __m256 in[8];

        for (unsigned i = 0; i < 8; i++)
            in[i] = out[i];
        for (unsigned i = 0; i < 4; i++) {
            __m256 low = _mm256_unpacklo_ps(in[i], in[i + 4]);
            __m256 high = _mm256_unpackhi_ps(in[i], in[i + 4]);

            out[2 * i] = _mm256_permute2f128_ps(low, high, 0x20);
            out[2 * i + 1] = _mm256_permute2f128_ps(low, high, 0x31);
        }
    }
}

static uint32_t build(float *table, const float *x, const float *codebook,
                      const struct rvq_shape *shape, uint32_t n)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const uint32_t plane = (uint32_t)plane_bytes(shape);
    __m256i max = _mm256_setzero_si256();
    alignas(32) uint32_t lane[8];
    uint32_t most = 0;

    for (uint32_t s = 0; s < shape->stages;
         s++, codebook += shape->entries * DIM, table += BLOCK * plane)
        for (uint32_t c = 0; c < plane; c += 8) {
            uint32_t left = c < shape->entries ? shape->entries - c : 0;
            __m256 book[DIM];

            load_transposed(book, codebook + (left ? c : 0) * DIM, left);
            for (uint32_t p = 0; p < n; p++) {
                __m256 acc = _mm256_setzero_ps();

#pragma GCC unroll 8
                for (unsigned d = 0; d < DIM; d++)
                    acc = _mm256_fmadd_ps(_mm256_set1_ps(x[p * DIM + d]), book[d], acc);
                _mm256_store_ps(table + p * plane + c, acc);
                max = _mm256_max_epu32(max, _mm256_castps_si256(_mm256_and_ps(acc, magnitude)));
            }
        }
    _mm256_store_si256((__m256i *)(void *)lane, max);
    for (unsigned l = 0; l < 8; l++)
        most = lane[l] > most ? lane[l] : most;
    return most;
}

/* 32 numbers of 0...255 as bytes. */
INLINE __m256i pack(const __m256i *u)
{
    __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(u[0], u[1]), _mm256_packus_epi32(u[2], u[3]));

    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Each 16 bytes against the 16 before them, which are zero where a chain begins. */
INLINE void store_chained(uint8_t *to, __m256i bytes, __m256i *before, bool first)
{
    __m256i last = first ? _mm256_setzero_si256() : *before;
    __m256i shifted = _mm256_permute2x128_si256(last, bytes, 0x21);

    _mm256_store_si256((__m256i *)(void *)to, _mm256_xor_si256(bytes, shifted));
    *before = bytes;
}

INLINE void store_codes(uint8_t *to, const float *table, float inv, uint32_t plane,
                        const unsigned planes)
{
    const __m256i bias = _mm256_set1_epi32(planes == 2 ? 32768 : 128);
    __m256i before[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

    for (uint32_t c = 0; c < plane; c += 32) {
        const bool first = c % (16 * CHAIN) == 0;
        __m256i u[4], low[4];

        for (unsigned i = 0; i < 4; i++) {
            __m256 v = _mm256_mul_ps(_mm256_load_ps(table + c + 8 * i), _mm256_set1_ps(inv));

            u[i] = _mm256_add_epi32(_mm256_cvtps_epi32(v), bias);
            low[i] = _mm256_and_si256(u[i], _mm256_set1_epi32(255));
            u[i] = planes == 2 ? _mm256_srli_epi32(u[i], 8) : u[i];
        }
        store_chained(to + c, pack(u), &before[0], first);
        if (planes == 2)
            store_chained(to + plane + c, pack(low), &before[1], first);
    }
}

struct sums { /* of 32 rows: whole words, even row + 256 * odd row; and the odd rows alone */
    __m256i word, odd;
};

INLINE struct sums sums_add(struct sums a, __m256i bytes)
{
    a.word = _mm256_add_epi16(a.word, bytes);
    a.odd = _mm256_add_epi16(a.odd, _mm256_srli_epi16(bytes, 8));
    return a;
}

INLINE __m256i sixteen(const uint8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(const void *)table));
}

/* What the chain of four tables says to 32 indices, at[t] = index - 16 t. */
INLINE __m256i follow(const uint8_t *table, const __m256i *at)
{
    __m256i found = _mm256_shuffle_epi8(sixteen(table), at[0]);

#pragma GCC unroll 4
    for (unsigned t = 1; t < CHAIN; t++)
        found = _mm256_xor_si256(found, _mm256_shuffle_epi8(sixteen(table + 16 * t), at[t]));
    return found;
}

/* The bytes of indices x among 64 or 256, a constant. */
INLINE __m256i find(const uint8_t *table, __m256i x, const __m256i *at, const uint32_t plane)
{
    __m256i bit6 = _mm256_slli_epi16(x, 1), low, high;

    if (plane == 64)
        return follow(table, at);
    low = _mm256_blendv_epi8(follow(table, at), follow(table + 64, at), bit6);
    high = _mm256_blendv_epi8(follow(table + 128, at), follow(table + 192, at), bit6);
    return _mm256_blendv_epi8(low, high, x);
}

/* Adds what one stage's tables say to 32 indices. */
INLINE void look_up(struct sums *sum, const uint8_t *table, __m256i x, const unsigned planes,
                    const uint32_t plane)
{
    __m256i at[CHAIN];

    at[0] = _mm256_and_si256(x, _mm256_set1_epi8(63));
#pragma GCC unroll 4
    for (unsigned t = 1; t < CHAIN; t++)
        at[t] = _mm256_sub_epi8(at[t - 1], _mm256_set1_epi8(16));
#pragma GCC unroll 2
    for (unsigned i = 0; i < planes; i++)
        sum[i] = sums_add(sum[i], find(table + i * plane, x, at, plane));
}

/* Adds n positions of 32 rows. */
INLINE void look_up_tile(struct sums *sum, const uint8_t *table, const uint8_t *cell, uint32_t n,
                         const unsigned planes, const uint32_t stages, const bool packed,
                         const uint32_t plane)
{
    struct sums acc[2];

    memcpy(acc, sum, sizeof(acc));
    for (uint32_t p = 0; p < n; p++, cell += ROWS * (packed ? 3 : stages)) {
        __m256i e[STAGES];

        entries_of(e, cell, stages, packed);
#pragma GCC unroll 4
        for (uint32_t s = 0; s < stages; s++, table += planes * plane)
            look_up(acc, table, e[s], planes, plane);
    }
    memcpy(sum, acc, sizeof(acc));
}

/* acc <- fma(scale, sum, acc) of 8 rows: 8 words of each plane, less what made them unsigned. */
INLINE void add_block(float *acc, __m128i high, __m128i low, float scale, int32_t bias,
                      const unsigned planes)
{
    __m256i sum = _mm256_cvtepu16_epi32(high);

    if (planes == 2)
        sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), _mm256_cvtepu16_epi32(low));
    sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(bias));
    _mm256_store_ps(
        acc, _mm256_fmadd_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(sum), _mm256_load_ps(acc)));
}

/* acc holds 16 even rows of the 32, then 16 odd ones. */
INLINE void add_blocks(float *acc, const struct sums *sum, float scale, int32_t bias,
                       const unsigned planes)
{
    __m256i part[2][2];

    for (unsigned i = 0; i < planes; i++) {
        part[0][i] = _mm256_sub_epi16(sum[i].word, _mm256_slli_epi16(sum[i].odd, 8));
        part[1][i] = sum[i].odd;
    }
    for (unsigned o = 0; o < 2; o++, acc += 16) {
        __m256i high = part[o][0], low = part[o][planes - 1];

        add_block(acc, _mm256_castsi256_si128(high), _mm256_castsi256_si128(low), scale, bias,
                  planes);
        add_block(acc + 8, _mm256_extracti128_si256(high, 1), _mm256_extracti128_si256(low, 1),
                  scale, bias, planes);
    }
}

INLINE void block_rows(float *acc, const void *prepared, const uint8_t *cell,
                       const struct rvq_shape *shape, const unsigned planes, const uint32_t stages,
                       const bool packed, const uint32_t plane)
{
    const uint32_t stride = packed ? 3 : stages, end = positions(shape);
    const float *scale = prepared;
    const uint8_t *table = (const uint8_t *)prepared + codes_offset(shape);

    for (uint32_t p = 0; p < end; p += BLOCK, cell += BLOCK * ROWS * stride) {
        uint32_t n = min_u32(end - p, BLOCK);
        int32_t bias = (int32_t)(n * stages) * (planes == 2 ? 32768 : 128);

        prefetch(cell + AHEAD, (size_t)n * ROWS * stride);
        for (unsigned h = 0; h < 2; h++) {
            struct sums sum[2];

            memset(sum, 0, sizeof(sum));
            look_up_tile(sum, table, cell + h * HALF * stride, n, planes, stages, packed, plane);
            add_blocks(acc + h * HALF, sum, scale[p / BLOCK], bias, planes);
        }
        table += n * stages * planes * plane;
    }
}

INLINE void rows_codes(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                       const struct rvq_shape *shape, uint32_t r0, uint32_t r1,
                       const unsigned planes)
{
    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint8_t *cell = index + r / ROWS * block_bytes(shape);
        uint32_t n = min_u32(r1 - r, ROWS);
        alignas(32) float acc[ROWS] = {0};

        BY_TABLE(block_rows, shape, acc, prepared, cell, shape, planes);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = acc[i / 32 * 32 + i % 2 * 16 + i % 32 / 2] * half_to_f32(scale[r + i]);
    }
}

PREPARE_CODES(i16, byte_tables_bytes, 2)
ROWS_CODES(i16, 2)
PREPARE_CODES(i8, byte_tables_bytes, 1)
ROWS_CODES(i8, 1)

void rvq_by_hand_avx2(struct kernels *k)
{
    if (k->profile == PROFILE_I16) {
        k->rvq_prepared_bytes = prepared_bytes_i16;
        k->rvq_prepare = prepare_i16;
        k->rvq_rows = rows_i16;
    }
    if (k->profile == PROFILE_I8) {
        k->rvq_prepared_bytes = prepared_bytes_i8;
        k->rvq_prepare = prepare_i8;
        k->rvq_rows = rows_i8;
    }
}
