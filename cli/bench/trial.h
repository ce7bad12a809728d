/* cli/bench/trial.h - arms that do the same work, measured in interleaved rounds.
 *
 * A round runs every arm once, in order (A B C A B C ...), so that whatever else the machine does
 * meets all of them alike. An arm gives one sample a round: values, and a digest of what it
 * computed. Arms that disagree with the digest of the first of their group, or say themselves that
 * a sample is not what it seems, are invalid, with the reason; their values are kept and marked.
 */
#ifndef CLI_BENCH_TRIAL_H
#define CLI_BENCH_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { METRICS_MAX = 12, ARMS_MAX = 32, ROUNDS_MAX = 99 };

struct metric {
    const char *name; /* of the member in JSON: "gb_s" */
    const char *head; /* of the column: "GB/s" */
};

struct sample {
    double value[METRICS_MAX]; /* NaN: this arm has no such value */
    uint64_t digest;           /* same work, same round: same digest */
    bool has_digest;
    char invalid[160]; /* "": it is what it seems */
};

/* Run once. ERR: the arm is invalid from now on, with the error's text. */
typedef int arm_run_fn(void *context, unsigned round, struct sample *out, struct err *e);

enum arm_state {
    ARM_VALID,
    ARM_INVALID, /* measured, and not what it seems */
    ARM_ABSENT,  /* not on this machine or in this build: not measured */
};

struct arm {
    char name[48];
    arm_run_fn *run;
    void *context;
    bool ceiling; /* not one of ours: what the others are held against */
    unsigned
        group; /* digests are compared within: 0 unless arms of a trial compute different bits */
    enum arm_state state;
    char why[192]; /* why invalid or absent */
    char note[96]; /* what is worth knowing and harmless */
    uint64_t digest[ROUNDS_MAX];
    bool has_digest;
    double value[METRICS_MAX][ROUNDS_MAX];
    unsigned n; /* samples taken */
};

struct trial {
    char name[96];
    const struct metric *metrics; /* the first is what arms are compared by: more is better */
    unsigned n_metrics;
    bool all_ceilings_hold; /* the lowest one counts (roofs); else the highest (other programs) */
    unsigned rounds;
    struct arm arm[ARMS_MAX];
    unsigned n_arms;
};

struct spread {
    double median, min, max, iqr; /* NaN without a value */
};

/* NULL: out of memory. Free with free(). metrics is borrowed. rounds is at most ROUNDS_MAX. */
struct trial *trial_new(const struct metric *metrics, unsigned n_metrics, unsigned rounds,
                        const char *name, ...) __attribute__((format(printf, 4, 5)));

/* There is room for ARMS_MAX. */
struct arm *trial_add(struct trial *t, arm_run_fn *run, void *context, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
struct arm *trial_add_absent(struct trial *t, const char *name, const char *why);

/* false: an interrupt (cli/term.h) came between. Arms have the samples taken until then, and are
 * absent without any. */
bool trial_run(struct trial *t);

/* Of the values that are numbers. n at most ROUNDS_MAX. */
struct spread spread_of(const double *value, unsigned n);

double arm_median(const struct arm *a, unsigned metric);

/* The median of the first metric that nobody can pass; NaN without a valid ceiling. */
double trial_ceiling(const struct trial *t);

/* The first arm that is valid and no ceiling: what the others are a multiple of. NULL. */
const struct arm *trial_base(const struct trial *t);

/* A digest of bytes, seeded with the digest of what came before (0 at first). */
uint64_t digest_bytes(uint64_t seed, const void *bytes, size_t n);

double now_s(void);        /* a clock that only goes forward */
double thread_cpu_s(void); /* time that the calling thread has had a processor */

#endif
