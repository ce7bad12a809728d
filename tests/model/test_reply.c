#include "model/reply.h"

#include "model/json_write.h"
#include "tests/model/chat_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

#define OPEN(what)  "<|open|>" what "<|sep|>"
#define CLOSE(what) "<|close|>" what "<|sep|>"
#define END         CLOSE("message") "<|end_of_msg|>"
#define TO_ANSWER   CLOSE("think") OPEN("response")
#define TO_TOOLS    CLOSE("response") OPEN("tools")
#define CALL(name)  OPEN("call tool=\"" name "\" index=\"1\"")
#define ARG(key, type, value)                                                                      \
    OPEN("argument key=\"" key "\" type=\"" type "\"") value CLOSE("argument")

struct family {
    struct tokenizer *t;
    struct chat *c;
    struct prompt *p;
};

static struct family family_of(const char *specials, const char *effort)
{
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}";
    struct family f = {.t = chat_tokenizer(specials)};
    struct err e;

    f.c = chat_of(f.t, effort);
    assert_int_equal(chat_render(f.c, &f.p, json, sizeof(json) - 1, &e), 0);
    return f;
}

static void family_release(struct family *f)
{
    prompt_close(f->p);
    chat_close(f->c);
    tokenizer_close(f->t);
}

/* ---- what came, as text ---- */

struct transcript {
    struct buf b;
    uint32_t last;
};

/* Texts of a kind that follow each other are one, however they were cut. */
static void note(struct transcript *to, const waste_event *events, size_t n)
{
    static const char *const names[] = {
        "", " think:", " say:", " call:", " args:", " done", " cut", " end:"};

    for (size_t i = 0; i < n; i++) {
        bool text = events[i].kind <= WASTE_CALL_ARGUMENTS;
        char number[24];

        assert_true(events[i].kind >= WASTE_REASONING && events[i].kind <= WASTE_MESSAGE_END);
        assert_int_equal(utf8_valid_prefix(events[i].text, events[i].len), events[i].len);
        assert_int_equal(events[i].id != NULL, events[i].kind == WASTE_CALL_BEGIN);
        if (!text || events[i].kind != to->last || events[i].kind == WASTE_CALL_BEGIN)
            buf_put(&to->b, names[events[i].kind], strlen(names[events[i].kind]));
        to->last = events[i].kind;
        if (text)
            assert_true(events[i].len > 0);
        buf_put(&to->b, events[i].text, events[i].len);
        if (events[i].kind == WASTE_CALL_BEGIN) {
            snprintf(number, sizeof(number), "#%d/%u", (int)events[i].number, events[i].call);
            buf_put(&to->b, number, strlen(number));
        } else if (events[i].kind == WASTE_MESSAGE_END) {
            buf_str(&to->b, events[i].complete ? STR("whole") : STR("short"));
        }
    }
}

static void feed(struct reply *r, struct transcript *to, const int32_t *ids, size_t n)
{
    const waste_event *events;
    size_t n_events;
    struct err e;

    for (size_t i = 0; i < n; i++) {
        assert_int_equal(reply_feed(r, ids[i], &events, &n_events, &e), 0);
        note(to, events, n_events);
    }
}

static void finish(struct reply *r, struct transcript *to)
{
    const waste_event *events;
    size_t n_events;
    struct err e;

    assert_int_equal(reply_end(r, &events, &n_events, &e), 0);
    note(to, events, n_events);
    assert_int_equal(reply_end(r, &events, &n_events, &e), 0); /* nothing is said twice */
    assert_int_equal(n_events, 0);
    buf_put(&to->b, "", 1);
    assert_false(to->b.failed);
}

/* Text with markers to ids; bytes: every ordinary token is a single byte. */
static int32_t *ids_of(const struct tokenizer *t, const char *text, size_t len, bool bytes,
                       size_t *n)
{
    int32_t *ids = malloc((len + 1) * sizeof(*ids)), *whole = malloc((len + 1) * sizeof(*ids));
    size_t n_whole;
    struct err e;

    assert_int_equal(tokenizer_encode(t, TOKEN_MARKUP, text, len, whole, len + 1, &n_whole, &e), 0);
    *n = 0;
    for (size_t i = 0; i < n_whole; i++) {
        const char *s;
        size_t size;

        tokenizer_token_bytes(t, whole[i], &s, &size);
        if (bytes && !tokenizer_is_special(t, whole[i]))
            for (size_t k = 0; k < size; k++)
                ids[(*n)++] = (unsigned char)s[k]; /* a byte's rank is the byte */
        else
            ids[(*n)++] = whole[i];
    }
    free(whole);
    return ids;
}

