/* soak - a pool over each engine, with reads that fail, come late, or in any order, drives that are
 * away for a while, frames that leave, and askers that change their mind. Nothing may hang, leak,
 * or change a bit.
 *
 *     soak                   a few rounds over each engine, for the suite
 *     soak --minutes 10      until then; drives are away for seconds
 *     soak --seed N          other chance; what failed names its round's seed
 *
 * Engines that do not work here are left out by name. Every page is checked when it is pinned and
 * again before it is given back.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "storage/file.h"
#include "storage/frames.h"
#include "storage/io.h"
#include "storage/io_sim.h"
#include "storage/pool.h"
#include "tests/support/io_chaos.h"
#include "tests/support/io_script.h"

enum {
    N_FILES = 3, /* the last one buffered */
    PAGES = 40,  /* of each file */
    PAGE_BYTES = 7 * IO_ALIGN,
    PINS_MAX = 6,
    STEPS = 400,          /* of a round */
    HANG_S = 120,         /* a round takes a second or so */
    LEAK_BYTES = 1 << 20, /* what stdio and the C library may keep */
    ENGINES_MAX = 8,
};

struct soak { /* one round */
    const char *engine;
    uint64_t seed, random;
    struct mem mem;
    struct frames frames;
    struct io *inner;
    struct io_chaos chaos;
    struct pool *pool;
    struct page pin[PINS_MAX];
    struct extent at[PINS_MAX];
    unsigned n_pins;
};

static struct file file[N_FILES];
static const struct file *files[N_FILES];
static bool long_run;
static struct {
    uint64_t rounds, pins, failed_pins, failed_reads, late, trims, bytes;
} total;

static void fail(const struct soak *s, const char *what)
{
    fprintf(stderr, "soak: %s, seed %" PRIu64 ": %s\n", s->engine, s->seed, what);
    exit(1);
}

static unsigned below(struct soak *s, unsigned n)
{
    s->random = s->random * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((s->random >> 32) * n) >> 32);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct extent extent_of(unsigned i)
{
    return (struct extent){
        .file = i % N_FILES, .offset = (uint64_t)(i / N_FILES) * PAGE_BYTES, .length = PAGE_BYTES};
}

/* Near the last ones more often than elsewhere, so that there are hits. */
static struct extent any_extent(struct soak *s)
{
    unsigned n = N_FILES * PAGES;

    return extent_of(below(s, 1 + below(s, n)));
}

static int open_engine(struct io **out, const char *name, const struct io_config *cfg,
                       uint64_t seed, struct err *e)
{
    struct io_sim_config sim = {.seed = seed, .stripe_bytes = PAGE_BYTES};

    if (strcmp(name, "sim"))
        return io_open(out, name, cfg, NULL, e);
    if (io_sim_add(&sim, "qlc", e) || io_sim_add(&sim, "usb", e))
        return e->code;
    return io_sim_open(out, cfg, &sim, e);
}

static void begin(struct soak *s)
{
    unsigned depth = 1 + below(s, 16), n_frames = 1 + below(s, 24);
    struct io_config cfg = {.files = files, .n_files = N_FILES, .depth = depth};
    struct pool_config pc = {.depth = depth, .seed = s->seed};
    struct err e;

    mem_init(&s->mem, 0);
    if (frames_open(&s->frames, &s->mem, PAGE_BYTES, n_frames, &e))
        fail(s, e.text);
    cfg.arena = s->frames.base;
    cfg.arena_bytes = s->frames.frame_bytes * n_frames;
    if (open_engine(&s->inner, s->engine, &cfg, s->seed, &e))
        fail(s, e.text);
    io_chaos_init(&s->chaos, s->inner, depth, s->seed);
    pc.retries = below(s, 3);
    pc.io = &s->chaos.io;
    pc.frames = &s->frames;
    pc.policy = policy_named(below(s, 2) ? "lfru" : "lru");
    if (pool_open(&s->pool, &pc, &e))
        fail(s, e.text);
}

static void check_pin(struct soak *s, unsigned i)
{
    if (!io_script_check(s->pin[i].bytes, s->at[i]))
        fail(s, "a page has other bytes than its file");
}

