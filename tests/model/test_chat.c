#include "model/chat.h"

#include "tests/model/chat_fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* Short for what stands around every message of XTML. */
#define OPEN(what)  "<|open|>" what "<|sep|>"
#define CLOSE(what) "<|close|>" what "<|sep|>"
#define END         CLOSE("message") "<|end_of_msg|>"
#define ROLE(role)  OPEN("message role=\"" role "\"")
#define NOTE(type)  OPEN("message role=\"system\" type=\"" type "\"")
#define FLOOR       ROLE("assistant") OPEN("response")
#define THINK       ROLE("assistant") OPEN("think")
#define EFFORT(how)                                                                                \
    NOTE("thinking-effort")                                                                        \
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "   \
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"            \
    "Now the system is invoked with `thinking_effort=" how "`." END
#define USER(text) ROLE("user") text END

struct example {
    const char *what, *json, *text;
};

static struct prompt *render(const struct chat *c, const char *json)
{
    struct prompt *p = NULL;
    struct err e = {0};

    if (chat_render(c, &p, json, strlen(json), &e))
        print_error("%s\n%s\n", json, e.text);
    assert_non_null(p);
    return p;
}

static void check(const struct chat *c, const struct example *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct prompt *p = render(c, x[i].json);
        char *text = prompt_text(p);

        if (strcmp(text, x[i].text) != 0)
            print_error("%s\n", x[i].what);
        assert_string_equal(text, x[i].text);
        free(text);
        prompt_close(p);
    }
}

/* Why this request is refused must be this. */
static void refused(const struct chat *c, const char *json, int code, const char *why)
{
    struct prompt *p = NULL;
    struct err e = {0};

    if (!chat_render(c, &p, json, strlen(json), &e))
        print_error("not refused: %s\n", json);
    assert_null(p);
    if (!strstr(e.text, why))
        print_error("%s: %s\n", json, e.text);
    assert_true(strstr(e.text, why) != NULL);
    assert_int_equal(e.code, code);
}

/* ---- what the formats look like ---- */

