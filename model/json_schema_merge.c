#include "model/json_schema_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { MERGED_MAX = 1 << 20 }; /* members of objects that merging makes */

const char *const schema_type_names[TYPES] = {"null",   "boolean", "integer", "number",
                                              "string", "array",   "object"};

static const struct schema_keyword keywords[] = {
    {"$schema", USE_NOTE},
    {"$id", USE_NOTE},
    {"$comment", USE_NOTE},
    {"$defs", USE_NOTE},
    {"definitions", USE_NOTE},
    {"title", USE_NOTE},
    {"description", USE_NOTE},
    {"default", USE_NOTE},
    {"examples", USE_NOTE},
    {"deprecated", USE_NOTE},
    {"readOnly", USE_NOTE},
    {"writeOnly", USE_NOTE},
    {"$ref", USE_ANY},
    {"type", USE_ANY},
    {"enum", USE_ANY},
    {"const", USE_ANY},
    {"anyOf", USE_ANY},
    {"oneOf", USE_ANY},
    {"allOf", USE_ANY},
    {"nullable", USE_ANY},
    {"minimum", USE_NUMBER},
    {"maximum", USE_NUMBER},
    {"exclusiveMinimum", USE_NUMBER},
    {"exclusiveMaximum", USE_NUMBER},
    {"multipleOf", USE_NUMBER},
    {"minLength", USE_STRING},
    {"maxLength", USE_STRING},
    {"pattern", USE_STRING},
    {"format", USE_STRING},
    {"items", USE_ARRAY},
    {"prefixItems", USE_ARRAY},
    {"minItems", USE_ARRAY},
    {"maxItems", USE_ARRAY},
    {"properties", USE_OBJECT},
    {"required", USE_OBJECT},
    {"additionalProperties", USE_OBJECT},
};

int schema_refuse(struct schemas *s, int code, const char *keyword, const char *why)
{
    return err_set(s->e, code, "schema: %s.%s: %s", s->path, keyword, why);
}

/* ---- references ---- */

/* One step of a JSON pointer, ~0 and ~1 and %XX undone. */
static bool pointer_step(const char **at, char *out, size_t bytes)
{
    size_t n = 0;
    const char *p = *at;

    if (*p != '/')
        return false;
    for (p++; *p && *p != '/'; p++) {
        unsigned hex;

        if (n + 1 == bytes)
            return false;
        out[n++] = *p;
        if (p[0] == '~' && (p[1] == '0' || p[1] == '1'))
            out[n - 1] = *++p == '0' ? '~' : '/';
        else if (p[0] == '%' && sscanf(p + 1, "%2x", &hex) == 1 && hex && p[1] && p[2]) {
            out[n - 1] = (char)hex;
            p += 2;
        }
    }
    out[n] = '\0';
    *at = p;
    return true;
}

const json_t *schema_resolve(struct schemas *s, const json_t *ref)
{
    const char *at = json_string_value(ref);
    const json_t *x = s->root;
    char step[512], name[160];

    if (at && at[0] == '#')
        for (at++; x && *at;) {
            if (!pointer_step(&at, step, sizeof(step)))
                x = NULL;
            else if (json_is_array(x))
                x = json_array_get(x, (size_t)strtoul(step, NULL, 10));
            else
                x = json_object_get(x, step);
        }
    else
        x = NULL;
    if (!x)
        err_set(s->e, ERR_FORMAT, "schema: %s.$ref: \"%s\" is not in this document", s->path,
                json_printable(name, sizeof(name), at ? json_string_value(ref) : "?",
                               at ? strlen(json_string_value(ref)) : 1));
    return x;
}

/* ---- both schemas at once ---- */

const struct schema_keyword *schema_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++)
        if (!strcmp(keywords[i].name, name))
            return &keywords[i];
    return NULL;
}

json_t *schema_keep(struct schemas *s, json_t *x)
{
    if (!x || json_array_append_new(s->kept, x)) {
        err_set(s->e, ERR_NOMEM, "schema: %s", s->path);
        return NULL;
    }
    return x;
}

static json_t *both_of(struct schemas *s, const json_t *a, const json_t *b)
{
    return schema_keep(s, json_pack("{s:[OO]}", "allOf", a, b));
}

