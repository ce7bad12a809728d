#include "model/conversation.h"

#include "model/conversation_options.h"

#include <ctype.h>
#include <stdio.h>

#define REQUEST_BYTES_MAX ((size_t)256 << 20)
#define MESSAGES_MAX      65536
#define CALLS_MAX         1024
#define PIXELS_MAX        65535

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "conversation");
}

/* ---- content ---- */

static int read_pixels(uint32_t *out, const struct node *part, const struct node *inner,
                       const char *key, const char *path, struct err *e)
{
    const struct node *v = node_get(part, key) ? node_get(part, key) : node_get(inner, key);
    size_t n = 0;

    *out = 0;
    for (; v && v->type == NODE_INTEGER && n < v->text.len && n < 6 &&
           isdigit((unsigned char)v->text.s[n]);
         n++)
        *out = *out * 10 + (uint32_t)(v->text.s[n] - '0');
    if (!v || v->type != NODE_INTEGER)
        return err_set(e, ERR_ARG, "%s.%s: an image needs its %s in pixels, not %s", path, key, key,
                       node_type_name(v));
    if (n != v->text.len || !*out || *out > PIXELS_MAX)
        return err_set(e, ERR_ARG, "%s.%s: %s is not in 1...%d", path, key, str_shown(v->text),
                       PIXELS_MAX);
    return 0;
}

static int read_image(struct part *out, const struct node *part, const char *path, struct err *e)
{
    const struct node *inner = node_get(part, "image_url");

    out->is_image = true;
    if (inner && inner->type == NODE_STRING)
        out->text = inner->text;
    else if (node_get_text(&out->text, inner, "url", path, e))
        return e->code;
    if (!out->text.len && node_get_text(&out->text, part, "image", path, e))
        return e->code;
    return read_pixels(&out->width, part, inner, "width", path, e) ||
                   read_pixels(&out->height, part, inner, "height", path, e)
               ? e->code
               : 0;
}

static int read_part(struct part *out, const struct node *part, const char *path, struct err *e)
{
    const struct node *type = node_get(part, "type"), *text = node_get(part, "text");

    if (part->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "%s must be an object, not %s", path, node_type_name(part));
    if (type && type->type != NODE_STRING)
        return err_set(e, ERR_ARG, "%s.type must be a text, not %s", path, node_type_name(type));
    if (node_is_text(type, "image") || node_is_text(type, "image_url"))
        return read_image(out, part, path, e);
    if (!text && type && !node_is_text(type, "text"))
        return err_set(e, ERR_ARG, "%s.type: \"%s\" is neither a text nor an image", path,
                       str_shown(type->text));
    if (!text || text->type != NODE_STRING)
        return err_set(e, ERR_ARG, "%s.text must be a text, not %s", path, node_type_name(text));
    out->text = text->text;
    return 0;
}

static int read_content(struct conversation *c, struct message *m, const struct node *v,
                        const char *path, struct err *e)
{
    uint32_t n = !v ? 0 : v->type == NODE_STRING ? 1 : v->n;
    char at[80];

    if (v && v->type != NODE_STRING && v->type != NODE_ARRAY)
        return err_set(e, ERR_ARG, "%s.content must be a text or an array of parts, not %s", path,
                       node_type_name(v));
    m->parts = tree_alloc(&c->tree, (n + 1) * sizeof(*m->parts));
    if (!m->parts)
        return no_memory(e);
    memset(m->parts, 0, (n + 1) * sizeof(*m->parts));
    if (v && v->type == NODE_STRING) {
        m->parts[m->n_parts++].text = v->text;
        return 0;
    }
    for (const struct node *part = v ? v->child : NULL; part; part = part->next) {
        struct part *out = &m->parts[m->n_parts];

        snprintf(at, sizeof(at), "%s.content[%u]", path, m->n_parts++);
        if (read_part(out, part, at, e))
            return e->code;
        if (out->is_image && m->role == ROLE_ASSISTANT)
            return err_set(e, ERR_ARG, "%s: an assistant's message holds no images", at);
    }
    return 0;
}

