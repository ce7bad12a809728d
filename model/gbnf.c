#include "model/gbnf.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/list.h"
#include "model/intern.h"
#include "model/json_schema.h"
#include "model/utf8.h"

enum { GROUPS_MAX = 64, NAME_MAX_BYTES = 128, RANGES_MAX = 1024 };

struct parser {
    struct rules *r;
    const char *at, *end, *begin;
    const struct tokenizer *tokenizer;
    struct intern names;
    uint32_t *rule; /* [names.n] */
    size_t *first;  /* the byte where it is first named */
    size_t cap_rule, cap_first;
    unsigned groups;
    uint32_t start; /* in names, of %start; INTERN_NONE: root */
    struct err *e;
    bool failed;
};

static unsigned line_of(const struct parser *p, const char *at)
{
    unsigned n = 1;

    for (const char *c = p->begin; c < at; c++)
        n += *c == '\n';
    return n;
}

static uint32_t refuse_as(struct parser *p, int code, const char *what)
{
    if (!p->failed)
        err_set(p->e, code, "grammar line %u: %s", line_of(p, p->at), what);
    p->failed = true;
    return 0;
}

static uint32_t refuse(struct parser *p, const char *what)
{
    return refuse_as(p, ERR_FORMAT, what);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static void skip_blank(struct parser *p)
{
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#')
            while (p->at < p->end && *p->at != '\n')
                p->at++;
        if (p->at == p->end || !strchr(" \t\r\n", *p->at) || !*p->at)
            return;
    }
}

