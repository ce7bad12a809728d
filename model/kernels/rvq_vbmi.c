/* Byte tables by vpermi2b: 64 rows to an instruction, straight from the public cells.
 *
 * The bytes of a cell lie row by row, stages innermost, and a table serves one stage. They are
 * never put into order. Byte j of a cell with 3 stages is stage j % 3 of row j / 3; since 64 % 3 is
 * 1, every lane sees all three stages in the cell's three vectors, and two blends pick one stage:
 * row r of stage s then sits in lane (3r + s) % 64. Sums stay in these lanes. Between two stages
 * they move up by one lane, once per block of positions, and rows are put into order at the end.
 *
 * Bytes are summed in sixteen bits without being split: `word` adds whole words, even lane +
 * 256 * odd lane, and `odd` the odd lanes alone, so that even = word - 256 * odd modulo 2^16.
 */
#include <immintrin.h>
#include <stdalign.h>

#include "model/kernels/rvq.h"

enum cells { CELLS_3, CELLS_2, CELLS_PACKED, CELLS_ANY };

enum {
    TOGETHER = 4, /* row blocks that share the loads of a table */
    GROUP = 16, /* row blocks that meet the tables of a block of positions while these are in L1 */
};

struct sums {
    __m512i word, odd;
};

struct tile { /* a block of positions, in TOGETHER or fewer row blocks */
    const uint8_t *table;
    const uint8_t *cell, *next;  /* of the first row block; next: what is read after this tile */
    size_t row_step, table_step; /* from row block to row block; from position to position */
    uint32_t positions, stages, registers;
    uint32_t plane_bytes;
};

/* Lanes j with j % 3 == phase. */
INLINE __mmask64 every_third(unsigned phase)
{
    return 0x9249249249249249u << phase % 3;
}

/* Byte s of every row of a cell, row r in lane (3r + s) % 64. */
INLINE __m512i third(const uint8_t *cell, unsigned s)
{
    __m512i v = _mm512_loadu_si512(cell + 128);

    v = _mm512_mask_loadu_epi8(v, every_third(s), cell);
    return _mm512_mask_loadu_epi8(v, every_third(s + 2), cell + 64);
}

/* What lane l holds moves to lane l - 1. */
INLINE __m512i lanes_down(__m512i v)
{
    const __m512i one = _mm512_set1_epi8(1);
    __m512i lane = _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928,
                                    0x2726252423222120, 0x1f1e1d1c1b1a1918, 0x1716151413121110,
                                    0x0f0e0d0c0b0a0908, 0x0706050403020100);

    return _mm512_permutexvar_epi8(_mm512_add_epi8(lane, one), v);
}

