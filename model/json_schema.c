#include "model/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/list.h"
#include "model/json_literal.h"
#include "model/json_schema_values.h"
#include "model/json_text.h"

enum { SCHEMAS_MAX = 1 << 17 }; /* that are compiled, those that merging makes included */

enum { SHARED_BYTES = 1024 };

struct shared_text {
    uint32_t word[SHARED_BYTES / sizeof(uint32_t) + 2]; /* form, length, bytes */
    size_t len;
};

static int shared_put(const char *text, size_t n, void *to)
{
    struct shared_text *t = to;

    if (n > SHARED_BYTES - t->len)
        return -1;
    memcpy((char *)&t->word[2] + t->len, text, n);
    t->len += n;
    return 0;
}

/* Is there room for element `at`? Grows *list, of *cap elements. */
static bool room(struct rules *r, void *list, size_t *cap, size_t at, size_t size)
{
    if (list_room(list, cap, at + 1, size))
        return true;
    err_set(&r->failed, ERR_NOMEM, "schema");
    return false;
}

/* Tools and properties are often alike: where the rule of a schema with this text is, or is to be
 * noted. NULL: it is large, or what it means depends on its document. */
static uint32_t *shared_rule(struct reader *s, const json_t *schema, enum form form, bool *fresh)
{
    struct shared_text t = {.word = {form}};
    struct rules *r = s->r;
    uint32_t i;

    if (json_dump_callback(schema, shared_put, &t, JSON_COMPACT | JSON_ENCODE_ANY) ||
        memmem(&t.word[2], t.len, "\"$ref\"", 6) ||
        (!r->schemas.table && !intern_open(&r->schemas)))
        return NULL;
    t.word[1] = (uint32_t)t.len;
    i = intern_put(&r->schemas, t.word, 2 + (uint32_t)((t.len + 3) / 4), fresh);
    if (i == INTERN_NONE ||
        !room(r, &r->rule_of_schema, &r->cap_schema, i, sizeof(*r->rule_of_schema)))
        return NULL;
    return &r->rule_of_schema[i];
}

uint32_t schema_rule(struct reader *s, const json_t *schema, const char *step, enum form form)
{
    uintptr_t address = (uintptr_t)schema;
    uint32_t word[3] = {(uint32_t)address, (uint32_t)((uint64_t)address >> 32), form}, i;
    char path[SCHEMA_PATH_BYTES];
    bool fresh = false, first = true;
    uint32_t *shared;

    if (s->r->failed.code)
        return 0;
    i = intern_put(&s->schema, word, 3, &fresh);
    if (i != INTERN_NONE && !fresh)
        return s->rule_of[i];
    if (i >= SCHEMAS_MAX && i != INTERN_NONE) {
        err_set(&s->r->failed, ERR_LIMIT, "schema: %s: more than %d schemas", s->doc.path,
                SCHEMAS_MAX);
        return 0;
    }
    if (i == INTERN_NONE || !room(s->r, &s->rule_of, &s->cap_rule_of, i, sizeof(*s->rule_of)) ||
        !room(s->r, &s->wanted, &s->cap_wanted, s->n_wanted, sizeof(*s->wanted))) {
        err_set(&s->r->failed, ERR_NOMEM, "schema");
        return 0;
    }
    if (snprintf(path, sizeof(path), "%s%s%s", s->doc.path, step[0] ? "." : "", step) >=
        (int)sizeof(path))
        memcpy(path + sizeof(path) - 4, "...", 4);
    shared = shared_rule(s, schema, form, &first);
    s->rule_of[i] = shared && !first ? *shared : rule_new(s->r, path, strlen(path));
    if (shared && !first)
        return s->rule_of[i];
    if (shared)
        *shared = s->rule_of[i];
    s->wanted[s->n_wanted] = (struct wanted){schema, s->rule_of[i], form, strdup(path)};
    if (s->wanted[s->n_wanted++].path)
        return s->rule_of[i];
    err_set(&s->r->failed, ERR_NOMEM, "schema");
    return 0;
}

