#include "expertfs/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;

static unsigned draw(unsigned below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

static struct placement any_placement(void)
{
    struct placement p = {.n = 1 + draw(PLACEMENT_DRIVES_MAX)};

    p.share[0] = draw(PLACEMENT_SHARE_MAX + 1);
    for (unsigned d = 1; d < p.n; d++)
        p.share[d] = 1 + draw(PLACEMENT_SHARE_MAX);
    if (p.n == 1 && !p.share[0])
        p.share[0] = 1;
    placement_lay(&p);
    return p;
}

static void every_expert_has_one_place_and_every_place_one_expert(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 300; turn++) {
        struct placement p = any_placement();
        unsigned n = 1 + draw(1000), next[PLACEMENT_DRIVES_MAX] = {0}, sum = 0;

        for (unsigned x = 0; x < n; x++) {
            unsigned rank, d = placement_drive(&p, x, &rank);

            assert_true(d < p.n);
            assert_int_equal(rank, next[d]++); /* ascending, without holes */
            assert_int_equal(placement_expert(&p, d, rank), x);
        }
        for (unsigned d = 0; d < p.n; d++) {
            assert_int_equal(placement_records(&p, d, n), next[d]);
            sum += next[d];
        }
        assert_int_equal(sum, n);
    }
}

static void no_drive_is_ever_more_than_its_share_behind_or_ahead(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 100; turn++) {
        struct placement p = any_placement();
        unsigned had[PLACEMENT_DRIVES_MAX] = {0};

        for (unsigned x = 0; x < 600; x++) {
            unsigned rank;

            had[placement_drive(&p, x, &rank)]++;
            for (unsigned d = 0; d < p.n; d++) {
                double due = (double)(x + 1) * p.share[d] / p.period;

                assert_true(had[d] < due + p.n && had[d] + p.n > due);
            }
        }
    }
}

static void equal_shares_take_turns(void **state)
{
    struct placement p = {.n = 3, .share = {2, 2, 2}};
    unsigned rank;

    (void)state;
    placement_lay(&p);
    for (unsigned x = 0; x < 30; x++)
        assert_int_equal(placement_drive(&p, x, &rank), x % 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_has_one_place_and_every_place_one_expert),
        cmocka_unit_test(no_drive_is_ever_more_than_its_share_behind_or_ahead),
        cmocka_unit_test(equal_shares_take_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
