/* Grammars and schemas: which texts they allow, what they refuse to be, and that a mask is what
 * advancing by each token says. Random schemas are in test_grammar.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/grammar.h"
#include "tests/model/rank_file.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { VOCAB = 384 };

/* Words that cross the borders of a JSON text in every way that matters. */
static const char *const words[] = {
    "{\"",   "\":",      "\",",         "\"}",    "\":\"", "\",\"",  "{}",
    "[]",    "},{",      "]]",          "[[[[",   "]]]]",  "\"a\":", "\"a",
    "a\"",   "{\"a\":1", ",\"a\":",     "\"b\":", "tr",    "true",   "e,",
    "12",    "0.",       "1e",          " \"",    ": ",    ", ",     "\n ",
    "\\u",   "\\\"",     "d8",          "\\ud",   "\\ude", "00\"",   "\xc3\xa9",
    "\xa9x", "\xf0\x9f", "\x98\x80",    "ab",     "aaaa",  "bc",     "abc",
    "null",  "},\n",     "\"kind\":\"", "</",     "<|e",   "nd|>",   NULL,
};

static struct tokenizer *tokenizer;
static struct token_trie *trie;

static int open_all(void **state)
{
    static const char specials[] = "[{\"id\": 370, \"text\": \"<|end|>\"}, {\"id\": 371, \"text\": "
                                   "\"<|think|>\"}]";
    struct rank_file f = rank_file_of(words);
    struct err e;

    (void)state;
    if (tokenizer_parse(&tokenizer, f.text, f.len, specials, strlen(specials), VOCAB, &e) ||
        token_trie_open(&trie, tokenizer, VOCAB, &e)) {
        print_error("%s\n", e.text);
        return -1;
    }
    free(f.text);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    token_trie_close(trie);
    tokenizer_close(tokenizer);
    return 0;
}

struct answer { /* a grammar and where an answer stands in it */
    struct grammar *g;
    struct grammar_match *m;
};

static struct answer answer_open(enum grammar_kind kind, const char *text)
{
    struct answer a;
    struct err e = {0};

    if (grammar_compile(&a.g, kind, text, strlen(text), tokenizer, -1, &e) ||
        match_open(&a.m, a.g, trie, &e))
        fail_msg("%.200s: %s", text, e.text);
    return a;
}

static void answer_close(struct answer *a)
{
    match_close(a->m);
    grammar_close(a->g);
}

/* How many bytes of a text are taken, one by one; *complete: the answer may end behind them. */
static size_t taken(struct answer *a, const char *text, size_t len, bool *complete)
{
    struct err e;
    size_t n = 0;

    assert_int_equal(match_reset(a->m, &e), 0);
    while (n < len && !match_advance(a->m, MATCH_BASE, MATCH_BASE, (unsigned char)text[n], &e))
        n++;
    *complete = match_complete(a->m, MATCH_BASE);
    return n;
}

struct texts { /* under one schema or grammar: lists of texts that end with NULL */
    const char *source, *good[12], *bad[12];
};

static void texts_check(enum grammar_kind kind, const struct texts *t)
{
    struct answer a = answer_open(kind, t->source);
    bool complete;

    for (const char *const *x = t->good; *x; x++)
        if (taken(&a, *x, strlen(*x), &complete) != strlen(*x) || !complete)
            fail_msg("%s does not allow %s", t->source, *x);
    for (const char *const *x = t->bad; *x; x++)
        if (taken(&a, *x, strlen(*x), &complete) == strlen(*x) && complete)
            fail_msg("%s allows %s", t->source, *x);
    answer_close(&a);
}

