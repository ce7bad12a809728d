/* cli/bench/bench_kernels.c - every kernel at every CPU level, beside what memory and arithmetic
 * allow one core of this machine in the same rounds. */
#include "cli/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/bench/kernel_task.h"
#include "cli/bench/peak.h"
#include "expertfs/shapes.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { LEVELS_MAX = 4, HOURS_CORES = 16 };

static struct {
    const char *shape, *families;
    uint64_t ram_bytes;
    int64_t sample_ms;
} opt = {.shape = "kimi-linear-48b", .ram_bytes = 256 << 20, .sample_ms = 20};

static const struct flag flags[] = {
    {"shape", FLAG_TEXT, &opt.shape, 0, 0, "NAME",
     "matrix sizes of this model: kimi-linear-48b (the default), k3, demo, ..."},
    {"families", FLAG_TEXT, &opt.families, 0, 0, "A,B,...",
     "only these: encode, rvq, gemv, delta, attend, tower, vec"},
    {"ram", FLAG_SIZE, &opt.ram_bytes, 1 << 20, 1e12, "SIZE",
     "data behind the rows \"from RAM\"; several times the largest cache (256M)"},
    {"sample-ms", FLAG_INT, &opt.sample_ms, 1, 60000, "N", "least time of one sample (20)"},
    {0},
};

struct level_arm { /* a task at one CPU level */
    const struct task *task;
    struct kernels k;
    double k3_weights;
    unsigned passes; /* over all copies, a sample; 0: not known yet */
};

struct roof_arm { /* what a ceiling would make of the task */
    const struct task *task;
    struct peak peak;
    size_t times; /* 0: not known yet */
};

static double sample_s(void)
{
    return (double)opt.sample_ms * 1e-3;
}

/* Passes that take a sample's time, given that `passes` took `seconds`. */
static double passes_for(double passes, double seconds)
{
    return fmax(1, ceil(passes * sample_s() / fmax(seconds, 1e-9)));
}

static double time_passes(const struct level_arm *a, unsigned passes)
{
    double t0 = thread_cpu_s();

    for (unsigned p = 0; p < passes; p++)
        for (unsigned c = 0; c < a->task->copies; c++)
            a->task->call(a->task, &a->k, c);
    return thread_cpu_s() - t0;
}

static int run_level(void *context, unsigned round, struct sample *out, struct err *e)
{
    struct level_arm *a = context;
    const struct task *t = a->task;
    double seconds;

    (void)round;
    (void)e;
    memset(t->out, 0, t->out_bytes * t->copies);
    if (t->begin)
        t->begin(t, &a->k);
    if (!a->passes) {
        double once = time_passes(a, 1); /* the first touch, which does not count */

        once = once < sample_s() ? time_passes(a, 1) : once;
        a->passes = (unsigned)passes_for(1, once);
    }
    seconds = time_passes(a, a->passes);
    out->value[0] = t->units * a->passes * t->copies / seconds;
    if (t->weights > 0)
        out->value[1] = a->k3_weights / (out->value[0] * 1e6) / HOURS_CORES / 3600;
    if (t->finish)
        t->finish(t, &a->k);
    out->digest = digest_bytes(0, t->out, t->out_bytes * t->copies);
    out->has_digest = true;
    return 0;
}

static volatile double sink; /* results of the roofs: they must be computed */

static double time_reads(const struct roof_arm *a, size_t passes)
{
    const struct task *t = a->task;
    uint64_t sum = 0;
    double t0 = thread_cpu_s();

    for (size_t p = 0; p < passes; p++)
        for (unsigned c = 0; c < t->copies; c++)
            sum += a->peak.sum(t->data + c * t->data_bytes, t->read_bytes);
    sink = (double)sum;
    return thread_cpu_s() - t0;
}

static int run_read_roof(void *context, unsigned round, struct sample *out, struct err *e)
{
    struct roof_arm *a = context;

    (void)round;
    (void)e;
    if (!a->times) {
        time_reads(a, 1);
        a->times = (size_t)passes_for(1, time_reads(a, 1));
    }
    out->value[0] = a->task->units * (double)a->times * a->task->copies / time_reads(a, a->times);
    return 0;
}

static double time_fmas(const struct roof_arm *a, size_t n)
{
    double t0 = thread_cpu_s();

    sink = (double)a->peak.fmas(n);
    return thread_cpu_s() - t0;
}

static int run_fma_roof(void *context, unsigned round, struct sample *out, struct err *e)
{
    enum { FIRST = 1 << 16 };
    struct roof_arm *a = context;

    (void)round;
    (void)e;
    if (!a->times) {
        time_fmas(a, FIRST);
        a->times = (size_t)passes_for(FIRST, time_fmas(a, FIRST));
    }
    out->value[0] = a->task->units / a->task->fmas * (double)a->times * a->peak.fmas_per_call /
                    time_fmas(a, a->times);
    return 0;
}

/* Levels that this build has for this processor, the reference first. */
static unsigned levels_of(struct kernels *k, enum profile profile)
{
    static const char *const name[LEVELS_MAX] = {"c", "avx2", "avx512", "neon"};
    unsigned n = 0;

    for (unsigned i = 0; i < LEVELS_MAX; i++) {
        unsigned cpu;
        struct err e;

        if (cpu_level(&cpu, name[i], &e))
            continue;
        kernels_init(&k[n], cpu & cpu_detect(), profile);
        n += !strcmp(k[n].name, name[i]);
    }
    return n;
}