static void k3_prompts_are_what_the_model_was_shown(void **state)
{
    static const struct example examples[] = {
        {"1 thinking, without its note",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Name a river.\"}],"
         "\"thinking\":true,\"effort_note\":false}",
         USER("Name a river.") THINK},
        {"2 a name with what could end it",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"Reply in French.\"},"
         "{\"role\":\"user\",\"name\":\"Zoe & \\\"Al\\\"\",\"content\":\"Count to 3\"}]}",
         ROLE("system") "Reply in French." END OPEN(
             "message role=\"user\" name=\"Zoe &amp; &quot;Al&quot;\"") "Count to 3" END FLOOR},
        {"3 reasoning of before",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"6*7?\"},{\"role\":\"assistant\","
         "\"content\":\"42\",\"reasoning_content\":\"six sevens\"},{\"role\":\"user\","
         "\"content\":\"plus 1?\"}],\"reasoning_effort\":\"low\"}",
         EFFORT("low") USER("6*7?") THINK "six sevens" CLOSE("think")
             OPEN("response") "42" CLOSE("response") END USER("plus 1?") THINK},
        {"4 tools, one of which must be called",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"light\"}],\"tools\":[{\"type\":"
         "\"function\",\"function\":{\"name\":\"lamp\",\"parameters\":{\"type\":\"object\","
         "\"properties\":{\"room\":{\"type\":\"string\"},\"on\":{\"type\":\"boolean\"}},"
         "\"required\":[\"room\",\"on\"]}}}],\"tool_choice\":\"required\"}",
         NOTE("tool-declare") "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
                              "```json\n[{\"function\":{\"name\":\"lamp\",\"parameters\":{"
                              "\"properties\":{\"on\":{"
                              "\"type\":\"boolean\"},\"room\":{\"type\":\"string\"}},\"required\":["
                              "\"room\",\"on\"],"
                              "\"type\":\"object\"}},\"type\":\"function\"}]\n```" END USER("light")
                                  NOTE("tool-choice") "The system is invoked with "
                                                      "`tool_choice=required`.\n"
                                                      "You MUST call tools in the next message." END
                                                          FLOOR},
        {"5 calls and results",
         "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"k1\","
         "\"type\":\"function\",\"function\":{\"name\":\"lamp\",\"arguments\":\"{\\\"room\\\":"
         "\\\"den\\\",\\\"on\\\":true,\\\"dim\\\":[1, 2.50],\\\"x\\\":{\\\"b\\\":1,\\\"a\\\":null}}"
         "\"}},{\"id\":\"k2\",\"type\":\"function\",\"function\":{\"name\":\"lamp\","
         "\"arguments\":\"{oops\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"k2\",\"content\":"
         "\"bad\"},{\"role\":\"tool\",\"tool_call_id\":\"k1\",\"content\":\"ok\"}],"
         "\"add_generation_prompt\":false}",
         FLOOR CLOSE("response") OPEN("tools") OPEN("call tool=\"lamp\" index=\"1\"") OPEN(
             "argument key=\"room\" type=\"string\"") "den" CLOSE("argument")
             OPEN("argument key=\"on\" type=\"boolean\"") "true" CLOSE("argument") OPEN(
                 "argument key=\"dim\" type=\"array\"") "[1, 2.5]" CLOSE("argument")
                 OPEN("argument key=\"x\" type=\"object\"") "{\"b\": 1, \"a\": null}" CLOSE(
                     "argument") CLOSE("call") OPEN("call tool=\"lamp\" index=\"2\"")
                     OPEN("json type=\"object\"") "{oops" CLOSE("json") CLOSE("call") CLOSE("tools")
                         END OPEN("message role=\"tool\" tool=\"lamp\" index=\"1\"") "ok" END OPEN(
                             "message role=\"tool\" tool=\"lamp\" index=\"2\"") "bad" END},
        {"6 a schema for the answer",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"cfg\"}],\"response_format\":{\"type\":"
         "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"object\","
         "\"properties\":{\"z\":{\"type\":\"number\"},\"a\":{\"type\":\"string\"}}}}}}",
         USER("cfg")
             NOTE("response-format") "The system is invoked with "
                                     "`response_format=json_schema`.\nYour response must be raw "
                                     "JSON data without markdown code blocks (```json) or any "
                                     "additional formatting.\nThe JSON "
                                     "data must match the following "
                                     "schema:\n```json\n{\"properties\":{\"a\":{\"type\":"
                                     "\"string\"},\"z\":{\"type\":\"number\"}},\"type\":\"object\"}"
                                     "\n```" END FLOOR},
        {"6b any JSON",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"cfg\"}],\"response_format\":{\"type\":"
         "\"json_object\"}}",
         USER("cfg")
             NOTE("response-format") "The system is invoked with "
                                     "`response_format=json_object`.\nYour response must be raw "
                                     "JSON data without markdown code blocks (```json) or any "
                                     "additional formatting." END FLOOR},
        {"7 an image",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Which is "
         "older: \"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\",\"width\":640,"
         "\"height\":427}},{\"type\":\"text\",\"text\":\"?\"}]}]}",
         USER("Which is older: <|media_begin|>image "
              "640x427<|media_content|><|media_pad|><|media_end|>?") FLOOR},
        {"8 more tools later",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"gone\",\"tools\":[{\"type\":"
         "\"function\",\"function\":{\"name\":\"fan\"}}]}],\"add_generation_prompt\":false}",
         NOTE("tool-declare") "## New Tools Available\nThe system dynamically extends the toolset "
                              "via lazy-loading.\nYou have access to all existing and extended "
                              "tools.\nHere are the "
                              "specs for the extended "
                              "tools.\n\n```json\n[{\"function\":{\"name\":\"fan\"},\"type\":"
                              "\"function\"}]\n```" END},
        {"9 a marker that somebody typed",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x<|end_of_msg|>y\"}]}",
         USER("x<|end_of_msg|>y") FLOOR},
        {"no tools may be called",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"none\"}",
         USER("a")
             NOTE("tool-choice") "The system is invoked with `tool_choice=none`.\n"
                                 "You MUST NOT call any tools in the next message." END FLOOR},
        {"developer is system; empty reasoning has its element",
         "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"assistant\","
         "\"content\":\"b\",\"reasoning_content\":\" \\n\"}],\"thinking_effort\":\"MAX\"}",
         EFFORT("max") ROLE("system") "s" END THINK CLOSE("think")
             OPEN("response") "b" CLOSE("response") END THINK},
        {"a null beside a member hides nothing", /* T23 */
         "{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":null,\"reasoning\":\"r\","
         "\"content\":\"b\"}],\"reasoning_effort\":null,\"thinking_effort\":\"high\","
         "\"add_generation_prompt\":false}",
         EFFORT("high") THINK "r" CLOSE("think") OPEN("response") "b" CLOSE("response") END},
    };
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);

    (void)state;
    assert_int_equal(c->format, WASTE_CHAT_XTML);
    check(c, examples, N_ELEMS(examples));
    chat_close(c);
    tokenizer_close(t);
}

#define SYSTEM_TURN(text) "<|im_system|>" text "<|im_end|>"
#define USER_TURN(text)   "<|im_user|>" text "<|im_end|>"
#define K2_FLOOR          "<|im_assistant|>assistant<|im_middle|>"

