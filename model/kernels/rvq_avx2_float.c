/* Residual VQ on AVX2 in floats: f32 from tables, direct from codebooks.
 *
 * AVX2 has no lookup among 256 floats, and its gathers are slower than the loads they stand for. So
 * floats are loaded one by one (entries of `direct`: eight components by eight); indices come as
 * words of several rows, shifted apart in registers, because loads are what limits this; sums stay
 * in registers over some positions.
 */
#include <immintrin.h>

#include "model/kernels/rvq_direct.h"

enum {
    FOUR = 4,          /* rows whose indices are loaded together */
    TOGETHER_F32 = 16, /* rows with their sums in registers */
    TOGETHER_DIRECT = 8,
    LOG_ENTRY = 5, /* of its bytes in a codebook */
    AT_ONCE = 8,   /* positions whose tables, or codebooks, stay in L1 with their cells */
    GROUP = 16,    /* row blocks that meet the tables there */
    AHEAD = 2048,  /* bytes between what is fetched and what is used; of direct, which reads a row
                    * block to its end, three times that */
};

#include "model/kernels/rvq_f32.h"

/* The cells of four rows, stride bytes each: the first 8 bytes and the last. */
struct four {
    uint64_t first, last;
};

INLINE struct four four_load(const uint8_t *cell, const uint32_t stride)
{
    struct four f;

    memcpy(&f.first, cell, sizeof(f.first));
    memcpy(&f.last, cell + FOUR * stride - sizeof(f.last), sizeof(f.last));
    return f;
}

/* Cells that four_load takes. */
INLINE bool has_fours(const uint32_t stride)
{
    return stride >= 2 && stride <= 4;
}

/* The entry of stage s of the r-th row, times 2^shift: one shift and a mask. */
INLINE size_t four_entry(struct four f, const uint32_t stride, const bool packed, const unsigned r,
                         const unsigned s, const unsigned shift)
{
    const unsigned width = packed ? 6 : 8;
    const unsigned byte = r < 2 ? r * stride : (unsigned)sizeof(f.last) - (FOUR - r) * stride;
    const unsigned bit = 8 * byte + width * s;
    const uint64_t word = r < 2 ? f.first : f.last, mask = ((1u << width) - 1) << shift;

    return (bit < shift ? word << (shift - bit) : word >> (bit - shift)) & mask;
}

/* Values of stage s of four rows. */
INLINE __m128 four_floats(const float *table, struct four f, const uint32_t stride,
                          const bool packed, const unsigned s)
{
    __m128 v = _mm_load_ss(table + four_entry(f, stride, packed, 0, s, 0));

    v = _mm_insert_ps(v, _mm_load_ss(table + four_entry(f, stride, packed, 1, s, 0)), 0x10);
    v = _mm_insert_ps(v, _mm_load_ss(table + four_entry(f, stride, packed, 2, s, 0)), 0x20);
    return _mm_insert_ps(v, _mm_load_ss(table + four_entry(f, stride, packed, 3, s, 0)), 0x30);
}

/* Adds a tile to TOGETHER_F32 rows. */
INLINE void f32_rows(float *acc, struct tile t, const uint32_t stages, const bool packed)
{
    const uint32_t stride = packed ? 3 : stages;
    __m128 sum[TOGETHER_F32 / FOUR];

    for (unsigned i = 0; i < TOGETHER_F32 / FOUR; i++)
        sum[i] = _mm_loadu_ps(acc + i * FOUR);
    for (uint32_t p = 0; p < t.positions; p++) {
#pragma GCC unroll 4
        for (unsigned i = 0; i < TOGETHER_F32 / FOUR; i++) {
            struct four f = four_load(t.cell + i * FOUR * stride, stride);
            __m128 v = four_floats(t.table, f, stride, packed, 0);

#pragma GCC unroll 4
            for (uint32_t s = 1; s < stages; s++)
                v = _mm_add_ps(v, four_floats(t.table + s * t.entries, f, stride, packed, s));
            sum[i] = _mm_add_ps(sum[i], v);
        }
        t.cell += ROWS * stride;
        t.table += stages * t.entries;
    }
    for (unsigned i = 0; i < TOGETHER_F32 / FOUR; i++)
        _mm_storeu_ps(acc + i * FOUR, sum[i]);
}

/* Adds a tile to one row. */
INLINE float f32_row(float sum, struct tile t, const uint32_t stages, const bool packed)
{
    for (uint32_t p = 0; p < t.positions; p++) {
        float v = t.table[entry(t.cell, packed, 0)];

        for (uint32_t s = 1; s < stages; s++)
            v = v + t.table[s * t.entries + entry(t.cell, packed, s)];
        sum = sum + v;
        t.cell += ROWS * (packed ? 3 : stages);
        t.table += stages * t.entries;
    }
    return sum;
}

