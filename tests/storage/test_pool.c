/* The pool's rules, on an engine that the test drives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/storage/pool_fixture.h"
#include "tests/support/alloc_fault.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define HAVE_POISON 1
#endif

static void a_page_is_read_once_and_fresh_once(void **state)
{
    struct fixture f;
    struct pool_stats s;
    struct page a, b;

    (void)state;
    open_pool(&f, 4, 4);
    a = pinned(&f, 7);
    assert_true(a.fresh);
    b = pinned(&f, 7);
    assert_false(b.fresh);
    assert_ptr_equal(a.bytes, b.bytes);
    pool_unpin(f.pool, &a);
    assert_null(a.bytes);
    assert_true(io_script_check(b.bytes, extent_nth(7))); /* one pin is left */
    pool_unpin(f.pool, &b);
    a = pinned(&f, 7);
    assert_false(a.fresh);
    pool_unpin(f.pool, &a);
    assert_int_equal(f.script.n_reads, 1);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.misses, 1);
    assert_int_equal(s.hits_resident, 2);
    assert_int_equal(s.hits_guess, 0);
    assert_int_equal(s.bytes, PAGE_BYTES);
    assert_int_equal(s.bytes_guess, 0);
    assert_int_equal(s.evictions, 0);
    close_pool(&f);
}

static void extents_that_differ_in_anything_are_different_pages(void **state)
{
    static const struct extent at[] = {
        {.offset = 0, .length = IO_ALIGN, .file = 0},
        {.offset = 0, .length = PAGE_BYTES, .file = 0},
        {.offset = 0, .length = IO_ALIGN, .file = 1},
        {.offset = IO_ALIGN, .length = IO_ALIGN, .file = 0},
        {.offset = UINT64_C(1) << 40, .length = IO_ALIGN, .file = 0},
    };
    struct fixture f;
    struct page page;
    struct err e;

    (void)state;
    open_pool(&f, 8, 4);
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(pool_pin(f.pool, at[i], &page, &e), 0);
            assert_int_equal(page.fresh, !round);
            assert_true(io_script_check(page.bytes, at[i]));
            pool_unpin(f.pool, &page);
        }
    assert_int_equal(f.script.n_reads, 5);
    close_pool(&f);
}

static void a_page_in_memory_comes_before_one_that_is_waited_for(void **state)
{
    struct extent want[] = {extent_nth(9), extent_nth(3), extent_nth(1)};
    struct fixture f;
    struct page page;
    struct err e;
    unsigned which;

    (void)state;
    open_pool(&f, 4, 4);
    use(&f, 1);
    use(&f, 3);
    assert_int_equal(pool_pin_any(f.pool, want, 3, &which, &page, &e), 0);
    assert_int_equal(which, 1); /* of those in memory the first in the list */
    pool_unpin(f.pool, &page);
    assert_int_equal(f.script.n_reads, 2);
    close_pool(&f);
}

static void whichever_arrives_first_is_pinned_first(void **state)
{
    struct extent want[] = {extent_nth(0), extent_nth(1), extent_nth(2)};
    struct fixture f;
    struct page page;
    struct err e;
    unsigned which;

    (void)state;
    open_pool(&f, 4, 4);
    f.script.held = true;
    f.script.order = IO_SCRIPT_LAST;
    for (unsigned n = 3; n; n--) {
        assert_int_equal(pool_pin_any(f.pool, want, n, &which, &page, &e), 0);
        assert_int_equal(which, n - 1);
        assert_true(page.fresh);
        assert_true(io_script_check(page.bytes, want[which]));
        pool_unpin(f.pool, &page);
    }
    assert_int_equal(f.script.n_reads, 3); /* all were begun by the first call */
    assert_int_equal(f.script.n_waits, 3);
    close_pool(&f);
}

