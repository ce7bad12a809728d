/* tests/fuzz/fuzz_reply.c - the input as the ids of a reply: a byte below 0xe0 is that byte's
 * token, the others are control tokens and ids that there are not.
 *
 * Both families. Events are whole characters in an order that makes sense, one end closes them, and
 * the message is JSON.
 */
#include "model/reply.h"

#include "tests/model/chat_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

struct facts {
    unsigned open, n_ends, n_calls;
};

static void check_events(struct facts *now, const waste_event *events, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const waste_event *v = &events[i];

        CHECK(!now->n_ends && utf8_valid_prefix(v->text, v->len) == v->len);
        switch (v->kind) {
        case WASTE_REASONING:
        case WASTE_RESPONSE:
            CHECK(v->len);
            break;
        case WASTE_CALL_BEGIN:
            CHECK(!now->open++ && v->call == now->n_calls++ && v->id && v->len);
            break;
        case WASTE_CALL_ARGUMENTS:
            CHECK(now->open && v->len);
            break;
        case WASTE_CALL_END:
        case WASTE_CALL_CUT:
            CHECK(now->open-- && v->call == now->n_calls - 1);
            break;
        case WASTE_MESSAGE_END:
            CHECK(!now->open && !now->n_ends++);
            break;
        default:
            abort();
        }
    }
}

static void check_reply(const struct prompt *p, const uint8_t *data, size_t size)
{
    const waste_event *events;
    struct facts now = {0};
    struct reply *r = NULL;
    struct tree tree = {0};
    struct str json;
    struct err e;
    size_t n;

    CHECK(!reply_open(&r, p, &e));
    for (size_t i = 0; i < size; i++) {
        int32_t id = data[i] < 0xe0 ? data[i] : 600 + (data[i] - 0xe0);

        CHECK(!reply_feed(r, id, &events, &n, &e));
        check_events(&now, events, n);
    }
    CHECK(!reply_end(r, &events, &n, &e));
    check_events(&now, events, n);
    CHECK(now.n_ends == 1);
    CHECK(!reply_message(r, &json, &e) && !tree_parse(&tree, json.s, json.len, &e));
    tree_release(&tree);
    reply_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char json[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}";
    static struct prompt *prompts[3];
    struct err e;

    if (!prompts[0]) {
        const struct tokenizer *k3 = chat_tokenizer(K3_SPECIALS), *k2 = chat_tokenizer(K2_SPECIALS);

        CHECK(!chat_render(chat_of(k3, "low"), &prompts[0], json, sizeof(json) - 1, &e));
        CHECK(!chat_render(chat_of(k3, NULL), &prompts[1], json, sizeof(json) - 1, &e));
        CHECK(!chat_render(chat_of(k2, NULL), &prompts[2], json, sizeof(json) - 1, &e));
    }
    for (unsigned i = 0; i < 3; i++)
        check_reply(prompts[i], data, size);
    return 0;
}
