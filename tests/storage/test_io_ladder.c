/* The ladder that chooses between engines: why a rung is left out, and what stands on the next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <cmocka.h>

#include "tests/storage/io_files.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/pread_fault.h"
#include "tests/support/uring_fault.h"

static void an_unknown_engine_is_told_which_there_are(void **state)
{
    struct io_config cfg = config(DEPTH);
    struct io *io = NULL;
    struct err e;

    (void)state;
    assert_int_equal(io_open(&io, "floppy", &cfg, NULL, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "floppy"));
    for (unsigned i = 0; io_engines()[i]; i++)
        assert_non_null(strstr(e.text, io_engines()[i]->name));
    assert_null(io);
}

static void when_no_rung_holds_each_says_why(void **state)
{
    struct file shut = {
        .fd = openat(dirfd, "file1", O_WRONLY | O_CLOEXEC), .bytes = 1 << 20, .name = "shut"};
    const struct file *one = &shut;
    struct io_config cfg = config(DEPTH);
    struct io *io = NULL;
    struct err e;

    (void)state;
    cfg.files = &one;
    cfg.n_files = 1;
    assert_int_equal(io_open(&io, NULL, &cfg, NULL, &e), ERR_IO);
    for (unsigned i = 0; io_engines()[i]; i++)
        assert_non_null(strstr(e.text, io_engines()[i]->name));
    assert_null(io);
    close(shut.fd);
}

/* Without memory for the first rung there may be enough for the next. */
static void the_ladder_meets_every_failed_allocation(void **state)
{
    struct io_config cfg = config(DEPTH);

    (void)state;
    for (unsigned nth = 1, failed = 1; failed; nth++) {
        struct io_report report;
        struct io *io;
        struct err e;

        alloc_fault_arm(nth);
        assert_int_equal(io_open(&io, NULL, &cfg, &report, &e), 0);
        failed = alloc_fault_disarm();
        assert_string_equal(report.engine, io->ops->name);
        assert_int_equal(io->ops != io_engines()[0], !!report.steps[0]);
        io->ops->close(io);
    }
}

#if defined(__linux__) && defined(HAVE_IO_URING)
static void block(int call, int errnum)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errnum),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(77);
}

/* In a child, since a filter stays. 0: as it should be; 77: no filters here. */
static int child_status(void (*body)(int arg), int arg)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (!pid) {
        body(arg);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void must(bool ok, int line, const char *text)
{
    if (ok)
        return;
    fprintf(stderr, "line %d: %s\n", line, text);
    _exit(1);
}

static void must_read(struct io *io)
{
    struct io_read reads[DEPTH], *start[DEPTH], *done[DEPTH];

    prepare(reads, start, DEPTH, 3);
    must(io->ops->submit(io, start, DEPTH) == DEPTH, __LINE__, "submit");
    for (unsigned n = 0; n < DEPTH;)
        n += io->ops->reap(io, done, DEPTH, true);
    for (unsigned i = 0; i < DEPTH; i++)
        must(!reads[i].status && io_script_check(reads[i].dst, reads[i].at), __LINE__, "bytes");
}

static void open_blocked(int errnum)
{
    struct io_config cfg = config(DEPTH);
    struct io_report report;
    struct io *io;
    struct err e;
    char want[80];

    block(__NR_io_uring_setup, errnum);
    snprintf(want, sizeof(want), "io_uring: %s (", strerror(errnum));
    must(!io_open(&io, NULL, &cfg, &report, &e), __LINE__, e.text);
    must(!strcmp(report.engine, "threads"), __LINE__, report.engine);
    must(!strncmp(report.steps, want, strlen(want)), __LINE__, report.steps);
    must_read(io);
    io->ops->close(io);
    must(io_open(&io, "io_uring", &cfg, &report, &e) == ERR_IO, __LINE__, "forced");
    must(!strncmp(e.text, want, strlen(want)), __LINE__, e.text);
}

static void where_io_uring_is_blocked_threads_read_and_the_report_says_so(void **state)
{
    static const int errnums[] = {EPERM, ENOSYS};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        int status = child_status(open_blocked, errnums[i]);

        if (status == 77)
            skip(); /* the kernel refuses seccomp filters */
        assert_int_equal(status, 0);
    }
}

