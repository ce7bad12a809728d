/* A written container is what the readers read; the quantiser is the recipe to the byte. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/half.h"
#include "expertfs/codebook.h"
#include "expertfs/container.h"
#include "expertfs/quantise.h"
#include "expertfs/trunk.h"
#include "expertfs/writer.h"

enum { HIDDEN = 136, INTER = 72, EXPERTS = 3, LAYERS = 3, VOCAB = 5 };

struct fixture {
    char top[64], dir[96];
    json_t *config;
    struct writer_options options;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    snprintf(f->top, sizeof(f->top), "/tmp/test_writer.XXXXXX");
    assert_non_null(mkdtemp(f->top));
    snprintf(f->dir, sizeof(f->dir), "%s/x.waste", f->top);
    f->config =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f}", "num_hidden_layers", LAYERS,
                  "first_k_dense_replace", 1, "num_experts", EXPERTS, "num_experts_per_token", 2,
                  "hidden_size", HIDDEN, "moe_intermediate_size", INTER, "intermediate_size", 160,
                  "vocab_size", VOCAB, "routed_scaling_factor", 2.446);
    assert_non_null(f->config);
    f->options = (struct writer_options){.config = f->config,
                                         .arch = "kimi-linear",
                                         .prefix = "",
                                         .stages = 3,
                                         .entries = 256,
                                         .index_bits = 8,
                                         .direct = true};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", f->top);
    assert_int_equal(system(command), 0);
    json_decref(f->config);
    free(f);
    return 0;
}

static bool exists(const struct fixture *f, const char *name)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    return access(path, F_OK) == 0;
}

/* Rows whose largest value is Q * 2^k: the scale is 2^k and the codes can be written down. */
static void rows_are_quantised_to_the_published_bytes(void **state)
{
    static const float q4[8] = {-7, -7, 0, 1, 7, -1, 2, -4}, q3[8] = {-3, -3, -2, -1, 0, 1, 2, 3};
    static const uint8_t want4[4] = {0x11, 0x98, 0x7f, 0x4a}, want3[3] = {0x89, 0xc6, 0xfa};
    static const uint8_t want8[4] = {0x81, 0xff, 0x00, 0x7f};
    static const float q8[4] = {-127, -1, 0, 127};
    uint8_t codes[128];
    uint16_t scale;
    float x[8];
    struct err e;

    (void)state;
    for (unsigned i = 0; i < 8; i++)
        x[i] = q4[i] * 0.25f;
    assert_int_equal(quantise_row(codes, &scale, FMT_Q4G, x, 8, &e), 0);
    assert_memory_equal(codes, want4, 4);
    assert_int_equal(scale, 0x3400);
    for (unsigned i = 4; i < 64; i++)
        assert_int_equal(codes[i], 0x88); /* padding is zero */
    for (unsigned i = 0; i < 8; i++)
        x[i] = q3[i] * 0.25f;
    assert_int_equal(quantise_row(codes, &scale, FMT_Q3G, x, 8, &e), 0);
    assert_memory_equal(codes, want3, 3);
    assert_int_equal(scale, 0x3400);
    assert_int_equal(codes[3], 0x24); /* fields of 4 from column 8 on */
    assert_int_equal(codes[4], 0x49);
    assert_int_equal(codes[5], 0x92);
    assert_int_equal(codes[48], 0); /* the guard byte */
    for (unsigned i = 0; i < 4; i++)
        x[i] = q8[i] * 0.5f;
    assert_int_equal(quantise_row(codes, &scale, FMT_Q8G, x, 4, &e), 0);
    assert_memory_equal(codes, want8, 4);
    assert_int_equal(scale, 0x3800);
    assert_int_equal(codes[4], 0);
    assert_int_equal(codes[127], 0);
}

