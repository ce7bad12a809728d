#include "cli/config.h"

#include <stdlib.h>
#include <string.h>

#include "cli/prompt.h"

enum { CONFIG_MAX = 1 << 20 };

static int bad(const struct config *c, unsigned line, const char *what, struct err *e)
{
    return err_set(e, ERR_ARG, "%s: line %u: %s", c->path, line, what);
}

static char *trimmed(char *text)
{
    char *end;

    text += strspn(text, " \t\r");
    end = text + strlen(text);
    while (end > text && strchr(" \t\r", end[-1]))
        *--end = '\0';
    return text;
}

/* "..." in place; NULL: it is none. */
static char *unquoted(char *text)
{
    char *to = text, *at = text + 1;

    for (; *at && *at != '"'; at++) {
        if (*at == '\\' && !*++at)
            return NULL;
        else if (at[-1] != '\\')
            *to++ = *at;
        else if (strchr("nt\"\\", *at))
            *to++ = (char)(*at == 'n' ? '\n' : *at == 't' ? '\t' : *at);
        else
            return NULL;
    }
    if (*at != '"' || at[1])
        return NULL;
    *to = '\0';
    return text;
}

static int add(struct config *c, struct config_line line, struct err *e)
{
    if (c->n % 64 == 0) {
        struct config_line *more = realloc(c->lines, (c->n + 64) * sizeof(*more));

        if (!more)
            return err_set(e, ERR_NOMEM, "%s", c->path);
        c->lines = more;
    }
    c->lines[c->n++] = line;
    return 0;
}

static int take_section(struct config *c, char *text, unsigned line, const char **model,
                        struct err *e)
{
    char *end = strrchr(text, ']');

    if (!end || end[1] || strncmp(text, "[model", 6) || !strchr(" \t", text[6]))
        return bad(c, line, "a section is [model NAME]", e);
    *end = '\0';
    *model = trimmed(text + 7);
    return **model ? 0 : bad(c, line, "a section is [model NAME]", e);
}

static int take_line(struct config *c, char *text, unsigned line, const char **model, struct err *e)
{
    struct opts unused;
    char *value;

    text = trimmed(text);
    if (!*text || *text == '#')
        return 0;
    if (*text == '[')
        return take_section(c, text, line, model, e);
    value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    value = value ? trimmed(value) : text + strlen(text);
    if (*value == '"' && !(value = unquoted(value)))
        return bad(c, line, "the quotes do not end, or a \\ stands before another letter", e);
    text = trimmed(text);
    if (!strncmp(text, "--", 2))
        text += 2;
    opts_init(&unused);
    if (opts_file(&unused, text, value, 0, e))
        return err_wrap(e, "%s: line %u", c->path, line);
    return add(c, (struct config_line){line, *model, text, value}, e);
}

int config_read(struct config *c, const char *path, struct err *e)
{
    const char *model = NULL;
    char *at, *next;
    size_t len;
    int rc = 0;

    *c = (struct config){.path = path};
    c->text = file_text(path, CONFIG_MAX, &len, e);
    if (!c->text)
        return e->code;
    if (strlen(c->text) != len)
        rc = err_set(e, ERR_ARG, "%s: a byte of 0 is in it: this is no text", path);
    at = c->text + (strncmp(c->text, "\xef\xbb\xbf", 3) ? 0 : 3); /* some editors' mark */
    for (unsigned line = 1; !rc && at; line++) {
        next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        rc = take_line(c, at, line, &model, e);
        at = next;
    }
    if (rc)
        config_release(c);
    return rc;
}

void config_release(struct config *c)
{
    free(c->text);
    free(c->lines);
    *c = (struct config){0};
}

/* "k3" is k3, k3.waste, /models/k3.waste and /models/k3.waste/. */
static bool is_model(const char *section, const char *model)
{
    size_t len = strlen(model), name;
    const char *base = model;

    if (!strcmp(section, model))
        return true;
    while (len > 1 && model[len - 1] == '/')
        len--;
    for (size_t i = 0; i < len; i++) {
        if (model[i] == '/')
            base = model + i + 1;
    }
    name = (size_t)(model + len - base);
    if (strlen(section) == name && !memcmp(section, base, name))
        return true;
    if (name <= 6 || memcmp(base + name - 6, ".waste", 6) != 0)
        return false;
    return strlen(section) == name - 6 && !memcmp(section, base, name - 6);
}

int config_apply(const struct config *c, struct opts *o, const char *model, unsigned command,
                 struct err *e)
{
    for (int sections = 0; sections < 2; sections++) {
        o->from = sections ? FROM_MODEL : FROM_FILE;
        for (unsigned i = 0; i < c->n; i++) {
            const struct config_line *l = &c->lines[i];

            if (sections != (l->model != NULL) ||
                (l->model && (!model || !is_model(l->model, model))))
                continue;
            o->line = l->line;
            if (opts_file(o, l->name, l->value, command, e))
                return err_wrap(e, "%s: line %u", c->path, l->line);
        }
    }
    o->line = 0;
    return 0;
}
