/* test_api.c - waste.h as a host sees it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "model/context.h"
#include "tests/model/models.h"
#include "tests/support/tiny_container.h"

enum { N_MOST = 64 };

struct heard { /* what on_token was told */
    unsigned n, stop_after;
    int32_t id[N_MOST];
    float logprob[N_MOST];
    char text[1024];
    waste_ctx *ctx;
    unsigned cancel_at;
};

static int on_token(const waste_token_info *info, const char *piece, void *user)
{
    struct heard *h = user;

    assert_int_equal(info->token_index, h->n);
    assert_true(info->ms_total >= 0 && info->ms_io >= 0 && info->ms_io <= info->ms_total + 1);
    h->id[h->n] = info->token;
    h->logprob[h->n++] = info->logprob;
    strncat(h->text, piece, sizeof(h->text) - strlen(h->text) - 1);
    if (h->cancel_at && h->n == h->cancel_at)
        waste_cancel(h->ctx);
    return h->stop_after && h->n == h->stop_after;
}

static struct heard generate(waste_ctx *ctx, const struct golden *g, unsigned n, unsigned max,
                             float temperature, uint64_t seed)
{
    struct heard h = {.ctx = ctx};
    waste_gen_params p;

    waste_gen_params_init(&p);
    p.max_tokens = max;
    p.temperature = temperature;
    p.seed = seed;
    if (waste_generate(ctx, g->ids, n, &p, on_token, &h) != WASTE_OK)
        fail_msg("generate: %s", waste_error_detail(ctx));
    return h;
}

static void greedy_text_is_what_eval_says(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {0};
        waste_ctx *a = model_open(models[i].dir, &s), *b = model_open(models[i].dir, &s);
        const struct golden *g = &models[i].gold;
        struct heard h = generate(a, g, 4, 12, 0, 0);
        const float *logits;
        size_t vocab;

        assert_true(h.n > 0);
        assert_int_equal(waste_eval(b, g->ids, 4, &logits, &vocab), WASTE_OK);
        assert_int_equal(vocab, g->vocab);
        for (unsigned t = 0; t < h.n; t++) {
            double sum = 0;

            /* nothing that was allowed had a larger logit; the logprob is the model's own */
            for (unsigned v = 0; v < vocab; v++)
                sum += exp((double)logits[v] - (double)logits[h.id[t]]);
            assert_true(fabs(-log(sum) - (double)h.logprob[t]) < 1e-5);
            assert_int_equal(waste_eval(b, &h.id[t], 1, &logits, NULL), WASTE_OK);
        }
        /* every delivered token is in the session */
        assert_int_equal(waste_session_pos(waste_session_default(a)), 4 + h.n);
        assert_int_equal(waste_session_pos(waste_session_default(b)), 4 + h.n);
        waste_close(a);
        waste_close(b);
    }
}

static void the_golden_continuation_is_the_published_one(void **state)
{
    static const int32_t ids[] = {3, 7, 11, 5};
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    const float *l;

    (void)state;
    assert_int_equal(waste_eval(ctx, ids, 4, &l, NULL), WASTE_OK);
    assert_true(fabsf(l[3] - 1.551289f) < 1e-5f && fabsf(l[58] - 1.542392f) < 1e-5f &&
                fabsf(l[53] - 1.489900f) < 1e-5f && fabsf(l[26] - 1.422632f) < 1e-5f &&
                fabsf(l[32] - 1.349557f) < 1e-5f);
    waste_close(ctx);
}

static void a_seed_repeats_itself_and_another_differs(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    struct heard a, b, c, longer;

    (void)state;
    a = generate(ctx, g, 4, 16, 1.5f, 7);
    waste_state_reset(ctx);
    b = generate(ctx, g, 4, 16, 1.5f, 7);
    waste_state_reset(ctx);
    c = generate(ctx, g, 4, 16, 1.5f, 8);
    waste_state_reset(ctx);
    longer = generate(ctx, g, 4, 24, 1.5f, 7); /* max_tokens changes nothing that came before */
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.id, b.id, a.n * sizeof(*a.id));
    assert_memory_equal(a.id, longer.id, a.n * sizeof(*a.id));
    assert_true(c.n != a.n || memcmp(a.id, c.id, a.n * sizeof(*a.id)));
    waste_close(ctx);
}

static void generation_ends_at_stop_ids_and_at_a_full_context(void **state)
{
    struct setup s = {.ctx = 12};
    waste_ctx *ctx = model_open(models[4].dir, &s);
    const struct golden *g = &models[4].gold;
    struct heard free_run = generate(ctx, g, 4, 64, 0, 0), h = {0};
    waste_gen_params p;

    (void)state;
    /* 12 positions, 4 of the prompt: 8 more are fed, and one chosen that has no place */
    assert_int_equal(free_run.n, 9);
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 12);
    assert_non_null(strstr(waste_error_detail(ctx), "context full at 12"));
    assert_int_equal(waste_eval(ctx, g->ids, 1, NULL, NULL), WASTE_E_ARG);
    waste_state_reset(ctx);
    waste_gen_params_init(&p);
    p.stop_tokens = &free_run.id[2];
    p.n_stop = 1;
    assert_int_equal(waste_generate(ctx, g->ids, 4, &p, on_token, &h), WASTE_OK);
    for (unsigned i = 0; i + 1 < h.n; i++)
        assert_int_not_equal(h.id[i], free_run.id[2]);
    assert_int_equal(h.id[h.n - 1], free_run.id[2]); /* delivered, then the end */
    waste_close(ctx);
}

static void a_callback_can_stop_and_cancel(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    struct heard h = {.stop_after = 3, .ctx = ctx};
    size_t pos;

    (void)state;
    assert_int_equal(waste_generate(ctx, g->ids, 4, NULL, on_token, &h), WASTE_E_CANCELLED);
    assert_int_equal(h.n, 3);
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 7);
    waste_state_reset(ctx);
    h = (struct heard){.cancel_at = 2, .ctx = ctx};
    assert_int_equal(waste_generate(ctx, g->ids, 4, NULL, on_token, &h), WASTE_E_CANCELLED);
    assert_int_equal(h.n, 2);
    pos = waste_session_pos(waste_session_default(ctx));
    assert_int_equal(pos, 5); /* the pass that was cancelled never happened */
    /* and the flag is spent: the next call runs */
    assert_int_equal(waste_eval(ctx, g->ids, 2, NULL, NULL), WASTE_OK);
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), pos + 2);
    waste_close(ctx);
}

