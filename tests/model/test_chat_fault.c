/* Memory that runs out, at every allocation in turn: one clear error, and nothing lost or leaked.
 */
#include "model/chat_grammar.h"
#include "model/grammar.h"
#include "model/reply.h"

#include "tests/model/chat_fixture.h"
#include "tests/support/alloc_fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char request[] =
    "{\"messages\":[{\"role\":\"user\",\"name\":\"n\",\"content\":[{\"text\":\"a\"},{\"type\":"
    "\"image\",\"image\":\"u\",\"width\":1,\"height\":1}]},{\"role\":\"assistant\",\"reasoning\":"
    "\"r\",\"tool_calls\":[{\"id\":\"1\",\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[2.5,{}]}\"},"
    "{\"name\":\"g\",\"arguments\":\"{\"}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":"
    "\"r\"}],\"tools\":[{\"function\":{\"name\":\"f\",\"description\":\"d\"}}],\"tool_choice\":"
    "{\"function\":{\"name\":\"f\"}},\"response_format\":{\"type\":\"json_object\"}}";

static void a_request_fails_whole_for_want_of_memory(void **state)
{
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, "low");
    unsigned nth = 1;

    (void)state;
    for (bool failed = true; failed; nth++) {
        struct prompt *p = NULL;
        struct err e = {0};
        int rc;

        alloc_fault_arm(nth);
        rc = chat_render(c, &p, request, sizeof(request) - 1, &e);
        failed = alloc_fault_disarm();
        assert_int_equal(rc, failed ? ERR_NOMEM : 0);
        assert_int_equal(p != NULL, !failed);
        prompt_close(p);
    }
    assert_true(nth > 20);
    chat_close(c);
    tokenizer_close(t);
}

static int read_all(struct reply **r, const struct prompt *p, const int32_t *ids, size_t n,
                    struct err *e)
{
    const waste_event *events;
    size_t n_events;
    struct str json;

    if (reply_open(r, p, e))
        return e->code;
    for (size_t i = 0; i < n; i++)
        if (reply_feed(*r, ids[i], &events, &n_events, e))
            return e->code;
    return reply_end(*r, &events, &n_events, e) || reply_message(*r, &json, e) ? e->code : 0;
}

static void a_reply_is_lost_for_want_of_memory_and_says_so(void **state)
{
    static const char said[] =
        "thinks of 42<|close|>think<|sep|><|open|>response<|sep|>says<|open|>call tool=\"f\""
        "<|sep|><|open|>argument key=\"k\" type=\"string\"<|sep|>v<|close|>argument<|sep|><|open|>"
        "argument key=\"n\" type=\"array\"<|sep|>[2.5]<|close|>argument<|sep|><|close|>call<|sep|>"
        "<|open|>call tool=\"g\"<|sep|><|end_of_msg|>";
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}";
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, "low");
    struct prompt *p = NULL;
    int32_t ids[sizeof(said)];
    unsigned nth = 1;
    struct err e;
    size_t n;

    (void)state;
    assert_int_equal(chat_render(c, &p, json, sizeof(json) - 1, &e), 0);
    assert_int_equal(
        tokenizer_encode(t, TOKEN_MARKUP, said, sizeof(said) - 1, ids, sizeof(said), &n, &e), 0);
    for (bool failed = true; failed; nth++) {
        const waste_event *events;
        struct reply *r = NULL;
        size_t n_events;
        int rc;

        alloc_fault_arm(nth);
        rc = read_all(&r, p, ids, n, &e);
        failed = alloc_fault_disarm();
        assert_int_equal(rc, failed ? ERR_NOMEM : 0);
        if (r && failed && !r->message.failed)
            assert_int_equal(reply_feed(r, 'x', &events, &n_events, &e), ERR_NOMEM);
        reply_close(r);
    }
    assert_true(nth > 15);
    prompt_close(p);
    chat_close(c);
    tokenizer_close(t);
}

static int grammar_of(struct prompt *p, const struct tokenizer *t, struct err *e)
{
    static const struct chat_constraint none;
    struct grammar *g = NULL;
    struct str text;
    int rc;

    if (chat_grammar(p, &none, &text, e))
        return e->code;
    rc = grammar_compile(&g, GRAMMAR_TEXT, text.s, text.len, t, -1, e);
    grammar_close(g);
    return rc;
}

/* What is only shared to save memory may fail unseen. */
static void a_grammar_fails_whole_for_want_of_memory(void **state)
{
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"function\":{\"name\":"
        "\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}"
        ","
        "\"b&\":{\"enum\":[1,\"x\"]},\"c\":{\"type\":\"string\",\"maxLength\":3}}}}}],"
        "\"response_format\":{\"type\":\"json_object\"}}";
    struct tokenizer *t = chat_tokenizer(K3_SPECIALS);
    struct chat *c = chat_of(t, "low");
    unsigned nth = 1;

    (void)state;
    for (bool failed = true; failed; nth++) {
        struct prompt *p = NULL;
        struct err e = {0};
        int rc;

        assert_int_equal(chat_render(c, &p, json, sizeof(json) - 1, &e), 0);
        alloc_fault_arm(nth);
        rc = grammar_of(p, t, &e);
        failed = alloc_fault_disarm();
        if (rc && !(failed && rc == ERR_NOMEM))
            fail_msg("allocation %u: %s", nth, e.text);
        prompt_close(p);
    }
    assert_true(nth > 50);
    chat_close(c);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_fails_whole_for_want_of_memory),
        cmocka_unit_test(a_grammar_fails_whole_for_want_of_memory),
        cmocka_unit_test(a_reply_is_lost_for_want_of_memory_and_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
