/* cli/say.h - what a command tells: one JSON object, notes beside the result, and why it failed.
 *
 * `struct cli` is what every command gets; it returns an exit code of the list below. Errors are
 * one line, "waste: WHAT: detail", and perhaps a hint; under --json one object, on standard error.
 * What others wrote may be in them: control characters are replaced (cli/safe.h).
 */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <jansson.h>
#include <limits.h>

#include "base/err.h"
#include "cli/bar.h"
#include "cli/opts.h"
#include "cli/term.h"
#include "waste.h"

enum {
    EXIT_RUNTIME = 1,
    EXIT_USAGE = 2,
    EXIT_MEMORY = 3, /* does not fit */
    EXIT_DAMAGED = 4,
    EXIT_BUSY = 5,
    EXIT_UNSUPPORTED = 6,
    EXIT_INTERRUPTED = 130,
};

struct cli {
    const char *command; /* its name */
    struct opts opts;
    struct term term;
    struct bar bar;
    /* For the bar, while a prompt takes many calls: tokens before this one and altogether, and
     * bytes read before it. */
    uint64_t prompt_done, prompt_total, prompt_bytes;
    char config_path[PATH_MAX]; /* of the file that options are from; "" = none */
    char drive_notes[PATH_MAX]; /* the file of waste_opts.drive_notes; "" = none */
    const char *prompt_label; /* not NULL: it is no prompt but this, and total 0 is not known yet */
};

int exit_of_status(waste_status st);
int exit_of_err(int code);

/* Say why it failed; returns exit_code. hint may be NULL. A detail that begins with WHAT itself
 * does not repeat it. Nothing is said when the failure is that standard output went away or the
 * user interrupted (exit codes EXIT_INTERRUPTED). */
int fail(struct cli *c, int exit_code, const char *hint, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The same from a waste.h call. ctx NULL: the calling thread's last failure. */
int fail_status(struct cli *c, waste_status st, const waste_ctx *ctx, const char *what);
/* The same with other words. */
int fail_detail(struct cli *c, waste_status st, const char *what, const char *detail);
int fail_err(struct cli *c, const struct err *e, const char *what);

enum { SAY_OPTION = PATH_MAX + 64 };
/* An option by where its value is from, as whoever set it knows it: "--budget", "WASTE_BUDGET",
 * "FILE: line 3: budget". */
const char *say_option(const struct cli *c, const char *name, char text[SAY_OPTION]);
/* "s" behind the name of n things. */
static inline const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* Standard output does not take what we write. */
int fail_output(struct cli *c);

/* A line on standard error; nothing under --quiet or --json. */
void note(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Text that others wrote, on standard error as it is shown: control characters are made harmless.
 */
void say_text(const char *bytes, size_t n);

/* Print an object as one line on standard output; takes the reference. NULL (no memory) is an
 * error. Returns 0 or an exit code. */
int say_json(struct cli *c, json_t *object);

/* A JSON string of bytes that may not be UTF-8: U+FFFD stands for what is not. */
json_t *json_text(const char *bytes, size_t len);
/* A JSON integer, or a string of digits above 2^63 - 1. */
json_t *json_u64(uint64_t v);
/* A JSON number, or null for what JSON cannot say. */
json_t *json_f64(double v);

#endif