static void a_schema_allows_what_satisfies_it_and_nothing_else(void **state)
{
    static const struct texts list[] = {
        {"{\"type\":\"string\"}",
         {"\"\"", "\"a\\n\\u00e9\\ud83d\\ude00\"", "\"\xc3\xa9\xf0\x9f\x98\x80\""},
         {"a", "\"", "\"\n\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\\x\"",
          "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\\u0000\""}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xc3\xa9\\n\\u00e9\"", "\"\\ud83d\\ude00x\""},
         {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""}},
        {"{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":305}",
         {"-12", "-9", "0", "99", "304", "300"},
         {"-13", "305", "1000", "-0", "007", "1.0", "+1", ""}},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":10}",
         {"14", "21", "700000"},
         {"7", "15", "0", "-14"}},
        {"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":3}",
         {"0.25", "0.3", "3", "3.0", "2.999"},
         {"0.2", "3.01", "-1", "0.2499", "30", "1e0"}},
        {"{\"enum\":[19.99,0.1,1.5e300,-2.5,3.0,100.0,0.30000000000000004]}",
         {"19.99", "0.1", "1.5e+300", "-2.5", "3.0", "100.0", "0.30000000000000004"},
         {"19.989999999999998", "0.10000000000000001", "0.3"}},
        {"{\"const\":{\"price\":[19.99,1,\"x\"]}}",
         {"{\"price\":[19.99,1,\"x\"]}"},
         {"{\"price\":[19.989999999999998,1,\"x\"]}"}},
        {"{\"allOf\":[{\"type\":\"string\",\"nullable\":true},{\"type\":\"string\"}]}",
         {"\"\""},
         {"null", "1"}},
        {"{\"allOf\":[{\"type\":\"string\",\"nullable\":true},{\"type\":[\"null\",\"integer\"]}]}",
         {"null"},
         {"\"\"", "1"}},
        {" true\n", {"1", "\"\"", "[{}]"}, {"", "x"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}",
         {"0.0001", "1", "12.5"},
         {"0", "0.0", "-1"}},
        {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":true},\"required\":[\"b\"],"
         "\"additionalProperties\":false}",
         {"{\"b\":1}", "{\"a\":null,\"b\":[]}", "{ \"a\": null,\n  \"b\": {\"b\":1}\n}"},
         {"{}", "{\"a\":null}", "{\"b\":1,\"a\":null}", "{\"b\":1,}", "{\"b\":1,\"c\":1}", "[]",
          "{\"a\":1,\"b\":1}", "{\"b\":1} ", "{  \"b\":1}"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}",
         {"{}", "{\"a\":null}", "{\"ab\":1}", "{\"a\":null,\"aa\":1,\"b\":2}", "{\"\":1,\"b\":1}"},
         {"{\"a\":1}", "{\"b\":1,\"a\":null}", "{\"b\":1,\"b\":2}", "{\"\":1,\"\":1}",
          "{\"x\":1,\"y\":2,\"x\":3}", "{\"\\u0061\":1}"}},
        {"{}",
         {"1", "\"\"", "[1,[],{\"a\":{\"a\":1}}]", "-1.5e-3", "true"},
         {"", "01", "[1,]", "nul"}},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3}"
         ","
         "\"minItems\":1,\"maxItems\":4}",
         {"[1]", "[1,2]", "[1, 2, 3]", "[1,2,3,3]"},
         {"[]", "[2]", "[1,3]", "[1,2,3,3,3]", "[1,2,2]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":3}",
         {"[true,false]", "[true, true, true]"},
         {"[]", "[true]", "[true,true,true,true]"}},
        {"{\"enum\":[1,\"one\",[1],{\"a\":null}]}",
         {"1", "\"one\"", "[1]", "{\"a\":null}"},
         {"2", "\"on\"", "[]", "{}"}},
        {"{\"type\":[\"string\",\"null\"],\"maxLength\":1}", {"null", "\"a\""}, {"\"ab\"", "1"}},
        {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{"
         "\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"n\"],"
         "\"additionalProperties\":false}}}",
         {"{\"n\":null}", "{\"n\":{\"n\":{\"n\":null}}}"},
         {"{}", "{\"n\":{}}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":1}},\"required\":[\"a\"]},{"
         "\"properties\":"
         "{\"a\":{\"type\":\"integer\",\"maximum\":3}},\"additionalProperties\":false}]}",
         {"{\"a\":1}", "{\"a\":3}"},
         {"{\"a\":0}", "{\"a\":4}", "{}", "{\"a\":1,\"b\":2}", "{\"a\":1.5}"}},
        {"{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},\"anyOf\":[{"
         "\"required\":["
         "\"k\"]},{\"properties\":{\"z\":{\"const\":1}},\"required\":[\"z\"]}],"
         "\"additionalProperties\":true}",
         {"{\"k\":\"\"}", "{\"z\":1}", "{\"k\":\"\",\"z\":1}"},
         {"{}", "{\"z\":2}", "{\"k\":1}"}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-c]+\\\\d{2}$\",\"maxLength\":4}",
         {"\"a00\"", "\"cb12\""},
         {"\"abc12\"", "\"a1\"", "\"d12\""}},
        {"{\"type\":\"string\",\"pattern\":\"x\"}", {"\"x\"", "\"ax\\\"b\""}, {"\"\"", "\"ab\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-28\"", "\"1999-12-31\""},
         {"\"2024-02-30\"", "\"2024-13-01\"", "\"x\""}},
        {"{\"properties\":{\"a\":false,\"b\":{\"type\":\"null\"}},\"additionalProperties\":false}",
         {"{}", "{\"b\":null}"},
         {"{\"a\":1}"}},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(list); i++)
        texts_check(GRAMMAR_JSON_SCHEMA, &list[i]);
}

