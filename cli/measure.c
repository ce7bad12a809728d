/* cli/measure.c - the rates that cli/estimate.h wants. */
#include "cli/estimate.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/machine.h"
#include "base/thread.h"
#include "cli/bar.h"
#include "cli/term.h"
#include "expertfs/container.h"
#include "model/kernels/kernels.h"
#include "model/team.h"

#define RAM_NS   300000000ull
#define DRIVE_NS 1000000000ull
#define TOWER_NS 300000000ull

enum {
    RAM_BYTES = 512 << 20,      /* of all threads together: beyond any cache, we hope */
    IN_FLIGHT_BYTES = 32 << 20, /* what a drive wants before it is measured */
    READERS_MIN = 2,
    READERS_MAX = 16,
    NOISE_BYTES = 256 << 20,
};

struct meter { /* what all threads of one measurement share */
    const struct container *container;
    const struct manifest *m;
    const struct file *file; /* for read_anywhere */
    size_t bytes_each;       /* of a thread's buffer */
    int (*work)(struct meter *t, uint8_t *buffer, uint64_t *random, struct err *e);
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_ready; /* threads whose buffer is there and touched; under lock, as what follows */
    bool go;
    struct err first;
    uint64_t until_ns;               /* written before go */
    atomic_uint_fast64_t bytes, sum; /* sum: so that nothing is optimised away */
};

static void failed(struct meter *t, const struct err *e)
{
    pthread_mutex_lock(&t->lock);
    if (!t->first.code)
        t->first = *e;
    pthread_mutex_unlock(&t->lock);
}

