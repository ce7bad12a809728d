/* cli/bench/bench.c - the table of measuring commands, and main. */
#include "cli/bench/bench.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "cli/load.h"
#include "cli/nearest.h"
#include "cli/safe.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const struct bench_command *const commands[] = {
    &bench_kernels, &bench_io,      &bench_pool, &bench_replay, &bench_sweep,
    &bench_decode,  &bench_prefill, &bench_mask, &bench_report,
};

int bench_fail(const struct bench *b, int exit_code, const char *hint, const char *fmt, ...)
{
    char detail[1024], safe[2048], command[64];
    va_list ap;

    if (exit_code == EXIT_INTERRUPTED)
        return exit_code;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    if (b->json) {
        json_t *o = json_pack("{s:s, s:o, s:i}", "error", b->command, "detail",
                              json_text(detail, strlen(detail)), "exit", exit_code);

        if (hint)
            json_object_set_new(o, "hint", json_text(hint, strlen(hint)));
        json_dumpf(o, stderr, JSON_COMPACT);
        fputc('\n', stderr);
        json_decref(o);
        return exit_code;
    }
    fprintf(stderr, "waste-bench: %s: %s\n",
            safe_text(command, sizeof(command), b->command, strlen(b->command), ""),
            safe_text(safe, sizeof(safe), detail, strlen(detail), ""));
    if (hint)
        fprintf(stderr, "%s\n", hint);
    return exit_code;
}

int bench_fail_err(const struct bench *b, const struct err *e)
{
    return bench_fail(b, exit_of_err(e->code), NULL, "%s", e->text);
}

int bench_memory(uint64_t bytes, const char *what, struct err *e)
{
    const uint64_t usable = waste_usable_ram();
    char asked[UNITS_TEXT], offered[UNITS_TEXT];

    if (!usable || bytes <= usable)
        return 0;
    return err_set(e, ERR_BUDGET, "%s take %s, this machine offers %s", what,
                   size_text(asked, bytes), size_text(offered, usable));
}

