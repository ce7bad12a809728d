/* test_rvq_encode.c - codebooks that are as good as the format's published errors, rows that decode
 * to what was encoded, and the same bytes whatever the threads and the level. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/cpu.h"
#include "base/half.h"
#include "model/rvq_encode.h"

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#endif

enum { LATENT = 256, INTER = 72, THREADS = 3 };

static uint64_t state_of_random;

static double uniform(void)
{
    uint64_t z = state_of_random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static void gaussians(float *x, size_t n, double std)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(std * sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()));
}

static void *new (size_t bytes)
{
    void *p = calloc(1, bytes);

    assert_non_null(p);
    return p;
}

/* The best level there is, or the reference. */
static struct kernels level(bool reference)
{
    struct kernels k;

    kernels_init(&k, reference ? 0 : cpu_detect(), PROFILE_F32);
    return k;
}

/* Fits codebooks; the vectors become what is left over. */
static float *fitted(const struct rvq_fit *f, float *vectors, size_t n, const struct kernels *k,
                     unsigned threads)
{
    float *books = new ((size_t)f->stages * f->entries * 8 * sizeof(float));
    char *scratch = new (rvq_fit_scratch_bytes(f, n)); /* exactly: ASan sees what lies behind */
    struct team *team;
    struct err e;

    assert_int_equal(team_open_n(&team, threads, &e), 0);
    if (rvq_fit_books(f, vectors, n, books, scratch, k, team, &e))
        fail_msg("%s", e.text);
    team_close(team);
    free(scratch);
    return books;
}

/* Vectors as a converter makes them: rows of Gaussians over their largest magnitude. */
static float *normalised(size_t rows, size_t cols)
{
    float *x = new (rows * cols * sizeof(float));

    gaussians(x, rows * cols, 0.02);
    for (size_t r = 0; r < rows; r++) {
        float *row = x + r * cols, most = 0;

        for (size_t c = 0; c < cols; c++)
            most = fabsf(row[c]) > most ? fabsf(row[c]) : most;
        for (size_t c = 0; c < cols; c++)
            row[c] /= most;
    }
    return x;
}

/* ---- codebooks ---- */