/* ---- calls ---- */

static bool blank(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!memchr(" \t\r\n\v\f", s.s[i], 6))
            return false;
    return true;
}

static int read_arguments(struct conversation *c, struct call *call, const struct node *v,
                          const char *path, struct err *e)
{
    struct tree inner = {0};
    struct err why = {0};
    int rc = 0;

    if (!v || (v->type == NODE_STRING && blank(v->text)))
        return 0;
    if (v->type == NODE_OBJECT) {
        call->arguments = v;
        return 0;
    }
    if (v->type != NODE_STRING)
        return err_set(e, ERR_ARG, "%s.function.arguments must be an object or its text, not %s",
                       path, node_type_name(v));
    if (tree_parse(&inner, v->text.s, v->text.len, &why)) {
        if (why.code == ERR_NOMEM)
            rc = no_memory(e);
        call->raw = v->text;
    } else if (inner.root->type != NODE_OBJECT) {
        rc = err_set(e, ERR_ARG, "%s.function.arguments must be the text of an object, not of %s",
                     path, node_type_name(inner.root));
    } else {
        call->arguments = inner.root;
        call->given = v->text;
        tree_adopt(&c->tree, &inner);
    }
    tree_release(&inner);
    return rc;
}

static int read_call(struct conversation *c, struct call *call, const struct node *v,
                     const char *path, struct err *e)
{
    const struct node *function = node_get(v, "function");

    if (v->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "%s must be an object, not %s", path, node_type_name(v));
    if (function && function->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "%s.function must be an object, not %s", path,
                       node_type_name(function));
    if (!function)
        function = v;
    if (node_get_text(&call->id, v, "id", path, e) ||
        node_get_text(&call->name, function, "name", path, e))
        return e->code;
    if (!call->name.len)
        return err_set(e, ERR_ARG, "%s.function.name is needed", path);
    return read_arguments(c, call, node_get(function, "arguments"), path, e);
}

static int read_calls(struct conversation *c, struct message *m, const struct node *v,
                      uint32_t *n_before, const char *path, struct err *e)
{
    char at[80];

    if (!v)
        return 0;
    if (v->type != NODE_ARRAY)
        return err_set(e, ERR_ARG, "%s.tool_calls must be an array, not %s", path,
                       node_type_name(v));
    if (v->n && m->role != ROLE_ASSISTANT)
        return err_set(e, ERR_ARG, "%s.tool_calls: only an assistant calls tools", path);
    if (v->n > CALLS_MAX)
        return err_set(e, ERR_LIMIT, "%s.tool_calls: %u calls, more than %d", path, v->n,
                       CALLS_MAX);
    m->calls = tree_alloc(&c->tree, (v->n + 1) * sizeof(*m->calls));
    if (!m->calls)
        return no_memory(e);
    memset(m->calls, 0, (v->n + 1) * sizeof(*m->calls));
    for (const struct node *call = v->child; call; call = call->next) {
        snprintf(at, sizeof(at), "%s.tool_calls[%u]", path, m->n_calls);
        if (read_call(c, &m->calls[m->n_calls], call, at, e))
            return e->code;
        m->calls[m->n_calls++].nth = (*n_before)++;
    }
    return 0;
}

/* ---- tools and messages ---- */

static int check_tools(const struct node *tools, const char *path, struct err *e)
{
    unsigned i = 0;

    if (!tools)
        return 0;
    if (tools->type != NODE_ARRAY)
        return err_set(e, ERR_ARG, "%s must be an array, not %s", path, node_type_name(tools));
    for (const struct node *t = tools->child; t; t = t->next, i++) {
        const struct node *function = node_get(t, "function");
        const struct node *name = node_get(function ? function : t, "name");

        if (t->type != NODE_OBJECT)
            return err_set(e, ERR_ARG, "%s[%u] must be an object, not %s", path, i,
                           node_type_name(t));
        if (!function && !name)
            return err_set(e, ERR_ARG,
                           "%s[%u].function is missing: a tool is {\"type\": \"function\", "
                           "\"function\": {\"name\", \"description\", \"parameters\"}}",
                           path, i);
        if (!name || name->type != NODE_STRING || !name->text.len)
            return err_set(e, ERR_ARG, "%s[%u]%s.name must be a text, not %s", path, i,
                           function ? ".function" : "",
                           name && name->type == NODE_STRING ? "an empty one"
                                                             : node_type_name(name));
    }
    return 0;
}