static void bad_arguments_are_refused_before_anything_runs(void **state)
{
    struct setup s = {.sessions = 2};
    waste_ctx *ctx = model_open(models[0].dir, &s), *none = (waste_ctx *)(void *)&s;
    int32_t bad[2] = {1, 100000}, ok[2] = {1, 2};
    waste_session *a = waste_session_default(ctx), *b, *c;
    waste_item it[2] = {{.size = sizeof(it[0]), .session = a, .ids = ok, .n_ids = 2}};
    waste_gen_params p;
    waste_sampling sp;

    (void)state;
    assert_int_equal(waste_open(NULL, NULL, &none), WASTE_E_ARG);
    assert_null(none);
    assert_int_equal(waste_open("/nonexistent", NULL, &none), WASTE_E_IO);
    assert_non_null(strstr(waste_error_detail(NULL), "/nonexistent"));
    assert_int_equal(waste_eval(ctx, bad, 2, NULL, NULL), WASTE_E_ARG);
    assert_non_null(strstr(waste_error_detail(ctx), "id 100000"));
    assert_int_equal(waste_eval(ctx, NULL, 2, NULL, NULL), WASTE_E_ARG);
    assert_int_equal(waste_eval(ctx, ok, 0, NULL, NULL), WASTE_E_ARG);
    waste_gen_params_init(&p);
    p.grammar = "root ::= x";
    assert_int_equal(waste_generate(ctx, ok, 2, &p, NULL, NULL), WASTE_E_FORMAT);
    assert_non_null(strstr(waste_error_detail(ctx), "no rule called x"));
    p.grammar = NULL;
    p.top_p = 0;
    assert_int_equal(waste_generate(ctx, ok, 2, &p, NULL, NULL), WASTE_E_ARG);
    assert_non_null(strstr(waste_error_detail(ctx), "top_p"));
    waste_sampling_init(&sp);
    sp.min_p = 2;
    assert_int_equal(waste_session_sampling(a, &sp), WASTE_E_ARG);
    assert_int_equal(waste_session_open(ctx, &b), WASTE_OK);
    assert_int_equal(waste_session_open(ctx, &c), WASTE_E_BUSY);
    it[1] = it[0];
    assert_int_equal(waste_step(ctx, it, 2), WASTE_E_ARG); /* one session twice */
    assert_int_equal(it[1].status, WASTE_E_ARG);
    it[1].session = b;
    assert_int_equal(waste_step(ctx, it, 3), WASTE_E_ARG);
    it[0].size = 8;
    assert_int_equal(waste_step(ctx, it, 2), WASTE_E_ARG);
    it[0].size = sizeof(it[0]) + 4; /* the next item would lie askew */
    assert_int_equal(waste_step(ctx, it, 2), WASTE_E_ARG);
    it[0].size = sizeof(it[0]);
    it[0].want = 8;
    assert_int_equal(waste_step(ctx, it, 1), WASTE_E_ARG);
    it[0].want = 0;
    it[0].size = sizeof(it[0]);
    waste_session_close(b);
    assert_int_equal(waste_step(ctx, it, 2), WASTE_E_ARG); /* b is closed */
    assert_int_equal(waste_session_pos(a), 0);
    waste_close(ctx);
    waste_close(NULL);
}

/* Feed ids, then each choice; the ids of n choices and their log probabilities. */
static void choices(waste_session *s, waste_ctx *ctx, const int32_t *ids, size_t n_ids,
                    int32_t *out, float *logprob, unsigned n)
{
    waste_item it = {.size = sizeof(it), .session = s, .want = WASTE_WANT_TOKEN};
    int32_t fed;

    for (unsigned i = 0; i < n; i++) {
        it.ids = i ? &fed : ids;
        it.n_ids = i ? 1 : n_ids;
        if (i == 3) { /* a pass that did not happen */
            waste_session_cancel(s);
            assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
            assert_int_equal(it.status, WASTE_E_CANCELLED);
        }
        assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
        out[i] = fed = it.token;
        logprob[i] = it.logprob;
    }
}

static void a_limit_closes_the_reasoning(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    waste_session *a = waste_session_default(ctx);
    int32_t free_ids[6], ids[6], close[] = {5, 6, 7}, bad = 100000;
    float free_logprob[6], logprob[6];
    waste_sampling p;

    (void)state;
    choices(a, ctx, g->ids, 4, free_ids, free_logprob, 6);
    assert_int_equal(waste_session_reset(a), WASTE_OK);
    waste_sampling_init(&p);
    p.close_ids = close;
    p.n_close = 3;
    p.close_after = 2;
    assert_int_equal(waste_session_sampling(a, &p), WASTE_OK);
    for (unsigned round = 0; round < 2; round++) {
        choices(a, ctx, g->ids, 4, ids, logprob, 6);
        assert_memory_equal(ids, free_ids, 2 * sizeof(*ids));
        assert_memory_equal(ids + 2, close, sizeof(close));
        assert_true(ids[2] == free_ids[2] || logprob[2] < free_logprob[2]); /* the model's own */
        assert_int_equal(waste_session_reset(a), WASTE_OK);                 /* an answer begins */
    }
    p.close_ids = &bad;
    p.n_close = 1;
    assert_int_equal(waste_session_sampling(a, &p), WASTE_E_ARG);
    assert_non_null(strstr(waste_error_detail(ctx), "close_ids[0] = 100000"));
    p.n_close = 17;
    assert_int_equal(waste_session_sampling(a, &p), WASTE_E_ARG);
    waste_close(ctx);
}

static void a_cancelled_session_does_not_stop_its_company(void **state)
{
    struct setup s = {.sessions = 2};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    waste_session *a = waste_session_default(ctx), *b;
    waste_item it[2];

    (void)state;
    assert_int_equal(waste_session_open(ctx, &b), WASTE_OK);
    for (unsigned i = 0; i < 2; i++)
        it[i] = (waste_item){.size = sizeof(it[i]),
                             .session = i ? b : a,
                             .ids = g->ids,
                             .n_ids = 4,
                             .want = WASTE_WANT_TOKEN};
    waste_session_cancel(b);
    assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
    assert_int_equal(it[0].status, WASTE_OK);
    assert_true(it[0].token >= 0 && it[0].n_done == 4);
    assert_int_equal(it[1].status, WASTE_E_CANCELLED);
    assert_true(it[1].token == -1 && it[1].n_done == 0);
    assert_int_equal(waste_session_pos(b), 0);
    it[0].ids = &it[0].token;
    it[0].n_ids = 1;
    assert_int_equal(waste_step(ctx, it, 2), WASTE_OK); /* reported once, then it runs again */
    assert_int_equal(waste_session_pos(b), 4);
    waste_close(ctx);
}