static double squares(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Relative error over matrices that the codebooks have not seen, of rows as long as those they
 * have. */
static double expert_error(const float *books, const struct record_layout *l,
                           const struct kernels *k)
{
    const size_t n = (size_t)LATENT * INTER;
    uint8_t *record = new (l->bytes);
    float *w = new (n * sizeof(float)), out[LATENT > INTER ? LATENT : INTER];
    double wrong = 0, all = 0;

    for (enum matrix m = MATRIX_GATE; m < MATRIX_DOWN; m++) {
        uint16_t *scale = (uint16_t *)(void *)(record + l->scale_off[m]);
        uint8_t *index = record + l->index_off[m];
        uint32_t rows = record_rows(l, m), cols = record_cols(l, m);

        gaussians(w, n, 0.03);
        rvq_encode_rows(index, scale, w, books, l, m, 0, rows, k);
        all += squares(w, n);
        for (uint32_t r = 0; r < rows; r++) {
            rvq_decode_row(out, index, scale, books, l, m, r);
            for (uint32_t c = 0; c < cols; c++)
                out[c] -= w[(size_t)r * cols + c];
            wrong += squares(out, cols);
        }
    }
    free(w);
    free(record);
    return sqrt(wrong / all);
}

/* Not among the tests under TSan: minutes of arithmetic there, and the others have its threads. */
__attribute__((unused)) static void gaussian_weights_have_the_errors_of_the_format(void **unused)
{
    static const struct {
        unsigned stages, entries, bits;
        double lo, hi;
    } want[] = {{3, 256, 8, 0.189, 0.203}, {2, 256, 8, 0.325, 0.34}, {4, 64, 6, 0.20, 0.2095}};
    const size_t rows = 1800, cols = LATENT;
    struct kernels k = level(false);

    (void)unused;
    for (unsigned i = 0; i < 3; i++) {
        struct rvq_fit f = {want[i].stages, want[i].entries, 60, 1};
        float *x, *books;
        struct record_layout l;
        struct err e;
        double error;

        state_of_random = 11;
        x = normalised(rows, cols);
        books = fitted(&f, x, rows * cols / 8, &k, 2);
        assert_int_equal(
            record_layout_init(&l, LATENT, INTER, f.stages, f.entries, want[i].bits, &e), 0);
        error = expert_error(books, &l, &k);
        print_message("%u x %u: %.2f %%\n", f.stages, f.entries, 100 * error);
        assert_true(error > want[i].lo && error < want[i].hi);
        free(x);
        free(books);
    }
}

static void threads_and_levels_change_no_bit(void **unused)
{
    static const struct rvq_fit fits[] = {{3, 32, 20, 5}, {2, 37, 20, 6}, {1, 1, 3, 7}};
    static const size_t counts[] = {1, 63, 65, 2500};
    struct kernels c = level(true), best = level(false);

    (void)unused;
    for (unsigned i = 0; i < 3; i++)
        for (unsigned j = 0; j < 4; j++) {
            const size_t n = counts[j], bytes = n * 8 * sizeof(float);
            float *x = new (bytes), *want_left = new (bytes), *left = new (bytes), *want, *got;

            state_of_random = i + 100 * j;
            gaussians(x, n * 8, 0.25);
            memcpy(want_left, x, bytes);
            want = fitted(&fits[i], want_left, n, &c, 1);
            for (unsigned threads = 1; threads <= THREADS; threads++) {
                memcpy(left, x, bytes);
                got = fitted(&fits[i], left, n, &best, threads);
                assert_memory_equal(got, want,
                                    fits[i].stages * fits[i].entries * 8 * sizeof(float));
                assert_memory_equal(left, want_left, bytes);
                free(got);
            }
            free(x);
            free(want_left);
            free(left);
            free(want);
        }
}

static void another_seed_gives_other_books(void **unused)
{
    struct rvq_fit f = {1, 16, 2, 1}, g = {1, 16, 2, 2};
    struct kernels k = level(false);
    float x[512 * 8], y[512 * 8], *a, *b;

    (void)unused;
    gaussians(x, 512 * 8, 0.25);
    memcpy(y, x, sizeof(x));
    a = fitted(&f, x, 512, &k, 1);
    b = fitted(&g, y, 512, &k, 1);
    assert_memory_not_equal(a, b, 16 * 8 * sizeof(float));
    free(a);
    free(b);
}

/* What one stage leaves is what the next is fitted on, and the books are what f16 holds. */
static void later_stages_are_fitted_on_what_rounded_centres_leave(void **unused)
{
    enum { N = 700, ENTRIES = 20 };
    struct rvq_fit two = {2, ENTRIES, 15, 3};
    struct kernels k = level(false);
    float x[N * 8], left[N * 8], *books;
    double before = INFINITY;

    (void)unused;
    gaussians(x, N * 8, 0.25);
    memcpy(left, x, sizeof(x));
    books = fitted(&two, left, N, &k, 1);
    for (unsigned i = 0; i < 2 * ENTRIES * 8; i++)
        assert_true(half_to_f32(f32_to_half(books[i])) == books[i]);
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned v = 0; v < N; v++) {
            float nearest[8] = {0};
            double least = INFINITY;

            for (unsigned c = 0; c < ENTRIES; c++) {
                float off[8];

                for (unsigned d = 0; d < 8; d++)
                    off[d] = x[v * 8 + d] - books[(s * ENTRIES + c) * 8 + d];
                if (squares(off, 8) < least) {
                    least = squares(off, 8);
                    memcpy(nearest, off, sizeof(off));
                }
            }
            memcpy(x + v * 8, nearest, sizeof(nearest));
        }
        assert_true(squares(x, N * 8) < before);
        before = squares(x, N * 8);
    }
    assert_memory_equal(x, left, sizeof(x));
    free(books);
}

/* Few different vectors, many copies: all of them become entries, and nothing is left. */
static void fewer_vectors_than_entries_are_met_exactly(void **unused)
{
    enum { N = 3000, DISTINCT = 40 };
    static const unsigned entries[] = {DISTINCT, 64, 256};
    struct kernels k = level(false);
    float point[DISTINCT * 8], x[N * 8];

    (void)unused;
    gaussians(point, DISTINCT * 8, 0.3);
    for (unsigned i = 0; i < DISTINCT * 8; i++)
        point[i] = half_to_f32(f32_to_half(point[i]));
    for (unsigned i = 0; i < 3; i++) {
        struct rvq_fit f = {2, entries[i], 30, 9};
        float *books;

        for (unsigned v = 0; v < N; v++)
            memcpy(x + v * 8, point + (v * 7 % DISTINCT) * 8, 8 * sizeof(float));
        books = fitted(&f, x, N, &k, 2);
        assert_true(squares(x, N * 8) == 0);
        free(books);
    }
}

