/* test_sampler.c - published random numbers, every filter against sorting, and what a draw may
 * depend on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/kernels/poly.h"
#include "model/sampler.h"

enum { V_MAX = 1024 };

static float scratch[2 * V_MAX];

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

static int32_t choose_at(const struct sampler *s, const float *logits, unsigned vocab,
                         const int32_t *recent, unsigned n_recent, unsigned pos, float *logprob)
{
    int32_t id = -7;
    float lp = 7;
    struct err e;

    if (sampler_choose(s, logits, vocab, recent, n_recent, pos, scratch, &id, &lp, &e))
        fail_msg("%s", e.text);
    assert_in_range(id, 0, vocab - 1);
    if (logprob)
        *logprob = lp;
    return id;
}

static int32_t choose(const struct sampler *s, const float *logits, unsigned vocab, unsigned pos)
{
    return choose_at(s, logits, vocab, NULL, 0, pos, NULL);
}

/* ---- the generator ---- */

static void philox_has_its_published_vectors(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } v[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t out[4];

        philox4x32(out, v[i].counter, v[i].key);
        assert_memory_equal(out, v[i].out, sizeof(out));
    }
}

static void uniform_numbers_are_those_that_were_published(void **state)
{
    (void)state;
    assert_true(sampler_uniform(42, 0, 0) == 0.6129598811894158);
    assert_true(sampler_uniform(42, 0, 1) == 0.9877186509145105);
}

static void every_bit_of_seed_stream_and_position_counts(void **state)
{
    double u = sampler_uniform(1, 2, 3);

    (void)state;
    for (unsigned b = 0; b < 64; b++)
        assert_true(sampler_uniform(1 ^ 1ull << b, 2, 3) != u);
    for (unsigned b = 0; b < 32; b++) {
        assert_true(sampler_uniform(1, 2 ^ 1u << b, 3) != u);
        assert_true(sampler_uniform(1, 2, 3 ^ 1u << b) != u);
    }
}

static void uniform_numbers_are_spread_over_the_unit_interval(void **state)
{
    unsigned bin[64] = {0};
    double chi = 0;

    (void)state;
    for (unsigned pos = 0; pos < 64000; pos++) {
        double u = sampler_uniform(7, 0, pos);

        assert_true(u >= 0 && u < 1);
        bin[(unsigned)(u * 64)]++;
    }
    for (unsigned i = 0; i < 64; i++)
        chi += (bin[i] - 1000.0) * (bin[i] - 1000.0) / 1000;
    assert_true(chi < 103.4); /* 63 degrees of freedom, one in a thousand */
}

/* ---- against the slow definition ---- */

static const float *order_by;