static int read_role(struct message *m, const struct node *v, const char *path, struct err *e)
{
    static const struct {
        const char *name;
        enum role role;
    } roles[] = {{"system", ROLE_SYSTEM},
                 {"developer", ROLE_SYSTEM},
                 {"user", ROLE_USER},
                 {"assistant", ROLE_ASSISTANT},
                 {"tool", ROLE_TOOL}};

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (node_is_text(v, roles[i].name)) {
            m->role = roles[i].role;
            return 0;
        }
    if (!v || v->type != NODE_STRING)
        return err_set(e, ERR_ARG, "%s.role must be a text, not %s", path, node_type_name(v));
    return err_set(e, ERR_ARG,
                   "%s.role: \"%s\" is none of system, developer, user, assistant, tool", path,
                   str_shown(v->text));
}

static int read_reasoning(struct message *m, const struct node *v, const char *path, struct err *e)
{
    struct str text;

    if (m->role != ROLE_ASSISTANT)
        return 0;
    if (node_get_text(&text, v, "reasoning_content", path, e))
        return e->code;
    if (blank(text) && node_get_text(&text, v, "reasoning", path, e))
        return e->code;
    if (!blank(text))
        m->reasoning = text;
    return 0;
}

static int read_message(struct conversation *c, struct message *m, const struct node *v,
                        uint32_t *n_calls, struct err *e)
{
    const struct node *tools = node_get(v, "tools");
    char path[48], at[64];

    snprintf(path, sizeof(path), "messages[%u]", m->source);
    snprintf(at, sizeof(at), "%s.tools", path);
    if (v->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "%s must be an object, not %s", path, node_type_name(v));
    if (read_role(m, node_get(v, "role"), path, e) || node_get_text(&m->name, v, "name", path, e) ||
        read_reasoning(m, v, path, e) ||
        read_calls(c, m, node_get(v, "tool_calls"), n_calls, path, e))
        return e->code;
    if (m->role == ROLE_SYSTEM && tools) {
        if (check_tools(tools, at, e))
            return e->code;
        m->tools = tools->n ? tools : NULL;
        c->tools_later |= m->tools != NULL;
    }
    if (m->role == ROLE_TOOL) {
        if (node_get_text(&m->id, v, "tool_call_id", path, e) ||
            (!m->id.len && node_get_text(&m->id, v, "id", path, e)) ||
            node_get_text(&m->tool, v, "tool", path, e))
            return e->code;
    }
    return read_content(c, m, node_get(v, "content"), path, e);
}

/* ---- results ---- */

static const struct call *call_with(const struct message *assistant, struct str id)
{
    for (uint32_t i = 0; assistant && id.len && i < assistant->n_calls; i++)
        if (str_is(assistant->calls[i].id, id))
            return &assistant->calls[i];
    return NULL;
}

static int call_order(const void *a, const void *b)
{
    const struct message *x = a, *y = b;

    if (x->answers != y->answers)
        return x->answers < y->answers ? -1 : 1; /* of one array */
    return (x->source > y->source) - (x->source < y->source);
}

/* A run of results in the order of the calls, if each one answers a call. */
static void sort_results(struct message *run, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!run[i].answers)
            return;
    qsort(run, n, sizeof(*run), call_order);
}

