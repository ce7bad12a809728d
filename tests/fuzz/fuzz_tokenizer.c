/* tests/fuzz/fuzz_tokenizer.c - the input as text, as a rank file and as specials.json.
 *
 * Whatever the bytes: both modes give them back, only markup makes control tokens, the pieces add
 * up, and a stream cut anywhere decodes like the whole. A file is refused or makes a tokenizer
 * that has the same properties.
 */
#include "model/tokenizer.h"
#include "model/utf8.h"

#include "tests/model/rank_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

static const char *const strings[] = {"th",   "he",       "the", " the", "in",       "ing", "\r\n",
                                      "<|",   "|>",       "=\"", "'s",   "\xe5\xa5", "好",  "aa",
                                      "aaaa", "\xff\xfe", "00",  "  ",   "    ",     NULL};
static const char specials[] =
    "[{\"id\":300,\"text\":\"<|open|>\"},{\"id\":301,\"text\":\"<|sep|>\"},"
    "{\"id\":302,\"text\":\"<|open|>x\"},{\"id\":303,\"text\":\"\\u00e9\"}]";

static void check_text(const struct tokenizer *t, const char *text, size_t size)
{
    int32_t *ids = malloc((size + 1) * sizeof(*ids));
    size_t *lens = malloc((size + 1) * sizeof(*lens)), n, n_back, n_counted, sum = 0;
    char *back = malloc(size + 1);
    struct err e;

    CHECK(ids && lens && back);
    CHECK(!tokenizer_split(t, text, size, lens, size + 1, &n, &e));
    while (n)
        sum += lens[--n];
    CHECK(sum == size);
    for (unsigned mode = TOKEN_CONTENT; mode <= TOKEN_MARKUP; mode++) {
        CHECK(!tokenizer_encode(t, mode, text, size, ids, size + 1, &n, &e));
        CHECK(!tokenizer_encode(t, mode, text, size, NULL, 0, &n_counted, &e) && n == n_counted);
        CHECK(!tokenizer_decode(t, ids, n, back, size + 1, &n_back, &e));
        CHECK(n_back == size && !memcmp(back, text, size));
        for (size_t i = 0; i < n && mode == TOKEN_CONTENT; i++)
            CHECK(!tokenizer_is_special(t, ids[i]));
    }
    free(back);
    free(lens);
    free(ids);
}

static void check_stream(const char *text, size_t size)
{
    size_t cut = size ? (unsigned char)text[0] % (size + 1) : 0, n, m;
    char *whole = malloc(UTF8_FEED_MAX(size)), *parts = malloc(UTF8_FEED_MAX(size) + 3);
    struct utf8 a = {0}, b = {0};

    CHECK(whole && parts);
    n = utf8_feed(&a, text, size, whole);
    n += utf8_flush(&a, whole + n);
    m = utf8_feed(&b, text, cut, parts);
    m += utf8_feed(&b, text + cut, size - cut, parts + m);
    m += utf8_flush(&b, parts + m);
    CHECK(n == m && !memcmp(whole, parts, n) && utf8_valid_prefix(whole, n) == n);
    if (utf8_valid_prefix(text, size) == size)
        CHECK(n == size && !memcmp(whole, text, n));
    free(parts);
    free(whole);
}

static void check_file(const char *ranks, size_t ranks_len, const char *json, size_t json_len,
                       const char *text, size_t size)
{
    struct tokenizer *t = NULL;
    struct err e = {0};

    if (tokenizer_parse(&t, ranks, ranks_len, json, json_len, 0, &e))
        CHECK(!t && e.code && e.text[0]);
    else
        check_text(t, text, size);
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct rank_file ranks;
    static struct tokenizer *t;
    const char *text = size ? (const char *)data : "";
    struct err e;

    if (!t) {
        ranks = rank_file_of(strings);
        CHECK(!tokenizer_parse(&t, ranks.text, ranks.len, specials, sizeof(specials) - 1, 512, &e));
    }
    check_text(t, text, size);
    check_stream(text, size);
    check_file(text, size, NULL, 0, text, size);
    check_file(ranks.text, ranks.len, text, size, text, size);
    return 0;
}
