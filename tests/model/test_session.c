/* test_session.c - a pass is committed whole or never happened; and what a session remembers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expertfs/format.h"
#include "model/context.h"
#include "tests/model/models.h"
#include "tests/support/tiny_container.h"

/* ---- the struct alone ---- */

static struct hparams shape(void)
{
    return (struct hparams){
        .n_layers = 3,
        .n_kda = 2,
        .n_mla = 1,
        .kda_heads = 2,
        .kda_dim = 5,
        .conv_taps = 4,
        .kv_lora = 6,
        .rope = 3,
    };
}

struct alone {
    struct hparams hp;
    struct session s;
    void *memory;
    size_t bytes;
};

static void alone_open(struct alone *a, unsigned ctx)
{
    a->hp = shape();
    a->bytes = session_bytes(&a->hp, ctx);
    assert_int_equal(posix_memalign(&a->memory, 64, a->bytes), 0); /* exactly: ASan looks on */
    memset(a->memory, 0, a->bytes);
    session_init(&a->s, &a->hp, ctx, a->memory);
}

static void a_new_session_is_empty(void **state)
{
    struct alone a;

    (void)state;
    alone_open(&a, 9);
    assert_int_equal(a.s.pos, 0);
    assert_int_equal(a.s.ctx, 9);
    assert_int_equal(a.s.choice, -1);
    assert_false(atomic_load(&a.s.cancel));
    assert_true(a.s.sampler.temperature == 0 && a.s.sampler.repeat_penalty == 1);
    for (unsigned l = 0; l < 2; l++)
        for (size_t i = 0; i < session_state_floats(&a.hp); i++)
            assert_true(session_state_from(&a.s, l)[i] == 0);
    free(a.memory);
}

/* Every part is written with a number of its own; none is found in another. */
static void the_parts_of_a_session_do_not_overlap(void **state)
{
    (void)state;
    for (unsigned ctx = 1; ctx < 70; ctx += 17) {
        struct alone a;
        size_t state_n, window_n, row;
        float *part[2 * 2 + 2 * 2 * 3 + 70];
        size_t size[2 * 2 + 2 * 2 * 3 + 70];
        unsigned n = 0;

        alone_open(&a, ctx);
        state_n = session_state_floats(&a.hp);
        window_n = session_window_floats(&a.hp);
        row = hparams_latent_stride(&a.hp);
        assert_int_equal(row, 16); /* 6 + 3, padded */
        assert_int_equal(window_n, 3 * 10);
        for (unsigned side = 0; side < 2; side++) {
            a.s.side = side;
            for (unsigned l = 0; l < 2; l++) {
                part[n] = session_state_to(&a.s, l);
                size[n++] = state_n;
                for (unsigned i = 0; i < 3; i++) {
                    part[n] = session_window(&a.s, l, i, false);
                    size[n++] = window_n;
                }
            }
        }
        for (unsigned p = 0; p < ctx; p++) {
            part[n] = session_latent(&a.s, 0, p);
            size[n++] = row;
        }
        for (unsigned i = 0; i < n; i++)
            for (size_t j = 0; j < size[i]; j++)
                part[i][j] = (float)i + 1;
        for (unsigned p = 0; p < ctx; p++) {
            a.s.ids[p] = -1 - (int)p;
            a.s.made[p] = 9;
        }
        for (unsigned i = 0; i < n; i++)
            for (size_t j = 0; j < size[i]; j++)
                assert_true(part[i][j] == (float)i + 1);
        for (unsigned p = 0; p < ctx; p++)
            assert_int_equal(a.s.ids[p], -1 - (int)p);
        assert_int_equal((uintptr_t)a.s.latent % 64, 0);
        assert_int_equal((uintptr_t)a.s.state[1] % 64, 0);
        free(a.memory);
    }
}

static void what_is_not_committed_never_happened(void **state)
{
    struct alone a;
    const float *from;

    (void)state;
    alone_open(&a, 9);
    from = session_state_from(&a.s, 1);
    session_state_to(&a.s, 1)[3] = 5; /* a pass that fails later */
    session_window(&a.s, 1, 2, false)[4] = 6;
    session_latent(&a.s, 0, 0)[1] = 7;
    assert_ptr_equal(session_state_from(&a.s, 1), from);
    assert_true(from[3] == 0);
    assert_true(session_window(&a.s, 1, 2, true)[4] == 0);
    assert_int_equal(a.s.pos, 0);
    free(a.memory);
}

