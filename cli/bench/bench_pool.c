/* cli/bench/bench_pool.c - a routing trace through the real pool and a real engine: does it hit
 * what replay says, and how fast does it read what it misses? */
#include "cli/bench/bench.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/create.h"
#include "cli/bench/provenance.h"
#include "cli/bench/reader.h"
#include "cli/bench/route_replay.h"
#include "cli/units.h"
#include "storage/frames.h"
#include "storage/pool.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { SAMPLE = 64, SEED = 1 };

static const double default_share[] = {0.06, 0.24, 0.48}; /* of all records */
static const double honest_share = 0.98; /* of the bytes read must have come from a device */

static struct {
    const char *file, *engines, *policy;
    struct flag_list records;
    uint64_t record_bytes;
    int64_t depth, tokens;
    bool create;
} opt = {.policy = "nextuse", .record_bytes = 2666496, .depth = 16};

static const struct flag flags[] = {
    {"file", FLAG_TEXT, &opt.file, 0, 0, "FILE", "of records, one for each expert of each layer"},
    {"create", FLAG_SET, &opt.create, 0, 0, NULL,
     "first make FILE, of random bytes and the size that is needed; it must not exist"},
    {"record", FLAG_SIZE, &opt.record_bytes, IO_ALIGN, 1 << 30, "SIZE",
     "bytes of a record, a multiple of 4096 (2666496: Kimi-Linear 48B)"},
    {"records", FLAG_INTS, &opt.records, 1, 1e9, "N,...",
     "sizes of the pool (6, 24, 48 % of all records)"},
    {"cache", FLAG_CHOICE, &opt.policy, 0, 0, "nextuse|lfru|lru|s3fifo",
     "replacement policy (nextuse)"},
    {"engines", FLAG_TEXT, &opt.engines, 0, 0, "A,B,...",
     "only these: io_uring, libaio, threads, sync"},
    {"depth", FLAG_INT, &opt.depth, 1, 4096, "N", "most reads in flight (16)"},
    {"tokens", FLAG_INT, &opt.tokens, 1, 1 << 26, "N", "only the first of the trace"},
    {0},
};

static const struct metric metrics[] = {
    {"gb_s", "GB/s"},           {"hit_percent", "hits %"}, {"replay_percent", "replay %"},
    {"mb_per_token", "MB/tok"}, {"tokens_s", "tokens/s"},  {"wait_s", "wait s"},
    {"misses", "misses"},       {"evictions", "evicted"},  {"device_per_read", "dev/read"},
};
enum {
    M_GB_S,
    M_HIT,
    M_REPLAY,
    M_MB,
    M_TOKENS,
    M_WAIT,
    M_MISSES,
    M_EVICTIONS,
    M_DEVICE,
};

struct bed {
    struct routes r;
    struct file file;
    const struct file **files; /* [n_layers], all of them `file`: policies tell layers by them */
    unsigned n_records;
};

struct pool_arm {
    struct bed *bed;
    const struct io_ops *engine;
    unsigned n_frames;
    struct replay_counts expect;
    struct arm *arm;
};

struct machine { /* of one sample */
    struct mem mem;
    struct frames frames;
    struct io *io;
    struct pool *pool;
};

static struct extent extent_of(const struct routes *r, unsigned layer, unsigned id)
{
    return (struct extent){.offset = ((uint64_t)layer * r->n_experts + id) * opt.record_bytes,
                           .length = (uint32_t)opt.record_bytes,
                           .file = layer};
}

static void machine_close(struct machine *m)
{
    pool_close(m->pool);
    if (m->io)
        m->io->ops->close(m->io);
    if (m->frames.base)
        frames_close(&m->frames);
}

static int machine_open(struct machine *m, const struct pool_arm *a, struct err *e)
{
    struct io_config io = {.files = a->bed->files,
                           .n_files = a->bed->r.n_layers,
                           .depth = (unsigned)opt.depth,
                           .flags = IO_ONE_THREAD};
    struct pool_config cfg = {.frames = &m->frames,
                              .policy = policy_named(opt.policy),
                              .depth = (unsigned)opt.depth,
                              .seed = SEED,
                              .known = replay_known(&a->bed->r, NULL)};

    mem_init(&m->mem, 0);
    if (frames_open(&m->frames, &m->mem, opt.record_bytes, a->n_frames, e))
        return e->code;
    io.arena = m->frames.base;
    io.arena_bytes = m->frames.frame_bytes * m->frames.n;
    if (io_open(&m->io, a->engine->name, &io, NULL, e))
        return e->code;
    cfg.io = m->io;
    return pool_open(&m->pool, &cfg, e);
}

/* A bit of the page at both ends, whatever the order that pages came in. */
static uint64_t digest_page(const struct page *p, struct extent at)
{
    uint64_t h = digest_bytes(at.offset, p->bytes, SAMPLE);

    return digest_bytes(h, p->bytes + at.length - SAMPLE, SAMPLE);
}

