#include <jansson.h>

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/model/tokenizing.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

/* The C library's own entry points let this program fail allocations of every library in it. */
#if defined(__GLIBC__) && !defined(SANITIZED)
#define CAN_FAIL_ALLOCATIONS 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

#pragma GCC visibility push(default) /* libraries must find these, whatever the build hides */

static bool counting;
static unsigned long n_allocations, fail_nth;
static long n_live;

static bool allocation_fails(void)
{
    if (!counting)
        return false;
    if (++n_allocations == fail_nth) {
        errno = ENOMEM;
        return true;
    }
    n_live++;
    return false;
}

void *malloc(size_t n)
{
    return allocation_fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return allocation_fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    if (!p)
        return malloc(n);
    if (counting && ++n_allocations == fail_nth)
        return NULL;
    return __libc_realloc(p, n);
}

void free(void *p)
{
    if (counting && p)
        n_live--;
    __libc_free(p);
}
#pragma GCC visibility pop
#endif

static void check_split(const struct tokenizer *t, const char *text, size_t len, const size_t *want,
                        size_t n_want)
{
    size_t lens[64], n, sum = 0;
    struct err e;

    assert_int_equal(tokenizer_split(t, text, len, lens, N_ELEMS(lens), &n, &e), 0);
    for (size_t i = 0; i < n; i++) {
        if (i >= n_want || lens[i] != want[i])
            fail_msg("%.*s: piece %zu is \"%.*s\"", len < 100 ? (int)len : 0, text, i,
                     lens[i] < 100 ? (int)lens[i] : 100, text + sum);
        sum += lens[i];
    }
    assert_int_equal(n, n_want);
    assert_int_equal(sum, len);
}

#define CHECK_SPLIT(t, text, len, ...)                                                             \
    check_split(t, text, len, (const size_t[]){__VA_ARGS__},                                       \
                N_ELEMS(((const size_t[]){__VA_ARGS__})))

static const char *const splits[][12] = {
    {"Camel", "Case", " i", "Phone", "15", "Pro"},
    {"SCREAMING", "_CASE", " HTTPServer"},
    {"don't", " CAN'T"},
    {"we're", " You'VE", " I'm", " he'd", " it's", " we'll"},
    {"a", "’s"},
    {"123", "456", "7", " ", "½²"},
    {"好的", "。", "你好", "、", "世界々〇", "ー"},
    {"日本語", "のテスト"},
    {"x", "=", "1", ";//", "c", "\r\n\r\n", "z"},
    {"a", " \n", " b"},
    {"\ttab", "\t", "\tx"},
    {"\u200bzero"},
    /* One for each clause of the pattern that the table above leaves out. */
    {" ", " two"},
    {" ", "42"},
    {"a", "  "},
    {"a", " \t\r\n", "  ", " b"},
    {"it'ſ", " we'LL", " I", "'x"},
    {"'s"},
    {"ア", "BC"},
    {"アb", "C"},
    {"Ǆa", " ", "Ⅻ①٣", "4"},
    {"e\u0301tude"},
    {"x", "×y", "÷z"},
    {"…!", "\u3000", "\u3000", "你"},
    {"a", " \u180e\u180e", "1"},
    {"สวัสดี", " हिन्दी", " 한국어"},
    {"$%\n\n", "a"},
    {" ?!\r", "b"},
    {"🎉🎉", " 🎉"},
    {"x", "\xc2\x85", "\u2028y"},
};

static void the_pattern_splits_as_tiktoken_does(void **state)
{
    struct tokenizer *t = tokenizer_of(NULL, NULL);

    (void)state;
    for (size_t i = 0; i < N_ELEMS(splits); i++) {
        size_t want[12], n = 0, len = 0;
        char text[128] = "";

        for (; n < 12 && splits[i][n]; n++) {
            want[n] = strlen(splits[i][n]);
            memcpy(text + len, splits[i][n], want[n]);
            len += want[n];
        }
        check_split(t, text, len, want, n);
    }
    CHECK_SPLIT(t, "\0nul", 4, 4);             /* NUL leads a word like any other */
    CHECK_SPLIT(t, "a\0\0b\0", 5, 1, 2, 1, 1); /* T13: and ends nothing */
    tokenizer_close(t);
}

