#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/half.h"
#include "expertfs/trunk.h"
#include "tests/support/tiny_container.h"

struct opened {
    struct container *c;
    struct trunk *t;
    const struct manifest *m;
};

static struct opened must_open(const char *dir, bool direct)
{
    struct container_options options = {.direct = direct};
    struct opened o;
    struct err e;

    if (container_open(&o.c, dir, &options, &e) || trunk_open(&o.t, o.c, &e))
        fail_msg("%s", e.text);
    o.m = container_manifest(o.c);
    return o;
}

static void want_all(struct opened *o)
{
    for (unsigned i = 0; i < o->m->n_trunk; i++)
        trunk_want(o->t, &o->m->trunk[i]);
}

static void shut(struct opened *o)
{
    trunk_close(o->t);
    container_close(o->c);
}

/* The tables of every tensor, as they lie in the file, at aligned places. */
static void assert_loaded(const struct opened *o, const uint8_t *file)
{
    for (unsigned i = 0; i < o->m->n_trunk; i++) {
        const struct trunk_entry *x = &o->m->trunk[i];
        struct trunk_view v = trunk_at(o->t, x);

        assert_ptr_equal(v.entry, x);
        assert_int_equal((uintptr_t)v.data % 64, 0);
        assert_memory_equal(v.data, file + x->off, x->payload_bytes);
        if (x->fmt == FMT_F32) {
            assert_null(v.scale);
            continue;
        }
        assert_int_equal((uintptr_t)v.scale % 64, 0);
        assert_memory_equal(v.scale, file + x->scale_off, x->scale_bytes);
    }
}

static void every_tensor_is_loaded_as_it_lies_in_the_file(void **state)
{
    uint8_t *file;
    size_t n;
    struct err e;

    file = tiny_file_read(*state, "trunk.bin", &n);
    for (unsigned direct = 0; direct < 2; direct++) {
        struct opened o = must_open(*state, direct);
        struct progress progress = {0};
        struct mem mem;

        mem_init(&mem, 0);
        assert_int_equal(trunk_resident_bytes(o.t), 0);
        want_all(&o);
        want_all(&o); /* twice is once */
        assert_int_equal(trunk_load(o.t, &mem, &progress, &e), 0);
        assert_int_equal(mem.used[MEM_TRUNK], trunk_resident_bytes(o.t));
        assert_int_equal(mem.used_total, trunk_resident_bytes(o.t));
        assert_int_equal(progress.bytes, TINY_TRUNK_BYTES);
        assert_int_equal(progress.done, TINY_TRUNK_BYTES);
        assert_loaded(&o, file);
        trunk_close(o.t);
        assert_int_equal(mem.used_total, 0);
        container_close(o.c);
    }
    trunk_close(NULL);
    free(file);
}

static void only_what_is_wanted_is_loaded(void **state)
{
    struct opened o = must_open(*state, true);
    const struct trunk_entry *head = manifest_tensor(o.m, "lm_head.weight");
    const struct trunk_entry *norm = manifest_tensor(o.m, "model.norm.weight");
    struct progress progress = {0};
    struct mem mem;
    struct err e;

    mem_init(&mem, 0);
    trunk_want(o.t, head);
    trunk_want(o.t, norm);
    assert_int_equal(trunk_resident_bytes(o.t), 20480); /* 16384 + 256 + 576 in whole pages */
    assert_int_equal(trunk_load(o.t, &mem, &progress, &e), 0);
    assert_int_equal(progress.bytes, 16384 + 256 + 544);
    assert_int_equal(load_le32(trunk_at(o.t, norm).data), f32_to_bits(0.900390625f));
    shut(&o);
}

static void nothing_wanted_is_nothing_loaded(void **state)
{
    struct opened o = must_open(*state, true);
    struct mem mem;
    struct err e;

    mem_init(&mem, 0);
    assert_int_equal(trunk_load(o.t, &mem, NULL, &e), 0);
    assert_int_equal(mem.peak_total, 0);
    shut(&o);
}

static void close_to(float got, double want)
{
    if (!(fabs(got - want) <= 1e-7 + 2e-6 * fabs(want)))
        fail_msg("%.9g is not %.9g", got, want);
}

