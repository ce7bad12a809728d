/* base/half.h - binary16 to binary32, exact, subnormals included; and back, to nearest even. */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline float bits_to_f32(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t f32_to_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

/* Exponent 31 (infinity, NaN) is invalid in a container: refuse it with half_finite first. */
static inline bool half_finite(uint16_t h)
{
    return (h & 0x7c00) != 0x7c00;
}

/* Value = mantissa * 2^-24 for subnormals: never flushed. Infinity and NaN carry over. */
static inline float half_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ff;

    if (exponent == 31)
        return bits_to_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0)
        return bits_to_f32(sign | f32_to_bits((float)mantissa * 0x1p-24f));
    return bits_to_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Round to nearest, ties to even; overflow gives infinity, as IEEE does. */
static inline uint16_t f32_to_half(float f)
{
    uint32_t u = f32_to_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;

    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u) { /* below 2^-14: a subnormal; the magic addition rounds at 2^-24 */
        float r = bits_to_f32(a) + 0.5f;

        return (uint16_t)(sign | (f32_to_bits(r) - f32_to_bits(0.5f)));
    }
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | ((a >> 13) - (112u << 10)));
}

#endif
