/* Reading ahead of those who may want it: guesses, their pace, warming. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/storage/pool_fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
