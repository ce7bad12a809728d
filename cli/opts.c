#include "cli/opts.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "cli/nearest.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { PREFIX = sizeof("WASTE_") - 1 };

static const char *const server_variables[] = {"WASTE_LIB", "WASTE_API_KEY"};

void opts_init(struct opts *o)
{
    *o = (struct opts){
        .lookahead = -1,
        .direct = true,
        .verify = true,
        .top_k = -1,
        .repeat_window = -1,
        .top_p = 1,
        .repeat_penalty = 1,
        .color = -1,
        .think_limit = -1,
        .checkpoints = -1,
        .state_disk = (uint64_t)8 << 30,
        .states = true,
        .history = true,
        .configured = true,
    };
}

void opts_release(struct opts *o)
{
    free(o->arg);
    o->arg = NULL;
    o->n_args = 0;
}

static bool listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(name, list[i]))
            return true;
    }
    return false;
}

static int read_int(int64_t *out, const char *text, double lo, double hi, struct err *e)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end || strspn(text, "-0123456789") != strlen(text))
        return err_set(e, ERR_ARG, "\"%s\" is not a whole number", text);
    if (errno || v < lo || v > hi)
        return err_set(e, ERR_ARG, "%s is out of range %.0f...%.0f", text, lo, hi);
    *out = v;
    return 0;
}

static int read_seed(struct opts *o, const char *text, struct err *e)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (end == text || *end || errno || strspn(text, "0123456789") != strlen(text))
        return err_set(e, ERR_ARG, "\"%s\" is not a number of 64 bits", text);
    o->seed = v;
    o->seed_set = true;
    return 0;
}

static int read_f64(double *out, const char *text, double lo, double hi, bool open, struct err *e)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || strspn(text, "+-.eE0123456789") != strlen(text))
        return err_set(e, ERR_ARG, "\"%s\" is not a number", text);
    if (!isfinite(v) || v < lo || v > hi || (open && v == lo))
        return err_set(e, ERR_ARG, "%s is out of range %s%g...%g", text, open ? "above " : "", lo,
                       hi);
    *out = v;
    return 0;
}

static int read_choice(const char **out, const char *text, const char *choices, struct err *e)
{
    size_t len = strlen(text);

    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        if (len && strcspn(p, "|") == len && !memcmp(p, text, len)) {
            *out = text;
            return 0;
        }
    }
    return err_set(e, ERR_ARG, "\"%s\" is none of %s", text, choices);
}

/* A level that is not here would quietly be a lower one. */
static int read_cpu(const char **out, const char *text, const char *choices, struct err *e)
{
    unsigned level = 0;

    if (read_choice(out, text, choices, e) || cpu_level(&level, text, e))
        return e->code;
    if (level & ~(unsigned)CPU_AVX512_VBMI & ~cpu_detect())
        return err_set(e, ERR_ARG, "this machine has no %s", text);
    return 0;
}

/* "--budget 46" is gigabytes whose letter was forgotten; what is meant to be small says B. */
static int forgot_unit(uint64_t v, const char *text, const char *what, struct err *e)
{
    int digits;

    if (!v || v >= 1 << 20 || strpbrk(text, "kKmMgGtTB"))
        return 0;
    text += strspn(text, " \t");
    digits = (int)strspn(text, "0123456789.");
    return err_set(e, ERR_ARG, "%.*s %s? say %.*sG", digits, text, what, digits, text);
}

static int read_size(uint64_t *out, const char *text, struct err *e)
{
    uint64_t v;

    if (size_parse(&v, text, e) || forgot_unit(v, text, "bytes", e))
        return e->code;
    *out = v;
    return 0;
}

static int read_rate(uint64_t *out, const char *text, struct err *e)
{
    uint64_t v;

    if (rate_parse(&v, text, e) || forgot_unit(v, text, "bytes per second", e))
        return e->code;
    *out = v;
    return 0;
}

static int read_bias(struct opts *o, const char *text, struct err *e)
{
    char id_text[24];
    size_t len = strcspn(text, "=");
    int64_t id;
    double value;

    if (!text[len] || len >= sizeof(id_text))
        return err_set(e, ERR_ARG, "\"%s\" is not ID=V", text);
    memcpy(id_text, text, len);
    id_text[len] = '\0';
    if (read_int(&id, id_text, 0, INT32_MAX, e) ||
        read_f64(&value, text + len + 1, -1e6, 1e6, false, e))
        return e->code;
    if (o->n_bias == OPTS_LIST_MAX)
        return err_set(e, ERR_ARG, "given more than %d times", OPTS_LIST_MAX);
    o->bias[o->n_bias++] = (waste_bias){.id = (int32_t)id, .value = (float)value};
    return 0;
}

