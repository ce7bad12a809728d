/* reply_xtml.c - replies in XTML. The prompt has left <message> and <think> or <response> open.
 *
 *   think                       reasoning
 *   tools, call                 nothing is said here
 *   argument (in a call)        a member of the arguments
 *   json (in a call)            the arguments as they are
 *   anything else, or nothing   the answer
 *
 * A close ends everything that was opened since; one of what is not open changes nothing.
 */
#include "model/reply.h"

#include "model/json_write.h"

#include <ctype.h>
#include <strings.h>

static bool is(struct str a, const char *word)
{
    return str_is(a, str_of(word));
}

/* ---- the stack of open elements ---- */

static struct str element(const struct xtml_reader *x, unsigned nth)
{
    size_t from = nth ? x->end[nth - 1] : 0;

    return (struct str){x->names.s + from, x->end[nth] - from};
}

static void push(struct xtml_reader *x, struct str name)
{
    if (x->depth == ELEMENTS_MAX)
        return;
    buf_str(&x->names, name);
    x->end[x->depth++] = x->names.n;
}

/* ---- arguments ---- */

/* Each key follows its length: it may hold any byte. */
static bool key_used(const struct xtml_reader *x, struct str key)
{
    size_t len;

    for (size_t at = 0; at < x->keys.n; at += len) {
        memcpy(&len, x->keys.s + at, sizeof(len));
        at += sizeof(len);
        if (str_is((struct str){x->keys.s + at, len}, key))
            return true;
    }
    return false;
}

/* What the text of a value means: its type says how to read it, and what cannot be is a string. */
static void write_value(struct reply *r, struct buf *b, struct str type, struct str text)
{
    struct tree tree = {0};
    struct err why = {0};

    if (is(type, "null")) {
        buf_str(b, STR("null"));
    } else if (is(type, "boolean") && text.len == 4 && !strncasecmp(text.s, "true", 4)) {
        buf_str(b, STR("true"));
    } else if (is(type, "boolean") && text.len == 5 && !strncasecmp(text.s, "false", 5)) {
        buf_str(b, STR("false"));
    } else if (!is(type, "boolean") && !tree_parse(&tree, text.s, text.len, &why)) {
        json_write(b, tree.root, JSON_SPACED);
    } else {
        r->failed |= why.code == ERR_NOMEM;
        json_write_string(b, text);
    }
    tree_release(&tree);
}

static void put_key(struct reply *r)
{
    struct xtml_reader *x = &r->xtml;

    x->scratch.n = 0;
    buf_str(&x->scratch, x->has_arguments ? STR(", ") : STR("{"));
    json_write_string(&x->scratch, buf_all(&x->key));
    buf_str(&x->scratch, STR(": "));
    x->has_arguments = true;
}

static void put_scratch(struct reply *r)
{
    reply_call_arguments(r, buf_all(&r->xtml.scratch));
    r->xtml.scratch.n = 0;
}

static void argument_end(struct reply *r)
{
    struct xtml_reader *x = &r->xtml;

    if (x->argument == ARGUMENT_STRING) {
        reply_call_arguments(r, STR("\""));
    } else if (x->argument == ARGUMENT_VALUE) {
        put_key(r);
        write_value(r, &x->scratch, buf_all(&x->type), buf_all(&x->value));
        put_scratch(r);
    }
    x->argument = ARGUMENT_NONE;
}

/* A string can be passed on as it comes; the others are known when they are complete. */
static void argument_begin(struct reply *r, bool has_key)
{
    struct xtml_reader *x = &r->xtml;

    x->argument = ARGUMENT_DROPPED;
    if (!has_key || !r->call_open || x->has_raw || key_used(x, buf_all(&x->key)))
        return;
    buf_put(&x->keys, (const char *)&x->key.n, sizeof(x->key.n));
    buf_str(&x->keys, buf_all(&x->key));
    x->value.n = 0;
    x->argument = ARGUMENT_VALUE;
    if (!is(buf_all(&x->type), "string"))
        return;
    put_key(r);
    buf_str(&x->scratch, STR("\""));
    put_scratch(r);
    x->argument = ARGUMENT_STRING;
}

