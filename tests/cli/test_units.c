#include "cli/units.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void sizes_are_binary_whatever_their_unit_is_called(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"46G", 46ull << 30},
        {"46GB", 46ull << 30},
        {"46g", 46ull << 30},
        {"2m", 2 << 20},
        {"1tiB", 1ull << 40},
        {"3K", 3 << 10},
        {"46 GiB", 46ull << 30},
        {"1.5G", 3ull << 29},
        {".5k", 512},
        {"2.", 2},
        {"3T", 3ull << 40},
        {"7 B", 7},
        {"18446744073709551615", UINT64_MAX},
        {" 1M ", 1 << 20},
    };
    static const char *const bad[] = {
        "",
        " ",
        "G",
        "-1G",
        "+1G",
        "nan",
        "inf",
        "1e3",
        "0x10",
        "1,5G",
        "1..5G",
        "1GG",
        "1 G B",
        "1GiBs",
        "1i",
        "1P",
        ".",
        "16777216T",
        "99999999999999999999",
        "1G 2",
        "18446744073709551616",
        "1.0e400G",
        "GiB",
        "1/s",
        "1G/s",
    };
    struct err e;
    uint64_t v;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (size_parse(&v, good[i].text, &e))
            fail_msg("%s", e.text);
        assert_true(v == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        v = 42;
        if (size_parse(&v, bad[i], &e) != ERR_ARG)
            fail_msg("\"%s\" was taken as %llu", bad[i], (unsigned long long)v);
        assert_true(v == 42);
    }
}

static void rates_are_decimal_unless_they_say_otherwise(void **state)
{
    struct err e;
    uint64_t v;

    (void)state;
    assert_int_equal(rate_parse(&v, "7GB/s", &e), 0);
    assert_true(v == 7000000000u);
    assert_int_equal(rate_parse(&v, "3.5 GiB/s", &e), 0);
    assert_true(v == 7ull << 29);
    assert_int_equal(rate_parse(&v, "900M", &e), 0);
    assert_true(v == 900000000u);
    assert_int_equal(rate_parse(&v, "0", &e), ERR_ARG);
    assert_int_equal(rate_parse(&v, "7GB/h", &e), ERR_ARG);
    assert_int_equal(rate_parse(&v, "-7GB/s", &e), ERR_ARG);
    assert_int_equal(rate_parse(&v, "fast", &e), ERR_ARG);
}

static void sizes_and_times_read_as_people_write_them(void **state)
{
    char text[UNITS_TEXT];

    (void)state;
    assert_string_equal(size_text(text, 812), "812 B");
    assert_string_equal(size_text(text, 4096), "4.0 KiB");
    assert_string_equal(size_text(text, 29294179840u), "27.28 GiB");
    assert_string_equal(size_text_decimal(text, 29294179840u), "29.29 GB");
    assert_string_equal(size_text(text, 1ull << 60), "1048576.00 TiB");
    assert_string_equal(count_text(text, 812), "812");
    assert_string_equal(count_text(text, 2780000000000u), "2.78 T");
    assert_string_equal(time_text(text, 0), "0:00");
    assert_string_equal(time_text(text, 59.6), "1:00");
    assert_string_equal(time_text(text, 3 * 3600 + 4 * 60 + 5), "3:04:05");
    assert_string_equal(time_text(text, INFINITY), "--:--");
    assert_string_equal(time_text(text, NAN), "--:--");
    assert_string_equal(time_text(text, -1), "--:--");
}

static void an_estimate_has_no_more_than_three_digits_or_its_whole_part(void **state)
{
    static const struct {
        double v;
        int decimals;
    } cases[] = {{0, 2}, {0.0712, 2}, {9.99, 2}, {13.94, 1}, {99.94, 1}, {100, 0}, {12589.64, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        assert_int_equal(estimate_decimals(cases[i].v), cases[i].decimals);
}

static void ids_are_separated_by_spaces_commas_tabs_or_newlines(void **state)
{
    static const char *const bad[] = {
        "x", "1 x", "1.5", "-1", "2147483648", "99999999999999999999", "1;2", "0x1"};
    static const char list[] = "3 7,11\t2147483647,\n 0\r\n";
    int32_t *ids;
    struct err e;
    size_t n;

    (void)state;
    assert_int_equal(ids_parse(&ids, &n, list, strlen(list), &e), 0);
    assert_int_equal(n, 5);
    assert_int_equal(ids[2], 11);
    assert_int_equal(ids[3], INT32_MAX);
    assert_int_equal(ids[4], 0);
    free(ids);
    assert_int_equal(ids_parse(&ids, &n, "", 0, &e), 0);
    assert_int_equal(n, 0);
    free(ids);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (ids_parse(&ids, &n, bad[i], strlen(bad[i]), &e) != ERR_ARG)
            fail_msg("\"%s\" was taken", bad[i]);
    }
    assert_int_equal(ids_parse(&ids, &n, "1\0002", 3, &e), ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_binary_whatever_their_unit_is_called),
        cmocka_unit_test(rates_are_decimal_unless_they_say_otherwise),
        cmocka_unit_test(sizes_and_times_read_as_people_write_them),
        cmocka_unit_test(an_estimate_has_no_more_than_three_digits_or_its_whole_part),
        cmocka_unit_test(ids_are_separated_by_spaces_commas_tabs_or_newlines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
