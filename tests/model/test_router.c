/* test_router.c - which experts, in which order, with which weights; against sorting everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "model/kernels/poly.h"
#include "model/router.h"

enum { E_MAX = 65535 };

static struct kernels kern;

static uint64_t seed;

static uint32_t next(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static float uniform(float lo, float hi)
{
    return lo + (hi - lo) * (float)(next() >> 8 & 0x7fffff) * 0x1p-23f;
}

static struct hparams shape(unsigned experts, unsigned groups, unsigned keep, unsigned top_k)
{
    return (struct hparams){
        .n_experts = experts,
        .n_group = groups,
        .topk_group = keep,
        .top_k = top_k,
        .renormalize = true,
        .routed_scale = 1,
    };
}

static float scratch[2 * FORMAT_EXPERTS_MAX];

/* The logit whose sigmoid is s, near enough to tell experts apart. */
static float logit(double s)
{
    return (float)log(s / (1 - s));
}

static void choose(const struct hparams *hp, float *score, const float *bias, uint16_t *id,
                   float *weight)
{
    struct err e;

    if (router_select(hp, &kern, score, bias, scratch, id, weight, &e))
        fail_msg("%s", e.text);
}

/* ---- what the definition says ---- */

static void equal_scores_select_the_first_ids_with_or_without_groups(void **state)
{
    static const struct {
        unsigned experts, groups, keep, top_k;
    } s[] = {{256, 8, 4, 8}, {256, 1, 1, 8}, {896, 1, 1, 16},  {384, 1, 1, 8}, {12, 4, 2, 3},
             {12, 4, 2, 6},  {6, 3, 3, 6},   {64, 32, 32, 64}, {1, 1, 1, 1},   {4096, 8, 1, 64}};

    (void)state;
    for (unsigned i = 0; i < sizeof(s) / sizeof(*s); i++)
        for (float x = -3; x <= 3; x += 1.5f) {
            struct hparams hp = shape(s[i].experts, s[i].groups, s[i].keep, s[i].top_k);
            float score[4096], weight[FORMAT_TOP_K_MAX];
            uint16_t id[FORMAT_TOP_K_MAX];

            for (unsigned j = 0; j < s[i].experts; j++)
                score[j] = x;
            choose(&hp, score, NULL, id, weight);
            for (unsigned j = 0; j < s[i].top_k; j++) {
                assert_int_equal(id[j], j);
                assert_true(weight[j] == weight[0]);
            }
        }
}

