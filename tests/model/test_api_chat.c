/* Conversations as a host sees them: waste.h alone, on the containers of tests/golden. */
#include "waste.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

struct host {
    waste_tokenizer *t;
    waste_chat *chat;
};

static struct host host_of(const char *container, const waste_chat_opts *opts)
{
    struct host h = {0};
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", GOLDEN_DIR, container);
    assert_int_equal(waste_tokenizer_open(path, &h.t), WASTE_OK);
    assert_int_equal(waste_chat_open(h.t, path, opts, &h.chat), WASTE_OK);
    return h;
}

static void host_close(struct host *h)
{
    waste_chat_close(h->chat);
    waste_tokenizer_close(h->t);
}

static waste_prompt *render(const struct host *h, const char *json)
{
    waste_prompt *p = NULL;

    assert_int_equal(waste_chat_render(h->chat, json, strlen(json), &p), WASTE_OK);
    return p;
}

static void a_host_renders_and_reads_back(void **state)
{
    static const char said[] = "a<|close|>think<|sep|><|open|>response<|sep|>b<|end_of_msg|>";
    static const char close[] = "<|close|>think<|sep|>";
    static const char want[] =
        "{\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"a\"}";
    struct host h = host_of("k3.waste", NULL);
    waste_chat_info info = {.size = sizeof(info)};
    waste_prompt_info prompt = {.size = sizeof(prompt)};
    waste_prompt *p = render(&h, HI "}");
    const waste_event *events;
    waste_reply *r = NULL;
    int32_t ids[128];
    size_t n, n_events, len, n_ends = 0;
    const char *json;
    char text[16] = "";

    (void)state;
    assert_int_equal(waste_chat_get_info(h.chat, &info), WASTE_OK);
    assert_int_equal(info.format, WASTE_CHAT_XTML);
    assert_string_equal(info.name, "XTML");
    assert_true(info.has_thinking && info.has_tools && info.has_answer_formats);
    assert_false(info.has_images); /* this container's tokens have none */
    assert_int_equal(info.end_id, 274);
    assert_int_equal(waste_prompt_get_info(p, &prompt), WASTE_OK);
    assert_int_equal(prompt.begins, WASTE_REASONING);
    assert_string_equal(prompt.effort, "low");
    assert_string_equal(prompt.note, "");
    assert_int_equal(prompt.n_ends, 2);
    assert_int_equal(prompt.ends[1].message, 0);
    assert_int_equal(waste_encode(h.t, WASTE_MARKUP, close, sizeof(close) - 1, ids, 128, &n),
                     WASTE_OK);
    assert_int_equal(prompt.n_close, n);
    assert_memory_equal(prompt.close_ids, ids, n * sizeof(*ids));
    assert_int_equal(waste_reply_open(p, &r), WASTE_OK);
    waste_prompt_close(p); /* the reply does not need it */
    assert_int_equal(waste_encode(h.t, WASTE_MARKUP, said, sizeof(said) - 1, ids, 128, &n),
                     WASTE_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(waste_reply_feed(r, ids[i], &events, &n_events), WASTE_OK);
        for (size_t k = 0; k < n_events; k++) {
            n_ends += events[k].kind == WASTE_MESSAGE_END && events[k].complete;
            if (events[k].len && strlen(text) + events[k].len + 2 < sizeof(text))
                snprintf(text + strlen(text), sizeof(text) - strlen(text), "%u%.*s", events[k].kind,
                         (int)events[k].len, events[k].text);
        }
    }
    assert_string_equal(text, "1a2b");
    assert_int_equal(n_ends, 1);
    assert_int_equal(waste_reply_end(r, &events, &n_events), WASTE_OK);
    assert_int_equal(n_events, 0);
    assert_int_equal(waste_reply_message(r, &json, &len), WASTE_OK);
    assert_int_equal(len, sizeof(want) - 1);
    assert_memory_equal(json, want, sizeof(want) - 1);
    waste_reply_close(r);
    host_close(&h);
}

