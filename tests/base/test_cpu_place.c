/* test_cpu_place.c - how many threads, and where, on machines made up for it. */
#include "base/cpu_place.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

static struct topology t;
static struct cpu_list allowed;
static struct cpu_place p;

/* Nodes of caches of cores of `smt` CPUs, numbered as Linux does: siblings in the second half. */
static void machine(unsigned nodes, unsigned caches, unsigned cores, unsigned smt)
{
    unsigned all = nodes * caches * cores;

    t.n = allowed.n = all * smt;
    for (unsigned i = 0; i < t.n; i++) {
        unsigned core = i % all;

        t.cpu[i] = (struct topology_cpu){.cpu = (uint16_t)i,
                                         .core = (uint16_t)core,
                                         .cache = (uint16_t)(core / cores * cores),
                                         .node = (uint16_t)(core / (cores * caches))};
        allowed.cpu[i] = (uint16_t)i;
    }
}

static void allow(const char *list)
{
    struct err e;

    assert_int_equal(cpu_list_parse(&allowed, list, &e), 0);
}

static void choose_at(unsigned threads, unsigned quota_percent, unsigned here)
{
    struct cpu_place_wish w = {.threads = threads,
                               .quota_percent = quota_percent,
                               .allowed = &allowed,
                               .here = here,
                               .topology = t.n ? &t : NULL};

    cpu_place_choose(&p, &w);
}

static void expect(unsigned threads, const char *cpus, const char *text)
{
    struct cpu_list want = {0};
    struct err e;

    if (cpus)
        assert_int_equal(cpu_list_parse(&want, cpus, &e), 0);
    if (p.n_threads != threads || p.how != (cpus ? PLACE_AMONG : PLACE_ANYWHERE) ||
        p.cpus.n != want.n || memcmp(p.cpus.cpu, want.cpu, want.n * sizeof(*want.cpu)) != 0)
        fail_msg("%u threads on %u CPUs from %u on, not %u on %s (%s)", p.n_threads, p.cpus.n,
                 p.cpus.cpu[0], threads, cpus ? cpus : "any", p.text);
    assert_string_equal(p.text, text);
}

static void choose(unsigned threads)
{
    choose_at(threads, 0, ~0u);
}

static void a_thread_for_every_core_and_not_for_its_siblings(void **state)
{
    (void)state;
    machine(1, 1, 4, 1);
    choose(0);
    expect(4, NULL, "4 threads, one per core");
    assert_true(p.spin);
    machine(1, 1, 4, 2);
    choose(0);
    expect(4, NULL, "4 threads, one per core, SMT siblings left idle");
    choose(6); /* as asked */
    expect(6, NULL, "6 threads on 4 cores");
    assert_true(p.spin); /* a CPU each, still */
    choose(9);
    expect(9, NULL, "9 threads on 4 cores");
    assert_false(p.spin);
    machine(1, 1, 1, 1);
    choose(0);
    expect(1, NULL, "1 thread, one per core");
}

static void few_threads_stay_below_one_cache(void **state)
{
    (void)state;
    machine(1, 2, 4, 2); /* CPUs 0-3 and 8-11; 4-7 and 12-15 */
    choose(4);
    expect(4, "0-3,8-11", "4 threads on CPUs 0-3 (one L3), SMT siblings left idle");
    choose_at(4, 0, 13); /* the caller is on the other one */
    expect(4, "4-7,12-15", "4 threads on CPUs 4-7 (one L3), SMT siblings left idle");
    choose(3);
    expect(3, "0-2,8-10", "3 threads on CPUs 0-2 (one L3), SMT siblings left idle");
    choose(1);
    expect(1, "0,8", "1 thread on CPU 0 (one L3), SMT siblings left idle");
    assert_true(p.spin);
}

static void more_than_a_cache_stay_on_one_node(void **state)
{
    (void)state;
    machine(2, 2, 4, 1);
    choose(6);
    expect(6, "0-5", "6 threads on CPUs 0-5 (node 0)");
    choose_at(6, 0, 15);
    expect(6, "8-13", "6 threads on CPUs 8-13 (node 1)");
    choose(8);
    expect(8, "0-7", "8 threads on CPUs 0-7 (node 0)");
}

static void more_than_a_node_are_spread_evenly(void **state)
{
    (void)state;
    machine(2, 1, 8, 2);
    choose(10);
    expect(10, "0-4,8-12,16-20,24-28",
           "10 threads on CPUs 0-4,8-12 (spread over nodes), SMT siblings left idle");
    choose(0);
    expect(16, NULL, "16 threads, one per core, SMT siblings left idle");
    machine(3, 1, 2, 1);
    choose(5);
    expect(5, "0-4", "5 threads on CPUs 0-4 (spread over nodes)");
}

static void a_narrow_mask_is_all_there_is(void **state)
{
    (void)state;
    machine(2, 1, 4, 2);
    allow("2-3,10"); /* 10 is the sibling of 2 */
    choose(0);
    expect(2, NULL, "2 threads, one per core, SMT siblings left idle");
    choose(1);
    expect(1, "2,10", "1 thread on CPU 2 (one L3), SMT siblings left idle");
    allow("9,12"); /* only second siblings: these are cores, too */
    choose(0);
    expect(2, NULL, "2 threads, one per core");
    allow("1-3,6-7"); /* one node has more room, the other is enough */
    choose(2);
    expect(2, "6-7", "2 threads on CPUs 6-7 (one L3)");
}