static void committing_swaps_the_sides_and_appends_the_ids(void **state)
{
    static const int32_t ids[] = {4, 8, 15, 16, 23, 42};
    struct alone a;

    (void)state;
    alone_open(&a, 6);
    for (unsigned n = 1, at = 0; n <= 3; at += n++) {
        float *to = session_state_to(&a.s, 1), *win = session_window(&a.s, 0, 1, false);

        to[3] = (float)n;
        win[2] = (float)n;
        session_commit(&a.s, ids + at, n);
        assert_int_equal(a.s.pos, at + n);
        assert_ptr_equal(session_state_from(&a.s, 1), to);
        assert_ptr_equal(session_window(&a.s, 0, 1, true), win);
        assert_ptr_not_equal(session_state_to(&a.s, 1), to);
        assert_memory_equal(a.s.ids, ids, (at + n) * sizeof(*ids));
    }
    free(a.memory);
}

static void an_id_is_made_where_it_is_the_one_that_was_chosen(void **state)
{
    static const int32_t first[] = {7, 7}, again[] = {7, 7}, other[] = {8}, chosen[] = {9};
    struct alone a;

    (void)state;
    alone_open(&a, 9);
    session_commit(&a.s, first, 2); /* nothing was chosen before */
    assert_memory_equal(a.s.made, ((uint8_t[]){0, 0}), 2);
    a.s.choice = 7;
    session_commit(&a.s, again, 2); /* the first of them, and not the host's equal one after it */
    assert_memory_equal(a.s.made, ((uint8_t[]){0, 0, 1, 0}), 4);
    assert_int_equal(a.s.choice, -1); /* fed: nothing is open */
    a.s.choice = 9;
    session_commit(&a.s, other, 1); /* the host wanted another one */
    session_commit(&a.s, chosen, 1);
    assert_memory_equal(a.s.made, ((uint8_t[]){0, 0, 1, 0, 0, 0}), 6);
    free(a.memory);
}

static void resetting_empties_and_keeps_the_settings(void **state)
{
    static const int32_t ids[] = {1, 2, 3};
    struct alone a;

    (void)state;
    for (unsigned side = 0; side < 2; side++) {
        alone_open(&a, 9);
        a.s.sampler.seed = 99;
        a.s.open = true;
        for (unsigned n = 0; n <= side; n++) { /* either side is the committed one */
            for (unsigned l = 0; l < 2; l++)
                for (size_t i = 0; i < session_state_floats(&a.hp); i++)
                    session_state_to(&a.s, l)[i] = 3;
            for (unsigned i = 0; i < 6; i++)
                session_window(&a.s, i / 3, i % 3, false)[29] = 4;
            session_commit(&a.s, ids, 3);
        }
        a.s.choice = 5;
        atomic_store(&a.s.cancel, true);
        session_reset(&a.s);
        assert_int_equal(a.s.pos, 0);
        assert_int_equal(a.s.choice, -1);
        assert_true(atomic_load(&a.s.cancel)); /* until a call has reported it */
        assert_int_equal(a.s.sampler.seed, 99);
        assert_true(a.s.open);
        for (unsigned l = 0; l < 2; l++)
            for (size_t i = 0; i < session_state_floats(&a.hp); i++)
                assert_true(session_state_from(&a.s, l)[i] == 0);
        for (unsigned i = 0; i < 6; i++)
            for (size_t j = 0; j < session_window_floats(&a.hp); j++)
                assert_true(session_window(&a.s, i / 3, i % 3, true)[j] == 0);
        free(a.memory);
    }
}

/* ---- in a model ---- */

static void fill_nan(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = NAN;
}

/* Whatever a pass that failed may have left behind: the other side, the latent rows ahead. */
static void poison(struct session *s)
{
    const struct hparams *hp = s->hp;

    if (hp->n_kda) {
        fill_nan(session_state_to(s, 0), hp->n_kda * session_state_floats(hp));
        fill_nan(session_window(s, 0, 0, false), 3 * hp->n_kda * session_window_floats(hp));
    }
    for (unsigned l = 0; l < hp->n_mla; l++)
        for (unsigned p = s->pos; p < s->ctx; p++)
            fill_nan(session_latent(s, l, p), hp->kv_lora + hp->rope);
}

static float *feed_all(waste_ctx *ctx, const struct golden *g, unsigned cut, int spoil)
{
    const float *logits = NULL;
    size_t bytes = g->vocab * sizeof(float);
    float *out = malloc(bytes);

    for (unsigned at = 0; at < g->n_tokens; at += cut) {
        if (spoil)
            poison(&ctx->session[0].s);
        logits = model_feed(ctx, g->ids + at, cut < g->n_tokens - at ? cut : g->n_tokens - at, cut);
    }
    memcpy(out, logits, bytes);
    return out;
}

