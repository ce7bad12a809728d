/* reply_k2.c - replies of K2, and of chat.json: text until the end; and in K2 tool calls,
 *
 *   <|tool_calls_section_begin|> { <|tool_call_begin|> functions.NAME:I
 *       <|tool_call_argument_begin|> JSON <|tool_call_end|> } <|tool_calls_section_end|>
 */
#include "model/reply.h"

static struct str trimmed(struct str s)
{
    while (s.len && memchr(" \t\r\n", s.s[0], 4))
        s = (struct str){s.s + 1, s.len - 1};
    while (s.len && memchr(" \t\r\n", s.s[s.len - 1], 4))
        s.len--;
    return s;
}

/* "functions.NAME:I", of which any but NAME may be missing. */
static void begin_call(struct reply *r)
{
    struct str name = trimmed(buf_all(&r->k2.header)), prefix = STR("functions.");
    size_t digits = 0;
    int32_t number = -1;

    while (digits < name.len && name.s[name.len - 1 - digits] >= '0' &&
           name.s[name.len - 1 - digits] <= '9')
        digits++;
    if (digits && digits < 9 && digits < name.len && name.s[name.len - 1 - digits] == ':') {
        number = 0;
        for (size_t i = name.len - digits; i < name.len; i++)
            number = 10 * number + (name.s[i] - '0');
        name.len -= digits + 1;
    }
    if (name.len >= prefix.len && !memcmp(name.s, prefix.s, prefix.len))
        name = (struct str){name.s + prefix.len, name.len - prefix.len};
    if (name.len)
        reply_call_begin(r, name, number);
    r->k2.state = K2_ARGUMENTS;
}

static void end_call(struct reply *r)
{
    if (r->call_open && !r->calls[r->n_calls - 1].arguments.n)
        reply_call_arguments(r, STR("{}"));
    reply_call_end(r);
}

void k2_reader_mark(struct reply *r, int32_t id)
{
    struct k2_reader *k = &r->k2;

    if (r->format != WASTE_CHAT_K2)
        return;
    if (id == r->ids[MARK_CALLS_BEGIN] || id == r->ids[MARK_CALLS_END]) {
        reply_call_cut(r);
        k->state = id == r->ids[MARK_CALLS_BEGIN] ? K2_SECTION : K2_TEXT;
    } else if (id == r->ids[MARK_CALL_BEGIN]) {
        reply_call_cut(r);
        k->header.n = 0;
        k->state = K2_HEADER;
    } else if (id == r->ids[MARK_CALL_ARGUMENT] && k->state == K2_HEADER) {
        begin_call(r);
    } else if (id == r->ids[MARK_CALL_END] && k->state >= K2_HEADER) {
        end_call(r);
        k->state = K2_SECTION;
    }
}

void k2_reader_text(struct reply *r, struct str text)
{
    switch (r->k2.state) {
    case K2_TEXT:
        reply_text(r, WASTE_RESPONSE, text);
        break;
    case K2_SECTION:
        break;
    case K2_HEADER:
        buf_str(&r->k2.header, text);
        break;
    case K2_ARGUMENTS:
        reply_call_arguments(r, text);
        break;
    }
}

void k2_reader_end(struct reply *r)
{
    reply_call_cut(r);
}
