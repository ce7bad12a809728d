/* test_turns.c - turns that are cancelled in every layer, edited, tried again, saved and taken up:
 * the logits that follow are those of a cold run, for the oracle's models and the demonstration
 * model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/context.h"
#include "tests/model/models.h"
#include "tests/model/rank_file.h"
#include "tests/support/tiny_container.h"

enum { TEXT = 24, ALL = N_MODELS + 1 };

/* ---- a cancel in the n-th layer ---- */

static unsigned polls, cancel_at; /* of the running pass; 0: never */

void __real_ctx_poll(void *arg);
void __wrap_ctx_poll(void *arg);
void __wrap_ctx_poll(void *arg)
{
    waste_ctx *ctx = arg;

    __real_ctx_poll(arg);
    if (++polls == cancel_at)
        waste_cancel(ctx);
}

/* ---- */

static const char *dir_of(unsigned i)
{
    return i < N_MODELS ? models[i].dir : DEMO_DIR;
}

static void text_make(int32_t ids[TEXT], unsigned vocab, uint32_t seed)
{
    for (unsigned i = 0; i < TEXT; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % (vocab < 4000 ? vocab : 4000));
    }
}

static float *cold(waste_ctx *ctx, const int32_t *ids, unsigned n)
{
    size_t bytes = ctx->model.hp.vocab * sizeof(float);
    float *out = malloc(bytes);

    waste_state_reset(ctx);
    memcpy(out, model_feed(ctx, ids, n, TEXT), bytes);
    waste_state_reset(ctx);
    return out;
}

/* One pass, cancelled in its first layer, its second, ... until nothing is left to cancel. Returns
 * how often it was. */
static unsigned pass_cancelled_everywhere(waste_ctx *ctx, waste_item *it)
{
    size_t pos = waste_session_pos(it->session), bytes, after_bytes;
    void *before = model_memory(ctx, &bytes), *after;
    unsigned nth = 1;

    for (;; nth++) {
        waste_status st;

        polls = 0;
        cancel_at = nth;
        st = waste_step(ctx, it, 1);
        cancel_at = 0;
        if (st == WASTE_OK)
            break;
        assert_int_equal(st, WASTE_E_CANCELLED);
        assert_int_equal(it->status, WASTE_E_CANCELLED);
        assert_int_equal(polls, nth); /* not a layer more */
        assert_int_equal(waste_session_pos(it->session), pos);
        after = model_memory(ctx, &after_bytes);
        assert_int_equal(bytes, after_bytes);
        assert_memory_equal(before, after, bytes);
        free(after);
    }
    free(before);
    return nth - 1;
}

static void cancelled_in_any_layer_it_goes_on_as_if_nothing_had_been(void **state)
{
    static const unsigned cuts[] = {1, 5, TEXT};

    (void)state;
    for (unsigned i = 0; i < ALL; i++)
        for (unsigned c = 0; c < 3; c++) {
            struct setup s = {.lookahead = 4, .threads = 2};
            waste_ctx *ctx = model_open(dir_of(i), &s);
            waste_item it = {.size = sizeof(it), .want = WASTE_WANT_LOGITS};
            int32_t ids[TEXT];
            float *want;

            text_make(ids, ctx->model.hp.vocab, i);
            want = cold(ctx, ids, TEXT);
            it.session = waste_session_default(ctx);
            for (unsigned at = 0; at < TEXT; at += (unsigned)it.n_done) {
                it.ids = ids + at;
                it.n_ids = cuts[c] < TEXT - at ? cuts[c] : TEXT - at;
                assert_true(pass_cancelled_everywhere(ctx, &it) >= ctx->model.hp.n_layers);
            }
            assert_memory_equal(it.logits, want, ctx->model.hp.vocab * sizeof(*want));
            free(want);
            waste_close(ctx);
        }
}