static void nothing_but_the_committed_side_is_ever_read(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++)
        for (unsigned cut = 1; cut <= 7; cut += 3) {
            const struct golden *g = &models[i].gold;
            struct setup s = {0};
            waste_ctx *ctx = model_open(models[i].dir, &s);
            float *want = feed_all(ctx, g, cut, 0), *got;

            waste_state_reset(ctx);
            got = feed_all(ctx, g, cut, 1);
            assert_memory_equal(got, want, g->vocab * sizeof(float));
            free(got);
            free(want);
            waste_close(ctx);
        }
}

static void a_reset_session_is_as_a_new_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        struct setup s = {0};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        float *want = feed_all(ctx, g, 64, 0);

        for (unsigned n = 1; n <= 2; n++) { /* either side committed */
            float *got;

            for (unsigned k = 0; k < n; k++)
                model_feed(ctx, g->ids + k, 1, 1);
            waste_state_reset(ctx);
            poison(&ctx->session[0].s);
            assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
            got = feed_all(ctx, g, 5, 0);
            assert_memory_equal(got, want, g->vocab * sizeof(float));
            free(got);
        }
        free(want);
        waste_close(ctx);
    }
}

/* Flip one payload byte of every record of the mini container: the next pass that reads one fails,
 * nothing is committed, and once the bytes are back the text goes on as if nothing had been. */
static void flip_records(const char *dir)
{
    static const char *const file[] = {"experts-L1.bin", "experts-L2.bin"};

    for (unsigned f = 0; f < 2; f++) {
        size_t n;
        uint8_t *bank = tiny_file_read(dir, file[f], &n);

        for (unsigned x = 0; x < TINY_EXPERTS; x++)
            bank[x * TINY_RECORD_BYTES + 100] ^= 1;
        tiny_file_write(dir, file[f], bank, n);
        free(bank);
    }
}

static void a_failed_pass_never_happened(void **state)
{
    const struct golden *g = &models[4].gold;
    struct setup s = {.buffered = 1};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    float *want = feed_all(ctx, g, 4, 0), *got = malloc(g->vocab * sizeof(float));

    (void)state;
    waste_close(ctx);
    for (unsigned at = 0; at < g->n_tokens; at++) {
        waste_item it = {.size = sizeof(it), .ids = g->ids + at, .n_ids = g->n_tokens - at};

        ctx = model_open(models[4].dir, &s);
        it.session = waste_session_default(ctx);
        it.want = WASTE_WANT_LOGITS;
        if (at)
            model_feed(ctx, g->ids, at, at);
        pool_purge(ctx->pool);
        flip_records(models[4].dir);
        assert_int_equal(waste_step(ctx, &it, 1), WASTE_E_CORRUPT);
        flip_records(models[4].dir);
        pool_purge(ctx->pool); /* of bad records that were read ahead */
        assert_int_equal(it.status, WASTE_E_CORRUPT);
        assert_int_equal(it.n_done, 0);
        assert_null(it.logits);
        assert_int_equal(waste_session_pos(it.session), at);
        assert_non_null(strstr(waste_error_detail(ctx), "checksum"));
        memcpy(got, model_feed(ctx, g->ids + at, g->n_tokens - at, 4), g->vocab * sizeof(float));
        assert_memory_equal(got, want, g->vocab * sizeof(float));
        waste_close(ctx);
    }
    free(got);
    free(want);
}

/* ---- cancelling ---- */

struct canceller {
    waste_ctx *ctx;
    atomic_bool stop;
};

static void *cancel_often(void *arg)
{
    struct canceller *c = arg;
    uint32_t x = 1;

    while (!atomic_load(&c->stop)) {
        waste_progress p = {.size = sizeof(p)};

        waste_cancel(c->ctx);
        waste_progress_get(c->ctx, &p);
        x = x * 1664525 + 1013904223;
        for (unsigned i = 0; i < (x >> 20) + 200; i++)
            sched_yield();
    }
    return NULL;
}

