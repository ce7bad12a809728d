/* The pool's rules on an engine that the test drives; then everything at once, at random, on that
 * engine and on every real one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/file.h"
#include "storage/frames.h"
#include "storage/io.h"
#include "storage/page_index.h"
#include "storage/pool.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/io_fault.h"
#include "tests/support/io_script.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define HAVE_POISON 1
#endif

enum { PAGE_BYTES = 2 * IO_ALIGN };

struct fixture {
    struct mem mem;
    struct frames frames;
    struct io_script script;
    struct pool *pool;
};

static struct extent extent_nth(unsigned i)
{
    return (struct extent){.offset = (uint64_t)i * PAGE_BYTES, .length = PAGE_BYTES, .file = i % 3};
}

static void open_known(struct fixture *f, unsigned n_frames, unsigned depth,
                       const struct policy_ops *policy, const struct policy_known *known)
{
    struct pool_config cfg = {.io = &f->script.io,
                              .frames = &f->frames,
                              .policy = policy,
                              .depth = depth,
                              .seed = 1,
                              .known = *known};
    struct err e;

    mem_init(&f->mem, 0);
    io_script_init(&f->script, depth, 1);
    assert_int_equal(frames_open(&f->frames, &f->mem, PAGE_BYTES, n_frames, &e), 0);
    assert_int_equal(pool_open(&f->pool, &cfg, &e), 0);
}

static void open_with(struct fixture *f, unsigned n_frames, unsigned depth,
                      const struct policy_ops *policy)
{
    open_known(f, n_frames, depth, policy, &(struct policy_known){.n_files = 3});
}

static void open_pool(struct fixture *f, unsigned n_frames, unsigned depth)
{
    open_with(f, n_frames, depth, &policy_lru);
}

static void close_pool(struct fixture *f)
{
    pool_close(f->pool);
    frames_close(&f->frames);
    assert_int_equal(f->mem.used_total, 0);
}

static struct page pinned(struct fixture *f, unsigned i)
{
    struct page page;
    struct err e;

    if (pool_pin(f->pool, extent_nth(i), &page, &e))
        fail_msg("%s", e.text);
    assert_true(io_script_check(page.bytes, extent_nth(i)));
    return page;
}

static void use(struct fixture *f, unsigned i)
{
    struct page page = pinned(f, i);

    pool_unpin(f->pool, &page);
}

static void hint(struct fixture *f, enum hint kind, unsigned from, unsigned to)
{
    struct extent want[POOL_HINT_MAX + 8];

    assert_true(to - from <= POOL_HINT_MAX + 8);
    for (unsigned i = from; i < to; i++)
        want[i - from] = extent_nth(i);
    pool_hint(f->pool, want, to - from, kind);
}

static unsigned warm(struct fixture *f, unsigned from, unsigned to)
{
    struct extent want[64];

    assert_true(to - from <= 64);
    for (unsigned i = from; i < to; i++)
        want[i - from] = extent_nth(i);
    return pool_warm(f->pool, want, to - from);
}

/* A layer of a pass: pages [from, to) of file `layer`, a sure hint for all, then pins. */
static void use_layer(struct fixture *f, unsigned layer, unsigned from, unsigned to)
{
    struct extent want[POOL_HINT_MAX];
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

/* Whether this read, counted from 0, was of page i. */
static bool read_was(const struct fixture *f, unsigned nth, unsigned i)
{
    return nth < f->script.n_reads && extent_equal(f->script.log[nth], extent_nth(i));
}

/* Whether page i is in memory or on its way: pinning it starts no read. */
static bool resident(struct fixture *f, unsigned i)
{
    unsigned before = f->script.n_reads;

    use(f, i);
    return f->script.n_reads == before;
}

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

static void a_hint_starts_its_reads_and_the_pin_finds_them(void **state)
{
    struct fixture f;
    struct pool_stats s;

    (void)state;
    open_pool(&f, 8, 8);
    f.script.held = true;
    hint(&f, HINT_SURE, 0, 3);
    hint(&f, HINT_GUESS, 3, 5);
    assert_int_equal(f.script.n_reads, 3); /* guesses wait until what is sure has come in */
    for (unsigned i = 0; i < 3; i++)
        assert_true(io_script_finish(&f.script, extent_nth(i)));
    use(&f, 0);
    assert_int_equal(f.script.n_reads, 5);
    for (unsigned i = 3; i < 5; i++)
        assert_true(io_script_finish(&f.script, extent_nth(i)));
    for (unsigned i = 1; i < 5; i++)
        use(&f, i);
    assert_int_equal(f.script.n_reads, 5);
    assert_int_equal(f.script.n_waits, 0);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.misses, 3); /* demanded: hinting early is not a hit */
    assert_int_equal(s.hits_guess, 2);
    assert_int_equal(s.bytes, 5 * PAGE_BYTES);
    assert_int_equal(s.bytes_guess, 2 * PAGE_BYTES);
    close_pool(&f);
}

static void no_guess_starts_while_a_sure_read_waits_for_the_queue(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 16, 2);
    f.script.held = true;
    hint(&f, HINT_GUESS, 10, 11);
    hint(&f, HINT_GUESS, 10, 13); /* 11 fills the queue, 12 waits */
    assert_int_equal(f.script.n_reads, 2);
    hint(&f, HINT_SURE, 0, 3); /* and 12 is forgotten */
    hint(&f, HINT_GUESS, 20, 21);
    assert_int_equal(f.script.n_reads, 2);
    io_script_finish(&f.script, extent_nth(10));
    use(&f, 10);
    assert_true(read_was(&f, 2, 0)); /* sure before guesses */
    io_script_finish(&f.script, extent_nth(11));
    use(&f, 11);
    assert_true(read_was(&f, 3, 1));
    assert_int_equal(f.script.n_reads, 4);
    use(&f, 0); /* waits; then there is room for the last sure one */
    assert_true(read_was(&f, 4, 2));
    use(&f, 1);
    assert_int_equal(f.script.n_reads, 5);
    use(&f, 2);
    assert_true(read_was(&f, 5, 20));
    assert_false(resident(&f, 12));
    close_pool(&f);
}

