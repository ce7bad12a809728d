#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/source.h"
#include "storage/frames.h"
#include "storage/io.h"
#include "tests/support/tiny_container.h"

/* A container, and a source over it: through a pool of few frames, or all in memory. */
struct fixture {
    char dir[256];
    enum tiny variant;
    struct container *c;
    struct mem mem;
    struct frames frames;
    struct io *io;
    struct pool *pool;
    struct expert_source *s;
};

enum { FRAMES = 3, DEPTH = 2 };

static void must(int code, const struct err *e)
{
    if (code)
        fail_msg("%s", e->text);
}

static void open_container(struct fixture *f, bool direct)
{
    struct container_options o = {.direct = direct};
    struct err e;

    must(container_open(&f->c, f->dir, &o, &e), &e);
}

static void open_pool(struct fixture *f, bool verify)
{
    struct io_config io = {.depth = DEPTH};
    struct pool_config pool = {.depth = DEPTH, .policy = &policy_lru};
    struct err e;

    io.files = container_files(f->c, &io.n_files);
    must(frames_open(&f->frames, &f->mem, container_manifest(f->c)->record.bytes, FRAMES, &e), &e);
    io.arena = f->frames.base;
    io.arena_bytes = f->frames.frame_bytes * FRAMES;
    must(io_ops_sync.open(&f->io, &io, &e), &e);
    pool.io = f->io;
    pool.frames = &f->frames;
    must(pool_open(&f->pool, &pool, &e), &e);
    must(source_pool_open(&f->s, f->c, f->pool, verify, &e), &e);
}

static void shut(struct fixture *f)
{
    if (f->s)
        f->s->ops->close(f->s);
    f->s = NULL;
    if (f->pool) {
        pool_close(f->pool);
        f->pool = NULL;
        f->io->ops->close(f->io);
        frames_close(&f->frames);
    }
    container_close(f->c);
    f->c = NULL;
    assert_int_equal(f->mem.used_total, 0);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    mem_init(&f->mem, 0);
    tiny_dir(f->dir, sizeof(f->dir));
    tiny_write(f->dir, TINY_VQ3R);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    tiny_remove(f->dir);
    free(f);
    return 0;
}

static int pin(struct fixture *f, unsigned layer, uint16_t id, struct expert *x, struct err *e)
{
    unsigned which = 77;
    int code = f->s->ops->pin_any(f->s, layer, &id, 1, &which, x, e);

    assert_int_equal(which, code ? 77 : 0);
    return code;
}

/* The parts of x are those of the record that was written. */
static void assert_expert(const struct fixture *f, const struct expert *x, unsigned layer,
                          unsigned id)
{
    struct record_layout l = tiny_layout(f->variant);
    uint8_t bytes[TINY_RECORD_BYTES];

    tiny_record(bytes, f->variant, layer, id);
    assert_memory_equal(x->page.bytes, bytes, sizeof(bytes));
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        assert_ptr_equal(x->index[m], x->page.bytes + l.index_off[m]);
        assert_ptr_equal(x->scale[m], x->page.bytes + l.scale_off[m]);
    }
}

/* Pin every expert twice over, in both layers; the pool holds fewer than there are. */
static void pin_everything(struct fixture *f)
{
    struct expert x;
    struct err e;

    for (unsigned round = 0; round < 2; round++)
        for (unsigned layer = 1; layer < TINY_LAYERS; layer++)
            for (unsigned id = 0; id < TINY_EXPERTS; id++) {
                must(pin(f, layer, (uint16_t)id, &x, &e), &e);
                assert_expert(f, &x, layer, id);
                f->s->ops->unpin(f->s, &x);
            }
}