/* The decoded samples of the golden container. */
static void rows_decode_to_the_published_values(void **state)
{
    struct opened o = must_open(*state, false);
    float row[160];
    struct err e;

    assert_int_equal(trunk_read_row(o.t, manifest_tensor(o.m, "lm_head.weight"), 0, row, &e), 0);
    close_to(row[0], -0.0792961);
    close_to(row[1], 0.0467644);
    close_to(row[2], 0.0630302);
    close_to(row[3], 0.1240273);
    assert_int_equal(trunk_read_row(o.t, manifest_tensor(o.m, "model.norm.weight"), 0, row, &e), 0);
    close_to(row[0], 0.9003906);
    close_to(row[1], 1.109375);
    close_to(row[2], 0.9365234);
    assert_int_equal(
        trunk_read_row(o.t, manifest_tensor(o.m, "model.layers.0.mlp.up_proj.weight"), 0, row, &e),
        0);
    close_to(row[0], 0.0173035);
    close_to(row[1], -0.0519104);
    close_to(row[2], 0);
    close_to(row[3], 0.0173035);
    assert_int_equal(trunk_read_row(o.t,
                                    manifest_tensor(o.m, "model.layers.0.mlp.down_proj.weight"), 3,
                                    row, &e),
                     0);
    close_to(row[0], -2.0325e-05); /* the scale is subnormal */
    close_to(row[1], 1.21951e-04);
    close_to(row[2], 1.42276e-04);
    close_to(row[128], 0.0556183);
    close_to(row[129], 0.0092697);
    close_to(row[130], -0.0463486);
    shut(&o);
}

/* The worked bytes of the format, and a padded last group, at an odd offset. */
static void codes_decode_as_the_format_shows(void **state)
{
    static const struct {
        int fmt, n;
        uint8_t codes[4];
        int q[8];
        unsigned row_bytes;
    } cases[] = {
        {FMT_Q4G, 8, {0x10, 0x98, 0x7F, 0x4A}, {-8, -7, 0, 1, 7, -1, 2, -4}, 64},
        {FMT_Q3G, 8, {0x88, 0xC6, 0xFA}, {-4, -3, -2, -1, 0, 1, 2, 3}, 49},
        {FMT_Q8G, 4, {0x81, 0xFF, 0x00, 0x7F}, {-127, -1, 0, 127}, 128},
    };
    const char *dir = *state;
    struct err e;

    for (unsigned i = 0; i < 3; i++) {
        uint8_t *trunk = calloc(1, TINY_TRUNK_BYTES);
        json_t *root = tiny_manifest(TINY_VQ3R);
        struct opened o;
        char entry[200];
        float row[8];

        snprintf(entry, sizeof(entry),
                 "[{\"name\":\"w\",\"fmt\":%d,\"off\":7,\"shape\":[1,%d],\"bytes\":%u,"
                 "\"group\":128,\"scale_off\":1001}]",
                 cases[i].fmt, cases[i].n, cases[i].row_bytes + 2);
        tiny_set(root, "trunk", entry);
        tiny_manifest_write(dir, root);
        memcpy(trunk + 7, cases[i].codes, 4);
        store_le16(trunk + 1001, 0x2000); /* 0.0078125 */
        tiny_file_write(dir, "trunk.bin", trunk, TINY_TRUNK_BYTES);
        o = must_open(dir, false);
        assert_int_equal(trunk_read_row(o.t, &o.m->trunk[0], 0, row, &e), 0);
        for (int c = 0; c < cases[i].n; c++)
            assert_true(row[c] == 0.0078125f * (float)cases[i].q[c]);
        shut(&o);
        json_decref(root);
        free(trunk);
    }
}

struct grown { /* a trunk.bin and the list of its tensors, growing together */
    uint8_t *file;
    size_t n;
    json_t *trunk;
};

/* Append a tensor of pseudo-random codes, `gap` dead bytes before it. */
static void grow(struct grown *g, const char *name, int fmt, unsigned rows, unsigned cols,
                 unsigned gap)
{
    unsigned groups = fmt == FMT_F32 ? 0 : (cols + 127) / 128;
    size_t row_bytes = fmt == FMT_F32   ? 4 * (size_t)cols
                       : fmt == FMT_Q8G ? 128 * (size_t)groups
                       : fmt == FMT_Q4G ? 64 * (size_t)groups
                                        : 48 * (size_t)groups + 1;
    size_t off = g->n + gap, payload = rows * row_bytes, scales = 2 * (size_t)rows * groups;
    uint32_t x = 12345;

    g->file = realloc(g->file, off + payload + scales);
    memset(g->file + g->n, 0, gap);
    g->n = off + payload + scales;
    for (size_t i = 0; i < payload; i++) {
        x = 1664525 * x + 1013904223;
        /* of an F32 the exponent stays small, so that it is finite */
        g->file[off + i] = (uint8_t)(fmt == FMT_F32 && i % 4 == 3 ? x >> 26 : x >> 24);
    }
    for (size_t i = 0; i < scales; i += 2)
        store_le16(g->file + off + payload + i, (uint16_t)(0x2000 + i % 999));
    json_array_append_new(g->trunk,
                          json_pack("{s:s s:i s:I s:[i i] s:I s:i s:I}", "name", name, "fmt", fmt,
                                    "off", (json_int_t)off, "shape", (int)rows, (int)cols, "bytes",
                                    (json_int_t)(payload + scales), "group", 128, "scale_off",
                                    (json_int_t)(off + payload)));
}

