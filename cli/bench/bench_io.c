/* cli/bench/bench_io.c - engines against each other and against fio: same file, sizes, depths and
 * order of records, in the same rounds. */
#include "cli/bench/bench.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/bench/busy.h"
#include "cli/bench/create.h"
#include "cli/bench/fio.h"
#include "cli/bench/provenance.h"
#include "cli/bench/reader.h"
#include "cli/bench/store.h"
#include "cli/units.h"
#include "expertfs/record.h"
#include "expertfs/shapes.h"

enum {
    ENGINES_MAX = 16,
    IO_ARMS_MAX = 4 * ENGINES_MAX,
    OCTAVE = 8, /* classes of a latency histogram in each doubling from a microsecond */
    CLASSES = 24 * OCTAVE,
    HUGE_BYTES = 2 << 20, /* a whole number of them, or the last would be small pages */
};

static const double idle_s = 0.1;        /* of the arm that reads nothing */
static const double honest_share = 0.98; /* of the bytes asked for must come from the device */
static const double huge_enough = 0.9;   /* of an arena that is said to be on huge pages */

static struct {
    struct flag_list sizes, depths;
    uint64_t sample_bytes, create_bytes, seed;
    const char *engines;
    int64_t busy;
    bool no_fio, warm;
} opt = {.depths = {{1, 2, 4, 8, 16}, 5}, .sample_bytes = 1 << 30, .seed = 1};

static const struct flag flags[] = {
    {"sizes", FLAG_SIZES, &opt.sizes, IO_ALIGN, 1u << 30, "SIZE,...",
     "bytes of a record (those of Kimi-Linear 48B and of K3, 3 bits a weight)"},
    {"depths", FLAG_INTS, &opt.depths, 1, 256, "N,...", "reads in flight (1,2,4,8,16)"},
    {"bytes", FLAG_SIZE, &opt.sample_bytes, IO_ALIGN, 1e12, "SIZE", "that one sample reads (1G)"},
    {"engines", FLAG_TEXT, &opt.engines, 0, 0, "A,B,...",
     "only these: io_uring, libaio, threads, sync"},
    {"no-fio", FLAG_SET, &opt.no_fio, 0, 0, NULL, "do not run fio beside them"},
    {"busy", FLAG_INT, &opt.busy, 0, 256, "N", "threads that compute meanwhile (0)"},
    {"warm", FLAG_SET, &opt.warm, 0, 0, NULL,
     "do not drop the file from the page cache before buffered reads"},
    {"create", FLAG_SIZE, &opt.create_bytes, IO_ALIGN, 1e15, "SIZE",
     "first make FILE, of random bytes; it must not exist"},
    {0},
};

static const struct metric metrics[] = {
    {"gb_s", "GB/s"},
    {"p50_ms", "p50 ms"},
    {"p95_ms", "p95 ms"},
    {"p99_ms", "p99 ms"},
    {"max_ms", "max ms"},
    {"cpu_s_per_gb", "CPU s/GB"},
    {"machine_s_per_gb", "all s/GB"},
    {"device_per_asked", "dev/asked"},
    {"busy_gfma_s", "busy GFMA"},
};
enum { M_GB_S, M_P50, M_P95, M_P99, M_MAX, M_CPU, M_MACHINE, M_DEVICE, M_BUSY, METRICS };

struct bed { /* what the arms of this run share */
    const char *path;
    struct file direct, buffered;
    uint8_t *small, *huge; /* arenas */
    size_t arena_bytes;
    bool is_huge; /* what `huge` is meant to be */
    double *latency;
    struct busy *busy;
    struct read_work work; /* of the current trial; the seed changes with the round */
};

struct io_arm {
    struct bed *bed;
    struct io *io; /* NULL: fio, or nothing at all */
    const struct file *file;
    uint8_t *arena;
    struct fio_way fio;
    const char *name;
    unsigned histogram[CLASSES]; /* of all rounds */
};

static struct read_work work_of(const struct bed *bed, unsigned round)
{
    struct read_work w = bed->work;
    uint64_t seed = opt.seed + round;

