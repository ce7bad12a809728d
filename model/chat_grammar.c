#include "model/chat_grammar.h"

#include "base/list.h"
#include "model/grammar.h"
#include "model/json_schema.h"
#include "model/json_write.h"
#include "model/xtml.h"

#include <stdio.h>

/* ---- what is kept of a request ---- */

static struct answer_tool *tool_add(struct prompt *p)
{
    struct answer_rules *a = &p->answer;

    if (list_room(&a->tools, &a->tools_cap, a->n_tools + 1, sizeof(*a->tools)))
        return &a->tools[a->n_tools++];
    p->failed = true;
    return NULL;
}

static bool says_object(const struct node *type)
{
    if (!type || node_is_text(type, "object"))
        return true;
    for (const struct node *t = type->type == NODE_ARRAY ? type->child : NULL; t; t = t->next)
        if (node_is_text(t, "object"))
            return true;
    return false;
}

/* The parameters as a schema of objects and nothing else; nothing is written if they are not. */
static void put_parameters(struct buf *b, const struct node *parameters)
{
    if (!parameters) {
        buf_str(b, STR("{\"type\":\"object\",\"additionalProperties\":false}"));
        return;
    }
    if (parameters->type != NODE_OBJECT || !says_object(node_get(parameters, "type")))
        return;
    buf_str(b, STR("{\"type\":\"object\""));
    for (const struct node *m = parameters->child; m; m = m->next) {
        if (str_is(m->key, STR("type")) || str_is(m->key, STR("nullable")))
            continue;
        buf_str(b, STR(","));
        json_write_string(b, m->key);
        buf_str(b, STR(":"));
        json_write(b, m, JSON_TIGHT);
    }
    buf_str(b, STR("}"));
}

static void keep_tools(struct prompt *p, const struct node *tools, int32_t message)
{
    struct buf *b = &p->answer.text;
    uint32_t index = 0;

    for (const struct node *t = tools ? tools->child : NULL; t; t = t->next, index++) {
        const struct node *f = node_get(t, "function") ? node_get(t, "function") : t;
        const struct node *name = node_get(f, "name"), *strict = node_get(f, "strict");
        struct answer_tool *tool;

        if (!name || name->type != NODE_STRING || !name->text.len || !(tool = tool_add(p)))
            continue;
        if (!strict)
            strict = node_get(t, "strict");
        *tool = (struct answer_tool){
            .name = b->n,
            .name_len = name->text.len,
            .message = message,
            .index = index,
            .strict = strict && strict->type == NODE_TRUE,
        };
        buf_str(b, name->text);
        tool->schema = b->n;
        put_parameters(b, node_get(f, "parameters"));
        tool->schema_len = b->n - tool->schema;
    }
}

static struct str name_of(const struct prompt *p, const struct answer_tool *tool)
{
    return (struct str){p->answer.text.s + tool->name, tool->name_len};
}

static struct str schema_of(const struct prompt *p, const struct answer_tool *tool)
{
    return (struct str){p->answer.text.s + tool->schema, tool->schema_len};
}

/* Those that may be called; of two with one name the later. */
static void drop_tools(struct prompt *p, struct str only)
{
    struct answer_rules *a = &p->answer;
    size_t kept = 0;

    for (size_t i = 0; i < a->n_tools && !a->text.failed; i++) {
        struct str name = name_of(p, &a->tools[i]);
        bool again = only.len && !str_is(name, only);

        for (size_t k = i + 1; k < a->n_tools && !again; k++)
            again = str_is(name, name_of(p, &a->tools[k]));
        if (!again)
            a->tools[kept++] = a->tools[i];
    }
    a->n_tools = kept;
}