struct read {
    struct transcript events;
    char *message;
};

static struct read read_reply(const struct family *f, const int32_t *ids, size_t n)
{
    struct read got = {0};
    struct reply *r = NULL;
    struct str json;
    struct err e;

    assert_int_equal(reply_open(&r, f->p, &e), 0);
    feed(r, &got.events, ids, n);
    finish(r, &got.events);
    assert_int_equal(reply_message(r, &json, &e), 0);
    got.message = calloc(1, json.len + 1);
    memcpy(got.message, json.s, json.len);
    reply_close(r);
    return got;
}

static void read_release(struct read *got)
{
    buf_release(&got->events.b);
    free(got->message);
}

struct example {
    const char *text, *events;
};

static void check(const struct family *f, const struct example *x, size_t n_examples)
{
    for (size_t i = 0; i < n_examples; i++)
        for (unsigned bytes = 0; bytes < 2; bytes++) {
            size_t n;
            int32_t *ids = ids_of(f->t, x[i].text, strlen(x[i].text), bytes, &n);
            struct read got = read_reply(f, ids, n);

            if (strcmp(got.events.b.s, x[i].events) != 0)
                print_error("%s\n", x[i].text);
            assert_string_equal(got.events.b.s, x[i].events);
            read_release(&got);
            free(ids);
        }
}

/* ---- XTML ---- */

static void k3_replies_are_thinking_an_answer_and_calls(void **state)
{
    static const struct example examples[] = {
        {"a" TO_ANSWER "b" CLOSE("response") END, " think:a say:b end:whole"},
        {"a" CLOSE("think") "<|open|>resp", " think:a say:<|open|>resp end:short"},
        {"a", " think:a end:short"},
        {"", " end:short"},
        {"<|end_of_msg|>after", " end:whole"},
        {TO_ANSWER "x" CLOSE("response") CLOSE("message") "behind<|end_of_msg|>",
         " say:xbehind end:whole"},
        {TO_ANSWER TO_TOOLS CALL("lamp") ARG("room", "string", "den") ARG("on", "boolean", "true")
             ARG("dim", "array", "[1, 2.50]") CLOSE("call") CLOSE("tools") END,
         " call:lamp#1/0 args:{\"room\": \"den\", \"on\": true, \"dim\": [1, 2.5]} done end:whole"},
        {"a" TO_ANSWER "b" TO_TOOLS CALL("f") CLOSE("call") OPEN("call tool=\"g\"")
             OPEN("json type=\"object\"") "{oops" CLOSE("json") CLOSE("call") CLOSE("tools") END,
         " think:a say:b call:f#1/0 args:{} done call:g#-1/1 args:{oops done end:whole"},
        {TO_ANSWER TO_TOOLS CALL("a &amp; &quot;b&quot; &amp;quot;")
             ARG("k&quot;", "string", "\"\\\n\x01") CLOSE("call") END,
         " call:a & \"b\" &quot;#1/0 args:{\"k\\\"\": \"\\\"\\\\\\n\\u0001\"} done end:whole"},
    };
    struct family f = family_of(K3_SPECIALS, "low");

    (void)state;
    check(&f, examples, N_ELEMS(examples));
    family_release(&f);
}