static int read_stop(struct opts *o, const char *text, struct err *e)
{
    if (!*text)
        return err_set(e, ERR_ARG, "an empty text stops nothing");
    if (o->n_stop == OPTS_LIST_MAX)
        return err_set(e, ERR_ARG, "given more than %d times", OPTS_LIST_MAX);
    o->stop[o->n_stop++] = text;
    return 0;
}

static bool is_named(const struct opt *opt, const char *name)
{
    return opt->name ? !strcmp(opt->name, name) : opt->letter && name[0] == opt->letter && !name[1];
}

static bool takes_value(const struct opt *opt)
{
    return opt->value != NULL;
}

static bool names_a_file(const struct opt *opt)
{
    static const char *const kinds[] = {"FILE", "PATH", "DIR"};

    return listed(opt->value, kinds, N_ELEMS(kinds));
}

/* Where a row's value is from, from now on. A list of a weaker origin is not added to. */
static void set_origin(struct opts *o, const struct opt *opt)
{
    struct opt_from *set = &o->set[opt - opts_table];

    if (set->origin != o->from && opt->kind == OPT_STOP)
        o->n_stop = 0;
    if (set->origin != o->from && opt->kind == OPT_BIAS)
        o->n_bias = 0;
    *set = (struct opt_from){o->from, o->line};
}

/* A flag, given on the command line. */
static void set_flag(struct opts *o, const struct opt *opt)
{
    void *field = (char *)o + opt->field;

    set_origin(o, opt);

    if (opt->kind == OPT_COLOR) {
        *(int *)field = (int)opt->lo;
    } else if (opt->kind == OPT_MODE) {
        *(bool *)field = opt->lo != 0;
        o->markup_set = true;
    } else {
        *(bool *)field = opt->kind == OPT_SET;
    }
}

static int set_value(struct opts *o, const struct opt *opt, const char *text, struct err *e)
{
    void *field = (char *)o + opt->field;

    set_origin(o, opt);
    switch (opt->kind) {
    case OPT_INT:
        return read_int(field, text, opt->lo, opt->hi, e);
    case OPT_SEED:
        return read_seed(o, text, e);
    case OPT_F64:
        return read_f64(field, text, opt->lo, opt->hi, opt->open, e);
    case OPT_SIZE:
        return read_size(field, text, e);
    case OPT_RATE:
        return read_rate(field, text, e);
    case OPT_CHOICE:
        return read_choice(field, text, opt->value, e);
    case OPT_CPU:
        return read_cpu(field, text, opt->value, e);
    case OPT_STOP:
        return read_stop(o, text, e);
    case OPT_BIAS:
        return read_bias(o, text, e);
    case OPT_IMAGE:
        if (!*text)
            return err_set(e, ERR_ARG, "it is empty; it has to be a file");
        if (o->n_images == WASTE_IMAGES_MAX)
            return err_set(e, ERR_ARG, "more than %d images", WASTE_IMAGES_MAX);
        o->image[o->n_images++] = text;
        o->vision = true;
        return 0;
    case OPT_TEXT:
        if (!*text && names_a_file(opt))
            return err_set(e, ERR_ARG, "it is empty; it has to be a %s",
                           strcmp(opt->value, "DIR") ? "file" : "directory");
        *(const char **)field = text;
        return 0;
    default: /* a flag that a variable sets */
        if (strcmp(text, "0") && strcmp(text, "1"))
            return err_set(e, ERR_ARG, "\"%s\" is neither 0 nor 1", text);
        *(bool *)field = *text == '1';
        return 0;
    }
}

const struct opt *opts_named(const char *name)
{
    for (unsigned i = 0; i < opts_rows; i++) {
        if (is_named(&opts_table[i], name))
            return &opts_table[i];
    }
    return NULL;
}

enum opt_origin opts_origin(const struct opts *o, const char *name)
{
    const struct opt *opt = opts_named(name);

    return opt ? o->set[opt - opts_table].origin : FROM_DEFAULT;
}

bool opts_in_file(const struct opt *opt)
{
    static const char *const one_call[] = {"file",      "ids",   "bos",     "out",
                                           "json",      "help",  "version", "config",
                                           "no-config", "usage", "image"};

    return (opt->name || opt->letter) && opt->kind != OPT_MODE &&
           (opt->commands & (CMD_RUN | CMD_CHAT)) &&
           !(opt->name && listed(opt->name, one_call, N_ELEMS(one_call)));
}

