#include "model/json_literal.h"

#include <stdio.h>

enum { DIGITS_EXACT = 17, NUMBER_BYTES = 40 };

static void put_real(struct buf *b, double v)
{
    char text[NUMBER_BYTES];

    for (int digits = 1; digits <= DIGITS_EXACT; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    for (char *p = text; *p; p++)
        if (*p == ',') /* as some locales write it */
            *p = '.';
    buf_put(b, text, strlen(text));
    if (!strpbrk(text, ".e"))
        buf_str(b, STR(".0")); /* it was no integer in the schema */
}

static void put_other(struct buf *b, const json_t *x)
{
    char *text = json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT);

    if (text)
        buf_put(b, text, strlen(text));
    else
        b->failed = true;
    free(text);
}

static void put_key(struct buf *b, const char *key)
{
    json_t *name = json_string(key);

    put_other(b, name);
    json_decref(name);
    buf_str(b, STR(":"));
}

void json_literal(struct buf *b, const json_t *x)
{
    const char *key;
    json_t *value;
    size_t i;

    if (json_is_real(x)) {
        put_real(b, json_real_value(x));
    } else if (json_is_array(x)) {
        buf_str(b, STR("["));
        json_array_foreach((json_t *)x, i, value)
        {
            if (i)
                buf_str(b, STR(","));
            json_literal(b, value);
        }
        buf_str(b, STR("]"));
    } else if (json_is_object(x)) {
        size_t n = 0;

        buf_str(b, STR("{"));
        json_object_foreach((json_t *)x, key, value)
        {
            if (n++)
                buf_str(b, STR(","));
            put_key(b, key);
            json_literal(b, value);
        }
        buf_str(b, STR("}"));
    } else {
        put_other(b, x);
    }
}
