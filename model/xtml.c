#include "model/xtml.h"

#include "model/json_write.h"

#include <stdio.h>

struct attribute {
    const char *key;
    struct str value;
};

void xtml_attribute(struct buf *b, struct str v)
{
    for (size_t i = 0; i < v.len; i++)
        if (v.s[i] == '&')
            buf_str(b, STR("&amp;"));
        else if (v.s[i] == '"')
            buf_str(b, STR("&quot;"));
        else
            buf_put(b, &v.s[i], 1);
}

static void mark(struct prompt *p, enum marker m)
{
    prompt_markup(p, chat_marker_text(m));
}

static void put_value(struct prompt *p, struct str v)
{
    xtml_attribute(prompt_begin(p), v);
    prompt_end(p, TOKEN_CONTENT);
}

static void open_element(struct prompt *p, const char *tag, const struct attribute *attributes,
                         unsigned n)
{
    mark(p, MARK_OPEN);
    prompt_content(p, str_of(tag));
    for (unsigned i = 0; i < n; i++) {
        struct buf *b = prompt_begin(p);

        buf_str(b, STR(" "));
        buf_str(b, str_of(attributes[i].key));
        prompt_end(p, TOKEN_CONTENT);
        prompt_content(p, STR("=\""));
        put_value(p, attributes[i].value);
        prompt_content(p, STR("\""));
    }
    mark(p, MARK_SEP);
}

static void close_element(struct prompt *p, const char *tag)
{
    mark(p, MARK_CLOSE);
    prompt_content(p, str_of(tag));
    mark(p, MARK_SEP);
}

static void end_message(struct prompt *p, int32_t message)
{
    close_element(p, "message");
    mark(p, MARK_END_OF_MSG);
    prompt_message_end(p, message);
}

/* ---- notes ---- */

static struct buf *note_begin(struct prompt *p, const char *type)
{
    struct attribute a[] = {{"role", STR("system")}, {"type", str_of(type)}};

    open_element(p, "message", a, 2);
    return prompt_begin(p);
}

static void note_end(struct prompt *p, int32_t message)
{
    prompt_end(p, TOKEN_CONTENT);
    end_message(p, message);
}

static void put_fenced(struct buf *b, const struct node *json)
{
    buf_str(b, STR("```json\n"));
    json_write(b, json, JSON_SORTED);
    buf_str(b, STR("\n```"));
}

static void declare_tools(struct prompt *p, const struct node *tools)
{
    struct buf *b = note_begin(p, "tool-declare");

    buf_str(b, STR("# Tools\nHere are the available tools, described in JSONSchema.\n\n"));
    put_fenced(b, tools);
    note_end(p, -1);
}

static void declare_more_tools(struct prompt *p, const struct message *m)
{
    struct buf *b = note_begin(p, "tool-declare");

    buf_str(b, STR("## New Tools Available\n"
                   "The system dynamically extends the toolset via lazy-loading.\n"
                   "You have access to all existing and extended tools.\n"
                   "Here are the specs for the extended tools.\n\n"));
    put_fenced(b, m->tools);
    note_end(p, (int32_t)m->source);
}

static void note_effort(struct prompt *p, const char *effort)
{
    struct buf *b = note_begin(p, "thinking-effort");

    buf_str(b, STR("`thinking_effort` guides on how much to think in your thinking channel (not "
                   "including the response channel), supported values include `low`, `medium`, "
                   "`high`, and `max`.\nNow the system is invoked with `thinking_effort="));
    buf_str(b, str_of(effort));
    buf_str(b, STR("`."));
    note_end(p, -1);
}

/* A tool that must be called by name is asked for as the operator of a chat would. */
static void ask_for(struct prompt *p, struct str name)
{
    struct attribute a[] = {{"role", STR("system")}};

    open_element(p, "message", a, 1);
    prompt_content(p, STR("In the next message, call the tool "));
    prompt_content(p, name);
    prompt_content(p, STR("."));
    end_message(p, -1);
}

static void note_choice(struct prompt *p, const struct conversation *c)
{
    struct buf *b;

    if (c->choice == CHOICE_AUTO)
        return;
    if (c->choice_name.len)
        ask_for(p, c->choice_name);
    b = note_begin(p, "tool-choice");
    buf_str(b, c->choice == CHOICE_REQUIRED
                   ? STR("The system is invoked with `tool_choice=required`.\n"
                         "You MUST call tools in the next message.")
                   : STR("The system is invoked with `tool_choice=none`.\n"
                         "You MUST NOT call any tools in the next message."));
    note_end(p, -1);
}

static void note_format(struct prompt *p, const struct conversation *c)
{
    struct buf *b;

    if (c->format == ANSWER_TEXT)
        return;
    b = note_begin(p, "response-format");
    buf_str(b, STR("The system is invoked with `response_format="));
    buf_str(b, c->format == ANSWER_JSON ? STR("json_object") : STR("json_schema"));
    buf_str(b, STR("`.\nYour response must be raw JSON data without markdown code blocks "
                   "(```json) or any additional formatting."));
    if (c->format == ANSWER_SCHEMA) {
        buf_str(b, STR("\nThe JSON data must match the following schema:\n"));
        put_fenced(b, c->schema);
    }
    note_end(p, -1);
}

/* ---- messages ---- */

