/* model/json_schema_values.h - what the files that compile a schema share: json_schema.c (schemas,
 * alternatives), json_schema_values.c (strings, numbers, arrays, objects), json_schema_disjoint.c
 * (oneOf).
 */
#ifndef MODEL_JSON_SCHEMA_VALUES_H
#define MODEL_JSON_SCHEMA_VALUES_H

#include <jansson.h>

#include "model/intern.h"
#include "model/json_schema.h"
#include "model/json_schema_merge.h"

/* How a value is written. */
enum form {
    FORM_JSON,
    FORM_TYPED,     /* XTML: what follows an argument's key: its type, then the value */
    FORM_ARGUMENTS, /* XTML: an object as elements */
};

struct wanted { /* a schema whose rule is still to be made */
    const json_t *schema;
    uint32_t rule;
    enum form form;
    char *path;
};

struct reader {
    struct rules *r;
    struct schemas doc;
    struct intern schema; /* address of a schema, form -> its rule */
    uint32_t *rule_of;
    struct wanted *wanted;
    size_t n_wanted, cap_wanted, cap_rule_of;
    uint32_t space, any;
    uint64_t work;
    struct argument_marks marks;
};

/* The rule of a schema that is at hand in s->doc.path, one step further. */
uint32_t schema_rule(struct reader *s, const json_t *schema, const char *step, enum form form);

/* Values of one type: an expression for those that the keywords allow. */
int string_value(struct reader *s, const json_t *schema, uint32_t *out);
/* A string as it is, between two control tokens: any characters but NUL. */
int raw_string_value(struct reader *s, const json_t *schema, uint32_t *out);
int number_value(struct reader *s, const json_t *schema, bool integer, uint32_t *out);
int array_value(struct reader *s, const json_t *schema, uint32_t *out);
int object_value(struct reader *s, const json_t *schema, enum form form, uint32_t *out);
/* Any pairs of any keys and of any values, or none. */
uint32_t any_members(struct reader *s);

/* The types that a schema names, as bits; 0: none. */
int types_read(struct reader *s, const json_t *schema, unsigned *types);
/* Is there no value that both allow, as far as types, constants and tags tell? */
int schemas_disjoint(struct reader *s, const json_t *a, const json_t *b, bool *yes);

#endif
