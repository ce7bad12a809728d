/* Both forms of a routing trace, and everything that can be wrong with one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/bench/routes.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static int parse(struct routes *r, const char *text, struct err *e)
{
    return routes_parse(r, text, strlen(text), "t", e);
}

static void the_published_form_is_read(void **state)
{
    struct routes r;
    struct err e;

    (void)state;
    if (parse(&r,
              "{\"tok\": 1, \"layers\": [[3, 1], [0, 2]]}\n"
              "\n"
              "{\"layers\": [[7, 4], []]}",
              &e))
        fail_msg("%s", e.text);
    assert_int_equal(r.n_tokens, 2);
    assert_int_equal(r.n_layers, 2);
    assert_int_equal(r.n_experts, 8);
    assert_int_equal(r.top_k, 2);
    assert_int_equal(r.n_calls, 4);
    assert_int_equal(r.n_ids, 6);
    assert_int_equal(r.call[1].layer, 1);
    assert_int_equal(r.call[1].first, 2);
    assert_int_equal(r.call[1].n, 2);
    assert_int_equal(r.id[2], 0);
    assert_int_equal(r.id[4], 7);
    assert_int_equal(r.call[3].n, 0);
    assert_null(r.guess);
    routes_release(&r);
}

static void the_form_of_the_engine_is_read(void **state)
{
    struct routes r;
    struct err e;

    (void)state;
    if (parse(&r,
              "5 1 3 1 0.5 0.25 4 -1\n"
              "5 4 0 2 1e-3 1 -1 -1\n"
              "6 1  9 8 .5 .5 0 1 \r\n",
              &e))
        fail_msg("%s", e.text);
    assert_int_equal(r.n_tokens, 2);
    assert_int_equal(r.n_layers, 2);
    assert_int_equal(r.n_experts, 10);
    assert_int_equal(r.n_calls, 3);
    assert_int_equal(r.call[1].layer, 1); /* the second layer to appear */
    assert_int_equal(r.call[2].layer, 0);
    assert_int_equal(r.id[4], 9);
    assert_int_equal(r.guess[0], 4);
    assert_int_equal(r.guess[1], -1);
    assert_int_equal(r.guess[5], 1);
    routes_release(&r);
}

static void what_is_wrong_is_named_by_line(void **state)
{
    static const struct {
        const char *text, *said;
    } bad[] = {
        {"", "t: no expert is asked for"},
        {"\n\n", "t: no expert is asked for"},
        {"{\"layers\": [[]]}", "t: no expert is asked for"},
        {"{\"layers\": [[1]]}\n{\"layers\": [[1]]", "t:2: "},
        {"{\"layers\": [[1]]}\n{\"layers\": [[1], [2]]}", "t:2: 2 layers, 1 in the lines before"},
        {"{\"layers\": []}", "t:1: 0 layers: 1...1024 are possible"},
        {"{\"tok\": 3}", "t:1: 0 layers"},
        {"{\"layers\": 3}", "t:1: "},
        {"{\"layers\": [1]}", "t:1: layers[0] is not a list"},
        {"{\"layers\": [[1, 1.5]]}", "t:1: layers[0][1] is not a whole number"},
        {"{\"layers\": [[1], [-1]]}", "t:1: layers[1]: expert -1: 0...65535 are possible"},
        {"{\"layers\": [[65536]]}", "t:1: layers[0]: expert 65536: 0...65535"},
        {"{\"layers\": [[1, 2, 1]]}", "t:1: layers[0]: expert 1 twice in one layer"},
        {"{\"layers\": [[1]]}\n5 1 3 0.5 -1", "t:2: "},
        {"[]", "t:1: 1 fields"},
        {"5 1 3 0.5 -1\n5 1 3 0.5", "t:2: 4 fields"},
        {"5 1 3 0.5 -1\n5 1 3 4 0.5 1 -1 1", "t:2: 8 fields, 5 in the lines before"},
        {"-1 1 3 0.5 -1", "t:1: position \"-1\": a whole number from 0"},
        {"5 1024 3 0.5 -1", "t:1: layer \"1024\": a whole number from 0 to 1023"},
        {"5 1 3x 0.5 -1", "t:1: expert \"3x\""},
        {"5 1 3 3 .5 .5 -1 -1", "t:1: expert 3 twice"},
        {"5 1 99999999999999999999 0.5 -1", "t:1: expert \"99999999999999999999\""},
        {"5 1 9999999999999999999999999999 0.5 -1", "t:1: expert \"99999"},
        {"5 1 3 0.5 -2", "t:1: guess \"-2\""},
    };

    (void)state;
    for (unsigned i = 0; i < N_ELEMS(bad); i++) {
        struct routes r = {.n_ids = 77};
        struct err e;

        assert_int_equal(parse(&r, bad[i].text, &e), ERR_FORMAT);
        if (strncmp(e.text, bad[i].said, strlen(bad[i].said)))
            fail_msg("\"%s\": \"%s\"", bad[i].text, e.text);
        assert_int_equal(r.n_ids, 77); /* untouched */
    }
}

static void lines_and_calls_are_bounded(void **state)
{
    size_t len = ROUTES_LINE_MAX + 1, at;
    char *text = malloc(len + 1);
    struct routes r;
    struct err e;

    (void)state;
    memset(text, ' ', len);
    text[len] = '\0';
    assert_int_equal(parse(&r, text, &e), ERR_LIMIT);
    assert_string_equal(e.text, "t:1: longer than 1048576 bytes");
    at = (size_t)sprintf(text, "{\"layers\":[[0");
    for (unsigned i = 1; i <= ROUTES_CALL_MAX; i++)
        at += (size_t)sprintf(text + at, ",%u", i);
    sprintf(text + at, "]]}");
    assert_int_equal(parse(&r, text, &e), ERR_LIMIT);
    assert_string_equal(e.text, "t:1: layers[0]: more than 1024 experts of one layer");
    free(text);
}

static void a_file_is_read_like_its_text(void **state)
{
    struct routes r;
    struct err e;

    (void)state;
    if (routes_read(&r, GOLDEN_DIR "/route_demo_300.jsonl", &e))
        fail_msg("%s", e.text);
    assert_int_equal(r.n_tokens, 299);
    assert_int_equal(r.n_layers, 7);
    assert_int_equal(r.n_experts, 32);
    assert_int_equal(r.top_k, 4);
    assert_int_equal(r.n_ids, 299 * 7 * 4);
    routes_release(&r);
    assert_int_equal(routes_read(&r, GOLDEN_DIR "/no such file", &e), ERR_IO);
    assert_non_null(strstr(e.text, "no such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_form_is_read),
        cmocka_unit_test(the_form_of_the_engine_is_read),
        cmocka_unit_test(what_is_wrong_is_named_by_line),
        cmocka_unit_test(lines_and_calls_are_bounded),
        cmocka_unit_test(a_file_is_read_like_its_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
