#include "model/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <libdeflate.h>

#include "base/bytes.h"
#include "model/image_codec.h"
#include "tests/support/alloc_fault.h"

struct file {
    uint8_t *data; /* exactly n bytes, so that a sanitizer sees a read beyond */
    size_t n;
};

static struct file corpus(const char *name)
{
    char path[512];
    struct file file = {0};
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", CORPUS_DIR, name);
    f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    file.n = (size_t)ftell(f);
    rewind(f);
    file.data = malloc(file.n ? file.n : 1);
    assert_int_equal(fread(file.data, 1, file.n, f), file.n);
    fclose(f);
    return file;
}

static int open_image(struct image *m, struct mem *mem, const void *data, size_t n, struct err *e)
{
    static const struct image_rule rule = {IMAGE_PATCHES_DEFAULT, IMAGE_SIDE_PATCHES, 0};

    return image_open(m, mem, data, n, &rule, e);
}

/* As scripts/oracle_image.py has them. */
static void sizes_follow_the_released_rule(void **state)
{
    static const struct {
        uint32_t w, h, patches, fit_w, fit_h, padded_w, padded_h, tokens;
    } want[] = {
        {354, 354, 65536, 354, 354, 364, 364, 169},
        {640, 480, 65536, 640, 480, 644, 504, 414},
        {896, 896, 65536, 896, 896, 896, 896, 1024},
        {1920, 1080, 65536, 1920, 1080, 1932, 1092, 2691},
        {4000, 3000, 65536, 4000, 3000, 4004, 3024, 15444},
        {8000, 6000, 65536, 4142, 3107, 4144, 3108, 16428},
        {20000, 300, 65536, 7168, 107, 7168, 112, 1024},
        {640, 480, 1024, 523, 392, 532, 392, 266},
        {896, 896, 1024, 448, 448, 448, 448, 256},
        {1920, 1080, 1024, 598, 336, 616, 336, 264},
        {1, 1, 1024, 1, 1, 28, 28, 1},
        {65535, 1, 65536, 7168, 1, 7168, 28, 256},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct image_fit f;

        image_fit(&f, want[i].w, want[i].h, want[i].patches, IMAGE_SIDE_PATCHES);
        assert_int_equal(f.width, want[i].fit_w);
        assert_int_equal(f.height, want[i].fit_h);
        assert_int_equal(f.padded_w, want[i].padded_w);
        assert_int_equal(f.padded_h, want[i].padded_h);
        assert_int_equal(f.tokens, want[i].tokens);
        assert_int_equal(f.patches_x * f.patches_y, 4 * f.tokens);
    }
}

static void a_turned_picture_has_its_sides_exchanged(void **state)
{
    struct file f = corpus("turned.jpg");
    struct image_head head;
    struct err e;

    (void)state;
    assert_int_equal(image_head(&head, f.data, f.n, &e), 0);
    assert_int_equal(head.orientation, 6);
    assert_int_equal(head.upright_w, head.height);
    assert_int_equal(head.upright_h, head.width);
    free(f.data);
}

static void orientation_is_read_or_means_nothing(void **state)
{
    static const uint8_t tiff[26] = "II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06";
    static const uint8_t motorola[26] = "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08";
    uint8_t copy[32] = "Exif\0\0";

    (void)state;
    assert_int_equal(image_orientation(tiff, sizeof(tiff)), 6);
    assert_int_equal(image_orientation(motorola, sizeof(motorola)), 8);
    memcpy(copy + 6, tiff, sizeof(tiff));
    assert_int_equal(image_orientation(copy, sizeof(copy)), 6);
    for (size_t n = 0; n < 22; n++)
        assert_int_equal(image_orientation(tiff, n), 1);
    copy[6 + 18] = 9; /* no such orientation */
    assert_int_equal(image_orientation(copy, sizeof(copy)), 1);
    copy[6 + 18] = 6;
    copy[6 + 12] = 4; /* a long */
    assert_int_equal(image_orientation(copy, sizeof(copy)), 1);
    copy[6 + 12] = 3;
    copy[6 + 7] = 0xff; /* a directory behind the end */
    assert_int_equal(image_orientation(copy, sizeof(copy)), 1);
}

