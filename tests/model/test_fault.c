/* test_fault.c - disks that fail while a model runs: one clear error, no text from bad bytes, every
 * session as it was, and the next call works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/context.h"
#include "storage/io_sim.h"
#include "tests/model/models.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/io_fault.h"
#include "tests/support/tiny_container.h"

/* Put a fault between the pool and its engine. */
static void insert_fault(waste_ctx *ctx, struct io_fault *f)
{
    struct pool_config cfg = {
        .frames = &ctx->frames, .policy = policy_named("nextuse"), .depth = ctx->depth, .seed = 1};
    struct err e;

    ctx->experts->ops->close(ctx->experts);
    pool_close(ctx->pool);
    ctx->experts = NULL;
    ctx->pool = NULL;
    io_fault_init(f, ctx->io);
    cfg.io = &f->io;
    assert_int_equal(pool_open(&ctx->pool, &cfg, &e), 0);
    assert_int_equal(source_pool_open(&ctx->experts, ctx->container, ctx->pool, true, &e), 0);
}

/* Feed n ids with the nth read going wrong; true: it met the fault. */
static bool one_fault(waste_ctx *ctx, struct io_fault *f, enum io_fault_kind kind, unsigned nth,
                      const int32_t *ids, unsigned n, const float *want)
{
    waste_item it = {.size = sizeof(it),
                     .session = waste_session_default(ctx),
                     .ids = ids,
                     .n_ids = n,
                     .want = WASTE_WANT_LOGITS};
    size_t before_n, after_n;
    char *before = model_memory(ctx, &before_n), *after;
    unsigned faults = f->n_faults;
    waste_status st;
    bool met;

    pool_purge(ctx->pool);
    f->kind = kind;
    f->again = kind == IO_FAULT_FLIP; /* a single one is read again and not noticed */
    f->bad = (struct extent){0};
    f->fail_nth = f->n_reads + nth;
    st = waste_step(ctx, &it, 1);
    f->again = false;
    met = f->n_faults > faults;
    if (!met || st == WASTE_OK) { /* not reached; or a guess that nobody needed, which is no loss */
        assert_int_equal(st, WASTE_OK);
        assert_memory_equal(it.logits, want, ctx->model.hp.vocab * sizeof(float));
    } else {
        assert_int_equal(st, kind == IO_FAULT_FLIP ? WASTE_E_CORRUPT : WASTE_E_IO);
        assert_int_equal(it.status, st);
        assert_int_equal(it.n_done, 0);
        assert_null(it.logits);
        if (!strstr(waste_error_detail(ctx), "layer ") ||
            !strstr(waste_error_detail(ctx), "expert "))
            fail_msg("which record? \"%s\"", waste_error_detail(ctx));
        after = model_memory(ctx, &after_n);
        assert_int_equal(before_n, after_n);
        assert_memory_equal(before, after, before_n);
        free(after);
        if (waste_step(ctx, &it, 1) != WASTE_OK) /* the disk is well again */
            fail_msg("again: %s", waste_error_detail(ctx));
        assert_memory_equal(it.logits, want, ctx->model.hp.vocab * sizeof(float));
    }
    free(before);
    return met;
}

static void any_failed_read_ends_the_pass_and_nothing_else(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++)
        for (unsigned kind = 0; kind <= IO_FAULT_FLIP; kind++)
            for (unsigned n = 1; n <= 3; n += 2) {
                const struct golden *g = &models[i].gold;
                struct setup s = {
                    .lookahead = 3, .threads = 2, .io = kind % 2 ? "threads" : "sync"};
                waste_ctx *ctx = model_open(models[i].dir, &s);
                struct io_fault f;
                float *want = malloc(g->vocab * sizeof(*want));

                memcpy(want, model_feed(ctx, g->ids, 1 + n, 1), g->vocab * sizeof(*want));
                insert_fault(ctx, &f);
                for (unsigned nth = 1;; nth++) {
                    waste_state_reset(ctx);
                    pool_purge(ctx->pool); /* a damaged guess that nobody needed so far */
                    model_feed(ctx, g->ids, 1, 1);
                    if (!one_fault(ctx, &f, kind, nth, g->ids + 1, n, want))
                        break;
                    assert_true(nth < 200);
                }
                free(want);
                waste_close(ctx);
            }
}

