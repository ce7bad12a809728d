/* test_forward.c - the model against the oracle, layer by layer, and against itself: nothing but a
 * session's own ids may change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <libdeflate.h>

#include "model/context.h"
#include "tests/model/models.h"

/* Largest relative L2 error against float64: of one row after one layer; of one position's logits;
 * of all logits of a text together. f32 rounding is all that may be seen. */
static const double layer_limit = 1e-5, logits_limit = 1e-5;
static const double text_limit[N_MODELS] = {1.5e-6, 3.5e-6, 1.5e-6, 1.5e-6, 1.5e-6, 1.5e-6};

/* ---- against the oracle ---- */

static void layers_experts_and_logits_match_the_oracle(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        struct setup s = {.lookahead = 0, .threads = 2};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        const struct hparams *hp = &ctx->model.hp;
        size_t n = g->n_tokens, per_layer = n * hp->top_k;
        struct span span = {&ctx->session[0].s, 0, (unsigned)n, 0, true};
        struct rows rows = {.n = (unsigned)n, .n_spans = 1, .span = &span, .token = g->ids};
        struct route_tap route = {
            .id = calloc(hp->n_layers * per_layer, sizeof(uint16_t)),
            .weight = calloc(hp->n_layers * per_layer, sizeof(float)),
        };
        struct run run = {
            .rows = &rows,
            .model = &ctx->model,
            .experts = ctx->experts,
            .act = &ctx->act,
            .team = ctx->team,
            .progress = &ctx->progress,
            .route = &route,
            .tap = calloc((size_t)hp->n_layers * n * hp->hidden, sizeof(float)),
        };
        struct err e;
        double worst = 0, logits;

        assert_int_equal(hp->n_layers, g->n_layers);
        assert_int_equal(hp->vocab, g->vocab);
        if (forward(&run, &e))
            fail_msg("%s: %s", models[i].name, e.text);
        for (unsigned l = 0; l < hp->n_layers; l++)
            for (unsigned t = 0; t < n; t++) {
                size_t at = ((size_t)l * n + t) * hp->hidden;
                double err = relative_error(run.tap + at, g->x + at, hp->hidden);

                worst = err > worst ? err : worst;
                if (err > layer_limit)
                    fail_msg("%s: layer %u row %u is off by %g", models[i].name, l, t, err);
            }
        for (unsigned l = hp->first_dense; l < hp->n_layers; l++)
            for (size_t j = 0; j < per_layer; j++)
                if (route.id[l * per_layer + j] != g->expert[(l - hp->first_dense) * per_layer + j])
                    fail_msg("%s: layer %u choice %zu is another expert", models[i].name, l, j);
        logits = relative_error(ctx->act.logits, g->logits + (n - 1) * g->vocab, g->vocab);
        if (logits > logits_limit)
            fail_msg("%s: logits are off by %g", models[i].name, logits);
        session_commit(&ctx->session[0].s, g->ids, (unsigned)n);
        for (unsigned l = 0; l < g->n_kda; l++) {
            size_t each = session_state_floats(hp);
            double err = relative_error(session_state_from(&ctx->session[0].s, l),
                                        g->state + l * each, (unsigned)each);

            if (err > layer_limit)
                fail_msg("%s: KDA state %u is off by %g", models[i].name, l, err);
        }
        printf("%s: layers %.2g, logits %.2g\n", models[i].name, worst, logits);
        free(run.tap);
        free(route.id);
        free(route.weight);
        waste_close(ctx);
    }
}

static void every_position_of_a_decode_matches_the_oracle(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        struct setup s = {.lookahead = 6};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        size_t n = (size_t)g->n_tokens * g->vocab;
        float *all = malloc(n * sizeof(*all));
        double text;

        for (unsigned t = 0; t < g->n_tokens; t++) {
            const float *logits = model_feed(ctx, g->ids + t, 1, 1);
            double err = relative_error(logits, g->logits + (size_t)t * g->vocab, g->vocab);

            if (err > logits_limit)
                fail_msg("%s: position %u is off by %g", models[i].name, t, err);
            memcpy(all + (size_t)t * g->vocab, logits, g->vocab * sizeof(*all));
        }
        text = relative_error(all, g->logits, (unsigned)n);
        printf("%s: all logits %.2g\n", models[i].name, text);
        if (text > text_limit[i])
            fail_msg("%s: the text's logits are off by %g", models[i].name, text);
        free(all);
        waste_close(ctx);
    }
}

