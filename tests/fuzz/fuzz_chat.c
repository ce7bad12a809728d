/* tests/fuzz/fuzz_chat.c - the input as a request, and as what somebody wrote in one.
 *
 * Both families. A request is refused with a sentence, or becomes a prompt whose content has no
 * control ids, and a grammar that is one (what it asks for may be impossible or too large); as
 * content, reasoning, a tool's name and an argument, no input changes how many control ids there
 * are.
 */
#include "model/chat_grammar.h"

#include "model/grammar.h"
#include "model/json_write.h"
#include "model/utf8.h"
#include "tests/model/chat_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

static void check_prompt(const struct tokenizer *t, const struct prompt *p)
{
    for (size_t i = 0; i < p->n_segments; i++) {
        size_t from = p->segments[i].first_id;
        size_t end = i + 1 < p->n_segments ? p->segments[i + 1].first_id : p->n_ids;

        CHECK(from < end && end <= p->n_ids && p->segments[i].len);
        if (p->segments[i].mode == WASTE_CONTENT)
            CHECK(!n_controls(t, p->ids + from, end - from));
    }
    for (size_t i = 0; i < p->n_ends; i++)
        CHECK(p->ends[i].n_ids <= p->n_ids && (!i || p->ends[i - 1].n_ids < p->ends[i].n_ids));
    for (size_t i = 0; i < p->n_images; i++)
        CHECK(p->images[i].at < p->n_ids && p->images[i].source);
}

static void check_grammar(const struct chat *c, struct prompt *p)
{
    static const struct chat_constraint none;
    struct grammar *g = NULL;
    struct str text;
    struct err e = {0};

    if (chat_grammar(p, &none, &text, &e)) {
        CHECK(e.code && e.text[0]);
    } else if (text.s &&
               !grammar_compile(&g, GRAMMAR_TEXT, text.s, text.len, c->tokenizer, -1, &e)) {
        CHECK(strlen(text.s) == text.len);
    } else {
        CHECK(!text.s || e.code == ERR_LIMIT || strstr(e.text, "nothing finite"));
    }
    grammar_close(g);
}

static void check_request(const struct chat *c, const char *json, size_t size)
{
    struct prompt *p = NULL;
    struct err e = {0};

    if (chat_render(c, &p, json, size, &e))
        CHECK(!p && e.code && e.text[0]);
    else
        check_prompt(c->tokenizer, p);
    if (p)
        check_grammar(c, p);
    prompt_close(p);
}

/* The text, or an innocent one, everywhere; the number of control ids. */
static size_t written(const struct chat *c, struct str text)
{
    struct buf json = {0};
    struct prompt *p = NULL;
    struct err e;
    size_t n;

    buf_str(&json, STR("{\"messages\":[{\"role\":\"user\",\"content\":"));
    json_write_string(&json, text);
    buf_str(&json, STR("},{\"role\":\"assistant\",\"reasoning\":"));
    json_write_string(&json, text);
    buf_str(&json, STR(",\"tool_calls\":[{\"name\":\"n"));
    json_write_characters(&json, text);
    buf_str(&json, STR("\",\"arguments\":{\"k"));
    json_write_characters(&json, text);
    buf_str(&json, STR("\":"));
    json_write_string(&json, text);
    buf_str(&json, STR("}}]}]}"));
    CHECK(!json.failed);
    CHECK(!chat_render(c, &p, json.s, json.n, &e));
    check_prompt(c->tokenizer, p);
    n = n_controls(c->tokenizer, p->ids, p->n_ids);
    prompt_close(p);
    buf_release(&json);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct chat *chats[2];
    const char *text = size ? (const char *)data : "";

    if (!chats[0]) {
        chats[0] = chat_of(chat_tokenizer(K3_SPECIALS), "low");
        chats[1] = chat_of(chat_tokenizer(K2_SPECIALS), NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        check_request(chats[i], text, size);
        if (utf8_valid_prefix(text, size) == size)
            CHECK(written(chats[i], (struct str){text, size}) == written(chats[i], STR("word")));
    }
    return 0;
}