static uint64_t sum_words(const uint64_t *p, size_t n)
{
    uint64_t s[8] = {0};

    for (size_t i = 0; i + 8 <= n; i += 8) {
        for (unsigned k = 0; k < 8; k++)
            s[k] += p[i + k];
    }
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static int stream(struct meter *t, uint8_t *buffer, uint64_t *random, struct err *e)
{
    (void)random;
    (void)e;
    atomic_fetch_add(&t->sum, sum_words((const uint64_t *)(const void *)buffer,
                                        t->bytes_each / sizeof(uint64_t)));
    atomic_fetch_add(&t->bytes, t->bytes_each);
    return 0;
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int read_record(struct meter *t, uint8_t *record, uint64_t *random, struct err *e)
{
    unsigned n_files;
    const struct file *const *files = container_files(t->container, &n_files);
    unsigned layer = container_file_layer(t->container, (unsigned)(next_random(random) % n_files));
    unsigned expert = (unsigned)(next_random(random) % t->m->n_experts);
    struct extent at = container_extent(t->container, layer, expert);
    int status = file_pread(files[at.file], record, at.length, at.offset);

    if (status)
        return err_sys(e, -status, "layer %u expert %u", layer, expert);
    atomic_fetch_add(&t->bytes, at.length);
    return 0;
}

static int read_anywhere(struct meter *t, uint8_t *record, uint64_t *random, struct err *e)
{
    uint64_t offset = next_random(random) % (t->file->bytes / t->bytes_each) * t->bytes_each;
    int status = file_pread(t->file, record, t->bytes_each, offset);

    if (status)
        return err_sys(e, -status, "%s", t->file->name);
    atomic_fetch_add(&t->bytes, t->bytes_each);
    return 0;
}

/* Say that this thread is ready, and wait until all are; its number. */
static unsigned wait_for_all(struct meter *t)
{
    unsigned me;

    pthread_mutex_lock(&t->lock);
    me = t->n_ready++;
    pthread_cond_broadcast(&t->changed);
    while (!t->go)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return me;
}

static void *meter_thread(void *arg)
{
    struct meter *t = arg;
    uint8_t *buffer = aligned_alloc(IO_ALIGN, t->bytes_each);
    uint64_t random;
    struct err e;

    if (buffer)
        memset(buffer, 1, t->bytes_each); /* pages that were never written are all the same page */
    random = (uint64_t)wait_for_all(t) << 32;
    if (!buffer) {
        err_set(&e, ERR_NOMEM, "%zu bytes to measure with", t->bytes_each);
        failed(t, &e);
        return NULL;
    }
    do {
        if (t->work(t, buffer, &random, &e)) {
            failed(t, &e);
            break;
        }
    } while (clock_ns() < t->until_ns && !term_interrupted());
    free(buffer);
    return NULL;
}

/* Start the clock once every thread is ready; bytes per second of all. */
static int meter_run(struct meter *t, unsigned n, uint64_t ns, double *rate, struct err *e)
{
    pthread_t thread[THREADS_MAX];
    unsigned started = 0;
    uint64_t begun;

    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    while (started < n && !thread_start(&thread[started], meter_thread, t))
        started++;
    pthread_mutex_lock(&t->lock);
    while (t->n_ready < started)
        pthread_cond_wait(&t->changed, &t->lock);
    begun = clock_ns();
    t->until_ns = begun + ns;
    t->go = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    if (term_interrupted())
        return err_set(e, ERR_CANCELLED, "measuring was interrupted");
    if (!started)
        return err_set(e, ERR_NOMEM, "no thread can be started");
    if (t->first.code) {
        *e = t->first;
        return e->code;
    }
    *rate = (double)atomic_load(&t->bytes) / ((double)(clock_ns() - begun) * 1e-9);
    return 0;
}

int measure_ram(double *rate, struct err *e)
{
    struct meter t = {.work = stream};
    unsigned n = machine_cores();

    n = n < THREADS_MAX ? n : THREADS_MAX;
    t.bytes_each = RAM_BYTES / n / IO_ALIGN * IO_ALIGN;
    return meter_run(&t, n, RAM_NS, rate, e);
}

static bool all_direct(const struct container *c)
{
    unsigned n;
    const struct file *const *files = container_files(c, &n);

    for (unsigned i = 0; i < n; i++) {
        if (!files[i]->direct)
            return false;
    }
    return true;
}

static unsigned readers_of(uint32_t record_bytes)
{
    unsigned n = IN_FLIGHT_BYTES / record_bytes;

    return n < READERS_MIN ? READERS_MIN : n > READERS_MAX ? READERS_MAX : n;
}

/* A new file of noise, which a drive cannot compress. name is its own: nothing that is there is
 * touched, and no link is followed. */
static int noise_file(int dirfd, const char *dir, const char *name, struct err *e)
{
    enum { PIECE = 1 << 20 };
    int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    uint64_t *piece = malloc(PIECE), random = 1;
    int bad = fd < 0 ? errno : !piece ? ENOMEM : 0;

    for (unsigned at = 0; !bad && at < NOISE_BYTES / PIECE; at++) {
        ssize_t did;

        for (unsigned i = 0; i < PIECE / sizeof(*piece); i++)
            piece[i] = next_random(&random);
        did = write(fd, piece, PIECE);
        bad = did == PIECE ? 0 : did < 0 ? errno : ENOSPC;
    }
    if (!bad && fsync(fd))
        bad = errno;
    free(piece);
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && bad)
        unlinkat(dirfd, name, 0);
    return bad ? err_sys(e, bad, "%.200s: a file of %d MiB to measure with (shares need none)", dir,
                         NOISE_BYTES >> 20)
               : 0;
}

int measure_dir(double *rate, const char *dir, uint32_t record_bytes, struct err *e)
{
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), bad;
    struct meter t = {.work = read_anywhere, .bytes_each = record_bytes};
    struct file f = {.fd = 0};
    char name[48];

    if (dirfd < 0)
        return err_sys(e, errno, "%.200s", dir);
    snprintf(name, sizeof(name), "waste-measure-%ld-%llx.tmp", (long)getpid(),
             (unsigned long long)clock_ns());
    bad = noise_file(dirfd, dir, name, e);
    if (!bad) {
        bad = file_open(&f, dirfd, name, true, e);
        unlinkat(dirfd, name, 0);
    }
    close(dirfd);
    t.file = &f;
    bad = bad ? e->code : meter_run(&t, readers_of(record_bytes), DRIVE_NS / 2, rate, e);
    file_close(&f);
    return bad;
}

