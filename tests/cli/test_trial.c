/* Rounds, spreads and what makes an arm invalid, with arms that measure nothing. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cli/bench/trial.h"
#include "cli/term.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const struct metric rate = {"rate", "things/s"};

struct fake { /* an arm whose samples are written down */
    char name;
    double value[ROUNDS_MAX];
    uint64_t digest[ROUNDS_MAX]; /* 0: none */
    unsigned fails_from;         /* round; ROUNDS_MAX: never */
    unsigned interrupted_in;     /* 1, 2, ...; 0: no round */
    const char *invalid;
};

static char order[256]; /* names of arms as they were run */

static int run_fake(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct fake *f = context;

    order[strlen(order)] = f->name;
    if (round + 1 == f->interrupted_in)
        raise(SIGINT);
    if (round >= f->fails_from)
        return err_set(e, ERR_IO, "round %u is too much", round);
    out->value[0] = f->value[round];
    out->digest = f->digest[round];
    out->has_digest = f->digest[round] != 0;
    if (f->invalid)
        strcpy(out->invalid, f->invalid);
    return 0;
}

static struct trial *trial_of(struct fake *fakes, unsigned n, unsigned rounds)
{
    struct trial *t = trial_new(&rate, 1, rounds, "fakes");

    assert_non_null(t);
    memset(order, 0, sizeof(order));
    for (unsigned i = 0; i < n; i++)
        trial_add(t, run_fake, &fakes[i], "%c", fakes[i].name);
    return t;
}

static void arms_are_run_in_turn(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX},
                       {.name = 'B', .fails_from = ROUNDS_MAX},
                       {.name = 'C', .fails_from = ROUNDS_MAX}};
    struct trial *t = trial_of(f, 3, 3);

    (void)unused;
    trial_add_absent(t, "D", "not here");
    trial_run(t);
    assert_string_equal(order, "ABCABCABC");
    assert_int_equal(t->arm[2].n, 3);
    assert_int_equal(t->arm[3].n, 0);
    assert_int_equal(t->arm[3].state, ARM_ABSENT);
    free(t);
}

static void another_digest_makes_an_arm_invalid(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX, .digest = {1, 2}},
                       {.name = 'B', .fails_from = ROUNDS_MAX, .digest = {1, 2}},
                       {.name = 'C', .fails_from = ROUNDS_MAX, .digest = {1, 3}},
                       {.name = 'D', .fails_from = ROUNDS_MAX}};
    struct trial *t = trial_of(f, 4, 2);

    (void)unused;
    trial_run(t);
    assert_int_equal(t->arm[0].state, ARM_VALID);
    assert_int_equal(t->arm[1].state, ARM_VALID);
    assert_int_equal(t->arm[2].state, ARM_INVALID);
    assert_non_null(strstr(t->arm[2].why, "round 2: digest 0000000000000003, that of A is "
                                          "0000000000000002"));
    assert_int_equal(t->arm[3].state, ARM_VALID); /* computed nothing that could differ */
    free(t);
}

static void digests_are_compared_within_a_group(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX, .digest = {1, 2}},
                       {.name = 'B', .fails_from = ROUNDS_MAX, .digest = {7, 8}},
                       {.name = 'C', .fails_from = ROUNDS_MAX, .digest = {1, 2}},
                       {.name = 'D', .fails_from = ROUNDS_MAX, .digest = {7, 2}}};
    struct trial *t = trial_of(f, 4, 2);

    (void)unused;
    t->arm[1].group = t->arm[3].group = 1;
    trial_run(t);
    assert_int_equal(t->arm[1].state, ARM_VALID);
    assert_int_equal(t->arm[2].state, ARM_VALID);
    assert_int_equal(t->arm[3].state, ARM_INVALID);
    assert_non_null(strstr(t->arm[3].why, "that of B is 0000000000000008"));
    free(t);
}

static void an_arm_that_fails_is_not_run_again_and_the_others_are(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = 1, .value = {5}},
                       {.name = 'B', .fails_from = ROUNDS_MAX, .value = {1, 2, 3}}};
    struct trial *t = trial_of(f, 2, 3);

    (void)unused;
    trial_run(t);
    assert_string_equal(order, "ABABB");
    assert_int_equal(t->arm[0].state, ARM_INVALID);
    assert_string_equal(t->arm[0].why, "round 1 is too much");
    assert_ptr_equal(trial_base(t), &t->arm[1]);
    free(t);
}

static void an_interrupt_ends_the_rounds_and_keeps_their_samples(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX, .value = {5, 6}},
                       {.name = 'B', .fails_from = 1, .value = {1}, .interrupted_in = 2},
                       {.name = 'C', .fails_from = ROUNDS_MAX, .value = {7, 8}}};
    struct trial *t = trial_of(f, 3, 3);
    struct term term;

    (void)unused;
    term_open(&term);
    assert_false(trial_run(t));
    term_go_on();
    assert_string_equal(order, "ABCAB");
    assert_int_equal(t->arm[0].n, 2);
    assert_int_equal(t->arm[1].n, 1);
    assert_int_equal(t->arm[1].state, ARM_VALID); /* what the interrupt broke is no failure */
    assert_int_equal(t->arm[2].n, 1);
    free(t);
}

