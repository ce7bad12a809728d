/* model/json_schema.h - a JSON schema -> rules for the texts of values that it allows
 * (docs/CONSTRAINED.md says which keywords, and which texts of a value). */
#ifndef MODEL_JSON_SCHEMA_H
#define MODEL_JSON_SCHEMA_H

#include "model/rules.h"

/* r->root allows values of this schema, without white space around. ERR_UNSUPPORTED names a
 * keyword that is not understood and where it stands. */
int json_schema_read(struct rules *r, const char *text, size_t len, struct err *e);

#endif
