/* Experts: each level and profile against the definition spelled out, bit for bit. */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "tests/kernels/check.h"

static const struct rvq_shape shapes[] = {
    {72, 136, 3, 256, 3}, {136, 72, 3, 256, 3},   {72, 136, 4, 64, 3}, {136, 1032, 4, 64, 3},
    {64, 256, 2, 256, 2}, {65, 264, 1, 256, 1},   {1, 8, 3, 1, 3},     {130, 520, 8, 256, 8},
    {70, 512, 5, 37, 5},  {200, 2304, 3, 256, 3}, {3, 248, 4, 200, 4}, {86, 96, 4, 256, 4},
    {190, 264, 2, 64, 2}, {333, 80, 3, 64, 3},
};

/* More row blocks than any variant takes at once, and some left over. */
static const struct rvq_shape tall[] = {
    {1229, 48, 3, 256, 3},
    {1229, 104, 2, 256, 2},
    {1229, 72, 4, 64, 3},
};

struct rvq_case {
    struct rvq_shape shape;
    float *x, *codebook;
    uint8_t *index;
    uint16_t *scale;
};

static unsigned index_at(const struct rvq_case *c, uint32_t r, uint32_t p, uint32_t s)
{
    const struct rvq_shape *m = &c->shape;
    const uint8_t *cell =
        c->index + ((size_t)(r / 64 * (m->cols / 8) + p) * 64 + r % 64) * m->cell_bytes;

    if (m->cell_bytes == m->stages)
        return cell[s];
    return (cell[0] | (unsigned)cell[1] << 8 | (unsigned)cell[2] << 16) >> (6 * s) & 63;
}

static struct rvq_case random_case(const struct rvq_shape *m, enum fill x, enum codes indices)
{
    struct rvq_case c = {.shape = *m};
    size_t n = (size_t)(m->rows + 63) / 64 * (m->cols / 8) * 64 * m->cell_bytes;

    c.x = check_new(m->cols * sizeof(float));
    check_fill(c.x, m->cols, x);
    c.codebook = check_new((size_t)m->stages * m->entries * 8 * sizeof(float));
    for (uint32_t i = 0; i < m->stages * m->entries * 8; i++)
        c.codebook[i] =
            half_to_f32((uint16_t)(check_random() % 0x3c00 | (check_random() & 0x8000)));
    c.index = check_new(n);
    for (size_t i = 0; i < n; i++)
        c.index[i] = (uint8_t)(indices == CODES_LOWEST ? 0
                               : m->cell_bytes < m->stages
                                   ? (indices == CODES_HIGHEST ? 0xff : check_random())
                               : indices == CODES_HIGHEST ? m->entries - 1
                                                          : check_random() % m->entries);
    c.scale = check_new(m->rows * sizeof(*c.scale));
    for (uint32_t r = 0; r < m->rows; r++)
        c.scale[r] = (uint16_t)(r % 7 ? 0x2c00 + check_random() % 256 : check_random() % 0x400);
    return c;
}

static float spelled_entry(const struct rvq_case *c, uint32_t p, uint32_t s, uint32_t e)
{
    float acc = 0;

    for (unsigned d = 0; d < 8; d++)
        acc = fmaf(c->x[8 * p + d], c->codebook[(s * c->shape.entries + e) * 8 + d], acc);
    return acc;
}

static float spelled_f32(const struct rvq_case *c, uint32_t r)
{
    float acc = 0;

    for (uint32_t p = 0; p < c->shape.cols / 8; p++) {
        float sum = spelled_entry(c, p, 0, index_at(c, r, p, 0));

        for (uint32_t s = 1; s < c->shape.stages; s++)
            sum = sum + spelled_entry(c, p, s, index_at(c, r, p, s));
        acc = acc + sum;
    }
    return acc * half_to_f32(c->scale[r]);
}

static float spelled_direct(const struct rvq_case *c, uint32_t r)
{
    float acc[8] = {0};

    for (uint32_t p = 0; p < c->shape.cols / 8; p++)
        for (unsigned d = 0; d < 8; d++) {
            float w = c->codebook[index_at(c, r, p, 0) * 8 + d];

            for (uint32_t s = 1; s < c->shape.stages; s++)
                w = w + c->codebook[(s * c->shape.entries + index_at(c, r, p, s)) * 8 + d];
            acc[d] = fmaf(c->x[8 * p + d], w, acc[d]);
        }
    return check_fold(acc, 8) * half_to_f32(c->scale[r]);
}

/* Largest magnitude of a block of positions, NaN if something in it is not finite. */
static float block_max(const struct rvq_case *c, uint32_t p0, uint32_t p1)
{
    float max = 0;

    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t s = 0; s < c->shape.stages; s++)
            for (uint32_t e = 0; e < c->shape.entries; e++) {
                float a = fabsf(spelled_entry(c, p, s, e));

                if (!isfinite(a))
                    return NAN;
                max = a > max ? a : max;
            }
    return max;
}

static void spelled_codes(float *y, const struct rvq_case *c, float q)
{
    const uint32_t n = c->shape.cols / 8;

    memset(y, 0, c->shape.rows * sizeof(float));
    for (uint32_t p0 = 0; p0 < n; p0 += 32) {
        uint32_t p1 = p0 + 32 < n ? p0 + 32 : n;
        float max = block_max(c, p0, p1);
        bool plain = max >= 0x1p-100f;

        for (uint32_t r = 0; r < c->shape.rows; r++) {
            int32_t sum = 0;

            for (uint32_t p = p0; p < p1 && plain; p++)
                for (uint32_t s = 0; s < c->shape.stages; s++) {
                    float code = rintf(spelled_entry(c, p, s, index_at(c, r, p, s)) * (q / max));

                    sum += (int32_t)(code > q ? q : code < -q ? -q : code);
                }
            y[r] = fmaf(isnan(max) ? NAN : plain ? max / q : 0.0f, (float)sum, y[r]);
        }
    }
    for (uint32_t r = 0; r < c->shape.rows; r++)
        y[r] = y[r] * half_to_f32(c->scale[r]);
}

