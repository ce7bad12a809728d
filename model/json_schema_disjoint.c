/* json_schema_disjoint.c - can one value satisfy two schemas? Two alternatives of oneOf must be
 * known to have none in common. */
#include "model/json_schema_values.h"

/* Values of which every alternative allows one of its own, or NULL: its enum or const. */
static json_t *only_values(const json_t *schema)
{
    json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");

    if (one)
        return json_pack("[O]", one);
    return list ? json_incref(list) : NULL;
}

static bool lists_disjoint(const json_t *a, const json_t *b)
{
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *x = json_array_get(a, i);

        for (size_t k = 0; k < json_array_size(b); k++) {
            const json_t *y = json_array_get(b, k);

            if (json_equal(x, y) || (json_is_number(x) && json_is_number(y)))
                return false; /* 1 and 1.0 are one value: not looked at closely */
        }
    }
    return true;
}

static bool values_disjoint(const json_t *a, const json_t *b)
{
    json_t *x = only_values(a), *y = only_values(b);
    bool yes = x && y && lists_disjoint(x, y);

    json_decref(x);
    json_decref(y);
    return yes;
}

/* Both need a property that cannot have a value of both: what tells them apart. */
static bool tags_disjoint(const json_t *a, const json_t *b)
{
    const json_t *need = json_object_get(a, "required"), *also = json_object_get(b, "required");

    for (size_t i = 0; i < json_array_size(need); i++) {
        const char *name = json_string_value(json_array_get(need, i));

        if (name && schema_list_has(also, json_array_get(need, i)) &&
            values_disjoint(json_object_get(json_object_get(a, "properties"), name),
                            json_object_get(json_object_get(b, "properties"), name)))
            return true;
    }
    return false;
}

int schemas_disjoint(struct reader *s, const json_t *a, const json_t *b, bool *yes)
{
    unsigned ta, tb;

    if (!json_is_object(a) || !json_is_object(b)) {
        *yes = json_is_false(a) || json_is_false(b);
        return 0;
    }
    if (types_read(s, a, &ta) || types_read(s, b, &tb))
        return s->doc.e->code;
    if (ta & 1u << T_NUMBER)
        ta |= 1u << T_INTEGER;
    if (tb & 1u << T_NUMBER)
        tb |= 1u << T_INTEGER;
    *yes = json_object_get(a, "type") && json_object_get(b, "type") && !(ta & tb);
    if (!*yes && json_object_get(a, "type") && json_object_get(b, "type") &&
        !(ta & tb & ~(1u << T_OBJECT)))
        *yes = tags_disjoint(a, b);
    if (!*yes)
        *yes = values_disjoint(a, b);
    return 0;
}