static void a_type_says_how_to_read_a_value_and_what_cannot_be_is_text(void **state)
{
    static const struct {
        const char *type, *text, *json;
    } values[] = {
        {"string", "1", "\"1\""},
        {"string", "", "\"\""},
        {"null", "whatever", "null"},
        {"boolean", "TRUE", "true"},
        {"boolean", "False", "false"},
        {"boolean", "1", "\"1\""},
        {"number", "12345678901234567890123", "12345678901234567890123"},
        {"number", "1e2", "100.0"},
        {"number", "three or four", "\"three or four\""},
        {"number", "007", "\"007\""},
        {"number", "NaN", "\"NaN\""}, /* T20: never invalid JSON */
        {"number", "Infinity", "\"Infinity\""},
        {"number", "-Infinity", "\"-Infinity\""},
        {"array", "[NaN]", "\"[NaN]\""},
        {"array", "[1, ", "\"[1, \""},
        {"object", " {\"b\":1,\"a\":{}} ", "{\"b\": 1, \"a\": {}}"},
        {"object", "{\"a\":1,\"a\":2}", "{\"a\": 2}"},
        {"integer", "5", "5"},
        {"", "[]", "[]"},
        {"", "plain", "\"plain\""},
        {"number", "", "\"\""},
    };
    struct family f = family_of(K3_SPECIALS, NULL);
    char text[512], want[256];

    (void)state;
    for (size_t i = 0; i < N_ELEMS(values); i++) {
        struct example x = {text, want};

        snprintf(
            text, sizeof(text),
            "<|open|>call tool=\"f\"<|sep|><|open|>argument key=\"k\" type=\"%s\"<|sep|>%s" CLOSE(
                "argument") CLOSE("call") END,
            values[i].type, values[i].text);
        snprintf(want, sizeof(want), " call:f#-1/0 args:{\"k\": %s} done end:whole",
                 values[i].json);
        check(&f, &x, 1);
    }
    family_release(&f);
}

/* T21, and whatever else a model may write. A call is complete only when its own end came. */
static void malformed_replies_end_in_a_defined_state(void **state)
{
    static const struct example examples[] = {
        {OPEN("tools") CALL("f"), " call:f#1/0 cut end:short"},
        {OPEN("tools") CALL("f") OPEN("argument key=\"k\" type=\"string\"") "va",
         " call:f#1/0 args:{\"k\": \"va cut end:short"},
        {OPEN("tools") CALL("f") OPEN("argument key=\"k\" type=\"number\"") "12",
         " call:f#1/0 cut end:short"},
        {OPEN("tools") CALL("f") ARG("k", "number", "1"),
         " call:f#1/0 args:{\"k\": 1 cut end:short"},
        {OPEN("tools") CALL("f") ARG("k", "number", "1") "<|close|>call",
         " call:f#1/0 args:{\"k\": 1 cut end:short"},
        {OPEN("tools") CALL("f") OPEN("json type=\"object\"") "{\"a\":",
         " call:f#1/0 args:{\"a\": cut end:short"},
        {OPEN("tools") CALL("f") ARG("k", "number", "1") CLOSE("tools") END,
         " call:f#1/0 args:{\"k\": 1 cut end:whole"},
        {OPEN("tools") CALL("f") "<|end_of_msg|>", " call:f#1/0 cut end:whole"},
        {OPEN("tools") CALL("f") CALL("g") CLOSE("call") CLOSE("call") END,
         " call:f#1/0 cut call:g#1/1 args:{} done end:whole"},
        {OPEN("tools") CALL("f") OPEN("argument key=\"k\" type=\"string\"") "v" CLOSE("call") END,
         " call:f#1/0 args:{\"k\": \"v\"} done end:whole"},
        {OPEN("tools") CALL("f") OPEN("response") "answer" END,
         " call:f#1/0 cut say:answer end:whole"},
        {OPEN("tools") OPEN("call index=\"2\"") ARG("k", "number", "1") CLOSE("call") END,
         " end:whole"},
        {OPEN("tools") OPEN("call tool=\"\"") CLOSE("call") END, " end:whole"},
        {ARG("k", "string", "no call") "text" END, " say:text end:whole"},
        {OPEN("json") "no call" CLOSE("json") "text" END, " say:text end:whole"},
        {CALL("f") OPEN("argument type=\"string\"") "no key" CLOSE("argument") CLOSE("call") END,
         " call:f#1/0 args:{} done end:whole"},
        {CALL("f") ARG("k", "number", "1") ARG("k", "string", "again") ARG("", "number", "2")
             CLOSE("call") END,
         " call:f#1/0 args:{\"k\": 1, \"\": 2} done end:whole"},
        {CALL("f") ARG("k", "number", "1") OPEN("json") "{}" CLOSE("json") CLOSE("call") END,
         " call:f#1/0 args:{\"k\": 1} done end:whole"},
        {CALL("f") OPEN("json") "{}" CLOSE("json") ARG("k", "number", "1") CLOSE("call") END,
         " call:f#1/0 args:{} done end:whole"},
        {CALL("f") OPEN("argument key=\"a\" type=\"number\"") "1" ARG("b", "number", "2")
             CLOSE("call") END,
         " call:f#1/0 args:{\"a\": 1, \"b\": 2} done end:whole"},
        {"a<|sep|>b<|sep|>", " say:ab end:short"},
        {"a" CLOSE("nothing") "b" CLOSE("think") "c", " say:abc end:short"},
        {"a<|close|><|sep|>b<|close|><|sep|><|close|><|sep|><|close|><|sep|>c",
         " say:abc end:short"},
        {"a<|open|><|sep|>b", " say:ab end:short"},
        {"a<|open|>think<|open|>think<|sep|>b", " say:a<|open|>think think:b end:short"},
        {"a<|close|>", " say:a<|close|> end:short"},
        {"a" OPEN("unknown key=\"x\"") "b" CLOSE("unknown") "c" END, " say:abc end:whole"},
        {OPEN("call tool=f index=3") CLOSE("call") END, " call:f#3/0 args:{} done end:whole"},
        {OPEN("call index=\"9999999999\" tool=\"f") CLOSE("call") END,
         " call:f#-1/0 args:{} done end:whole"},
        {OPEN("call index=\"-1\"  tool  tool=\"f\"") CLOSE("call") END,
         " call:f#-1/0 args:{} done end:whole"},
        {"a[BOS]b<|media_pad|>c[EOS]", " say:abc end:short"}, /* they say nothing here */
    };
    struct family f = family_of(K3_SPECIALS, NULL);

    (void)state;
    check(&f, examples, N_ELEMS(examples));
    family_release(&f);
}