/* ---- log probabilities of given ids ---- */

/* Feed ids in steps of at most `cut`, together with another session's if there is one; what the
 * golden's next ids cost. */
static void score(waste_ctx *ctx, waste_session *company, const struct golden *g, unsigned cut,
                  float *logprob)
{
    waste_item it[2] = {{.size = sizeof(it[0]),
                         .session = waste_session_default(ctx),
                         .want = WASTE_WANT_ID_LOGPROBS}};
    unsigned n = g->n_tokens - 1;

    it[1] = (waste_item){.size = sizeof(it[1]), .session = company, .want = WASTE_WANT_TOKEN};
    for (unsigned at = 0; at < n; at += (unsigned)it[0].n_done) {
        it[0].ids = g->ids + at;
        it[0].n_ids = cut < n - at ? cut : n - at;
        it[0].next_ids = g->ids + at + 1;
        it[0].id_logprobs = logprob + at;
        it[0].n_next = n - at;
        it[1].ids = g->ids + at % 3;
        it[1].n_ids = 2;
        assert_int_equal(waste_step(ctx, it, company ? 2 : 1), WASTE_OK);
        assert_null(it[0].logits);
        assert_int_equal(it[0].token, -1);
        assert_true(it[0].n_done > 0);
    }
}

static void logprobs_are_those_of_the_logits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {0};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        const struct golden *g = &models[i].gold;
        float got[256];

        score(ctx, NULL, g, 1, got);
        waste_state_reset(ctx);
        for (unsigned t = 0; t + 1 < g->n_tokens; t++) {
            const float *l = model_feed(ctx, g->ids + t, 1, 1);
            double sum = 0;

            for (unsigned v = 0; v < g->vocab; v++)
                sum += exp((double)l[v] - (double)l[g->ids[t + 1]]);
            assert_true(fabs(-log(sum) - (double)got[t]) < 1e-5);
        }
        waste_close(ctx);
    }
}

/* One id after the other, with one thread, says it; nothing but the ids may change a bit of it. */
static void logprobs_depend_on_the_ids_alone(void **state)
{
    static const struct {
        unsigned cut, threads, rows, company;
    } c[] = {{64, 1, 64, 0}, {3, 2, 64, 0},  {64, 3, 5, 0},
             {17, 2, 64, 1}, {64, 2, 64, 1}, {1, 3, 2, 1}};
    static const char *const numeric[] = {"f32", "direct", "i16", "i8"};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++)
        for (unsigned p = 0; p < (i < 2 ? 4 : 1); p++) {
            const struct golden *g = &models[i].gold;
            size_t bytes = (g->n_tokens - 1) * sizeof(float);
            struct setup s = {.numeric = numeric[p], .ctx = 128};
            waste_ctx *ctx = model_open(models[i].dir, &s);
            float want[256];

            score(ctx, NULL, g, 1, want);
            waste_close(ctx);
            for (unsigned k = 0; k < sizeof(c) / sizeof(*c); k++) {
                waste_session *company = NULL;
                float got[256] = {0};

                s.threads = c[k].threads;
                s.rows = c[k].rows;
                s.sessions = 1 + c[k].company;
                ctx = model_open(models[i].dir, &s);
                if (c[k].company)
                    assert_int_equal(waste_session_open(ctx, &company), WASTE_OK);
                score(ctx, company, g, c[k].cut, got);
                assert_memory_equal(got, want, bytes);
                waste_close(ctx);
            }
        }
}

/* In one pass with the logits of the last row and the choice from them: the same bits as apart. */
static void logprobs_and_the_rest_come_together(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    float apart[8], together[8] = {0}, *logits = malloc(g->vocab * sizeof(*logits));
    int32_t next[8];
    waste_item it = {.size = sizeof(it),
                     .session = waste_session_default(ctx),
                     .ids = g->ids,
                     .n_ids = 8,
                     .next_ids = next,
                     .n_next = 8};

    (void)state;
    memcpy(logits, model_feed(ctx, g->ids, 8, 8), g->vocab * sizeof(*logits));
    waste_state_reset(ctx);
    it.want = WASTE_WANT_TOKEN;
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    memcpy(next, g->ids + 1, 7 * sizeof(*next));
    next[7] = it.token;
    waste_state_reset(ctx);
    it.want = WASTE_WANT_ID_LOGPROBS;
    it.id_logprobs = apart;
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    waste_state_reset(ctx);
    it.want |= WASTE_WANT_TOKEN | WASTE_WANT_LOGITS;
    it.id_logprobs = together;
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    assert_memory_equal(together, apart, sizeof(apart));
    assert_int_equal(it.token, next[7]);
    assert_memory_equal(&it.logprob, &apart[7], sizeof(float)); /* one definition for both */
    assert_memory_equal(it.logits, logits, g->vocab * sizeof(*logits));
    free(logits);
    waste_close(ctx);
}

/* -1 asks nothing, and its place is the host's; so is everything behind what was fed. */
static void logprobs_not_asked_for_are_left_alone(void **state)
{
    struct setup s = {.rows = 5};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    const float mark = 42;
    float all[7], got[8] = {mark, mark, mark, mark, mark, mark, mark, mark};
    int32_t next[7];
    waste_item it = {.size = sizeof(it),
                     .session = waste_session_default(ctx),
                     .want = WASTE_WANT_ID_LOGPROBS,
                     .ids = g->ids,
                     .n_ids = 7,
                     .next_ids = g->ids + 1,
                     .id_logprobs = all,
                     .n_next = 7};

    (void)state;
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    assert_int_equal(it.n_done, 5); /* the other two wait */
    for (unsigned i = 0; i < 7; i++)
        next[i] = i % 2 ? g->ids[i + 1] : -1;
    waste_state_reset(ctx);
    it.next_ids = next;
    it.id_logprobs = got;
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
    for (unsigned i = 0; i < 8; i++)
        assert_memory_equal(&got[i], i % 2 && i < 5 ? &all[i] : &mark, sizeof(float));
    waste_close(ctx);
}

