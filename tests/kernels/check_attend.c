/* Attention over cached keys: each level against the definition spelled out. */
#include <math.h>
#include <string.h>

#include "model/kernels/poly.h"
#include "tests/kernels/check.h"

static const struct {
    uint32_t width, value_width;
    size_t stride;
} shapes[] = {{576, 512, 576}, {32, 24, 40}, {128, 128, 130}, {24, 24, 32}, {1, 1, 16}};

static const uint32_t n_keys[] = {1, 2, 3, 15, 17, 255, 256, 257, 511, 512, 700};

static float spelled_dot(const float *a, const float *b, uint32_t n)
{
    float lane[16] = {0};

    for (uint32_t i = 0; i < (n + 15) / 16 * 16; i++)
        lane[i % 16] = fmaf(i < n ? a[i] : 0.0f, i < n ? b[i] : 0.0f, lane[i % 16]);
    return check_fold(lane, 16);
}

static void spelled(float *out, const float *q, const float *keys, size_t stride, uint32_t n,
                    uint32_t width, uint32_t value_width, float scale)
{
    float m = 0, l = 0;

    for (uint32_t j0 = 0; j0 < n; j0 += 256) {
        uint32_t j1 = j0 + 256 < n ? j0 + 256 : n;
        float s[256] = {0}, lane[16] = {0}, m_block, l_block, top, f, f_block;

        for (uint32_t j = j0; j < j1; j++)
            s[j - j0] = spelled_dot(q, keys + j * stride, width) * scale;
        m_block = s[0];
        for (uint32_t j = 1; j < j1 - j0; j++)
            m_block = s[j] > m_block ? s[j] : m_block;
        for (uint32_t j = 0; j < j1 - j0; j++) {
            s[j] = poly_exp(s[j] - m_block);
            lane[j % 16] = lane[j % 16] + s[j];
        }
        l_block = check_fold(lane, 16);
        top = j0 == 0 || m_block > m ? m_block : m;
        f = poly_exp(m - top);
        f_block = poly_exp(m_block - top);
        for (uint32_t d = 0; d < value_width; d++) {
            float a = 0;

            for (uint32_t j = j0; j < j1; j++)
                a = fmaf(s[j - j0], keys[j * stride + d], a);
            out[d] = j0 == 0 ? a : fmaf(a, f_block, out[d] * f);
        }
        l = j0 == 0 ? l_block : fmaf(l_block, f_block, l * f);
        m = top;
    }
    for (uint32_t d = 0; d < value_width; d++)
        out[d] = out[d] / l;
}

/* Keys with +0 up to a multiple of 16, and NaN wherever nobody may look. */
static float *random_keys(uint32_t n, size_t stride, uint32_t width, enum fill kind)
{
    uint32_t padded = (width + 15) / 16 * 16;
    float *keys = check_new(((size_t)(n - 1) * stride + padded) * sizeof(float));

    for (uint32_t j = 0; j < n; j++) {
        check_fill(keys + j * stride, width, kind);
        for (size_t c = padded; c < stride && j + 1 < n; c++)
            keys[j * stride + c] = NAN;
    }
    return keys;
}

static float *random_query(uint32_t width, enum fill kind)
{
    float *q = check_new((width + 15) / 16 * 16 * sizeof(float));

    check_fill(q, width, kind);
    return q;
}

static void run_many(const struct kernels *k, float *out, const float *q, const float *keys,
                     uint32_t n, uint32_t T, const struct attend_shape *shape)
{
    size_t floats = attend_scratch_floats(shape->value_width, T * shape->heads);
    float *scratch = check_guarded(floats), *untouched = check_guarded(floats);

    k->attend(out, q, keys, n, T, shape, scratch);
    memcpy(scratch, untouched, floats * sizeof(float)); /* then only the margins are compared */
    check_same_guarded(scratch, untouched, floats, k->name);
}

static void run(const struct kernels *k, float *out, const float *q, const float *keys,
                size_t stride, uint32_t n, uint32_t width, uint32_t value_width, float scale)
{
    const struct attend_shape shape = {.heads = 1,
                                       .width = width,
                                       .value_width = value_width,
                                       .key_stride = stride,
                                       .scale = scale};

    run_many(k, out, q, keys, n, 1, &shape);
}

