/* cli/bench/flags.h - the options of a measuring command, as a table that parses and explains
 * itself.
 *
 * Rows point at where values go; what is there before parsing is the default. "--opt VALUE" and
 * "--opt=VALUE" mean the same, "--" ends options, "-h" is --help.
 */
#ifndef CLI_BENCH_FLAGS_H
#define CLI_BENCH_FLAGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum { FLAG_LIST_MAX = 32 };

struct flag_list { /* "1,2,4" or "2.5M,12M" */
    uint64_t v[FLAG_LIST_MAX];
    unsigned n;
};

enum flag_kind {
    FLAG_SET,    /* bool: true */
    FLAG_INT,    /* int64_t: lo...hi */
    FLAG_SIZE,   /* uint64_t: lo...hi bytes */
    FLAG_INTS,   /* struct flag_list: each lo...hi */
    FLAG_SIZES,  /* the same, of sizes */
    FLAG_TEXT,   /* const char *, borrowed from argv */
    FLAG_CHOICE, /* const char *: one of `value`, separated by | */
};

struct flag {
    const char *name; /* without dashes; NULL ends a table */
    enum flag_kind kind;
    void *to;
    double lo, hi;
    const char *value; /* "N", "SIZE", "FILE", or the choices; NULL for FLAG_SET */
    const char *help;
};

/* Read argv[0...argc). Positionals are moved to the front of argv, in order, *n_args of them.
 * Tables are searched in order; either may be NULL. ERR_ARG names the option, the value and what
 * would do. */
int flags_parse(char **argv, int argc, unsigned *n_args, const struct flag *own,
                const struct flag *common, struct err *e);

void flags_help(FILE *to, const struct flag *table);

/* Whether `name` is in a list of names separated by commas; NULL holds everything. */
bool flag_names(const char *list, const char *name);

/* Whether a list given as --FLAG has known names only. ERR_ARG, with the first that is not and all
 * that are known; have: "there are", "this build has". */
int flag_names_check(const char *list, const char *flag, const char *have, const char *const *known,
                     unsigned n, struct err *e);

#endif
