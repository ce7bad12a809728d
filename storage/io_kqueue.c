/* io_kqueue.c - FreeBSD: aio_read, whose ends are events of a kqueue.
 *
 * UNTESTED on such a system. On Linux it is compiled, and run through the suite, against
 * tests/support/kqueue, which has the calls and none of the kernel. macOS has no such events; there
 * `threads` reads, past the page cache by F_NOCACHE.
 *
 * What the system has not taken (it bounds the requests of a process, vfs.aio) waits in `queue`.
 * Where kevent fails, reads in flight are looked at one by one.
 */
#include "storage/io.h"

#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/event.h>
#include <sys/types.h>
#include <unistd.h>

#include "storage/file.h"

enum { BATCH = 32 };

struct request {
    struct aiocb cb; /* first: an event's ident is its address */
    struct io_read *read;
    bool taken; /* by the system */
};

struct kqueued {
    struct io io;
    struct io_config cfg;
    int kq;
    unsigned in_flight; /* accepted by submit, not yet given out by reap */
    unsigned n_queued, n_free, n_taken, n_refused;
    unsigned tries;           /* without effect, since bytes last came */
    struct request *request;  /* [cfg.depth], one for each read in flight */
    struct request **queue;   /* [cfg.depth]: not yet taken, first in first out */
    struct request **free;    /* [cfg.depth] */
    struct io_read **refused; /* [cfg.depth]: over, because the system does not take them */
};

static int kqueue_engine_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    size_t each = sizeof(struct request) + 2 * sizeof(struct request *) + sizeof(struct io_read *);
    struct kqueued *k = calloc(1, sizeof(*k) + cfg->depth * each);

    if (!k)
        return err_set(e, ERR_NOMEM, "kqueue: a queue of %u reads", cfg->depth);
    k->io.ops = &io_ops_kqueue;
    k->cfg = *cfg;
    k->request = (struct request *)(k + 1);
    k->queue = (struct request **)(k->request + cfg->depth);
    k->free = k->queue + cfg->depth;
    k->refused = (struct io_read **)(k->free + cfg->depth);
    for (; k->n_free < cfg->depth; k->n_free++)
        k->free[k->n_free] = &k->request[k->n_free];
    k->kq = kqueue();
    if (k->kq < 0) {
        free(k);
        return err_sys(e, errno, "kqueue");
    }
    *out = &k->io;
    return 0;
}

static void queue_rest(struct kqueued *k, struct request *q)
{
    struct io_read *r = q->read;
    size_t done = (size_t)r->status;

    memset(&q->cb, 0, sizeof(q->cb));
    q->cb.aio_fildes = k->cfg.files[r->at.file]->fd;
    q->cb.aio_offset = (off_t)(r->at.offset + done);
    q->cb.aio_buf = (char *)r->dst + done;
    q->cb.aio_nbytes = r->at.length - done;
    q->cb.aio_sigevent.sigev_notify = SIGEV_KEVENT;
    q->cb.aio_sigevent.sigev_notify_kqueue = k->kq;
    q->taken = false;
    k->queue[k->n_queued++] = q;
}

/* The first in the queue goes: to the system, or it is over. */
static struct request *next_queued(struct kqueued *k)
{
    struct request *q = k->queue[0];

    k->n_queued--;
    memmove(k->queue, k->queue + 1, k->n_queued * sizeof(k->queue[0]));
    return q;
}

static void refuse(struct kqueued *k, int status)
{
    struct request *q = next_queued(k);

    q->read->status = status;
    k->refused[k->n_refused++] = q->read;
    k->free[k->n_free++] = q;
}

static void push(struct kqueued *k)
{
    while (k->n_queued) {
        int errnum = aio_read(&k->queue[0]->cb) ? errno : 0;

        if (!errnum) {
            next_queued(k)->taken = true;
            k->n_taken++;
        } else if (errnum == EAGAIN || errnum == EINTR) {
            bool hope = file_try_again(&k->tries) || k->n_taken;

            while (!hope && k->n_queued)
                refuse(k, -errnum);
            return;
        } else {
            refuse(k, file_status(errnum));
        }
    }
}

