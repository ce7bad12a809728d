/* api_chat.c - conversations: a part of waste.h (see context.h). A waste_chat is a struct chat, a
 * waste_prompt a struct prompt, a waste_reply a struct reply; hosts see only the names. */
#include <string.h>

#include "model/chat_grammar.h"
#include "model/context.h"
#include "model/reply.h"

/* A host's struct, which may be older or newer than ours: as much of `from` as it has room for. */
static bool struct_out(void *out, const void *from, uint32_t ours)
{
    uint32_t theirs;

    if (!out)
        return false;
    memcpy(&theirs, out, sizeof(theirs));
    if (theirs < sizeof(theirs))
        return false;
    memcpy((char *)out + sizeof(theirs), (const char *)from + sizeof(theirs),
           (theirs < ours ? theirs : ours) - sizeof(theirs));
    return true;
}

void waste_chat_opts_init(waste_chat_opts *o)
{
    if (o)
        *o = (waste_chat_opts){.size = sizeof(*o)};
}

static waste_chat_opts opts_of(const waste_chat_opts *given)
{
    waste_chat_opts o = {0};

    if (given)
        memcpy(&o, given, given->size < sizeof(o) ? given->size : sizeof(o));
    return o;
}

static int rules_of(struct thinking_rules *rules, const waste_chat_opts *given, struct err *e)
{
    waste_chat_opts o = opts_of(given);

    rules->lenient = o.lenient_effort != 0;
    rules->effort = "low";
    if (o.effort)
        rules->effort = effort_of(str_of(o.effort), rules->lenient);
    if (!rules->effort)
        return err_set(e, ERR_ARG,
                       "waste_chat_opts.effort: \"%.32s\" is none of low, high, max, none",
                       o.effort);
    return 0;
}

waste_status waste_chat_open(const waste_tokenizer *t, const char *path,
                             const waste_chat_opts *opts, waste_chat **out)
{
    struct thinking_rules rules;
    struct chat *c;
    struct err e = {0};

    if (!t || !out)
        return ctx_refuse(NULL, "waste_chat_open: tokenizer and out are needed");
    *out = NULL;
    if (rules_of(&rules, opts, &e) ||
        chat_open(&c, (const struct tokenizer *)(const void *)t, path, &rules, &e))
        return thread_fail(&e);
    c->constrains = opts_of(opts).constrains != 0;
    *out = (waste_chat *)(void *)c;
    return WASTE_OK;
}

void waste_chat_close(waste_chat *c)
{
    chat_close((struct chat *)(void *)c);
}

waste_status waste_chat_get_info(const waste_chat *chat, waste_chat_info *out)
{
    static const char *const names[] = {"", "XTML", "chat.json", "K2"};
    const struct chat *c = (const struct chat *)(const void *)chat;
    waste_chat_info info;

    if (!c)
        return ctx_refuse(NULL, "waste_chat_get_info: a chat is needed");
    info = (waste_chat_info){
        .format = c->format,
        .has_thinking = c->format == WASTE_CHAT_XTML,
        .has_tools = c->has_tools,
        .has_images = c->has_images,
        .has_answer_formats = c->format == WASTE_CHAT_XTML || c->constrains,
        .end_id = c->end_id,
        .name = names[c->format],
    };
    if (!struct_out(out, &info, sizeof(info)))
        return ctx_refuse(NULL, "waste_chat_get_info: out->size is not set");
    return WASTE_OK;
}

waste_status waste_chat_render(const waste_chat *c, const char *json, size_t len,
                               waste_prompt **out)
{
    struct prompt *p;
    struct err e = {0};

    if (!c || (!json && len) || !out)
        return ctx_refuse(NULL, "waste_chat_render: chat, json and out are needed");
    *out = NULL;
    if (chat_render((const struct chat *)(const void *)c, &p, json ? json : "", len, &e))
        return thread_fail(&e);
    *out = (waste_prompt *)(void *)p;
    return WASTE_OK;
}

void waste_prompt_close(waste_prompt *p)
{
    prompt_close((struct prompt *)(void *)p);
}

