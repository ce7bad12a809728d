/* Float tables by vpermi2b: the four bytes of a float are looked up apart and put together again.
 *
 * A stage's table is four planes of bytes, lowest first, so that 64 floats of 256 cost eight
 * lookups and eight interleavings; sixteen floats at a time, vpermi2ps needs 32 lookups for as
 * many. Interleaving works within 16 bytes: register q holds rows 16l + 4q ... + 3 in its lane l,
 * and the sums stay in that order until all positions are in. */
#include "model/kernels/rvq_vbmi.h"

enum {
    PLANES = sizeof(float),
    QUARTERS = 4, /* registers with the floats of a row block */
    TOGETHER = 2, /* row blocks that share the loads of a table */
    AT_ONCE = 4,  /* positions whose tables should stay in L1 */
    GROUP = 16,   /* row blocks that meet them there */
};

struct tile {
    const uint8_t *table;
    const uint8_t *cell; /* of the first row block */
    size_t row_step;     /* from row block to row block */
    uint32_t positions, stages;
};

/* The floats of 64 rows whose bytes are given. */
INLINE void interleave(__m512 *v, const __m512i *byte)
{
    __m512i low[2] = {_mm512_unpacklo_epi8(byte[0], byte[1]),
                      _mm512_unpackhi_epi8(byte[0], byte[1])};
    __m512i high[2] = {_mm512_unpacklo_epi8(byte[2], byte[3]),
                       _mm512_unpackhi_epi8(byte[2], byte[3])};

    for (unsigned i = 0; i < 2; i++) {
        v[2 * i] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low[i], high[i]));
        v[2 * i + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low[i], high[i]));
    }
}

/* The floats of one stage of a position, of n row blocks. */
INLINE void stage_floats(__m512 (*v)[QUARTERS], const uint8_t *table, __m512i (*e)[STAGES],
                         const uint32_t s, const unsigned n, const unsigned registers)
{
    __m512i byte[TOGETHER][PLANES];

#pragma GCC unroll 4
    for (unsigned i = 0; i < PLANES; i++) {
        __m512i t[4];

        load_table(t, table + (s * PLANES + i) * registers * LINE, registers);
#pragma GCC unroll 2
        for (unsigned r = 0; r < n; r++)
            byte[r][i] = look_up(t, e[r][s], _mm512_movepi8_mask(e[r][s]), registers);
    }
#pragma GCC unroll 2
    for (unsigned r = 0; r < n; r++)
        interleave(v[r], byte[r]);
}

/* Adds a tile to acc, [row block][ROWS] in the order of `interleave`, n row blocks. */
INLINE void add_tile(float *acc, const struct tile *t, const unsigned n, const unsigned registers,
                     const enum cells cells)
{
    const uint32_t stages = stages_of(t->stages, cells);
    const uint32_t cell_bytes = ROWS * (cells == CELLS_PACKED ? 3 : stages);
    const size_t table_bytes = (size_t)stages * PLANES * registers * LINE;
    const uint8_t *cell = t->cell, *table = t->table;

    for (uint32_t p = 0; p < t->positions; p++, cell += cell_bytes, table += table_bytes) {
        __m512i e[TOGETHER][STAGES];
        __m512 sum[TOGETHER][QUARTERS], v[TOGETHER][QUARTERS];

#pragma GCC unroll 2
        for (unsigned r = 0; r < n; r++) {
            entries_of(e[r], cell + r * t->row_step, stages, cells);
            prefetch(cell + r * t->row_step + AHEAD * cell_bytes, cell_bytes);
        }
        stage_floats(sum, table, e, 0, n, registers);
#pragma GCC unroll 4
        for (uint32_t s = 1; s < stages; s++) {
            stage_floats(v, table, e, s, n, registers);
#pragma GCC unroll 2
            for (unsigned r = 0; r < n; r++)
                for (unsigned q = 0; q < QUARTERS; q++)
                    sum[r][q] = _mm512_add_ps(sum[r][q], v[r][q]);
        }
#pragma GCC unroll 2
        for (unsigned r = 0; r < n; r++)
            for (unsigned q = 0; q < QUARTERS; q++) {
                float *a = acc + r * ROWS + q * 16;

                _mm512_store_ps(a, _mm512_add_ps(_mm512_load_ps(a), sum[r][q]));
            }
    }
}

