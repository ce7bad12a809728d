/* Residual VQ on NEON: `direct` with sums in registers, byte tables by tbl.
 *
 * tbl looks up among 64 bytes, four registers, and gives 0 where an index is beyond them; tbx
 * leaves there what it finds. So an index x meets the pieces of a table of 256 as x, x - 64, x -
 * 128 and x - 192, modulo 256: one piece answers. Bytes are widened as they are added, and rows
 * stay in order. A block of positions is done plane by plane, and a table piece by piece: a piece,
 * the indices of a row block and its sums fit into 32 registers. */
#include <arm_neon.h>

#include "model/kernels/rvq_direct.h"
#include "model/kernels/rvq_prepare.h"

enum {
    TOGETHER = 8, /* rows of `direct` */
    VECS = ROWS / 16,
};

/* acc[row][DIM] of n rows, n a constant, over positions of one tile. */
INLINE void direct_rows(float *acc, const float *x, const float *codebook, const uint8_t *cell,
                        uint32_t n_positions, const struct rvq_shape *shape, const unsigned n,
                        const uint32_t stages, const bool packed)
{
    const uint32_t stride = packed ? 3 : stages;
    const size_t book = (size_t)shape->entries * DIM; /* of a stage */
    float32x4_t sum[TOGETHER][2];

#pragma GCC unroll 8
    for (unsigned r = 0; r < n; r++)
        for (unsigned h = 0; h < 2; h++)
            sum[r][h] = vld1q_f32(acc + r * DIM + 4 * h);
    for (uint32_t p = 0; p < n_positions; p++, x += DIM, cell += ROWS * stride) {
        const float32x4_t xs[2] = {vld1q_f32(x), vld1q_f32(x + 4)};

#pragma GCC unroll 8
        for (unsigned r = 0; r < n; r++) {
            const uint8_t *at = cell + r * stride;
            const float *c = codebook + entry(at, packed, 0) * DIM;
            float32x4_t w[2] = {vld1q_f32(c), vld1q_f32(c + 4)};

#pragma GCC unroll 4
            for (uint32_t s = 1; s < stages; s++) {
                c = codebook + s * book + entry(at, packed, s) * DIM;
                w[0] = vaddq_f32(w[0], vld1q_f32(c));
                w[1] = vaddq_f32(w[1], vld1q_f32(c + 4));
            }
            for (unsigned h = 0; h < 2; h++)
                sum[r][h] = vfmaq_f32(sum[r][h], xs[h], w[h]);
        }
    }
#pragma GCC unroll 8
    for (unsigned r = 0; r < n; r++)
        for (unsigned h = 0; h < 2; h++)
            vst1q_f32(acc + r * DIM + 4 * h, sum[r][h]);
}

/* The n rows of a row block; cells of BLOCK positions stay in L1 with the codebook. */
INLINE void direct_block(float *acc, const float *x, const float *codebook, const uint8_t *index,
                         uint32_t n, const struct rvq_shape *shape, const uint32_t stages,
                         const bool packed)
{
    const uint32_t stride = packed ? 3 : stages, end = positions(shape);

    for (uint32_t p = 0; p < end; p += BLOCK, x += BLOCK * DIM, index += BLOCK * ROWS * stride) {
        uint32_t m = min_u32(end - p, BLOCK), r = 0;

        for (; r + TOGETHER <= n; r += TOGETHER)
            direct_rows(acc + r * DIM, x, codebook, index + r * stride, m, shape, TOGETHER, stages,
                        packed);
        for (; r < n; r++)
            direct_rows(acc + r * DIM, x, codebook, index + r * stride, m, shape, 1, stages,
                        packed);
    }
}

/* out[half][d]: component d of entries 4 * half ... 4 * half + 3; entries beyond n are zero. */
INLINE void load_transposed(float32x4_t out[2][DIM], const float *codebook, uint32_t n)
{
    float padded[8 * DIM] = {0};

    if (n < 8) {
        memcpy(padded, codebook, n * DIM * sizeof(float));
        codebook = padded;
    }
    for (unsigned h = 0; h < 2; h++) {
        float32x4x4_t a = vld4q_f32(codebook + 4 * h * DIM); /* d, d + 4 of two entries */
        float32x4x4_t b = vld4q_f32(codebook + (4 * h + 2) * DIM);

        for (unsigned d = 0; d < 4; d++) {
            out[h][d] = vuzp1q_f32(a.val[d], b.val[d]);
            out[h][d + 4] = vuzp2q_f32(a.val[d], b.val[d]);
        }
    }
}

