/* The hotlist: read at open, preloaded until somebody wants something, saved when asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "tests/model/heard.h"
#include "tests/support/tiny_container.h"

static waste_counters counters_of(const waste_ctx *ctx)
{
    waste_counters c = {.size = sizeof(c)};

    assert_int_equal(waste_get_counters(ctx, &c), WASTE_OK);
    return c;
}

static waste_engine engine_of(const waste_ctx *ctx)
{
    waste_engine e = {.size = sizeof(e)};

    assert_int_equal(waste_engine_info(ctx, &e), WASTE_OK);
    return e;
}

/* A host that has nothing to do yet. The pool is empty and has room for the whole list. */
static void wait_for_preload(const waste_ctx *ctx)
{
    while (counters_of(ctx).preloaded < engine_of(ctx).n_preload)
        usleep(1000);
}

static void same_tokens(const struct heard *a, const struct heard *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, a->n * sizeof(a->id[0]));
    assert_memory_equal(a->logprob, b->logprob, a->n * sizeof(a->logprob[0]));
}

/* With every engine, and with as little room for experts as a model runs in. */
static void what_was_learned_is_read_early_and_changes_no_token(void **state)
{
    const struct test_model *m = &models[0];
    char dir[256], path[300];
    waste_counters cold, warm;
    const char *io;

    (void)state;
    tiny_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/learned", dir);
    for (unsigned i = 0; (io = model_engine(i)); i++) {
        struct setup s = {.io = io, .usage = path};
        waste_ctx *ctx = model_open(m->dir, &s);
        struct heard first = generate(ctx, &m->gold, 4, 8, 0, 0), again;

        assert_string_equal(engine_of(ctx).usage, "");
        assert_int_equal(engine_of(ctx).n_preload, 0);
        cold = counters_of(ctx);
        assert_int_equal(cold.preloaded, 0);
        assert_int_equal(waste_save_usage(ctx), WASTE_OK);
        waste_close(ctx);

        ctx = model_open(m->dir, &s);
        assert_string_equal(engine_of(ctx).usage, path);
        assert_in_range(engine_of(ctx).n_preload, 1, engine_of(ctx).n_frames);
        wait_for_preload(ctx);
        again = generate(ctx, &m->gold, 4, 8, 0, 0);
        same_tokens(&first, &again);
        warm = counters_of(ctx);
        assert_int_equal(warm.preloaded, engine_of(ctx).n_preload);
        assert_in_range(warm.hits_preload, 1, warm.preloaded);
        assert_true(warm.hits_preload <= warm.hits_prefetch);
        assert_true(warm.misses < cold.misses);
        waste_close(ctx);
        unlink(path);
    }
    tiny_remove(dir);
}

/* Closing, and the first pass, while the hotlist is being read. */
static void preloading_ends_when_somebody_wants_something(void **state)
{
    const struct test_model *m = &models[0];
    char dir[256], path[300];
    struct heard first;
    const char *io;
    waste_ctx *ctx;

    (void)state;
    tiny_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/learned", dir);
    ctx = model_open(m->dir, &(struct setup){.usage = path});
    first = generate(ctx, &m->gold, 4, 8, 0, 0);
    assert_int_equal(waste_save_usage(ctx), WASTE_OK);
    waste_close(ctx);
    for (unsigned round = 0; round < 10; round++)
        for (unsigned i = 0; (io = model_engine(i)); i++) {
            struct setup s = {.io = io, .usage = path, .lookahead = 4};
            struct heard again;

            waste_close(model_open(m->dir, &s));
            ctx = model_open(m->dir, &s);
            usleep(round * 20);
            again = generate(ctx, &m->gold, 4, 8, 0, 0);
            same_tokens(&first, &again);
            waste_close(ctx);
        }
    unlink(path);
    tiny_remove(dir);
}

static size_t bytes_of_file(const char *path, uint8_t **bytes, const char *dir)
{
    size_t n;

    *bytes = tiny_file_read(dir, strrchr(path, '/') + 1, &n);
    return n;
}