/* 2 entries are chosen among 128 vectors, every tenth here, and those are all the same. */
static void an_empty_cluster_is_given_the_vector_that_is_worst_off(void **unused)
{
    enum { N = 1280 };
    struct rvq_fit f = {1, 2, 10, 4};
    struct kernels k = level(false);
    float x[N * 8], *books;

    (void)unused;
    for (unsigned i = 0; i < N * 8; i++)
        x[i] = i / 8 % 10 == 3 ? -0.5f : 0.25f;
    books = fitted(&f, x, N, &k, 2);
    assert_true(squares(x, N * 8) == 0);
    assert_true(books[0] == 0.25f && books[8] == -0.5f);
    free(books);
}

static void what_cannot_be_fitted_is_an_error(void **unused)
{
    static const struct rvq_fit bad[] = {{0, 4, 1, 0}, {9, 4, 1, 0}, {1, 0, 1, 0}, {1, 257, 1, 0}};
    static const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f};
    struct rvq_fit good = {1, 4, 1, 0};
    struct kernels k = level(false);
    float x[100 * 8], books[4 * 8] = {0}, none[4 * 8] = {0};
    void *scratch = new (rvq_fit_scratch_bytes(&good, 100));
    struct team *team;
    struct err e;

    (void)unused;
    assert_int_equal(team_open_n(&team, 1, &e), 0);
    gaussians(x, 100 * 8, 0.25);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(rvq_fit_books(&bad[i], x, 100, books, scratch, &k, team, &e), ERR_ARG);
    assert_int_equal(rvq_fit_books(&good, x, 0, books, scratch, &k, team, &e), ERR_ARG);
    for (unsigned i = 0; i < 4; i++) {
        x[i * 199] = odd[i];
        assert_int_equal(rvq_fit_books(&good, x, 100, books, scratch, &k, team, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.text, "not finite"));
        x[i * 199] = 0;
    }
    assert_memory_equal(books, none, sizeof(books));
    team_close(team);
    free(scratch);
}

/* ---- matrices ---- */

struct expert_case {
    struct record_layout l;
    float *w, *books;
    uint8_t *record;
};

static struct expert_case expert_case(unsigned stages, unsigned entries, unsigned bits)
{
    struct expert_case c;
    size_t n = (size_t)stages * entries * 8;
    struct err e;

    assert_int_equal(record_layout_init(&c.l, LATENT, INTER, stages, entries, bits, &e), 0);
    state_of_random = stages * 1000 + entries;
    c.books = new (n * sizeof(float));
    gaussians(c.books, n, 0.3);
    for (size_t i = 0; i < n; i++)
        c.books[i] = half_to_f32(f32_to_half(c.books[i]));
    c.w = new ((size_t)LATENT * INTER * sizeof(float));
    gaussians(c.w, (size_t)LATENT * INTER, 0.02);
    c.record = new (c.l.bytes);
    memset(c.record, 0xa5, c.l.bytes);
    return c;
}

static void release(struct expert_case *c)
{
    free(c->w);
    free(c->books);
    free(c->record);
}

static void encode(const struct expert_case *c, uint8_t *record, enum matrix m, uint32_t r0,
                   uint32_t r1, const struct kernels *k)
{
    rvq_encode_rows(record + c->l.index_off[m], (uint16_t *)(void *)(record + c->l.scale_off[m]),
                    c->w, c->books, &c->l, m, r0, r1, k);
}

/* The entry of stage s that a record holds, read by the words of the format. */
static unsigned entry_of(const struct expert_case *c, enum matrix m, uint32_t r, uint32_t v,
                         unsigned s)
{
    const uint8_t *b =
        c->record + c->l.index_off[m] +
        ((size_t)(r / 64 * (record_cols(&c->l, m) / 8) + v) * 64 + r % 64) * c->l.cell_bytes;
    unsigned packed[4] = {b[0] & 63u, b[0] >> 6 | (b[1] & 15u) << 2, b[1] >> 4 | (b[2] & 3u) << 4,
                          b[2] >> 2};

    return c->l.index_bits == 6 ? packed[s] : b[s];
}

