/* Rank files and control tokens that are none: refused, with the line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/model/tokenizing.h"

static void check_refused(const char *ranks, size_t ranks_len, const char *specials,
                          unsigned vocab_size, int code, const char *words)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    if (tokenizer_parse(&t, ranks, ranks_len, specials, specials ? strlen(specials) : 0, vocab_size,
                        &e) != code ||
        e.code != code || !strstr(e.text, words))
        fail_msg("code %d, \"%s\" and not %d, \"%s\"", e.code, e.text, code, words);
    assert_null(t);
}

/* The single bytes on lines 1 to 256, then this text. */
static void check_line(const char *text, int code, const char *words)
{
    struct rank_file f = rank_file_of(NULL);
    size_t n = strlen(text);

    f.text = realloc(f.text, f.len + n + 1);
    assert_non_null(f.text);
    memcpy(f.text + f.len, text, n);
    if (code) {
        check_refused(f.text, f.len + n, NULL, 0, code, words);
    } else {
        struct tokenizer *t;
        struct err e;

        if (tokenizer_parse(&t, f.text, f.len + n, NULL, 0, 0, &e))
            fail_msg("%s", e.text);
        tokenizer_close(t);
    }
    free(f.text);
}

/* T1: nothing is skipped in silence. */
static void a_bad_line_is_refused_by_number(void **state)
{
    struct rank_file f = {0};
    char *s, *line;
    size_t len;

    (void)state;
    check_line("", 0, "");
    check_line("YWI= 256", 0, "");
    check_line("\n\r\n\nYWI= 256\r\n\n", 0, "");
    check_line("YWI= 0256\n", 0, "");
    check_line("YWI=", ERR_FORMAT, "tokenizer.model: line 257: missing rank");
    check_line("YWI= ", ERR_FORMAT, "line 257: missing rank");
    check_line("YWI=\n", ERR_FORMAT, "line 257: missing rank");
    check_line("\n\nYWI 256\n", ERR_FORMAT, "line 259: bad base64");
    check_line("YW=I 256\n", ERR_FORMAT, "line 257: bad base64");
    check_line("Y=== 256\n", ERR_FORMAT, "line 257: bad base64");
    check_line("==== 256\n", ERR_FORMAT, "line 257: bad base64");
    check_line("YWJ= 256\n", ERR_FORMAT, "line 257: bad base64"); /* a bit too many */
    check_line("YQ==YQ== 256\n", ERR_FORMAT, "line 257: bad base64");
    check_line("YW-_ 256\n", ERR_FORMAT, "line 257: bad base64");
    check_line(" 256\n", ERR_FORMAT, "line 257: a token of no bytes");
    check_line("YWI=  256\n", ERR_FORMAT, "line 257: byte 0x20 at column 6");
    check_line("YWI= -256\n", ERR_FORMAT, "line 257: byte 0x2d at column 6");
    check_line("YWI= 256 \n", ERR_FORMAT, "line 257: byte 0x20 at column 9");
    check_line("YWI= 256\r\r\n", ERR_FORMAT, "line 257: byte 0x0d");
    check_line("YWI=\t256\n", ERR_FORMAT, "line 257: bad base64");
    check_line("YWI= 16777216\n", ERR_FORMAT, "line 257: rank is not below 16777216");
    check_line("YWI= 99999999999999999999\n", ERR_FORMAT, "line 257: rank is not below");
    check_line("YWI= 16777215\n", ERR_FORMAT, "line 257: rank 16777215, but there are 257 tokens");
    check_line("YWI= 257\n", ERR_FORMAT, "line 257: rank 257, but there are 257 tokens");
    check_line("YWI= 97\n", ERR_FORMAT, "line 257: rank 97 again, it is on line 98 already");
    check_line("YQ== 256\n", ERR_FORMAT, "line 257: the same bytes as on line 98");
    check_line("YWI= 256\nYWM= 257\n\nYWI= 258\n", ERR_FORMAT,
               "line 260: the same bytes as on line 257");

    f = rank_file_of(NULL);
    line = strstr(f.text, " 65\n");
    assert_non_null(line);
    memcpy(line - 4, "Y", 1); /* "QQ==" is A, "YQ==" is a */
    check_refused(f.text, f.len, NULL, 0, ERR_FORMAT, "line 98: the same bytes as on line 66");
    memcpy(line - 4, "QUE=", 4);
    check_refused(f.text, f.len, NULL, 0, ERR_FORMAT,
                  "line 256: the file ends with no token for the single byte 0x41");
    check_refused(NULL, 0, NULL, 0, ERR_FORMAT, "line 1: the file ends");
    check_refused("\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n", 18, NULL, 0, ERR_FORMAT,
                  "line 2: bad base64"); /* SentencePiece */
    free(f.text);

    s = repeat("abcd", 1366, &len); /* 4,098 bytes, and 4,096 */
    f = rank_file_of(NULL);
    f.text = realloc(f.text, f.len + len + 100);
    assert_non_null(f.text);
    sprintf(f.text + f.len, "%s 256\n", s);
    check_refused(f.text, strlen(f.text), NULL, 0, ERR_LIMIT, "line 257: a token of 4098 bytes");
    sprintf(f.text + f.len, "%sabcd 256\n", s);
    check_refused(f.text, strlen(f.text), NULL, 0, ERR_LIMIT, "line 257: 5468 characters");
    sprintf(f.text + f.len, "%sabcd", s);
    check_refused(f.text, strlen(f.text), NULL, 0, ERR_FORMAT, "line 257: 5468 characters");
    memcpy(s + len - 4, "YQ==", 4);
    sprintf(f.text + f.len, "%s 256\n", s);
    check_line(f.text + f.len, 0, "");
    free(f.text);
    free(s);
}