/* The ring can be made and not entered: io_open waited for its first read for ever. */
static void open_without_enter(int errnum)
{
    struct io_config cfg = config(DEPTH);
    struct io_report report;
    struct io *io;
    struct err e;

    alarm(60);
    block(__NR_io_uring_enter, errnum);
    must(!io_open(&io, NULL, &cfg, &report, &e), __LINE__, e.text);
    must(!strcmp(report.engine, "threads"), __LINE__, report.engine);
    must(!strncmp(report.steps, "io_uring: a first read of file0: ", 33), __LINE__, report.steps);
    must(!!strstr(report.steps, strerror(errnum)), __LINE__, report.steps);
    io->ops->close(io);
    must(io_open(&io, "io_uring", &cfg, &report, &e), __LINE__, "forced");
    must(!!strstr(e.text, strerror(errnum)), __LINE__, e.text);
}

/* The host installs its filter with reads in flight. Those arrive, later ones fail, close ends. */
static void lose_enter_with_reads_in_flight(int errnum)
{
    struct io_config cfg = config(DEPTH);
    struct io_read reads[DEPTH], *start[DEPTH], *done[DEPTH];
    struct io *io;
    struct err e;

    alarm(60);
    must(!io_open(&io, "io_uring", &cfg, NULL, &e), __LINE__, e.text);
    prepare(reads, start, DEPTH, EXTENT_MAX / IO_ALIGN);
    must(io->ops->submit(io, start, DEPTH) == DEPTH, __LINE__, "submit");
    block(__NR_io_uring_enter, errnum);
    for (unsigned n = 0; n < DEPTH;)
        n += io->ops->reap(io, done, DEPTH, true);
    for (unsigned i = 0; i < DEPTH; i++)
        must(!reads[i].status && io_script_check(reads[i].dst, reads[i].at), __LINE__, "bytes");
    must(io->ops->submit(io, start, DEPTH) == DEPTH, __LINE__, "submit after");
    for (unsigned n = 0; n < DEPTH;)
        n += io->ops->reap(io, done, DEPTH, true);
    for (unsigned i = 0; i < DEPTH; i++)
        must(reads[i].status == -errnum, __LINE__, "status");
    io->ops->close(io);
}

static void *write_late(void *arg)
{
    const int *to = arg;
    char content[2 * IO_ALIGN];

    for (uint32_t i = 0; i < 2; i++) {
        io_script_fill(content, (struct extent){.file = i + 1, .length = sizeof(content)});
        usleep(50000);
        must(write(to[i], content, sizeof(content)) == sizeof(content), __LINE__, "write");
    }
    return NULL;
}

/* The same with reads that end later, of pipes in the place of slow files: reap waits for one, and
 * close for the other. */
static void lose_enter_while_reads_wait(int errnum)
{
    struct file slow[2] = {{.direct = false}};
    const struct file *three[] = {&file[0], &slow[0], &slow[1]};
    struct io_config cfg = config(DEPTH);
    struct io_read reads[2], *start[2], *done[2];
    int ends[2], to[2];
    pthread_t writer;
    struct io *io;
    struct err e;

    alarm(60);
    for (unsigned i = 0; i < 2; i++) {
        must(!pipe(ends), __LINE__, "pipe");
        slow[i].fd = ends[0];
        to[i] = ends[1];
    }
    cfg.files = three;
    must(!io_open(&io, "io_uring", &cfg, NULL, &e), __LINE__, e.text);
    prepare(reads, start, 2, 2);
    for (uint32_t i = 0; i < 2; i++)
        reads[i].at = (struct extent){.file = i + 1, .length = 2 * IO_ALIGN};
    must(io->ops->submit(io, start, 2) == 2, __LINE__, "submit");
    must(!pthread_create(&writer, NULL, write_late, to), __LINE__, "thread");
    block(__NR_io_uring_enter, errnum);
    must(io->ops->reap(io, done, 2, true) == 1 && done[0] == start[0], __LINE__, "reap");
    must(!reads[0].status && io_script_check(reads[0].dst, reads[0].at), __LINE__, "bytes");
    io->ops->close(io);
    must(!reads[1].status && io_script_check(reads[1].dst, reads[1].at), __LINE__, "close");
    pthread_join(writer, NULL);
}