static void no_guess_starts_while_a_sure_read_waits_for_a_frame(void **state)
{
    struct fixture f;
    struct page a, b;

    (void)state;
    open_pool(&f, 3, 4);
    a = pinned(&f, 0);
    b = pinned(&f, 1);
    hint(&f, HINT_SURE, 2, 4); /* 2 takes the last frame, 3 waits */
    hint(&f, HINT_GUESS, 20, 22);
    assert_int_equal(f.script.n_reads, 3);
    pool_unpin(f.pool, &a);
    assert_true(read_was(&f, 3, 3));
    assert_int_equal(f.script.n_reads, 4);
    pool_unpin(f.pool, &b); /* in demand since the sure hint: not for guesses */
    assert_int_equal(f.script.n_reads, 4);
    close_pool(&f);
}

static void a_pin_goes_before_hinted_reads(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 8, 1);
    f.script.held = true;
    hint(&f, HINT_SURE, 0, 4); /* 0 is in flight, the rest waits */
    use(&f, 9);
    assert_true(read_was(&f, 0, 0));
    assert_true(read_was(&f, 1, 9));
    close_pool(&f);
}

static void a_guess_evicts_nothing_pinned_wanted_or_lately_used(void **state)
{
    struct fixture f;
    struct page page;

    (void)state;
    open_pool(&f, 4, 8);
    use(&f, 0);
    page = pinned(&f, 1);
    use(&f, 2);
    hint(&f, HINT_SURE, 2, 3); /* 2 is wanted; 0 was used before this hint */
    use(&f, 3);                /* and 3 after it */
    hint(&f, HINT_GUESS, 10, 14);
    assert_int_equal(f.script.n_reads, 5); /* one, in place of 0 */
    assert_true(read_was(&f, 4, 10));
    hint(&f, HINT_GUESS, 20, 21); /* the guess before is no longer asked for */
    assert_true(read_was(&f, 5, 20));
    assert_true(resident(&f, 20));
    assert_true(resident(&f, 2));
    assert_true(resident(&f, 3));
    pool_unpin(f.pool, &page);
    assert_true(resident(&f, 1));
    close_pool(&f);
}

static void a_page_pinned_across_a_sure_hint_is_lately_used(void **state)
{
    struct fixture f;
    struct page page;

    (void)state;
    open_pool(&f, 1, 4);
    page = pinned(&f, 0);
    hint(&f, HINT_SURE, 0, 0);
    pool_unpin(f.pool, &page);
    hint(&f, HINT_GUESS, 10, 11);
    assert_int_equal(f.script.n_reads, 1);
    hint(&f, HINT_SURE, 0, 0);
    hint(&f, HINT_GUESS, 10, 11);
    assert_true(read_was(&f, 1, 10));
    close_pool(&f);
}

static void guesses_do_not_evict_each_other(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 3, 8);
    hint(&f, HINT_GUESS, 0, 8);
    for (unsigned i = 0; i < 4; i++)
        hint(&f, HINT_SURE, 0, 0); /* any call may collect and start */
    assert_int_equal(f.script.n_reads, 3);
    for (unsigned i = 0; i < 3; i++)
        assert_true(resident(&f, i));
    close_pool(&f);
}

static void a_sure_page_is_kept_until_it_is_pinned(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 3, 4);
    use(&f, 0);
    hint(&f, HINT_SURE, 0, 1);
    for (unsigned i = 10; i < 20; i++)
        use(&f, i); /* LRU alone would have thrown 0 out */
    assert_true(resident(&f, 0));
    for (unsigned i = 10; i < 20; i++)
        use(&f, i);
    assert_false(resident(&f, 0)); /* once pinned, it is a page like any other */
    close_pool(&f);
}

static void a_sure_page_leaves_when_a_pin_finds_no_other_frame(void **state)
{
    struct fixture f;
    struct page page;

    (void)state;
    open_pool(&f, 2, 4);
    use(&f, 0);
    page = pinned(&f, 1);
    hint(&f, HINT_SURE, 0, 1);
    use(&f, 5);
    pool_unpin(f.pool, &page);
    assert_false(resident(&f, 0));
    close_pool(&f);
}

static void sure_reads_do_not_evict_each_other(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 3, 8);
    hint(&f, HINT_SURE, 0, 8);
    assert_int_equal(f.script.n_reads, 3);
    for (unsigned i = 0; i < 8; i++)
        use(&f, i);
    assert_int_equal(f.script.n_reads, 8); /* each once, though there were three frames */
    close_pool(&f);
}

static void a_new_hint_replaces_the_last_of_its_kind(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 8, 1);
    f.script.held = true;
    hint(&f, HINT_SURE, 0, 4);
    hint(&f, HINT_GUESS, 10, 14);
    hint(&f, HINT_SURE, 5, 6);
    hint(&f, HINT_GUESS, 20, 21);
    use(&f, 0);
    use(&f, 5);
    use(&f, 20);
    use(&f, 30);
    assert_int_equal(f.script.n_reads, 4);
    assert_true(read_was(&f, 1, 5));
    assert_true(read_was(&f, 2, 20));
    close_pool(&f);
}

static void a_pin_fulfils_the_wish_for_its_page(void **state)
{
    struct fixture f;
    struct page other;

    (void)state;
    open_pool(&f, 2, 1);
    other = pinned(&f, 9);
    hint(&f, HINT_SURE, 0, 2); /* 0 gets the last frame, 1 waits */
    use(&f, 1);                /* out of turn, in the frame of 0 */
    pool_unpin(f.pool, &other);
    use(&f, 9);
    use(&f, 8);
    assert_true(resident(&f, 9)); /* 1 was older and is no longer protected */
    assert_int_equal(f.script.n_reads, 4);
    close_pool(&f);
}