json_t *schema_without(struct schemas *s, const json_t *a, const char *name)
{
    json_t *x = schema_keep(s, json_copy((json_t *)a));

    s->n_merged += json_object_size(a);
    if (x)
        json_object_del(x, name);
    return x;
}

const json_t *schema_plain(struct schemas *s, const json_t *a, unsigned depth)
{
    const json_t *ref, *target;

    if (depth > SCHEMA_CHAIN_MAX) {
        err_set(s->e, ERR_LIMIT, "schema: %s: more than %d references behind each other", s->path,
                SCHEMA_CHAIN_MAX);
        return NULL;
    }
    if (json_is_true(a))
        return schema_keep(s, json_object());
    ref = json_object_get(a, "$ref");
    if (!ref)
        return a;
    target = schema_resolve(s, ref);
    return target ? schema_merge(s, schema_without(s, a, "$ref"), target, depth + 1) : NULL;
}

static json_t *types_both(const json_t *a, const json_t *b)
{
    json_t *x = json_array();

    for (int t = 0; t < TYPES; t++) {
        bool in[2] = {false, false};

        for (int i = 0; i < 2; i++) {
            const json_t *list = i ? b : a;
            size_t n = json_is_array(list) ? json_array_size(list) : 1;

            for (size_t k = 0; k < n; k++) {
                const char *name =
                    json_string_value(json_is_array(list) ? json_array_get(list, k) : list);

                in[i] |= name && (!strcmp(name, schema_type_names[t]) ||
                                  (t == T_INTEGER && !strcmp(name, "number")));
            }
        }
        if (in[0] && in[1])
            json_array_append_new(x, json_string(schema_type_names[t]));
    }
    return x;
}

bool schema_list_has(const json_t *list, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value))
            return true;
    return false;
}

static json_t *enums_both(const json_t *a, const json_t *b)
{
    json_t *x = json_array();

    for (size_t i = 0; i < json_array_size(a); i++)
        if (schema_list_has(b, json_array_get(a, i)))
            json_array_append(x, json_array_get(a, i));
    return x;
}

static json_t *lists_joined(const json_t *a, const json_t *b)
{
    json_t *x = json_copy((json_t *)a);

    if (x)
        json_array_extend(x, (json_t *)b);
    return x;
}

/* One keyword that both have. NULL and an error: they do not go together here. */
static json_t *keyword_both(struct schemas *s, const char *key, json_t *a, json_t *b)
{
    double x = json_number_value(a), y = json_number_value(b);

    if (schema_keyword(key)->use == USE_NOTE || json_equal(a, b))
        return json_incref(a);
    if (!strcmp(key, "type"))
        return types_both(a, b);
    if (!strcmp(key, "enum") && json_is_array(a) && json_is_array(b))
        return enums_both(a, b);
    if (!strcmp(key, "const"))
        return json_incref(a); /* the other one becomes an enum: see merge */
    if ((!strcmp(key, "required") || !strcmp(key, "allOf")) && json_is_array(a) && json_is_array(b))
        return lists_joined(a, b);
    if (json_is_number(a) && json_is_number(b) && strcmp(key, "multipleOf") != 0) {
        bool least = !strncmp(key, "min", 3) || !strcmp(key, "exclusiveMinimum");

        return json_incref((x > y) == least ? a : b);
    }
    if (!strcmp(key, "items") && !json_is_array(a) && !json_is_array(b))
        return json_incref(both_of(s, a, b));
    schema_refuse(s, ERR_UNSUPPORTED, key, "two of them that must hold at once");
    return NULL;
}

const json_t *schema_additional(const json_t *a)
{
    const json_t *x = json_object_get(a, "additionalProperties");

    return x ? x : json_true();
}

/* A property that only one of the schemas names must satisfy what the other says of all others. */
static int properties_add(struct schemas *s, json_t *to, const json_t *from, const json_t *other)
{
    const json_t *rest = schema_additional(other);
    const char *key;
    json_t *value;

    json_object_foreach(json_object_get(from, "properties"), key, value)
    {
        json_t *theirs = json_object_get(json_object_get(other, "properties"), key);
        json_t *x;

        if (json_object_get(to, key))
            continue;
        if (theirs)
            x = both_of(s, value, theirs);
        else
            x = json_is_true(rest) ? value : both_of(s, value, rest);
        s->n_merged++;
        if (!x || json_object_set(to, key, x))
            return s->e->code ? s->e->code : err_set(s->e, ERR_NOMEM, "schema");
    }
    return 0;
}