void chat_grammar_keep(struct prompt *p, const struct conversation *c)
{
    struct answer_rules *a = &p->answer;

    keep_tools(p, c->tools, -1);
    for (uint32_t i = 0; i < c->n_messages; i++)
        keep_tools(p, c->messages[i].tools, (int32_t)c->messages[i].source);
    drop_tools(p, c->choice_name);
    a->one_call = !c->parallel_calls;
    a->schema = a->text.n;
    if (c->format == ANSWER_JSON)
        buf_str(&a->text, STR("{\"type\":\"object\"}"));
    else if (c->format == ANSWER_SCHEMA)
        json_write(&a->text, c->schema, JSON_TIGHT);
    a->schema_len = a->text.n - a->schema;
}

/* ---- schemas ---- */

static int schema_try(struct rules *r, const struct prompt *p, struct str schema, bool arguments,
                      struct err *e)
{
    const int32_t *ids = p->chat->ids;
    struct argument_marks marks = {ids[MARK_OPEN], ids[MARK_CLOSE], ids[MARK_SEP]};
    int rc;

    rc = arguments && p->chat->format == WASTE_CHAT_XTML
             ? json_schema_read_arguments(r, schema.s, schema.len, &marks, e)
             : json_schema_read(r, schema.s, schema.len, e);
    if (rc || r->n_expr > RULES_EXPRS_MAX / 2) { /* what is half made is not to be shared */
        rules_release(r);
        *r = (struct rules){0};
    }
    return rc;
}

/* "tools[1].function.parameters of "search"", or with the message that declares it. */
static void tool_place(char out[160], const struct prompt *p, const struct answer_tool *tool)
{
    char message[32] = "";

    if (tool->message >= 0)
        snprintf(message, sizeof(message), "messages[%d].", (int)tool->message);
    snprintf(out, 160, "%stools[%u].function.parameters of \"%s\"", message, tool->index,
             str_shown(name_of(p, tool)));
}

/* The schema of its arguments; any, where it is not understood and nobody insists. */
static int arguments_schema(struct rules *tried, struct prompt *p, const struct answer_tool *tool,
                            struct str *schema, struct err *e)
{
    char place[160];

    tool_place(place, p, tool);
    *schema = schema_of(p, tool);
    if (!schema->len)
        return err_set(e, ERR_ARG, "%s must be a schema of objects", place);
    if (!schema_try(tried, p, *schema, true, e))
        return 0;
    if (tool->strict || e->code == ERR_NOMEM)
        return err_wrap(e, "%s", place);
    if (!p->note[0] && snprintf(p->note, sizeof(p->note), "%s takes any arguments: %s", place,
                                e->text) >= (int)sizeof(p->note))
        memcpy(p->note + sizeof(p->note) - 4, "...", 4);
    e->code = 0;
    *schema = STR("{\"type\":\"object\"}");
    return 0;
}

/* ---- the text ---- */

static void put(struct buf *b, const char *text)
{
    buf_str(b, str_of(text));
}

/* Bytes as a literal; anything that could end or change one in hexadecimal. */
static void put_bytes(struct buf *b, struct str s)
{
    char hex[5];

    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.s[i];

        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            buf_put(b, &s.s[i], 1);
        } else {
            snprintf(hex, sizeof(hex), "\\x%02x", c);
            buf_put(b, hex, 4);
        }
    }
}

static void put_number(struct buf *b, size_t n)
{
    char text[24];

    snprintf(text, sizeof(text), "%zu", n);
    put(b, text);
}

struct writer {
    struct prompt *p;
    struct buf *b;
    bool calls, must_call; /* there may be some; there must */
    struct rules tried;    /* schemas, to know about them before they are put together */
    bool value;            /* the response has a form, rule chat-value */
    struct err *e;
};

/* chat-arguments-0, ...: what may stand between the markers of a call. */
static int put_arguments(struct writer *w)
{
    bool xtml = w->p->chat->format == WASTE_CHAT_XTML;

    for (size_t i = 0; i < w->p->answer.n_tools; i++) {
        struct str schema;

        if (arguments_schema(&w->tried, w->p, &w->p->answer.tools[i], &schema, w->e))
            return w->e->code;
        put(w->b, "chat-arguments-");
        put_number(w->b, i);
        put(w->b, xtml ? " ::= %arguments" : " ::= %json");
        buf_str(w->b, schema);
        put(w->b, "\n");
    }
    return 0;
}