static void a_pin_that_waits_for_the_queue_goes_before_guesses(void **state)
{
    struct extent want[] = {extent_nth(0), extent_nth(1)};
    struct fixture f;
    struct page page;
    struct err e;
    unsigned which;

    (void)state;
    open_pool(&f, 8, 4);
    f.script.take_max = 1;
    f.script.held = true;
    hint(&f, HINT_GUESS, 20, 23); /* 20 is taken */
    assert_int_equal(pool_pin_any(f.pool, want, 2, &which, &page, &e), 0);
    pool_unpin(f.pool, &page);
    assert_true(read_was(&f, 0, 20));
    assert_true(read_was(&f, 1, 0));
    assert_true(read_was(&f, 2, 1));
    close_pool(&f);
}

static void a_guess_that_a_pin_waits_for_is_demand(void **state)
{
    struct fixture f;
    struct page page;
    struct err e;

    (void)state;
    open_pool(&f, 4, 4);
    f.script.held = true;
    f.script.fail_nth = 1;
    hint(&f, HINT_GUESS, 0, 1);
    assert_int_equal(pool_pin(f.pool, extent_nth(0), &page, &e), ERR_IO);
    use(&f, 0);
    assert_int_equal(f.script.n_reads, 2);
    close_pool(&f);
}

static void a_guess_on_its_way_is_taken_over_by_a_sure_hint(void **state)
{
    struct fixture f;
    struct pool_stats s;
    struct page page;
    struct err e;

    (void)state;
    open_pool(&f, 4, 4);
    f.script.held = true;
    hint(&f, HINT_GUESS, 0, 2);
    f.script.fail_nth = 2;
    hint(&f, HINT_SURE, 0, 2);
    assert_int_equal(f.script.n_reads, 2);
    use(&f, 0);
    assert_int_equal(pool_pin(f.pool, extent_nth(1), &page, &e), ERR_IO); /* demand now */
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.hits_guess, 1);
    assert_int_equal(f.script.n_reads, 2);
    close_pool(&f);
}

static void a_failed_guess_costs_nothing(void **state)
{
    struct fixture f;
    struct pool_stats s;

    (void)state;
    open_pool(&f, 4, 4);
    f.script.fail_nth = 1;
    hint(&f, HINT_GUESS, 0, 1);
    use(&f, 1);
    use(&f, 0); /* read again, as demand */
    assert_int_equal(f.script.n_failed, 1);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.misses, 2);
    assert_int_equal(s.bytes, 2 * PAGE_BYTES);
    assert_int_equal(s.bytes_guess, 0);
    close_pool(&f);
}

/* Pin a page whose read fails once, or each time; how often it was read. */
static unsigned reads_of_a_bad_page(struct io_fault *fault, enum io_fault_kind kind, bool always,
                                    int code)
{
    struct fixture f = {.pool = NULL};
    struct pool_config cfg = {.io = &fault->io,
                              .frames = &f.frames,
                              .policy = &policy_lru,
                              .depth = 4,
                              .retries = POOL_RETRIES};
    struct pool_stats s;
    struct page page;
    unsigned n_reads;
    struct err e;

    io_script_init(&f.script, 4, 1);
    io_fault_init(fault, &f.script.io);
    fault->kind = kind;
    fault->again = always;
    fault->fail_nth = 2;
    mem_init(&f.mem, 0);
    assert_int_equal(frames_open(&f.frames, &f.mem, PAGE_BYTES, 4, &e), 0);
    assert_int_equal(pool_open(&f.pool, &cfg, &e), 0);
    hint(&f, HINT_SURE, 0, 3);
    assert_int_equal(pool_pin(f.pool, extent_nth(1), &page, &e), code);
    if (!code)
        pool_unpin(f.pool, &page);
    use(&f, 0);
    use(&f, 2);
    n_reads = fault->n_reads - 2;
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.retries, n_reads - 1);
    assert_int_equal(s.failed, code != 0);
    fault->again = false;
    use(&f, 1);
    close_pool(&f);
    return n_reads;
}

static void a_read_that_fails_is_retried_so_often_and_no_more(void **state)
{
    struct io_fault fault;

    (void)state;
    assert_int_equal(reads_of_a_bad_page(&fault, IO_FAULT_ERROR, false, 0), 2);
    assert_int_equal(reads_of_a_bad_page(&fault, IO_FAULT_ERROR, true, ERR_IO), 1 + POOL_RETRIES);
    assert_int_equal(reads_of_a_bad_page(&fault, IO_FAULT_SHORT, true, ERR_IO), 1); /* the end */
}

/* Fail the 1st read, then the 2nd, ... until a run meets no failure. */
static void a_failed_read_is_reported_once_and_leaves_the_pool_usable(void **state)
{
    struct fixture f;

    (void)state;
    for (unsigned order = IO_SCRIPT_FIRST; order <= IO_SCRIPT_RANDOM; order++)
        for (unsigned hinted = 0; hinted < 2; hinted++)
            for (unsigned nth = 1, failed = 1; failed; nth++) {
                struct extent want[6];
                unsigned n = 6, which = 77;

                open_pool(&f, 4, 3);
                f.script.order = order;
                f.script.fail_nth = nth;
                f.script.fail_status = -ENODEV;
                failed = 0;
                for (unsigned i = 0; i < n; i++)
                    want[i] = extent_nth(i);
                if (hinted)
                    pool_hint(f.pool, want, n, HINT_SURE);
                while (n) {
                    struct page page;
                    struct err e;

                    if (pool_pin_any(f.pool, want, n, &which, &page, &e)) {
                        char text[96];

                        snprintf(text, sizeof(text), "read of 8192 bytes at %u: %s",
                                 (unsigned)want[which].offset, strerror(ENODEV));
                        assert_int_equal(e.code, ERR_IO);
                        assert_string_equal(e.text, text);
                        assert_int_equal(++failed, 1); /* that one read and no other */
                        continue;                      /* the same again: it is read again */
                    }
                    assert_true(io_script_check(page.bytes, want[which]));
                    pool_unpin(f.pool, &page);
                    want[which] = want[--n];
                }
                assert_int_equal(failed, f.script.n_failed);
                assert_int_equal(f.script.n_reads, 6 + failed);
                close_pool(&f);
            }
}

