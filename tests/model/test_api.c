/* test_api.c - waste.h as a host sees it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/context.h"
#include "tests/model/heard.h"

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
    enum { RESET, TRUNCATE, RESTORE, WAYS };
    struct setup s = {.checkpoints = 1};
    waste_ctx *ctx = model_open(models[0].dir, &s);
    const struct golden *g = &models[0].gold;
    waste_session *a = waste_session_default(ctx);
    waste_checkpoint *c;
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
    assert_int_equal(waste_checkpoint_take(a, &c), WASTE_OK);
    for (unsigned way = 0; way <= WAYS; way++) {
        choices(a, ctx, g->ids, 4, ids, logprob, 6);
        assert_memory_equal(ids, free_ids, 2 * sizeof(*ids));
        assert_memory_equal(ids + 2, close, sizeof(close));
        assert_true(ids[2] == free_ids[2] || logprob[2] < free_logprob[2]); /* the model's own */
        assert_int_equal(way == TRUNCATE  ? waste_session_truncate(a, 0)    /* an answer begins */
                         : way == RESTORE ? waste_checkpoint_restore(c, a)
                                          : waste_session_reset(a),
                         WASTE_OK);
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
        cmocka_unit_test(items_of_older_hosts_still_do),
        cmocka_unit_test(layers_say_what_they_found),
        cmocka_unit_test(stop_strings_of_a_host),
        cmocka_unit_test(steps_take_what_fits),
        cmocka_unit_test(budgets_below_the_floor_are_refused_with_the_numbers),
        cmocka_unit_test(text_goes_in_and_out),
        cmocka_unit_test(a_text_in_blocks_has_the_ids_of_the_whole),
        cmocka_unit_test(pieces_are_whole_characters),
        cmocka_unit_test(information_is_consistent),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