int types_read(struct reader *s, const json_t *schema, unsigned *types)
{
    const json_t *type = json_object_get(schema, "type");
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    const char *key;
    json_t *value;

    *types = 0;
    for (size_t i = 0; type && i < n; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        int t = 0;

        while (t < TYPES && (!name || strcmp(name, schema_type_names[t]) != 0))
            t++;
        if (t == TYPES)
            return schema_refuse(&s->doc, ERR_FORMAT, "type",
                                 "must be the name of a type, or a list of them");
        *types |= 1u << t;
    }
    if (json_is_true(json_object_get(schema, "nullable")) && type)
        *types |= 1u << T_NULL;
    if (type)
        return 0;
    json_object_foreach((json_t *)schema, key, value)
    { /* the types that it speaks of */
        static const unsigned of[] = {[USE_NUMBER] = 1u << T_NUMBER,
                                      [USE_STRING] = 1u << T_STRING,
                                      [USE_ARRAY] = 1u << T_ARRAY,
                                      [USE_OBJECT] = 1u << T_OBJECT};
        enum schema_use use = schema_keyword(key)->use;

        if (use >= USE_NUMBER)
            *types |= of[use];
    }
    return 0;
}

static bool type_fits(const json_t *value, unsigned types)
{
    int64_t n;

    switch (json_typeof(value)) {
    case JSON_NULL:
        return types >> T_NULL & 1;
    case JSON_TRUE:
    case JSON_FALSE:
        return types >> T_BOOLEAN & 1;
    case JSON_STRING:
        return types >> T_STRING & 1;
    case JSON_ARRAY:
        return types >> T_ARRAY & 1;
    case JSON_OBJECT:
        return types >> T_OBJECT & 1;
    default:
        return types >> T_NUMBER & 1 || (types >> T_INTEGER & 1 && json_exact_int(value, &n));
    }
}

/* What comes before a value of this type. */
static uint32_t typed_head(struct reader *s, const char *type)
{
    return EXPR_SEQ(s->r, expr_text(s->r, " type=\""), expr_text(s->r, type), expr_text(s->r, "\""),
                    expr_token(s->r, EXPR_TOKEN, s->marks.sep));
}

static const char *typed_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return "null";
    case JSON_TRUE:
    case JSON_FALSE:
        return "boolean";
    case JSON_STRING:
        return "string";
    case JSON_ARRAY:
        return "array";
    case JSON_OBJECT:
        return "object";
    default:
        return "number";
    }
}

/* Just this value. */
static uint32_t one_value(struct reader *s, const json_t *x, enum form form)
{
    struct buf text = {0};
    uint32_t value = 0;

    if (form == FORM_TYPED && json_is_string(x)) {
        value = expr_bytes(s->r, json_string_value(x), json_string_length(x));
    } else {
        json_literal(&text, x);
        if (text.failed)
            err_set(&s->r->failed, ERR_NOMEM, "schema");
        else
            value = expr_bytes(s->r, text.s, text.n);
        buf_release(&text);
    }
    return form == FORM_TYPED ? EXPR_SEQ(s->r, typed_head(s, typed_name(x)), value) : value;
}

static int enum_value(struct reader *s, const json_t *schema, unsigned types, enum form form,
                      uint32_t *out)
{
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    size_t n = list ? json_array_size(list) : 1, kept = 0;
    uint32_t *kid;
    const char *key;
    json_t *value;

    if (list && !json_is_array(list))
        return schema_refuse(&s->doc, ERR_FORMAT, "enum", "must be a list of values");
    json_object_foreach((json_t *)schema, key, value)
    {
        if (schema_keyword(key)->use >= USE_NUMBER)
            return schema_refuse(&s->doc, ERR_UNSUPPORTED, key, "together with enum or const");
    }
    kid = malloc((n + 1) * sizeof(*kid));
    if (!kid)
        return err_set(s->doc.e, ERR_NOMEM, "schema: %s", s->doc.path);
    for (size_t i = 0; i < n && !s->r->failed.code; i++) {
        const json_t *x = list ? json_array_get(list, i) : one;

        if ((!types || type_fits(x, types)) && !(list && one && !json_equal(x, one)))
            kid[kept++] = one_value(s, x, form);
    }
    *out = expr_alt(s->r, kid, kept);
    free(kid);
    return 0;
}