static void busy_means_every_frame_is_pinned(void **state)
{
    struct fixture f;
    struct page page[3], other;
    struct err e;

    (void)state;
    open_pool(&f, 3, 2);
    for (unsigned i = 0; i < 3; i++)
        page[i] = pinned(&f, i);
    hint(&f, HINT_SURE, 5, 8);
    hint(&f, HINT_GUESS, 8, 9);
    assert_int_equal(pool_pin(f.pool, extent_nth(4), &other, &e), ERR_BUSY);
    assert_non_null(strstr(e.text, "3"));
    other = pinned(&f, 1); /* those in memory can still be pinned */
    pool_unpin(f.pool, &other);
    pool_unpin(f.pool, &page[1]);
    use(&f, 4);
    use(&f, 5);
    pool_unpin(f.pool, &page[0]);
    pool_unpin(f.pool, &page[2]);
    close_pool(&f);
}

static void one_frame_is_enough(void **state)
{
    struct fixture f;

    (void)state;
    for (unsigned depth = 1; depth <= 4; depth += 3) {
        open_pool(&f, 1, depth);
        f.script.held = true;
        for (unsigned round = 0; round < 5; round++) {
            struct extent want[4];
            unsigned n = 4;

            for (unsigned i = 0; i < n; i++)
                want[i] = extent_nth(round + i);
            hint(&f, HINT_SURE, round, round + 4);
            hint(&f, HINT_GUESS, round + 1, round + 9);
            while (n) {
                struct page page;
                unsigned which;
                struct err e;

                assert_int_equal(pool_pin_any(f.pool, want, n, &which, &page, &e), 0);
                assert_true(io_script_check(page.bytes, want[which]));
                pool_unpin(f.pool, &page);
                want[which] = want[--n];
            }
        }
        close_pool(&f);
    }
}

static void a_dropped_page_is_read_again(void **state)
{
    struct fixture f;
    struct page a, b;

    (void)state;
    open_pool(&f, 4, 2);
    a = pinned(&f, 0);
    pool_drop(f.pool, &a);
    a = pinned(&f, 0);
    assert_true(a.fresh);
    b = pinned(&f, 0);
    pool_drop(f.pool, &a); /* b holds on to the bytes, nobody finds them any more */
    a = pinned(&f, 0);
    assert_true(a.fresh);
    assert_ptr_not_equal(a.bytes, b.bytes);
    assert_true(io_script_check(b.bytes, extent_nth(0)));
    pool_drop(f.pool, &b);
    b = pinned(&f, 0);
    assert_ptr_equal(a.bytes, b.bytes);
    pool_unpin(f.pool, &b);
    pool_unpin(f.pool, &a);
    assert_int_equal(f.script.n_reads, 3);
    close_pool(&f);
}

static void a_page_larger_than_a_frame_is_refused(void **state)
{
    struct extent want[] = {extent_nth(0), {.length = PAGE_BYTES + IO_ALIGN}};
    struct fixture f;
    struct page page;
    struct err e;
    unsigned which = 9;

    (void)state;
    open_pool(&f, 4, 4);
    pool_hint(f.pool, want, 2, HINT_SURE);
    pool_hint(f.pool, want, 2, HINT_GUESS);
    assert_int_equal(f.script.n_reads, 1);
    assert_int_equal(pool_pin_any(f.pool, want, 2, &which, &page, &e), ERR_ARG);
    assert_int_equal(which, 9);
    close_pool(&f);
}

static void hints_beyond_the_bound_are_dropped(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 4 * (POOL_HINT_MAX + 8), 64);
    for (enum hint kind = HINT_SURE; kind <= HINT_GUESS; kind++) {
        unsigned before = f.script.n_reads;

        pool_purge(f.pool);
        hint(&f, kind, 0, POOL_HINT_MAX + 8);
        for (unsigned i = 0; i < 100; i++)
            use(&f, POOL_HINT_MAX + 8); /* collects, starts more */
        assert_int_equal(f.script.n_reads - before, (kind == HINT_SURE ? POOL_HINT_MAX : 64) + 1);
    }
    close_pool(&f);
}