/* T9: the cuts of the model's own tokenizer, inside the encoder and so the same for everybody. */
static void long_texts_are_cut_where_the_release_cuts_them(void **state)
{
    struct tokenizer *t = tokenizer_of(NULL, NULL);
    size_t len, more, n;
    char *s = repeat("a", 50002, &len), *spaces = repeat(" ", 60000, &more);
    struct err e;

    (void)state;
    CHECK_SPLIT(t, s, 25000, 25000);
    CHECK_SPLIT(t, s, 25001, 25000, 1);
    CHECK_SPLIT(t, s, 50002, 25000, 25000, 2);
    s[25000] = ' '; /* the counter starts again: a word of 1 + 25,000 */
    CHECK_SPLIT(t, s, 50001, 25000, 25001);
    CHECK_SPLIT(t, s, 50002, 25000, 25001, 1);
    CHECK_SPLIT(t, spaces, 60000, 25000, 25000, 10000);
    memset(spaces, 0x1c, 20000); /* whitespace for the counter, not for the pattern */
    CHECK_SPLIT(t, spaces, 40000, 20000, 5000, 15000);
    free(spaces);
    free(s);

    /* Characters are counted, not bytes; no byte of a cut text gets lost. */
    s = repeat("é", 25001, &len);
    CHECK_SPLIT(t, s, len, 50000, 2);
    free(s);
    s = repeat("\xff", 25001, &len);
    CHECK_SPLIT(t, s, len, 25000, 1);
    free(s);
    s = repeat("ab c", 100001, &len);
    for (size_t skip = 0; skip < 3; skip++) {
        assert_int_equal(tokenizer_split(t, s + skip, len - skip, NULL, 0, &n, &e), 0);
        assert_int_equal(n, skip == 2 ? 100001 : 100003); /* " c|ab", " ca|b", " cab|" */
    }
    free(s);
    tokenizer_close(t);
}

static void invalid_utf8_is_a_piece_of_its_own(void **state)
{
    struct tokenizer *t =
        tokenizer_of((const char *const[]){"\xff\xfe", "\xfe\xe4", "a\xff", NULL}, NULL);

    (void)state;
    CHECK_SPLIT(t, "a\xff\xfe\xe4\xbd!", 6, 1, 4, 1);
    CHECK_SPLIT(t, "\xe4\xbd\xe4\xbd\xa0", 5, 2, 3);
    CHECK_SPLIT(t, "a \xff b", 5, 1, 1, 1, 2); /* what follows is not seen by the pattern */
    CHECK_SPLIT(t, "\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80", 9, 9);
    CHECK_SPLIT(t, "x\xf0\x9f\x8e", 4, 1, 3);
    CHECK_IDS(t, TOKEN_CONTENT, "a\xff\xfe\xe4", 'a', 256, 0xe4);
    tokenizer_close(t);
}

/* T6, T7: without the precautions minutes, or an error from PCRE2. */
static void a_megabyte_of_anything_is_split(void **state)
{
    static const char *const units[] = {"ab ", "a",  "A", "好", "'",      "アB",  "\n ",
                                        " \t", "7",  "½", "あ", "\u0301", "\xff", "a\xff",
                                        "<|a", "ア", "🎉", " .", "\r",     "Ab"};
    struct tokenizer *t = tokenizer_of((const char *const[]){"aa", "aaaa", "aaaaaaaa", NULL},
                                       "[{\"id\":300,\"text\":\"<|ab|>\"}]");

    (void)state;
    for (size_t i = 0; i < N_ELEMS(units); i++) {
        size_t len;
        char *s = repeat(units[i], 1000000 / strlen(units[i]), &len);

        check_round_trip(t, s, len);
        free(s);
    }
    for (unsigned upper = 0; upper < 2; upper++) { /* many letters, then what ends the word late */
        size_t len;
        char *s = repeat(upper ? "B" : "ア", 24999, &len);

        strcpy(s + len - 3, upper ? "a" : "B");
        check_round_trip(t, s, strlen(s));
        free(s);
    }
    tokenizer_close(t);
}

struct vocab { /* for the reference: a list */
    struct {
        char s[24];
        size_t len;
    } token[1024];
    unsigned n;
};

static int32_t vocab_find(const struct vocab *v, const char *s, size_t len)
{
    for (unsigned i = 0; i < v->n; i++)
        if (v->token[i].len == len && !memcmp(v->token[i].s, s, len))
            return (int32_t)i;
    return -1;
}

