/* One suite for every engine, on real files; test_io_ladder.c has the ladder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/io_sim.h"
#include "tests/storage/io_files.h"
#include "tests/support/aio_fault.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/io_fault.h"
#include "tests/support/io_script.h"
#include "tests/support/pread_fault.h"
#include "tests/support/uring_fault.h"

static const char *engine; /* whose turn it is */

/* Two simulated drives over the real files, slow enough that reads wait, with tails. */
static int open_sim(struct io **out, const struct io_config *cfg, struct err *e)
{
    struct io_sim_config sim = {.stripe_bytes = EXTENT_MAX, .seed = cfg->depth};

    if (io_sim_add(&sim, "usb", e) || io_sim_add(&sim, "qlc", e))
        return e->code;
    return io_sim_open(out, cfg, &sim, e);
}

static int open_engine(struct io **out, const struct io_config *cfg, struct err *e)
{
    return strcmp(engine, "sim") ? io_open(out, engine, cfg, NULL, e) : open_sim(out, cfg, e);
}

static struct io *opened(const struct io_config *cfg)
{
    struct io *io;
    struct err e;

    if (open_engine(&io, cfg, &e))
        fail_msg("%s", e.text);
    assert_string_equal(io->ops->name, engine);
    return io;
}

static unsigned random_below(uint64_t *x, unsigned n)
{
    *x = *x * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((*x >> 32) * n) >> 32);
}

static struct extent random_extent(uint64_t *x)
{
    struct extent at = {.file = random_below(x, N_FILES)};
    unsigned pages = (unsigned)(file_bytes[at.file] / IO_ALIGN);
    unsigned n = 1 + random_below(x, random_below(x, 2) ? 2 : EXTENT_MAX / IO_ALIGN);

    at.length = n * IO_ALIGN;
    at.offset = (uint64_t)random_below(x, pages - n + 1) * IO_ALIGN;
    return at;
}

/* Keep the queue busy with random reads until `count` of them were right, then drain it. */
static void read_at_random(struct io *io, unsigned depth, unsigned count, uint64_t seed)
{
    struct io_read reads[DEPTH], *start[DEPTH], *done[DEPTH];
    bool busy[DEPTH] = {false};
    unsigned in_flight = 0, right = 0;

    while (right < count || in_flight) {
        unsigned n = 0, taken, most = 1 + random_below(&seed, depth);

        for (unsigned i = 0; i < depth && n < most && right < count; i++)
            if (!busy[i]) {
                reads[i] = (struct io_read){.at = random_extent(&seed),
                                            .dst = arena + (size_t)i * EXTENT_MAX,
                                            .status = 12345};
                memset(reads[i].dst, 0, reads[i].at.length);
                start[n++] = &reads[i];
            }
        taken = io->ops->submit(io, start, n);
        assert_int_equal(taken, n); /* never more than depth at a time: there is room */
        for (unsigned i = 0; i < n; i++)
            busy[start[i] - reads] = true;
        in_flight += n;
        n = io->ops->reap(io, done, 1 + random_below(&seed, depth), random_below(&seed, 4) != 0);
        assert_in_range(n, 0, in_flight);
        for (unsigned i = 0; i < n; i++) {
            assert_true(busy[done[i] - reads]);
            assert_int_equal(done[i]->status, 0);
            assert_true(io_script_check(done[i]->dst, done[i]->at));
            busy[done[i] - reads] = false;
        }
        in_flight -= n;
        right += n;
    }
}

static void any_extents_arrive_whole_at_any_depth(void **state)
{
    (void)state;
    for (unsigned depth = 1; depth <= DEPTH; depth++) {
        struct io_config cfg = config(depth);
        struct io *io = opened(&cfg);

        read_at_random(io, depth, 300, depth);
        io->ops->close(io);
    }
}

static void memory_outside_the_arena_or_without_one_will_do(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct io_config cfg = config(DEPTH);
        struct io *io;

        cfg.arena = i ? arena + EXTENT_MAX : NULL; /* the second: in part */
        cfg.arena_bytes = i ? EXTENT_MAX + IO_ALIGN : 0;
        io = opened(&cfg);
        read_at_random(io, DEPTH, 300, i);
        io->ops->close(io);
    }
}