static void options_say_how_much_to_think(void **state)
{
    waste_chat_opts opts;
    waste_prompt_info info = {.size = sizeof(info)};
    waste_prompt *p;
    waste_chat *chat = NULL;
    struct host h;

    (void)state;
    waste_chat_opts_init(&opts);
    opts.effort = "max";
    h = host_of("k3.waste", &opts);
    p = render(&h, HI "}");
    assert_int_equal(waste_prompt_get_info(p, &info), WASTE_OK);
    assert_string_equal(info.effort, "max");
    waste_prompt_close(p);
    opts.effort = "some";
    assert_int_equal(waste_chat_open(h.t, NULL, &opts, &chat), WASTE_E_ARG);
    assert_null(chat);
    assert_string_equal(waste_error_detail(NULL),
                        "waste_chat_opts.effort: \"some\" is none of low, high, max, none");
    opts.size = 8; /* an older host's: it has no effort */
    assert_int_equal(waste_chat_open(h.t, NULL, &opts, &chat), WASTE_OK);
    waste_chat_close(chat);
    host_close(&h);
}

static void failures_name_the_member_and_leave_nothing(void **state)
{
    struct host h = host_of("kimi-linear.waste", NULL);
    waste_prompt *p = (waste_prompt *)(void *)&h;
    waste_chat *chat = (waste_chat *)(void *)&h;
    waste_tokenizer *t = NULL;
    waste_reply *r = (waste_reply *)(void *)&h;

    (void)state;
    assert_int_equal(waste_chat_render(h.chat, "{}", 2, &p), WASTE_E_ARG);
    assert_null(p);
    assert_non_null(strstr(waste_error_detail(NULL), "messages must be an array"));
    assert_int_equal(waste_chat_render(h.chat, HI ",\"thinking\":true}",
                                       sizeof(HI ",\"thinking\":true}") - 1, &p),
                     WASTE_E_UNSUPPORTED);
    assert_int_equal(waste_chat_render(h.chat, NULL, 0, &p), WASTE_E_ARG);
    assert_int_equal(waste_chat_render(h.chat, NULL, 1, &p), WASTE_E_ARG);
    assert_int_equal(waste_chat_render(NULL, "{}", 2, &p), WASTE_E_ARG);
    assert_int_equal(waste_reply_open(NULL, &r), WASTE_E_ARG);
    assert_int_equal(waste_tokenizer_open(GOLDEN_DIR "/deepseek.waste", &t), WASTE_OK);
    assert_int_equal(waste_chat_open(t, GOLDEN_DIR "/deepseek.waste", NULL, &chat),
                     WASTE_E_UNSUPPORTED);
    assert_null(chat);
    assert_non_null(strstr(waste_error_detail(NULL), "no chat format: XTML: <|open|>"));
    waste_tokenizer_close(t);
    waste_chat_close(NULL);
    waste_prompt_close(NULL);
    waste_reply_close(NULL);
    host_close(&h);
}

static void structs_of_older_and_newer_hosts_are_served(void **state)
{
    struct {
        waste_prompt_info info;
        char more[64];
    } newer = {.info.size = sizeof(newer)};
    waste_prompt_info older;
    struct host h = host_of("k2.waste", NULL);
    waste_prompt *p = render(&h, HI "}");

    (void)state;
    memset(newer.more, 42, sizeof(newer.more));
    assert_int_equal(waste_prompt_get_info(p, &newer.info), WASTE_OK);
    assert_int_equal(newer.info.size, sizeof(newer));
    assert_int_equal(newer.info.begins, WASTE_RESPONSE);
    for (size_t i = 0; i < sizeof(newer.more); i++)
        assert_int_equal(newer.more[i], 42);
    memset(&older, 42, sizeof(older));
    older.size = offsetof(waste_prompt_info, segments);
    assert_int_equal(waste_prompt_get_info(p, &older), WASTE_OK);
    assert_int_equal(older.n_ids, newer.info.n_ids);
    assert_memory_equal(&older.n_segments, newer.more, sizeof(older.n_segments));
    older.size = 0;
    assert_int_equal(waste_prompt_get_info(p, &older), WASTE_E_ARG);
    for (int kind = WASTE_ABI_CHAT_OPTS; kind <= WASTE_ABI_EVENT; kind++)
        assert_true(waste_abi(kind) > 0);
    assert_int_equal(waste_abi(WASTE_ABI_EVENT), sizeof(waste_event));
    assert_int_equal(waste_abi(WASTE_ABI_PROMPT_INFO), sizeof(waste_prompt_info));
    waste_prompt_close(p);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_renders_and_reads_back),
        cmocka_unit_test(options_say_how_much_to_think),
        cmocka_unit_test(failures_name_the_member_and_leave_nothing),
        cmocka_unit_test(structs_of_older_and_newer_hosts_are_served),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