/* One bit that flips on the way, wherever it does, is read again and never seen. */
static void a_bit_that_flips_on_the_way_changes_nothing(void **state)
{
    const struct golden *g = &models[0].gold;
    waste_ctx *ctx = model_open(models[0].dir, &(struct setup){.lookahead = 3});
    size_t bytes = g->vocab * sizeof(float);
    float *want = malloc(bytes);
    struct io_fault f;
    unsigned nth = 1;

    (void)state;
    memcpy(want, model_feed(ctx, g->ids, 3, 1), bytes);
    insert_fault(ctx, &f);
    f.kind = IO_FAULT_FLIP;
    for (unsigned faults = 0;; faults++) {
        struct pool_stats s;

        waste_state_reset(ctx);
        pool_purge(ctx->pool);
        f.fail_nth = f.n_reads + nth++;
        assert_memory_equal(model_feed(ctx, g->ids, 3, 1), want, bytes);
        pool_get_stats(ctx->pool, &s);
        assert_true(s.dropped <= f.n_faults); /* less: guesses that nobody looked at */
        if (f.n_faults == faults) {
            assert_true(s.dropped > 5);
            break;
        }
    }
    free(want);
    waste_close(ctx);
}

/* Put simulated drives, which have the files' bytes, below the pool. */
static struct io *insert_drives(waste_ctx *ctx)
{
    struct io_sim_config sim = {.source = IO_SIM_FILES, .seed = 1};
    struct io_config cfg = {.depth = ctx->depth,
                            .arena = ctx->frames.base,
                            .arena_bytes = ctx->frames.frame_bytes * ctx->frames.n};
    struct pool_config pool = {.frames = &ctx->frames,
                               .policy = policy_named("nextuse"),
                               .depth = ctx->depth,
                               .retries = POOL_RETRIES,
                               .seed = 1};
    struct err e;

    ctx->experts->ops->close(ctx->experts);
    pool_close(ctx->pool);
    ctx->io->ops->close(ctx->io);
    ctx->experts = NULL;
    ctx->pool = NULL;
    ctx->io = NULL;
    cfg.files = container_files(ctx->container, &cfg.n_files);
    assert_int_equal(io_sim_add(&sim, "nvme7", &e), 0);
    assert_int_equal(io_sim_open(&ctx->io, &cfg, &sim, &e), 0);
    pool.io = ctx->io;
    assert_int_equal(pool_open(&ctx->pool, &pool, &e), 0);
    assert_int_equal(source_pool_open(&ctx->experts, ctx->container, ctx->pool, true, &e), 0);
    return ctx->io;
}

/* EIO for five seconds of the drive's time, then healthy. */
static void a_drive_that_was_away_and_is_back_leaves_no_trace(void **state)
{
    enum { DOWN_NS = 1000000000 };
    const uint64_t up_ns = 6 * (uint64_t)DOWN_NS;
    struct io_sim_faults away = {.down_drives = 1, .down_ns = {DOWN_NS, up_ns}};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        waste_ctx *ctx = model_open(models[i].dir, &(struct setup){.lookahead = 3});
        size_t bytes = g->vocab * sizeof(float);
        float *want = malloc(bytes);
        unsigned n_failed = 0;
        struct pool_stats s;
        struct io *drives;

        memcpy(want, model_feed(ctx, g->ids, 4, 1), bytes);
        drives = insert_drives(ctx);
        io_sim_set_faults(drives, &away);
        io_sim_advance(drives, DOWN_NS);
        waste_state_reset(ctx);
        while (io_sim_now(drives) < up_ns - DOWN_NS / 10) {
            assert_int_equal(waste_eval(ctx, g->ids, 4, NULL, NULL), WASTE_E_IO);
            assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
            assert_non_null(strstr(waste_error_detail(ctx), "expert "));
            assert_non_null(strstr(waste_error_detail(ctx), strerror(EIO)));
            io_sim_advance(drives, DOWN_NS / 10);
            n_failed++;
        }
        io_sim_advance(drives, DOWN_NS);
        assert_memory_equal(model_feed(ctx, g->ids, 4, 1), want, bytes);
        pool_get_stats(ctx->pool, &s);
        assert_true(n_failed > 40 && s.failed >= n_failed);
        assert_true(s.retries >= POOL_RETRIES * s.failed); /* more: of reads nobody waited for */
        free(want);
        waste_close(ctx);
    }
}

struct told {
    unsigned n;
    int32_t id[32];
};

static int on_token(const waste_token_info *info, const char *piece, void *user)
{
    struct told *t = user;

    (void)piece;
    t->id[t->n++] = info->token;
    return 0;
}

/* What a host has been given before a failure is a prefix of the true answer. */
static void no_text_is_made_of_bad_bytes(void **state)
{
    const struct golden *g = &models[0].gold;
    struct setup s = {.lookahead = 3};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    struct told want = {0};
    struct io_fault f;
    waste_gen_params p;
    unsigned failed = 0;

    (void)state;
    waste_gen_params_init(&p);
    p.max_tokens = 8;
    assert_int_equal(waste_generate(ctx, g->ids, 3, &p, on_token, &want), WASTE_OK);
    insert_fault(ctx, &f);
    for (unsigned nth = 1; nth < 60; nth++) {
        struct told told = {0};
        waste_status st;

        waste_state_reset(ctx);
        pool_purge(ctx->pool);
        f.kind = IO_FAULT_FLIP;
        f.again = true;
        f.bad = (struct extent){0};
        f.fail_nth = f.n_reads + nth;
        st = waste_generate(ctx, g->ids, 3, &p, on_token, &told);
        failed += st != WASTE_OK;
        assert_true(st == WASTE_OK ? told.n == want.n : st == WASTE_E_CORRUPT);
        assert_memory_equal(told.id, want.id, told.n * sizeof(*told.id));
    }
    assert_true(failed > 10);
    waste_close(ctx);
}

