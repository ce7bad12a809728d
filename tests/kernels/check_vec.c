/* Norms, gates and convolution: each level against the definition spelled out, bit for bit. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "model/kernels/poly.h"
#include "tests/kernels/check.h"

static const uint32_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 128, 136, 257, 2304};

/* Nothing here may become a NaN but a NaN. */
static const uint32_t corners[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x3f1fffff, 0x3f200000, 0xbf200000,
    0x42b00000, 0x42b00001, 0xc2ae0000, 0xc2ae0001, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
};

static float spelled_dot(const float *a, const float *b, uint32_t n)
{
    float lane[16] = {0};

    for (uint32_t i = 0; i < (n + 15) / 16 * 16; i++)
        lane[i % 16] = fmaf(i < n ? a[i] : 0.0f, i < n ? b[i] : 0.0f, lane[i % 16]);
    return check_fold(lane, 16);
}

static void dot_adds_in_sixteen_lanes(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned l = 0; l < N_ELEMS(lengths); l++)
        for (enum fill kind = 0; kind < FILLS; kind++) {
            uint32_t n = lengths[l];
            float *a = check_new(n * sizeof(float)), *b = check_new(n * sizeof(float));
            float want;

            check_fill(a, n, kind);
            check_fill(b, n, kind == FILL_WILD ? kind : FILL_PLAIN);
            want = spelled_dot(a, b, n);
            if (kind == FILL_NONFINITE)
                assert_false(isfinite(want));
            for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                float got = k.dot(a, b, n);

                check_same(&got, &want, 1, k.name);
            }
            check_free();
        }
}

/* A sum that underflows to -0 in every lane is +0 once a missing column meets it. */
static void missing_columns_are_zeros_not_nothing(void **unused)
{
    float a[31], b[31], want = 0;
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; i < N_ELEMS(a); i++) {
        a[i] = -0x1p-100f;
        b[i] = 0x1p-100f;
    }
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        float got = k.dot(a, b, N_ELEMS(a));

        check_same(&got, &want, 1, k.name);
    }
}

static void corners_stay_in_range_and_nan_stays_nan(void **unused)
{
    (void)unused;
    for (unsigned i = 0; i < N_ELEMS(corners); i++) {
        float x = bits_to_f32(corners[i]);

        assert_true(poly_exp(x) >= 0 && isfinite(poly_exp(x)));
        assert_true(poly_sigmoid(x) >= 0 && poly_sigmoid(x) <= 1);
        assert_true(fabsf(poly_tanh(x)) <= 1);
        assert_true(poly_softplus(x) >= 0);
    }
    assert_true(isnan(poly_exp(NAN)) && isnan(poly_sigmoid(NAN)));
    assert_true(isnan(poly_tanh(NAN)) && isnan(poly_softplus(NAN)));
    assert_int_equal(f32_to_bits(poly_exp(0)), f32_to_bits(1));
    assert_int_equal(f32_to_bits(poly_exp(-0.0f)), f32_to_bits(1));
    assert_int_equal(f32_to_bits(poly_exp(bits_to_f32(0xc2ae0001))), 0); /* just below -87 */
    assert_int_equal(f32_to_bits(poly_exp(INFINITY)), f32_to_bits(poly_exp(88)));
}

/* As documented, over a sample of all floats that give a normal result. */
static void errors_are_within_the_documented_ulps(void **unused)
{
    double worst[4] = {0};

    (void)unused;
    for (uint32_t u = 0; u < 0xff800000u; u += 9973) {
        float x = bits_to_f32(u);
        double e = exp(-fabs((double)x)),
               want[4] = {exp(x), (x >= 0 ? 1 : e) / (1 + e), tanh(x), (x > 0 ? x : 0) + log1p(e)};
        float got[4] = {poly_exp(x), poly_sigmoid(x), poly_tanh(x), poly_softplus(x)};

        if (!isfinite(x))
            continue;
        for (unsigned f = 0; f < 4; f++) {
            double ulp;

            if ((f == 0 && x > 88) || x < -87 || fabs(want[f]) < 0x1p-126)
                continue;
            ulp = ldexp(1, ilogb(want[f]) - 23);
            if (fabs(got[f] - want[f]) / ulp > worst[f])
                worst[f] = fabs(got[f] - want[f]) / ulp;
        }
    }
    assert_true(worst[0] < 1.2 && worst[1] < 2.5 && worst[2] < 1.7 && worst[3] < 2.8);
}

struct vectors {
    uint32_t n;
    float *a, *b, *c;
    float *want, *got;
};

static float spelled_norm(const struct vectors *v, float eps)
{
    return 1.0f / sqrtf(spelled_dot(v->a, v->a, v->n) / (float)v->n + eps);
}

/* Every function of vectors, by number: the definition of one element. */
enum {
    RMSNORM,
    L2NORM,
    SILU,
    SITU,
    SITU_LINEAR,
    GELU,
    SIGMOID,
    SIGMOID_MUL,
    DECAY,
    BOUNDED,
    AXPY,
    ADD,
    SCALE,
    FUNCTIONS
};