/* Greedy, by distances in double; near ties may differ from it and are let be. */
static void check_row(const struct expert_case *c, enum matrix m, uint32_t r, const float *w,
                      float a)
{
    for (uint32_t v = 0; v < record_cols(&c->l, m) / 8; v++) {
        float x[8];

        for (unsigned d = 0; d < 8; d++)
            x[d] = w[v * 8 + d] / a;
        for (unsigned s = 0; s < c->l.stages; s++) {
            unsigned chosen = entry_of(c, m, r, v, s);
            const float *book = c->books + (size_t)s * c->l.entries * 8;
            double least = INFINITY, found = 0;

            assert_true(chosen < c->l.entries);
            for (unsigned e = 0; e < c->l.entries; e++) {
                float off[8];

                for (unsigned d = 0; d < 8; d++)
                    off[d] = x[d] - book[e * 8 + d];
                least = squares(off, 8) < least ? squares(off, 8) : least;
                found = e == chosen ? squares(off, 8) : found;
            }
            assert_true(found <= least + 1e-5);
            for (unsigned d = 0; d < 8; d++)
                x[d] -= book[chosen * 8 + d];
        }
    }
}

static void check_decoded(const struct expert_case *c, enum matrix m, uint32_t r)
{
    const uint16_t *scale = (const uint16_t *)(void *)(c->record + c->l.scale_off[m]);
    uint32_t cols = record_cols(&c->l, m);
    float out[LATENT + INTER];

    out[cols] = 123;
    rvq_decode_row(out, c->record + c->l.index_off[m], scale, c->books, &c->l, m, r);
    for (uint32_t i = 0; i < cols; i++) {
        double sum = 0;

        for (unsigned s = 0; s < c->l.stages; s++)
            sum +=
                (double)
                    c->books[((size_t)s * c->l.entries + entry_of(c, m, r, i / 8, s)) * 8 + i % 8];
        sum *= (double)half_to_f32(scale[r]);
        assert_true(fabs((double)out[i] - sum) <=
                    1e-6 * (fabs(sum) + (double)half_to_f32(scale[r])));
    }
    assert_true(out[cols] == 123);
}

static const unsigned formats[][3] = {{3, 256, 8}, {2, 256, 8}, {4, 64, 6}, {4, 64, 8},
                                      {1, 7, 8},   {8, 30, 8},  {5, 256, 8}};

static void rows_hold_the_nearest_entries_and_decode_to_them(void **unused)
{
    struct kernels k = level(false);

    (void)unused;
    for (unsigned f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        struct expert_case c = expert_case(formats[f][0], formats[f][1], formats[f][2]);

        for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
            uint32_t cols = record_cols(&c.l, m);

            encode(&c, c.record, m, 0, record_rows(&c.l, m), &k);
            for (uint32_t r = 0; r < record_rows(&c.l, m); r++) {
                const float *w = c.w + (size_t)r * cols;
                float a = 0;

                for (uint32_t i = 0; i < cols; i++)
                    a = fabsf(w[i]) > a ? fabsf(w[i]) : a;
                assert_int_equal(load_le16(c.record + c.l.scale_off[m] + 2 * r), f32_to_half(a));
                if (r % 7 == 0)
                    check_row(&c, m, r, w, a);
                check_decoded(&c, m, r);
            }
        }
        release(&c);
    }
}

/* In pieces, in any order, at any level: the same record, which the reader accepts. */
static void pieces_and_levels_give_the_same_record(void **unused)
{
    static const uint32_t cuts[] = {0, 1, 5, 63, 64, 70, INTER};
    struct kernels best = level(false), ref = level(true);

    (void)unused;
    for (unsigned f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        struct expert_case c = expert_case(formats[f][0], formats[f][1], formats[f][2]);
        uint8_t *whole = new (c.l.bytes);
        struct err e;

        memset(whole, 0, c.l.bytes);
        memset(c.record, 0, c.l.bytes);
        for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
            uint32_t rows = record_rows(&c.l, m);

            encode(&c, whole, m, 0, rows, &ref);
            encode(&c, c.record, m, INTER, rows, &best);
            for (unsigned i = sizeof(cuts) / sizeof(*cuts) - 1; i--;)
                encode(&c, c.record, m, cuts[i], cuts[i + 1], &best);
        }
        assert_memory_equal(c.record, whole, c.l.bytes);
        record_seal(&c.l, whole, 1, 2, 0);
        assert_int_equal(record_check(&c.l, whole, 1, 2, 0, &e), 0);
        assert_int_equal(record_verify(&c.l, whole, 1, 2, &e), 0);
        free(whole);
        release(&c);
    }
}