static void k2_prompts_have_turns_and_tools(void **state)
{
    static const struct example examples[] = {
        {"10 turns",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief\"},{\"role\":\"user\","
         "\"content\":\"hi\"}]}",
         SYSTEM_TURN("system<|im_middle|>Be brief") USER_TURN("user<|im_middle|>hi") K2_FLOOR},
        {"a name in the place of the role",
         "{\"messages\":[{\"role\":\"user\",\"name\":\"Zoe\",\"content\":\"hi\"}]}",
         USER_TURN("Zoe<|im_middle|>hi") K2_FLOOR},
        {"tools: members as given, calls numbered through the conversation",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
         "\"b\",\"tool_calls\":[{\"id\":\"call_7\",\"function\":{\"name\":\"f\",\"arguments\":"
         "{\"y\":1,\"x\":2}}},{\"id\":\"call_8\",\"function\":{\"name\":\"g\",\"arguments\":"
         "\"{\\\"z\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_8\",\"content\":\"two\"}"
         ","
         "{\"role\":\"tool\",\"tool_call_id\":\"call_7\",\"content\":\"one\"},{\"role\":"
         "\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\"}}]}],"
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"a\":0}}],"
         "\"add_generation_prompt\":false}",
         SYSTEM_TURN("tool_declare<|im_middle|>[{\"type\":\"function\",\"function\":{\"name\":"
                     "\"f\",\"a\":0}}]") USER_TURN("user<|im_middle|>a") K2_FLOOR
         "b<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
         "{\"y\": 1, \"x\": 2}<|tool_call_end|><|tool_call_begin|>functions.g:1"
         "<|tool_call_argument_begin|>{\"z\":1}<|tool_call_end|><|tool_calls_section_end|>"
         "<|im_end|>" SYSTEM_TURN("tool<|im_middle|>## Return of functions.f:0\none")
             SYSTEM_TURN("tool<|im_middle|>## Return of functions.g:1\ntwo") K2_FLOOR
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:2<|tool_call_argument_begin|>"
         "{}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"},
        {"an id of the model's own form stays",
         "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"functions.f:41\","
         "\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]},{\"role\":\"tool\",\"name\":\"f\","
         "\"tool_call_id\":\"unknown\",\"content\":\"r\"}],\"add_generation_prompt\":false}",
         K2_FLOOR "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:41"
                  "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
                  "<|im_end|>" SYSTEM_TURN("f<|im_middle|>## Return of unknown\nr")},
    };
    struct tokenizer *t = chat_tokenizer(K2_SPECIALS);
    struct chat *c = chat_of(t, "low");

    (void)state;
    assert_int_equal(c->format, WASTE_CHAT_K2);
    assert_true(c->has_tools);
    check(c, examples, N_ELEMS(examples));
    chat_close(c);
    tokenizer_close(t);
}

/* T10: encoding is not associative, so where segments end decides about ids. */
static void segments_end_where_the_models_encoder_ends_them(void **state)
{
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);
    struct prompt *p =
        render(c, "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"text\":\"First. \"},"
                  "{\"text\":\"\"},{\"text\":\"Second\"}],\"tool_calls\":[{\"name\":\"f\","
                  "\"arguments\":{\"_id\":\"v\",\"\":\"\"}}]}],\"add_generation_prompt\":false}");
    char *text = prompt_segments(p);
    int32_t joined[16];
    size_t n, first = 0;
    struct err e;

    (void)state;
    assert_non_null(strstr(text, "t[First. ]t[Second]M[<|close|>]"));
    assert_non_null(strstr(text, "t[ key]t[=\"]t[_id]t[\"]t[ type]t[=\"]t[string]t[\"]M[<|sep|>]"
                                 "t[v]M[<|close|>]t[argument]"));
    assert_non_null(strstr(text, "t[ key]t[=\"]t[\"]t[ type]t[=\"]t[string]t[\"]M[<|sep|>]"
                                 "M[<|close|>]t[argument]")); /* nothing has no segment */
    while (p->segments[first].len != 4 || memcmp(p->segments[first].text, " key", 4) != 0)
        first++;
    assert_int_equal(tokenizer_encode(t, TOKEN_CONTENT, " key=\"_id\"", 10, joined, 16, &n, &e), 0);
    assert_true(p->segments[first + 4].first_id - p->segments[first].first_id != n ||
                memcmp(p->ids + p->segments[first].first_id, joined, n * sizeof(*joined)) != 0);
    free(text);
    prompt_close(p);
    chat_close(c);
    tokenizer_close(t);
}

/* ---- traps ---- */

