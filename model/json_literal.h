/* model/json_literal.h - a JSON value as text, numbers as short as they can be. */
#ifndef MODEL_JSON_LITERAL_H
#define MODEL_JSON_LITERAL_H

#include <jansson.h>

#include "base/buf.h"

/* Compact. A number gets the fewest digits that read back as the same one: 19.99, and not
 * 19.989999999999998, which a reader of decimals takes for another. Memory that runs out is
 * b->failed. */
void json_literal(struct buf *b, const json_t *x);

#endif