static void where_io_uring_cannot_be_entered_nothing_waits_for_ever(void **state)
{
    static const int errnums[] = {EPERM, EAGAIN, EBUSY, ENOMEM};
    static void (*const bodies[])(int) = {open_without_enter, lose_enter_with_reads_in_flight,
                                          lose_enter_while_reads_wait};

    (void)state;
    if (why_not("io_uring")[0])
        skip();
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 4; k++) {
            int status = child_status(bodies[i], errnums[k]);

            if (status == 77)
                skip(); /* the kernel refuses seccomp filters */
            assert_int_equal(status, 0);
        }
}

static void open_with_locked_memory(int most)
{
    struct rlimit limit = {(rlim_t)most, (rlim_t)most};
    struct io_config cfg = config(DEPTH);
    struct io_report report;
    struct io *io;
    struct err e;

    if (setrlimit(RLIMIT_MEMLOCK, &limit) || (!geteuid() && setresuid(65534, 65534, 65534)))
        _exit(77); /* root may lock without limit */
    must(!io_open(&io, NULL, &cfg, &report, &e), __LINE__, e.text);
    if (strcmp(report.engine, "io_uring")) {
        if (!strstr(report.steps, strerror(ENOMEM)))
            _exit(77); /* io_uring is not for unprivileged users here */
        must(!most && strstr(report.steps, "RLIMIT_MEMLOCK"), __LINE__, report.steps);
    } else {
        must(!!strstr(report.note, "RLIMIT_MEMLOCK"), __LINE__, report.note);
    }
    must_read(io);
    if (io->ops->shrink)
        io->ops->shrink(io, ARENA_BYTES / 2);
    io->ops->close(io);
}

static void open_without_threads(int unused)
{
    struct rlimit none = {0, 0};
    struct io_config cfg = config(DEPTH);
    struct io_report report;
    struct io *io;
    struct err e;

    (void)unused;
    if (setrlimit(RLIMIT_NPROC, &none) || (!geteuid() && setresuid(65534, 65534, 65534)))
        _exit(77);
    block(__NR_io_uring_setup, EPERM);
    must(!io_open(&io, NULL, &cfg, &report, &e), __LINE__, e.text);
    must(!strcmp(report.engine, "sync"), __LINE__, report.engine);
    must(!!strstr(report.steps, "; threads: cannot start a thread: "), __LINE__, report.steps);
    io->ops->close(io);
}

static void where_no_thread_can_start_the_last_rung_holds(void **state)
{
    int status = child_status(open_without_threads, 0);

    (void)state;
    if (status == 77)
        skip(); /* limits cannot be set here */
    assert_int_equal(status, 0);
}

/* Enough for the ring and not for the arena: io_uring without registered memory. Nothing at all:
 * recent kernels refuse the ring, and threads read. */
static void where_memory_cannot_be_locked_reads_work_all_the_same(void **state)
{
    static const int most[] = {ARENA_BYTES / 2, 0};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        int status = child_status(open_with_locked_memory, most[i]);

        if (status == 77)
            skip();
        assert_int_equal(status, 0);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_engine_is_told_which_there_are),
        cmocka_unit_test(when_no_rung_holds_each_says_why),
        cmocka_unit_test(the_ladder_meets_every_failed_allocation),
#if defined(__linux__) && defined(HAVE_IO_URING)
        cmocka_unit_test(where_io_uring_is_blocked_threads_read_and_the_report_says_so),
        cmocka_unit_test(where_io_uring_cannot_be_entered_nothing_waits_for_ever),
        cmocka_unit_test(where_no_thread_can_start_the_last_rung_holds),
        cmocka_unit_test(where_memory_cannot_be_locked_reads_work_all_the_same),
#endif
    };
    int failed;

    if (make_files())
        return 1;
    failed = cmocka_run_group_tests_name("ladder", tests, NULL, NULL);
    return failed + !!remove_files();
}