static void spelled(float *y, const struct rvq_case *c, enum profile profile)
{
    if (profile == PROFILE_I16 || profile == PROFILE_I8)
        spelled_codes(y, c, profile == PROFILE_I16 ? 32767 : 127);
    else
        for (uint32_t r = 0; r < c->shape.rows; r++)
            y[r] = profile == PROFILE_F32 ? spelled_f32(c, r) : spelled_direct(c, r);
}

/* Prepared in pieces and applied in two ragged ranges, as threads would. */
static void run(const struct kernels *k, const struct rvq_case *c, float *y)
{
    const uint32_t n = c->shape.cols / 8, rows = c->shape.rows;
    const uint32_t p = n > 32 ? n / 2 / 32 * 32 : n, r = rows > 64 ? rows / 2 / 64 * 64 : rows;
    size_t bytes = k->rvq_prepared_bytes(&c->shape);
    uint8_t *prepared = check_new(bytes + 64);

    assert_int_equal(bytes % 64, 0);
    memset(prepared, 0xa5, bytes + 64);
    if (p < n)
        k->rvq_prepare(prepared, c->x, c->codebook, &c->shape, p, n);
    k->rvq_prepare(prepared, c->x, c->codebook, &c->shape, 0, p);
    if (r < rows)
        k->rvq_rows(y, prepared, c->index, c->scale, &c->shape, r, rows);
    k->rvq_rows(y, prepared, c->index, c->scale, &c->shape, 0, r);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(prepared[bytes + i], 0xa5);
}

/* A level, or after the last one the best this machine would do without VBMI. */
static bool level_at(unsigned i, enum profile profile, struct kernels *k)
{
    if (check_level(i, profile, k))
        return true;
    if (i == 0 || !check_level(i - 1, profile, k))
        return false;
    kernels_init(k, cpu_detect() & ~(unsigned)CPU_AVX512_VBMI, profile);
    return true;
}

static void one_case(const struct rvq_case *c, bool finite)
{
    const uint32_t rows = c->shape.rows;
    struct kernels k;

    for (unsigned p = 0; p < PROFILES; p++) {
        float *want = check_guarded(rows);

        spelled(want, c, (enum profile)p);
        for (uint32_t r = 0; r < rows && !finite; r++)
            assert_false(isfinite(want[r]));
        for (unsigned i = 0; level_at(i, (enum profile)p, &k); i++) {
            float *got = check_guarded(rows);
            char name[32];

            snprintf(name, sizeof(name), "%s %s", k.name, profile_name(p));
            run(&k, c, got);
            check_same_guarded(got, want, rows, name);
        }
    }
}

static void experts_match_their_definition(void **unused)
{
    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++) {
        struct rvq_case c = random_case(&shapes[s], FILL_PLAIN, CODES_RANDOM);

        one_case(&c, true);
        check_free();
    }
}

static void tall_experts_match_their_definition(void **unused)
{
    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(tall); s++) {
        struct rvq_case c = random_case(&tall[s], FILL_WILD, CODES_RANDOM);

        one_case(&c, true);
        check_free();
    }
}

static void extreme_indices_match(void **unused)
{
    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++)
        for (enum codes kind = CODES_LOWEST; kind < CODES; kind++) {
            struct rvq_case c = random_case(&shapes[s], FILL_WILD, kind);

            one_case(&c, true);
            check_free();
        }
}

/* Every code at the same end of its range, every stage: the largest block sums there are. */
static void the_largest_sums_are_exact(void **unused)
{
    (void)unused;
    for (int sign = -1; sign <= 1; sign += 2) {
        struct rvq_case c = random_case(&shapes[7], FILL_PLAIN, CODES_RANDOM);

        for (uint32_t i = 0; i < c.shape.cols; i++)
            c.x[i] = (float)sign;
        for (uint32_t i = 0; i < c.shape.stages * c.shape.entries * 8; i++)
            c.codebook[i] = 0.75f;
        one_case(&c, true);
        check_free();
    }
}

static void nonfinite_inputs_stay_nonfinite(void **unused)
{
    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(shapes); s++)
        for (unsigned again = 0; again < 3; again++) {
            struct rvq_case c = random_case(&shapes[s], FILL_NONFINITE, CODES_RANDOM);

            one_case(&c, false);
            check_free();
        }
}

/* A block below 2^-100 counts as zero; just above it has a scale. */
static void tiny_blocks_match(void **unused)
{
    static const float sizes[] = {0, 0x1p-149f, 0x1p-104f, 0x1p-101f, 0x1p-100f, 0x1p-98f};

    (void)unused;
    for (unsigned s = 0; s < N_ELEMS(sizes); s++) {
        struct rvq_case c = random_case(&shapes[3], FILL_PLAIN, CODES_RANDOM);

        for (uint32_t i = 0; i < 512; i++)
            c.x[i] *= sizes[s];
        one_case(&c, true);
        check_free();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_match_their_definition),
        cmocka_unit_test(tall_experts_match_their_definition),
        cmocka_unit_test(extreme_indices_match),
        cmocka_unit_test(the_largest_sums_are_exact),
        cmocka_unit_test(nonfinite_inputs_stay_nonfinite),
        cmocka_unit_test(tiny_blocks_match),
    };

    return check_run(argc, argv, "check_rvq", tests, N_ELEMS(tests));
}