static void logprobs_that_make_no_sense_are_refused(void **state)
{
    struct setup s = {.sessions = 2};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const int32_t ids[3] = {1, 2, 3}, low[3] = {1, -2, 3}, high[3] = {1, 2, 1 << 20};
    const float mark = 42;
    float out[3] = {mark, mark, mark};
    const waste_item good = {.size = sizeof(good),
                             .session = waste_session_default(ctx),
                             .want = WASTE_WANT_ID_LOGPROBS,
                             .ids = ids,
                             .n_ids = 3,
                             .next_ids = ids,
                             .id_logprobs = out,
                             .n_next = 3};
    const struct {
        const char *says;
        waste_item it;
    } c[] = {
        {"next_ids is NULL", {.next_ids = NULL, .id_logprobs = out, .n_next = 3}},
        {"id_logprobs is NULL", {.next_ids = ids, .id_logprobs = NULL, .n_next = 3}},
        {"n_next = 2 is less than n_ids = 3", {.next_ids = ids, .id_logprobs = out, .n_next = 2}},
        {"next id -2 at 1", {.next_ids = low, .id_logprobs = out, .n_next = 3}},
        {"next id 1048576 at 2", {.next_ids = high, .id_logprobs = out, .n_next = 3}},
    };
    waste_item it[2] = {good, good};

    (void)state;
    assert_int_equal(waste_session_open(ctx, &it[0].session), WASTE_OK);
    for (unsigned i = 0; i < sizeof(c) / sizeof(*c); i++) {
        it[1] = good; /* the other item is well, and nothing of it runs */
        it[1].next_ids = c[i].it.next_ids;
        it[1].id_logprobs = c[i].it.id_logprobs;
        it[1].n_next = c[i].it.n_next;
        assert_int_equal(waste_step(ctx, it, 2), WASTE_E_ARG);
        if (!strstr(waste_error_detail(ctx), c[i].says) ||
            !strstr(waste_error_detail(ctx), "item 1"))
            fail_msg("%s: %s", c[i].says, waste_error_detail(ctx));
        assert_int_equal(it[1].status, WASTE_E_ARG);
        for (unsigned k = 0; k < 3; k++)
            assert_memory_equal(&out[k], &mark, sizeof(mark));
        assert_int_equal(waste_session_pos(it[0].session), 0);
    }
    it[1] = good;
    assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
    waste_close(ctx);
}

/* The likeliest ids, by looking at all of them; the same with and without filters. */
static void the_likeliest_ids_come_with_a_choice(void **state)
{
    static const unsigned want[] = {0, 1, 5, 20};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {.sessions = 2};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        const struct golden *g = &models[i].gold;

        for (unsigned k = 0; k < 4; k++) {
            waste_item it[2] = {{.size = sizeof(*it), .ids = g->ids, .n_ids = 3},
                                {.size = sizeof(*it), .ids = g->ids, .n_ids = 2}};
            waste_session *other;
            waste_sampling p;

            assert_int_equal(waste_session_open(ctx, &other), WASTE_OK);
            waste_sampling_init(&p);
            p.n_logprobs = want[k];
            p.temperature = 2;
            p.top_k = 1 + (int)k;
            it[0].session = waste_session_default(ctx);
            it[1].session = other;
            it[0].want = WASTE_WANT_LOGITS | WASTE_WANT_TOKEN;
            it[1].want = WASTE_WANT_TOKEN;
            waste_state_reset(ctx);
            assert_int_equal(waste_session_sampling(it[0].session, &p), WASTE_OK);
            assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
            assert_int_equal(it[1].n_top, 0);
            assert_null(it[1].top);
            assert_int_equal(it[0].n_top, want[k] < g->vocab ? want[k] : g->vocab);
            for (size_t j = 0; j < it[0].n_top; j++) {
                unsigned better = 0;
                const waste_logprob *t = &it[0].top[j];

                for (unsigned id = 0; id < g->vocab; id++) {
                    float l = it[0].logits[id], mine = it[0].logits[t->id];

                    better += l > mine || (l == mine && id < (unsigned)t->id);
                }
                assert_int_equal(better, j);
                if (t->id == it[0].token)
                    assert_memory_equal(&t->logprob, &it[0].logprob, sizeof(float));
            }
            waste_session_close(other);
        }
        waste_sampling p;

        waste_sampling_init(&p);
        p.n_logprobs = 21;
        assert_int_equal(waste_session_sampling(waste_session_default(ctx), &p), WASTE_E_ARG);
        waste_close(ctx);
    }
}

/* Layers add up to the whole; what is resident is what the pool has frames for. */
static void layers_say_what_they_found(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {.lookahead = 3};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        unsigned n = ctx->model.hp.n_layers, resident = 0;
        waste_counters c = {.size = sizeof(c)};
        uint64_t sum[3] = {0};
        uint8_t map[FORMAT_EXPERTS_MAX];

        model_feed(ctx, models[i].gold.ids, models[i].gold.n_tokens, 1);
        for (unsigned l = 0; l < n; l++) {
            waste_layer_use u = {.size = sizeof(u)};
            unsigned there = 0;

            assert_int_equal(waste_layer_get_use(ctx, l, &u, map, sizeof(map)), WASTE_OK);
            assert_int_equal(u.n_experts,
                             l < ctx->model.hp.first_dense ? 0 : ctx->model.hp.n_experts);
            for (unsigned x = 0; x < u.n_experts; x++)
                there += map[x] == WASTE_EXPERT_RESIDENT;
            assert_int_equal(there, u.n_resident);
            resident += there;
            sum[0] += u.hits_resident;
            sum[1] += u.hits_prefetch;
            sum[2] += u.misses;
            if (u.n_experts)
                assert_int_equal(waste_layer_get_use(ctx, l, &u, map, u.n_experts - 1),
                                 WASTE_E_ARG);
            assert_int_equal(waste_layer_get_use(ctx, l, &u, NULL, 0), WASTE_OK);
        }
        assert_int_equal(waste_get_counters(ctx, &c), WASTE_OK);
        assert_int_equal(sum[0], c.hits_resident);
        assert_int_equal(sum[1], c.hits_prefetch);
        assert_int_equal(sum[2], c.misses);
        assert_true(resident > 0 && resident <= ctx->frames.n);
        assert_int_equal(waste_layer_get_use(ctx, n, &(waste_layer_use){.size = 8}, NULL, 0),
                         WASTE_E_ARG);
        waste_close(ctx);
    }
}

