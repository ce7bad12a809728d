#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static json_t *parse(const char *text)
{
    struct err e;
    json_t *root;

    if (json_parse(&root, text, strlen(text), "x.json", &e))
        fail_msg("%s", e.text);
    return root;
}

static void assert_refused(const char *text, size_t len, int code, const char *fragment)
{
    struct err e = {0};
    json_t *root = NULL;

    assert_int_equal(json_parse(&root, text, len, "x.json", &e), code);
    assert_int_equal(e.code, code);
    assert_null(root);
    if (!strstr(e.text, fragment))
        fail_msg("\"%s\" lacks \"%s\"", e.text, fragment);
}

static void what_is_not_json_is_refused_with_its_position(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *fragment;
    } bad[] = {
        {"", ERR_FORMAT, "x.json: JSON error at byte 0"},
        {"{", ERR_FORMAT, "x.json: JSON error at byte 1"},
        {"{\"a\":1,}", ERR_FORMAT, "x.json: JSON error at byte"},
        {"{\"a\" 1}", ERR_FORMAT, "x.json: JSON error at byte"},
        {"{'a':1}", ERR_FORMAT, "x.json: JSON error at byte"},
        {"{} {}", ERR_FORMAT, "end of file expected"},
        {"{}x", ERR_FORMAT, "end of file expected"},
        {"1", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":NaN}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":Infinity}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":-Infinity}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":1e999}", ERR_FORMAT, "overflow"},
        {"{\"a\":99999999999999999999}", ERR_FORMAT, "too big integer"},
        {"{\"a\":01}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":+1}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":.5}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":\"\xff\"}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":\"\xc0\x80\"}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":\"\\u0000\"}", ERR_FORMAT, "x.json: a NUL character (\\u0000)"},
        {"{\"a\":\"\\ud800\"}", ERR_FORMAT, "x.json: JSON error"},
        {"{\"a\":\"line\nbreak\"}", ERR_FORMAT, "x.json: JSON error"},
        {"\xef\xbb\xbf{}", ERR_FORMAT, "x.json: JSON error"},
        {"// comment\n{}", ERR_FORMAT, "x.json: JSON error"},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(bad); i++)
        assert_refused(bad[i].text, strlen(bad[i].text), bad[i].code, bad[i].fragment);
    assert_refused("{}\0", 3, ERR_FORMAT, "x.json: JSON error at byte 2: NUL byte");
    assert_refused("{\"a\0b\":1}", 9, ERR_FORMAT, "byte 3: NUL byte");
    assert_refused("{\"a\\\0\":1}", 9, ERR_FORMAT, "byte 4: NUL byte");
}

static void a_repeated_key_is_named(void **state)
{
    static const struct {
        const char *text, *fragment;
    } bad[] = {
        {"{\"a\":1,\"a\":2}", "x.json: duplicate key \"a\""},
        {"{\"b\":{\"\":1,\"\":1}}", "x.json: duplicate key \"\""},
        {"[{\"q\\\"\\\\\":1,\"q\\\"\\\\\":2}]", "x.json: duplicate key \"q\\\"\\\\\""},
        {"{\"a_key_of_more_than_twenty_characters\":1,\"a_key_of_more_than_twenty_characters\":1}",
         "x.json: duplicate key \"a_key_of_more_than_twenty_characters\""},
        {"{\"\x7f\":1,\"\x7f\":1}", "x.json: duplicate key \"?\""},
        {"{\"\\u0061\":1,\"a\":1}", "x.json: duplicate key \"a\""},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(bad); i++)
        assert_refused(bad[i].text, strlen(bad[i].text), ERR_FORMAT, bad[i].fragment);
    json_decref(parse("{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}"));
}

/* depth brackets, opened and closed. */
static char *nested(size_t depth)
{
    char *text = malloc(2 * depth + 1);

    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    text[2 * depth] = '\0';
    return text;
}

