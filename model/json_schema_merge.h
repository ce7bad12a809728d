/* model/json_schema_merge.h - schemas of one document that must hold at once, as one: allOf, and
 * what stands beside a $ref or an anyOf. A part of json_schema.c.
 */
#ifndef MODEL_JSON_SCHEMA_MERGE_H
#define MODEL_JSON_SCHEMA_MERGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
    SCHEMA_CHAIN_MAX = 64, /* references and alternatives behind each other */
    SCHEMA_PATH_BYTES = 400,
};

enum schema_type { T_NULL, T_BOOLEAN, T_INTEGER, T_NUMBER, T_STRING, T_ARRAY, T_OBJECT, TYPES };
extern const char *const schema_type_names[TYPES];

/* Which values a keyword speaks of; USE_NOTE: none, it asks for nothing. */
enum schema_use { USE_NOTE, USE_ANY, USE_NUMBER, USE_STRING, USE_ARRAY, USE_OBJECT };
struct schema_keyword {
    const char *name;
    enum schema_use use;
};
const struct schema_keyword *schema_keyword(const char *name); /* NULL: not understood */

struct schemas { /* of a document, which is borrowed */
    const json_t *root;
    json_t *kept;                 /* an array that owns what merging made */
    size_t n_merged;              /* members of objects in it */
    char path[SCHEMA_PATH_BYTES]; /* of the schema at hand, for messages */
    struct err *e;
};

/* The error of a keyword of the schema at hand; returns code. */
int schema_refuse(struct schemas *s, int code, const char *keyword, const char *why);

/* Everything below is NULL after an error, and else lives as long as the document and `kept`. */

const json_t *schema_resolve(struct schemas *s, const json_t *ref); /* what $ref names */
/* The same without $ref: that and what stands beside it. depth: 0, or so many $refs before. */
const json_t *schema_plain(struct schemas *s, const json_t *a, unsigned depth);
/* What satisfies both; ERR_UNSUPPORTED: two keywords that do not go together. */
json_t *schema_merge(struct schemas *s, const json_t *a, const json_t *b, unsigned depth);
/* A copy without this member, which is dealt with elsewhere. */
json_t *schema_without(struct schemas *s, const json_t *a, const char *name);
json_t *schema_keep(struct schemas *s, json_t *owned);

const json_t *schema_additional(const json_t *a); /* additionalProperties, true if not said */
bool schema_list_has(const json_t *list, const json_t *value);

#endif