/* Feed a prompt as a chat does: what is kept first, places to keep at, logits of the last. */
static const float *taken_up(waste_ctx *ctx, waste_store *st, const int32_t *ids, unsigned n,
                             size_t *reused)
{
    waste_item it = {
        .size = sizeof(it), .session = waste_session_default(ctx), .want = WASTE_WANT_LOGITS};
    size_t ends[] = {n / 3, n / 2};

    assert_int_equal(waste_store_resume(st, it.session, ids, n, NULL, reused), WASTE_OK);
    for (size_t at = *reused; at < n; at += it.n_done) {
        it.ids = ids + at;
        it.n_ids = waste_store_cut(st, at, ends, 2, n) - at;
        assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
        assert_int_equal(waste_store_keep(st, it.session, NULL, 0), WASTE_OK);
    }
    return it.logits;
}

/* Every prompt there is: each beginning of one text, then each with another end, then again. */
static void every_beginning_and_every_edit_equals_a_cold_run(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALL; i++) {
        struct setup s = {.checkpoints = 6};
        waste_ctx *ctx = model_open(dir_of(i), &s), *plain = model_open(dir_of(i), &s);
        size_t bytes = ctx->model.hp.vocab * sizeof(float), reused, saved = 0;
        int32_t ids[TEXT], other[TEXT];
        waste_store_cfg c;
        waste_store *st;

        text_make(ids, ctx->model.hp.vocab, i);
        text_make(other, ctx->model.hp.vocab, i + 100);
        waste_store_cfg_init(&c);
        c.every = 6;
        assert_int_equal(waste_store_open(ctx, &c, &st), WASTE_OK);
        for (unsigned round = 0; round < 3; round++)
            for (unsigned n = 1; n <= TEXT; n++) {
                int32_t prompt[TEXT];
                float *want;

                memcpy(prompt, ids, sizeof(ids));
                if (round == 1)
                    memcpy(prompt + n - 1, other, (TEXT - n + 1) * sizeof(*other));
                want = cold(plain, prompt, round == 1 ? TEXT : n);
                assert_memory_equal(taken_up(ctx, st, prompt, round == 1 ? TEXT : n, &reused), want,
                                    bytes);
                saved += reused;
                free(want);
            }
        assert_true(saved > TEXT * TEXT / 2);
        waste_store_close(st);
        waste_close(ctx);
        waste_close(plain);
    }
}

