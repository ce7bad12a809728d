/* cli/bench/bench_report.c - kernels and reading in one file that explains itself, and how far the
 * goals are. */
#include "cli/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/partial.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const char *out_name = "waste-report.txt";

static const struct flag flags[] = {
    {"out", FLAG_TEXT, &out_name, 0, 0, "NAME",
     "file to write: tables, then the JSON object as its last line (waste-report.txt)"},
    {0},
};

struct place { /* a figure: the median of a metric of the first arm whose name begins so */
    const char *trial, *arm;
};

static const struct goal {
    const char *what;
    const char *metric;
    struct place measured, against;
    double goal; /* of measured / against */
    bool at_most;
} goals[] = {
    {"RVQ rows from RAM, i8, of the read rate",
     "rate",
     {"rvq 3x256 i8 rows from RAM", "avx512"},
     {"rvq 3x256 i8 rows from RAM", "read"},
     0.60,
     false},
    {"RVQ rows from RAM, i16, of the read rate",
     "rate",
     {"rvq 3x256 i16 rows from RAM", "avx512"},
     {"rvq 3x256 i16 rows from RAM", "read"},
     0.33,
     false},
    {"RVQ rows hot, i16, times C's f32 tables",
     "rate",
     {"rvq 3x256 i16 rows hot", "avx512"},
     {"rvq 3x256 f32 rows hot", "c"},
     8,
     false},
    {"RVQ rows hot, i8, times C's f32 tables",
     "rate",
     {"rvq 3x256 i8 rows hot", "avx512"},
     {"rvq 3x256 f32 rows hot", "c"},
     16,
     false},
    {"RVQ rows hot, AVX2, direct, times C's f32",
     "rate",
     {"rvq 3x256 direct rows hot", "avx2"},
     {"rvq 3x256 f32 rows hot", "c"},
     1.5,
     false},
    {"RVQ rows hot, AVX2, i8, times C's f32",
     "rate",
     {"rvq 3x256 i8 rows hot", "avx2"},
     {"rvq 3x256 f32 rows hot", "c"},
     4,
     false},
    {"Q4 rows from RAM, of the read rate",
     "rate",
     {"gemv Q4 from RAM", "avx512"},
     {"gemv Q4 from RAM", "read"},
     0.85,
     false},
    {"Q8 rows from RAM, of the read rate",
     "rate",
     {"gemv Q8 from RAM", "avx512"},
     {"gemv Q8 from RAM", "read"},
     0.85,
     false},
    {"Q4 products, 16 rows, of the FMA peak",
     "rate",
     {"gemv Q4 16 rows", "avx512"},
     {"gemv Q4 16 rows", "f32"},
     0.5,
     false},
    {"Q8 products, 16 rows, of the FMA peak",
     "rate",
     {"gemv Q8 16 rows", "avx512"},
     {"gemv Q8 16 rows", "f32"},
     0.5,
     false},
    {"encoding, AVX-512, times C",
     "rate",
     {"encode 3x256", "avx512"},
     {"encode 3x256", "c"},
     10,
     false},
    {"encoding, AVX2, times C", "rate", {"encode 3x256", "avx2"}, {"encode 3x256", "c"}, 5, false},
    {"reads of 2.67 MB, of fio into such pages",
     "gb_s",
     {"records of 2666496", "io_uring, 2 MiB, reg"},
     {"records of 2666496", "fio io_uring, 2 MiB, reg"},
     0.95,
     false},
    {"reads of 12.4 MB, of fio into such pages",
     "gb_s",
     {"records of 12406784", "io_uring, 2 MiB, reg"},
     {"records of 12406784", "fio io_uring, 2 MiB, reg"},
     0.95,
     false},
    {"their CPU time, 2.67 MB, of pread, 4 KiB",
     "cpu_s_per_gb",
     {"records of 2666496", "io_uring, 2 MiB, reg"},
     {"records of 2666496", "threads, 4 KiB"},
     1 / 3.0,
     true},
    {"their CPU time, 12.4 MB, of pread, 4 KiB",
     "cpu_s_per_gb",
     {"records of 12406784", "io_uring, 2 MiB, reg"},
     {"records of 12406784", "threads, 4 KiB"},
     1 / 3.0,
     true},
};

static const json_t *named(const json_t *list, const char *prefix)
{
    const json_t *o;
    size_t i;

    json_array_foreach(list, i, o)
    {
        if (!strncmp(json_string_value(json_object_get(o, "name")), prefix, strlen(prefix)))
            return o;
    }
    return NULL;
}

/* NaN: not measured, or not valid. */
static double figure_at(const json_t *trials, struct place at, const char *metric)
{
    const json_t *arm = named(json_object_get(named(trials, at.trial), "arms"), at.arm);
    const json_t *v = json_object_get(json_object_get(arm, metric), "median");
    const char *state = json_string_value(json_object_get(arm, "state"));

    return json_is_number(v) && !strcmp(state, "valid") ? json_number_value(v) : NAN;
}

