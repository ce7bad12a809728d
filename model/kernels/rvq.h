/* model/kernels/rvq.h - the geometry that all residual-VQ kernels share, and the hand-written ones.
 *
 * Byte tables, which the hand-written i16 and i8 kernels of every instruction set prepare:
 *   scale float[block], padded to 64 bytes, then
 *   bytes [position][stage][plane][64 or 256 entries]
 * (f32 by VBMI: no scales, and four planes, the bytes of the floats, lowest first.)
 * Codes are stored unsigned, code + 32768 in two planes (high, low) or code + 128 in one, so that
 * one lookup gives one byte and 32 positions of 8 stages add up to less than 2^16.
 */
#ifndef MODEL_KERNELS_RVQ_H
#define MODEL_KERNELS_RVQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/half.h"
#include "model/kernels/lanes.h"
#include "model/kernels/level.h"

enum {
    DIM = FORMAT_VEC_DIM,
    ROWS = FORMAT_INDEX_BLOCK,
    BLOCK = 32, /* positions with one scale */
    STAGES = FORMAT_STAGES_MAX,
    ENTRIES = FORMAT_ENTRIES_MAX,
    LINE = 64,
    PIECE = 64, /* bytes of a table of few entries */
};

INLINE size_t round_up(size_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

INLINE uint32_t positions(const struct rvq_shape *s)
{
    return s->cols / DIM;
}

INLINE uint32_t blocks(const struct rvq_shape *s)
{
    return (positions(s) + BLOCK - 1) / BLOCK;
}

INLINE bool is_packed(const struct rvq_shape *s)
{
    return s->cell_bytes < s->stages; /* four 6-bit indices in 3 bytes */
}

/* fn(..., stages, packed): the three usual cells get loops of their own. */
#define BY_CELL(fn, shape, ...)                                                                    \
    do {                                                                                           \
        if (is_packed(shape))                                                                      \
            fn(__VA_ARGS__, 4, true);                                                              \
        else if ((shape)->stages == 3)                                                             \
            fn(__VA_ARGS__, 3, false);                                                             \
        else if ((shape)->stages == 2)                                                             \
            fn(__VA_ARGS__, 2, false);                                                             \
        else                                                                                       \
            fn(__VA_ARGS__, (shape)->stages, false);                                               \
    } while (0)

/* fn(..., stages, packed, plane): the same for byte tables; those of few entries have short planes.
 */
#define BY_TABLE(fn, shape, ...)                                                                   \
    do {                                                                                           \
        if (is_packed(shape))                                                                      \
            fn(__VA_ARGS__, 4, true, PIECE);                                                       \
        else if (plane_bytes(shape) == PIECE)                                                      \
            fn(__VA_ARGS__, (shape)->stages, false, PIECE);                                        \
        else if ((shape)->stages == 3)                                                             \
            fn(__VA_ARGS__, 3, false, ENTRIES);                                                    \
        else if ((shape)->stages == 2)                                                             \
            fn(__VA_ARGS__, 2, false, ENTRIES);                                                    \
        else                                                                                       \
            fn(__VA_ARGS__, (shape)->stages, false, ENTRIES);                                      \
    } while (0)

/* The entry of stage s in a cell; packed and s are constants where it matters. */
INLINE unsigned entry(const uint8_t *cell, const bool packed, unsigned s)
{
    uint32_t word;

    if (!packed)
        return cell[s];
    word = cell[0] | (uint32_t)cell[1] << 8 | (uint32_t)cell[2] << 16;
    return word >> (6 * s) & 63;
}

/* Bytes of the indices of a block of rows. */
INLINE size_t block_bytes(const struct rvq_shape *s)
{
    return (size_t)positions(s) * ROWS * s->cell_bytes;
}

INLINE size_t codes_offset(const struct rvq_shape *s)
{
    return round_up(blocks(s) * sizeof(float));
}

/* Bytes of a stage's byte table, one plane of it: what a vector kernel looks up in at once. */
INLINE size_t plane_bytes(const struct rvq_shape *s)
{
    return s->entries <= PIECE ? PIECE : ENTRIES;
}

INLINE size_t byte_tables_bytes(const struct rvq_shape *s, size_t planes)
{
    return codes_offset(s) + positions(s) * s->stages * planes * plane_bytes(s);
}

/* Ask for bytes before they are needed; hardware does not follow several streams well. */
INLINE void prefetch(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch(at + i);
}

/* The functions of an integer profile, from ones that take the bytes of a code, a constant. */
#define PREPARE_CODES(name, bytes_of, code_bytes)                                                  \
    static size_t prepared_bytes_##name(const struct rvq_shape *s)                                 \
    {                                                                                              \
        return bytes_of(s, code_bytes);                                                            \
    }                                                                                              \
    static void prepare_##name(void *prepared, const float *x, const float *codebook,              \
                               const struct rvq_shape *shape, uint32_t p0, uint32_t p1)            \
    {                                                                                              \
        prepare_codes(prepared, x, codebook, shape, p0, p1, code_bytes);                           \
    }
#define ROWS_CODES(name, code_bytes)                                                               \
    static void rows_##name(float *y, const void *prepared, const uint8_t *index,                  \
                            const uint16_t *scale, const struct rvq_shape *shape, uint32_t r0,     \
                            uint32_t r1)                                                           \
    {                                                                                              \
        rows_codes(y, prepared, index, scale, shape, r0, r1, code_bytes);                          \
    }

/* Set the slots that a hand-written kernel serves better than rvq_c.c does at the same level. */
void rvq_by_hand_avx2(struct kernels *k);
void rvq_by_hand_avx2_float(struct kernels *k);
void rvq_by_hand_avx512(struct kernels *k);
void rvq_by_hand_avx512_float(struct kernels *k);
void rvq_by_hand_vbmi(struct kernels *k);
void rvq_by_hand_vbmi_float(struct kernels *k);

#endif