/* The demonstration model, as the other models in test_checkpoint.c. */
static void the_demonstration_model_is_saved_and_taken_up_anywhere(void **state)
{
    struct setup s = {.checkpoints = 1}, later = {.threads = 2, .lookahead = 3};
    waste_ctx *ctx = model_open(DEMO_DIR, &s), *other = model_open(DEMO_DIR, &later);
    size_t bytes = ctx->model.hp.vocab * sizeof(float);
    char dir[512], path[600];
    int32_t ids[TEXT];
    float *want;

    (void)state;
    tiny_dir(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/s", dir);
    text_make(ids, ctx->model.hp.vocab, 3);
    want = cold(ctx, ids, TEXT);
    for (unsigned at = 0; at < TEXT; at++) {
        waste_checkpoint *c;

        waste_state_reset(ctx);
        if (at)
            model_feed(ctx, ids, at, 3);
        assert_int_equal(waste_checkpoint_take(waste_session_default(ctx), &c), WASTE_OK);
        assert_int_equal(waste_state_save(ctx, path), WASTE_OK);
        model_feed(ctx, ids, TEXT - at, 7);
        assert_int_equal(waste_checkpoint_restore(c, waste_session_default(ctx)), WASTE_OK);
        assert_memory_equal(model_feed(ctx, ids + at, TEXT - at, 4), want, bytes);
        assert_int_equal(waste_state_load(other, path), WASTE_OK);
        assert_memory_equal(model_feed(other, ids + at, TEXT - at, 1), want, bytes);
        waste_checkpoint_close(c);
    }
    free(want);
    tiny_remove(dir);
    waste_close(ctx);
    waste_close(other);
}

/* ---- answers that a grammar limits ---- */

static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                             "\"maxLength\":12},\"b\":{\"type\":\"array\",\"items\":{\"type\":"
                             "\"integer\",\"minimum\":0,\"maximum\":99},\"maxItems\":4}},"
                             "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}";

enum { ANSWER = 60 };

static void hold(waste_session *s, uint64_t seed)
{
    waste_sampling p;

    waste_sampling_init(&p);
    p.temperature = 1;
    p.seed = seed;
    p.grammar = schema;
    p.grammar_kind = WASTE_GRAMMAR_JSON_SCHEMA;
    assert_int_equal(waste_session_sampling(s, &p), WASTE_OK);
}

/* Returns how many ids it has; the last one ends it. cancels: every pass, in all of its layers. */
static unsigned answer(waste_ctx *ctx, const int32_t *ids, unsigned n, bool cancels,
                       int32_t out[ANSWER])
{
    waste_item it = {.size = sizeof(it),
                     .session = waste_session_default(ctx),
                     .want = WASTE_WANT_TOKEN,
                     .ids = ids,
                     .n_ids = n};

    for (unsigned k = 0; k < ANSWER;) {
        if (cancels)
            pass_cancelled_everywhere(ctx, &it);
        else
            assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
        out[k++] = it.token;
        if (it.stop)
            return k;
        it.ids = &out[k - 1];
        it.n_ids = 1;
    }
    return ANSWER;
}

static void a_cancelled_pass_leaves_a_grammar_where_it_was(void **state)
{
    struct setup s = {.budget = 200 << 20};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    unsigned ended = 0;
    int32_t ids[TEXT];

    (void)state;
    text_make(ids, ctx->model.hp.vocab, 9);
    for (unsigned seed = 1; seed <= 3; seed++) {
        int32_t want[ANSWER], got[ANSWER];
        unsigned n;
        int said;

        waste_state_reset(ctx);
        hold(waste_session_default(ctx), seed);
        n = answer(ctx, ids, 6, false, want);
        said = waste_session_grammar(waste_session_default(ctx));
        ended += n < ANSWER;
        assert_true(n == ANSWER || said == WASTE_GRAMMAR_COMPLETE || said == WASTE_GRAMMAR_DONE);
        waste_state_reset(ctx);
        hold(waste_session_default(ctx), seed);
        assert_int_equal(answer(ctx, ids, 6, true, got), n);
        assert_memory_equal(got, want, n * sizeof(*got));
        assert_int_equal(waste_session_grammar(waste_session_default(ctx)), said);
    }
    assert_true(ended > 0);
    waste_close(ctx);
}

static void going_back_begins_an_answer_anew(void **state)
{
    struct setup s = {.budget = 200 << 20, .checkpoints = 1};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_session *se = waste_session_default(ctx);
    int32_t ids[TEXT], want[ANSWER], got[ANSWER];
    waste_checkpoint *c;
    unsigned n;

    (void)state;
    text_make(ids, ctx->model.hp.vocab, 9);
    model_feed(ctx, ids, 5, 5);
    assert_int_equal(waste_checkpoint_take(se, &c), WASTE_OK);
    hold(se, 4);
    n = answer(ctx, ids + 5, 1, false, want);
    for (unsigned part = 1; part < n && part < 20; part += 6) { /* left in the middle */
        assert_int_equal(waste_checkpoint_restore(c, se), WASTE_OK);
        hold(se, 5);
        waste_item it = {.size = sizeof(it),
                         .session = se,
                         .want = WASTE_WANT_TOKEN,
                         .ids = ids + 5,
                         .n_ids = 1};
        for (unsigned k = 0; k < part; k++) {
            assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
            if (it.stop)
                break;
            it.ids = &it.token;
        }
        hold(se, 4);
        assert_int_equal(waste_checkpoint_restore(c, se), WASTE_OK);
        assert_int_equal(answer(ctx, ids + 5, 1, false, got), n);
        assert_memory_equal(got, want, n * sizeof(*got));
    }
    waste_close(ctx);
}

/* What ends the reasoning is chosen whatever the logits say, and not whatever the grammar says. */
static void a_grammar_that_refuses_close_ids_is_told_so(void **state)
{
    struct setup s = {.budget = 200 << 20};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_session *se = waste_session_default(ctx);
    int32_t fed = 1, closing = 0;
    waste_item it = {
        .size = sizeof(it), .session = se, .want = WASTE_WANT_TOKEN, .ids = &fed, .n_ids = 1};
    waste_sampling p;

    (void)state;
    waste_sampling_init(&p);
    p.grammar = "root ::= \"a\"";
    p.close_ids = &closing;
    p.n_close = 1;
    assert_int_equal(waste_session_sampling(se, &p), WASTE_OK);
    assert_int_equal(waste_step(ctx, &it, 1), WASTE_E_ARG);
    assert_non_null(strstr(waste_error_detail(ctx), "close_ids: token"));
    assert_int_equal(waste_session_pos(se), 0);
    waste_close(ctx);
}

/* The company was told the same, and nobody knew whom to leave out of the next pass. */
static void of_several_items_the_one_whose_close_ids_are_refused_is_to_blame(void **state)
{
    struct setup s = {.budget = 200 << 20, .sessions = 3};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_item it[3];
    int32_t fed = 1, closing = 0;
    waste_sampling p;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        it[i] =
            (waste_item){.size = sizeof(it[i]), .want = WASTE_WANT_TOKEN, .ids = &fed, .n_ids = 1};
        it[i].session = waste_session_default(ctx);
        if (i)
            assert_int_equal(waste_session_open(ctx, &it[i].session), WASTE_OK);
    }
    waste_sampling_init(&p);
    p.grammar = "root ::= \"a\"";
    p.close_ids = &closing;
    p.n_close = 1;
    assert_int_equal(waste_session_sampling(it[1].session, &p), WASTE_OK);
    assert_int_equal(waste_step(ctx, it, 3), WASTE_E_ARG);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(it[i].status, i == 1 ? WASTE_E_ARG : WASTE_OK);
        assert_int_equal(it[i].n_done, 0);
        assert_int_equal(it[i].token, -1);
        assert_int_equal(waste_session_pos(it[i].session), 0);
    }
    it[1] = it[2];
    assert_int_equal(waste_step(ctx, it, 2), WASTE_OK);
    assert_true(it[0].token >= 0 && it[0].token == it[1].token);
    waste_close(ctx);
}