static void a_cancelled_pass_never_happened(void **state)
{
    (void)state;
    for (unsigned i = 1; i <= 4; i += 3) { /* K3's form, and the smallest */
        const struct golden *g = &models[i].gold;
        struct setup s = {.threads = i == 4 ? 2 : 1};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        struct canceller c = {.ctx = ctx};
        float *want = feed_all(ctx, g, 64, 0);
        unsigned cancelled = 0, rounds = 0;
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, cancel_often, &c), 0);
        for (; rounds < 500 && (rounds < 3 || !cancelled); rounds++) {
            unsigned at = 0;

            waste_state_reset(ctx);
            while (at < g->n_tokens) {
                waste_item it = {.size = sizeof(it),
                                 .session = waste_session_default(ctx),
                                 .ids = g->ids + at,
                                 .n_ids = 1 + (at + rounds) % 5,
                                 .want = WASTE_WANT_LOGITS};
                waste_status st;

                if (it.n_ids > g->n_tokens - at)
                    it.n_ids = g->n_tokens - at;
                st = waste_step(ctx, &it, 1);
                if (st == WASTE_E_CANCELLED) {
                    cancelled++;
                    assert_int_equal(it.n_done, 0);
                    assert_null(it.logits);
                } else {
                    assert_int_equal(st, WASTE_OK);
                    at += (unsigned)it.n_done;
                }
                assert_int_equal(waste_session_pos(it.session), at);
                if (at == g->n_tokens)
                    assert_memory_equal(it.logits, want, g->vocab * sizeof(float));
            }
        }
        atomic_store(&c.stop, true);
        pthread_join(thread, NULL);
        assert_true(cancelled > 0);
        free(want);
        waste_close(ctx);
    }
}

static void a_cancel_before_the_call_stops_the_next_one_only(void **state)
{
    const struct golden *g = &models[4].gold;
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    waste_item it = {.size = sizeof(it), .ids = g->ids, .n_ids = 2};

    (void)state;
    it.session = waste_session_default(ctx);
    waste_cancel(ctx);
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_E_CANCELLED);
    assert_int_equal(it.status, WASTE_E_CANCELLED);
    assert_int_equal(waste_session_pos(it.session), 0);
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    assert_int_equal(waste_session_pos(it.session), 2);
    waste_close(ctx);
}

static void a_cancelled_session_leaves_its_company_alone(void **state)
{
    const struct golden *g = &models[4].gold;
    struct setup s = {.sessions = 2};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    waste_item it[2] = {{.size = sizeof(it[0]), .ids = g->ids, .n_ids = 2},
                        {.size = sizeof(it[0]), .ids = g->ids, .n_ids = 3}};
    waste_session *other;

    (void)state;
    assert_int_equal(waste_session_open(ctx, &other), WASTE_OK);
    it[0].session = waste_session_default(ctx);
    it[1].session = other;
    waste_session_cancel(other);
    assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
    assert_int_equal(it[0].status, WASTE_OK);
    assert_int_equal(it[1].status, WASTE_E_CANCELLED);
    assert_int_equal(waste_session_pos(it[0].session), 2);
    assert_int_equal(waste_session_pos(other), 0);
    it[0].ids = g->ids + 2;
    assert_int_equal(waste_step(ctx, it, 2), WASTE_OK); /* it was said once */
    assert_int_equal(waste_session_pos(other), 3);
    waste_close(ctx);
}

/* ---- log probabilities ---- */

static const float mark = 42;

/* Score the first n golden ids in one step; every place of out was `mark` before. */
static waste_status score(waste_ctx *ctx, const struct golden *g, unsigned n, const int32_t *next,
                          float *out)
{
    waste_item it = {.size = sizeof(it),
                     .session = waste_session_default(ctx),
                     .want = WASTE_WANT_ID_LOGPROBS,
                     .ids = g->ids,
                     .n_ids = n,
                     .next_ids = next,
                     .id_logprobs = out,
                     .n_next = n};

    for (unsigned i = 0; i < n; i++)
        out[i] = mark;
    return waste_step(ctx, &it, 1);
}

static void assert_untouched(waste_ctx *ctx, const float *out, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        assert_memory_equal(&out[i], &mark, sizeof(mark));
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
}