static void markers_spelled_in_ordinary_tokens_are_text(void **state)
{
    static const char text[] = "The marker is <|sep|>. <|close|>response<|sep|><|end_of_msg|>";
    static const char want[] = " say:The marker is <|sep|>. <|close|>response<|sep|><|end_of_msg|>"
                               " end:short";
    struct family f = family_of(K3_SPECIALS, NULL);
    int32_t ids[sizeof(text)];
    struct read got;
    size_t n;
    struct err e;

    (void)state;
    assert_int_equal(
        tokenizer_encode(f.t, TOKEN_CONTENT, text, sizeof(text) - 1, ids, sizeof(text), &n, &e), 0);
    got = read_reply(&f, ids, n);
    assert_string_equal(got.events.b.s, want);
    read_release(&got);
    family_release(&f);
}

/* T11: a character comes when it is whole; a marker in its middle ends it where it belongs. */
static void characters_come_whole_and_stay_in_their_region(void **state)
{
    static const struct example examples[] = {
        {"\xf0\x9f\x8e\x89" TO_ANSWER "\xf0\x9f\x8e\x89\xc3\xa9", " think:\xf0\x9f\x8e\x89"
                                                                  " say:\xf0\x9f\x8e\x89\xc3\xa9"
                                                                  " end:short"},
        {"\xf0\x9f" TO_ANSWER "\x8e\x89x", " think:\xef\xbf\xbd say:\xef\xbf\xbd\xef\xbf\xbdx"
                                           " end:short"},
        {"a\xf0\x9f\x8e", " think:a\xef\xbf\xbd end:short"},
        {TO_ANSWER CALL("f\xc3")
             OPEN("argument key=\"\xf0\x9f\x8e\x89\" type=\"string\"") "\xe5\xa5" CLOSE("argument")
                 CLOSE("call") END,
         " call:f\xef\xbf\xbd#1/0 args:{\"\xf0\x9f\x8e\x89\": \"\xef\xbf\xbd\"} done end:whole"},
    };
    struct family f = family_of(K3_SPECIALS, "low");

    (void)state;
    check(&f, examples, N_ELEMS(examples));
    family_release(&f);
}