static void what_one_measures_with_changes_no_byte(void **state)
{
    (void)state;
    for (unsigned flags = 0; flags < 4; flags++) {
        struct io_config cfg = config(DEPTH);
        struct io *io;

        cfg.flags = flags;
        io = opened(&cfg);
        if (flags & IO_UNREGISTERED && !strcmp(engine, "io_uring"))
            assert_string_equal(io->note, "pool memory not registered: not asked for");
        read_at_random(io, DEPTH, 300, flags);
        io->ops->close(io);
    }
}

static void nothing_is_allocated_after_open(void **state)
{
    struct io_config cfg = config(DEPTH);
    struct io *io = opened(&cfg);

    (void)state;
    alloc_fault_arm(1000000);
    read_at_random(io, DEPTH, 200, 1);
    assert_false(alloc_fault_disarm());
    assert_int_equal(alloc_fault_seen(), 0);
    io->ops->close(io);
}

static void the_queue_takes_its_depth_and_no_more(void **state)
{
    struct io_config cfg = config(5);
    struct io *io = opened(&cfg);
    struct io_read reads[DEPTH], *start[DEPTH], *done[DEPTH];
    unsigned n = 0;

    (void)state;
    prepare(reads, start, DEPTH, 4);
    assert_int_equal(io->ops->submit(io, start, 3), 3);
    assert_int_equal(io->ops->submit(io, start + 3, 5), 2);
    assert_int_equal(io->ops->submit(io, start + 5, 3), 0);
    n = io->ops->reap(io, done, 1, true); /* finished ones fill the queue until they are reaped */
    assert_int_equal(n, 1);
    assert_int_equal(io->ops->submit(io, start + 5, 3), 1);
    while (n < 6) {
        unsigned got = io->ops->reap(io, done + n, DEPTH - n, true);

        assert_true(got);
        n += got;
    }
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(reads[i].status, 0);
        assert_true(io_script_check(reads[i].dst, reads[i].at));
    }
    assert_int_equal(io->ops->submit(io, start, 0), 0);
    io->ops->close(io);
}

static void an_idle_engine_gives_nothing_and_does_not_wait(void **state)
{
    struct io_config cfg = config(2);
    struct io *io = opened(&cfg);
    struct io_read reads[1], *start[1], *done[1];

    (void)state;
    assert_int_equal(io->ops->reap(io, done, 1, false), 0);
    assert_int_equal(io->ops->reap(io, done, 1, true), 0);
    prepare(reads, start, 1, 1);
    assert_int_equal(io->ops->submit(io, start, 1), 1);
    assert_int_equal(io->ops->reap(io, done, 0, true), 0);
    assert_int_equal(io->ops->reap(io, done, 1, true), 1);
    assert_ptr_equal(done[0], start[0]);
    assert_int_equal(io->ops->reap(io, done, 1, true), 0);
    io->ops->close(io);
}

static void close_waits_for_what_is_in_flight(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 20; round++) {
        struct io_config cfg = config(DEPTH);
        struct io *io = opened(&cfg);
        struct io_read reads[DEPTH], *start[DEPTH];

        prepare(reads, start, DEPTH, EXTENT_MAX / IO_ALIGN);
        assert_int_equal(io->ops->submit(io, start, DEPTH), DEPTH);
        io->ops->close(io);
        for (unsigned i = 0; i < DEPTH; i++)
            assert_true(io_script_check(reads[i].dst, reads[i].at));
    }
}

static void cut_file(size_t bytes)
{
    int fd = openat(dirfd, "cut", O_WRONLY | O_CLOEXEC);

    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    close(fd);
}

