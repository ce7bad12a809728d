/* test_checkpoint.c - a session goes on from a saved state with the bits of one that never stopped;
 * a file that is not such a state is refused, and nothing changes. */
#include <fcntl.h>
#include <libdeflate.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "model/context.h"
#include "tests/model/models.h"
#include "tests/support/tiny_container.h"

static float *logits_copy(const float *logits, unsigned vocab)
{
    float *out = malloc(vocab * sizeof(*out));

    assert_non_null(out);
    memcpy(out, logits, vocab * sizeof(*out));
    return out;
}

static void same_logits(const float *a, const float *b, unsigned vocab, const char *name,
                        unsigned pos)
{
    if (memcmp(a, b, vocab * sizeof(*a)) != 0)
        fail_msg("%s: other logits after going on from position %u", name, pos);
}

static float *cold_run(const struct test_model *m)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(m->dir, &s);
    float *out = logits_copy(model_feed(ctx, m->gold.ids, m->gold.n_tokens, m->gold.n_tokens),
                             m->gold.vocab);

    waste_close(ctx);
    return out;
}

static void rewinding_to_any_position_gives_the_same_bits(void **state)
{
    struct setup s = {.checkpoints = 2, .sessions = 2};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        float *want = cold_run(&models[i]);
        waste_ctx *ctx = model_open(models[i].dir, &s);

        for (unsigned at = 0; at < g->n_tokens; at++) {
            waste_checkpoint *c;

            waste_state_reset(ctx);
            if (at)
                model_feed(ctx, g->ids, at, 1 + at % 3);
            assert_int_equal(waste_checkpoint_take(waste_session_default(ctx), &c), WASTE_OK);
            assert_int_equal(waste_checkpoint_pos(c), at);
            same_logits(model_feed(ctx, g->ids + at, g->n_tokens - at, 64), want, g->vocab,
                        models[i].name, at);
            assert_int_equal(waste_checkpoint_restore(c, waste_session_default(ctx)), WASTE_OK);
            assert_int_equal(waste_session_pos(waste_session_default(ctx)), at);
            same_logits(model_feed(ctx, g->ids + at, g->n_tokens - at, 1), want, g->vocab,
                        models[i].name, at);
            waste_checkpoint_close(c);
        }
        waste_close(ctx);
        free(want);
    }
}

static void a_fork_and_its_origin_go_their_own_ways(void **state)
{
    struct setup s = {.checkpoints = 1, .sessions = 2};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        unsigned half = g->n_tokens / 2;
        float *want = cold_run(&models[i]);
        waste_ctx *ctx = model_open(models[i].dir, &s);
        waste_item it[2] = {{.size = sizeof(*it)}, {.size = sizeof(*it)}};
        waste_session *fork;
        waste_checkpoint *c;
        int32_t other[2] = {(g->ids[half] + 1) % (int32_t)g->vocab, 1};

        assert_int_equal(waste_session_open(ctx, &fork), WASTE_OK);
        model_feed(ctx, g->ids, half, 64);
        assert_int_equal(waste_checkpoint_take(waste_session_default(ctx), &c), WASTE_OK);
        assert_int_equal(waste_checkpoint_restore(c, fork), WASTE_OK);
        it[0].session = fork;
        it[0].ids = other;
        it[0].n_ids = 2;
        it[1].session = waste_session_default(ctx);
        it[1].ids = g->ids + half;
        it[1].n_ids = g->n_tokens - half;
        it[1].want = WASTE_WANT_LOGITS;
        assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
        same_logits(it[1].logits, want, g->vocab, models[i].name, half);
        waste_close(ctx); /* with the checkpoint still open */
        free(want);
    }
}

