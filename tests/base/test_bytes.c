#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t eight[8] = {0x01, 0x82, 0x03, 0x84, 0x05, 0x86, 0x07, 0x88};

static void numbers_are_little_endian(void **state)
{
    (void)state;
    assert_int_equal(load_le16(eight), 0x8201);
    assert_int_equal(load_le32(eight), 0x84038201u);
    assert_true(load_le64(eight) == UINT64_C(0x8807860584038201));
}

static void loads_do_not_care_about_alignment(void **state)
{
    uint8_t shifted[16];

    (void)state;
    for (size_t at = 0; at < 8; at++) {
        memcpy(shifted + at, eight, 8);
        assert_int_equal(load_le16(shifted + at), 0x8201);
        assert_int_equal(load_le32(shifted + at), 0x84038201u);
        assert_true(load_le64(shifted + at) == UINT64_C(0x8807860584038201));
    }
}

static void high_bits_never_spread(void **state)
{
    static const uint8_t ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};

    (void)state;
    assert_int_equal(load_le16(ones), 0xffff);
    assert_true(load_le32(ones) == UINT32_MAX);
    assert_true(load_le64(ones) == UINT64_MAX);
}

static void what_is_stored_is_loaded_and_nothing_beside_it(void **state)
{
    uint8_t out[10];

    (void)state;
    memset(out, 0x5a, sizeof(out));
    store_le16(out + 1, 0x8201);
    assert_memory_equal(out + 1, eight, 2);
    assert_int_equal(out[0], 0x5a);
    assert_int_equal(out[3], 0x5a);
    store_le32(out + 1, 0x84038201u);
    assert_memory_equal(out + 1, eight, 4);
    assert_int_equal(out[5], 0x5a);
    store_le64(out + 1, UINT64_C(0x8807860584038201));
    assert_memory_equal(out + 1, eight, 8);
    assert_int_equal(out[0], 0x5a);
    assert_int_equal(out[9], 0x5a);
}

static void a_cursor_walks_through_a_header(void **state)
{
    uint8_t raw[15];
    struct bytes b = bytes_of(raw, sizeof(raw));

    (void)state;
    raw[0] = 0xee;
    store_le16(raw + 1, 0x1234);
    store_le32(raw + 3, 0xdeadbeefu);
    store_le64(raw + 7, UINT64_C(0x0123456789abcdef));
    assert_int_equal(bytes_u8(&b), 0xee);
    assert_int_equal(bytes_u16(&b), 0x1234);
    assert_true(bytes_u32(&b) == 0xdeadbeefu);
    assert_true(bytes_u64(&b) == UINT64_C(0x0123456789abcdef));
    assert_false(b.bad);
    assert_ptr_equal(b.at, b.end);
}

static void bytes_are_taken_in_place(void **state)
{
    struct bytes b = bytes_of(eight, 8);

    (void)state;
    assert_ptr_equal(bytes_take(&b, 3), eight);
    assert_ptr_equal(bytes_take(&b, 0), eight + 3);
    assert_ptr_equal(bytes_take(&b, 5), eight + 3);
    assert_ptr_equal(bytes_take(&b, 0), eight + 8);
    assert_false(b.bad);
}

/* Every length too short for the number: zero comes out, and the flag stays up for good. The
 * bytes lie at the end of an allocation, so that a sanitizer sees a read beyond them. */
static void reading_past_the_end_gives_zero_and_is_remembered(void **state)
{
    (void)state;
    for (size_t have = 0; have < 8; have++) {
        uint8_t *raw = malloc(have ? have : 1);
        struct bytes b;

        assert_non_null(raw);
        memset(raw, 0xff, have);
        b = bytes_of(raw, have);
        assert_true(bytes_u64(&b) == 0);
        assert_true(b.bad);
        assert_ptr_equal(b.at, b.end);
        assert_int_equal(bytes_u8(&b), 0); /* what was left is gone: no half-read numbers */
        assert_true(b.bad);
        b = bytes_of(raw, have);
        assert_true((bytes_u32(&b) == 0) == (have < 4));
        assert_int_equal(b.bad, have < 4);
        b = bytes_of(raw, have);
        assert_true((bytes_u16(&b) == 0) == (have < 2));
        assert_int_equal(b.bad, have < 2);
        b = bytes_of(raw, have);
        assert_true((bytes_u8(&b) == 0) == (have < 1));
        assert_int_equal(b.bad, have < 1);
        free(raw);
    }
}

static void absurd_lengths_are_refused_without_arithmetic_on_pointers(void **state)
{
    static const size_t absurd[] = {9, 4096, SIZE_MAX / 2, SIZE_MAX - 7, SIZE_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(absurd) / sizeof(absurd[0]); i++) {
        struct bytes b = bytes_of(eight, 8);

        assert_null(bytes_take(&b, absurd[i]));
        assert_true(b.bad);
        assert_ptr_equal(b.at, eight + 8);
        assert_ptr_equal(bytes_take(&b, 0), eight + 8);
        assert_true(b.bad);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(loads_do_not_care_about_alignment),
        cmocka_unit_test(high_bits_never_spread),
        cmocka_unit_test(what_is_stored_is_loaded_and_nothing_beside_it),
        cmocka_unit_test(a_cursor_walks_through_a_header),
        cmocka_unit_test(bytes_are_taken_in_place),
        cmocka_unit_test(reading_past_the_end_gives_zero_and_is_remembered),
        cmocka_unit_test(absurd_lengths_are_refused_without_arithmetic_on_pointers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
