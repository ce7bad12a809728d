/* test_team.c - every item exactly once, threads where they were put, and a caller that finds
 * itself as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <float.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/team.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { FLUSH_OUT = 0x8000, FLUSH_IN = 0x0040, ROUND = 0x6000, UP = 0x4000, FLAGS = 0x3f };

static unsigned fp_get(void)
{
    return _mm_getcsr();
}

static void fp_set(unsigned control)
{
    _mm_setcsr(control);
}
#elif defined(__aarch64__)
/* One bit flushes what goes in and what comes out. */
enum { FLUSH_OUT = 1 << 24, FLUSH_IN = FLUSH_OUT, ROUND = 3 << 22, UP = 1 << 22, FLAGS = 0 };

static unsigned fp_get(void)
{
    uint64_t control;

    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return (unsigned)control;
}

static void fp_set(unsigned control)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)control));
}
#else
enum { FLUSH_OUT, FLUSH_IN, ROUND, UP, FLAGS };

static unsigned fp_get(void)
{
    return 0;
}

static void fp_set(unsigned control)
{
    (void)control;
}
#endif

enum { N_MAX = 5000 };

static int open_on(struct team **out, unsigned n, const struct cpu_list *cpus, struct err *e)
{
    struct cpu_place p = {.n_threads = n, .how = PLACE_EACH, .spin = true, .cpus = *cpus};

    return team_open(out, &p, e);
}

static struct team *open_team(unsigned n, const struct cpu_list *cpus)
{
    struct team *t;
    struct err e;

    if (cpus ? open_on(&t, n, cpus, &e) : team_open_n(&t, n, &e))
        fail_msg("%s", e.text);
    assert_int_equal(team_size(t), n);
    return t;
}

