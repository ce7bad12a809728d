/* io_sim.c - the clock steps from event to event: a latency is over, a transfer is complete.
 *
 * Equal shares of a drive are kept as fair queueing keeps them: `served` counts what each read in
 * transfer has got since open, in 1e-9 bytes, so that rate times ns is exact and a read that joins
 * knows at once at which value it is over. It wraps; only differences count, and those are below
 * 2^63, since an extent is below 4 GiB.
 */
#include "storage/io_sim.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/file.h"

enum { NS_PER_S = 1000000000, PER_MILLE = 1000 };

static const uint64_t never = UINT64_MAX;

enum stage { WAITING, LATENCY, TRANSFER };

struct flight {
    struct io_read *read;
    uint64_t nth; /* submitted since open, from 1 */
    uint64_t submit_ns;
    uint64_t latency_ns;
    uint64_t ready_ns; /* LATENCY: until then */
    uint64_t finish;   /* TRANSFER: over when served is there */
    enum stage stage;
    unsigned drive;
};

struct drive {
    uint64_t served;     /* 1e-9 bytes, modulo 2^64 */
    unsigned n_waiting;  /* reads that wait for a lane */
    unsigned n_lanes;    /* taken */
    unsigned n_transfer; /* of those, past their latency */
};

struct sim {
    struct io io;
    struct io_config cfg;
    struct io_sim_config sim;
    struct io_sim_faults faults;
    struct io_sim_stats stats;
    uint64_t now_ns;
    uint64_t n_submitted;
    uint64_t n_picked; /* lanes given out of order */
    struct drive drive[IO_SIM_DRIVES_MAX];
    unsigned n_flight; /* in the order submitted */
    struct flight *flight;
    unsigned head, n_done; /* the ring of finished reads, in the order of their times */
    struct io_read **done;
};

static const struct preset {
    const char *name;
    unsigned n;
    struct io_sim_drive drive;
} presets[] = {
    {"nvme3", 1, {3500000000, 2600000000, 90000, 100000, 10, 64}},
    {"nvme7", 1, {7000000000, 4200000000, 80000, 100000, 10, 64}},
    {"nvme14", 1, {14000000000, 7000000000, 70000, 100000, 10, 64}},
    {"nvme28", 2, {14000000000, 7000000000, 70000, 100000, 10, 64}},
    /* cells read several times over, and now and then a block that is being moved */
    {"qlc", 1, {2400000000, 1600000000, 150000, 4000000, 20, 64}},
    /* a bridge of 10 Gbit/s that passes on few commands at a time */
    {"usb", 1, {1000000000, 1000000000, 250000, 2000000, 5, 4}},
};

enum { N_PRESETS = sizeof(presets) / sizeof(presets[0]) };

const char *const *io_sim_presets(void)
{
    static const char *const names[] = {"nvme3", "nvme7", "nvme14", "nvme28", "qlc", "usb", NULL};

    _Static_assert(sizeof(names) / sizeof(names[0]) == N_PRESETS + 1, "a name for each preset");
    return names;
}

int io_sim_add(struct io_sim_config *cfg, const char *preset, struct err *e)
{
    const struct preset *p = presets;
    char names[64] = "";

    while (p < presets + N_PRESETS && strcmp(p->name, preset))
        p++;
    if (p == presets + N_PRESETS) {
        for (unsigned i = 0; i < N_PRESETS; i++) {
            size_t n = strlen(names);

            snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", presets[i].name);
        }
        return err_set(e, ERR_ARG, "drive model %s: there are %s", preset, names);
    }
    if (p->n > IO_SIM_DRIVES_MAX - cfg->n_drives)
        return err_set(e, ERR_ARG, "drive model %s: with the %u before, more than %d drives",
                       preset, cfg->n_drives, IO_SIM_DRIVES_MAX);
    for (unsigned i = 0; i < p->n; i++)
        cfg->drive[cfg->n_drives++] = p->drive;
    return 0;
}