/* The bits of the golden mini container's logits, in each numeric profile (docs/ARITHMETIC.md). */
static void golden_logits_have_their_published_bits(void **state)
{
    static const uint32_t want[2][PROFILES] = {
        {0x008E097D, 0xA801E826, 0x9477191B, 0x7FBB640C},
        {0xDAF0E0C2, 0x3C364877, 0xC95FC210, 0xC61846EC},
    };
    static const int32_t ids[] = {3, 7, 11, 5};

    (void)state;
    for (unsigned v = 0; v < 2; v++)
        for (unsigned p = 0; p < PROFILES; p++)
            for (unsigned cut = 1; cut <= 4; cut += 3) {
                struct setup s = {.numeric = profile_name(p)};
                waste_ctx *ctx = model_open(models[4 + v].dir, &s);
                const float *logits = model_feed(ctx, ids, 4, cut);

                assert_int_equal(libdeflate_crc32(0, logits, 64 * sizeof(float)), want[v][p]);
                assert_int_equal(libdeflate_crc32(0, session_state_from(&ctx->session[0].s, 0),
                                                  2 * 16 * 16 * sizeof(float)),
                                 0x24DDC575);
                waste_close(ctx);
            }
}

/* ---- against itself ---- */

struct outcome { /* everything a pass leaves behind */
    float *logits;
    void *memory;
    size_t n_logits, n_memory;
};

static struct outcome outcome_of(waste_ctx *ctx, const float *logits)
{
    struct outcome o = {.n_logits = ctx->model.hp.vocab * sizeof(float)};

    o.memory = model_memory(ctx, &o.n_memory);
    o.logits = malloc(o.n_logits);
    memcpy(o.logits, logits, o.n_logits);
    return o;
}

static void outcome_free(struct outcome *o)
{
    free(o->logits);
    free(o->memory);
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *model,
                        const char *what)
{
    if (a->n_memory != b->n_memory || memcmp(a->logits, b->logits, a->n_logits))
        fail_msg("%s: %s changes the logits", model, what);
    if (memcmp(a->memory, b->memory, a->n_memory))
        fail_msg("%s: %s changes the session", model, what);
}

static struct outcome run_setup(const struct test_model *m, const struct setup *s, unsigned cut)
{
    waste_ctx *ctx = model_open(m->dir, s);
    const float *logits = model_feed(ctx, m->gold.ids, m->gold.n_tokens, cut);
    struct outcome o = outcome_of(ctx, logits);

    waste_close(ctx);
    return o;
}

static void compare(const struct test_model *m, const struct outcome *want, struct setup s,
                    unsigned cut, const char *what)
{
    struct outcome got = run_setup(m, &s, cut);

    assert_same(&got, want, m->name, what);
    outcome_free(&got);
}

static void no_setting_changes_a_bit(void **state)
{
    static const unsigned cuts[] = {1, 2, 3, 7, 16, 17, 39};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct test_model *m = &models[i];
        struct setup plain = {0};
        struct outcome want = run_setup(m, &plain, 64);
        uint64_t floor = model_floor(m->dir, &plain);
        char what[96];

        for (unsigned c = 0; c < sizeof(cuts) / sizeof(*cuts); c++) {
            snprintf(what, sizeof(what), "a cut into %u rows", cuts[c]);
            compare(m, &want, plain, cuts[c], what);
        }
        for (unsigned t = 2; t <= 4; t++)
            for (unsigned cut = 1; cut <= 64; cut += 63) {
                snprintf(what, sizeof(what), "%u threads", t);
                compare(m, &want, (struct setup){.threads = t}, cut, what);
            }
        for (unsigned n = 0; model_engine(n); n++)
            for (unsigned cut = 1; cut <= 64; cut += 63)
                for (int buffered = 0; buffered < 2; buffered++) {
                    snprintf(what, sizeof(what), "engine %s", model_engine(n));
                    compare(
                        m, &want,
                        (struct setup){.io = model_engine(n), .lookahead = 4, .buffered = buffered},
                        cut, what);
                }
        for (uint64_t extra = 0; extra <= 1 << 20; extra = extra ? extra * 2 : 16384) {
            snprintf(what, sizeof(what), "%llu bytes above the floor", (unsigned long long)extra);
            compare(m, &want, (struct setup){.budget = floor + extra, .lookahead = 2}, 5, what);
        }
        for (int look = 1; look <= 8; look++) {
            snprintf(what, sizeof(what), "lookahead %d", look);
            compare(m, &want, (struct setup){.lookahead = look, .io = "threads"}, 1, what);
        }
        for (const struct policy_ops *const *p = policies(); *p; p++) {
            snprintf(what, sizeof(what), "policy %s", (*p)->name);
            compare(m, &want, (struct setup){.policy = (*p)->name}, 3, what);
            compare(m, &want, (struct setup){.policy = (*p)->name, .budget = floor, .lookahead = 2},
                    1, what);
        }
        compare(m, &want, (struct setup){.no_verify = 1}, 3, "checks off");
        outcome_free(&want);
    }
}

