#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/slurp.h"

#define EXACT_MAX (INT64_C(1) << 53) /* beyond it a double skips integers */

const char *json_printable(char *out, size_t out_bytes, const char *text, size_t len)
{
    size_t n = len < out_bytes - 1 ? len : out_bytes - 1;

    while (n > 0 && n < len && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--; /* not in the middle of a character */
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    out[n] = '\0';
    return out;
}

/* What must hold before a recursive parser sees the text. Agrees with the parser on where strings
 * begin and end as long as the text is JSON; from the first byte that is not, the parser stops. */
static int prescan(const char *text, size_t len, const char *name, struct err *e)
{
    size_t depth = 0, values = 1, number = 0;
    bool string = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (c == '\0')
            return err_set(e, ERR_FORMAT, "%s: JSON error at byte %zu: NUL byte", name, i);
        if (string) {
            if (c == '"')
                string = false;
            else if (c == '\\' && i + 1 < len && text[i + 1] != '\0')
                i++;
            continue;
        }
        number = (c >= '0' && c <= '9') || strchr("+-.eE", c) ? number + 1 : 0;
        if (number > JSON_NUMBER_MAX)
            return err_set(e, ERR_FORMAT,
                           "%s: JSON error at byte %zu: number of more than %d characters", name, i,
                           JSON_NUMBER_MAX);
        if (c == '"')
            string = true;
        else if ((c == '[' || c == '{') && ++depth > JSON_DEPTH_MAX + 1)
            return err_set(e, ERR_LIMIT, "%s: nested deeper than %d at byte %zu", name,
                           JSON_DEPTH_MAX, i);
        else if ((c == ']' || c == '}') && depth)
            depth--;
        if ((c == ',' || c == '[' || c == '{') && ++values > JSON_VALUES_MAX)
            return err_set(e, ERR_LIMIT, "%s: more than %d values at byte %zu", name,
                           JSON_VALUES_MAX, i);
    }
    return 0;
}

/* jansson noticed a repeated key just after its closing quote, which is text[end - 1]. */
static int duplicate_key(const char *text, size_t end, const char *name, struct err *e)
{
    size_t begin = end ? end - 1 : 0;
    char key[96];

    while (begin > 0) { /* to the quote that no odd number of backslashes escapes */
        size_t escapes = 0;

        if (text[--begin] != '"')
            continue;
        while (escapes < begin && text[begin - 1 - escapes] == '\\')
            escapes++;
        if (escapes % 2 == 0)
            break;
    }
    if (end < begin + 2)
        return err_set(e, ERR_FORMAT, "%s: duplicate key", name);
    return err_set(e, ERR_FORMAT, "%s: duplicate key \"%s\"", name,
                   json_printable(key, sizeof(key), text + begin + 1, end - begin - 2));
}

int json_parse(json_t **out, const char *text, size_t len, const char *name, struct err *e)
{
    json_error_t error;
    json_t *root;
    char what[JSON_ERROR_TEXT_LENGTH];

    if (prescan(text, len, name, e))
        return e->code;
    root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (root) {
        *out = root;
        return 0;
    }
    if (json_error_code(&error) == json_error_duplicate_key && error.position > 0 &&
        (size_t)error.position <= len)
        return duplicate_key(text, (size_t)error.position, name, e);
    if (json_error_code(&error) == json_error_null_character)
        return err_set(e, ERR_FORMAT, "%s: a NUL character (\\u0000) before byte %d", name,
                       error.position);
    if (json_error_code(&error) == json_error_out_of_memory)
        return err_set(e, ERR_NOMEM, "%s", name);
    return err_set(e, ERR_FORMAT, "%s: JSON error at byte %d: %s", name, error.position,
                   json_printable(what, sizeof(what), error.text, strlen(error.text)));
}

int json_parse_file(json_t **out, int dirfd, const char *file, size_t max_bytes, struct err *e)
{
    char *text;
    size_t n;
    int rc;

    if (slurp(&text, &n, dirfd, file, max_bytes, e))
        return e->code;
    if (!text)
        return err_open(e, ENOENT, dirfd, file);
    rc = n ? json_parse(out, text, n, file, e)
           : err_set(e, ERR_FORMAT, "%s: it is empty (an incomplete copy?)", file);
    free(text);
    return rc;
}

struct json_at json_root(const json_t *object, const char *name)
{
    struct json_at at = {.object = object};