/* T3: the same numbers are other tokens in the other family. */
static void a_format_is_found_by_the_texts_of_its_tokens(void **state)
{
    static const struct {
        const char *specials;
        uint32_t format;
        bool tools, images;
    } cases[] = {
        {K3_SPECIALS, WASTE_CHAT_XTML, true, true},
        {K2_SPECIALS, WASTE_CHAT_K2, true, false},
        {"[" IM_SPECIALS "]", WASTE_CHAT_K2, false, false},
        {"[{\"id\":1002,\"text\":\"<|sep|>\"},{\"id\":1000,\"text\":\"<|open|>\"},{\"id\":1004,"
         "\"text\":\"<|close|>\"},{\"id\":1001,\"text\":\"<|end_of_msg|>\"}]",
         WASTE_CHAT_XTML, true, false},
    };
    struct thinking_rules rules = {.effort = "low"};
    struct chat *c = NULL;
    struct tokenizer *t;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        struct rank_file ranks = rank_file_of(chat_ranks);

        assert_int_equal(tokenizer_parse(&t, ranks.text, ranks.len, cases[i].specials,
                                         strlen(cases[i].specials), 2000, &e),
                         0);
        free(ranks.text);
        assert_int_equal(chat_open(&c, t, NULL, &rules, &e), 0);
        assert_int_equal(c->format, cases[i].format);
        assert_int_equal(c->has_tools, cases[i].tools);
        assert_int_equal(c->has_images, cases[i].images);
        assert_int_equal(c->end_id,
                         tokenizer_special_id(t, i == 1 || i == 2 ? "<|im_end|>" : "<|end_of_msg|>",
                                              i == 1 || i == 2 ? 10 : 14));
        chat_close(c);
        tokenizer_close(t);
    }
    t = chat_tokenizer("[{\"id\":600,\"text\":\"<|open|>\"}]");
    c = NULL;
    assert_int_equal(chat_open(&c, t, NULL, &rules, &e), ERR_UNSUPPORTED);
    assert_null(c);
    assert_string_equal(e.text,
                        "no chat format: XTML: <|close|> is no control token; chat.json: there is "
                        "none; K2: <|im_user|> is no control token");
    tokenizer_close(t);
}

/* T13: NUL cuts nothing. What is written is what the model sees, byte for byte. */
static void nul_and_half_surrogates_are_characters_like_others(void **state)
{
    static const char want[] = "a\0bcdef\xef\xbf\xbdx\xf0\x9f\x8e\x89\xef\xbf\xbd\xef\xbf\xbd";
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);
    struct prompt *p = render(c, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000bcdef"
                                 "\\ud800x\\ud83c\\udf89\\udf89\\ud83c\"}]}");
    bool found = false;

    (void)state;
    for (size_t i = 0; i < p->n_segments; i++)
        found |= p->segments[i].len == sizeof(want) - 1 &&
                 !memcmp(p->segments[i].text, want, sizeof(want) - 1);
    assert_true(found);
    prompt_close(p);
    chat_close(c);
    tokenizer_close(t);
}

/* T16: as the model's encoder does; and whoever reads a log is told. */
static void results_are_numbered_by_where_they_stand(void **state)
{
    static const struct example one[] = {
        {"only the second result",
         "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"name\":\"f\"},"
         "{\"id\":\"b\",\"name\":\"g\"}]},{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":"
         "\"r\"}],\"add_generation_prompt\":false}",
         FLOOR CLOSE("response") OPEN("tools") OPEN("call tool=\"f\" index=\"1\"") CLOSE("call")
             OPEN("call tool=\"g\" index=\"2\"") CLOSE("call") CLOSE("tools")
                 END OPEN("message role=\"tool\" tool=\"g\" index=\"1\"") "r" END},
        {"one that answers nothing: the run stays as it is",
         "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"name\":\"f\"},"
         "{\"id\":\"b\",\"name\":\"g\"}]},{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":"
         "\"2\"},{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"user\",\"content\":\"u\"},"
         "{\"role\":\"tool\",\"tool\":\"h\",\"content\":\"3\"}],\"add_generation_prompt\":false}",
         FLOOR CLOSE("response") OPEN("tools") OPEN("call tool=\"f\" index=\"1\"") CLOSE("call")
             OPEN("call tool=\"g\" index=\"2\"") CLOSE("call") CLOSE("tools")
                 END OPEN("message role=\"tool\" tool=\"g\" index=\"1\"") "2" END OPEN(
                     "message role=\"tool\" tool=\"g\" index=\"2\"") "1" END USER("u")
                     OPEN("message role=\"tool\" tool=\"h\" index=\"3\"") "3" END},
    };
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);
    struct prompt *p;

    (void)state;
    check(c, one, N_ELEMS(one));
    p = render(c, one[0].json);
    assert_string_equal(p->note, "messages[1] answers call 2 and is numbered 1: results are "
                                 "numbered by where they stand");
    prompt_close(p);
    chat_close(c);
    tokenizer_close(t);
}

/* T17 */
static void thinking_never_goes_without_its_note(void **state)
{
    static const struct {
        const char *by_default, *asked, *effort; /* "": no thinking */
    } cases[] = {
        {"low", "", "low"},
        {"max", "", "max"},
        {"none", "", ""},
        {"none", ",\"thinking\":true", "low"},
        {"high", ",\"thinking\":true", "high"},
        {"high", ",\"enable_thinking\":false", ""},
        {"high", ",\"thinking\":{\"type\":\"disabled\"}", ""},
        {"none", ",\"thinking\":{\"type\":\"enabled\"}", "low"},
        {"low", ",\"reasoning\":{\"effort\":\"High\"}", "high"},
        {"low", ",\"chat_template_kwargs\":{\"thinking\":false}", ""},
        {"low", ",\"chat_template_kwargs\":{\"thinking_effort\":\"max\"}", "max"},
        {"low", ",\"reasoning_effort\":\"minimal\"", ""},
        {"low", ",\"reasoning_effort\":\"OFF\",\"thinking\":false", ""},
        {"low", ",\"reasoning_effort\":\"high\",\"thinking_effort\":\"max\"", "high"},
    };
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    char json[256], want[64];

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        struct chat *c = chat_of(t, cases[i].by_default);
        struct prompt *p;
        char *text;

        snprintf(json, sizeof(json), "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]%s}",
                 cases[i].asked);
        snprintf(want, sizeof(want), "`thinking_effort=%s`.", cases[i].effort);
        p = render(c, json);
        text = prompt_text(p);
        assert_string_equal(p->effort, cases[i].effort);
        assert_int_equal(strstr(text, want) != NULL, cases[i].effort[0] != 0);
        assert_int_equal(p->begins, cases[i].effort[0] ? WASTE_REASONING : WASTE_RESPONSE);
        free(text);
        prompt_close(p);
        chat_close(c);
    }
    tokenizer_close(t);
}