/* The definition: merge the pair of lowest rank, leftmost of those, until there is none. */
static size_t merge_slowly(const struct vocab *v, const char *s, size_t len, int32_t *ids)
{
    size_t end[512], n = len;

    if (vocab_find(v, s, len) >= 0) {
        ids[0] = vocab_find(v, s, len);
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        end[i] = i + 1;
    for (;;) {
        int32_t best = -1;
        size_t where = 0;

        for (size_t i = 0, start = 0; i + 1 < n; start = end[i++]) {
            int32_t rank = vocab_find(v, s + start, end[i + 1] - start);

            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                where = i;
            }
        }
        if (best < 0)
            break;
        memmove(end + where, end + where + 1, (n - where - 1) * sizeof(*end));
        n--;
    }
    for (size_t i = 0, start = 0; i < n; start = end[i++])
        ids[i] = vocab_find(v, s + start, end[i] - start);
    return n;
}

/* Tokens are joined from tokens, as training does it; some from nothing that can be reached. */
static void vocab_random(struct vocab *v, const char *alphabet, unsigned n_merges)
{
    size_t n_letters = strlen(alphabet);

    for (v->n = 0; v->n < 256; v->n++) {
        v->token[v->n].s[0] = (char)v->n;
        v->token[v->n].len = 1;
    }
    while (v->n < 256 + n_merges) {
        char s[3 * sizeof(v->token[0].s)];
        size_t len = 0;

        for (unsigned part = 0; part < 2 + (random_below(8) == 0); part++) {
            unsigned i = v->n > 256 && random_below(3)
                             ? 256 + random_below(v->n - 256)
                             : (unsigned char)alphabet[random_below((uint32_t)n_letters)];

            memcpy(s + len, v->token[i].s, v->token[i].len);
            len += v->token[i].len;
        }
        if (len > sizeof(v->token[0].s) || vocab_find(v, s, len) >= 0)
            continue;
        memcpy(v->token[v->n].s, s, len);
        v->token[v->n++].len = len;
    }
    for (unsigned i = 256; i < v->n; i++) { /* ranks do not grow with length */
        unsigned j = random_below(4) ? i : 256 + random_below(v->n - 256);

        memcpy(&v->token[v->n], &v->token[i], sizeof(v->token[i]));
        memcpy(&v->token[i], &v->token[j], sizeof(v->token[i]));
        memcpy(&v->token[j], &v->token[v->n], sizeof(v->token[i]));
    }
}

static struct tokenizer *vocab_open(const struct vocab *v)
{
    struct rank_file f = {0};
    struct tokenizer *t;
    struct err e;

    for (unsigned i = 0; i < v->n; i++) /* any order of lines will do */
        rank_file_line(&f, v->token[(i * 7 + 3) % v->n].s, v->token[(i * 7 + 3) % v->n].len,
                       (i * 7 + 3) % v->n);
    if (tokenizer_parse(&t, f.text, f.len, NULL, 0, 0, &e))
        fail_msg("%s", e.text);
    free(f.text);
    return t;
}

/* T8: no window, whatever the length of a piece. */
static void merging_equals_the_quadratic_definition(void **state)
{
    static const char *const alphabets[] = {"ab", "abc", "xyz'", "\xff\xfe", "\x80\xc0\xff\xe4"};
    struct vocab *v = malloc(sizeof(*v));
    char s[500];
    int32_t want[500], got[500];

    (void)state;
    assert_non_null(v);
    random_state = 8;
    for (unsigned round = 0; round < 40; round++) {
        const char *alphabet = alphabets[round % N_ELEMS(alphabets)];
        struct tokenizer *t;

        v->n = 0;
        do /* 7 must not divide n, or vocab_open repeats itself */
            vocab_random(v, alphabet, 20 + random_below(300));
        while (v->n % 7 == 0);
        t = vocab_open(v);
        for (unsigned k = 0; k < 40; k++) {
            size_t len = 1 + random_below(k ? 60 : sizeof(s) - 1), n = 0, lens[500], n_pieces;
            size_t at = 0;
            struct err e;

            for (size_t i = 0; i < len; i++)
                s[i] = alphabet[random_below((uint32_t)strlen(alphabet))];
            assert_int_equal(tokenizer_split(t, s, len, lens, N_ELEMS(lens), &n_pieces, &e), 0);
            for (size_t i = 0; i < n_pieces; at += lens[i++])
                n += merge_slowly(v, s + at, lens[i], want + n);
            assert_int_equal(encode(t, TOKEN_CONTENT, s, len, got, N_ELEMS(got)), n);
            assert_memory_equal(got, want, n * sizeof(*got));
        }
        tokenizer_close(t);
    }
    free(v);
}

