#include "model/specials.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

#define JSON_BYTES_MAX (4u << 20)
#define SPECIALS_MAX   16384u

static int id_order(const void *a, const void *b)
{
    const struct special *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int text_order(const void *a, const void *b)
{
    const struct special *x = *(const struct special *const *)a;
    const struct special *y = *(const struct special *const *)b;

    if (x->text[0] != y->text[0])
        return (unsigned char)x->text[0] < (unsigned char)y->text[0] ? -1 : 1;
    if (x->len != y->len)
        return x->len > y->len ? -1 : 1;
    return memcmp(x->text, y->text, x->len);
}

static int entry_check(const json_t *entry, size_t nth, uint32_t id_min, uint32_t id_end,
                       struct err *e)
{
    const json_t *id = json_object_get(entry, "id"), *text = json_object_get(entry, "text");

    if (!json_is_integer(id) || !json_is_string(text))
        return err_set(e, ERR_FORMAT, "entry %zu must be {\"id\": integer, \"text\": string}", nth);
    if (!json_string_length(text))
        return err_set(e, ERR_FORMAT, "entry %zu: text is empty", nth);
    if (json_integer_value(id) < 0 || json_integer_value(id) >= id_end)
        return err_set(e, ERR_FORMAT, "entry %zu: id %lld is not in [0, %u)", nth,
                       (long long)json_integer_value(id), id_end);
    if (json_integer_value(id) < id_min)
        return err_set(e, ERR_FORMAT, "entry %zu: id %lld is an ordinary token, those end at %u",
                       nth, (long long)json_integer_value(id), id_min);
    return 0;
}

static int specials_load(struct specials *s, const json_t *root, uint32_t id_min, uint32_t id_end,
                         struct err *e)
{
    size_t n = json_array_size(root);
    char *to;

    if (!json_is_array(root))
        return err_set(e, ERR_FORMAT, "must be an array");
    if (n > SPECIALS_MAX)
        return err_set(e, ERR_LIMIT, "%zu entries, more than %u", n, SPECIALS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (entry_check(json_array_get(root, i), i, id_min, id_end, e))
            return e->code;
        s->text_bytes += json_string_length(json_object_get(json_array_get(root, i), "text"));
    }
    s->text = to = malloc(s->text_bytes + 1);
    s->list = calloc(n + 1, sizeof(*s->list));
    s->by_text = calloc(n + 1, sizeof(*s->by_text));
    if (!to || !s->list || !s->by_text)
        return err_set(e, ERR_NOMEM, "%zu entries", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(root, i), *text = json_object_get(entry, "text");

        s->list[i].id = (int32_t)json_integer_value(json_object_get(entry, "id"));
        s->list[i].len = json_string_length(text);
        s->list[i].text = memcpy(to, json_string_value(text), s->list[i].len);
        to += s->list[i].len;
    }
    s->n = (uint32_t)n;
    return 0;
}

/* Sort both ways; equal neighbours are duplicates. */
static int specials_index(struct specials *s, struct err *e)
{
    qsort(s->list, s->n, sizeof(*s->list), id_order);
    for (uint32_t i = 0; i < s->n; i++)
        s->by_text[i] = &s->list[i];
    qsort(s->by_text, s->n, sizeof(*s->by_text), text_order);
    for (uint32_t i = 1; i < s->n; i++) {
        const struct special *a = s->by_text[i - 1], *b = s->by_text[i];

        if (s->list[i - 1].id == s->list[i].id)
            return err_set(e, ERR_FORMAT, "id %d is there twice", (int)s->list[i].id);
        if (a->len == b->len && !memcmp(a->text, b->text, a->len))
            return err_set(e, ERR_FORMAT, "ids %d and %d have the same text", (int)a->id,
                           (int)b->id);
    }
    for (uint32_t i = 0, b = 0; b <= 256; b++) {
        while (i < s->n && (unsigned char)s->by_text[i]->text[0] < b)
            i++;
        s->first[b] = i;
    }
    return 0;
}

int specials_parse(struct specials *s, const char *json, size_t len, uint32_t id_min,
                   uint32_t id_end, struct err *e)
{
    json_error_t why;
    json_t *root;
    int rc;

    if (len > JSON_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "%zu bytes, more than %u", len, JSON_BYTES_MAX);
    root = json_loadb(json, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!root && json_error_code(&why) == json_error_out_of_memory)
        return err_set(e, ERR_NOMEM, "%zu bytes of JSON", len);
    if (!root)
        return err_set(e, ERR_FORMAT, "JSON error at byte %d: %s", why.position, why.text);
    rc = specials_load(s, root, id_min, id_end, e);
    json_decref(root);
    return rc ? rc : specials_index(s, e);
}

void specials_release(struct specials *s)
{
    free(s->text);
    free(s->by_text);
    free(s->list);
    *s = (struct specials){0};
}

const struct special *specials_here(const struct specials *s, const char *text, size_t len)
{
    unsigned char b = (unsigned char)*text;

    for (uint32_t i = s->first[b]; i < s->first[b + 1]; i++)
        if (s->by_text[i]->len <= len && !memcmp(s->by_text[i]->text, text, s->by_text[i]->len))
            return s->by_text[i];
    return NULL;
}

const struct special *specials_of(const struct specials *s, int32_t id)
{
    struct special key = {.id = id};

    return s->n ? bsearch(&key, s->list, s->n, sizeof(key), id_order) : NULL;
}

size_t specials_bytes(const struct specials *s)
{
    return s->text_bytes + s->n * (sizeof(*s->list) + sizeof(*s->by_text));
}