    w.seed = random_next(&seed);
    return w;
}

static void put_result(struct sample *out, const struct read_result *r)
{
    out->value[M_GB_S] = r->bytes * 1e-9 / r->seconds;
    out->value[M_P50] = r->p50_ms;
    out->value[M_P95] = r->p95_ms;
    out->value[M_P99] = r->p99_ms;
    out->value[M_MAX] = r->max_ms;
}

/* The computing threads first: asking for their time brings the sum of the process up to date. */
struct cost {
    struct busy_count busy;
    struct usage usage;
    double device;
};

static struct cost cost_now(const struct io_arm *a)
{
    struct cost c = {.busy = busy_now(a->bed->busy)};

    c.usage = usage_now();
    c.device = device_bytes_read(a->file->fd);
    return c;
}

/* The computing threads' time is not the reader's. */
static void put_cost(struct sample *out, const struct cost *from, const struct cost *to,
                     double bytes)
{
    const double computing = to->busy.cpu_s - from->busy.cpu_s, gb = bytes * 1e-9;

    out->value[M_CPU] = (to->usage.cpu_s - from->usage.cpu_s - computing) / gb;
    out->value[M_MACHINE] = (to->usage.machine_s - from->usage.machine_s - computing) / gb;
    out->value[M_DEVICE] = (to->usage.from_device - from->usage.from_device) / bytes;
}

static void put_busy(struct sample *out, const struct bed *bed, struct busy_count from,
                     double seconds)
{
    if (bed->busy)
        out->value[M_BUSY] = (busy_now(bed->busy).fmas - from.fmas) * 1e-9 / seconds;
}

/* Reads faster than the device delivered did not come from it. */
static void judge_source(struct sample *out, double asked, double process, double device)
{
    const double seen = isnan(process) ? device : process;

    if (isnan(seen) || seen >= honest_share * asked)
        return;
    snprintf(out->invalid, sizeof(out->invalid),
             "%.3g GB asked for, %.3g GB came from a device (%s): page cache, or a file system in "
             "memory",
             asked * 1e-9, seen * 1e-9,
             isnan(process) ? "its sectors" : "this process's read_bytes");
}

static void count_latencies(struct io_arm *a)
{
    for (unsigned i = 0; i < a->bed->work.n_reads; i++) {
        const double at = OCTAVE * log2(a->bed->latency[i] * 1e6);

        a->histogram[at < 0 ? 0 : at < CLASSES ? (unsigned)at : CLASSES - 1]++;
    }
}

static int run_engine(void *context, unsigned round, struct sample *out, struct err *e)
{
    struct io_arm *a = context;
    const struct read_work w = work_of(a->bed, round);
    struct cost from, to;
    struct read_result r;

    if (!a->file->direct && !opt.warm)
        posix_fadvise(a->file->fd, 0, 0, POSIX_FADV_DONTNEED);
    from = cost_now(a);
    if (reader_run(a->io, &w, a->arena, a->bed->latency, &r, e))
        return e->code;
    put_busy(out, a->bed, from.busy, r.seconds);
    to = cost_now(a);
    count_latencies(a);
    put_result(out, &r);
    put_cost(out, &from, &to, r.bytes);
    judge_source(out, r.bytes, to.usage.from_device - from.usage.from_device,
                 to.device - from.device);
    out->digest = r.digest;
    out->has_digest = true;
    return 0;
}

static int run_fio(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct io_arm *a = context;
    const struct read_work w = work_of(a->bed, round);
    const double began = now_s();
    const struct cost from = cost_now(a);
    struct read_result r;
    double cpu_s;

    if (fio_run(a->bed->path, &w, a->fio, &r, &cpu_s, e))
        return e->code;
    put_busy(out, a->bed, from.busy, now_s() - began);
    put_result(out, &r);
    out->value[M_CPU] = cpu_s / (r.bytes * 1e-9);
    judge_source(out, r.bytes, NAN, cost_now(a).device - from.device);
    return 0;
}