static void a_piece_that_is_a_token_is_not_merged(void **state)
{
    /* "abc" is out of reach of merges: ab comes first and leaves c over. */
    struct tokenizer *t =
        tokenizer_of((const char *const[]){"xb", "ab", "xab", "bcd", "abcd", NULL}, NULL);

    (void)state;
    CHECK_IDS(t, TOKEN_CONTENT, "abcd", 260);
    CHECK_IDS(t, TOKEN_CONTENT, "abcde", 257, 'c', 'd', 'e');
    CHECK_IDS(t, TOKEN_CONTENT, "xab", 258);
    CHECK_IDS(t, TOKEN_CONTENT, "xabe", 258, 'e');
    tokenizer_close(t);
}

static void equal_ranks_merge_from_the_left(void **state)
{
    struct tokenizer *t = tokenizer_of((const char *const[]){"aa", "aaaa", NULL}, NULL);

    (void)state;
    CHECK_IDS(t, TOKEN_CONTENT, "aaa", 256, 'a');
    CHECK_IDS(t, TOKEN_CONTENT, "aaaaa", 257, 'a');
    CHECK_IDS(t, TOKEN_CONTENT, "aaaaaaa", 257, 256, 'a');
    tokenizer_close(t);
}

static void markup_finds_the_leftmost_and_of_those_the_longest(void **state)
{
    struct tokenizer *t = tokenizer_of((const char *const[]){"\"<", "\"<|", "|>", NULL}, markers);

    (void)state;
    CHECK_IDS(t, TOKEN_MARKUP, "<|open|>", 300);
    CHECK_IDS(t, TOKEN_MARKUP, "<|open|>x<|open|>y", 302, 300, 'y');
    CHECK_IDS(t, TOKEN_MARKUP, "<<|open|<|sep|>", '<', '<', '|', 'o', 'p', 'e', 'n', '|', 301);
    CHECK_IDS(t, TOKEN_MARKUP, "\"<|sep|>", '"', 301); /* the pattern alone would glue them */
    CHECK_IDS(t, TOKEN_MARKUP, "[BOS][BOS]", 310, 310);
    CHECK_IDS(t, TOKEN_MARKUP, "\xff<|sep|>\xe4", 0xff, 301, 0xe4);
    CHECK_IDS(t, TOKEN_CONTENT, "<|sep|>", '<', '|', 's', 'e', 'p', 258);
    tokenizer_close(t);
}

static void text_between_control_tokens_is_a_string_of_its_own(void **state)
{
    struct tokenizer *t = tokenizer_of((const char *const[]){"  ", " a", NULL}, markers);

    (void)state;
    /* Two spaces before the end are one piece; before a word one of them goes to the word. */
    CHECK_IDS(t, TOKEN_MARKUP, "  <|sep|>  a", 256, 301, ' ', 257);
    tokenizer_close(t);
}

/* The release cuts first and looks for control tokens in each part. */
static void a_control_token_across_a_seam_is_text(void **state)
{
    struct tokenizer *t = tokenizer_of(NULL, markers);
    size_t len, n;
    char *s = repeat("x", 25010, &len);
    int32_t *ids = calloc(len, sizeof(*ids));

    (void)state;
    assert_non_null(ids);
    memcpy(s + 24993, "<|sep|>", 7);
    n = encode(t, TOKEN_MARKUP, s, 25000, ids, len);
    assert_int_equal(n, 24994);
    assert_int_equal(ids[24993], 301);
    memcpy(s + 24993, "x<|sep|>", 8);
    assert_int_equal(encode(t, TOKEN_MARKUP, s, 25001, ids, len), 25001);
    free(ids);
    free(s);
    tokenizer_close(t);
}

