#include "cli/bench/floors.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/bench/peak.h"
#include "cli/bench/reader.h"
#include "cli/bench/trial.h"
#include "expertfs/container.h"

enum {
    RAM_BYTES = 512 << 20, /* several times the largest cache */
    RAM_BYTES_QUICK = 64 << 20,
    DRIVE_BYTES = 512 << 20,
    DRIVE_BYTES_QUICK = 16 << 20,
    UNIT = 2 << 20,
    THREADS_MAX = 64,
};

struct floors {
    struct container *container;
    unsigned threads, depth;
    uint8_t *ram, *arena;
    size_t ram_bytes, arena_bytes;
    uint64_t drive_bytes;
    struct io *io; /* NULL: no experts */
    double *latency;
    uint32_t record_bytes;
};

struct share { /* of the memory, one thread's */
    const struct peak *peak;
    const uint8_t *from;
    size_t bytes;
    uint64_t sum;
};

static void *read_share(void *arg)
{
    struct share *s = arg;

    s->sum = s->peak->sum(s->from, s->bytes);
    return NULL;
}

int floors_ram(const struct floors *f, double *bytes_s, struct err *e)
{
    const struct peak peak = peak_of(cpu_detect());
    const size_t each = f->ram_bytes / f->threads / UNIT * UNIT;
    struct share share[THREADS_MAX];
    pthread_t thread[THREADS_MAX];
    const double began = now_s();
    unsigned n = 0;

    for (; n < f->threads; n++) {
        share[n] = (struct share){&peak, f->ram + n * each, each, 0};
        if (pthread_create(&thread[n], NULL, read_share, &share[n]))
            break;
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (n < f->threads)
        return err_set(e, ERR_NOMEM, "thread %u of %u", n + 1, f->threads);
    *bytes_s = (double)(each * n) / (now_s() - began);
    return 0;
}

static const struct file *bank(const struct floors *f)
{
    unsigned n;

    return container_files(f->container, &n)[0];
}

int floors_drive(struct floors *f, unsigned round, double *bytes_s, double *from_device,
                 struct err *e)
{
    struct read_work w = {
        .record_bytes = f->record_bytes, .depth = f->depth, .seed = 0x9e3779b9u + round};
    struct read_result r;
    double device;

    *bytes_s = *from_device = NAN;
    if (!f->io)
        return 0;
    w.n_records = bank(f)->bytes / f->record_bytes;
    w.n_reads = (unsigned)(f->drive_bytes / f->record_bytes);
    if (w.n_reads < 2 * f->depth)
        w.n_reads = 2 * f->depth;
    device = usage_now().from_device;
    if (reader_run(f->io, &w, f->arena, f->latency, &r, e))
        return e->code;
    *bytes_s = r.bytes / r.seconds;
    *from_device = (usage_now().from_device - device) / r.bytes;
    return 0;
}

double floors_trunk_bytes(const struct floors *f)
{
    const struct manifest *m = container_manifest(f->container);
    const struct trunk_entry *embed = manifest_tensor(m, "model.embed_tokens.weight");
    double bytes = 0;

    for (unsigned i = 0; i < m->n_trunk; i++) {
        if (&m->trunk[i] != embed)
            bytes += (double)(m->trunk[i].payload_bytes + m->trunk[i].scale_bytes);
    }
    return bytes;
}

static int drive_open(struct floors *f, const char *engine, struct err *e)
{
    struct io_config cfg = {.depth = f->depth};

    f->record_bytes = (uint32_t)container_manifest(f->container)->record.bytes;
    if (!f->record_bytes)
        return 0;
    f->arena_bytes = align_up((uint64_t)f->record_bytes * f->depth, UNIT);
    f->latency = malloc(READS_MAX * sizeof(*f->latency));
    if (!f->latency)
        return err_set(e, ERR_NOMEM, "%d latencies", READS_MAX);
    if (arena_open(&f->arena, f->arena_bytes, true, e))
        return e->code;
    cfg.files = container_files(f->container, &cfg.n_files);
    cfg.arena = f->arena;
    cfg.arena_bytes = f->arena_bytes;
    return io_open(&f->io, engine, &cfg, NULL, e);
}

int floors_open(struct floors **out, const char *model, unsigned threads, unsigned depth,
                const char *engine, bool quick, struct err *e)
{
    const struct container_options how = {.direct = true};
    struct floors *f = calloc(1, sizeof(*f));

    if (!f)
        return err_set(e, ERR_NOMEM, "floors");
    f->threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    f->depth = depth ? depth : 1;
    f->ram_bytes = quick ? RAM_BYTES_QUICK : RAM_BYTES;
    f->drive_bytes = quick ? DRIVE_BYTES_QUICK : DRIVE_BYTES;
    if (container_open(&f->container, model, &how, e) ||
        arena_open(&f->ram, f->ram_bytes, true, e) || drive_open(f, engine, e)) {
        floors_close(f);
        return e->code;
    }
    *out = f;
    return 0;
}

void floors_close(struct floors *f)
{
    if (!f)
        return;
    if (f->io)
        f->io->ops->close(f->io);
    arena_close(f->arena, f->arena_bytes);
    arena_close(f->ram, f->ram_bytes);
    free(f->latency);
    container_close(f->container);
    free(f);
}
