#include "expertfs/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

enum { LENGTH_BYTES = 8 }; /* of the header's length, before the header */

#define HEADER_BYTES_MAX ((uint64_t)100 << 20)

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[STORED_DTYPES] = {
    [SOURCE_F32] = {"F32", 4},         [SOURCE_F16] = {"F16", 2},
    [SOURCE_BF16] = {"BF16", 2},       [SOURCE_F8_E4M3] = {"F8_E4M3", 1},
    [SOURCE_F8_E5M2] = {"F8_E5M2", 1}, [STORED_U8] = {"U8", 1},
    [STORED_I8] = {"I8", 1},
};

const char *stored_dtype_name(unsigned dtype)
{
    return dtypes[dtype].name;
}

const char *stored_shape_text(char *out, size_t out_bytes, const struct stored *s)
{
    size_t n = 0;

    if (!s)
        return "(missing)";
    for (unsigned i = 0; i < s->rank; i++)
        n += (size_t)snprintf(out + n, out_bytes - n, "%s%" PRIu32, i ? "," : "[", s->dim[i]);
    snprintf(out + n, out_bytes - n, "]");
    return out;
}

bool stored_name_fits(const char *name)
{
    size_t n = strlen(name);

    if (n < 1 || n > STORED_NAME_MAX)
        return false;
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7f)
            return false;
    return true;
}

int stored_name_bad(const char *file, const char *name, struct err *e)
{
    char clean[64];

    return err_set(e, ERR_FORMAT, "%s: bad tensor name \"%s\" (%zu bytes)", file,
                   json_printable(clean, sizeof(clean), name, strlen(name)), strlen(name));
}

static int too_short(const struct file *f, uint64_t needs, struct err *e)
{
    return err_set(e, ERR_IO,
                   "%s: %" PRIu64 " bytes, header needs %" PRIu64 "; finish the download first",
                   f->name, f->bytes, needs);
}

/* What came in the place of a header; e already says why, or is without a code. */
static int no_header(const struct file *f, uint64_t length, struct err *e)
{
    static const char what[] = "%s: not a safetensors file (header length %" PRIu64 ")";

    return e->code ? err_wrap(e, what, f->name, length)
                   : err_set(e, ERR_FORMAT, what, f->name, length);
}

/* The JSON header. data: offset of the data area. */
static int header_read(json_t **out, uint64_t *data, const struct file *f, struct err *e)
{
    uint8_t head[LENGTH_BYTES];
    uint64_t length;
    char *text;
    int code;

    e->code = 0;
    if (f->bytes < LENGTH_BYTES)
        return too_short(f, LENGTH_BYTES, e);
    if (file_read(f, head, LENGTH_BYTES, 0, e))
        return e->code;
    length = load_le64(head);
    if (length < 2 || length > HEADER_BYTES_MAX)
        return no_header(f, length, e);
    *data = LENGTH_BYTES + length;
    if (*data > f->bytes)
        return too_short(f, *data, e);
    text = malloc(length);
    if (!text)
        return err_set(e, ERR_NOMEM, "%s: header of %" PRIu64 " bytes", f->name, length);
    code = file_read(f, text, length, LENGTH_BYTES, e);
    if (!code && json_parse(out, text, length, "header", e))
        code = no_header(f, length, e);
    free(text);
    if (!code && !json_is_object(*out)) {
        json_decref(*out);
        code = no_header(f, length, e);
    }
    return code;
}

/* __metadata__ is no tensor and holds strings. */
static int metadata_check(json_t *header, const struct file *f, struct err *e)
{
    json_t *metadata = json_object_get(header, "__metadata__"), *value;
    const char *key;

    if (metadata && !json_is_object(metadata))
        return err_set(e, ERR_FORMAT, "%s: __metadata__ must be an object", f->name);
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return err_set(
        e, ERR_FORMAT, "%s: __metadata__ must hold strings", f->name);
    return 0;
}

static int dtype_read(struct stored *s, const struct json_at *at, struct err *e)
{
    const char *text;
    char clean[48];

    if (json_get_text(&text, at, "dtype", e))
        return e->code;
    for (unsigned i = 0; text && i < STORED_DTYPES; i++)
        if (dtypes[i].name && !strcmp(text, dtypes[i].name)) {
            s->dtype = i;
            return 0;
        }
    text = text ? text : "(absent)";
    return err_set(e, ERR_UNSUPPORTED, "%s: dtype %s is not supported", s->name,
                   json_printable(clean, sizeof(clean), text, strlen(text)));
}