    snprintf(at.path, sizeof(at.path), "%s", name);
    return at;
}

/* What stands between a path and a member of it. */
static const char *separator(const char *path)
{
    size_t n = strlen(path);

    if (n == 0)
        return "";
    return n >= 5 && !strcmp(path + n - 5, ".json") ? ": " : ".";
}

static int wrong_type(const struct json_at *at, const char *key, const char *type, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s%s%s must be %s", at->path, separator(at->path), key, type);
}

/* NULL for what is absent, and for null. */
static const json_t *member(const struct json_at *at, const char *key)
{
    const json_t *value = at->object ? json_object_get(at->object, key) : NULL;

    return json_is_null(value) ? NULL : value;
}

int json_enter(struct json_at *out, const struct json_at *at, const char *key, struct err *e)
{
    const json_t *value = member(at, key);
    struct json_at inner = {.object = value};

    if (value && !json_is_object(value))
        return wrong_type(at, key, "an object", e);
    snprintf(inner.path, sizeof(inner.path), "%.120s%s%.32s", at->path, separator(at->path), key);
    *out = inner;
    return 0;
}

bool json_exact_int(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        json_int_t v = json_integer_value(value);

        if (v < -EXACT_MAX || v > EXACT_MAX)
            return false;
        *out = v;
        return true;
    }
    if (json_is_real(value)) {
        double v = json_real_value(value);

        if (!(fabs(v) <= (double)EXACT_MAX) || v != trunc(v))
            return false;
        *out = (int64_t)v;
        return true;
    }
    return false;
}

int json_get_int(int64_t *out, const struct json_at *at, const char *key, int64_t fallback,
                 int64_t lo, int64_t hi, struct err *e)
{
    const json_t *value = member(at, key);
    const char *sep = separator(at->path);
    int64_t v;

    if (!value) {
        *out = fallback;
        return 0;
    }
    if (!json_is_number(value))
        return wrong_type(at, key, "an integer", e);
    if (!json_exact_int(value, &v)) {
        if (json_is_integer(value))
            return err_set(e, ERR_FORMAT, "%s%s%s: \"%" PRId64 "\" is not an integer up to 2^53",
                           at->path, sep, key, (int64_t)json_integer_value(value));
        return err_set(e, ERR_FORMAT, "%s%s%s: \"%.17g\" is not an integer", at->path, sep, key,
                       json_real_value(value));
    }
    if (v < lo || v > hi)
        return err_set(e, ERR_FORMAT, "%s%s%s = %" PRId64 " is out of range %" PRId64 "...%" PRId64,
                       at->path, sep, key, v, lo, hi);
    *out = v;
    return 0;
}

int json_get_int_named(int64_t *out, const char **name, const struct json_at *at, const char *key,
                       const char *alias, int64_t fallback, int64_t lo, int64_t hi, struct err *e)
{
    const json_t *a = member(at, key), *b = alias ? member(at, alias) : NULL;
    int64_t x, y;

    if (json_exact_int(a, &x) && json_exact_int(b, &y) && x != y)
        return err_set(e, ERR_FORMAT, "%s: %s is %" PRId64 ", but %s is %" PRId64, at->path, key, x,
                       alias, y);
    *name = b && !a ? alias : key;
    return json_get_int(out, at, *name, fallback, lo, hi, e);
}

int json_get_f64(double *out, const struct json_at *at, const char *key, double fallback,
                 struct err *e)
{
    const json_t *value = member(at, key);

    if (value && !json_is_number(value))
        return wrong_type(at, key, "a number", e);
    *out = value ? json_number_value(value) : fallback;
    return 0;
}

int json_get_flag(bool *out, const struct json_at *at, const char *key, struct err *e)
{
    const json_t *value = member(at, key);

    if (value && !json_is_boolean(value))
        return wrong_type(at, key, "true or false", e);
    *out = json_is_true(value);
    return 0;
}

int json_get_text(const char **out, const struct json_at *at, const char *key, struct err *e)
{
    const json_t *value = member(at, key);

    if (value && !json_is_string(value))
        return wrong_type(at, key, "a string", e);
    *out = value ? json_string_value(value) : NULL;
    return 0;
}

int json_get_array(const json_t **out, const struct json_at *at, const char *key, struct err *e)
{
    const json_t *value = member(at, key);

    if (value && !json_is_array(value))
        return wrong_type(at, key, "an array", e);
    *out = value;
    return 0;
}