static void what_does_not_fit_is_refused_with_both_sizes(void **state)
{
    struct setup s = {.checkpoints = 1}, none = {0};
    const struct golden *g = &models[0].gold;
    waste_ctx *ctx = model_open(models[0].dir, &s);
    waste_checkpoint *c[64];
    unsigned n = 0;

    (void)state;
    model_feed(ctx, g->ids, g->n_tokens, 64);
    while (n < 64 && waste_checkpoint_take(waste_session_default(ctx), &c[n]) == WASTE_OK)
        n++;
    assert_true(n >= 1 && n < 64);
    assert_non_null(strstr(waste_error_detail(ctx), "opts.checkpoints"));
    waste_checkpoint_close(c[--n]);
    assert_int_equal(waste_checkpoint_take(waste_session_default(ctx), &c[n]), WASTE_OK);
    waste_close(ctx);
    ctx = model_open(models[0].dir, &none);
    assert_int_equal(waste_checkpoint_take(waste_session_default(ctx), c), WASTE_E_LIMIT);
    assert_int_equal(waste_checkpoint_restore(NULL, waste_session_default(ctx)), WASTE_E_ARG);
    waste_close(ctx);
}

static void checkpoints_are_in_the_plan(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup with = {.checkpoints = 3}, without = {0};
        uint64_t more = model_floor(models[i].dir, &with) - model_floor(models[i].dir, &without);
        waste_plan p = {.size = sizeof(p)};
        waste_cfg cfg;
        waste_opts o;

        waste_cfg_init(&cfg);
        waste_opts_init(&o);
        cfg.ctx_tokens = 64;
        o.checkpoints = 3;
        assert_int_equal(waste_plan_ex(models[i].dir, &cfg, &o, &p), WASTE_OK);
        assert_int_equal(p.checkpoint_bytes, more);
        assert_in_range(more, 3 * (p.state_fixed_bytes + 64 * p.state_token_bytes),
                        3 * (p.state_fixed_bytes + 64 * p.state_token_bytes + 64) + 4096);
    }
}

static void only_states_without_recurrence_can_be_cut(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        struct setup s = {0};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        waste_session *d = waste_session_default(ctx);
        float *want = cold_run(&models[i]);
        unsigned at = g->n_tokens / 2;

        model_feed(ctx, g->ids, at, 64);
        model_feed(ctx, g->ids, 2, 64); /* something else */
        assert_int_equal(waste_session_truncate(d, at + 3), WASTE_E_ARG);
        if (ctx->model.hp.n_kda) {
            assert_int_equal(waste_session_truncate(d, at), WASTE_E_UNSUPPORTED);
            assert_int_equal(waste_session_pos(d), at + 2);
            assert_int_equal(waste_session_truncate(d, at + 2), WASTE_OK);
            assert_int_equal(waste_session_truncate(d, 0), WASTE_OK);
            at = 0;
        } else {
            assert_int_equal(waste_session_truncate(d, at), WASTE_OK);
        }
        assert_int_equal(waste_session_pos(d), at);
        same_logits(model_feed(ctx, g->ids + at, g->n_tokens - at, 64), want, g->vocab,
                    models[i].name, at);
        waste_close(ctx);
        free(want);
    }
}

/* ---- files ---- */

struct place {
    char dir[512], path[600];
};

static void place_make(struct place *p)
{
    tiny_dir(p->dir, sizeof(p->dir));
    snprintf(p->path, sizeof(p->path), "%s/a.wstate", p->dir);
}

