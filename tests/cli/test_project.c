/* Simulated drives: what lookahead and hits first must never cost. Time is computed, so these are
 * figures and no luck. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/bench/project.h"
#include "storage/io_sim.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const struct policy_ops *const policy[] = {&policy_lfru, &policy_nextuse};

static struct projected projected(const struct routes *r, struct projection how)
{
    struct projected p;
    struct err e;

    if (project(&p, r, &how, &e))
        fail_msg("%s: %s", how.drive, e.text);
    return p;
}

/* K3's measured shape: 12.4 MB records, 92 layers of 896 experts, 16 of them for a token. */
static void on_no_drive_is_lookahead_worse_than_none(void **state)
{
    struct routes r;
    struct err e;

    (void)state;
    assert_int_equal(routes_invent(&r, 92, 896, 16, 16, 1, &e), 0);
    for (const char *const *drive = io_sim_presets(); *drive; drive++)
        for (unsigned p = 0; p < N_ELEMS(policy); p++)
            for (unsigned depth = 2; depth <= 8; depth *= 4) {
                struct projection how = {.drive = *drive,
                                         .policy = policy[p],
                                         .n_frames = 1472,
                                         .depth = depth,
                                         .record_bytes = 12402688,
                                         .shared_ns = 1200000,
                                         .expert_ns = 155000,
                                         .rest_ns = 2780000,
                                         .warm = 4};
                struct projected off = projected(&r, how), on, in_order;

                how.lookahead = 6;
                on = projected(&r, how);
                how.lookahead = 0;
                how.in_order = true;
                in_order = projected(&r, how);
                if (on.total_ns > off.total_ns + off.total_ns / 100)
                    fail_msg("%s %s depth %u: %.4f s with lookahead, %.4f without", *drive,
                             policy[p]->name, depth, (double)on.total_ns * 1e-9,
                             (double)off.total_ns * 1e-9);
                if (off.total_ns > in_order.total_ns + in_order.total_ns / 100)
                    fail_msg("%s %s depth %u: %.4f s with hits first, %.4f in order", *drive,
                             policy[p]->name, depth, (double)off.total_ns * 1e-9,
                             (double)in_order.total_ns * 1e-9);
            }
    routes_release(&r);
}

static void the_same_projection_gives_the_same_times(void **state)
{
    struct projection how = {.drive = "nvme14",
                             .policy = &policy_nextuse,
                             .n_frames = 60,
                             .depth = 4,
                             .record_bytes = 1 << 20,
                             .shared_ns = 100000,
                             .expert_ns = 20000,
                             .rest_ns = 200000,
                             .lookahead = 4};
    struct projected a, b;
    struct routes r;
    struct err e;

    (void)state;
    assert_int_equal(routes_read(&r, GOLDEN_DIR "/route_demo_300.jsonl", &e), 0);
    a = projected(&r, how);
    b = projected(&r, how);
    assert_int_equal(a.total_ns, b.total_ns);
    assert_int_equal(a.waited_ns, b.waited_ns);
    assert_int_equal(a.bytes, b.bytes);
    assert_true(a.waited_ns && a.waited_ns < a.total_ns);
    assert_int_equal(a.pool.hits_resident + a.pool.hits_guess + a.pool.misses, r.n_ids);
    assert_int_equal(a.bytes, a.pool.bytes / IO_ALIGN << 20);
    how.drive = "floppy";
    assert_int_equal(project(&a, &r, &how, &e), ERR_ARG);
    routes_release(&r);
}

static void an_invented_trace_is_what_it_says(void **state)
{
    struct routes a, b;
    struct err e;

    (void)state;
    assert_int_equal(routes_invent(&a, 3, 20, 4, 50, 9, &e), 0);
    assert_int_equal(routes_invent(&b, 3, 20, 4, 50, 9, &e), 0);
    assert_int_equal(a.n_calls, 150);
    assert_int_equal(a.n_ids, 600);
    for (size_t i = 0; i < a.n_calls; i++) {
        assert_int_equal(a.call[i].layer, i % 3);
        assert_int_equal(a.call[i].n, 4);
        for (unsigned k = 0; k < 4; k++)
            assert_true(a.id[a.call[i].first + k] < 20);
    }
    assert_memory_equal(a.id, b.id, a.n_ids * sizeof(*a.id));
    routes_release(&a);
    routes_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_no_drive_is_lookahead_worse_than_none),
        cmocka_unit_test(the_same_projection_gives_the_same_times),
        cmocka_unit_test(an_invented_trace_is_what_it_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
