/* The published figures of the golden mini container: what we write are those files, what we read
 * from them are those numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <libdeflate.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"
#include "expertfs/codebook.h"
#include "expertfs/source.h"
#include "tests/support/sha256.h"
#include "tests/support/tiny_container.h"

static const char trunk_sha[] = "54b429551eb477728773f7586aa45807df19716d7c53c7639069fd33a79ec7d2";

static const struct golden {
    enum tiny variant;
    const char *codebooks, *bank[2]; /* SHA-256 */
    uint32_t crc[2][TINY_EXPERTS];
} golden[] = {
    {TINY_VQ3R,
     "23c513e32705e249a19ff74d22f4dfab450903e761c0d28a08d19ab6f277ea27",
     {"b2990f83920fa4492f583cbcf125149a27410e385321ecdd53c057afa522db97",
      "a2b0f4ba79764bea2ce14d30d686cf5cfaae96e02944df5c2df1061d4e691ab7"},
     {{0xAD8A39AC, 0x9E244DCA, 0xD061DABF, 0x41C41934},
      {0x251E7C81, 0x263B9D99, 0xFE2A7B7A, 0x2C921F9D}}},
    {TINY_VQ4P,
     "592aa1c3652076d03ddf5656f38ad252971290fecdc19b71ac958ac748e6f931",
     {"59d68e7c8fc9b3c4c42a11424b09af0fc801f58c442c9d2ccc9badb6e7685e5a",
      "de6fe5f5b3b051a0e77c34f7ae9f06543e26b63b4523f3c241b903f96f763928"},
     {{0xFF9513B0, 0x8ED8D0B7, 0x838406C4, 0x2097A1D8},
      {0x00219DB2, 0x9BA40B78, 0xC9E25A66, 0xF323EEA4}}},
};

static int setup(void **state)
{
    char *dir = malloc(256);

    tiny_dir(dir, 256);
    *state = dir;
    return 0;
}

static int teardown(void **state)
{
    tiny_remove(*state);
    free(*state);
    return 0;
}

static void assert_file(const char *dir, const char *name, size_t bytes, const char *sha)
{
    uint8_t *data;
    char is[65];
    size_t n;

    data = tiny_file_read(dir, name, &n);
    assert_int_equal(n, bytes);
    sha256_hex(is, data, n);
    free(data);
    if (strcmp(is, sha) != 0)
        fail_msg("%s has SHA-256 %s", name, is);
}

