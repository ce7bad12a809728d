/* io_uring.c - Linux: registered files, registered pool memory, few system calls.
 *
 * The ring is not tied to a thread: SINGLE_ISSUER (and DEFER_TASKRUN, which needs it) refuses a
 * host that opens in one thread and reads in another, and what one thread left in flight could
 * then be finished by no other. Reads of megabytes were measured to lose nothing by that
 * (docs/LEARNED.md); and without COOP_TASKRUN a completion needs no system call of ours to become
 * visible. IO_ONE_THREAD gives all that away, to measure it.
 *
 * While a read is in flight its status counts the bytes that have arrived.
 *
 * io_uring_enter may fail, and may begin to fail at any time (a filter that a host installs, a
 * kernel without memory). Then a read is in one of two places. What is in our queue the kernel has
 * not seen: it is tried again, and in the end withdrawn and given out with the error. What the
 * kernel has, it finishes without a call of ours, and shows in memory: we look there now and then.
 * Such a read is never given up, since the kernel may write to its memory, which belongs to
 * somebody else, until it is over. Waiting for it sleeps, and takes as long as the disk does, as in
 * every engine.
 *
 * Registering the arena makes all of its pages present: at open that takes as long as the system
 * needs to find and clear so much memory, seconds for tens of GiB, which the first reads into the
 * frames would take otherwise.
 */
#include "storage/io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "storage/file.h"

enum {
    BATCH = 32,
    PIECE_BYTES = 1 << 30, /* the most that the kernel registers as one buffer */
    PIECES_MAX = 1024,     /* the most buffers that every kernel takes */
};

struct uring {
    struct io io;
    struct io_config cfg; /* arena_bytes shrinks */
    struct io_uring ring;
    unsigned in_flight; /* accepted by submit, not yet given out by reap */
    bool files;         /* registered: an SQE names them by index */
    unsigned n_pieces;  /* of the arena, registered; 0 when it is not */
    bool again;         /* the last look found reads that were sent back without a byte */
    unsigned tries;     /* without effect, since something last moved */
    unsigned n_refused;
    struct io_read *refused[]; /* [cfg.depth]: over, because the kernel does not take them */
};

/* What usually stands behind an error of io_uring_setup. */
static const char *likely_cause(int errnum)
{
    char text[4] = "";
    int fd;

    switch (errnum) {
    case EPERM:
        fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            if (read(fd, text, sizeof(text) - 1) < 0)
                text[0] = '\0';
            close(fd);
        }
        if (text[0] == '1' || text[0] == '2')
            return text[0] == '1' ? " (kernel.io_uring_disabled is 1)"
                                  : " (kernel.io_uring_disabled is 2)";
        return " (a seccomp filter, as of a container?)";
    case ENOSYS:
        return " (a kernel without it, or a seccomp filter?)";
    case ENOMEM:
        return " (RLIMIT_MEMLOCK?)";
    case EMFILE:
        return " (RLIMIT_NOFILE?)";
    }
    return "";
}

static void __attribute__((format(printf, 2, 3))) note(struct uring *u, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(u->io.note, sizeof(u->io.note), fmt, ap);
    va_end(ap);
}

static void note_refusal(struct uring *u, int errnum)
{
    struct rlimit limit;

    if (errnum == ENOMEM && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
        limit.rlim_cur < u->cfg.arena_bytes)
        note(u, "pool memory not registered: %zu KiB, RLIMIT_MEMLOCK is %zu KiB",
             u->cfg.arena_bytes >> 10, (size_t)limit.rlim_cur >> 10);
    else
        note(u, "pool memory not registered: %s%s", strerror(errnum), likely_cause(errnum));
}

/* Registered memory is pinned and mapped once instead of at every read. It counts against
 * RLIMIT_MEMLOCK; where the limit or the kernel says no, reads are merely slower. */
