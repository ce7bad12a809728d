/* model/kernels/poly.h - exp, sigmoid, tanh and softplus, the same bits everywhere.
 *
 * The platform's functions differ between libraries and releases, and tables of codes turn the
 * last bit of an activation into a visible step (docs/ARITHMETIC.md). These are straight-line, so
 * that a loop over them becomes SIMD code. A NaN stays one; nothing else gives one.
 */
#ifndef MODEL_KERNELS_POLY_H
#define MODEL_KERNELS_POLY_H

#include <math.h>
#include <stdint.h>

#include "base/half.h"

#define POLY_INLINE static inline __attribute__((always_inline))

/* Adding it leaves no bits for a fraction: a + ROUND - ROUND is a rounded to the nearest integer,
 * ties to even, for |a| < 2^22, and the integer sits in the low bits of a + ROUND. */
#define POLY_ROUND      0x1.8p+23f
#define POLY_ROUND_BITS 0x4b400000u

/* Largest error 1.1 ulp. Below -87: 0; above 88: as at 88. */
POLY_INLINE float poly_exp(float x)
{
    float top = x > 88.0f ? 88.0f : x;
    float c = top < -87.0f ? -87.0f : top;
    float shifted = c * 0x1.715476p+0f + POLY_ROUND;
    float n = shifted - POLY_ROUND;
    float r = fmaf(n, 0x1.05c610p-29f, fmaf(n, -0x1.62e430p-1f, c));
    float q = 0x1.6dbc4cp-10f;
    float y;

    q = fmaf(q, r, 0x1.124136p-7f);
    q = fmaf(q, r, 0x1.555454p-5f);
    q = fmaf(q, r, 0x1.555488p-3f);
    q = fmaf(q, r, 0x1p-1f);
    y = 1.0f + fmaf(r * r, q, r);
    y = bits_to_f32(f32_to_bits(y) + (f32_to_bits(shifted) << 23)); /* times 2^n */
    y = x < -87.0f ? 0.0f : y;
    return x != x ? x : y;
}

/* 2.4 ulp. */
POLY_INLINE float poly_sigmoid(float x)
{
    float t = poly_exp(-fabsf(x));

    return (x >= 0.0f ? 1.0f : t) / (1.0f + t);
}

/* 1.6 ulp. */
POLY_INLINE float poly_tanh(float x)
{
    float a = fabsf(x), z = x * x;
    float p = -0x1.75ee3cp-8f;
    float t = poly_exp(-2.0f * a);
    float near, far;

    p = fmaf(p, z, 0x1.522e3cp-6f);
    p = fmaf(p, z, -0x1.b83e60p-5f);
    p = fmaf(p, z, 0x1.11073ep-3f);
    p = fmaf(p, z, -0x1.555534p-2f);
    near = fmaf(x * z, p, x);
    far = copysignf((1.0f - t) / (1.0f + t), x);
    return a < 0.625f ? near : far;
}

/* ln(1 + e^x), 2.7 ulp. */
POLY_INLINE float poly_softplus(float x)
{
    float t = poly_exp(-fabsf(x));
    float s = t / (2.0f + t);
    float z = s * s, d = s + s;
    float p = 0x1.1f0a52p-3f;

    p = fmaf(p, z, 0x1.1eb2b8p-3f);
    p = fmaf(p, z, 0x1.99d2acp-3f);
    p = fmaf(p, z, 0x1.5555p-2f);
    return (x > 0.0f ? x : 0.0f) + fmaf(d * z, p, d);
}

#endif