/* Tensors that cross windows, odd offsets, dead bytes before, between and behind them. */
static void grow_large(const char *dir, struct grown *g)
{
    json_t *root = tiny_manifest(TINY_VQ3R);

    g->file = tiny_file_read(dir, "trunk.bin", &g->n);
    g->trunk = json_object_get(root, "trunk");
    grow(g, "big.f32", FMT_F32, 1003, 2500, 1); /* 10 MB */
    grow(g, "big.q3", FMT_Q3G, 77, 50000, 3);   /* rows of several pieces */
    grow(g, "big.q4", FMT_Q4G, 33, 40001, 5000001);
    grow(g, "big.q8", FMT_Q8G, 129, 16385, 0);
    g->file = realloc(g->file, g->n + 1000);
    memset(g->file + g->n, 0xee, 1000);
    g->n += 1000;
    tiny_file_write(dir, "trunk.bin", g->file, g->n);
    tiny_manifest_write(dir, root);
    json_decref(root);
}

static void a_trunk_of_many_windows_is_loaded_whole(void **state)
{
    struct grown g;
    struct err e;

    grow_large(*state, &g);
    for (unsigned direct = 0; direct < 2; direct++) {
        struct opened o = must_open(*state, direct);

        want_all(&o);
        assert_int_equal(trunk_load(o.t, NULL, NULL, &e), 0);
        assert_loaded(&o, g.file);
        shut(&o);
    }
    free(g.file);
}

/* What a row is, from the resident tables and the letter of the format. */
static float decode(const struct trunk_view *v, uint64_t row, uint64_t col)
{
    const struct trunk_entry *x = v->entry;
    const uint8_t *codes = v->data + row * x->row_bytes;
    float scale;
    int q = 0;

    if (x->fmt == FMT_F32)
        return bits_to_f32(load_le32(codes + 4 * col));
    scale = half_to_f32(v->scale[row * x->groups + col / 128]);
    if (x->fmt == FMT_Q8G)
        q = codes[col] < 128 ? codes[col] : codes[col] - 256;
    else if (x->fmt == FMT_Q4G)
        q = (col % 2 ? codes[col / 2] / 16 : codes[col / 2] % 16) - 8;
    else
        for (unsigned bit = 0; bit < 3; bit++) {
            uint64_t at = 3 * col + bit;

            q += (codes[at / 8] >> at % 8 & 1) << bit;
            q -= bit == 2 ? 4 : 0;
        }
    return scale * (float)q;
}

static void rows_read_from_the_file_equal_rows_in_memory(void **state)
{
    struct grown g;
    struct opened o;
    struct err e;

    grow_large(*state, &g);
    o = must_open(*state, true);
    want_all(&o);
    assert_int_equal(trunk_load(o.t, NULL, NULL, &e), 0);
    for (unsigned i = 0; i < o.m->n_trunk; i++) {
        const struct trunk_entry *x = &o.m->trunk[i];
        struct trunk_view v = trunk_at(o.t, x);
        float *row = malloc(x->cols * sizeof(*row));

        for (uint64_t r = 0; r<x->rows; r += x->rows> 200 ? 167 : x->rows > 20 ? 16 : 1) {
            assert_int_equal(trunk_read_row(o.t, x, r, row, &e), 0);
            for (uint64_t c = 0; c < x->cols; c++)
                if (f32_to_bits(row[c]) != f32_to_bits(decode(&v, r, c)))
                    fail_msg("%s row %u column %u", x->name, (unsigned)r, (unsigned)c);
        }
        free(row);
    }
    shut(&o);
    free(g.file);
}

