#include "cli/bench/routes.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/list.h"

struct reader {
    struct routes r;
    size_t calls_room, ids_room, guesses_room;
    bool native;
    unsigned n_fields;                   /* of a native line */
    int64_t position;                    /* of the last native line; -1: none */
    int16_t index_of[ROUTES_LAYERS_MAX]; /* of a native layer; -1: not seen */
    uint32_t seen[ROUTES_ID_MAX + 1];    /* the call that an id was last in, and one */
};

void routes_release(struct routes *r)
{
    free(r->call);
    free(r->id);
    free(r->guess);
    memset(r, 0, sizeof(*r));
}

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "routing trace");
}

static int begin_call(struct reader *d, unsigned layer, struct err *e)
{
    struct routes *r = &d->r;

    if (!list_room(&r->call, &d->calls_room, r->n_calls + 1, sizeof(*r->call)))
        return no_memory(e);
    r->call[r->n_calls++] =
        (struct route_call){.first = (uint32_t)r->n_ids, .layer = (uint16_t)layer};
    return 0;
}

static int add_id(struct reader *d, int64_t id, struct err *e)
{
    struct routes *r = &d->r;
    struct route_call *c = &r->call[r->n_calls - 1];

    if (id < 0 || id > ROUTES_ID_MAX)
        return err_set(e, ERR_FORMAT, "expert %lld: 0...%d are possible", (long long)id,
                       ROUTES_ID_MAX);
    if (c->n == ROUTES_CALL_MAX)
        return err_set(e, ERR_LIMIT, "more than %d experts of one layer", ROUTES_CALL_MAX);
    if (d->seen[id] == r->n_calls)
        return err_set(e, ERR_FORMAT, "expert %lld twice in one layer", (long long)id);
    if (r->n_ids == ROUTES_REQUESTS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d requests", ROUTES_REQUESTS_MAX);
    if (!list_room(&r->id, &d->ids_room, r->n_ids + 1, sizeof(*r->id)) ||
        (d->native && !list_room(&r->guess, &d->guesses_room, r->n_ids + 1, sizeof(*r->guess))))
        return no_memory(e);
    d->seen[id] = (uint32_t)r->n_calls;
    r->id[r->n_ids++] = (uint16_t)id;
    c->n++;
    r->n_experts = id >= r->n_experts ? (unsigned)id + 1 : r->n_experts;
    r->top_k = c->n > r->top_k ? c->n : r->top_k;
    return 0;
}

static int read_layer(struct reader *d, const json_t *ids, unsigned layer, struct err *e)
{
    if (!json_is_array(ids))
        return err_set(e, ERR_FORMAT, "layers[%u] is not a list", layer);
    if (begin_call(d, layer, e))
        return e->code;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int64_t id;

        if (!json_exact_int(json_array_get(ids, i), &id))
            return err_set(e, ERR_FORMAT, "layers[%u][%zu] is not a whole number", layer, i);
        if (add_id(d, id, e))
            return err_wrap(e, "layers[%u]", layer);
    }
    return 0;
}

static int read_object(struct reader *d, const char *line, size_t len, const char *name,
                       struct err *e)
{
    const json_t *layers;
    struct json_at at;
    json_t *root;
    unsigned n;
    int rc;

    if (json_parse(&root, line, len, name, e))
        return e->code;
    at = json_root(root, name);
    rc = json_get_array(&layers, &at, "layers", e);
    n = rc ? 0 : (unsigned)json_array_size(layers);
    if (!rc && (!n || n > ROUTES_LAYERS_MAX))
        rc = err_set(e, ERR_FORMAT, "%u layers: 1...%d are possible", n, ROUTES_LAYERS_MAX);
    if (!rc && d->r.n_layers && n != d->r.n_layers)
        rc = err_set(e, ERR_FORMAT, "%u layers, %u in the lines before", n, d->r.n_layers);
    if (!rc)
        d->r.n_layers = n;
    for (unsigned l = 0; !rc && l < n; l++)
        rc = read_layer(d, json_array_get(layers, l), l, e);
    d->r.n_tokens++;
    json_decref(root);
    return rc;
}

/* The next field, separated by spaces; moves *at past it. False: there is none. */
static bool field(const char **at, const char *end, const char **text, size_t *len)
{
    while (*at < end && **at == ' ')
        ++*at;
    *text = *at;
    while (*at < end && **at != ' ')
        ++*at;
    *len = (size_t)(*at - *text);
    return *len;
}

static int field_int(int64_t *out, const char **at, const char *end, int64_t lo, int64_t hi,
                     const char *what, struct err *e)
{
    char number[24], shown[48], *stop = number;
    const char *text;
    size_t len;

    if (!field(at, end, &text, &len))
        return err_set(e, ERR_FORMAT, "%s is missing", what);
    if (len < sizeof(number)) {
        memcpy(number, text, len);
        number[len] = '\0';
        errno = 0;
        *out = strtoll(number, &stop, 10);
    }
    if (stop == number || *stop || errno || *out < lo || *out > hi)
        return err_set(e, ERR_FORMAT, "%s \"%s\": a whole number from %lld to %lld is needed", what,
                       json_printable(shown, sizeof(shown), text, len), (long long)lo,
                       (long long)hi);
    return 0;
}