static void print_usage(FILE *to)
{
    fputs("waste-bench measures the parts of waste, each arm beside the others and its ceiling.\n\n"
          "Usage: waste-bench COMMAND [OPTIONS] ...\n\n",
          to);
    for (size_t i = 0; i < N_ELEMS(commands); i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs(
        "\n`waste-bench help COMMAND` has the options of a command, `waste-bench version` the\n"
        "version; docs/BENCHMARKS.md says how to read the figures. `waste-bench decode demo "
        "--quick`\n"
        "is a first try. Ctrl-C ends the measuring and leaves what there is, marked as "
        "incomplete;\n"
        "a second one ends the program.\n"
        "Exit codes: 0 done, 1 failed, 2 misused, 3 does not fit in memory, 4 damaged container,\n"
        "5 busy, 6 unsupported, 7 an arm is invalid and says why, 130 interrupted.\n",
        to);
}

static void print_command(FILE *to, const struct bench_command *k, const struct flag *common)
{
    fprintf(to, "Usage: waste-bench %s %s\n\n%s\n\n", k->name, k->args,
            k->text ? k->text : k->summary);
    flags_help(to, k->flags);
    flags_help(to, common);
    if (k->examples)
        fprintf(to, "\nExamples:\n%s", k->examples);
}

static const struct bench_command *command_named(const char *name)
{
    for (size_t i = 0; i < N_ELEMS(commands); i++) {
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    }
    return NULL;
}

static int unknown_command(struct bench *b, const char *name)
{
    const char *names[N_ELEMS(commands)], *near;

    if (!*name)
        return bench_fail(b, EXIT_USAGE, "`waste-bench help` lists the commands.",
                          "the command is empty");
    for (size_t i = 0; i < N_ELEMS(commands); i++)
        names[i] = commands[i]->name;
    near = nearest_name(name, names, N_ELEMS(commands));
    b->command = name;
    return bench_fail(b, EXIT_USAGE, "`waste-bench help` lists the commands.",
                      "unknown command%s%s%s", near ? " (did you mean " : "", near ? near : "",
                      near ? "?)" : "");
}

static int flush_output(const struct bench *b)
{
    if (fflush(stdout) || ferror(stdout))
        return bench_fail(b, EXIT_RUNTIME, NULL, "standard output takes no more");
    return 0;
}

/* The tables are on standard output already; under --json the object comes now. */
static int finish(struct bench *b, int rc)
{
    const bool interrupted = rc == EXIT_INTERRUPTED;
    json_t *root;

    if (interrupted)
        report_interrupt(&b->report);
    root = report_end(&b->report);
    if ((!rc || interrupted) && b->json) {
        json_dumpf(root, stdout, JSON_COMPACT);
        putchar('\n');
    }
    if (flush_output(b))
        return EXIT_RUNTIME;
    if (!rc && b->report.invalid)
        return EXIT_INVALID;
    return rc;
}

/* `path` has to live as long as the arguments are read. */
static void find_model(struct bench *b, const struct bench_command *k, char path[PATH_MAX])
{
    if (k->takes_model && b->n_args && model_look(b->arg[0], path))
        b->arg[0] = path;
}

static bool empty_argument(const struct bench *b)
{
    for (unsigned i = 0; i < b->n_args; i++)
        if (!*b->arg[i])
            return true;
    return false;
}

static int run_command(struct bench *b, const struct bench_command *k, int argc, char **argv)
{
    bool help = false;
    const struct flag common[] = {
        {"rounds", FLAG_INT, &b->rounds, 1, ROUNDS_MAX, "N",
         "interleaved rounds; medians and spreads are over them (5)"},
        {"quick", FLAG_SET, &b->quick, 0, 0, NULL,
         "small and short: whether it works, not how fast it is"},
        {"json", FLAG_SET, &b->json, 0, 0, NULL, "one JSON object instead of tables"},
        {"help", FLAG_SET, &help, 0, 0, NULL, "this text"},
        {0},
    };
    char model[PATH_MAX], hint[80];
    char **typed = calloc((size_t)argc + 1, sizeof(*typed)); /* parsing reorders argv */
    struct err e;
    int rc;

    b->command = k->name;
    b->arg = argv + 1;
    if (!typed)
        return bench_fail(b, EXIT_MEMORY, NULL, "out of memory");
    memcpy(typed, argv, (size_t)argc * sizeof(*typed));
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        b->json |= !strcmp(argv[i], "--json"); /* also behind what is wrong */
    snprintf(hint, sizeof(hint), "`waste-bench help %s` has the options and examples.", k->name);
    if (flags_parse(b->arg, argc - 1, &b->n_args, k->flags, common, &e))
        rc = bench_fail(b, EXIT_USAGE, hint, "%s", e.text);
    else if (help) {
        print_command(stdout, k, common);
        rc = flush_output(b);
    } else if (b->n_args < k->min_args || b->n_args > k->max_args)
        rc = bench_fail(b, EXIT_USAGE, hint,
                        b->n_args < k->min_args ? "an argument is missing; usage: waste-bench %s %s"
                                                : "too many arguments; usage: waste-bench %s %s",
                        k->name, k->args);
    else if (empty_argument(b))
        rc = bench_fail(b, EXIT_USAGE, hint, "an argument is empty");
    else if (thread_main_stack(&e))
        rc = bench_fail(b, EXIT_RUNTIME, NULL, "stack: %s", e.text);
    else if (report_open(&b->report, b->json ? NULL : stdout, typed, &e))
        rc = bench_fail_err(b, &e);
    else {
        find_model(b, k, model);
        rc = finish(b, k->run(b));
    }
    report_release(&b->report);
    free(typed);
    return rc;
}

static int run_help(struct bench *b, char *name)
{
    static char option[] = "--help", *args[] = {NULL, option, NULL}; /* the report keeps them */
    const struct bench_command *k;

    if (!name) {
        print_usage(stdout);
        return flush_output(b);
    }
    args[0] = name;
    k = command_named(name);
    return k ? run_command(b, k, 2, args) : unknown_command(b, name);
}

/* As `waste` does, but for a reader who leaves: that ends the measuring at once. */
static void open_term(void)
{
    struct sigaction pipe;
    struct term term;

    sigaction(SIGPIPE, NULL, &pipe);
    term_open(&term);
    sigaction(SIGPIPE, &pipe, NULL);
}

int main(int argc, char **argv)
{
    struct bench b = {.command = "waste-bench", .rounds = 5};
    const struct bench_command *k;

    open_term();
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return run_help(&b, argv[2]);
    if (!strcmp(argv[1], "version") || !strcmp(argv[1], "--version")) {
        printf("waste-bench %s\n", waste_version());
        return flush_output(&b);
    }
    k = command_named(argv[1]);
    return k ? run_command(&b, k, argc - 1, argv + 1) : unknown_command(&b, argv[1]);
}