static void stop_strings_of_a_host(void **state)
{
    const waste_text strings[] = {{"a\0b", 3}, {"xyz", 3}};
    waste_stops *s;
    char out[16];
    int32_t matched;

    (void)state;
    assert_int_equal(waste_stops_open(strings, 2, &s), WASTE_OK);
    assert_int_equal(waste_stops_room(s, 4), 6);
    assert_int_equal(waste_stops_feed(s, "qa\0", 3, 0, out, &matched), 1);
    assert_int_equal(matched, -1);
    assert_int_equal(waste_stops_feed(s, "bz", 2, 0, out, &matched), 0);
    assert_int_equal(matched, 0);
    assert_int_equal(waste_stops_feed(s, "xy", 2, 1, out, &matched), 2);
    assert_int_equal(matched, -1);
    waste_stops_close(s);
    assert_int_equal(waste_stops_open(&(waste_text){"", 0}, 1, &s), WASTE_E_ARG);
    assert_int_equal(waste_stops_open(NULL, 1, &s), WASTE_E_ARG);
    waste_stops_close(NULL);
}

/* A host that was built before next_ids was there: its items are shorter, and lie closer. */
static void items_of_older_hosts_still_do(void **state)
{
    enum { OLD = offsetof(waste_item, next_ids) };
    struct setup s = {.sessions = 2};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    waste_item it = {.size = OLD,
                     .session = waste_session_default(ctx),
                     .ids = g->ids,
                     .n_ids = 4,
                     .want = WASTE_WANT_TOKEN};
    char *old = malloc(2 * OLD); /* exactly: ASan looks on */

    (void)state;
    memcpy(old, &it, OLD);
    assert_int_equal(waste_session_open(ctx, &it.session), WASTE_OK);
    memcpy(old + OLD, &it, OLD);
    assert_int_equal(waste_step(ctx, (waste_item *)(void *)old, 2), WASTE_OK);
    for (unsigned i = 0; i < 2; i++) {
        memcpy(&it, old + i * OLD, OLD);
        assert_int_equal(it.n_done, 4);
        assert_true(it.token >= 0);
        it.want = WASTE_WANT_ID_LOGPROBS;
        memcpy(old + i * OLD, &it, OLD);
    }
    assert_int_equal(waste_step(ctx, (waste_item *)(void *)old, 2), WASTE_E_ARG);
    assert_non_null(strstr(waste_error_detail(ctx), "items[0].size"));
    free(old);
    waste_close(ctx);
}

/* A long prompt takes several steps; an item that overflows the context is left out, alone. */
static void steps_take_what_fits(void **state)
{
    struct setup s = {.sessions = 2, .rows = 8, .ctx = 30};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    waste_session *a = waste_session_default(ctx), *b;
    waste_item it[2] = {{.size = sizeof(it[0]),
                         .session = a,
                         .ids = g->ids,
                         .n_ids = 20,
                         .want = WASTE_WANT_TOKEN}};

    (void)state;
    assert_int_equal(waste_session_open(ctx, &b), WASTE_OK);
    it[1] = (waste_item){.size = sizeof(it[1]), .session = b, .ids = g->ids, .n_ids = 40};
    for (unsigned fed = 0; fed < 20;) {
        assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
        assert_true(it[0].n_done > 0 && it[0].n_done <= 8);
        assert_int_equal(it[1].stop, WASTE_STOP_CONTEXT);
        assert_int_equal(it[1].n_done, 0);
        fed += (unsigned)it[0].n_done;
        assert_true((it[0].token >= 0) == (fed == 20));
        it[0].ids = g->ids + fed;
        it[0].n_ids = 20 - fed;
    }
    assert_int_equal(waste_session_pos(a), 20);
    assert_int_equal(waste_session_pos(b), 0);
    waste_close(ctx);
}

static void budgets_below_the_floor_are_refused_with_the_numbers(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {0};
        uint64_t floor = model_floor(models[i].dir, &s);
        waste_memplan used;
        waste_ctx *ctx;
        waste_cfg cfg;
        waste_opts opts;

        waste_cfg_init(&cfg);
        waste_opts_init(&opts);
        opts.max_rows = 64;
        cfg.n_threads = 1;
        cfg.ctx_tokens = 64;
        cfg.ram_budget_bytes = floor - 1;
        assert_int_equal(waste_open_ex(models[i].dir, &cfg, &opts, &ctx), WASTE_E_RAM_BUDGET);
        assert_null(ctx);
        assert_non_null(strstr(waste_error_detail(NULL), "below the floor"));
        cfg.ram_budget_bytes = floor;
        if (waste_open_ex(models[i].dir, &cfg, &opts, &ctx) != WASTE_OK)
            fail_msg("%s at its floor: %s", models[i].name, waste_error_detail(NULL));
        assert_int_equal(waste_memory_used(ctx, &used), WASTE_OK);
        assert_true(used.trunk_bytes + used.state_bytes + used.scratch_bytes +
                        used.min_expert_cache <=
                    floor);
        assert_int_equal(waste_eval(ctx, models[i].gold.ids, 4, NULL, NULL), WASTE_OK);
        waste_close(ctx);
    }
}

static void text_goes_in_and_out(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[0].dir, &s), *mini = model_open(models[4].dir, &s);
    const char *text = "Zürich \xf0\x9f\x8e\x89";
    waste_tokenizer *t;
    int32_t ids[64];
    char back[128];
    size_t n, m;

    (void)state;
    assert_int_equal(waste_tokenize(ctx, text, 0, NULL, 0, &n), WASTE_E_ARG);
    assert_true(n > 0 && n < 64);
    assert_int_equal(waste_tokenize(ctx, text, 0, ids, 64, &m), WASTE_OK);
    assert_int_equal(n, m);
    assert_int_equal(waste_detokenize(ctx, ids, n, back, sizeof(back), &m), WASTE_OK);
    assert_string_equal(back, text);
    assert_int_equal(waste_detokenize(ctx, ids, n, back, m, &m), WASTE_E_ARG); /* no room for NUL */
    assert_int_equal(m, strlen(text));
    assert_int_equal(waste_tokenize(ctx, text, 1, ids, 64, &m), WASTE_OK);
    assert_int_equal(m, n + 1);
    /* a container without a tokenizer runs, on ids */
    assert_int_equal(waste_tokenize(mini, text, 0, ids, 64, &m), WASTE_E_UNSUPPORTED);
    assert_non_null(strstr(waste_error_detail(mini), "only token ids can be used"));
    assert_null(waste_tokenizer_of(mini));
    /* a tokenizer needs no model */
    assert_int_equal(waste_tokenizer_open(models[0].dir, &t), WASTE_OK);
    assert_int_equal(waste_encode(t, WASTE_CONTENT, text, strlen(text), ids, 64, &m), WASTE_OK);
    assert_int_equal(n, m);
    waste_tokenizer_close(t);
    assert_int_equal(waste_tokenizer_open(models[4].dir, &t), WASTE_E_UNSUPPORTED);
    waste_close(ctx);
    waste_close(mini);
}

