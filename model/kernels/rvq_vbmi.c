/* Byte tables by vpermi2b: 64 rows to an instruction, straight from the public cells.
 *
 * Position by position, the cells of some row blocks become vectors of 64 entries, one per stage,
 * rows in order; then each stage's table, 4 registers or 8, serves all these row blocks.
 *
 * Bytes are summed in sixteen bits without being split: `word` adds whole words, even row + 256 *
 * odd row, and `odd` the odd rows alone, so that even = word - 256 * odd modulo 2^16.
 */
#include "model/kernels/rvq_vbmi.h"

enum {
    TOGETHER_I8 = 4, /* row blocks that share the loads of a table, as registers allow */
    TOGETHER_I16 = 2,
    TOGETHER = TOGETHER_I8,
    AT_ONCE = 16, /* positions whose tables should stay in L1 */
    GROUP = 8,    /* row blocks that meet them there */
};

struct sums {
    __m512i word, odd;
};

struct tile {
    const uint8_t *table;
    const uint8_t *cell; /* of the first row block */
    size_t row_step;     /* from row block to row block */
    uint32_t positions, stages;
};

INLINE struct sums sums_add(struct sums a, __m512i bytes)
{
    a.word = _mm512_add_epi16(a.word, bytes);
    a.odd = _mm512_add_epi16(a.odd, _mm512_srli_epi16(bytes, 8));
    return a;
}

/* Adds a tile to the sums of n row blocks. */
INLINE void look_up_tile(struct sums (*sum)[2], const struct tile *t, const unsigned n,
                         const unsigned planes, const unsigned registers, const enum cells cells)
{
    const uint32_t stages = stages_of(t->stages, cells), plane = registers * LINE;
    const uint32_t cell_bytes = ROWS * (cells == CELLS_PACKED ? 3 : stages);
    const size_t row_step = t->row_step;
    const uint8_t *cell = t->cell, *at = t->table;
    struct sums acc[TOGETHER][2];

#pragma GCC unroll 4
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < planes; i++)
            acc[r][i] = sum[r][i];
    for (uint32_t p = 0; p < t->positions; p++, cell += cell_bytes) {
        __m512i e[TOGETHER][STAGES], table[2][4];

#pragma GCC unroll 4
        for (unsigned r = 0; r < n; r++) {
            entries_of(e[r], cell + r * row_step, stages, cells);
            prefetch(cell + r * row_step + AHEAD * cell_bytes, cell_bytes);
        }
#pragma GCC unroll 4
        for (uint32_t s = 0; s < stages; s++, at += planes * plane) {
            load_table(table[0], at, registers);
            if (planes == 2)
                load_table(table[1], at + plane, registers);
#pragma GCC unroll 4
            for (unsigned r = 0; r < n; r++) {
                __mmask64 upper = _mm512_movepi8_mask(e[r][s]);

                acc[r][0] = sums_add(acc[r][0], look_up(table[0], e[r][s], upper, registers));
                if (planes == 2)
                    acc[r][1] = sums_add(acc[r][1], look_up(table[1], e[r][s], upper, registers));
            }
        }
    }
#pragma GCC unroll 4
    for (unsigned r = 0; r < n; r++)
        for (unsigned i = 0; i < planes; i++)
            sum[r][i] = acc[r][i];
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

