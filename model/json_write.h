/* model/json_write.h - JSON text, byte for byte as the models were shown it.
 *
 * Strings: only quote, backslash and controls below 0x20 are escaped. Numbers as Python prints
 * them: integers exactly, others shortest with ".0" or an exponent; one beyond double's range stays
 * as it was written.
 */
#ifndef MODEL_JSON_WRITE_H
#define MODEL_JSON_WRITE_H

#include "model/json_tree.h"

enum json_style {
    JSON_SPACED, /* ", " and ": ", members in order */
    JSON_TIGHT,  /* "," and ":", members in order */
    JSON_SORTED, /* "," and ":", members by code point, at every depth */
};

/* Failure sticks in b. */
void json_write(struct buf *b, const struct node *node, enum json_style style);
void json_write_string(struct buf *b, struct str s);        /* with its quotes */
void json_write_double(struct buf *b, double v);            /* finite */
void json_write_characters(struct buf *b, struct str part); /* of a string that comes in parts */

#endif
