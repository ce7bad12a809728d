/* io_libaio.c - Linux: the older interface, for where io_uring is forbidden.
 *
 * It is asynchronous on direct files only: io_submit of a buffered read returns when the read is
 * done. Such files work here, and the ladder does not take the engine for them.
 *
 * While a read is in flight its status counts the bytes that have arrived. What the kernel has not
 * taken waits in `queue`; what it has, it finishes whatever happens to us, and shows in memory that
 * it shares with us (the ring that fio and QEMU read as well). There we look when io_getevents is
 * refused, as by a filter that a host installs late: the bytes come out, and no memory is given
 * back that the kernel may still write to.
 */
#include "storage/io.h"

#include <assert.h>
#include <errno.h>
#include <libaio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/file.h"

enum { BATCH = 32, RING_MAGIC = (int)0xa10a10a1 };

struct aio_ring { /* where an io_context_t points */
    unsigned id, n, head, tail, magic, compat, incompat, header_bytes;
    struct io_event event[];
};

struct aio {
    struct io io;
    struct io_config cfg;
    io_context_t ctx;
    unsigned in_flight; /* accepted by submit, not yet given out by reap */
    unsigned n_queued, n_free, n_refused;
    bool again;               /* the last look found reads that were sent back without a byte */
    unsigned tries;           /* without effect, since bytes last came */
    struct iocb *iocb;        /* [cfg.depth], one for each read in flight */
    struct iocb **queue;      /* [cfg.depth]: not yet taken by the kernel, first in first out */
    struct iocb **free;       /* [cfg.depth] */
    struct io_read **refused; /* [cfg.depth]: over, because the kernel does not take them */
};

static const char *likely_cause(int errnum)
{
    switch (errnum) {
    case EAGAIN:
        return " (fs.aio-max-nr?)";
    case EPERM:
        return " (a seccomp filter, as of a container?)";
    case ENOSYS:
        return " (a kernel without it, or a seccomp filter?)";
    }
    return "";
}

static int libaio_fits(const struct io_config *cfg, struct err *e)
{
    for (unsigned i = 0; i < cfg->n_files; i++)
        if (!cfg->files[i]->direct)
            return err_set(
                e, ERR_UNSUPPORTED,
                "libaio: %s is read through the page cache, where it would wait for each "
                "read",
                cfg->files[i]->name);
    return 0;
}

static void note_buffered(struct aio *a)
{
    unsigned n = 0;

    for (unsigned i = 0; i < a->cfg.n_files; i++)
        n += !a->cfg.files[i]->direct;
    if (n)
        snprintf(a->io.note, sizeof(a->io.note),
                 "reads of %u of %u files, not direct, are not "
                 "asynchronous",
                 n, a->cfg.n_files);
}

static int context_open(struct aio *a, struct err *e)
{
    const struct aio_ring *ring;
    int rc = io_setup((int)a->cfg.depth, &a->ctx);

    if (rc) {
        a->ctx = NULL;
        return err_set(e, rc == -ENOMEM ? ERR_NOMEM : ERR_IO, "libaio: %s%s", strerror(-rc),
                       likely_cause(-rc));
    }
    ring = (const struct aio_ring *)a->ctx;
    if (ring->magic != (unsigned)RING_MAGIC || ring->incompat)
        return err_set(e, ERR_UNSUPPORTED, "libaio: this kernel shares no ring of completions");
    return 0;
}

static void libaio_free(struct aio *a)
{
    if (a->ctx)
        io_destroy(a->ctx);
    free(a);
}

static int libaio_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    size_t each = sizeof(struct iocb) + 2 * sizeof(struct iocb *) + sizeof(struct io_read *);
    struct aio *a = calloc(1, sizeof(*a) + cfg->depth * each);

    if (!a)
        return err_set(e, ERR_NOMEM, "libaio: a queue of %u reads", cfg->depth);
    a->io.ops = &io_ops_libaio;
    a->cfg = *cfg;
    a->iocb = (struct iocb *)(a + 1);
    a->queue = (struct iocb **)(a->iocb + cfg->depth);
    a->free = a->queue + cfg->depth;
    a->refused = (struct io_read **)(a->free + cfg->depth);
    for (; a->n_free < cfg->depth; a->n_free++)
        a->free[a->n_free] = &a->iocb[a->n_free];
    if (context_open(a, e)) {
        libaio_free(a);
        return e->code;
    }
    note_buffered(a);
    *out = &a->io;
    return 0;
}

/* What is left of a read goes to the end of the queue. */
static void queue_rest(struct aio *a, struct iocb *cb, struct io_read *r)
{
    size_t done = (size_t)r->status;

    io_prep_pread(cb, a->cfg.files[r->at.file]->fd, (char *)r->dst + done, r->at.length - done,
                  (long long)r->at.offset + (long long)done);
    cb->data = r;
    a->queue[a->n_queued++] = cb;
}

static void drop_queued(struct aio *a, unsigned n)
{
    a->n_queued -= n;
    memmove(a->queue, a->queue + n, a->n_queued * sizeof(a->queue[0]));
}