static bool take(struct parser *p, const char *text)
{
    size_t n = strlen(text);

    if ((size_t)(p->end - p->at) < n || memcmp(p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static size_t name_length(const struct parser *p)
{
    size_t n = 0;

    while (p->at + n < p->end && is_name(p->at[n]))
        n++;
    return n;
}

/* A name and ::= behind it: the next rule begins here. */
static bool at_rule(const struct parser *p)
{
    struct parser ahead = *p;

    ahead.at += name_length(p);
    if (ahead.at == p->at)
        return false;
    skip_blank(&ahead);
    return take(&ahead, "::=");
}

static bool at_start(const struct parser *p)
{
    struct parser ahead = *p;

    return take(&ahead, "%start");
}

/* The number of a name, new or not. */
static uint32_t name_take(struct parser *p, size_t n)
{
    uint32_t word[NAME_MAX_BYTES], i;
    bool fresh;

    if (n > NAME_MAX_BYTES)
        return refuse(p, "a name of more than 128 characters");
    for (size_t k = 0; k < n; k++)
        word[k] = (uint8_t)p->at[k];
    i = intern_put(&p->names, word, (uint32_t)n, &fresh);
    if (i == INTERN_NONE || !list_room(&p->rule, &p->cap_rule, (size_t)i + 1, sizeof(*p->rule)) ||
        !list_room(&p->first, &p->cap_first, (size_t)i + 1, sizeof(*p->first)))
        return refuse_as(p, ERR_NOMEM, "no memory for its names");
    if (fresh) {
        p->rule[i] = rule_new(p->r, p->at, n);
        p->first[i] = (size_t)(p->at - p->begin);
    }
    p->at += n;
    return i;
}

static bool hex_take(struct parser *p, unsigned digits, uint32_t *out)
{
    *out = 0;
    for (; digits; digits--, p->at++) {
        const char *hex = "0123456789abcdef", *d;

        d = p->at < p->end && *p->at ? strchr(hex, *p->at | (*p->at >= 'A' ? 0x20 : 0)) : NULL;
        if (!d)
            return false;
        *out = *out * 16 + (uint32_t)(d - hex);
    }
    return true;
}

/* One character of a literal or class; *byte: it is a byte (\xHH), not a character. */
static bool char_take(struct parser *p, uint32_t *out, bool *byte)
{
    static const char names[] = "nrt\\\"[]-^", values[] = "\n\r\t\\\"[]-^";
    unsigned char c = (unsigned char)*p->at;
    const char *x;
    size_t n;

    *byte = false;
    if (c == '\\') {
        if (++p->at == p->end)
            return false;
        c = (unsigned char)*p->at++;
        *byte = c == 'x';
        if (c == 'x' || c == 'u' || c == 'U')
            return hex_take(p,
                            c == 'x'   ? 2
                            : c == 'u' ? 4
                                       : 8,
                            out) &&
                   *out <= 0x10ffff && (*out < 0xd800 || *out > 0xdfff);
        x = c ? strchr(names, c) : NULL;
        *out = x ? (uint32_t)(unsigned char)values[x - names] : 0;
        return x;
    }
    n = utf8_char(p->at, (size_t)(p->end - p->at), out);
    p->at += n;
    return n;
}

static uint32_t literal(struct parser *p)
{
    uint32_t x;
    const char *line = memchr(p->at, '\n', (size_t)(p->end - p->at));
    char *bytes = malloc((size_t)((line ? line : p->end) - p->at) + 4);
    size_t len = 0;

    if (!bytes)
        return refuse_as(p, ERR_NOMEM, "no memory for a literal");
    while (p->at < p->end && *p->at != '"') {
        uint32_t c;
        bool byte;

        if (*p->at == '\n' || !char_take(p, &c, &byte)) {
            refuse(p, "a literal with a line end, or an escape or character that is none");
            break;
        }
        if (byte)
            bytes[len++] = (char)c;
        else
            len += utf8_put(bytes + len, c);
    }
    if (!p->failed && !take(p, "\""))
        refuse(p, "a literal that does not end");
    x = expr_bytes(p->r, bytes, len);
    free(bytes);

    return x;
}

static uint32_t class(struct parser *p)
{
    struct char_range range[RANGES_MAX + 1]; /* one more: negated */
    bool negated = take(p, "^");
    unsigned n = 0;

    while (p->at < p->end && *p->at != ']') {
        struct char_range x;
        bool byte, byte2 = false;

        if (n == RANGES_MAX)
            return refuse(p, "a class of more than 1024 ranges");
        if (*p->at == '\n' || !char_take(p, &x.lo, &byte))
            return refuse(p, "a class with a line end, or an escape or character that is none");
        x.hi = x.lo;
        if (p->at + 1 < p->end && *p->at == '-' && p->at[1] != ']') {
            p->at++;
            if (!char_take(p, &x.hi, &byte2) || x.hi < x.lo)
                return refuse(p, "a range of a class that ends before it begins");
        }
        if ((byte && x.lo > 0x7f) || (byte2 && x.hi > 0x7f))
            return refuse(p, "\\x in a class is for ASCII; \\u and \\U name other characters");
        range[n++] = x;
    }
    if (!take(p, "]"))
        return refuse(p, "a class that does not end");
    if (negated)
        n = char_ranges_negate(range, n, 0x10ffff);
    return expr_chars(p->r, range, n);
}

static uint32_t control(struct parser *p, enum expr_kind kind)
{
    const char *close = memchr(p->at, '>', (size_t)(p->end - p->at));
    char name[96];
    int32_t id = -1;
    size_t len;

    if (!close)
        return refuse(p, "a control token that does not end: <|name|>");
    len = (size_t)(close + 1 - p->at);
    if (p->tokenizer)
        id = tokenizer_special_id(p->tokenizer, p->at, len);
    if (id < 0 && !p->failed) {
        err_set(p->e, ERR_FORMAT, "grammar line %u: %s is no control token of this model",
                line_of(p, p->at), json_printable(name, sizeof(name), p->at, len));
        p->failed = true;
    }
    p->at += len;
    return expr_token(p->r, kind, id);
}

static int32_t special(const struct parser *p, const char *name)
{
    return p->tokenizer ? tokenizer_special_id(p->tokenizer, name, strlen(name)) : -1;
}

/* What a schema allows, as JSON or as arguments in XTML. */
static int schema_read(struct parser *p, bool arguments, const char *text, size_t len,
                       struct err *e)
{
    struct argument_marks marks = {.open = special(p, "<|open|>"),
                                   .close = special(p, "<|close|>"),
                                   .sep = special(p, "<|sep|>")};

    if (!arguments)
        return json_schema_read(p->r, text, len, e);
    if (marks.open < 0 || marks.close < 0 || marks.sep < 0)
        return err_set(e, ERR_FORMAT, "%s is no control token of this model",
                       marks.open < 0    ? "<|open|>"
                       : marks.close < 0 ? "<|close|>"
                                         : "<|sep|>");
    return json_schema_read_arguments(p->r, text, len, &marks, e);
}

/* %json{...}, %arguments{...}: where the object ends, then what it allows. */
static uint32_t schema(struct parser *p, bool arguments)
{
    const char *word = arguments ? "%arguments" : "%json";
    const char *begin = p->at;
    unsigned depth = 0;
    bool string = false;
    struct err e = {0};

    for (; p->at < p->end; p->at++) {
        if (string) {
            if (*p->at == '\\' && p->at + 1 < p->end)
                p->at++;
            else if (*p->at == '"')
                string = false;
        } else if (*p->at == '"') {
            string = true;
        } else if (*p->at == '{') {
            depth++;
        } else if (*p->at == '}' && --depth == 0) {
            break;
        }
        if (!depth)
            break;
    }
    if (p->at == p->end || *p->at != '}')
        return refuse(p, arguments ? "%arguments needs a schema in braces behind it"
                                   : "%json needs a schema in braces behind it");
    p->at++;
    if (!p->failed && schema_read(p, arguments, begin, (size_t)(p->at - begin), &e)) {
        *p->e = e;
        err_wrap(p->e, "grammar line %u: %s", line_of(p, begin), word);
        p->failed = true;
        return 0;
    }
    return expr_rule(p->r, p->r->root);
}

static uint32_t alternatives(struct parser *p);

static uint32_t atom(struct parser *p)
{
    uint32_t x;

    if (take(p, "\""))
        return literal(p);
    if (take(p, "["))
        return class(p);
    if (take(p, "%json"))
        return schema(p, false);
    if (take(p, "%arguments"))
        return schema(p, true);
    if (take(p, "."))
        return expr_chars(p->r, &(struct char_range){0, 0x10ffff}, 1);
    if (take(p, "!"))
        return control(p, EXPR_OTHER);
    if (p->at < p->end && *p->at == '<')
        return control(p, EXPR_TOKEN);
    if (take(p, "(")) {
        if (++p->groups > GROUPS_MAX)
            return refuse(p, "groups nested deeper than 64");
        x = alternatives(p);
        p->groups--;
        skip_blank(p);
        return take(p, ")") ? x : refuse(p, "a group that does not end");
    }
    if (!name_length(p))
        return refuse(p, "expected a literal, a class, a group, <|name|>, %json or a rule's name");
    x = name_take(p, name_length(p));
    return p->failed ? 0 : expr_rule(p->r, p->rule[x]);
}

static bool number(struct parser *p, uint32_t *out)
{
    uint64_t n = 0;
    const char *begin = p->at;

    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        n = n < REPEAT_MAX + 1 ? n * 10 + (uint64_t)(*p->at - '0') : n;
    if (n > REPEAT_MAX && !p->failed) {
        err_set(p->e, ERR_LIMIT, "grammar line %u: repeated %llu times or more, at most %d",
                line_of(p, p->at), (unsigned long long)n, REPEAT_MAX);
        p->failed = true;
    }
    *out = (uint32_t)n;
    return p->at > begin;
}

static uint32_t repeated(struct parser *p, uint32_t x)
{
    for (; p->at < p->end && !p->failed;) {
        uint32_t min = 0, max = REPEAT_ANY;

        if (take(p, "*")) {
            x = expr_repeat(p->r, x, 0, REPEAT_ANY);
        } else if (take(p, "+")) {
            x = expr_repeat(p->r, x, 1, REPEAT_ANY);
        } else if (take(p, "?")) {
            x = expr_repeat(p->r, x, 0, 1);
        } else if (take(p, "{")) {
            bool any = number(p, &min);

            if (!take(p, ","))
                max = min;
            else if (!number(p, &max) && !any)
                return refuse(p, "{m}, {m,}, {m,n} or {,n}");
            else if (p->at[-1] == ',')
                max = REPEAT_ANY;
            if (!take(p, "}") || min > max)
                return refuse(p, "{m}, {m,}, {m,n} or {,n} with m <= n");
            x = expr_repeat(p->r, x, min, max);
        } else {
            break;
        }
    }
    return x;
}

struct list { /* of expressions, growing */
    uint32_t *x;
    size_t n, cap;
};

static void list_add(struct parser *p, struct list *l, uint32_t x)
{
    if (list_room(&l->x, &l->cap, l->n + 1, sizeof(*l->x)))
        l->x[l->n++] = x;
    else
        refuse_as(p, ERR_NOMEM, "no memory for its parts");
}

static uint32_t sequence(struct parser *p)
{
    struct list l = {0};
    uint32_t x;

    for (;;) {
        skip_blank(p);
        if (p->failed || p->r->failed.code || p->at == p->end || *p->at == '|' || *p->at == ')' ||
            at_rule(p) || at_start(p))
            break;
        list_add(p, &l, repeated(p, atom(p)));
    }
    x = expr_seq(p->r, l.x, l.n);
    free(l.x);
    return x;
}

static uint32_t alternatives(struct parser *p)
{
    struct list l = {0};
    uint32_t x;

    do {
        list_add(p, &l, sequence(p));
        skip_blank(p);
    } while (!p->failed && take(p, "|"));
    x = expr_alt(p->r, l.x, l.n);
    free(l.x);
    return x;
}

/* %start NAME: this rule is the answer, and root is a rule like others. */
static void start(struct parser *p)
{
    if (p->start != INTERN_NONE) {
        refuse(p, "%start is there already");
        return;
    }
    skip_blank(p);
    if (name_length(p))
        p->start = name_take(p, name_length(p));
    else
        refuse(p, "%start needs a rule's name");
}

static void rule(struct parser *p)
{
    uint32_t name, x;

    if (take(p, "%start")) {
        start(p);
        return;
    }
    if (!at_rule(p)) {
        refuse(p, "expected a rule: name ::= ...");
        return;
    }
    name = name_take(p, name_length(p));
    skip_blank(p);
    take(p, "::=");
    if (p->failed)
        return;
    if (p->r->rule[p->rule[name]].expr != EXPR_UNSET) {
        refuse(p, "this rule is there already");
        return;
    }
    x = alternatives(p);
    if (!p->failed && !p->r->failed.code)
        p->r->rule[p->rule[name]].expr = x;
}

static void names_check(struct parser *p)
{
    static const uint32_t root[] = {'r', 'o', 'o', 't'};
    uint32_t at = p->start != INTERN_NONE ? p->start : intern_find(&p->names, root, 4);

    if (at == INTERN_NONE) {
        err_set(p->e, ERR_FORMAT, "grammar: no rule is called root");
        p->failed = true;
        return;
    }
    p->r->root = p->rule[at];
    for (uint32_t i = 0; i < p->names.n && !p->failed; i++)
        if (p->r->rule[p->rule[i]].expr == EXPR_UNSET) {
            const struct expr *label = &p->r->expr[p->r->rule[p->rule[i]].label];

            err_set(p->e, ERR_FORMAT, "grammar line %u: there is no rule called %.*s",
                    line_of(p, p->begin + p->first[i]), (int)label->n,
                    (const char *)p->r->byte + label->a);
            p->failed = true;
        }
}

int gbnf_read(struct rules *r, const char *text, size_t len, const struct tokenizer *tokenizer,
              struct err *e)
{
    struct parser p = {
        .r = r,
        .at = text,
        .begin = text,
        .end = text + len,
        .tokenizer = tokenizer,
        .start = INTERN_NONE,
        .e = e,
    };

    if (!intern_open(&p.names))
        return err_set(e, ERR_NOMEM, "grammar");
    for (skip_blank(&p); p.at < p.end && !p.failed && !r->failed.code; skip_blank(&p))
        rule(&p);
    if (!p.failed && !r->failed.code)
        names_check(&p);
    intern_close(&p.names);
    free(p.rule);
    free(p.first);
    if (r->failed.code) {
        *e = r->failed;
        return e->code;
    }
    return p.failed ? e->code : 0;
}