static void a_value_that_is_not_finite_is_named_with_its_element(void **state)
{
    static const struct {
        const char *name;
        unsigned scale; /* its number, for a quantised tensor */
        unsigned element;
    } cases[] = {
        {"model.layers.0.mlp.down_proj.weight", 5, 2 * 160 + 128},
        {"lm_head.weight", 127, 63 * 136 + 128},
        {"model.layers.1.self_attn.f_a_proj.weight", 0, 0},
        {"model.norm.weight", 0, 135},
        {"model.layers.1.self_attn.A_log", 0, 1},
    };
    const char *dir = *state;
    uint8_t *file;
    size_t n;

    file = tiny_file_read(dir, "trunk.bin", &n);
    for (unsigned i = 0; i < 5; i++) {
        struct opened o = must_open(dir, false);
        const struct trunk_entry *x = manifest_tensor(o.m, cases[i].name);
        bool f32 = x->fmt == FMT_F32;
        uint64_t at = f32 ? x->off + 4 * cases[i].element : x->scale_off + 2 * cases[i].scale;
        uint64_t row = cases[i].element / x->cols;
        float out[160];
        char want[160];
        uint8_t was[4];
        struct mem mem;
        struct err e;

        memcpy(was, file + at, 4);
        if (f32)
            store_le32(file + at, i % 2 ? 0x7f800000u : 0xffc00001u);
        else
            store_le16(file + at, i % 2 ? 0x7c00 : 0xfe00);
        tiny_file_write(dir, "trunk.bin", file, n);
        snprintf(want, sizeof(want), "trunk.bin: \"%s\" contains a non-finite value at element %u",
                 cases[i].name, cases[i].element);
        mem_init(&mem, 0);
        trunk_want(o.t, x);
        assert_int_equal(trunk_load(o.t, &mem, NULL, &e), ERR_CORRUPT);
        assert_string_equal(e.text, want);
        assert_int_equal(mem.used_total, 0);
        assert_int_equal(trunk_read_row(o.t, x, row, out, &e), ERR_CORRUPT);
        assert_string_equal(e.text, want);
        if (row)
            assert_int_equal(trunk_read_row(o.t, x, row - 1, out, &e), 0);
        trunk_close(o.t);
        memcpy(file + at, was, 4);
        tiny_file_write(dir, "trunk.bin", file, n);
        assert_int_equal(trunk_open(&o.t, o.c, &e), 0); /* nothing of it was kept */
        trunk_want(o.t, x);
        assert_int_equal(trunk_load(o.t, &mem, NULL, &e), 0);
        shut(&o);
    }
    free(file);
}

static void a_trunk_that_is_too_large_for_the_budget_is_refused(void **state)
{
    struct opened o = must_open(*state, false);
    struct mem mem;
    struct err e;

    want_all(&o);
    mem_init(&mem, trunk_resident_bytes(o.t) - 1);
    assert_int_equal(trunk_load(o.t, &mem, NULL, &e), ERR_BUDGET);
    assert_int_equal(mem.used_total, 0);
    shut(&o);
}

static void a_cancelled_load_gives_everything_back(void **state)
{
    struct opened o = must_open(*state, false);
    struct progress progress = {0};
    struct mem mem;
    struct err e;

    mem_init(&mem, 0);
    want_all(&o);
    atomic_store(&progress.cancel, true);
    assert_int_equal(trunk_load(o.t, &mem, &progress, &e), ERR_CANCELLED);
    assert_int_equal(mem.used_total, 0);
    atomic_store(&progress.cancel, false);
    assert_int_equal(trunk_load(o.t, &mem, &progress, &e), 0);
    shut(&o);
}

/* A file that is cut while it is open. */
static void a_row_beyond_the_end_of_the_file_is_an_error(void **state)
{
    const char *dir = *state;

    for (unsigned direct = 0; direct < 2; direct++) {
        struct opened o;
        const struct trunk_entry *x;
        char path[300];
        float row[160];
        struct err e;

        tiny_write(dir, TINY_VQ3R);
        o = must_open(dir, direct);
        snprintf(path, sizeof(path), "%s/trunk.bin", dir);
        x = manifest_tensor(o.m, "model.embed_tokens.weight");
        assert_int_equal(truncate(path, (off_t)(x->off + 10 * x->row_bytes + 5)), 0);
        assert_int_equal(trunk_read_row(o.t, x, 10, row, &e), ERR_IO);
        assert_non_null(
            strstr(e.text, "trunk.bin: cannot read row 10 of model.embed_tokens.weight: "));
        x = manifest_tensor(o.m, "model.norm.weight");
        assert_int_equal(trunk_read_row(o.t, x, 0, row, &e), ERR_IO);
        assert_non_null(strstr(e.text, "trunk.bin: cannot read row 0 of model.norm.weight: "));
        want_all(&o);
        assert_int_equal(trunk_load(o.t, NULL, NULL, &e), ERR_IO);
        assert_non_null(strstr(e.text, "trunk.bin"));
        shut(&o);
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, tiny_setup, tiny_teardown)
    const struct CMUnitTest tests[] = {
        T(every_tensor_is_loaded_as_it_lies_in_the_file),
        T(only_what_is_wanted_is_loaded),
        T(nothing_wanted_is_nothing_loaded),
        T(rows_decode_to_the_published_values),
        T(codes_decode_as_the_format_shows),
        T(a_trunk_of_many_windows_is_loaded_whole),
        T(rows_read_from_the_file_equal_rows_in_memory),
        T(a_value_that_is_not_finite_is_named_with_its_element),
        T(a_trunk_that_is_too_large_for_the_budget_is_refused),
        T(a_cancelled_load_gives_everything_back),
        T(a_row_beyond_the_end_of_the_file_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