/* T19: not even when the model counts from one in every turn, or gives two the same number. */
static void no_two_calls_have_the_same_id(void **state)
{
    static const char text[] = CALL("f") CLOSE("call") CALL("f") CLOSE("call") END;
    struct family f = family_of(K3_SPECIALS, NULL);
    struct prompt *later = NULL;
    const struct prompt *turns[2] = {f.p};
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"r\"}]}";
    char id[4][40];
    struct err e;
    size_t n;
    int32_t *ids = ids_of(f.t, text, sizeof(text) - 1, false, &n);

    (void)state;
    assert_int_equal(chat_render(f.c, &later, json, sizeof(json) - 1, &e), 0);
    turns[1] = later;
    for (unsigned turn = 0; turn < 2; turn++) {
        struct transcript events = {0};
        struct reply *r = NULL;

        assert_int_equal(reply_open(&r, turns[turn], &e), 0);
        feed(r, &events, ids, n);
        assert_int_equal(r->n_calls, 2);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(r->calls[i].number, 1);
            memcpy(id[2 * turn + i], r->calls[i].id, sizeof(id[0]));
        }
        buf_release(&events.b);
        reply_close(r);
    }
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < i; k++)
            assert_string_not_equal(id[i], id[k]);
    free(ids);
    prompt_close(later);
    family_release(&f);
}

/* ---- K2 and chat.json ---- */

#define SECTION(calls) "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"
#define K2_CALL(id, args)                                                                          \
    "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" args "<|tool_call_end|>"

static void k2_replies_are_an_answer_and_calls(void **state)
{
    static const struct example examples[] = {
        {"hi<|im_end|>", " say:hi end:whole"},
        {"a" SECTION(K2_CALL("functions.get.it:0", "{\"x\": 1}")
                         K2_CALL(" functions.g:12\n", "")) "<|im_end|>",
         " say:a call:get.it#0/0 args:{\"x\": 1} done call:g#12/1 args:{} done end:whole"},
        {SECTION(K2_CALL("bare", "{}") "between" K2_CALL("a:b", "{}")) "after",
         " call:bare#-1/0 args:{} done call:a:b#-1/1 args:{} done say:after end:short"},
        {SECTION(K2_CALL("functions.:3", "{}")), " end:short"},
        {"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", " end:short"},
        {"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
         "\"a\"",
         " call:f#0/0 args:{\"a\" cut end:short"},
        {"<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|im_end|>",
         " call:f#-1/0 args:{} cut end:whole"},
        {SECTION("<|tool_call_begin|>f:1<|tool_call_argument_begin|>{}"),
         " call:f#1/0 args:{} cut end:short"},
        {SECTION("<|tool_call_begin|>f<|tool_call_argument_begin|>x" K2_CALL("g", "y")),
         " call:f#-1/0 args:x cut call:g#-1/1 args:y done end:short"},
        {"<|tool_call_argument_begin|>a<|tool_call_end|>b<|im_user|>c", " say:abc end:short"},
    };
    static const struct example plain[] = {
        {"a<|im_user|>b<|im_end|>", " say:ab end:whole"},
    };
    struct family f = family_of(K2_SPECIALS, NULL);

    (void)state;
    check(&f, examples, N_ELEMS(examples));
    family_release(&f);
    f = family_of("[" IM_SPECIALS "]", NULL);
    check(&f, plain, N_ELEMS(plain));
    family_release(&f);
}

/* ---- there and back ---- */

struct dice {
    uint64_t state;
};

static unsigned roll(struct dice *d, unsigned n)
{
    d->state = d->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(d->state >> 33) % n;
}

static void roll_text(struct dice *d, struct buf *b)
{
    static const char *const words[] = {
        "a",        " message",       "<|sep|>",     "\\\"",
        "\\\\",     "\\n\\n",         "\\u0000",     "\xf0\x9f\x8e\x89",
        "&amp;",    "&quot;",         "<|close|>",   "call",
        "\xc3\xa9", "=\\\"_id",       "<|im_end|>x", "functions.f:0",
        " key",     "{\\\"a\\\": 1}", "\\u001f",     "<|end_of_msg|>"};

    buf_str(b, STR("x")); /* what is blank may be left out */
    for (unsigned n = roll(d, 5); n; n--) {
        const char *w = words[roll(d, N_ELEMS(words))];

        buf_put(b, w, strlen(w));
    }
}