/* ---- files that change under an open model ---- */

static char dir[512], path[600];

static waste_ctx *open_copy(enum tiny variant, struct setup s)
{
    tiny_dir(dir, sizeof(dir));
    tiny_write(dir, variant);
    snprintf(path, sizeof(path), "%s/experts-L1.bin", dir);
    return model_open(dir, &s);
}

static void a_bank_truncated_under_us_is_an_error_that_names_it(void **state)
{
    static const int32_t ids[] = {3, 7, 11, 5};

    (void)state;
    for (unsigned i = 0; model_engine(i); i++)
        for (off_t left = 0; left < 3 * TINY_RECORD_BYTES; left += TINY_RECORD_BYTES - 4096 - 100) {
            waste_ctx *ctx = open_copy(TINY_VQ3R, (struct setup){.io = model_engine(i)});
            size_t n, m;
            char *before = model_memory(ctx, &n), *after;

            assert_int_equal(truncate(path, left), 0);
            assert_int_equal(waste_eval(ctx, ids, 4, NULL, NULL), WASTE_E_IO);
            if (!strstr(waste_error_detail(ctx), "experts-L1.bin"))
                fail_msg("which file? \"%s\"", waste_error_detail(ctx));
            after = model_memory(ctx, &m);
            assert_int_equal(n, m);
            assert_memory_equal(before, after, n);
            free(before);
            free(after);
            waste_close(ctx);
            tiny_remove(dir);
        }
}

static void a_bank_replaced_by_name_does_not_matter(void **state)
{
    static const int32_t ids[] = {3, 7, 11, 5};
    waste_ctx *ctx = open_copy(TINY_VQ3R, (struct setup){0});
    char other[640];
    const float *logits;
    int fd;

    (void)state;
    snprintf(other, sizeof(other), "%s/new", dir);
    fd = open(other, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, TINY_BANK_BYTES), 0);
    close(fd);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(waste_eval(ctx, ids, 4, &logits, NULL), WASTE_OK);
    assert_true(logits[3] > 1.5512f && logits[3] < 1.5514f);
    waste_close(ctx);
    tiny_remove(dir);
}

static void a_bank_overwritten_in_place_is_noticed(void **state)
{
    static const int32_t ids[] = {3, 7, 11, 5};

    (void)state;
    for (off_t at = 0; at < TINY_RECORD_BYTES - 2000; at += 777) {
        waste_ctx *ctx = open_copy(TINY_VQ4P, (struct setup){0});
        int fd = open(path, O_RDWR);
        uint8_t byte;

        assert_true(fd >= 0);
        for (unsigned e = 0; e < TINY_EXPERTS; e++) {
            off_t where = e * TINY_RECORD_BYTES + at;

            assert_int_equal(pread(fd, &byte, 1, where), 1);
            byte ^= 4;
            assert_int_equal(pwrite(fd, &byte, 1, where), 1);
        }
        close(fd);
        switch (waste_eval(ctx, ids, 4, NULL, NULL)) {
        case WASTE_E_CORRUPT: /* payload and scales */
            break;
        case WASTE_E_FORMAT: /* header */
            assert_true(at < 48);
            break;
        default:
            fail_msg("byte %ld: %s", (long)at, waste_error_detail(ctx));
        }
        assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
        waste_close(ctx);
        tiny_remove(dir);
    }
}

/* The embedding table is read row by row while running. */
static void a_trunk_truncated_under_us_names_the_row(void **state)
{
    static const int32_t ids[] = {3, 7, 11, 5};
    waste_ctx *ctx = open_copy(TINY_VQ3R, (struct setup){0});

    (void)state;
    snprintf(path, sizeof(path), "%s/trunk.bin", dir);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(waste_eval(ctx, ids, 4, NULL, NULL), WASTE_E_IO);
    assert_non_null(strstr(waste_error_detail(ctx), "trunk.bin"));
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
    waste_close(ctx);
    tiny_remove(dir);
}

/* It has no checksum: a change of its time or size ends the next pass, before its bytes are used.
 */
