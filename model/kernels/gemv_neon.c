/* Rows of a weight times one vector or several, in NEON's 32 registers.
 *
 * A block is some rows times some vectors: every weight of it is unpacked once, into a register,
 * and meets all vectors there; every lane of every (row, vector) is an accumulator of its own, so
 * the block's size changes no bits. A group of 128 columns is eight steps of sixteen lanes, and the
 * block takes eight lanes of them at a time. Step j of lane l is column 16j + l in Q8G, and column
 * 8l + j in Q4G and Q3G, whose bytes are sixteen words with a column in the same bits of each: for
 * those x is put into [step][lane] order first, once for a tile of rows.
 */
#include <arm_neon.h>
#include <string.h>

#include "base/half.h"
#include "model/kernels/gemv.h"

enum {
    ROWS = 4,      /* of a block with one vector, and of what is folded at once */
    ROWS_MANY = 2, /* of a block with several */
    VECTORS = 4,
    HALF = LANES / 2,
    CHUNK_GROUPS = 32, /* of all vectors of a block together: 16 KiB of x */
    TILE_ROWS = 64,
    AHEAD_BYTES = 0, /* nobody has measured a prefetch */
};

#include "model/kernels/gemv_tile.h"

struct half { /* of sixteen lanes */
    float32x4_t v[2];
};

INLINE struct half half_load(const float *p)
{
    return (struct half){{vld1q_f32(p), vld1q_f32(p + 4)}};
}

INLINE void half_store(float *p, struct half a)
{
    vst1q_f32(p, a.v[0]);
    vst1q_f32(p + 4, a.v[1]);
}

INLINE struct half half_fma(struct half a, struct half b, struct half c)
{
    for (unsigned i = 0; i < 2; i++)
        c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}

INLINE struct half half_fma_n(struct half a, float b, struct half c)
{
    for (unsigned i = 0; i < 2; i++)
        c.v[i] = vfmaq_n_f32(c.v[i], a.v[i], b);
    return c;
}

struct words {
    uint32x4_t v[2];
};

/* The words of half h of a Q4G or Q3G group, as two's complement: step j is a field of each. */
INLINE struct words words(const int fmt, const uint8_t *group, const unsigned h)
{
    struct words w = {{vdupq_n_u32(0), vdupq_n_u32(0)}};

    for (unsigned i = 0; i < 2; i++)
        if (fmt == FMT_Q4G) {
            w.v[i] = veorq_u32(vreinterpretq_u32_u8(vld1q_u8(group + 32 * h + 16 * i)),
                               vdupq_n_u32(0x88888888u));
        } else if (fmt == FMT_Q3G) { /* 24 bits each; what is read ends with the group */
            static const uint8_t spread[2][16] = {
                {0, 1, 2, 255, 3, 4, 5, 255, 6, 7, 8, 255, 9, 10, 11, 255},
                {4, 5, 6, 255, 7, 8, 9, 255, 10, 11, 12, 255, 13, 14, 15, 255}};
            uint8x16_t bytes = vld1q_u8(group + 24 * h + 8 * i);

            w.v[i] = veorq_u32(vreinterpretq_u32_u8(vqtbl1q_u8(bytes, vld1q_u8(spread[i]))),
                               vdupq_n_u32(0x00924924u));
        }
    return w;
}

/* Codes of step j of those lanes. */
INLINE struct half codes(const int fmt, const uint8_t *group, struct words w, const unsigned h,
                         const unsigned j)
{
    const unsigned width = fmt == FMT_Q4G ? 4 : 3;
    struct half q;

    if (fmt == FMT_Q8G) {
        int16x8_t c = vmovl_s8(vld1_s8((const int8_t *)group + j * LANES + h * HALF));

        q.v[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(c)));
        q.v[1] = vcvtq_f32_s32(vmovl_high_s16(c));
    } else {
        for (unsigned i = 0; i < 2; i++)
            q.v[i] = vcvtq_f32_s32((int32x4_t)(w.v[i] << (32 - width * (j + 1))) >> (32 - width));
    }
    return q;
}