static void zeros_ties_and_subnormal_scales_follow_the_recipe(void **state)
{
    float x[130] = {0};
    uint8_t codes[256];
    uint16_t scale[2];
    struct err e;

    (void)state;
    assert_int_equal(quantise_row(codes, scale, FMT_Q8G, x, 130, &e), 0);
    assert_int_equal(scale[0], 0); /* 1e-8 / 127 is below half of the least f16 */
    assert_int_equal(codes[0], 0);
    x[0] = 7, x[1] = 0.5f, x[2] = 1.5f, x[3] = -2.5f, x[128] = 1e-4f, x[129] = -0.6e-4f;
    assert_int_equal(quantise_row(codes, scale, FMT_Q4G, x, 130, &e), 0);
    assert_int_equal(scale[0], 0x3c00);
    assert_int_equal(codes[0], 0x8f);  /* 7, and 0.5 goes to the even 0 */
    assert_int_equal(codes[1], 0x6a);  /* 2 and -2 */
    assert_int_equal(scale[1], 240);   /* 1e-4 / 7 = 239.7 * 2^-24: subnormal, kept */
    assert_int_equal(codes[64], 0x4f); /* 7 and rint(-4.2) = -4, by the scale before rounding */
    x[0] = INFINITY;
    assert_int_equal(quantise_row(codes, scale, FMT_Q4G, x, 130, &e), ERR_CORRUPT);
    x[0] = 65520.0f * 7;
    assert_int_equal(quantise_row(codes, scale, FMT_Q4G, x, 130, &e), ERR_CORRUPT);
}

static void widths_follow_the_policy(void **state)
{
    const uint32_t small[2] = {255, 257}, router[2] = {256, 256}, conv[3] = {20000, 1, 4};
    const uint32_t vector[1] = {100000};

    (void)state;
    assert_int_equal(trunk_fmt_policy("lm_head.weight", small, 2, 4), FMT_F32);
    assert_int_equal(trunk_fmt_policy("a.gate.weight", router, 2, 4), FMT_Q4G);
    assert_int_equal(trunk_fmt_policy("a.gate.weight", router, 2, 8), FMT_Q8G);
    assert_int_equal(trunk_fmt_policy("a.gate.weight", router, 2, 3), FMT_Q3G);
    assert_int_equal(trunk_fmt_policy("model.embed_tokens.weight", router, 2, 3), FMT_Q8G);
    assert_int_equal(trunk_fmt_policy("x.q_conv1d.weight", conv, 3, 4), FMT_F32);
    assert_int_equal(trunk_fmt_policy("x.norm.weight", vector, 1, 4), FMT_F32);
}

/* Any value that the formats hold; different for every place. */
static float value(unsigned tensor, unsigned i)
{
    return (float)((int)((i * 2654435761u + tensor * 40503u) >> 16 & 0xff) - 128) / 64.0f;
}

static const struct {
    const char *name;
    int fmt;
    uint32_t dim[2];
} tensors[4] = {
    {"lm_head.weight", FMT_Q8G, {VOCAB, HIDDEN}},
    {"model.norm.weight", FMT_F32, {1, HIDDEN}},
    {"x.down.weight", FMT_Q3G, {7, HIDDEN}},
    {"x.up.weight", FMT_Q4G, {9, 260}},
};

static void write_trunk(struct writer *w)
{
    float x[9 * 260];
    struct err e;
    unsigned id;

    for (unsigned t = 0; t < 4; t++) {
        assert_int_equal(
            writer_trunk_add(w, &id, tensors[t].name, tensors[t].fmt, tensors[t].dim, 2, &e), 0);
        assert_int_equal(id, t);
    }
    assert_int_equal(writer_trunk_begin(w, &e), 0);
    for (unsigned t = 0; t < 4; t++) {
        unsigned rows = tensors[t].dim[0], cols = tensors[t].dim[1];

        for (unsigned i = 0; i < rows * cols; i++)
            x[i] = value(t, i);
        if (rows > 1) /* in two parts, the last first */
            assert_int_equal(writer_trunk_f32(w, t, 1, rows - 1, x + cols, &e), 0);
        assert_int_equal(writer_trunk_f32(w, t, 0, 1, x, &e), 0);
    }
    assert_int_equal(writer_trunk_end(w, &e), 0);
}

static void fill_record(const struct record_layout *l, unsigned layer, unsigned expert,
                        uint8_t *bytes)
{
    memset(bytes, 0, l->bytes);
    for (unsigned i = FORMAT_RECORD_HEADER; i < l->scale_off[0]; i++)
        bytes[i] = (uint8_t)(i * 7 + layer * 11 + expert * 13);
    for (unsigned i = l->scale_off[0]; i < l->used; i += 2) {
        bytes[i] = (uint8_t)(i + expert);
        bytes[i + 1] = 0x2c;
    }
}

