#include "model/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum {
    SPINS = 4000, /* some ten microseconds: the gap between two products of one layer */
    LINE = 64,
};
#define OPEN 0x80000000u

struct team {
    unsigned n;
    bool spin; /* every thread has a CPU to itself */
    struct cpu_place place;
    cpu_set_t caller_cpus; /* before team_begin */
    bool bound;            /* the caller is, since team_begin */
    unsigned caller_fp;

    /* the job: written by the caller while the gate is shut, read by workers inside it */
    team_fn *fn;
    void *arg;
    unsigned n_items, step;

    alignas(LINE) atomic_uint generation; /* of the job: what idle workers look at */
    alignas(LINE) atomic_uint next;       /* first item nobody has taken */
    alignas(LINE) atomic_uint gate;       /* OPEN, and how many workers are inside the job */
    alignas(LINE) atomic_uint asleep;
    atomic_bool stop;

    pthread_mutex_t lock; /* only for sleeping */
    pthread_cond_t wake;
    pthread_t thread[THREADS_MAX];
    unsigned started;
};

struct member {
    struct team *team;
    unsigned index;
};

unsigned fp_begin(void)
{
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();

    _mm_setcsr(before & ~(0x8040u | 0x6000u)); /* FTZ, DAZ; rounding control to nearest */
    return before;
#elif defined(__aarch64__)
    uint64_t before;

    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    /* FZ and, where there is FEAT_AFP, FIZ, AH and NEP; rounding mode to nearest */
    __asm__ volatile("msr fpcr, %0" : : "r"(before & ~(UINT64_C(1) << 24 | UINT64_C(3) << 22 | 7)));
    return (unsigned)before;
#else
    return 0;
#endif
}

void fp_end(unsigned before)
{
#if defined(__x86_64__)
    _mm_setcsr(before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)before));
#else
    (void)before;
#endif
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_items(struct team *t, unsigned thread)
{
    for (;;) {
        unsigned i0 = atomic_fetch_add(&t->next, t->step), i1;

        if (i0 >= t->n_items)
            return;
        i1 = t->n_items - i0 < t->step ? t->n_items : i0 + t->step;
        t->fn(t->arg, i0, i1, thread);
    }
}

static unsigned wait_for_job(struct team *t, unsigned seen)
{
    unsigned g;

    for (int i = 0; t->spin && i < SPINS; i++) {
        g = atomic_load_explicit(&t->generation, memory_order_acquire);
        if (g != seen)
            return g;
        pause_cpu();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->asleep, 1); /* before the last look: announce looks the other way round */
    while ((g = atomic_load(&t->generation)) == seen)
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->asleep, 1);
    pthread_mutex_unlock(&t->lock);
    return g;
}

/* Into the job, if it is not over. A worker that comes late, because it slept or had no core, finds
 * the gate shut and nobody waiting for it; or it finds the next job behind it, and helps there. */