static int type_value(struct reader *s, const json_t *schema, enum schema_type type, uint32_t *out)
{
    switch (type) {
    case T_NULL:
        *out = expr_text(s->r, "null");
        return 0;
    case T_BOOLEAN:
        *out = EXPR_ALT(s->r, expr_text(s->r, "true"), expr_text(s->r, "false"));
        return 0;
    case T_STRING:
        return string_value(s, schema, out);
    case T_ARRAY:
        return array_value(s, schema, out);
    case T_OBJECT:
        return object_value(s, schema, FORM_JSON, out);
    default:
        return number_value(s, schema, type == T_INTEGER, out);
    }
}

static int typed_value(struct reader *s, const json_t *schema, enum schema_type type, uint32_t *out)
{
    const char *name = schema_type_names[type == T_INTEGER ? T_NUMBER : type];

    if (type == T_STRING ? raw_string_value(s, schema, out) : type_value(s, schema, type, out))
        return s->doc.e->code;
    *out = EXPR_SEQ(s->r, typed_head(s, name), *out);
    return 0;
}

static int arguments_value(struct reader *s, const json_t *schema, unsigned types, uint32_t *out)
{
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return schema_refuse(&s->doc, ERR_UNSUPPORTED,
                             json_object_get(schema, "enum") ? "enum" : "const",
                             "of all arguments at once");
    if (types >> T_OBJECT & 1 || (!types && !json_object_get(schema, "type")))
        return object_value(s, schema, FORM_ARGUMENTS, out);
    *out = expr_never(s->r);
    return 0;
}

static int base_value(struct reader *s, const json_t *schema, enum form form, uint32_t *out)
{
    uint32_t kid[TYPES], n = 0;
    unsigned types;

    if (types_read(s, schema, &types))
        return s->doc.e->code;
    if (form == FORM_ARGUMENTS)
        return arguments_value(s, schema, types, out);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return enum_value(s, schema, types, form, out);
    if (!types && !json_object_get(schema, "type")) {
        if (form == FORM_JSON) {
            *out = expr_rule(s->r, s->any);
            return 0;
        }
        types = (1u << TYPES) - 1;
    }
    for (int t = 0; t < TYPES; t++) {
        if (!(types >> t & 1) || (t == T_INTEGER && types >> T_NUMBER & 1))
            continue;
        if (form == FORM_TYPED ? typed_value(s, schema, (enum schema_type)t, &kid[n++])
                               : type_value(s, schema, (enum schema_type)t, &kid[n++]))
            return s->doc.e->code;
    }
    *out = expr_alt(s->r, kid, n);
    return 0;
}

/* step: from the schema at hand to this one, with its point; "": it is that one. */
static int keywords_check(struct reader *s, const json_t *schema, const char *step)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)schema, key, value)
    {
        char name[100], where[160];

        if (schema_keyword(key))
            continue;
        snprintf(where, sizeof(where), "%s%s", step,
                 json_printable(name, sizeof(name), key, strlen(key)));
        return schema_refuse(&s->doc, ERR_UNSUPPORTED, where, "this keyword is not understood");
    }
    return 0;
}

enum { ONE_OF_MAX = 256 };

