/* What is asked ahead: who waits for whom, who leaves for whom. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/storage/pool_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