static void every_expert_comes_through_a_pool(void **state)
{
    struct fixture *f = *state;

    for (f->variant = TINY_VQ3R; f->variant <= TINY_VQ4P; f->variant++)
        for (unsigned direct = 0; direct < 2; direct++)
            for (unsigned verify = 0; verify < 2; verify++) {
                struct pool_stats stats;

                tiny_write(f->dir, f->variant);
                open_container(f, direct);
                open_pool(f, verify);
                pin_everything(f);
                f->s->ops->stats(f->s, &stats);
                assert_int_equal(stats.misses, 16);
                assert_int_equal(stats.bytes, 16 * TINY_RECORD_BYTES);
                shut(f);
            }
}

static void every_expert_comes_from_memory(void **state)
{
    struct fixture *f = *state;
    struct pool_stats stats;
    struct err e;

    for (f->variant = TINY_VQ3R; f->variant <= TINY_VQ4P; f->variant++)
        for (unsigned i = 0; i < 2; i++) {
            tiny_write(f->dir, f->variant);
            open_container(f, false);
            must(source_mem_open(&f->s, f->c, i ? &f->mem : NULL, true, &e), &e);
            assert_int_equal(f->mem.used[MEM_POOL], i ? 8 * TINY_RECORD_BYTES : 0);
            f->s->ops->hint(f->s, 1, (const uint16_t[]){0, 3}, 2, HINT_SURE);
            pin_everything(f);
            f->s->ops->stats(f->s, &stats);
            assert_int_equal(stats.hits_resident, 16);
            assert_int_equal(f->s->ops->trim(f->s, 1 << 30), 0);
            shut(f);
        }
}

static void hinted_experts_are_there_when_they_are_pinned(void **state)
{
    struct fixture *f = *state;
    uint16_t ids[] = {2, 0};
    unsigned which, seen = 0;
    struct pool_stats stats;
    struct expert x;
    struct err e;

    open_container(f, false);
    open_pool(f, true);
    f->s->ops->hint(f->s, 2, ids, 2, HINT_SURE);
    for (unsigned n = 2; n; n--) {
        must(f->s->ops->pin_any(f->s, 2, ids, n, &which, &x, &e), &e);
        assert_true(which < n);
        assert_expert(f, &x, 2, ids[which]);
        seen |= 1u << ids[which];
        f->s->ops->unpin(f->s, &x);
        ids[which] = ids[n - 1];
    }
    assert_int_equal(seen, 5);
    f->s->ops->hint(f->s, 1, (const uint16_t[]){3}, 1, HINT_GUESS);
    must(pin(f, 1, 3, &x, &e), &e);
    assert_expert(f, &x, 1, 3);
    f->s->ops->unpin(f->s, &x);
    f->s->ops->stats(f->s, &stats);
    assert_int_equal(stats.hits_guess, 1);
    assert_int_equal(stats.misses, 2);
    f->s->ops->hint(f->s, 1, NULL, 0, HINT_SURE);
    shut(f);
}

static void a_busy_pool_says_so_without_naming_an_expert(void **state)
{
    struct fixture *f = *state;
    struct expert x[FRAMES], y;
    struct err e;

    open_container(f, false);
    open_pool(f, true);
    for (unsigned i = 0; i < FRAMES; i++)
        must(pin(f, 1, (uint16_t)i, &x[i], &e), &e);
    assert_int_equal(pin(f, 1, 3, &y, &e), ERR_BUSY);
    assert_null(strstr(e.text, "expert"));
    for (unsigned i = 0; i < FRAMES; i++)
        f->s->ops->unpin(f->s, &x[i]);
    must(pin(f, 1, 3, &y, &e), &e);
    f->s->ops->unpin(f->s, &y);
    shut(f);
}

static void trimming_leaves_the_experts_of_one_token(void **state)
{
    struct fixture *f = *state;

    open_container(f, false);
    open_pool(f, true);
    pin_everything(f);
    assert_int_equal(f->s->ops->trim(f->s, 1 << 30), (FRAMES - 2) * TINY_RECORD_BYTES);
    assert_int_equal(pool_frames(f->pool), 2);
    pin_everything(f);
    shut(f);
}