static int alternatives(struct reader *s, const json_t *schema, const char *key, enum form form,
                        uint32_t *out)
{
    const json_t *list = json_object_get(schema, key), *rest;
    size_t n = json_array_size(list);
    bool exactly_one = !strcmp(key, "oneOf"), alone;
    const json_t **alt;
    uint32_t *kid;
    int rc = 0;

    if (!json_is_array(list) || !n)
        return schema_refuse(&s->doc, ERR_FORMAT, key, "must be a list of schemas");
    if (exactly_one && n > ONE_OF_MAX)
        return schema_refuse(&s->doc, ERR_LIMIT, key,
                             "more than 256 alternatives; anyOf may have them");
    alt = calloc(n, sizeof(*alt));
    kid = calloc(n, sizeof(*kid));
    rest = schema_without(&s->doc, schema, key);
    if (!alt || !kid || !rest)
        rc = err_set(s->doc.e, ERR_NOMEM, "schema: %s", s->doc.path);
    alone = true;
    if (!rc) {
        const char *k;
        json_t *v;

        json_object_foreach((json_t *)rest, k, v) alone &= schema_keyword(k)->use == USE_NOTE;
    }
    for (size_t i = 0; !rc && i < n; i++) {
        char step[40];

        snprintf(step, sizeof(step), "%s.%zu", key, i);
        alt[i] = json_array_get(list, i);
        if (!alone)
            alt[i] = schema_merge(&s->doc, rest, alt[i], 0);
        else if (exactly_one)
            alt[i] = schema_plain(&s->doc, alt[i], 0);
        if (!alt[i])
            rc = s->doc.e->code;
        else
            kid[i] = expr_rule(s->r, schema_rule(s, alt[i], step, form));
        if (!rc && exactly_one) { /* they are compared before they are compiled */
            snprintf(step, sizeof(step), "%s.%zu.", key, i);
            rc = keywords_check(s, alt[i], step);
        }
    }
    for (size_t i = 0; exactly_one && !rc && i < n; i++)
        for (size_t k = 0; !rc && k < i; k++) {
            bool yes = false;

            rc = schemas_disjoint(s, alt[k], alt[i], &yes);
            if (!rc && !yes)
                rc = err_set(s->doc.e, ERR_UNSUPPORTED,
                             "schema: %s.oneOf: alternatives %zu and %zu may both hold; types, or "
                             "constants of a required property, would tell them apart (anyOf asks "
                             "for less)",
                             s->doc.path, k, i);
        }
    if (!rc)
        *out = expr_alt(s->r, kid, n);
    free(alt);
    free(kid);
    return rc;
}

static int schema_value(struct reader *s, const json_t *schema, enum form form, uint32_t *out)
{
    unsigned chain = 0;

    for (;;) {
        const json_t *ref, *all;

        if (json_is_false(schema)) {
            *out = expr_never(s->r);
            return 0;
        }
        if (json_is_true(schema)) {
            schema = schema_keep(&s->doc, json_object());
            return schema ? base_value(s, schema, form, out) : s->doc.e->code;
        }
        if (!json_is_object(schema))
            return err_set(s->doc.e, ERR_FORMAT,
                           "schema: %s: a schema must be an object, true or false", s->doc.path);
        if (keywords_check(s, schema, ""))
            return s->doc.e->code;
        if (++chain > SCHEMA_CHAIN_MAX)
            return err_set(s->doc.e, ERR_LIMIT,
                           "schema: %s: more than %d references behind each other", s->doc.path,
                           SCHEMA_CHAIN_MAX);
        ref = json_object_get(schema, "$ref");
        all = json_object_get(schema, "allOf");
        if (ref && json_object_size(schema) == 1) {
            const json_t *target = schema_resolve(&s->doc, ref);

            if (!target)
                return s->doc.e->code;
            *out = expr_rule(s->r, schema_rule(s, target, "$ref", form));
            return 0;
        }
        if (ref) {
            schema = schema_plain(&s->doc, schema, 0);
        } else if (all) {
            const json_t *x = schema_without(&s->doc, schema, "allOf");

            if (!json_is_array(all) || !json_array_size(all))
                return schema_refuse(&s->doc, ERR_FORMAT, "allOf", "must be a list of schemas");
            for (size_t i = 0; x && i < json_array_size(all); i++)
                x = schema_merge(&s->doc, x, json_array_get(all, i), 0);
            schema = x;
        } else if (json_object_get(schema, "anyOf")) {
            return alternatives(s, schema, "anyOf", form, out);
        } else if (json_object_get(schema, "oneOf")) {
            return alternatives(s, schema, "oneOf", form, out);
        } else {
            return base_value(s, schema, form, out);
        }
        if (!schema)
            return s->doc.e->code;
    }
}