static void a_trunk_changed_under_us_ends_the_next_pass(void **state)
{
    static const int32_t ids[] = {3, 7, 11, 5};
    waste_ctx *ctx = open_copy(TINY_VQ3R, (struct setup){0});
    struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    int fd;

    (void)state;
    assert_int_equal(waste_eval(ctx, ids, 2, NULL, NULL), WASTE_OK);
    snprintf(path, sizeof(path), "%s/trunk.bin", dir);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "xyz", 3, 20000), 3);
    assert_int_equal(futimens(fd, later), 0); /* clocks tick coarsely */
    close(fd);
    assert_int_equal(waste_eval(ctx, ids + 2, 2, NULL, NULL), WASTE_E_IO);
    assert_non_null(strstr(waste_error_detail(ctx), "trunk.bin: changed"));
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 2);
    waste_close(ctx);
    tiny_remove(dir);
}

/* ---- signals, memory ---- */

static void on_alarm(int sig)
{
    (void)sig;
}

static void a_storm_of_signals_changes_nothing(void **state)
{
    struct sigaction act = {.sa_handler = on_alarm}, old; /* no SA_RESTART */
    struct itimerval storm = {{0, 500}, {0, 500}}, calm = {{0, 0}, {0, 0}};
    const struct golden *g = &models[0].gold;
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    float *want = malloc(g->vocab * sizeof(*want));

    (void)state;
    memcpy(want, model_feed(ctx, g->ids, g->n_tokens, 5), g->vocab * sizeof(*want));
    waste_close(ctx);
    sigaction(SIGALRM, &act, &old);
    for (unsigned i = 0; model_engine(i); i++)
        for (unsigned round = 0; round < 5; round++) {
            setitimer(ITIMER_REAL, &storm, NULL);
            ctx = model_open(models[0].dir,
                             &(struct setup){.io = model_engine(i), .threads = 2, .lookahead = 3});
            assert_memory_equal(model_feed(ctx, g->ids, g->n_tokens, 5), want,
                                g->vocab * sizeof(*want));
            waste_close(ctx);
            setitimer(ITIMER_REAL, &calm, NULL);
        }
    sigaction(SIGALRM, &old, NULL);
    free(want);
}

/* Every allocation that waste_open makes fails once: an error, no leak (ASan), no half-open model.
 */
static void any_failed_allocation_is_a_clean_refusal(void **state)
{

    (void)state;
    for (unsigned i = 0; model_engine(i); i++) {
        bool failed = true;

        for (unsigned nth = 1; failed; nth++) {
            waste_ctx *ctx = NULL;
            waste_opts opts;
            waste_cfg cfg;
            waste_status st;

            waste_cfg_init(&cfg);
            waste_opts_init(&opts);
            cfg.ctx_tokens = 32;
            cfg.n_threads = 2;
            cfg.ram_budget_bytes = 256 << 20;
            opts.io_engine = model_engine(i);
            alloc_fault_arm(nth);
            st = waste_open_ex(models[4].dir, &cfg, &opts, &ctx);
            failed = alloc_fault_disarm();
            if (st != WASTE_OK) {
                assert_true(failed);
                assert_null(ctx);
                assert_true(strlen(waste_error_detail(NULL)) > 0);
                continue;
            }
            /* no failure, or one that had another way out */
            assert_int_equal(waste_eval(ctx, models[4].gold.ids, 4, NULL, NULL), WASTE_OK);
            waste_close(ctx);
            assert_true(nth < 5000);
        }
    }
}

static void nothing_is_allocated_while_running(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {.lookahead = 4, .threads = 2};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        const struct golden *g = &models[i].gold;

        model_feed(ctx, g->ids, 1, 1); /* what a thread's first call may take */
        alloc_fault_arm(1);
        model_feed(ctx, g->ids + 1, g->n_tokens - 1, 6);
        if (alloc_fault_disarm())
            fail_msg("%s: a pass allocated memory", models[i].name);
        waste_close(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_failed_read_ends_the_pass_and_nothing_else),
        cmocka_unit_test(a_bit_that_flips_on_the_way_changes_nothing),
        cmocka_unit_test(a_drive_that_was_away_and_is_back_leaves_no_trace),
        cmocka_unit_test(no_text_is_made_of_bad_bytes),
        cmocka_unit_test(a_bank_truncated_under_us_is_an_error_that_names_it),
        cmocka_unit_test(a_bank_replaced_by_name_does_not_matter),
        cmocka_unit_test(a_bank_overwritten_in_place_is_noticed),
        cmocka_unit_test(a_trunk_truncated_under_us_names_the_row),
        cmocka_unit_test(a_trunk_changed_under_us_ends_the_next_pass),
        cmocka_unit_test(a_storm_of_signals_changes_nothing),
        cmocka_unit_test(any_failed_allocation_is_a_clean_refusal),
        cmocka_unit_test(nothing_is_allocated_while_running),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