static void the_memory_of_a_grammar_is_counted(void **state)
{
    struct setup roomy = {.budget = 200 << 20}, floor = {0};
    waste_ctx *ctx = model_open(DEMO_DIR, &roomy);
    uint64_t before = ctx->mem.used_total;
    waste_sampling p;

    (void)state;
    hold(waste_session_default(ctx), 1);
    assert_true(ctx->mem.used_total > before + (16 << 20));
    assert_true(ctx->mem.used_total <= ctx->mem.limit);
    waste_sampling_init(&p);
    assert_int_equal(waste_session_sampling(waste_session_default(ctx), &p), WASTE_OK);
    assert_true(ctx->mem.used_total < before + (1 << 20)); /* the tree stays */
    waste_close(ctx);

    ctx = model_open(DEMO_DIR, &floor);
    p.grammar = schema;
    p.grammar_kind = WASTE_GRAMMAR_JSON_SCHEMA;
    assert_int_equal(waste_session_sampling(waste_session_default(ctx), &p), WASTE_E_RAM_BUDGET);
    assert_non_null(strstr(waste_error_detail(ctx), "grammar needs"));
    waste_close(ctx);
}

static void let_go(waste_session *s)
{
    waste_sampling p;

    waste_sampling_init(&p);
    assert_int_equal(waste_session_sampling(s, &p), WASTE_OK);
}