/* What the computing threads do when nobody reads. */
static int run_nothing(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct io_arm *a = context;
    const struct busy_count before = busy_now(a->bed->busy);
    const double began = now_s();

    (void)round;
    (void)e;
    while (now_s() - began < idle_s)
        usleep(1000);
    put_busy(out, a->bed, before, now_s() - began);
    return 0;
}

/* One way of reading; absent where the machine does not have it. */
struct way {
    bool huge, registered, buffered;
};

static void add_engine(struct trial *t, struct io_arm *a, const struct io_ops *ops, struct way way)
{
    struct bed *bed = a->bed;
    const struct file *file = way.buffered ? &bed->buffered : &bed->direct;
    struct io_config cfg = {.files = &a->file, .n_files = 1, .depth = bed->work.depth};
    struct io_report report;
    char name[48];
    struct arm *arm;
    struct err e;

    snprintf(name, sizeof(name), "%s, %s%s%s", ops->name, way.huge ? "2 MiB" : "4 KiB",
             way.registered ? ", registered" : "", way.buffered ? ", buffered" : "");
    a->arena = way.huge ? bed->huge : bed->small;
    a->file = file;
    if (way.registered || !ops->shrink) { /* what registers nothing may know the arena */
        cfg.arena = a->arena;
        cfg.arena_bytes = bed->arena_bytes;
    }
    if (way.huge && !bed->is_huge) {
        trial_add_absent(t, name, "the system gave no huge pages (transparent_hugepage/enabled?)");
        return;
    }
    if (io_open(&a->io, ops->name, &cfg, &report, &e)) {
        a->io = NULL;
        trial_add_absent(t, name, e.text);
        return;
    }
    arm = trial_add(t, run_engine, a, "%s", name);
    a->name = arm->name;
    if (!way.buffered && !file->direct)
        snprintf(arm->note, sizeof(arm->note), "not direct: %.80s", file->why);
    else
        snprintf(arm->note, sizeof(arm->note), "%s", report.note);
}

/* Memory on small and on huge pages, known to the engine and not, where it makes a difference. */
static void add_engines(struct trial *t, struct io_arm *arm, unsigned *n)
{
    const struct io_ops *const *engines = io_engines();

    for (unsigned i = 0; i < ENGINES_MAX && engines[i]; i++) {
        const unsigned registers = engines[i]->shrink ? 1 : 0;

        if (!flag_names(opt.engines, engines[i]->name))
            continue;
        for (unsigned huge = 0; huge < 2; huge++)
            for (unsigned reg = 0; reg <= registers; reg++)
                add_engine(t, &arm[(*n)++], engines[i], (struct way){huge, reg, false});
        if (!registers)
            add_engine(t, &arm[(*n)++], engines[i], (struct way){true, false, true});
    }
}

static void add_fio(struct trial *t, struct io_arm *arm, unsigned *n)
{
    static const struct {
        const char *name;
        struct fio_way way;
    } fio[] = {{"fio io_uring, 4 KiB", {false, false}},
               {"fio io_uring, 4 KiB, registered", {true, false}},
               {"fio io_uring, 2 MiB, registered", {true, true}}};

    for (unsigned i = 0; i < sizeof(fio) / sizeof(fio[0]); i++) {
        struct io_arm *a = &arm[(*n)++];

        a->file = &a->bed->direct;
        a->fio = fio[i].way;
        trial_add(t, run_fio, a, "%s", fio[i].name)->ceiling = true;
    }
}

/* [from ms, reads] of each class that has some, by arm. */
static json_t *histograms(const struct io_arm *arm, unsigned n)
{
    json_t *o = json_object();

    for (unsigned i = 0; i < n; i++) {
        json_t *classes = arm[i].name ? json_array() : NULL;

        for (unsigned c = 0; classes && c < CLASSES; c++) {
            if (arm[i].histogram[c])
                json_array_append_new(classes, json_pack("[f, i]", exp2((double)c / OCTAVE) * 1e-3,
                                                         (int)arm[i].histogram[c]));
        }
        if (classes)
            json_object_set_new(o, arm[i].name, classes);
    }
    return o;
}