static void a_saved_state_goes_on_in_another_process_s_settings(void **state)
{
    struct setup later = {.threads = 3, .rows = 7, .ctx = 40, .lookahead = 4, .io = "threads"};
    struct place p;

    (void)state;
    place_make(&p);
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        float *want = cold_run(&models[i]);
        struct setup s = {0};

        for (unsigned at = 0; at < g->n_tokens; at += 3) {
            waste_ctx *ctx = model_open(models[i].dir, &s);
            waste_state_info info = {.size = sizeof(info)};
            char note[6] = {0};
            struct stat st;
            size_t n;
            int32_t ids[64];

            if (at)
                model_feed(ctx, g->ids, at, 2);
            assert_int_equal(waste_session_save(waste_session_default(ctx), p.path, "a\0note", 6),
                             WASTE_OK);
            waste_close(ctx);
            assert_int_equal(stat(p.path, &st), 0);
            assert_int_equal(st.st_mode & 0777, 0600);
            assert_int_equal(waste_state_read(p.path, &info, note, sizeof(note)), WASTE_OK);
            assert_int_equal(info.pos, at);
            assert_int_equal(info.bytes, st.st_size);
            assert_memory_equal(note, "a\0note", 6);
            assert_string_equal(info.numeric, "f32");
            assert_int_equal(waste_state_read(p.path, &info, note, 5), WASTE_E_ARG);

            ctx = model_open(models[i].dir, &later);
            model_feed(ctx, g->ids, 3, 2); /* what is there before is gone */
            if (waste_state_load(ctx, p.path) != WASTE_OK)
                fail_msg("%s", waste_error_detail(ctx));
            assert_int_equal(waste_session_ids(waste_session_default(ctx), ids, 64, &n), WASTE_OK);
            assert_int_equal(n, at);
            assert_memory_equal(ids, g->ids, at * sizeof(*ids));
            same_logits(model_feed(ctx, g->ids + at, g->n_tokens - at, 5), want, g->vocab,
                        models[i].name, at);
            waste_close(ctx);
        }
        free(want);
    }
    tiny_remove(p.dir);
}

struct attack { /* a session with something in it, and a good file to spoil */
    waste_ctx *ctx;
    struct place p;
    uint8_t *good;
    size_t bytes;
    void *before;
    size_t n_before;
};

static void attack_begin(struct attack *a, unsigned model)
{
    static const int32_t ids[] = {3, 1, 4, 1, 5, 9, 2};
    struct setup s = {0};

    place_make(&a->p);
    a->ctx = model_open(models[model].dir, &s);
    model_feed(a->ctx, ids, 5, 64);
    assert_int_equal(waste_session_save(waste_session_default(a->ctx), a->p.path, "note", 4),
                     WASTE_OK);
    a->good = tiny_file_read(a->p.dir, "a.wstate", &a->bytes);
    waste_state_reset(a->ctx);
    model_feed(a->ctx, ids + 3, 4, 64);
    a->before = model_memory(a->ctx, &a->n_before);
}

static void attack_end(struct attack *a)
{
    waste_close(a->ctx);
    free(a->good);
    free(a->before);
    tiny_remove(a->p.dir);
}

/* Refused, with the file's name, and the session is as it was. */
static waste_status refused(struct attack *a, const void *bytes, size_t n)
{
    waste_status st;
    void *after;
    size_t n_after;

    tiny_file_write(a->p.dir, "a.wstate", bytes, n);
    st = waste_state_load(a->ctx, a->p.path);
    assert_int_not_equal(st, WASTE_OK);
    assert_non_null(strstr(waste_error_detail(a->ctx), "a.wstate"));
    after = model_memory(a->ctx, &n_after);
    assert_int_equal(n_after, a->n_before);
    assert_memory_equal(after, a->before, n_after);
    free(after);
    return st;
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    struct attack a;

    (void)state;
    for (unsigned m = 0; m < N_MODELS; m += 2) {
        attack_begin(&a, m);
        for (size_t n = 0; n < a.bytes; n += n < 64 || n + 64 > a.bytes ? 1 : a.bytes / 211)
            refused(&a, a.good, n);
        attack_end(&a);
    }
}

static void a_flipped_bit_anywhere_is_refused(void **state)
{
    struct attack a;

    (void)state;
    for (unsigned m = 0; m < N_MODELS; m += 2) {
        attack_begin(&a, m);
        for (size_t at = 0; at < a.bytes; at += at < 600 ? 1 : 1 + a.bytes / 307) {
            a.good[at] ^= (uint8_t)(1 << at % 8);
            refused(&a, a.good, a.bytes);
            a.good[at] ^= (uint8_t)(1 << at % 8);
        }
        attack_end(&a);
    }
}

static void reseal(uint8_t *file)
{
    store_le32(file + STATE_HEADER_BYTES - 4, libdeflate_crc32(0, file, STATE_HEADER_BYTES - 4));
}

