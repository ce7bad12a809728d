/* cli/cmd_config.c - which options are in effect, and where each one is from. */
#include "cli/cmd.h"

#include <stdio.h>
#include <string.h>

#include "cli/units.h"

/* The default as the help has it: what stands in its last parentheses. */
static void default_text(char *text, size_t bytes, const struct opt *opt)
{
    const char *begin = strrchr(opt->help, '(');
    size_t len = begin ? strcspn(begin + 1, ")") : 0;

    if (begin && begin[1 + len] == ')' && !begin[2 + len])
        snprintf(text, bytes, "%.*s", (int)len, begin + 1);
    else
        snprintf(text, bytes, "not given");
}

/* A text as it would stand in the file, in quotes. */
static size_t quote(char *text, size_t bytes, const char *s)
{
    static const char from[] = "\n\t\"\\", to[] = "nt\"\\";
    size_t n = 0;

    text[n++] = '"';
    for (; *s && n + 4 < bytes; s++) {
        const char *escape = strchr(from, *s);

        if (escape)
            text[n++] = '\\';
        text[n++] = escape ? to[escape - from] : *s;
    }
    text[n++] = '"';
    text[n] = '\0';
    return n;
}

static void list_text(char *text, size_t bytes, const struct opts *o, const struct opt *opt)
{
    size_t at = 0;

    text[0] = '\0';
    for (unsigned i = 0; opt->kind == OPT_STOP && i < o->n_stop && at + 8 < bytes; i++) {
        at += (size_t)snprintf(text + at, bytes - at, "%s", i ? " " : "");
        at += quote(text + at, bytes - at, o->stop[i]);
    }
    for (unsigned i = 0; opt->kind == OPT_BIAS && i < o->n_bias && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%d=%g", i ? ", " : "", o->bias[i].id,
                               (double)o->bias[i].value);
}

static void value_text(char *text, size_t bytes, const struct opts *o, const struct opt *opt)
{
    const void *field = (const char *)o + opt->field;
    char amount[UNITS_TEXT];

    switch (opt->kind) {
    case OPT_SET:
    case OPT_CLEAR:
    case OPT_MODE:
        snprintf(text, bytes, "%s", *(const bool *)field == (opt->kind == OPT_SET) ? "yes" : "no");
        break;
    case OPT_COLOR:
        snprintf(text, bytes, "%s", *(const int *)field == (int)opt->lo ? "yes" : "no");
        break;
    case OPT_INT:
        snprintf(text, bytes, "%lld", (long long)*(const int64_t *)field);
        break;
    case OPT_SEED:
        snprintf(text, bytes, "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case OPT_F64:
        snprintf(text, bytes, "%g", *(const double *)field);
        break;
    case OPT_SIZE:
        snprintf(text, bytes, "%s", size_text(amount, *(const uint64_t *)field));
        break;
    case OPT_RATE:
        snprintf(text, bytes, "%s/s", size_text_decimal(amount, *(const uint64_t *)field));
        break;
    case OPT_STOP:
    case OPT_BIAS:
        list_text(text, bytes, o, opt);
        break;
    case OPT_TEXT:
        quote(text, bytes, *(const char *const *)field);
        break;
    default:
        snprintf(text, bytes, "%s", *(const char *const *)field);
    }
}

static void origin_text(char *text, size_t bytes, const struct cli *c, const struct opt *opt)
{
    const struct opt_from *set = &c->opts.set[opt - opts_table];

    switch (set->origin) {
    case FROM_FILE:
    case FROM_MODEL:
        snprintf(text, bytes, "%s: line %u%s", c->config_path, set->line,
                 set->origin == FROM_MODEL ? ", of this model" : "");
        break;
    case FROM_VARIABLE:
        snprintf(text, bytes, "%s", opt->env ? opt->env : "environment");
        break;
    case FROM_FLAG:
        snprintf(text, bytes, "the command line");
        break;
    default:
        snprintf(text, bytes, "default");
    }
}

/* A switch has two rows, on and off; the one that was set last speaks for both. */
static bool speaks(const struct opts *o, const struct opt *opt)
{
    const struct opt_from *set = o->set;

    for (unsigned i = 0; i < opts_rows; i++) {
        const struct opt *twin = &opts_table[i];

        if (twin != opt && twin->name && twin->field == opt->field &&
            (set[i].origin > set[opt - opts_table].origin ||
             (set[i].origin == set[opt - opts_table].origin && i < (unsigned)(opt - opts_table))))
            return false;
    }
    return true;
}

static int show(struct cli *c, const struct opt *opt, json_t *all)
{
    char value[512], origin[PATH_MAX + 40], line[PATH_MAX + 600];
    bool is_default = c->opts.set[opt - opts_table].origin == FROM_DEFAULT;
    int n;

    if (is_default && (opt->value || opt->kind == OPT_COLOR))
        default_text(value, sizeof(value), opt);
    else
        value_text(value, sizeof(value), &c->opts, opt);
    origin_text(origin, sizeof(origin), c, opt);
    if (all)
        return json_object_set_new(all, opt->name ? opt->name : "n",
                                   json_pack("{s:o, s:o}", "value", json_text(value, strlen(value)),
                                             "origin", json_text(origin, strlen(origin))));
    n = snprintf(line, sizeof(line), "%-18s %-34s %s\n", opt->name ? opt->name : "n", value,
                 origin);
    return term_print_text(&c->term, line, (size_t)n) ? 0 : -1;
}

int cmd_config(struct cli *c)
{
    const char *file = c->config_path, *model = c->opts.n_args > 2 ? c->opts.arg[2] : "";
    json_t *all = c->opts.json ? json_object() : NULL;
    int rc = 0;

    if (strcmp(c->opts.arg[1], "show") != 0)
        return fail(c, EXIT_USAGE, NULL, "config", "there is only: waste config show [MODEL]");
    for (unsigned i = 0; i < opts_rows && !rc; i++) {
        if (opts_in_file(&opts_table[i]) && speaks(&c->opts, &opts_table[i]))
            rc = show(c, &opts_table[i], all);
    }
    if (all)
        return say_json(c, json_pack("{s:o, s:o, s:o}", "file",
                                     *file ? json_text(file, strlen(file)) : json_null(), "model",
                                     json_text(model, strlen(model)), "options", all));
    return rc ? fail_output(c) : 0;
}