static void an_effort_the_model_does_not_know_is_mapped_only_when_asked(void **state)
{
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct thinking_rules lenient = {.effort = "low", .lenient = true};
    struct chat *strict = chat_of(t, "low"), *c = NULL;
    static const char medium[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                                 "\"reasoning_effort\":\"medium\"}";
    struct prompt *p;
    struct err e;

    (void)state;
    refused(strict, medium, ERR_ARG,
            "reasoning_effort: \"medium\" is none of low, high, max, none "
            "(--lenient-effort of a server takes it)");
    assert_int_equal(chat_open(&c, t, NULL, &lenient, &e), 0);
    p = render(c, medium);
    assert_string_equal(p->effort, "high");
    prompt_close(p);
    chat_close(c);
    chat_close(strict);
    tokenizer_close(t);
}

/* T18: only a part that is an image makes a place for one. */
static void a_typed_image_placeholder_is_text(void **state)
{
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);
    struct prompt *p =
        render(c, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
                  "\"<|kimi_image_placeholder|><|media_pad|>\"},{\"type\":\"image\",\"width\":10,"
                  "\"height\":20,\"image\":\"one\"}]},{\"role\":\"user\",\"content\":[{\"type\":"
                  "\"image_url\",\"image_url\":\"two\",\"width\":3,\"height\":4}]}]}");
    int32_t pad = tokenizer_special_id(t, "<|media_pad|>", 13);
    size_t n_pads = 0;

    (void)state;
    for (size_t i = 0; i < p->n_ids; i++)
        n_pads += p->ids[i] == pad;
    assert_int_equal(n_pads, 2);
    assert_int_equal(p->n_images, 2);
    for (size_t i = 0; i < 2; i++) {
        const waste_image_place *image = &p->images[i];

        assert_int_equal(p->ids[image->at], pad);
        assert_int_equal(image->message, i);
        assert_int_equal(image->part, 1 - i);
        assert_int_equal(image->width, i ? 3 : 10);
        assert_int_equal(image->height, i ? 4 : 20);
        assert_int_equal(image->len, 3);
        assert_memory_equal(image->source, i ? "two" : "one", 3);
    }
    assert_true(p->images[0].at < p->images[1].at);
    prompt_close(p);
    chat_close(c);
    tokenizer_close(t);
}

/* A snapshot at a message's end serves every request that begins with the same messages. */
static void a_prompt_up_to_a_message_is_the_prompt_of_those_messages(void **state)
{
    static const char *const formats[] = {K3_SPECIALS, K2_SPECIALS};
    static const char *const m[] = {
        "{\"role\":\"system\",\"content\":\"s\"}",
        "{\"role\":\"user\",\"content\":[{\"text\":\"a\"},{\"text\":\"b\"}]}",
        ("{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"id\":\"1\",\"name\":\"f\","
         "\"arguments\":{\"x\":[]}}]}"),
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}",
        "{\"role\":\"user\",\"content\":\"d\"}",
    };
    char json[1024];

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        struct tokenizer *t = chat_tokenizer(formats[f]);
        struct chat *c = chat_of(t, NULL);
        struct prompt *whole = NULL;

        for (size_t n = N_ELEMS(m); n; n--) {
            struct prompt *p;
            size_t at = (size_t)snprintf(json, sizeof(json),
                                         "{\"tools\":[{\"name\":\"f\"}],"
                                         "\"messages\":[");

            for (size_t i = 0; i < n; i++)
                at += (size_t)snprintf(json + at, sizeof(json) - at, "%s%s", i ? "," : "", m[i]);
            snprintf(json + at, sizeof(json) - at, "],\"add_generation_prompt\":%s}",
                     n == N_ELEMS(m) ? "true" : "false");
            p = render(c, json);
            assert_int_equal(p->n_ends, n + 1); /* and the tools */
            assert_int_equal(p->ends[0].message, -1);
            assert_int_equal(p->ends[n].message, n - 1);
            if (!whole) {
                whole = p;
                continue;
            }
            assert_int_equal(p->begins, 0);
            assert_int_equal(p->ends[n].n_ids, p->n_ids);
            assert_int_equal(whole->ends[n].n_ids, p->n_ids);
            assert_memory_equal(whole->ids, p->ids, p->n_ids * sizeof(*p->ids));
            prompt_close(p);
        }
        prompt_close(whole);
        chat_close(c);
        tokenizer_close(t);
    }
}

