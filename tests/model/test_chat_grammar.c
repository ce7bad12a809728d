#include "model/chat_grammar.h"
#include "model/grammar.h"
#include "model/reply.h"
#include "tests/model/chat_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define LAMP                                                                                       \
    "{\"type\":\"function\",\"function\":{\"name\":\"lamp\",\"parameters\":{\"type\":\"object\","  \
    "\"properties\":{\"room\":{\"type\":\"string\"},\"on\":{\"type\":\"boolean\"}},"               \
    "\"required\":[\"room\"],\"additionalProperties\":false}}}"
#define LAMP_SCHEMA                                                                                \
    "{\"type\":\"object\",\"properties\":{\"room\":{\"type\":\"string\"},\"on\":{\"type\":"        \
    "\"boolean\"}},\"required\":[\"room\"],\"additionalProperties\":false}"
#define TOOLS  ",\"tools\":[" LAMP "]"
#define OBJECT ",\"response_format\":{\"type\":\"json_object\"}"

struct host {
    struct tokenizer *tokenizer;
    struct token_trie *trie;
    struct chat *chat;
    struct prompt *prompt;
    struct str text;
    struct err e;
};

static struct host host_of(const char *specials, const char *effort)
{
    struct host h = {.tokenizer = chat_tokenizer(specials)};

    h.chat = chat_of(h.tokenizer, effort);
    h.chat->constrains = true;
    assert_int_equal(token_trie_open(&h.trie, h.tokenizer, 640, &h.e), 0);
    return h;
}

static void host_close(struct host *h)
{
    prompt_close(h->prompt);
    chat_close(h->chat);
    token_trie_close(h->trie);
    tokenizer_close(h->tokenizer);
}

/* The grammar of a request; also whether it compiles. */
static int grammar_of(struct host *h, const char *json, const struct chat_constraint *k)
{
    static const struct chat_constraint none;
    struct grammar *g;
    int rc;

    prompt_close(h->prompt);
    h->prompt = NULL;
    h->text = (struct str){NULL, 0};
    h->e = (struct err){0};
    rc = chat_render(h->chat, &h->prompt, json, strlen(json), &h->e);
    if (!rc)
        rc = chat_grammar(h->prompt, k ? k : &none, &h->text, &h->e);
    if (!rc && h->text.s) {
        rc = grammar_compile(&g, GRAMMAR_TEXT, h->text.s, h->text.len, h->tokenizer, -1, &h->e);
        if (!rc)
            grammar_close(g);
    }
    return rc;
}

static void check_refused(struct host *h, const char *json, const struct chat_constraint *k,
                          int code, const char *why)
{
    assert_int_equal(grammar_of(h, json, k), code);
    assert_string_equal(h->e.text, why);
}

/* Whether these texts and markers, one after the other, are an answer; or, not whole, begin one. */
static bool fits(struct host *h, const char *markup, bool whole)
{
    int32_t ids[512];
    struct grammar *g = NULL;
    struct grammar_match *m = NULL;
    size_t n;
    bool ok = true;

    assert_int_equal(
        tokenizer_encode(h->tokenizer, TOKEN_MARKUP, markup, strlen(markup), ids, 512, &n, &h->e),
        0);
    assert_int_equal(
        grammar_compile(&g, GRAMMAR_TEXT, h->text.s, h->text.len, h->tokenizer, -1, &h->e), 0);
    assert_int_equal(match_open(&m, g, h->trie, &h->e), 0);
    for (size_t i = 0; i < n && ok; i++)
        ok = !match_advance(m, MATCH_BASE, MATCH_BASE, ids[i], &h->e);
    ok = ok && (!whole || match_complete(m, MATCH_BASE));
    match_close(m);
    grammar_close(g);
    return ok;
}

