#include "model/think_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const int32_t close_ids[] = {90, 7, 91};

/* Choose what is due, or the next of `free`; the n choices, one after the other. */
static void choose(struct think_limit *l, const int32_t *wanted, const int32_t *expected,
                   unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        int32_t due = think_limit_due(l), id = due < 0 ? wanted[i] : due;

        assert_int_equal(id, expected[i]);
        think_limit_chosen(l, id);
    }
}

static void none_is_none(void **state)
{
    struct think_limit l = {0};
    const int32_t ids[] = {90, 1, 90, 2};

    (void)state;
    choose(&l, ids, ids, 4);
    think_limit_set(&l, close_ids, 3, 0);
    think_limit_set(&l, NULL, 0, 0);
    choose(&l, ids, ids, 4);
}

static void it_is_closed_after_so_many(void **state)
{
    const int32_t wanted[] = {1, 2, 3, 4, 5, 90, 6};
    const int32_t got[] = {1, 2, 90, 7, 91, 90, 6};
    struct think_limit l = {0};

    (void)state;
    think_limit_set(&l, close_ids, 3, 2);
    choose(&l, wanted, got, 7);
    think_limit_restart(&l);
    choose(&l, wanted, got, 7);
}

static void it_is_closed_at_once(void **state)
{
    const int32_t wanted[] = {1, 2, 3, 4}, got[] = {90, 7, 91, 4};
    struct think_limit l = {0};

    (void)state;
    think_limit_set(&l, close_ids, 3, 0);
    choose(&l, wanted, got, 4);
}

static void who_closes_in_time_never_notices(void **state)
{
    const int32_t ids[] = {1, 90, 5, 6, 7, 8};
    struct think_limit l = {0};

    (void)state;
    think_limit_set(&l, close_ids, 3, 2);
    choose(&l, ids, ids, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_is_none),
        cmocka_unit_test(it_is_closed_after_so_many),
        cmocka_unit_test(it_is_closed_at_once),
        cmocka_unit_test(who_closes_in_time_never_notices),
    };

    return cmocka_run_group_tests_name("think_limit", tests, NULL, NULL);
}