/* The one that compiled it may go first. */
static void sessions_with_the_same_text_share_a_grammar(void **state)
{
    struct setup s = {.budget = 200 << 20, .sessions = 2};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_session *a = waste_session_default(ctx), *b;
    int32_t ids[TEXT], want[ANSWER], got[ANSWER];
    uint64_t alone, none;
    unsigned n;

    (void)state;
    text_make(ids, ctx->model.hp.vocab, 9);
    assert_int_equal(waste_session_open(ctx, &b), WASTE_OK);
    hold(a, 4);
    let_go(a);
    none = ctx->mem.used_total;
    hold(a, 4);
    alone = ctx->mem.used_total;
    n = answer(ctx, ids, 6, false, want);
    hold(b, 5);
    assert_int_equal(ctx->mem.used_total, alone + MATCH_BYTES_MAX);
    let_go(a);
    assert_int_equal(ctx->mem.used_total, alone);
    waste_session_reset(a);
    hold(a, 4);
    let_go(b);
    assert_int_equal(answer(ctx, ids, 6, false, got), n);
    assert_memory_equal(got, want, n * sizeof(*got));
    hold(a, 4); /* again what it has */
    assert_int_equal(ctx->mem.used_total, alone);
    let_go(a);
    assert_int_equal(ctx->mem.used_total, none);
    waste_close(ctx);
}

/* Compiled apart, and closed by the host before it is used for the last time. */
static void a_grammar_that_was_compiled_apart_gives_the_same_answer(void **state)
{
    struct setup s = {.budget = 200 << 20, .sessions = 2};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_session *a = waste_session_default(ctx), *b;
    int32_t ids[TEXT], want[ANSWER], got[ANSWER];
    waste_tokenizer *t;
    waste_sampling p;
    waste_grammar *g;
    uint64_t none, with_text;
    unsigned n;

    (void)state;
    text_make(ids, ctx->model.hp.vocab, 9);
    assert_int_equal(waste_session_open(ctx, &b), WASTE_OK);
    hold(a, 4);
    let_go(a);
    none = ctx->mem.used_total;
    hold(a, 4);
    with_text = ctx->mem.used_total;
    n = answer(ctx, ids, 6, false, want);
    let_go(a);

    assert_int_equal(waste_tokenizer_open(DEMO_DIR, &t), WASTE_OK);
    assert_int_equal(waste_grammar_open(t, WASTE_GRAMMAR_JSON_SCHEMA, schema, -1, &g), WASTE_OK);
    waste_tokenizer_close(t);
    assert_int_equal(ctx->mem.used_total, none);
    assert_int_equal(waste_grammar_bytes(g), with_text - none - MATCH_BYTES_MAX);
    waste_sampling_init(&p);
    p.seed = 4;
    p.temperature = 1;
    p.compiled = g;
    p.grammar = "no grammar, and not looked at";
    for (unsigned k = 0; k < 2; k++) { /* again what it has */
        assert_int_equal(waste_session_sampling(a, &p), WASTE_OK);
        assert_int_equal(ctx->mem.used_total, with_text);
    }
    assert_int_equal(waste_session_sampling(b, &p), WASTE_OK);
    assert_int_equal(ctx->mem.used_total, with_text + MATCH_BYTES_MAX);
    waste_grammar_close(g);
    waste_session_close(b);
    waste_session_reset(a);
    assert_int_equal(answer(ctx, ids, 6, false, got), n);
    assert_memory_equal(got, want, n * sizeof(*got));
    let_go(a);
    assert_int_equal(ctx->mem.used_total, none);
    waste_close(ctx);
}