static int put_image(struct prompt *p, const struct chat *chat, const struct message *m,
                     uint32_t nth, struct err *e)
{
    const struct part *part = &m->parts[nth];
    waste_image_place place = {
        .message = m->source, .part = nth, .width = part->width, .height = part->height};
    struct buf *b = prompt_begin(p);
    char size[40];

    if (!chat->has_images)
        return err_set(e, ERR_UNSUPPORTED,
                       "messages[%u].content[%u] is an image, but the container has no control "
                       "tokens for images",
                       m->source, nth);
    snprintf(size, sizeof(size), "image %ux%u", part->width, part->height);
    buf_str(b, chat_marker_text(MARK_MEDIA_BEGIN));
    buf_str(b, str_of(size));
    buf_str(b, chat_marker_text(MARK_MEDIA_CONTENT));
    buf_str(b, chat_marker_text(MARK_MEDIA_PAD));
    buf_str(b, chat_marker_text(MARK_MEDIA_END));
    prompt_end(p, TOKEN_MARKUP);
    prompt_image(p, &place, part->text);
    return 0;
}

static int put_parts(struct prompt *p, const struct chat *chat, const struct message *m,
                     struct err *e)
{
    for (uint32_t i = 0; i < m->n_parts; i++) {
        if (!m->parts[i].is_image)
            prompt_content(p, m->parts[i].text);
        else if (put_image(p, chat, m, i, e))
            return e->code;
    }
    return 0;
}

static const char *type_of_value(const struct node *value)
{
    static const char *const types[] = {
        [NODE_NULL] = "null",      [NODE_FALSE] = "boolean", [NODE_TRUE] = "boolean",
        [NODE_INTEGER] = "number", [NODE_REAL] = "number",   [NODE_STRING] = "string",
        [NODE_ARRAY] = "array",    [NODE_OBJECT] = "object",
    };

    return types[value->type];
}

static void put_argument(struct prompt *p, const struct node *value)
{
    struct attribute a[] = {{"key", value->key}, {"type", str_of(type_of_value(value))}};

    open_element(p, "argument", a, 2);
    if (value->type == NODE_STRING) {
        prompt_content(p, value->text);
    } else {
        json_write(prompt_begin(p), value, JSON_SPACED);
        prompt_end(p, TOKEN_CONTENT);
    }
    close_element(p, "argument");
}

static void put_call(struct prompt *p, const struct call *call, unsigned index)
{
    struct attribute type = {"type", STR("object")};
    char number[16];
    struct attribute a[] = {{"tool", call->name}, {"index", {number, 0}}};

    a[1].value.len = (size_t)snprintf(number, sizeof(number), "%u", index);
    open_element(p, "call", a, 2);
    if (call->raw.len) {
        open_element(p, "json", &type, 1);
        prompt_content(p, call->raw);
        close_element(p, "json");
    }
    for (const struct node *v = call->arguments ? call->arguments->child : NULL; v; v = v->next)
        put_argument(p, v);
    close_element(p, "call");
}

static int put_assistant(struct prompt *p, const struct chat *chat, const struct conversation *c,
                         const struct message *m, struct err *e)
{
    if (c->thinking) {
        open_element(p, "think", NULL, 0);
        prompt_content(p, m->reasoning);
        close_element(p, "think");
    }
    open_element(p, "response", NULL, 0);
    if (put_parts(p, chat, m, e))
        return e->code;
    close_element(p, "response");
    if (!m->n_calls)
        return 0;
    open_element(p, "tools", NULL, 0);
    for (uint32_t i = 0; i < m->n_calls; i++)
        put_call(p, &m->calls[i], i + 1);
    close_element(p, "tools");
    return 0;
}

static int put_message(struct prompt *p, const struct chat *chat, const struct conversation *c,
                       const struct message *m, struct err *e)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    struct attribute a[3] = {{"role", str_of(roles[m->role])}};
    char number[16];
    unsigned n = 1;

    if (m->tools) {
        declare_more_tools(p, m);
        return 0;
    }
    if (m->role == ROLE_TOOL) {
        a[n++] = (struct attribute){"tool", m->tool};
        snprintf(number, sizeof(number), "%u", m->nth);
        a[n++] = (struct attribute){"index", str_of(number)};
    } else if (m->name.len) {
        a[n++] = (struct attribute){"name", m->name};
    }
    open_element(p, "message", a, n);
    if (m->role == ROLE_ASSISTANT ? put_assistant(p, chat, c, m, e) : put_parts(p, chat, m, e))
        return e->code;
    end_message(p, (int32_t)m->source);
    return 0;
}

int xtml_render(struct prompt *p, const struct chat *chat, const struct conversation *c,
                struct err *e)
{
    struct attribute assistant = {"role", STR("assistant")};

    if (c->tools)
        declare_tools(p, c->tools);
    if (c->thinking && c->effort_note)
        note_effort(p, c->effort);
    for (uint32_t i = 0; i < c->n_messages; i++)
        if (put_message(p, chat, c, &c->messages[i], e))
            return e->code;
    note_choice(p, c);
    note_format(p, c);
    if (!c->floor)
        return 0;
    open_element(p, "message", &assistant, 1);
    open_element(p, c->thinking ? "think" : "response", NULL, 0);
    p->begins = c->thinking ? WASTE_REASONING : WASTE_RESPONSE;
    return 0;
}
