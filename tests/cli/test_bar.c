#include "cli/bar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *line(char text[256], enum bar_unit unit, uint64_t done, uint64_t total,
                        uint64_t bytes, double seconds, unsigned columns)
{
    struct bar_state s = {"loading", unit, done, total, bytes, seconds};

    return bar_line(text, 256, &s, columns);
}

static void a_bar_has_part_rate_and_time_left(void **state)
{
    char text[256];

    (void)state;
    assert_string_equal(line(text, BAR_BYTES, 1u << 30, 4ull << 30, 0, 2, 100),
                        "loading [######..................]  25 %  1.00 GiB of 4.00 GiB, "
                        "536.9 MB/s, 0:06 left");
    assert_string_equal(line(text, BAR_TOKENS, 128, 512, 1u << 30, 32, 0),
                        "loading 128 of 512 tokens, 4.00 tok/s, 33.6 MB/s, 1.00 GiB read, "
                        "1:36 left");
    assert_string_equal(line(text, BAR_RECORDS, 10, 10, 4096, 1, 0),
                        "loading 10 of 10 records, 4.1 kB/s");
}

static void nothing_done_and_unknown_totals_are_said_plainly(void **state)
{
    char text[256];

    (void)state;
    assert_string_equal(line(text, BAR_BYTES, 0, 0, 0, 0, 80), "loading 0 B");
    assert_string_equal(line(text, BAR_TOKENS, 0, 9, 0, 5, 0), "loading 0 of 9 tokens");
    assert_string_equal(line(text, BAR_RECORDS, 7, 0, 0, 1, 80), "loading 7 records");
}

static void it_stays_inside_the_terminal(void **state)
{
    char text[256];

    (void)state;
    for (unsigned columns = 20; columns < 140; columns++) {
        for (uint64_t done = 0; done <= 12; done += 3) {
            line(text, BAR_TOKENS, done, 9, 123456789, 1000, columns);
            assert_true(strlen(text) < columns);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bar_has_part_rate_and_time_left),
        cmocka_unit_test(nothing_done_and_unknown_totals_are_said_plainly),
        cmocka_unit_test(it_stays_inside_the_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