static void a_failed_pass_gives_no_logprobs(void **state)
{
    const struct golden *g = &models[4].gold;
    struct setup s = {.buffered = 1};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    float out[8], want[8];
    unsigned n = g->n_tokens - 1;

    (void)state;
    assert_in_range(n, 2, 8);
    flip_records(models[4].dir);
    assert_int_equal(score(ctx, g, n, g->ids + 1, out), WASTE_E_CORRUPT);
    flip_records(models[4].dir);
    pool_purge(ctx->pool);
    assert_untouched(ctx, out, n);
    waste_cancel(ctx);
    assert_int_equal(score(ctx, g, n, g->ids + 1, out), WASTE_E_CANCELLED);
    assert_untouched(ctx, out, n);
    waste_session_cancel(waste_session_default(ctx));
    assert_int_equal(score(ctx, g, n, g->ids + 1, out), WASTE_OK); /* said of the item */
    assert_untouched(ctx, out, n);
    assert_int_equal(score(ctx, g, n, g->ids + 1, out), WASTE_OK);
    waste_close(ctx);
    ctx = model_open(models[4].dir, &s);
    assert_int_equal(score(ctx, g, n, g->ids + 1, want), WASTE_OK);
    assert_memory_equal(out, want, n * sizeof(*want));
    waste_close(ctx);
}

/* A damaged weight behind the last layer shows in the logits alone. The first asked row is named.
 */
static void a_logit_that_is_no_number_ends_the_scoring(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++)
        for (unsigned b = 0; b < 3; b++) {
            const struct golden *g = &models[i].gold;
            struct setup s = {.threads = 2};
            waste_ctx *ctx = model_open(models[i].dir, &s);
            const float *norm = ctx->model.norm;
            unsigned n = g->n_tokens > 20 ? 20 : g->n_tokens - 1;
            float *spoilt = calloc(act_pad(ctx->model.hp.hidden), sizeof(*spoilt)), out[20];
            int32_t next[20];
            char says[64];

            memcpy(spoilt, norm, ctx->model.hp.hidden * sizeof(*spoilt));
            spoilt[3] = bad[b];
            for (unsigned t = 0; t < n; t++)
                next[t] = t < n - 2 ? -1 : 5;
            snprintf(says, sizeof(says), "position %u: logit 0 is not finite", n - 1);
            ctx->model.norm = spoilt;
            assert_int_equal(score(ctx, g, n, next, out), WASTE_E_CORRUPT);
            if (!strstr(waste_error_detail(ctx), says))
                fail_msg("%s", waste_error_detail(ctx));
            assert_untouched(ctx, out, n);
            ctx->model.norm = norm;
            assert_int_equal(score(ctx, g, n, next, out), WASTE_OK);
            free(spoilt);
            waste_close(ctx);
        }
}

struct late_cancel { /* at the n-th time that a pass looks up; 0: never */
    struct progress *progress;
    unsigned calls, at;
};

static void look_up(void *arg)
{
    struct late_cancel *c = arg;

    if (++c->calls == c->at)
        atomic_store(&c->progress->cancel, true);
}

/* The head of many rows takes long; it ends between two readings of it, too. */
static void scoring_can_be_cancelled_behind_the_last_layer(void **state)
{
    const struct golden *g = &models[0].gold;
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    struct late_cancel c = {.progress = &ctx->progress};
    unsigned n = 2 * HEAD_ROWS;
    struct span span = {.session = &ctx->session[0].s, .n = n};
    struct rows rows = {.n = n, .n_spans = 1, .span = &span, .token = g->ids, .score = g->ids + 1};
    struct run r = {.rows = &rows,
                    .model = &ctx->model,
                    .experts = ctx->experts,
                    .act = &ctx->act,
                    .team = ctx->team,
                    .progress = &ctx->progress,
                    .poll = look_up,
                    .poll_arg = &c};
    struct err e = {0};
    unsigned all;

    (void)state;
    assert_true(n < g->n_tokens);
    assert_int_equal(forward(&r, &e), 0);
    all = c.calls;
    for (unsigned back = 0; back < 2; back++) {
        c = (struct late_cancel){.progress = &ctx->progress, .at = all - back};
        assert_int_equal(forward(&r, &e), ERR_CANCELLED);
        assert_non_null(strstr(e.text, "behind the last layer"));
        assert_int_equal(c.calls, all - back);
        atomic_store(&ctx->progress.cancel, false);
    }
    waste_close(ctx);
}

/* ---- ids ---- */