static int run_trial(struct bench *b, struct bed *bed, bool fio)
{
    struct io_arm *arm = calloc(IO_ARMS_MAX, sizeof(*arm));
    struct trial *t =
        trial_new(metrics, bed->busy ? METRICS : METRICS - 1, (unsigned)b->rounds,
                  "records of %u bytes, %u in flight", bed->work.record_bytes, bed->work.depth);
    unsigned n = 0;
    int rc;

    if (!t || !arm) {
        free(t);
        free(arm);
        return bench_fail(b, EXIT_MEMORY, NULL, "out of memory");
    }
    for (unsigned i = 0; i < IO_ARMS_MAX; i++)
        arm[i].bed = bed;
    if (fio)
        add_fio(t, arm, &n);
    add_engines(t, arm, &n);
    if (bed->busy)
        trial_add(t, run_nothing, &arm[n++], "nothing is read");
    rc = trial_run(t) ? 0 : EXIT_INTERRUPTED;
    report_trial(&b->report, t,
                 json_pack("{s:I, s:i, s:i, s:b, s:o}", "record_bytes",
                           (json_int_t)bed->work.record_bytes, "depth", (int)bed->work.depth,
                           "reads_per_sample", (int)bed->work.n_reads, "direct", bed->direct.direct,
                           "latency_histograms", histograms(arm, n)));
    for (unsigned i = 0; i < n; i++) {
        if (arm[i].io)
            arm[i].io->ops->close(arm[i].io);
    }
    free(arm);
    free(t);
    return rc;
}

static unsigned reads_of(uint64_t record_bytes, unsigned depth)
{
    uint64_t n = opt.sample_bytes / record_bytes;

    n = n > 2 * depth ? n : 2 * depth;
    return n < READS_MAX ? (unsigned)n : READS_MAX;
}

static int run_trials(struct bench *b, struct bed *bed, bool fio)
{
    int rc = 0;

    for (unsigned s = 0; s < opt.sizes.n && !rc; s++)
        for (unsigned d = 0; d < opt.depths.n && !rc; d++) {
            const uint32_t bytes = (uint32_t)opt.sizes.v[s];
            const unsigned depth = (unsigned)opt.depths.v[d];

            bed->work = (struct read_work){.record_bytes = bytes,
                                           .depth = depth,
                                           .n_reads = reads_of(bytes, depth),
                                           .n_records = bed->direct.bytes / bytes};
            rc = run_trial(b, bed, fio);
        }
    return rc;
}

/* Gate, up and down of one expert at 3 bits a weight. */
static uint64_t record_bytes_of(const char *shape)
{
    const struct shape *s = shape_find(shape);
    struct record_layout l;
    struct err e;

    return record_layout_init(&l, s->latent ? s->latent : s->hidden, s->inter, 3, 256, 8, &e)
               ? 0
               : l.bytes;
}

static uint64_t largest(const struct flag_list *list)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < list->n; i++)
        most = list->v[i] > most ? list->v[i] : most;
    return most;
}

static void bed_close(struct bed *bed)
{
    busy_stop(bed->busy);
    arena_close(bed->small, bed->arena_bytes);
    arena_close(bed->huge, bed->arena_bytes);
    free(bed->latency);
    file_close(&bed->direct);
    file_close(&bed->buffered);
}

