/* tests/model/tokenizing.h - tokenizers of a few strings, and what holds for each text. */
#ifndef TESTS_MODEL_TOKENIZING_H
#define TESTS_MODEL_TOKENIZING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/tokenizer.h"
#include "tests/model/rank_file.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const char markers[] =
    "[{\"id\":300,\"text\":\"<|open|>\"},{\"id\":301,\"text\":\"<|sep|>\"},"
    "{\"id\":302,\"text\":\"<|open|>x\"},{\"id\":310,\"text\":\"[BOS]\"},"
    "{\"id\":320,\"text\":\"<|end_of_msg|>\"}]";

static uint32_t random_state = 1;

static inline uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

/* The single bytes, these strings and these control tokens. */
static inline struct tokenizer *tokenizer_of(const char *const *strings, const char *specials)
{
    struct rank_file f = rank_file_of(strings);
    struct tokenizer *t = NULL;
    struct err e;

    if (tokenizer_parse(&t, f.text, f.len, specials, specials ? strlen(specials) : 0, 0, &e))
        fail_msg("%s", e.text);
    free(f.text);
    return t;
}

static inline size_t encode(const struct tokenizer *t, enum token_mode mode, const char *text,
                            size_t len, int32_t *out, size_t cap)
{
    struct err e;
    size_t n;

    if (tokenizer_encode(t, mode, text, len, out, cap, &n, &e))
        fail_msg("%s", e.text);
    return n;
}

/* decode(encode(text)) == text, in both modes. */
static inline void check_round_trip(const struct tokenizer *t, const char *text, size_t len)
{
    int32_t *ids = malloc((len + 1) * sizeof(*ids));
    char *back = malloc(len + 1);
    struct err e;
    size_t n, n_back;

    assert_non_null(ids);
    assert_non_null(back);
    for (unsigned mode = TOKEN_CONTENT; mode <= TOKEN_MARKUP; mode++) {
        n = encode(t, mode, text, len, ids, len + 1);
        assert_int_equal(tokenizer_decode(t, ids, n, back, len + 1, &n_back, &e), 0);
        assert_int_equal(n_back, len);
        assert_memory_equal(back, text, len);
    }
    free(back);
    free(ids);
}

static inline void check_ids(const struct tokenizer *t, enum token_mode mode, const char *text,
                             const int32_t *want, size_t n_want)
{
    int32_t ids[64];
    size_t n = encode(t, mode, text, strlen(text), ids, N_ELEMS(ids));

    if (n != n_want || memcmp(ids, want, n * sizeof(*ids))) {
        for (size_t i = 0; i < n; i++)
            print_error("%d ", (int)ids[i]);
        fail_msg("are the ids of %s", text);
    }
}

#define CHECK_IDS(t, mode, text, ...)                                                              \
    check_ids(t, mode, text, (const int32_t[]){__VA_ARGS__},                                       \
              N_ELEMS(((const int32_t[]){__VA_ARGS__})))

static inline char *repeat(const char *what, size_t times, size_t *len)
{
    size_t n = strlen(what);
    char *s = malloc(n * times + 1);

    assert_non_null(s);
    for (size_t i = 0; i < times; i++)
        memcpy(s + i * n, what, n);
    *len = n * times;
    s[*len] = 0;
    return s;
}

#endif