/* Change one byte of a bank's file, in place. */
static void poke(const struct fixture *f, const char *bank, unsigned expert, unsigned at,
                 uint8_t with)
{
    uint8_t *file;
    size_t n;

    file = tiny_file_read(f->dir, bank, &n);
    file[expert * TINY_RECORD_BYTES + at] ^= with;
    tiny_file_write(f->dir, bank, file, n);
    free(file);
}

static void bad_bytes_are_refused_and_read_again_later(void **state)
{
    static const struct {
        unsigned at;
        uint8_t with;
        int code;
        const char *text;
    } cases[] = {
        {REC_MAGIC, 1, ERR_FORMAT, "layer 2 expert 3: not an expert record (magic 50584556)"},
        {REC_EXPERT, 2, ERR_FORMAT, "layer 2 expert 3: record says layer 2 expert 1"},
        {REC_LOWRANK, 1, ERR_UNSUPPORTED, "layer 2 expert 3: low-rank"},
        {18289, 0x2c ^ 0x7c, ERR_CORRUPT, "layer 2 expert 3: gate scale of row 0"},
        {9999, 1, ERR_CORRUPT, "layer 2 expert 3: checksum "},
    };
    struct fixture *f = *state;
    struct pool_stats stats;
    struct expert x;
    struct err e;

    for (unsigned i = 0; i < 5; i++) {
        poke(f, "experts-L2.bin", 3, cases[i].at, cases[i].with);
        open_container(f, false);
        open_pool(f, true);
        for (unsigned k = 0; k < 2; k++) {
            assert_int_equal(pin(f, 2, 3, &x, &e), cases[i].code);
            if (strncmp(e.text, cases[i].text, strlen(cases[i].text)) != 0)
                fail_msg("\"%s\" is not \"%s...\"", e.text, cases[i].text);
        }
        f->s->ops->stats(f->s, &stats);
        assert_int_equal(stats.dropped, 4); /* once more each time, in case it was the way here */
        must(pin(f, 2, 2, &x, &e), &e);     /* nobody else suffers */
        f->s->ops->unpin(f->s, &x);
        poke(f, "experts-L2.bin", 3, cases[i].at, cases[i].with);
        must(pin(f, 2, 3, &x, &e), &e); /* cured on disk, and read again */
        assert_expert(f, &x, 2, 3);
        f->s->ops->unpin(f->s, &x);
        shut(f);
    }
}

static void all_in_memory_refuses_bad_bytes_at_open(void **state)
{
    struct fixture *f = *state;
    struct expert_source *s = NULL;
    struct err e;

    poke(f, "experts-L1.bin", 1, 777, 1);
    open_container(f, false);
    assert_int_equal(source_mem_open(&s, f->c, &f->mem, true, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "layer 1 expert 1: checksum"));
    must(source_mem_open(&s, f->c, &f->mem, false, &e), &e); /* a flipped index is an index */
    s->ops->close(s);
    poke(f, "experts-L1.bin", 2, REC_FMT, 1 | 8);
    assert_int_equal(source_mem_open(&s, f->c, &f->mem, false, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "layer 1 expert 2: record has format 13"));
    assert_int_equal(f->mem.used_total, 0);
    shut(f);
}

static void without_verification_only_the_structure_is_checked(void **state)
{
    struct fixture *f = *state;
    struct expert x;
    struct err e;

    poke(f, "experts-L2.bin", 3, 9999, 1);
    poke(f, "experts-L2.bin", 0, REC_MAGIC, 1);
    open_container(f, false);
    open_pool(f, false);
    must(pin(f, 2, 3, &x, &e), &e);
    f->s->ops->unpin(f->s, &x);
    assert_int_equal(pin(f, 2, 0, &x, &e), ERR_FORMAT);
    shut(f);
}

