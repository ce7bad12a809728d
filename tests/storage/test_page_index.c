#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "storage/page_index.h"
#include "tests/storage/pool_fixture.h"

static unsigned random_below(uint64_t *x, unsigned n)
{
    *x = *x * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((*x >> 32) * n) >> 32);
}

/* Against a list, full and empty in turn. What leaves must not hide what its search would pass. */
static void the_index_finds_what_is_in_it_and_nothing_else(void **state)
{
    enum { ALL = 256 };
    (void)state;
    for (uint32_t n_max = 1; n_max <= 64; n_max += n_max < 5 ? 1 : 59) {
        struct page_index index;
        bool in[ALL] = {false};
        uint32_t n_in = 0;
        uint64_t random = n_max;

        assert_true(page_index_init(&index, n_max));
        for (unsigned step = 0; step < 20000; step++) {
            unsigned i = random_below(&random, ALL);
            bool filling = step / 500 % 2 == 0;

            if (in[i] && (!filling || n_in == n_max)) {
                page_index_remove(&index, extent_nth(i));
                in[i] = false;
                n_in--;
            } else if (!in[i] && filling && n_in < n_max) {
                page_index_add(&index, extent_nth(i), i + 7);
                in[i] = true;
                n_in++;
            }
            for (unsigned k = i; k < i + 16; k++)
                assert_int_equal(page_index_find(&index, extent_nth(k % ALL)),
                                 in[k % ALL] ? k % ALL + 7 : NO_FRAME);
        }
        page_index_release(&index);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_finds_what_is_in_it_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
