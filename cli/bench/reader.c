#include "cli/bench/reader.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cli/bench/flags.h"
#include "cli/bench/store.h"
#include "cli/bench/trial.h"
#include "cli/term.h"

enum { HUGE_PAGE = 2 << 20, SAMPLE = 64 };

struct slot {            /* a read, and when it was handed over */
    struct io_read read; /* first: an io_read is its slot */
    double begun;
};

struct reading {
    struct io *io;
    const struct read_work *work;
    uint8_t *arena;
    double *latency;
    uint64_t record, stride; /* the next one, and how far it is to the one after */
    uint64_t digest;
    unsigned begun, done;
    struct slot *slot;     /* [depth] */
    struct io_read **idle; /* [depth], n_idle of them */
    unsigned n_idle;
};

/* A bit at the start, the middle and the end: enough to see a wrong record, too little to cost. */
static uint64_t digest_record(const struct io_read *r)
{
    const uint8_t *p = r->dst;
    uint64_t h = digest_bytes(r->at.offset, p, SAMPLE);

    h = digest_bytes(h, p + r->at.length / 2, SAMPLE);
    return digest_bytes(h, p + r->at.length - SAMPLE, SAMPLE);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* Far strides with no divisor in common with the number of records visit each of them once. */
static void choose_order(struct reading *g)
{
    const uint64_t n = g->work->n_records;
    uint64_t seed = g->work->seed;

    g->record = random_next(&seed) % n;
    g->stride = n / 4 + random_next(&seed) % (n / 2 + 1);
    while (gcd(g->stride, n) != 1)
        g->stride++;
}

static void submit_idle(struct reading *g)
{
    unsigned n = 0, taken;
    double now = now_s();

    for (; n < g->n_idle && g->begun < g->work->n_reads; n++, g->begun++) {
        struct slot *s = (struct slot *)(void *)g->idle[n];

        s->begun = now;
        s->read.at = (struct extent){.offset = g->record * g->work->record_bytes,
                                     .length = g->work->record_bytes};
        g->record = (g->record + g->stride) % g->work->n_records;
    }
    if (!n)
        return;
    taken = g->io->ops->submit(g->io, g->idle, n);
    assert(taken == n); /* the engine was opened with this depth */
    (void)taken;
    g->n_idle -= n;
    memmove(g->idle, g->idle + n, g->n_idle * sizeof(*g->idle));
}

static int take_done(struct reading *g, struct io_read **done, unsigned n, struct err *e)
{
    double now = now_s();

    for (unsigned i = 0; i < n; i++) {
        const struct slot *s = (const struct slot *)(void *)done[i];

        if (done[i]->status)
            return err_sys(e, -done[i]->status, "%s: %u bytes at %llu", g->io->ops->name,
                           done[i]->at.length, (unsigned long long)done[i]->at.offset);
        g->latency[g->done++] = now - s->begun;
        g->digest += digest_record(done[i]);
        g->idle[g->n_idle++] = done[i];
    }
    return 0;
}

static int read_records(struct reading *g, struct err *e)
{
    struct io_read *done[IO_DEPTH_MAX];

    while (g->done < g->work->n_reads) {
        if (term_interrupted())
            return err_set(e, ERR_CANCELLED, "%u of %u reads", g->done, g->work->n_reads);
        submit_idle(g);
        if (take_done(g, done, g->io->ops->reap(g->io, done, g->work->depth, true), e))
            return e->code;
    }
    return 0;
}

/* After a failure: what is in flight must come back before its memory goes. */
static void drain(struct reading *g)
{
    struct io_read *done[IO_DEPTH_MAX];

    while (g->io->ops->reap(g->io, done, g->work->depth, true))
        ;
}

static double cpu_now(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Everything but idle and waiting, of all processors. */
static double machine_now(void)
{
    FILE *f = fopen("/proc/stat", "re");
    double v[8] = {0}; /* user nice system idle iowait irq softirq steal */
    int n = 0;

    if (f) {
        n = fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &v[0], &v[1], &v[2], &v[3], &v[4],
                   &v[5], &v[6], &v[7]);
        fclose(f);
    }
    return n < 7 ? NAN : (v[0] + v[1] + v[2] + v[5] + v[6]) / (double)sysconf(_SC_CLK_TCK);
}

/* Bytes this process had read from devices; readahead counts, the page cache does not. */
static double process_bytes_read(void)
{
    FILE *f = fopen("/proc/self/io", "re");
    double bytes = NAN;
    char line[128];

    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "read_bytes: %lf", &bytes) == 1)
            break;
    }
    if (f)
        fclose(f);
    return bytes;
}

