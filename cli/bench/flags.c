#include "cli/bench/flags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/nearest.h"
#include "cli/units.h"

static int read_int(int64_t *out, const struct flag *f, const char *text, struct err *e)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)v < f->lo || (double)v > f->hi)
        return err_set(e, ERR_ARG, "--%s \"%s\": a whole number from %.0f to %.0f is needed",
                       f->name, text, f->lo, f->hi);
    *out = v;
    return 0;
}

static int read_size(uint64_t *out, const struct flag *f, const char *text, struct err *e)
{
    char lo[UNITS_TEXT], hi[UNITS_TEXT];
    uint64_t v;

    if (size_parse(&v, text, e))
        return err_wrap(e, "--%s", f->name);
    if ((double)v < f->lo || (double)v > f->hi)
        return err_set(e, ERR_ARG, "--%s \"%s\": from %s to %s", f->name, text,
                       size_text(lo, (uint64_t)f->lo), size_text(hi, (uint64_t)f->hi));
    *out = v;
    return 0;
}

static int read_list(struct flag_list *out, const struct flag *f, const char *text, struct err *e)
{
    struct flag_list list = {.n = 0};

    for (const char *at = text;; at++) {
        size_t len = strcspn(at, ",");
        char item[32];
        int64_t v = 0;

        if (len >= sizeof(item) || list.n == FLAG_LIST_MAX)
            return err_set(e, ERR_ARG, "--%s \"%s\": at most %d values separated by commas",
                           f->name, text, FLAG_LIST_MAX);
        memcpy(item, at, len);
        item[len] = '\0';
        if (f->kind == FLAG_SIZES ? read_size(&list.v[list.n], f, item, e)
                                  : read_int(&v, f, item, e))
            return e->code;
        if (f->kind == FLAG_INTS)
            list.v[list.n] = (uint64_t)v;
        list.n++;
        at += len;
        if (!*at)
            break;
    }
    *out = list;
    return 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *at = choices; len && at; at = strchr(at, '|')) {
        at += *at == '|';
        if (!strncmp(at, text, len) && (at[len] == '|' || !at[len]))
            return true;
    }
    return false;
}

static int take(const struct flag *f, const char *text, struct err *e)
{
    switch (f->kind) {
    case FLAG_SET:
        *(bool *)f->to = true;
        return 0;
    case FLAG_INT:
        return read_int(f->to, f, text, e);
    case FLAG_SIZE:
        return read_size(f->to, f, text, e);
    case FLAG_INTS:
    case FLAG_SIZES:
        return read_list(f->to, f, text, e);
    case FLAG_CHOICE:
        if (!is_choice(f->value, text))
            return err_set(e, ERR_ARG, "--%s \"%s\": one of %s is needed", f->name, text, f->value);
        break;
    case FLAG_TEXT:
        if (!*text)
            return err_set(e, ERR_ARG, "--%s: it is empty", f->name);
        break;
    }
    *(const char **)f->to = text;
    return 0;
}

static const struct flag *find(const struct flag *table, const char *name, size_t len)
{
    for (; table && table->name; table++) {
        if (!strncmp(table->name, name, len) && !table->name[len])
            return table;
    }
    return NULL;
}

static int unknown(const struct flag *own, const struct flag *common, const char *arg,
                   struct err *e)
{
    enum { NAMES_MAX = 64 };
    const struct flag *const table[] = {own, common};
    const char *names[NAMES_MAX], *near;
    unsigned n = 0;

    for (unsigned t = 0; t < 2; t++) {
        for (const struct flag *f = table[t]; f && f->name && n < NAMES_MAX; f++)
            names[n++] = f->name;
    }
    near = strncmp(arg, "--", 2) ? NULL : nearest_name(arg + 2, names, n);
    return err_set(e, ERR_ARG, "%s: no such option%s%s%s", arg, near ? " (did you mean --" : "",
                   near ? near : "", near ? "?)" : "");
}

int flags_parse(char **argv, int argc, unsigned *n_args, const struct flag *own,
                const struct flag *common, struct err *e)
{
    unsigned n = 0;
    bool only_args = false;

    for (int i = 0; i < argc; i++) {
        char *arg = argv[i], *value = NULL;
        const struct flag *f;
        size_t len;

        if (only_args || arg[0] != '-' || !arg[1]) {
            argv[n++] = arg;
            continue;
        }
        if (!strcmp(arg, "--")) {
            only_args = true;
            continue;
        }
        len = strcspn(arg, "=");
        f = len > 2 && arg[1] == '-' ? find(own, arg + 2, len - 2) : NULL;
        if (!f && len > 2 && arg[1] == '-')
            f = find(common, arg + 2, len - 2);
        if (!strcmp(arg, "-h"))
            f = find(common, "help", 4);
        if (!f)
            return unknown(own, common, arg, e);
        if (f->kind == FLAG_SET && arg[len])
            return err_set(e, ERR_ARG, "--%s takes no value, \"%s\" was given", f->name,
                           arg + len + 1);
        if (f->kind != FLAG_SET) {
            value = arg[len] ? arg + len + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (!value)
                return err_set(e, ERR_ARG, "--%s: a value is missing (%s)", f->name, f->value);
        }
        if (take(f, value, e))
            return e->code;
    }
    *n_args = n;
    return 0;
}

void flags_help(FILE *to, const struct flag *table)
{
    for (; table && table->name; table++) {
        char left[64];

        snprintf(left, sizeof(left), "--%s%s%s", table->name, table->value ? " " : "",
                 table->value ? table->value : "");
        if (strlen(left) > 24)
            fprintf(to, "  %s\n  %-24s %s\n", left, "", table->help);
        else
            fprintf(to, "  %-24s %s\n", left, table->help);
    }
}

bool flag_names(const char *list, const char *name)
{
    size_t len = strlen(name);

    if (!list)
        return true;
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, name, len) && (at[len] == ',' || !at[len]))
            return true;
    }
    return false;
}

static bool is_known(const char *name, size_t len, const char *const *known, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (strlen(known[i]) == len && !strncmp(known[i], name, len))
            return true;
    return false;
}

int flag_names_check(const char *list, const char *flag, const char *have, const char *const *known,
                     unsigned n, struct err *e)
{
    for (const char *at = list; at; at = strchr(at, ',')) {
        char name[32], names[160] = "";
        const char *near;
        size_t len;

        at += *at == ',';
        len = strcspn(at, ",");
        if (is_known(at, len, known, n))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)len, at);
        for (unsigned i = 0; i < n; i++) {
            size_t end = strlen(names);

            snprintf(names + end, sizeof(names) - end, "%s%s", end ? ", " : "", known[i]);
        }
        near = nearest_name(name, known, n);
        return err_set(e, ERR_ARG, "--%s \"%s\": %s %s%s%s%s", flag, name, have, names,
                       near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    }
    return 0;
}