/* Cut anywhere: an error with words, and the account is as it was. */
static void a_picture_that_ends_early_is_refused_wherever_it_ends(void **state)
{
    static const char *const names[] = {"baseline.jpg", "progressive.jpg", "cmyk.jpg",
                                        "rgba.png",     "palette4.png",    "rgb16-interlaced.png",
                                        "lossy.webp",   "animated.webp",   "lossless-alpha.webp"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        struct file f = corpus(names[i]);

        for (size_t n = 0; n < f.n; n += 1 + n / 64) {
            uint8_t *cut = malloc(n ? n : 1);
            struct image m;
            struct mem mem;
            struct err e = {0};

            memcpy(cut, f.data, n);
            mem_init(&mem, 0);
            if (!open_image(&m, &mem, cut, n, &e))
                fail_msg("%s: %zu of %zu bytes were enough", names[i], n, f.n);
            assert_true(e.code == ERR_CORRUPT || e.code == ERR_FORMAT);
            assert_int_equal(mem.used_total, 0);
            free(cut);
        }
        free(f.data);
    }
}

/* One byte changed anywhere: refused or shown, never more memory than was said, none left. */
static void a_damaged_picture_leaves_nothing_behind(void **state)
{
    static const char *const names[] = {"progressive.jpg", "palette4.png", "lossy-alpha.webp"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        struct file f = corpus(names[i]);

        for (size_t at = 0; at < f.n; at += 3) {
            struct image_head head;
            struct image m;
            struct mem mem;
            struct err e = {0};

            f.data[at] ^= 0x5a;
            mem_init(&mem, 64 << 20);
            if (!image_head(&head, f.data, f.n, &e) &&
                (uint64_t)head.width * head.height < 1 << 20 &&
                !open_image(&m, &mem, f.data, f.n, &e)) {
                assert_true(mem.peak_total <= image_peak_bytes(&m.head, &m.fit));
                image_close(&m);
            }
            assert_int_equal(mem.used_total, 0);
            f.data[at] ^= 0x5a;
        }
        free(f.data);
    }
}

static void expect_refusal(const char *name, int code, const char *words)
{
    struct file f = corpus(name);
    struct image m;
    struct mem mem;
    struct err e = {0};

    mem_init(&mem, 0);
    assert_int_equal(open_image(&m, &mem, f.data, f.n, &e), code);
    if (!strstr(e.text, words))
        fail_msg("%s: \"%s\" does not say \"%s\"", name, e.text, words);
    assert_int_equal(mem.used_total, 0);
    free(f.data);
}

static void what_is_no_picture_is_named(void **state)
{
    static const uint8_t text[] = "<!DOCTYPE html>", nothing[] = "photograph";
    struct image_head head;
    struct err e;

    (void)state;
    expect_refusal("picture.gif", ERR_UNSUPPORTED, "a GIF");
    expect_refusal("empty", ERR_FORMAT, "0 bytes");
    assert_int_equal(image_head(&head, text, sizeof(text), &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "HTML"));
    assert_int_equal(image_head(&head, nothing, sizeof(nothing), &e), ERR_FORMAT);
}

/* The header alone decides: no memory is taken for pixels that will not be decoded. */
static void a_bomb_is_refused_before_memory_is_taken(void **state)
{
    static const char *const names[] = {"huge.png", "huge.jpg"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct file f = corpus(names[i]);
        struct image m;
        struct mem mem;
        struct err e;

        mem_init(&mem, 0);
        assert_int_equal(open_image(&m, &mem, f.data, f.n, &e), ERR_LIMIT);
        assert_int_equal(mem.peak_total, 0);
        free(f.data);
    }
    expect_refusal("promises.jpg", ERR_CORRUPT, "8000 x 8000");
}

