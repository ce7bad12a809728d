/* Published bits of the kernels on inputs that are defined by arithmetic, for every level.
 *
 * stream(label): x starts as the CRC-32 of the label; x <- 1664525 x + 1013904223, and each step
 * gives the byte x >> 24. Weights are the golden container's, rebuilt here from their labels, so
 * that these numbers do not depend on the code that reads containers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"
#include "model/kernels/poly.h"
#include "tests/kernels/check.h"

static uint32_t crc32_of(const void *p, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (const uint8_t *at = p; n--; at++) {
        crc ^= *at;
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

static uint8_t *stream(const char *label, size_t n)
{
    uint8_t *out = check_new(n);
    uint32_t x = crc32_of(label, strlen(label));

    for (size_t i = 0; i < n; i++) {
        x = 1664525u * x + 1013904223u;
        out[i] = (uint8_t)(x >> 24);
    }
    return out;
}

/* Signed 24-bit numbers times 2^-22; padded to the next multiple of 128. */
static float *golden_x(const char *label, uint32_t n)
{
    const uint8_t *b = stream(label, 3 * (size_t)n);
    float *x = check_new((n + 127) / 128 * 128 * sizeof(float));

    for (uint32_t i = 0; i < n; i++, b += 3) {
        uint32_t u = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16;

        x[i] = (float)((int32_t)(u << 8) >> 8) * 0x1p-22f;
    }
    return x;
}

static struct tensor golden_tensor(const char *name, int fmt, uint32_t rows, uint32_t cols)
{
    struct tensor w = check_tensor(fmt, rows, cols, CODES_RANDOM, 0x2000, 0x2000);
    const uint8_t *b = stream(name, (size_t)rows * cols), *c;
    uint16_t *scale = (uint16_t *)w.scale;
    char label[128];

    snprintf(label, sizeof(label), "%s#s", name);
    c = stream(label, (size_t)rows * w.groups);
    for (uint32_t i = 0; i < rows * w.groups; i++)
        scale[i] = (uint16_t)((fmt == FMT_Q8G ? 0x1400 : fmt == FMT_Q4G ? 0x2000 : 0x2400) + c[i]);
    if (strcmp(name, "model.layers.0.mlp.down_proj.weight") == 0)
        scale[3 * w.groups] = 0x0155;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < cols; i++, b++) {
            uint8_t byte = *b == 128 ? 129 : *b;

            check_set_code(&w, r, i,
                           fmt == FMT_Q8G   ? (int8_t)byte
                           : fmt == FMT_Q4G ? (byte & 15) - 8
                                            : (byte & 7) - 4);
        }
    return w;
}

static void dot_has_its_published_bits(void **unused)
{
    const float *x = golden_x("x", 136), *y = golden_x("y", 136);
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++)
        assert_int_equal(f32_to_bits(k.dot(x, y, 136)), 0xC1C4F717);
    check_free();
}

static void elementwise_functions_have_their_published_bits(void **unused)
{
    const float *f = golden_x("f", 4096);
    float *x = check_new(4096 * sizeof(float)), *y = check_new(4096 * sizeof(float));
    struct kernels k;

    (void)unused;
    for (unsigned i = 0; i < 4096; i++)
        x[i] = 16.0f * f[i];
    for (unsigned i = 0; i < 4096; i++)
        y[i] = poly_exp(x[i]);
    assert_int_equal(crc32_of(y, 4096 * sizeof(float)), 0x5CEA4395);
    for (unsigned i = 0; i < 4096; i++)
        y[i] = poly_sigmoid(x[i]);
    assert_int_equal(crc32_of(y, 4096 * sizeof(float)), 0x4CFEE269);
    for (unsigned i = 0; i < 4096; i++)
        y[i] = poly_tanh(x[i]);
    assert_int_equal(crc32_of(y, 4096 * sizeof(float)), 0x11556A7F);
    for (unsigned i = 0; i < 4096; i++)
        y[i] = poly_softplus(x[i]);
    assert_int_equal(crc32_of(y, 4096 * sizeof(float)), 0xA3D52D0C);
    assert_int_equal(f32_to_bits(poly_exp(1)), 0x402DF854);
    assert_int_equal(f32_to_bits(poly_sigmoid(1)), 0x3F3B26A8);
    assert_int_equal(f32_to_bits(poly_tanh(1)), 0x3F42F7D5);
    assert_int_equal(f32_to_bits(poly_softplus(1)), 0x3FA818F6);
    assert_int_equal(f32_to_bits(poly_exp(-1)), 0x3EBC5AB2);
    assert_int_equal(f32_to_bits(poly_sigmoid(-1)), 0x3E89B2B1);
    assert_int_equal(f32_to_bits(poly_tanh(-1)), 0xBF42F7D5);
    assert_int_equal(f32_to_bits(poly_softplus(-1)), 0x3EA063D7);
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        k.sigmoid(y, x, 4096);
        assert_int_equal(crc32_of(y, 4096 * sizeof(float)), 0x4CFEE269);
    }
    check_free();
}