/* As a layer asks: a sure hint, then whichever is ready, one pin at a time. */
static int serve(struct machine *m, const struct routes *r, const struct route_call *c,
                 uint64_t *digest, struct err *e)
{
    struct extent want[ROUTES_CALL_MAX];
    unsigned n = c->n;

    if (term_interrupted())
        return err_set(e, ERR_CANCELLED, "%s", opt.file);
    if (!n)
        return 0;
    for (unsigned i = 0; i < n; i++)
        want[i] = extent_of(r, c->layer, r->id[c->first + i]);
    pool_hint(m->pool, want, n, HINT_SURE);
    while (n) {
        unsigned which = 0;
        struct page page;

        if (pool_pin_any(m->pool, want, n, &which, &page, e))
            return err_wrap(e, "%s", opt.file);
        *digest += digest_page(&page, want[which]);
        pool_unpin(m->pool, &page);
        n--;
        memmove(want + which, want + which + 1, (n - which) * sizeof(*want));
    }
    return 0;
}

static void put(struct sample *out, const struct pool_arm *a, const struct pool_stats *s,
                double seconds, double from_device)
{
    const double asked = (double)a->bed->r.n_ids, tokens = a->bed->r.n_tokens;

    out->value[M_GB_S] = (double)s->bytes * 1e-9 / seconds;
    out->value[M_HIT] = 100 * (double)s->hits_resident / asked;
    out->value[M_REPLAY] = 100 * (double)a->expect.hits / asked;
    out->value[M_MB] = (double)s->bytes * 1e-6 / tokens;
    out->value[M_TOKENS] = tokens / seconds;
    out->value[M_WAIT] = (double)s->wait_ns * 1e-9;
    out->value[M_MISSES] = (double)s->misses;
    out->value[M_EVICTIONS] = (double)s->evictions;
    out->value[M_DEVICE] = from_device / (double)s->bytes;
}

/* With fewer reads in flight than a layer wants, a victim is chosen later than in replay, and what
 * streams through a small pool is not read ahead: the counts may differ then. */
static bool must_equal_replay(const struct pool_arm *a)
{
    return opt.depth >= a->bed->r.top_k && a->n_frames >= 4 * a->bed->r.top_k;
}

static void judge(struct sample *out, const struct pool_arm *a, const struct pool_stats *s,
                  double from_device)
{
    if (must_equal_replay(a) &&
        (s->hits_resident != a->expect.hits || s->misses != a->expect.misses))
        snprintf(out->invalid, sizeof(out->invalid),
                 "%llu hits and %llu misses, replay has %llu "
                 "and %llu",
                 (unsigned long long)s->hits_resident, (unsigned long long)s->misses,
                 (unsigned long long)a->expect.hits, (unsigned long long)a->expect.misses);
    if (!must_equal_replay(a))
        snprintf(a->arm->note, sizeof(a->arm->note),
                 "counts need not equal replay: fewer than %u in flight or %u records",
                 a->bed->r.top_k, 4 * a->bed->r.top_k);
    else if (!a->bed->file.direct)
        snprintf(a->arm->note, sizeof(a->arm->note), "not direct: %.70s", a->bed->file.why);
    else if (from_device < honest_share * (double)s->bytes)
        snprintf(out->invalid, sizeof(out->invalid),
                 "%.3g GB read, %.3g GB came from a device: a file system in memory",
                 (double)s->bytes * 1e-9, from_device * 1e-9);
}

static int run_arm(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct pool_arm *a = context;
    const struct routes *r = &a->bed->r;
    struct machine m = {.pool = NULL};
    struct pool_stats stats;
    double began, device;
    int rc = machine_open(&m, a, e);

    (void)round;
    device = usage_now().from_device;
    began = now_s();
    for (size_t i = 0; !rc && i < r->n_calls; i++)
        rc = serve(&m, r, &r->call[i], &out->digest, e);
    if (!rc) {
        const double seconds = now_s() - began;

        device = usage_now().from_device - device;
        pool_get_stats(m.pool, &stats);
        put(out, a, &stats, seconds, device);
        judge(out, a, &stats, device);
        out->has_digest = true;
    }
    machine_close(&m);
    return rc;
}

static int add_arms(struct trial *t, struct pool_arm *arm, struct bed *bed, unsigned n_frames,
                    struct err *e)
{
    const struct io_ops *const *engines = io_engines();
    struct replay_counts expect;
    unsigned n = 0;

    if (replay(&expect, &bed->r, policy_named(opt.policy), n_frames, SEED, e))
        return e->code;
    for (unsigned i = 0; engines[i] && n < ARMS_MAX; i++) {
        struct pool_arm *a = &arm[n];

        if (!flag_names(opt.engines, engines[i]->name))
            continue;
        n++;
        *a = (struct pool_arm){bed, engines[i], n_frames, expect, NULL};
        a->arm = trial_add(t, run_arm, a, "%s", engines[i]->name);
    }
    return 0;
}