/* A bank cut short by another program must not look like a dying disk. */
static void the_end_of_a_file_is_reported_as_such(void **state)
{
    struct fixture f;
    struct page page;
    struct err e;

    (void)state;
    open_pool(&f, 2, 2);
    f.script.fail_nth = 1;
    f.script.fail_status = -ENODATA;
    assert_int_equal(pool_pin(f.pool, extent_nth(3), &page, &e), ERR_IO);
    assert_string_equal(e.text, "read of 8192 bytes at 24576: the file ended before byte 32768");
    use(&f, 3);
    close_pool(&f);
}

static void failures_nobody_asks_about_hold_no_frames(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 2, 2);
    f.script.fail_nth = 1;
    hint(&f, HINT_SURE, 0, 1);
    use(&f, 5);
    use(&f, 6); /* only one frame is left: it takes turns */
    hint(&f, HINT_SURE, 7, 9);
    use(&f, 7);
    use(&f, 8);
    f.script.fail_nth = f.script.n_reads + 1;
    hint(&f, HINT_SURE, 0, 1);
    {
        struct page a = pinned(&f, 10), b = pinned(&f, 11); /* the failure gives way */

        pool_unpin(f.pool, &a);
        pool_unpin(f.pool, &b);
    }
    assert_int_equal(f.script.n_failed, 2);
    use(&f, 0);
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

static void an_engine_that_takes_less_than_it_should_is_fed_again(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 8, 4);
    f.script.take_max = 1;
    f.script.held = true;
    hint(&f, HINT_SURE, 0, 6);
    assert_int_equal(f.script.n_reads, 1);
    hint(&f, HINT_GUESS, 10, 12);
    assert_int_equal(f.script.n_reads, 2); /* and no guess before the last sure one */
    for (unsigned i = 0; i < 6; i++)
        use(&f, i);
    for (unsigned i = 0; i < 6; i++)
        assert_true(read_was(&f, i, i));
    use(&f, 10);
    use(&f, 11);
    assert_int_equal(f.script.n_reads, 8);
    close_pool(&f);
}

static void an_engine_that_takes_nothing_is_an_error_and_no_endless_loop(void **state)
{
    struct extent at = extent_nth(0);
    struct fixture f;
    struct page page;
    struct err e;
    unsigned which = 9;

    (void)state;
    open_pool(&f, 2, 2);
    f.script.depth = 0;
    hint(&f, HINT_SURE, 0, 2);
    assert_int_equal(pool_pin_any(f.pool, &at, 1, &which, &page, &e), ERR_IO);
    assert_int_equal(which, 9); /* no page's fault */
    assert_non_null(strstr(e.text, "takes no reads"));
    f.script.depth = 2;
    use(&f, 0);
    close_pool(&f);
}

/* Every pin is in one bucket, early or late; every guess that was read is used, wasted or there. */
static void pins_and_guesses_are_told_apart(void **state)
{
    struct fixture f;
    struct pool_stats s;

    (void)state;
    open_pool(&f, 4, 8);
    f.script.held = true;
    f.script.order = IO_SCRIPT_LAST;
    hint(&f, HINT_GUESS, 2, 4);
    hint(&f, HINT_SURE, 0, 2);
    io_script_finish(&f.script, extent_nth(0));
    io_script_finish(&f.script, extent_nth(2));
    use(&f, 0); /* read in time */
    use(&f, 1); /* waited for */
    use(&f, 2); /* a guess, in time */
    use(&f, 3); /* a guess, late */
    use(&f, 3);
    use(&f, 9); /* nobody had asked */
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.misses, 3);
    assert_int_equal(s.late_miss, 2);
    assert_int_equal(s.hits_guess, 2);
    assert_int_equal(s.late_guess, 1);
    assert_int_equal(s.hits_resident, 1);
    assert_int_equal(s.guesses, 2);
    assert_int_equal(s.wasted, 0);
    hint(&f, HINT_SURE, 0, 0);
    hint(&f, HINT_GUESS, 20, 21);
    pool_purge(f.pool);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.guesses, 3);
    assert_int_equal(s.hits_guess, 2);
    assert_int_equal(s.wasted, 1);
    assert_true(s.wait_ns <= s.flight_ns);
    close_pool(&f);
}

static void as_many_guesses_are_begun_as_come_in_time(void **state)
{
    static const unsigned in_time[] = {2, 2, 0, 0, 8, 8, 8}, begun[] = {8, 3, 3, 1, 1, 2, 3};
    struct fixture f;

    (void)state;
    open_pool(&f, 64, 8);
    f.script.held = true;
    for (unsigned round = 0; round < 7; round++) {
        unsigned first = 100 * round, before = f.script.n_reads;

        hint(&f, HINT_GUESS, first, first + 20);
        assert_int_equal(f.script.n_reads - before, begun[round]);
        for (unsigned i = 0; i < in_time[round] && i < begun[round]; i++)
            assert_true(io_script_finish(&f.script, extent_nth(first + i)));
        hint(&f, HINT_SURE, 0, 0);
        for (unsigned i = in_time[round]; i < begun[round]; i++) /* too late */
            assert_true(io_script_finish(&f.script, extent_nth(first + i)));
        hint(&f, HINT_SURE, 0, 0);
    }
    close_pool(&f);
}

/* One layer and the guesses for the next, of which `right` of 4 are right; returns the reads that
 * guessing began. Pages are always new. */
