#include "model/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))
#define R          "\xef\xbf\xbd"

/* Whether n bytes are exactly one character, by arithmetic on the code point. */
static bool is_character(const unsigned char *b, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t c = n == 1 ? b[0] : b[0] & (0xffu >> (n + 1));

    if (n == 1 ? b[0] >= 0x80 : (b[0] & 0xff << (7 - n) & 0xff) != (0xff << (8 - n) & 0xff))
        return false;
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xc0) != 0x80)
            return false;
        c = c << 6 | (b[i] & 0x3f);
    }
    return c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
}

static void check_bytes(const unsigned char *b, size_t len)
{
    size_t want = 0;
    uint32_t c;

    for (size_t n = 1; n <= len && !want; n++)
        if (is_character(b, n))
            want = n;
    if (utf8_char((const char *)b, len, &c) != want)
        fail_msg("%02x %02x %02x %02x (%zu): not %zu bytes", b[0], b[1], b[2], b[3], len, want);
    if (!want && utf8_valid_prefix((const char *)b, len))
        fail_msg("%02x %02x %02x %02x (%zu): has a valid prefix", b[0], b[1], b[2], b[3], len);
}

static void a_character_is_what_unicode_says(void **state)
{
    unsigned char b[4] = {0};

    (void)state;
    for (uint32_t i = 0; i < 1u << 24; i++) {
        b[0] = (unsigned char)(i >> 16);
        b[1] = (unsigned char)(i >> 8);
        b[2] = (unsigned char)i;
        check_bytes(b, 3);
        if (!b[2])
            check_bytes(b, 2);
        if (!b[2] && !b[1])
            check_bytes(b, 1);
    }
    for (uint32_t i = 0; i < 1u << 24; i += 7) { /* four bytes: the last hardly matters */
        b[0] = (unsigned char)(0xe8 + (i >> 20 & 0xf));
        b[1] = (unsigned char)(i >> 12);
        b[2] = (unsigned char)(i >> 4);
        b[3] = (unsigned char)(0x77 + (i & 0xf) * 5);
        check_bytes(b, 4);
    }
}

static void every_code_point_is_read_back(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char s[4];
        size_t n = 0;
        uint32_t got = 0;

        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        if (c < 0x80) {
            s[n++] = (char)c;
        } else {
            unsigned shift = c < 0x800 ? 6 : c < 0x10000 ? 12 : 18;

            s[n++] = (char)((c < 0x800 ? 0xc0 : c < 0x10000 ? 0xe0 : 0xf0) | c >> shift);
            for (; shift; shift -= 6)
                s[n++] = (char)(0x80 | (c >> (shift - 6) & 0x3f));
        }
        assert_int_equal(utf8_char(s, n, &got), n);
        assert_int_equal(got, c);
        assert_int_equal(utf8_valid_prefix(s, n), n);
    }
}

/* The splitter passes PCRE2 what utf8_valid_prefix accepts, and forbids it to check again. */
static void pcre2_accepts_what_we_accept(void **state)
{
    static const unsigned char bytes[] = {
        0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0,
        0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf8, 0xfc, 0xfe, 0xff};
    enum { N = N_ELEMS(bytes) };
    int code;
    PCRE2_SIZE at;
    pcre2_code *any = pcre2_compile((PCRE2_SPTR) "", 0, PCRE2_UTF, &code, &at, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);

    (void)state;
    assert_non_null(any);
    assert_non_null(match);
    for (unsigned i = 0; i < N * N * N * N; i++) {
        char s[4] = {(char)bytes[i % N], (char)bytes[i / N % N], (char)bytes[i / N / N % N],
                     (char)bytes[i / N / N / N]};

        for (size_t len = 1; len <= 4; len++) {
            bool theirs = pcre2_match(any, (PCRE2_SPTR)s, len, 0, 0, match, NULL) >= 0;

            assert_int_equal(utf8_valid_prefix(s, len) == len, theirs);
        }
    }
    pcre2_match_data_free(match);
    pcre2_code_free(any);
}

struct sample {
    const char *in;
    size_t len;
    const char *out;
};

#define S(in, out)                                                                                 \
    {                                                                                              \
        in, sizeof(in) - 1, out                                                                    \
    }

