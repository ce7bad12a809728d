/* cli/opts.h - the option table: what every command understands, in one place.
 *
 * Parser, help, man page, completion and the WASTE_* variables are all read off the table, so they
 * cannot disagree. Order of precedence: flag, variable, configuration file (cli/config.h), default.
 * An option that does not apply to the command, a name nobody knows and a variable WASTE_* nobody
 * knows are errors. Nothing here prints except opts_help.
 */
#ifndef CLI_OPTS_H
#define CLI_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "waste.h"

enum { /* commands, as bits: who understands an option */
       CMD_RUN = 1 << 0,
       CMD_EVAL = 1 << 1,
       CMD_TOKENIZE = 1 << 2,
       CMD_DETOKENIZE = 1 << 3,
       CMD_PLAN = 1 << 4,
       CMD_INFO = 1 << 5,
       CMD_VERIFY = 1 << 6,
       CMD_SYNTH = 1 << 7,
       CMD_VERSION = 1 << 8,
       CMD_HELP = 1 << 9,
       CMD_CONVERT = 1 << 10,
       CMD_DOCTOR = 1 << 11,
       CMD_PLACE = 1 << 12,
       CMD_CHAT = 1 << 13,
       CMD_CONFIG = 1 << 14,
       CMD_IMAGE = 1 << 15,
       CMD_ALL = (1 << 16) - 1,
};

enum {
    OPTS_LIST_MAX = 256, /* values of one repeatable option */
    OPTS_ROWS_MAX = 96,  /* rows of the table */
};

enum opt_origin { /* of a value; each beats those before it */
                  FROM_DEFAULT,
                  FROM_FILE,
                  FROM_MODEL, /* its section of the file */
                  FROM_VARIABLE,
                  FROM_FLAG,
};

struct opts { /* strings are borrowed from argv and the environment */
    /* memory and machine */
    uint64_t budget;                                      /* bytes; 0 = choose */
    int64_t ctx;                                          /* positions; 0 = the default */
    int64_t threads, io_depth, max_rows;                  /* 0 = the default */
    int64_t lookahead;                                    /* -1 = the default */
    const char *cpus, *io, *numeric, *policy, *cpu_level; /* NULL = the default */
    const char *route_trace, *usage;
    bool learn;
    bool direct, verify, exclusive;

    /* text in */
    const char *file, *ids; /* NULL = not given */
    bool markup, bos;
    bool markup_set; /* --markup or --content was given */

    const char *image[WASTE_IMAGES_MAX];
    unsigned n_images;
    int64_t image_patches; /* 0 = the container's */
    bool vision;           /* the tower; --image asks for it, too */
    bool free_vision;

    /* choosing tokens */
    int64_t n_tokens;             /* -n; 0 = the default */
    int64_t top_k, repeat_window; /* -1 = the default */
    uint64_t seed;
    bool seed_set;
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    waste_bias bias[OPTS_LIST_MAX];
    unsigned n_bias;
    const char *stop[OPTS_LIST_MAX];
    unsigned n_stop;
    const char *grammar, *json_schema, *tools; /* FILE; NULL: none */

    /* conversations */
    const char *system, *think, *state_dir; /* NULL = not given */
    const char *config;                     /* NULL = the user's */
    bool configured;                        /* by a file at all */
    int64_t think_limit;                    /* tokens; -1 = none */
    int64_t checkpoints;                    /* -1 = chosen */
    uint64_t state_disk;
    bool states, history, hide_thinking, verbose;

    /* of single commands */
    bool raw, logits, headers, measure, profile;
    const char *perplexity; /* FILE */
    uint64_t drive, ram;    /* bytes per second; 0 = not given */
    const char *shape;
    int64_t layers, experts; /* 0 = the shape's own */
    const char *src, *out, *against, *format, *stages, *trunk_bits, *router_bits, *reclaim;
    const char *drives;
    int64_t jobs, sample; /* 0 = the default */
    bool resume, all, gather;

    /* output */
    bool json, quiet, help, version;
    int color; /* -1 decide, 0 never, 1 always */