/* Bits of a where mask has ones, of b elsewhere. */
INLINE __m512i select_bits(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

/* Index s of four packed ones; where a lookup ignores bits 6 and 7, they may hold anything. Rows
 * are in the lanes of byte 0, 0, 1, 2. */
INLINE __m512i packed_entries(const uint8_t *cell, unsigned s)
{
    __m512i low, high;

    if (s == 0)
        return third(cell, 0);
    if (s == 3)
        return _mm512_srli_epi16(third(cell, 2), 2);
    low = third(cell, s - 1);
    high = lanes_down(third(cell, s));
    if (s == 1)
        return select_bits(_mm512_set1_epi8(3), _mm512_srli_epi16(low, 6),
                           _mm512_slli_epi16(high, 2));
    return select_bits(_mm512_set1_epi8(15), _mm512_srli_epi16(low, 4), _mm512_slli_epi16(high, 4));
}

/* Stage s of two: rows 0...31 in the even lanes, 32...63 in the odd ones. */
INLINE __m512i half(const uint8_t *cell, unsigned s)
{
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaau;
    __m512i a = _mm512_loadu_si512(cell), b = _mm512_loadu_si512(cell + 64);

    return s == 0 ? _mm512_mask_mov_epi8(a, odd, _mm512_slli_epi16(b, 8))
                  : _mm512_mask_mov_epi8(_mm512_srli_epi16(a, 8), odd, b);
}

/* Any other cell, slowly, in order. */
INLINE __m512i any_entries(const uint8_t *cell, unsigned s, uint32_t stages)
{
    alignas(64) uint8_t entry[ROWS];

    for (unsigned r = 0; r < ROWS; r++)
        entry[r] = cell[r * stages + s];
    return _mm512_load_si512(entry);
}

INLINE __m512i entries_of(const uint8_t *cell, unsigned s, uint32_t stages, const enum cells cells)
{
    switch (cells) {
    case CELLS_3:
        return third(cell, s);
    case CELLS_2:
        return half(cell, s);
    case CELLS_PACKED:
        return packed_entries(cell, s);
    default:
        return any_entries(cell, s, stages);
    }
}

INLINE uint32_t cell_bytes(uint32_t stages, const enum cells cells)
{
    return ROWS * (cells == CELLS_3 || cells == CELLS_PACKED ? 3 : cells == CELLS_2 ? 2 : stages);
}

/* Whether sums change lanes after stage s. */
INLINE bool moves_after(unsigned s, const enum cells cells)
{
    return (cells == CELLS_3 && s < 2) || (cells == CELLS_PACKED && (s == 1 || s == 2));
}

INLINE void load_table(__m512i *t, const uint8_t *table, uint32_t registers, const enum cells cells)
{
    for (unsigned i = 0; i < (cells == CELLS_PACKED ? 1 : 4); i++) /* no index goes beyond */
        t[i] = _mm512_load_si512(table + 64 * (i < registers ? i : 0));
}

INLINE __m512i look_up(const __m512i *t, __m512i entry, __mmask64 upper, const enum cells cells)
{
    if (cells == CELLS_PACKED)
        return _mm512_permutexvar_epi8(entry, t[0]);
    return _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(t[0], entry, t[1]), upper,
                                _mm512_permutex2var_epi8(t[2], entry, t[3]));
}

INLINE struct sums sums_add(struct sums a, __m512i bytes)
{
    a.word = _mm512_add_epi16(a.word, bytes);
    a.odd = _mm512_add_epi16(a.odd, _mm512_srli_epi16(bytes, 8));
    return a;
}

INLINE __m512i sums_even(struct sums a)
{
    return _mm512_sub_epi16(a.word, _mm512_slli_epi16(a.odd, 8));
}

/* What lane l holds moves to lane l + 1. */
INLINE struct sums sums_up(struct sums a)
{
    const __m512i before =
        _mm512_set_epi16(30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12,
                         11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 31);
    __m512i odd = sums_even(a);

    a.word = _mm512_add_epi16(_mm512_permutexvar_epi16(before, a.odd), _mm512_slli_epi16(odd, 8));
    a.odd = odd;
    return a;
}

INLINE void all_up(struct sums sum[TOGETHER][2], const unsigned n, const unsigned planes)
{
#pragma GCC unroll 4
    for (unsigned r = 0; r < n; r++)
        for (unsigned p = 0; p < planes; p++)
            sum[r][p] = sums_up(sum[r][p]);
}

INLINE void stage_sums(struct sums sum[TOGETHER][2], const struct tile *t, const unsigned s,
                       const unsigned n, const unsigned planes, const enum cells cells)
{
    const uint32_t step = cell_bytes(t->stages, cells);
    const uint8_t *cell = t->cell, *next = t->next + 64 * (s < 3 ? s : 0);
    const uint8_t *table = t->table + s * planes * t->plane_bytes;

    for (uint32_t p = 0; p < t->positions;
         p++, cell += step, next += step, table += t->table_step) {
        __m512i high[4], low[4];

        load_table(high, table, t->registers, cells);
        if (planes == 2)
            load_table(low, table + t->plane_bytes, t->registers, cells);
#pragma GCC unroll 8
        for (unsigned r = 0; r < n; r++) {
            __m512i entry = entries_of(cell + r * t->row_step, s, t->stages, cells);
            __mmask64 upper = _mm512_movepi8_mask(entry);

            sum[r][0] = sums_add(sum[r][0], look_up(high, entry, upper, cells));
            if (planes == 2)
                sum[r][1] = sums_add(sum[r][1], look_up(low, entry, upper, cells));
            if (s < 3)
                _mm_prefetch(next + r * t->row_step, _MM_HINT_T0);
        }
    }
}