/* T2: what JSON escapes, and what C would cut. */
static void texts_are_read_as_json(void **state)
{
    struct tokenizer *t = tokenizer_of(
        NULL, "[{\"id\":258,\"text\":\"q\\\"\\\\\\u00e9\\ud83c\\udf89\"},{\"id\":257,\"text\":"
              "\"a\\u0000b\",\"special\":true},\n{\"text\":\"end\",\"id\":999}]");
    const char *text;
    size_t len;
    int32_t id;

    (void)state;
    assert_int_equal(tokenizer_n_specials(t), 3);
    tokenizer_special(t, 0, &id, &text, &len);
    assert_int_equal(id, 257);
    assert_int_equal(len, 3);
    assert_memory_equal(text, "a\0b", 3);
    tokenizer_special(t, 1, &id, &text, &len);
    assert_int_equal(id, 258);
    assert_int_equal(len, strlen("q\"\\é🎉"));
    assert_memory_equal(text, "q\"\\é🎉", len);
    assert_int_equal(tokenizer_special_id(t, "a\0b", 3), 257);
    assert_int_equal(tokenizer_special_id(t, "a", 1), -1);
    assert_int_equal(tokenizer_special_id(t, "end!", 4), -1);
    assert_int_equal(tokenizer_special_id(t, "", 0), -1);
    assert_true(tokenizer_is_special(t, 999));
    assert_false(tokenizer_is_special(t, 998));
    assert_false(tokenizer_is_special(t, 'a'));
    assert_false(tokenizer_is_special(t, -1));
    assert_int_equal(tokenizer_bos(t), 256);
    tokenizer_close(t);
}

/* T3: the same number is another marker in another family; the text decides. */
static void markers_are_found_by_text(void **state)
{
    struct tokenizer *a = tokenizer_of(NULL, "[{\"id\":259,\"text\":\"<|open|>\"}]");
    struct tokenizer *b = tokenizer_of(NULL, "[{\"id\":259,\"text\":\"<|im_user|>\"}]");

    (void)state;
    assert_int_equal(tokenizer_special_id(a, "<|open|>", 8), 259);
    assert_int_equal(tokenizer_special_id(b, "<|open|>", 8), -1);
    assert_int_equal(tokenizer_special_id(b, "<|im_user|>", 11), 259);
    tokenizer_close(a);
    tokenizer_close(b);
}

/* T10: encoding is not associative. */
static void segments_are_encoded_by_themselves(void **state)
{
    struct tokenizer *t =
        tokenizer_of((const char *const[]){"=\"", "=\"_", "_i", "_id", NULL}, NULL);

    (void)state;
    CHECK_IDS(t, TOKEN_CONTENT, "=\"", 256);
    CHECK_IDS(t, TOKEN_CONTENT, "_id", 259);
    CHECK_IDS(t, TOKEN_CONTENT, "=\"_id", 257, 'i', 'd');
    tokenizer_close(t);
}

/* The attack: content that spells control tokens, in any way, adds none to the prompt. */
static void content_never_adds_a_control_token(void **state)
{
    static const char *const parts[] = {
        "<|open|>", "<|sep|>", "<|end_of_msg|>", "[BOS]", "<|", "|>", "x",
        " ",        "\n",      "\xff",           "好",    "<"};
    struct tokenizer *t = tokenizer_of((const char *const[]){"<|", "|>", "<|o", NULL}, markers);
    char content[256];
    int32_t ids[600];

    (void)state;
    random_state = 10;
    for (unsigned round = 0; round < 2000; round++) {
        size_t len = 0, n, n_control = 0;

        while (len < 200 && random_below(20)) {
            const char *part = parts[random_below(N_ELEMS(parts))];

            memcpy(content + len, part, strlen(part));
            len += strlen(part);
        }
        n = encode(t, TOKEN_MARKUP, "<|open|>user<|sep|>", 19, ids, 100);
        n += encode(t, TOKEN_CONTENT, content, len, ids + n, 300);
        n += encode(t, TOKEN_MARKUP, "<|end_of_msg|>", 14, ids + n, 100);
        for (size_t i = 0; i < n; i++)
            n_control += tokenizer_is_special(t, ids[i]);
        assert_int_equal(n_control, 3);
    }
    tokenizer_close(t);
}

static void decoding_gives_back_any_bytes(void **state)
{
    static const char *const parts[] = {"<|open|>", "[BOS]", "word", " ",     "\xf0\x9f\x8e", "好",
                                        "\xe5",     "\xa5",  "\r\n", "DON'T", "12",           "é"};
    struct tokenizer *t = tokenizer_of(
        (const char *const[]){"wo", "rd", "\xe5\xa5", "\x8e\xe5", " w", NULL}, markers);
    char s[400];

    (void)state;
    random_state = 5;
    for (unsigned round = 0; round < 4000; round++) {
        size_t len = 0, want = random_below(200);

        while (len < want) {
            const char *part = parts[random_below(N_ELEMS(parts))];

            if (round % 2 || random_below(4) == 0) {
                s[len++] = (char)random_below(256);
            } else {
                memcpy(s + len, part, strlen(part));
                len += strlen(part);
            }
        }
        check_round_trip(t, s, len);
    }
    tokenizer_close(t);
}