static void a_picture_that_does_not_fit_into_the_account_is_refused_undecoded(void **state)
{
    struct file f = corpus("promises.jpg");
    struct image m;
    struct mem mem;
    struct err e;

    (void)state;
    mem_init(&mem, 16 << 20);
    assert_int_equal(open_image(&m, &mem, f.data, f.n, &e), ERR_BUDGET);
    assert_true(mem.peak_total <= 16 << 20);
    assert_int_equal(mem.used_total, 0);
    free(f.data);
}

/* A grey block of 8 x 8 whose AC coefficients come one a scan, each twice: n scans of nothing, all
 * of them legal. */
static size_t many_scans(uint8_t *out, unsigned n)
{
    static const uint8_t frame[] = {0xff, 0xc2, 0, 11, 8, 0, 8, 0, 8, 1, 1, 0x11, 0};
    uint8_t table[] = {0xff, 0xc4, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint8_t *at = out;

    memcpy(at, "\xff\xd8\xff\xdb\0\x43\0", 7);
    memset(at + 7, 1, 64);
    at += 7 + 64;
    memcpy(at, frame, sizeof(frame));
    at += sizeof(frame);
    for (unsigned ac = 0; ac < 2; ac++, at += sizeof(table)) {
        table[4] = (uint8_t)(ac << 4);
        memcpy(at, table, sizeof(table));
    }
    for (unsigned i = 0; i < n; i++, at += 11) {
        uint8_t band = (uint8_t)((i + 1) / 2), low = i % 2;
        uint8_t scan[] = {0xff, 0xda, 0, 8, 1, 1, 0, band, band, low ? 1 : 0x10, 0x7f};

        if (!i)
            scan[9] = 0; /* the mean */
        memcpy(at, scan, sizeof(scan));
    }
    memcpy(at, "\xff\xd9", 2);
    return (size_t)(at + 2 - out);
}

/* Every scan touches all coefficients of a picture, and takes a few bytes. */
static void a_picture_of_endless_scans_is_refused(void **state)
{
    static uint8_t file[4096];
    struct image m;
    struct mem mem;
    struct err e;

    (void)state;
    mem_init(&mem, 0);
    if (open_image(&m, &mem, file, many_scans(file, IMAGE_SCANS_MAX), &e))
        fail_msg("%s", e.text);
    image_close(&m);
    assert_int_equal(open_image(&m, &mem, file, many_scans(file, IMAGE_SCANS_MAX + 1), &e),
                     ERR_LIMIT);
    assert_int_equal(mem.used_total, 0);
}

/* A file has room for millions of segments, of which a library that keeps them and walks along all
 * for each that comes never gets to the end. */
static void a_header_of_endless_segments_is_walked_once(void **state)
{
    enum { SEGMENTS = 1 << 20 };
    struct file f = corpus("turned.jpg");
    uint8_t *file = malloc(f.n + 4 * SEGMENTS), *at = file + 2;
    struct image_head head;
    struct err e;

    (void)state;
    assert_non_null(file);
    memcpy(file, f.data, 2);
    for (unsigned i = 0; i < SEGMENTS; i++, at += 4)
        memcpy(at, "\xff\xe1\0\2", 4);
    memcpy(at, f.data + 2, f.n - 2);
    if (image_head(&head, file, f.n + 4 * SEGMENTS, &e))
        fail_msg("%s", e.text);
    assert_int_equal(head.orientation, 6);
    free(file);
    free(f.data);
}

static void a_webp_of_endless_chunks_is_refused(void **state)
{
    enum { CHUNKS = 20000 };
    struct file f = corpus("lossy-alpha.webp");
    uint8_t *file = calloc(1, f.n + 8 * CHUNKS);
    struct image_head head;
    struct err e;

    (void)state;
    assert_non_null(file);
    memcpy(file, f.data, f.n);
    for (unsigned i = 0; i < CHUNKS; i++)
        memcpy(file + f.n + 8 * i, "ABCD", 4);
    store_le32(file + 4, (uint32_t)(f.n + 8 * CHUNKS - 8));
    assert_int_equal(image_head(&head, file, f.n + 8 * CHUNKS, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "chunks"));
    free(file);
    free(f.data);
}

/* Behind the header of `name`, a chunk with a checksum that is right, or one off. */
static struct file with_chunk(const char *name, const char *tag, uint32_t len, uint32_t off)
{
    enum { AT = 33 };
    struct file f = corpus(name), out = {.n = f.n + len + 12};
    uint8_t *p = out.data = calloc(1, out.n);
    uint32_t sum;

    assert_non_null(p);
    memcpy(p, f.data, AT);
    memcpy(p + AT + len + 12, f.data + AT, f.n - AT);
    p += AT;
    p[2] = (uint8_t)(len >> 8);
    p[3] = (uint8_t)len;
    memcpy(p + 4, tag, 4);
    sum = libdeflate_crc32(0, p + 4, len + 4) ^ off;
    for (unsigned i = 0; i < 4; i++)
        p[len + 8 + i] = (uint8_t)(sum >> (24 - 8 * i));
    free(f.data);
    return out;
}

/* libpng warns, drops what makes the picture transparent, and goes on. */
static void damage_to_the_transparency_is_damage_and_to_the_prose_is_none(void **state)
{
    static const struct {
        const char *name, *tag;
        uint32_t len, off;
        int rc;
        const char *words;
    } want[] = {
        {"rgb16-interlaced.png", "tRNS", 6, 0, 0, ""},
        {"rgb16-interlaced.png", "tRNS", 6, 1, ERR_CORRUPT, "tRNS: checksum"},
        {"rgb16-interlaced.png", "tRNS", 5, 0, ERR_CORRUPT, "tRNS"},
        {"palette4.png", "tRNS", 3, 0, ERR_CORRUPT, "tRNS"}, /* before its palette */
        {"rgba.png", "tRNS", 6, 0, 0, ""},                   /* it has its own */
        {"rgba.png", "tEXt", 9, 1, 0, ""},
        {"rgba.png", "eXIf", 9, 0, 0, ""},
        {"rgba.png", "ABCD", 9, 0, ERR_CORRUPT, "ABCD"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct file f = with_chunk(want[i].name, want[i].tag, want[i].len, want[i].off);
        struct image m;
        struct mem mem;
        struct err e = {0};
        int rc;

        mem_init(&mem, 0);
        rc = open_image(&m, &mem, f.data, f.n, &e);
        if (rc != want[i].rc || !strstr(e.text, want[i].words))
            fail_msg("%s with %s: %d, \"%s\"", want[i].name, want[i].tag, rc, e.text);
        if (!rc)
            image_close(&m);
        free(f.data);
    }
}

/* One bit of the pixels, and the header is where it ends: nothing is decoded, no memory taken. */
static void a_png_with_a_wrong_checksum_is_refused_undecoded(void **state)
{
    struct file f = corpus("rgba.png");
    struct image_head head;
    struct err e;

    (void)state;
    f.data[f.n - 24] ^= 4; /* before the last chunk, IEND */
    assert_int_equal(image_head(&head, f.data, f.n, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "IDAT: checksum"));
    free(f.data);
}

/* Whatever libpng would call it. */
static void a_png_of_an_impossible_size_is_told_its_size(void **state)
{
    static const struct {
        uint8_t width[4];
        int code;
        const char *words;
    } want[] = {
        {{0, 0, 0, 0}, ERR_CORRUPT, "PNG: 0 x "},
        {{0, 1, 0, 0}, ERR_LIMIT, "PNG: 65536 x "},
        {{0xff, 0xff, 0xff, 0xff}, ERR_LIMIT, "PNG: 4294967295 x "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct file f = corpus("rgba.png");
        struct image_head head;
        uint32_t sum;
        struct err e;

        memcpy(f.data + 16, want[i].width, 4);
        sum = libdeflate_crc32(0, f.data + 12, 17);
        for (unsigned k = 0; k < 4; k++)
            f.data[29 + k] = (uint8_t)(sum >> (24 - 8 * k));
        assert_int_equal(image_head(&head, f.data, f.n, &e), want[i].code);
        if (!strstr(e.text, want[i].words))
            fail_msg("\"%s\" does not say \"%s\"", e.text, want[i].words);
        free(f.data);
    }
}

static void an_allocation_that_fails_leaves_nothing_behind(void **state)
{
    struct file f = corpus("rgba.png");
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct image m = {0};
        struct mem mem;
        struct err e = {0};
        int rc;

        mem_init(&mem, 0);
        alloc_fault_arm(nth);
        rc = open_image(&m, &mem, f.data, f.n, &e);
        failed = alloc_fault_disarm();
        if (failed)
            assert_int_equal(rc, ERR_NOMEM);
        else
            image_close(&m);
        assert_int_equal(mem.used_total, 0);
    }
    free(f.data);
}

/* Channel-major, then rows; what pads is black, which normalises to -1. */
static void patches_are_channel_major_and_padding_is_black(void **state)
{
    static const float half[3] = {0.5f, 0.5f, 0.5f};
    struct file f = corpus("grey16.png");
    struct image m;
    struct mem mem;
    struct err e;
    float x[IMAGE_COLUMNS];

    (void)state;
    mem_init(&mem, 0);
    assert_int_equal(open_image(&m, &mem, f.data, f.n, &e), 0);
    image_patch(x, &m, 0, half, half);
    for (unsigned c = 0; c < 3; c++)
        for (unsigned i = 0; i < IMAGE_PATCH; i++)
            for (unsigned j = 0; j < IMAGE_PATCH; j++) {
                float got = x[(c * IMAGE_PATCH + i) * IMAGE_PATCH + j];
                uint8_t pixel = m.rgb[(i * m.fit.padded_w + j) * 3 + c];

                assert_true(got == (pixel / 255.0f - 0.5f) / 0.5f);
                assert_true((i < 4 && j < 5) || got == -1.0f);
            }
    image_patch(x, &m, 3, half, half);
    for (unsigned i = 0; i < IMAGE_COLUMNS; i++)
        assert_true(x[i] == -1.0f);
    image_close(&m);
    free(f.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_the_released_rule),
        cmocka_unit_test(a_turned_picture_has_its_sides_exchanged),
        cmocka_unit_test(orientation_is_read_or_means_nothing),
        cmocka_unit_test(a_picture_that_ends_early_is_refused_wherever_it_ends),
        cmocka_unit_test(a_damaged_picture_leaves_nothing_behind),
        cmocka_unit_test(what_is_no_picture_is_named),
        cmocka_unit_test(a_bomb_is_refused_before_memory_is_taken),
        cmocka_unit_test(a_picture_that_does_not_fit_into_the_account_is_refused_undecoded),
        cmocka_unit_test(a_picture_of_endless_scans_is_refused),
        cmocka_unit_test(a_header_of_endless_segments_is_walked_once),
        cmocka_unit_test(a_webp_of_endless_chunks_is_refused),
        cmocka_unit_test(damage_to_the_transparency_is_damage_and_to_the_prose_is_none),
        cmocka_unit_test(a_png_with_a_wrong_checksum_is_refused_undecoded),
        cmocka_unit_test(a_png_of_an_impossible_size_is_told_its_size),
        cmocka_unit_test(an_allocation_that_fails_leaves_nothing_behind),
        cmocka_unit_test(patches_are_channel_major_and_padding_is_black),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