static unsigned threads_listed(void)
{
    DIR *d = opendir("/proc/self/task");
    unsigned n = 0;

    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A joined thread may stand in /proc for a moment longer: the fewest of some looks. */
static unsigned threads_of_this_process(void)
{
    unsigned n = threads_listed();

    for (unsigned i = 0; i < 100; i++) {
        unsigned now;

        sched_yield();
        now = threads_listed();
        n = now < n ? now : n;
    }
    return n;
}

static void assert_threads(unsigned want)
{
    for (unsigned i = 0; i < 1000 && threads_listed() != want; i++)
        sched_yield();
    assert_int_equal(threads_of_this_process(), want);
}

/* ---- work ---- */

struct count {
    atomic_uint done[N_MAX];
    atomic_bool inside[THREADS_MAX];
    unsigned n, grain, threads;
    atomic_uint wrong;
};

static void count_items(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct count *c = arg;

    if (i1 <= i0 || i1 > c->n || i0 % c->grain || thread >= c->threads) {
        atomic_fetch_add(&c->wrong, 1);
        return;
    }
    if (atomic_exchange(&c->inside[thread], true)) /* its scratch is in use */
        atomic_fetch_add(&c->wrong, 1);
    for (unsigned i = i0; i < i1; i++)
        atomic_fetch_add(&c->done[i], 1);
    atomic_store(&c->inside[thread], false);
}

static void every_item_is_done_exactly_once(void **state)
{
    static const unsigned sizes[] = {0,  1,  2,  3,   7,   8,   15,   16,   17,
                                     63, 64, 65, 255, 256, 257, 1000, 4096, N_MAX};
    static const unsigned grains[] = {1, 2, 3, 16, 64, 1024};
    static struct count c;

    (void)state;
    for (unsigned n = 1; n <= 8; n++) {
        struct team *t = open_team(n, NULL);

        for (unsigned s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
            for (unsigned g = 0; g < sizeof(grains) / sizeof(*grains); g++) {
                memset(&c, 0, sizeof(c));
                c.n = sizes[s];
                c.grain = grains[g];
                c.threads = n;
                team_for(t, c.n, c.grain, count_items, &c);
                if (atomic_load(&c.wrong))
                    fail_msg("%u threads, %u items of %u: a wrong range", n, c.n, c.grain);
                for (unsigned i = 0; i < N_MAX; i++)
                    if (atomic_load(&c.done[i]) != (i < c.n))
                        fail_msg("%u threads, %u items of %u: item %u done %u times", n, c.n,
                                 c.grain, i, atomic_load(&c.done[i]));
            }
        team_close(t);
    }
}

/* Each round reads what another thread wrote in the round before, in plain memory: team_for orders
 * them (TSan looks on). */
struct chain {
    uint32_t a[64], b[64];
    unsigned round;
};

static void chain_step(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct chain *c = arg;
    const uint32_t *from = c->round % 2 ? c->b : c->a;
    uint32_t *to = c->round % 2 ? c->a : c->b;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        to[i] = from[(i * 37 + c->round) % 64] + 1;
}

static void rounds_follow_each_other_thousands_of_times(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 8; n++) {
        struct team *t = open_team(n, NULL);
        struct chain c = {.round = 0};

        for (; c.round < 5000; c.round++)
            team_for(t, 64, 1 + c.round % 9, chain_step, &c);
        for (unsigned i = 0; i < 64; i++)
            assert_int_equal(c.a[i], 5000);
        team_close(t);
    }
}

static void two_teams_do_not_know_each_other(void **state)
{
    struct team *a = open_team(3, NULL), *b = open_team(2, NULL);
    struct chain x = {.round = 0}, y = {.round = 0};

    (void)state;
    for (unsigned i = 0; i < 500; i++, x.round++, y.round++) {
        team_for(a, 64, 3, chain_step, &x);
        team_for(b, 64, 1, chain_step, &y);
    }
    team_close(a);
    for (; y.round < 1000; y.round++)
        team_for(b, 64, 1, chain_step, &y);
    team_close(b);
    assert_int_equal(x.a[5], 500);
    assert_int_equal(y.a[5], 1000);
}

static void *own_team(void *arg)
{
    struct team *t = open_team(3, NULL);
    struct chain c = {.round = 0};

    (void)arg;
    for (; c.round < 1000; c.round++)
        team_for(t, 64, 1, chain_step, &c);
    team_close(t);
    return c.a[9] == 1000 ? t : NULL;
}

static void teams_run_side_by_side(void **state)
{
    pthread_t thread[3];
    void *ok;

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, own_team, NULL), 0);
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(thread[i], &ok);
        assert_non_null(ok);
    }
}

/* ---- opening and closing ---- */

static void impossible_sizes_are_refused(void **state)
{
    static const unsigned bad[] = {0, THREADS_MAX + 1, ~0u};
    struct team *t = (struct team *)(void *)&bad;
    struct err e;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(team_open_n(&t, bad[i], &e), ERR_ARG);
        assert_ptr_equal(t, &bad); /* outputs untouched */
        assert_non_null(strstr(e.text, "1...64"));
    }
    team_close(NULL);
}

static void threads_come_with_open_and_go_with_close(void **state)
{
    static const unsigned sizes[] = {1, 2, 7, THREADS_MAX};
    unsigned before = threads_of_this_process();

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct team *t = open_team(sizes[i], NULL);

        assert_threads(before + sizes[i] - 1); /* the caller is one of them */
        team_close(t);                         /* without ever having worked */
        assert_threads(before);
    }
}

/* ---- where threads run ---- */

/* All threads of the team at once: none leaves before the last has come. */
struct meeting {
    unsigned n;
    atomic_uint arrived;
    int cpu[THREADS_MAX], allowed[THREADS_MAX];
    unsigned fp[THREADS_MAX];
    bool subnormal[THREADS_MAX];
    atomic_uint seen[THREADS_MAX];
};