static unsigned guess_round(struct fixture *f, unsigned right)
{
    static unsigned page = 1000;
    unsigned before = f->script.n_reads, began;

    hint(f, HINT_GUESS, page, page + 4);
    began = f->script.n_reads - before;
    hint(f, HINT_SURE, page + 4 - right, page + 8 - right);
    for (unsigned i = 0; i < 4; i++)
        use(f, page + 4 - right + i);
    page += 8;
    return began;
}

static void useless_guessing_switches_itself_off_and_tries_again(void **state)
{
    struct fixture f;
    struct pool_stats s;
    unsigned rounds = 0;

    (void)state;
    open_pool(&f, 64, 16);
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(guess_round(&f, 1), 4); /* a quarter is right: worth it */
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.refused, 0);
    while (guess_round(&f, 0))
        rounds++;
    assert_in_range(rounds, 1, POOL_TRIAL / 4); /* the verdict comes every POOL_TRIAL guesses */
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.refused, 4);
    for (rounds = 1; !guess_round(&f, 4); rounds++) /* they would be right by now, unseen */
        ;
    assert_int_equal(rounds, POOL_REFUSED / 4);
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(guess_round(&f, 4), 4); /* and the trial is passed */
    close_pool(&f);
}

static void pages_are_warmed_in_order_with_half_of_the_queue(void **state)
{
    struct fixture f;
    struct pool_stats s;

    (void)state;
    open_pool(&f, 8, 4);
    f.script.held = true;
    assert_int_equal(warm(&f, 0, 6), 6);
    assert_int_equal(f.script.n_reads, 0); /* asking reads nothing */
    assert_true(pool_idle(f.pool));
    assert_int_equal(f.script.n_reads, 2);
    assert_true(read_was(&f, 0, 0) && read_was(&f, 1, 1));
    assert_true(pool_idle(f.pool)); /* one had come in */
    assert_int_equal(f.script.n_reads, 3);
    while (pool_idle(f.pool))
        ;
    assert_int_equal(f.script.n_reads, 6);
    for (unsigned i = 0; i < 6; i++)
        assert_true(resident(&f, i));
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.warm, 6);
    assert_int_equal(s.guesses, 6);
    assert_int_equal(s.hits_warm, 6);
    assert_int_equal(s.hits_guess, 6);
    close_pool(&f);
}

/* The list is longer than the pool, and the pool has pages already. */
static void warming_takes_free_frames_and_ends_with_them(void **state)
{
    struct fixture f;
    struct pool_stats s;
    struct page page;

    (void)state;
    open_pool(&f, 4, 4);
    use(&f, 50);
    hint(&f, HINT_SURE, 0, 0); /* 50 was not used lately any more: a guess could have its frame */
    assert_int_equal(warm(&f, 0, 6), 4);
    while (pool_idle(f.pool))
        ;
    assert_int_equal(f.script.n_reads, 1 + 3);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.evictions, 0);
    page = pinned(&f, 50);
    pool_drop(f.pool, &page); /* a frame is free again, too late */
    assert_false(pool_idle(f.pool));
    assert_int_equal(f.script.n_reads, 1 + 3);
    assert_true(resident(&f, 0));
    assert_true(resident(&f, 2));
    assert_false(resident(&f, 3));
    close_pool(&f);
}

static void nothing_is_warmed_before_what_is_sure_or_guessed(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 32, 8);
    f.script.held = true;
    warm(&f, 20, 22);
    hint(&f, HINT_SURE, 0, 2);
    hint(&f, HINT_GUESS, 10, 12);
    assert_int_equal(f.script.n_reads, 2);
    use(&f, 0);
    assert_int_equal(f.script.n_reads, 2); /* 1 is on its way */
    use(&f, 1);
    assert_int_equal(f.script.n_reads, 2 + 2 + 2);
    assert_true(read_was(&f, 2, 10) && read_was(&f, 3, 11) && read_was(&f, 4, 20));
    close_pool(&f);
}

/* Guesses and warm pages share what came in lately between two sure hints. */
static void warming_keeps_the_pace_of_guesses(void **state)
{
    struct fixture f;

    (void)state;
    open_pool(&f, 64, 16);
    f.script.held = true;
    warm(&f, 100, 140);
    hint(&f, HINT_SURE, 0, 0); /* 8 are begun: half of the queue */
    assert_int_equal(f.script.n_reads, 8);
    for (unsigned i = 100; i < 103; i++)
        assert_true(io_script_finish(&f.script, extent_nth(i)));
    hint(&f, HINT_SURE, 0, 0); /* 3 had come in and 5 not: 4 at a time now, and 3 more have room */
    assert_int_equal(f.script.n_reads, 8 + 3);
    for (unsigned i = 103; i < 111; i++)
        assert_true(io_script_finish(&f.script, extent_nth(i)));
    hint(&f, HINT_GUESS, 0, 3);
    assert_int_equal(f.script.n_reads, 8 + 3 + 4); /* 3 guesses, and one page is warmed */
    assert_true(io_script_in_flight(&f.script, extent_nth(2)));
    assert_true(io_script_in_flight(&f.script, extent_nth(111)));
    close_pool(&f);
}

static void useless_warming_does_not_count_against_guesses(void **state)
{
    struct fixture f;
    struct pool_stats s;

    (void)state;
    open_pool(&f, POOL_TRIAL + 72, 16);
    for (unsigned i = 0; i < POOL_TRIAL; i += 64) {
        warm(&f, i, i + 64);
        while (pool_idle(f.pool))
            ;
    }
    pool_purge(f.pool);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.warm, POOL_TRIAL);
    assert_int_equal(s.wasted, POOL_TRIAL);
    assert_int_equal(guess_round(&f, 1), 4);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.refused, 0);
    close_pool(&f);
}