static void argument_text(struct reply *r, struct str text)
{
    struct xtml_reader *x = &r->xtml;

    if (x->argument == ARGUMENT_VALUE)
        buf_str(&x->value, text);
    if (x->argument != ARGUMENT_STRING)
        return;
    x->scratch.n = 0;
    json_write_characters(&x->scratch, text);
    put_scratch(r);
}

/* ---- calls ---- */

static void call_leave(struct xtml_reader *x)
{
    x->argument = ARGUMENT_NONE;
    x->in_raw = x->has_raw = x->has_arguments = false;
    x->keys.n = 0;
}

static void call_end(struct reply *r)
{
    struct xtml_reader *x = &r->xtml;

    argument_end(r);
    if (x->has_arguments)
        reply_call_arguments(r, STR("}"));
    else if (r->call_open && !r->calls[r->n_calls - 1].arguments.n)
        reply_call_arguments(r, STR("{}"));
    reply_call_end(r);
    call_leave(x);
}

static void call_cut(struct reply *r)
{
    reply_call_cut(r);
    call_leave(&r->xtml);
}

/* ---- headers ---- */

/* The value of an attribute in key="value" pairs; quotes and the last one's end may be missing. */
static bool attribute(struct buf *out, struct str s, const char *key)
{
    size_t i = 0;

    out->n = 0;
    while (i < s.len) {
        size_t from, end;
        bool quoted, wanted;

        while (i < s.len && s.s[i] == ' ')
            i++;
        for (from = i; i < s.len && s.s[i] != '=' && s.s[i] != ' '; i++)
            ;
        wanted = is((struct str){s.s + from, i - from}, key);
        if (i == s.len || s.s[i] == ' ')
            continue;
        quoted = ++i < s.len && s.s[i] == '"';
        from = i += quoted;
        while (i < s.len && s.s[i] != (quoted ? '"' : ' '))
            i++;
        end = i;
        i += quoted;
        if (!wanted)
            continue;
        while (from < end) {
            size_t n = end - from;

            if (n >= 6 && !memcmp(s.s + from, "&quot;", 6)) {
                buf_put(out, "\"", 1);
                from += 6;
            } else if (n >= 5 && !memcmp(s.s + from, "&amp;", 5)) {
                buf_put(out, "&", 1);
                from += 5;
            } else {
                buf_put(out, s.s + from++, 1);
            }
        }
        return true;
    }
    return false;
}

static int32_t number_of(struct str s)
{
    int32_t v = 0;

    for (size_t i = 0; i < s.len; i++)
        v = s.len < 10 && isdigit((unsigned char)s.s[i]) && v >= 0 ? 10 * v + (s.s[i] - '0') : -1;
    return s.len ? v : -1;
}

static void open_call(struct reply *r, struct str attributes)
{
    struct xtml_reader *x = &r->xtml;
    int32_t number;

    attribute(&x->scratch, attributes, "index");
    number = number_of(buf_all(&x->scratch));
    if (attribute(&x->scratch, attributes, "tool") && x->scratch.n)
        reply_call_begin(r, buf_all(&x->scratch), number);
}

static void open_element(struct reply *r, struct str name, struct str attributes)
{
    static const char *const outer[] = {"message", "think", "response", "tools", "call"};
    struct xtml_reader *x = &r->xtml;

    for (size_t i = 0; i < sizeof(outer) / sizeof(outer[0]); i++)
        if (is(name, outer[i]))
            call_cut(r); /* one that was not closed before this */
    if (is(name, "call")) {
        open_call(r, attributes);
    } else if (is(name, "argument")) {
        argument_end(r); /* one that was not closed before this */
        attribute(&x->type, attributes, "type");
        argument_begin(r, attribute(&x->key, attributes, "key"));
    } else if (is(name, "json")) {
        argument_end(r);
        x->in_raw = true;
        x->has_raw |= !x->has_arguments;
    }
    push(x, name);
}

