/* base/json.h - jansson with our limits, for text that nobody vouches for.
 *
 * json_parse refuses NUL bytes, invalid UTF-8, trailing bytes, duplicate keys, non-finite numbers
 * and nesting deeper than JSON_DEPTH_MAX below the root. The getters name the full path of the
 * offending value ("config.linear_attn_config.head_dim = 70000 is out of range 0...65536").
 * Values are jansson's; the root is the caller's to json_decref.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    JSON_DEPTH_MAX = 64,       /* containers below the root */
    JSON_VALUES_MAX = 1 << 22, /* values in one text */
    JSON_NUMBER_MAX = 63,      /* characters of a number */
};

/* Parse len bytes of the file called `name` (for messages). The root is an object or an array.
 * ERR_FORMAT; ERR_LIMIT: nested too deep, too many values. */
int json_parse(json_t **out, const char *text, size_t len, const char *name, struct err *e);

/* Read a regular file of 1...max_bytes bytes below dirfd and parse it. ERR_LIMIT: it has more;
 * ERR_FORMAT: none, or as json_parse; ERR_IO: it cannot be read, or is no regular file. */
int json_parse_file(json_t **out, int dirfd, const char *file, size_t max_bytes, struct err *e);

/* An object and the path that leads to it, for messages: {root, "manifest.json"}. A member's path
 * is "manifest.json: config" below a path that ends in ".json", else "config.hidden_size". */
struct json_at {
    const json_t *object; /* NULL: as an empty object */
    char path[160];
};

struct json_at json_root(const json_t *object, const char *name);
/* Step into a member: absent or null gives object NULL; another type is ERR_FORMAT. */
int json_enter(struct json_at *out, const struct json_at *at, const char *key, struct err *e);

/* Neither absent nor null: the getters below take these for one. */
static inline bool json_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* Absent (or null) members leave *out at fallback. An integer written as 8.0 or 8e0 is one;
 * 8.5 and values beyond 2^53 are not. ERR_FORMAT for a wrong type or a value outside [lo, hi]. */
int json_get_int(int64_t *out, const struct json_at *at, const char *key, int64_t fallback,
                 int64_t lo, int64_t hi, struct err *e);
/* The same under either of two names: key, or alias (NULL: there is none) where only that is given,
 * and *name is the one read. Both given with different integers: ERR_FORMAT, for an edit of the one
 * would go unseen. */
int json_get_int_named(int64_t *out, const char **name, const struct json_at *at, const char *key,
                       const char *alias, int64_t fallback, int64_t lo, int64_t hi, struct err *e);
int json_get_f64(double *out, const struct json_at *at, const char *key, double fallback,
                 struct err *e);
/* true, false; null and absent are false. Anything else: ERR_FORMAT "... must be true or false". */
int json_get_flag(bool *out, const struct json_at *at, const char *key, struct err *e);
/* Borrowed from the object; NULL when absent or null. */
int json_get_text(const char **out, const struct json_at *at, const char *key, struct err *e);
/* Borrowed array, or NULL when absent or null. */
int json_get_array(const json_t **out, const struct json_at *at, const char *key, struct err *e);
/* The same reading of "integer" for an array element; false when it is none. */
bool json_exact_int(const json_t *value, int64_t *out);

/* Untrusted text, fit for a message: control bytes become '?', what does not fit is cut. Returns
 * out. */
const char *json_printable(char *out, size_t out_bytes, const char *text, size_t len);

#endif