static void a_warm_page_on_its_way_becomes_demand_and_a_failed_one_is_forgotten(void **state)
{
    struct fixture f;
    struct pool_stats s;

    (void)state;
    open_pool(&f, 4, 4);
    f.script.held = true;
    f.script.fail_nth = 1;
    warm(&f, 0, 2);
    assert_true(pool_idle(f.pool)); /* begins both; 0 fails */
    assert_int_equal(f.script.n_failed, 1);
    use(&f, 1);
    assert_int_equal(f.script.n_reads, 2);
    use(&f, 0);
    assert_int_equal(f.script.n_reads, 3);
    pool_get_stats(f.pool, &s);
    assert_int_equal(s.late_guess, 1);
    assert_int_equal(s.hits_warm, 1);
    assert_int_equal(s.misses, 1);
    close_pool(&f);
}

/* Everything that ends a list: another one, and a purge. Pages that no frame holds are left out. */
static void a_new_list_replaces_the_old_and_a_purge_ends_it(void **state)
{
    struct extent large = {.length = PAGE_BYTES + IO_ALIGN};
    struct fixture f;

    (void)state;
    open_pool(&f, 8, 4);
    assert_int_equal(pool_warm(f.pool, &large, 1), 0);
    warm(&f, 0, 4);
    warm(&f, 4, 6);
    while (pool_idle(f.pool))
        ;
    assert_int_equal(f.script.n_reads, 2);
    assert_true(read_was(&f, 0, 4) && read_was(&f, 1, 5));
    warm(&f, 0, 4);
    pool_purge(f.pool);
    assert_false(pool_idle(f.pool));
    assert_int_equal(f.script.n_reads, 2);
    close_pool(&f);
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

static unsigned random_below(uint64_t *x, unsigned n)
{
    *x = *x * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((*x >> 32) * n) >> 32);
}

/* Against a list, full and empty in turn. What leaves must not hide what its search would pass. */
static void the_index_finds_what_is_in_it_and_nothing_else(void **state)
{
    enum { ALL = 256 };
    (void)state;
    for (uint32_t n_max = 1; n_max <= 64; n_max += n_max < 5 ? 1 : 59) {
        struct page_index index;
        bool in[ALL] = {false};
        uint32_t n_in = 0;
        uint64_t random = n_max;

        assert_true(page_index_init(&index, n_max));
        for (unsigned step = 0; step < 20000; step++) {
            unsigned i = random_below(&random, ALL);
            bool filling = step / 500 % 2 == 0;

            if (in[i] && (!filling || n_in == n_max)) {
                page_index_remove(&index, extent_nth(i));
                in[i] = false;
                n_in--;
            } else if (!in[i] && filling && n_in < n_max) {
                page_index_add(&index, extent_nth(i), i + 7);
                in[i] = true;
                n_in++;
            }
            for (unsigned k = i; k < i + 16; k++)
                assert_int_equal(page_index_find(&index, extent_nth(k % ALL)),
                                 in[k % ALL] ? k % ALL + 7 : NO_FRAME);
        }
        page_index_release(&index);
    }
}

/* ---- everything at once: random calls against what must be true of each answer ---- */

enum { N_EXTENTS = 48, N_FILES = 2, HELD_MAX = 12, STRESS_DEPTH = 6, STRESS_FRAMES = 10 };

struct tap { /* between the pool and an engine: counts the reads of each extent */
    struct io io;
    struct io *inner;
    unsigned depth, in_flight, n_errors;
    unsigned n_reads[N_EXTENTS];
    uint64_t bytes;
};

static struct extent stress_extent(unsigned i)
{
    static const uint8_t pages[] = {4, 1, 3, 4, 2};
    struct extent at = {.file = i % N_FILES, .length = pages[i % 5] * IO_ALIGN};

    at.offset = (uint64_t)(i / N_FILES) * 4 * IO_ALIGN;
    return at;
}

static unsigned stress_index(struct extent at)
{
    return (unsigned)(at.offset / (4 * IO_ALIGN)) * N_FILES + at.file;
}

static unsigned tap_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct tap *t = (struct tap *)io;
    unsigned taken = t->inner->ops->submit(t->inner, reads, n);

    for (unsigned i = 0; i < taken; i++)
        t->n_reads[stress_index(reads[i]->at)]++;
    t->in_flight += taken;
    assert_true(t->in_flight <= t->depth);
    return taken;
}

static unsigned tap_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct tap *t = (struct tap *)io;
    unsigned n = t->inner->ops->reap(t->inner, done, max, wait);

    for (unsigned i = 0; i < n; i++) {
        t->n_errors += done[i]->status != 0;
        t->bytes += done[i]->status ? 0 : done[i]->at.length;
    }
    t->in_flight -= n;
    return n;
}

static const struct io_ops tap_ops = {.name = "tap", .submit = tap_submit, .reap = tap_reap};

struct stress {
    struct tap tap;
    struct io_fault fault;
    struct mem mem;
    struct frames frames;
    struct pool *pool;
    uint64_t random;
    unsigned n_pins, n_reported;
    unsigned reads_at_pin[N_EXTENTS]; /* reads of it when it was pinned last */
    unsigned n_held;
    struct held {
        struct page page;
        unsigned extent;
    } held[HELD_MAX];
};

static unsigned below(struct stress *s, unsigned n)
{
    s->random = s->random * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((s->random >> 32) * n) >> 32);
}

static unsigned some_extents(struct stress *s, struct extent *want, unsigned most)
{
    unsigned n = below(s, most + 1), from = below(s, N_EXTENTS);

    for (unsigned i = 0; i < n; i++) /* half from a neighbourhood, half from anywhere */
        want[i] =
            stress_extent(below(s, 2) ? (from + below(s, 8)) % N_EXTENTS : below(s, N_EXTENTS));
    return n;
}

static unsigned frames_held(const struct stress *s)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n_held; i++) {
        bool again = false;

        for (unsigned j = 0; j < i; j++)
            again |= s->held[j].page.frame == s->held[i].page.frame;
        n += !again;
    }
    return n;
}