static void give_back(struct soak *s, unsigned i)
{
    check_pin(s, i);
    if (below(s, 16))
        pool_unpin(s->pool, &s->pin[i]);
    else
        pool_drop(s->pool, &s->pin[i]);
    s->n_pins--;
    s->pin[i] = s->pin[s->n_pins];
    s->at[i] = s->at[s->n_pins];
}

static void give_all_back(struct soak *s)
{
    while (s->n_pins)
        give_back(s, below(s, s->n_pins));
}

/* A layer's worth: any of them first, each once; now and then left in the middle. */
static void pin_some(struct soak *s)
{
    struct extent want[PINS_MAX];
    unsigned n = 1 + below(s, PINS_MAX - s->n_pins);

    for (unsigned i = 0; i < n; i++)
        want[i] = any_extent(s);
    if (below(s, 2))
        pool_hint(s->pool, want, n, HINT_SURE);
    while (n && s->n_pins < PINS_MAX && below(s, 20)) {
        struct page page;
        struct err e;
        unsigned which = n;
        int rc = pool_pin_any(s->pool, want, n, &which, &page, &e);

        if (rc == ERR_BUSY) {
            if (s->n_pins < pool_frames(s->pool))
                fail(s, "busy though there is a frame that nobody holds");
            give_back(s, below(s, s->n_pins));
            continue;
        }
        if (rc) {
            if (rc != ERR_IO || which >= n || !s->chaos.n_failed)
                fail(s, e.text);
            total.failed_pins++;
        } else {
            s->pin[s->n_pins] = page;
            s->at[s->n_pins++] = want[which];
            check_pin(s, s->n_pins - 1);
            total.pins++;
        }
        want[which] = want[--n];
    }
}

static void guess(struct soak *s)
{
    struct extent want[12];
    unsigned n = below(s, 13);

    for (unsigned i = 0; i < n; i++)
        want[i] = any_extent(s);
    pool_hint(s->pool, want, n, below(s, 4) ? HINT_GUESS : HINT_SURE);
}

/* Weather changes: how many reads fail or are late, and whether the drive is there. */
static void change(struct soak *s)
{
    struct timespec away = {.tv_sec = long_run ? below(s, 3) : 0, .tv_nsec = below(s, 1000000)};

    s->chaos.fail_per_mille = below(s, 2) ? below(s, 300) : 0;
    s->chaos.hold_per_mille = below(s, 2) ? below(s, 1000) : 0;
    if (below(s, 30))
        return;
    s->chaos.down = true;
    for (unsigned i = 0; i < 20; i++) {
        pin_some(s);
        give_all_back(s);
    }
    nanosleep(&away, NULL);
    s->chaos.down = false;
}

static void trim(struct soak *s)
{
    unsigned keep = 1 + below(s, pool_frames(s->pool));

    total.trims += pool_trim(s->pool, (size_t)below(s, 4) * PAGE_BYTES, keep) > 0;
    if (pool_frames(s->pool) < 1 || s->mem.used[MEM_POOL] < PAGE_BYTES)
        fail(s, "the pool has no frame left");
}

static void step(struct soak *s)
{
    unsigned dice = below(s, 100);

    if (dice < 50)
        pin_some(s);
    else if (dice < 75)
        guess(s);
    else if (dice < 90)
        give_all_back(s);
    else if (dice < 96)
        change(s);
    else if (dice < 97)
        trim(s);
    else if (dice < 98)
        pool_purge(s->pool);
    for (unsigned i = 0; i < s->n_pins; i++)
        check_pin(s, i);
}

/* Whatever happened: with a drive in order every page can be had. */
static void all_is_well_again(struct soak *s)
{
    s->chaos.fail_per_mille = s->chaos.hold_per_mille = 0;
    give_all_back(s);
    pool_purge(s->pool); /* with what failed and was not asked for */
    for (unsigned i = 0; i < N_FILES * PAGES; i++) {
        struct err e;

        s->at[0] = extent_of(i);
        if (pool_pin(s->pool, s->at[0], &s->pin[0], &e))
            fail(s, e.text);
        s->n_pins = 1;
        give_all_back(s);
    }
}