static void roll_value(struct dice *d, struct buf *b, unsigned depth)
{
    static const char *const scalars[] = {
        "null", "true", "false", "0", "-7", "0.5", "1e+22", "12345678901234567890", "2.5e-09"};
    unsigned kind = roll(d, depth ? 4 : 2);

    if (kind == 0) {
        const char *s = scalars[roll(d, N_ELEMS(scalars))];

        buf_put(b, s, strlen(s));
    } else if (kind == 1) {
        buf_str(b, STR("\""));
        roll_text(d, b);
        buf_str(b, STR("\""));
    } else {
        buf_str(b, kind == 2 ? STR("[") : STR("{"));
        for (unsigned i = 0, n = roll(d, 3); i < n; i++) {
            buf_str(b, i ? STR(", ") : STR(""));
            if (kind == 3) {
                buf_put(b, (char[]){'"', (char)('a' + i)}, 2);
                buf_str(b, STR("<|open|>\": "));
            }
            roll_value(d, b, depth - 1);
        }
        buf_str(b, kind == 2 ? STR("]") : STR("}"));
    }
}

/* An assistant's message with everything in it, in the form that reply_message writes. */
static void roll_message(struct dice *d, struct buf *b, bool thinks)
{
    unsigned n_calls = roll(d, 3);

    buf_str(b, STR("{\"role\": \"assistant\", \"content\": "));
    if (roll(d, 3)) {
        buf_str(b, STR("\""));
        roll_text(d, b);
        buf_str(b, STR("\""));
    } else {
        buf_str(b, STR("null"));
    }
    if (thinks && roll(d, 2)) {
        buf_str(b, STR(", \"reasoning_content\": \""));
        roll_text(d, b);
        buf_str(b, STR("\""));
    }
    for (unsigned i = 0; i < n_calls; i++) {
        struct buf arguments = {0};

        buf_str(b, i ? STR(", ") : STR(", \"tool_calls\": ["));
        buf_str(b, STR("{\"id\": \"\", \"type\": \"function\", \"function\": {\"name\": \"f"));
        buf_put(b, &"gh"[i], 1);
        buf_str(b, STR("\", \"arguments\": "));
        buf_str(&arguments, STR("{\"k\": "));
        roll_value(d, &arguments, 3);
        buf_str(&arguments, STR(", \"&\\\"\": "));
        roll_value(d, &arguments, 1);
        buf_str(&arguments, STR("}"));
        json_write_string(b, buf_all(&arguments));
        buf_str(b, STR("}}"));
        buf_release(&arguments);
    }
    buf_str(b, n_calls ? STR("]}") : STR("}"));
}

/* The ids of calls are drawn anew; everything else must be there. */
static void blank_ids(char *message)
{
    for (char *at = message; (at = strstr(at, "\"id\": \"call_"));) {
        char *id = at + 7, *end = strchr(id, '"');

        memmove(id, end, strlen(end) + 1);
        at = id;
    }
}

static void check_round_trip(const struct family *f, struct dice *d, bool thinks)
{
    static const char user[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}";
    struct buf message = {0}, json = {0};
    struct prompt *p = NULL;
    struct read got;
    struct err e = {0};

    roll_message(d, &message, thinks);
    buf_put(&json, user, sizeof(user) - 1);
    buf_str(&json, STR(","));
    buf_str(&json, buf_all(&message));
    buf_str(&json, STR("],\"add_generation_prompt\":false}"));
    buf_put(&message, "", 1);
    if (chat_render(f->c, &p, json.s, json.n, &e))
        print_error("%s\n%s\n", message.s, e.text);
    assert_non_null(p);
    /* what was asked begins what was said: the rest is the reply */
    assert_true(p->n_ids > f->p->n_ids);
    assert_memory_equal(p->ids, f->p->ids, f->p->n_ids * sizeof(*p->ids));
    got = read_reply(f, p->ids + f->p->n_ids, p->n_ids - f->p->n_ids);
    blank_ids(got.message);
    assert_string_equal(got.message, message.s);
    read_release(&got);
    prompt_close(p);
    buf_release(&json);
    buf_release(&message);
}

