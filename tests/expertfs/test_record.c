#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "expertfs/record.h"
#include "tests/support/tiny_container.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static void layouts_have_the_sizes_of_the_published_models(void **state)
{
    static const struct {
        uint32_t latent, inter, stages, entries, bits; /* of */
        uint32_t up, down, scales, used, bytes;
    } models[] = {
        {2304, 1024, 3, 256, 8, 884784, 1769520, 2654256, 2662960, 2666496},
        {2304, 1024, 4, 64, 6, 884784, 1769520, 2654256, 2662960, 2666496},
        {3584, 3072, 3, 256, 8, 4128816, 8257584, 12386352, 12405808, 12406784},
        {3584, 3072, 4, 64, 6, 4128816, 8257584, 12386352, 12405808, 12406784},
        {7168, 2048, 3, 256, 8, 5505072, 11010096, 16515120, 16537648, 16539648},
        {2304, 1024, 2, 256, 8, 589872, 1179696, 1769520, 1778224, 1781760},
        {3584, 3072, 2, 256, 8, 2752560, 5505072, 8257584, 8277040, 8278016},
        {136, 72, 3, 256, 8, 6576, 13104, 18288, 18848, 20480},
    };
    struct record_layout l;
    struct err e;

    (void)state;
    for (size_t i = 0; i < N_ELEMS(models); i++) {
        assert_int_equal(record_layout_init(&l, models[i].latent, models[i].inter, models[i].stages,
                                            models[i].entries, models[i].bits, &e),
                         0);
        assert_int_equal(l.index_off[MATRIX_GATE], 48);
        assert_int_equal(l.index_off[MATRIX_UP], models[i].up);
        assert_int_equal(l.index_off[MATRIX_DOWN], models[i].down);
        assert_int_equal(l.scale_off[MATRIX_GATE], models[i].scales);
        assert_int_equal(l.scale_off[MATRIX_UP], models[i].scales + 2 * models[i].inter);
        assert_int_equal(l.scale_off[MATRIX_DOWN], models[i].scales + 4 * models[i].inter);
        assert_int_equal(l.used, models[i].used);
        assert_int_equal(l.bytes, models[i].bytes);
    }
}

static void a_layout_outside_the_format_is_refused(void **state)
{
    static const struct {
        uint32_t latent, inter, stages, entries, bits;
        int code;
        const char *fragment;
    } bad[] = {
        {136, 72, 0, 256, 8, ERR_FORMAT, "expert_quant.stages = 0 is out of range 1...8"},
        {136, 72, 9, 256, 8, ERR_FORMAT, "expert_quant.stages = 9"},
        {136, 72, 3, 0, 8, ERR_FORMAT, "expert_quant.entries = 0 is out of range 1...256"},
        {136, 72, 3, 257, 8, ERR_FORMAT, "expert_quant.entries = 257"},
        {136, 72, 3, 256, 0, ERR_UNSUPPORTED, "expert_quant.index_bits = 0 is not supported"},
        {136, 72, 3, 256, 7, ERR_UNSUPPORTED, "expert_quant.index_bits = 7 is not supported"},
        {136, 72, 3, 64, 6, ERR_FORMAT, "index_bits = 6 needs 4 stages of 64 entries"},
        {136, 72, 4, 256, 6, ERR_FORMAT, "index_bits = 6 needs 4 stages of 64 entries"},
        {0, 72, 3, 256, 8, ERR_FORMAT, "latent size = 0 is out of range"},
        {136, 0, 3, 256, 8, ERR_FORMAT, "moe_intermediate_size = 0 is out of range"},
        {132, 72, 3, 256, 8, ERR_FORMAT, "latent size = 132 is not divisible by vec_dim = 8"},
        {136, 71, 3, 256, 8, ERR_FORMAT, "moe_intermediate_size = 71 is not divisible"},
        {(1 << 20) + 8, 72, 3, 256, 8, ERR_FORMAT, "is out of range 1...1048576"},
        {136, UINT32_MAX - 7, 3, 256, 8, ERR_FORMAT, "is out of range 1...1048576"},
        {1 << 20, 1 << 20, 8, 256, 8, ERR_LIMIT, "beyond 2^31"},
        {1 << 16, 1 << 14, 8, 256, 8, ERR_LIMIT, "beyond 2^31"},
    };
    struct record_layout l = {.bytes = 1234};

    (void)state;
    for (size_t i = 0; i < N_ELEMS(bad); i++) {
        struct err e = {0};

        assert_int_equal(record_layout_init(&l, bad[i].latent, bad[i].inter, bad[i].stages,
                                            bad[i].entries, bad[i].bits, &e),
                         bad[i].code);
        if (!strstr(e.text, bad[i].fragment))
            fail_msg("\"%s\" lacks \"%s\"", e.text, bad[i].fragment);
        assert_int_equal(l.bytes, 1234);
    }
}

