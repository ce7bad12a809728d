/* cli/cmd_tokenize.c - text to ids and back. Needs the tokenizer's files only, not the model. */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/load.h"
#include "cli/prompt.h"
#include "cli/units.h"

static int print_ids(struct cli *c, const struct ids *ids)
{
    json_t *array;

    if (c->opts.json) {
        array = json_array();
        for (size_t i = 0; i < ids->n; i++)
            json_array_append_new(array, json_integer(ids->id[i]));
        return say_json(c, json_pack("{s:I, s:o}", "n", (json_int_t)ids->n, "ids", array));
    }
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? " " : "", ids->id[i]);
    return term_print(&c->term, "\n", 1) ? 0 : fail_output(c);
}

int cmd_tokenize(struct cli *c)
{
    struct ids ids = {NULL, 0};
    char path[PATH_MAX];
    int rc = model_find(c, c->opts.arg[1], path);

    if (!rc)
        rc = prompt_read(c, path, 2, TEXT_TEMPLATE, &ids);
    if (!rc)
        rc = print_ids(c, &ids);
    free(ids.id);
    return rc;
}

/* All positionals from the second on, as one text; then --file and standard input as for text. */
static int ids_read(struct cli *c, struct ids *out)
{
    struct text text = {.bytes = NULL};
    struct err e;
    int rc = 0;

    if (c->opts.n_args > 3) {
        size_t room = 1;

        for (unsigned i = 2; i < c->opts.n_args; i++)
            room += strlen(c->opts.arg[i]) + 1;
        text.bytes = calloc(room, 1);
        if (!text.bytes)
            return fail(c, EXIT_MEMORY, NULL, c->command, "no memory for %zu bytes of ids", room);
        for (unsigned i = 2; i < c->opts.n_args; i++)
            text.len +=
                (size_t)snprintf(text.bytes + text.len, room - text.len, "%s ", c->opts.arg[i]);
    } else {
        rc = text_read(c, 2, &text);
    }
    if (!rc && ids_parse(&out->id, &out->n, text.bytes, text.len, &e))
        rc = fail_err(c, &e, c->command);
    free(text.bytes);
    return rc;
}

/* waste_decode makes nothing of an id that has no bytes; here it is a mistake. */
static int known(struct cli *c, const waste_tokenizer *t, const struct ids *ids)
{
    const char *bytes;
    size_t len;

    for (size_t i = 0; i < ids->n; i++) {
        if (waste_token_bytes(t, ids->id[i], &bytes, &len) != WASTE_OK)
            return fail(c, EXIT_USAGE, NULL, c->command, "the tokenizer has no id %d", ids->id[i]);
    }
    return 0;
}

/* *bytes is the caller's to free. */
static int decode(struct cli *c, const waste_tokenizer *t, const struct ids *ids, char **bytes,
                  size_t *len)
{
    size_t cap = ids->n * 8 + 64;
    waste_status st;

    for (;;) {
        *len = 0;
        *bytes = malloc(cap);
        if (!*bytes)
            return fail(c, EXIT_MEMORY, NULL, c->command, "no memory for %zu bytes", cap);
        st = waste_decode(t, ids->id, ids->n, *bytes, cap, len);
        if (st == WASTE_OK)
            return 0;
        free(*bytes);
        *bytes = NULL;
        if (st != WASTE_E_ARG || *len <= cap)
            return fail(c, exit_of_status(st), NULL, c->command, "%s", waste_strerror(st));
        cap = *len;
    }
}

static int print_text(struct cli *c, const char *bytes, size_t len)
{
    if (c->opts.json)
        return say_json(c, json_pack("{s:o}", "text", json_text(bytes, len)));
    if (!term_print_text(&c->term, bytes, len) || !term_print(&c->term, "\n", 1))
        return fail_output(c);
    return 0;
}

int cmd_detokenize(struct cli *c)
{
    waste_tokenizer *t = NULL;
    struct ids ids = {NULL, 0};
    char path[PATH_MAX], *bytes = NULL;
    size_t len = 0;
    waste_status st;
    int rc = model_find(c, c->opts.arg[1], path);

    if (!rc)
        rc = ids_read(c, &ids);
    if (!rc && (st = waste_tokenizer_open(path, &t)) != WASTE_OK)
        rc = fail_tokenizer(c, st, path);
    if (!rc)
        rc = known(c, t, &ids);
    if (!rc)
        rc = decode(c, t, &ids, &bytes, &len);
    if (!rc)
        rc = print_text(c, bytes, len);
    waste_tokenizer_close(t);
    free(bytes);
    free(ids.id);
    return rc;
}