static void what_a_request_asks_for_becomes_a_grammar(void **state)
{
    static const struct {
        const char *specials, *effort, *request, *grammar;
    } cases[] = {
        {K3_SPECIALS, "low", HI TOOLS "}",
         "%start chat\n"
         "chat ::= .* <|close|> \"think\" <|sep|> <|open|> \"response\" <|sep|> chat-answer "
         "<|close|> \"message\" <|sep|> <|end_of_msg|>\n"
         "chat-answer ::= .* <|close|> \"response\" <|sep|> chat-calls?\n"
         "chat-calls ::= <|open|> \"tools\" <|sep|> chat-call+ <|close|> \"tools\" <|sep|>\n"
         "chat-number ::= [1-9][0-9]{,2}\n"
         "chat-call ::= <|open|> \"call tool=\\\"\" (\"lamp\\\" index=\\\"\" chat-number \"\\\"\" "
         "<|sep|> chat-arguments-0) <|close|> \"call\" <|sep|>\n"
         "chat-arguments-0 ::= %arguments" LAMP_SCHEMA "\n"},
        {K3_SPECIALS, NULL, HI TOOLS OBJECT ",\"tool_choice\":\"none\"}",
         "%start chat\n"
         "chat-value ::= %json{\"type\":\"object\"}\n"
         "chat ::= chat-answer <|close|> \"message\" <|sep|> <|end_of_msg|>\n"
         "chat-answer ::= chat-value <|close|> \"response\" <|sep|>\n"},
        {K2_SPECIALS, NULL, HI TOOLS OBJECT ",\"parallel_tool_calls\":false}",
         "%start chat\n"
         "chat-value ::= %json{\"type\":\"object\"}\n"
         "chat ::= chat-answer <|im_end|>\n"
         "chat-answer ::= chat-value  chat-calls? |  chat-calls\n"
         "chat-calls ::= <|tool_calls_section_begin|> chat-call <|tool_calls_section_end|>\n"
         "chat-number ::= \"0\" | [1-9][0-9]{,3}\n"
         "chat-call ::= <|tool_call_begin|> \"functions.\" (\"lamp:\" chat-number "
         "<|tool_call_argument_begin|> chat-arguments-0) <|tool_call_end|>\n"
         "chat-arguments-0 ::= %json" LAMP_SCHEMA "\n"},
        {"[" IM_SPECIALS "]", NULL, HI OBJECT "}",
         "%start chat\n"
         "chat-value ::= %json{\"type\":\"object\"}\n"
         "chat ::= chat-answer <|im_end|>\n"
         "chat-answer ::= chat-value \n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct host h = host_of(cases[i].specials, cases[i].effort);

        assert_int_equal(grammar_of(&h, cases[i].request, NULL), 0);
        assert_string_equal(h.text.s, cases[i].grammar);
        assert_int_equal(h.text.len, strlen(cases[i].grammar));
        host_close(&h);
    }
}

static void nothing_asked_is_no_grammar(void **state)
{
    struct chat_constraint lenient = {.lenient = true};
    struct host h = host_of(K3_SPECIALS, NULL);

    (void)state;
    assert_int_equal(grammar_of(&h, HI "}", NULL), 0);
    assert_null(h.text.s);
    assert_int_equal(grammar_of(&h, HI ",\"tool_choice\":\"none\"}", NULL), 0);
    assert_null(h.text.s);
    assert_int_equal(grammar_of(&h, HI TOOLS "}", &lenient), 0);
    assert_null(h.text.s);
    /* what is insisted on holds all the same */
    assert_int_equal(grammar_of(&h, HI TOOLS ",\"tool_choice\":\"required\"}", &lenient), 0);
    assert_non_null(h.text.s);
    assert_int_equal(grammar_of(&h, HI TOOLS ",\"tool_choice\":\"none\"}", &lenient), 0);
    assert_non_null(h.text.s);
    assert_int_equal(grammar_of(&h,
                                HI ",\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":true}}]}",
                                &lenient),
                     0);
    assert_non_null(h.text.s);
    host_close(&h);
}

#define CLOSE(tag)     "<|close|>" tag "<|sep|>"
#define OPEN(tag)      "<|open|>" tag "<|sep|>"
#define ARG(key, type) "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>"
#define CALL(name)     "<|open|>call tool=\"" name "\" index=\"1\"<|sep|>"
#define END            CLOSE("message") "<|end_of_msg|>"
#define CALLED(call)   CLOSE("response") OPEN("tools") call CLOSE("call") CLOSE("tools") END

