/* Products with resident weights: each level against the definition spelled out, bit for bit. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "tests/kernels/check.h"

static const int formats[] = {FMT_F32, FMT_Q8G, FMT_Q4G, FMT_Q3G};
static const uint32_t n_vectors[] = {1, 2, 3, 5, 16};

static const struct {
    uint32_t rows, cols, r0, r1;
} shapes[] = {
    {1, 1, 0, 1},      {3, 127, 1, 3},     {5, 128, 0, 5},      {70, 129, 3, 69},
    {136, 160, 1, 2},  {136, 136, 7, 135}, {64, 520, 0, 64},    {9, 1000, 2, 9},
    {67, 2304, 1, 66}, {3, 4224, 0, 3},    {130, 256, 63, 129}, {4, 256, 2, 2},
};

static float spelled_row(const struct tensor *w, uint32_t r, const float *x)
{
    float acc[16] = {0};

    if (w->fmt == FMT_F32) {
        const float *row = (const float *)(const void *)(w->data + r * w->row_bytes);

        for (uint32_t c = 0; c < (w->cols + 15) / 16 * 16; c++)
            acc[c % 16] = fmaf(c < w->cols ? row[c] : 0.0f, c < w->cols ? x[c] : 0.0f, acc[c % 16]);
        return check_fold(acc, 16);
    }
    for (uint32_t g = 0; g < w->groups; g++) {
        float p[16] = {0};

        for (uint32_t c = 0; c < 128; c++) {
            unsigned lane = w->fmt == FMT_Q8G ? c % 16 : c / 8;

            p[lane] = fmaf((float)check_code(w, r, g * 128 + c), x[g * 128 + c], p[lane]);
        }
        for (unsigned l = 0; l < 16; l++)
            acc[l] = fmaf(half_to_f32(w->scale[r * w->groups + g]), p[l], acc[l]);
    }
    return check_fold(acc, 16);
}

static void one_product(const struct tensor *w, uint32_t T, uint32_t r0, uint32_t r1,
                        enum fill kind)
{
    const size_t x_stride = (w->cols + 127) / 128 * 128, y_stride = w->rows + 3;
    float *x = check_new(T * x_stride * sizeof(float)), *want = check_guarded(T * y_stride);
    struct kernels k;

    for (uint32_t t = 0; t < T; t++) {
        check_fill(x + t * x_stride, w->cols, kind);
        for (uint32_t r = r0; r < r1; r++) {
            float y = spelled_row(w, r, x + t * x_stride);

            want[t * y_stride + r] = y;
            if (kind == FILL_NONFINITE)
                assert_false(isfinite(y));
        }
    }
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        float *got = check_guarded(T * y_stride);

        k.gemv(got, y_stride, x, x_stride, T, w, r0, r1);
        check_same_guarded(got, want, T * y_stride, k.name);
    }
}

static void products_match_their_definition(void **unused)
{
    (void)unused;
    for (unsigned f = 0; f < N_ELEMS(formats); f++)
        for (unsigned s = 0; s < N_ELEMS(shapes); s++)
            for (unsigned v = 0; v < N_ELEMS(n_vectors); v++) {
                enum fill kind = (enum fill)((s + v) % FILLS);
                struct tensor w = check_tensor(formats[f], shapes[s].rows, shapes[s].cols,
                                               CODES_RANDOM, 0x1400, 0x2fff);

                one_product(&w, n_vectors[v], shapes[s].r0, shapes[s].r1, kind);
                check_free();
            }
}

static void extreme_codes_and_scales_match(void **unused)
{
    static const uint16_t scales[][2] = {{0x0000, 0x03ff}, {0x8001, 0x83ff}, {0x7bff, 0x7bff}};

    (void)unused;
    for (unsigned f = 1; f < N_ELEMS(formats); f++)
        for (unsigned s = 0; s < N_ELEMS(scales); s++)
            for (enum codes codes = 0; codes < CODES; codes++)
                for (enum fill kind = 0; kind < FILLS; kind++) {
                    struct tensor w =
                        check_tensor(formats[f], 19, 300, codes, scales[s][0], scales[s][1]);

                    one_product(&w, 9, 1, 18, kind);
                    check_free();
                }
}

static void transposed_products_match_their_definition(void **unused)
{
    struct kernels k;

    (void)unused;
    for (unsigned f = 0; f < N_ELEMS(formats); f++)
        for (unsigned s = 0; s < N_ELEMS(shapes); s++)
            for (enum fill kind = 0; kind < FILLS; kind++) {
                const uint32_t cols = shapes[s].cols, r0 = shapes[s].r0, n = shapes[s].r1 - r0;
                struct tensor w = check_tensor(formats[f], shapes[s].rows, cols, CODES_RANDOM,
                                               s % 2 ? 0 : 0x2000, s % 2 ? 0x0fff : 0x2fff);
                float *x = check_new(n * sizeof(float)), *start = check_new(cols * sizeof(float));
                float *want = check_guarded(cols);

                check_fill(x, n, kind);
                check_fill(start, cols, FILL_PLAIN);
                memcpy(want, start, cols * sizeof(float));
                for (uint32_t i = 0; i < n; i++)
                    for (uint32_t c = 0; c < cols; c++) {
                        const float *row =
                            (const float *)(const void *)(w.data + (r0 + i) * w.row_bytes);
                        float a = x[i], q;

                        if (w.fmt == FMT_F32)
                            q = row[c];
                        else {
                            q = (float)check_code(&w, r0 + i, c);
                            a = x[i] * half_to_f32(w.scale[(r0 + i) * w.groups + c / 128]);
                        }
                        want[c] = fmaf(a, q, want[c]);
                    }
                for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
                    float *got = check_guarded(cols);

                    memcpy(got, start, cols * sizeof(float));
                    k.axpy_rows(got, x, &w, r0, n);
                    check_same_guarded(got, want, cols, k.name);
                }
                check_free();
            }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_their_definition),
        cmocka_unit_test(extreme_codes_and_scales_match),
        cmocka_unit_test(transposed_products_match_their_definition),
    };

    return check_run(argc, argv, "check_gemv", tests, N_ELEMS(tests));
}