static void write_layer(struct writer *w, unsigned layer)
{
    const struct record_layout *l = writer_record_layout(w);
    uint8_t *bytes = aligned_alloc(FORMAT_PAGE, l->bytes);
    uint16_t entries[256 * FORMAT_VEC_DIM];
    struct err e;

    assert_non_null(bytes);
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++)
        for (unsigned s = 0; s < 3; s++) {
            for (unsigned i = 0; i < 256 * FORMAT_VEC_DIM; i++)
                entries[i] = f32_to_half(value(layer * 9 + m * 3 + s, i));
            assert_int_equal(writer_codebook(w, layer, m, s, entries, &e), 0);
        }
    assert_false(writer_bank_keep(w, layer));
    assert_int_equal(writer_bank_begin(w, layer, &e), 0);
    for (unsigned x = EXPERTS; x-- > 0;) {
        fill_record(l, layer, x, bytes);
        assert_int_equal(writer_record(w, layer, x, bytes, &e), 0);
    }
    assert_int_equal(writer_bank_end(w, layer, &e), 0);
    free(bytes);
}

static void write_container(struct fixture *f)
{
    json_t *extra = json_pack("{s:s, s:s}", "waste_test", "x", "arch", "not replaced");
    struct writer *w;
    struct err e;

    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    write_trunk(w);
    assert_int_equal(writer_side_file(w, "specials.json", "[]", 2, &e), 0);
    write_layer(w, 2);
    write_layer(w, 1);
    assert_false(exists(f, "manifest.json"));
    assert_int_equal(writer_finish(w, extra, &e), 0);
    json_decref(extra);
    writer_close(w);
}

static void check_trunk(const struct container *c)
{
    float got[260], most;
    struct trunk *t;
    struct err e;

    assert_int_equal(trunk_open(&t, c, &e), 0);
    for (unsigned i = 0; i < 4; i++) {
        const struct trunk_entry *entry = manifest_tensor(container_manifest(c), tensors[i].name);
        unsigned cols = tensors[i].dim[1];

        assert_non_null(entry);
        assert_int_equal(entry->fmt, tensors[i].fmt);
        most = entry->fmt == FMT_F32   ? 0
               : entry->fmt == FMT_Q8G ? 2.0f / 127
               : entry->fmt == FMT_Q4G ? 2.0f / 7
                                       : 2.0f / 3;
        for (unsigned r = 0; r < tensors[i].dim[0]; r++) {
            assert_int_equal(trunk_read_row(t, entry, r, got, &e), 0);
            for (unsigned j = 0; j < cols; j++)
                assert_true(fabsf(got[j] - value(i, r * cols + j)) <= 0.51f * most);
        }
    }
    trunk_close(t);
}

static void a_written_container_opens_and_reads_back(void **state)
{
    struct fixture *f = *state;
    struct container_options o = {0};
    const struct file *const *files;
    struct codebooks *cb;
    struct container *c;
    uint8_t *bytes, *want;
    unsigned n;
    struct err e;

    write_container(f);
    if (container_open(&c, f->dir, &o, &e))
        fail_msg("%s", e.text);
    assert_string_equal(container_manifest(c)->arch, "kimi-linear");
    check_trunk(c);
    assert_int_equal(codebooks_open(&cb, c, NULL, &e), 0);
    for (unsigned layer = 1; layer < LAYERS; layer++)
        for (unsigned i = 0; i < 3 * 256 * FORMAT_VEC_DIM; i++)
            assert_true(
                codebook_at(cb, layer, MATRIX_UP)[i] ==
                value(layer * 9 + 3 + i / (256 * FORMAT_VEC_DIM), i % (256 * FORMAT_VEC_DIM)));
    codebooks_close(cb);
    files = container_files(c, &n);
    assert_int_equal(n, 2);
    bytes = malloc(container_manifest(c)->record.bytes);
    want = malloc(container_manifest(c)->record.bytes);
    for (unsigned layer = 1; layer < LAYERS; layer++)
        for (unsigned x = 0; x < EXPERTS; x++) {
            const struct record_layout *l = &container_manifest(c)->record;
            struct extent at = container_extent(c, layer, x);

            assert_int_equal(file_read(files[at.file], bytes, at.length, at.offset, &e), 0);
            assert_int_equal(record_check(l, bytes, layer, x, (layer - 1) * 9, &e), 0);
            assert_int_equal(record_verify(l, bytes, layer, x, &e), 0);
            fill_record(l, layer, x, want);
            assert_memory_equal(bytes + FORMAT_RECORD_HEADER, want + FORMAT_RECORD_HEADER,
                                l->bytes - FORMAT_RECORD_HEADER);
        }
    free(bytes);
    free(want);
    container_close(c);
}

