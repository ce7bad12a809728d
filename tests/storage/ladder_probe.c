/* ladder_probe - open files and an engine under the conditions that test_ladder.py has made, read
 * everything through it in extents of many sizes, write what came.
 *
 *     ladder_probe [OPTION]... FILE... >BYTES 2>WORDS
 *
 *     --io NAME           force an engine
 *     --buffered          do not try direct reads
 *     --block CALL=ERROR  a seccomp filter that answers a system call so; several may be given
 *     --memlock BYTES     RLIMIT_MEMLOCK
 *     --arena BYTES       memory of the pool that the engine may register (4 MiB)
 *     --drop              give root up, if we are root, before the engine is opened
 *
 * BYTES are the whole pages of the files in their order; WORDS are lines of `key: text`. Exit: 0;
 * 1 if something failed that should not; 77 if the conditions cannot be made here.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "storage/file.h"
#include "storage/io.h"

enum { FILES_MAX = 4, BLOCKS_MAX = 8, DEPTH = 8, EXTENT_MAX = 1 << 19, NOBODY = 65534 };

struct block {
    int call, errnum;
};

static struct {
    const char *io;
    bool buffered, drop;
    long memlock; /* -1: as it is */
    size_t arena_bytes;
    struct block block[BLOCKS_MAX];
    unsigned n_blocks;
} opt = {.memlock = -1, .arena_bytes = DEPTH * EXTENT_MAX};

static struct file file[FILES_MAX];
static const struct file *files[FILES_MAX];
static unsigned n_files;

static void give_up(int code, const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(code);
}

#ifdef __linux__
static const struct {
    const char *name;
    int number;
} calls[] = {
    {"io_uring_setup", __NR_io_uring_setup},
    {"io_uring_enter", __NR_io_uring_enter},
    {"io_uring_register", __NR_io_uring_register},
    {"io_setup", __NR_io_setup},
    {"io_submit", __NR_io_submit},
    {"clone", __NR_clone},
    {"clone3", __NR_clone3},
};

static void add_block(const char *arg)
{
    const char *equals = strchr(arg, '=');
    struct block *b = &opt.block[opt.n_blocks++];

    if (!equals || opt.n_blocks > BLOCKS_MAX)
        give_up(1, arg, "want CALL=ERROR");
    for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!strncmp(calls[i].name, arg, (size_t)(equals - arg)) &&
            strlen(calls[i].name) == (size_t)(equals - arg))
            b->call = calls[i].number;
    b->errnum = !strcmp(equals + 1, "EPERM")    ? EPERM
                : !strcmp(equals + 1, "ENOSYS") ? ENOSYS
                                                : EAGAIN;
}

static void install_filter(void)
{
    struct sock_filter code[2 + 2 * BLOCKS_MAX] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    struct sock_fprog program = {.len = 1, .filter = code};

    for (unsigned i = 0; i < opt.n_blocks; i++) {
        const struct block *b = &opt.block[i];

        code[program.len++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)b->call, 0, 1);
        code[program.len++] =
            (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)b->errnum);
    }
    code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        give_up(77, "no seccomp filters here", strerror(errno));
}
#else
static void add_block(const char *arg)
{
    give_up(77, arg, "there is no seccomp on this system");
}

static void install_filter(void)
{
}
#endif

static void parse(int argc, char **argv)
{
    int i = 1;

    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (!strcmp(argv[i], "--buffered") || !strcmp(argv[i], "--drop")) {
            opt.buffered |= argv[i][2] == 'b';
            opt.drop |= argv[i][2] == 'd';
            continue;
        }
        if (!strcmp(argv[i], "--io"))
            opt.io = value;
        else if (!strcmp(argv[i], "--block"))
            add_block(value);
        else if (!strcmp(argv[i], "--memlock"))
            opt.memlock = atol(value);
        else if (!strcmp(argv[i], "--arena"))
            opt.arena_bytes = (size_t)atol(value);
        else
            give_up(1, argv[i], "unknown");
        i++;
    }
    if (argc - i < 1 || argc - i > FILES_MAX || opt.arena_bytes < DEPTH * EXTENT_MAX)
        give_up(1, "ladder_probe", "one to four files, an arena of 4 MiB or more");
    for (; i < argc; i++) {
        struct err e;

        if (file_open(&file[n_files], AT_FDCWD, argv[i], !opt.buffered, &e))
            give_up(1, argv[i], e.text);
        files[n_files] = &file[n_files];
        fprintf(stderr, "access: %s%s%s\n", file[n_files].direct ? "direct" : "buffered",
                file[n_files].why[0] ? ": " : "", file[n_files].why);
        n_files++;
    }
}