static void a_grammar_allows_its_texts_and_nothing_else(void **state)
{
    static const struct texts list[] = {
        {"root ::= \"a\"", {"a"}, {"", "b", "aa"}},
        {"root ::= [a-c]* \"x\"?", {"", "abcx", "x"}, {"d", "xx"}},
        {"root ::= ( \"ab\" | \"abc\" ){2,3}", {"abab", "abcab", "abcabcabc"}, {"ab", "abababab"}},
        {"root ::= x{,2} \"!\"\nx ::= [^a\\n]  # a comment\n",
         {"!", "b!", "\xc3\xa9!!"},
         {"a!", "bbb!"}},
        {"root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"((x)", "()"}},
        {"root ::= s s\ns ::= \"a\" s \"b\" | \"\"", {"", "ab", "aabbab"}, {"a", "abb", "aab"}},
        {"root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" e \")\"",
         {"1", "1+(2+3)+44"},
         {"1+", "(1"}},
        {"root ::= (s){3}\ns ::= \"(\" s? \")\"", {"()()()", "(())()()"}, {"()()", "()()()()"}},
        {"root ::= (n){0,40} \"!\"\nn ::= \"(\" n \")\" | \"\"",
         {"!", "(())!", "()()!"},
         {"(!", ")"}},
        {"root ::= \"\\x61\\u00e9\" .", {"a\xc3\xa9z", "a\xc3\xa9\xc3\xa9"}, {"a\xc3z"}},
        {"root ::= \"v=\" %json{\"type\":\"array\",\"items\":{\"enum\":[\"}\"]}} \";\"",
         {"v=[\"}\"];", "v=[];"},
         {"v=[1];", "v="}},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(list); i++)
        texts_check(GRAMMAR_TEXT, &list[i]);
}

static void what_is_not_understood_is_refused_by_its_name(void **state)
{
    static const struct {
        const char *source, *says;
    } schema[] =
        {
            {"{\"not\":{}}", "$.not"},
            {"{\"properties\":{\"a\":{\"items\":{\"uniqueItems\":true}}}}",
             "$.properties.a.items.uniqueItems"},
            {"{\"patternProperties\":{}}", "patternProperties"},
            {"{\"if\":{}}", "$.if"},
            {"{\"type\":\"strin\"}", "$.type"},
            {"{\"type\":\"string\",\"format\":\"hostname\"}", "\"hostname\""},
            {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "(?:"},
            {"{\"type\":\"string\",\"pattern\":\"a\\\\1\"}", "escape"},
            {"{\"type\":\"string\",\"minLength\":100000}", "100000, at most 65536"},
            {"{\"type\":\"array\",\"minItems\":100000}", "100000, at most 65536"},
            {"{\"type\":\"number\",\"multipleOf\":0.1}", "multipleOf"},
            {"{\"type\":\"number\",\"minimum\":0.1234567890123456}", "more than 15 digits"},
            {"{\"$ref\":\"#/$defs/x\"}", "\"#/$defs/x\""},
            {"{\"$ref\":\"http://a/b\"}", "http://a/b"},
            {"{\"$ref\":\"#\"}", "nothing finite"},
            {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "itself"},
            {"{\"allOf\":[{\"$ref\":\"#\"}]}", "more than 64 references"},
            {"{\"allOf\":[{\"properties\":[1]},{\"properties\":{\"a\":{}}}]}", "hold at once"},
            {"{\"allOf\":[{\"required\":1},{\"properties\":{\"a\":{}}}]}", "hold at once"},
            {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "may both hold"},
            {"{\"oneOf\":[{\"type\":\"null\"},{\"not\":{}}]}", "$.oneOf.1.not: this keyword"},
            {"{\"oneOf\":[{\"$ref\":\"#/$defs/a\",\"if\":1},{}],\"$defs\":{\"a\":{}}}",
             "$.oneOf.0.if: this keyword"},
            {"{\"enum\":[1],\"minimum\":0}", "$.minimum: together with enum"},
            {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "nothing finite"},
            {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "nothing finite"},
            {"{\"enum\":[]}", "nothing finite"},
            {"{\"a\":1,\"a\":1}", "duplicate"},
        },
      text[] = {
          {"x ::= \"a\"", "root"},
          {"root ::= x", "line 1: there is no rule called x"},
          {"root ::= \"a\nb\"", "line 1"},
          {"root ::= root \"a\" | \"b\"", "root may begin with itself"},
          {"root ::= a root \"x\" | \"b\"\na ::= \"y\"?", "root may begin with itself"},
          {"root ::= \"a\"{3,2}", "m <= n"},
          {"root ::= \"a\"{100000}", "at most 65536"},
          {"root ::= <|none|>", "<|none|> is no control token"},
          {"root ::= \"a\"\nroot ::= \"b\"", "line 2"},
          {"root ::= \"a\" root", "nothing finite"},
          {"root ::= %json{\"if\":1}", "$.if"},
          {"root ::= (\"a\"", "group"},
          {"root ::= [b-a]", "range"},
      };
    struct grammar *g = NULL;
    struct err e;

    (void)state;
    for (size_t i = 0; i < N_ELEMS(schema) + N_ELEMS(text); i++) {
        bool json = i < N_ELEMS(schema);
        const char *source = json ? schema[i].source : text[i - N_ELEMS(schema)].source;
        const char *says = json ? schema[i].says : text[i - N_ELEMS(schema)].says;

        if (!grammar_compile(&g, json ? GRAMMAR_JSON_SCHEMA : GRAMMAR_TEXT, source, strlen(source),
                             tokenizer, -1, &e))
            fail_msg("%s is accepted", source);
        if (!strstr(e.text, says))
            fail_msg("%s: \"%s\" does not say \"%s\"", source, e.text, says);
        assert_null(g);
    }
}

static bool in_mask(const uint64_t *mask, int32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

/* Walk at random and compare, for every token of the vocabulary, the mask with advancing. */
static void mask_check(struct answer *a, unsigned steps, uint64_t seed)
{
    uint64_t mask[VOCAB / 64];
    const uint64_t *given;
    struct err e;

    assert_int_equal(match_reset(a->m, &e), 0);
    for (unsigned i = 0; i < steps && !match_exhausted(a->m, MATCH_BASE); i++) {
        unsigned n = 0, pick;
        int32_t id = 0;

        assert_int_equal(match_mask(a->m, MATCH_BASE, &given, &e), 0);
        memcpy(mask, given, sizeof(mask));
        for (id = 0; id < VOCAB; id++) {
            bool allowed = !match_advance(a->m, MATCH_BASE, MATCH_TRIAL, id, &e);

            if (allowed != in_mask(mask, id) && id < 372)
                fail_msg("step %u, token %d: %s by the mask", i, id,
                         allowed ? "not allowed" : "allowed");
            n += allowed && id < 372;
        }
        if (!n) {
            assert_true(match_complete(a->m, MATCH_BASE));
            return;
        }
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        pick = (unsigned)(seed >> 33) % n;
        for (id = 0; !in_mask(mask, id) || pick--; id++)
            ;
        assert_int_equal(match_advance(a->m, MATCH_BASE, MATCH_BASE, id, &e), 0);
    }
}

static void a_mask_is_what_advancing_by_each_token_says(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *source;
    } list[] = {
        {GRAMMAR_JSON_SCHEMA, "{}"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"a\":{},\"ab\":{},\"abc\":{}}}"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":9}"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a+b\",\"maxLength\":8}"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"object\"},"
         "\"maxItems\":3},\"minItems\":2}"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}},{"
         "\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"maxItems\":2},{\"enum\":[1,12,"
         "null,true]}]}},\"$ref\":\"#/$defs/t\"}"},
        {GRAMMAR_TEXT, "root ::= s s\ns ::= \"a\" s \"b\" | \"a\" s \"bc\" | \"\""},
        {GRAMMAR_TEXT, "root ::= (\"ab\" | \"a\" x | [a-c]{2,5}){1,4}\nx ::= \"bc\" x? | \"\\\"\""},
        {GRAMMAR_TEXT, "root ::= !<|think|>* <|think|> %json{\"type\":\"object\"} <|end|>"},
        {GRAMMAR_TEXT, "root ::= (\"a\" | <|think|> | !<|end|> \"b\")*"},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(list); i++) {
        struct answer a = answer_open(list[i].kind, list[i].source);

        for (uint64_t seed = 1; seed <= 6; seed++)
            mask_check(&a, 40, seed);
        answer_close(&a);
    }
}

static void a_control_token_is_matched_by_its_id_and_never_by_its_text(void **state)
{
    struct answer a = answer_open(GRAMMAR_TEXT, "root ::= <|think|> .* <|end|> \"x\"");
    const uint64_t *mask;
    struct err e;

    (void)state;
    assert_int_not_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, '<', &e), 0);
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, 371, &e), 0);
    for (const char *c = "<|end|>x"; *c; c++)
        assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, *c, &e), 0);
    assert_false(match_complete(a.m, MATCH_BASE));
    assert_int_equal(match_mask(a.m, MATCH_BASE, &mask, &e), 0);
    assert_true(in_mask(mask, 370));
    assert_false(in_mask(mask, 371));
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, 370, &e), 0);
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, 'x', &e), 0);
    assert_true(match_exhausted(a.m, MATCH_BASE));
    answer_close(&a);
}