static bool members_fit(const json_t *schema)
{
    const json_t *p = json_object_get(schema, "properties"),
                 *r = json_object_get(schema, "required");

    return (!p || json_is_object(p)) && (!r || json_is_array(r));
}

static int objects_both(struct schemas *s, json_t *to, const json_t *a, const json_t *b)
{
    const json_t *ra = schema_additional(a), *rb = schema_additional(b);
    json_t *p;
    int rc;

    if (!members_fit(a) || !members_fit(b))
        return err_set(s->e, ERR_FORMAT,
                       "schema: of schemas that must hold at once, one has properties that are no "
                       "object, or required that is no list");
    p = json_object();
    rc = properties_add(s, p, a, b);
    if (!rc)
        rc = properties_add(s, p, b, a);
    if (!rc && json_object_size(p))
        json_object_set(to, "properties", p);
    json_decref(p);
    if (rc || (json_is_true(ra) && json_is_true(rb)))
        return rc;
    if (json_is_true(ra))
        json_object_set(to, "additionalProperties", (json_t *)rb);
    else if (json_is_true(rb) || json_equal(ra, rb))
        json_object_set(to, "additionalProperties", (json_t *)ra);
    else if (json_is_false(ra) || json_is_false(rb))
        json_object_set_new(to, "additionalProperties", json_false());
    else
        json_object_set(to, "additionalProperties", both_of(s, ra, rb));
    return 0;
}

/* A const as an enum of one, so that there is one thing to intersect. */
static const json_t *const_as_enum(struct schemas *s, const json_t *a)
{
    const json_t *value = json_object_get(a, "const");
    json_t *x, *list = json_object_get(a, "enum");

    if (!value)
        return a;
    x = schema_without(s, a, "const");
    if (x)
        json_object_set_new(x, "enum",
                            !list || schema_list_has(list, value) ? json_pack("[O]", value)
                                                                  : json_array());
    return x;
}

/* nullable as one type more, for the same reason. */
static const json_t *nullable_as_type(struct schemas *s, const json_t *a)
{
    json_t *type = json_object_get(a, "type"), *nullable = json_object_get(a, "nullable"), *x;

    if (!nullable)
        return a;
    x = schema_without(s, a, "nullable");
    if (!x || !type || !json_is_true(nullable))
        return x;
    type = json_is_array(type) ? json_copy(type) : json_pack("[O]", type);
    if (type)
        json_array_append_new(type, json_string("null"));
    json_object_set_new(x, "type", type);
    return x;
}

json_t *schema_merge(struct schemas *s, const json_t *a, const json_t *b, unsigned depth)
{
    const char *key;
    json_t *x, *value;

    if (!a || !b)
        return NULL;
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    a = schema_plain(s, a, depth);
    b = a ? schema_plain(s, b, depth) : NULL;
    if (!a || !b)
        return NULL;
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    if (!json_is_object(a) || !json_is_object(b)) {
        err_set(s->e, ERR_FORMAT, "schema: %s: a schema must be an object, true or false", s->path);
        return NULL;
    }
    a = nullable_as_type(s, const_as_enum(s, a));
    b = a ? nullable_as_type(s, const_as_enum(s, b)) : NULL;
    x = b ? schema_keep(s, json_copy((json_t *)a)) : NULL;
    if (!x)
        return NULL;
    s->n_merged += json_object_size(a) + json_object_size(b);
    if (s->n_merged > MERGED_MAX) {
        err_set(s->e, ERR_LIMIT, "schema: %s: merging made %zu members, at most %d", s->path,
                s->n_merged, MERGED_MAX);
        return NULL;
    }
    json_object_foreach((json_t *)b, key, value)
    {
        json_t *have = json_object_get(a, key), *both;

        if (!strcmp(key, "properties") || !strcmp(key, "additionalProperties"))
            continue;
        if (!schema_keyword(key)) {
            schema_refuse(s, ERR_UNSUPPORTED, key, "this keyword is not understood");
            return NULL;
        }
        both = have ? keyword_both(s, key, have, value) : json_incref(value);
        if (!both)
            return NULL;
        json_object_set_new(x, key, both);
    }
    json_object_del(x, "properties");
    json_object_del(x, "additionalProperties");
    return objects_both(s, x, a, b) ? NULL : x;
}