struct usage usage_now(void)
{
    return (struct usage){cpu_now(), machine_now(), process_bytes_read()};
}

int reader_engines_check(const char *list, struct err *e)
{
    const struct io_ops *const *engines = io_engines();
    const char *names[8];
    unsigned n = 0;

    for (; n < sizeof(names) / sizeof(*names) && engines[n]; n++)
        names[n] = engines[n]->name;
    return flag_names_check(list, "engines", "this build has", names, n, e);
}

int reader_run(struct io *io, const struct read_work *w, uint8_t *arena, double *latency,
               struct read_result *out, struct err *e)
{
    struct reading g = {.io = io, .work = w, .arena = arena, .latency = latency};
    double began;
    int rc;

    g.slot = calloc(w->depth, sizeof(*g.slot));
    g.idle = calloc(w->depth, sizeof(*g.idle));
    if (!g.slot || !g.idle) {
        free(g.slot);
        free(g.idle);
        return err_set(e, ERR_NOMEM, "%u reads", w->depth);
    }
    for (unsigned i = 0; i < w->depth; i++) {
        g.slot[i].read.dst = arena + (size_t)i * w->record_bytes;
        g.idle[g.n_idle++] = &g.slot[i].read;
    }
    choose_order(&g);
    began = now_s();
    rc = read_records(&g, e);
    if (rc)
        drain(&g);
    *out = (struct read_result){.seconds = now_s() - began,
                                .bytes = (double)w->n_reads * w->record_bytes,
                                .digest = g.digest};
    if (!rc)
        reader_percentiles(latency, w->n_reads, out);
    free(g.slot);
    free(g.idle);
    return rc;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void reader_percentiles(double *seconds, unsigned n, struct read_result *out)
{
    qsort(seconds, n, sizeof(*seconds), ascending);
    out->p50_ms = seconds[(n - 1) / 2] * 1e3;
    out->p95_ms = seconds[(unsigned)((n - 1) * 0.95)] * 1e3;
    out->p99_ms = seconds[(unsigned)((n - 1) * 0.99)] * 1e3;
    out->max_ms = seconds[n - 1] * 1e3;
}

int arena_open(uint8_t **out, size_t bytes, bool huge, struct err *e)
{
    size_t room = bytes + HUGE_PAGE, head;
    uint8_t *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "%zu bytes to read into: %s", bytes, strerror(errno));
    head = -(uintptr_t)p % HUGE_PAGE;
    if (head)
        munmap(p, head);
    p += head;
    if (room - head > bytes)
        munmap(p + bytes, room - head - bytes);
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)huge;
#endif
    memset(p, 0xa5, bytes);
    *out = p;
    return 0;
}

void arena_close(uint8_t *arena, size_t bytes)
{
    if (arena)
        munmap(arena, bytes);
}

double arena_huge_share(const uint8_t *arena, size_t bytes)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    uintptr_t from, to, at = (uintptr_t)arena;
    double huge_kb = 0, kb;
    bool inside = false, found = false;
    char line[512];

    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = from < at + bytes && to > at;
        else if (inside && sscanf(line, "AnonHugePages: %lf kB", &kb) == 1) {
            huge_kb += kb;
            found = true;
        }
    }
    if (f)
        fclose(f);
    return found ? fmin(1, huge_kb * 1024 / (double)bytes) : NAN;
}

double device_bytes_read(int fd)
{
    char path[64];
    double sectors = NAN;
    struct stat st;
    FILE *f;

    if (fstat(fd, &st))
        return NAN;
    snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/stat", major(st.st_dev), minor(st.st_dev));
    f = fopen(path, "re");
    if (!f)
        return NAN;
    if (fscanf(f, "%*f %*f %lf", &sectors) != 1)
        sectors = NAN;
    fclose(f);
    return sectors * 512;
}