/* Any value: what {} allows. */
static void any_value(struct reader *s)
{
    struct number_range number = {0};
    struct dfa *d;
    uint32_t value = expr_rule(s->r, s->any), object, array;
    uint32_t comma = EXPR_SEQ(s->r, expr_text(s->r, ","), s->space);
    uint32_t more = expr_repeat(s->r, EXPR_SEQ(s->r, comma, value), 0, REPEAT_ANY);

    if (json_text_number(&d, &number, &s->work, s->doc.e)) {
        rules_fail(s->r, s->doc.e);
        return;
    }
    array = EXPR_SEQ(s->r, expr_text(s->r, "["), s->space,
                     expr_repeat(s->r, EXPR_SEQ(s->r, value, more), 0, 1), s->space,
                     expr_text(s->r, "]"));
    object = EXPR_SEQ(s->r, expr_text(s->r, "{"), s->space, any_members(s), s->space,
                      expr_text(s->r, "}"));
    value =
        EXPR_ALT(s->r, expr_string(s->r, 0, REPEAT_ANY), expr_dfa(s->r, d), expr_text(s->r, "true"),
                 expr_text(s->r, "false"), expr_text(s->r, "null"), array, object);
    if (!s->r->failed.code)
        s->r->rule[s->any].expr = value;
}

/* White space between the parts of a value: none, one blank, or a new line and its indent. */
static void space_make(struct reader *s)
{
    uint32_t blank = expr_text(s->r, " ");
    uint32_t line = EXPR_SEQ(s->r, expr_text(s->r, "\n"), expr_repeat(s->r, blank, 0, 32));
    struct dfa *d = NULL;
    uint32_t x = EXPR_ALT(s->r, expr_text(s->r, ""), blank, line);

    if (!s->r->failed.code && !rules_dfa(&d, s->r, &s->r->expr[x], 64, &s->work, s->doc.e) && d)
        s->space = expr_dfa(s->r, d);
    else
        rules_fail(s->r, s->doc.e);
}

static int schemas_all(struct reader *s, enum form form)
{
    uint32_t root;

    space_make(s);
    s->any = rule_new(s->r, "anything", 8);
    any_value(s);
    snprintf(s->doc.path, sizeof(s->doc.path), "$");
    root = schema_rule(s, s->doc.root, "", form);
    for (size_t i = 0; i < s->n_wanted && !s->r->failed.code; i++) {
        const struct wanted w = s->wanted[i];
        uint32_t x = 0;

        snprintf(s->doc.path, sizeof(s->doc.path), "%s", w.path);
        if (schema_value(s, w.schema, w.form, &x))
            return s->doc.e->code;
        if (!s->r->failed.code)
            s->r->rule[w.rule].expr = x;
    }
    s->r->root = root;
    if (s->r->failed.code)
        *s->doc.e = s->r->failed;
    return s->r->failed.code;
}

/* Is this word all of the text, but for white space? */
static bool is_word(const char *text, size_t len, const char *word)
{
    while (len && strchr(" \t\r\n", text[0]) && text[0])
        text++, len--;
    while (len && strchr(" \t\r\n", text[len - 1]) && text[len - 1])
        len--;
    return len == strlen(word) && !memcmp(text, word, len);
}

static int read_all(struct rules *r, const char *text, size_t len, enum form form,
                    const struct argument_marks *marks, struct err *e)
{
    struct reader s = {.r = r, .doc.e = e, .work = 64 << 20, .marks = *marks};
    json_t *root;
    int rc;

    if (is_word(text, len, "false"))
        return err_set(e, ERR_FORMAT, "schema: false: nothing satisfies it");
    if (is_word(text, len, "true")) {
        text = "{}"; /* the same: anything */
        len = 2;
    }
    if (json_parse(&root, text, len, "schema", e))
        return e->code;
    s.doc.root = root;
    s.doc.kept = json_array();
    if (!s.doc.kept || !intern_open(&s.schema))
        rc = err_set(e, ERR_NOMEM, "schema");
    else
        rc = schemas_all(&s, form);
    for (size_t i = 0; i < s.n_wanted; i++)
        free(s.wanted[i].path);
    free(s.wanted);
    free(s.rule_of);
    if (s.schema.table)
        intern_close(&s.schema);
    json_decref(s.doc.kept);
    json_decref(root);
    return rc;
}

int json_schema_read(struct rules *r, const char *text, size_t len, struct err *e)
{
    return read_all(r, text, len, FORM_JSON, &(struct argument_marks){0}, e);
}

int json_schema_read_arguments(struct rules *r, const char *text, size_t len,
                               const struct argument_marks *marks, struct err *e)
{
    return read_all(r, text, len, FORM_ARGUMENTS, marks, e);
}