waste_status waste_prompt_get_info(const waste_prompt *prompt, waste_prompt_info *out)
{
    const struct prompt *p = (const struct prompt *)(const void *)prompt;
    waste_prompt_info info;
    bool thinks;

    if (!p)
        return ctx_refuse(NULL, "waste_prompt_get_info: a prompt is needed");
    thinks = p->begins == WASTE_REASONING;
    info = (waste_prompt_info){
        .begins = p->begins,
        .ids = p->ids,
        .n_ids = p->n_ids,
        .segments = p->segments,
        .n_segments = p->n_segments,
        .ends = p->ends,
        .n_ends = p->n_ends,
        .images = p->images,
        .n_images = p->n_images,
        .effort = p->effort,
        .note = p->note,
        .may_call = p->may_call,
        .must_call = p->must_call,
        .must_call_name = {buf_all(&p->must_call_name).s, p->must_call_name.n},
        .close_ids = thinks ? p->chat->think_close : NULL,
        .n_close = thinks ? p->chat->n_think_close : 0,
    };
    if (!struct_out(out, &info, sizeof(info)))
        return ctx_refuse(NULL, "waste_prompt_get_info: out->size is not set");
    return WASTE_OK;
}

void waste_constraint_init(waste_constraint *c)
{
    if (c)
        *c = (waste_constraint){.size = sizeof(*c)};
}

static struct str text_of(const char *text)
{
    return text ? str_of(text) : (struct str){0};
}

waste_status waste_prompt_grammar(waste_prompt *p, const waste_constraint *given, const char **text,
                                  size_t *len)
{
    waste_constraint c = {0};
    struct chat_constraint k;
    struct str grammar;
    struct err e = {0};

    if (!p || !text || !len)
        return ctx_refuse(NULL, "waste_prompt_grammar: prompt, text and len are needed");
    if (given)
        memcpy(&c, given, given->size < sizeof(c) ? given->size : sizeof(c));
    k = (struct chat_constraint){
        .lenient = c.lenient != 0, .schema = text_of(c.schema), .grammar = text_of(c.grammar)};
    if (chat_grammar((struct prompt *)(void *)p, &k, &grammar, &e))
        return thread_fail(&e);
    *text = grammar.s;
    *len = grammar.len;
    return WASTE_OK;
}

waste_status waste_reply_open(const waste_prompt *p, waste_reply **out)
{
    struct reply *r;
    struct err e = {0};

    if (!p || !out)
        return ctx_refuse(NULL, "waste_reply_open: prompt and out are needed");
    *out = NULL;
    if (reply_open(&r, (const struct prompt *)(const void *)p, &e))
        return thread_fail(&e);
    *out = (waste_reply *)(void *)r;
    return WASTE_OK;
}

void waste_reply_close(waste_reply *r)
{
    reply_close((struct reply *)(void *)r);
}

waste_status waste_reply_feed(waste_reply *r, int32_t id, const waste_event **events,
                              size_t *n_events)
{
    struct err e = {0};

    if (!r || !events || !n_events)
        return ctx_refuse(NULL, "waste_reply_feed: reply, events and n_events are needed");
    if (reply_feed((struct reply *)(void *)r, id, events, n_events, &e))
        return thread_fail(&e);
    return WASTE_OK;
}

waste_status waste_reply_end(waste_reply *r, const waste_event **events, size_t *n_events)
{
    struct err e = {0};

    if (!r || !events || !n_events)
        return ctx_refuse(NULL, "waste_reply_end: reply, events and n_events are needed");
    if (reply_end((struct reply *)(void *)r, events, n_events, &e))
        return thread_fail(&e);
    return WASTE_OK;
}

waste_status waste_reply_message(waste_reply *r, const char **json, size_t *len)
{
    struct str text;
    struct err e = {0};

    if (!r || !json || !len)
        return ctx_refuse(NULL, "waste_reply_message: reply, json and len are needed");
    if (reply_message((struct reply *)(void *)r, &text, &e))
        return thread_fail(&e);
    *json = text.s;
    *len = text.len;
    return WASTE_OK;
}