/* Entries of 16 in byte indices: what is beyond must not reach a kernel, verified or not. */
static void an_index_beyond_the_codebook_never_gets_through(void **state)
{
    struct fixture *f = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct record_layout l;
    uint8_t *bank;
    struct expert x;
    struct err e;

    must(record_layout_init(&l, TINY_HIDDEN, TINY_INTER, 3, 16, 8, &e), &e);
    assert_int_equal(l.bytes, TINY_RECORD_BYTES);
    bank = calloc(TINY_EXPERTS, l.bytes);
    for (unsigned id = 0; id < TINY_EXPERTS; id++) {
        bank[id * l.bytes + 1000] = id == 1 ? 16 : 15;
        record_seal(&l, bank + id * l.bytes, 1, id, 0);
    }
    tiny_file_write(f->dir, "experts-L1.bin", bank, TINY_BANK_BYTES);
    tiny_set(root, "expert_quant.entries", "16");
    tiny_manifest_write(f->dir, root);
    for (unsigned verify = 0; verify < 2; verify++) {
        open_container(f, false);
        open_pool(f, verify);
        assert_int_equal(pin(f, 1, 1, &x, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.text, "layer 1 expert 1: index 16 at byte 1000"));
        must(pin(f, 1, 2, &x, &e), &e);
        f->s->ops->unpin(f->s, &x);
        shut(f);
    }
    json_decref(root);
    free(bank);
}

/* A bank that shrinks while it is open. */
static void a_failed_read_names_expert_and_file(void **state)
{
    struct fixture *f = *state;
    char path[300];
    struct expert_source *s = NULL;
    struct expert x;
    struct err e;

    for (unsigned direct = 0; direct < 2; direct++) {
        tiny_write(f->dir, TINY_VQ3R);
        open_container(f, direct);
        open_pool(f, true);
        snprintf(path, sizeof(path), "%s/experts-L2.bin", f->dir);
        assert_int_equal(truncate(path, 2 * TINY_RECORD_BYTES + 4096), 0);
        for (unsigned k = 0; k < 2; k++) {
            assert_int_equal(pin(f, 2, 2, &x, &e), ERR_IO);
            assert_non_null(strstr(e.text, "layer 2 expert 2: experts-L2.bin: "));
        }
        must(pin(f, 2, 1, &x, &e), &e);
        f->s->ops->unpin(f->s, &x);
        assert_int_equal(source_mem_open(&s, f->c, &f->mem, true, &e), ERR_IO);
        assert_non_null(strstr(e.text, "layer 2 expert 2: experts-L2.bin: "));
        shut(f);
    }
}

static void a_model_without_experts_has_an_empty_source(void **state)
{
    struct fixture *f = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct err e;

    tiny_set(root, "config.num_experts", "0");
    tiny_set(root, "layers", "{}");
    tiny_manifest_write(f->dir, root);
    json_decref(root);
    open_container(f, false);
    must(source_mem_open(&f->s, f->c, &f->mem, true, &e), &e);
    shut(f);
}

static void a_budget_that_is_too_small_is_reported(void **state)
{
    struct fixture *f = *state;
    struct err e;

    open_container(f, false);
    mem_init(&f->mem, 8 * TINY_RECORD_BYTES - 1);
    assert_int_equal(source_mem_open(&f->s, f->c, &f->mem, true, &e), ERR_BUDGET);
    assert_null(f->s);
    shut(f);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(every_expert_comes_through_a_pool),
        T(every_expert_comes_from_memory),
        T(hinted_experts_are_there_when_they_are_pinned),
        T(a_busy_pool_says_so_without_naming_an_expert),
        T(trimming_leaves_the_experts_of_one_token),
        T(bad_bytes_are_refused_and_read_again_later),
        T(all_in_memory_refuses_bad_bytes_at_open),
        T(without_verification_only_the_structure_is_checked),
        T(an_index_beyond_the_codebook_never_gets_through),
        T(a_failed_read_names_expert_and_file),
        T(a_model_without_experts_has_an_empty_source),
        T(a_budget_that_is_too_small_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