static void stress_pin(struct stress *s)
{
    struct extent want[6];
    unsigned n = some_extents(s, want, 6), which = 99, x;
    struct page page;
    struct err e;

    if (!n || s->n_held == HELD_MAX)
        return;
    if (pool_pin_any(s->pool, want, n, &which, &page, &e)) {
        if (e.code == ERR_BUSY) {
            assert_int_equal(frames_held(s), pool_frames(s->pool));
        } else {
            assert_int_equal(e.code, ERR_IO);
            assert_true(which < n);
            assert_true(++s->n_reported <= s->tap.n_errors);
        }
        return;
    }
    s->n_pins++;
    assert_true(which < n);
    assert_true(io_script_check(page.bytes, want[which]));
    x = stress_index(want[which]);
    assert_int_equal(page.fresh, s->reads_at_pin[x] != s->tap.n_reads[x]);
    s->reads_at_pin[x] = s->tap.n_reads[x];
    s->held[s->n_held++] = (struct held){.page = page, .extent = x};
}

static void stress_give_back(struct stress *s, bool drop)
{
    unsigned i;

    if (!s->n_held)
        return;
    i = below(s, s->n_held);
    assert_true(io_script_check(s->held[i].page.bytes, stress_extent(s->held[i].extent)));
    (drop ? pool_drop : pool_unpin)(s->pool, &s->held[i].page);
    s->held[i] = s->held[--s->n_held];
}

static void stress_step(struct stress *s)
{
    struct extent want[16];
    unsigned n, what = below(s, 100);

    if (what < 10) {
        n = some_extents(s, want, 8);
        pool_hint(s->pool, want, n, HINT_SURE);
    } else if (what < 20) {
        n = some_extents(s, want, 16);
        pool_hint(s->pool, want, n, HINT_GUESS);
    } else if (what < 22) {
        n = some_extents(s, want, 16);
        pool_warm(s->pool, want, n);
    } else if (what < 24) {
        pool_idle(s->pool);
    } else if (what < 60) {
        stress_pin(s);
    } else if (what < 97) {
        stress_give_back(s, false);
    } else if (what < 99) {
        stress_give_back(s, true);
    } else if (below(s, 4) == 0) {
        pool_purge(s->pool);
    }
    if (s->fault.fail_nth <= s->fault.n_reads && !s->fault.victim)
        s->fault.fail_nth = s->fault.n_reads + 1 + below(s, 60);
    for (unsigned i = 0; i < s->n_held; i++)
        assert_true(io_script_check(s->held[i].page.bytes, stress_extent(s->held[i].extent)));
}

/* io: the engine, opened for STRESS_DEPTH reads, and the frames as its arena. */
static void stress(struct stress *s, struct io *io, const struct policy_ops *policy, unsigned steps)
{
    struct pool_config cfg = {.io = &s->tap.io,
                              .frames = &s->frames,
                              .policy = policy,
                              .depth = STRESS_DEPTH,
                              .retries = below(s, 2),
                              .seed = s->random};
    struct pool_stats stats;
    struct err e;

    io_fault_init(&s->fault, io);
    s->fault.kind = below(s, 2) ? IO_FAULT_ERROR : IO_FAULT_SHORT;
    s->tap.io.ops = &tap_ops;
    s->tap.inner = &s->fault.io;
    s->tap.depth = STRESS_DEPTH;
    assert_int_equal(pool_open(&s->pool, &cfg, &e), 0);
    alloc_fault_arm(1000000000);
    for (unsigned i = 0; i < steps; i++) {
        stress_step(s);
        if (i == steps / 2 || i == steps * 3 / 4)
            pool_trim(s->pool, s->frames.frame_bytes * 4, 2);
    }
    alloc_fault_disarm();
    assert_int_equal(alloc_fault_seen(), 0); /* nothing is allocated after open */
    while (s->n_held)
        stress_give_back(s, false);
    pool_get_stats(s->pool, &stats);
    assert_int_equal(stats.hits_resident + stats.hits_guess + stats.misses, s->n_pins);
    assert_int_equal(stats.bytes, s->tap.bytes);
    assert_true(stats.bytes_guess && stats.bytes_guess < stats.bytes);
    assert_true(stats.hits_resident && stats.hits_guess && stats.misses && stats.evictions);
    if (cfg.retries && s->fault.kind == IO_FAULT_ERROR)
        assert_true(stats.retries && !s->n_reported);
    else
        assert_true(s->n_reported);
    pool_close(s->pool);
    assert_int_equal(s->tap.in_flight, 0);
}

static void stress_frames(struct stress *s, uint64_t seed)
{
    struct err e;

    memset(s, 0, sizeof(*s));
    s->random = seed;
    mem_init(&s->mem, 0);
    assert_int_equal(frames_open(&s->frames, &s->mem, 4 * IO_ALIGN, STRESS_FRAMES, &e), 0);
}

static void random_calls_keep_every_promise_in_any_order_of_completion(void **state)
{
    struct stress s;

    (void)state;
    for (unsigned seed = 0; seed < 24; seed++) {
        struct io_script script;

        io_script_init(&script, STRESS_DEPTH, seed);
        script.order = seed % 4 < 3 ? IO_SCRIPT_RANDOM : IO_SCRIPT_LAST;
        script.held = seed % 5 == 0;
        script.take_max = seed % 7 == 0 ? 2 : 0;
        stress_frames(&s, seed);
        stress(&s, &script.io, policies()[seed % 4], 5000);
        frames_close(&s.frames);
    }
}