/* 64 bits for the n-th of a kind; the same whatever was drawn before (splitmix64). */
static uint64_t chance(const struct sim *s, uint64_t n, uint64_t kind)
{
    uint64_t z = s->sim.seed + (n * 4 + kind + 1) * 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* n times x / 2^32, for x < 2^32. */
static uint64_t part_of(uint64_t n, uint64_t x)
{
    return (n >> 32) * x + (((n & UINT32_MAX) * x) >> 32);
}

/* -mean * ln(u) with u uniform in (0, 1), as leading zeros and a linear mantissa: no libm has a say
 * in a simulated time. */
static uint64_t exponential(uint64_t mean, uint64_t u)
{
    unsigned zeros = u ? (unsigned)__builtin_clzll(u) : 63;
    uint64_t mantissa = (u << zeros) << 1 >> 32; /* u = 2^(63 - zeros) * (1 + mantissa / 2^32) */
    uint64_t log2_q32 = ((uint64_t)(zeros + 1) << 32) - mantissa;
    uint64_t ln_q24 = (log2_q32 >> 8) * 45426 >> 16; /* ln 2 = 45426 / 2^16 */

    return (mean >> 24) * ln_q24 + ((mean & 0xffffff) * ln_q24 >> 24);
}

static bool happens(uint64_t draw, unsigned per_mille)
{
    return draw % PER_MILLE < per_mille;
}

static uint64_t latency_of(const struct sim *s, const struct flight *f)
{
    const struct io_sim_drive *d = &s->sim.drive[f->drive];
    uint64_t ns = d->latency_ns, tail = chance(s, f->nth, 0), delay = chance(s, f->nth, 1);

    if (happens(tail, d->tail_per_mille))
        ns += exponential(d->tail_ns, chance(s, f->nth, 2));
    if (happens(delay, s->faults.delay_per_mille))
        ns += part_of(s->faults.delay_ns, delay >> 32);
    return ns;
}

static uint64_t rate_of(const struct sim *s, unsigned drive)
{
    const struct io_sim_drive *d = &s->sim.drive[drive];
    uint64_t share = d->bytes_per_s / s->drive[drive].n_transfer;

    if (share > d->read_bytes_per_s)
        share = d->read_bytes_per_s;
    return share ? share : 1;
}

/* When something happens to this read, if the rates stay. */
static uint64_t event_of(const struct sim *s, const struct flight *f)
{
    uint64_t rate, left;

    if (f->stage == WAITING)
        return never;
    if (f->stage == LATENCY)
        return f->ready_ns;
    rate = rate_of(s, f->drive);
    left = f->finish - s->drive[f->drive].served;
    return s->now_ns + left / rate + !!(left % rate);
}

static uint64_t next_event(const struct sim *s)
{
    uint64_t next = never;

    for (unsigned i = 0; i < s->n_flight; i++) {
        uint64_t at = event_of(s, &s->flight[i]);

        next = at < next ? at : next;
    }
    return next;
}

/* Word i of a file that is nowhere. */
static uint64_t word_at(uint64_t seed, uint32_t file, uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15 + seed + file * 0xd1342543de82ef95;

    z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93;
    return z ^ (z >> 32);
}

static void bring_bytes(struct sim *s, struct io_read *r)
{
    uint64_t *word = r->dst;

    r->status = 0;
    if (s->sim.source == IO_SIM_FILES)
        r->status = file_pread(s->cfg.files[r->at.file], r->dst, r->at.length, r->at.offset);
    else if (s->sim.source == IO_SIM_SEED)
        for (uint32_t i = 0; i < r->at.length / 8; i++)
            word[i] = word_at(s->sim.seed, r->at.file, r->at.offset / 8 + i);
}

static bool fails(const struct sim *s, const struct flight *f)
{
    const struct io_sim_faults *x = &s->faults;

    return f->nth == x->fail_nth || ((x->down_drives >> f->drive & 1) &&
                                     s->now_ns >= x->down_ns[0] && s->now_ns < x->down_ns[1]);
}

/* The bytes arrive, or not; the read is over. */
static void complete(struct sim *s, const struct flight *f)
{
    struct io_read *r = f->read;

    if (fails(s, f)) {
        if (s->sim.source != IO_SIM_NOTHING)
            memset(r->dst, 0xee, r->at.length / 2);
        r->status = -EIO;
    } else {
        bring_bytes(s, r);
    }
    s->stats.reads++;
    s->stats.drive[f->drive].reads++;
    s->stats.drive[f->drive].latency_ns += s->now_ns - f->submit_ns;
    if (r->status) {
        s->stats.failed++;
    } else {
        s->stats.bytes += r->at.length;
        s->stats.drive[f->drive].bytes += r->at.length;
    }
    s->done[(s->head + s->n_done++) % s->cfg.depth] = r;
}

/* Which of the reads that wait for this drive gets its free lane. */
static struct flight *pick(struct sim *s, unsigned drive)
{
    uint64_t skip = 0;

    if (s->faults.reorder)
        skip = part_of(s->drive[drive].n_waiting, chance(s, s->n_picked++, 3) >> 32);
    for (unsigned i = 0;; i++) {
        struct flight *f = &s->flight[i];

        assert(i < s->n_flight);
        if (f->drive == drive && f->stage == WAITING && !skip--)
            return f;
    }
}

static void give_lanes(struct sim *s, unsigned drive)
{
    struct drive *d = &s->drive[drive];

    for (; d->n_waiting && d->n_lanes < s->sim.drive[drive].lanes; d->n_lanes++, d->n_waiting--) {
        struct flight *f = pick(s, drive);

        f->stage = LATENCY;
        f->ready_ns = s->now_ns + f->latency_ns;
    }
}

/* What happens now: transfers end, and then others begin. */
static void settle(struct sim *s)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < s->n_flight; i++) {
        struct flight *f = &s->flight[i];
        struct drive *d = &s->drive[f->drive];

        if (f->stage == TRANSFER && (int64_t)(f->finish - d->served) <= 0) {
            d->n_transfer--;
            d->n_lanes--;
            complete(s, f);
        } else {
            s->flight[kept++] = *f;
        }
    }
    s->n_flight = kept;
    for (unsigned i = 0; i < s->sim.n_drives; i++)
        give_lanes(s, i);
    for (unsigned i = 0; i < s->n_flight; i++) {
        struct flight *f = &s->flight[i];
        struct drive *d = &s->drive[f->drive];

        if (f->stage == LATENCY && f->ready_ns <= s->now_ns) {
            f->stage = TRANSFER;
            f->finish = d->served + (uint64_t)f->read->at.length * NS_PER_S;
            d->n_transfer++;
        }
    }
}