/* Rows and heads that share the keys of a call: each as if it were alone. */
static void queries_together_match_queries_alone(void **unused)
{
    static const struct {
        uint32_t n, T, heads;
    } calls[] = {{1, 7, 1},  {250, 9, 1}, {256, 6, 1},  {255, 2, 3}, {1, 1, 5},
                 {40, 3, 2}, {510, 5, 4}, {300, 1, 32}, {3, 4, 1},   {511, 260, 1}};
    struct kernels k;

    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++)
        for (unsigned n = 0; n < N_ELEMS(calls); n++) {
            const uint32_t queries = calls[n].T * calls[n].heads, width = shapes[s].width;
            const struct attend_shape shape = {.heads = calls[n].heads,
                                               .width = width,
                                               .value_width = shapes[s].value_width,
                                               .q_stride = (width + 15) / 16 * 16 + 16,
                                               .key_stride = shapes[s].stride,
                                               .out_stride = shapes[s].value_width + 3,
                                               .scale = 0.3f};
            float *keys = random_keys(calls[n].n + calls[n].T - 1, shape.key_stride, width,
                                      n % 2 ? FILL_WILD : FILL_PLAIN);
            float *q = check_new(queries * shape.q_stride * sizeof(float));
            float *want = check_guarded(queries * shape.out_stride);

            for (uint32_t i = 0; i < queries; i++) {
                check_fill(q + i * shape.q_stride, width, FILL_PLAIN);
                spelled(want + i * shape.out_stride, q + i * shape.q_stride, keys, shape.key_stride,
                        calls[n].n + i / calls[n].heads, width, shape.value_width, shape.scale);
            }
            for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                float *got = check_guarded(queries * shape.out_stride);

                run_many(&k, got, q, keys, calls[n].n, calls[n].T, &shape);
                check_same_guarded(got, want, queries * shape.out_stride, k.name);
            }
            check_free();
        }
}

static void attention_matches_its_definition(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++)
        for (unsigned n = 0; n < N_ELEMS(n_keys); n++)
            for (enum fill kind = 0; kind < FILLS; kind++) {
                const uint32_t width = shapes[s].width, value_width = shapes[s].value_width;
                const size_t stride = shapes[s].stride;
                const float scale = 0.7f;
                float *keys = random_keys(n_keys[n], stride, width,
                                          kind == FILL_WILD ? FILL_WILD : FILL_PLAIN);
                float *q = random_query(width, kind == FILL_WILD ? FILL_PLAIN : kind);
                float *want = check_guarded(value_width);

                spelled(want, q, keys, stride, n_keys[n], width, value_width, scale);
                for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                    float *got = check_guarded(value_width);

                    run(&k, got, q, keys, stride, n_keys[n], width, value_width, scale);
                    check_same_guarded(got, want, value_width, k.name);
                }
                check_free();
            }
}

static void a_nan_query_gives_nan(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++)
        for (unsigned n = 0; n < N_ELEMS(n_keys); n++) {
            float *keys = random_keys(n_keys[n], 576, 576, FILL_PLAIN);
            float *q = random_query(576, FILL_PLAIN), *out = check_guarded(512);

            q[check_random() % 576] = NAN;
            run(&k, out, q, keys, 576, n_keys[n], 576, 512, 0.1f);
            for (unsigned d = 0; d < 512; d++)
                assert_true(isnan(out[d]));
            check_free();
        }
}

/* A NaN in one key is a NaN in the result, wherever the key lies in its block. */
static void a_nan_key_gives_nan(void **unused)
{
    static const uint32_t at[] = {0, 1, 100, 255, 256, 299};
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++)
        for (unsigned n = 0; n < N_ELEMS(at); n++) {
            float *keys = random_keys(300, 576, 576, FILL_PLAIN);
            float *q = random_query(576, FILL_PLAIN), *out = check_guarded(512);

            keys[at[n] * 576 + 575] = NAN;
            run(&k, out, q, keys, 576, 300, 576, 512, 0.1f);
            for (unsigned d = 0; d < 512; d++)
                assert_true(isnan(out[d]));
            check_free();
        }
}

static void one_key_returns_its_value(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        float *keys = random_keys(1, 576, 576, FILL_PLAIN), *q = random_query(576, FILL_PLAIN);
        float *out = check_guarded(512);

        run(&k, out, q, keys, 576, 1, 576, 512, 0.0721688f);
        check_same(out, keys, 512, k.name);
        check_free();
    }
}

static void keys_beyond_the_last_do_not_matter(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++)
        for (unsigned n = 0; n < N_ELEMS(n_keys); n++) {
            uint32_t more = n_keys[n] + 20;
            float *keys = random_keys(more, 576, 576, FILL_PLAIN);
            float *q = random_query(576, FILL_PLAIN);
            float *a = check_guarded(512), *b = check_guarded(512);

            run(&k, a, q, keys, 576, n_keys[n], 576, 512, 0.1f);
            for (size_t c = (size_t)n_keys[n] * 576; c < (size_t)more * 576; c++)
                keys[c] = NAN;
            run(&k, b, q, keys, 576, n_keys[n], 576, 512, 0.1f);
            check_same_guarded(a, b, 512, k.name);
            check_free();
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches_its_definition),
        cmocka_unit_test(queries_together_match_queries_alone),
        cmocka_unit_test(a_nan_query_gives_nan),
        cmocka_unit_test(a_nan_key_gives_nan),
        cmocka_unit_test(one_key_returns_its_value),
        cmocka_unit_test(keys_beyond_the_last_do_not_matter),
    };

    return check_run(argc, argv, "check_attend", tests, N_ELEMS(tests));
}