static void what_tools_may_do_is_told_to_who_constrains(void **state)
{
    static const struct {
        const char *rest, *name;
        int may, must;
    } cases[] = {
        {"", "", 0, 0},
        {",\"tools\":[]", "", 0, 0},
        {",\"tools\":[{\"function\":{\"name\":\"f\"}}]", "", 1, 0},
        {",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"", "", 0, 0},
        {",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"auto\"", "", 1, 0},
        {",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\"", "", 1, 1},
        {",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\","
         "\"function\":{\"name\":\"f\"}}",
         "f", 1, 1},
    };
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);
    char json[256];

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        struct prompt *p;
        char *text;

        snprintf(json, sizeof(json), "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]%s}",
                 cases[i].rest);
        p = render(c, json);
        text = prompt_text(p);
        assert_int_equal(p->may_call, cases[i].may);
        assert_int_equal(p->must_call, cases[i].must);
        assert_true(str_is(buf_all(&p->must_call_name),
                           (struct str){cases[i].name, strlen(cases[i].name)}));
        assert_int_equal(strstr(text, "call the tool f.") != NULL, cases[i].name[0] != 0);
        free(text);
        prompt_close(p);
    }
    chat_close(c);
    tokenizer_close(t);
}

/* ---- what is refused ---- */

#define WITH(message) "{\"messages\":[" message "]}"
#define AND(members)  "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]," members "}"

static void requests_are_refused_by_the_path_of_what_is_wrong(void **state)
{
    static const struct {
        const char *json, *why;
    } cases[] = {
        {"", "request: JSON error at byte 0: a value is missing"},
        {"{\"messages\":[}", "request: JSON error at byte 13: not a value"},
        {"[]", "the request must be an object, not an array"},
        {"{}", "messages must be an array with something in it, not nothing"},
        {"{\"messages\":[]}", "messages must be an array with something in it, not an empty one"},
        {"{\"messages\":\"a\"}", "messages must be an array with something in it, not a text"},
        {WITH("1"), "messages[0] must be an object, not an integer"},
        {WITH("{}"), "messages[0].role must be a text, not nothing"},
        {WITH("{\"role\":\"function\"}"), "messages[0].role: \"function\" is none of system, "},
        {WITH("{\"role\":\"user\",\"content\":1.5}"),
         "messages[0].content must be a text or an array of parts, not a number"},
        {WITH("{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}"),
         "messages[0].content[0].type: \"input_audio\" is neither a text nor an image"},
        {WITH("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"),
         "messages[0].content[0].text must be a text, not nothing"},
        {WITH("{\"role\":\"user\",\"content\":[{\"text\":\"\"},{\"type\":3}]}"),
         "messages[0].content[1].type must be a text, not an integer"},
        {WITH("{\"role\":\"user\",\"content\":[\"a\"]}"),
         "messages[0].content[0] must be an object, not a text"},
        {WITH("{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}"),
         "messages[0].content[0].width: an image needs its width in pixels, not nothing"},
        {WITH(
             "{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"width\":1,\"height\":65536}]}"),
         "messages[0].content[0].height: 65536 is not in 1...65535"},
        {WITH("{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"width\":-1,\"height\":1}]}"),
         "messages[0].content[0].width: -1 is not in 1...65535"},
        {WITH("{\"role\":\"assistant\",\"content\":[{\"type\":\"image\",\"width\":1,\"height\":1}]"
              "}"),
         "messages[0].content[0]: an assistant's message holds no images"},
        {WITH("{\"role\":\"user\",\"content\":\"\",\"name\":[]}"),
         "messages[0].name must be a text, not an array"},
        {WITH("{\"role\":\"user\",\"tool_calls\":[{}]}"),
         "messages[0].tool_calls: only an assistant calls tools"},
        {WITH("{\"role\":\"assistant\",\"tool_calls\":[1]}"),
         "messages[0].tool_calls[0] must be an object, not an integer"},
        {WITH("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}"),
         "messages[0].tool_calls[0].function.name is needed"},
        {WITH("{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"[1]\"}]}"),
         "messages[0].tool_calls[0].function.arguments must be the text of an object, not of an "
         "array"},
        {WITH("{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":7}]}"),
         "messages[0].tool_calls[0].function.arguments must be an object or its text, not an "
         "integer"},
        {WITH("{\"role\":\"tool\",\"tool_call_id\":\"q\",\"content\":\"\"}"),
         "messages[0].tool_call_id: \"q\" is the id of no call"},
        {AND("\"tools\":{}"), "tools must be an array, not an object"},
        {AND("\"tools\":[1]"), "tools[0] must be an object, not an integer"},
        {AND("\"tools\":[{\"function\":{}}]"),
         "tools[0].function.name must be a text, not nothing"},
        {AND("\"tool_choice\":\"always\""),
         "tool_choice: \"always\" is none of auto, none, required"},
        {AND("\"tool_choice\":\"required\""), "tool_choice is \"required\", but tools is empty"},
        {AND("\"tool_choice\":{\"function\":{\"name\":\"g\"}}"),
         "tool_choice.function.name: \"g\" is not among the tools"},
        {AND("\"tool_choice\":1"), "tool_choice must be a text or an object, not an integer"},
        {AND("\"response_format\":\"json\""), "response_format must be an object, not a text"},
        {AND("\"response_format\":{\"type\":\"xml\"}"),
         "response_format.type: xml is none of text"},
        {AND("\"response_format\":{\"type\":\"json_schema\"}"),
         "response_format.json_schema must be an object, not nothing"},
        {AND("\"reasoning_effort\":3"), "reasoning_effort must be a text, not an integer"},
        {AND("\"thinking\":false,\"reasoning_effort\":\"low\""),
         "thinking asks for no thinking, reasoning_effort for \"low\""},
        {AND("\"thinking\":\"yes\""), "thinking must be true, false or an object"},
        {AND("\"thinking\":{\"type\":\"auto\"}"),
         "thinking.type must be \"enabled\" or \"disabled\", not auto"},
        {AND("\"add_generation_prompt\":1"), "add_generation_prompt must be true or false, not"},
        {WITH("{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}"), "not UTF-8"},
    };
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, NULL);

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++)
        refused(c, cases[i].json, ERR_ARG, cases[i].why);
    chat_close(c);
    tokenizer_close(t);
}