static unsigned count_fields(const char *line, const char *end)
{
    const char *text;
    unsigned n = 0;
    size_t len;

    while (field(&line, end, &text, &len))
        n++;
    return n;
}

static int read_native(struct reader *d, const char *line, size_t len, struct err *e)
{
    const char *end = line + len, *at = line, *text;
    unsigned n = count_fields(line, end), k = (n - 2) / 3;
    int64_t position, layer, id;
    size_t text_len, first = d->r.n_ids;

    if (n < 5 || (n - 2) % 3)
        return err_set(e, ERR_FORMAT,
                       "%u fields: position, layer, and as many ids as weights and guesses are "
                       "needed",
                       n);
    if (d->n_fields && n != d->n_fields)
        return err_set(e, ERR_FORMAT, "%u fields, %u in the lines before", n, d->n_fields);
    d->n_fields = n;
    if (field_int(&position, &at, end, 0, INT32_MAX, "position", e) ||
        field_int(&layer, &at, end, 0, ROUTES_LAYERS_MAX - 1, "layer", e))
        return e->code;
    if (d->index_of[layer] < 0)
        d->index_of[layer] = (int16_t)d->r.n_layers++;
    if (begin_call(d, (unsigned)d->index_of[layer], e))
        return e->code;
    for (unsigned i = 0; i < k; i++)
        if (field_int(&id, &at, end, 0, ROUTES_ID_MAX, "expert", e) || add_id(d, id, e))
            return e->code;
    for (unsigned i = 0; i < k; i++)
        field(&at, end, &text, &text_len); /* weights: nothing here asks for them */
    for (unsigned i = 0; i < k; i++) {
        if (field_int(&id, &at, end, -1, ROUTES_ID_MAX, "guess", e))
            return e->code;
        d->r.guess[first + i] = (int32_t)id;
    }
    d->r.n_tokens += position != d->position;
    d->position = position;
    return 0;
}

static int read_line(struct reader *d, const char *line, size_t len, const char *name,
                     struct err *e)
{
    while (len && strchr("\n\r ", line[len - 1]) && line[len - 1])
        len--;
    if (!len)
        return 0;
    if (!d->r.n_calls)
        d->native = line[0] != '{';
    return d->native ? read_native(d, line, len, e) : read_object(d, line, len, name, e);
}

static struct reader *reader_new(void)
{
    struct reader *d = calloc(1, sizeof(*d));

    if (d) {
        d->position = -1;
        memset(d->index_of, 0xff, sizeof(d->index_of));
    }
    return d;
}

/* Give the routes out, or what went wrong, and the reader back. */
static int reader_end(struct reader *d, struct routes *out, const char *name, int rc, struct err *e)
{
    if (!rc && !d->r.n_ids)
        rc = err_set(e, ERR_FORMAT, "%s: no expert is asked for", name);
    if (rc)
        routes_release(&d->r);
    else
        *out = d->r;
    free(d);
    return rc;
}

int routes_parse(struct routes *out, const char *text, size_t len, const char *name, struct err *e)
{
    struct reader *d = reader_new();
    int rc = 0;

    if (!d)
        return no_memory(e);
    for (size_t at = 0, line = 1; !rc && at < len; line++) {
        const char *stop = memchr(text + at, '\n', len - at);
        size_t n = stop ? (size_t)(stop - text) - at : len - at;

        if (n > ROUTES_LINE_MAX)
            rc = err_set(e, ERR_LIMIT, "longer than %d bytes", ROUTES_LINE_MAX);
        else
            rc = read_line(d, text + at, n, name, e);
        if (rc)
            err_wrap(e, "%s:%zu", name, line);
        at += n + 1;
    }
    return reader_end(d, out, name, rc, e);
}

int routes_read(struct routes *out, const char *path, struct err *e)
{
    FILE *f = fopen(path, "re");
    struct reader *d = reader_new();
    char *line = malloc(ROUTES_LINE_MAX + 2);
    int rc = 0;

    if (!f)
        rc = err_sys(e, errno, "%s", path);
    else if (!d || !line)
        rc = no_memory(e);
    for (size_t n = 1; !rc && fgets(line, ROUTES_LINE_MAX + 2, f); n++) {
        size_t len = strlen(line); /* a NUL byte ends it: what is left does not parse */

        if (len > ROUTES_LINE_MAX && line[len - 1] != '\n')
            rc = err_set(e, ERR_LIMIT, "longer than %d bytes", ROUTES_LINE_MAX);
        else
            rc = read_line(d, line, len, path, e);
        if (rc)
            err_wrap(e, "%s:%zu", path, n);
    }
    if (!rc && ferror(f))
        rc = err_sys(e, errno, "%s", path);
    if (f)
        fclose(f);
    free(line);
    if (!d)
        return rc;
    return reader_end(d, out, path, rc, e);
}