static const struct opt *option_of_file(const char *name, struct err *e)
{
    const char *names[OPTS_ROWS_MAX], *near;
    unsigned n = 0;

    for (unsigned i = 0; i < opts_rows; i++) {
        if (!opts_table[i].name && !opts_table[i].letter)
            continue;
        if (is_named(&opts_table[i], name) && opts_in_file(&opts_table[i]))
            return &opts_table[i];
        if (is_named(&opts_table[i], name)) {
            err_set(e, ERR_ARG, "%s does not go into a file: it is about one call", name);
            return NULL;
        }
        if (opts_in_file(&opts_table[i]))
            names[n++] = opts_table[i].name ? opts_table[i].name : "n";
    }
    near = nearest_name(name, names, n);
    err_set(e, ERR_ARG, "unknown option \"%.40s\"%s%s%s", name, near ? " (did you mean " : "",
            near ? near : "", near ? "?)" : "");
    return NULL;
}

static int read_switch(bool *out, const char *text, struct err *e)
{
    static const char *const yes[] = {"", "yes", "true", "on", "1"};
    static const char *const no[] = {"no", "false", "off", "0"};

    *out = listed(text, yes, N_ELEMS(yes));
    if (!*out && !listed(text, no, N_ELEMS(no)))
        return err_set(e, ERR_ARG, "\"%s\" is neither yes nor no", text);
    return 0;
}

/* "no-verify = no" is "verify = yes". */
static int set_switch(struct opts *o, const struct opt *opt, const char *text, struct err *e)
{
    void *field = (char *)o + opt->field;
    bool on;

    if (read_switch(&on, text, e))
        return e->code;
    set_origin(o, opt);
    if (opt->kind == OPT_COLOR)
        *(int *)field = on ? (int)opt->lo : !(int)opt->lo;
    else
        *(bool *)field = on == (opt->kind == OPT_SET);
    return 0;
}

int opts_file(struct opts *o, const char *name, const char *value, unsigned command, struct err *e)
{
    const struct opt *opt = option_of_file(name, e);
    struct opts unused;
    int rc;

    if (!opt)
        return e->code;
    /* "top-k" is the number of rows in eval, and experts in synth */
    if (command && (!(opt->commands & command) ||
                    (opt->group == GROUP_CHOOSE && !(command & (CMD_RUN | CMD_CHAT))))) {
        opts_init(&unused);
        o = &unused;
    }
    if (!takes_value(opt))
        rc = set_switch(o, opt, value, e);
    else if (!*value)
        rc = err_set(e, ERR_ARG, "a value is missing");
    else
        rc = set_value(o, opt, value, e);
    return rc ? err_wrap(e, "%s", name) : 0;
}

/* A number of one answer, which the next may have otherwise. */
static bool is_of_an_answer(const struct opt *opt)
{
    bool number = opt->kind == OPT_INT || opt->kind == OPT_F64 || opt->kind == OPT_SEED;

    return number &&
           (opt->group == GROUP_CHOOSE || opt->field == offsetof(struct opts, think_limit));
}

int opts_set(struct opts *o, const char *name, const char *value, struct err *e)
{
    const char *names[OPTS_ROWS_MAX], *near;
    unsigned n = 0;

    for (unsigned i = 0; i < opts_rows; i++) {
        const struct opt *opt = &opts_table[i];

        if (!is_of_an_answer(opt))
            continue;
        if (is_named(opt, name))
            return set_value(o, opt, value, e) ? err_wrap(e, "%s", name) : 0;
        names[n++] = opt->name ? opt->name : "n";
    }
    near = nearest_name(name, names, n);
    return err_set(e, ERR_ARG, "no setting \"%.40s\"%s%s%s", name, near ? " (did you mean " : "",
                   near ? near : "", near ? "?)" : "");
}

static int unknown_variable(const char *name, struct err *e)
{
    const char *names[OPTS_ROWS_MAX], *near;
    unsigned n = 0;

    for (unsigned i = 0; i < opts_rows; i++) {
        if (opts_table[i].env)
            names[n++] = opts_table[i].env + PREFIX;
    }
    near = nearest_name(name + PREFIX, names, n);
    return err_set(e, ERR_ARG, "unknown variable %s%s%s%s", name,
                   near ? " (did you mean WASTE_" : "", near ? near : "", near ? "?)" : "");
}

static int set_variable(struct opts *o, const char *name, const char *value, struct err *e)
{
    if (listed(name, server_variables, N_ELEMS(server_variables)))
        return 0;
    for (unsigned i = 0; i < opts_rows; i++) {
        if (!opts_table[i].env || strcmp(opts_table[i].env, name))
            continue;
        if (*value && set_value(o, &opts_table[i], value, e))
            return err_wrap(e, "variable %s", name);
        return 0;
    }
    return unknown_variable(name, e);
}

int opts_env(struct opts *o, char *const *variables, struct err *e)
{
    char name[64];

    o->from = FROM_VARIABLE;
    for (; *variables; variables++) {
        const char *v = *variables;
        size_t len = strcspn(v, "=");

        if (strncmp(v, "WASTE_", PREFIX) || !v[len])
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(len < 60 ? len : 60), v);
        if (set_variable(o, name, v + len + 1, e))
            return e->code;
    }
    return 0;
}