/* More than two blocks of 400,000 characters, of one to four bytes and such as are none, lines and
 * long words: known byte by byte or at once, the blocks' ids are those of the whole. */
static void a_text_in_blocks_has_the_ids_of_the_whole(void **state)
{
    static const char *const part[] = {
        "word", " ",      "\n", "Z\xc3\xbcrich", "\xe4\xb8\xad", "\xf0\x9f\x8e\x89", "\xf0\x9f",
        "\xff", "  \r\n", "42"};
    size_t room = 1000000, len = 0, n, n_blocks = 0, blocks = 0;
    char *text = malloc(room + 16);
    int32_t *whole = malloc(room * sizeof(*whole)), *ids = malloc(room * sizeof(*ids));
    waste_tokenizer *t;
    uint32_t x = 7;

    (void)state;
    assert_int_equal(waste_tokenizer_open(models[0].dir, &t), WASTE_OK);
    while (len < room) {
        const char *p = part[((x = x * 1664525 + 1013904223) >> 16) % 10];

        memcpy(text + len, p, strlen(p));
        len += strlen(p);
    }
    len = room; /* and a cut somewhere */
    assert_int_equal(waste_encode(t, WASTE_CONTENT, text, len, whole, room, &n), WASTE_OK);
    for (size_t at = 0, known = 0; at < len; blocks++) {
        size_t take = 0, some;

        while (!take) {
            known = known + 9973 < len - at ? known + 9973 : len - at;
            take = waste_encode_block(text + at, known, known == len - at);
        }
        assert_in_range(take, 1, known);
        if (known < len - at) /* one more byte, or all of them, change nothing */
            assert_int_equal(waste_encode_block(text + at, len - at, 1), take);
        assert_int_equal(
            waste_encode(t, WASTE_CONTENT, text + at, take, ids + n_blocks, room, &some), WASTE_OK);
        n_blocks += some;
        at += take;
        known -= take;
    }
    assert_true(blocks >= 2);
    assert_int_equal(n_blocks, n);
    assert_memory_equal(ids, whole, n * sizeof(*ids));
    assert_int_equal(waste_encode_block(text, 1000, 0), 0);
    assert_int_equal(waste_encode_block(text, 1000, 1), 1000);
    assert_int_equal(waste_encode_block(text, 0, 1), 0);
    assert_int_equal(waste_encode_block(NULL, 0, 1), 0);
    waste_tokenizer_close(t);
    free(ids);
    free(whole);
    free(text);
}

/* A character cut over two tokens comes whole, or not yet. */
static void pieces_are_whole_characters(void **state)
{
    waste_utf8 u = {0};
    char out[64];
    size_t n;

    (void)state;
    n = waste_utf8_feed(&u, "a\xf0\x9f", 3, 0, out);
    assert_int_equal(n, 1);
    n = waste_utf8_feed(&u, "\x8e\x89!", 3, 0, out);
    assert_int_equal(n, 5);
    assert_memory_equal(out, "\xf0\x9f\x8e\x89!", 5);
    n = waste_utf8_feed(&u, "\xe2\x82", 2, 1, out);
    assert_int_equal(n, 3);
    assert_memory_equal(out, "\xef\xbf\xbd", 3);
}

static void information_is_consistent(void **state)
{
    struct setup s = {.threads = 2, .lookahead = 3, .io = "threads"};
    waste_ctx *ctx = model_open(models[1].dir, &s);
    const struct golden *g = &models[1].gold;
    waste_engine en = {.size = sizeof(en)};
    waste_counters c = {.size = sizeof(c)}, half = {.size = 24};
    waste_model_info info;
    waste_stats st;

    (void)state;
    model_feed(ctx, g->ids, 20, 64);
    model_feed(ctx, g->ids + 20, 10, 1);
    assert_int_equal(waste_engine_info(ctx, &en), WASTE_OK);
    assert_string_equal(en.io_engine, "threads");
    assert_int_equal(en.n_threads, 2);
    assert_int_equal(en.lookahead, 3);
    assert_int_equal(waste_get_counters(ctx, &c), WASTE_OK);
    assert_int_equal(c.prefill_tokens, 20);
    assert_int_equal(c.decode_tokens, 10);
    assert_true(c.sec_prefill > 0 && c.sec_decode > 0);
    assert_true(c.bytes_read > 0 && c.misses > 0);
    assert_int_equal(waste_get_counters(ctx, &half), WASTE_OK); /* an older host's shorter struct */
    assert_int_equal(half.prefill_tokens, 20);
    assert_int_equal(half.misses, 0);
    assert_int_equal(waste_get_stats(ctx, &st), WASTE_OK);
    assert_int_equal(st.experts_missed, c.misses);
    assert_int_equal(waste_model_get_info(ctx, &info), WASTE_OK);
    assert_int_equal(info.n_layers, g->n_layers);
    assert_string_equal(info.arch, "kimi-k3");
    for (int kind = 0; kind <= WASTE_ABI_IMAGE_INFO; kind++)
        assert_true(waste_abi(kind) > 0);
    assert_int_equal(waste_abi(WASTE_ABI_CFG), sizeof(waste_cfg));
    assert_int_equal(waste_abi(999), 0);
    waste_close(ctx);
}

static unsigned n_warnings;

static void count_warnings(int level, const char *text, void *user)
{
    (void)user;
    assert_int_equal(level, 1);
    assert_non_null(strstr(text, "memory is short"));
    n_warnings++;
}

/* Under pressure the pool gives frames back pass by pass, stops at what the plan calls least, takes
 * none back, and no bit changes. */
