#include "model/json_literal.h"

#include "model/json_write.h"

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
        json_write_double(b, json_real_value(x));
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