/* Shape, and the bytes it needs. */
static int shape_read(struct stored *s, const struct json_at *at, struct err *e)
{
    const json_t *shape;
    size_t rank;

    if (json_get_array(&shape, at, "shape", e))
        return e->code;
    if (!shape)
        return err_set(e, ERR_FORMAT, "%s: shape is absent", s->name);
    rank = json_array_size(shape);
    if (rank < 1 || rank > 4)
        return err_set(e, ERR_UNSUPPORTED, "%s: %zu dimensions are not supported, only 1 to 4 are",
                       s->name, rank);
    s->bytes = dtypes[s->dtype].bytes;
    for (size_t i = 0; i < rank; i++) {
        int64_t dim;

        if (!json_exact_int(json_array_get(shape, i), &dim) || dim < 1 || dim > INT32_MAX ||
            __builtin_mul_overflow(s->bytes, (uint64_t)dim, &s->bytes))
            return err_set(e, ERR_FORMAT, "%s: dimension %zu of its shape is impossible", s->name,
                           i);
        s->dim[i] = (uint32_t)dim;
    }
    s->rank = (unsigned)rank;
    return 0;
}

/* One member of the header. data: where the data area begins. */
static int tensor_read(struct stored *s, const json_t *value, const struct file *f, uint64_t data,
                       struct err *e)
{
    struct json_at at = json_root(value, s->name);
    const json_t *offsets;
    int64_t begin, end;

    if (!stored_name_fits(s->name))
        return stored_name_bad(f->name, s->name, e);
    if (!json_is_object(value))
        return err_set(e, ERR_FORMAT, "%s: \"%s\" must be an object", f->name, s->name);
    if (dtype_read(s, &at, e) || shape_read(s, &at, e) ||
        json_get_array(&offsets, &at, "data_offsets", e))
        return err_wrap(e, "%s", f->name);
    if (json_array_size(offsets) != 2 || !json_exact_int(json_array_get(offsets, 0), &begin) ||
        !json_exact_int(json_array_get(offsets, 1), &end))
        return err_set(e, ERR_FORMAT, "%s: \"%s\" data_offsets must be two integers", f->name,
                       s->name);
    if (begin < 0 || end < begin || (uint64_t)(end - begin) != s->bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: \"%s\" occupies bytes %" PRId64 "...%" PRId64 ", shape needs %" PRIu64,
                       f->name, s->name, begin, end, s->bytes);
    s->off = data + (uint64_t)begin;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct stored *x = a, *y = b;

    return x->off < y->off ? -1 : x->off > y->off;
}

/* No two tensors overlap, and the file holds them all. Sorts the list. */
static int places_check(struct stored *list, unsigned n, const struct file *f, struct err *e)
{
    uint64_t end = 0;

    qsort(list, n, sizeof(*list), by_offset);
    for (unsigned i = 0; i < n; i++) {
        if (list[i].off < end)
            return err_set(e, ERR_FORMAT, "%s: \"%.100s\" and \"%.100s\" overlap", f->name,
                           list[i - 1].name, list[i].name);
        end = list[i].off + list[i].bytes;
    }
    return end > f->bytes ? too_short(f, end, e) : 0;
}

static int tensors_read(struct stored *list, unsigned *n, json_t *header, uint64_t data,
                        const struct file *f, struct err *e)
{
    const char *name;
    json_t *value;

    *n = 0;
    if (metadata_check(header, f, e))
        return e->code;
    json_object_foreach(header, name, value)
    {
        struct stored *s = &list[*n];

        if (!strcmp(name, "__metadata__"))
            continue;
        s->name = (char *)name;
        if (tensor_read(s, value, f, data, e))
            return e->code;
        ++*n;
    }
    return places_check(list, *n, f, e);
}

int shard_read(struct stored **list, unsigned *n, json_t **header, const struct file *f,
               struct err *e)
{
    struct stored *s;
    json_t *root;
    uint64_t data = 0;
    int code;

    if (header_read(&root, &data, f, e))
        return e->code;
    s = calloc(json_object_size(root) + 1, sizeof(*s));
    code = s ? tensors_read(s, n, root, data, f, e)
             : err_set(e, ERR_NOMEM, "%s: %zu tensors", f->name, json_object_size(root));
    if (code) {
        free(s);
        json_decref(root);
        return code;
    }
    *list = s;
    *header = root;
    return 0;
}