static unsigned kqueue_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct kqueued *k = (struct kqueued *)io;
    unsigned i;

    if (!k->in_flight)
        k->tries = 0;
    for (i = 0; i < n && k->in_flight < k->cfg.depth; i++, k->in_flight++) {
        struct request *q = k->free[--k->n_free];

        assert(reads[i]->at.file < k->cfg.n_files);
        reads[i]->status = 0;
        q->read = reads[i];
        queue_rest(k, q);
    }
    push(k);
    return i;
}

/* A request that has ended: its read, when that is over, or NULL and its rest was queued. */
static struct io_read *finished(struct kqueued *k, struct request *q)
{
    struct io_read *r = q->read;
    int errnum = aio_error(&q->cb);
    int64_t said = aio_return(&q->cb);

    k->n_taken--;
    q->taken = false;
    if (said < 0)
        said = -(errnum ? errnum : EIO);
    else
        k->tries = 0;
    if ((said == -EAGAIN || said == -EINTR || said == -ECANCELED) && file_try_again(&k->tries)) {
        queue_rest(k, q);
        return NULL;
    }
    if (!io_read_over(r, said, k->cfg.files[r->at.file]->direct)) {
        queue_rest(k, q);
        return NULL;
    }
    k->free[k->n_free++] = q;
    return r;
}

/* Requests that have ended, without events: at most max. */
static unsigned look(struct kqueued *k, struct request **ended, unsigned max)
{
    unsigned n = 0;

    for (unsigned i = 0; i < k->cfg.depth && n < max; i++)
        if (k->request[i].taken && aio_error(&k->request[i].cb) != EINPROGRESS)
            ended[n++] = &k->request[i];
    return n;
}

static unsigned get_ended(struct kqueued *k, struct request **ended, unsigned max, bool wait)
{
    struct timespec at_once = {.tv_sec = 0};
    struct kevent event[BATCH];
    int got = kevent(k->kq, NULL, 0, event, (int)max, wait ? NULL : &at_once);
    unsigned n;

    for (int i = 0; i < got; i++)
        ended[i] = (struct request *)event[i].ident;
    if (got >= 0 || errno == EINTR)
        return got > 0 ? (unsigned)got : 0;
    n = look(k, ended, max);
    if (!n && wait)
        file_try_again(&k->tries);
    return n;
}

static unsigned take_completed(struct kqueued *k, struct io_read **done, unsigned max, bool wait)
{
    struct request *ended[BATCH];
    unsigned n = 0, got;

    while (k->n_refused && n < max)
        done[n++] = k->refused[--k->n_refused];
    do {
        got = 0;
        if (n < max && k->n_taken)
            got = get_ended(k, ended, max - n < BATCH ? max - n : BATCH, wait && !n);
        for (unsigned i = 0; i < got; i++) {
            struct io_read *r = finished(k, ended[i]);

            if (r)
                done[n++] = r;
        }
    } while (got == BATCH);
    k->in_flight -= n;
    return n;
}

static unsigned kqueue_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct kqueued *k = (struct kqueued *)io;
    unsigned n;

    do {
        n = take_completed(k, done, max, wait);
        push(k);
    } while (!n && wait && max && k->in_flight);
    return n;
}

static void kqueue_close(struct io *io)
{
    struct kqueued *k = (struct kqueued *)io;
    struct io_read *done[BATCH];

    if (!k)
        return;
    while (k->in_flight)
        kqueue_reap(io, done, BATCH, true);
    close(k->kq);
    free(k);
}

const struct io_ops io_ops_kqueue = {
    .name = "kqueue",
    .open = kqueue_engine_open,
    .submit = kqueue_submit,
    .reap = kqueue_reap,
    .close = kqueue_close,
};