static void what_a_format_cannot_say_is_refused_by_name(void **state)
{
    static const struct {
        const char *json, *why;
    } cases[] = {
        {AND("\"tools\":[{\"name\":\"f\"}]"), "tools: this container's chat format"},
        {AND("\"response_format\":{\"type\":\"json_object\"}"), "response_format: this"},
        {AND("\"reasoning_effort\":\"low\""), "reasoning: this"},
        {AND("\"thinking\":true"), "reasoning: this"},
        {WITH("{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}"),
         "messages[0].tool_calls: this"},
        {WITH("{\"role\":\"tool\",\"name\":\"f\",\"content\":\"\"}"), "messages[0].role: this"},
        {WITH("{\"role\":\"system\",\"tools\":[{\"name\":\"f\"}]}"), "messages[0].tools: this"},
        {WITH("{\"role\":\"user\",\"content\":[{\"text\":\"\"},{\"type\":\"image\",\"width\":1,"
              "\"height\":1}]}"),
         "messages[0].content[1]: this"},
    };
    struct tokenizer *t = chat_tokenizer("[" IM_SPECIALS "]");
    struct chat *c = chat_of(t, "low");

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++)
        refused(c, cases[i].json, ERR_UNSUPPORTED, cases[i].why);
    prompt_close(render(c, AND("\"tools\":[],\"tool_choice\":\"auto\",\"thinking\":false,"
                               "\"response_format\":{\"type\":\"text\"}")));
    chat_close(c);
    tokenizer_close(t);
}

/* ---- chat.json ---- */

static char directory[64];

static void put_chat_json(const char *text)
{
    char path[96];
    FILE *f;

    snprintf(path, sizeof(path), "%s/chat.json", directory);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/waste-test-chat-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    char path[96];

    (void)state;
    snprintf(path, sizeof(path), "%s/chat.json", directory);
    unlink(path);
    return rmdir(directory);
}

#define TURNS "\"user\":[\"<|im_user|>\",\"<|im_end|>\"],\"assistant\":[\"\",\"|<|im_end|>\\n\"]"

static void a_chat_json_that_cannot_work_is_refused_with_the_reason(void **state)
{
    static const struct {
        const char *json, *why;
    } cases[] = {
        {"[1]", "chat.json: must be an object"},
        {"{}", "chat.json: user is missing"},
        {"{\"user\":[\"a\",\"b\"],\"open\":\"x\"}", "chat.json: assistant is missing"},
        {"{\"user\":[\"a\"],\"open\":\"x\"}", "chat.json: user must be a pair of texts"},
        {"{\"user\":[\"a\",1],\"open\":\"x\"}", "chat.json: user must be a pair of texts"},
        {"{" TURNS "}", "chat.json: open must be a text"},
        {"{" TURNS ",\"open\":\"\"}", "chat.json: open must be a text"},
        {"{" TURNS ",\"open\":\"<|im_start|>assistant\"}",
         "chat.json: open: <|im_start|> is no control token of specials.json"},
        {"{\"user\":[\"a\",\"b\"],\"assistant\":[\"<|im_end|>\",\"end\"],\"open\":\"x\"}",
         "chat.json: assistant: no <|...|> ends it"},
        {"{\"user\":", "chat.json: JSON error"},
    };
    struct thinking_rules rules = {.effort = "low"};
    struct tokenizer *t = chat_tokenizer(K2_SPECIALS);
    struct chat *c = NULL;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        put_chat_json(cases[i].json);
        assert_int_equal(chat_open(&c, t, directory, &rules, &e), ERR_FORMAT);
        if (!strstr(e.text, cases[i].why))
            print_error("%s\n", e.text);
        assert_true(strstr(e.text, cases[i].why) != NULL);
    }
    tokenizer_close(t);
}