static void print_goal(FILE *to, const struct goal *g, double reached, bool met)
{
    fprintf(to, "  %-44s %s %-6.3g ", g->what, g->at_most ? "<=" : ">=", g->goal);
    if (isnan(reached))
        fputs("not measured\n", to);
    else
        fprintf(to, "%8.3g  %s\n", reached, met ? "met" : "NOT MET");
}

static json_t *judge_goals(const json_t *trials, FILE *const *to, unsigned n_to)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < n_to; i++)
        fputs("\nGoals, ratios of medians:\n", to[i]);
    for (size_t g = 0; g < N_ELEMS(goals); g++) {
        const double reached = figure_at(trials, goals[g].measured, goals[g].metric) /
                               figure_at(trials, goals[g].against, goals[g].metric);
        const bool met = goals[g].at_most ? reached <= goals[g].goal : reached >= goals[g].goal;

        json_array_append_new(list, json_pack("{s:s, s:f, s:b, s:o, s:o}", "what", goals[g].what,
                                              "goal", goals[g].goal, "at_most", goals[g].at_most,
                                              "reached", json_f64(reached), "met",
                                              isnan(reached) ? json_null() : json_boolean(met)));
        for (unsigned i = 0; i < n_to; i++)
            print_goal(to[i], &goals[g], reached, met);
    }
    return list;
}

static int measure(struct bench *b)
{
    int rc = measure_kernels(b);

    if (!rc && b->n_args)
        return measure_io(b, true);
    if (!rc)
        report_note(&b->report, "no FILE was named: reading was not measured");
    return rc;
}

/* Goals, unless not all of it was measured, and the object. */
static void write_end(struct bench *b, FILE *out, bool whole)
{
    FILE *to[] = {out, stdout};

    if (whole)
        json_object_set_new(b->report.root, "goals",
                            judge_goals(b->report.trials, to, b->json ? 1 : 2));
    else
        report_interrupt(&b->report);
    fputc('\n', out);
    json_dumpf(report_end(&b->report), out, JSON_COMPACT);
    fputc('\n', out);
}

/* 0, or why the file is not as it should be. */
static int close_output(struct bench *b, FILE *out)
{
    const int before = ferror(out) ? EIO : 0;

    b->report.table = NULL;
    return fclose(out) ? errno : before;
}

/* Into a file that gets its name at the end: an error leaves none, an interrupt one that says so.
 */
static int measure_into(struct bench *b, FILE *out, struct partial *p)
{
    struct err e;
    int rc, bad;

    report_table_to(&b->report, out);
    rc = measure(b);
    if (!rc || rc == EXIT_INTERRUPTED)
        write_end(b, out, !rc);
    bad = close_output(b, out);
    if (rc && rc != EXIT_INTERRUPTED)
        return rc;
    if (bad)
        return bench_fail(b, EXIT_RUNTIME, NULL, "--out %s: %s", out_name, strerror(bad));
    if (partial_publish(p, &e))
        return bench_fail(b, EXIT_RUNTIME, NULL, "--out %s", e.text);
    if (!b->json)
        printf(rc ? "\nInterrupted; what was measured is in %s.\n"
                  : "\nTables and JSON are in %s.\n",
               out_name);
    return rc;
}

static int run(struct bench *b)
{
    struct partial p;
    struct err e;
    FILE *out;
    int rc, fd;

    if (b->n_args && access(b->arg[0], R_OK))
        return bench_fail(b, EXIT_RUNTIME, NULL, "%s: %s", b->arg[0], strerror(errno));
    if (partial_open(&p, out_name, &e))
        return bench_fail(b, EXIT_RUNTIME, NULL, "--out %s", e.text);
    fd = fcntl(p.fd, F_DUPFD_CLOEXEC, 0);
    out = fd < 0 ? NULL : fdopen(fd, "w");
    rc = out ? measure_into(b, out, &p)
             : bench_fail(b, EXIT_RUNTIME, NULL, "--out %s: %s", out_name, strerror(errno));
    partial_drop(&p);
    return rc;
}

const struct bench_command bench_report = {
    .name = "report",
    .args = "[OPTIONS] [FILE]",
    .summary = "kernels and, with FILE, reading, in one file; and how far the goals are",
    .text =
        "Runs `kernels` and, on FILE, `io` at depth 4, and writes one file: machine and build,\n"
        "tables, the goals of this project with what was reached, and as its last line the JSON\n"
        "object that all of it comes from. Goals are reported; none decides the exit code.",
    .flags = flags,
    .max_args = 1,
    .examples = "  waste-bench report --out here.txt kl.waste/experts-L5.bin\n"
                "  tail -n 1 here.txt | python3 -m json.tool\n",
    .run = run,
};
