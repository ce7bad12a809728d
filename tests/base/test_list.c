#include "base/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void what_is_in_a_list_stays_and_room_more_than_doubles(void **state)
{
    uint32_t *x = NULL;
    size_t cap = 0, moves = 0;

    (void)state;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t before = cap;

        assert_true(list_room(&x, &cap, (size_t)i + 1, sizeof(*x)));
        assert_true(cap > i);
        moves += cap != before;
        x[i] = i ^ 0x5a5a;
    }
    for (uint32_t i = 0; i < 100000; i++)
        assert_int_equal(x[i], i ^ 0x5a5a);
    assert_true(moves < 20);
    free(x);
}

static void a_list_that_cannot_grow_is_as_it_was(void **state)
{
    static const size_t much[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4 + 1, SIZE_MAX / 8};
    uint32_t *x = NULL, *before;
    size_t cap = 0, cap_before;

    (void)state;
    assert_true(list_room(&x, &cap, 3, sizeof(*x)));
    x[2] = 7;
    before = x;
    cap_before = cap;
    for (size_t i = 0; i < sizeof(much) / sizeof(*much); i++) {
        assert_false(list_room(&x, &cap, much[i], sizeof(*x)));
        assert_ptr_equal(x, before);
        assert_int_equal(cap, cap_before);
        assert_int_equal(x[2], 7);
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_in_a_list_stays_and_room_more_than_doubles),
        cmocka_unit_test(a_list_that_cannot_grow_is_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