/* The examples that the format gives for row i, position v, stage byte k. */
static void index_bytes_lie_where_the_format_says(void **state)
{
    struct record_layout l = tiny_layout(TINY_VQ3R);
    uint8_t bytes[TINY_RECORD_BYTES];

    (void)state;
    tiny_record(bytes, TINY_VQ3R, 1, 0);
    assert_int_equal(l.index_off[MATRIX_GATE] + ((1 * 17 + 16) * 64 + 7) * l.cell_bytes, 6405);
    /* Rows 72...127 are padding of the second block: zero. */
    for (unsigned v = 0; v < 17; v++)
        for (unsigned i = 8 * 3; i < 64 * 3; i++)
            assert_int_equal(bytes[48 + (17 + v) * 64 * 3 + i], 0);
    for (unsigned i = l.used; i < l.bytes; i++)
        assert_int_equal(bytes[i], 0);
}

static void the_header_of_a_sealed_record_is_the_example_of_the_format(void **state)
{
    static const uint8_t header[48] = {0x57, 0x45, 0x58, 0x50, 0x01, 0x00, 0x00, 0x00, 0x04, 0x00,
                                       0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00,
                                       0x30, 0x00, 0x00, 0x00, 0xB0, 0x19, 0x00, 0x00, 0x30, 0x33,
                                       0x00, 0x00, 0x70, 0x47, 0x00, 0x00, 0xAC, 0x39, 0x8A, 0xAD};
    uint8_t bytes[TINY_RECORD_BYTES];

    (void)state;
    tiny_record(bytes, TINY_VQ3R, 1, 0);
    assert_memory_equal(bytes, header, sizeof(header));
    tiny_record(bytes, TINY_VQ4P, 2, 3);
    assert_int_equal(bytes[REC_FMT], FMT_VQ4P);
    assert_int_equal(load_le16(bytes + REC_LAYER), 2);
    assert_int_equal(load_le16(bytes + REC_EXPERT), 3);
    assert_int_equal(load_le16(bytes + REC_CODEBOOK), 12);
}

static void the_checksum_is_that_of_zlib(void **state)
{
    uint8_t odd[16];

    (void)state;
    assert_int_equal(libdeflate_crc32(0, "", 0), 0);
    assert_int_equal(libdeflate_crc32(0, "a", 1), 0xE8B7BE43);
    assert_int_equal(libdeflate_crc32(0, "123456789", 9), 0xCBF43926);
    memcpy(odd + 1, "123456789", 9);
    assert_int_equal(libdeflate_crc32(0, odd + 1, 9), 0xCBF43926);
    assert_int_equal(libdeflate_crc32(0, "The quick brown fox jumps over the lazy dog", 43),
                     0x414FA339);
}

static void golden_records_pass(void **state)
{
    uint8_t bytes[TINY_RECORD_BYTES];
    struct err e;

    (void)state;
    for (enum tiny v = TINY_VQ3R; v <= TINY_VQ4P; v++) {
        struct record_layout l = tiny_layout(v);

        for (unsigned layer = 1; layer < TINY_LAYERS; layer++)
            for (unsigned expert = 0; expert < TINY_EXPERTS; expert++) {
                tiny_record(bytes, v, layer, expert);
                assert_int_equal(
                    record_check(&l, bytes, layer, expert, (layer - 1) * 3 * l.stages, &e), 0);
                assert_int_equal(record_verify(&l, bytes, layer, expert, &e), 0);
                assert_int_equal(record_check_indices(&l, bytes, layer, expert, &e), 0);
            }
    }
}

static void either_byte_format_is_legal_with_byte_indices(void **state)
{
    struct record_layout l = tiny_layout(TINY_VQ3R);
    uint8_t bytes[TINY_RECORD_BYTES];
    struct err e;

    (void)state;
    tiny_record(bytes, TINY_VQ3R, 1, 0);
    bytes[REC_FMT] = FMT_VQ2R;
    assert_int_equal(record_check(&l, bytes, 1, 0, 0, &e), 0);
}

/* Which header bytes may hold anything: flags but for bit 0, and what is reserved. */
static bool is_ignored(unsigned byte, unsigned bit)
{
    return (byte == REC_FLAGS && bit != 0) || byte == 14 || byte == 15 || byte >= 40;
}