static void quantised_rows_have_their_published_bits(void **unused)
{
    static const struct {
        const char *name;
        int fmt;
        uint32_t rows, cols, first, crc;
    } golden[] = {
        {"lm_head.weight", FMT_Q8G, 64, 136, 0xBF664FFD, 0x55FE1BD5},
        {"model.layers.0.mlp.down_proj.weight", FMT_Q4G, 136, 160, 0x3E100422, 0x54003506},
        {"model.layers.0.mlp.up_proj.weight", FMT_Q3G, 160, 136, 0xBCE5BBA0, 0xD3723917},
    };
    float y[160];
    struct kernels k;

    (void)unused;
    for (unsigned g = 0; g < N_ELEMS(golden); g++) {
        struct tensor w =
            golden_tensor(golden[g].name, golden[g].fmt, golden[g].rows, golden[g].cols);
        const float *x = golden_x("x", w.cols);

        for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
            k.gemv(y, w.rows, x, 256, 1, &w, 0, w.rows);
            assert_int_equal(f32_to_bits(y[0]), golden[g].first);
            assert_int_equal(crc32_of(y, w.rows * sizeof(float)), golden[g].crc);
        }
        check_free();
    }
}

/* Matrix `kind` of layer 1, expert 0, with its codebooks. */
struct golden_expert {
    struct rvq_shape shape;
    float *codebook;
    uint8_t *index;
    uint16_t *scale;
};

static struct golden_expert golden_expert(bool packed, bool down)
{
    struct golden_expert m = {.shape = {.rows = down ? 136 : 72,
                                        .cols = down ? 72 : 136,
                                        .stages = packed ? 4 : 3,
                                        .entries = packed ? 64 : 256,
                                        .cell_bytes = 3}};
    const uint32_t n = m.shape.cols / 8, stages = m.shape.stages, entries = m.shape.entries;
    const char *label = down ? "L1E0down" : "L1E0gate";
    const uint8_t *b = stream(label, (size_t)m.shape.rows * n * stages), *c;
    char name[32];

    m.codebook = check_new((size_t)stages * entries * 8 * sizeof(float));
    for (uint32_t s = 0; s < stages; s++) {
        snprintf(name, sizeof(name), "cb%u", (down ? 2 * stages : 0) + s);
        c = stream(name, (size_t)entries * 8);
        for (uint32_t i = 0; i < entries * 8; i++)
            m.codebook[s * entries * 8 + i] = (float)(c[i] - 128) / 256.0f;
    }
    m.index = check_new((size_t)(m.shape.rows + 63) / 64 * 64 * n * 3);
    for (uint32_t r = 0; r < m.shape.rows; r++)
        for (uint32_t p = 0; p < n; p++, b += stages) {
            uint8_t *cell = m.index + ((r / 64 * n + p) * 64 + r % 64) * 3;
            uint32_t word = 0;

            for (uint32_t s = 0; s < stages; s++)
                word |= (b[s] & (entries - 1)) << (packed ? 6 : 8) * s;
            store_le16(cell, (uint16_t)word);
            cell[2] = (uint8_t)(word >> 16);
        }
    snprintf(name, sizeof(name), "%s#s", label);
    c = stream(name, m.shape.rows);
    m.scale = check_new(m.shape.rows * sizeof(*m.scale));
    for (uint32_t r = 0; r < m.shape.rows; r++)
        m.scale[r] = (uint16_t)(0x2C00 + c[r]);
    return m;
}