static void an_arm_that_an_interrupt_left_without_a_sample_is_absent(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX, .value = {5}, .interrupted_in = 1},
                       {.name = 'B', .fails_from = ROUNDS_MAX, .value = {1}}};
    struct trial *t = trial_of(f, 2, 1);
    struct term term;

    (void)unused;
    term_open(&term);
    assert_false(trial_run(t));
    term_go_on();
    assert_int_equal(t->arm[0].n, 1); /* it was taken */
    assert_int_equal(t->arm[1].state, ARM_ABSENT);
    assert_string_equal(t->arm[1].why, "interrupted before its first sample");
    free(t);
}

static void one_sample_that_is_called_invalid_is_enough(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX, .value = {7, 7}, .invalid = "faked"},
                       {.name = 'B', .fails_from = ROUNDS_MAX, .value = {1, 2}}};
    struct trial *t = trial_of(f, 2, 2);

    (void)unused;
    trial_run(t);
    assert_int_equal(t->arm[0].state, ARM_INVALID);
    assert_string_equal(t->arm[0].why, "faked");
    assert_int_equal(t->arm[0].n, 2); /* its figures stay */
    assert_ptr_equal(trial_base(t), &t->arm[1]);
    free(t);
}

static void the_ceiling_is_the_lowest_roof_or_the_best_other_program(void **unused)
{
    struct fake f[] = {{.name = 'A', .fails_from = ROUNDS_MAX, .value = {1}},
                       {.name = 'B', .fails_from = ROUNDS_MAX, .value = {8}},
                       {.name = 'C', .fails_from = ROUNDS_MAX, .value = {4}},
                       {.name = 'D', .fails_from = ROUNDS_MAX, .value = {9}, .invalid = "faked"}};
    struct trial *t = trial_of(f, 4, 1);

    (void)unused;
    trial_run(t);
    assert_true(isnan(trial_ceiling(t)));
    for (unsigned i = 1; i < 4; i++)
        t->arm[i].ceiling = true;
    assert_true(trial_ceiling(t) == 8); /* and not what an invalid one claims */
    t->all_ceilings_hold = true;
    assert_true(trial_ceiling(t) == 4);
    assert_ptr_equal(trial_base(t), &t->arm[0]);
    free(t);
}

static void spreads_are_medians_and_quartiles_of_what_is_a_number(void **unused)
{
    const double odd[] = {5, 1, NAN, 4, 2, 3}, even[] = {4, 1, 3, 2}, none[] = {NAN, NAN};
    struct spread s = spread_of(odd, N_ELEMS(odd));

    (void)unused;
    assert_true(s.median == 3 && s.min == 1 && s.max == 5 && s.iqr == 2);
    s = spread_of(even, N_ELEMS(even));
    assert_true(s.median == 2.5 && s.min == 1 && s.max == 4 && s.iqr == 1.5);
    s = spread_of(even, 1);
    assert_true(s.median == 4 && s.min == 4 && s.max == 4 && s.iqr == 0);
    s = spread_of(none, N_ELEMS(none));
    assert_true(isnan(s.median) && isnan(s.min) && isnan(s.max) && isnan(s.iqr));
}

static void a_digest_sees_every_bit_and_what_came_before(void **unused)
{
    uint8_t bytes[21] = {0};
    uint64_t zero = digest_bytes(0, bytes, sizeof(bytes));

    (void)unused;
    assert_true(digest_bytes(1, bytes, sizeof(bytes)) != zero);
    assert_true(digest_bytes(0, bytes, sizeof(bytes) - 1) != zero);
    for (unsigned bit = 0; bit < 8 * sizeof(bytes); bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(digest_bytes(0, bytes, sizeof(bytes)) != zero);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arms_are_run_in_turn),
        cmocka_unit_test(another_digest_makes_an_arm_invalid),
        cmocka_unit_test(digests_are_compared_within_a_group),
        cmocka_unit_test(an_arm_that_fails_is_not_run_again_and_the_others_are),
        cmocka_unit_test(an_interrupt_ends_the_rounds_and_keeps_their_samples),
        cmocka_unit_test(an_arm_that_an_interrupt_left_without_a_sample_is_absent),
        cmocka_unit_test(one_sample_that_is_called_invalid_is_enough),
        cmocka_unit_test(the_ceiling_is_the_lowest_roof_or_the_best_other_program),
        cmocka_unit_test(spreads_are_medians_and_quartiles_of_what_is_a_number),
        cmocka_unit_test(a_digest_sees_every_bit_and_what_came_before),
    };

    return cmocka_run_group_tests_name("trial", tests, NULL, NULL);
}