static void every_flipped_header_bit_is_noticed_or_means_nothing(void **state)
{
    (void)state;
    for (enum tiny v = TINY_VQ3R; v <= TINY_VQ4P; v++) {
        struct record_layout l = tiny_layout(v);
        uint8_t bytes[TINY_RECORD_BYTES];

        tiny_record(bytes, v, 2, 3);
        for (unsigned i = 0; i < 48 * 8; i++) {
            struct err e = {0};
            int check, verify;

            bytes[i / 8] ^= (uint8_t)(1 << i % 8);
            check = record_check(&l, bytes, 2, 3, 3 * l.stages, &e);
            verify = record_verify(&l, bytes, 2, 3, &e);
            if (is_ignored(i / 8, i % 8) || (v == TINY_VQ3R && bytes[REC_FMT] == FMT_VQ2R)) {
                assert_int_equal(check, 0);
                assert_int_equal(verify, 0);
            } else if (i / 8 >= REC_CRC) {
                assert_int_equal(check, 0);
                assert_int_equal(verify, ERR_CORRUPT);
            } else {
                assert_true(check == ERR_FORMAT || check == ERR_UNSUPPORTED);
                assert_non_null(strstr(e.text, "layer 2 expert 3: "));
            }
            bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        }
    }
}

static void every_flipped_payload_bit_is_noticed(void **state)
{
    struct record_layout l = tiny_layout(TINY_VQ3R);
    uint8_t bytes[TINY_RECORD_BYTES];
    struct err e;

    (void)state;
    tiny_record(bytes, TINY_VQ3R, 1, 2);
    for (unsigned i = 48 * 8; i < l.used * 8; i++) {
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        if (record_verify(&l, bytes, 1, 2, &e) != ERR_CORRUPT)
            fail_msg("bit %u of byte %u", i % 8, i / 8);
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (unsigned i = l.used; i < l.bytes; i++) /* the padding is nobody's */
        bytes[i] ^= 0xff;
    assert_int_equal(record_check(&l, bytes, 1, 2, 0, &e), 0);
    assert_int_equal(record_verify(&l, bytes, 1, 2, &e), 0);
}

/* Any scale, first to last, of any matrix. */
static void a_scale_that_is_not_finite_is_named(void **state)
{
    static const char *const name[] = {"gate", "up", "down"};
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e01, 0xffff};
    struct record_layout l = tiny_layout(TINY_VQ3R);
    uint8_t bytes[TINY_RECORD_BYTES];

    (void)state;
    tiny_record(bytes, TINY_VQ3R, 1, 2);
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++)
        for (uint32_t i = 0; i < record_rows(&l, m); i++) {
            uint8_t *scale = bytes + l.scale_off[m] + 2 * i;
            uint16_t was = load_le16(scale);
            struct err e;
            char want[64];

            store_le16(scale, bad[i % N_ELEMS(bad)]);
            assert_int_equal(record_check(&l, bytes, 1, 2, 0, &e), ERR_CORRUPT);
            snprintf(want, sizeof(want), "layer 1 expert 2: %s scale of row %u is ", name[m], i);
            assert_non_null(strstr(e.text, want));
            store_le16(scale, 0x0001); /* subnormal, zero: values like any other */
            assert_int_equal(record_check(&l, bytes, 1, 2, 0, &e), 0);
            store_le16(scale, was);
        }
}

static void an_index_beyond_the_codebook_is_refused(void **state)
{
    struct record_layout l;
    uint8_t *bytes;
    struct err e;

    (void)state;
    assert_int_equal(record_layout_init(&l, 64, 72, 3, 16, 8, &e), 0);
    bytes = calloc(1, l.bytes);
    memset(bytes + 48, 15, l.scale_off[MATRIX_GATE] - 48);
    record_seal(&l, bytes, 5, 6, 7);
    assert_int_equal(record_check(&l, bytes, 5, 6, 7, &e), 0);
    assert_int_equal(record_verify(&l, bytes, 5, 6, &e), 0);
    for (uint32_t i = 48; i < l.scale_off[MATRIX_GATE]; i += 97) {
        bytes[i] = 16;
        record_seal(&l, bytes, 5, 6, 7); /* written so: the checksum agrees */
        assert_int_equal(record_verify(&l, bytes, 5, 6, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.text, "layer 5 expert 6: index 16 at byte "));
        assert_int_equal(record_check_indices(&l, bytes, 5, 6, &e), ERR_CORRUPT);
        bytes[i] = 15;
    }
    bytes[l.scale_off[MATRIX_GATE] - 1] = 255;
    assert_int_equal(record_check_indices(&l, bytes, 5, 6, &e), ERR_CORRUPT);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_have_the_sizes_of_the_published_models),
        cmocka_unit_test(a_layout_outside_the_format_is_refused),
        cmocka_unit_test(index_bytes_lie_where_the_format_says),
        cmocka_unit_test(the_header_of_a_sealed_record_is_the_example_of_the_format),
        cmocka_unit_test(the_checksum_is_that_of_zlib),
        cmocka_unit_test(golden_records_pass),
        cmocka_unit_test(either_byte_format_is_legal_with_byte_indices),
        cmocka_unit_test(every_flipped_header_bit_is_noticed_or_means_nothing),
        cmocka_unit_test(every_flipped_payload_bit_is_noticed),
        cmocka_unit_test(a_scale_that_is_not_finite_is_named),
        cmocka_unit_test(an_index_beyond_the_codebook_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