static void expert_rows_have_their_published_bits(void **unused)
{
    static const struct {
        bool packed, down;
        uint32_t crc[PROFILES], scale0[PROFILES];
    } golden[] = {
        {false,
         false,
         {0x6B0A512A, 0x2F8E11DD, 0x051FC4B0, 0x295E79B3},
         {0, 0, 0x38EE9B7E, 0x3CF07A96}},
        {false,
         true,
         {0xCC016930, 0x4EEE2FD4, 0x901D1A11, 0x99F8D88A},
         {0, 0, 0x38D34E32, 0x3CD4F678}},
        {true,
         false,
         {0x53631DD3, 0x315769B3, 0xD14E6CF0, 0x3230BD1E},
         {0, 0, 0x38D00B26, 0x3CD1ACE0}},
        {true,
         true,
         {0xB02D671B, 0xEE699BC4, 0xDFBA7252, 0x5BAC6F05},
         {0, 0, 0x38BC454C, 0x3CBDBF52}},
    };
    float y[136];
    struct kernels k;

    (void)unused;
    for (unsigned g = 0; g < N_ELEMS(golden); g++)
        for (unsigned p = 0; p < PROFILES; p++) {
            struct golden_expert m = golden_expert(golden[g].packed, golden[g].down);
            const float *x = golden_x("x", m.shape.cols);

            for (unsigned i = 0; check_level(i, (enum profile)p, &k); i++) {
                void *prepared = check_new(k.rvq_prepared_bytes(&m.shape));

                k.rvq_prepare(prepared, x, m.codebook, &m.shape, 0, m.shape.cols / 8);
                k.rvq_rows(y, prepared, m.index, m.scale, &m.shape, 0, m.shape.rows);
                assert_int_equal(crc32_of(y, m.shape.rows * sizeof(float)), golden[g].crc[p]);
                /* The C layout begins with the scales; others may keep theirs elsewhere. */
                if (i == 0 && golden[g].scale0[p])
                    assert_int_equal(load_le32(prepared), golden[g].scale0[p]);
            }
            check_free();
        }
}

static void near(float got, double want)
{
    assert_true(fabs((double)got - want) <= 3e-6 * fabs(want) + 5e-9);
}

static void gates_have_their_published_values(void **unused)
{
    static const struct {
        float g, u;
        double want;
    } situ[] = {{1, 1, 0.715817828},    {-1, 2, -0.525828896},      {3, -7, -16.511479446},
                {10, 50, 95.108021534}, {0.5f, 0.25f, 0.077402106}, {-20, 5, -4.1e-8}};
    static const struct {
        float a_log, z;
        double want; /* the log decay */
    } plain[] = {{0, 0, -0.693147181},
                 {0.5f, 1, -2.165202478},
                 {1.2f, -2, -0.421415837},
                 {2, 3, -22.526182963}},
      bounded[] = {{0, 0, -2.5},
                   {0.5f, 1, -4.193590758},
                   {1.2f, -2, -0.006525082},
                   {-1, 0.3f, -2.637814935}};
    const float zero = 0;
    struct kernels k;
    float y;

    (void)unused;
    for (unsigned i = 0; check_level(i, PROFILE_F32, &k); i++) {
        for (unsigned n = 0; n < N_ELEMS(situ); n++) {
            k.situ_mul(&y, &situ[n].g, &situ[n].u, 1, 4, 25);
            near(y, situ[n].want);
        }
        for (unsigned n = 0; n < N_ELEMS(plain); n++) {
            k.decay(&y, &plain[n].z, &zero, poly_exp(plain[n].a_log), 0, 1);
            assert_true(fabs((double)y / exp(plain[n].want) - 1) < 1e-5);
            k.decay(&y, &bounded[n].z, &zero, poly_exp(bounded[n].a_log), -5, 1);
            assert_true(fabs((double)y / exp(bounded[n].want) - 1) < 1e-5);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_has_its_published_bits),
        cmocka_unit_test(elementwise_functions_have_their_published_bits),
        cmocka_unit_test(quantised_rows_have_their_published_bits),
        cmocka_unit_test(expert_rows_have_their_published_bits),
        cmocka_unit_test(gates_have_their_published_values),
    };

    return check_run(argc, argv, "check_golden", tests, N_ELEMS(tests));
}
