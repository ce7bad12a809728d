/* Queries against the cached keys, one after the other, in blocks of 256 positions merged in order.
 */
#include <math.h>
#include <string.h>

#include "model/kernels/lanes.h"
#include "model/kernels/level.h"
#include "model/kernels/poly.h"

enum { BLOCK = 256, STRIP = 8 };

/* s[j] = dot(q, key_j) * scale; returns the largest. width is a multiple of 16. */
static float scores(float *s, const float *q, const float *keys, size_t stride, uint32_t n,
                    uint32_t width, float scale)
{
    uint32_t j = 0;
    float m;

    for (; j + 4 <= n; j += 4)
        lanes_dots(s + j, q, keys + j * stride, stride, 4, width);
    for (; j < n; j++)
        lanes_dots(s + j, q, keys + j * stride, stride, 1, width);
    for (j = 0; j < n; j++)
        s[j] = s[j] * scale;
    m = s[0];
    for (j = 1; j < n; j++)
        m = s[j] > m ? s[j] : m; /* a NaN that is passed over here comes back in the weights */
    return m;
}

/* s[j] <- exp(s[j] - m); returns their sum. */
static float weights(float *s, uint32_t n, float m)
{
    float sum[LANES] = {0};

    for (uint32_t j = 0; j < n; j++)
        s[j] = poly_exp(s[j] - m);
    for (uint32_t j = 0; j < n; j++)
        sum[j % LANES] += s[j];
    return fold16(sum);
}

INLINE void value_strip(float *a, const float *e, const float *values, size_t stride, uint32_t n,
                        const unsigned width)
{
    vec acc[STRIP] = {0};

    for (uint32_t j = 0; j < n; j++) {
        vec ee = lanes_all(e[j]);

#pragma GCC unroll 8
        for (unsigned i = 0; i < width; i++)
            acc[i] = lanes_fma(ee, lanes_load(values + j * stride + i * VEC), acc[i]);
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < width; i++)
        lanes_store(a + i * VEC, acc[i]);
}

/* a[d] = sum over j of e[j] * value_j[d]. */
static void values_sum(float *a, const float *e, const float *values, size_t stride, uint32_t n,
                       uint32_t width)
{
    uint32_t d = 0;

    for (; d + STRIP * VEC <= width; d += STRIP * VEC)
        value_strip(a + d, e, values + d, stride, n, STRIP);
    for (; d + VEC <= width; d += VEC)
        value_strip(a + d, e, values + d, stride, n, 1);
    for (; d < width; d++) {
        float acc = 0;

        for (uint32_t j = 0; j < n; j++)
            acc = fmaf(e[j], values[j * stride + d], acc);
        a[d] = acc;
    }
}

static void attend_one(float *out, const float *q, const float *keys, uint32_t n_keys,
                       const struct attend_shape *shape, float *scratch)
{
    const uint32_t width = (shape->width + LANES - 1) / LANES * LANES;
    const uint32_t value_width = shape->value_width;
    const size_t stride = shape->key_stride;
    float *e = scratch, *part = scratch + BLOCK;
    float m = 0, l = 0;

    for (uint32_t j0 = 0; j0 < n_keys; j0 += BLOCK) {
        uint32_t n = min_u32(n_keys - j0, BLOCK);
        const float *block = keys + j0 * stride;
        float m_block = scores(e, q, block, stride, n, width, shape->scale);
        float l_block = weights(e, n, m_block);
        float top, f, f_block;

        if (j0 == 0) {
            values_sum(out, e, block, stride, n, value_width);
            m = m_block;
            l = l_block;
            continue;
        }
        values_sum(part, e, block, stride, n, value_width);
        top = m_block > m ? m_block : m;
        f = poly_exp(m - top);
        f_block = poly_exp(m_block - top);
        l = fmaf(l_block, f_block, l * f);
        for (uint32_t d = 0; d < value_width; d++)
            out[d] = fmaf(part[d], f_block, out[d] * f);
        m = top;
    }
    for (uint32_t d = 0; d < value_width; d++)
        out[d] = out[d] / l;
}

static void attend(float *out, const float *q, const float *keys, uint32_t n_keys, uint32_t T,
                   const struct attend_shape *shape, float *scratch)
{
    for (uint32_t t = 0; t < T; t++)
        for (size_t i = (size_t)t * shape->heads; i < (size_t)(t + 1) * shape->heads; i++)
            attend_one(out + i * shape->out_stride, q + i * shape->q_stride, keys, n_keys + t,
                       shape, scratch);
}

void K(attend_fill)(struct kernels *k)
{
    k->attend = attend;
}