static void before_its_marker_a_grammar_leaves_everything_free(void **state)
{
    const char *source = "{\"const\":1}";
    struct answer a;
    const uint64_t *mask;
    struct err e;

    (void)state;
    assert_int_equal(
        grammar_compile(&a.g, GRAMMAR_JSON_SCHEMA, source, strlen(source), tokenizer, 371, &e), 0);
    assert_int_equal(match_open(&a.m, a.g, trie, &e), 0);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(match_mask(a.m, MATCH_BASE, &mask, &e), 0);
        for (int32_t id = 0; id < 372; id++)
            assert_true(in_mask(mask, id));
        assert_true(match_complete(a.m, MATCH_BASE));
        assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, i == 20 ? 370 : 256 + i, &e),
                         0);
    }
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, 371, &e), 0);
    assert_false(match_complete(a.m, MATCH_BASE));
    assert_int_not_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, 'x', &e), 0);
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, '1', &e), 0);
    assert_true(match_exhausted(a.m, MATCH_BASE));
    answer_close(&a);
}

static void a_token_that_is_refused_leaves_the_answer_where_it_was(void **state)
{
    struct answer a = answer_open(GRAMMAR_TEXT, "root ::= \"abc\" \"d\"");
    struct err e;

    (void)state;
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_AFTER, 'a', &e), 0);
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_AFTER, 'x', &e), ERR_ARG);
    assert_int_equal(match_advance(a.m, MATCH_AFTER, MATCH_TRIAL, 'b', &e), 0);
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, 'a', &e), 0); /* still at "a" */
    answer_close(&a);
}