/* Let time pass; nothing happens before `until`. */
static void pass(struct sim *s, uint64_t until)
{
    uint64_t ns = until - s->now_ns;

    for (unsigned i = 0; i < s->sim.n_drives; i++) {
        struct drive *d = &s->drive[i];

        if (d->n_transfer)
            d->served += rate_of(s, i) * ns;
        if (d->n_lanes)
            s->stats.drive[i].busy_ns += ns;
    }
    s->now_ns = until;
}

static void run_until(struct sim *s, uint64_t until)
{
    for (uint64_t next; (next = next_event(s)) <= until && next != never;) {
        pass(s, next);
        settle(s);
    }
    pass(s, until);
}

static int sim_check(const struct io_config *cfg, const struct io_sim_config *sim, struct err *e)
{
    if (!cfg->depth || cfg->depth > IO_DEPTH_MAX)
        return err_set(e, ERR_ARG, "sim: I/O depth %u: from 1 to %d", cfg->depth, IO_DEPTH_MAX);
    if (!sim->n_drives || sim->n_drives > IO_SIM_DRIVES_MAX)
        return err_set(e, ERR_ARG, "sim: %u drives: from 1 to %d", sim->n_drives,
                       IO_SIM_DRIVES_MAX);
    for (unsigned i = 0; i < sim->n_drives; i++) {
        const struct io_sim_drive *d = &sim->drive[i];

        if (!d->bytes_per_s || !d->read_bytes_per_s || !d->lanes)
            return err_set(e, ERR_ARG, "sim: drive %u has no %s", i,
                           d->lanes ? "bandwidth" : "lanes");
    }
    return 0;
}

