/* json_schema_values.c - values of one type, as expressions. */
#include "model/json_schema_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "model/json_literal.h"
#include "model/json_text.h"
#include "model/xtml.h"

static uint32_t value_in(struct reader *s, const json_t *schema, const char *step, enum form form)
{
    return expr_rule(s->r, schema_rule(s, schema, step, form));
}

static uint32_t value_of(struct reader *s, const json_t *schema, const char *step)
{
    return value_in(s, schema, step, FORM_JSON);
}

static bool number_of(struct reader *s, const json_t *schema, const char *key, uint32_t fallback,
                      uint32_t *out)
{
    const json_t *x = json_object_get(schema, key);
    int64_t n;

    *out = fallback;
    if (!x)
        return true;
    if (!json_exact_int(x, &n) || n < 0) {
        schema_refuse(&s->doc, ERR_FORMAT, key, "must be an integer that is not negative");
        return false;
    }
    if (n > REPEAT_MAX && strncmp(key, "max", 3) == 0 && n >= INT64_C(1) << 31)
        return true; /* as good as none */
    if (n > REPEAT_MAX) {
        err_set(s->doc.e, ERR_LIMIT, "schema: %s.%s = %lld, at most %d", s->doc.path, key,
                (long long)n, REPEAT_MAX);
        return false;
    }
    *out = (uint32_t)n;
    return true;
}

/* Of a string: what its characters must be, and how many. */
static int string_limits(struct reader *s, const json_t *schema, const char **pattern, size_t *len,
                         uint32_t *min, uint32_t *max)
{
    const json_t *p = json_object_get(schema, "pattern"), *f = json_object_get(schema, "format");
    const char *name = json_string_value(f) ? json_string_value(f) : "";

    *pattern = json_string_value(p);
    *len = json_string_length(p);
    if (!number_of(s, schema, "minLength", 0, min) ||
        !number_of(s, schema, "maxLength", REPEAT_ANY, max))
        return s->doc.e->code;
    if (p && f)
        return schema_refuse(&s->doc, ERR_UNSUPPORTED, "format", "together with a pattern");
    if (p && !*pattern)
        return schema_refuse(&s->doc, ERR_FORMAT, "pattern", "must be a string");
    if (!f)
        return 0;
    *pattern = json_text_format(name);
    *len = *pattern ? strlen(*pattern) : 0;
    if (!*pattern) {
        char shown[64], why[160];

        snprintf(why, sizeof(why), "\"%s\" is not among %s",
                 json_printable(shown, sizeof(shown), name, strlen(name)), json_text_formats);
        return schema_refuse(&s->doc, ERR_UNSUPPORTED, "format", why);
    }
    return 0;
}

static const char *pattern_keyword(const json_t *schema)
{
    return json_object_get(schema, "pattern") ? "pattern" : "format";
}

/* d and what has the right length: in *d. Both are the caller's. */
static int with_length(struct reader *s, struct dfa **d, const struct dfa *length, uint32_t min)
{
    struct dfa *both = NULL;

    if (!(*d)->n)
        return 0;
    if (length && dfa_both(&both, *d, length, DFA_STATES_MAX / 2, &s->work, s->doc.e))
        return s->doc.e->code;
    if (!both)
        return schema_refuse(&s->doc, ERR_LIMIT, min ? "minLength" : "maxLength",
                             "too large to be combined with a pattern or format");
    dfa_close(*d);
    *d = both;
    return 0;
}

int string_value(struct reader *s, const json_t *schema, uint32_t *out)
{
    struct dfa *d = NULL, *length;
    const char *pattern;
    uint32_t min, max;
    size_t len;
    int rc = 0;

    if (string_limits(s, schema, &pattern, &len, &min, &max))
        return s->doc.e->code;
    if (!pattern) {
        *out = expr_string(s->r, min, max);
        return 0;
    }
    if (json_text_pattern(&d, pattern, len, false, &s->work, s->doc.e))
        return err_wrap(s->doc.e, "schema: %s.%s", s->doc.path, pattern_keyword(schema));
    if (min > 0 || max != REPEAT_ANY) {
        length = d->n ? json_text_counted(min, max, s->doc.e) : NULL;
        rc = with_length(s, &d, length, min);
        dfa_close(length);
    }
    if (rc)
        dfa_close(d);
    else
        *out = expr_dfa(s->r, d);
    return rc;
}

