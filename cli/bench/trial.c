#include "cli/bench/trial.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/term.h"

struct trial *trial_new(const struct metric *metrics, unsigned n_metrics, unsigned rounds,
                        const char *name, ...)
{
    struct trial *t = calloc(1, sizeof(*t));
    va_list ap;

    assert(n_metrics <= METRICS_MAX && rounds <= ROUNDS_MAX);
    if (!t)
        return NULL;
    t->metrics = metrics;
    t->n_metrics = n_metrics;
    t->rounds = rounds;
    va_start(ap, name);
    vsnprintf(t->name, sizeof(t->name), name, ap);
    va_end(ap);
    return t;
}

struct arm *trial_add(struct trial *t, arm_run_fn *run, void *context, const char *name, ...)
{
    struct arm *a = &t->arm[t->n_arms++];
    va_list ap;

    assert(t->n_arms <= ARMS_MAX);
    a->run = run;
    a->context = context;
    va_start(ap, name);
    vsnprintf(a->name, sizeof(a->name), name, ap);
    va_end(ap);
    return a;
}

struct arm *trial_add_absent(struct trial *t, const char *name, const char *why)
{
    struct arm *a = trial_add(t, NULL, NULL, "%s", name);

    a->state = ARM_ABSENT;
    snprintf(a->why, sizeof(a->why), "%.*s", (int)sizeof(a->why) - 1, why);
    return a;
}

static void invalidate(struct arm *a, const char *why)
{
    if (a->state != ARM_VALID)
        return;
    a->state = ARM_INVALID;
    snprintf(a->why, sizeof(a->why), "%.*s", (int)sizeof(a->why) - 1, why);
}

/* false: an interrupt, which is no failure of the arm. */
static bool run_once(struct trial *t, struct arm *a, unsigned round)
{
    struct sample s = {.digest = 0};
    struct err e;

    if (!a->run)
        return true;
    for (unsigned m = 0; m < METRICS_MAX; m++)
        s.value[m] = NAN;
    if (a->run(a->context, round, &s, &e)) {
        if (term_interrupted())
            return false;
        invalidate(a, e.text);
        a->run = NULL; /* what failed once is not asked again */
        return true;
    }
    for (unsigned m = 0; m < t->n_metrics; m++)
        a->value[m][a->n] = s.value[m];
    a->has_digest = s.has_digest;
    a->digest[a->n++] = s.digest;
    if (s.invalid[0])
        invalidate(a, s.invalid);
    return true;
}

/* An arm that has run at all has run in the first rounds. */
static const struct arm *first_of_group(const struct trial *t, unsigned group)
{
    for (unsigned i = 0; i < t->n_arms; i++) {
        if (t->arm[i].has_digest && t->arm[i].group == group)
            return &t->arm[i];
    }
    return NULL;
}

static void compare_digests(struct trial *t)
{
    for (unsigned i = 0; i < t->n_arms; i++) {
        struct arm *a = &t->arm[i];
        const struct arm *first = first_of_group(t, a->group);

        for (unsigned r = 0; a->has_digest && r < a->n && r < first->n; r++) {
            char why[sizeof(a->why)];

            if (a->digest[r] == first->digest[r])
                continue;
            snprintf(why, sizeof(why), "round %u: digest %016llx, that of %s is %016llx", r + 1,
                     (unsigned long long)a->digest[r], first->name,
                     (unsigned long long)first->digest[r]);
            invalidate(a, why);
            break;
        }
    }
}

/* false: interrupted. */
static bool run_rounds(struct trial *t, bool shown)
{
    for (unsigned round = 0; round < t->rounds; round++) {
        for (unsigned i = 0; i < t->n_arms; i++) {
            if (term_interrupted())
                return false;
            if (shown)
                fprintf(stderr, "\r\033[Kround %u of %u, %u of %u: %.50s", round + 1, t->rounds,
                        i + 1, t->n_arms, t->arm[i].name);
            if (!run_once(t, &t->arm[i], round))
                return false;
        }
    }
    return true;
}

bool trial_run(struct trial *t)
{
    bool shown = isatty(STDERR_FILENO), whole = run_rounds(t, shown);

    if (shown)
        fputs("\r\033[K", stderr);
    for (unsigned i = 0; !whole && i < t->n_arms; i++) {
        struct arm *a = &t->arm[i];

        if (a->n || a->state != ARM_VALID)
            continue;
        a->state = ARM_ABSENT;
        snprintf(a->why, sizeof(a->why), "interrupted before its first sample");
    }
    compare_digests(t);
    return whole;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Between neighbours where the place is between them. */
static double quantile(const double *sorted, unsigned n, double q)
{
    double at = q * (n - 1);
    unsigned i = (unsigned)at;

    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

struct spread spread_of(const double *value, unsigned n)
{
    double sorted[ROUNDS_MAX];
    unsigned k = 0;

    for (unsigned i = 0; i < n; i++) {
        if (!isnan(value[i]))
            sorted[k++] = value[i];
    }
    if (!k)
        return (struct spread){NAN, NAN, NAN, NAN};
    qsort(sorted, k, sizeof(sorted[0]), ascending);
    return (struct spread){.median = quantile(sorted, k, 0.5),
                           .min = sorted[0],
                           .max = sorted[k - 1],
                           .iqr = quantile(sorted, k, 0.75) - quantile(sorted, k, 0.25)};
}

double arm_median(const struct arm *a, unsigned metric)
{
    return spread_of(a->value[metric], a->n).median;
}

double trial_ceiling(const struct trial *t)
{
    double found = NAN;

    for (unsigned i = 0; i < t->n_arms; i++) {
        const struct arm *a = &t->arm[i];
        double v = arm_median(a, 0);

        if (!a->ceiling || a->state != ARM_VALID || isnan(v))
            continue;
        if (isnan(found) || (t->all_ceilings_hold ? v < found : v > found))
            found = v;
    }
    return found;
}

const struct arm *trial_base(const struct trial *t)
{
    for (unsigned i = 0; i < t->n_arms; i++) {
        if (!t->arm[i].ceiling && t->arm[i].state == ARM_VALID && t->arm[i].n)
            return &t->arm[i];
    }
    return NULL;
}

uint64_t digest_bytes(uint64_t seed, const void *bytes, size_t n)
{
    const uint64_t prime = 0x9e3779b97f4a7c15u;
    const uint8_t *p = bytes;
    uint64_t h = seed + prime, word;

    for (; n >= sizeof(word); n -= sizeof(word), p += sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        h = (h ^ word) * prime;
        h ^= h >> 29;
    }
    for (; n; n--, p++)
        h = (h ^ *p) * prime;
    return h ^ h >> 32;
}

static double clock_s(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double thread_cpu_s(void)
{
    return clock_s(CLOCK_THREAD_CPUTIME_ID);
}