static int bed_open(struct bed *bed, const char *path, struct err *e)
{
    const uint64_t record = largest(&opt.sizes);

    bed->path = path;
    if (file_open(&bed->direct, AT_FDCWD, path, true, e) ||
        file_open(&bed->buffered, AT_FDCWD, path, false, e))
        return e->code;
    if (bed->direct.bytes < record)
        return err_set(e, ERR_ARG,
                       "%s has %llu bytes, a record has %llu: take a larger file (--create) or "
                       "smaller --sizes",
                       path, (unsigned long long)bed->direct.bytes, (unsigned long long)record);
    bed->arena_bytes = align_up(record * largest(&opt.depths), HUGE_BYTES);
    if (bench_memory(2 * (uint64_t)bed->arena_bytes, "--sizes and --depths: memory for the reads",
                     e))
        return e->code;
    bed->latency = malloc(READS_MAX * sizeof(*bed->latency));
    if (!bed->latency)
        return err_set(e, ERR_NOMEM, "%d latencies", READS_MAX);
    if (arena_open(&bed->small, bed->arena_bytes, false, e) ||
        arena_open(&bed->huge, bed->arena_bytes, true, e))
        return e->code;
    bed->is_huge = arena_huge_share(bed->huge, bed->arena_bytes) >= huge_enough;
    return busy_start(&bed->busy, (unsigned)opt.busy, e);
}

static int check_options(struct err *e)
{
    for (unsigned i = 0; i < opt.sizes.n; i++) {
        if (opt.sizes.v[i] % IO_ALIGN)
            return err_set(e, ERR_ARG, "--sizes: %llu bytes are no multiple of %d",
                           (unsigned long long)opt.sizes.v[i], IO_ALIGN);
    }
    return reader_engines_check(opt.engines, e);
}

static void set_defaults(const struct bench *b)
{
    if (!opt.sizes.n)
        opt.sizes = (struct flag_list){
            .v = {record_bytes_of("kimi-linear-48b"), record_bytes_of("k3")}, .n = 2};
    if (b->quick)
        opt.sample_bytes = opt.sample_bytes < 64 << 20 ? opt.sample_bytes : 64 << 20;
}

static bool say_conditions(struct bench *b, const struct bed *bed)
{
    char version[64], size[UNITS_TEXT];
    bool fio = !opt.no_fio && fio_version(version, sizeof(version));

    report_fact(&b->report, "file", provenance_of_file(bed->direct.fd));
    report_fact(&b->report, "fio", fio ? json_string(version) : json_null());
    report_note(&b->report, "file of %s, %s%s", size_text(size, bed->direct.bytes),
                bed->direct.direct ? "direct reads" : "no direct reads: ", bed->direct.why);
    if (opt.no_fio)
        report_note(&b->report, "fio was not asked for: nothing to hold the engines against");
    else if (!fio)
        report_note(&b->report, "fio is not installed: nothing to hold the engines against");
    return fio;
}

int measure_io(struct bench *b, bool brief)
{
    struct bed bed = {.path = NULL};
    struct err e;
    int rc;

    set_defaults(b);
    if (brief)
        opt.depths = (struct flag_list){{4}, 1};
    if (check_options(&e) || (opt.create_bytes && create_file(b->arg[0], opt.create_bytes, &e)))
        return bench_fail_err(b, &e);
    if (bed_open(&bed, b->arg[0], &e))
        rc = bench_fail(b, exit_of_err(e.code),
                        e.code == ERR_IO ? "Any large file will do, a bank of a container for "
                                           "example; --create SIZE makes one."
                                         : NULL,
                        "%s", e.text);
    else
        rc = run_trials(b, &bed, say_conditions(b, &bed));
    bed_close(&bed);
    return rc;
}

static int run(struct bench *b)
{
    return measure_io(b, false);
}

const struct bench_command bench_io = {
    .name = "io",
    .args = "[OPTIONS] FILE",
    .summary = "reading: each engine into each kind of memory, beside fio",
    .text =
        "Reads random records of FILE, whole and direct, with every engine of this build into "
        "small\n"
        "and huge pages, registered and not, and with fio: bandwidth, latency, CPU seconds a GB.\n"
        "A row whose bytes did not come from the device is invalid.",
    .flags = flags,
    .min_args = 1,
    .max_args = 1,
    .examples = "  waste-bench io --create 16G /nvme/scratch.bin\n"
                "  waste-bench io --sizes 2M --depths 4 --busy 2 kl.waste/experts-L5.bin\n",
    .run = run,
};