static void offline_cpus_leave_smaller_places(void **state)
{
    (void)state;
    machine(2, 1, 4, 1);
    memmove(&t.cpu[1], &t.cpu[4], 4 * sizeof(*t.cpu)); /* 1-3 are gone */
    t.n = 5;
    allow("0,4-7");
    choose(2);
    expect(2, "4-5", "2 threads on CPUs 4-5 (one L3)");
    choose(0);
    expect(5, NULL, "5 threads, one per core");
}

static void a_quota_limits_how_many_and_whether_they_spin(void **state)
{
    (void)state;
    machine(1, 2, 4, 1);
    choose_at(0, 150, 0);
    expect(2, "0-1", "2 threads on CPUs 0-1 (one L3), a quota of 1.50 CPUs");
    assert_false(p.spin); /* it would burn what the quota pays for */
    choose_at(0, 200, 0);
    assert_int_equal(p.n_threads, 2);
    assert_true(p.spin);
    choose_at(0, 10, 0);
    assert_int_equal(p.n_threads, 1);
    choose_at(6, 150, 0); /* as asked */
    assert_int_equal(p.n_threads, 6);
    assert_false(p.spin);
    choose_at(0, 900, 0); /* more than there is: no word about it */
    expect(8, NULL, "8 threads, one per core");
}

static void slow_cores_help_only_when_asked_to(void **state)
{
    (void)state;
    machine(1, 1, 6, 1);
    for (unsigned i = 2; i < 6; i++)
        t.cpu[i].kind = 1;
    choose(0);
    expect(2, "0-1", "2 threads on CPUs 0-1 (one L3), slower cores left idle");
    choose(4);
    expect(4, "0-3", "4 threads on CPUs 0-3 (one L3)");
    choose(6);
    expect(6, NULL, "6 threads, one per core");
    allow("2-5"); /* where there is nothing else they are what there is */
    choose(0);
    expect(4, NULL, "4 threads, one per core");
}

static void an_unknown_machine_is_taken_as_it_comes(void **state)
{
    (void)state;
    t.n = 0;
    allow("0-11");
    choose(0);
    expect(12, NULL, "12 threads, cores not known");
    choose(3);
    expect(3, NULL, "3 threads, cores not known");
    choose_at(0, 400, 0);
    expect(4, NULL, "4 threads, cores not known, a quota of 4.00 CPUs");
    machine(1, 1, 4, 1);
    allow("4-7"); /* CPUs that the description does not have */
    choose(0);
    expect(4, NULL, "4 threads, cores not known");
    machine(1, 1, 8, 1); /* no word about caches and nodes */
    for (unsigned i = 0; i < 8; i++)
        t.cpu[i].cache = t.cpu[i].node = TOPOLOGY_UNKNOWN;
    choose(3);
    expect(3, "0-2", "3 threads on CPUs 0-2 (spread over nodes)");
}

static void more_than_threads_max_become_that(void **state)
{
    (void)state;
    machine(2, 1, 128, 2);
    choose(0);
    assert_int_equal(p.n_threads, THREADS_MAX);
    assert_int_equal(p.how, PLACE_AMONG);
    assert_int_equal(p.cpus.n, 2 * THREADS_MAX);
}

static void a_list_overrides_everything(void **state)
{
    struct cpu_list list;
    struct cpu_place_wish w = {.listed = &list, .allowed = &allowed, .topology = &t};
    struct err e;

    (void)state;
    machine(2, 1, 4, 2);
    assert_int_equal(cpu_list_parse(&list, "1,3,5-6", &e), 0);
    cpu_place_choose(&p, &w);
    assert_int_equal(p.n_threads, 4);
    assert_int_equal(p.how, PLACE_EACH);
    assert_memory_equal(p.cpus.cpu, list.cpu, 4 * sizeof(*list.cpu));
    assert_string_equal(p.text, "4 threads on CPUs 1,3,5-6, as listed");
    assert_true(p.spin);
    w.threads = 6; /* more than places */
    cpu_place_choose(&p, &w);
    assert_int_equal(p.n_threads, 6);
    assert_false(p.spin);
}

static void this_machine_has_a_place_and_the_caller_stays_where_it_was(void **state)
{
    struct cpu_list before, after;

    (void)state;
    machine_allowed(&before);
    for (unsigned n = 0; n <= 2; n++) {
        cpu_place_here(&p, n, NULL);
        assert_true(p.n_threads >= 1 && p.n_threads <= THREADS_MAX);
        assert_true(!n || p.n_threads == n);
        assert_true(p.n_threads <= before.n || n);
        machine_allowed(&after);
        assert_int_equal(before.n, after.n);
        assert_memory_equal(before.cpu, after.cpu, before.n * sizeof(*before.cpu));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_for_every_core_and_not_for_its_siblings),
        cmocka_unit_test(few_threads_stay_below_one_cache),
        cmocka_unit_test(more_than_a_cache_stay_on_one_node),
        cmocka_unit_test(more_than_a_node_are_spread_evenly),
        cmocka_unit_test(a_narrow_mask_is_all_there_is),
        cmocka_unit_test(offline_cpus_leave_smaller_places),
        cmocka_unit_test(a_quota_limits_how_many_and_whether_they_spin),
        cmocka_unit_test(slow_cores_help_only_when_asked_to),
        cmocka_unit_test(an_unknown_machine_is_taken_as_it_comes),
        cmocka_unit_test(more_than_threads_max_become_that),
        cmocka_unit_test(a_list_overrides_everything),
        cmocka_unit_test(this_machine_has_a_place_and_the_caller_stays_where_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