/* The expert weights of Kimi K3, from its published shape. */
static double k3_expert_weights(void)
{
    const struct shape *s = shape_find("k3");

    return (double)(s->n_layers - s->first_dense) * s->n_experts * 3 * s->inter * s->latent;
}

static struct roof_arm roof_of(const struct task *t)
{
    return (struct roof_arm){.task = t, .peak = peak_of(cpu_detect())};
}

static json_t *facts_of(const struct task *t)
{
    return json_pack("{s:s, s:i, s:I, s:f}", "unit", t->unit, "copies", (int)t->copies,
                     "read_bytes_per_call", (json_int_t)t->read_bytes, "fmas_per_call", t->fmas);
}

static int run_task(struct bench *b, const struct task *t)
{
    const struct metric metrics[] = {{"rate", t->unit}, {"k3_hours_on_16_cores", "K3 hours"}};
    struct level_arm level[LEVELS_MAX];
    struct kernels k[LEVELS_MAX];
    struct roof_arm read = roof_of(t), fma = roof_of(t);
    unsigned n = levels_of(k, t->profile);
    struct trial *trial =
        trial_new(metrics, t->weights > 0 ? 2 : 1, (unsigned)b->rounds, "%s", t->name);
    int rc;

    if (!trial)
        return bench_fail(b, EXIT_MEMORY, NULL, "out of memory");
    trial->all_ceilings_hold = true;
    for (unsigned i = 0; i < n; i++) {
        level[i] = (struct level_arm){.task = t, .k = k[i], .k3_weights = k3_expert_weights()};
        trial_add(trial, run_level, &level[i], "%s", k[i].name);
    }
    if (t->read_bytes)
        trial_add(trial, run_read_roof, &read, "read of the same bytes")->ceiling = true;
    if (t->fmas > 0)
        trial_add(trial, run_fma_roof, &fma, "f32 multiply-adds, %s", fma.peak.name)->ceiling =
            true;
    rc = trial_run(trial) ? 0 : EXIT_INTERRUPTED;
    report_trial(&b->report, trial, facts_of(t));
    free(trial);
    return rc;
}

static int run_tasks(struct bench *b, const struct kernel_shape *shape, struct store *store)
{
    struct task_walk walk = {
        .shape = shape, .families = opt.families, .ram_bytes = opt.ram_bytes, .quick = b->quick};
    struct task task;
    int rc = 0;

    while (!rc && task_next(&task, &walk, store))
        rc = run_task(b, &task);
    return rc;
}

static void say_assumptions(struct bench *b, const struct kernel_shape *shape)
{
    report_note(
        &b->report,
        "shape %s; one thread, rates per second of its CPU time; ceilings of this core in the "
        "same rounds",
        shape->name);
    if (b->quick)
        report_note(&b->report, "quick: samples are too short and data too small to mean anything");
    if (flag_names(opt.families, "encode"))
        report_note(
            &b->report,
            "K3 hours: its %.4g expert weights, %d cores, as if bound by arithmetic alone "
            "and linear in the cores; reading the release and fitting codebooks not counted",
            k3_expert_weights(), HOURS_CORES);
}

int measure_kernels(struct bench *b)
{
    struct kernel_shape shape;
    struct store store = {.base = NULL};
    struct mem mem;
    struct err e;
    void *base;
    int rc;

    if (kernel_shape_find(&shape, opt.shape, &e) || task_families_check(opt.families, &e))
        return bench_fail_err(b, &e);
    if (b->quick) {
        opt.ram_bytes = opt.ram_bytes < 8 << 20 ? opt.ram_bytes : 8 << 20;
        opt.sample_ms = 1;
    }
    mem_init(&mem, 0);
    store.bytes = task_store_bytes(&shape, opt.ram_bytes);
    if (bench_memory(store.bytes, "--ram and --shape: the data", &e))
        return bench_fail_err(b, &e);
    if (mem_map(&mem, MEM_OTHER, store.bytes, true, &base, &e))
        return bench_fail_err(b, &e);
    store.base = base;
    say_assumptions(b, &shape);
    rc = run_tasks(b, &shape, &store);
    mem_unmap(&mem, MEM_OTHER, base, store.bytes);
    return rc;
}

const struct bench_command bench_kernels = {
    .name = "kernels",
    .args = "[OPTIONS]",
    .summary = "arithmetic: each kernel at each CPU level, beside its ceilings",
    .text = "Times every kernel of model/kernels at each CPU level of this machine, on the matrix "
            "sizes\n"
            "of a real model, one thread. \"Hot\" data stays in the core's own cache, \"from RAM\" "
            "goes\n"
            "round more data than any cache holds. Levels must leave the same bits: a digest that\n"
            "differs makes a row invalid.",
    .flags = flags,
    .examples = "  waste-bench kernels --families encode,rvq\n"
                "  waste-bench kernels --shape k3 --rounds 9 --json >k3.json\n",
    .run = measure_kernels,
};
