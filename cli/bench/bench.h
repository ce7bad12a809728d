/* cli/bench/bench.h - waste-bench: one program, one file per layer that it measures.
 *
 * A sub-command is a `struct bench_command` in a file of its own, a line in bench.c's table and one
 * in meson.build. It gets parsed options, makes trials (trial.h), hands each to the report
 * (report.h) when it has run, and returns an exit code. What is printed and when the exit code says
 * "invalid" is decided in bench.c.
 */
#ifndef CLI_BENCH_BENCH_H
#define CLI_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/bench/flags.h"
#include "cli/bench/report.h"
#include "cli/say.h"

enum { EXIT_INVALID = 7 }; /* measured, but an arm is not what it seems */

struct bench {
    const char *command; /* the sub-command's name */
    char **arg;          /* positionals after it */
    unsigned n_args;
    int64_t rounds;
    bool json, quick; /* quick: does it work, rather than how fast */
    struct report report;
};

struct bench_command {
    const char *name, *args, *summary, *text; /* args: "[OPTIONS] FILE" */
    const struct flag *flags; /* its own, besides --rounds, --quick, --json, --help */
    unsigned min_args, max_args;
    bool takes_model; /* its first argument; the bare name of an installed one will do */
    const char *examples;
    int (*run)(struct bench *b);
};

extern const struct bench_command bench_kernels, bench_io, bench_pool, bench_replay, bench_sweep,
    bench_decode, bench_prefill, bench_mask, bench_report;

/* What `report` puts together. Each measures with the options it was given, or the defaults;
 * returns an exit code. brief: one depth. measure_io reads b->arg[0]. */
int measure_kernels(struct bench *b);
int measure_io(struct bench *b, bool brief);

/* Say why it failed; returns exit_code. hint may be NULL. */
int bench_fail(const struct bench *b, int exit_code, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int bench_fail_err(const struct bench *b, const struct err *e);

/* ERR_BUDGET: what an option asks for is more than this machine offers, and would end the process
 * when it is touched. */
int bench_memory(uint64_t bytes, const char *what, struct err *e);

#endif
