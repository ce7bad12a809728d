/* What a host does around passes: callbacks that call back, threads, forks, short memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/context.h"
#include "tests/model/heard.h"

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

struct shop { /* grammars, made while passes run */
    waste_tokenizer *t;
    _Atomic(waste_grammar *) made;
    atomic_bool over;
};

static void *make_grammars(void *arg)
{
    struct shop *shop = arg;

    while (!atomic_load(&shop->over)) {
        waste_grammar *g;

        if (waste_grammar_open(shop->t, WASTE_GRAMMAR_JSON_SCHEMA,
                               "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",1]}}", -1,
                               &g) != WASTE_OK)
            return shop;
        waste_grammar_close(atomic_exchange(&shop->made, g));
    }
    return NULL;
}

static void grammars_are_compiled_while_passes_run(void **state)
{
    struct setup s = {.threads = 2, .budget = 200 << 20};
    waste_ctx *ctx = model_open(DEMO_DIR, &s);
    waste_session *se = waste_session_default(ctx);
    struct shop shop = {0};
    pthread_t thread[2];
    int32_t id = 1;
    waste_item it = {
        .size = sizeof(it), .session = se, .want = WASTE_WANT_TOKEN, .ids = &id, .n_ids = 1};

    (void)state;
    assert_int_equal(waste_tokenizer_open(DEMO_DIR, &shop.t), WASTE_OK);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, make_grammars, &shop), 0);
    for (unsigned used = 0; used < 20;) {
        waste_grammar *g = atomic_exchange(&shop.made, NULL);
        waste_sampling p;

        waste_sampling_init(&p);
        p.compiled = g;
        assert_int_equal(waste_session_sampling(se, &p), WASTE_OK);
        waste_grammar_close(g);
        assert_int_equal(waste_session_reset(se), WASTE_OK);
        assert_int_equal(waste_step(ctx, &it, 1), WASTE_OK);
        assert_int_equal(waste_session_grammar(se), g ? WASTE_GRAMMAR_CUT : WASTE_GRAMMAR_NONE);
        used += g != NULL;
    }
    atomic_store(&shop.over, true);
    for (unsigned i = 0; i < 2; i++) {
        void *failed;

        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
    }
    waste_grammar_close(atomic_load(&shop.made));
    waste_tokenizer_close(shop.t);
    waste_close(ctx);
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
    assert_int_equal(open_traced("/dev/null/trace", &ctx), WASTE_E_IO);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_memory_shrinks_the_pool_and_nothing_else),
        cmocka_unit_test(the_progress_callback_cancels),
        cmocka_unit_test(a_callback_cannot_disturb_the_pass_it_comes_from),
        cmocka_unit_test(grammars_are_compiled_while_passes_run),
        cmocka_unit_test(a_forked_child_is_told_to_open_its_own),
        cmocka_unit_test(the_hosts_rounding_mode_changes_nothing),
        cmocka_unit_test(a_route_trace_has_a_line_per_token_and_moe_layer),
        cmocka_unit_test(several_contexts_run_at_once),
        cmocka_unit_test(a_context_may_move_between_threads),
        cmocka_unit_test(a_call_can_be_cancelled_from_another_thread),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