/* Of a whole text in one pass: pins, and records read at the smallest budget. */
static void a_pass_reads_each_expert_once(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        struct setup s = {.threads = 2, .rows = 64};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        const struct hparams *hp = &ctx->model.hp;
        size_t per_layer = (size_t)g->n_tokens * hp->top_k;
        waste_counters c = {.size = sizeof(c)};
        unsigned distinct = 0;

        for (unsigned l = 0; l < hp->n_layers - hp->first_dense; l++) {
            bool seen[1024] = {false};

            for (size_t j = 0; j < per_layer; j++) {
                bool *first = &seen[g->expert[l * per_layer + j]];

                distinct += !*first;
                *first = true;
            }
        }
        assert_true(distinct < (hp->n_layers - hp->first_dense) * per_layer); /* or it is easy */
        model_feed(ctx, g->ids, g->n_tokens, 64);
        assert_int_equal(waste_get_counters(ctx, &c), WASTE_OK);
        assert_int_equal(c.hits_resident + c.hits_prefetch + c.misses, distinct);
        assert_int_equal(c.bytes_read, (uint64_t)distinct * ctx->facts.record.bytes);
        waste_close(ctx);
    }
}

static void no_kernel_level_changes_a_bit(void **state)
{
    static const char *const levels[] = {"c", "avx2", "avx512", "neon"};

    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++)
        for (unsigned p = 0; p < PROFILES; p++) {
            struct outcome want =
                run_setup(&models[i], &(struct setup){.numeric = profile_name(p), .cpu = "c"}, 64);

            for (unsigned l = 0; l < sizeof(levels) / sizeof(*levels); l++)
                compare(&models[i], &want,
                        (struct setup){.numeric = profile_name(p), .cpu = levels[l]}, 6, levels[l]);
            outcome_free(&want);
        }
}

/* Three sessions in one pass, each at another place of another text: every one is as if alone. */
static void company_in_a_pass_changes_nothing(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        const struct golden *g = &models[i].gold;
        unsigned n = g->n_tokens;
        struct setup s = {.sessions = 3, .rows = 64, .threads = 2};
        waste_ctx *ctx = model_open(models[i].dir, &s);
        struct outcome alone[3];
        int32_t ids[3][64];
        unsigned at[3] = {0};

        for (unsigned j = 0; j < 3; j++) {
            struct setup one = {0};
            waste_ctx *solo = model_open(models[i].dir, &one);

            for (unsigned k = 0; k < n; k++)
                ids[j][k] = g->ids[(k * (j + 1) + j) % n];
            alone[j] = outcome_of(solo, model_feed(solo, ids[j], n, 64));
            waste_close(solo);
        }
        for (unsigned j = 1; j < 3; j++) {
            waste_session *extra;

            assert_int_equal(waste_session_open(ctx, &extra), WASTE_OK);
        }
        while (at[0] < n || at[1] < n || at[2] < n) {
            waste_item it[3];
            unsigned n_items = 0, who[3];

            for (unsigned j = 0; j < 3; j++) {
                unsigned step = j == 0 ? 1 : j == 1 ? 3 : 5;

                if (at[j] == n)
                    continue;
                step = step < n - at[j] ? step : n - at[j];
                who[n_items] = j;
                it[n_items++] = (waste_item){.size = sizeof(waste_item),
                                             .session = &ctx->session[j],
                                             .ids = ids[j] + at[j],
                                             .n_ids = step,
                                             .want = at[j] + step == n ? WASTE_WANT_LOGITS : 0};
            }
            if (waste_step(ctx, it, n_items) != WASTE_OK)
                fail_msg("%s: %s", models[i].name, waste_error_detail(ctx));
            for (unsigned k = 0; k < n_items; k++) {
                at[who[k]] += (unsigned)it[k].n_done;
                if (it[k].logits)
                    assert_memory_equal(it[k].logits, alone[who[k]].logits, alone[who[k]].n_logits);
            }
        }
        for (unsigned j = 0; j < 3; j++)
            outcome_free(&alone[j]);
        waste_close(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_experts_and_logits_match_the_oracle),
        cmocka_unit_test(every_position_of_a_decode_matches_the_oracle),
        cmocka_unit_test(golden_logits_have_their_published_bits),
        cmocka_unit_test(no_setting_changes_a_bit),
        cmocka_unit_test(a_pass_reads_each_expert_once),
        cmocka_unit_test(no_kernel_level_changes_a_bit),
        cmocka_unit_test(company_in_a_pass_changes_nothing),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