static void trim_gives_the_last_frames_back_but_no_pinned_one(void **state)
{
    struct fixture f;
    struct page page;

    (void)state;
    open_pool(&f, 8, 8);
    f.script.held = true;
    hint(&f, HINT_SURE, 0, 8); /* in flight: trim waits for them */
    assert_int_equal(pool_trim(f.pool, 2 * PAGE_BYTES + 1, 1), 2 * PAGE_BYTES);
    assert_int_equal(pool_frames(f.pool), 6);
    assert_int_equal(f.frames.n, 6);
    assert_int_equal(f.script.arena_bytes, 6 * PAGE_BYTES);
    assert_int_equal(f.mem.used_total, 6 * PAGE_BYTES);
    assert_int_equal(pool_trim(f.pool, PAGE_BYTES - 1, 1), 0);
    assert_int_equal(pool_trim(f.pool, SIZE_MAX / 2, 5), PAGE_BYTES);
    assert_int_equal(pool_trim(f.pool, SIZE_MAX / 2, 9), 0);
    for (unsigned i = 0; i < 5; i++)
        use(&f, i);
    page = pinned(&f, 2); /* frames fill from the front: it is the third */
    assert_int_equal(page.frame, 2);
    assert_int_equal(pool_trim(f.pool, SIZE_MAX / 2, 0), 2 * PAGE_BYTES);
    assert_int_equal(pool_frames(f.pool), 3);
    assert_true(io_script_check(page.bytes, extent_nth(2)));
    pool_unpin(f.pool, &page);
    assert_int_equal(pool_trim(f.pool, SIZE_MAX / 2, 0), 2 * PAGE_BYTES);
    for (unsigned i = 20; i < 40; i++)
        use(&f, i);
    assert_int_equal(pool_frames(f.pool), 1);
    close_pool(&f);
}

static void purge_forgets_everything_that_is_not_pinned(void **state)
{
    struct fixture f;
    struct page page;

    (void)state;
    open_pool(&f, 8, 2);
    f.script.held = true;
    use(&f, 0);
    page = pinned(&f, 1);
    hint(&f, HINT_SURE, 2, 6);
    hint(&f, HINT_GUESS, 6, 8);
    pool_purge(f.pool);
    assert_int_equal(f.script.n_flight, 0);
    assert_false(resident(&f, 0));
    assert_true(resident(&f, 1));
    assert_false(resident(&f, 2));
    assert_true(io_script_check(page.bytes, extent_nth(1)));
    pool_unpin(f.pool, &page);
    assert_int_equal(f.script.n_reads, 6); /* 0, 1, two of the hint, 0, 2: no wish was left */
    close_pool(&f);
}

static void close_waits_for_reads_in_flight(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 8, 4);
    f.script.held = true;
    f.script.fail_nth = 2;
    hint(&f, HINT_GUESS, 3, 6);
    hint(&f, HINT_SURE, 0, 3);
    assert_int_equal(f.script.n_flight, 4);
    close_pool(&f);
    assert_int_equal(f.script.n_flight, 0);
    pool_close(NULL);
}

/* A layer of a pass: pages [from, to) of file `layer`, a sure hint for all, then pins. */
static void use_layer(struct fixture *f, unsigned layer, unsigned from, unsigned to)
{
    struct extent want[POOL_HINT_MAX] = {{0}};
    unsigned n = to - from, which;

    for (unsigned i = 0; i < n; i++)
        want[i] = extent_nth((from + i) * 3 + layer);
    pool_hint(f->pool, want, n, HINT_SURE);
    while (n) {
        struct page page;
        struct err e;

        assert_int_equal(pool_pin_any(f->pool, want, n, &which, &page, &e), 0);
        pool_unpin(f->pool, &page);
        want[which] = want[--n];
    }
}