static int falling(const void *a, const void *b)
{
    unsigned i = *(const unsigned *)a, j = *(const unsigned *)b;

    if (order_by[i] != order_by[j])
        return order_by[i] > order_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static unsigned sorted(const float *v, unsigned n, unsigned *order) /* without what is -inf */
{
    unsigned have = 0;

    for (unsigned i = 0; i < n; i++)
        if (v[i] > -INFINITY)
            order[have++] = i;
    order_by = v;
    qsort(order, have, sizeof(*order), falling);
    return have;
}

static void slow_adjust(const struct sampler *s, float *l, unsigned vocab, const int32_t *recent,
                        unsigned n_recent)
{
    for (unsigned i = 0; i < s->n_bias; i++)
        l[s->bias_id[i]] += s->bias[i];
    for (unsigned id = 0; id < vocab; id++) {
        unsigned count = 0;

        for (unsigned i = 0; i < n_recent && i < s->repeat_window; i++)
            count += recent[n_recent - 1 - i] == (int32_t)id;
        if (count && !(s->spared && s->spared[id])) {
            l[id] = l[id] > 0 ? l[id] / s->repeat_penalty : l[id] * s->repeat_penalty;
            l[id] = l[id] - (s->presence_penalty + (float)count * s->frequency_penalty);
        }
        if (s->never && s->never[id])
            l[id] = -INFINITY;
    }
}

/* Everything by full sorts. -1: nothing is left. */
static int32_t slow_choose(const struct sampler *s, const float *logits, unsigned vocab,
                           const int32_t *recent, unsigned n_recent, unsigned pos)
{
    float l[V_MAX], w[V_MAX];
    unsigned order[V_MAX], n;
    double total = 0, sum = 0, u;
    int32_t last = -1;

    memcpy(l, logits, vocab * sizeof(*l));
    slow_adjust(s, l, vocab, recent, n_recent);
    n = sorted(l, vocab, order);
    if (!n)
        return -1;
    if (s->temperature <= 0)
        return (int32_t)order[0];
    if (s->top_k && s->top_k < n)
        n = s->top_k;
    for (unsigned i = 0; i < vocab; i++)
        w[i] = 0;
    for (unsigned i = 0; i < n; i++)
        w[order[i]] = poly_exp((l[order[i]] - l[order[0]]) / s->temperature);
    for (unsigned i = 0; i < vocab; i++)
        total += (double)w[i];
    if (s->top_p < 1) {
        unsigned kept = 0;

        sorted(w, vocab, order); /* by weight: two logits may have one weight */
        do
            sum += (double)w[order[kept++]];
        while (kept < vocab && w[order[kept]] > 0 && sum < (double)s->top_p * total);
        for (unsigned i = kept; i < vocab; i++)
            w[order[i]] = 0;
    }
    total = 0;
    for (unsigned i = 0; i < vocab; i++) {
        if (w[i] < s->min_p)
            w[i] = 0;
        total += (double)w[i];
    }
    u = sampler_uniform(s->seed, s->stream, pos);
    sum = 0;
    for (unsigned i = 0; i < vocab; i++) {
        sum += (double)w[i];
        if (w[i] > 0)
            last = (int32_t)i;
        if (w[i] > 0 && sum > u * total)
            break;
    }
    return last;
}

/* kind 0: all different; 1: few values; 2: all equal; 3: one far above; 4: a wide range. */
static void random_logits(unsigned kind, unsigned vocab, float *logits)
{
    for (unsigned i = 0; i < vocab; i++)
        logits[i] = kind == 0   ? uniform(-8, 8)
                    : kind == 1 ? (float)(next() % 5)
                    : kind == 2 ? 1.5f
                    : kind == 3 ? uniform(-1, 1)
                                : uniform(-200, 200);
    if (kind == 3)
        logits[next() % vocab] = 12;
}

static float pick(const float *from, unsigned n)
{
    return from[next() % n];
}

static void every_setting_chooses_what_sorting_everything_gives(void **state)
{
    static const unsigned vocabs[] = {1, 2, 3, 7, 64, 283, V_MAX};
    static const float temperature[] = {0, -1, 0.1f, 0.7f, 1, 2.5f, 1e-30f, 1e6f};
    static const float top_p[] = {1, 1, 2, 0.95f, 0.5f, 0.1f, 1e-6f};
    static const float min_p[] = {0, 0, 0.02f, 0.5f, 1}, penalty[] = {1, 1.1f, 2, 0.5f};
    static const float minus[] = {0, 0.5f, -0.5f, 3};
    static float logits[V_MAX];
    static uint8_t never[V_MAX], spared[V_MAX];
    static struct sampler s;
    unsigned drawn = 0;

    (void)state;
    seed = 1;
    for (unsigned t = 0; t < 20000; t++) {
        unsigned vocab = vocabs[next() % 7], n_recent = next() % 100;
        int32_t recent[100], want;

        sampler_init(&s);
        random_logits(t % 5, vocab, logits);
        s.temperature = pick(temperature, 8);
        s.top_p = pick(top_p, 7);
        s.min_p = pick(min_p, 5);
        s.top_k = (unsigned[]){0, 0, 1, 2, 5, 50, vocab, vocab + 1, vocab - 1}[next() % 9];
        s.seed = (uint64_t)next() << 32 | next();
        s.stream = next() % 3;
        s.repeat_penalty = pick(penalty, 4);
        s.presence_penalty = pick(minus, 4);
        s.frequency_penalty = pick(minus, 4);
        s.repeat_window = next() % 80;
        s.n_bias = next() % 4;
        for (unsigned i = 0; i < s.n_bias; i++) {
            s.bias_id[i] = (int32_t)(next() % vocab);
            s.bias[i] = uniform(-5, 5);
        }
        for (unsigned i = 0; i < n_recent; i++)
            recent[i] = (int32_t)(next() % (vocab < 20 ? vocab : 20));
        for (unsigned i = 0; i < vocab; i++) {
            never[i] = next() % 4 == 0;
            spared[i] = next() % 4 == 0;
        }
        s.never = next() % 2 ? never : NULL;
        s.spared = next() % 2 ? spared : NULL;
        want = slow_choose(&s, logits, vocab, recent, n_recent, t);
        if (want < 0)
            continue; /* everything masked: an error, tested elsewhere */
        assert_int_equal(choose_at(&s, logits, vocab, recent, n_recent, t, NULL), want);
        drawn++;
    }
    assert_true(drawn > 15000);
}

/* ---- greedy ---- */

static void greedy_takes_the_largest_and_of_equals_the_lowest_id(void **state)
{
    float logits[6] = {-1, 2, -3, 2, 1, 2};
    struct sampler s;

    (void)state;
    sampler_init(&s); /* the default is greedy */
    for (unsigned pos = 0; pos < 50; pos++) {
        assert_int_equal(choose(&s, logits, 6, pos), 1);
        s.seed = pos;
        s.temperature = -(float)pos;
    }
    logits[1] = -0.0f;
    logits[3] = logits[5] = -9;
    logits[0] = 0;
    logits[4] = -1;
    assert_int_equal(choose(&s, logits, 6, 0), 0); /* -0 and +0 are equal */
}

static void equal_logits_are_cut_at_the_lower_ids(void **state)
{
    float logits[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    unsigned seen[8] = {0};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.temperature = 1;
    s.top_k = 3;
    for (unsigned pos = 0; pos < 300; pos++)
        seen[choose(&s, logits, 8, pos)]++;
    assert_true(seen[0] && seen[1] && seen[2]);
    assert_int_equal(seen[0] + seen[1] + seen[2], 300);
    s.top_k = 0;
    s.top_p = 0.25f; /* the first two reach it exactly */
    memset(seen, 0, sizeof(seen));
    for (unsigned pos = 0; pos < 300; pos++)
        seen[choose(&s, logits, 8, pos)]++;
    assert_true(seen[0] && seen[1]);
    assert_int_equal(seen[0] + seen[1], 300);
}

/* ---- filters ---- */

static void a_filter_that_removes_nothing_changes_nothing(void **state)
{
    static float logits[60];
    static uint8_t never[60];
    static struct sampler plain, s;

    (void)state;
    seed = 9;
    for (unsigned i = 0; i < 60; i++)
        logits[i] = uniform(-2, 2);
    sampler_init(&plain);
    plain.temperature = 0.9f;
    plain.seed = 12345;
    for (unsigned pos = 0; pos < 2000; pos++) {
        int32_t want = choose(&plain, logits, 60, pos);

        s = plain;
        s.top_k = 60;
        assert_int_equal(choose(&s, logits, 60, pos), want);
        s.top_k = 1000;
        assert_int_equal(choose(&s, logits, 60, pos), want);
        s = plain;
        s.top_p = 0.9999f; /* each of the sixty has more than the rest of this */
        assert_int_equal(choose(&s, logits, 60, pos), want);
        s = plain;
        s.min_p = 1e-3f;
        assert_int_equal(choose(&s, logits, 60, pos), want);
        s = plain;
        s.never = never;
        s.repeat_penalty = 1.5f; /* of nothing that was said */
        s.n_bias = 1;            /* by nothing */
        assert_int_equal(choose(&s, logits, 60, pos), want);
    }
}

static void at_least_one_survives_every_filter(void **state)
{
    float logits[5] = {0, 3, 1, 2, -1};
    struct sampler s;

    (void)state;
    for (unsigned f = 0; f < 4; f++) {
        sampler_init(&s);
        s.temperature = 1;
        if (f == 0)
            s.top_k = 1;
        else if (f == 1)
            s.top_p = 1e-9f;
        else if (f == 2)
            s.min_p = 1;
        else
            s.temperature = 1e-38f;
        for (unsigned pos = 0; pos < 100; pos++)
            assert_int_equal(choose(&s, logits, 5, pos), 1);
    }
}

/* ---- what comes out of many draws ---- */

static void chi_square(const struct sampler *s, const float *logits, unsigned vocab,
                       const double *p, double limit)
{
    unsigned seen[16] = {0}, n = 20000;
    double chi = 0;

    for (unsigned pos = 0; pos < n; pos++)
        seen[choose(s, logits, vocab, pos)]++;
    for (unsigned i = 0; i < vocab; i++) {
        double want = p[i] * n;

        if (p[i] == 0)
            assert_int_equal(seen[i], 0);
        else
            chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    if (chi > limit)
        fail_msg("chi-square %g above %g", chi, limit);
}

static void softmax(double *p, const float *logits, unsigned n, double temperature)
{
    double sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += p[i] = exp((double)logits[i] / temperature);
    for (unsigned i = 0; i < n; i++)
        p[i] /= sum;
}

static void only(double *p, unsigned n, unsigned mask) /* what is left, normalised */
{
    double sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += p[i] = mask >> i & 1 ? p[i] : 0;
    for (unsigned i = 0; i < n; i++)
        p[i] /= sum;
}

static void draws_follow_the_distribution(void **state)
{
    static const float logits[8] = {0.5f, 2, 1, -1, 2.5f, 0, 1.5f, -2};
    struct sampler s;
    double p[8];

    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        sampler_init(&s);
        s.seed = 100 + k;
        s.stream = k;
        s.temperature = 1;
        softmax(p, logits, 8, 1);
        chi_square(&s, logits, 8, p, 24.3); /* 7 degrees of freedom, one in a thousand */
        s.temperature = 0.5f;
        softmax(p, logits, 8, 0.5);
        chi_square(&s, logits, 8, p, 24.3);
        s.top_k = 3; /* 4, 1, 6 */
        only(p, 8, 1 << 4 | 1 << 1 | 1 << 6);
        chi_square(&s, logits, 8, p, 13.8);
        s.top_k = 0;
        s.temperature = 1;
        s.top_p = 0.6f; /* 0.407, 0.247: the second reaches it */
        softmax(p, logits, 8, 1);
        assert_true(p[4] < 0.6 && p[4] + p[1] > 0.6);
        only(p, 8, 1 << 4 | 1 << 1);
        chi_square(&s, logits, 8, p, 10.8);
        s.top_p = 1;
        s.min_p = 0.2f; /* e^-1.5 is 0.223, e^-2 is 0.135 */
        softmax(p, logits, 8, 1);
        only(p, 8, 1 << 4 | 1 << 1 | 1 << 6 | 1 << 2);
        chi_square(&s, logits, 8, p, 16.3);
    }
}

/* ---- bias, penalties, masks ---- */

static void a_bias_moves_its_id_and_adds_up(void **state)
{
    float logits[4] = {1, 2, 3, 2.5f};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.n_bias = 1;
    s.bias_id[0] = 0;
    s.bias[0] = 2; /* 3: a tie with 2, and the lower id */
    assert_int_equal(choose(&s, logits, 4, 0), 0);
    s.bias[0] = 1.99f;
    assert_int_equal(choose(&s, logits, 4, 0), 2);
    s.n_bias = 2; /* the same id twice */
    s.bias_id[1] = 0;
    s.bias[1] = 0.25f;
    assert_int_equal(choose(&s, logits, 4, 0), 0);
    s.n_bias = 1; /* away from the best */
    s.bias_id[0] = 2;
    s.bias[0] = -1;
    assert_int_equal(choose(&s, logits, 4, 0), 3);
    s.temperature = 1; /* so far away that it is never drawn */
    s.bias[0] = -1000;
    for (unsigned pos = 0; pos < 500; pos++)
        assert_int_not_equal(choose(&s, logits, 4, pos), 2);
    s.bias_id[0] = 4; /* nobody */
    assert_int_equal(choose(&s, logits, 3, 0), choose(&s, logits, 3, 0));
}

/* The logit of id 1 becomes exactly `want`: id 0, with the same logit, wins the tie, and with the
 * next lower one loses. */
static void penalised_to(const struct sampler *s, float logit, unsigned count, float want)
{
    int32_t recent[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float logits[2] = {want, logit};

    assert_int_equal(choose_at(s, logits, 2, recent, count, 0, NULL), 0);
    logits[0] = nextafterf(want, -INFINITY);
    assert_int_equal(choose_at(s, logits, 2, recent, count, 0, NULL), 1);
}

static void penalties_are_their_formula(void **state)
{
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.repeat_penalty = 1.5f;
    penalised_to(&s, 3, 0, 3); /* not said: as it was */
    penalised_to(&s, 3, 1, 2); /* above 0 divided */
    penalised_to(&s, 3, 5, 2); /* once, however often it was said */
    penalised_to(&s, -2, 1, -3);
    penalised_to(&s, 0, 1, 0);
    s.repeat_penalty = 0.5f; /* a reward */
    penalised_to(&s, 3, 1, 6);
    penalised_to(&s, -2, 1, -1);
    s.repeat_penalty = 1;
    s.presence_penalty = 0.25f;
    penalised_to(&s, 3, 1, 2.75f);
    penalised_to(&s, 3, 4, 2.75f);
    penalised_to(&s, -1, 1, -1.25f);
    s.frequency_penalty = 0.125f;
    penalised_to(&s, 3, 1, 2.625f);
    penalised_to(&s, 3, 4, 2.25f);
    s.repeat_penalty = 1.5f; /* first the ratio, then the differences */
    penalised_to(&s, 3, 2, 1.5f);
    penalised_to(&s, -2, 2, -3.5f);
}

static void penalties_see_the_window_and_no_further(void **state)
{
    static const int32_t recent[5] = {0, 3, 3, 3, 1};
    float logits[4] = {2, 1.75f, 1.5f, 0};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    assert_int_equal(s.repeat_window, 64);
    s.presence_penalty = 1;
    assert_int_equal(choose_at(&s, logits, 4, recent, 5, 0, NULL), 2);
    s.repeat_window = 5;
    assert_int_equal(choose_at(&s, logits, 4, recent, 5, 0, NULL), 2);
    s.repeat_window = 4; /* 0 is out of sight */
    assert_int_equal(choose_at(&s, logits, 4, recent, 5, 0, NULL), 0);
    s.repeat_window = 0;
    assert_int_equal(choose_at(&s, logits, 4, recent, 5, 0, NULL), 0);
    logits[0] = 1;
    assert_int_equal(choose_at(&s, logits, 4, recent, 5, 0, NULL), 1);
    s.repeat_window = 1;
    assert_int_equal(choose_at(&s, logits, 4, recent, 5, 0, NULL), 2);
}

static void penalties_spare_structural_ids_and_ids_of_nothing(void **state)
{
    static const int32_t recent[4] = {-1, 1, 99, 2};
    static const uint8_t spared[3] = {0, 1, 0};
    float logits[3] = {1, 2, 3};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.repeat_penalty = 10;
    s.presence_penalty = 10;
    assert_int_equal(choose_at(&s, logits, 3, recent, 4, 0, NULL), 0);
    s.spared = spared;
    assert_int_equal(choose_at(&s, logits, 3, recent, 4, 0, NULL), 1);
}

static void masked_ids_are_never_chosen_whatever_speaks_for_them(void **state)
{
    static const uint8_t never[4] = {0, 1, 0, 1};
    float logits[4] = {0, 50, 1, 60};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.never = never;
    s.n_bias = 1;
    s.bias_id[0] = 1;
    s.bias[0] = 1e30f;
    assert_int_equal(choose(&s, logits, 4, 0), 2);
    s.temperature = 5;
    for (unsigned pos = 0; pos < 300; pos++)
        assert_int_equal(choose(&s, logits, 4, pos) & 1, 0);
}

/* ---- errors ---- */

static void refused(const struct sampler *s, const float *logits, unsigned vocab, const char *says)
{
    int32_t id = -7;
    float lp = 7;
    struct err e;

    assert_int_equal(sampler_choose(s, logits, vocab, NULL, 0, 12, scratch, &id, &lp, &e),
                     ERR_CORRUPT);
    if (!strstr(e.text, says) || !strstr(e.text, "position 12"))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
    assert_int_equal(id, -7);
    assert_true(lp == 7);
}

static void a_logit_that_is_not_finite_is_an_error_that_names_it(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct sampler s;

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        for (unsigned at = 0; at < 9; at++)
            for (int warm = 0; warm < 2; warm++) {
                float logits[9] = {0};
                uint8_t never[9] = {0};
                char want[40];

                sampler_init(&s);
                s.temperature = (float)warm;
                never[at] = 1; /* even where nobody would choose it */
                s.never = at % 2 ? never : NULL;
                logits[at] = bad[i];
                snprintf(want, sizeof(want), "logit %u is not finite", at);
                refused(&s, logits, 9, want);
            }
}

static void nothing_to_choose_from_is_an_error(void **state)
{
    static const uint8_t never[3] = {1, 1, 1};
    static const float logits[3] = {1, 2, 3};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.never = never;
    refused(&s, logits, 3, "every id is masked");
    s.temperature = 1;
    refused(&s, logits, 3, "every id is masked");
}

/* Legal settings can take a logit beyond the largest number: that is an error or a choice, and
 * never an id that does not exist (it was -1, and read before the first logit). */
static void settings_that_overflow_choose_an_id_or_fail(void **state)
{
    static const int32_t recent[1] = {0};
    float logits[4] = {10, 1, 2, 3};

    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        int32_t id = -7;
        float lp = 7;
        struct sampler s;
        struct err e;

        sampler_init(&s);
        s.temperature = i & 1 ? 1 : 0;
        s.top_k = i & 4 ? 2 : 0;
        if (i & 2)
            s.repeat_penalty = 1e-38f;
        else
            s.presence_penalty = s.frequency_penalty = -3e38f;
        if (sampler_choose(&s, logits, 4, recent, 1, 0, scratch, &id, &lp, &e)) {
            assert_int_equal(id, -7);
            continue;
        }
        assert_in_range(id, 0, 3);
        assert_true(isfinite(lp));
    }
}

/* ---- log probabilities ---- */

static void logprobs_are_the_models_own(void **state)
{
    static float logits[200];
    static struct sampler s;
    double p[200], all = 0;

    (void)state;
    seed = 21;
    for (unsigned i = 0; i < 200; i++)
        logits[i] = uniform(-5, 5);
    softmax(p, logits, 200, 1);
    sampler_init(&s);
    s.n_bias = 1;
    s.bias[0] = 1e6f; /* whatever it takes to choose it */
    for (int32_t id = 0; id < 200; id++) {
        float greedy, drawn;

        s.bias_id[0] = id;
        s.temperature = 0;
        assert_int_equal(choose_at(&s, logits, 200, NULL, 0, 0, &greedy), id);
        s.temperature = 0.3f;
        s.top_k = 1;
        assert_int_equal(choose_at(&s, logits, 200, NULL, 0, 0, &drawn), id);
        assert_true(greedy == drawn);
        assert_true(fabs((double)greedy - log(p[id])) < 2e-6);
        all += exp((double)greedy);
    }
    assert_true(fabs(all - 1) < 1e-5);
}

/* ---- what a draw may depend on ---- */

static void a_draw_depends_on_seed_stream_and_position_only(void **state)
{
    static float logits[64];
    static const int32_t recent[3] = {1, 2, 3};
    int32_t want[100];
    static struct sampler s;
    unsigned other[3] = {0};

    (void)state;
    seed = 33;
    for (unsigned i = 0; i < 64; i++)
        logits[i] = uniform(-1, 1);
    sampler_init(&s);
    s.temperature = 1;
    s.seed = 77;
    for (unsigned pos = 0; pos < 100; pos++)
        want[pos] = choose(&s, logits, 64, pos);
    for (unsigned pos = 100; pos-- > 0;) { /* backwards, after other draws, with other memory */
        memset(scratch, (int)pos, sizeof(scratch));
        choose(&s, logits, 64, pos + 1000);
        assert_int_equal(choose_at(&s, logits, 64, recent, 3, pos, NULL), want[pos]);
    }
    for (unsigned pos = 0; pos < 100; pos++) {
        struct sampler t = s;

        t.seed ^= 1ull << 40;
        other[0] += choose(&t, logits, 64, pos) != want[pos];
        t = s;
        t.stream = 1;
        other[1] += choose(&t, logits, 64, pos) != want[pos];
        other[2] += choose(&s, logits, 64, pos + 1) != want[pos];
    }
    for (unsigned i = 0; i < 3; i++)
        assert_true(other[i] > 60); /* of 100, and not the same by chance */
}

static void the_logits_stay_as_they_are(void **state)
{
    float logits[16], before[16];
    struct sampler s;
    int32_t recent[2] = {3, 4};

    (void)state;
    for (unsigned i = 0; i < 16; i++)
        logits[i] = before[i] = (float)i / 3;
    sampler_init(&s);
    s.temperature = 0.5f;
    s.top_k = 5;
    s.top_p = 0.5f;
    s.min_p = 0.1f;
    s.repeat_penalty = 2;
    s.n_bias = 1;
    s.bias[0] = 3;
    for (unsigned pos = 0; pos < 20; pos++)
        choose_at(&s, logits, 16, recent, 2, pos, NULL);
    assert_memory_equal(logits, before, sizeof(before));
}

static void no_more_scratch_is_taken_than_was_said(void **state)
{
    static const unsigned vocabs[] = {1, 2, 63, 64, 283};
    struct sampler s;

    (void)state;
    sampler_init(&s);
    s.temperature = 1;
    s.top_k = 40;
    s.top_p = 0.9f;
    for (unsigned i = 0; i < 5; i++) {
        size_t n = sampler_scratch_floats(vocabs[i]);
        float *own = malloc((n + 4) * sizeof(*own)), *logits = calloc(vocabs[i], sizeof(*logits));
        int32_t id;
        float lp;
        struct err e;

        for (unsigned j = 0; j < 4; j++)
            own[n + j] = 1234.5f;
        assert_int_equal(sampler_choose(&s, logits, vocabs[i], NULL, 0, 0, own, &id, &lp, &e), 0);
        for (unsigned j = 0; j < 4; j++)
            assert_true(own[n + j] == 1234.5f);
        free(own);
        free(logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_has_its_published_vectors),
        cmocka_unit_test(uniform_numbers_are_those_that_were_published),
        cmocka_unit_test(every_bit_of_seed_stream_and_position_counts),
        cmocka_unit_test(uniform_numbers_are_spread_over_the_unit_interval),
        cmocka_unit_test(every_setting_chooses_what_sorting_everything_gives),
        cmocka_unit_test(greedy_takes_the_largest_and_of_equals_the_lowest_id),
        cmocka_unit_test(equal_logits_are_cut_at_the_lower_ids),
        cmocka_unit_test(a_filter_that_removes_nothing_changes_nothing),
        cmocka_unit_test(at_least_one_survives_every_filter),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_bias_moves_its_id_and_adds_up),
        cmocka_unit_test(penalties_are_their_formula),
        cmocka_unit_test(penalties_see_the_window_and_no_further),
        cmocka_unit_test(penalties_spare_structural_ids_and_ids_of_nothing),
        cmocka_unit_test(masked_ids_are_never_chosen_whatever_speaks_for_them),
        cmocka_unit_test(a_logit_that_is_not_finite_is_an_error_that_names_it),
        cmocka_unit_test(nothing_to_choose_from_is_an_error),
        cmocka_unit_test(settings_that_overflow_choose_an_id_or_fail),
        cmocka_unit_test(logprobs_are_the_models_own),
        cmocka_unit_test(a_draw_depends_on_seed_stream_and_position_only),
        cmocka_unit_test(the_logits_stay_as_they_are),
        cmocka_unit_test(no_more_scratch_is_taken_than_was_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