/* Cut at a page, inside a page, inside the first page, and to nothing. */
static void a_file_that_ends_too_early_is_an_error_of_that_read_alone(void **state)
{
    static const size_t ends[] = {3 * IO_ALIGN, 3 * IO_ALIGN + 100, 100, 0};

    (void)state;
    for (unsigned i = 0; i < 2 * sizeof(ends) / sizeof(ends[0]); i++) {
        struct file cut;
        const struct file *two[2] = {&file[0], &cut};
        struct io_config cfg = config(DEPTH);
        struct io_read reads[3], *start[3], *done[3];
        struct io *io;
        struct err e;
        unsigned n = 0;

        write_file("cut", 1, 1 << 20);
        assert_int_equal(file_open(&cut, dirfd, "cut", i % 2, &e), 0);
        cfg.files = two;
        cfg.n_files = 2;
        io = opened(&cfg);
        cut_file(ends[i / 2]);
        prepare(reads, start, 3, 8);
        reads[1].at = (struct extent){.file = 1, .length = 8 * IO_ALIGN};
        assert_int_equal(io->ops->submit(io, start, 3), 3);
        while (n < 3)
            n += io->ops->reap(io, done, 3, true);
        assert_int_equal(reads[0].status, 0);
        assert_int_equal(reads[1].status, -ENODATA);
        assert_int_equal(reads[2].status, 0);
        assert_true(io_script_check(reads[0].dst, reads[0].at));
        assert_true(io_script_check(reads[2].dst, reads[2].at));
        io->ops->close(io);
        file_close(&cut);
    }
}

static void the_systems_error_comes_out_as_it_is(void **state)
{
    struct file shut = {.fd = openat(dirfd, "file1", O_WRONLY | O_CLOEXEC), .direct = true};
    const struct file *two[2] = {&file[0], &shut};
    struct io_config cfg = config(DEPTH);
    struct io_read reads[2], *start[2], *done[2];
    struct io *io;
    unsigned n = 0;

    (void)state;
    cfg.files = two;
    cfg.n_files = 2;
    io = opened(&cfg);
    prepare(reads, start, 2, 2);
    reads[0].at.file = 1;
    assert_int_equal(io->ops->submit(io, start, 2), 2);
    while (n < 2)
        n += io->ops->reap(io, done, 2, true);
    assert_int_equal(reads[0].status, -EBADF);
    assert_int_equal(reads[1].status, 0);
    io->ops->close(io);
    close(shut.fd);
}

/* Every read of the engine fails with errnum; 0: none does. */
static void fail_reads(int errnum)
{
    pread_fault_fail(errnum);
#ifdef HAVE_IO_URING
    uring_fault_complete(errnum);
#endif
#ifdef HAVE_LIBAIO
    aio_fault_complete(errnum);
#endif
}

/* What the system always says, and what comes out. It says ENODATA of a bad place on the disk; that
 * is not the end of a file. EAGAIN was tried again without a pause and without an end. */
static void an_error_that_stays_comes_out(void **state)
{
    static const int said[] = {EIO, ENODATA, EAGAIN}, out[] = {EIO, EIO, EAGAIN};
    struct io_config cfg = config(DEPTH);
    struct io *io = opened(&cfg);

    (void)state;
    for (unsigned i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        struct io_read reads[3], *start[3], *done[3];
        unsigned n = 0;

        fail_reads(said[i]);
        prepare(reads, start, 3, 4);
        assert_int_equal(io->ops->submit(io, start, 3), 3);
        while (n < 3)
            n += io->ops->reap(io, done, 3, true);
        for (n = 0; n < 3; n++)
            assert_int_equal(reads[n].status, -out[i]);
        fail_reads(0);
        read_at_random(io, DEPTH, 50, i);
    }
    io->ops->close(io);
}

static volatile sig_atomic_t signals;

static void on_alarm(int sig)
{
    (void)sig;
    signals = signals + 1;
}

