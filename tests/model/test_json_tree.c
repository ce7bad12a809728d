#include "model/json_tree.h"

#include "model/json_write.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static void check_written(const char *json, size_t len, enum json_style style, const char *want)
{
    struct tree tree = {0};
    struct buf b = {0};
    struct err e = {0};

    if (tree_parse(&tree, json, len, &e))
        print_error("%s: %s\n", json, e.text);
    assert_int_equal(e.code, 0);
    json_write(&b, tree.root, style);
    buf_put(&b, "", 1);
    assert_string_equal(b.s, want);
    buf_release(&b);
    tree_release(&tree);
}

/* What json.dumps(json.loads(x), ensure_ascii=False) prints. */
static void numbers_are_printed_as_python_prints_them(void **state)
{
    static const struct {
        const char *in, *out;
    } numbers[] = {
        {"0", "0"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"12345678901234567890123456789", "12345678901234567890123456789"},
        {"2.50", "2.5"},
        {"1e2", "100.0"},
        {"1E+2", "100.0"},
        {"0.1", "0.1"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"0.0001", "0.0001"},
        {"0.00012345", "0.00012345"},
        {"0.00001", "1e-05"},
        {"-1.5e-7", "-1.5e-07"},
        {"1e15", "1000000000000000.0"},
        {"9999999999999998.0", "9999999999999998.0"},
        {"1e16", "1e+16"},
        {"12345678901234567.0", "1.2345678901234568e+16"},
        {"123456.789", "123456.789"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"1e400", "1e400"}, /* no double; JSON all the same */
        {"1e-400", "0.0"},
        {"100.0", "100.0"},
        {"1.0", "1.0"},
        {"10.25", "10.25"},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(numbers); i++)
        check_written(numbers[i].in, strlen(numbers[i].in), JSON_SPACED, numbers[i].out);
}

static void the_hosts_locale_does_not_decide_what_a_point_is(void **state)
{
    (void)state;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8")) {
        print_message("no locale with a decimal comma is installed\n");
        skip();
    }
    check_written("2.50", 4, JSON_SPACED, "2.5");
    check_written("1.25e-7", 7, JSON_SPACED, "1.25e-07");
    setlocale(LC_NUMERIC, "C");
}

/* T15 */
static void there_are_two_ways_to_write_json_and_a_third(void **state)
{
    static const char json[] = " {\"b\" : [ 1 , {\"\xc3\xa9\":1,\"z\":2,\"\":null} ],\n\"a\":{}, "
                               "\"B\":[],\"aa\":true,\"\xf0\x9f\x8e\x89\":1,\"\xef\xbf\xbd\":2} ";

    (void)state;
    check_written(json, sizeof(json) - 1, JSON_SPACED,
                  "{\"b\": [1, {\"\xc3\xa9\": 1, \"z\": 2, \"\": null}], \"a\": {}, \"B\": [], "
                  "\"aa\": true, \"\xf0\x9f\x8e\x89\": 1, \"\xef\xbf\xbd\": 2}");
    check_written(json, sizeof(json) - 1, JSON_TIGHT,
                  "{\"b\":[1,{\"\xc3\xa9\":1,\"z\":2,\"\":null}],\"a\":{},\"B\":[],\"aa\":true,"
                  "\"\xf0\x9f\x8e\x89\":1,\"\xef\xbf\xbd\":2}");
    check_written(json, sizeof(json) - 1, JSON_SORTED,
                  "{\"B\":[],\"a\":{},\"aa\":true,\"b\":[1,{\"\":null,\"z\":2,\"\xc3\xa9\":1}],"
                  "\"\xef\xbf\xbd\":2,\"\xf0\x9f\x8e\x89\":1}");
}

static void strings_are_escaped_no_more_than_needed(void **state)
{
    static const char json[] = "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u001F\x7f/\\u2028\xc3\xa9"
                               "\\ud83c\\uDF89\\ud83cx\\udf89\\ud83c\\u0041\"";

    (void)state;
    check_written(
        json, sizeof(json) - 1, JSON_SPACED,
        "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f/\xe2\x80\xa8\xc3\xa9\xf0\x9f\x8e\x89"
        "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd"
        "A\"");
}