static void an_answer_in_xtml_has_the_arguments_that_were_declared(void **state)
{
    static const struct {
        const char *answer;
        bool fits;
    } cases[] = {
        {"free text" CLOSE("response") END, true},
        {CALLED(CALL("lamp") ARG("room", "string") "<|open|" CLOSE("argument")), true},
        {CALLED(CALL("lamp") ARG("room", "string") CLOSE("argument")
                    ARG("on", "boolean") "true" CLOSE("argument")),
         true},
        {CALLED(CALL("lamp")), false},                                               /* room */
        {CALLED(CALL("lamp") ARG("room", "number") "1" CLOSE("argument")), false},   /* its type */
        {CALLED(CALL("lamp") ARG("on", "boolean") "true" CLOSE("argument")), false}, /* room */
        {CALLED(CALL("lamp") ARG("room", "string") CLOSE("argument") ARG("x", "string")
                    CLOSE("argument")),
         false},                                                     /* not declared */
        {CALLED(CALL("lam")), false},                                /* no such tool */
        {CLOSE("response") OPEN("tools") CLOSE("tools") END, false}, /* no call */
        {OPEN("call tool=\"lamp\""), false},                         /* structure in the response */
        {"free text<|end_of_msg|>", false},
    };
    struct host h = host_of(K3_SPECIALS, NULL);

    (void)state;
    assert_int_equal(grammar_of(&h, HI TOOLS "}", NULL), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (fits(&h, cases[i].answer, true) != cases[i].fits)
            fail_msg("%s: %s", cases[i].fits ? "refused" : "allowed", cases[i].answer);
    assert_true(fits(&h, "text" CLOSE("response") OPEN("tools") CALL("lamp"), false));

    assert_int_equal(grammar_of(&h, HI TOOLS ",\"tool_choice\":\"required\"}", NULL), 0);
    assert_false(fits(&h, "text", false));
    assert_false(fits(&h, CLOSE("response") END, true));
    assert_true(fits(&h, CALLED(CALL("lamp") ARG("room", "string") "den" CLOSE("argument")), true));
    host_close(&h);
}

/* Names and keys that look like markup, quotes, references: escaped there and nowhere else. */
static void names_of_any_kind_stay_names(void **state)
{
    static const char request[] = HI
        ",\"tool_choice\":\"required\",\"tools\":[{\"function\":{\"name\":\"a&\\\"<|sep|>\\n\","
        "\"parameters\":{"
        "\"properties\":{\"k&\\\"\":{\"enum\":[\"x\\\"<&\",7]}},\"additionalProperties\":{\"type\":"
        "\"integer\"}}}}]}";
    struct host h = host_of(K3_SPECIALS, NULL);
    struct grammar *g;

    (void)state;
    assert_int_equal(grammar_of(&h, request, NULL), 0);
    assert_non_null(strstr(h.text.s, "\"a&amp;&quot;<|sep|>\\x0a\\\" index"));
    assert_int_equal(grammar_compile(&g, GRAMMAR_TEXT, h.text.s, h.text.len, h.tokenizer, -1, &h.e),
                     0);
    grammar_close(g);
    host_close(&h);

    h = host_of(K3_SPECIALS, NULL);
    assert_int_equal(
        grammar_of(&h,
                   HI ",\"tool_choice\":\"required\",\"tools\":[{\"function\":{\"name\":\"f\","
                      "\"parameters\":{\"properties\":{\"k&\\\"\":{\"enum\":[\"x\\\"<&\",7]}},"
                      "\"additionalProperties\":{\"type\":\"integer\"}}}}]}",
                   NULL),
        0);
    assert_true(fits(&h,
                     CALLED(CALL("f") ARG("k&amp;&quot;", "string") "x\"<&" CLOSE("argument")
                                ARG("more", "number") "12" CLOSE("argument")),
                     true));
    assert_true(
        fits(&h, CALLED(CALL("f") ARG("k&amp;&quot;", "number") "7" CLOSE("argument")), true));
    assert_false(fits(&h, CALLED(CALL("f") ARG("a&b", "number") "7" CLOSE("argument")), true));
    assert_false(fits(&h,
                      CALLED(CALL("f") ARG("a", "number") "7" CLOSE("argument")
                                 ARG("a", "number") "7" CLOSE("argument")),
                      true)); /* a key twice */
    host_close(&h);
}

static void a_schema_that_is_not_understood_is_named(void **state)
{
    static const char strict[] =
        HI ",\"tools\":[" LAMP ",{\"function\":{\"name\":\"find\",\"strict\":true,\"parameters\":"
           "{\"properties\":{\"q\":{\"not\":{}}}}}}]}";
    static const char relaxed[] =
        HI ",\"tools\":[" LAMP ",{\"function\":{\"name\":\"find\",\"parameters\":"
           "{\"properties\":{\"q\":{\"not\":{}}}}}}]}";
    struct host h = host_of(K3_SPECIALS, NULL);

    (void)state;
    check_refused(
        &h, strict, NULL, ERR_UNSUPPORTED,
        "tools[1].function.parameters of \"find\": schema: $.properties.q.not: this keyword "
        "is not understood");
    assert_int_equal(grammar_of(&h, relaxed, NULL), 0);
    assert_non_null(strstr(h.text.s, "chat-arguments-1 ::= %arguments{\"type\":\"object\"}\n"));
    assert_non_null(strstr(h.prompt->note, "tools[1].function.parameters of \"find\" takes any "
                                           "arguments: schema: $.properties.q.not"));
    check_refused(
        &h,
        HI
        ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"if\":{}}}}}",
        NULL, ERR_UNSUPPORTED,
        "response_format.json_schema.schema: schema: $.if: this keyword is not understood");
    check_refused(
        &h, HI ",\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}}]}",
        NULL, ERR_ARG, "tools[0].function.parameters of \"f\" must be a schema of objects");
    host_close(&h);
}

static void tools_that_a_system_message_declares_can_be_called(void **state)
{
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
                                  "\"system\",\"tools\":[{\"function\":{"
                                  "\"name\":\"lamp\",\"strict\":true,\"parameters\":{"
                                  "\"properties\":{\"n\":{\"if\":1}}}}}]}]" TOOLS "}";
    struct host h = host_of(K3_SPECIALS, NULL);

    (void)state;
    check_refused(
        &h, request, NULL, ERR_UNSUPPORTED,
        "messages[1].tools[0].function.parameters of \"lamp\": schema: $.properties.n.if: "
        "this keyword is not understood");
    host_close(&h);
}

static void a_host_says_what_the_response_is(void **state)
{
    struct chat_constraint schema = {.schema = STR(" {\"const\": 1} ")};
    struct chat_constraint grammar = {.grammar = STR("root ::= \"yes\" | \"no\" # it")};
    struct chat_constraint broken = {.grammar = STR("root ::= [a\n")};
    struct chat_constraint forged = {.schema = STR("{} | .*")};
    struct chat_constraint both = {.schema = STR("{}"), .grammar = STR("root ::= \"\"")};
    struct host h = host_of(K3_SPECIALS, "low");

    (void)state;
    assert_int_equal(grammar_of(&h, HI "}", &schema), 0);
    assert_true(fits(&h, "hm" CLOSE("think") OPEN("response") "1" CLOSE("response") END, true));
    assert_false(fits(&h, "hm" CLOSE("think") OPEN("response") "2", false));
    assert_int_equal(grammar_of(&h, HI TOOLS "}", &grammar), 0);
    assert_true(fits(&h, CLOSE("think") OPEN("response") "no" CLOSE("response") END, true));
    assert_true(fits(&h, CLOSE("think") OPEN("response") CLOSE("response") OPEN("tools"), false));
    assert_false(fits(&h, CLOSE("think") OPEN("response") CLOSE("response") END, true));
    check_refused(
        &h, HI "}", &broken, ERR_FORMAT,
        "grammar line 1: a class with a line end, or an escape or character that is none");
    assert_int_equal(grammar_of(&h, HI "}", &forged), ERR_FORMAT);
    check_refused(&h, HI "}", &both, ERR_ARG, "waste_constraint: both a schema and a grammar");
    check_refused(&h, HI OBJECT "}", &schema, ERR_ARG,
                  "response_format: the host has said what the response is");
    check_refused(&h, HI ",\"add_generation_prompt\":false}", &schema, ERR_ARG,
                  "the prompt does not hand over the turn (add_generation_prompt: false)");
    host_close(&h);
}

/* Without a host that constrains, what a format has no words for stays refused. */
static void a_response_format_without_words_needs_a_host_that_constrains(void **state)
{
    struct host h = host_of(K2_SPECIALS, NULL);

    (void)state;
    h.chat->constrains = false;
    check_refused(&h, HI OBJECT "}", NULL, ERR_UNSUPPORTED,
                  "response_format: this container's chat format (K2) has no words for it");
    host_close(&h);
}

static char *many_tools(unsigned n, unsigned n_properties)
{
    struct buf b = {0};

    buf_str(&b, STR(HI ",\"tools\":["));
    for (unsigned i = 0; i < n; i++) {
        char text[200];

        snprintf(text, sizeof(text),
                 "%s{\"function\":{\"name\":\"tool_%u\",\"parameters\":{\"properties\":{",
                 i ? "," : "", i);
        buf_put(&b, text, strlen(text));
        for (unsigned k = 0; k < n_properties; k++) {
            snprintf(text, sizeof(text),
                     "%s\"p%u\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^["
                     "a-z]{%u}$\"}}",
                     k ? "," : "", k, 1 + i % 50);
            buf_put(&b, text, strlen(text));
        }
        buf_str(&b, STR("}}}}"));
    }
    buf_str(&b, STR("]}"));
    buf_put(&b, "", 1);
    assert_false(b.failed);
    return b.s;
}

static void tools_beyond_the_limits_are_refused_with_both_values(void **state)
{
    struct host h = host_of(K2_SPECIALS, NULL);
    char *few = many_tools(50, 20), *many = many_tools(2000, 60);

    (void)state;
    if (grammar_of(&h, few, NULL))
        fail_msg("%s", h.e.text);
    assert_int_equal(grammar_of(&h, many, NULL), ERR_LIMIT);
    assert_non_null(strstr(h.e.text, "tools and response_format: a grammar of "));
    assert_non_null(strstr(h.e.text, "at most 4194304"));
    free(few);
    free(many);
    few = many_tools(400, 100);
    assert_int_equal(grammar_of(&h, few, NULL), ERR_LIMIT);
    assert_non_null(strstr(h.e.text, "bytes compiled, at most 33554432"));
    free(few);
    host_close(&h);
}

/* The halves that a cut leaves are no text under a grammar, and are without one: nothing was asked
 * for, or it was refused. */
static void a_cut_reply_under_a_grammar_ends_with_whole_text(void **state)
{
    static const char said[] = "{}<|close|>resp";
    static const struct {
        const char *json;
        struct chat_constraint k;
        int rc;
        bool held;
    } list[] = {
        {HI OBJECT "}", {0}, 0, true},
        {HI "}", {0}, 0, false},
        {HI "}", {.schema = STR("[]")}, ERR_FORMAT, false},
    };
    struct host h = host_of(K3_SPECIALS, NULL);
    int32_t ids[32];
    size_t n;

    (void)state;
    assert_int_equal(
        tokenizer_encode(h.tokenizer, TOKEN_MARKUP, said, strlen(said), ids, 32, &n, &h.e), 0);
    for (size_t c = 0; c < sizeof(list) / sizeof(list[0]); c++) {
        const waste_event *events;
        struct reply *r = NULL;
        struct str message;
        size_t n_events;

        assert_int_equal(grammar_of(&h, list[c].json, &list[c].k), list[c].rc);
        assert_int_equal(reply_open(&r, h.prompt, &h.e), 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(reply_feed(r, ids[i], &events, &n_events, &h.e), 0);
        assert_int_equal(reply_end(r, &events, &n_events, &h.e), 0);
        assert_int_equal(events[n_events - 1].complete, 0);
        assert_int_equal(reply_message(r, &message, &h.e), 0);
        assert_int_equal(
            strncmp(message.s,
                    list[c].held ? "{\"role\": \"assistant\", \"content\": \"{}\"}"
                                 : "{\"role\": \"assistant\", \"content\": \"{}<|close|>resp\"}",
                    message.len),
            0);
        reply_close(r);
    }
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_request_asks_for_becomes_a_grammar),
        cmocka_unit_test(nothing_asked_is_no_grammar),
        cmocka_unit_test(an_answer_in_xtml_has_the_arguments_that_were_declared),
        cmocka_unit_test(names_of_any_kind_stay_names),
        cmocka_unit_test(a_schema_that_is_not_understood_is_named),
        cmocka_unit_test(tools_that_a_system_message_declares_can_be_called),
        cmocka_unit_test(a_host_says_what_the_response_is),
        cmocka_unit_test(a_response_format_without_words_needs_a_host_that_constrains),
        cmocka_unit_test(tools_beyond_the_limits_are_refused_with_both_values),
        cmocka_unit_test(a_cut_reply_under_a_grammar_ends_with_whole_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