/* 120 levels of a value that may be one of two nests: 2^60 readings, one after the other. */
static void an_ambiguous_grammar_costs_its_places_and_not_its_readings(void **state)
{
    static const char *const source[] = {
        "root ::= v\nv ::= \"(\" v \")\" | \"(\" v \")\" \"!\"? | \"(\" w \")\" | \"x\"\n"
        "w ::= \"(\" v \")\" | \"(\" w \")\" | \"x\"",
        "root ::= a{20}\na ::= b | b b\nb ::= c | c c\nc ::= d | d d\nd ::= (\"x\" d \"y\" | "
        "\"x\")?",
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < N_ELEMS(source); i++) {
        struct answer a = answer_open(GRAMMAR_TEXT, source[i]);
        const uint64_t *mask;

        for (int n = 0; n < 100; n++) {
            assert_int_equal(match_mask(a.m, MATCH_BASE, &mask, &e), 0);
            assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, i ? 'x' : '(', &e), 0);
        }
        answer_close(&a);
    }
}

static void nesting_has_an_end_before_which_everything_can_still_close(void **state)
{
    struct answer a = answer_open(GRAMMAR_JSON_SCHEMA, "{}");
    unsigned depth = 0;
    struct err e;

    (void)state;
    while (!match_advance(a.m, MATCH_BASE, MATCH_BASE, '[', &e))
        depth++;
    assert_in_range(depth, 60, GRAMMAR_DEPTH_MAX + 1);
    for (; depth > 0; depth--)
        assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, ']', &e), 0);
    assert_true(match_exhausted(a.m, MATCH_BASE));
    answer_close(&a);
}

