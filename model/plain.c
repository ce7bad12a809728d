#include "model/plain.h"

#include "model/json_write.h"

#include <stdio.h>

static int unsupported(const struct chat *chat, const char *what, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "%s: this container's chat format (%s) has no words for it",
                   what, chat->format == WASTE_CHAT_K2 ? "K2" : "chat.json");
}

/* What the format cannot say is refused by name, not left out. */
static int check(const struct chat *chat, const struct conversation *c, struct err *e)
{
    char path[64];

    if (c->tools && !chat->has_tools)
        return unsupported(chat, "tools", e);
    if (c->choice == CHOICE_REQUIRED && !chat->has_tools)
        return unsupported(chat, "tool_choice", e);
    if (c->format != ANSWER_TEXT && !chat->constrains)
        return unsupported(chat, "response_format", e);
    if (c->thinking_asked)
        return unsupported(chat, "reasoning", e);
    for (uint32_t i = 0; i < c->n_messages; i++) {
        const struct message *m = &c->messages[i];
        const char *member = m->role == ROLE_TOOL ? "role" : m->n_calls ? "tool_calls" : "tools";

        snprintf(path, sizeof(path), "messages[%u].%s", m->source, member);
        if ((m->role == ROLE_TOOL || m->n_calls || m->tools) && !chat->has_tools)
            return unsupported(chat, path, e);
        if (m->role != ROLE_TOOL && !chat->turns[m->role].before.s)
            return err_set(e, ERR_UNSUPPORTED, "messages[%u].role: chat.json has no such turns",
                           m->source);
        for (uint32_t k = 0; k < m->n_parts; k++) {
            snprintf(path, sizeof(path), "messages[%u].content[%u]", m->source, k);
            if (m->parts[k].is_image)
                return unsupported(chat, path, e);
        }
    }
    return 0;
}

static void put_parts(struct prompt *p, const struct message *m)
{
    for (uint32_t i = 0; i < m->n_parts; i++)
        prompt_content(p, m->parts[i].text);
}

/* ---- what K2 has besides ---- */

static void mark(struct prompt *p, enum marker m)
{
    prompt_markup(p, chat_marker_text(m));
}

static void declare_tools(struct prompt *p, const struct node *tools, int32_t message)
{
    prompt_markup(p, STR("<|im_system|>tool_declare<|im_middle|>"));
    json_write(prompt_begin(p), tools, JSON_TIGHT);
    prompt_end(p, TOKEN_CONTENT);
    mark(p, MARK_IM_END);
    prompt_message_end(p, message);
}

/* "functions.NAME:I"; an id that has this form already stays. */
static void put_call_id(struct buf *b, const struct call *call)
{
    struct str functions = STR("functions."), id = call->id;
    size_t head = functions.len + call->name.len, i = head + 1;
    char number[16];

    while (i < id.len && id.s[i] >= '0' && id.s[i] <= '9')
        i++;
    if (i == id.len && id.len > head + 1 && !memcmp(id.s, functions.s, functions.len) &&
        !memcmp(id.s + functions.len, call->name.s, call->name.len) && id.s[head] == ':') {
        buf_str(b, id);
        return;
    }
    snprintf(number, sizeof(number), ":%u", call->nth);
    buf_str(b, functions);
    buf_str(b, call->name);
    buf_put(b, number, strlen(number));
}

static void put_call(struct prompt *p, const struct call *call)
{
    mark(p, MARK_CALL_BEGIN);
    put_call_id(prompt_begin(p), call);
    prompt_end(p, TOKEN_CONTENT);
    mark(p, MARK_CALL_ARGUMENT);
    if (call->raw.len || call->given.len)
        prompt_content(p, call->raw.len ? call->raw : call->given);
    else if (!call->arguments)
        prompt_content(p, STR("{}"));
    else
        json_write(prompt_begin(p), call->arguments, JSON_SPACED);
    prompt_end(p, TOKEN_CONTENT);
    mark(p, MARK_CALL_END);
}

static void put_result(struct prompt *p, const struct message *m)
{
    struct buf *b;

    mark(p, MARK_IM_SYSTEM);
    prompt_content(p, m->name.len ? m->name : STR("tool"));
    mark(p, MARK_IM_MIDDLE);
    b = prompt_begin(p);
    buf_str(b, STR("## Return of "));
    if (m->answers)
        put_call_id(b, m->answers);
    else
        buf_str(b, m->id);
    buf_str(b, STR("\n"));
    prompt_end(p, TOKEN_CONTENT);
    put_parts(p, m);
    mark(p, MARK_IM_END);
}

static void put_named(struct prompt *p, const struct message *m)
{
    static const enum marker marks[] = {MARK_IM_SYSTEM, MARK_IM_USER, MARK_IM_ASSISTANT};

    mark(p, marks[m->role]);
    prompt_content(p, m->name);
    mark(p, MARK_IM_MIDDLE);
}

/* ---- turns ---- */

static void put_message(struct prompt *p, const struct chat *chat, const struct message *m)
{
    if (m->role == ROLE_TOOL) {
        put_result(p, m);
        return;
    }
    if (chat->format == WASTE_CHAT_K2 && m->name.len)
        put_named(p, m);
    else
        prompt_markup(p, chat->turns[m->role].before);
    put_parts(p, m);
    if (m->n_calls) {
        mark(p, MARK_CALLS_BEGIN);
        for (uint32_t i = 0; i < m->n_calls; i++)
            put_call(p, &m->calls[i]);
        mark(p, MARK_CALLS_END);
    }
    prompt_markup(p, chat->turns[m->role].after);
}

int plain_render(struct prompt *p, const struct chat *chat, const struct conversation *c,
                 struct err *e)
{
    if (check(chat, c, e))
        return e->code;
    if (c->tools)
        declare_tools(p, c->tools, -1);
    for (uint32_t i = 0; i < c->n_messages; i++) {
        const struct message *m = &c->messages[i];

        if (m->tools) {
            declare_tools(p, m->tools, (int32_t)m->source);
            continue;
        }
        put_message(p, chat, m);
        prompt_message_end(p, (int32_t)m->source);
    }
    if (!c->floor)
        return 0;
    prompt_markup(p, chat->open);
    p->begins = WASTE_RESPONSE;
    return 0;
}