static void numbers_in_the_manifest_are_as_short_as_they_were(void **state)
{
    struct fixture *f = *state;
    char path[160], text[4096] = {0};
    FILE *file;

    write_container(f);
    snprintf(path, sizeof(path), "%s/manifest.json", f->dir);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "\"routed_scaling_factor\": 2.446\n"));
    assert_non_null(strstr(text, "\"bits_per_weight\": 3.0\n"));
    assert_non_null(strstr(text, "\"format_version\": 0,"));
}

static void what_is_missing_keeps_the_container_from_being_sealed(void **state)
{
    struct fixture *f = *state;
    struct writer *w;
    struct err e;

    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    assert_int_equal(writer_finish(w, NULL, &e), ERR_ARG);
    write_trunk(w);
    write_layer(w, 1);
    assert_int_equal(writer_finish(w, NULL, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "bank of layer 2"));
    assert_int_equal(writer_bank_begin(w, 2, &e), 0);
    assert_int_equal(writer_bank_end(w, 2, &e), ERR_ARG);
    assert_true(exists(f, "experts-L2.bin.tmp"));
    writer_close(w);
    assert_false(exists(f, "manifest.json"));
    assert_false(exists(f, "experts-L2.bin.tmp"));
    assert_true(exists(f, "experts-L1.bin"));
}

static void a_finished_bank_is_kept_and_a_foreign_one_is_not(void **state)
{
    struct fixture *f = *state;
    struct writer *w;
    char from[160], to[160];
    struct err e;

    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    write_layer(w, 1);
    writer_close(w);
    snprintf(from, sizeof(from), "%s/experts-L1.bin", f->dir);
    snprintf(to, sizeof(to), "%s/experts-L2.bin", f->dir);
    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    assert_true(writer_bank_keep(w, 1));
    writer_close(w);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    assert_false(writer_bank_keep(w, 1));
    assert_false(writer_bank_keep(w, 2)); /* its records say layer 1 */
    writer_close(w);
    assert_int_equal(truncate(to, 4096), 0);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    assert_false(writer_bank_keep(w, 1));
    writer_close(w);
}

static void a_directory_is_written_by_one_and_never_over_a_container(void **state)
{
    struct fixture *f = *state;
    struct writer *w, *other;
    struct err e;

    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    assert_int_equal(writer_open(&other, f->dir, &f->options, &e), ERR_BUSY);
    writer_close(w);
    assert_int_equal(access(f->dir, F_OK), -1); /* made for nothing: removed */
    write_container(f);
    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), ERR_ARG);
    assert_true(exists(f, "manifest.json"));
}

static void too_little_room_is_said_with_both_figures_and_the_volume(void **state)
{
    struct fixture *f = *state;
    struct writer *w;
    struct err e;

    assert_int_equal(writer_open(&w, f->dir, &f->options, &e), 0);
    assert_int_equal(writer_check_space(w, 1, &e), 0);
    assert_int_equal(writer_check_space(w, UINT64_MAX, &e), ERR_IO);
    assert_non_null(strstr(e.text, "need 17179869184.00 GiB on /"));
    assert_non_null(strstr(e.text, " GiB free"));
    writer_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_quantised_to_the_published_bytes),
        cmocka_unit_test(zeros_ties_and_subnormal_scales_follow_the_recipe),
        cmocka_unit_test(widths_follow_the_policy),
        cmocka_unit_test_setup_teardown(a_written_container_opens_and_reads_back, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(numbers_in_the_manifest_are_as_short_as_they_were, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_is_missing_keeps_the_container_from_being_sealed,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_finished_bank_is_kept_and_a_foreign_one_is_not, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_directory_is_written_by_one_and_never_over_a_container,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_little_room_is_said_with_both_figures_and_the_volume,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