/* Enough of both that what no place needs is swept away in between. */
static void a_long_answer_keeps_its_counts_and_its_keys(void **state)
{
    struct answer a = answer_open(
        GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"object\"},\"minItems\":"
                             "3000,\"maxItems\":3000}");
    struct err e;
    char text[64];

    (void)state;
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, '[', &e), 0);
    for (int i = 0; i < 3000; i++) {
        int n = snprintf(text, sizeof(text), "%s{\"key%d\":1,\"other%d\":[2],\"x\":3", i ? "," : "",
                         i, i);

        for (int k = 0; k < n; k++)
            assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, text[k], &e), 0);
        n = snprintf(text, sizeof(text), ",\"key%d", i);
        for (int k = 0; k < n; k++)
            assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, text[k], &e), 0);
        assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_TRIAL, '"', &e), ERR_ARG);
        for (const char *c = "z\":null}"; *c; c++)
            assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, *c, &e), 0);
        assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_TRIAL, ']', &e),
                         i == 2999 ? 0 : ERR_ARG);
    }
    assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, ',', &e), ERR_ARG);
    answer_close(&a);
}

/* A text of many parts: begin, n times one with its number, end. */
static char *many(const char *begin, const char *part, unsigned n, const char *end)
{
    size_t room = strlen(begin) + strlen(end) + n * (strlen(part) + 24) + 1, len;
    char *text = malloc(room);

    assert_non_null(text);
    len = (size_t)sprintf(text, "%s", begin);
    for (unsigned i = 0; i < n; i++) {
        const char *at = strchr(part, '#');

        len += (size_t)sprintf(text + len, "%s%.*s%u%s", i ? "," : "", (int)(at - part), part, i,
                               at + 1);
    }
    sprintf(text + len, "%s", end);
    return text;
}