/* T22: any length, every escape. */
static void the_texts_of_a_chat_json_are_used_whole(void **state)
{
    struct thinking_rules rules = {.effort = "low"};
    struct tokenizer *t = chat_tokenizer(K2_SPECIALS);
    struct chat *c = NULL;
    struct prompt *p;
    char json[12000], user[10001];
    char *text;
    struct err e;

    (void)state;
    memset(user, 'u', 10000);
    user[10000] = 0;
    snprintf(json, sizeof(json),
             "{\"user\":[\"<|im_user|>\\u00e9\\t%s\",\"\\\"\\/\\n<|im_end|>\"],\"assistant\":["
             "\"\",\"|<|im_end|><|im_middle|>\"],\"open\":\"go\"}",
             user);
    put_chat_json(json);
    assert_int_equal(chat_open(&c, t, directory, &rules, &e), 0);
    assert_int_equal(c->format, WASTE_CHAT_PLAIN);
    assert_false(c->has_tools);
    assert_int_equal(c->end_id, tokenizer_special_id(t, "<|im_end|>", 10));
    p = render(c, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
                  "\"content\":\"<|im_end|>\",\"reasoning_content\":\"dropped\"}]}");
    text = prompt_text(p);
    snprintf(json, sizeof(json),
             "<|im_user|>\xc3\xa9\t%shi\"/\n<|im_end|><|im_end|>|<|im_end|><|im_middle|>go", user);
    assert_string_equal(text, json);
    assert_int_equal(n_controls(t, p->ids, p->n_ids), 4);
    refused(c, WITH("{\"role\":\"system\",\"content\":\"s\"}"), ERR_UNSUPPORTED,
            "messages[0].role: chat.json has no such turns");
    free(text);
    prompt_close(p);
    chat_close(c);
    tokenizer_close(t);
}

/* T14: there is one chooser, and the order is always the same. */
static void xtml_goes_before_a_chat_json_and_k2_needs_its_own(void **state)
{
    struct thinking_rules rules = {.effort = "low"};
    struct tokenizer *k3 = chat_tokenizer(K3_SPECIALS), *k2 = chat_tokenizer(K2_SPECIALS);
    struct chat *c = NULL;
    struct err e = {0};

    (void)state;
    put_chat_json("{\"user\":[\"a\",\"b\"],\"assistant\":[\"a\",\"<|sep|>\"],\"open\":\"x\"}");
    assert_int_equal(chat_open(&c, k3, directory, &rules, &e), 0);
    assert_int_equal(c->format, WASTE_CHAT_XTML);
    chat_close(c);
    put_chat_json("{\"system\":[\"<|im_system|>system<|im_middle|>\",\"<|im_end|>\"],"
                  "\"user\":[\"<|im_user|>user<|im_middle|>\",\"<|im_end|>\"],"
                  "\"assistant\":[\"<|im_assistant|>assistant<|im_middle|>\",\"<|im_end|>\"],"
                  "\"open\":\"<|im_assistant|>assistant<|im_middle|>\"}");
    assert_int_equal(chat_open(&c, k2, directory, &rules, &e), 0);
    assert_int_equal(c->format, WASTE_CHAT_K2);
    chat_close(c);
    assert_int_equal(chat_open(&c, k2, "/nowhere", &rules, &e), ERR_IO);
    assert_non_null(strstr(e.text, "/nowhere"));
    tokenizer_close(k3);
    tokenizer_close(k2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k3_prompts_are_what_the_model_was_shown),
        cmocka_unit_test(k2_prompts_have_turns_and_tools),
        cmocka_unit_test(segments_end_where_the_models_encoder_ends_them),
        cmocka_unit_test(a_format_is_found_by_the_texts_of_its_tokens),
        cmocka_unit_test(nul_and_half_surrogates_are_characters_like_others),
        cmocka_unit_test(results_are_numbered_by_where_they_stand),
        cmocka_unit_test(thinking_never_goes_without_its_note),
        cmocka_unit_test(an_effort_the_model_does_not_know_is_mapped_only_when_asked),
        cmocka_unit_test(a_typed_image_placeholder_is_text),
        cmocka_unit_test(a_prompt_up_to_a_message_is_the_prompt_of_those_messages),
        cmocka_unit_test(what_tools_may_do_is_told_to_who_constrains),
        cmocka_unit_test(requests_are_refused_by_the_path_of_what_is_wrong),
        cmocka_unit_test(what_a_format_cannot_say_is_refused_by_name),
        cmocka_unit_test(a_chat_json_that_cannot_work_is_refused_with_the_reason),
        cmocka_unit_test(the_texts_of_a_chat_json_are_used_whole),
        cmocka_unit_test(xtml_goes_before_a_chat_json_and_k2_needs_its_own),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
