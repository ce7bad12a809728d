/* Queries against the cached keys, four at a time: a block of 256 keys, which the second-level
 * cache holds, meets all queries of a call before the next block is read. Every query keeps its own
 * lanes and its own order of keys, so what it shares changes no bits. */
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "model/kernels/lanes.h"
#include "model/kernels/level.h"
#include "model/kernels/poly.h"

enum {
    BLOCK = 256,
    QUERIES = ATTEND_QUERIES,
    KEYS = VEC == 8 ? 2 : 4,  /* of a tile of scores: 8 accumulators in 16 registers, 16 in 32 */
    STRIP = VEC == 8 ? 2 : 4, /* vectors of a tile of values; */
    STRIP_ALONE = 8,          /* of one query: enough sums to wait for none */
};

struct queries { /* up to four, from the same block's point of view */
    const float *q[QUERIES];
    float *out[QUERIES];
    float *e[QUERIES], *part[QUERIES]; /* [BLOCK] weights; [value_width] sums of the block */
    float *m[QUERIES], *l[QUERIES];
    uint32_t n[QUERIES]; /* keys of the block that each sees */
    uint32_t n_all;      /* that all four see */
};

/* s[query][j], j in [0, n_all): dots of four queries with KEYS keys at a time. */
static void tile_scores(const struct queries *c, const float *keys, size_t stride, uint32_t width)
{
    alignas(64) float acc[KEYS][QUERIES][LANES];

    for (uint32_t j = 0; j + KEYS <= c->n_all; j += KEYS) {
        const float *key = keys + j * stride;

        for (unsigned p = 0; p < PARTS; p++) {
            vec a[KEYS][QUERIES] = {0};

            for (uint32_t i = p * VEC; i < width; i += LANES) {
                vec k[KEYS];

#pragma GCC unroll 4
                for (unsigned r = 0; r < KEYS; r++)
                    k[r] = lanes_load(key + r * stride + i);
#pragma GCC unroll 4
                for (unsigned t = 0; t < QUERIES; t++) {
                    vec q = lanes_load(c->q[t] + i);

#pragma GCC unroll 4
                    for (unsigned r = 0; r < KEYS; r++)
                        a[r][t] = lanes_fma(q, k[r], a[r][t]);
                }
            }
#pragma GCC unroll 4
            for (unsigned r = 0; r < KEYS; r++)
#pragma GCC unroll 4
                for (unsigned t = 0; t < QUERIES; t++)
                    lanes_store(acc[r][t] + p * VEC, a[r][t]);
        }
        for (unsigned r = 0; r < KEYS; r++) {
            four s = fold_four(acc[r][0], LANES);

            for (unsigned t = 0; t < QUERIES; t++)
                c->e[t][j + r] = s[t];
        }
    }
}

/* The rest of one query's keys, [j, n). */
static void rest_scores(float *s, const float *q, const float *keys, size_t stride, uint32_t width,
                        uint32_t j, uint32_t n)
{
    for (; j + 4 <= n; j += 4)
        lanes_dots(s + j, q, keys + j * stride, stride, 4, width);
    for (; j < n; j++)
        lanes_dots(s + j, q, keys + j * stride, stride, 1, width);
}

/* The largest of n >= 1, where none is a NaN; where one is, the sum of the weights will be. */
static float largest(const float *s, uint32_t n)
{
    float m = s[0];
    uint32_t j = 0;

    if (n >= VEC) {
        vec top = lanes_load(s);
        float lane[VEC];

        for (j = VEC; j + VEC <= n; j += VEC) {
            vec v = lanes_load(s + j);
            ivec more = v > top;

            top = (vec)(((ivec)v & more) | ((ivec)top & ~more));
        }
        lanes_store(lane, top);
        for (unsigned l = 0; l < VEC; l++)
            m = lane[l] > m ? lane[l] : m;
    }
    for (; j < n; j++)
        m = s[j] > m ? s[j] : m;
    return m;
}

/* s[j] <- exp(s[j] * scale - largest); *m = the largest. Returns their sum. */
static float weights(float *s, uint32_t n, float scale, float *m)
{
    alignas(64) float sum[LANES] = {0};
    uint32_t j;

    for (j = 0; j < n; j++)
        s[j] = s[j] * scale;
    *m = largest(s, n);
    for (j = 0; j < n; j++)
        s[j] = poly_exp(s[j] - *m);
    for (j = 0; j + LANES <= n; j += LANES)
        for (unsigned l = 0; l < LANES; l++)
            sum[l] += s[j + l];
    for (; j < n; j++)
        sum[j % LANES] += s[j];
    return fold16(sum);
}

/* part[query][d] += e[query][j] * value_j[d] over j, for Q queries and width vectors from d. */
INLINE void value_tile(const struct queries *c, unsigned q0, const unsigned Q, const float *values,
                       size_t stride, uint32_t j0, uint32_t j1, uint32_t d, const unsigned width)
{
    vec acc[QUERIES][STRIP_ALONE];

#pragma GCC unroll 4
    for (unsigned t = 0; t < Q; t++)
#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++)
            acc[t][i] = lanes_load(c->part[q0 + t] + d + i * VEC);
    for (uint32_t j = j0; j < j1; j++) {
        vec v[STRIP_ALONE];

#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++)
            v[i] = lanes_load(values + j * stride + d + i * VEC);
#pragma GCC unroll 4
        for (unsigned t = 0; t < Q; t++) {
            vec e = lanes_all(c->e[q0 + t][j]);

#pragma GCC unroll 8
            for (unsigned i = 0; i < width; i++)
                acc[t][i] = lanes_fma(e, v[i], acc[t][i]);
        }
    }
#pragma GCC unroll 4
    for (unsigned t = 0; t < Q; t++)
#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++)
            lanes_store(c->part[q0 + t] + d + i * VEC, acc[t][i]);
}