static void register_arena(struct uring *u)
{
    size_t pieces = (u->cfg.arena_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    struct iovec *iov;
    int rc;

    if (!u->cfg.arena || !pieces)
        return;
    if (u->cfg.flags & IO_UNREGISTERED) {
        note(u, "pool memory not registered: not asked for");
        return;
    }
    if (pieces > PIECES_MAX) {
        note(u, "pool memory not registered: more than %d GiB", PIECES_MAX);
        return;
    }
    iov = calloc(pieces, sizeof(*iov));
    if (!iov) {
        note(u, "pool memory not registered: out of memory");
        return;
    }
    for (size_t i = 0; i < pieces; i++) {
        size_t left = u->cfg.arena_bytes - i * PIECE_BYTES;

        iov[i].iov_base = (char *)u->cfg.arena + i * PIECE_BYTES;
        iov[i].iov_len = left < PIECE_BYTES ? left : PIECE_BYTES;
    }
    rc = io_uring_register_buffers(&u->ring, iov, (unsigned)pieces);
    free(iov);
    if (rc) {
        note_refusal(u, -rc);
        return;
    }
    u->n_pieces = (unsigned)pieces;
    note(u, "pool memory registered");
}

static void register_files(struct uring *u)
{
    int *fd = calloc(u->cfg.n_files + 1, sizeof(*fd));

    if (!fd)
        return;
    for (unsigned i = 0; i < u->cfg.n_files; i++)
        fd[i] = u->cfg.files[i]->fd;
    u->files = u->cfg.n_files && !io_uring_register_files(&u->ring, fd, u->cfg.n_files);
    free(fd);
}

/* A ring for one thread, whose completions wait for it to look, if that is promised and the kernel
 * has such; else for any thread. 0 or -errno. */
static int ring_open(struct uring *u)
{
    int rc = -EINVAL;

#ifdef IORING_SETUP_DEFER_TASKRUN
    if (u->cfg.flags & IO_ONE_THREAD)
        rc = io_uring_queue_init(u->cfg.depth, &u->ring,
                                 IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                     IORING_SETUP_TASKRUN_FLAG);
#endif
    return rc == -EINVAL ? io_uring_queue_init(u->cfg.depth, &u->ring, 0) : rc;
}

static int uring_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    struct uring *u = calloc(1, sizeof(*u) + cfg->depth * sizeof(u->refused[0]));
    int rc;

    if (!u)
        return err_set(e, ERR_NOMEM, "io_uring: out of memory");
    u->io.ops = &io_ops_uring;
    u->cfg = *cfg;
    rc = ring_open(u);
    if (rc < 0) {
        free(u);
        return err_set(e, rc == -ENOMEM ? ERR_NOMEM : ERR_IO, "io_uring: %s%s", strerror(-rc),
                       likely_cause(-rc));
    }
    register_files(u);
    register_arena(u);
    *out = &u->io;
    return 0;
}

/* The registered piece that [dst, dst + n) lies in, or -1. */
static int piece_of(const struct uring *u, const char *dst, size_t n)
{
    size_t at = (size_t)(dst - (const char *)u->cfg.arena);
    size_t piece = at / PIECE_BYTES;

    if (dst < (const char *)u->cfg.arena || piece >= u->n_pieces)
        return -1;
    if ((at + n - 1) / PIECE_BYTES != piece || at + n > u->cfg.arena_bytes)
        return -1;
    return (int)piece;
}

/* Queue what is left of a read; flags go into its SQE. There is room: the queue has an entry for
 * each read in flight. */
static void queue_rest(struct uring *u, struct io_read *r, unsigned flags)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    unsigned done = (unsigned)r->status, left = r->at.length - done;
    char *dst = (char *)r->dst + done;
    int piece = piece_of(u, dst, left);
    int fd = u->files ? (int)r->at.file : u->cfg.files[r->at.file]->fd;

    assert(sqe);
    if (piece >= 0)
        io_uring_prep_read_fixed(sqe, fd, dst, left, r->at.offset + done, piece);
    else
        io_uring_prep_read(sqe, fd, dst, left, r->at.offset + done);
    io_uring_sqe_set_flags(sqe, flags | (u->files ? IOSQE_FIXED_FILE : 0));
    io_uring_sqe_set_data(sqe, r);
}

/* Withdraw what the kernel has not taken; those reads are over. It looks at our end of the queue
 * only in io_uring_enter (there is no thread of its own that would), so the end can be moved back.
 */
static void refuse(struct uring *u, int status)
{
    struct io_uring_sq *sq = &u->ring.sq;

    for (unsigned n = io_uring_sq_ready(&u->ring); n; n--) {
        const struct io_uring_sqe *sqe = &sq->sqes[--sq->sqe_tail & *sq->kring_mask];
        struct io_read *r = (struct io_read *)(uintptr_t)sqe->user_data;

        r->status = status;
        u->refused[u->n_refused++] = r;
    }
    sq->sqe_head = sq->sqe_tail;
    __atomic_store_n(sq->ktail, sq->sqe_tail, __ATOMIC_RELEASE);
}

