#include "model/conversation_options.h"

#include <ctype.h>
#include <stdio.h>

static bool same_word(struct str a, const char *word)
{
    size_t n = strlen(word);

    if (a.len != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (tolower((unsigned char)a.s[i]) != word[i])
            return false;
    return true;
}

const char *effort_of(struct str text, bool lenient)
{
    static const struct {
        const char *word, *effort;
        bool lenient;
    } efforts[] = {
        {"low", "low", false},    {"high", "high", false},    {"max", "max", false},
        {"none", "none", false},  {"minimal", "none", false}, {"off", "none", false},
        {"medium", "high", true}, {"xhigh", "max", true},
    };

    for (size_t i = 0; i < sizeof(efforts) / sizeof(efforts[0]); i++)
        if (same_word(text, efforts[i].word) && (lenient || !efforts[i].lenient))
            return efforts[i].effort;
    return NULL;
}

/* ---- thinking: how much, and whether at all ---- */

struct wish {
    const char *effort; /* NULL: not said */
    const char *effort_path;
    int on; /* -1: not said */
    const char *on_path;
};

static int wish_effort(struct wish *w, const struct node *object, const char *key, const char *path,
                       bool lenient, struct err *e)
{
    const struct node *v = node_get(object, key);

    if (!v || w->effort)
        return 0;
    if (v->type != NODE_STRING)
        return err_set(e, ERR_ARG, "%s must be a text, not %s", path, node_type_name(v));
    w->effort = effort_of(v->text, lenient);
    w->effort_path = path;
    if (!w->effort)
        return err_set(e, ERR_ARG, "%s: \"%s\" is none of low, high, max, none%s", path,
                       str_shown(v->text),
                       effort_of(v->text, true) ? " (--lenient-effort of a server takes it)" : "");
    return 0;
}

static int wish_on(struct wish *w, const struct node *object, const char *key, const char *path,
                   struct err *e)
{
    const struct node *v = node_get(object, key);
    const struct node *type = node_get(v, "type");

    if (!v || w->on >= 0)
        return 0;
    w->on_path = path;
    if (v->type == NODE_TRUE || v->type == NODE_FALSE)
        w->on = v->type == NODE_TRUE;
    else if (node_is_text(type, "enabled") || node_is_text(type, "disabled"))
        w->on = node_is_text(type, "enabled");
    else if (v->type == NODE_OBJECT)
        return err_set(e, ERR_ARG, "%s.type must be \"enabled\" or \"disabled\", not %s", path,
                       type && type->type == NODE_STRING ? str_shown(type->text)
                                                         : node_type_name(type));
    else
        return err_set(e, ERR_ARG, "%s must be true, false or an object with a type, not %s", path,
                       node_type_name(v));
    return 0;
}

static int read_wish(struct wish *w, const struct node *request, bool lenient, struct err *e)
{
    const struct node *kwargs = node_get(request, "chat_template_kwargs");

    *w = (struct wish){.on = -1};
    if (wish_effort(w, request, "reasoning_effort", "reasoning_effort", lenient, e) ||
        wish_effort(w, request, "thinking_effort", "thinking_effort", lenient, e) ||
        wish_effort(w, node_get(request, "reasoning"), "effort", "reasoning.effort", lenient, e) ||
        wish_effort(w, kwargs, "thinking_effort", "chat_template_kwargs.thinking_effort", lenient,
                    e) ||
        wish_on(w, request, "thinking", "thinking", e) ||
        wish_on(w, request, "enable_thinking", "enable_thinking", e) ||
        wish_on(w, kwargs, "thinking", "chat_template_kwargs.thinking", e) ||
        wish_on(w, kwargs, "enable_thinking", "chat_template_kwargs.enable_thinking", e))
        return e->code;
    return 0;
}

/* Thinking never goes without its note, unless the request says so: the model has not learnt it. */
static int read_thinking(struct conversation *c, const struct node *request,
                         const struct thinking_rules *rules, struct err *e)
{
    const char *fallback = rules->effort;
    struct wish w;
    bool effort_on;

    c->effort_note = true;
    if (read_wish(&w, request, rules->lenient, e) ||
        node_get_flag(&c->effort_note, request, "effort_note", "", e))
        return e->code;
    effort_on = w.effort && strcmp(w.effort, "none") != 0;
    if (w.effort && w.on >= 0 && effort_on != (w.on == 1))
        return err_set(e, ERR_ARG, "%s asks for %s thinking, %s for \"%s\"", w.on_path,
                       w.on ? "" : "no", w.effort_path, w.effort);
    c->thinking_asked = effort_on || w.on == 1;
    if (w.on == 1 && !strcmp(fallback, "none"))
        fallback = "low";
    c->effort = w.effort ? w.effort : w.on == 0 ? "none" : fallback;
    c->thinking = strcmp(c->effort, "none") != 0;
    if (!c->thinking)
        c->effort = "";
    return 0;
}

/* ---- tool_choice ---- */

static bool declared_in(const struct node *tools, struct str name)
{
    for (const struct node *t = tools ? tools->child : NULL; t; t = t->next) {
        const struct node *f = node_get(t, "function");
        const struct node *n = node_get(f ? f : t, "name");

        if (n && n->type == NODE_STRING && str_is(n->text, name))
            return true;
    }
    return false;
}

static bool declared(const struct conversation *c, struct str name)
{
    bool found = declared_in(c->tools, name);

    for (uint32_t i = 0; !found && i < c->n_messages; i++)
        found = declared_in(c->messages[i].tools, name);
    return found;
}

static int choose_one(struct conversation *c, const struct node *v, struct err *e)
{
    const struct node *function = node_get(v, "function");

    if (node_get_text(&c->choice_name, function ? function : v, "name", "tool_choice.function", e))
        return e->code;
    if (!declared(c, c->choice_name))
        return err_set(e, ERR_ARG, "tool_choice.function.name: \"%s\" is not among the tools",
                       str_shown(c->choice_name));
    c->choice = CHOICE_REQUIRED;
    return 0;
}

static int read_choice(struct conversation *c, const struct node *v, struct err *e)
{
    if (!v || node_is_text(v, "auto"))
        return 0;
    if (v->type == NODE_OBJECT)
        return choose_one(c, v, e);
    if (v->type != NODE_STRING)
        return err_set(e, ERR_ARG, "tool_choice must be a text or an object, not %s",
                       node_type_name(v));
    if (node_is_text(v, "none"))
        c->choice = CHOICE_NONE;
    else if (node_is_text(v, "required"))
        c->choice = CHOICE_REQUIRED;
    else
        return err_set(e, ERR_ARG, "tool_choice: \"%s\" is none of auto, none, required",
                       str_shown(v->text));
    if (c->choice == CHOICE_REQUIRED && !c->tools && !c->tools_later)
        return err_set(e, ERR_ARG, "tool_choice is \"required\", but tools is empty");
    return 0;
}

/* ---- response_format ---- */

static int read_format(struct conversation *c, const struct node *v, struct err *e)
{
    const struct node *type = node_get(v, "type"), *outer = node_get(v, "json_schema");

    if (!v)
        return 0;
    if (v->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "response_format must be an object, not %s", node_type_name(v));
    if (node_is_text(type, "text"))
        return 0;
    if (node_is_text(type, "json_object")) {
        c->format = ANSWER_JSON;
        return 0;
    }
    if (!node_is_text(type, "json_schema"))
        return err_set(
            e, ERR_ARG, "response_format.type: %s is none of text, json_object, json_schema",
            type && type->type == NODE_STRING ? str_shown(type->text) : node_type_name(type));
    c->format = ANSWER_SCHEMA;
    c->schema = node_get(outer, "schema");
    if (!c->schema)
        c->schema = node_get(outer, "json_schema");
    if (!c->schema)
        c->schema = outer;
    if (!c->schema || c->schema->type != NODE_OBJECT)
        return err_set(e, ERR_ARG, "response_format.json_schema must be an object, not %s",
                       node_type_name(c->schema));
    return 0;
}

int conversation_options(struct conversation *c, const struct node *request,
                         const struct thinking_rules *rules, struct err *e)
{
    c->parallel_calls = true;
    return read_thinking(c, request, rules, e) ||
                   node_get_flag(&c->parallel_calls, request, "parallel_tool_calls", "", e) ||
                   read_choice(c, node_get(request, "tool_choice"), e) ||
                   read_format(c, node_get(request, "response_format"), e)
               ? e->code
               : 0;
}