typedef void add_tile_fn(float *acc, const struct tile *t);

#define ADD_TILE(name, n, registers, cells)                                                        \
    static void name(float *acc, const struct tile *t)                                             \
    {                                                                                              \
        add_tile(acc, t, n, registers, cells);                                                     \
    }
#define ADD_TILES(name, registers, cells)                                                          \
    ADD_TILE(add_##name##_one, 1, registers, cells)                                                \
    ADD_TILE(add_##name, TOGETHER, registers, cells)
#define ADD_TILES_OF(name)                                                                         \
    {                                                                                              \
        add_##name##_one, add_##name                                                               \
    }

ADD_TILES(3x256, 4, CELLS_3)
ADD_TILES(3x64, 1, CELLS_3)
ADD_TILES(2x256, 4, CELLS_2)
ADD_TILES(2x64, 1, CELLS_2)
ADD_TILES(packed, 1, CELLS_PACKED)
ADD_TILES(nx256, 4, CELLS_ANY)
ADD_TILES(nx64, 1, CELLS_ANY)

/* [TOGETHER row blocks, or one] */
static add_tile_fn *const *add_tiles_of(const struct rvq_shape *s)
{
    static add_tile_fn *const fn[][2][2] = {
        [CELLS_3] = {ADD_TILES_OF(3x64), ADD_TILES_OF(3x256)},
        [CELLS_2] = {ADD_TILES_OF(2x64), ADD_TILES_OF(2x256)},
        [CELLS_PACKED] = {ADD_TILES_OF(packed)}, /* 64 entries at most */
        [CELLS_ANY] = {ADD_TILES_OF(nx64), ADD_TILES_OF(nx256)},
    };

    return fn[cells_of(s)][plane_bytes(s) > 64];
}

/* acc of the n row blocks that begin at `index`. */
static void group_sums(float *acc, const uint8_t *tables, const uint8_t *index,
                       const struct rvq_shape *shape, uint32_t n)
{
    const uint32_t end = positions(shape);
    const size_t table_bytes = shape->stages * PLANES * plane_bytes(shape);
    add_tile_fn *const *fn = add_tiles_of(shape);
    struct tile t = {.row_step = block_bytes(shape), .stages = shape->stages};
    uint32_t step;

    for (uint32_t p = 0; p < end; p += AT_ONCE) {
        t.table = tables + p * table_bytes;
        t.positions = min_u32(end - p, AT_ONCE);
        for (uint32_t r = 0; r < n; r += step) {
            step = n - r < TOGETHER ? 1 : TOGETHER;
            t.cell = index + r * t.row_step + (size_t)p * ROWS * shape->cell_bytes;
            fn[step > 1](acc + r * ROWS, &t);
        }
    }
}

static void rows_f32(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                     const struct rvq_shape *shape, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += GROUP * ROWS) {
        alignas(64) float acc[GROUP * ROWS] = {0};
        uint32_t n = min_u32(r1 - r, GROUP * ROWS);

        group_sums(acc, prepared, index + r / ROWS * block_bytes(shape), shape,
                   (n + ROWS - 1) / ROWS);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t lane = i % ROWS / 16, q = i % 16 / 4;

            y[r + i] = acc[i / ROWS * ROWS + q * 16 + lane * 4 + i % 4] * half_to_f32(scale[r + i]);
        }
    }
}

void rvq_by_hand_vbmi_float(struct kernels *k)
{
    if (k->profile == PROFILE_F32)
        k->rvq_rows = rows_f32;
}