/* A thousand signals a second, without SA_RESTART, until 200 have come. */
static void a_storm_of_signals_changes_nothing(void **state)
{
    struct sigaction sa = {.sa_handler = on_alarm}, before;
    struct itimerval every = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
    struct itimerval off = {.it_value = {.tv_usec = 0}};
    struct io_config cfg = config(DEPTH);
    struct io *io = opened(&cfg);

    (void)state;
    signals = 0;
    assert_int_equal(sigaction(SIGALRM, &sa, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
    for (uint64_t seed = 1; signals < 200; seed++) {
        read_at_random(io, DEPTH, 50, seed);
        if (seed % 16 == 0) { /* opening and closing too */
            io->ops->close(io);
            io = opened(&cfg);
        }
    }
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &before, NULL);
    io->ops->close(io);
}

/* For the engines that call pread; what the others may meet instead is below. */
static void interrupted_and_partial_preads_are_finished(void **state)
{
    struct io_config cfg = config(DEPTH);
    struct io *io = opened(&cfg);

    (void)state;
    for (size_t most = IO_ALIGN; most < EXTENT_MAX; most *= 4) {
        pread_fault_set(most);
        read_at_random(io, DEPTH, 100, most);
        if (strcmp(engine, "io_uring") && strcmp(engine, "libaio"))
            assert_true(pread_fault_count());
    }
    pread_fault_set(0);
    io->ops->close(io);
}

#ifdef HAVE_IO_URING
static void io_uring_reads_whatever_the_kernel_refuses_or_gives_in_parts(void **state)
{
    (void)state;
    engine = "io_uring";
    if (why_not(engine)[0])
        skip();
    for (unsigned faults = 1; faults < 2 * URING_UPDATE; faults++) {
        struct io_config cfg = config(DEPTH);
        struct io_read read, *start, *done;
        struct io *io;

        uring_fault_set(faults);
        io = opened(&cfg);
        read_at_random(io, DEPTH, 40, faults);
        io->ops->shrink(io, 5 * EXTENT_MAX / 2);
        read_at_random(io, DEPTH, 40, faults);
        assert_true(uring_fault_count());
        prepare(&read, &start, 1, 4);
        assert_int_equal(io->ops->submit(io, &start, 1), 1);
        while (!io->ops->reap(io, &done, 1, false)) /* looking is enough, nobody has to wait */
            ;
        assert_true(io_script_check(read.dst, read.at));
        io->ops->close(io);
    }
    uring_fault_set(0);
}
#endif

#ifdef HAVE_LIBAIO
static void libaio_reads_whatever_the_kernel_refuses_or_gives_in_parts(void **state)
{
    (void)state;
    engine = "libaio";
    if (why_not(engine)[0])
        skip();
    for (unsigned faults = 1; faults < 2 * AIO_BLIND; faults++) {
        struct io_config cfg = config(DEPTH);
        struct io_read read, *start, *done;
        struct io *io;

        aio_fault_set(faults);
        io = opened(&cfg);
        read_at_random(io, DEPTH, 40, faults);
        assert_true(aio_fault_count());
        prepare(&read, &start, 1, 4);
        assert_int_equal(io->ops->submit(io, &start, 1), 1);
        while (!io->ops->reap(io, &done, 1, false)) /* looking is enough, nobody has to wait */
            ;
        assert_true(io_script_check(read.dst, read.at));
        io->ops->close(io);
    }
    aio_fault_set(0);
}
#endif

/* How the kernel is made to refuse, for the engines that it can refuse. */
static const struct refusal {
    const char *engine;
    void (*set)(unsigned faults);
    unsigned parts; /* of its faults, that which makes a read have a rest to submit */
    void (*enter)(unsigned from, unsigned n, int errnum);
    unsigned (*count)(void);
} refusals[] = {
#ifdef HAVE_IO_URING
    {"io_uring", uring_fault_set, URING_SHORT, uring_fault_enter, uring_fault_count},
#endif
#ifdef HAVE_LIBAIO
    {"libaio", aio_fault_set, AIO_SHORT, aio_fault_enter, aio_fault_count},
#endif
    {.engine = NULL},
};

static struct io *opened_as(const char *name)
{
    struct io_config cfg = config(DEPTH);

    engine = name;
    return opened(&cfg);
}

/* All DEPTH reads come out once, each whole or with that error; how many were whole. */
static unsigned reap_whole_or_failed(struct io *io, const struct io_read *reads, int errnum)
{
    struct io_read *done[DEPTH];
    bool out[DEPTH] = {false};
    unsigned whole = 0;

    for (unsigned n = 0; n < DEPTH;) {
        unsigned got = io->ops->reap(io, done, 3, true);

        assert_true(got);
        for (unsigned i = 0; i < got; i++) {
            assert_false(out[done[i] - reads]);
            out[done[i] - reads] = true;
            assert_true(!done[i]->status || done[i]->status == -errnum);
            assert_true(done[i]->status || io_script_check(done[i]->dst, done[i]->at));
            whole += !done[i]->status;
        }
        n += got;
    }
    return whole;
}

/* The kernel is entered no more from the 1st call on, the 2nd, ... until a run meets no failure.
 * This was an endless loop. */
static void what_the_kernel_never_takes_is_given_out_with_the_error(void **state)
{
    const struct refusal *kernel = *state;
    unsigned failed = 0, saved = 0;
    struct io *io = opened_as(kernel->engine);

    for (unsigned nth = 1, met = 1; met; nth++) {
        struct io_read reads[DEPTH], *start[DEPTH];
        unsigned whole;

        prepare(reads, start, DEPTH, 16);
        kernel->set(kernel->parts);
        kernel->enter(nth, UINT32_MAX, EPERM);
        for (unsigned i = 0; i < DEPTH; i += 2)
            assert_int_equal(io->ops->submit(io, start + i, 2), 2);
        whole = reap_whole_or_failed(io, reads, EPERM);
        met = whole < DEPTH;
        failed += met;
        saved += met && whole;
        kernel->enter(1, 0, 0);
        kernel->set(0);
        read_at_random(io, DEPTH, 50, nth); /* and when it is entered again, it reads again */
    }
    assert_true(failed >= DEPTH / 2 && saved); /* what it had taken before arrived */
    io->ops->close(io);
}

/* The same, and closed at once: what the kernel has is over when close returns. */
static void close_ends_also_where_the_kernel_is_entered_no_more(void **state)
{
    const struct refusal *kernel = *state;

    for (unsigned nth = 1; nth <= DEPTH; nth++) {
        struct io *io = opened_as(kernel->engine);
        struct io_read reads[DEPTH], *start[DEPTH];

        prepare(reads, start, DEPTH, EXTENT_MAX / IO_ALIGN);
        kernel->enter(nth, UINT32_MAX, EPERM);
        for (unsigned i = 0; i < DEPTH; i++)
            assert_int_equal(io->ops->submit(io, start + i, 1), 1);
        io->ops->close(io);
        kernel->enter(1, 0, 0);
        for (unsigned i = 0; i < DEPTH; i++) {
            assert_int_equal(reads[i].status, i + 1 < nth ? 0 : -EPERM);
            assert_true(reads[i].status || io_script_check(reads[i].dst, reads[i].at));
        }
    }
}

/* And after it was given up, the next reads have a second of their own: they had none. */
static void what_the_kernel_refuses_for_a_while_is_tried_again_and_not_for_ever(void **state)
{
    static const int passes[] = {EAGAIN, EBUSY, ENOMEM};
    const struct refusal *kernel = *state;
    struct io *io = opened_as(kernel->engine);

    for (unsigned i = 0; i < 3; i++) {
        struct io_read reads[DEPTH], *start[DEPTH];

        prepare(reads, start, DEPTH, 16);
        kernel->enter(1, 20, passes[i]);
        assert_int_equal(io->ops->submit(io, start, DEPTH), DEPTH);
        assert_int_equal(reap_whole_or_failed(io, reads, 0), DEPTH);
        assert_int_equal(kernel->count(), 20);
        prepare(reads, start, DEPTH, 16);
        kernel->enter(2, UINT32_MAX, passes[i]); /* only the first of them gets through */
        for (unsigned k = 0; k < DEPTH; k++)
            assert_int_equal(io->ops->submit(io, start + k, 1), 1);
        assert_int_equal(reap_whole_or_failed(io, reads, passes[i]), 1);
    }
    kernel->enter(1, 0, 0);
    read_at_random(io, DEPTH, 50, 1);
    io->ops->close(io);
}

#ifdef HAVE_IO_URING
static void the_report_says_whether_the_pools_memory_is_registered(void **state)
{
    struct io_config cfg = config(DEPTH);
    struct io_report report;
    struct io *io;
    struct err e;

    (void)state;
    if (why_not("io_uring")[0])
        skip();
    for (unsigned refused = 0; refused < 2; refused++) {
        uring_fault_set(refused ? URING_BUFFERS : 0);
        assert_int_equal(io_open(&io, "io_uring", &cfg, &report, &e), 0);
        if (refused)
            assert_string_equal(report.note, "pool memory not registered: Cannot allocate memory "
                                             "(RLIMIT_MEMLOCK?)");
        else
            assert_memory_equal(report.note, "pool memory ", 12); /* the limit may be small here */
        io->ops->close(io);
    }
    uring_fault_set(0);
    cfg.arena = NULL;
    cfg.arena_bytes = 0;
    for (unsigned i = 0; io_engines()[i]; i++) {
        if (why_not(io_engines()[i]->name)[0])
            continue;
        assert_int_equal(io_open(&io, io_engines()[i]->name, &cfg, &report, &e), 0);
        if (strcmp(report.engine, "libaio"))
            assert_string_equal(report.note, "");
        else
            assert_non_null(strstr(report.note, " of 3 files, not direct, are not asynchronous"));
        io->ops->close(io);
    }
}
#endif

struct errand { /* for another thread */
    struct io *io;
    struct io_read reads[DEPTH], *start[DEPTH];
    unsigned submitted;
    bool stay;
    pthread_barrier_t begun, over;
};

static void *submit_elsewhere(void *arg)
{
    struct errand *x = arg;

    x->submitted = x->io->ops->submit(x->io, x->start, DEPTH);
    if (x->stay) {
        pthread_barrier_wait(&x->begun);
        pthread_barrier_wait(&x->over);
    }
    return NULL;
}

static void *read_elsewhere(void *arg)
{
    struct errand *x = arg;

    read_at_random(x->io, DEPTH, 100, 5);
    return NULL;
}

/* A host may open a model in one thread and run it in others, one at a time: the one that left
 * reads in flight may have exited, or be busy elsewhere. */
static void the_engine_may_pass_from_thread_to_thread(void **state)
{
    struct io_config cfg = config(DEPTH);
    struct errand x = {.io = opened(&cfg)};
    pthread_t thread;

    (void)state;
    pthread_barrier_init(&x.begun, NULL, 2);
    pthread_barrier_init(&x.over, NULL, 2);
    for (unsigned round = 0; round < 20; round++) {
        struct io_read *done[DEPTH];
        unsigned n = 0;

        assert_int_equal(pthread_create(&thread, NULL, read_elsewhere, &x), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        read_at_random(x.io, DEPTH, 100, round);
        x.stay = round % 2;
        prepare(x.reads, x.start, DEPTH, EXTENT_MAX / IO_ALIGN);
        assert_int_equal(pthread_create(&thread, NULL, submit_elsewhere, &x), 0);
        if (x.stay)
            pthread_barrier_wait(&x.begun);
        else
            assert_int_equal(pthread_join(thread, NULL), 0);
        while (n < DEPTH) {
            unsigned got = x.io->ops->reap(x.io, done + n, DEPTH - n, true);

            assert_true(got);
            n += got;
        }
        if (x.stay) {
            pthread_barrier_wait(&x.over);
            assert_int_equal(pthread_join(thread, NULL), 0);
        }
        assert_int_equal(x.submitted, DEPTH);
        for (unsigned i = 0; i < DEPTH; i++) {
            assert_int_equal(x.reads[i].status, 0);
            assert_true(io_script_check(x.reads[i].dst, x.reads[i].at));
        }
    }
    pthread_barrier_destroy(&x.begun);
    pthread_barrier_destroy(&x.over);
    x.io->ops->close(x.io);
}

/* Registered memory comes in pieces of 1 GiB; a page may lie across two of them. */
static void a_page_may_lie_anywhere_in_a_large_arena(void **state)
{
    const size_t gib = 1 << 30, bytes = gib + 16 * IO_ALIGN;
    char *large = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct io_config cfg = config(DEPTH);
    struct io_read reads[3], *start[3], *done[3];
    struct io *io;

    (void)state;
    if (large == MAP_FAILED)
        skip(); /* no room for 1 GiB */
#ifdef MADV_HUGEPAGE
    madvise(large, bytes, MADV_HUGEPAGE);
#endif
    cfg.arena = large;
    cfg.arena_bytes = bytes;
    io = opened(&cfg);
    for (unsigned shrunk = 0; shrunk < 3; shrunk++) {
        unsigned n = 0;

        prepare(reads, start, 3, 8);
        reads[0].dst = large + gib - 4 * IO_ALIGN; /* across */
        reads[1].dst = large + gib - 12 * IO_ALIGN;
        reads[2].dst = large + gib + 4 * IO_ALIGN;
        if (shrunk == 1) /* part of the second piece leaves, and the page there with it */
            reads[2].dst = large;
        if (shrunk == 2) { /* and then all of it, and half of the first */
            reads[0].dst = large + gib / 4;
            reads[1].dst = large + gib / 2 - 8 * IO_ALIGN;
            reads[2].dst = large;
        }
        assert_int_equal(io->ops->submit(io, start, 3), 3);
        while (n < 3)
            n += io->ops->reap(io, done, 3, true);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(reads[i].status, 0);
            assert_true(io_script_check(reads[i].dst, reads[i].at));
        }
        if (io->ops->shrink && shrunk < 2)
            io->ops->shrink(io, shrunk ? gib / 2 : gib + 4 * IO_ALIGN);
    }
    io->ops->close(io);
    munmap(large, bytes);
}

static void opening_meets_every_failed_allocation(void **state)
{
    struct io_config cfg = config(DEPTH);
    unsigned refused = 0;

    (void)state;
    for (unsigned arenas = 0; arenas < 2; arenas++)
        for (unsigned nth = 1, failed = 1; failed; nth++) {
            struct io *io = NULL;
            struct err e;
            int rc;

            cfg.arena_bytes = arenas ? ARENA_BYTES : 0;
            alloc_fault_arm(nth);
            rc = open_engine(&io, &cfg, &e);
            failed = alloc_fault_disarm();
            if (rc) {
                assert_true(failed);
                assert_int_equal(rc, ERR_NOMEM);
                assert_null(io);
                refused++;
                continue;
            }
            read_at_random(io, DEPTH, 20, nth); /* at worst slower */
            io->ops->close(io);
        }
    assert_true(refused >= 2);
}

static void a_failed_read_is_that_read_and_no_other(void **state)
{
    struct io_config cfg = config(DEPTH);
    struct io *io = opened(&cfg);
    struct io_fault fault;

    (void)state;
    for (unsigned kind = IO_FAULT_ERROR; kind <= IO_FAULT_FLIP; kind++)
        for (unsigned nth = 1; nth <= DEPTH; nth++) {
            struct io_read reads[DEPTH], *start[DEPTH], *done[DEPTH];
            unsigned n = 0;

            io_fault_init(&fault, io);
            fault.fail_nth = nth;
            fault.kind = kind;
            fault.status = -ENODEV;
            prepare(reads, start, DEPTH, 2);
            assert_int_equal(fault.io.ops->submit(&fault.io, start, 3), 3);
            assert_int_equal(fault.io.ops->submit(&fault.io, start + 3, DEPTH - 3), DEPTH - 3);
            while (n < DEPTH)
                n += fault.io.ops->reap(&fault.io, done, DEPTH, true);
            for (unsigned i = 0; i < DEPTH; i++) {
                static const int status[] = {-ENODEV, -ENODATA, 0};

                assert_int_equal(reads[i].status, i + 1 == nth ? status[kind] : 0);
                assert_int_equal(io_script_check(reads[i].dst, reads[i].at), i + 1 != nth);
            }
            assert_int_equal(fault.n_faults, 1);
        }
    io->ops->close(io);
}

static void no_depth_or_too_much_is_refused(void **state)
{
    static const unsigned depths[] = {0, IO_DEPTH_MAX + 1, UINT32_MAX};
    struct io *io = NULL;
    struct err e;

    (void)state;
    for (unsigned i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        struct io_config cfg = config(depths[i]);

        assert_int_equal(open_engine(&io, &cfg, &e), ERR_ARG);
        assert_null(io);
    }
}

static void the_largest_depth_opens(void **state)
{
    struct io_config cfg = config(IO_DEPTH_MAX);
    struct io *io = opened(&cfg);

    (void)state;
    read_at_random(io, DEPTH, 50, 1);
    io->ops->close(io);
}

static void a_forced_engine_fails_when_its_first_read_does(void **state)
{
    struct file shut = {
        .fd = openat(dirfd, "file1", O_WRONLY | O_CLOEXEC), .bytes = 1 << 20, .name = "shut"};
    const struct file *one = &shut;
    struct io_config cfg = config(DEPTH);
    struct io_report report = {.engine = "untouched"};
    struct io *io = NULL;
    struct err e;

    (void)state;
    cfg.files = &one;
    cfg.n_files = 1;
    for (unsigned own = 0; own < 2; own++) {
        cfg.arena_bytes = own ? 0 : ARENA_BYTES;
        assert_int_equal(io_open(&io, engine, &cfg, &report, &e), ERR_IO);
        assert_non_null(strstr(e.text, engine));
        assert_non_null(strstr(e.text, "shut"));
        assert_non_null(strstr(e.text, strerror(EBADF)));
    }
    assert_null(io);
    assert_string_equal(report.engine, "untouched");
    shut.bytes = IO_ALIGN - 1; /* too short to try: opens unproven */
    assert_int_equal(io_open(&io, engine, &cfg, &report, &e), 0);
    io->ops->close(io);
    close(shut.fd);
}

static void close_takes_null(void **state)
{
    (void)state;
    for (unsigned i = 0; io_engines()[i]; i++)
        io_engines()[i]->close(NULL);
    io_ops_sim.close(NULL);
}

int main(void)
{
    const struct CMUnitTest each[] = {
        cmocka_unit_test(any_extents_arrive_whole_at_any_depth),
        cmocka_unit_test(memory_outside_the_arena_or_without_one_will_do),
        cmocka_unit_test(what_one_measures_with_changes_no_byte),
        cmocka_unit_test(nothing_is_allocated_after_open),
        cmocka_unit_test(the_queue_takes_its_depth_and_no_more),
        cmocka_unit_test(an_idle_engine_gives_nothing_and_does_not_wait),
        cmocka_unit_test(close_waits_for_what_is_in_flight),
        cmocka_unit_test(a_file_that_ends_too_early_is_an_error_of_that_read_alone),
        cmocka_unit_test(the_systems_error_comes_out_as_it_is),
        cmocka_unit_test(an_error_that_stays_comes_out),
        cmocka_unit_test(a_storm_of_signals_changes_nothing),
        cmocka_unit_test(interrupted_and_partial_preads_are_finished),
        cmocka_unit_test(the_engine_may_pass_from_thread_to_thread),
        cmocka_unit_test(a_page_may_lie_anywhere_in_a_large_arena),
        cmocka_unit_test(opening_meets_every_failed_allocation),
        cmocka_unit_test(a_failed_read_is_that_read_and_no_other),
        cmocka_unit_test(no_depth_or_too_much_is_refused),
        cmocka_unit_test(the_largest_depth_opens),
    };
    struct CMUnitTest refused[] = {
        /* the state is which kernel refuses */
        cmocka_unit_test(what_the_kernel_never_takes_is_given_out_with_the_error),
        cmocka_unit_test(close_ends_also_where_the_kernel_is_entered_no_more),
        cmocka_unit_test(what_the_kernel_refuses_for_a_while_is_tried_again_and_not_for_ever),
    };
    const struct CMUnitTest by_name[] = {
        cmocka_unit_test(a_forced_engine_fails_when_its_first_read_does),
    };
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(close_takes_null),
#ifdef HAVE_LIBAIO
        cmocka_unit_test(libaio_reads_whatever_the_kernel_refuses_or_gives_in_parts),
#endif
#ifdef HAVE_IO_URING
        cmocka_unit_test(io_uring_reads_whatever_the_kernel_refuses_or_gives_in_parts),
        cmocka_unit_test(the_report_says_whether_the_pools_memory_is_registered),
#endif
    };
    int failed = 0;

    if (make_files())
        return 1;
    for (unsigned i = 0; io_engines()[i]; i++) {
        engine = io_engines()[i]->name;
        if (why_not(engine)[0])
            printf("[  SKIPPED ] %s: %s\n", engine, why_not(engine));
        else
            failed += cmocka_run_group_tests_name(engine, each, NULL, NULL) +
                      cmocka_run_group_tests_name(engine, by_name, NULL, NULL);
    }
    engine = "sim";
    failed += cmocka_run_group_tests_name(engine, each, NULL, NULL);
    for (const struct refusal *kernel = refusals; kernel->engine; kernel++) {
        engine = kernel->engine;
        if (why_not(engine)[0])
            continue; /* said above */
        for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
            refused[i].initial_state = (void *)(uintptr_t)kernel;
        failed += cmocka_run_group_tests_name(kernel->engine, refused, NULL, NULL);
    }
    failed += cmocka_run_group_tests_name("alone", alone, NULL, NULL);
    return failed + !!remove_files();
}