static void short_memory_shrinks_the_pool_and_nothing_else(void **state)
{
    (void)state;
    for (unsigned engine = 0; model_engine(engine); engine++) {
        struct setup s = {.threads = 2, .lookahead = 3, .io = model_engine(engine)};
        const struct golden *g = &models[0].gold;
        waste_engine en = {.size = sizeof(en)};
        char path[] = "/tmp/waste-stall-XXXXXX";
        int fd = mkstemp(path);
        waste_ctx *ctx, *calm;
        unsigned before;

        s.budget = model_floor(models[0].dir, &s) + (4 << 20);
        ctx = model_open(models[0].dir, &s);
        calm = model_open(models[0].dir, &s);
        ctx->opts.log = count_warnings;
        n_warnings = 0;
        assert_true(dprintf(fd, "full avg10=50.00 avg60=0.00 avg300=0.00 total=1\n") > 0);
        snprintf(ctx->pressure.stall, sizeof(ctx->pressure.stall), "%s", path);
        waste_engine_info(ctx, &en);
        before = en.n_frames;
        assert_true(before > 2 * ctx->model.hp.top_k + 5);
        for (unsigned i = 0; i < 60; i++) {
            const float *a, *b;

            if (i == 30) /* it passes: what is gone stays gone */
                assert_int_equal(ftruncate(fd, 0), 0);
            ctx->pressure.next_ns = 0;
            a = model_feed(ctx, &g->ids[i % 20], 1, 1);
            b = model_feed(calm, &g->ids[i % 20], 1, 1);
            assert_memory_equal(a, b, g->vocab * sizeof(*a));
            waste_engine_info(ctx, &en);
            if (i < 30)
                assert_true(en.n_frames < before || before == 2 * ctx->model.hp.top_k);
            else
                assert_int_equal(en.n_frames, before);
            before = en.n_frames;
        }
        assert_true(n_warnings > 5);
        assert_true(before >= 2 * ctx->model.hp.top_k);
        waste_close(ctx);
        waste_close(calm);
        close(fd);
        unlink(path);
    }
}

static int count_calls(const waste_progress *p, void *user)
{
    unsigned *calls = user;

    assert_int_equal(p->size, sizeof(*p));
    return ++*calls >= 1; /* cancel at the first */
}

static void the_progress_callback_cancels(void **state)
{
    unsigned calls = 0;
    waste_opts opts;
    waste_cfg cfg;
    waste_ctx *ctx;

    (void)state;
    waste_cfg_init(&cfg);
    waste_opts_init(&opts);
    opts.progress = count_calls;
    opts.user = &calls;
    assert_int_equal(waste_open_ex(models[0].dir, &cfg, &opts, &ctx), WASTE_E_CANCELLED);
    assert_null(ctx);
    assert_int_equal(calls, 1);
}

struct meddler { /* a host whose callbacks call back in */
    waste_ctx *ctx;
    unsigned calls, refused;
    uint64_t bytes;
};

static int meddle(const waste_progress *p, void *user)
{
    struct meddler *m = user;
    const int32_t id = 1;

    m->bytes = p->bytes > m->bytes ? p->bytes : m->bytes;
    if (!m->ctx) /* it is being opened */
        return 0;
    m->calls++;
    m->refused += waste_eval(m->ctx, &id, 1, NULL, NULL) == WASTE_E_BUSY &&
                  waste_generate(m->ctx, &id, 1, NULL, NULL, NULL) == WASTE_E_BUSY &&
                  waste_state_reset(m->ctx) == WASTE_E_BUSY &&
                  strstr(waste_error_detail(NULL), "from a callback");
    return 0;
}

static void a_callback_cannot_disturb_the_pass_it_comes_from(void **state)
{
    const struct golden *g = &models[0].gold;
    struct meddler m = {0};
    struct setup s = {0};
    waste_ctx *plain = model_open(models[0].dir, &s);
    const float *want = model_feed(plain, g->ids, g->n_tokens, 64), *got;
    waste_opts opts;
    waste_cfg cfg;

    (void)state;
    waste_cfg_init(&cfg);
    waste_opts_init(&opts);
    opts.progress = meddle;
    opts.user = &m;
    opts.numeric = "f32"; /* as in model_open */
    assert_int_equal(waste_open_ex(models[0].dir, &cfg, &opts, &m.ctx), WASTE_OK);
    for (unsigned round = 0; round < 400 && !m.refused; round++) { /* calls are 100 ms apart */
        waste_state_reset(m.ctx);
        assert_int_equal(waste_eval(m.ctx, g->ids, g->n_tokens, &got, NULL), WASTE_OK);
        assert_memory_equal(got, want, g->vocab * sizeof(*want));
    }
    assert_true(m.refused > 0 && m.refused == m.calls);
    waste_close(m.ctx);
    waste_close(plain);
}