static void the_digest_is_sha_256(void **state)
{
    static const char text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char hex[65];

    (void)state;
    sha256_hex(hex, "", 0);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_hex(hex, "abc", 3);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_hex(hex, text, 56);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void files_are_those_that_were_published(void **state)
{
    const char *dir = *state;

    for (unsigned i = 0; i < 2; i++) {
        tiny_write(dir, golden[i].variant);
        assert_file(dir, "trunk.bin", TINY_TRUNK_BYTES, trunk_sha);
        assert_file(dir, "codebooks.bin", i ? 24960 : 74016, golden[i].codebooks);
        assert_file(dir, "experts-L1.bin", 81920, golden[i].bank[0]);
        assert_file(dir, "experts-L2.bin", 81920, golden[i].bank[1]);
    }
}

static void checksums_are_those_that_were_published(void **state)
{
    const char *dir = *state;
    uint8_t *trunk;
    size_t n;

    for (unsigned i = 0; i < 2; i++)
        for (unsigned layer = 1; layer < TINY_LAYERS; layer++)
            for (unsigned expert = 0; expert < TINY_EXPERTS; expert++) {
                uint8_t bytes[TINY_RECORD_BYTES];

                tiny_record(bytes, golden[i].variant, layer, expert);
                assert_int_equal(load_le32(bytes + REC_CRC), golden[i].crc[layer - 1][expert]);
                assert_int_equal(libdeflate_crc32(0, bytes + 48, 18848 - 48),
                                 golden[i].crc[layer - 1][expert]);
            }
    tiny_write(dir, TINY_VQ3R);
    trunk = tiny_file_read(dir, "trunk.bin", &n);
    assert_int_equal(libdeflate_crc32(0, trunk, n), 0x7953CE3A);
    assert_int_equal(libdeflate_crc32(0, trunk + 3, 200001), 0xA0FA5B16);
    free(trunk);
}

/* An expert's entry number of stage s at row i, position v of matrix m. */
static unsigned index_at(const struct record_layout *l, const struct expert *x, enum matrix m,
                         unsigned i, unsigned v, unsigned s)
{
    unsigned nv = record_cols(l, m) / 8;
    const uint8_t *cell = x->index[m] + ((size_t)(i / 64 * nv + v) * 64 + i % 64) * l->cell_bytes;

    if (l->index_bits == 8)
        return cell[s];
    return (cell[0] | (unsigned)cell[1] << 8 | (unsigned)cell[2] << 16) >> (6 * s) & 63;
}

static float weight_at(const struct record_layout *l, const struct expert *x, const float *codebook,
                       enum matrix m, unsigned i, unsigned col)
{
    float sum = 0;

    for (unsigned s = 0; s < l->stages; s++)
        sum += codebook[(s * l->entries + index_at(l, x, m, i, col / 8, s)) * 8 + col % 8];
    return half_to_f32(x->scale[m][i]) * sum;
}

static void close_to(double got, double want, double digit)
{
    if (!(fabs(got - want) <= digit))
        fail_msg("%.10g is not %.10g", got, want);
}

/* Open the container, and hand the decoded layer 1 expert 0 to `look`. */
static void with_expert(const char *dir, enum tiny variant,
                        void (*look)(const struct record_layout *l, const struct expert *x,
                                     const struct codebooks *cb))
{
    static const struct container_options o = {.direct = true};
    struct expert_source *s = NULL;
    struct codebooks *cb = NULL;
    struct container *c = NULL;
    struct expert x = {0};
    unsigned which;
    struct err e;

    tiny_write(dir, variant);
    if (container_open(&c, dir, &o, &e) || codebooks_open(&cb, c, NULL, &e) ||
        source_mem_open(&s, c, NULL, true, &e) ||
        s->ops->pin_any(s, 1, (const uint16_t[]){0}, 1, &which, &x, &e))
        fail_msg("%s", e.text);
    look(&container_manifest(c)->record, &x, cb);
    s->ops->unpin(s, &x);
    s->ops->close(s);
    codebooks_close(cb);
    container_close(c);
}

struct decoded {
    double w[4], norm, sum;
};

static void decode_matrix(struct decoded *d, const struct record_layout *l, const struct expert *x,
                          const struct codebooks *cb, enum matrix m)
{
    const float *codebook = codebook_at(cb, 1, m);
    double squares = 0;

    *d = (struct decoded){0};
    for (unsigned i = 0; i < record_rows(l, m); i++)
        for (unsigned col = 0; col < record_cols(l, m); col++) {
            double w = weight_at(l, x, codebook, m, i, col);

            if (i == 0 && col < 4)
                d->w[col] = w;
            squares += w * w;
            d->sum += w;
        }
    d->norm = sqrt(squares);
}

static void look_vq3r(const struct record_layout *l, const struct expert *x,
                      const struct codebooks *cb)
{
    static const struct decoded want[MATRICES] = {
        {{0.055920839, -0.000255346, -0.059240341, 0.017363548}, 3.477533407, 6.910607},
        {{0.022216797, 0.068603516, -0.053710938, -0.033447266}, 3.427515266, -10.181421},
        {{0.032497406, -0.036849737, 0.032787561, -0.026113987}, 3.502262635, 3.203329}};

    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        struct decoded d;

        decode_matrix(&d, l, x, cb, m);
        for (unsigned i = 0; i < 4; i++)
            close_to(d.w[i], want[m].w[i], 1e-9);
        close_to(d.norm, want[m].norm, 4e-7);
        close_to(d.sum, want[m].sum, 2e-6);
    }
}

static void look_vq4p(const struct record_layout *l, const struct expert *x,
                      const struct codebooks *cb)
{
    static const double gate[3] = {-0.0477498, 0.0306416, 0.0819662};
    static const double norm[MATRICES] = {3.9682354, 4.1010170, 4.0256815};

    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        struct decoded d;

        decode_matrix(&d, l, x, cb, m);
        close_to(d.norm, norm[m], 4e-7);
        for (unsigned i = 0; m == MATRIX_GATE && i < 3; i++)
            close_to(d.w[i], gate[i], 1e-7);
    }
}

static void experts_decode_to_the_published_values(void **state)
{
    with_expert(*state, TINY_VQ3R, look_vq3r);
    with_expert(*state, TINY_VQ4P, look_vq4p);
}

/* Four 6-bit numbers in three bytes: the example of the format. */
static void packed_indices_unpack_as_the_format_shows(void **state)
{
    static const uint8_t cell[3] = {0x45, 0xA4, 0xFE};
    static const unsigned want[4] = {5, 17, 42, 63};
    struct record_layout l = tiny_layout(TINY_VQ4P);
    struct expert x = {.index = {cell}};

    (void)state;
    for (unsigned s = 0; s < 4; s++)
        assert_int_equal(index_at(&l, &x, MATRIX_GATE, 0, 0, s), want[s]);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_digest_is_sha_256),
        T(files_are_those_that_were_published),
        T(checksums_are_those_that_were_published),
        T(experts_decode_to_the_published_values),
        T(packed_indices_unpack_as_the_format_shows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