/* A prompt of many rows asks each layer for more pages than the pool holds. What tokens used before
 * it is there after it. lru is what it is. */
static void a_stream_larger_than_the_pool_leaves_what_is_in_use(void **state)
{
    enum { FRAMES = 256, HOT = 96, LAYERS = 3, STREAM = 600 };
    static const char *const resists[] = {"lfru", "nextuse", "s3fifo"};
    struct policy_known known = {.n_files = LAYERS, .n_pages = LAYERS * STREAM};

    (void)state;
    for (unsigned i = 0; i < sizeof(resists) / sizeof(resists[0]); i++) {
        unsigned kept = 0;
        struct fixture f;

        open_known(&f, FRAMES, 8, policy_named(resists[i]), &known);
        for (unsigned token = 0; token < 40; token++)
            for (unsigned l = 0; l < LAYERS; l++)
                use_layer(&f, l, 0, HOT / LAYERS);
        for (unsigned l = 0; l < LAYERS; l++)
            use_layer(&f, l, 0, STREAM);
        for (unsigned page = HOT;
             page-- > 0;) /* a miss may drive out others: the last ones first */
            kept += resident(&f, page);
        if (kept < HOT * 3 / 4)
            fail_msg("%s: %u of %u are left", resists[i], kept, HOT);
        close_pool(&f);
    }
}

/* A policy that writes down what it is told. */
static struct spy {
    struct policy policy;
    unsigned loaded[64], used[64], guesses, warm;
    bool fail;
} spy;

static int spy_open(struct policy **out, unsigned n_frames, uint64_t seed,
                    const struct policy_known *known, struct err *e)
{
    (void)n_frames, (void)known;
    assert_int_equal(seed, 1);
    if (spy.fail)
        return err_set(e, ERR_NOMEM, "policy spy");
    *out = &spy.policy;
    return 0;
}

static void spy_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    (void)p, (void)at;
    spy.loaded[frame]++;
    spy.used[frame] = 0;
    spy.guesses += kind == HINT_GUESS;
    spy.warm += kind == HINT_WARM;
}

static void spy_used(struct policy *p, unsigned frame)
{
    (void)p;
    spy.used[frame]++;
}

static unsigned spy_victim(struct policy *p, const uint64_t *free_to_go)
{
    (void)p;
    return (unsigned)__builtin_ctzll(free_to_go[0]);
}

static void spy_close(struct policy *p)
{
    (void)p;
}

static const struct policy_ops policy_spy = {
    .name = "spy",
    .open = spy_open,
    .loaded = spy_loaded,
    .used = spy_used,
    .victim = spy_victim,
    .close = spy_close,
};

/* A load counts for the pin that demanded it; a guess counts for none. */
static void the_policy_hears_of_every_use_once(void **state)
{
    struct fixture f;
    struct page page;

    (void)state;
    spy = (struct spy){.policy.ops = &policy_spy};
    open_with(&f, 2, 4, &policy_spy);
    page = pinned(&f, 0);
    assert_int_equal(spy.loaded[page.frame], 1);
    assert_int_equal(spy.used[page.frame], 0);
    use(&f, 0);
    assert_int_equal(spy.used[page.frame], 1);
    hint(&f, HINT_GUESS, 1, 2);
    assert_int_equal(spy.guesses, 1);
    use(&f, 1);
    assert_int_equal(spy.used[!page.frame], 1);
    hint(&f, HINT_SURE, 2, 3); /* takes the frame of 1 */
    assert_int_equal(spy.loaded[!page.frame], 2);
    use(&f, 2);
    assert_int_equal(spy.used[!page.frame], 0);
    pool_unpin(f.pool, &page);
    pool_purge(f.pool);
    assert_int_equal(warm(&f, 3, 4), 1);
    while (pool_idle(f.pool))
        ;
    assert_int_equal(spy.warm, 1);
    assert_int_equal(spy.guesses, 1);
    close_pool(&f);
}

