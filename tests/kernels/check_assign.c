/* Encoding: each level against the definition spelled out, bit for bit. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "tests/kernels/check.h"

enum { STAGES_MAX = 8 };

static const uint32_t lengths[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 128, 301};
static const uint32_t sizes[] = {1, 2, 15, 16, 37, 64, 255, 256};

static struct assign_book random_book(uint32_t n, enum fill kind)
{
    float *entry = check_new(n * 8 * sizeof(float)), *bias = check_new(n * sizeof(float));

    check_fill(entry, n * 8, kind);
    for (uint32_t e = 0; e < n; e++) {
        float sum = entry[8 * e] * entry[8 * e];

        for (unsigned d = 1; d < 8; d++)
            sum = sum + entry[8 * e + d] * entry[8 * e + d];
        bias[e] = -0.5f * sum;
    }
    return (struct assign_book){entry, bias, n};
}

static unsigned spelled_nearest(float *best, const float *x, const struct assign_book *b)
{
    unsigned found = 0;

    for (uint32_t e = 0; e < b->n; e++) {
        float s = b->bias[e];

        for (unsigned d = 0; d < 8; d++)
            s = fmaf(x[d], b->entry[8 * e + d], s);
        if (e == 0 || s > *best) {
            *best = s;
            found = e;
        }
    }
    return found;
}

/* n entries between two margins that nobody may write. */
struct bytes_guarded {
    uint8_t *all, *at;
    size_t n;
};

static struct bytes_guarded guarded(size_t n)
{
    struct bytes_guarded g = {check_new(n + 128), NULL, n + 128};

    memset(g.all, 0xa5, g.n);
    g.at = g.all + 64;
    return g;
}

static void check_nearest(const float *x, uint32_t n, const struct assign_book *b)
{
    struct bytes_guarded want = guarded(n), got;
    float *best = check_guarded(n), *got_best;
    struct kernels k;

    for (uint32_t i = 0; i < n; i++)
        want.at[i] = (uint8_t)spelled_nearest(&best[i], x + 8 * i, b);
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        got = guarded(n);
        got_best = check_guarded(n);
        k.assign_nearest(got.at, got_best, x, n, b);
        check_same_guarded(got_best, best, n, k.name);
        assert_memory_equal(got.all, want.all, want.n);
    }
}

static void the_nearest_entry_matches_its_definition(void **unused)
{
    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(sizes); s++)
        for (unsigned l = 0; l < N_ELEMS(lengths); l++)
            for (enum fill kind = 0; kind < FILLS; kind++) {
                float *x = check_new(lengths[l] * 8 * sizeof(float));
                struct assign_book b = random_book(sizes[s], kind == FILL_WILD ? kind : FILL_PLAIN);

                check_fill(x, lengths[l] * 8, kind);
                check_nearest(x, lengths[l], &b);
                check_free();
            }
}

/* It is also the nearest by the other formula, unless two are equally near up to rounding. */
static void the_nearest_entry_is_nearest(void **unused)
{
    float x[64 * 8], best[64];
    uint8_t index[64];
    struct assign_book b = random_book(256, FILL_PLAIN);
    struct kernels k;

    (void)unused;
    check_fill(x, N_ELEMS(x), FILL_PLAIN);
    kernels_init(&k, 0, PROFILE_F32);
    k.assign_nearest(index, best, x, 64, &b);
    for (unsigned i = 0; i < 64; i++) {
        double found = 0, square = 0, least = INFINITY;

        for (uint32_t e = 0; e < 256; e++) {
            double sum = 0;

            for (unsigned d = 0; d < 8; d++)
                sum += pow((double)x[8 * i + d] - (double)b.entry[8 * e + d], 2);
            least = sum < least ? sum : least;
            found = e == index[i] ? sum : found;
        }
        for (unsigned d = 0; d < 8; d++)
            square += pow((double)x[8 * i + d], 2);
        assert_true(found <= least + 1e-5);
        assert_true(fabs(square - 2 * (double)best[i] - found) < 1e-5);
    }
    check_free();
}