/* One alternative for each tool: its name, what follows it, its arguments. */
static void put_tools(struct writer *w, const char *behind_name)
{
    bool xtml = w->p->chat->format == WASTE_CHAT_XTML;

    for (size_t i = 0; i < w->p->answer.n_tools; i++) {
        struct str name = name_of(w->p, &w->p->answer.tools[i]);
        struct buf escaped = {0};

        if (xtml)
            xtml_attribute(&escaped, name);
        put(w->b, i ? " | \"" : "\"");
        put_bytes(w->b, xtml ? buf_all(&escaped) : name);
        put(w->b, behind_name);
        put(w->b, "chat-arguments-");
        put_number(w->b, i);
        w->b->failed |= escaped.failed;
        buf_release(&escaped);
    }
}

/* How the response and the calls go together; close: what ends the response. It is empty where
 * there must be calls, or a model that would rather talk would never come to them; a response with
 * a form may be empty if there are calls. */
static void put_answer(struct writer *w, const char *close)
{
    put(w->b, "chat-answer ::= ");
    if (!w->must_call) {
        put(w->b, w->value ? "chat-value " : ".* ");
        put(w->b, close);
    }
    if (w->calls && !w->must_call)
        put(w->b, " chat-calls?");
    if (w->calls && !w->must_call && w->value)
        put(w->b, " | ");
    if (w->calls && (w->must_call || w->value)) {
        put(w->b, close);
        put(w->b, " chat-calls");
    }
    put(w->b, "\n");
}

static void put_xtml(struct writer *w)
{
    bool one = w->p->answer.one_call;

    put(w->b, "chat ::= ");
    if (w->p->begins == WASTE_REASONING)
        put(w->b, ".* <|close|> \"think\" <|sep|> <|open|> \"response\" <|sep|> ");
    put(w->b, "chat-answer <|close|> \"message\" <|sep|> <|end_of_msg|>\n");
    put_answer(w, "<|close|> \"response\" <|sep|>");
    if (!w->calls)
        return;
    put(w->b, "chat-calls ::= <|open|> \"tools\" <|sep|> chat-call");
    put(w->b, one ? " " : "+ ");
    put(w->b, "<|close|> \"tools\" <|sep|>\nchat-number ::= ");
    put(w->b, one ? "\"1\"\n" : "[1-9][0-9]{,2}\n");
    put(w->b, "chat-call ::= <|open|> \"call tool=\\\"\" (");
    put_tools(w, "\\\" index=\\\"\" chat-number \"\\\"\" <|sep|> ");
    put(w->b, ") <|close|> \"call\" <|sep|>\n");
}

static void put_k2(struct writer *w)
{
    put(w->b, "chat ::= chat-answer <|im_end|>\n");
    put_answer(w, "");
    if (!w->calls)
        return;
    put(w->b, "chat-calls ::= <|tool_calls_section_begin|> chat-call");
    put(w->b, w->p->answer.one_call ? " " : "+ ");
    put(w->b, "<|tool_calls_section_end|>\n"
              "chat-number ::= \"0\" | [1-9][0-9]{,3}\n"
              "chat-call ::= <|tool_call_begin|> \"functions.\" (");
    put_tools(w, ":\" chat-number <|tool_call_argument_begin|> ");
    put(w->b, ") <|tool_call_end|>\n");
}

static void put_plain(struct writer *w)
{
    const struct tokenizer *t = w->p->chat->tokenizer;

    put(w->b, "chat ::= chat-answer ");
    for (unsigned i = 0; i < tokenizer_n_specials(t); i++) {
        const char *text;
        size_t len;
        int32_t id;

        tokenizer_special(t, i, &id, &text, &len);
        if (id == w->p->chat->end_id)
            buf_put(w->b, text, len);
    }
    put(w->b, "\n");
    put_answer(w, "");
}