static bool enter(struct team *t)
{
    unsigned gate = atomic_load_explicit(&t->gate, memory_order_relaxed);

    while (gate & OPEN)
        if (atomic_compare_exchange_weak_explicit(&t->gate, &gate, gate + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* To the CPUs of thread number `index`. */
static int bind_thread(const struct cpu_place *p, unsigned index, struct err *e)
{
    switch (p->how) {
    case PLACE_AMONG:
        return machine_bind_among(&p->cpus, e);
    case PLACE_EACH:
        return machine_bind_thread(p->cpus.cpu[index % p->cpus.n], e);
    case PLACE_ANYWHERE:
        break;
    }
    return 0;
}

static void *worker(void *arg)
{
    struct member me = *(struct member *)arg;
    struct team *t = me.team;
    unsigned seen = 0;
    struct err ignored; /* team_open has bound so once, so this cannot be news */

    free(arg);
    fp_begin();
    bind_thread(&t->place, me.index, &ignored);
    for (;;) {
        seen = wait_for_job(t, seen);
        if (atomic_load(&t->stop))
            return NULL;
        if (!enter(t))
            continue;
        take_items(t, me.index);
        atomic_fetch_sub_explicit(&t->gate, 1, memory_order_release);
    }
}

static int start(struct team *t, unsigned index, struct err *e)
{
    struct member *m = malloc(sizeof(*m));
    int rc;

    if (!m)
        return err_set(e, ERR_NOMEM, "team: thread %u", index);
    *m = (struct member){t, index};
    rc = thread_start(&t->thread[t->started], worker, m);
    if (rc) {
        free(m);
        return err_sys(e, rc, "team: thread %u of %u", index, t->n);
    }
    t->started++;
    return 0;
}

/* Every CPU of the list must be ours: found out before threads start, by trying. */
static int check_cpus(const struct cpu_place *p, struct err *e)
{
    unsigned n = p->how == PLACE_EACH ? p->cpus.n : 1;
    cpu_set_t before;

    if (pthread_getaffinity_np(pthread_self(), sizeof(before), &before))
        return err_set(e, ERR_UNSUPPORTED, "cpu list: threads cannot be bound here");
    for (unsigned i = 0; i < n; i++)
        if (bind_thread(p, i, e)) {
            pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
            return e->code;
        }
    pthread_setaffinity_np(pthread_self(), sizeof(before), &before);
    return 0;
}

int team_open(struct team **out, const struct cpu_place *p, struct err *e)
{
    unsigned n = p->n_threads;
    struct team *t;

    if (n < 1 || n > THREADS_MAX)
        return err_set(e, ERR_ARG, "%u threads: 1...%d are possible", n, THREADS_MAX);
    if (p->how != PLACE_ANYWHERE && check_cpus(p, e))
        return e->code;
    t = aligned_alloc(LINE, sizeof(*t));
    if (!t)
        return err_set(e, ERR_NOMEM, "team of %u threads", n);
    memset(t, 0, sizeof(*t));
    t->n = n;
    t->spin = p->spin;
    t->place = *p;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    for (unsigned i = 1; i < n; i++)
        if (start(t, i, e)) {
            team_close(t);
            return e->code;
        }
    *out = t;
    return 0;
}

int team_open_n(struct team **out, unsigned n, struct err *e)
{
    struct cpu_place p = {.n_threads = n, .how = PLACE_ANYWHERE, .spin = n <= machine_cores()};

    return team_open(out, &p, e);
}

static void announce(struct team *t)
{
    atomic_fetch_add(&t->generation, 1);
    if (!atomic_load(&t->asleep))
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

void team_close(struct team *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    announce(t);
    for (unsigned i = 0; i < t->started; i++)
        pthread_join(t->thread[i], NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

unsigned team_size(const struct team *t)
{
    return t->n;
}

void team_begin(struct team *t)
{
    struct err ignored; /* team_open has bound so before */

    t->caller_fp = fp_begin();
    t->bound = t->place.how != PLACE_ANYWHERE &&
               !pthread_getaffinity_np(pthread_self(), sizeof(t->caller_cpus), &t->caller_cpus);
    if (t->bound)
        bind_thread(&t->place, 0, &ignored);
}

void team_end(struct team *t)
{
    fp_end(t->caller_fp);
    if (t->bound)
        pthread_setaffinity_np(pthread_self(), sizeof(t->caller_cpus), &t->caller_cpus);
}

void team_for(struct team *t, unsigned n, unsigned grain, team_fn *fn, void *arg)
{
    unsigned pieces = (n + grain - 1) / grain;

    if (t->n == 1 || pieces <= 1) {
        if (n)
            fn(arg, 0, n, 0);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    t->n_items = n;
    t->step = (pieces + t->n * 4 - 1) / (t->n * 4) * grain; /* four turns each evens out noise */
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->gate, OPEN, memory_order_release);
    announce(t);
    take_items(t, 0);
    atomic_fetch_and_explicit(&t->gate, ~OPEN, memory_order_acquire);
    for (unsigned i = 0; atomic_load_explicit(&t->gate, memory_order_acquire); i++) {
        if (t->spin && i < 1u << 20)
            pause_cpu();
        else
            sched_yield();
    }
}