static void close_element(struct reply *r, struct str name)
{
    struct xtml_reader *x = &r->xtml;
    unsigned to = x->depth;

    while (to && name.len && !str_is(element(x, to - 1), name))
        to--;
    while (to && x->depth >= to) {
        struct str top = element(x, x->depth - 1);

        if (is(top, "argument"))
            argument_end(r);
        else if (is(top, "json"))
            x->in_raw = false;
        else if (is(top, "call") && x->depth == to)
            call_end(r);
        else if (is(top, "call"))
            call_cut(r);
        x->depth--;
        x->names.n = x->depth ? x->end[x->depth - 1] : 0;
    }
}

static void apply_header(struct reply *r)
{
    struct xtml_reader *x = &r->xtml;
    struct str header = buf_all(&x->header), name = header;
    const char *space = header.len ? memchr(header.s, ' ', header.len) : NULL;
    bool opens = x->in_header == HEADER_OPEN;

    x->in_header = HEADER_NONE;
    if (space)
        name.len = (size_t)(space - header.s);
    header = (struct str){header.s + name.len, header.len - name.len};
    if (opens)
        open_element(r, name, header);
    else
        close_element(r, name);
}

/* A header that does not end was text after all. */
static void give_back_header(struct reply *r)
{
    struct xtml_reader *x = &r->xtml;
    enum marker m = x->in_header == HEADER_OPEN ? MARK_OPEN : MARK_CLOSE;

    if (x->in_header == HEADER_NONE)
        return;
    x->in_header = HEADER_NONE;
    xtml_reader_text(r, chat_marker_text(m));
    xtml_reader_text(r, buf_all(&x->header));
}

/* ---- what comes ---- */

int xtml_reader_init(struct reply *r, uint32_t begins)
{
    push(&r->xtml, STR("message"));
    push(&r->xtml, begins == WASTE_REASONING ? STR("think") : STR("response"));
    return r->xtml.names.failed ? -1 : 0;
}

void xtml_reader_mark(struct reply *r, int32_t id)
{
    struct xtml_reader *x = &r->xtml;

    if (id == r->ids[MARK_SEP]) {
        if (x->in_header != HEADER_NONE)
            apply_header(r);
    } else if (id == r->ids[MARK_OPEN] || id == r->ids[MARK_CLOSE]) {
        give_back_header(r);
        x->header.n = 0;
        x->in_header = id == r->ids[MARK_OPEN] ? HEADER_OPEN : HEADER_CLOSE;
    }
}

void xtml_reader_text(struct reply *r, struct str text)
{
    static const char *const silent[] = {"tools", "call", "argument", "json"};
    struct xtml_reader *x = &r->xtml;
    struct str top = x->depth ? element(x, x->depth - 1) : STR("");

    if (x->in_header != HEADER_NONE) {
        buf_str(&x->header, text);
        return;
    }
    if (x->in_raw) {
        if (x->has_raw)
            reply_call_arguments(r, text);
        return;
    }
    if (x->argument != ARGUMENT_NONE) {
        argument_text(r, text);
        return;
    }
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++)
        if (is(top, silent[i]))
            return;
    reply_text(r, is(top, "think") ? WASTE_REASONING : WASTE_RESPONSE, text);
}

void xtml_reader_end(struct reply *r)
{
    give_back_header(r);
    call_cut(r);
}

void xtml_reader_release(struct xtml_reader *x)
{
    struct buf *all[] = {&x->header, &x->value, &x->scratch, &x->names,
                         &x->key,    &x->type,  &x->keys};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        buf_release(all[i]);
}
