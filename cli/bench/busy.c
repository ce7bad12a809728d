#include "cli/bench/busy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/cpu.h"
#include "base/thread.h"
#include "cli/bench/peak.h"

enum { TURN = 1 << 12 }; /* some twenty microseconds */

struct worker {
    pthread_t thread;
    const struct busy *busy;
    atomic_uint_fast64_t turns;
    float result; /* so that it is computed */
};

struct busy {
    struct peak peak;
    atomic_bool stop;
    unsigned n;
    struct worker worker[];
};

static void *work(void *arg)
{
    struct worker *w = arg;

    while (!atomic_load_explicit(&w->busy->stop, memory_order_relaxed)) {
        w->result += w->busy->peak.fmas(TURN);
        atomic_fetch_add_explicit(&w->turns, 1, memory_order_relaxed);
    }
    return NULL;
}

int busy_start(struct busy **out, unsigned n, struct err *e)
{
    struct busy *b;

    *out = NULL;
    if (!n)
        return 0;
    b = calloc(1, sizeof(*b) + n * sizeof(b->worker[0]));
    if (!b)
        return err_set(e, ERR_NOMEM, "%u computing threads", n);
    b->peak = peak_of(cpu_detect());
    for (; b->n < n; b->n++) {
        int failed;

        b->worker[b->n].busy = b;
        failed = thread_start(&b->worker[b->n].thread, work, &b->worker[b->n]);
        if (failed) {
            err_sys(e, failed, "computing thread %u of %u", b->n + 1, n);
            busy_stop(b);
            return e->code;
        }
    }
    *out = b;
    return 0;
}

void busy_stop(struct busy *b)
{
    if (!b)
        return;
    atomic_store(&b->stop, true);
    for (unsigned i = 0; i < b->n; i++)
        pthread_join(b->worker[i].thread, NULL);
    free(b);
}

struct busy_count busy_now(const struct busy *b)
{
    struct busy_count c = {0, 0};

    for (unsigned i = 0; b && i < b->n; i++) {
        struct timespec t;
        clockid_t clock;

        c.fmas += (double)atomic_load(&b->worker[i].turns) * TURN * b->peak.fmas_per_call;
        if (!pthread_getcpuclockid(b->worker[i].thread, &clock) && !clock_gettime(clock, &t))
            c.cpu_s += (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    }
    return c;
}