/* Someone who can compute a checksum plants numbers: nothing is taken, read or written by them. */
static void planted_numbers_with_a_good_checksum_are_refused(void **state)
{
    static const uint32_t numbers[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff};
    struct attack a;

    (void)state;
    attack_begin(&a, 0);
    for (size_t at = 8; at < 268; at += 4) {
        uint32_t was = load_le32(a.good + at);
        bool any_will_do = (at >= 112 && at < 144) || /* the engine's name; when, keys, whose */
                           (at >= 184 && at < 244);

        for (unsigned i = 0; i < sizeof(numbers) / sizeof(*numbers) && !any_will_do; i++) {
            if (numbers[i] == was || (at == 180 && numbers[i] < 2)) /* an id that was chosen */
                continue;
            store_le32(a.good + at, numbers[i]);
            reseal(a.good);
            refused(&a, a.good, a.bytes);
        }
        store_le32(a.good + at, was);
    }
    reseal(a.good);
    tiny_file_write(a.p.dir, "a.wstate", a.good, a.bytes);
    assert_int_equal(waste_state_load(a.ctx, a.p.path), WASTE_OK); /* the test can do otherwise */
    attack_end(&a);
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    struct attack a;

    (void)state;
    attack_begin(&a, 0);
    store_le32(a.good + STATE_HEADER_BYTES + 4 * 4, models[0].gold.vocab);
    store_le32(a.good + 244,
               libdeflate_crc32(0, a.good + STATE_HEADER_BYTES, a.bytes - STATE_HEADER_BYTES - 4));
    reseal(a.good);
    assert_int_equal(refused(&a, a.good, a.bytes), WASTE_E_CORRUPT);
    assert_non_null(strstr(waste_error_detail(a.ctx), "at position 4 is outside the vocabulary"));
    attack_end(&a);
}

static void other_models_settings_and_things_are_refused_by_name(void **state)
{
    struct setup small = {.ctx = 4}, direct = {.numeric = "direct"};
    struct attack a;
    waste_ctx *ctx;

    (void)state;
    attack_begin(&a, 0);
    for (unsigned i = 1; i < N_MODELS; i++) {
        struct setup s = {0};

        ctx = model_open(models[i].dir, &s);
        assert_int_equal(waste_state_load(ctx, a.p.path), WASTE_E_FORMAT);
        assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
        waste_close(ctx);
    }
    ctx = model_open(models[0].dir, &direct);
    assert_int_equal(waste_state_load(ctx, a.p.path), WASTE_E_FORMAT);
    assert_non_null(strstr(waste_error_detail(ctx), "profile f32, this model was opened with dir"));
    waste_close(ctx);
    ctx = model_open(models[0].dir, &small);
    assert_int_equal(waste_state_load(ctx, a.p.path), WASTE_E_LIMIT);
    assert_non_null(strstr(waste_error_detail(ctx), "5 positions, this context has 4"));
    waste_close(ctx);
    assert_int_equal(waste_state_load(a.ctx, a.p.dir), WASTE_E_FORMAT);
    assert_int_equal(waste_state_load(a.ctx, "/dev/null/x"), WASTE_E_IO);
    assert_int_equal(waste_state_load(a.ctx, "/dev/zero"), WASTE_E_FORMAT);
    attack_end(&a);
}

/* Same shapes and names, one weight different: models that look alike. */
static void another_conversion_of_the_same_model_is_refused(void **state)
{
    struct setup s = {0};
    struct place p;
    char dir[512];
    uint8_t *trunk;
    size_t bytes;
    waste_ctx *ctx;

    (void)state;
    place_make(&p);
    tiny_dir(dir, sizeof(dir));
    tiny_write(dir, TINY_VQ3R);
    ctx = model_open(dir, &s);
    model_feed(ctx, (int32_t[]){1, 2, 3}, 3, 64);
    assert_int_equal(waste_state_save(ctx, p.path), WASTE_OK);
    assert_int_equal(waste_state_load(ctx, p.path), WASTE_OK);
    waste_close(ctx);
    trunk = tiny_file_read(dir, "trunk.bin", &bytes);
    trunk[100] ^= 1;
    tiny_file_write(dir, "trunk.bin", trunk, bytes);
    free(trunk);
    ctx = model_open(dir, &s);
    assert_int_equal(waste_state_load(ctx, p.path), WASTE_E_FORMAT);
    assert_non_null(strstr(waste_error_detail(ctx), "other weights"));
    waste_close(ctx);
    tiny_remove(dir);
    tiny_remove(p.dir);
}