static void end(struct soak *s)
{
    struct pool_stats stats;

    if (below(s, 2))
        all_is_well_again(s);
    else
        guess(s); /* and close with that in flight */
    give_all_back(s);
    pool_get_stats(s->pool, &stats);
    pool_close(s->pool);
    if (s->chaos.in_flight)
        fail(s, "the pool left a read in flight");
    s->inner->ops->close(s->inner);
    frames_close(&s->frames);
    if (s->mem.used_total)
        fail(s, "memory is still charged");
    total.rounds++;
    total.failed_reads += s->chaos.n_failed;
    total.late += s->chaos.n_held_ever;
    total.bytes += stats.bytes;
}

static void soak_round(const char *engine, uint64_t seed)
{
    struct soak s = {.engine = engine, .seed = seed, .random = seed};

    alarm(HANG_S);
    begin(&s);
    for (unsigned i = 0; i < STEPS; i++)
        step(&s);
    end(&s);
    alarm(0);
}

static unsigned count_open(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static size_t count_allocated(void)
{
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

static bool make_files(void)
{
    static unsigned char content[PAGES * PAGE_BYTES];
    const char *tmp = getenv("TMPDIR");
    char dir[256], name[300];
    struct err e;

    snprintf(dir, sizeof(dir), "%s/waste-soak-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return false;
    for (uint32_t i = 0; i < N_FILES; i++) {
        int fd;

        io_script_fill(content, (struct extent){.file = i, .length = sizeof(content)});
        snprintf(name, sizeof(name), "%s/file%u", dir, i);
        fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, content, sizeof(content)) != (ssize_t)sizeof(content) || fsync(fd))
            return false;
        close(fd);
        if (file_open(&file[i], AT_FDCWD, name, i + 1 < N_FILES, &e))
            return false;
        files[i] = &file[i];
        unlink(name); /* what is open stays readable */
    }
    return !rmdir(dir);
}

/* The names of the engines that work here. */
static unsigned find_engines(const char **name)
{
    unsigned n = 0;

    for (unsigned i = 0; io_engines()[i] && n < ENGINES_MAX - 1; i++) {
        struct io_config cfg = {.files = files, .n_files = N_FILES, .depth = 1};
        struct io *io;
        struct err e;

        if (io_open(&io, io_engines()[i]->name, &cfg, NULL, &e)) {
            printf("soak: without %s\n", e.text);
            continue;
        }
        io->ops->close(io);
        name[n++] = io_engines()[i]->name;
    }
    name[n++] = "sim";
    return n;
}

int main(int argc, char **argv)
{
    const char *name[ENGINES_MAX];
    double minutes = 0, start = seconds();
    uint64_t seed = 1;
    unsigned n_engines, n_open;
    size_t n_allocated;

    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--minutes"))
            minutes = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--seed"))
            seed = strtoull(argv[i + 1], NULL, 10);
    long_run = minutes > 0;
    if (!make_files()) {
        perror("soak: cannot make files");
        return 1;
    }
    n_engines = find_engines(name);
    for (unsigned i = 0; i < n_engines; i++) /* what a library keeps, it has taken now */
        soak_round(name[i], seed++);
    n_open = count_open();
    n_allocated = count_allocated();
    for (unsigned i = 0; long_run ? seconds() - start < 60 * minutes : i < 4 * n_engines; i++)
        soak_round(name[i % n_engines], seed++);
    if (count_open() > n_open || count_allocated() > n_allocated + LEAK_BYTES) {
        fprintf(stderr, "soak: %u files open and were %u; %zu bytes allocated and were %zu\n",
                count_open(), n_open, count_allocated(), n_allocated);
        return 1;
    }
    for (unsigned i = 0; i < N_FILES; i++)
        file_close(&file[i]);
    printf("soak: %" PRIu64 " rounds over %u engines in %.0f s: %" PRIu64 " pins, %" PRIu64
           " of them failed, %.1f GB; reads: %" PRIu64 " failed, %" PRIu64 " late; %" PRIu64
           " trims; nothing lost\n",
           total.rounds, n_engines, seconds() - start, total.pins + total.failed_pins,
           total.failed_pins, (double)total.bytes / 1e9, total.failed_reads, total.late,
           total.trims);
    return 0;
}