static void more_tokens_than_the_model_has_are_refused(void **state)
{
    struct rank_file f = rank_file_of((const char *const[]){"ab", NULL});
    struct tokenizer *t;
    struct err e;

    (void)state;
    check_refused(f.text, f.len, NULL, 256, ERR_FORMAT, "257 tokens, but the model has 256");
    assert_int_equal(tokenizer_parse(&t, f.text, f.len, NULL, 0, 257, &e), 0);
    tokenizer_close(t);
    check_refused(f.text, (size_t)65 << 20, NULL, 0, ERR_LIMIT, "more than 67108864");
    free(f.text);
}

static void bad_control_tokens_are_refused(void **state)
{
    static const struct {
        const char *json, *words;
    } bad[] = {
        {"", "specials.json: JSON error"},
        {"[", "JSON error at byte"},
        {"[]x", "JSON error"},
        {"{}", "must be an array"},
        {"7", "JSON error"},
        {"[7]", "entry 0 must be"},
        {"[{\"id\":300}]", "entry 0 must be"},
        {"[{\"id\":300,\"text\":7}]", "entry 0 must be"},
        {"[{\"id\":\"300\",\"text\":\"a\"}]", "entry 0 must be"},
        {"[{\"id\":300.5,\"text\":\"a\"}]", "entry 0 must be"},
        {"[{\"id\":1e99,\"text\":\"a\"}]", "entry 0 must be"},
        {"[{\"id\":300,\"text\":\"a\"},{\"id\":301,\"text\":\"\"}]", "entry 1: text is empty"},
        {"[{\"id\":300,\"id\":301,\"text\":\"a\"}]", "duplicate"},
        {"[{\"id\":-1,\"text\":\"a\"}]", "entry 0: id -1 is not in [0, 400)"},
        {"[{\"id\":400,\"text\":\"a\"}]", "entry 0: id 400 is not in [0, 400)"},
        {"[{\"id\":4294967596,\"text\":\"a\"}]", "entry 0: id 4294967596 is not in"},
        {"[{\"id\":255,\"text\":\"a\"}]", "entry 0: id 255 is an ordinary token"},
        {"[{\"id\":300,\"text\":\"a\"},{\"id\":300,\"text\":\"b\"}]", "id 300 is there twice"},
        {"[{\"id\":301,\"text\":\"a\"},{\"id\":300,\"text\":\"a\"}]", "have the same text"},
        {"[{\"id\":300,\"text\":\"\xff\"}]", "JSON error"},
    };
    struct rank_file f = rank_file_of(NULL);

    (void)state;
    for (size_t i = 0; i < N_ELEMS(bad); i++)
        check_refused(f.text, f.len, bad[i].json, 400, ERR_FORMAT, bad[i].words);
    free(f.text);
}

/* Both files, cut at every byte and with every byte changed: refused or read, never worse. The
 * copy lets a sanitizer see every byte too far. */