/* What was called: the call with that id, or what the result says, or the call at its place. */
static int name_result(struct message *m, const struct message *assistant, struct err *e)
{
    if (m->answers)
        m->tool = m->answers->name;
    else if (!m->tool.len && m->name.len)
        m->tool = m->name;
    else if (!m->tool.len && assistant && m->nth <= assistant->n_calls)
        m->tool = assistant->calls[m->nth - 1].name;
    if (m->tool.len)
        return 0;
    return err_set(e, ERR_ARG,
                   "messages[%u].tool_call_id: \"%s\" is the id of no call of the assistant's "
                   "message before it; say `name`",
                   m->source, str_shown(m->id));
}

static int number_result(struct conversation *c, struct message *m, const struct message *assistant,
                         uint32_t nth, struct err *e)
{
    uint32_t answered = m->answers ? (uint32_t)(m->answers - assistant->calls) + 1 : nth;

    m->nth = nth;
    if (answered != nth && !c->note[0])
        snprintf(c->note, sizeof(c->note),
                 "messages[%u] answers call %u and is numbered %u: results are numbered by where "
                 "they stand",
                 m->source, answered, nth);
    return name_result(m, assistant, e);
}

static int match_results(struct conversation *c, struct err *e)
{
    const struct message *assistant = NULL;
    uint32_t nth = 0, end;

    for (uint32_t i = 0; i < c->n_messages; i = end) {
        end = i + 1;
        if (c->messages[i].role == ROLE_ASSISTANT) {
            assistant = &c->messages[i];
            nth = 0;
        }
        if (c->messages[i].role != ROLE_TOOL)
            continue;
        for (end = i; end < c->n_messages && c->messages[end].role == ROLE_TOOL; end++)
            c->messages[end].answers = call_with(assistant, c->messages[end].id);
        sort_results(&c->messages[i], end - i);
        for (uint32_t k = i; k < end; k++)
            if (number_result(c, &c->messages[k], assistant, ++nth, e))
                return e->code;
    }
    return 0;
}

static int read_messages(struct conversation *c, struct err *e)
{
    const struct node *v = node_get(c->tree.root, "messages");
    uint32_t i = 0, n_calls = 0;

    if (!v || v->type != NODE_ARRAY || !v->n)
        return err_set(e, ERR_ARG, "messages must be an array with something in it, not %s",
                       v && v->type == NODE_ARRAY ? "an empty one" : node_type_name(v));
    if (v->n > MESSAGES_MAX)
        return err_set(e, ERR_LIMIT, "messages: %u, more than %d", v->n, MESSAGES_MAX);
    c->messages = tree_alloc(&c->tree, v->n * sizeof(*c->messages));
    if (!c->messages)
        return no_memory(e);
    memset(c->messages, 0, v->n * sizeof(*c->messages));
    c->n_messages = v->n;
    for (const struct node *m = v->child; m; m = m->next, i++) {
        c->messages[i].source = i;
        if (read_message(c, &c->messages[i], m, &n_calls, e))
            return e->code;
    }
    return match_results(c, e);
}

int conversation_read(struct conversation *c, const char *json, size_t len,
                      const struct thinking_rules *rules, struct err *e)
{
    bool floor = true;

    if (len > REQUEST_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "request: %zu bytes, more than %zu", len, REQUEST_BYTES_MAX);
    if (tree_parse(&c->tree, json, len, e))
        return err_wrap(e, "request");
    if (c->tree.root->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "the request must be an object, not %s",
                       node_type_name(c->tree.root));
    c->tools = node_get(c->tree.root, "tools");
    if (check_tools(c->tools, "tools", e))
        return e->code;
    if (c->tools && !c->tools->n)
        c->tools = NULL;
    if (read_messages(c, e) || conversation_options(c, c->tree.root, rules, e) ||
        node_get_flag(&floor, c->tree.root, "add_generation_prompt", "", e))
        return e->code;
    c->floor = floor;
    return 0;
}

void conversation_release(struct conversation *c)
{
    tree_release(&c->tree);
    *c = (struct conversation){0};
}