/* What a session chose itself is known to be its own; the host's ids are not, be they equal. */
static void own_ids_and_the_hosts_are_told_apart(void **state)
{
    const struct golden *g = &models[4].gold;
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    waste_item it = {.size = sizeof(it), .ids = g->ids, .n_ids = 3, .want = WASTE_WANT_TOKEN};
    struct session *se = &ctx->session[0].s;
    int32_t id[2], ids[8];
    size_t n;

    (void)state;
    it.session = waste_session_default(ctx);
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    assert_in_range(it.token, 0, g->vocab - 1);
    assert_int_equal(se->choice, it.token);
    id[0] = id[1] = it.token;
    it.ids = id;
    it.n_ids = 2; /* the choice, and the host's same id */
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    assert_memory_equal(se->made, ((uint8_t[]){0, 0, 0, 1, 0}), 5);
    id[0] = (it.token + 1) % 64; /* not what was chosen */
    it.n_ids = 1;
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    assert_int_equal(se->made[5], 0);
    assert_int_equal(waste_session_ids(it.session, ids, 8, &n), WASTE_OK);
    assert_int_equal(n, 6);
    assert_memory_equal(ids, g->ids, 3 * sizeof(*ids));
    assert_int_equal(ids[4], id[1]);
    assert_int_equal(ids[5], id[0]);
    waste_close(ctx);
}

/* Feed ids in passes of `cut`; the id chosen at the end. */
static int32_t choose_after(waste_session *se, const int32_t *ids, size_t n, size_t cut)
{
    waste_item it = {.size = sizeof(it), .session = se};

    for (size_t at = 0; at < n; at += it.n_done) {
        it.ids = ids + at;
        it.n_ids = cut < n - at ? cut : n - at;
        it.want = at + it.n_ids == n ? WASTE_WANT_TOKEN : 0;
        assert_int_equal(waste_step(se->ctx, &it, 1), WASTE_OK);
    }
    return it.token;
}

/* A penalty meets the session's own ids in the last `repeat_window` positions, the fed ones
 * included: not older ones after a long turn of the host, and the last choice also when the host
 * feeds more behind it in the same pass. */
static void penalties_reach_back_over_so_many_positions(void **state)
{
    static const int32_t prompt[] = {3, 7, 11}, turn[] = {5, 5, 5, 5, 5, 5};
    static const struct {
        unsigned window, behind; /* ids of the host after the choice */
        int penalised;
    } c[] = {{1, 0, 1}, {1, 1, 0}, {2, 1, 1}, {2, 2, 0}, {4, 3, 1}, {4, 4, 0},
             {4, 6, 0}, {6, 5, 1}, {6, 6, 0}, {7, 6, 1}, {0, 0, 0}};
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    waste_session *se = waste_session_default(ctx);

    (void)state;
    for (unsigned i = 0; i < sizeof(c) / sizeof(*c); i++)
        for (size_t cut = 1; cut <= 7; cut++) {
            waste_bias favourite = {.id = 9, .value = 1e4f};
            waste_sampling p;
            int32_t ids[7] = {9}, got;

            waste_sampling_init(&p);
            p.presence_penalty = 1e6f;
            p.repeat_window = c[i].window;
            p.logit_bias = &favourite;
            p.n_logit_bias = 1;
            waste_session_reset(se);
            assert_int_equal(waste_session_sampling(se, &p), WASTE_OK);
            assert_int_equal(choose_after(se, prompt, 3, 3), 9);
            memcpy(ids + 1, turn, c[i].behind * sizeof(*ids));
            got = choose_after(se, ids, 1 + c[i].behind, cut);
            if ((got != 9) != c[i].penalised)
                fail_msg("window %u, %u ids behind, cut %zu: %s", c[i].window, c[i].behind, cut,
                         got == 9 ? "not penalised" : "penalised");
        }
    waste_close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_session_is_empty),
        cmocka_unit_test(the_parts_of_a_session_do_not_overlap),
        cmocka_unit_test(what_is_not_committed_never_happened),
        cmocka_unit_test(committing_swaps_the_sides_and_appends_the_ids),
        cmocka_unit_test(an_id_is_made_where_it_is_the_one_that_was_chosen),
        cmocka_unit_test(resetting_empties_and_keeps_the_settings),
        cmocka_unit_test(nothing_but_the_committed_side_is_ever_read),
        cmocka_unit_test(a_reset_session_is_as_a_new_one),
        cmocka_unit_test(a_failed_pass_never_happened),
        cmocka_unit_test(a_cancelled_pass_never_happened),
        cmocka_unit_test(a_cancel_before_the_call_stops_the_next_one_only),
        cmocka_unit_test(a_cancelled_session_leaves_its_company_alone),
        cmocka_unit_test(a_failed_pass_gives_no_logprobs),
        cmocka_unit_test(a_logit_that_is_no_number_ends_the_scoring),
        cmocka_unit_test(scoring_can_be_cancelled_behind_the_last_layer),
        cmocka_unit_test(own_ids_and_the_hosts_are_told_apart),
        cmocka_unit_test(penalties_reach_back_over_so_many_positions),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
