#include "cli/say.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/safe.h"

int exit_of_status(waste_status st)
{
    switch (st) {
    case WASTE_OK:
        return 0;
    case WASTE_E_ARG:
        return EXIT_USAGE;
    case WASTE_E_RAM_BUDGET:
    case WASTE_E_OOM:
        return EXIT_MEMORY;
    case WASTE_E_FORMAT:
    case WASTE_E_CORRUPT:
        return EXIT_DAMAGED;
    case WASTE_E_BUSY:
        return EXIT_BUSY;
    case WASTE_E_UNSUPPORTED:
    case WASTE_E_LIMIT:
        return EXIT_UNSUPPORTED;
    case WASTE_E_CANCELLED:
        return term_interrupted() ? EXIT_INTERRUPTED : EXIT_RUNTIME;
    case WASTE_E_IO:
        break;
    }
    return EXIT_RUNTIME;
}

int exit_of_err(int code)
{
    switch (code) {
    case 0:
        return 0;
    case ERR_ARG:
        return EXIT_USAGE;
    case ERR_BUDGET:
    case ERR_NOMEM:
        return EXIT_MEMORY;
    case ERR_FORMAT:
    case ERR_CORRUPT:
        return EXIT_DAMAGED;
    case ERR_BUSY:
        return EXIT_BUSY;
    case ERR_UNSUPPORTED:
    case ERR_LIMIT:
        return EXIT_UNSUPPORTED;
    case ERR_CANCELLED:
        return term_interrupted() ? EXIT_INTERRUPTED : EXIT_RUNTIME;
    }
    return EXIT_RUNTIME;
}

static void fail_json(int exit_code, const char *hint, const char *what, const char *detail)
{
    json_t *error = json_pack("{s:o, s:o, s:i}", "error", json_text(what, strlen(what)), "detail",
                              json_text(detail, strlen(detail)), "exit", exit_code);
    char *text;

    if (error && hint)
        json_object_set_new(error, "hint", json_text(hint, strlen(hint)));
    text = error ? json_dumps(error, JSON_COMPACT) : NULL;
    fprintf(stderr, "%s\n", text ? text : "{\"error\":\"out of memory\",\"exit\":3}");
    free(text);
    json_decref(error);
}

/* The layers say which path they mean, and so do we: once is enough. They cut long paths. */
static const char *without(const char *detail, const char *what)
{
    enum { CUT = 200 };
    size_t len = strnlen(what, CUT);
    const char *s = strncmp(detail, "container ", 10) ? detail : detail + 10;

    return len && !strncmp(s, what, len) && s[len] == ':' && s[len + 1] == ' ' ? s + len + 2
                                                                               : detail;
}

int fail(struct cli *c, int exit_code, const char *hint, const char *what, const char *fmt, ...)
{
    char text[1024], safe[2048];
    const char *detail;
    va_list ap;

    if (exit_code == EXIT_INTERRUPTED)
        return exit_code;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    detail = without(text, what);
    if (!*what)
        what = "\"\"";
    term_clear_line(&c->term);
    if (c->opts.json) {
        fail_json(exit_code, hint, what, detail);
        return exit_code;
    }
    fprintf(stderr, "%swaste: %s:", term_style(&c->term, STYLE_RED),
            safe_text(safe, sizeof(safe), what, strlen(what), ""));
    fprintf(stderr, "%s %s\n", term_style(&c->term, STYLE_PLAIN),
            safe_text(safe, sizeof(safe), detail, strlen(detail), ""));
    if (hint)
        fprintf(stderr, "%s\n", safe_text(safe, sizeof(safe), hint, strlen(hint), "\n"));
    return exit_code;
}

int fail_status(struct cli *c, waste_status st, const waste_ctx *ctx, const char *what)
{
    const char *detail = waste_error_detail(ctx);

    return fail_detail(c, st, what, detail ? detail : waste_strerror(st));
}

int fail_detail(struct cli *c, waste_status st, const char *what, const char *detail)
{
    const char *hint = NULL;

    if (st == WASTE_E_CORRUPT || st == WASTE_E_FORMAT)
        hint = "`waste verify MODEL` checks the whole container.";
    else if (st == WASTE_E_OOM)
        hint = "A smaller --budget or --ctx takes less memory; `waste plan MODEL` has the numbers.";
    else if (st == WASTE_E_BUSY)
        hint = "Another process has it open with --exclusive-open.";
    return fail(c, exit_of_status(st), hint, what, "%s", detail);
}

int fail_err(struct cli *c, const struct err *e, const char *what)
{
    return fail(c, exit_of_err(e->code), NULL, what, "%s", e->text);
}

const char *say_option(const struct cli *c, const char *name, char text[SAY_OPTION])
{
    const struct opt *opt = opts_named(name);
    const struct opt_from *set = opt ? &c->opts.set[opt - opts_table] : NULL;

    if (set && (set->origin == FROM_FILE || set->origin == FROM_MODEL))
        snprintf(text, SAY_OPTION, "%s: line %u: %s", c->config_path, set->line, name);
    else if (set && set->origin == FROM_VARIABLE && opt->env)
        snprintf(text, SAY_OPTION, "%s", opt->env);
    else
        snprintf(text, SAY_OPTION, "--%s", name);
    return text;
}

int fail_output(struct cli *c)
{
    if (c->term.out_errno == EPIPE)
        return EXIT_RUNTIME;
    return fail(c, EXIT_RUNTIME, NULL, "standard output", "%s", strerror(c->term.out_errno));
}

void note(struct cli *c, const char *fmt, ...)
{
    char text[1024], safe[2048];
    va_list ap;

    if (c->opts.quiet || c->opts.json)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    term_clear_line(&c->term);
    fprintf(stderr, "%s%s%s\n", term_style(&c->term, STYLE_DIM),
            safe_text(safe, sizeof(safe), text, strlen(text), ""),
            term_style(&c->term, STYLE_PLAIN));
}

void say_text(const char *bytes, size_t n)
{
    char unit[SAFE_UNIT];
    size_t used;

    for (size_t i = 0; i < n;) {
        i += safe_next(unit, &used, bytes + i, n - i, "\n\t");
        fwrite(unit, 1, used, stderr);
    }
}

int say_json(struct cli *c, json_t *object)
{
    /* 9 digits give a float back to the bit */
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    bool printed;

    json_decref(object);
    if (!text)
        return fail(c, EXIT_MEMORY, NULL, c->command, "no memory for the JSON text");
    term_clear_line(&c->term);
    printed = fputs(text, stdout) != EOF;
    printed = term_print(&c->term, "\n", 1) && printed;
    free(text);
    return printed ? 0 : fail_output(c);
}

json_t *json_text(const char *bytes, size_t len)
{
    waste_utf8 u = {0};
    char *text = malloc(3 * (len + 3));
    size_t n;
    json_t *s;

    if (!text)
        return NULL;
    n = waste_utf8_feed(&u, bytes, len, 1, text);
    s = json_stringn(text, n);
    free(text);
    return s;
}

json_t *json_u64(uint64_t v)
{
    char text[24];

    if (v <= INT64_MAX)
        return json_integer((json_int_t)v);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    return json_string(text);
}

json_t *json_f64(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}