/* Each is accepted or refused, with an error that says why; none takes long or much. */
static void large_and_hostile_schemas_are_handled_or_refused(void **state)
{
    char *list[] = {
        many("{\"enum\":[", "\"value number #\"", 10000, "]}"),
        many("{\"properties\":{", "\"p#\":{\"type\":\"integer\",\"minimum\":3}", 3000, "}}"),
        many("{\"anyOf\":[", "{\"properties\":{\"k\":{\"const\":#}}}", 2000, "]}"),
        many("{\"oneOf\":[", "{\"const\":\"#\"}", 200, "]}"),
        many("{\"$defs\":{", "\"d#\":{\"$ref\":\"#/$defs/d0\"}", 20000, "},\"type\":\"null\"}"),
        many("{\"allOf\":[", "{\"properties\":{\"p#\":{}}}", 3000, "]}"),
        many("{\"prefixItems\":[", "{\"const\":#}", 20000, "]}"),
        many("{\"description\":\"", "#", 150000, "\"}"),
        many("{\"properties\":{\"a\":{\"pattern\":\"^(", "(a{0,50}b?){0,50}#|", 100, ")*$\"}}}"),
        many("{\"type\":\"string\",\"maxLength\":60000,\"pattern\":\"", "a?#", 300, "$\"}"),
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < N_ELEMS(list); i++) {
        struct answer a = {0};
        const uint64_t *mask;
        int rc;

        e.code = 0;
        rc =
            grammar_compile(&a.g, GRAMMAR_JSON_SCHEMA, list[i], strlen(list[i]), tokenizer, -1, &e);
        if (!rc)
            rc = match_open(&a.m, a.g, trie, &e);
        if (!rc) {
            assert_in_range(grammar_bytes(a.g), 1, GRAMMAR_BYTES_MAX);
            assert_int_equal(match_mask(a.m, MATCH_BASE, &mask, &e), 0);
            mask_check(&a, 2, i);
        } else {
            assert_true(e.code && e.text[0]);
        }
        answer_close(&a);
        free(list[i]);
    }
}

/* Three hundred rules that most bytes go on with, and all of them again behind each. */
static void many_rules_that_all_go_on_still_leave_a_token(void **state)
{
    char *rules = many("root ::= (", "x |\"#\" [^a-c]* [a-z] ", 300, "|x)* \".\"\nx ::= \"y\"");
    struct answer a;
    const uint64_t *mask;
    struct err e;

    (void)state;
    for (char *c = rules; *c; c++) /* many() puts commas between */
        *c = *c == ',' ? '|' : *c;
    a = answer_open(GRAMMAR_TEXT, rules);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(match_mask(a.m, MATCH_BASE, &mask, &e), 0);
        assert_true(in_mask(mask, i ? 'z' : '1'));
        assert_int_equal(match_advance(a.m, MATCH_BASE, MATCH_BASE, i ? 'z' : '1', &e), 0);
    }
    answer_close(&a);
    free(rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_allows_what_satisfies_it_and_nothing_else),
        cmocka_unit_test(a_grammar_allows_its_texts_and_nothing_else),
        cmocka_unit_test(what_is_not_understood_is_refused_by_its_name),
        cmocka_unit_test(a_mask_is_what_advancing_by_each_token_says),
        cmocka_unit_test(a_control_token_is_matched_by_its_id_and_never_by_its_text),
        cmocka_unit_test(before_its_marker_a_grammar_leaves_everything_free),
        cmocka_unit_test(a_token_that_is_refused_leaves_the_answer_where_it_was),
        cmocka_unit_test(an_ambiguous_grammar_costs_its_places_and_not_its_readings),
        cmocka_unit_test(nesting_has_an_end_before_which_everything_can_still_close),
        cmocka_unit_test(a_long_answer_keeps_its_counts_and_its_keys),
        cmocka_unit_test(many_rules_that_all_go_on_still_leave_a_token),
        cmocka_unit_test(large_and_hostile_schemas_are_handled_or_refused),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