static void nesting_ends_at_64_below_the_root(void **state)
{
    char *text = nested(65);

    (void)state;
    json_decref(parse(text));
    free(text);
    text = nested(66);
    assert_refused(text, strlen(text), ERR_LIMIT, "x.json: nested deeper than 64 at byte 65");
    free(text);
    text = nested(100000);
    assert_refused(text, strlen(text), ERR_LIMIT, "x.json: nested deeper than 64 at byte 65");
    assert_refused(text, 100000, ERR_LIMIT, "x.json: nested deeper than 64 at byte 65");
    free(text);
    /* Brackets in strings are no nesting, whatever is escaped there. */
    json_decref(parse("[\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                      "[[[[[[[[[[\\\\\"]"));
}

static void more_values_than_the_limit_are_refused(void **state)
{
    size_t n = 2 * (size_t)JSON_VALUES_MAX + 4;
    char *text = malloc(n);

    (void)state;
    text[0] = '[';
    for (size_t i = 1; i < n; i++)
        text[i] = i % 2 ? '1' : ',';
    assert_refused(text, n, ERR_LIMIT, "x.json: more than 4194304 values");
    free(text);
}

static void a_number_of_64_characters_is_refused(void **state)
{
    char text[128];
    json_t *root;

    (void)state;
    snprintf(text, sizeof(text), "[0.%061d]", 0);
    root = parse(text);
    json_decref(root);
    snprintf(text, sizeof(text), "[0.%062d]", 0);
    assert_refused(text, strlen(text), ERR_FORMAT, "number of more than 63 characters");
}

static void escapes_and_any_key_order_are_read(void **state)
{
    json_t *root = parse(" {\"b\\u0062\" : \"\\u00e9\\n\\ud83d\\ude00\" , \"a\":\t[ ] }\r\n");
    struct json_at at = json_root(root, "x.json");
    const char *text;
    struct err e;

    (void)state;
    assert_int_equal(json_get_text(&text, &at, "bb", &e), 0);
    assert_string_equal(text, "\xc3\xa9\n\xf0\x9f\x98\x80");
    json_decref(root);
}

static void integers_are_exact_or_refused(void **state)
{
    json_t *root = parse("{\"a\":8,\"b\":8.0,\"c\":8e0,\"d\":8.5,\"e\":9007199254740992,"
                         "\"f\":9007199254740993,\"g\":1e300,\"h\":\"8\",\"i\":null,\"j\":true,"
                         "\"k\":-9007199254740992,\"l\":-0,\"m\":{},\"n\":800e-2}");
    struct json_at at = json_root(root, "x.json");
    static const struct {
        const char *key;
        int64_t value;
        const char *fragment; /* NULL: accepted */
    } cases[] = {
        {"a", 8, NULL},
        {"b", 8, NULL},
        {"c", 8, NULL},
        {"n", 8, NULL},
        {"d", 0, "x.json: d: \"8.5\" is not an integer"},
        {"e", INT64_C(1) << 53, NULL},
        {"f", 0, "x.json: f: \"9007199254740993\" is not an integer"},
        {"g", 0, "is not an integer"},
        {"h", 0, "x.json: h must be an integer"},
        {"i", -5, NULL},
        {"j", 0, "x.json: j must be an integer"},
        {"k", -(INT64_C(1) << 53), NULL},
        {"l", 0, NULL},
        {"m", 0, "x.json: m must be an integer"},
        {"absent", -5, NULL},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        int64_t v = 77;
        struct err e = {0};
        int code = json_get_int(&v, &at, cases[i].key, -5, INT64_MIN, INT64_MAX, &e);

        if (!cases[i].fragment) {
            assert_int_equal(code, 0);
            assert_int_equal(v, cases[i].value);
            continue;
        }
        assert_int_equal(code, ERR_FORMAT);
        assert_int_equal(v, 77);
        if (!strstr(e.text, cases[i].fragment))
            fail_msg("\"%s\" lacks \"%s\"", e.text, cases[i].fragment);
    }
    json_decref(root);
}

static void a_value_out_of_range_is_named_with_its_path(void **state)
{
    json_t *root = parse("{\"config\":{\"linear_attn_config\":{\"head_dim\":70000}}}");
    struct json_at at = json_root(root, "manifest.json"), config, linear;
    int64_t v = 1;
    struct err e;

    (void)state;
    assert_int_equal(json_enter(&config, &at, "config", &e), 0);
    assert_string_equal(config.path, "manifest.json: config");
    assert_int_equal(json_enter(&linear, &config, "linear_attn_config", &e), 0);
    assert_int_equal(json_get_int(&v, &linear, "head_dim", 0, 0, 65536, &e), ERR_FORMAT);
    assert_string_equal(
        e.text,
        "manifest.json: config.linear_attn_config.head_dim = 70000 is out of range 0...65536");
    at = json_root(config.object, "config");
    assert_int_equal(json_enter(&linear, &at, "linear_attn_config", &e), 0);
    assert_string_equal(linear.path, "config.linear_attn_config");
    at = json_root(config.object, "");
    assert_int_equal(json_enter(&linear, &at, "linear_attn_config", &e), 0);
    assert_string_equal(linear.path, "linear_attn_config");
    assert_int_equal(v, 1);
    json_decref(root);
}

static void a_member_that_is_absent_or_null_reads_as_its_default(void **state)
{
    json_t *root = parse("{\"n\":null}");
    static const char *const keys[] = {"n", "absent"};
    struct json_at at = json_root(root, "x.json"), none = json_root(NULL, "x.json");
    struct err e;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        const struct json_at *from = i < 2 ? &at : &none;
        const char *key = keys[i % 2], *text = "";
        struct json_at inner = at;
        const json_t *array = root;
        bool flag = true;
        double d = 0;
        int64_t v = 0;

        assert_int_equal(json_get_int(&v, from, key, 9, 0, 1, &e), 0);
        assert_int_equal(v, 9);
        assert_int_equal(json_get_f64(&d, from, key, 2.5, &e), 0);
        assert_true(d == 2.5);
        assert_int_equal(json_get_flag(&flag, from, key, &e), 0);
        assert_false(flag);
        assert_int_equal(json_get_text(&text, from, key, &e), 0);
        assert_null(text);
        assert_int_equal(json_get_array(&array, from, key, &e), 0);
        assert_null(array);
        assert_int_equal(json_enter(&inner, from, key, &e), 0);
        assert_null(inner.object);
    }
    json_decref(root);
}

static void a_wrong_type_is_refused_by_name_and_leaves_the_output(void **state)
{
    json_t *root = parse("{\"n\":3,\"s\":\"x\",\"a\":[],\"o\":{},\"t\":true}");
    struct json_at at = json_root(root, "x.json"), inner = at;
    const char *text = "kept";
    const json_t *array = root;
    bool flag = true;
    double d = 7;
    struct err e;

    (void)state;
    assert_int_equal(json_get_text(&text, &at, "n", &e), ERR_FORMAT);
    assert_string_equal(e.text, "x.json: n must be a string");
    assert_string_equal(text, "kept");
    assert_int_equal(json_get_flag(&flag, &at, "n", &e), ERR_FORMAT);
    assert_string_equal(e.text, "x.json: n must be true or false");
    assert_true(flag);
    assert_int_equal(json_get_f64(&d, &at, "s", 0, &e), ERR_FORMAT);
    assert_string_equal(e.text, "x.json: s must be a number");
    assert_true(d == 7);
    assert_int_equal(json_get_array(&array, &at, "o", &e), ERR_FORMAT);
    assert_string_equal(e.text, "x.json: o must be an array");
    assert_ptr_equal(array, root);
    assert_int_equal(json_enter(&inner, &at, "a", &e), ERR_FORMAT);
    assert_string_equal(e.text, "x.json: a must be an object");
    assert_ptr_equal(inner.object, root);
    assert_int_equal(json_get_flag(&flag, &at, "t", &e), 0);
    assert_true(flag);
    assert_int_equal(json_get_f64(&d, &at, "n", 0, &e), 0);
    assert_true(d == 3);
    json_decref(root);
}

static void text_for_messages_has_no_control_bytes_and_no_half_character(void **state)
{
    char out[8];

    (void)state;
    assert_string_equal(json_printable(out, sizeof(out), "a\nb\x1b\x7f", 5), "a?b??");
    assert_string_equal(json_printable(out, sizeof(out), "123456789", 9), "1234567");
    assert_string_equal(json_printable(out, sizeof(out), "123456\xc3\xa9", 8), "123456");
    assert_string_equal(json_printable(out, sizeof(out), "12345\xc3\xa9", 7), "12345\xc3\xa9");
    assert_string_equal(json_printable(out, 1, "x", 1), "");
}

static void only_a_regular_file_of_a_possible_size_is_parsed(void **state)
{
    char dir[] = "/tmp/json-XXXXXX";
    struct err e = {0};
    json_t *root;
    int at, fd;

    (void)state;
    assert_non_null(mkdtemp(dir));
    at = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(json_parse_file(&root, at, "x.json", 100, &e), ERR_IO);
    assert_non_null(strstr(e.text, "x.json: No such file"));
    fd = openat(at, "x.json", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(json_parse_file(&root, at, "x.json", 100, &e), ERR_FORMAT);
    assert_string_equal(e.text, "x.json: it is empty (an incomplete copy?)");
    assert_int_equal(write(fd, "{\"a\":[1,2]}", 11), 11);
    assert_int_equal(json_parse_file(&root, at, "x.json", 10, &e), ERR_LIMIT);
    assert_string_equal(e.text, "x.json: 11 bytes, it may have 10");
    assert_int_equal(json_parse_file(&root, at, "x.json", 11, &e), 0);
    assert_int_equal(json_array_size(json_object_get(root, "a")), 2);
    json_decref(root);
    assert_int_equal(write(fd, "}", 1), 1);
    assert_int_equal(json_parse_file(&root, at, "x.json", 100, &e), ERR_FORMAT);
    close(fd);
    assert_int_equal(unlinkat(at, "x.json", 0), 0);
    assert_int_equal(mkdirat(at, "x.json", 0700), 0);
    assert_int_equal(json_parse_file(&root, at, "x.json", 100, &e), ERR_IO);
    assert_string_equal(e.text, "x.json: not a regular file");
    assert_int_equal(unlinkat(at, "x.json", AT_REMOVEDIR), 0);
    assert_int_equal(mkfifoat(at, "x.json", 0600), 0);
    assert_int_equal(json_parse_file(&root, at, "x.json", 100, &e), ERR_IO);
    assert_int_equal(unlinkat(at, "x.json", 0), 0);
    close(at);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_json_is_refused_with_its_position),
        cmocka_unit_test(a_repeated_key_is_named),
        cmocka_unit_test(nesting_ends_at_64_below_the_root),
        cmocka_unit_test(more_values_than_the_limit_are_refused),
        cmocka_unit_test(a_number_of_64_characters_is_refused),
        cmocka_unit_test(escapes_and_any_key_order_are_read),
        cmocka_unit_test(integers_are_exact_or_refused),
        cmocka_unit_test(a_value_out_of_range_is_named_with_its_path),
        cmocka_unit_test(a_member_that_is_absent_or_null_reads_as_its_default),
        cmocka_unit_test(a_wrong_type_is_refused_by_name_and_leaves_the_output),
        cmocka_unit_test(text_for_messages_has_no_control_bytes_and_no_half_character),
        cmocka_unit_test(only_a_regular_file_of_a_possible_size_is_parsed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
