/* io_threads.c - pread on a few threads: works wherever there are threads and files. */
#include "storage/io.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/thread.h"
#include "storage/file.h"

enum { READERS_MAX = 8 };

struct ring { /* of reads, first in first out; never more than depth */
    struct io_read **slot;
    unsigned head, n;
};

struct threads {
    struct io io;
    struct io_config cfg;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t work;  /* a read is waiting, or stop */
    pthread_cond_t done;  /* a read has finished */
    struct ring waiting, finished;
    unsigned in_flight; /* submitted and not yet reaped */
    bool stop;
    unsigned n_threads;
    pthread_t thread[READERS_MAX];
    struct io_read *slots[]; /* [2 * cfg.depth], for the rings */
};

static void ring_put(struct ring *r, unsigned size, struct io_read *read)
{
    r->slot[(r->head + r->n++) % size] = read;
}

static struct io_read *ring_take(struct ring *r, unsigned size)
{
    struct io_read *read = r->slot[r->head];

    r->head = (r->head + 1) % size;
    r->n--;
    return read;
}

static void *reader(void *arg)
{
    struct threads *t = arg;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct io_read *r;

        while (!t->waiting.n && !t->stop)
            pthread_cond_wait(&t->work, &t->lock);
        if (!t->waiting.n)
            break;
        r = ring_take(&t->waiting, t->cfg.depth);
        pthread_mutex_unlock(&t->lock);
        r->status = file_pread(t->cfg.files[r->at.file], r->dst, r->at.length, r->at.offset);
        pthread_mutex_lock(&t->lock);
        ring_put(&t->finished, t->cfg.depth, r);
        pthread_cond_signal(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Finishes what is waiting, then lets the threads go. */
static void threads_close(struct io *io)
{
    struct threads *t = (struct threads *)io;

    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->n_threads; i++)
        pthread_join(t->thread[i], NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* As many as the system grants; 0, or the error when it grants none. */
static int start_threads(struct threads *t)
{
    unsigned n = t->cfg.depth < READERS_MAX ? t->cfg.depth : READERS_MAX;
    int rc = 0;

    while (t->n_threads < n && !rc) {
        rc = thread_start(&t->thread[t->n_threads], reader, t);
        t->n_threads += !rc;
    }
    return t->n_threads ? 0 : rc;
}

static int threads_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    struct threads *t = calloc(1, sizeof(*t) + 2 * cfg->depth * sizeof(t->slots[0]));
    int rc;

    if (!t)
        return err_set(e, ERR_NOMEM, "threads: a queue of %u reads", cfg->depth);
    t->io.ops = &io_ops_threads;
    t->cfg = *cfg;
    t->waiting.slot = t->slots;
    t->finished.slot = t->slots + cfg->depth;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    rc = start_threads(t);
    if (rc) {
        threads_close(&t->io);
        return err_sys(e, rc, "threads: cannot start a thread");
    }
    *out = &t->io;
    return 0;
}

static unsigned threads_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct threads *t = (struct threads *)io;
    unsigned i;

    pthread_mutex_lock(&t->lock);
    for (i = 0; i < n && t->in_flight < t->cfg.depth; i++, t->in_flight++) {
        assert(reads[i]->at.file < t->cfg.n_files);
        ring_put(&t->waiting, t->cfg.depth, reads[i]);
        pthread_cond_signal(&t->work);
    }
    pthread_mutex_unlock(&t->lock);
    return i;
}

static unsigned threads_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct threads *t = (struct threads *)io;
    unsigned i;

    pthread_mutex_lock(&t->lock);
    while (wait && max && t->in_flight && !t->finished.n)
        pthread_cond_wait(&t->done, &t->lock);
    for (i = 0; i < max && t->finished.n; i++, t->in_flight--)
        done[i] = ring_take(&t->finished, t->cfg.depth);
    pthread_mutex_unlock(&t->lock);
    return i;
}

const struct io_ops io_ops_threads = {
    .name = "threads",
    .open = threads_open,
    .submit = threads_submit,
    .reap = threads_reap,
    .close = threads_close,
};
