/* io_arms - what an engine's options bring: the same random reads by every arm in turn, several
 * rounds in one process, as min / median / max of bandwidth and of CPU time per byte.
 *
 *     io_arms FILE [BYTES [DEPTH [SECONDS [ROUNDS]]]]      (2670592 4 1 5)
 *
 * BYTES a multiple of 4096. FILE should be some GB long; read direct, or it says so and stops. CPU
 * time is the whole process's, its threads and the kernel's work for them included.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "storage/file.h"
#include "storage/io.h"

enum { ROUNDS_MAX = 100, DEPTH_MAX = 64, HUGE_BYTES = 2 << 20 };

static struct arm {
    const char *engine;
    unsigned flags;
    bool huge;
    struct io *io; /* NULL: does not work here */
    char *arena;
    double gbps[ROUNDS_MAX], cpu[ROUNDS_MAX]; /* GB/s, CPU s/GB */
} arms[] = {
    {.engine = "threads"},
    {.engine = "threads", .huge = true},
    {.engine = "libaio"},
    {.engine = "libaio", .huge = true},
    {.engine = "io_uring", .flags = IO_UNREGISTERED},
    {.engine = "io_uring", .flags = IO_UNREGISTERED, .huge = true},
    {.engine = "io_uring"},
    {.engine = "io_uring", .huge = true},
    {.engine = "io_uring", .flags = IO_ONE_THREAD, .huge = true},
};

enum { N_ARMS = sizeof(arms) / sizeof(arms[0]) };

static struct file file;
static uint32_t bytes = 2670592;
static unsigned depth = 4, rounds = 5;
static double round_s = 1;
static uint64_t random_state = 1;

static struct extent any_extent(void)
{
    uint64_t n = (file.bytes - bytes) / IO_ALIGN + 1;

    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (struct extent){.offset = (random_state >> 20) % n * IO_ALIGN, .length = bytes};
}

static double wall(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_time(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void arm_open(struct arm *a)
{
    const struct file *files = &file;
    size_t room = (size_t)depth * bytes;
    struct io_config cfg = {.files = &files, .n_files = 1, .depth = depth, .flags = a->flags};
    struct err e;

    a->arena =
        mmap(NULL, room + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->arena == MAP_FAILED)
        exit(1);
    madvise(a->arena, room + HUGE_BYTES, a->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    a->arena += HUGE_BYTES - (uintptr_t)a->arena % HUGE_BYTES;
    memset(a->arena, 1, room);
    cfg.arena = a->arena;
    cfg.arena_bytes = room;
    if (io_open(&a->io, a->engine, &cfg, NULL, &e))
        printf("# without %s\n", e.text);
}

/* Keep the queue full for a while, then drain it. */
static void arm_run(struct arm *a, unsigned nth)
{
    struct io_read reads[DEPTH_MAX], *start[DEPTH_MAX], *done[DEPTH_MAX];
    double from = wall(), cpu = cpu_time(), end = from + round_s;
    unsigned n = depth, in_flight = 0;
    uint64_t total = 0;

    for (unsigned i = 0; i < depth; i++) {
        reads[i].dst = a->arena + (size_t)i * bytes;
        start[i] = &reads[i];
    }
    do {
        for (unsigned i = 0; i < n; i++)
            start[i]->at = any_extent();
        in_flight += a->io->ops->submit(a->io, start, n);
        n = a->io->ops->reap(a->io, done, depth, true);
        in_flight -= n;
        for (unsigned i = 0; i < n; i++) {
            if (done[i]->status)
                exit(1);
            total += bytes;
            start[i] = done[i];
        }
        if (wall() > end)
            n = 0;
    } while (n || in_flight);
    a->gbps[nth] = (double)total / 1e9 / (wall() - from);
    a->cpu[nth] = (cpu_time() - cpu) / ((double)total / 1e9);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct err e;

    if (argc < 2)
        return 2;
    bytes = argc > 2 ? (uint32_t)atol(argv[2]) : bytes;
    depth = argc > 3 ? (unsigned)atoi(argv[3]) : depth;
    round_s = argc > 4 ? atof(argv[4]) : round_s;
    rounds = argc > 5 ? (unsigned)atoi(argv[5]) : rounds;
    if (file_open(&file, AT_FDCWD, argv[1], true, &e) || !file.direct || bytes % IO_ALIGN ||
        file.bytes < bytes || !depth || depth > DEPTH_MAX || rounds > ROUNDS_MAX) {
        fprintf(stderr, "io_arms: %s: %s\n", argv[1], file.why[0] ? file.why : "cannot be used so");
        return 1;
    }
    for (unsigned i = 0; i < N_ARMS; i++)
        arm_open(&arms[i]);
    for (unsigned nth = 0; nth < rounds; nth++)
        for (unsigned i = 0; i < N_ARMS; i++)
            if (arms[i].io)
                arm_run(&arms[i], nth);
    printf("# %u bytes, depth %u, %u rounds of %g s\n", bytes, depth, rounds, round_s);
    for (unsigned i = 0; i < N_ARMS; i++) {
        struct arm *a = &arms[i];

        if (!a->io)
            continue;
        qsort(a->gbps, rounds, sizeof(double), ascending);
        qsort(a->cpu, rounds, sizeof(double), ascending);
        printf("%-8s %-12s %-10s %-5s  %5.2f / %5.2f / %5.2f GB/s  %.4f / %.4f / %.4f s/GB\n",
               a->engine,
               a->flags & IO_UNREGISTERED || strcmp(a->engine, "io_uring") ? "" : "registered",
               a->flags & IO_ONE_THREAD ? "one thread" : "", a->huge ? "2 MiB" : "4 KiB",
               a->gbps[0], a->gbps[rounds / 2], a->gbps[rounds - 1], a->cpu[0], a->cpu[rounds / 2],
               a->cpu[rounds - 1]);
        a->io->ops->close(a->io);
    }
    file_close(&file);
    return 0;
}