static void a_message_that_is_rendered_and_read_is_the_same(void **state)
{
    struct family thinking = family_of(K3_SPECIALS, "low"),
                  not_thinking = family_of(K3_SPECIALS, NULL);
    struct family k2 = family_of(K2_SPECIALS, NULL);
    struct dice d = {1};

    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        check_round_trip(&thinking, &d, true);
        check_round_trip(&not_thinking, &d, false);
        check_round_trip(&k2, &d, false);
    }
    family_release(&thinking);
    family_release(&not_thinking);
    family_release(&k2);
}

/* ---- anything ---- */

struct facts {
    unsigned n_calls, open, n_ends;
    struct buf arguments;
};

static void check_events(struct facts *now, const struct reply *r, const waste_event *events,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const waste_event *v = &events[i];
        struct tree tree = {0};
        struct err e;

        assert_int_equal(utf8_valid_prefix(v->text, v->len), v->len);
        assert_int_equal(now->n_ends, 0); /* nothing comes behind the end */
        now->n_ends += v->kind == WASTE_MESSAGE_END;
        if (v->kind == WASTE_CALL_BEGIN) {
            assert_int_equal(now->open++, 0);
            assert_int_equal(v->call, now->n_calls++);
            now->arguments.n = 0;
        } else if (v->kind == WASTE_CALL_ARGUMENTS) {
            assert_int_equal(now->open, 1);
            buf_put(&now->arguments, v->text, v->len);
        } else if (v->kind == WASTE_CALL_END || v->kind == WASTE_CALL_CUT) {
            assert_int_equal(now->open--, 1);
            assert_true(str_is(buf_all(&now->arguments), buf_all(&r->calls[v->call].arguments)));
            if (v->kind == WASTE_CALL_END && r->format == WASTE_CHAT_XTML) /* none is raw here */
                assert_int_equal(tree_parse(&tree, now->arguments.s, now->arguments.n, &e), 0);
            tree_release(&tree);
        } else if (v->kind == WASTE_REASONING || v->kind == WASTE_RESPONSE) {
            assert_true(v->len > 0);
        }
    }
}

/* Arbitrary ids, most of them markers and names that mean something. */
static void whatever_the_ids_are_the_events_make_sense(void **state)
{
    static const char *const words[] = {"call tool=\"f\" index=\"1\"",
                                        "argument key=\"k\" type=\"string\"",
                                        "argument key=\"n\" type=\"number\"",
                                        "argument",
                                        "call",
                                        "tools",
                                        "response",
                                        "think",
                                        "message",
                                        "12",
                                        "{\"a\":1}",
                                        "\xf0\x9f",
                                        "\x8e",
                                        "functions.f:0",
                                        "\""};
    static const char *const formats[] = {K3_SPECIALS, K2_SPECIALS};
    struct dice d = {7};

    (void)state;
    for (unsigned round = 0; round < 4000; round++) {
        struct family f = family_of(formats[round & 1], round & 2 ? "low" : NULL);
        struct facts now = {0};
        struct reply *r = NULL;
        struct tree tree = {0};
        const waste_event *events;
        struct str json;
        size_t n;
        struct err e;

        assert_int_equal(reply_open(&r, f.p, &e), 0);
        for (unsigned i = 0; i < 60 && !now.n_ends; i++) {
            const char *w = words[roll(&d, N_ELEMS(words))];
            int32_t ids[64] = {0};
            size_t n_ids = 1;

            if (roll(&d, 3))
                ids[0] = 603 + (int32_t)roll(&d, 9);
            else if (roll(&d, 20))
                assert_int_equal(
                    tokenizer_encode(f.t, TOKEN_CONTENT, w, strlen(w), ids, 64, &n_ids, &e), 0);
            else
                ids[0] = (int32_t)roll(&d, 700) - 20;
            for (size_t k = 0; k < n_ids; k++) {
                assert_int_equal(reply_feed(r, ids[k], &events, &n, &e), 0);
                check_events(&now, r, events, n);
            }
        }
        assert_int_equal(reply_end(r, &events, &n, &e), 0);
        check_events(&now, r, events, n);
        assert_int_equal(now.open, 0);
        assert_int_equal(now.n_ends, 1);
        assert_int_equal(reply_message(r, &json, &e), 0);
        assert_int_equal(tree_parse(&tree, json.s, json.len, &e), 0);
        tree_release(&tree);
        buf_release(&now.arguments);
        reply_close(r);
        family_release(&f);
    }
}