int raw_string_value(struct reader *s, const json_t *schema, uint32_t *out)
{
    uint32_t any = expr_chars(s->r, &(struct char_range){1, 0x10ffff}, 1), min, max, some;
    struct dfa *d = NULL, *length = NULL;
    const char *pattern;
    bool empty;
    size_t len;
    int rc;

    if (string_limits(s, schema, &pattern, &len, &min, &max))
        return s->doc.e->code;
    if (min > max) {
        *out = expr_never(s->r);
        return 0;
    }
    *out = expr_repeat(s->r, any, min, max);
    if (!pattern || s->r->failed.code)
        return 0;
    if (json_text_pattern(&d, pattern, len, true, &s->work, s->doc.e))
        return err_wrap(s->doc.e, "schema: %s.%s", s->doc.path, pattern_keyword(schema));
    empty = min == 0 && d->n && d->final[0];
    some = expr_repeat(s->r, any, min ? min : 1, max ? max : 1);
    rc = s->r->failed.code
             ? 0
             : rules_dfa(&length, s->r, &s->r->expr[some], DFA_STATES_MAX / 2, &s->work, s->doc.e);
    if (!rc)
        rc = with_length(s, &d, length, min);
    dfa_close(length);
    if (rc) {
        dfa_close(d);
        return rc;
    }
    *out = max ? expr_dfa(s->r, d) : expr_never(s->r);
    if (!max)
        dfa_close(d);
    if (empty)
        *out = expr_repeat(s->r, *out, 0, 1);
    return 0;
}

int number_value(struct reader *s, const json_t *schema, bool integer, uint32_t *out)
{
    struct number_range range = {0};
    struct dfa *d;
    int rc;

    range.integer = integer;
    range.minimum = json_object_get(schema, "minimum");
    range.maximum = json_object_get(schema, "maximum");
    range.above = json_object_get(schema, "exclusiveMinimum");
    range.below = json_object_get(schema, "exclusiveMaximum");
    range.multiple = json_object_get(schema, "multipleOf");
    rc = json_text_number(&d, &range, &s->work, s->doc.e);
    if (rc)
        return err_wrap(s->doc.e, "schema: %s", s->doc.path);
    *out = expr_dfa(s->r, d);
    return 0;
}

/* What follows the i-th element of an array; first: there is none yet. */
static uint32_t array_rest(struct reader *s, const json_t *prefix, const json_t *items,
                           uint32_t min, uint32_t max)
{
    uint32_t n = (uint32_t)json_array_size(prefix), comma, rest, item;
    bool more = !json_is_false(items) && max > n;

    n = n < max ? n : max;
    comma = EXPR_SEQ(s->r, expr_text(s->r, ","), s->space);
    item = more ? value_of(s, items, "items") : 0;
    rest = expr_text(s->r, "");
    if (more)
        rest = expr_repeat(s->r, EXPR_SEQ(s->r, comma, item), min > n ? min - n : 0,
                           max == REPEAT_ANY ? max : max - n);
    else if (min > n)
        rest = expr_never(s->r);
    if (!n && more) { /* the first of them has no comma */
        uint32_t tail = expr_repeat(s->r, EXPR_SEQ(s->r, comma, item), min > 1 ? min - 1 : 0,
                                    max == REPEAT_ANY ? max : max - 1);

        rest = EXPR_SEQ(s->r, item, tail);
        return min ? rest : expr_repeat(s->r, rest, 0, 1);
    }
    for (uint32_t i = n; i-- > 0 && !s->r->failed.code;) {
        uint32_t rule = rule_new(s->r, s->doc.path, strlen(s->doc.path));
        uint32_t value = value_of(s, json_array_get(prefix, i), "prefixItems");
        uint32_t x = i ? EXPR_SEQ(s->r, comma, value, rest) : EXPR_SEQ(s->r, value, rest);

        if (i >= min)
            x = expr_repeat(s->r, x, 0, 1);
        if (!s->r->failed.code)
            s->r->rule[rule].expr = x;
        rest = expr_rule(s->r, rule);
    }
    return rest;
}