/* The first n in the queue are over. */
static void refuse(struct aio *a, unsigned n, int status)
{
    for (unsigned i = 0; i < n; i++) {
        struct io_read *r = a->queue[i]->data;

        r->status = status;
        a->refused[a->n_refused++] = r;
        a->free[a->n_free++] = a->queue[i];
    }
    drop_queued(a, n);
}

static bool kernel_has_some(const struct aio *a)
{
    return a->in_flight > a->n_refused + a->n_queued;
}

/* Hand over what is queued. What the kernel does not take now stays for the next call; an error
 * that does not pass is about the first in the queue, and when there is no hope left all are over.
 */
static void push(struct aio *a)
{
    while (a->n_queued) {
        int rc = io_submit(a->ctx, (long)a->n_queued, a->queue);

        if (rc > 0) {
            drop_queued(a, (unsigned)rc);
        } else if (rc && rc != -EAGAIN && rc != -EBUSY && rc != -ENOMEM && rc != -EINTR) {
            refuse(a, 1, file_status(-rc));
        } else {
            if (!file_try_again(&a->tries) && !kernel_has_some(a))
                refuse(a, a->n_queued, rc ? rc : -EAGAIN);
            return;
        }
    }
}

static unsigned libaio_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct aio *a = (struct aio *)io;
    unsigned i;

    if (!a->in_flight)
        a->tries = 0;
    for (i = 0; i < n && a->in_flight < a->cfg.depth; i++, a->in_flight++) {
        assert(reads[i]->at.file < a->cfg.n_files);
        reads[i]->status = 0;
        queue_rest(a, a->free[--a->n_free], reads[i]);
    }
    push(a);
    return i;
}

/* A completion of r with result res: true when the read is over, false when its rest was queued. */
static bool finished(struct aio *a, struct iocb *cb, struct io_read *r, long res)
{
    if ((res == -EAGAIN || res == -EINTR) && a->tries < FILE_TRIES_MAX) {
        a->again = true;
        queue_rest(a, cb, r);
        return false;
    }
    if (res >= 0)
        a->tries = 0;
    if (io_read_over(r, res, a->cfg.files[r->at.file]->direct))
        return true;
    queue_rest(a, cb, r);
    return false;
}

/* Completions taken from the memory that the kernel shares. */
static unsigned look(struct aio *a, struct io_event *event, unsigned max)
{
    struct aio_ring *ring = (struct aio_ring *)a->ctx;
    unsigned n = 0, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);

    for (unsigned head = ring->head; head != tail && n < max; n++) {
        event[n] = ring->event[head];
        head = (head + 1) % ring->n;
        __atomic_store_n(&ring->head, head, __ATOMIC_RELEASE);
    }
    return n;
}

/* Up to max completions; with wait, perhaps none where the kernel does not let us wait. */
static unsigned get_events(struct aio *a, struct io_event *event, unsigned max, bool wait)
{
    struct timespec at_once = {.tv_sec = 0};
    int rc = io_getevents(a->ctx, wait, (long)max, event, wait ? NULL : &at_once);
    unsigned n;

    if (rc >= 0 || rc == -EINTR)
        return rc > 0 ? (unsigned)rc : 0;
    n = look(a, event, max);
    if (!n && wait)
        file_try_again(&a->tries);
    return n;
}

/* Take what has completed; with wait, sleep until something has, if it comes to that. Returns how
 * many reads are over. */
static unsigned take_completed(struct aio *a, struct io_read **done, unsigned max, bool wait)
{
    struct io_event event[BATCH];
    unsigned n = 0, got;

    while (a->n_refused && n < max)
        done[n++] = a->refused[--a->n_refused];
    a->again = false;
    do {
        got = 0;
        if (n < max && kernel_has_some(a))
            got = get_events(a, event, max - n < BATCH ? max - n : BATCH, wait && !n);
        for (unsigned i = 0; i < got; i++) {
            struct iocb *cb = event[i].obj;
            struct io_read *r = event[i].data;

            if (finished(a, cb, r, (long)event[i].res)) {
                a->free[a->n_free++] = cb;
                done[n++] = r;
            }
        }
    } while (got == BATCH);
    if (a->again)
        file_try_again(&a->tries);
    a->in_flight -= n;
    return n;
}

static unsigned libaio_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct aio *a = (struct aio *)io;
    unsigned n;

    do {
        n = take_completed(a, done, max, wait);
        push(a);
    } while (!n && wait && max && a->in_flight);
    return n;
}

static void libaio_close(struct io *io)
{
    struct aio *a = (struct aio *)io;
    struct io_read *done[BATCH];

    if (!a)
        return;
    while (a->in_flight)
        libaio_reap(io, done, BATCH, true);
    libaio_free(a);
}

const struct io_ops io_ops_libaio = {
    .name = "libaio",
    .open = libaio_open,
    .fits = libaio_fits,
    .submit = libaio_submit,
    .reap = libaio_reap,
    .close = libaio_close,
};