/* Whether the kernel has reads of ours: it will finish them whatever happens to us. */
static bool kernel_has_some(const struct uring *u)
{
    return u->in_flight > u->n_refused + io_uring_sq_ready(&u->ring);
}

/* Hand over what is queued; with wait, also sleep until something completes, or for a moment where
 * the kernel does not let us wait. What it does not take now stays in the queue for the next call;
 * when there is no hope that it will, the queue is emptied. */
static void enter(struct uring *u, bool wait)
{
    unsigned queued = io_uring_sq_ready(&u->ring);
    bool passes;
    int rc;

    if (!queued && !wait)
        return;
    rc = wait ? io_uring_submit_and_wait(&u->ring, 1) : io_uring_submit(&u->ring);
    if (rc >= 0 || rc == -EINTR)
        return;
    passes = rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM;
    if (queued && !passes)
        refuse(u, file_status(-rc));
    else if (!file_try_again(&u->tries) && !kernel_has_some(u))
        refuse(u, rc);
}

static unsigned uring_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct uring *u = (struct uring *)io;
    unsigned i;

    if (!u->in_flight)
        u->tries = 0;
    for (i = 0; i < n && u->in_flight < u->cfg.depth; i++, u->in_flight++) {
        assert(reads[i]->at.file < u->cfg.n_files);
        reads[i]->status = 0;
        queue_rest(u, reads[i], 0);
    }
    enter(u, false);
    return i;
}

/* A completion of r with result res: true when the read is over, false when its rest was queued. */
static bool finished(struct uring *u, struct io_read *r, int res)
{
    if ((res == -EAGAIN || res == -EINTR || res == -ECANCELED) && u->tries < FILE_TRIES_MAX) {
        /* Of a request that would have had to wait, or whose thread has exited. A kernel worker
         * may wait. */
        u->again = true;
        queue_rest(u, r, IOSQE_ASYNC);
        return false;
    }
    if (res >= 0)
        u->tries = 0;
    if (io_read_over(r, res, u->cfg.files[r->at.file]->direct))
        return true;
    queue_rest(u, r, 0);
    return false;
}

/* Take what has completed, without waiting; returns how many reads are over. */
static unsigned take_completed(struct uring *u, struct io_read **done, unsigned max)
{
    struct io_uring_cqe *cqe[BATCH];
    unsigned n = 0, got;

    while (u->n_refused && n < max)
        done[n++] = u->refused[--u->n_refused];
    u->again = false;
    do {
        got = io_uring_peek_batch_cqe(&u->ring, cqe, max - n < BATCH ? max - n : BATCH);
        for (unsigned i = 0; i < got; i++) {
            struct io_read *r = io_uring_cqe_get_data(cqe[i]);

            if (finished(u, r, cqe[i]->res))
                done[n++] = r;
        }
        io_uring_cq_advance(&u->ring, got);
    } while (got && n < max);
    if (u->again)
        file_try_again(&u->tries);
    u->in_flight -= n;
    return n;
}

static unsigned uring_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct uring *u = (struct uring *)io;

    for (;;) {
        unsigned n = take_completed(u, done, max);

        if (n || !wait || !max || !u->in_flight) {
            enter(u, false);
            return n;
        }
        enter(u, true);
    }
}

static void uring_shrink(struct io *io, size_t arena_bytes)
{
    struct uring *u = (struct uring *)io;

    u->cfg.arena_bytes = arena_bytes;
    for (size_t i = arena_bytes / PIECE_BYTES; i < u->n_pieces; i++) {
        size_t start = i * PIECE_BYTES, keep = arena_bytes > start ? arena_bytes - start : 0;
        struct iovec iov = {.iov_base = keep ? (char *)u->cfg.arena + start : NULL,
                            .iov_len = keep};

        /* An old kernel cannot replace one: then none stays. Both let reads in flight finish. */
        if (io_uring_register_buffers_update_tag(&u->ring, (unsigned)i, &iov, NULL, 1) != 1) {
            io_uring_unregister_buffers(&u->ring);
            u->n_pieces = 0;
        }
    }
}

static void uring_close(struct io *io)
{
    struct uring *u = (struct uring *)io;
    struct io_read *done[BATCH];

    if (!u)
        return;
    while (u->in_flight)
        uring_reap(io, done, BATCH, true);
    io_uring_queue_exit(&u->ring);
    free(u);
}

const struct io_ops io_ops_uring = {
    .name = "io_uring",
    .open = uring_open,
    .submit = uring_submit,
    .reap = uring_reap,
    .close = uring_close,
    .shrink = uring_shrink,
};