static void meet(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    struct meeting *m = arg;
    volatile float tiny = FLT_MIN, half;
    cpu_set_t set;

    (void)i0;
    (void)i1;
    atomic_fetch_add(&m->seen[thread], 1);
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < m->n)
        sched_yield();
    m->cpu[thread] = sched_getcpu();
    m->allowed[thread] = -1;
    if (!pthread_getaffinity_np(pthread_self(), sizeof(set), &set))
        m->allowed[thread] = CPU_COUNT(&set);
    half = tiny / 4;
    m->subnormal[thread] = half > 0 && half * 4 == tiny;
    m->fp[thread] = fp_get();
}

static void meet_all(struct team *t, struct meeting *m)
{
    memset(m, 0, sizeof(*m));
    m->n = team_size(t);
    team_for(t, m->n, 1, meet, m);
    for (unsigned i = 0; i < m->n; i++)
        assert_int_equal(atomic_load(&m->seen[i]), 1); /* each thread took its one item */
}

static struct cpu_list ours(cpu_set_t *set)
{
    struct cpu_list l = {0};

    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof(*set), set), 0);
    for (unsigned i = 0; i < CPU_SETSIZE && l.n < 4; i++)
        if (CPU_ISSET(i, set))
            l.cpu[l.n++] = (uint16_t)i;
    return l;
}

static void assert_affinity(const cpu_set_t *want)
{
    cpu_set_t now;

    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof(now), &now), 0);
    assert_true(CPU_EQUAL(&now, want));
}

static void threads_run_on_the_cpus_of_the_list(void **state)
{
    static struct meeting m;
    cpu_set_t before;
    struct cpu_list cpus = ours(&before);

    (void)state;
    for (unsigned used = 1; used <= cpus.n; used++)
        for (unsigned n = 1; n <= 6; n++) { /* more threads than CPUs: they share */
            struct cpu_list some = cpus;
            struct team *t;

            some.n = used;
            t = open_team(n, &some);
            memset(&some, 0xff, sizeof(some)); /* the list was copied */
            assert_affinity(&before);          /* opening leaves the caller where it was */
            team_begin(t);
            meet_all(t, &m);
            for (unsigned i = 0; i < n; i++) {
                assert_int_equal(m.allowed[i], 1);
                assert_int_equal(m.cpu[i], cpus.cpu[i % used]);
            }
            team_end(t);
            assert_affinity(&before);
            team_close(t);
            assert_affinity(&before);
        }
}

static void threads_placed_among_cpus_may_use_all_of_them(void **state)
{
    static struct meeting m;
    cpu_set_t before;
    struct cpu_list cpus = ours(&before);

    (void)state;
    for (unsigned used = 1; used <= cpus.n; used++) {
        struct cpu_place p = {.n_threads = 3, .how = PLACE_AMONG, .cpus = cpus};
        struct team *t;
        struct err e;

        p.cpus.n = used;
        if (team_open(&t, &p, &e))
            fail_msg("%s", e.text);
        assert_affinity(&before);
        team_begin(t);
        meet_all(t, &m);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(m.allowed[i], used);
        team_end(t);
        assert_affinity(&before);
        team_close(t);
    }
}

static void without_a_list_nobody_is_bound(void **state)
{
    static struct meeting m;
    cpu_set_t before;
    struct team *t = open_team(3, NULL);

    (void)state;
    ours(&before);
    team_begin(t);
    meet_all(t, &m);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(m.allowed[i], CPU_COUNT(&before));
    assert_affinity(&before);
    team_end(t);
    assert_affinity(&before);
    team_close(t);
}

/* The caller had a narrower set than the machine: that one comes back, not all CPUs. */
static void a_narrowed_caller_stays_narrowed(void **state)
{
    static struct meeting m;
    cpu_set_t before, narrow;
    struct cpu_list cpus = ours(&before);
    struct team *t;

    (void)state;
    if (cpus.n < 2)
        skip();
    t = open_team(2, &cpus);
    CPU_ZERO(&narrow);
    CPU_SET(cpus.cpu[1], &narrow);
    assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof(narrow), &narrow), 0);
    for (unsigned i = 0; i < 3; i++) {
        team_begin(t);
        meet_all(t, &m);
        assert_int_equal(m.cpu[0], cpus.cpu[0]);
        team_end(t);
        assert_affinity(&narrow);
    }
    team_close(t);
    assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof(before), &before), 0);
}

