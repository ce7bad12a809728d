/* Log probabilities of given ids, and the likeliest ids beside a choice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/heard.h"
#include "tests/support/tiny_container.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_are_those_of_the_logits),
        cmocka_unit_test(logprobs_depend_on_the_ids_alone),
        cmocka_unit_test(logprobs_and_the_rest_come_together),
        cmocka_unit_test(logprobs_not_asked_for_are_left_alone),
        cmocka_unit_test(logprobs_that_make_no_sense_are_refused),
        cmocka_unit_test(the_likeliest_ids_come_with_a_choice),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