static float spelled(const struct vectors *v, unsigned f, uint32_t i)
{
    float a = v->a[i], b = v->b[i];

    switch (f) {
    case RMSNORM:
        return (a * spelled_norm(v, 1e-5f)) * b;
    case L2NORM:
        return a * (1.0f / sqrtf(spelled_dot(v->a, v->a, v->n) + 1e-6f) * 0.25f);
    case SILU:
        return (a * poly_sigmoid(a)) * b;
    case SITU:
        return ((4.0f * poly_tanh(a / 4.0f)) * poly_sigmoid(a)) * (25.0f * poly_tanh(b / 25.0f));
    case SITU_LINEAR:
        return ((4.0f * poly_tanh(a / 4.0f)) * poly_sigmoid(a)) * b;
    case GELU:
        return (0.5f * a) * (1.0f + poly_tanh(0.7978846f * (a * fmaf(0.044715f * a, a, 1.0f))));
    case SIGMOID:
        return poly_sigmoid(a);
    case SIGMOID_MUL:
        return b * poly_sigmoid(a);
    case DECAY:
        return poly_exp(-(1.5f * poly_softplus(a + b)));
    case BOUNDED:
        return poly_exp(-5.0f * poly_sigmoid(1.5f * (a + b)));
    case AXPY:
        return fmaf(0.3f, a, b);
    case ADD:
        return b + a;
    default:
        return 0.3f * a;
    }
}

/* y starts as b where the function works in place. */
static void call(const struct kernels *k, const struct vectors *v, unsigned f, float *y)
{
    switch (f) {
    case RMSNORM:
        k->rmsnorm(y, v->a, v->b, v->n, 1e-5f);
        break;
    case L2NORM:
        memcpy(y, v->a, v->n * sizeof(float));
        k->l2norm(y, v->n, 1e-6f, 0.25f);
        break;
    case SILU:
        k->silu_mul(y, v->a, v->b, v->n);
        break;
    case SITU:
        k->situ_mul(y, v->a, v->b, v->n, 4, 25);
        break;
    case SITU_LINEAR:
        memcpy(y, v->a, v->n * sizeof(float));
        k->situ_mul(y, y, v->b, v->n, 4, 0);
        break;
    case GELU:
        memcpy(y, v->a, v->n * sizeof(float));
        k->gelu_tanh(y, y, v->n);
        break;
    case SIGMOID:
        memcpy(y, v->a, v->n * sizeof(float));
        k->sigmoid(y, y, v->n);
        break;
    case SIGMOID_MUL:
        memcpy(y, v->b, v->n * sizeof(float));
        k->sigmoid_mul(y, v->a, v->n);
        break;
    case DECAY:
        k->decay(y, v->a, v->b, 1.5f, 0, v->n);
        break;
    case BOUNDED:
        k->decay(y, v->a, v->b, 1.5f, -5, v->n);
        break;
    case AXPY:
        memcpy(y, v->b, v->n * sizeof(float));
        k->axpy(y, 0.3f, v->a, v->n);
        break;
    case ADD:
        memcpy(y, v->b, v->n * sizeof(float));
        k->add(y, v->a, v->n);
        break;
    default:
        memcpy(y, v->a, v->n * sizeof(float));
        k->scale(y, 0.3f, y, v->n);
    }
}

static void vectors_match_their_definitions(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned l = 0; l < N_ELEMS(lengths); l++)
        for (enum fill kind = 0; kind < FILLS; kind++)
            for (unsigned f = 0; f < FUNCTIONS; f++) {
                struct vectors v = {.n = lengths[l]};

                v.a = check_new(v.n * sizeof(float));
                v.b = check_new(v.n * sizeof(float));
                v.want = check_guarded(v.n);
                check_fill(v.a, v.n, kind);
                check_fill(v.b, v.n, FILL_PLAIN);
                if (kind == FILL_WILD && v.n >= N_ELEMS(corners))
                    memcpy(v.a, corners, sizeof(corners));
                for (uint32_t i = 0; i < v.n; i++)
                    v.want[i] = spelled(&v, f, i);
                for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                    v.got = check_guarded(v.n);
                    call(&k, &v, f, v.got);
                    check_same_guarded(v.got, v.want, v.n, k.name);
                }
                check_free();
            }
}

static void convolution_matches_its_definition(void **unused)
{
    static const uint32_t taps[] = {1, 2, 4, 5};
    struct kernels k;

    (void)unused;
    for (unsigned l = 0; l < N_ELEMS(lengths); l++)
        for (unsigned t = 0; t < N_ELEMS(taps); t++)
            for (enum fill kind = 0; kind < FILLS; kind++) {
                uint32_t n = lengths[l], m = taps[t];
                float *z = check_new((size_t)n * m * sizeof(float));
                float *w = check_new((size_t)n * m * sizeof(float)), *want = check_guarded(n);

                check_fill(z, (size_t)n * m, kind);
                check_fill(w, (size_t)n * m, FILL_PLAIN);
                for (uint32_t c = 0; c < n; c++) {
                    float acc = 0;

                    for (uint32_t i = 0; i < m; i++)
                        acc = fmaf(w[c * m + i], z[i * n + c], acc);
                    want[c] = acc * poly_sigmoid(acc);
                }
                for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                    float *got = check_guarded(n);

                    k.conv_silu(got, z, z + (size_t)(m - 1) * n, w, n, m);
                    check_same_guarded(got, want, n, k.name);
                }
                check_free();
            }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_adds_in_sixteen_lanes),
        cmocka_unit_test(missing_columns_are_zeros_not_nothing),
        cmocka_unit_test(corners_stay_in_range_and_nan_stays_nan),
        cmocka_unit_test(errors_are_within_the_documented_ulps),
        cmocka_unit_test(vectors_match_their_definitions),
        cmocka_unit_test(convolution_matches_its_definition),
    };

    return check_run(argc, argv, "check_vec", tests, N_ELEMS(tests));
}