static void make_conditions(void)
{
    struct rlimit limit = {(rlim_t)opt.memlock, (rlim_t)opt.memlock};

    if (opt.memlock >= 0 && setrlimit(RLIMIT_MEMLOCK, &limit))
        give_up(77, "RLIMIT_MEMLOCK cannot be set here", strerror(errno));
    if (opt.drop && !geteuid() && setresuid(NOBODY, NOBODY, NOBODY))
        give_up(77, "root cannot be given up here", strerror(errno));
    if (opt.n_blocks)
        install_filter();
}

/* Cut the whole pages of a file into extents of changing sizes. */
static unsigned cut(uint32_t number, struct extent *out, unsigned max)
{
    uint64_t bytes = file[number].bytes / IO_ALIGN * IO_ALIGN;
    unsigned n = 0;

    for (uint64_t at = 0; at < bytes; n++) {
        uint64_t want = IO_ALIGN * (1 + (uint64_t)n * 37 % (EXTENT_MAX / IO_ALIGN));

        if (n == max)
            give_up(1, file[number].name, "too long for this program");
        want = want < bytes - at ? want : bytes - at;
        out[n] = (struct extent){.offset = at, .length = (uint32_t)want, .file = number};
        at += want;
    }
    return n;
}

/* Depth reads at a time; each batch is written in order when all of it is there. */
static void copy_out(struct io *io, char *arena, const struct extent *want, unsigned n)
{
    for (unsigned at = 0; at < n; at += DEPTH) {
        struct io_read reads[DEPTH], *start[DEPTH], *done[DEPTH];
        unsigned batch = n - at < DEPTH ? n - at : DEPTH, over = 0;

        for (unsigned i = 0; i < batch; i++) {
            reads[i] = (struct io_read){.at = want[at + i], .dst = arena + (size_t)i * EXTENT_MAX};
            start[i] = &reads[i];
        }
        if (io->ops->submit(io, start, batch) != batch)
            give_up(1, io->ops->name, "did not take its depth");
        while (over < batch)
            over += io->ops->reap(io, done, batch, true);
        for (unsigned i = 0; i < batch; i++) {
            if (reads[i].status)
                give_up(1, "a read failed", strerror(-reads[i].status));
            if (fwrite(reads[i].dst, 1, reads[i].at.length, stdout) != reads[i].at.length)
                give_up(1, "output", strerror(errno));
        }
    }
}

int main(int argc, char **argv)
{
    static struct extent want[1024];
    struct io_report report;
    struct io_config cfg = {.files = files, .depth = DEPTH};
    struct io *io;
    struct err e;

    parse(argc, argv);
    cfg.n_files = n_files;
    cfg.arena_bytes = opt.arena_bytes;
    cfg.arena = mmap(NULL, opt.arena_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cfg.arena == MAP_FAILED)
        give_up(77, "no memory for the arena", strerror(errno));
    make_conditions();
    if (io_open(&io, opt.io, &cfg, &report, &e))
        give_up(1, "io_open", e.text);
    fprintf(stderr, "engine: %s\nsteps: %s\nnote: %s\n", report.engine, report.steps, report.note);
    for (uint32_t i = 0; i < n_files; i++)
        copy_out(io, cfg.arena, want, cut(i, want, sizeof(want) / sizeof(want[0])));
    io->ops->close(io);
    for (unsigned i = 0; i < n_files; i++)
        file_close(&file[i]);
    return fflush(stdout) ? 1 : 0;
}
