/* The gated delta rule. Columns of the state are independent over time, so a strip of them goes
 * through all tokens while it lies in the first-level cache. */
#include <math.h>

#include "model/kernels/lanes.h"
#include "model/kernels/level.h"

enum { STRIP = 8 };

struct head { /* pointers to one head's first token; strides between tokens */
    float *o, *to;
    const float *from, *q, *k, *v, *d, *beta;
    uint32_t T, key, value;
    size_t key_stride, value_stride, beta_stride;
};

/* Value columns [c, c + n * VEC), n a constant. */
INLINE void strip(const struct head *h, uint32_t c, const unsigned n)
{
    const float *from = h->from;

    for (uint32_t t = 0; t < h->T; t++, from = h->to) {
        const float *q = h->q + t * h->key_stride, *k = h->k + t * h->key_stride;
        const float *d = h->d + t * h->key_stride, *v = h->v + t * h->value_stride + c;
        float *o = h->o + t * h->value_stride + c;
        vec p[STRIP] = {0}, u[STRIP], out[STRIP] = {0};
        vec beta = lanes_all(h->beta[t * h->beta_stride]);

        for (uint32_t i = 0; i < h->key; i++) {
            const float *s = from + (size_t)i * h->value + c;
            vec kk = lanes_all(k[i]), dd = lanes_all(d[i]);

#pragma GCC unroll 8
            for (unsigned j = 0; j < n; j++)
                p[j] = lanes_fma(kk, dd * lanes_load(s + j * VEC), p[j]);
        }
#pragma GCC unroll 8
        for (unsigned j = 0; j < n; j++)
            u[j] = beta * (lanes_load(v + j * VEC) - p[j]);
        for (uint32_t i = 0; i < h->key; i++) {
            const float *s = from + (size_t)i * h->value + c;
            float *to = h->to + (size_t)i * h->value + c;
            vec kk = lanes_all(k[i]), dd = lanes_all(d[i]), qq = lanes_all(q[i]);

#pragma GCC unroll 8
            for (unsigned j = 0; j < n; j++) {
                vec next = lanes_fma(kk, u[j], dd * lanes_load(s + j * VEC));

                lanes_store(to + j * VEC, next);
                out[j] = lanes_fma(qq, next, out[j]);
            }
        }
#pragma GCC unroll 8
        for (unsigned j = 0; j < n; j++)
            lanes_store(o + j * VEC, out[j]);
    }
}

static void column(const struct head *h, uint32_t c)
{
    const float *from = h->from;

    for (uint32_t t = 0; t < h->T; t++, from = h->to) {
        const float *q = h->q + t * h->key_stride, *k = h->k + t * h->key_stride;
        const float *d = h->d + t * h->key_stride;
        float p = 0, u, o = 0;

        for (uint32_t i = 0; i < h->key; i++)
            p = fmaf(k[i], d[i] * from[(size_t)i * h->value + c], p);
        u = h->beta[t * h->beta_stride] * (h->v[t * h->value_stride + c] - p);
        for (uint32_t i = 0; i < h->key; i++) {
            float next = fmaf(k[i], u, d[i] * from[(size_t)i * h->value + c]);

            h->to[(size_t)i * h->value + c] = next;
            o = fmaf(q[i], next, o);
        }
        h->o[t * h->value_stride + c] = o;
    }
}

static void delta_heads(float *o, float *to, const float *from, const float *q, const float *k,
                        const float *v, const float *d, const float *beta, uint32_t T,
                        const struct delta_shape *shape, uint32_t h0, uint32_t h1)
{
    const size_t key = shape->key, value = shape->value;

    for (size_t i = h0; i < h1; i++) {
        const struct head h = {
            .o = o + i * value,
            .to = to + i * key * value,
            .from = from + i * key * value,
            .q = q + i * key,
            .k = k + i * key,
            .v = v + i * value,
            .d = d + i * key,
            .beta = beta + i,
            .T = T,
            .key = shape->key,
            .value = shape->value,
            .key_stride = shape->heads * key,
            .value_stride = shape->heads * value,
            .beta_stride = shape->heads,
        };
        uint32_t c = 0;

        for (; c + STRIP * VEC <= h.value; c += STRIP * VEC)
            strip(&h, c, STRIP);
        for (; c + VEC <= h.value; c += VEC)
            strip(&h, c, 1);
        for (; c < h.value; c++)
            column(&h, c);
    }
}

void K(delta_fill)(struct kernels *k)
{
    k->delta_heads = delta_heads;
}
