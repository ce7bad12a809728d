#include "model/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TEXT_MAX = 64, STRINGS_MAX = 4 };

static struct stop *open_stops(const char *const *strings, unsigned n, int want)
{
    waste_text text[16];
    struct stop *s = NULL;
    struct err e;

    assert_true(n <= 16);
    for (unsigned i = 0; i < n; i++)
        text[i] = (waste_text){strings[i], strlen(strings[i])};
    assert_int_equal(stop_open(&s, text, n, &e), want);
    return s;
}

/* Feed text in pieces of `step` bytes; out is everything up to the match, or the end. */
static int run(const char *const *strings, unsigned n, const char *text, size_t len, size_t step,
               char out[3 * TEXT_MAX], size_t *out_len)
{
    struct stop *s = open_stops(strings, n, 0);
    int matched = -1;

    *out_len = 0;
    for (size_t at = 0; at < len && matched < 0; at += step) {
        size_t part = len - at < step ? len - at : step;

        *out_len += stop_feed(s, text + at, part, out + *out_len, &matched);
    }
    if (matched < 0)
        *out_len += stop_flush(s, out + *out_len);
    stop_close(s);
    return matched;
}

static void expect(const char *const *strings, unsigned n, const char *text, const char *want,
                   int want_matched)
{
    char out[3 * TEXT_MAX];
    size_t len;

    for (size_t step = 1; step <= strlen(text) + 1; step++) {
        int matched = run(strings, n, text, strlen(text), step, out, &len);

        assert_int_equal(matched, want_matched);
        assert_int_equal(len, strlen(want));
        assert_memory_equal(out, want, len);
    }
}

static void text_ends_before_the_first_string_however_it_is_cut(void **state)
{
    const char *const strings[] = {"\n\n", "User:", "er:x"};

    (void)state;
    expect(strings, 3, "one\ntwo\n\nthree", "one\ntwo", 0);
    expect(strings, 3, "one User: two", "one ", 1);
    expect(strings, 3, "one UsUser: two", "one Us", 1);
    expect(strings, 3, "no such thing\n", "no such thing\n", -1);
    expect(strings, 3, "er:x", "", 2);
    expect(strings, 3, "", "", -1);
    expect(NULL, 0, "anything", "anything", -1);
}

static void of_strings_that_end_together_the_longest_counts(void **state)
{
    const char *const strings[] = {"c", "abc", "bc"};

    (void)state;
    expect(strings, 3, "xabcx", "x", 1);
    expect(strings, 3, "xbcx", "x", 2);
    expect(strings, 3, "xcx", "x", 0);
}

static void the_first_of_equal_strings_is_named(void **state)
{
    const char *const strings[] = {"ab", "ab"};

    (void)state;
    expect(strings, 2, "xab", "x", 0);
}

/* The reference's output lags by the whole length of the string, always. */
static void only_what_can_still_match_is_held_back(void **state)
{
    const char *const strings[] = {"<|end_of_msg|>"};
    struct stop *s = open_stops(strings, 1, 0);
    char out[64];
    int matched;

    (void)state;
    assert_int_equal(stop_held_max(s), 13);
    assert_int_equal(stop_feed(s, "Hello", 5, out, &matched), 5);
    assert_int_equal(stop_feed(s, " a<", 3, out, &matched), 2);
    assert_int_equal(stop_feed(s, "|end", 4, out, &matched), 0);
    assert_int_equal(stop_feed(s, "s", 1, out, &matched), 6);
    assert_memory_equal(out, "<|ends", 6);
    assert_int_equal(stop_feed(s, "<<|", 3, out, &matched), 1);
    assert_int_equal(stop_flush(s, out), 2);
    assert_memory_equal(out, "<|", 2);
    assert_int_equal(stop_flush(s, out), 0);
    stop_close(s);
}

static void any_byte_passes(void **state)
{
    const char *const strings[] = {"\xff\xfe"};
    char out[3 * TEXT_MAX];
    size_t len;

    (void)state;
    assert_int_equal(run(strings, 1, "a\0b\xff\0", 5, 2, out, &len), -1);
    assert_int_equal(len, 5);
    assert_memory_equal(out, "a\0b\xff\0", 5);
    assert_int_equal(run(strings, 1, "a\0\xff\xff\xfe", 5, 2, out, &len), 0);
    assert_int_equal(len, 3);
}

static void an_empty_string_is_refused(void **state)
{
    const char *const strings[] = {"a", ""};

    (void)state;
    assert_null(open_stops(strings, 2, ERR_ARG));
    stop_close(NULL);
}