static void a_cut_call_is_not_in_the_message(void **state)
{
    static const char text[] = "t" TO_ANSWER "s" TO_TOOLS CALL("whole") ARG("k", "null", "")
        CLOSE("call") CALL("cut") ARG("k", "number", "1");
    struct family f = family_of(K3_SPECIALS, "low");
    size_t n;
    int32_t *ids = ids_of(f.t, text, sizeof(text) - 1, false, &n);
    struct read got = read_reply(&f, ids, n);

    (void)state;
    blank_ids(got.message);
    assert_string_equal(got.message,
                        "{\"role\": \"assistant\", \"content\": \"s\", \"reasoning_content\": "
                        "\"t\", \"tool_calls\": [{\"id\": \"\", \"type\": \"function\", "
                        "\"function\": {\"name\": \"whole\", \"arguments\": \"{\\\"k\\\": null}\"}}"
                        "]}");
    read_release(&got);
    free(ids);
    family_release(&f);
}

/* As soon as it is known, and not one id later. */
static void text_comes_with_the_id_that_brings_it(void **state)
{
    struct family f = family_of(K3_SPECIALS, NULL);
    const waste_event *events;
    struct reply *r = NULL;
    size_t n, n_ids;
    struct err e;
    static const char head[] = CALL("f") "<|open|>argument key=\"k\" type=\"string\"<|sep|>";
    int32_t *ids = ids_of(f.t, head, sizeof(head) - 1, false, &n_ids);

    (void)state;
    assert_int_equal(reply_open(&r, f.p, &e), 0);
    assert_int_equal(reply_feed(r, 'h', &events, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(events[0].kind, WASTE_RESPONSE);
    assert_memory_equal(events[0].text, "h", 1);
    for (size_t i = 0; i < n_ids; i++)
        assert_int_equal(reply_feed(r, ids[i], &events, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(events[0].kind, WASTE_CALL_ARGUMENTS);
    assert_int_equal(events[0].len, 7);
    assert_memory_equal(events[0].text, "{\"k\": \"", 7);
    assert_int_equal(reply_feed(r, '"', &events, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_memory_equal(events[0].text, "\\\"", 2);
    free(ids);
    reply_close(r);
    family_release(&f);
}

static void a_prompt_that_keeps_the_turn_has_no_reply(void **state)
{
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
                               "\"add_generation_prompt\":false}";
    struct family f = family_of(K3_SPECIALS, NULL);
    struct prompt *p = NULL;
    struct reply *r = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(chat_render(f.c, &p, json, sizeof(json) - 1, &e), 0);
    assert_int_equal(reply_open(&r, p, &e), ERR_ARG);
    assert_null(r);
    assert_non_null(strstr(e.text, "add_generation_prompt"));
    prompt_close(p);
    family_release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k3_replies_are_thinking_an_answer_and_calls),
        cmocka_unit_test(a_type_says_how_to_read_a_value_and_what_cannot_be_is_text),
        cmocka_unit_test(malformed_replies_end_in_a_defined_state),
        cmocka_unit_test(markers_spelled_in_ordinary_tokens_are_text),
        cmocka_unit_test(characters_come_whole_and_stay_in_their_region),
        cmocka_unit_test(no_two_calls_have_the_same_id),
        cmocka_unit_test(k2_replies_are_an_answer_and_calls),
        cmocka_unit_test(a_message_that_is_rendered_and_read_is_the_same),
        cmocka_unit_test(whatever_the_ids_are_the_events_make_sense),
        cmocka_unit_test(a_cut_call_is_not_in_the_message),
        cmocka_unit_test(text_comes_with_the_id_that_brings_it),
        cmocka_unit_test(a_prompt_that_keeps_the_turn_has_no_reply),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