static void another_kind_of_file_is_not_replaced(void **state)
{
    struct setup s = {0};
    struct place p;
    waste_ctx *ctx = model_open(models[0].dir, &s);
    uint8_t *there;
    size_t n;

    (void)state;
    place_make(&p);
    tiny_file_write(p.dir, "a.wstate", "my thesis", 9);
    assert_int_equal(waste_state_save(ctx, p.path), WASTE_E_ARG);
    there = tiny_file_read(p.dir, "a.wstate", &n);
    assert_int_equal(n, 9);
    free(there);
    assert_int_equal(waste_state_save(ctx, "/dev/null/x"), WASTE_E_IO);
    assert_int_equal(waste_state_save(ctx, p.dir), WASTE_E_ARG);
    assert_int_equal(waste_session_save(waste_session_default(ctx), NULL, NULL, 0), WASTE_E_ARG);
    assert_int_equal(waste_session_save(waste_session_default(ctx), "/tmp/x", NULL, 1),
                     WASTE_E_ARG);
    waste_close(ctx);
    tiny_remove(p.dir);
}

/* As on a full disk, with room for 0, 1, ... pages: an error, the old file is as it was, and
 * nothing is left beside it. */
static void a_file_that_does_not_fit_leaves_the_old_one(void **state)
{
    struct setup s = {0};
    struct place p;
    waste_ctx *ctx = model_open(models[0].dir, &s);
    struct rlimit was, limit;
    uint8_t *old, *now;
    size_t n_old, n_now, refused = 0;
    char tmp[700];

    (void)state;
    place_make(&p);
    snprintf(tmp, sizeof(tmp), "%s.tmp", p.path);
    model_feed(ctx, (int32_t[]){1, 2, 3}, 3, 64);
    assert_int_equal(waste_state_save(ctx, p.path), WASTE_OK);
    old = tiny_file_read(p.dir, "a.wstate", &n_old);
    model_feed(ctx, (int32_t[]){4, 5, 6, 7}, 4, 64);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    for (rlim_t room = 0; room < n_old + 16384; room += 4096) {
        waste_status st;

        limit = (struct rlimit){room, was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        st = waste_state_save(ctx, p.path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
        if (st == WASTE_OK)
            break;
        refused++;
        assert_int_equal(st, WASTE_E_IO);
        assert_non_null(strstr(waste_error_detail(ctx), "a.wstate"));
        assert_int_not_equal(access(tmp, F_OK), 0);
        now = tiny_file_read(p.dir, "a.wstate", &n_now);
        assert_int_equal(n_now, n_old);
        assert_memory_equal(now, old, n_old);
        free(now);
    }
    assert_true(refused >= n_old / 4096);
    assert_int_equal(waste_state_load(ctx, p.path), WASTE_OK);
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 7);
    signal(SIGXFSZ, SIG_DFL);
    free(old);
    waste_close(ctx);
    tiny_remove(p.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewinding_to_any_position_gives_the_same_bits),
        cmocka_unit_test(a_fork_and_its_origin_go_their_own_ways),
        cmocka_unit_test(what_does_not_fit_is_refused_with_both_sizes),
        cmocka_unit_test(checkpoints_are_in_the_plan),
        cmocka_unit_test(only_states_without_recurrence_can_be_cut),
        cmocka_unit_test(a_saved_state_goes_on_in_another_process_s_settings),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_flipped_bit_anywhere_is_refused),
        cmocka_unit_test(planted_numbers_with_a_good_checksum_are_refused),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(other_models_settings_and_things_are_refused_by_name),
        cmocka_unit_test(another_conversion_of_the_same_model_is_refused),
        cmocka_unit_test(another_kind_of_file_is_not_replaced),
        cmocka_unit_test(a_file_that_does_not_fit_leaves_the_old_one),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