int measure_drive(double *rate, bool *direct, const char *dir, bool want_direct, struct err *e)
{
    struct container_options o = {.direct = want_direct};
    struct meter t = {.work = read_record};
    struct container *c;
    int bad;

    if (container_open(&c, dir, &o, e))
        return e->code;
    t.container = c;
    t.m = container_manifest(c);
    if (!t.m->n_experts) {
        container_close(c);
        return err_set(e, ERR_UNSUPPORTED, "%s has no experts to read", dir);
    }
    t.bytes_each = t.m->record.bytes;
    bad = meter_run(&t, readers_of(t.m->record.bytes), DRIVE_NS, rate, e);
    if (!bad)
        *direct = all_direct(c);
    container_close(c);
    return bad;
}

/* ---- the vision tower ---- */

enum { TOWER_WIDTH = 1024, TOWER_ROWS = 64, TOWER_UNIT = 16 };

struct product {
    struct kernels k;
    struct tensor w;
    float x[TOWER_ROWS][TOWER_WIDTH], y[TOWER_ROWS][TOWER_WIDTH];
    uint16_t scale[TOWER_WIDTH][TOWER_WIDTH / FORMAT_GROUP];
    _Alignas(64) uint8_t codes[TOWER_WIDTH][TOWER_WIDTH];
};

static void multiply_units(void *arg, unsigned u0, unsigned u1, unsigned thread)
{
    struct product *p = arg;

    (void)thread;
    p->k.gemv(p->y[0], TOWER_WIDTH, p->x[0], TOWER_WIDTH, TOWER_ROWS, &p->w, u0 * TOWER_UNIT,
              u1 * TOWER_UNIT);
}

static struct product *product_make(void)
{
    struct product *p = aligned_alloc(64, sizeof(*p)); /* a multiple, for the codes */

    if (!p)
        return NULL;
    memset(p, 0, sizeof(*p));
    kernels_init(&p->k, cpu_detect(), PROFILE_F32);
    p->w = (struct tensor){.fmt = FMT_Q8G,
                           .rows = TOWER_WIDTH,
                           .cols = TOWER_WIDTH,
                           .groups = TOWER_WIDTH / FORMAT_GROUP,
                           .row_bytes = TOWER_WIDTH,
                           .data = p->codes[0],
                           .scale = p->scale[0]};
    for (unsigned i = 0; i < TOWER_WIDTH; i++) {
        memset(p->codes[i], (int)(i % 13), TOWER_WIDTH);
        for (unsigned g = 0; g < TOWER_WIDTH / FORMAT_GROUP; g++)
            p->scale[i][g] = 0x1400; /* 2^-10 */
        for (unsigned t = 0; t < TOWER_ROWS; t++)
            p->x[t][i] = (float)i / TOWER_WIDTH;
    }
    return p;
}

int measure_tower(double *rate, unsigned threads, struct err *e)
{
    struct product *p = product_make();
    struct cpu_place place;
    struct team *team;
    uint64_t until, at, now, best = UINT64_MAX;

    if (!p)
        return err_set(e, ERR_NOMEM, "a product of the vision tower");
    cpu_place_here(&place, threads, NULL);
    if (team_open(&team, &place, e)) {
        free(p);
        return e->code;
    }
    team_begin(team);
    team_for(team, TOWER_WIDTH / TOWER_UNIT, 1, multiply_units, p); /* touched, awake */
    now = clock_ns();
    until = now + TOWER_NS;
    do { /* the fastest: others who compute here make it longer, nothing shorter */
        at = now;
        team_for(team, TOWER_WIDTH / TOWER_UNIT, 1, multiply_units, p);
        now = clock_ns();
        best = now - at < best ? now - at : best;
    } while (now < until && !term_interrupted());
    team_end(team);
    team_close(team);
    free(p);
    if (term_interrupted())
        return err_set(e, ERR_CANCELLED, "interrupted");
    *rate = (double)TOWER_ROWS * TOWER_WIDTH * TOWER_WIDTH * 1e9 / (double)(best ? best : 1);
    return 0;
}