/* acc <- fma(scale, sum, acc) of 16 rows: 16 words of each plane, less what made them unsigned. */
INLINE void add_block(float *acc, __m256i high, __m256i low, float scale, int32_t bias,
                      const unsigned planes)
{
    __m512i sum = _mm512_cvtepu16_epi32(high);

    if (planes == 2)
        sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), _mm512_cvtepu16_epi32(low));
    sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(bias));
    _mm512_store_ps(
        acc, _mm512_fmadd_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(sum), _mm512_load_ps(acc)));
}

/* Sums are kept as 32 even lanes, then 32 odd ones. */
INLINE void add_blocks(float *acc, const struct sums sum[2], float scale, int32_t bias,
                       const unsigned planes)
{
    __m512i part[2][2];

    for (unsigned p = 0; p < planes; p++) {
        part[0][p] = sums_even(sum[p]);
        part[1][p] = sum[p].odd;
    }
    for (unsigned i = 0; i < 2; i++) {
        __m512i high = part[i][0], low = part[i][planes - 1];

        add_block(acc + 32 * i, _mm512_castsi512_si256(high), _mm512_castsi512_si256(low), scale,
                  bias, planes);
        add_block(acc + 32 * i + 16, _mm512_extracti64x4_epi64(high, 1),
                  _mm512_extracti64x4_epi64(low, 1), scale, bias, planes);
    }
}

INLINE void tile_sums(float *acc, const struct tile *t, float scale, const unsigned n,
                      const unsigned planes, const enum cells cells)
{
    const uint32_t stages = cells == CELLS_3        ? 3
                            : cells == CELLS_2      ? 2
                            : cells == CELLS_PACKED ? 4
                                                    : t->stages;
    const int32_t bias = (int32_t)(t->positions * stages) * (planes == 2 ? 32768 : 128);
    struct sums sum[TOGETHER][2];

#pragma GCC unroll 8
    for (unsigned r = 0; r < n; r++)
        sum[r][0] = sum[r][1] = (struct sums){_mm512_setzero_si512(), _mm512_setzero_si512()};
#pragma GCC unroll 4
    for (unsigned s = 0; s < stages; s++) {
        stage_sums(sum, t, s, n, planes, cells);
        if (moves_after(s, cells))
            all_up(sum, n, planes);
    }
#pragma GCC unroll 8
    for (unsigned r = 0; r < n; r++)
        add_blocks(acc + r * ROWS, sum[r], scale, bias, planes);
}

typedef void tile_fn(float *acc, const struct tile *t, float scale);

#define TILE(name, n, planes, cells)                                                               \
    static void name(float *acc, const struct tile *t, float scale)                                \
    {                                                                                              \
        tile_sums(acc, t, scale, n, planes, cells);                                                \
    }
#define TILES(planes, cells)                                                                       \
    TILE(tile_##planes##_##cells, TOGETHER, planes, cells)                                         \
    TILE(tile_##planes##_##cells##_alone, 1, planes, cells)

TILES(1, CELLS_3)
TILES(1, CELLS_2)
TILES(1, CELLS_PACKED)
TILES(1, CELLS_ANY)
TILES(2, CELLS_3)
TILES(2, CELLS_2)
TILES(2, CELLS_PACKED)
TILES(2, CELLS_ANY)

#define TILE_FNS(planes, cells)                                                                    \
    {                                                                                              \
        tile_##planes##_##cells##_alone, tile_##planes##_##cells                                   \
    }

static tile_fn *const tile_fns[2][4][2] = {
    {TILE_FNS(1, CELLS_3), TILE_FNS(1, CELLS_2), TILE_FNS(1, CELLS_PACKED), TILE_FNS(1, CELLS_ANY)},
    {TILE_FNS(2, CELLS_3), TILE_FNS(2, CELLS_2), TILE_FNS(2, CELLS_PACKED), TILE_FNS(2, CELLS_ANY)},
};

static enum cells cells_of(const struct rvq_shape *s)
{
    return is_packed(s)     ? CELLS_PACKED
           : s->stages == 3 ? CELLS_3
           : s->stages == 2 ? CELLS_2
                            : CELLS_ANY;
}

/* The lane that row r ends in. */
static unsigned lane_of(unsigned r, enum cells cells)
{
    switch (cells) {
    case CELLS_3:
    case CELLS_PACKED:
        return (3 * r + 2) % ROWS;
    case CELLS_2:
        return r < 32 ? 2 * r : 2 * r - 63;
    default:
        return r;
    }
}

/* y[0 ... n) of a row block in its order. */
static void finish(float *y, const float *acc, const uint16_t *scale, const int32_t *place,
                   uint32_t n)
{
    __m512 a[4];

    for (unsigned i = 0; i < 4; i++)
        a[i] = _mm512_load_ps(acc + 16 * i);
    for (unsigned i = 0; i < n; i += 16) {
        __mmask16 there = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        __m512i at = _mm512_load_si512(place + i);
        __m512 low = _mm512_permutex2var_ps(a[0], at, a[1]);
        __m512 high = _mm512_permutex2var_ps(a[2], at, a[3]);
        __m512 sum =
            _mm512_mask_mov_ps(low, _mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), high);
        __m512 rho = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, scale + i));

        _mm512_mask_storeu_ps(y + i, there, _mm512_mul_ps(sum, rho));
    }
}