static void damage_anywhere_does_no_harm(void **state)
{
    struct rank_file f = rank_file_of((const char *const[]){"ab", "abc", NULL});
    const size_t total = f.len + sizeof(markers) - 1;
    unsigned n_read = 0;

    (void)state;
    random_state = 3;
    for (size_t at = 0; at < total; at++) {
        for (unsigned change = 0; change < 2; change++) {
            size_t n_ranks = at < f.len && !change ? at : f.len;
            size_t n_specials = at >= f.len && !change ? at - f.len : sizeof(markers) - 1;
            char *ranks = malloc(n_ranks + 1), *specials = malloc(n_specials + 1);
            struct tokenizer *t = NULL;
            struct err e = {0};

            assert_non_null(ranks);
            assert_non_null(specials);
            memcpy(ranks + 1, f.text, n_ranks);
            memcpy(specials + 1, markers, n_specials);
            if (change)
                *(at < f.len ? ranks + 1 + at : specials + 1 + at - f.len) =
                    (char)random_below(256);
            if (tokenizer_parse(&t, ranks + 1, n_ranks, specials + 1, n_specials, 0, &e)) {
                assert_true(e.code == ERR_FORMAT);
                assert_null(t);
            } else {
                check_round_trip(t, "abc <|sep|>", 11);
                n_read++;
            }
            tokenizer_close(t);
            free(specials);
            free(ranks);
        }
    }
    assert_true(n_read > 0);
    free(f.text);
}

static void write_file(const char *dir, const char *name, const char *text, size_t len)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static void remove_file(const char *dir, const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(remove(path), 0);
}

static void check_open_refused(const char *dir, int code, const char *words)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    if (tokenizer_open(&t, dir, 0, &e) != code || !strstr(e.text, words))
        fail_msg("code %d, \"%s\" and not %d, \"%s\"", e.code, e.text, code, words);
    assert_null(t);
}

static void a_container_directory_is_read(void **state)
{
    const char *base = getenv("TMPDIR");
    struct rank_file f = rank_file_of((const char *const[]){"ab", NULL});
    char dir[128], path[256];
    struct tokenizer *t;
    struct err e;

    (void)state;
    snprintf(dir, sizeof(dir), "%s/test_tokenizer.XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(dir));
    check_open_refused(dir, ERR_UNSUPPORTED,
                       "container has no tokenizer.model; only token ids can be used");

    write_file(dir, "tiktoken.model", f.text, f.len - 1);
    assert_int_equal(tokenizer_open(&t, dir, 0, &e), 0);
    assert_int_equal(tokenizer_n_ranks(t), 257);
    assert_int_equal(tokenizer_n_specials(t), 0);
    CHECK_IDS(t, TOKEN_MARKUP, "[BOS]", '[', 'B', 'O', 'S', ']');
    assert_true(tokenizer_bytes(t) > 2000);
    tokenizer_close(t);
    write_file(dir, "tiktoken.model", "?", 1);
    check_open_refused(dir, ERR_FORMAT, "tiktoken.model: line 1: bad base64");

    write_file(dir, "tokenizer.model", f.text, f.len); /* now the other one is not read */
    write_file(dir, "specials.json", markers, sizeof(markers) - 1);
    assert_int_equal(tokenizer_open(&t, dir, 321, &e), 0);
    CHECK_IDS(t, TOKEN_MARKUP, "[BOS]", 310);
    tokenizer_close(t);
    assert_int_equal(tokenizer_open(&t, dir, 320, &e), ERR_FORMAT);

    write_file(dir, "specials.json", "[", 1);
    check_open_refused(dir, ERR_FORMAT, "specials.json: JSON error");
    remove_file(dir, "specials.json");
    remove_file(dir, "tokenizer.model");
    snprintf(path, sizeof(path), "%s/tokenizer.model", dir);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    check_open_refused(dir, ERR_IO, "tokenizer.model: not a regular file");
    remove_file(dir, "tokenizer.model");
    assert_int_equal(mkdir(path, 0700), 0);
    check_open_refused(dir, ERR_IO, "tokenizer.model: not a regular file");
    assert_int_equal(rmdir(path), 0);
    write_file(dir, "tokenizer.model", "", 0);
    assert_int_equal(truncate(path, (65 << 20)), 0);
    check_open_refused(dir, ERR_LIMIT, "tokenizer.model: 68157440 bytes");
    remove_file(dir, "tokenizer.model");
    remove_file(dir, "tiktoken.model");
    assert_int_equal(rmdir(dir), 0);
    check_open_refused(dir, ERR_IO, "No such file");
    free(f.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_line_is_refused_by_number),
        cmocka_unit_test(more_tokens_than_the_model_has_are_refused),
        cmocka_unit_test(bad_control_tokens_are_refused),
        cmocka_unit_test(damage_anywhere_does_no_harm),
        cmocka_unit_test(a_container_directory_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