/* The single bytes and a control token: what every tokenizer has, and not this model's. */
static struct tokenizer *other_tokenizer(void)
{
    struct rank_file ranks = rank_file_of(NULL);
    static const char specials[] = "[{\"id\":300,\"text\":\"<|sep|>\"}]";
    struct tokenizer *t;
    struct err e;

    assert_int_equal(
        tokenizer_parse(&t, ranks.text, ranks.len, specials, strlen(specials), 400, &e), 0);
    free(ranks.text);
    return t;
}

static void a_grammar_of_another_tokenizer_is_refused(void **state)
{
    struct setup s = {.budget = 200 << 20};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    struct tokenizer *other = other_tokenizer();
    waste_grammar *g = NULL;
    waste_sampling p;

    (void)state;
    assert_int_equal(waste_grammar_open((waste_tokenizer *)(void *)other, WASTE_GRAMMAR_TEXT,
                                        "root ::= \"a\"", -1, &g),
                     WASTE_OK);
    waste_sampling_init(&p);
    p.compiled = g;
    assert_int_equal(waste_session_sampling(waste_session_default(ctx), &p), WASTE_E_ARG);
    assert_non_null(strstr(waste_error_detail(ctx), "compiled: "));
    waste_grammar_close(g);
    waste_grammar_close(NULL);
    assert_int_equal(waste_grammar_bytes(NULL), 0);
    tokenizer_close(other);
    waste_close(ctx);
}

static void what_does_not_compile_says_the_same_in_both_ways(void **state)
{
    static const char *const bad[] = {"root ::= (", "root ::= \"a\" root", "{\"not\": {}}"};
    struct setup s = {.budget = 200 << 20};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_tokenizer *t = waste_tokenizer_of(ctx);
    waste_grammar *g = (waste_grammar *)(void *)&s;
    waste_sampling p;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        waste_status want;

        waste_sampling_init(&p);
        p.grammar = bad[i];
        p.grammar_kind = i == 2 ? WASTE_GRAMMAR_JSON_SCHEMA : WASTE_GRAMMAR_TEXT;
        want = waste_session_sampling(waste_session_default(ctx), &p);
        assert_int_not_equal(want, WASTE_OK);
        assert_int_equal(waste_grammar_open(t, p.grammar_kind, bad[i], -1, &g), want);
        assert_null(g);
        assert_string_equal(waste_error_detail(NULL), waste_error_detail(ctx));
    }
    assert_int_equal(waste_grammar_open(t, 7, "", -1, &g), WASTE_E_ARG);
    assert_int_equal(waste_grammar_open(t, WASTE_GRAMMAR_TEXT, "root ::= \"a\"", 5, &g),
                     WASTE_E_ARG);
    assert_int_equal(waste_grammar_open(NULL, WASTE_GRAMMAR_TEXT, "", -1, &g), WASTE_E_ARG);
    waste_close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_in_any_layer_it_goes_on_as_if_nothing_had_been),
        cmocka_unit_test(every_beginning_and_every_edit_equals_a_cold_run),
        cmocka_unit_test(the_demonstration_model_is_saved_and_taken_up_anywhere),
        cmocka_unit_test(a_cancelled_pass_leaves_a_grammar_where_it_was),
        cmocka_unit_test(going_back_begins_an_answer_anew),
        cmocka_unit_test(a_grammar_that_refuses_close_ids_is_told_so),
        cmocka_unit_test(of_several_items_the_one_whose_close_ids_are_refused_is_to_blame),
        cmocka_unit_test(the_memory_of_a_grammar_is_counted),
        cmocka_unit_test(sessions_with_the_same_text_share_a_grammar),
        cmocka_unit_test(a_grammar_that_was_compiled_apart_gives_the_same_answer),
        cmocka_unit_test(a_grammar_of_another_tokenizer_is_refused),
        cmocka_unit_test(what_does_not_compile_says_the_same_in_both_ways),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