static uint32_t build(float *table, const float *x, const float *codebook,
                      const struct rvq_shape *shape, uint32_t n)
{
    const uint32_t plane = (uint32_t)plane_bytes(shape);
    uint32x4_t max = vdupq_n_u32(0);

    for (uint32_t s = 0; s < shape->stages;
         s++, codebook += shape->entries * DIM, table += BLOCK * plane)
        for (uint32_t c = 0; c < plane; c += 8) {
            uint32_t left = c < shape->entries ? shape->entries - c : 0;
            float32x4_t book[2][DIM];

            load_transposed(book, codebook + (left ? c : 0) * DIM, left);
            for (uint32_t p = 0; p < n; p++)
                for (unsigned h = 0; h < 2; h++) {
                    float32x4_t acc = vdupq_n_f32(0);

#pragma GCC unroll 8
                    for (unsigned d = 0; d < DIM; d++)
                        acc = vfmaq_n_f32(acc, book[h][d], x[p * DIM + d]);
                    vst1q_f32(table + p * plane + c + 4 * h, acc);
                    max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(acc)));
                }
        }
    return vmaxvq_u32(max);
}

/* Codes of 8 table values, made unsigned. */
INLINE uint16x8_t codes_of(const float *table, float inv, int32_t bias)
{
    int32x4_t u[2];

    for (unsigned i = 0; i < 2; i++)
        u[i] = vaddq_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(table + 4 * i), inv)),
                         vdupq_n_s32(bias));
    return vreinterpretq_u16_s16(
        vuzp1q_s16(vreinterpretq_s16_s32(u[0]), vreinterpretq_s16_s32(u[1])));
}

INLINE void store_codes(uint8_t *to, const float *table, float inv, uint32_t plane,
                        const unsigned planes)
{
    for (uint32_t c = 0; c < plane; c += 16) {
        uint8x16_t a = vreinterpretq_u8_u16(codes_of(table + c, inv, planes == 2 ? 32768 : 128));
        uint8x16_t b =
            vreinterpretq_u8_u16(codes_of(table + c + 8, inv, planes == 2 ? 32768 : 128));

        vst1q_u8(to + c, planes == 2 ? vuzp2q_u8(a, b) : vuzp1q_u8(a, b));
        if (planes == 2)
            vst1q_u8(to + plane + c, vuzp1q_u8(a, b));
    }
}

/* Four entries of 6 bits in 3 bytes; shifts that insert keep what is below them. */
INLINE void entries_packed(uint8x16_t *e, uint8x16x3_t b)
{
    const uint8x16_t six = vdupq_n_u8(63);

    e[0] = vandq_u8(b.val[0], six);
    e[1] = vandq_u8(vsliq_n_u8(vshrq_n_u8(b.val[0], 6), b.val[1], 2), six);
    e[2] = vandq_u8(vsliq_n_u8(vshrq_n_u8(b.val[1], 4), b.val[2], 4), six);
    e[3] = vshrq_n_u8(b.val[2], 2);
}

/* e[stage] of 16 rows. */
INLINE void entries_of(uint8x16_t *e, const uint8_t *cell, const uint32_t stages, const bool packed)
{
    if (packed) {
        entries_packed(e, vld3q_u8(cell));
    } else if (stages == 3) {
        uint8x16x3_t b = vld3q_u8(cell);

        for (unsigned s = 0; s < 3; s++)
            e[s] = b.val[s];
    } else if (stages == 2) {
        uint8x16x2_t b = vld2q_u8(cell);

        for (unsigned s = 0; s < 2; s++)
            e[s] = b.val[s];
    } else {
        for (uint32_t s = 0; s < stages; s++) {
            uint8_t byte[16];

            for (unsigned r = 0; r < 16; r++)
                byte[r] = cell[r * stages + s];
            e[s] = vld1q_u8(byte);
        }
    }
}

/* entry[position][stage][ROWS] of n positions of a row block. */
INLINE void unpack(uint8_t *entry, const uint8_t *cell, uint32_t n, const uint32_t stages,
                   const bool packed)
{
    for (uint32_t p = 0; p < n; p++, entry += stages * ROWS)
        for (unsigned v = 0; v < VECS; v++, cell += 16 * (packed ? 3 : stages)) {
            uint8x16_t e[STAGES];

            entries_of(e, cell, stages, packed);
#pragma GCC unroll 8
            for (uint32_t s = 0; s < stages; s++)
                vst1q_u8(entry + s * ROWS + v * 16, e[s]);
        }
}

/* found[v] of 16 rows each. Piece by piece: four registers of table serve all rows and are done. */
INLINE void look_up(uint8x16_t found[VECS], const uint8_t *table, const uint8_t *entry,
                    const uint32_t plane)
{
    const uint8x16_t step = vdupq_n_u8(PIECE);
    uint8x16x4_t piece = vld1q_u8_x4(table);
    uint8x16_t x[VECS];

#pragma GCC unroll 4
    for (unsigned v = 0; v < VECS; v++) {
        x[v] = vld1q_u8(entry + 16 * v);
        found[v] = vqtbl4q_u8(piece, x[v]);
    }
#pragma GCC unroll 4
    for (unsigned i = 1; i < plane / PIECE; i++) {
        piece = vld1q_u8_x4(table + PIECE * i);
#pragma GCC unroll 4
        for (unsigned v = 0; v < VECS; v++) {
            x[v] = vsubq_u8(x[v], step);
            found[v] = vqtbx4q_u8(found[v], piece, x[v]);
        }
    }
}