int array_value(struct reader *s, const json_t *schema, uint32_t *out)
{
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    uint32_t min, max;

    if (json_is_array(items))
        return schema_refuse(&s->doc, ERR_UNSUPPORTED, "items", "a list is called prefixItems now");
    if (prefix && !json_is_array(prefix))
        return schema_refuse(&s->doc, ERR_FORMAT, "prefixItems", "must be a list of schemas");
    if (!number_of(s, schema, "minItems", 0, &min) ||
        !number_of(s, schema, "maxItems", REPEAT_ANY, &max))
        return s->doc.e->code;
    if (min > max) {
        *out = expr_never(s->r);
        return 0;
    }
    *out = EXPR_SEQ(s->r, expr_text(s->r, "["), s->space,
                    array_rest(s, prefix, items ? items : json_true(), min, max), s->space,
                    expr_text(s->r, "]"));
    return 0;
}

/* A string as its text in JSON, without the quotes. */
static uint32_t name_text(struct reader *s, const char *name)
{
    json_t *x = json_string(name);
    char *text = x ? json_dumps(x, JSON_ENCODE_ANY) : NULL;
    uint32_t expr = 0;

    if (text)
        expr = expr_bytes(s->r, text + 1, strlen(text) - 2);
    else
        err_set(&s->r->failed, ERR_NOMEM, "schema");
    free(text);
    json_decref(x);
    return expr;
}

/* The same as the value of an attribute. */
static uint32_t attribute_text(struct reader *s, const char *name)
{
    struct buf b = {0};
    uint32_t expr = 0;

    xtml_attribute(&b, str_of(name));
    if (b.failed)
        err_set(&s->r->failed, ERR_NOMEM, "schema");
    else
        expr = expr_bytes(s->r, b.s, b.n);
    buf_release(&b);
    return expr;
}

struct members { /* of one object: the properties, in order */
    uint32_t *pair, *name;
    bool *needed;
    size_t n;
    enum form form; /* JSON or arguments */
};

/* One member, of which key is the name in its form. */
static uint32_t member(struct reader *s, const struct members *p, uint32_t key,
                       const json_t *schema, const char *step)
{
    if (p->form == FORM_JSON)
        return EXPR_SEQ(s->r, key, expr_text(s->r, ":"), s->space, value_of(s, schema, step));
    return EXPR_SEQ(s->r, expr_token(s->r, EXPR_TOKEN, s->marks.open),
                    expr_text(s->r, "argument key="), key, value_in(s, schema, step, FORM_TYPED),
                    expr_token(s->r, EXPR_TOKEN, s->marks.close), expr_text(s->r, "argument"),
                    expr_token(s->r, EXPR_TOKEN, s->marks.sep));
}

static uint32_t named_member(struct reader *s, struct members *p, const char *name,
                             const json_t *schema, const char *step)
{
    uint32_t quote = expr_text(s->r, "\"");

    p->name[p->n] = p->form == FORM_JSON ? name_text(s, name) : attribute_text(s, name);
    return member(s, p, EXPR_SEQ(s->r, quote, p->name[p->n], quote), schema, step);
}

/* What stands between two members. */
static uint32_t member_comma(struct reader *s, const struct members *p)
{
    return p->form == FORM_JSON ? EXPR_SEQ(s->r, expr_text(s->r, ","), s->space)
                                : expr_text(s->r, "");
}

