/* model/kernels/rvq_vbmi.h - 64 rows to an instruction: the cells of a row block as one vector of
 * entries per stage, rows in order, and the lookup of bytes by vpermi2b.
 */
#ifndef MODEL_KERNELS_RVQ_VBMI_H
#define MODEL_KERNELS_RVQ_VBMI_H

#include <immintrin.h>
#include <stdalign.h>

#include "model/kernels/rvq.h"

enum cells { CELLS_3, CELLS_2, CELLS_PACKED, CELLS_ANY };

enum { AHEAD = 8 }; /* positions between what is fetched and what is used */

/* Lanes j with j % 3 == phase. */
INLINE __mmask64 every_third(unsigned phase)
{
    return 0x9249249249249249u << phase % 3;
}

/* Byte s of every row of a cell of three. Byte j of the cell is byte j % 3 of row j / 3, and 64 % 3
 * is 1, so that each lane sees all three bytes in the cell's three vectors: two blends bring byte s
 * of row r to lane (3r + s) % 64. */
INLINE __m512i third(const __m512i cell[3], unsigned s)
{
    alignas(64) static const uint8_t lane[ROWS] = {
        0, 3, 6,  9,  12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48, 51, 54, 57, 60, 63,
        2, 5, 8,  11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 41, 44, 47, 50, 53, 56, 59, 62, 1,
        4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 49, 52, 55, 58, 61};
    __m512i at = _mm512_add_epi8(_mm512_load_si512(lane), _mm512_set1_epi8((char)s));
    __m512i v = _mm512_mask_mov_epi8(cell[2], every_third(s), cell[0]);

    return _mm512_permutexvar_epi8(at, _mm512_mask_mov_epi8(v, every_third(s + 2), cell[1]));
}

INLINE void load_cell(__m512i *v, const uint8_t *cell, const unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        v[i] = _mm512_loadu_si512(cell + 64 * i);
}

INLINE void entries_3(__m512i *e, const uint8_t *cell)
{
    __m512i v[3];

    load_cell(v, cell, 3);
    for (unsigned s = 0; s < 3; s++)
        e[s] = third(v, s);
}

/* The lower halves of the words of a and b, in order. */
INLINE __m512i low_bytes(__m512i a, __m512i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                              _mm512_cvtepi16_epi8(b), 1);
}

INLINE void entries_2(__m512i *e, const uint8_t *cell)
{
    __m512i v[2];

    load_cell(v, cell, 2);
    e[0] = low_bytes(v[0], v[1]);
    e[1] = low_bytes(_mm512_srli_epi16(v[0], 8), _mm512_srli_epi16(v[1], 8));
}

/* Bits of a where mask has ones, of b elsewhere. */
INLINE __m512i select_bits(char mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi64(_mm512_set1_epi8(mask), a, b, 0xca);
}

/* Four entries of 6 bits in 3 bytes. Bits 6 and 7 are left as they come: lookups among 64 ignore
 * them, and so the shifts may work on words. */
INLINE void entries_packed(__m512i *e, const uint8_t *cell)
{
    __m512i v[3], b[3];

    load_cell(v, cell, 3);
    for (unsigned s = 0; s < 3; s++)
        b[s] = third(v, s);
    e[0] = b[0];
    e[1] = select_bits(3, _mm512_srli_epi16(b[0], 6), _mm512_slli_epi16(b[1], 2));
    e[2] = select_bits(15, _mm512_srli_epi16(b[1], 4), _mm512_slli_epi16(b[2], 4));
    e[3] = _mm512_srli_epi16(b[2], 2);
}

/* Cells of no known model: slowly. */
INLINE void entries_any(__m512i *e, const uint8_t *cell, uint32_t stages)
{
    for (uint32_t s = 0; s < stages; s++) {
        alignas(64) uint8_t entry[ROWS];

        for (unsigned r = 0; r < ROWS; r++)
            entry[r] = cell[r * stages + s];
        e[s] = _mm512_load_si512(entry);
    }
}

INLINE void entries_of(__m512i *e, const uint8_t *cell, uint32_t stages, const enum cells cells)
{
    switch (cells) {
    case CELLS_3:
        entries_3(e, cell);
        break;
    case CELLS_2:
        entries_2(e, cell);
        break;
    case CELLS_PACKED:
        entries_packed(e, cell);
        break;
    default:
        entries_any(e, cell, stages);
    }
}

INLINE enum cells cells_of(const struct rvq_shape *s)
{
    return is_packed(s)     ? CELLS_PACKED
           : s->stages == 3 ? CELLS_3
           : s->stages == 2 ? CELLS_2
                            : CELLS_ANY;
}

INLINE uint32_t stages_of(uint32_t stages, const enum cells cells)
{
    return cells == CELLS_3 ? 3 : cells == CELLS_2 ? 2 : cells == CELLS_PACKED ? 4 : stages;
}

INLINE void load_table(__m512i *t, const uint8_t *table, const unsigned registers)
{
    for (unsigned i = 0; i < registers; i++)
        t[i] = _mm512_load_si512(table + 64 * i);
    /* In registers: compilers would rather read it again for each lookup. */
    for (unsigned i = 0; i < registers; i++)
        __asm__("" : "+v"(t[i]));
}

/* Entries below 128 are looked up in place, then those above, so that nothing is left to blend. */
INLINE __m512i look_up(const __m512i *t, __m512i entry, __mmask64 upper, const unsigned registers)
{
    if (registers == 1)
        return _mm512_permutexvar_epi8(entry, t[0]);
    entry = _mm512_mask2_permutex2var_epi8(t[2], entry, upper, t[3]);
    return _mm512_mask2_permutex2var_epi8(t[0], entry, _knot_mask64(upper), t[1]);
}

#endif