/* Adds a tile to n rows of a row block. */
INLINE void f32_block(float *acc, struct tile t, uint32_t n, const uint32_t stages,
                      const bool packed)
{
    const uint32_t stride = packed ? 3 : stages;
    uint32_t r = 0;

    prefetch(t.cell + AHEAD, (size_t)t.positions * ROWS * stride);
    for (; has_fours(stride) && r + TOGETHER_F32 <= n; r += TOGETHER_F32) {
        f32_rows(acc + r, t, stages, packed);
        t.cell += TOGETHER_F32 * stride;
    }
    for (; r < n; r++, t.cell += stride)
        acc[r] = f32_row(acc[r], t, stages, packed);
}

static void add_tile(float *acc, const struct tile *t, uint32_t n, const struct rvq_shape *shape)
{
    BY_CELL(f32_block, shape, acc, *t, n);
}

/* The components of an entry that lies `bytes` into a stage's codebook. */
INLINE __m256 components(const float *book, size_t bytes)
{
    return _mm256_loadu_ps((const float *)(const void *)((const char *)book + bytes));
}

/* acc[row][DIM] of TOGETHER_DIRECT rows, over positions of one tile. */
INLINE void direct_rows(float *acc, const float *x, const float *codebook, const uint8_t *cell,
                        uint32_t n_positions, const struct rvq_shape *shape, const uint32_t stages,
                        const bool packed)
{
    const uint32_t stride = packed ? 3 : stages;
    const size_t book = (size_t)shape->entries * DIM;
    __m256 sum[TOGETHER_DIRECT];

    for (unsigned r = 0; r < TOGETHER_DIRECT; r++)
        sum[r] = _mm256_load_ps(acc + r * DIM);
    for (uint32_t p = 0; p < n_positions; p++, x += DIM, cell += ROWS * stride) {
        __m256 xs = _mm256_loadu_ps(x);

#pragma GCC unroll 8
        for (unsigned r = 0; r < TOGETHER_DIRECT; r++) {
            struct four f = four_load(cell + r / FOUR * FOUR * stride, stride);
            __m256 w = components(codebook, four_entry(f, stride, packed, r % FOUR, 0, LOG_ENTRY));

#pragma GCC unroll 4
            for (uint32_t s = 1; s < stages; s++)
                w = _mm256_add_ps(
                    w, components(codebook + s * book,
                                  four_entry(f, stride, packed, r % FOUR, s, LOG_ENTRY)));
            sum[r] = _mm256_fmadd_ps(xs, w, sum[r]);
        }
    }
    for (unsigned r = 0; r < TOGETHER_DIRECT; r++)
        _mm256_store_ps(acc + r * DIM, sum[r]);
}

/* acc[DIM] of one row. */
INLINE void direct_row(float *acc, const float *x, const float *codebook, const uint8_t *cell,
                       uint32_t n_positions, const struct rvq_shape *shape, const uint32_t stages,
                       const bool packed)
{
    __m256 sum = _mm256_load_ps(acc);

    for (uint32_t p = 0; p < n_positions; p++, cell += ROWS * (packed ? 3 : stages)) {
        __m256 w = _mm256_loadu_ps(codebook + (size_t)entry(cell, packed, 0) * DIM);

        for (uint32_t s = 1; s < stages; s++) {
            size_t e = s * shape->entries + entry(cell, packed, s);

            w = _mm256_add_ps(w, _mm256_loadu_ps(codebook + e * DIM));
        }
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(x + p * DIM), w, sum);
    }
    _mm256_store_ps(acc, sum);
}

/* The n rows of a row block. */
INLINE void direct_block(float *acc, const float *x, const float *codebook, const uint8_t *index,
                         uint32_t n, const struct rvq_shape *shape, const uint32_t stages,
                         const bool packed)
{
    const uint32_t stride = packed ? 3 : stages, end = positions(shape);

    for (uint32_t p = 0; p < end; p += AT_ONCE) {
        const uint8_t *cell = index + (size_t)p * ROWS * stride;
        uint32_t m = min_u32(end - p, AT_ONCE), r = 0;

        prefetch(cell + 3 * AHEAD, (size_t)m * ROWS * stride);
        for (; has_fours(stride) && r + TOGETHER_DIRECT <= n; r += TOGETHER_DIRECT)
            direct_rows(acc + r * DIM, x + p * DIM, codebook, cell + r * stride, m, shape, stages,
                        packed);
        for (; r < n; r++)
            direct_row(acc + r * DIM, x + p * DIM, codebook, cell + r * stride, m, shape, stages,
                       packed);
    }
}

void rvq_by_hand_avx2_float(struct kernels *k)
{
    if (k->profile == PROFILE_F32)
        k->rvq_rows = rows_f32;
    if (k->profile == PROFILE_DIRECT)
        k->rvq_rows = rows_direct;
}