int io_sim_open(struct io **out, const struct io_config *cfg, const struct io_sim_config *sim,
                struct err *e)
{
    struct sim *s;

    if (sim_check(cfg, sim, e))
        return e->code;
    s = calloc(1, sizeof(*s) + cfg->depth * (sizeof(s->flight[0]) + sizeof(s->done[0])));
    if (!s)
        return err_set(e, ERR_NOMEM, "sim: a queue of %u reads", cfg->depth);
    s->flight = (struct flight *)(s + 1);
    s->done = (struct io_read **)(s->flight + cfg->depth);
    s->cfg = *cfg;
    s->sim = *sim;
    s->io.ops = &io_ops_sim;
    snprintf(s->io.note, sizeof(s->io.note), "%u simulated drive%s", sim->n_drives,
             sim->n_drives > 1 ? "s" : "");
    *out = &s->io;
    return 0;
}

static int sim_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    (void)out, (void)cfg;
    return err_set(e, ERR_UNSUPPORTED, "sim: a drive has to be described: io_sim_open");
}

static unsigned drive_of(const struct sim *s, struct extent at)
{
    uint64_t drive = s->sim.file_drive ? s->sim.file_drive[at.file] : 0;

    if (s->sim.stripe_bytes)
        drive += at.offset / s->sim.stripe_bytes;
    return (unsigned)(drive % s->sim.n_drives);
}

static unsigned sim_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct sim *s = (struct sim *)io;
    unsigned i;

    for (i = 0; i < n && s->n_flight + s->n_done < s->cfg.depth; i++) {
        struct flight *f = &s->flight[s->n_flight++];

        assert(reads[i]->at.file < s->cfg.n_files);
        *f = (struct flight){.read = reads[i],
                             .nth = ++s->n_submitted,
                             .submit_ns = s->now_ns,
                             .drive = drive_of(s, reads[i]->at)};
        f->latency_ns = latency_of(s, f);
        s->drive[f->drive].n_waiting++;
    }
    settle(s);
    return i;
}

static unsigned sim_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct sim *s = (struct sim *)io;
    uint64_t before = s->now_ns;
    unsigned i;

    while (wait && max && s->n_flight && !s->n_done)
        run_until(s, next_event(s));
    s->stats.waited_ns += s->now_ns - before;
    for (i = 0; i < max && s->n_done; i++, s->n_done--) {
        done[i] = s->done[s->head];
        s->head = (s->head + 1) % s->cfg.depth;
    }
    return i;
}

static void sim_close(struct io *io)
{
    struct sim *s = (struct sim *)io;

    while (s && s->n_flight) {
        s->n_done = 0; /* nobody will ask for them */
        run_until(s, next_event(s));
    }
    free(s);
}

uint64_t io_sim_now(const struct io *io)
{
    return ((const struct sim *)io)->now_ns;
}

void io_sim_advance(struct io *io, uint64_t ns)
{
    struct sim *s = (struct sim *)io;

    run_until(s, s->now_ns + ns);
}

void io_sim_set_faults(struct io *io, const struct io_sim_faults *faults)
{
    ((struct sim *)io)->faults = *faults;
}

void io_sim_get_stats(const struct io *io, struct io_sim_stats *out)
{
    *out = ((const struct sim *)io)->stats;
}

const struct io_ops io_ops_sim = {
    .name = "sim",
    .open = sim_open,
    .submit = sim_submit,
    .reap = sim_reap,
    .close = sim_close,
    .now_ns = io_sim_now,
};
