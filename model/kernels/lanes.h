/* model/kernels/lanes.h - sixteen lanes, as vectors of whatever width this build has.
 *
 * The contract fixes sixteen accumulators per row (docs/ARITHMETIC.md). They are PARTS vectors of
 * VEC lanes; lanes never meet before fold16, so the width changes no bits. GNU vector types keep
 * them in registers; lanes_fma becomes one instruction where there is one.
 */
#ifndef MODEL_KERNELS_LANES_H
#define MODEL_KERNELS_LANES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { VEC = 16 };
#elif defined(__AVX2__) && defined(__FMA__)
enum { VEC = 8 };
#else
enum { VEC = 4 };
#endif
enum { LANES = 16, PARTS = LANES / VEC };

/* Whether fmaf is an instruction; otherwise it is a call and everything else is free. */
#if defined(__FMA__) || defined(__aarch64__)
enum { FMA_IS_FAST = 1 };
#else
enum { FMA_IS_FAST = 0 };
#endif

typedef float vec __attribute__((vector_size(4 * VEC)));
typedef int32_t ivec __attribute__((vector_size(4 * VEC)));
typedef uint32_t uvec __attribute__((vector_size(4 * VEC)));

INLINE uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

INLINE vec lanes_load(const float *p)
{
    vec v;

    memcpy(&v, p, sizeof(v));
    return v;
}

INLINE void lanes_store(float *p, vec v)
{
    memcpy(p, &v, sizeof(v));
}

INLINE vec lanes_all(float a)
{
    return a - (vec){0}; /* minus +0 keeps every bit, the sign of zero too */
}

/* The only intrinsics here: compilers find these instructions in the loop below, but slowly. */
INLINE vec lanes_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    for (unsigned l = 0; l < VEC; l++)
        c[l] = fmaf(a[l], b[l], c[l]);
    return c;
#endif
}

INLINE float fold8(const float *a)
{
    float b[4];

    for (unsigned l = 0; l < 4; l++)
        b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

INLINE float fold16(const float *a)
{
    float b[8];

    for (unsigned l = 0; l < 8; l++)
        b[l] = a[l] + a[l + 8];
    return fold8(b);
}

typedef float four __attribute__((vector_size(16)));

/* fold16 of each of four rows of sixteen lanes, `stride` floats apart, 32-byte aligned. */
#if defined(__AVX2__)
INLINE __m128 fold_four(const float *acc, size_t stride)
{
    __m128 a[4], b[2];

    for (unsigned r = 0; r < 4; r++) {
        __m256 h =
            _mm256_add_ps(_mm256_load_ps(acc + r * stride), _mm256_load_ps(acc + r * stride + 8));

        a[r] = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    }
    for (unsigned r = 0; r < 2; r++)
        b[r] = _mm_add_ps(_mm_movelh_ps(a[2 * r], a[2 * r + 1]),
                          _mm_movehl_ps(a[2 * r + 1], a[2 * r]));
    return _mm_add_ps(_mm_shuffle_ps(b[0], b[1], 0x88), _mm_shuffle_ps(b[0], b[1], 0xdd));
}
#elif defined(__aarch64__)
INLINE float32x4_t fold_four(const float *acc, size_t stride)
{
    float32x4_t a[4], b[2];

    for (unsigned r = 0; r < 4; r++, acc += stride)
        a[r] = vaddq_f32(vaddq_f32(vld1q_f32(acc), vld1q_f32(acc + 8)),
                         vaddq_f32(vld1q_f32(acc + 4), vld1q_f32(acc + 12)));
    for (unsigned r = 0; r < 2; r++)
        b[r] = vaddq_f32(vcombine_f32(vget_low_f32(a[2 * r]), vget_low_f32(a[2 * r + 1])),
                         vcombine_f32(vget_high_f32(a[2 * r]), vget_high_f32(a[2 * r + 1])));
    return vpaddq_f32(b[0], b[1]);
}
#endif

/* y[i] = dot(x, rows + i * stride, n) for the m rows together, m a constant of at most 4: one row
 * alone would wait for its own additions. */
INLINE void lanes_dots(float *y, const float *x, const float *rows, size_t stride, const unsigned m,
                       uint32_t n)
{
    vec acc[4][PARTS] = {0};
    uint32_t whole = n / LANES * LANES;

    for (uint32_t i = 0; i < whole; i += LANES)
        for (unsigned p = 0; p < PARTS; p++) {
            vec a = lanes_load(x + i + p * VEC);

#pragma GCC unroll 4
            for (unsigned r = 0; r < m; r++)
                acc[r][p] = lanes_fma(a, lanes_load(rows + r * stride + i + p * VEC), acc[r][p]);
        }
#pragma GCC unroll 4
    for (unsigned r = 0; r < m; r++) {
        float a[LANES];

        memcpy(a, acc[r], sizeof(a));
        if (whole < n) { /* the missing columns are +0 in both */
            float b[2][LANES] = {{0}};

            memcpy(b[0], x + whole, (n - whole) * sizeof(float));
            memcpy(b[1], rows + r * stride + whole, (n - whole) * sizeof(float));
            for (unsigned l = 0; l < LANES; l++)
                a[l] = fmaf(b[0][l], b[1][l], a[l]);
        }
        y[r] = fold16(a);
    }
}

#endif
