#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* newlocale */
#endif
#include "model/json_write.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

void json_write_characters(struct buf *b, struct str part)
{
    static const char hex[] = "0123456789abcdef", from[] = "\"\\\n\r\t\b\f", into[] = "\"\\nrtbf";
    size_t plain = 0;

    for (size_t i = 0; i < part.len; i++) {
        unsigned char c = (unsigned char)part.s[i];
        const char *at;

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_put(b, part.s + plain, i - plain);
        plain = i + 1;
        at = c ? strchr(from, c) : NULL;
        if (at)
            buf_put(b, (char[]){'\\', into[at - from]}, 2);
        else
            buf_put(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
    buf_put(b, part.s + plain, part.len - plain);
}

void json_write_string(struct buf *b, struct str s)
{
    buf_str(b, STR("\""));
    json_write_characters(b, s);
    buf_str(b, STR("\""));
}

/* The digits and the decimal exponent of the shortest text that reads back as v, |v| finite. */
static int shortest(char digits[24], double v)
{
    char text[40];
    char *exponent;
    size_t n = 0;

    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, v);
        if (strtod(text, NULL) == v)
            break;
    }
    exponent = strchr(text, 'e');
    for (char *c = text; c < exponent; c++)
        if (*c != '.')
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    return atoi(exponent + 1);
}

/* As Python's repr: an exponent below 1e-4 and from 1e16. */
static void write_double(struct buf *b, double v)
{
    char digits[24], text[64];
    int exponent = shortest(digits, fabs(v)), n = (int)strlen(digits);

    if (signbit(v))
        buf_str(b, STR("-"));
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof(text), "%c%s%se%c%02d", digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(text, sizeof(text), "0.%.*s%s", -exponent - 1, "000", digits);
    else if (n <= exponent + 1)
        snprintf(text, sizeof(text), "%s%.*s.0", digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(text, sizeof(text), "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    buf_put(b, text, strlen(text));
}

/* v, or what text reads as if there is one. The host's locale must not decide what a point is. */
static void write_real(struct buf *b, double v, const struct str *text)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before;

    if (!c) {
        b->failed = true;
        return;
    }
    before = uselocale(c);
    if (text)
        v = strtod(text->s, NULL);
    if (isfinite(v))
        write_double(b, v);
    else
        buf_str(b, *text);
    uselocale(before);
    freelocale(c);
}

void json_write_double(struct buf *b, double v)
{
    write_real(b, v, NULL);
}

static int key_order(const void *a, const void *b)
{
    struct str x = (*(const struct node *const *)a)->key, y = (*(const struct node *const *)b)->key;
    size_t n = x.len < y.len ? x.len : y.len;
    int c = n ? memcmp(x.s, y.s, n) : 0; /* UTF-8 sorts as its code points do */

    return c ? c : (x.len > y.len) - (x.len < y.len);
}

static void write_member(struct buf *b, const struct node *m, bool first, enum json_style style)
{
    if (!first)
        buf_put(b, ", ", style == JSON_SPACED ? 2 : 1);
    if (m->key.s) {
        json_write_string(b, m->key);
        buf_put(b, ": ", style == JSON_SPACED ? 2 : 1);
    }
    json_write(b, m, style);
}

static void write_sorted(struct buf *b, const struct node *object)
{
    const struct node **m = malloc((object->n + 1) * sizeof(*m));
    uint32_t n = 0;

    if (!m) {
        b->failed = true;
        return;
    }
    for (const struct node *c = object->child; c; c = c->next)
        m[n++] = c;
    qsort(m, n, sizeof(*m), key_order);
    for (uint32_t i = 0; i < n; i++)
        write_member(b, m[i], !i, JSON_SORTED);
    free(m);
}

static void write_children(struct buf *b, const struct node *node, enum json_style style)
{
    bool object = node->type == NODE_OBJECT;

    buf_put(b, object ? "{" : "[", 1);
    if (object && style == JSON_SORTED)
        write_sorted(b, node);
    else
        for (const struct node *c = node->child; c; c = c->next)
            write_member(b, c, c == node->child, style);
    buf_put(b, object ? "}" : "]", 1);
}

void json_write(struct buf *b, const struct node *node, enum json_style style)
{
    switch (node->type) {
    case NODE_NULL:
        buf_str(b, STR("null"));
        break;
    case NODE_FALSE:
        buf_str(b, STR("false"));
        break;
    case NODE_TRUE:
        buf_str(b, STR("true"));
        break;
    case NODE_INTEGER:
        buf_str(b, str_is(node->text, STR("-0")) ? STR("0") : node->text);
        break;
    case NODE_REAL:
        write_real(b, 0, &node->text);
        break;
    case NODE_STRING:
        json_write_string(b, node->text);
        break;
    case NODE_ARRAY:
    case NODE_OBJECT:
        write_children(b, node, style);
        break;
    }
}