static int run_size(struct bench *b, struct bed *bed, unsigned n_frames, struct err *e)
{
    struct pool_arm arm[ARMS_MAX];
    struct trial *t = trial_new(metrics, N_ELEMS(metrics), (unsigned)b->rounds,
                                "a pool of %u records, %s", n_frames, opt.policy);
    int rc = t ? add_arms(t, arm, bed, n_frames, e) : err_set(e, ERR_NOMEM, "trial");

    if (!rc) {
        if (!trial_run(t))
            rc = err_set(e, ERR_CANCELLED, "%s", t->name);
        report_trial(&b->report, t,
                     json_pack("{s:i, s:i, s:o, s:s}", "pool_records", (int)n_frames, "records",
                               (int)bed->n_records, "record_bytes", json_u64(opt.record_bytes),
                               "policy", opt.policy));
    }
    free(t);
    return rc;
}

static void cut_trace(struct routes *r)
{
    size_t calls = (size_t)opt.tokens * r->n_layers;

    if (!opt.tokens || calls >= r->n_calls)
        return;
    r->n_calls = calls;
    r->n_ids = r->call[calls - 1].first + r->call[calls - 1].n;
    r->n_tokens = (unsigned)opt.tokens;
}

static int check_options(struct err *e)
{
    if (!opt.file)
        return err_set(e, ERR_ARG, "--file is needed: records to read; --create makes one");
    if (opt.record_bytes % IO_ALIGN)
        return err_set(e, ERR_ARG, "--record: %llu bytes are no multiple of %d",
                       (unsigned long long)opt.record_bytes, IO_ALIGN);
    return reader_engines_check(opt.engines, e);
}

static int bed_open(struct bed *bed, const char *trace, struct err *e)
{
    uint64_t bytes;

    if (check_options(e) || routes_read(&bed->r, trace, e))
        return e->code;
    cut_trace(&bed->r);
    bed->n_records = bed->r.n_layers * bed->r.n_experts;
    bytes = bed->n_records * opt.record_bytes;
    if (opt.create && create_file(opt.file, bytes, e))
        return e->code;
    if (file_open(&bed->file, AT_FDCWD, opt.file, true, e))
        return e->code;
    if (bed->file.bytes < bytes)
        return err_set(e, ERR_ARG,
                       "%s has %llu bytes, %u records of %llu are %llu: take a larger file "
                       "(--create makes one) or a smaller --record",
                       opt.file, (unsigned long long)bed->file.bytes, bed->n_records,
                       (unsigned long long)opt.record_bytes, (unsigned long long)bytes);
    bed->files = calloc(bed->r.n_layers, sizeof(const struct file *));
    if (!bed->files)
        return err_set(e, ERR_NOMEM, "%u layers", bed->r.n_layers);
    for (unsigned i = 0; i < bed->r.n_layers; i++)
        bed->files[i] = &bed->file;
    return 0;
}

static int run_sizes(struct bench *b, struct bed *bed, struct err *e)
{
    for (unsigned i = 0; !opt.records.n && i < N_ELEMS(default_share); i++)
        opt.records.v[i] = (uint64_t)lround(default_share[i] * bed->n_records) + 1;
    if (!opt.records.n)
        opt.records.n = N_ELEMS(default_share);
    for (unsigned i = 0; i < opt.records.n; i++) {
        uint64_t n = opt.records.v[i] < bed->n_records ? opt.records.v[i] : bed->n_records;

        if (run_size(b, bed, (unsigned)n, e))
            return e->code;
    }
    return 0;
}

static int run(struct bench *b)
{
    struct bed bed = {.n_records = 0};
    char size[UNITS_TEXT];
    struct err e;
    int rc;

    if (b->quick && !opt.tokens)
        opt.tokens = 8;
    rc = bed_open(&bed, b->arg[0], &e);
    if (!rc) {
        report_fact(&b->report, "file", provenance_of_file(bed.file.fd));
        report_note(&b->report,
                    "%s: %u tokens, %u layers of %u experts; records of %s, %lld in flight, "
                    "nothing computes between the layers; %s",
                    b->arg[0], bed.r.n_tokens, bed.r.n_layers, bed.r.n_experts,
                    size_text(size, opt.record_bytes), (long long)opt.depth,
                    bed.file.direct ? "direct reads" : bed.file.why);
        rc = run_sizes(b, &bed, &e);
    }
    file_close(&bed.file);
    free(bed.files);
    routes_release(&bed.r);
    return rc ? bench_fail_err(b, &e) : 0;
}

const struct bench_command bench_pool = {
    .name = "pool",
    .args = "[OPTIONS] TRACE --file FILE",
    .summary = "a routing trace through the real pool and each engine: hits as replay says, GB/s",
    .text = "Plays a routing trace through the pool with each engine against a file of records,\n"
            "demand only and from an empty pool: hits, what was read and how fast, how long pins\n"
            "waited. An arm whose hits and misses are not those of `replay` is invalid, where the\n"
            "queue holds what a layer wants and the pool four times that.",
    .flags = flags,
    .min_args = 1,
    .max_args = 1,
    .examples = "  waste-bench pool trace.jsonl --file /nvme/records.bin --create\n"
                "  waste-bench pool trace.jsonl --file /nvme/records.bin --records 805,1610\n",
    .run = run,
};
