#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/json_text.h"
#include "model/rules.h"
#include "model/utf8.h"

enum { GROUPS_MAX = 40, RANGES_MAX = 512, STATES_MAX = 1 << 14 };

const char json_text_formats[] = "date, time, date-time, duration, uuid, email, ipv4";

#define DATE                                                                                       \
    "[0-9]{4}-((01|03|05|07|08|10|12)-(0[1-9]|[12][0-9]|3[01])|(04|06|09|11)-(0[1-9]|[12][0-9]|"   \
    "30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"

const char *json_text_format(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } format[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration",
         "^P([0-9]{1,6}W|([0-9]{1,6}Y)?([0-9]{1,6}M)?[0-9]{1,6}D(T[0-9]{1,6}H([0-9]{1,6}M([0-9]{1,"
         "6}S)?)?)?|T[0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?)$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"email",
         "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16})?@[A-Za-z0-9]{1,32}(-[A-Za-z0-9]{1,16})?"
         "(\\.[A-Za-z0-9]{1,32})?\\.[A-Za-z]{2,12}$"},
        {"ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|"
                 "1[0-9]{2}|[1-9]?[0-9])$"},
    };

    for (size_t i = 0; name && i < sizeof(format) / sizeof(*format); i++)
        if (!strcmp(format[i].name, name))
            return format[i].pattern;
    return NULL;
}

struct regex {
    struct rules r;
    const char *at, *end;
    unsigned groups;
    bool raw;
    struct err *e;
    bool failed;
};

static uint32_t refuse(struct regex *p, int code, const char *what)
{
    if (!p->failed)
        err_set(p->e, code, "%s", what);
    p->failed = true;
    return 0;
}

static uint32_t raw_chars(struct regex *p, const struct char_range *range, unsigned n)
{
    struct char_range some[RANGES_MAX + 8];

    for (unsigned i = 0; i < n; i++)
        some[i] = (struct char_range){range[i].lo ? range[i].lo : 1, range[i].hi};
    for (unsigned i = 0; i < n; i++) /* NUL alone */
        if (some[i].hi < some[i].lo)
            some[i--] = some[--n];
    return expr_chars(&p->r, some, n);
}