INLINE void values(const struct queries *c, unsigned q0, const unsigned Q, const float *values,
                   size_t stride, uint32_t j0, uint32_t j1, uint32_t width)
{
    const unsigned strip = Q == 1 ? STRIP_ALONE : STRIP;
    uint32_t d = 0;

    for (; d + strip * VEC <= width; d += strip * VEC)
        value_tile(c, q0, Q, values, stride, j0, j1, d, strip);
    for (; d + VEC <= width; d += VEC)
        value_tile(c, q0, Q, values, stride, j0, j1, d, 1);
    for (; d < width; d++)
        for (unsigned t = q0; t < q0 + Q; t++)
            for (uint32_t j = j0; j < j1; j++)
                c->part[t][d] = fmaf(c->e[t][j], values[j * stride + d], c->part[t][d]);
}

/* A block's weights and sum of values into what the blocks before it left. */
static void merge(float *out, float *m, float *l, const float *part, float m_block, float l_block,
                  bool first, uint32_t width)
{
    float top, f, f_block;

    if (first) {
        memcpy(out, part, width * sizeof(float));
        *m = m_block;
        *l = l_block;
        return;
    }
    top = m_block > *m ? m_block : *m;
    f = poly_exp(*m - top);
    f_block = poly_exp(m_block - top);
    *l = fmaf(l_block, f_block, *l * f);
    for (uint32_t d = 0; d < width; d++)
        out[d] = fmaf(part[d], f_block, out[d] * f);
    *m = top;
}

/* Queries [q0, q0 + Q), Q <= 4, and one block. */
static void block(const struct queries *c, unsigned Q, const float *keys, bool first,
                  const struct attend_shape *shape)
{
    const uint32_t width = (shape->width + LANES - 1) / LANES * LANES;
    const uint32_t whole = Q == QUERIES ? c->n_all / KEYS * KEYS : 0;
    float m[QUERIES], l[QUERIES];

    if (whole)
        tile_scores(c, keys, shape->key_stride, width);
    for (unsigned t = 0; t < Q; t++) {
        rest_scores(c->e[t], c->q[t], keys, shape->key_stride, width, whole, c->n[t]);
        l[t] = weights(c->e[t], c->n[t], shape->scale, &m[t]);
        memset(c->part[t], 0, shape->value_width * sizeof(float));
    }
    if (whole)
        values(c, 0, QUERIES, keys, shape->key_stride, 0, whole, shape->value_width);
    for (unsigned t = 0; t < Q; t++) {
        values(c, t, 1, keys, shape->key_stride, whole, c->n[t], shape->value_width);
        merge(c->out[t], c->m[t], c->l[t], c->part[t], m[t], l[t], first, shape->value_width);
    }
}

struct scratch {
    float *m, *l; /* [queries] of the blocks so far */
    float *e, *part;
    size_t part_w;
};

/* Queries [i, i + Q) before the block at j0. */
static struct queries take(float *out, const float *q, uint32_t n_keys, uint32_t i, unsigned Q,
                           uint32_t j0, const struct attend_shape *shape, const struct scratch *s)
{
    struct queries c = {.n_all = BLOCK};

    for (unsigned t = 0; t < Q; t++) {
        c.q[t] = q + (i + t) * shape->q_stride;
        c.out[t] = out + (i + t) * shape->out_stride;
        c.e[t] = s->e + t * BLOCK;
        c.part[t] = s->part + t * s->part_w;
        c.m[t] = s->m + i + t;
        c.l[t] = s->l + i + t;
        c.n[t] = min_u32(n_keys + (i + t) / shape->heads - j0, BLOCK);
        c.n_all = min_u32(c.n_all, c.n[t]);
    }
    return c;
}

static void attend(float *out, const float *q, const float *keys, uint32_t n_keys, uint32_t T,
                   const struct attend_shape *shape, float *scratch)
{
    const uint32_t queries = T * shape->heads, padded = (queries + 15) / 16 * 16;
    const struct scratch s = {.m = scratch,
                              .l = scratch + padded,
                              .e = scratch + 2 * padded,
                              .part = scratch + 2 * padded + QUERIES * BLOCK,
                              .part_w = ((size_t)shape->value_width + 15) / 16 * 16};

    for (uint32_t j0 = 0; j0 < n_keys + T - 1; j0 += BLOCK) {
        uint32_t first = j0 < n_keys ? 0 : (j0 - n_keys + 1) * shape->heads; /* to see the block */

        for (uint32_t i = first; i < queries; i += QUERIES) {
            unsigned Q = min_u32(queries - i, QUERIES);
            struct queries c = take(out, q, n_keys, i, Q, j0, shape, &s);

            block(&c, Q, keys + (size_t)j0 * shape->key_stride, j0 == 0, shape);
        }
    }
    for (uint32_t i = 0; i < queries; i++)
        for (uint32_t d = 0; d < shape->value_width; d++)
            out[i * shape->out_stride + d] = out[i * shape->out_stride + d] / s.l[i];
}

void K(attend_fill)(struct kernels *k)
{
    k->attend = attend;
}