/* Where the first match ends, its length, by looking. */
static bool naive(const char *const *strings, unsigned n, const char *text, size_t len, size_t *end,
                  size_t *length)
{
    for (*end = 1; *end <= len; ++*end) {
        *length = 0;
        for (unsigned i = 0; i < n; i++) {
            size_t l = strlen(strings[i]);

            if (l <= *end && l > *length && !memcmp(text + *end - l, strings[i], l))
                *length = l;
        }
        if (*length)
            return true;
    }
    return false;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static void random_texts_of_two_letters_agree_with_looking(void **state)
{
    uint32_t seed = 1;
    unsigned n_matched = 0;

    (void)state;
    for (unsigned round = 0; round < 20000; round++) {
        char store[STRINGS_MAX][8], text[TEXT_MAX], out[3 * TEXT_MAX];
        const char *strings[STRINGS_MAX];
        unsigned n = 1 + next_random(&seed) % STRINGS_MAX;
        size_t len = next_random(&seed) % TEXT_MAX, out_len, end, length;
        int matched;

        for (unsigned i = 0; i < n; i++) {
            size_t l = 1 + next_random(&seed) % 7;

            for (size_t k = 0; k < l; k++)
                store[i][k] = (char)('a' + next_random(&seed) % 2);
            store[i][l] = '\0';
            strings[i] = store[i];
        }
        for (size_t k = 0; k < len; k++)
            text[k] = (char)('a' + next_random(&seed) % 2);
        matched = run(strings, n, text, len, 1 + next_random(&seed) % 5, out, &out_len);
        if (naive(strings, n, text, len, &end, &length)) {
            assert_true(matched >= 0);
            assert_int_equal(strlen(strings[matched]), length);
            assert_int_equal(out_len, end - length);
            n_matched++;
        } else {
            assert_int_equal(matched, -1);
            assert_int_equal(out_len, len);
        }
        assert_memory_equal(out, text, out_len);
    }
    assert_true(n_matched > 1000 && n_matched < 19500);
}

/* With a place for every byte in every state this took more than 32 bits can count, and was
 * refused.
 */
static void a_string_of_megabytes_is_found(void **state)
{
    enum { BYTES = 5 << 20 };
    char *text = malloc(BYTES), *out = malloc(BYTES + 4);
    waste_text string = {text, BYTES};
    struct stop *s;
    struct err e;
    int matched;

    (void)state;
    memset(text, 'a', BYTES);
    text[BYTES - 1] = 'b';
    assert_int_equal(stop_open(&s, &string, 1, &e), 0);
    assert_int_equal(stop_feed(s, "aaaa", 4, out, &matched), 0);
    assert_int_equal(stop_feed(s, text, BYTES, out, &matched), 4);
    assert_memory_equal(out, "aaaa", 4);
    assert_int_equal(matched, 0);
    stop_close(s);
    free(text);
    free(out);
}

/* All bytes, and strings that are ends of one another: each state's children are many or one. */
static void random_texts_of_all_bytes_agree_with_looking(void **state)
{
    enum { N = 600, LEN = 4000 };
    static char store[N][4], text[LEN], out[2 * LEN];
    waste_text strings[N];
    uint32_t seed = 7;
    unsigned n_matched = 0;

    (void)state;
    for (unsigned round = 0; round < 60; round++) {
        struct stop *s;
        struct err e;
        size_t end = 0, length = 0, n;
        int matched;

        for (unsigned i = 0; i < N; i++) {
            strings[i] = (waste_text){store[i], 2 + (i + round) % 3 / 2 + (round % 2)};
            for (size_t k = 0; k < strings[i].len; k++)
                store[i][k] = (char)next_random(&seed);
        }
        for (size_t k = 0; k < LEN; k++)
            text[k] = (char)next_random(&seed);
        for (end = 1; end <= LEN && !length; end++)
            for (unsigned i = 0; i < N; i++)
                if (strings[i].len <= end && strings[i].len > length &&
                    !memcmp(text + end - strings[i].len, store[i], strings[i].len))
                    length = strings[i].len;
        assert_int_equal(stop_open(&s, strings, N, &e), 0);
        n = stop_feed(s, text, LEN, out, &matched);
        if (length) {
            assert_true(matched >= 0);
            assert_int_equal(strings[matched].len, length);
            assert_int_equal(n, end - 1 - length);
            n_matched++;
        } else {
            assert_int_equal(matched, -1);
            n += stop_flush(s, out + n);
            assert_int_equal(n, LEN);
        }
        assert_memory_equal(out, text, n);
        stop_close(s);
    }
    assert_true(n_matched > 10 && n_matched < 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_ends_before_the_first_string_however_it_is_cut),
        cmocka_unit_test(of_strings_that_end_together_the_longest_counts),
        cmocka_unit_test(the_first_of_equal_strings_is_named),
        cmocka_unit_test(only_what_can_still_match_is_held_back),
        cmocka_unit_test(any_byte_passes),
        cmocka_unit_test(an_empty_string_is_refused),
        cmocka_unit_test(random_texts_of_two_letters_agree_with_looking),
        cmocka_unit_test(random_texts_of_all_bytes_agree_with_looking),
        cmocka_unit_test(a_string_of_megabytes_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