static void a_save_adds_to_half_of_what_is_there_and_nothing_to_nothing(void **state)
{
    const struct test_model *m = &models[0];
    uint8_t *once, *twice, *idle;
    char dir[256], path[300];
    struct setup s = {.usage = path};
    waste_ctx *ctx;
    size_t n;

    (void)state;
    tiny_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/learned", dir);
    ctx = model_open(m->dir, &s);
    assert_int_equal(waste_save_usage(ctx), WASTE_OK);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing was used yet */
    generate(ctx, &m->gold, 4, 8, 0, 0);
    assert_int_equal(waste_save_usage(ctx), WASTE_OK);
    n = bytes_of_file(path, &once, dir);
    assert_int_equal(waste_save_usage(ctx), WASTE_OK); /* nothing was used since */
    assert_int_equal(bytes_of_file(path, &idle, dir), n);
    assert_memory_equal(idle, once, n);
    waste_state_reset(ctx);
    generate(ctx, &m->gold, 4, 8, 0, 0);
    assert_int_equal(waste_save_usage(ctx), WASTE_OK);
    assert_int_equal(bytes_of_file(path, &twice, dir), n);
    for (size_t at = 16; at < n; at += 16) { /* the same again: u / 2 + u, in the same order */
        uint32_t u = load_le32(once + at + 4);

        assert_memory_equal(twice + at, once + at, 4);
        assert_int_equal(load_le32(twice + at + 4), u / 2 + u);
    }
    assert_int_equal(load_le64(twice + 8), 2 * load_le64(once + 8));
    assert_true((n - 16) / 16 <= 2 * engine_of(ctx).n_frames);
    waste_close(ctx);
    free(once);
    free(idle);
    free(twice);
    unlink(path);
    tiny_remove(dir);
}

/* Nonsense of every length, a directory, a place that is not there. */
static void no_hotlist_keeps_a_model_from_running(void **state)
{
    static const uint8_t header[] = "WUSG\1\0\0\0\377\377\377\377\377\377\377\377";
    const struct test_model *m = &models[0];
    char dir[256], path[600];
    struct setup s = {.usage = path};
    uint8_t noise[200];
    struct heard first, again;
    waste_ctx *ctx;

    (void)state;
    tiny_dir(dir, sizeof(dir));
    ctx = model_open(m->dir, &(struct setup){0});
    first = generate(ctx, &m->gold, 4, 8, 0, 0);
    waste_close(ctx);
    for (unsigned i = 0; i < sizeof(noise); i++)
        noise[i] = i < 16 ? header[i] : (uint8_t)(i * i * 7 + (i >> 3));
    snprintf(path, sizeof(path), "%s/u", dir);
    for (unsigned n = 0; n <= sizeof(noise); n += 20) {
        tiny_file_write(dir, "u", noise, n);
        ctx = model_open(m->dir, &s);
        again = generate(ctx, &m->gold, 4, 8, 0, 0);
        same_tokens(&first, &again);
        waste_close(ctx);
    }
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s%s", dir, i == 0 ? "/" : i == 1 ? "/none/u" : "/x");
        memset(path + strlen(path), 'x', i == 2 ? 260 : 0);
        path[strlen(dir) + (i == 0 ? 1 : i == 1 ? 7 : 262)] = 0;
        ctx = model_open(m->dir, &s);
        again = generate(ctx, &m->gold, 4, 8, 0, 0);
        same_tokens(&first, &again);
        assert_int_equal(waste_save_usage(ctx), i == 1 ? WASTE_E_IO : WASTE_E_ARG);
        assert_non_null(strstr(waste_error_detail(ctx), i == 1 ? "none/" : dir));
        waste_close(ctx);
    }
    tiny_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_learned_is_read_early_and_changes_no_token),
        cmocka_unit_test(preloading_ends_when_somebody_wants_something),
        cmocka_unit_test(a_save_adds_to_half_of_what_is_there_and_nothing_to_nothing),
        cmocka_unit_test(no_hotlist_keeps_a_model_from_running),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