static void padding_rows_and_other_rows_are_left_alone(void **unused)
{
    enum { R0 = 66, R1 = 70 };
    struct kernels k = level(false);
    struct expert_case c = expert_case(3, 256, 8);
    uint8_t *before = new (c.l.bytes);
    uint32_t n = LATENT / 8;

    (void)unused;
    memcpy(before, c.record, c.l.bytes);
    encode(&c, c.record, MATRIX_GATE, R0, R1, &k);
    for (uint32_t b = 0; b < 2; b++) /* put back what may have been written */
        for (uint32_t v = 0; v < n; v++)
            for (uint32_t r = 0; r < 64; r++) {
                size_t at = c.l.index_off[MATRIX_GATE] + ((size_t)(b * n + v) * 64 + r) * 3;

                if (b * 64 + r >= R0 && b * 64 + r < R1)
                    memset(c.record + at, 0xa5, 3);
            }
    memset(c.record + c.l.scale_off[MATRIX_GATE] + 2 * R0, 0xa5, 2 * (R1 - R0));
    assert_memory_equal(c.record, before, c.l.bytes);
    free(before);
    release(&c);
}

static void a_row_of_zeros_decodes_to_zeros(void **unused)
{
    struct kernels k = level(false);
    struct expert_case c = expert_case(3, 256, 8);
    const uint16_t *scale = (const uint16_t *)(void *)(c.record + c.l.scale_off[MATRIX_GATE]);
    float out[LATENT];

    (void)unused;
    memset(c.w, 0, 2 * LATENT * sizeof(float));
    c.w[LATENT + 9] = -1e-9f; /* below what a scale may be */
    encode(&c, c.record, MATRIX_GATE, 0, 3, &k);
    assert_int_equal(scale[0], f32_to_half(1e-8f));
    assert_int_equal(scale[1], f32_to_half(1e-8f));
    assert_int_not_equal(scale[2], 0);
    for (uint32_t r = 0; r < 2; r++) {
        rvq_decode_row(out, c.record + c.l.index_off[MATRIX_GATE], scale, c.books, &c.l,
                       MATRIX_GATE, r);
        for (uint32_t i = 0; i < LATENT; i++)
            assert_true(out[i] == 0);
    }
    release(&c);
}

/* Nothing turns them into numbers: the scale says so, and record_check refuses it. */
static void rows_without_a_finite_scale_have_none(void **unused)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 65520};
    struct kernels k = level(false);

    (void)unused;
    for (unsigned i = 0; i < 4; i++) {
        struct expert_case c = expert_case(3, 37, 8);
        struct err e;

        memset(c.record, 0, c.l.bytes);
        c.w[3 * LATENT + 100 + i] = odd[i];
        encode(&c, c.record, MATRIX_GATE, 0, INTER, &k);
        record_seal(&c.l, c.record, 1, 2, 0);
        assert_int_equal(record_check(&c.l, c.record, 1, 2, 0, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.text, "gate scale of row 3"));
        assert_int_equal(record_verify(&c.l, c.record, 1, 2, &e), 0); /* indices are in range */
        release(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef UNDER_TSAN
        cmocka_unit_test(gaussian_weights_have_the_errors_of_the_format),
#endif
        cmocka_unit_test(threads_and_levels_change_no_bit),
        cmocka_unit_test(another_seed_gives_other_books),
        cmocka_unit_test(later_stages_are_fitted_on_what_rounded_centres_leave),
        cmocka_unit_test(fewer_vectors_than_entries_are_met_exactly),
        cmocka_unit_test(an_empty_cluster_is_given_the_vector_that_is_worst_off),
        cmocka_unit_test(what_cannot_be_fitted_is_an_error),
        cmocka_unit_test(rows_hold_the_nearest_entries_and_decode_to_them),
        cmocka_unit_test(pieces_and_levels_give_the_same_record),
        cmocka_unit_test(padding_rows_and_other_rows_are_left_alone),
        cmocka_unit_test(a_row_of_zeros_decodes_to_zeros),
        cmocka_unit_test(rows_without_a_finite_scale_have_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
