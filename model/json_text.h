/* model/json_text.h - automata for the JSON texts of strings, of strings that match a pattern, and
 * of numbers in a range. json_string.c, json_pattern.c, json_number.c.
 *
 * The last two may allow less than the schema does, and never more: an answer needs one spelling of
 * a value, not all. An automaton that matches nothing has n = 0.
 */
#ifndef MODEL_JSON_TEXT_H
#define MODEL_JSON_TEXT_H

#include <jansson.h>

#include "model/dfa.h"

enum spelling {
    ANY_SPELLING,
    ONE_SPELLING, /* of each character: texts are equal where their bytes are */
    NO_ESCAPES,   /* an attribute of markup: no character that would be written otherwise there */
};

enum { STRING_START, STRING_BODY }; /* states: waits for the quote; between two characters */

/* Any string, with its quotes. NULL: see e. */
struct dfa *json_text_string(enum spelling spelling, struct err *e);
/* The same of min to max characters. NULL: no memory, or too many states. */
struct dfa *json_text_counted(uint32_t min, uint32_t max, struct err *e);

/* Strings in which an ECMA-262 regular expression, UTF-8, is found: with their quotes; raw: their
 * characters as they are, any but NUL. Taken from *work. ERR_UNSUPPORTED names what an automaton
 * cannot do, ERR_LIMIT: too large. */
int json_text_pattern(struct dfa **out, const char *pattern, size_t len, bool raw, uint64_t *work,
                      struct err *e);

/* The pattern of a format; NULL: none that we know. */
const char *json_text_format(const char *name);
extern const char json_text_formats[]; /* their names */

struct number_range { /* of JSON values, borrowed; NULL: none */
    const json_t *minimum, *maximum, *above, *below, *multiple;
    bool integer;
};

/* ERR_UNSUPPORTED, ERR_FORMAT name the keyword. */
int json_text_number(struct dfa **out, const struct number_range *range, uint64_t *work,
                     struct err *e);

#endif
