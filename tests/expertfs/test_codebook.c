#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"
#include "expertfs/codebook.h"
#include "tests/support/tiny_container.h"

static struct container *must_open(const char *dir)
{
    static const struct container_options o = {.direct = false};
    struct container *c;
    struct err e;

    if (container_open(&c, dir, &o, &e))
        fail_msg("%s", e.text);
    return c;
}

/* Every value of every table, against the file. */
static void assert_tables(const char *dir, struct mem *mem)
{
    struct container *c = must_open(dir);
    const struct manifest *m = container_manifest(c);
    uint32_t n = m->record.entries * 8, size = 16 + 2 * n;
    struct codebooks *cb;
    uint8_t *file;
    size_t bytes;
    struct err e;

    if (codebooks_open(&cb, c, mem, &e))
        fail_msg("%s", e.text);
    if (mem)
        assert_int_equal(mem->used[MEM_TRUNK], codebooks_bytes(&m->record, manifest_moe_layers(m)));
    file = tiny_file_read(dir, "codebooks.bin", &bytes);
    for (unsigned layer = 1; layer < TINY_LAYERS; layer++)
        for (enum matrix k = MATRIX_GATE; k < MATRICES; k++) {
            const float *table = codebook_at(cb, layer, k);

            assert_int_equal((uintptr_t)table % 64, 0);
            for (uint32_t s = 0; s < m->record.stages; s++) {
                const uint8_t *record =
                    file + (m->bank[layer].codebook_base + k * m->record.stages + s) * size;

                for (uint32_t i = 0; i < n; i++)
                    assert_true(table[s * n + i] == half_to_f32(load_le16(record + 16 + 2 * i)));
            }
        }
    free(file);
    codebooks_close(cb);
    if (mem)
        assert_int_equal(mem->used_total, 0);
    container_close(c);
}

static void tables_hold_the_file_widened(void **state)
{
    const char *dir = *state;
    struct mem mem;

    mem_init(&mem, 0);
    assert_tables(dir, &mem);
    assert_tables(dir, NULL);
    tiny_write(dir, TINY_VQ4P); /* its records say format 4, too */
    assert_tables(dir, &mem);
    codebooks_close(NULL);
}

static void subnormal_entries_are_kept(void **state)
{
    const char *dir = *state;
    uint8_t *file;
    size_t n;

    file = tiny_file_read(dir, "codebooks.bin", &n);
    for (unsigned i = 0; i < 2048; i++)
        store_le16(file + 16 + 2 * i, (uint16_t)(i & 0x3ff) | (i & 1 ? 0x8000 : 0));
    tiny_file_write(dir, "codebooks.bin", file, n);
    free(file);
    assert_tables(dir, NULL);
}

static void bases_may_be_out_of_order_with_holes_between(void **state)
{
    const char *dir = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);
    uint8_t *file, *spread;
    size_t n, size = 4112;

    /* Layer 1 at 30, layer 2 at 5, zeros elsewhere, and a record nobody refers to that is junk. */
    file = tiny_file_read(dir, "codebooks.bin", &n);
    assert_int_equal(n, 18 * size);
    spread = calloc(41, size);
    memcpy(spread + 30 * size, file, 9 * size);
    memcpy(spread + 5 * size, file + 9 * size, 9 * size);
    memset(spread + 40 * size, 0xff, size);
    for (unsigned i = 0; i < 9; i++) {
        store_le16(spread + (30 + i) * size + 4, (uint16_t)(30 + i));
        store_le16(spread + (5 + i) * size + 4, (uint16_t)(5 + i));
    }
    tiny_file_write(dir, "codebooks.bin", spread, 41 * size);
    tiny_set(root, "layers.1.codebook_base", "30");
    tiny_set(root, "layers.2.codebook_base", "5");
    tiny_manifest_write(dir, root);
    assert_tables(dir, NULL);
    json_decref(root);
    free(file);
    free(spread);
}

static void the_format_byte_and_reserved_bytes_are_not_looked_at(void **state)
{
    const char *dir = *state;
    uint8_t *file;
    size_t n;

    file = tiny_file_read(dir, "codebooks.bin", &n);
    for (size_t i = 0; i < n; i += 4112) {
        file[i + 6] = 99;
        memset(file + i + 12, 0xff, 4);
    }
    tiny_file_write(dir, "codebooks.bin", file, n);
    free(file);
    assert_tables(dir, NULL);
}

static void a_budget_that_is_too_small_is_reported(void **state)
{
    struct container *c = must_open(*state);
    struct codebooks *cb = NULL;
    struct mem mem;
    struct err e;

    mem_init(&mem, codebooks_bytes(&container_manifest(c)->record, TINY_LAYERS - 1) - 1);
    assert_int_equal(codebooks_open(&cb, c, &mem, &e), ERR_BUDGET);
    assert_null(cb);
    assert_int_equal(mem.used_total, 0);
    container_close(c);
}

static void codebooks_cut_anywhere_are_refused(void **state)
{
    const char *dir = *state;
    uint8_t *file;
    size_t n;

    file = tiny_file_read(dir, "codebooks.bin", &n);
    for (size_t cut = 0; cut < n; cut += cut < 32 || n - cut < 32 ? 1 : 257) {
        struct codebooks *cb = NULL;
        struct container *c;
        struct err e;

        tiny_file_write(dir, "codebooks.bin", file, cut);
        c = must_open(dir);
        assert_int_equal(codebooks_open(&cb, c, NULL, &e), ERR_FORMAT);
        assert_true(strstr(e.text, "codebooks.bin"));
        assert_null(cb);
        container_close(c);
    }
    free(file);
}

/* A file that shrinks between open and read is a read error. */
static void a_short_read_is_an_error(void **state)
{
    const char *dir = *state;
    struct container *c = must_open(dir);
    struct codebooks *cb = NULL;
    struct err e;
    uint8_t *file;
    size_t n;

    file = tiny_file_read(dir, "codebooks.bin", &n);
    tiny_file_write(dir, "codebooks.bin", file, n - 4112);
    assert_int_equal(codebooks_open(&cb, c, NULL, &e), ERR_IO);
    assert_null(cb);
    container_close(c);
    free(file);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, tiny_setup, tiny_teardown)
    const struct CMUnitTest tests[] = {
        T(tables_hold_the_file_widened),
        T(subnormal_entries_are_kept),
        T(bases_may_be_out_of_order_with_holes_between),
        T(the_format_byte_and_reserved_bytes_are_not_looked_at),
        T(a_budget_that_is_too_small_is_reported),
        T(codebooks_cut_anywhere_are_refused),
        T(a_short_read_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
