#include "base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* The definition, in f64: sign * (1 + m / 1024) * 2^(e - 15), and m * 2^-24 where e is 0. */
static double slow_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 0x3ff;
    double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

    return h & 0x8000 ? -v : v;
}

/* The nearest half of a finite value, by searching all of them; of two as near, the even one.
 * Infinity stands where the next value, 2^16, would be. */
static uint16_t slow_half(double v)
{
    double a = fabs(v);
    unsigned lo = 0, hi = 0x7c00; /* value(lo) <= a; as bits, positive halves are in order */

    while (hi - lo > 1) {
        unsigned mid = (lo + hi) / 2;

        if (slow_value((uint16_t)mid) <= a)
            lo = mid;
        else
            hi = mid;
    }
    double below = slow_value((uint16_t)lo);
    double above = hi == 0x7c00 ? 65536.0 : slow_value((uint16_t)hi);
    unsigned h = a - below < above - a || (a - below == above - a && lo % 2 == 0) ? lo : hi;

    return (uint16_t)(h | (signbit(v) ? 0x8000u : 0));
}

static void every_half_has_its_exact_value(void **state)
{
    (void)state;
    for (unsigned u = 0; u < 0x10000; u++) {
        uint16_t h = (uint16_t)u;
        float f = half_to_f32(h);

        assert_int_equal(half_finite(h), (u >> 10 & 31) != 31);
        assert_int_equal(!!signbit(f), u >> 15);
        if (half_finite(h))
            assert_true((double)f == slow_value(h));
        else if (u & 0x3ff)
            assert_true(isnan(f));
        else
            assert_true(isinf(f));
    }
}

static void every_half_comes_back(void **state)
{
    (void)state;
    for (unsigned u = 0; u < 0x10000; u++) {
        uint16_t h = (uint16_t)u, back = f32_to_half(half_to_f32(h));

        if ((u & 0x7fff) > 0x7c00) /* a NaN stays one, with its sign */
            assert_int_equal(back, (u & 0x8000) | 0x7e00);
        else
            assert_int_equal(back, h);
    }
}

/* Containers in circulation have subnormal scales: flushing one zeroes 128 weights. */
static void subnormal_values_are_kept(void **state)
{
    (void)state;
    assert_true(half_to_f32(0x0001) == 0x1p-24f);
    assert_true(half_to_f32(0x0155) == 341 * 0x1p-24f);
    assert_true(half_to_f32(0x03ff) == 1023 * 0x1p-24f);
    assert_true(half_to_f32(0x0400) == 0x1p-14f);
    assert_true(half_to_f32(0x8001) == -0x1p-24f);
    assert_true(half_to_f32(0x2000) == 0.0078125f);
    assert_true(half_to_f32(0x3c00) == 1.0f);
    assert_true(half_to_f32(0x7bff) == 65504.0f);
    assert_int_equal(f32_to_half(0x1p-24f), 0x0001);
    assert_int_equal(f32_to_half(-0x1p-24f), 0x8001);
}

/* Between each half and the next: the middle goes to the even one, either side of it to the near.
 */
static void ties_go_to_even_and_the_rest_to_the_nearest(void **state)
{
    (void)state;
    for (unsigned u = 0; u < 0x7c00; u++) {
        double below = slow_value((uint16_t)u);
        double above = u == 0x7bff ? 65536.0 : slow_value((uint16_t)(u + 1));
        float mid = (float)((below + above) / 2);
        uint16_t even = (uint16_t)(u + u % 2);

        assert_true((double)mid == (below + above) / 2); /* 12 bits: exact */
        assert_int_equal(f32_to_half(mid), even);
        assert_int_equal(f32_to_half(-mid), even | 0x8000);
        assert_int_equal(f32_to_half(nextafterf(mid, 0)), u);
        assert_int_equal(f32_to_half(nextafterf(mid, INFINITY)), u + 1);
        assert_int_equal(f32_to_half(-nextafterf(mid, 0)), u | 0x8000);
        assert_int_equal(f32_to_half(-nextafterf(mid, INFINITY)), (u + 1) | 0x8000);
    }
}

static void the_ends_of_the_range_are_right(void **state)
{
    (void)state;
    assert_int_equal(f32_to_half(0.0f), 0x0000);
    assert_int_equal(f32_to_half(-0.0f), 0x8000);
    assert_int_equal(f32_to_half(0x1p-25f), 0x0000); /* half of the smallest: a tie to zero */
    assert_int_equal(f32_to_half(nextafterf(0x1p-25f, 1)), 0x0001);
    assert_int_equal(f32_to_half(0x1p-149f), 0x0000); /* an f32 subnormal */
    assert_int_equal(f32_to_half(-0x1p-149f), 0x8000);
    assert_int_equal(f32_to_half(65504.0f), 0x7bff);
    assert_int_equal(f32_to_half(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(f32_to_half(65520.0f), 0x7c00);
    assert_int_equal(f32_to_half(3.4e38f), 0x7c00);
    assert_int_equal(f32_to_half(INFINITY), 0x7c00);
    assert_int_equal(f32_to_half(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_half(NAN) & 0x7fff, 0x7e00);
    /* A NaN whose payload is in the low bits only must not become infinity. */
    assert_int_equal(f32_to_half(bits_to_f32(0x7f800001u)), 0x7e00);
    assert_int_equal(f32_to_half(bits_to_f32(0xff800001u)), 0xfe00);
}

/* A walk over all exponents with mantissas of every kind. */
static void conversion_agrees_with_the_slow_search(void **state)
{
    uint32_t x = 1;

    (void)state;
    for (unsigned i = 0; i < 400000; i++) {
        x = x * 1664525u + 1013904223u;
        uint32_t exponent = 95 + (x >> 24) % 50; /* 2^-32 ... 2^17 */
        uint32_t mantissa = i % 3 ? x & 0x7fffff : x & 0x7ff000;
        float f = bits_to_f32((x & 0x80000000u) | exponent << 23 | mantissa);

        assert_int_equal(f32_to_half(f), slow_half(f));
    }
}

static void bits_survive_the_cast(void **state)
{
    (void)state;
    assert_int_equal(f32_to_bits(1.0f), 0x3f800000u);
    assert_int_equal(f32_to_bits(-0.0f), 0x80000000u);
    assert_true(bits_to_f32(0x40490fdbu) > 3.14159f && bits_to_f32(0x40490fdbu) < 3.1416f);
    assert_int_equal(f32_to_bits(bits_to_f32(0x00000001u)), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_has_its_exact_value),
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(subnormal_values_are_kept),
        cmocka_unit_test(ties_go_to_even_and_the_rest_to_the_nearest),
        cmocka_unit_test(the_ends_of_the_range_are_right),
        cmocka_unit_test(conversion_agrees_with_the_slow_search),
        cmocka_unit_test(bits_survive_the_cast),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
