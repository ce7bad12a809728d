#include "expertfs/widen.h"

#include "base/bytes.h"
#include "base/half.h"

void widen_f32(float *out, const uint8_t *raw, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = bits_to_f32(load_le32(raw + 4 * i));
}

void widen_f16(float *out, const uint8_t *raw, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = half_to_f32(load_le16(raw + 2 * i));
}

void widen_bf16(float *out, const uint8_t *raw, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = bits_to_f32((uint32_t)load_le16(raw + 2 * i) << 16);
}

void widen_e4m3_table(float table[256])
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t sign = (b & 0x80) << 24, exponent = b >> 3 & 15, mantissa = b & 7;
        uint32_t bits = (exponent + 120) << 23 | mantissa << 20;

        if (exponent == 0)
            bits = f32_to_bits((float)mantissa * 0x1p-9f);
        else if ((b & 0x7f) == 0x7f)
            bits = 0x7fc00000u;
        table[b] = bits_to_f32(sign | bits);
    }
}

void widen_e5m2_table(float table[256])
{
    for (uint32_t b = 0; b < 256; b++)
        table[b] = half_to_f32((uint16_t)(b << 8));
}

void widen_fp8(float *out, const uint8_t *raw, size_t n, const float table[256],
               const uint8_t *scale, uint32_t block)
{
    for (size_t i = 0; i < n; scale += 4) {
        size_t end = n - i < block ? n : i + block;
        float s = bits_to_f32(load_le32(scale));

        for (; i < end; i++)
            out[i] = table[raw[i]] * s;
    }
}

void widen_mxfp4(float *out, const uint8_t *raw, size_t n, const uint8_t *scale)
{
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

    for (size_t i = 0; i < n; i += FP4_BLOCK) {
        uint32_t e = *scale++;
        float s = bits_to_f32(e == 255 ? 0x7fc00000u : e << 23);

        for (size_t j = i; j < i + FP4_BLOCK; j += 2) {
            uint8_t two = *raw++;

            out[j] = value[two & 15] * s;
            out[j + 1] = value[two >> 4] * s;
        }
    }
}

/* Groups first, so that the common answer costs no branch a value. */
size_t widen_first_bad(const float *x, size_t n)
{
    size_t i = 0;

    for (; n - i >= 64; i += 64) {
        uint32_t bad = 0;

        for (size_t j = i; j < i + 64; j++)
            bad |= (f32_to_bits(x[j]) & 0x7f800000u) == 0x7f800000u;
        if (bad)
            break;
    }
    while (i < n && (f32_to_bits(x[i]) & 0x7f800000u) != 0x7f800000u)
        i++;
    return i;
}