/* One character of the string as JSON writes it: itself, or its one escape. */
static uint32_t json_chars(struct regex *p, const struct char_range *range, unsigned n)
{
    static const struct {
        uint32_t c;
        const char *text;
    } escape[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
                  {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
    struct char_range plain[3 * RANGES_MAX];
    uint32_t kid[8];
    unsigned n_plain = 0, n_kid = 0;

    if (p->raw)
        return raw_chars(p, range, n);
    for (unsigned i = 0; i < n; i++) {
        static const struct char_range raw[] = {
            {0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}};

        for (unsigned k = 0; k < 3; k++) {
            uint32_t lo = range[i].lo > raw[k].lo ? range[i].lo : raw[k].lo;
            uint32_t hi = range[i].hi < raw[k].hi ? range[i].hi : raw[k].hi;

            if (lo <= hi)
                plain[n_plain++] = (struct char_range){lo, hi};
        }
    }
    kid[n_kid++] = expr_chars(&p->r, plain, n_plain);
    for (unsigned k = 0; k < sizeof(escape) / sizeof(*escape); k++)
        for (unsigned i = 0; i < n; i++)
            if (range[i].lo <= escape[k].c && escape[k].c <= range[i].hi) {
                kid[n_kid++] = expr_text(&p->r, escape[k].text);
                break;
            }
    return expr_alt(&p->r, kid, n_kid);
}

/* \d and friends. What is not in them is ASCII here: dialects disagree about the rest. */
static unsigned shorthand(char c, struct char_range out[8])
{
    static const struct {
        char c;
        unsigned n;
        struct char_range range[8];
    } set[] = {
        {'d', 1, {{'0', '9'}}},
        {'D', 2, {{0x20, '0' - 1}, {'9' + 1, 0x7e}}},
        {'w', 4, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
        {'W',
         5,
         {{0x20, '0' - 1}, {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'`', '`'}, {'{', 0x7e}}},
        {'s', 4, {{' ', ' '}, {'\t', '\n'}, {'\f', '\r'}, {' ', ' '}}},
        {'S', 1, {{0x21, 0x7e}}},
    };

    for (unsigned i = 0; i < sizeof(set) / sizeof(*set); i++)
        if (set[i].c == c) {
            memcpy(out, set[i].range, sizeof(set[i].range));
            return set[i].n;
        }
    return 0;
}

static bool hex(struct regex *p, unsigned digits, uint32_t *out)
{
    *out = 0;
    for (; digits; digits--, p->at++) {
        static const char all[] = "0123456789abcdefABCDEF";
        const char *d = p->at < p->end && *p->at ? strchr(all, *p->at) : NULL;

        if (!d)
            return false;
        *out = *out * 16 + (uint32_t)(d - all - (d - all > 15 ? 6 : 0));
    }
    return true;
}

/* The character after a backslash; class: inside brackets. */
static bool escaped(struct regex *p, bool class, uint32_t *out)
{
    static const char names[] = "nrtfv0", values[] = "\n\r\t\f\v";
    char c = *p->at++;
    const char *x = strchr(names, c);

    if (x && c) {
        *out = c == '0' ? 0 : (uint32_t)(unsigned char)values[x - names];
        return c != '0' || p->at == p->end || *p->at < '0' || *p->at > '9';
    }
    if (c == 'b' && class) {
        *out = '\b';
        return true;
    }
    if (c == 'x' || c == 'u')
        return hex(p, c == 'x' ? 2 : 4, out) && (*out < 0xd800 || *out > 0xdfff);
    *out = (uint32_t)(unsigned char)c;
    return c > 0 && strchr("^$\\.*+?()[]{}|/-\"'`~!@#%&=:;,<> ", c);
}

static uint32_t character(struct regex *p)
{
    uint32_t out = 0;

    p->at += utf8_char(p->at, (size_t)(p->end - p->at), &out); /* the JSON parser has looked */
    return out;
}

static uint32_t class(struct regex *p)
{
    struct char_range range[RANGES_MAX + 8];
    bool negated = p->at < p->end && *p->at == '^', ascii = false;
    unsigned n = 0;

    p->at += negated;
    while (p->at < p->end && *p->at != ']') {
        struct char_range x;
        unsigned set;

        if (n + 1 >= RANGES_MAX)
            return refuse(p, ERR_LIMIT, "a class of more than 510 ranges");
        if (*p->at == '\\' && p->at + 1 < p->end && (set = shorthand(p->at[1], range + n)) > 0) {
            p->at += 2;
            n += set;
            ascii = true;
            continue;
        }
        if (*p->at == '\\' && p->at + 1 < p->end) {
            p->at++;
            if (!escaped(p, true, &x.lo))
                return refuse(p, ERR_UNSUPPORTED, "an escape in a class that is not understood");
        } else {
            x.lo = character(p);
        }
        x.hi = x.lo;
        if (p->at + 1 < p->end && *p->at == '-' && p->at[1] != ']') {
            p->at++;
            if (*p->at == '\\' && p->at + 1 < p->end) {
                p->at++;
                if (!escaped(p, true, &x.hi))
                    return refuse(p, ERR_UNSUPPORTED,
                                  "an escape in a class that is not understood");
            } else {
                x.hi = character(p);
            }
            if (x.hi < x.lo)
                return refuse(p, ERR_FORMAT, "a range of a class that ends before it begins");
        }
        range[n++] = x;
    }
    if (p->at == p->end)
        return refuse(p, ERR_FORMAT, "a class that does not end");
    p->at++;
    if (negated)
        n = char_ranges_negate(range, n, ascii ? 0x7e : 0x10ffff);
    return json_chars(p, range, n);
}

static uint32_t any(struct regex *p)
{
    return json_chars(p, &(struct char_range){0, 0x10ffff}, 1);
}

static uint32_t alternatives(struct regex *p, bool top);

static uint32_t atom(struct regex *p)
{
    struct char_range set[8];
    uint32_t x, c;
    unsigned n;

    switch (*p->at) {
    case '.':
        p->at++; /* no line ends, in any dialect */
        return json_chars(
            p,
            (const struct char_range[]){
                {0, '\n' - 1}, {'\n' + 1, '\r' - 1}, {'\r' + 1, 0x2027}, {0x202a, 0x10ffff}},
            4);
    case '[':
        p->at++;
        return class(p);
    case '(':
        p->at++;
        if (p->at < p->end && *p->at == '?') {
            if (p->at + 1 == p->end || p->at[1] != ':')
                return refuse(p, ERR_UNSUPPORTED, "(?: is the only group with a question mark");
            p->at += 2;
        }
        if (++p->groups > GROUPS_MAX)
            return refuse(p, ERR_LIMIT, "groups nested deeper than 40");
        x = alternatives(p, false);
        p->groups--;
        if (p->at == p->end || *p->at != ')')
            return refuse(p, ERR_FORMAT, "a group that does not end");
        p->at++;
        return x;
    case '^':
    case '$':
        return refuse(p, ERR_UNSUPPORTED, "^ and $ belong to the ends of a pattern");
    case '*':
    case '+':
    case '?':
    case '{':
        return refuse(p, ERR_FORMAT, "nothing is there to be repeated");
    case '\\':
        if (++p->at == p->end)
            return refuse(p, ERR_FORMAT, "a backslash at the end");
        n = shorthand(*p->at, set);
        if (n) {
            p->at++;
            return json_chars(p, set, n);
        }
        if (!escaped(p, false, &c))
            return refuse(p, ERR_UNSUPPORTED,
                          "an escape that is not understood (no \\b, back references, \\p)");
        break;
    default:
        c = character(p);
    }
    return json_chars(p, &(struct char_range){c, c}, 1);
}

static bool number(struct regex *p, uint32_t *out)
{
    const char *begin = p->at;

    *out = 0;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        *out = *out <= REPEAT_MAX ? *out * 10 + (uint32_t)(*p->at - '0') : *out;
    return p->at > begin;
}

static uint32_t repeated(struct regex *p, uint32_t x)
{
    while (p->at < p->end && !p->failed && strchr("*+?{", *p->at) && *p->at) {
        char c = *p->at++;
        uint32_t min = c == '+', max = c == '?' ? 1 : REPEAT_ANY;

        if (c == '{') {
            if (!number(p, &min))
                return refuse(p, ERR_FORMAT, "{m}, {m,} or {m,n}");
            max = min;
            if (p->at < p->end && *p->at == ',') {
                p->at++;
                if (!number(p, &max))
                    max = REPEAT_ANY;
            }
            if (p->at == p->end || *p->at != '}' || min > max)
                return refuse(p, ERR_FORMAT, "{m}, {m,} or {m,n} with m <= n");
            p->at++;
            if (min > REPEAT_MAX || (max > REPEAT_MAX && max != REPEAT_ANY))
                return refuse(p, ERR_LIMIT, "more than 65536 repetitions");
        }
        if (p->at < p->end && *p->at == '?')
            p->at++; /* lazy: the same texts */
        x = expr_repeat(&p->r, x, min, max);
    }
    return x;
}

static uint32_t sequence(struct regex *p, bool top)
{
    uint32_t kid[64], n = 0;
    bool begin = false, end = false;

    if (top && p->at < p->end && *p->at == '^') {
        p->at++;
        begin = true;
    }
    if (top && !begin)
        kid[n++] = expr_repeat(&p->r, any(p), 0, REPEAT_ANY);
    while (p->at < p->end && *p->at != '|' && *p->at != ')' && !p->failed && !p->r.failed.code) {
        if (top && *p->at == '$' && (p->at + 1 == p->end || p->at[1] == '|')) {
            p->at++;
            end = true;
            break;
        }
        if (n >= 60) { /* a long one in parts */
            kid[0] = expr_seq(&p->r, kid, n);
            n = 1;
        }
        kid[n] = repeated(p, atom(p));
        n++;
    }
    if (top && !end)
        kid[n++] = expr_repeat(&p->r, any(p), 0, REPEAT_ANY);
    return expr_seq(&p->r, kid, n);
}

static uint32_t alternatives(struct regex *p, bool top)
{
    uint32_t kid[64], n = 0;

    for (;;) {
        if (n >= 60) {
            kid[0] = expr_alt(&p->r, kid, n);
            n = 1;
        }
        kid[n] = sequence(p, top);
        n++;
        if (p->failed || p->r.failed.code || p->at == p->end || *p->at != '|')
            break;
        p->at++;
    }
    return expr_alt(&p->r, kid, n);
}

int json_text_pattern(struct dfa **out, const char *pattern, size_t len, bool raw, uint64_t *work,
                      struct err *e)
{
    struct regex p = {.at = pattern, .end = pattern + len, .raw = raw, .e = e};
    const char *quote = raw ? "" : "\"";
    uint32_t body = alternatives(&p, true), all;
    char shown[100];
    int rc = 0;

    if (!p.failed && !p.r.failed.code && p.at != p.end)
        refuse(&p, ERR_FORMAT, "a parenthesis that nothing opens");
    all = EXPR_SEQ(&p.r, expr_text(&p.r, quote), body, expr_text(&p.r, quote));
    *out = NULL;
    if (p.failed)
        rc = e->code;
    else if (p.r.failed.code)
        rc = (*e = p.r.failed).code;
    else
        rc = rules_dfa(out, &p.r, &p.r.expr[all], STATES_MAX, work, e);
    rules_release(&p.r);
    if (!rc && !*out)
        rc = err_set(e, ERR_LIMIT, "its automaton has more than %d states", STATES_MAX);
    return rc ? err_wrap(e, "\"%s\"", json_printable(shown, sizeof(shown), pattern, len)) : 0;
}