static void of_members_with_one_key_the_last_stands_in_the_place_of_the_first(void **state)
{
    static const char json[] = "{\"a\":1,\"b\":2,\"a\":[3],\"c\":4,\"\\u0061\":5,\"b\":{}}";

    (void)state;
    check_written(json, sizeof(json) - 1, JSON_TIGHT, "{\"a\":5,\"b\":{},\"c\":4}");
    check_written(json, sizeof(json) - 1, JSON_SORTED, "{\"a\":5,\"b\":{},\"c\":4}");
}

static void what_is_not_json_is_refused_at_its_byte(void **state)
{
    static const struct {
        const char *json, *why;
        size_t len;
    } cases[] = {
        {"", "byte 0: a value is missing", 0},
        {"  ", "byte 2: a value is missing", 2},
        {"{", "byte 1: a member's name is missing", 1},
        {"{\"a\"}", "byte 4: ':' is missing", 5},
        {"{\"a\":1,}", "byte 7: a member's name is missing", 8},
        {"[1,]", "byte 3: not a value", 4},
        {"[1 2]", "byte 3: ',' or ']' is missing", 5},
        {"{\"a\":1 \"b\"}", "byte 7: ',' or '}' is missing", 11},
        {"\"a", "byte 1: a string does not end", 2},
        {"\"\\\"", "byte 1: a string does not end", 3},
        {"\"a\nb\"", "byte 2: a control character", 5},
        {"\"a\0b\"", "byte 2: a control character", 5},
        {"\"\\x\"", "byte 2: unknown escape", 4},
        {"\"\\u12\"", "byte 3: \\u needs", 6},
        {"NaN", "byte 0: not a value", 3},
        {"-Infinity", "byte 1: not a value", 9},
        {"+1", "byte 0: not a value", 2},
        {"01", "byte 1: something follows", 2},
        {"1.", "byte 2: digits are missing behind the point", 2},
        {"1e", "byte 2: digits are missing in the exponent", 2},
        {".5", "byte 0: not a value", 2},
        {"tru", "byte 0: not a value", 3},
        {"1 1", "byte 2: something follows the value", 3},
        {"\"\xed\xa0\x80\"", "byte 1: not UTF-8", 5},
        {"'a'", "byte 0: not a value", 3},
        {"\0", "byte 0: not a value", 1},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        struct tree tree = {0};
        struct err e = {0};
        char *exact = malloc(cases[i].len + !cases[i].len); /* a sanitizer sees a byte too far */

        memcpy(exact, cases[i].json, cases[i].len);
        assert_int_equal(tree_parse(&tree, exact, cases[i].len, &e), ERR_ARG);
        if (!strstr(e.text, cases[i].why))
            print_error("%s: %s\n", cases[i].json, e.text);
        assert_true(strstr(e.text, cases[i].why) != NULL);
        tree_release(&tree);
        free(exact);
    }
}

static void depth_and_values_are_bounded(void **state)
{
    struct buf b = {0};
    struct tree tree = {0};
    struct err e = {0};

    (void)state;
    for (unsigned depth = TREE_DEPTH_MAX + 1; depth <= TREE_DEPTH_MAX + 2; depth++) {
        b.n = 0;
        for (unsigned i = 0; i < depth; i++)
            buf_str(&b, STR("["));
        for (unsigned i = 0; i < depth; i++)
            buf_str(&b, STR("]"));
        assert_int_equal(tree_parse(&tree, b.s, b.n, &e),
                         depth == TREE_DEPTH_MAX + 1 ? 0 : ERR_LIMIT);
        tree_release(&tree);
    }
    b.n = 0;
    buf_str(&b, STR("[0"));
    for (unsigned i = 0; i < TREE_VALUES_MAX; i++)
        buf_str(&b, STR(",0"));
    buf_str(&b, STR("]"));
    assert_int_equal(tree_parse(&tree, b.s, b.n, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "more than 1048576 JSON values"));
    tree_release(&tree);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_printed_as_python_prints_them),
        cmocka_unit_test(the_hosts_locale_does_not_decide_what_a_point_is),
        cmocka_unit_test(there_are_two_ways_to_write_json_and_a_third),
        cmocka_unit_test(strings_are_escaped_no_more_than_needed),
        cmocka_unit_test(of_members_with_one_key_the_last_stands_in_the_place_of_the_first),
        cmocka_unit_test(what_is_not_json_is_refused_at_its_byte),
        cmocka_unit_test(depth_and_values_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