    const char **arg; /* positionals, the command's name first; owned */
    unsigned n_args;
    enum opt_origin from; /* of the values that are being read */
    unsigned line;        /* in the file */
    struct opt_from {     /* by row of the table */
        enum opt_origin origin;
        unsigned line;
    } set[OPTS_ROWS_MAX];
};

/* One row. How a value is read depends on `kind`; `field` is where it goes in struct opts. */
enum opt_kind {
    OPT_SET,   /* a flag: true, or with a variable 0/1 */
    OPT_CLEAR, /* a flag: false, or with a variable 0/1 (1 is true) */
    OPT_MODE,  /* a flag with a partner: `lo` goes to the bool, and markup_set is set */
    OPT_COLOR, /* a flag: `lo` goes to the int */
    OPT_INT,   /* lo...hi */
    OPT_SEED,  /* any u64 */
    OPT_F64,   /* lo...hi; without lo itself if `open` */
    OPT_SIZE,
    OPT_RATE,
    OPT_TEXT,
    OPT_CHOICE, /* one of `value`, separated by | */
    OPT_CPU,    /* the same, and this machine must have it */
    OPT_STOP,   /* repeatable */
    OPT_BIAS,   /* ID=V, repeatable */
    OPT_IMAGE,  /* FILE, repeatable */
};

enum opt_group {
    GROUP_COMMAND,
    GROUP_TEXT,
    GROUP_TALK,
    GROUP_CHOOSE,
    GROUP_MEMORY,
    GROUP_OUTPUT,
    OPT_GROUPS
};

struct opt_help { /* what an option is in these commands */
    unsigned commands;
    const char *help;
};

struct opt {
    const char *name; /* without dashes; NULL: a letter or a variable only */
    char letter;
    enum opt_kind kind;
    enum opt_group group;
    unsigned commands;
    size_t field;
    double lo, hi;
    bool open;
    const char *value; /* "SIZE", "N", or the choices; NULL for flags */
    const char *env;   /* NULL: no variable */
    const char *help;
    const struct opt_help *other; /* NULL, or commands where help is another; ends with {0} */
};

extern const struct opt opts_table[]; /* opts_table.c */
extern const unsigned opts_rows;

void opts_init(struct opts *o);
void opts_release(struct opts *o);

/* Read the WASTE_* entries of an environment. ERR_ARG names a variable that is unknown (and the
 * nearest that is not), belongs to a later version, or has an impossible value. Empty is unset. */
int opts_env(struct opts *o, char *const *variables, struct err *e);

/* Read argv[1...]. Options stand anywhere, as "--opt VALUE" or "--opt=VALUE"; what follows "--" is
 * positional. ERR_ARG. */
int opts_parse(struct opts *o, int argc, char *const *argv, struct err *e);

/* Refuse options that `command` (one bit, called `name`) has no use for. After opts_parse. */
int opts_apply(const struct opts *o, unsigned command, const char *name, struct err *e);

/* Whether an option may stand in a configuration file: what is about one call may not. */
bool opts_in_file(const struct opt *opt);
/* Set an option of a file, for a command (one bit; 0: whatever it is), as o->from and o->line say.
 * Flags are yes or no, or nothing, which is yes. Without effect where the command does not
 * understand the option, or calls something else by its name. ERR_ARG. */
int opts_file(struct opts *o, const char *name, const char *value, unsigned command, struct err *e);

/* The row of an option by its long name, or by its letter where it has no other; NULL: none. */
const struct opt *opts_named(const char *name);

/* Where the value of an option is from. */
enum opt_origin opts_origin(const struct opts *o, const char *name);

/* Set a number that says how tokens are chosen, or thought, by its option's name: "temp", "n",
 * "think-limit". ERR_ARG: there is none of this name, or it cannot have this value. */
int opts_set(struct opts *o, const char *name, const char *value, struct err *e);

/* The options of these commands, grouped, and their variables. */
void opts_help(FILE *to, unsigned commands);

#endif
