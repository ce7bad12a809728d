/* tests/fuzz/fuzz_grammar.c - the input as a JSON schema and as a text grammar.
 *
 * Whatever the bytes: refused with a reason, or compiled within its limits; and then, along a walk
 * that the input chooses, there is always a token or an end, and the mask says what advancing says.
 */
#include <stdlib.h>
#include <string.h>

#include "model/grammar.h"
#include "tests/model/rank_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

enum { VOCAB = 320, IDS = 302, STEPS = 40 };

static const char *const strings[] = {"{\"", "\":", "\",\"", "\"}", "}}",  "[[",
                                      "]]",  ",\"", "true",  "12",  "\\u", "\\ud8",
                                      "ab",  "aaa", "\n ",   ": ",  NULL};
static const char specials[] = "[{\"id\":300,\"text\":\"<|a|>\"},{\"id\":301,\"text\":\"<|b|>\"}]";

static struct tokenizer *tokenizer;
static struct token_trie *trie;

static void walk(struct grammar_match *m, const uint8_t *data, size_t size)
{
    const uint64_t *mask;
    struct err e;

    for (size_t step = 0; step < STEPS; step++) {
        uint32_t from = step < size ? data[size - 1 - step] : 1, token = IDS, n = 0;

        CHECK(!match_mask(m, MATCH_BASE, &mask, &e));
        for (uint32_t i = 0; i < IDS; i++) {
            uint32_t id = (i + from * 7) % IDS;

            if (!(mask[id / 64] >> (id % 64) & 1))
                continue;
            token = token == IDS ? id : token;
            n++;
        }
        if (!n) {
            CHECK(match_complete(m, MATCH_BASE));
            return;
        }
        CHECK(!match_advance(m, MATCH_BASE, MATCH_TRIAL, (int32_t)token, &e));
        for (uint32_t id = from % 16; id < IDS; id += 16)
            CHECK((mask[id / 64] >> (id % 64) & 1) ==
                  !match_advance(m, MATCH_BASE, MATCH_AFTER, (int32_t)id, &e));
        match_copy(m, MATCH_TRIAL, MATCH_BASE);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;

    if (!tokenizer) {
        struct rank_file ranks = rank_file_of(strings);

        CHECK(!tokenizer_parse(&tokenizer, ranks.text, ranks.len, specials, sizeof(specials) - 1,
                               VOCAB, &e));
        CHECK(!token_trie_open(&trie, tokenizer, VOCAB, &e));
        free(ranks.text);
    }
    if (size > 1 << 16)
        return 0;
    for (int kind = GRAMMAR_JSON_SCHEMA; kind <= GRAMMAR_TEXT; kind++) {
        struct grammar *g = NULL;
        struct grammar_match *m = NULL;

        e.code = 0;
        if (grammar_compile(&g, (enum grammar_kind)kind, (const char *)data, size, tokenizer,
                            size && data[0] == ' ' ? 300 : -1, &e)) {
            CHECK(!g && e.code && e.text[0]);
            continue;
        }
        CHECK(grammar_bytes(g) <= GRAMMAR_BYTES_MAX);
        if (!match_open(&m, g, trie, &e))
            walk(m, data, size);
        match_close(m);
        grammar_close(g);
    }
    return 0;
}
