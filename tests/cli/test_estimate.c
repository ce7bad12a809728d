#include "cli/estimate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { KL_ALL = 6656, KL_SET = 208, K3_ALL = 82432, K3_SET = 1472 }; /* records */

static double percent(uint64_t pool, uint64_t set, uint64_t all)
{
    return 100 * estimate_hit_rate(pool * 4096, set * 4096, all * 4096);
}

static void published_hit_rates_come_back(void **state)
{
    (void)state;
    assert_true(fabs(percent(287, K3_SET, K3_ALL) - 29.1) < 0.5);
    assert_true(fabs(percent(1472, K3_SET, K3_ALL) - 38.5) < 0.5);
    assert_true(fabs(percent(399, KL_SET, KL_ALL) - 40.3) < 0.5);
    assert_true(fabs(percent(799, KL_SET, KL_ALL) - 61.9) < 0.5);
    assert_true(fabs(percent(1597, KL_SET, KL_ALL) - 84.8) < 0.5);
    assert_true(fabs(percent(3195, KL_SET, KL_ALL) - 93.9) < 0.5);
}

static void more_memory_never_means_fewer_hits(void **state)
{
    static const unsigned models[][2] = {
        {KL_SET, KL_ALL}, {K3_SET, K3_ALL}, {8, 20}, {4, 4}, {1, 1000000}};

    (void)state;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        double before = 0;

        for (unsigned step = 0; step <= 1000; step++) {
            double now = percent((uint64_t)models[i][1] * step / 1000, models[i][0], models[i][1]);

            assert_true(now >= before - 1e-9 && now <= 100);
            before = now;
        }
        assert_true(before == 100);
        assert_true(percent(0, models[i][0], models[i][1]) == 0);
    }
}

static void the_longer_floor_decides(void **state)
{
    struct estimate s;

    (void)state;
    s = estimate_decode(0, 1000000000, 100000000000, 9000000000, 1e9, 1e11);
    assert_true(s.hit_rate == 0);
    assert_true(fabs(s.disk_seconds - 1) < 1e-12);
    assert_true(fabs(s.ram_seconds - 0.1) < 1e-12);
    assert_true(fabs(s.tokens_per_second - 1) < 1e-12);
    s = estimate_decode(100000000000, 1000000000, 100000000000, 9000000000, 1e9, 1e11);
    assert_true(s.disk_seconds == 0);
    assert_true(fabs(s.tokens_per_second - 10) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_hit_rates_come_back),
        cmocka_unit_test(more_memory_never_means_fewer_hits),
        cmocka_unit_test(the_longer_floor_decides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