/* sum[ROWS / 8] of one plane of n tables, `step` bytes apart; plane: 64 or 256, a constant. */
INLINE void sum_plane(uint16x8_t *sum, const uint8_t *table, size_t step, const uint8_t *entry,
                      uint32_t n, const uint32_t plane)
{
    uint16x8_t acc[2 * VECS];

#pragma GCC unroll 8
    for (unsigned i = 0; i < 2 * VECS; i++)
        acc[i] = vdupq_n_u16(0);
    for (uint32_t t = 0; t < n; t++, table += step, entry += ROWS) {
        uint8x16_t found[VECS];

        look_up(found, table, entry, plane);
#pragma GCC unroll 4
        for (unsigned v = 0; v < VECS; v++) {
            acc[2 * v] = vaddw_u8(acc[2 * v], vget_low_u8(found[v]));
            acc[2 * v + 1] = vaddw_high_u8(acc[2 * v + 1], found[v]);
        }
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < 2 * VECS; i++)
        sum[i] = acc[i];
}

/* acc <- fma(scale, sum, acc) of 4 rows: words of each plane, less what made them unsigned. */
INLINE void add_four(float *acc, uint16x4_t high, uint16x4_t low, float scale, int32_t bias,
                     const unsigned planes)
{
    uint32x4_t sum = vmovl_u16(high);
    float32x4_t value;

    if (planes == 2)
        sum = vaddw_u16(vshlq_n_u32(sum, 8), low);
    value = vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(sum), vdupq_n_s32(bias)));
    vst1q_f32(acc, vfmaq_n_f32(vld1q_f32(acc), value, scale));
}

INLINE void add_eight(float *acc, uint16x8_t high, uint16x8_t low, float scale, int32_t bias,
                      const unsigned planes)
{
    add_four(acc, vget_low_u16(high), vget_low_u16(low), scale, bias, planes);
    add_four(acc + 4, vget_high_u16(high), vget_high_u16(low), scale, bias, planes);
}

INLINE void block_rows(float *acc, const void *prepared, const uint8_t *cell,
                       const struct rvq_shape *shape, const unsigned planes, const uint32_t stages,
                       const bool packed, const uint32_t plane)
{
    const float *scale = prepared;
    const uint8_t *table = (const uint8_t *)prepared + codes_offset(shape);
    const size_t step = planes * plane;

    for (uint32_t p = 0; p < positions(shape); p += BLOCK) {
        uint32_t n = min_u32(positions(shape) - p, BLOCK);
        int32_t bias = (int32_t)(n * stages) * (planes == 2 ? 32768 : 128);
        uint8_t entry[BLOCK * STAGES * ROWS];
        uint16x8_t sum[2][2 * VECS];

        unpack(entry, cell + (size_t)p * ROWS * (packed ? 3 : stages), n, stages, packed);
        for (unsigned i = 0; i < planes; i++)
            sum_plane(sum[i], table + p * stages * step + i * plane, step, entry, n * stages,
                      plane);
        for (unsigned i = 0; i < 2 * VECS; i++)
            add_eight(acc + 8 * i, sum[0][i], sum[planes - 1][i], scale[p / BLOCK], bias, planes);
    }
}

INLINE void rows_codes(float *y, const void *prepared, const uint8_t *index, const uint16_t *scale,
                       const struct rvq_shape *shape, uint32_t r0, uint32_t r1,
                       const unsigned planes)
{
    for (uint32_t r = r0; r < r1; r += ROWS) {
        const uint8_t *cell = index + r / ROWS * block_bytes(shape);
        uint32_t n = min_u32(r1 - r, ROWS);
        float acc[ROWS] = {0};

        BY_TABLE(block_rows, shape, acc, prepared, cell, shape, planes);
        for (uint32_t i = 0; i < n; i++)
            y[r + i] = acc[i] * half_to_f32(scale[r + i]);
    }
}

PREPARE_CODES(i16, byte_tables_bytes, 2)
ROWS_CODES(i16, 2)
PREPARE_CODES(i8, byte_tables_bytes, 1)
ROWS_CODES(i8, 1)

/* Tables of f32 are looked up one by one: NEON has no gather, and rvq_c.c stays. */
void rvq_fill_neon(struct kernels *k)
{
    if (k->profile == PROFILE_DIRECT)
        k->rvq_rows = rows_direct;
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