static const struct sample samples[] = {
    S("", ""),
    S("plain", "plain"),
    S("\xf0\x9f\x8e\x89 \xe4\xbd\xa0\xe5\xa5\xbd \xc3\xa9",
      "\xf0\x9f\x8e\x89 \xe4\xbd\xa0\xe5\xa5\xbd \xc3\xa9"),
    /* The Unicode standard's own examples, tables 3-8 to 3-11. */
    S("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"),
    S("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"),
    S("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"),
    S("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"),
    /* Cut off by the end, by another beginning, by a stray byte. */
    S("a\xf0\x9f\x8e", "a" R),
    S("a\xe4\xbd", "a" R),
    S("\xe4\xbd\xe4\xbd\xa0", R "\xe4\xbd\xa0"),
    S("\xf0\x9f\x8e\xf0\x9f\x8e\x89", R "\xf0\x9f\x8e\x89"),
    S("\xc3\x28\xa9\xf4", R "(" R R),
    S("\xe0\xa0\x80\xee\x80\x80\xf4\x8f\xbf\xbf\xf5", "\xe0\xa0\x80\xee\x80\x80\xf4\x8f\xbf\xbf" R),
};

/* Feed in three parts, cut at a and b. The copies let a sanitizer see every byte too far. */
static size_t feed_parts(const char *in, size_t len, size_t a, size_t b, char *out)
{
    const size_t cut[4] = {0, a, b, len};
    struct utf8 u = {0};
    size_t n = 0;

    for (unsigned i = 0; i < 3; i++) {
        size_t part = cut[i + 1] - cut[i];
        char *copy = malloc(part + 1), *made = malloc(UTF8_FEED_MAX(part));
        char *exact = copy + 1; /* the part ends where the allocation does */

        assert_non_null(copy);
        assert_non_null(made);
        memcpy(exact, in + cut[i], part);
        part = utf8_feed(&u, exact, part, made);
        assert_true(u.n_held <= 3);
        assert_int_equal(utf8_valid_prefix(made, part), part);
        memcpy(out + n, made, part);
        n += part;
        free(made);
        free(copy);
    }
    n += utf8_flush(&u, out + n);
    assert_int_equal(u.n_held, 0);
    return n;
}

static void a_stream_gives_the_same_however_it_is_cut(void **state)
{
    char out[UTF8_FEED_MAX(64)];

    (void)state;
    for (size_t i = 0; i < N_ELEMS(samples); i++) {
        const struct sample *s = &samples[i];

        for (size_t a = 0; a <= s->len; a++) {
            for (size_t b = a; b <= s->len; b++) {
                size_t n = feed_parts(s->in, s->len, a, b, out);

                assert_int_equal(n, strlen(s->out));
                assert_memory_equal(out, s->out, n);
            }
        }
    }
}

static void random_bytes_byte_by_byte_equal_one_shot(void **state)
{
    static const unsigned char pool[] = {0x00, 'a',  0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc2,
                                         0xe0, 0xe4, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xff};
    char in[40], whole[UTF8_FEED_MAX(40)], part[UTF8_FEED_MAX(40) + 3];
    uint32_t x = 1;

    (void)state;
    for (unsigned round = 0; round < 20000; round++) {
        struct utf8 u = {0};
        size_t len = round % sizeof(in), n, m = 0;

        for (size_t i = 0; i < len; i++) {
            x = x * 1664525 + 1013904223;
            in[i] = (char)pool[(x >> 16) % sizeof(pool)];
        }
        n = utf8_feed(&u, in, len, whole);
        n += utf8_flush(&u, whole + n);
        for (size_t i = 0; i < len; i++)
            m += utf8_feed(&u, in + i, 1, part + m);
        m += utf8_flush(&u, part + m);
        assert_int_equal(n, m);
        assert_memory_equal(whole, part, n);
    }
}

/* T11: an emoji over three tokens used to arrive as three U+FFFD. Nothing is held that need not. */
static void whole_characters_are_never_held_back(void **state)
{
    struct utf8 u = {0};
    char out[UTF8_FEED_MAX(8)];

    (void)state;
    assert_int_equal(utf8_feed(&u, "ab\xf0", 3, out), 2);
    assert_int_equal(utf8_feed(&u, "\x9f\x8e", 2, out), 0);
    assert_int_equal(utf8_feed(&u, "", 0, out), 0);
    assert_int_equal(utf8_feed(&u, "\x89!", 2, out), 5);
    assert_memory_equal(out, "\xf0\x9f\x8e\x89!", 5);
    assert_int_equal(utf8_flush(&u, out), 0);
    assert_int_equal(utf8_feed(&u, "\xed\xa0", 2, out), 6); /* a surrogate: cannot become valid */
    assert_int_equal(utf8_flush(&u, out), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_character_is_what_unicode_says),
        cmocka_unit_test(every_code_point_is_read_back),
        cmocka_unit_test(pcre2_accepts_what_we_accept),
        cmocka_unit_test(a_stream_gives_the_same_however_it_is_cut),
        cmocka_unit_test(random_bytes_byte_by_byte_equal_one_shot),
        cmocka_unit_test(whole_characters_are_never_held_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