/* acc holds 32 even rows, then 32 odd ones. */
INLINE void add_blocks(float *acc, const struct sums sum[2], float scale, int32_t bias,
                       const unsigned planes)
{
    __m512i part[2][2];

    for (unsigned p = 0; p < planes; p++) {
        part[0][p] = _mm512_sub_epi16(sum[p].word, _mm512_slli_epi16(sum[p].odd, 8));
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

typedef void look_up_fn(struct sums (*sum)[2], const struct tile *t);

#define LOOK_UP(name, n, planes, registers, cells)                                                 \
    static void name(struct sums(*sum)[2], const struct tile *t)                                   \
    {                                                                                              \
        look_up_tile(sum, t, n, planes, registers, cells);                                         \
    }
#define LOOK_UPS(name, registers, cells)                                                           \
    LOOK_UP(i8_##name##_one, 1, 1, registers, cells)                                               \
    LOOK_UP(i8_##name, TOGETHER_I8, 1, registers, cells)                                           \
    LOOK_UP(i16_##name##_one, 1, 2, registers, cells)                                              \
    LOOK_UP(i16_##name, TOGETHER_I16, 2, registers, cells)
#define LOOK_UPS_OF(name)                                                                          \
    {                                                                                              \
        {i8_##name##_one, i8_##name}, {i16_##name##_one, i16_##name},                              \
    }

LOOK_UPS(3x256, 4, CELLS_3)
LOOK_UPS(3x64, 1, CELLS_3)
LOOK_UPS(2x256, 4, CELLS_2)
LOOK_UPS(2x64, 1, CELLS_2)
LOOK_UPS(packed, 1, CELLS_PACKED)
LOOK_UPS(nx256, 4, CELLS_ANY)
LOOK_UPS(nx64, 1, CELLS_ANY)

/* [planes - 1][several row blocks] */
static look_up_fn *const (*look_ups_of(const struct rvq_shape *s))[2]
{
    static look_up_fn *const fn[][2][2][2] = {
        [CELLS_3] = {LOOK_UPS_OF(3x64), LOOK_UPS_OF(3x256)},
        [CELLS_2] = {LOOK_UPS_OF(2x64), LOOK_UPS_OF(2x256)},
        [CELLS_PACKED] = {LOOK_UPS_OF(packed)}, /* 64 entries at most */
        [CELLS_ANY] = {LOOK_UPS_OF(nx64), LOOK_UPS_OF(nx256)},
    };

    return fn[cells_of(s)][plane_bytes(s) > 64];
}

/* y[0 ... n) of a row block in its order. */
static void finish(float *y, const float *acc, const uint16_t *scale, uint32_t n)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    for (unsigned i = 0; i < n; i += 16) {
        __mmask16 there = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        __m512 even = _mm512_load_ps(acc + i / 32 * 16),
               odd = _mm512_load_ps(acc + 32 + i / 32 * 16);
        __m512i at = _mm512_add_epi32(low, _mm512_set1_epi32((int)(i % 32 / 2)));
        __m512 rho = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, scale + i));

        _mm512_mask_storeu_ps(y + i, there,
                              _mm512_mul_ps(_mm512_permutex2var_ps(even, at, odd), rho));
    }
}

struct rows_job {
    const struct rvq_shape *shape;
    const float *scale; /* of the blocks of positions */
    const uint8_t *tables, *index;
    unsigned planes;
};

/* Adds positions [p0, p1), AT_ONCE at most, of n row blocks that begin at `index`. */
static void add_tiles(struct sums (*sum)[2], const struct rows_job *j, const uint8_t *index,
                      uint32_t n, uint32_t p0, uint32_t p1)
{
    const struct rvq_shape *shape = j->shape;
    const size_t cell = (size_t)ROWS * shape->cell_bytes, plane = plane_bytes(shape);
    const uint32_t together = j->planes == 2 ? TOGETHER_I16 : TOGETHER_I8;
    look_up_fn *const *fn = look_ups_of(shape)[j->planes - 1];
    struct tile t = {.row_step = block_bytes(shape), .positions = p1 - p0, .stages = shape->stages};
    uint32_t step;

    t.table = j->tables + p0 * shape->stages * j->planes * plane;
    for (uint32_t r = 0; r < n; r += step) {
        step = n - r < together ? 1 : together;
        t.cell = index + r * t.row_step + p0 * cell;
        fn[step > 1](sum + r, &t);
    }
}

/* acc of the n row blocks that begin at `index`. */
static void group_sums(float *acc, const struct rows_job *j, const uint8_t *index, uint32_t n)
{
    const uint32_t end = positions(j->shape);

    for (uint32_t p = 0; p < end; p += BLOCK) {
        struct sums sum[GROUP][2];
        uint32_t p1 = min_u32(p + BLOCK, end);
        int32_t bias = (int32_t)((p1 - p) * j->shape->stages) * (j->planes == 2 ? 32768 : 128);

        memset(sum, 0, sizeof(sum));
        for (uint32_t q = p; q < p1; q += AT_ONCE)
            add_tiles(sum, j, index, n, q, min_u32(q + AT_ONCE, p1));
        for (uint32_t r = 0; r < n; r++)
            add_blocks(acc + r * ROWS, sum[r], j->scale[p / BLOCK], bias, j->planes);
    }
}

static void rows_codes(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                       const struct rvq_shape *shape, uint32_t r0, uint32_t r1, unsigned planes)
{
    const struct rows_job j = {shape, prepared, (const uint8_t *)prepared + codes_offset(shape),
                               index, planes};

    for (uint32_t r = r0; r < r1; r += GROUP * ROWS) {
        alignas(64) float acc[GROUP * ROWS] = {0};
        uint32_t n = min_u32(r1 - r, GROUP * ROWS);

        group_sums(acc, &j, index + r / ROWS * block_bytes(shape), (n + ROWS - 1) / ROWS);
        for (uint32_t i = 0; i < n; i += ROWS)
            finish(y + r + i, acc + i, scale + r + i, min_u32(n - i, ROWS));
    }
}

ROWS_CODES(i16, 2)
ROWS_CODES(i8, 1)

void rvq_by_hand_vbmi(struct kernels *k)
{
    if (k->profile == PROFILE_I16)
        k->rvq_rows = rows_i16;
    if (k->profile == PROFILE_I8)
        k->rvq_rows = rows_i8;
}
