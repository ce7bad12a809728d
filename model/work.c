#include "model/work.h"

#include <pthread.h>
#include <stdatomic.h>

struct work {
    work_fn *fn;
    void *arg;
    const struct progress *progress;
    unsigned n;
    atomic_uint next;
    atomic_bool stop;
    pthread_mutex_t lock;
    struct err first;
};

/* On each thread of the team, until nothing is left: items are long, and the last ones should not
 * keep one thread busy while the others wait. */
static void work_on(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct work *work = arg;
    struct err e = {0};
    unsigned i;

    (void)i0, (void)i1;
    while (!atomic_load(&work->stop) && (i = atomic_fetch_add(&work->next, 1)) < work->n) {
        if (work->progress && progress_cancelled(work->progress))
            err_set(&e, ERR_CANCELLED, "cancelled");
        else if (!work->fn(work->arg, i, thread, &e))
            continue;
        pthread_mutex_lock(&work->lock);
        if (!work->first.code)
            work->first = e;
        pthread_mutex_unlock(&work->lock);
        atomic_store(&work->stop, true);
    }
}

int work_all(struct team *t, unsigned n, work_fn *fn, void *arg, const struct progress *progress,
             struct err *e)
{
    struct work work = {.fn = fn, .arg = arg, .progress = progress, .n = n};

    pthread_mutex_init(&work.lock, NULL);
    team_for(t, team_size(t), 1, work_on, &work);
    pthread_mutex_destroy(&work.lock);
    if (work.first.code)
        *e = work.first;
    return work.first.code;
}
