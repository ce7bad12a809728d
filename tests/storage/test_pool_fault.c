/* Reads, engines and allocations that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/storage/pool_fixture.h"
#include "tests/support/io_fault.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_guess_costs_nothing),
        cmocka_unit_test(a_read_that_fails_is_retried_so_often_and_no_more),
        cmocka_unit_test(a_failed_read_is_reported_once_and_leaves_the_pool_usable),
        cmocka_unit_test(the_end_of_a_file_is_reported_as_such),
        cmocka_unit_test(failures_nobody_asks_about_hold_no_frames),
        cmocka_unit_test(an_engine_that_takes_less_than_it_should_is_fed_again),
        cmocka_unit_test(an_engine_that_takes_nothing_is_an_error_and_no_endless_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
