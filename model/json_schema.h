/* model/json_schema.h - a JSON schema -> rules for the texts of values that it allows
 * (docs/CONSTRAINED.md says which keywords, and which texts of a value). */
#ifndef MODEL_JSON_SCHEMA_H
#define MODEL_JSON_SCHEMA_H

#include "model/rules.h"

/* r->root allows values of this schema, without white space around. ERR_UNSUPPORTED names a
 * keyword that is not understood and where it stands. */
int json_schema_read(struct rules *r, const char *text, size_t len, struct err *e);

/* The same for objects, written as the arguments of a call in XTML (docs/CHAT.md): each member an
 * element that says its type, strings as they are and not as JSON. These are its control tokens. */
struct argument_marks {
    int32_t open, close, sep;
};
int json_schema_read_arguments(struct rules *r, const char *text, size_t len,
                               const struct argument_marks *marks, struct err *e);

#endif