struct rows_job {
    const struct rvq_shape *shape;
    const float *scale; /* of the blocks of positions */
    const uint8_t *tables, *index;
    unsigned planes;
};

/* Every block of positions, for the n row blocks that begin with `first`. */
static void group_sums(float *acc, const struct rows_job *j, uint32_t first, uint32_t n)
{
    const struct rvq_shape *shape = j->shape;
    tile_fn *const *fn = tile_fns[j->planes - 1][cells_of(shape)];
    const size_t cell = (size_t)ROWS * shape->cell_bytes;
    const uint8_t *index = j->index + first * block_bytes(shape);
    struct tile t = {
        .row_step = block_bytes(shape),
        .table_step = shape->stages * j->planes * plane_bytes(shape),
        .stages = shape->stages,
        .registers = (uint32_t)plane_bytes(shape) / 64,
        .plane_bytes = (uint32_t)plane_bytes(shape),
    };

    for (uint32_t b = 0; b < blocks(shape); b++) {
        const uint32_t p = b * BLOCK;
        uint32_t step;

        t.positions = min_u32(positions(shape) - p, BLOCK);
        t.table = j->tables + p * t.table_step;
        for (uint32_t r = 0; r < n; r += step) {
            step = n - r < TOGETHER ? 1 : TOGETHER;
            t.cell = index + r * t.row_step + p * cell;
            t.next = r + step < n ? t.cell + step * t.row_step : index + (p + t.positions) * cell;
            fn[step == TOGETHER](acc + r * ROWS, &t, j->scale[b]);
        }
    }
}

static void rows_bytes(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                       const struct rvq_shape *shape, uint32_t r0, uint32_t r1, unsigned planes)
{
    const struct rows_job j = {shape, prepared, (const uint8_t *)prepared + codes_offset(shape),
                               index, planes};
    alignas(64) int32_t place[ROWS];

    for (unsigned r = 0; r < ROWS; r++) {
        unsigned lane = lane_of(r, cells_of(shape));

        place[r] = (int32_t)(lane % 2 * 32 + lane / 2);
    }
    for (uint32_t r = r0; r < r1; r += GROUP * ROWS) {
        alignas(64) float acc[GROUP * ROWS] = {0};
        uint32_t n = min_u32(r1 - r, GROUP * ROWS);

        group_sums(acc, &j, r / ROWS, (n + ROWS - 1) / ROWS);
        for (uint32_t i = 0; i < n; i += ROWS)
            finish(y + r + i, acc + i, scale + r + i, place, min_u32(n - i, ROWS));
    }
}

static void rows_i16(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                     const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    rows_bytes(y, prepared, index, scale, shape, r0, r1, 2);
}

static void rows_i8(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                    const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    rows_bytes(y, prepared, index, scale, shape, r0, r1, 1);
}

void rvq_by_hand_vbmi(struct kernels *k)
{
    if (k->profile == PROFILE_I16)
        k->rvq_rows = rows_i16;
    if (k->profile == PROFILE_I8)
        k->rvq_rows = rows_i8;
}