static void opening_meets_every_failed_allocation(void **state)
{
    struct fixture f;
    struct pool_config cfg = {
        .io = &f.script.io, .frames = &f.frames, .policy = &policy_lfru, .depth = 4, .seed = 1};
    unsigned refused = 0;
    struct err e;

    (void)state;
    mem_init(&f.mem, 0);
    io_script_init(&f.script, 4, 1);
    assert_int_equal(frames_open(&f.frames, &f.mem, PAGE_BYTES, 10, &e), 0);
    for (unsigned nth = 1, failed = 1; failed; nth++) {
        int rc;

        f.pool = NULL;
        alloc_fault_arm(nth);
        rc = pool_open(&f.pool, &cfg, &e);
        failed = alloc_fault_disarm();
        if (rc) {
            assert_int_equal(rc, ERR_NOMEM);
            assert_null(f.pool);
            refused++;
        } else {
            use(&f, 0);
            pool_close(f.pool);
        }
    }
    assert_int_equal(refused, 8 + 5); /* the pool's own, and the policy's */
    cfg.depth = 0;
    assert_int_equal(pool_open(&f.pool, &cfg, &e), ERR_ARG);
    spy.fail = true;
    cfg.depth = 1;
    cfg.policy = &policy_spy;
    assert_int_equal(pool_open(&f.pool, &cfg, &e), ERR_NOMEM);
    assert_non_null(strstr(e.text, "spy"));
    frames_close(&f.frames);
}

static void bytes_can_be_touched_only_while_pinned(void **state)
{
    struct fixture f;
    struct page page;
    const uint8_t *bytes;

    (void)state;
    open_pool(&f, 1, 1);
    page = pinned(&f, 0);
    bytes = page.bytes;
    pool_unpin(f.pool, &page);
#ifdef HAVE_POISON
    assert_true(__asan_address_is_poisoned(bytes));
    assert_true(__asan_address_is_poisoned(bytes + PAGE_BYTES - 1));
    __asan_unpoison_memory_region(bytes, PAGE_BYTES);
#endif
    assert_true(io_script_check(bytes, extent_nth(0))); /* still there, for us who peek */
    pool_purge(f.pool);
#ifdef HAVE_POISON
    assert_true(__asan_address_is_poisoned(bytes));
    __asan_unpoison_memory_region(bytes, PAGE_BYTES);
#endif
#ifndef NDEBUG
    for (unsigned i = 0; i < PAGE_BYTES; i++)
        assert_int_equal(bytes[i], 0xa5);
#endif
    close_pool(&f);
#ifdef HAVE_POISON
    assert_false(__asan_address_is_poisoned(bytes)); /* the address may be mapped anew */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_read_once_and_fresh_once),
        cmocka_unit_test(extents_that_differ_in_anything_are_different_pages),
        cmocka_unit_test(a_page_in_memory_comes_before_one_that_is_waited_for),
        cmocka_unit_test(whichever_arrives_first_is_pinned_first),
        cmocka_unit_test(busy_means_every_frame_is_pinned),
        cmocka_unit_test(one_frame_is_enough),
        cmocka_unit_test(a_dropped_page_is_read_again),
        cmocka_unit_test(a_page_larger_than_a_frame_is_refused),
        cmocka_unit_test(hints_beyond_the_bound_are_dropped),
        cmocka_unit_test(trim_gives_the_last_frames_back_but_no_pinned_one),
        cmocka_unit_test(purge_forgets_everything_that_is_not_pinned),
        cmocka_unit_test(close_waits_for_reads_in_flight),
        cmocka_unit_test(a_stream_larger_than_the_pool_leaves_what_is_in_use),
        cmocka_unit_test(the_policy_hears_of_every_use_once),
        cmocka_unit_test(opening_meets_every_failed_allocation),
        cmocka_unit_test(bytes_can_be_touched_only_while_pinned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
