/* Replay against a real pool, and against what must be true of any policy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/bench/route_replay.h"
#include "storage/frames.h"
#include "storage/pool.h"
#include "tests/support/io_script.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const struct policy_ops *const policy[] = {&policy_lfru, &policy_nextuse, &policy_lru,
                                                  &policy_s3fifo, &policy_belady};

static void read_trace(struct routes *r, const char *path)
{
    struct err e;

    if (routes_read(r, path, &e))
        fail_msg("%s", e.text);
}

/* As moe.c asks: a sure hint, then whichever is ready, one pin at a time. */
static void drive(struct pool *p, const struct routes *r, const struct route_call *c)
{
    struct extent want[ROUTES_CALL_MAX];
    unsigned n = c->n, which;

    for (unsigned i = 0; i < n; i++)
        want[i] = route_extent(c->layer, r->id[c->first + i]);
    pool_hint(p, want, n, HINT_SURE);
    while (n) {
        struct page page;
        struct err e;

        if (pool_pin_any(p, want, n, &which, &page, &e))
            fail_msg("%s", e.text);
        pool_unpin(p, &page);
        n--;
        for (unsigned i = which; i < n; i++)
            want[i] = want[i + 1];
    }
}

static void agree(const struct routes *r, const struct policy_ops *ops, unsigned n_frames)
{
    struct extent *future = ops == &policy_belady ? replay_future(r) : NULL;
    struct io_script script;
    struct pool_config cfg = {.io = &script.io,
                              .policy = ops,
                              .depth = IO_SCRIPT_DEPTH_MAX,
                              .seed = 5,
                              .known = replay_known(r, future)};
    struct replay_counts n;
    struct pool_stats s;
    struct frames frames;
    struct pool *pool;
    struct mem mem;
    struct err e;

    mem_init(&mem, 0);
    io_script_init(&script, IO_SCRIPT_DEPTH_MAX, 1);
    cfg.frames = &frames;
    assert_int_equal(frames_open(&frames, &mem, IO_ALIGN, n_frames, &e), 0);
    assert_int_equal(pool_open(&pool, &cfg, &e), 0);
    for (size_t i = 0; i < r->n_calls; i++)
        drive(pool, r, &r->call[i]);
    pool_get_stats(pool, &s);
    if (replay(&n, r, ops, n_frames, 5, &e))
        fail_msg("%s", e.text);
    if (n.hits != s.hits_resident || n.misses != s.misses || n.evictions != s.evictions)
        fail_msg("%s, %u frames: replay %llu hits %llu misses %llu evictions, pool %llu %llu %llu",
                 ops->name, n_frames, (unsigned long long)n.hits, (unsigned long long)n.misses,
                 (unsigned long long)n.evictions, (unsigned long long)s.hits_resident,
                 (unsigned long long)s.misses, (unsigned long long)s.evictions);
    assert_int_equal(n.hits + n.misses, r->n_ids);
    pool_close(pool);
    frames_close(&frames);
    free(future);
}

static void replay_counts_what_a_pool_counts(void **state)
{
    static const unsigned sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 28, 56, 112, 224};
    struct routes r;

    (void)state;
    read_trace(&r, GOLDEN_DIR "/route_demo_300.jsonl");
    for (unsigned i = 0; i < N_ELEMS(sizes); i++)
        for (unsigned p = 0; p < N_ELEMS(policy); p++)
            agree(&r, policy[p], sizes[i]);
    routes_release(&r);
}

static void no_policy_hits_more_often_than_belady(void **state)
{
    struct routes r;
    struct err e;

    (void)state;
    read_trace(&r, GOLDEN_DIR "/route_demo_300.jsonl");
    for (unsigned n = 8; n <= 224; n += 12) {
        struct replay_counts best, other;

        assert_int_equal(replay(&best, &r, &policy_belady, n, 1, &e), 0);
        for (unsigned p = 0; p < N_ELEMS(policy); p++) {
            assert_int_equal(replay(&other, &r, policy[p], n, 1, &e), 0);
            assert_true(other.hits <= best.hits);
        }
    }
    routes_release(&r);
}

static void a_pool_that_holds_everything_misses_each_page_once(void **state)
{
    struct replay_counts n, less;
    struct routes r;
    struct err e;

    (void)state;
    read_trace(&r, GOLDEN_DIR "/route_demo_300.jsonl");
    assert_int_equal(r.n_layers * r.n_experts, 224);
    for (unsigned p = 0; p < N_ELEMS(policy); p++) {
        assert_int_equal(replay(&n, &r, policy[p], 224, 1, &e), 0);
        assert_int_equal(n.evictions, 0);
        assert_int_equal(n.misses, 224); /* the demonstration model uses all of its experts */
        assert_int_equal(replay(&less, &r, policy[p], 223, 1, &e), 0);
        assert_true(less.misses > 224 && less.evictions);
    }
    assert_int_equal(replay(&n, &r, &policy_lru, 0, 1, &e), ERR_ARG);
    routes_release(&r);
}

/* The published traces, where somebody has them: WASTE_TRACES names their directory. */
static void published_traces_agree_too(void **state)
{
    static const struct {
        const char *file;
        unsigned n_frames;
    } trace[] = {{"trace_kimi_300.jsonl", 805}, {"trace_olmoe_299.jsonl", 128}};
    const char *dir = getenv("WASTE_TRACES");
    char path[4096];
    struct routes r;

    (void)state;
    if (!dir) {
        print_message("skipped: WASTE_TRACES does not say where the published traces are\n");
        skip();
    }
    for (unsigned i = 0; i < N_ELEMS(trace); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, trace[i].file);
        read_trace(&r, path);
        for (unsigned p = 0; p < N_ELEMS(policy); p++)
            agree(&r, policy[p], trace[i].n_frames);
        routes_release(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_counts_what_a_pool_counts),
        cmocka_unit_test(no_policy_hits_more_often_than_belady),
        cmocka_unit_test(a_pool_that_holds_everything_misses_each_page_once),
        cmocka_unit_test(published_traces_agree_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
