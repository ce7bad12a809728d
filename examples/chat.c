/* chat.c - a conversation: messages in, answers out, each prompt only as far as it is new.
 *
 *     ./chat MODEL [TOKENS]         a message a line on standard input
 *
 * The library renders the messages in the model's own format and reads the reply by token id, so
 * that nothing anybody types becomes structure. What the session has read stays there: a prompt
 * that goes on where the last one ended is fed from there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waste.h>

struct talk {
    waste_ctx *ctx;
    waste_chat *chat;
    waste_store *store; /* finds how much of a prompt has been read */
    int32_t end_id;
    uint32_t n_tokens;
    char *messages; /* JSON, without the brackets around it */
    size_t len;
};

static int fail(const waste_ctx *ctx, const char *what)
{
    const char *why = waste_error_detail(ctx);

    if (why && !strncmp(why, what, strlen(what)))
        fprintf(stderr, "%s\n", why); /* it names the file already */
    else
        fprintf(stderr, "%s: %s\n", what, why ? why : "failed");
    return 1;
}

/* strtoull alone would take -3, for a very large number, and 12x for 12. */
static int number(uint64_t *out, const char *text, uint64_t least, uint64_t most)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *out >= least && *out <= most)
        return 0;
    fprintf(stderr, "%s: not a number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
    return 2;
}

static int append(struct talk *t, const char *text, size_t len)
{
    char *more = realloc(t->messages, t->len + len + 1);

    if (!more)
        return fprintf(stderr, "out of memory\n"), 1;
    memcpy(more + t->len, text, len);
    t->messages = more;
    t->len += len;
    more[t->len] = '\0';
    return 0;
}

/* {"role": "user", "content": "..."} */
static int append_user(struct talk *t, const char *line)
{
    static const char head[] = "{\"role\": \"user\", \"content\": \"";
    char escaped[8];
    int rc = (t->len && append(t, ", ", 2)) || append(t, head, sizeof(head) - 1);

    for (; !rc && *line; line++) {
        int n = (unsigned char)*line < ' '      ? sprintf(escaped, "\\u%04x", (unsigned char)*line)
                : *line == '"' || *line == '\\' ? sprintf(escaped, "\\%c", *line)
                                                : sprintf(escaped, "%c", *line);

        rc = append(t, escaped, (size_t)n);
    }
    return rc || append(t, "\"}", 2);
}

static waste_prompt *render(struct talk *t)
{
    size_t room = t->len + 32;
    char *json = malloc(room);
    waste_prompt *prompt = NULL;

    if (!json) {
        fprintf(stderr, "out of memory\n");
        return NULL;
    }
    snprintf(json, room, "{\"messages\": [%s]}", t->messages);
    if (waste_chat_render(t->chat, json, strlen(json), &prompt) != WASTE_OK)
        fail(NULL, "messages");
    free(json);
    return prompt;
}

static void show(const waste_event *event, size_t n)
{
    for (; n; n--, event++) {
        if (event->kind == WASTE_RESPONSE)
            fwrite(event->text, 1, event->len, stdout);
    }
    fflush(stdout);
}

/* Feed ids, then what is chosen, until the message ends. */
static int generate(struct talk *t, const int32_t *ids, size_t n, waste_reply *reply)
{
    waste_item item = {.size = sizeof(item),
                       .want = WASTE_WANT_TOKEN,
                       .session = waste_session_default(t->ctx),
                       .ids = ids,
                       .n_ids = n};
    const waste_event *events;
    int32_t chosen;
    size_t n_events;

    for (uint32_t i = 0; i < t->n_tokens;) {
        if (waste_step(t->ctx, &item, 1) != WASTE_OK || item.status != WASTE_OK)
            return fail(t->ctx, "step");
        if (item.stop == WASTE_STOP_CONTEXT)
            return fprintf(stderr, "the context is full\n"), 1;
        item.ids += item.n_done;
        item.n_ids -= item.n_done;
        if (item.n_ids)
            continue; /* of a long prompt */
        chosen = item.token;
        if (waste_reply_feed(reply, chosen, &events, &n_events) != WASTE_OK)
            return fail(NULL, "reply");
        show(events, n_events);
        if (item.stop || chosen == t->end_id)
            return 0;
        item.ids = &chosen;
        item.n_ids = 1;
        i++;
    }
    return 0;
}

static int answer(struct talk *t, waste_prompt *prompt, waste_reply *reply)
{
    waste_session *session = waste_session_default(t->ctx);
    waste_prompt_info info = {.size = sizeof(info)};
    const waste_event *events;
    const char *message;
    size_t n, reused, len;

    if (waste_prompt_get_info(prompt, &info) != WASTE_OK)
        return fail(NULL, "prompt");
    if (waste_store_resume(t->store, session, info.ids, info.n_ids, NULL, &reused) != WASTE_OK)
        return fail(t->ctx, "prompt");
    if (generate(t, info.ids + reused, info.n_ids - reused, reply))
        return 1;
    if (waste_reply_end(reply, &events, &n) != WASTE_OK)
        return fail(NULL, "reply");
    show(events, n);
    putchar('\n');
    if (waste_store_keep(t->store, session, NULL, 0) != WASTE_OK)
        fail(t->ctx, "store"); /* the next prompt is read from its beginning */
    if (waste_reply_message(reply, &message, &len) != WASTE_OK)
        return fail(NULL, "reply");
    return append(t, ", ", 2) || append(t, message, len);
}

static int turn(struct talk *t, const char *line)
{
    waste_prompt *prompt = NULL;
    waste_reply *reply = NULL;
    int rc = append_user(t, line);

    if (!rc)
        prompt = render(t);
    if (prompt && waste_reply_open(prompt, &reply) != WASTE_OK)
        fail(NULL, "reply");
    rc = rc || !reply || answer(t, prompt, reply);
    waste_reply_close(reply);
    waste_prompt_close(prompt);
    return rc;
}

static int talk(struct talk *t)
{
    char line[4096];
    int rc = 0;

    while (!rc && fputs("> ", stderr) >= 0 && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        rc = *line ? turn(t, line) : 0;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct talk t = {0};
    waste_chat_info info = {.size = sizeof(info)};
    waste_store_cfg store;
    waste_opts opts;
    uint64_t n_tokens = 256;
    int rc;

    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: %s MODEL [TOKENS]\n", argv[0]), 2;
    if (argc > 2 && number(&n_tokens, argv[2], 1, UINT32_MAX))
        return 2;
    t.n_tokens = (uint32_t)n_tokens;
    waste_opts_init(&opts);
    opts.checkpoints = 2; /* memory for the store's states */
    waste_store_cfg_init(&store);
    if (waste_open_ex(argv[1], NULL, &opts, &t.ctx) != WASTE_OK)
        return fail(NULL, argv[1]);
    if (waste_store_open(t.ctx, &store, &t.store) != WASTE_OK)
        rc = fail(t.ctx, "store");
    else if (waste_chat_open(waste_tokenizer_of(t.ctx), argv[1], NULL, &t.chat) != WASTE_OK ||
             waste_chat_get_info(t.chat, &info) != WASTE_OK)
        rc = fail(NULL, argv[1]);
    else {
        t.end_id = info.end_id;
        rc = talk(&t);
    }
    free(t.messages);
    waste_chat_close(t.chat);
    waste_store_close(t.store);
    waste_close(t.ctx);
    return rc;
}