/* Keys that are not named: any number of pairs, none of them before another. */
static uint32_t members_extra(struct reader *s, const json_t *rest, const struct members *p,
                              bool first)
{
    uint32_t comma = member_comma(s, p), pair, rule, x;

    if (json_is_false(rest))
        return expr_text(s->r, "");
    rule = rule_new(s->r, s->doc.path, strlen(s->doc.path));
    pair = member(s, p, expr_key(s->r, p->name, p->n, p->form != FORM_JSON), rest,
                  "additionalProperties");
    x = expr_repeat(s->r, EXPR_SEQ(s->r, comma, pair), 0, REPEAT_ANY);
    if (first)
        x = expr_repeat(s->r, EXPR_SEQ(s->r, pair, x), 0, 1);
    if (!s->r->failed.code)
        s->r->rule[rule].expr = x;
    return expr_rule(s->r, rule);
}

/* Members from the i-th on, for all i, last one first: a rule each, with and without a comma. */
static uint32_t members_chain(struct reader *s, const struct members *p, const json_t *rest)
{
    uint32_t comma = member_comma(s, p);
    uint32_t after = members_extra(s, rest, p, false), begin = members_extra(s, rest, p, true);

    for (size_t i = p->n; i-- > 0 && !s->r->failed.code;) {
        uint32_t rule[2];

        for (int first = 0; first < 2; first++) {
            uint32_t x = first ? EXPR_SEQ(s->r, p->pair[i], after)
                               : EXPR_SEQ(s->r, comma, p->pair[i], after);

            rule[first] = rule_new(s->r, s->doc.path, strlen(s->doc.path));
            if (!p->needed[i])
                x = EXPR_ALT(s->r, x, first ? begin : after);
            if (!s->r->failed.code)
                s->r->rule[rule[first]].expr = x;
        }
        after = expr_rule(s->r, rule[0]);
        begin = expr_rule(s->r, rule[1]);
    }
    return begin;
}

static int members_read(struct reader *s, struct members *p, const json_t *schema)
{
    json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required"), *rest = schema_additional(schema);
    size_t n = json_object_size(properties) + json_array_size(required), i = 0;
    json_t *needed = json_object(), *value;
    const char *key;

    p->pair = calloc(n + 1, sizeof(*p->pair));
    p->name = calloc(n + 1, sizeof(*p->name));
    p->needed = calloc(n + 1, sizeof(*p->needed));
    if (!p->pair || !p->name || !p->needed || !needed) {
        json_decref(needed);
        return err_set(s->doc.e, ERR_NOMEM, "schema: %s", s->doc.path);
    }
    for (i = 0; i < json_array_size(required); i++)
        json_object_set_new_nocheck(needed, json_string_value(json_array_get(required, i)),
                                    json_true());
    json_object_foreach(properties, key, value)
    {
        char step[SCHEMA_PATH_BYTES];

        snprintf(step, sizeof(step), "properties.%.200s", key);
        p->needed[p->n] = json_object_get(needed, key) != NULL;
        p->pair[p->n] = named_member(s, p, key, value, step);
        p->n++;
        json_object_del(needed, key);
    }
    json_object_foreach(needed, key, value)
    { /* required without being declared */
        p->needed[p->n] = true;
        p->pair[p->n] = named_member(s, p, key, rest, "additionalProperties");
        p->n++;
    }
    json_decref(needed);
    return 0;
}

int object_value(struct reader *s, const json_t *schema, enum form form, uint32_t *out)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    struct members p = {.form = form};
    int rc;

    if (properties && !json_is_object(properties))
        return schema_refuse(&s->doc, ERR_FORMAT, "properties", "must be an object");
    if (required && !json_is_array(required))
        return schema_refuse(&s->doc, ERR_FORMAT, "required", "must be a list of names");
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_is_string(json_array_get(required, i)))
            return schema_refuse(&s->doc, ERR_FORMAT, "required", "must be a list of names");
    rc = members_read(s, &p, schema);
    if (!rc)
        *out = members_chain(s, &p, schema_additional(schema));
    if (!rc && form == FORM_JSON)
        *out = EXPR_SEQ(s->r, expr_text(s->r, "{"), s->space, *out, s->space, expr_text(s->r, "}"));
    free(p.pair);
    free(p.name);
    free(p.needed);
    return rc;
}

uint32_t any_members(struct reader *s)
{
    return members_extra(s, json_true(), &(struct members){0}, true);
}