/* Rows and columns of an 8 x 8 matrix change places. */
INLINE void transpose(float *out, size_t out_stride, const float *in, size_t in_stride)
{
    for (unsigned r = 0; r < 8; r += 4)
        for (unsigned c = 0; c < 8; c += 4) {
            float32x4_t a[4], b[4];

            for (unsigned i = 0; i < 4; i++)
                a[i] = vld1q_f32(in + (r + i) * in_stride + c);
            for (unsigned i = 0; i < 2; i++) {
                b[2 * i] = vzip1q_f32(a[i], a[i + 2]);
                b[2 * i + 1] = vzip2q_f32(a[i], a[i + 2]);
            }
            for (unsigned i = 0; i < 2; i++) {
                vst1q_f32(out + (c + 2 * i) * out_stride + r, vzip1q_f32(b[i], b[i + 2]));
                vst1q_f32(out + (c + 2 * i + 1) * out_stride + r, vzip2q_f32(b[i], b[i + 2]));
            }
        }
}

static void to_steps(float *out, const float *x)
{
    for (unsigned h = 0; h < 2; h++)
        transpose(out + HALF * h, LANES, x + 64 * h, STEPS);
}

/* acc[R][T][LANES] of rows [r, r + R), R and T constants. */
INLINE void block(const int fmt, float *acc, const struct tile *c, uint32_t r, const unsigned R,
                  const unsigned T)
{
    const uint8_t *row = c->data + r * c->row_bytes;
    float s[ROWS][CHUNK_GROUPS];

    for (unsigned i = 0; i < R; i++)
        for (uint32_t g = 0; g < c->n_groups; g++)
            s[i][g] = half_to_f32(c->scale[(r + i) * c->scales + g]);
    for (unsigned h = 0; h < 2; h++) {
        struct half a[ROWS][VECTORS];

#pragma GCC unroll 4
        for (unsigned i = 0; i < R; i++)
#pragma GCC unroll 4
            for (unsigned t = 0; t < T; t++)
                a[i][t] = half_load(acc + (i * T + t) * LANES + h * HALF);
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const float *x = c->x + (size_t)g * FORMAT_GROUP + h * HALF;
            const uint8_t *group = row + g * group_bytes(fmt);
            struct half p[ROWS][VECTORS];
            struct words w[ROWS];

            memset(p, 0, sizeof(p));
#pragma GCC unroll 4
            for (unsigned i = 0; i < R; i++)
                w[i] = words(fmt, group + i * c->row_bytes, h);
#pragma GCC unroll 8
            for (unsigned j = 0; j < STEPS; j++) {
                struct half q[ROWS];

#pragma GCC unroll 4
                for (unsigned i = 0; i < R; i++)
                    q[i] = codes(fmt, group + i * c->row_bytes, w[i], h, j);
#pragma GCC unroll 4
                for (unsigned t = 0; t < T; t++) {
                    struct half v = half_load(x + t * c->x_stride + j * LANES);

#pragma GCC unroll 4
                    for (unsigned i = 0; i < R; i++)
                        p[i][t] = half_fma(q[i], v, p[i][t]);
                }
            }
#pragma GCC unroll 4
            for (unsigned i = 0; i < R; i++)
#pragma GCC unroll 4
                for (unsigned t = 0; t < T; t++)
                    a[i][t] = half_fma_n(p[i][t], s[i][g], a[i][t]);
        }
#pragma GCC unroll 4
        for (unsigned i = 0; i < R; i++)
#pragma GCC unroll 4
            for (unsigned t = 0; t < T; t++)
                half_store(acc + (i * T + t) * LANES + h * HALF, a[i][t]);
    }
}

TILES(UP_TO_4)
static tile_fn *const tiles[][VECTORS + 1] = TILE_TABLE(UP_TO_4);

static void gemv_grouped(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                         const struct tensor *w, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += TILE_ROWS)
        for (uint32_t t = 0, n; t < T; t += n) {
            n = min_u32(T - t, VECTORS);
            tiles[w->fmt][n](y + t * y_stride, y_stride, x + t * x_stride, x_stride, w, r,
                             min_u32(r1 - r, TILE_ROWS));
        }
}

static void gemv(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                 const struct tensor *w, uint32_t r0, uint32_t r1)
{
    (w->fmt == FMT_F32 ? gemv_f32 : gemv_grouped)(y, y_stride, x, x_stride, T, w, r0, r1);
}

/* The transposed product keeps a group of its sum in registers in gemv_c.c, too. */
void gemv_fill_neon(struct kernels *k)
{
    k->gemv = gemv;
}