/* The response's form: the request's, or the host's. A host's grammar comes first, so that its
 * lines have their numbers, and keeps its own root. */
static int put_value(struct writer *w, const struct chat_constraint *k)
{
    const struct answer_rules *a = &w->p->answer;
    struct str schema =
        a->schema_len ? (struct str){a->text.s + a->schema, a->schema_len} : STR("");

    if (k->grammar.s) {
        buf_str(w->b, k->grammar);
        put(w->b, "\n%start chat\nchat-value ::= root\n");
        return 0;
    }
    put(w->b, "%start chat\n");
    if (k->schema.s)
        schema = k->schema;
    if (!schema.len)
        return k->schema.s ? err_set(w->e, ERR_ARG, "the schema of the response is empty") : 0;
    if (schema_try(&w->tried, w->p, schema, false, w->e))
        return err_wrap(w->e, "%s",
                        k->schema.s ? "the response" : "response_format.json_schema.schema");
    while (schema.len && strchr(" \t\r\n", schema.s[0]))
        schema = (struct str){schema.s + 1, schema.len - 1};
    if (schema.s[0] != '{')
        return err_set(w->e, ERR_ARG, "the schema of the response must be an object");
    put(w->b, "chat-value ::= %json");
    buf_str(w->b, schema);
    put(w->b, "\n");
    return 0;
}

static int check(const struct prompt *p, const struct chat_constraint *k, struct err *e)
{
    if (!p->begins)
        return err_set(e, ERR_ARG,
                       "the prompt does not hand over the turn (add_generation_prompt: false)");
    if (k->schema.s && k->grammar.s)
        return err_set(e, ERR_ARG, "waste_constraint: both a schema and a grammar");
    if (p->answer.schema_len && (k->schema.s || k->grammar.s))
        return err_set(e, ERR_ARG, "response_format: the host has said what the response is");
    return 0;
}

/* Whether something is asked of the answer. */
static bool asks(const struct prompt *p, const struct chat_constraint *k)
{
    bool strict = p->must_call || !p->may_call || !k->lenient;

    if (p->answer.schema_len || k->schema.s || k->grammar.s)
        return true;
    for (size_t i = 0; i < p->answer.n_tools; i++)
        strict |= p->answer.tools[i].strict;
    return p->answer.n_tools && strict;
}

static int write_all(struct writer *w, const struct chat_constraint *k)
{
    if (put_value(w, k))
        return w->e->code;
    if (w->p->chat->format == WASTE_CHAT_XTML)
        put_xtml(w);
    else if (w->p->chat->format == WASTE_CHAT_K2)
        put_k2(w);
    else
        put_plain(w);
    return w->calls ? put_arguments(w) : 0;
}

int chat_grammar(struct prompt *p, const struct chat_constraint *k, struct str *text, struct err *e)
{
    struct buf *b = &p->answer.grammar;
    int rc;
    struct writer w = {
        .p = p,
        .b = b,
        .calls = p->may_call && p->answer.n_tools,
        .must_call = p->must_call,
        .value = p->answer.schema_len || k->schema.s || k->grammar.s,
        .e = e,
    };

    if (check(p, k, e))
        return e->code;
    *text = (struct str){NULL, 0};
    b->n = 0;
    if (!asks(p, k))
        return 0;
    rc = write_all(&w, k);
    rules_release(&w.tried);
    buf_put(b, "", 1);
    if (!rc && b->failed)
        rc = err_set(e, ERR_NOMEM, "the grammar of an answer");
    if (!rc && b->n - 1 > GRAMMAR_TEXT_MAX)
        rc = err_set(e, ERR_LIMIT, "tools and response_format: a grammar of %zu bytes, at most %d",
                     b->n - 1, GRAMMAR_TEXT_MAX);
    if (rc) {
        b->n = 0; /* a reply is held by a grammar that there is: see reply_open */
        return rc;
    }
    *text = (struct str){b->s, b->n - 1};
    return 0;
}