static void ties_go_to_the_lower_id_wherever_they_are(void **state)
{
    struct hparams hp = shape(8, 1, 1, 3);
    uint16_t id[3];
    float weight[3];

    (void)state;
    { /* at the border: 2 and 6 are equal and only one fits */
        float score[8] = {0, 3, 1, 0, 2, 0, 1, 0};

        choose(&hp, score, NULL, id, weight);
        assert_memory_equal(id, ((uint16_t[]){1, 4, 2}), sizeof(id));
    }
    { /* inside: 5 and 7 are equal and both fit */
        float score[8] = {0, 0, 0, 0, 1, 2, 0, 2};

        choose(&hp, score, NULL, id, weight);
        assert_memory_equal(id, ((uint16_t[]){5, 7, 4}), sizeof(id));
    }
    { /* equal only after the bias: -0 and +0 are equal, too */
        float score[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        float bias[8] = {-1, -1, -0.5f, -0.5f, -1, -0.5f, -1, -0.5f};

        choose(&hp, score, bias, id, weight);
        assert_memory_equal(id, ((uint16_t[]){2, 3, 5}), sizeof(id));
    }
    { /* groups: 0 and 2 tie for the second place */
        struct hparams g = shape(8, 4, 2, 3);
        float score[8] = {1, 0, -5, -5, 0, 1, 3, 3};

        choose(&g, score, NULL, id, weight);
        assert_memory_equal(id, ((uint16_t[]){6, 7, 0}), sizeof(id));
    }
}

static void the_bias_selects_and_never_weighs(void **state)
{
    struct hparams hp = shape(6, 1, 1, 3);
    float score[6] = {logit(0.9), logit(0.1), logit(0.5), logit(0.2), logit(0.8), logit(0.3)};
    float bias[6] = {-0.8f, 0.7f, 0, 0.4f, -0.75f, -0.1f}; /* s' = .1 .8 .5 .6 .05 .2 */
    float weight[3];
    uint16_t id[3];

    (void)state;
    choose(&hp, score, bias, id, weight);
    assert_memory_equal(id, ((uint16_t[]){1, 3, 2}), sizeof(id));
    assert_true(fabsf(score[0] - 0.9f) < 1e-6f); /* sigmoids, unbiased, on return */
    assert_true(fabsf(weight[0] - 0.1f / 0.8f) < 1e-6f);
    assert_true(fabsf(weight[1] - 0.2f / 0.8f) < 1e-6f);
    assert_true(fabsf(weight[2] - 0.5f / 0.8f) < 1e-6f); /* not falling: the bias reordered */
}

static void weights_are_shares_of_the_chosen_times_the_factor(void **state)
{
    struct hparams hp = shape(16, 1, 1, 5);
    float from[16], score[16], weight[5], total = 0;
    uint16_t id[5];

    (void)state;
    seed = 11;
    for (unsigned i = 0; i < 16; i++)
        from[i] = uniform(-4, 4);
    hp.routed_scale = 2.446f;
    memcpy(score, from, sizeof(score));
    choose(&hp, score, NULL, id, weight);
    for (unsigned i = 0; i < 5; i++)
        total += score[id[i]]; /* in the order of selection */
    for (unsigned i = 0; i < 5; i++)
        assert_true(weight[i] == score[id[i]] / (total + 1e-20f) * 2.446f);
    hp.renormalize = false;
    memcpy(score, from, sizeof(score));
    choose(&hp, score, NULL, id, weight);
    for (unsigned i = 0; i < 5; i++)
        assert_true(weight[i] == score[id[i]] * 2.446f);
}

static void one_expert_keeps_its_score(void **state)
{
    struct hparams hp = shape(4, 1, 1, 1);
    float score[4] = {0, logit(0.6), 0, 0}, weight;
    uint16_t id;

    (void)state;
    hp.routed_scale = 2;
    choose(&hp, score, NULL, &id, &weight);
    assert_int_equal(id, 1);
    assert_true(weight == score[1] * 2); /* and not 2: the share of one would always be 1 */
}

/* Scores so small that all of them are 0: shares of nothing are nothing, and no NaN. */
static void scores_of_zero_give_weights_of_zero(void **state)
{
    struct hparams hp = shape(4, 1, 1, 2);
    float score[4] = {-200, -200, -200, -200}, weight[2];
    uint16_t id[2];

    (void)state;
    choose(&hp, score, NULL, id, weight);
    assert_true(weight[0] == 0 && weight[1] == 0);
    assert_int_equal(id[1], 1);
}

/* What is left out is out even where the survivors' scores are below zero: filling with 0 instead
 * of -inf would choose 4. */
static void groups_that_are_left_out_stay_out_of_a_negative_field(void **state)
{
    struct hparams hp = shape(8, 2, 1, 4);
    float score[8] = {0}, weight[4];
    float bias[8] = {-0.6f, -0.7f, -5.5f, -6.5f, -1.5f, -1.5f, -1.5f, -1.5f};
    uint16_t id[4];

    (void)state;
    choose(&hp, score, bias, id, weight);
    assert_memory_equal(id, ((uint16_t[]){0, 1, 2, 3}), sizeof(id));
}

static void a_group_is_judged_by_its_two_best(void **state)
{
    struct hparams hp = shape(12, 3, 1, 2);
    float weight[2];
    uint16_t id[2];
    /* the single best expert is in group 0, the largest sum of all in group 1, of two in group 2 */
    float score[12] = {logit(0.95), logit(0.05), logit(0.05), logit(0.05), logit(0.6), logit(0.6),
                       logit(0.6),  logit(0.6),  logit(0.7),  logit(0.7),  logit(0.1), logit(0.1)};

    (void)state;
    choose(&hp, score, NULL, id, weight);
    assert_memory_equal(id, ((uint16_t[]){8, 9}), sizeof(id));
}

/* ---- against the slow definition ---- */

static const float *order_by;

static int falling(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;

    if (order_by[i] != order_by[j])
        return order_by[i] > order_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static void sorted(const float *v, int n, int *order)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    order_by = v;
    qsort(order, (size_t)n, sizeof(*order), falling);
}

static void slow_select(const struct hparams *hp, const float *logits, const float *bias, int *id,
                        float *weight)
{
    static float s[E_MAX], biased[E_MAX];
    static int order[E_MAX];
    unsigned size = hp->n_experts / hp->n_group;
    float total = 0;

    for (unsigned i = 0; i < hp->n_experts; i++) {
        s[i] = poly_sigmoid(logits[i]);
        biased[i] = bias ? s[i] + bias[i] : s[i];
    }
    if (hp->n_group > 1) {
        static float sum[E_MAX];
        static int rank[E_MAX];

        for (unsigned g = 0; g < hp->n_group; g++) {
            sorted(biased + g * size, (int)size, order);
            sum[g] = biased[g * size + (unsigned)order[0]] + biased[g * size + (unsigned)order[1]];
        }
        sorted(sum, (int)hp->n_group, rank);
        for (unsigned g = hp->topk_group; g < hp->n_group; g++)
            for (unsigned i = 0; i < size; i++)
                biased[(unsigned)rank[g] * size + i] = -INFINITY;
    }
    sorted(biased, (int)hp->n_experts, order);
    for (unsigned i = 0; i < hp->top_k; i++) {
        id[i] = order[i];
        total += s[order[i]];
    }
    for (unsigned i = 0; i < hp->top_k; i++) {
        float w = s[id[i]];

        if (hp->renormalize && hp->top_k > 1)
            w /= total + 1e-20f;
        weight[i] = w * hp->routed_scale;
    }
}

/* kind 0: all different. 1: few values, so that most are equal. 2: scores that saturate. */
static void random_case(unsigned kind, unsigned n, float *score, float *bias)
{
    for (unsigned i = 0; i < n; i++) {
        score[i] = kind == 0   ? uniform(-6, 6)
                   : kind == 1 ? (float)(next() % 4) / 2
                               : uniform(-120, 120);
        bias[i] = kind == 1 ? (float)(next() % 3) / 4 - 0.5f : uniform(-2, 1);
    }
}

static void selection_is_what_sorting_everything_gives(void **state)
{
    static const struct {
        unsigned experts, groups, keep, top_k, times;
    } s[] = {
        {256, 8, 4, 8, 300},      {256, 1, 1, 8, 300},  {384, 1, 1, 8, 100},  {896, 1, 1, 16, 100},
        {12, 4, 2, 3, 300},       {12, 4, 2, 6, 300},   {8, 4, 1, 2, 300},    {6, 3, 3, 6, 300},
        {64, 2, 2, 64, 100},      {64, 32, 7, 14, 100}, {5, 1, 1, 3, 300},    {2, 1, 1, 2, 300},
        {4096, 2048, 100, 64, 3}, {65535, 1, 1, 64, 3}, {65535, 3, 2, 64, 3}, {300, 100, 3, 9, 100},
        {65534, 2, 1, 1, 3},
    };
    static float logits[E_MAX], bias[E_MAX], score[E_MAX];

    (void)state;
    seed = 3;
    for (unsigned level = 0; level < 2; level++) {
        kernels_init(&kern, level ? cpu_detect() : 0, PROFILE_F32);
        for (unsigned i = 0; i < sizeof(s) / sizeof(*s); i++)
            for (unsigned t = 0; t < s[i].times; t++) {
                struct hparams hp = shape(s[i].experts, s[i].groups, s[i].keep, s[i].top_k);
                const float *b = t % 5 ? bias : NULL;
                uint16_t id[FORMAT_TOP_K_MAX];
                float weight[FORMAT_TOP_K_MAX], want_weight[FORMAT_TOP_K_MAX];
                int want[FORMAT_TOP_K_MAX];

                random_case(t % 3, hp.n_experts, logits, bias);
                hp.renormalize = t % 2;
                hp.routed_scale = t % 7 ? 2.5f : 1;
                memcpy(score, logits, hp.n_experts * sizeof(*score));
                choose(&hp, score, b, id, weight);
                slow_select(&hp, logits, b, want, want_weight);
                for (unsigned k = 0; k < hp.top_k; k++)
                    if (id[k] != want[k])
                        fail_msg("%u experts, groups %u/%u, try %u: choice %u is %u, expected %d",
                                 hp.n_experts, hp.topk_group, hp.n_group, t, k, id[k], want[k]);
                assert_memory_equal(weight, want_weight, hp.top_k * sizeof(float));
            }
    }
    kernels_init(&kern, 0, PROFILE_F32);
}

/* ---- errors ---- */

static void a_score_that_is_not_finite_is_an_error_and_no_choice(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct hparams hp = shape(24, 4, 2, 3);

    (void)state;
    for (unsigned at = 0; at < 24; at++)
        for (unsigned i = 0; i < 4; i++) { /* the logit a NaN, or the bias anything */
            float score[24] = {0}, bias[24] = {0}, weight[3] = {7, 7, 7};
            uint16_t id[3] = {777, 777, 777};
            char want[40];
            struct err e;

            if (i == 3)
                score[at] = NAN;
            else
                bias[at] = bad[i];
            assert_int_equal(router_select(&hp, &kern, score, bias, scratch, id, weight, &e),
                             ERR_CORRUPT);
            snprintf(want, sizeof(want), "expert %u is not finite", at);
            assert_non_null(strstr(e.text, want));
            assert_int_equal(id[0], 777);
            assert_true(weight[2] == 7);
        }
}

static void a_logit_of_any_finite_size_has_a_score(void **state)
{
    struct hparams hp = shape(4, 1, 1, 4);
    float score[4] = {3e38f, -3e38f, 0, 1e-40f}, weight[4];
    uint16_t id[4];

    (void)state;
    choose(&hp, score, NULL, id, weight);
    assert_true(score[0] == 1 && score[1] == 0);
    assert_memory_equal(id, ((uint16_t[]){0, 2, 3, 1}), sizeof(id));
}

/* ---- guessing ---- */

static void a_guess_is_the_selection_without_groups(void **state)
{
    static float logits[896], bias[896], score[896];

    (void)state;
    seed = 5;
    for (unsigned t = 0; t < 100; t++) {
        struct hparams hp = shape(896, 8, 1, 16), flat = shape(896, 1, 1, 16);
        uint16_t id[FORMAT_TOP_K_MAX];
        float weight[FORMAT_TOP_K_MAX];
        int want[FORMAT_TOP_K_MAX];

        random_case(t % 3, 896, logits, bias);
        slow_select(&flat, logits, bias, want, weight);
        for (unsigned n = 1; n <= 16; n += 5) {
            memcpy(score, logits, sizeof(score));
            assert_int_equal(router_guess(&hp, &kern, score, bias, id, n), n);
            for (unsigned k = 0; k < n; k++)
                assert_int_equal(id[k], want[k]);
        }
    }
}

static void a_guess_never_fails(void **state)
{
    struct hparams hp = shape(5, 1, 1, 2);
    uint16_t id[FORMAT_TOP_K_MAX];

    (void)state;
    { /* more than there are */
        float score[5] = {1, 2, 3, 2, 1};

        assert_int_equal(router_guess(&hp, &kern, score, NULL, id, 64), 5);
        assert_memory_equal(id, ((uint16_t[]){2, 1, 3, 0, 4}), 5 * sizeof(*id));
    }
    for (unsigned at = 0; at < 5; at++) { /* nothing sensible to say */
        float score[5] = {1, 2, 3, 2, 1}, bias[5] = {0};

        score[at] = NAN;
        assert_int_equal(router_guess(&hp, &kern, score, NULL, id, 2), 0);
        memset(score, 0, sizeof(score));
        bias[at] = INFINITY;
        assert_int_equal(router_guess(&hp, &kern, score, bias, id, 2), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_scores_select_the_first_ids_with_or_without_groups),
        cmocka_unit_test(ties_go_to_the_lower_id_wherever_they_are),
        cmocka_unit_test(the_bias_selects_and_never_weighs),
        cmocka_unit_test(weights_are_shares_of_the_chosen_times_the_factor),
        cmocka_unit_test(one_expert_keeps_its_score),
        cmocka_unit_test(scores_of_zero_give_weights_of_zero),
        cmocka_unit_test(groups_that_are_left_out_stay_out_of_a_negative_field),
        cmocka_unit_test(a_group_is_judged_by_its_two_best),
        cmocka_unit_test(selection_is_what_sorting_everything_gives),
        cmocka_unit_test(a_score_that_is_not_finite_is_an_error_and_no_choice),
        cmocka_unit_test(a_logit_of_any_finite_size_has_a_score),
        cmocka_unit_test(a_guess_is_the_selection_without_groups),
        cmocka_unit_test(a_guess_never_fails),
    };

    kernels_init(&kern, 0, PROFILE_F32);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