static void an_impossible_cpu_is_an_error_and_leaves_no_thread(void **state)
{
    cpu_set_t before;
    struct cpu_list cpus = ours(&before);
    unsigned threads = threads_of_this_process();
    struct team *t = (struct team *)(void *)&cpus;
    struct err e;
    unsigned gone = CPU_SETSIZE;

    (void)state;
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (!CPU_ISSET(i, &before))
            gone = i;
    if (gone == CPU_SETSIZE)
        skip();                                 /* a machine that has them all */
    for (unsigned at = 0; at <= cpus.n; at++) { /* first, between, last */
        struct cpu_list bad = cpus;

        bad.cpu[at] = (uint16_t)gone;
        bad.n = at < cpus.n ? cpus.n : cpus.n + 1;
        assert_int_equal(open_on(&t, 4, &bad, &e), ERR_ARG);
        assert_ptr_equal(t, &cpus);
        assert_threads(threads);
        assert_affinity(&before);
    }
}

/* ---- arithmetic ---- */

/* A host that flushes subnormals and rounds upwards gets the model's arithmetic in a pass, on every
 * thread, and its own back afterwards. */
static void a_pass_has_its_own_arithmetic_whatever_the_host_set(void **state)
{
    static struct meeting m;
    unsigned clean = fp_get();

    (void)state;
    if (!FLUSH_OUT)
        skip(); /* a processor whose control word this test does not know */
    for (unsigned n = 1; n <= 4; n++)
        for (unsigned bits = 0; bits < 8; bits++) {
            unsigned set = (clean & ~(unsigned)(FLUSH_OUT | FLUSH_IN | ROUND | FLAGS)) |
                           (bits & 1 ? FLUSH_OUT : 0) | (bits & 2 ? FLUSH_IN : 0) |
                           (bits & 4 ? UP : 0);
            volatile float tiny = FLT_MIN / 4;
            struct team *t;
            unsigned after;
            bool flushed;

            fp_set(set);
            t = open_team(n, NULL); /* threads inherit what the host had */
            team_begin(t);
            meet_all(t, &m);
            team_end(t);
            after = fp_get();
            flushed = tiny * 0.5f == 0;
            team_close(t);
            fp_set(clean);
            for (unsigned i = 0; i < n; i++) {
                assert_int_equal(m.fp[i] & (FLUSH_OUT | FLUSH_IN | ROUND), 0);
                assert_true(m.subnormal[i]);
            }
            assert_int_equal(after & ~(unsigned)FLAGS, set);
            assert_int_equal(flushed, (bits & 3) != 0);
        }
}

static void passes_nest_in_nothing_and_follow_each_other(void **state)
{
    static struct meeting m;
    struct team *t = open_team(2, NULL);

    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        team_begin(t);
        meet_all(t, &m);
        assert_true(m.subnormal[0] && m.subnormal[1]);
        team_end(t);
    }
    team_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_done_exactly_once),
        cmocka_unit_test(rounds_follow_each_other_thousands_of_times),
        cmocka_unit_test(two_teams_do_not_know_each_other),
        cmocka_unit_test(teams_run_side_by_side),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(threads_come_with_open_and_go_with_close),
        cmocka_unit_test(threads_run_on_the_cpus_of_the_list),
        cmocka_unit_test(threads_placed_among_cpus_may_use_all_of_them),
        cmocka_unit_test(without_a_list_nobody_is_bound),
        cmocka_unit_test(a_narrowed_caller_stays_narrowed),
        cmocka_unit_test(an_impossible_cpu_is_an_error_and_leaves_no_thread),
        cmocka_unit_test(a_pass_has_its_own_arithmetic_whatever_the_host_set),
        cmocka_unit_test(passes_nest_in_nothing_and_follow_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