/* Two files with what io_script would have given, in a directory of their own. */
static void make_files(char *dir, size_t size, struct file *file)
{
    const char *tmp = getenv("TMPDIR");
    struct err e;

    snprintf(dir, size, "%s/waste-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    for (unsigned i = 0; i < N_FILES; i++) {
        struct extent whole = {.file = i, .length = N_EXTENTS / N_FILES * 4 * IO_ALIGN};
        char path[300], *content = malloc(whole.length);
        int fd;

        assert_non_null(content);
        io_script_fill(content, whole);
        snprintf(path, sizeof(path), "%s/%u", dir, i);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(write(fd, content, whole.length), (ssize_t)whole.length);
        fsync(fd);
        close(fd);
        free(content);
        assert_int_equal(file_open(&file[i], AT_FDCWD, path, true, &e), 0);
        unlink(path);
    }
    rmdir(dir);
}

static void random_calls_keep_every_promise_on_real_engines(void **state)
{
    struct file file[N_FILES];
    const struct file *files[N_FILES] = {&file[0], &file[1]};
    struct stress s;
    char dir[256];

    (void)state;
    make_files(dir, sizeof(dir), file);
    for (unsigned i = 0; io_engines()[i]; i++) {
        struct io_config cfg = {.files = files, .n_files = N_FILES, .depth = STRESS_DEPTH};
        struct io *io;
        struct err e;

        stress_frames(&s, i);
        cfg.arena = s.frames.base;
        cfg.arena_bytes = s.frames.frame_bytes * s.frames.n;
        if (io_open(&io, io_engines()[i]->name, &cfg, NULL, &e)) {
            print_message("skipped: %s\n", e.text);
        } else {
            stress(&s, io, &policy_lfru, 20000);
            io->ops->close(io);
        }
        frames_close(&s.frames);
    }
    for (unsigned i = 0; i < N_FILES; i++)
        file_close(&file[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_read_once_and_fresh_once),
        cmocka_unit_test(extents_that_differ_in_anything_are_different_pages),
        cmocka_unit_test(a_page_in_memory_comes_before_one_that_is_waited_for),
        cmocka_unit_test(whichever_arrives_first_is_pinned_first),
        cmocka_unit_test(a_hint_starts_its_reads_and_the_pin_finds_them),
        cmocka_unit_test(no_guess_starts_while_a_sure_read_waits_for_the_queue),
        cmocka_unit_test(no_guess_starts_while_a_sure_read_waits_for_a_frame),
        cmocka_unit_test(a_pin_goes_before_hinted_reads),
        cmocka_unit_test(a_guess_evicts_nothing_pinned_wanted_or_lately_used),
        cmocka_unit_test(a_page_pinned_across_a_sure_hint_is_lately_used),
        cmocka_unit_test(guesses_do_not_evict_each_other),
        cmocka_unit_test(a_sure_page_is_kept_until_it_is_pinned),
        cmocka_unit_test(a_sure_page_leaves_when_a_pin_finds_no_other_frame),
        cmocka_unit_test(sure_reads_do_not_evict_each_other),
        cmocka_unit_test(a_new_hint_replaces_the_last_of_its_kind),
        cmocka_unit_test(a_pin_fulfils_the_wish_for_its_page),
        cmocka_unit_test(a_pin_that_waits_for_the_queue_goes_before_guesses),
        cmocka_unit_test(a_guess_that_a_pin_waits_for_is_demand),
        cmocka_unit_test(a_guess_on_its_way_is_taken_over_by_a_sure_hint),
        cmocka_unit_test(a_failed_guess_costs_nothing),
        cmocka_unit_test(a_read_that_fails_is_retried_so_often_and_no_more),
        cmocka_unit_test(a_failed_read_is_reported_once_and_leaves_the_pool_usable),
        cmocka_unit_test(the_end_of_a_file_is_reported_as_such),
        cmocka_unit_test(failures_nobody_asks_about_hold_no_frames),
        cmocka_unit_test(busy_means_every_frame_is_pinned),
        cmocka_unit_test(one_frame_is_enough),
        cmocka_unit_test(a_dropped_page_is_read_again),
        cmocka_unit_test(a_page_larger_than_a_frame_is_refused),
        cmocka_unit_test(hints_beyond_the_bound_are_dropped),
        cmocka_unit_test(trim_gives_the_last_frames_back_but_no_pinned_one),
        cmocka_unit_test(purge_forgets_everything_that_is_not_pinned),
        cmocka_unit_test(close_waits_for_reads_in_flight),
        cmocka_unit_test(an_engine_that_takes_less_than_it_should_is_fed_again),
        cmocka_unit_test(an_engine_that_takes_nothing_is_an_error_and_no_endless_loop),
        cmocka_unit_test(pins_and_guesses_are_told_apart),
        cmocka_unit_test(as_many_guesses_are_begun_as_come_in_time),
        cmocka_unit_test(useless_guessing_switches_itself_off_and_tries_again),
        cmocka_unit_test(pages_are_warmed_in_order_with_half_of_the_queue),
        cmocka_unit_test(warming_takes_free_frames_and_ends_with_them),
        cmocka_unit_test(nothing_is_warmed_before_what_is_sure_or_guessed),
        cmocka_unit_test(warming_keeps_the_pace_of_guesses),
        cmocka_unit_test(useless_warming_does_not_count_against_guesses),
        cmocka_unit_test(a_warm_page_on_its_way_becomes_demand_and_a_failed_one_is_forgotten),
        cmocka_unit_test(a_new_list_replaces_the_old_and_a_purge_ends_it),
        cmocka_unit_test(a_stream_larger_than_the_pool_leaves_what_is_in_use),
        cmocka_unit_test(the_policy_hears_of_every_use_once),
        cmocka_unit_test(opening_meets_every_failed_allocation),
        cmocka_unit_test(bytes_can_be_touched_only_while_pinned),
        cmocka_unit_test(the_index_finds_what_is_in_it_and_nothing_else),
        cmocka_unit_test(random_calls_keep_every_promise_in_any_order_of_completion),
        cmocka_unit_test(random_calls_keep_every_promise_on_real_engines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