/* Every entry twice or more, at all distances from each other: the first one is the answer. */
static void among_equals_the_lowest_index_wins(void **unused)
{
    struct kernels k;

    (void)unused;
    for (uint32_t period = 1; period <= 128; period++) {
        struct assign_book b = random_book(256, FILL_PLAIN);
        float *entry = check_new(256 * 8 * sizeof(float)), *bias = check_new(256 * sizeof(float));
        float *x = check_new(256 * 8 * sizeof(float)), best[256];
        uint8_t index[256];

        for (uint32_t e = 0; e < 256; e++) {
            memcpy(entry + 8 * e, b.entry + 8 * (e % period), 8 * sizeof(float));
            bias[e] = b.bias[e % period];
        }
        memcpy(x, entry, 256 * 8 * sizeof(float));
        b.entry = entry;
        b.bias = bias;
        for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
            k.assign_nearest(index, best, x, 256, &b);
            for (uint32_t v = 0; v < 256; v++)
                assert_int_equal(index[v], v % period);
        }
        check_free();
    }
}

static void check_stages(const float *w, float a, uint32_t n, const struct assign_book *b,
                         uint32_t stages)
{
    const size_t stride = n + 5;
    struct bytes_guarded want = guarded(stride * stages);
    struct kernels k;

    for (uint32_t i = 0; i < n; i++) {
        float x[8], best;

        for (unsigned d = 0; d < 8; d++)
            x[d] = w[8 * i + d] / a;
        for (uint32_t s = 0; s < stages; s++) {
            unsigned e = spelled_nearest(&best, x, &b[s]);

            want.at[s * stride + i] = (uint8_t)e;
            for (unsigned d = 0; d < 8; d++)
                x[d] = x[d] - b[s].entry[8 * e + d];
        }
    }
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        struct bytes_guarded got = guarded(stride * stages);

        k.assign_stages(got.at, stride, w, a, n, b, stages);
        assert_memory_equal(got.all, want.all, want.n);
    }
}

static void stages_match_their_definition(void **unused)
{
    (void)unused;
    for (uint32_t stages = 1; stages <= STAGES_MAX; stages++)
        for (unsigned l = 0; l < N_ELEMS(lengths); l++) {
            struct assign_book b[STAGES_MAX];
            float *w = check_new(lengths[l] * 8 * sizeof(float));

            for (uint32_t s = 0; s < stages; s++)
                b[s] = random_book(sizes[(s + l + stages) % N_ELEMS(sizes)], FILL_PLAIN);
            check_fill(w, lengths[l] * 8, l % 3 == 2 ? FILL_WILD : FILL_PLAIN);
            check_stages(w, l % 2 ? 0.7f : 1e-8f, lengths[l], b, stages);
            check_free();
        }
}

static void distances_match_their_definition(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned l = 0; l < N_ELEMS(lengths); l++)
        for (enum fill kind = FILL_PLAIN; kind < FILL_NONFINITE; kind++) {
            const uint32_t n = lengths[l];
            float *x = check_new(n * 8 * sizeof(float)), centre[8], lane[16] = {0}, sum;
            float *before = check_new(n * sizeof(float)), *want = check_guarded(n);

            check_fill(x, n * 8, kind);
            check_fill(centre, 8, kind);
            for (uint32_t i = 0; i < n; i++) {
                float d2 = 0;

                before[i] = i % 5 ? (float)(check_random() % 1000) * 0.01f : INFINITY;
                for (unsigned d = 0; d < 8; d++)
                    d2 = fmaf(x[8 * i + d] - centre[d], x[8 * i + d] - centre[d], d2);
                want[i] = d2 < before[i] ? d2 : before[i];
                lane[i % 16] += want[i];
            }
            sum = check_fold(lane, 16);
            for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                float *got = check_guarded(n), got_sum;

                memcpy(got, before, n * sizeof(float));
                got_sum = k.assign_closer(got, x, centre, n);
                check_same_guarded(got, want, n, k.name);
                check_same(&got_sum, &sum, 1, k.name);
            }
            check_free();
        }
}

static void the_largest_magnitude_is_found_wherever_it_is(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned l = 0; l < N_ELEMS(lengths); l++)
        for (uint32_t at = 0; at < lengths[l]; at++) {
            float *x = check_new(lengths[l] * sizeof(float));

            check_fill(x, lengths[l], FILL_PLAIN);
            x[at] = at % 2 ? -1.5f : 1.5f;
            for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                assert_true(k.largest(x, lengths[l]) == 1.5f);
                assert_true(k.largest(x, 0) == 0);
            }
            check_free();
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_entry_matches_its_definition),
        cmocka_unit_test(the_nearest_entry_is_nearest),
        cmocka_unit_test(among_equals_the_lowest_index_wins),
        cmocka_unit_test(stages_match_their_definition),
        cmocka_unit_test(distances_match_their_definition),
        cmocka_unit_test(the_largest_magnitude_is_found_wherever_it_is),
    };

    return check_run(argc, argv, "check_assign", tests, N_ELEMS(tests));
}