static void decoding_knows_every_id(void **state)
{
    struct tokenizer *t = tokenizer_of((const char *const[]){"a\xf0\x9f", NULL}, markers);
    const int32_t ids[] = {256, 0, 300, 299, -1, 1 << 30, INT32_MIN, 'z'};
    const char *bytes;
    char out[64];
    size_t n;
    struct err e;

    (void)state;
    assert_int_equal(tokenizer_decode(t, ids, N_ELEMS(ids), out, sizeof(out), &n, &e), 0);
    assert_int_equal(n, 3 + 1 + 8 + 1);
    assert_memory_equal(out, "a\xf0\x9f\0<|open|>z", n);
    assert_true(tokenizer_token_bytes(t, 0, &bytes, &n));
    assert_int_equal(n, 1);
    assert_int_equal(bytes[0], 0);
    assert_true(tokenizer_token_bytes(t, 320, &bytes, &n));
    assert_int_equal(n, 14);
    assert_false(tokenizer_token_bytes(t, 257, &bytes, &n));
    assert_int_equal(n, 0);
    assert_int_equal(tokenizer_n_ranks(t), 257);
    tokenizer_close(t);
}

static void too_small_says_how_much_is_needed(void **state)
{
    struct tokenizer *t = tokenizer_of(NULL, NULL);
    const int32_t ids[] = {'a', 'b', 'c'};
    int32_t out[4] = {-7, -7, -7, -7};
    char text[4] = "....";
    size_t lens[2] = {9, 9}, n;
    struct err e;

    (void)state;
    assert_int_equal(tokenizer_encode(t, TOKEN_CONTENT, "abc", 3, out, 2, &n, &e), ERR_ARG);
    assert_int_equal(n, 3);
    assert_int_equal(out[2], -7);
    assert_int_equal(tokenizer_encode(t, TOKEN_CONTENT, "abc", 3, out, 0, &n, &e), ERR_ARG);
    assert_int_equal(n, 3);
    assert_int_equal(tokenizer_encode(t, TOKEN_CONTENT, "abc", 3, NULL, 0, &n, &e), 0);
    assert_int_equal(n, 3);
    assert_int_equal(tokenizer_encode(t, TOKEN_CONTENT, "abc", 3, out, 3, &n, &e), 0);
    assert_int_equal(out[2], 'c');
    assert_int_equal(out[3], -7);
    assert_int_equal(tokenizer_encode(t, TOKEN_MARKUP, NULL, 0, NULL, 0, &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(tokenizer_decode(t, ids, 3, text, 2, &n, &e), ERR_ARG);
    assert_int_equal(n, 3);
    assert_int_equal(text[2], '.');
    assert_int_equal(tokenizer_decode(t, ids, 3, NULL, 0, &n, &e), 0);
    assert_int_equal(n, 3);
    assert_int_equal(tokenizer_decode(t, NULL, 0, text, 4, &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(tokenizer_split(t, "a b", 3, lens, 1, &n, &e), ERR_ARG);
    assert_int_equal(n, 2);
    assert_int_equal(lens[1], 9);
    assert_int_equal(tokenizer_split(t, NULL, 0, NULL, 0, &n, &e), 0);
    assert_int_equal(n, 0);
    tokenizer_close(t);
    tokenizer_close(NULL);
}

struct job {
    const struct tokenizer *t;
    const char *text;
    size_t len, n_want;
    const int32_t *want;
    bool same;
};

static void *encode_often(void *arg)
{
    struct job *j = arg;
    int32_t *ids = calloc(j->len, sizeof(*ids));

    j->same = ids != NULL;
    for (unsigned i = 0; i < 20 && j->same; i++) {
        struct err e;
        size_t n;

        j->same = !tokenizer_encode(j->t, TOKEN_MARKUP, j->text, j->len, ids, j->len, &n, &e) &&
                  n == j->n_want && !memcmp(ids, j->want, n * sizeof(*ids)) &&
                  strlen(tokenizer_unicode_version()) > 0;
    }
    free(ids);
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    struct tokenizer *t = tokenizer_of((const char *const[]){"lo", "wo", " wo", NULL}, markers);
    size_t len;
    char *s = repeat("hello worldwide <|sep|> \xff 好 12345 ", 300, &len);
    int32_t *want = calloc(len, sizeof(*want));
    struct job jobs[4];
    pthread_t threads[4];

    (void)state;
    assert_non_null(want);
    memset(s + 1000, 'q', 8000); /* more than fits into the JIT's first stack */
    for (unsigned i = 0; i < 4; i++)
        jobs[i] = (struct job){.t = t, .text = s, .len = len, .want = want};
    jobs[0].n_want = encode(t, TOKEN_MARKUP, s, len, want, len);
    for (unsigned i = 0; i < 4; i++) {
        jobs[i].n_want = jobs[0].n_want;
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(jobs[i].same);
    }
    free(want);
    free(s);
    tokenizer_close(t);
}

#ifdef CAN_FAIL_ALLOCATIONS
/* Fail the 1st allocation, then the 2nd, ... until a run meets no failure. One for which there is
 * another way (the JIT and its stack) changes nothing. */
static void a_failed_allocation_is_reported_and_leaks_nothing(void **state)
{
    struct tokenizer *good = tokenizer_of((const char *const[]){"ab", "aa", "aaaa", NULL}, markers);
    struct rank_file f = rank_file_of((const char *const[]){"ab", "aa", "aaaa", NULL});
    size_t len, n, n_want;
    char *s = repeat("a", 20000, &len); /* more than fits into the JIT's first stack */
    int32_t *ids = calloc(len, sizeof(*ids)), *want = calloc(len, sizeof(*want));
    unsigned long n_survived = 0;
    int rc = ERR_NOMEM;

    (void)state;
    assert_non_null(ids);
    assert_non_null(want);
    memcpy(s + 10, " <|sep|> ", 9);
    n_want = encode(good, TOKEN_MARKUP, s, len, want, len);
    json_set_alloc_funcs(__libc_malloc, __libc_free); /* jansson 2.14 does not survive a failure */
    for (unsigned long nth = 1; rc || n_allocations >= nth; nth++) {
        struct tokenizer *t = NULL;
        struct err e = {0};

        n_allocations = 0;
        n_live = 0;
        fail_nth = nth;
        counting = true;
        rc = tokenizer_parse(&t, f.text, f.len, markers, sizeof(markers) - 1, 0, &e);
        if (!rc)
            rc = tokenizer_encode(t, TOKEN_MARKUP, s, len, ids, len, &n, &e);
        tokenizer_close(t);
        counting = false;
        if (rc && rc != ERR_NOMEM)
            fail_msg("allocation %lu: %d, %s", nth, rc, e.text);
        assert_int_equal(n_live, 0);
        if (rc)
            continue;
        assert_int_equal(n, n_want);
        assert_memory_equal(ids, want, n * sizeof(*ids));
        n_survived++;
    }
    assert_true(n_survived > 1);
    json_set_alloc_funcs(malloc, free);
    free(want);
    free(ids);
    free(s);
    free(f.text);
    tokenizer_close(good);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pattern_splits_as_tiktoken_does),
        cmocka_unit_test(long_texts_are_cut_where_the_release_cuts_them),
        cmocka_unit_test(invalid_utf8_is_a_piece_of_its_own),
        cmocka_unit_test(a_megabyte_of_anything_is_split),
        cmocka_unit_test(merging_equals_the_quadratic_definition),
        cmocka_unit_test(a_piece_that_is_a_token_is_not_merged),
        cmocka_unit_test(equal_ranks_merge_from_the_left),
        cmocka_unit_test(markup_finds_the_leftmost_and_of_those_the_longest),
        cmocka_unit_test(text_between_control_tokens_is_a_string_of_its_own),
        cmocka_unit_test(a_control_token_across_a_seam_is_text),
        cmocka_unit_test(texts_are_read_as_json),
        cmocka_unit_test(markers_are_found_by_text),
        cmocka_unit_test(segments_are_encoded_by_themselves),
        cmocka_unit_test(content_never_adds_a_control_token),
        cmocka_unit_test(decoding_gives_back_any_bytes),
        cmocka_unit_test(decoding_knows_every_id),
        cmocka_unit_test(too_small_says_how_much_is_needed),
        cmocka_unit_test(threads_share_a_tokenizer),
#ifdef CAN_FAIL_ALLOCATIONS
        cmocka_unit_test(a_failed_allocation_is_reported_and_leaks_nothing),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
