/* The gated delta rule. Columns of the state are independent over time, so a strip of them goes
 * through all tokens while it lies in the first-level cache. Correcting the state for one token and
 * asking it what it would answer the next one is one walk over the strip: between tokens the state
 * is kept as the next token's S' = diag(d) S, which is one load, one product, three multiply-adds
 * and one store an element. */
#include <math.h>

#include "model/kernels/lanes.h"
#include "model/kernels/level.h"

enum {
    STRIP = 4,       /* 32 KiB of state at 128 key channels and 64-byte vectors */
    STRIP_ALONE = 8, /* of one token, which comes from memory: a row of it */
};

struct head { /* pointers to one head's first token; strides between tokens */
    float *o, *to;
    const float *from, *q, *k, *v, *d, *beta;
    uint32_t T, key, value;
    size_t key_stride, value_stride, beta_stride;
};

struct sums { /* of a strip */
    vec p[STRIP_ALONE], out[STRIP_ALONE];
};

/* p = k'S' of the first token. */
INLINE void ask(const struct head *h, struct sums *x, uint32_t c, const unsigned n)
{
    for (uint32_t i = 0; i < h->key; i++) {
        const float *s = h->from + (size_t)i * h->value + c;
        vec k = lanes_all(h->k[i]), d = lanes_all(h->d[i]);

#pragma GCC unroll 8
        for (unsigned j = 0; j < n; j++)
            x->p[j] = lanes_fma(k, d * lanes_load(s + j * VEC), x->p[j]);
    }
}

/* Token t corrects the strip and answers; unless it is the last one, the next one asks. */
INLINE void step(const struct head *h, struct sums *x, uint32_t t, uint32_t c, const unsigned n,
                 const bool first, const bool last)
{
    const float *q = h->q + t * h->key_stride, *k = h->k + t * h->key_stride;
    const float *d = h->d + t * h->key_stride, *v = h->v + t * h->value_stride + c;
    const float *k_next = last ? k : k + h->key_stride, *d_next = last ? d : d + h->key_stride;
    vec beta = lanes_all(h->beta[t * h->beta_stride]), u[STRIP_ALONE];
    struct sums y = {0};

#pragma GCC unroll 8
    for (unsigned j = 0; j < n; j++)
        u[j] = beta * (lanes_load(v + j * VEC) - x->p[j]);
    for (uint32_t i = 0; i < h->key; i++) {
        const float *s = (first ? h->from : h->to) + (size_t)i * h->value + c;
        float *to = h->to + (size_t)i * h->value + c;
        vec kk = lanes_all(k[i]), qq = lanes_all(q[i]);

#pragma GCC unroll 8
        for (unsigned j = 0; j < n; j++) {
            vec old = lanes_load(s + j * VEC);
            vec next = lanes_fma(kk, u[j], first ? lanes_all(d[i]) * old : old);

            y.out[j] = lanes_fma(qq, next, y.out[j]);
            if (!last) {
                next = lanes_all(d_next[i]) * next;
                y.p[j] = lanes_fma(lanes_all(k_next[i]), next, y.p[j]);
            }
            lanes_store(to + j * VEC, next);
        }
    }
    *x = y;
#pragma GCC unroll 8
    for (unsigned j = 0; j < n; j++)
        lanes_store(h->o + t * h->value_stride + c + j * VEC, y.out[j]);
}

/* Value columns [c, c + n * VEC), n a constant. */
INLINE void strip(const struct head *h, uint32_t c, const unsigned n)
{
    struct sums x = {0};
    uint32_t t = 0;

    ask(h, &x, c, n);
    if (h->T == 1) {
        step(h, &x, 0, c, n, true, true);
        return;
    }
    step(h, &x, t++, c, n, true, false);
    for (; t + 1 < h->T; t++)
        step(h, &x, t, c, n, false, false);
    step(h, &x, t, c, n, false, true);
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

        for (; T == 1 && c + STRIP_ALONE * VEC <= h.value; c += STRIP_ALONE * VEC)
            strip(&h, c, STRIP_ALONE);
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
