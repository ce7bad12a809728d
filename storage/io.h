/* storage/io.h - engines read whole extents into memory, asynchronously.
 *
 * A read completes whole or fails: short reads are finished inside, and where the file ends before
 * the extent does the status is -ENODATA. What passes by itself (EINTR and EAGAIN; of a submission
 * also EBUSY and ENOMEM) comes out only when it has not passed in a second of trying in which
 * nothing else moved. Nothing is allocated after open. One thread submits and reaps; completions
 * come in any order. An engine has no queue beyond `depth`, no other retry policy and no view of
 * the bytes. A new engine is one file, one line in io.c's table, one line of meson, and the
 * existing suite (tests/storage/test_io.c).
 */
#ifndef STORAGE_IO_H
#define STORAGE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/extent.h"

struct file;
struct io;

struct io_read {
    struct extent at; /* what */
    void *dst;        /* where: IO_ALIGN-aligned, extent.length bytes; the engine's until reaped */
    int status;       /* out: 0 or -errno; -ENODATA: the file ends before the extent does. Never
                         what the system calls ENODATA, a bad place on the disk: that is -EIO */
};

enum { IO_DEPTH_MAX = 4096 };

struct io_config {
    const struct file *const *files; /* extent.file indexes this; outlives the engine */
    unsigned n_files;
    unsigned depth; /* most reads in flight, 1...IO_DEPTH_MAX */
    void *arena;    /* memory that every dst lies in; an engine may register it. May be NULL */
    size_t arena_bytes;
    unsigned flags; /* of enum io_flag; 0 is right unless one measures */
};

enum io_flag {
    IO_UNREGISTERED = 1, /* do not register the arena */
    IO_ONE_THREAD = 2, /* the thread that opens makes every call until close; an engine may live by
                          that, and with it what the kernel has when it refuses to be called */
};

struct io_ops {
    const char *name;
    int (*open)(struct io **out, const struct io_config *cfg, struct err *e);
    /* Whether the ladder should take it for these files, or the next rung is better, with the
     * reason as ERR_UNSUPPORTED. A forced engine is not asked. NULL: it should. */
    int (*fits)(const struct io_config *cfg, struct err *e);
    /* Start up to n reads; returns how many. Fewer means the queue is full. */
    unsigned (*submit)(struct io *io, struct io_read *const *reads, unsigned n);
    /* Collect up to max finished reads; with wait, at least one if any is in flight. Each read that
     * was started comes out once, also where the engine can do no more: with the reason. */
    unsigned (*reap)(struct io *io, struct io_read **done, unsigned max, bool wait);
    void (*close)(struct io *io); /* waits for everything in flight; NULL-safe */
    /* The arena ends after arena_bytes from now on, and no read in flight goes beyond: hold on to
     * nothing there, or the memory stays taken. NULL in engines that register no memory. */
    void (*shrink)(struct io *io, size_t arena_bytes);
    /* Its own time, where reads take another than the system's; NULL otherwise. */
    uint64_t (*now_ns)(const struct io *io);
};

struct io { /* the first member of every engine */
    const struct io_ops *ops;
    char note[80]; /* what was found at open and costs time alone; "" if nothing was */
};

extern const struct io_ops io_ops_sync, io_ops_threads;
#ifdef HAVE_IO_URING
extern const struct io_ops io_ops_uring;
#endif
#ifdef HAVE_LIBAIO
extern const struct io_ops io_ops_libaio;
#endif
#ifdef HAVE_KQUEUE
extern const struct io_ops io_ops_kqueue;
#endif

/* What was chosen and why not what comes before it on the ladder: "io_uring: Operation not
 * permitted (kernel.io_uring_disabled is 2)". Each step down adds a reason that begins with the
 * engine's name; a long one is cut, and ends in "...", so that there is room for all. */
struct io_report {
    const char *engine;
    char steps[448]; /* "" when the first rung held */
    char note[80];   /* the engine's: "pool memory registered", or why it is not; or "" */
};

/* Open the engine called `name`, or with NULL the first rung of the ladder (io_uring,
 * libaio, threads, sync) that opens and passes a real read of the first file's first IO_ALIGN
 * bytes. A forced engine does not step down: ERR_UNSUPPORTED names the ones that exist, ERR_IO says
 * why not. The read goes to the arena's first bytes if there is an arena; a first file shorter than
 * IO_ALIGN is not read. report may be NULL, and is untouched on failure. */
int io_open(struct io **out, const char *name, const struct io_config *cfg,
            struct io_report *report, struct err *e);

/* For engines whose reads come in parts: while one is in flight, its status counts the bytes that
 * have arrived. The system says that so many more have, or a negative error. True: the read is
 * over, with its status; false: the rest is still to be read. */
bool io_read_over(struct io_read *r, int64_t said, bool direct);

/* The time in which this engine's reads pass, from some start. */
uint64_t io_now_ns(const struct io *io);

/* Engines compiled in, in ladder order; NULL-terminated. */
const struct io_ops *const *io_engines(void);

#endif