static void a_forked_child_is_told_to_open_its_own(void **state)
{
    struct setup s = {.threads = 2};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const int32_t id = 1;
    int status;
    pid_t pid;

    (void)state;
    pid = fork();
    if (pid == 0) {
        bool told = waste_eval(ctx, &id, 1, NULL, NULL) == WASTE_E_BUSY;

        alarm(20);
        waste_close(ctx); /* as destructors do it: it waits for nobody */
        _exit(told ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(waste_eval(ctx, &id, 1, NULL, NULL), WASTE_OK);
    waste_close(ctx);
}

/* What is derived at open is rounded as defined, whatever the host has set; and so are passes. */
static void the_hosts_rounding_mode_changes_nothing(void **state)
{
    static const int mode[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        float *want = malloc(g->vocab * sizeof(*want));

        for (unsigned m = 0; m < 4; m++) {
            struct setup s = {.threads = 2};
            const float *got;
            waste_ctx *ctx;

            fesetround(mode[m]);
            ctx = model_open(models[i].dir, &s);
            got = model_feed(ctx, g->ids, g->n_tokens, 9);
            assert_int_equal(fegetround(), mode[m]); /* and it is the host's again */
            fesetround(FE_TONEAREST);
            if (!m)
                memcpy(want, got, g->vocab * sizeof(*want));
            assert_memory_equal(got, want, g->vocab * sizeof(*want));
            waste_close(ctx);
        }
        free(want);
    }
}

static waste_status open_traced(const char *path, waste_ctx **ctx)
{
    waste_opts opts;
    waste_cfg cfg;

    waste_cfg_init(&cfg);
    waste_opts_init(&opts);
    opts.route_trace = path;
    return waste_open_ex(models[0].dir, &cfg, &opts, ctx);
}

static void a_route_trace_has_a_line_per_token_and_moe_layer(void **state)
{
    const struct golden *g = &models[0].gold;
    char path[] = "/tmp/waste-trace-XXXXXX", line[512];
    unsigned pos, layer, n = 0;
    waste_ctx *ctx;
    FILE *f;

    (void)state;
    assert_true(mkstemp(path) >= 0);
    assert_int_equal(open_traced(path, &ctx), WASTE_OK);
    model_feed(ctx, g->ids, 8, 8); /* a prompt leaves none */
    model_feed(ctx, g->ids + 8, 5, 1);
    waste_close(ctx);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        int ids[2], used;
        double weight[2];

        assert_int_equal(sscanf(line, "%u %u %d %d %lf %lf%n", &pos, &layer, &ids[0], &ids[1],
                                &weight[0], &weight[1], &used),
                         6);
        assert_int_equal(pos, 8 + n / g->n_moe);
        assert_int_equal(ids[0], g->expert[((size_t)(n % g->n_moe) * g->n_tokens + pos) * 2]);
        assert_true(weight[0] > 0 && weight[1] > 0);
        n++;
    }
    assert_int_equal(n, 5 * g->n_moe);
    fclose(f);
    unlink(path);
    /* a trace that cannot be written ends the call, not the session */
    assert_int_equal(open_traced("/nonexistent/trace", &ctx), WASTE_E_IO);
    assert_int_equal(open_traced("/dev/full", &ctx), WASTE_OK);
    assert_int_equal(waste_eval(ctx, g->ids, 1, NULL, NULL), WASTE_E_IO);
    assert_non_null(strstr(waste_error_detail(ctx), "route trace"));
    assert_int_equal(waste_session_pos(waste_session_default(ctx)), 0);
    waste_close(ctx);
}

struct user { /* one context, used by one thread at a time */
    const char *dir;
    const struct golden *g;
    uint32_t first;
    float logit;
};

static void *use(void *arg)
{
    struct user *u = arg;
    struct setup s = {.threads = 2, .lookahead = 4, .io = model_engine(u->first % 2)};
    waste_ctx *ctx = model_open(u->dir, &s);

    u->logit = model_feed(ctx, u->g->ids, u->g->n_tokens, 7)[0];
    waste_close(ctx);
    return NULL;
}

static void several_contexts_run_at_once(void **state)
{
    struct user user[4];
    pthread_t thread[4];

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        user[i] = (struct user){models[i % 2].dir, &models[i % 2].gold, i, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, use, &user[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    assert_true(user[0].logit == user[2].logit && user[1].logit == user[3].logit);
}

struct handover {
    waste_ctx *ctx;
    const struct golden *g;
    float logit;
};

static void *feed_there(void *arg)
{
    struct handover *h = arg;

    h->logit = model_feed(h->ctx, h->g->ids, h->g->n_tokens, 9)[0];
    return NULL;
}

/* Opened on one thread, run on another, then on a third: one at a time is all that is asked. */
static void a_context_may_move_between_threads(void **state)
{

    (void)state;
    for (unsigned i = 0; model_engine(i); i++) {
        struct setup s = {.io = model_engine(i), .lookahead = 4, .threads = 2};
        struct handover h = {model_open(models[0].dir, &s), &models[0].gold, 0};
        float first = 0;

        for (unsigned round = 0; round < 3; round++) {
            pthread_t thread;

            waste_state_reset(h.ctx);
            assert_int_equal(pthread_create(&thread, NULL, feed_there, &h), 0);
            pthread_join(thread, NULL);
            assert_true(!round || h.logit == first);
            first = h.logit;
        }
        waste_close(h.ctx);
    }
}

static void *cancel_soon(void *arg)
{
    for (unsigned i = 0; i < 200; i++)
        waste_cancel(arg);
    return NULL;
}

/* waste_cancel and waste_progress_get come from any thread, at any time. */
static void a_call_can_be_cancelled_from_another_thread(void **state)
{
    struct setup s = {.threads = 2};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    waste_progress p = {.size = sizeof(p)};

    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        size_t before = waste_session_pos(waste_session_default(ctx)), after;
        pthread_t thread;
        waste_status st;

        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, ctx), 0);
        st = waste_eval(ctx, g->ids, 2, NULL, NULL);
        waste_progress_get(ctx, &p);
        pthread_join(thread, NULL);
        after = waste_session_pos(waste_session_default(ctx));
        assert_true(st == WASTE_OK ? after == before + 2
                                   : st == WASTE_E_CANCELLED && after == before);
        waste_eval(ctx, g->ids, 1, NULL, NULL); /* spends a flag that came too late */
    }
    waste_close(ctx);
}

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
        cmocka_unit_test(greedy_text_is_what_eval_says),
        cmocka_unit_test(the_golden_continuation_is_the_published_one),
        cmocka_unit_test(a_seed_repeats_itself_and_another_differs),
        cmocka_unit_test(generation_ends_at_stop_ids_and_at_a_full_context),
        cmocka_unit_test(a_callback_can_stop_and_cancel),
        cmocka_unit_test(bad_arguments_are_refused_before_anything_runs),
        cmocka_unit_test(a_limit_closes_the_reasoning),
        cmocka_unit_test(a_cancelled_session_does_not_stop_its_company),
        cmocka_unit_test(logprobs_are_those_of_the_logits),
        cmocka_unit_test(logprobs_depend_on_the_ids_alone),
        cmocka_unit_test(logprobs_and_the_rest_come_together),
        cmocka_unit_test(logprobs_not_asked_for_are_left_alone),
        cmocka_unit_test(logprobs_that_make_no_sense_are_refused),
        cmocka_unit_test(items_of_older_hosts_still_do),
        cmocka_unit_test(the_likeliest_ids_come_with_a_choice),
        cmocka_unit_test(layers_say_what_they_found),
        cmocka_unit_test(stop_strings_of_a_host),
        cmocka_unit_test(steps_take_what_fits),
        cmocka_unit_test(budgets_below_the_floor_are_refused_with_the_numbers),
        cmocka_unit_test(text_goes_in_and_out),
        cmocka_unit_test(a_text_in_blocks_has_the_ids_of_the_whole),
        cmocka_unit_test(pieces_are_whole_characters),
        cmocka_unit_test(information_is_consistent),
        cmocka_unit_test(short_memory_shrinks_the_pool_and_nothing_else),
        cmocka_unit_test(the_progress_callback_cancels),
        cmocka_unit_test(a_callback_cannot_disturb_the_pass_it_comes_from),
        cmocka_unit_test(a_forked_child_is_told_to_open_its_own),
        cmocka_unit_test(the_hosts_rounding_mode_changes_nothing),
        cmocka_unit_test(a_route_trace_has_a_line_per_token_and_moe_layer),
        cmocka_unit_test(several_contexts_run_at_once),
        cmocka_unit_test(a_context_may_move_between_threads),
        cmocka_unit_test(a_call_can_be_cancelled_from_another_thread),
        cmocka_unit_test(what_was_learned_is_read_early_and_changes_no_token),
        cmocka_unit_test(preloading_ends_when_somebody_wants_something),
        cmocka_unit_test(a_save_adds_to_half_of_what_is_there_and_nothing_to_nothing),
        cmocka_unit_test(no_hotlist_keeps_a_model_from_running),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