static int unknown_option(const char *name, size_t len, struct err *e)
{
    const char *names[OPTS_ROWS_MAX], *near;
    char text[48];
    unsigned n = 0;

    snprintf(text, sizeof(text), "%.*s", (int)(len < 40 ? len : 40), name);
    for (unsigned i = 0; i < opts_rows; i++) {
        if (opts_table[i].name)
            names[n++] = opts_table[i].name;
    }
    near = nearest_name(text, names, n);
    return err_set(e, ERR_ARG, "unknown option --%s%s%s%s", text, near ? " (did you mean --" : "",
                   near ? near : "", near ? "?)" : "");
}

static const struct opt *option_named(const char *name, size_t len)
{
    for (unsigned i = 0; i < opts_rows; i++) {
        if (opts_table[i].name && strlen(opts_table[i].name) == len &&
            !memcmp(opts_table[i].name, name, len))
            return &opts_table[i];
    }
    return NULL;
}

static const struct opt *option_lettered(char letter)
{
    for (unsigned i = 0; i < opts_rows; i++) {
        if (opts_table[i].letter && opts_table[i].letter == letter)
            return &opts_table[i];
    }
    return NULL;
}

/* "--budget", or "-n": as the user knows it. */
static const char *option_text(char text[32], const struct opt *opt)
{
    if (opt->name)
        snprintf(text, 32, "--%s", opt->name);
    else
        snprintf(text, 32, "-%c", opt->letter);
    return text;
}

/* Whether an argument can be a value: "-" is standard input, "-1" a number, "-x" an option. */
static bool value_like(const char *arg)
{
    return arg && (arg[0] != '-' || !arg[1] || strchr("0123456789.", arg[1]));
}

/* attached: what follows = (or the letter); NULL: the value is the next argument. */
static int take_option(struct opts *o, const struct opt *opt, const char *attached,
                       char *const **at, struct err *e)
{
    char name[32];

    option_text(name, opt);
    if (!takes_value(opt)) {
        if (attached)
            return err_set(e, ERR_ARG, "%s takes no value", name);
        set_flag(o, opt);
        return 0;
    }
    if (!attached) {
        if (!value_like((*at)[1]))
            return err_set(e, ERR_ARG, "%s needs a value%s%s%s", name,
                           (*at)[1] && opt->name ? " (one that begins with - is written " : "",
                           (*at)[1] && opt->name ? name : "",
                           (*at)[1] && opt->name ? "=-...)" : "");
        attached = *++*at;
    }
    if (set_value(o, opt, attached, e))
        return err_wrap(e, "%s", name);
    return 0;
}

static int take_argument(struct opts *o, char *const **at, struct err *e)
{
    const char *arg = **at;
    const struct opt *opt;

    if (arg[0] != '-' || !arg[1]) {
        o->arg[o->n_args++] = arg;
        return 0;
    }
    if (arg[1] == '-') {
        size_t len = strcspn(arg + 2, "=");

        opt = option_named(arg + 2, len);
        if (!opt)
            return unknown_option(arg + 2, len, e);
        return take_option(o, opt, arg[2 + len] ? arg + 3 + len : NULL, at, e);
    }
    opt = option_lettered(arg[1]);
    if (!opt)
        return err_set(e, ERR_ARG, "unknown option %.40s (the short ones are -n, -q and -h)", arg);
    return take_option(o, opt, arg[2] ? arg + (arg[2] == '=' ? 3 : 2) : NULL, at, e);
}

int opts_parse(struct opts *o, int argc, char *const *argv, struct err *e)
{
    bool options = true;

    o->from = FROM_FLAG;
    o->arg = calloc((size_t)argc + 1, sizeof(*o->arg));
    if (!o->arg)
        return err_set(e, ERR_NOMEM, "arguments");
    if (!argc) /* execve allows it */
        return 0;
    for (char *const *at = argv + 1; *at; at++) {
        if (options && !strcmp(*at, "--"))
            options = false;
        else if (!options)
            o->arg[o->n_args++] = *at;
        else if (take_argument(o, &at, e))
            return e->code;
    }
    return 0;
}

/* `config` shows what an option comes to, whoever understands it. */
static bool understands(unsigned command, const struct opt *opt)
{
    return (opt->commands & command) || (command == CMD_CONFIG && opts_in_file(opt));
}

int opts_apply(const struct opts *o, unsigned command, const char *name, struct err *e)
{
    char text[32];

    for (unsigned i = 0; i < opts_rows; i++) {
        if (o->set[i].origin == FROM_FLAG && !understands(command, &opts_table[i]))
            return err_set(e, ERR_ARG, "%s does not apply to %s", option_text(text, &opts_table[i]),
                           name);
    }
    return 0;
}
