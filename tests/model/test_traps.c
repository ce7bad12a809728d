/* test_traps.c - mistakes that give plausible text: one direct test each, beside the comparison
 * with the oracle (test_forward.c). tests/README.md has the whole list. */
#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expertfs/shapes.h"
#include "model/context.h"
#include "model/kernels/poly.h"
#include "tests/model/models.h"
#include "tests/support/tiny_container.h"

enum { KIMI_LINEAR, K3, DEEPSEEK, K2, MINI };

static struct hparams published(const char *name)
{
    json_t *config = shape_config(shape_find(name));
    struct hparams hp;
    struct err e;

    assert_non_null(config);
    if (hparams_read(&hp, config, &e))
        fail_msg("%s: %s", name, e.text);
    json_decref(config);
    return hp;
}

/* ---- 1: layers count from one ---- */

static void layer_lists_count_from_one_and_k3_ends_with_two_full_layers(void **state)
{
    struct hparams kl = published("kimi-linear-48b"), k3 = published("k3");

    (void)state;
    for (unsigned l = 0; l < 27; l++) /* 4, 8, ..., 24 and 27 */
        assert_int_equal(kl.is_kda[l], (l + 1) % 4 != 0 && l + 1 != 27);
    for (unsigned l = 0; l < 93; l++) /* 4, 8, ..., 92 and 93 */
        assert_int_equal(k3.is_kda[l], (l + 1) % 4 != 0 && l + 1 != 93);
    assert_int_equal(kl.n_kda, 20);
    assert_int_equal(k3.n_kda, 69);
    assert_int_equal(k3.n_mla, 24);
}

/* ---- 2: A_log has one value per head, whatever lies behind them ---- */

static void run_mini(const char *dir, float logits[64])
{
    static const int32_t ids[] = {3, 7, 11, 5, 60, 1};
    struct setup s = {0};
    waste_ctx *ctx = model_open(dir, &s);

    memcpy(logits, model_feed(ctx, ids, 6, 3), 64 * sizeof(*logits));
    waste_close(ctx);
}

static void values_behind_the_heads_of_a_log_mean_nothing(void **state)
{
    json_t *manifest = tiny_manifest(TINY_VQ3R), *list = json_object_get(manifest, "trunk"), *t;
    float want[64], got[64];
    uint8_t *trunk;
    char dir[512];
    size_t n, i, end;

    (void)state;
    tiny_dir(dir, sizeof(dir));
    tiny_write(dir, TINY_VQ3R);
    run_mini(dir, want);
    trunk = tiny_file_read(dir, "trunk.bin", &n);
    end = n;
    trunk = realloc(trunk, n + 2 * 512);
    json_array_foreach(list, i, t)
    {
        float *values = (float *)(void *)(trunk + end);

        if (!strstr(json_string_value(json_object_get(t, "name")), "A_log"))
            continue;
        for (unsigned j = 0; j < 128; j++) /* as if every channel had one */
            values[j] = 3 - (float)j;
        memcpy(values, trunk + json_integer_value(json_object_get(t, "off")), 2 * sizeof(float));
        json_object_set_new(t, "off", json_integer((json_int_t)end));
        json_object_set_new(t, "shape", json_pack("[i]", 128));
        json_object_set_new(t, "bytes", json_integer(512));
        end += 512;
    }
    assert_int_equal(end, n + 2 * 512);
    tiny_file_write(dir, "trunk.bin", trunk, end);
    tiny_manifest_write(dir, manifest);
    run_mini(dir, got);
    assert_memory_equal(got, want, sizeof(want));
    free(trunk);
    json_decref(manifest);
    tiny_remove(dir);
}

/* ---- 7 and 15: the positional part of a key, and where rotation begins ---- */

struct passed { /* a pass of n rows with the stream after each layer */
    waste_ctx *ctx;
    float *tap;
    unsigned n;
};

static struct passed pass_of(unsigned model, unsigned n)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[model].dir, &s);
    const struct hparams *hp = &ctx->model.hp;
    struct passed p = {ctx, calloc((size_t)hp->n_layers * n * hp->hidden, sizeof(float)), n};
    struct span span = {&ctx->session[0].s, 0, n, 0, false};
    struct rows rows = {.n = n, .n_spans = 1, .span = &span, .token = models[model].gold.ids};
    struct run run = {
        .rows = &rows,
        .model = &ctx->model,
        .experts = ctx->experts,
        .act = &ctx->act,
        .team = ctx->team,
        .progress = &ctx->progress,
        .tap = p.tap,
    };
    struct err e;

    if (forward(&run, &e))
        fail_msg("%s: %s", models[model].name, e.text);
    session_commit(&ctx->session[0].s, models[model].gold.ids, n);
    return p;
}

static void passed_free(struct passed *p)
{
    free(p->tap);
    waste_close(p->ctx);
}

/* What layer `l` projects row t's key and latent to, from the stream the layer before it left
 * (plain residuals only). */
static void project_kv(const struct passed *p, unsigned l, unsigned t, float *kv)
{
    const struct model *m = &p->ctx->model;
    size_t width = act_pad(m->hp.hidden);
    float *h = calloc(width, sizeof(*h));

    m->k.rmsnorm(h, p->tap + ((size_t)(l - 1) * p->n + t) * m->hp.hidden, m->layer[l].mix_norm,
                 m->hp.hidden, m->hp.eps);
    m->k.gemv(kv, m->hp.kv_lora + m->hp.rope, h, width, 1, &m->layer[l].mla.kv_a, 0,
              m->hp.kv_lora + m->hp.rope);
    free(h);
}

static unsigned last_mla(const struct model *m)
{
    unsigned l = m->hp.n_layers - 1;

    while (m->layer[l].mix != MIX_MLA)
        l--;
    return l;
}

/* In a model without positions the key's second part is cached as it was projected: not normed, not
 * turned, one for all heads. */
static void without_positions_the_second_part_of_a_key_is_kept_as_it_is(void **state)
{
    static const unsigned which[] = {KIMI_LINEAR, MINI};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct passed p = pass_of(which[i], 4);
        const struct model *m = &p.ctx->model;
        unsigned l = last_mla(m), c = m->hp.kv_lora;
        float kv[256], normed[256];

        assert_false(m->hp.mla_rotary);
        assert_true(m->hp.rope > 0);
        for (unsigned t = 0; t < p.n; t++) {
            const float *row = session_latent(&p.ctx->session[0].s, m->layer[l].nth, t);

            project_kv(&p, l, t, kv);
            m->k.rmsnorm(normed, kv, m->layer[l].mla.kv_norm, c, m->hp.latent_eps);
            assert_memory_equal(row, normed, c * sizeof(float));
            assert_memory_equal(row + c, kv + c, m->hp.rope * sizeof(float));
        }
        passed_free(&p);
    }
}

static void without_positions_the_second_part_of_a_key_still_counts(void **state)
{
    (void)state;
    for (unsigned part = 0; part < 3; part++) { /* nothing; the latent; the second part */
        struct setup s = {0};
        waste_ctx *ctx = model_open(models[MINI].dir, &s);
        const struct hparams *hp = &ctx->model.hp;
        static float plain[64];
        float *row;

        model_feed(ctx, models[MINI].gold.ids, 2, 2);
        row = session_latent(&ctx->session[0].s, 0, 0);
        if (part == 1)
            memset(row, 0, hp->kv_lora * sizeof(float));
        if (part == 2)
            memset(row + hp->kv_lora, 0, hp->rope * sizeof(float));
        if (!part)
            memcpy(plain, model_feed(ctx, models[MINI].gold.ids + 2, 1, 1), sizeof(plain));
        else
            assert_memory_not_equal(model_feed(ctx, models[MINI].gold.ids + 2, 1, 1), plain,
                                    sizeof(plain));
        waste_close(ctx);
    }
}

/* Stretched frequencies from position 1 on, though the text is far shorter than the length the
 * model was first trained for; position 0 is not turned. */
static void yarn_turns_keys_from_the_first_position(void **state)
{
    static const unsigned which[] = {DEEPSEEK, K2};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct passed p = pass_of(which[i], 4);
        const struct model *m = &p.ctx->model;
        unsigned l = last_mla(m), c = m->hp.kv_lora, stretched = 0;
        float kv[256];

        assert_true(m->hp.mla_rotary);
        for (unsigned j = 0; j < m->hp.rope / 2; j++) {
            double theta = which[i] == DEEPSEEK ? 10000 : 50000;
            double plain = pow(theta, -2.0 * j / m->hp.rope);

            stretched += (double)m->hp.rope_freq[j] < plain * 0.9;
        }
        assert_true(stretched > 0); /* or this test would see nothing */
        for (unsigned t = 0; t < p.n; t++) {
            const float *row = session_latent(&p.ctx->session[0].s, m->layer[l].nth, t);

            project_kv(&p, l, t, kv);
            for (unsigned j = 0; j < m->hp.rope / 2; j++) {
                double turn = (double)t * (double)m->hp.rope_freq[j];
                double a = (double)kv[c + 2 * j], b = (double)kv[c + 2 * j + 1];

                assert_true(fabs((double)row[c + 2 * j] - (a * cos(turn) - b * sin(turn))) < 1e-5);
                assert_true(fabs((double)row[c + 2 * j + 1] - (a * sin(turn) + b * cos(turn))) <
                            1e-5);
            }
        }
        passed_free(&p);
    }
}

static void yarn_multiplies_the_attention_scale_twice(void **state)
{
    struct hparams v3 = published("deepseek-v3");
    double mu = 0.1 * log(40) + 1;

    (void)state;
    assert_true(fabs((double)v3.attn_scale - mu * mu / sqrt(192)) < 1e-7);
    /* and is not there where nothing is turned */
    assert_true(published("k3").attn_scale == (float)(1 / sqrt(192)));
}

/* ---- 13: attention residuals ---- */

struct residual {
    waste_ctx *ctx;
    struct run run;
    struct rows rows;
    struct span span;
};

static void residual_open(struct residual *r)
{
    struct setup s = {0};

    r->ctx = model_open(models[K3].dir, &s);
    r->span = (struct span){&r->ctx->session[0].s, 0, 2, 0, false};
    r->rows = (struct rows){.n = 2, .n_spans = 1, .span = &r->span, .token = models[K3].gold.ids};
    r->run = (struct run){.rows = &r->rows,
                          .model = &r->ctx->model,
                          .act = &r->ctx->act,
                          .team = r->ctx->team,
                          .progress = &r->ctx->progress};
}

/* Row t of a stream or an output: t + 1 times the value. */
static void fill_rows(float *x, size_t width, unsigned hidden, float value)
{
    for (unsigned t = 0; t < 2; t++)
        for (unsigned i = 0; i < hidden; i++)
            x[t * width + i] = (float)(t + 1) * value;
}

static void assert_row(const float *x, unsigned hidden, double value)
{
    for (unsigned i = 0; i < hidden; i++)
        if (fabs((double)x[i] - value) > 1e-4)
            fail_msg("%g, expected %g", (double)x[i], value);
}

/* With projections of zero every mix is the plain mean of the finished blocks and the sum. The sum
 * itself is handed on un-mixed, kept where a block ends, and begun anew by the next output. */
static void without_projections_every_mix_is_a_mean_of_unmixed_sums(void **state)
{
    enum { HIDDEN_MAX = 512 };
    struct residual r;
    float y[2 * HIDDEN_MAX], out[HIDDEN_MAX];
    double sum = 5, kept = 0; /* of the kept blocks together */
    unsigned n = 0, mixes = 0, layers, hidden, block;
    struct model *m;
    struct act *a;

    (void)state;
    residual_open(&r);
    m = &r.ctx->model;
    a = &r.ctx->act;
    hidden = m->hp.hidden;
    layers = m->hp.n_layers;
    block = m->hp.attn_res_block;
    assert_true(block == 2 && layers == 7 && a->hidden_w <= HIDDEN_MAX);
    for (unsigned l = 0; l < layers; l++) {
        memset(m->layer[l].mix_res.both, 0, hidden * sizeof(float));
        memset(m->layer[l].mlp_res.both, 0, hidden * sizeof(float));
    }
    memset(m->out_res.both, 0, hidden * sizeof(float));
    fill_rows(a->x, a->hidden_w, hidden, (float)sum);
    for (unsigned l = 0; l < layers; l++)
        for (unsigned site = RES_MIX; site <= RES_MLP; site++) {
            bool push = site == RES_MIX && l % block == 0;
            const float *in = residual_input(&r.run, l, site);

            mixes += n > 0;
            for (unsigned t = 0; t < 2; t++)
                assert_row(in + t * a->hidden_w, hidden, (t + 1) * (kept + sum) / (n + 1));
            kept += push ? sum : 0;
            n += push;
            sum = (push ? 0 : sum) + l * 2 + site + 1;
            fill_rows(y, a->hidden_w, hidden, (float)(l * 2 + site + 1));
            residual_add(&r.run, l, site, y);
            for (unsigned t = 0; t < 2; t++)
                assert_row(a->x + t * a->hidden_w, hidden, (t + 1) * sum);
        }
    assert_int_equal(n, 4); /* before layers 0, 2, 4, 6 */
    assert_int_equal(mixes, 2 * layers - 1);
    residual_final(&r.run, 1, out); /* the last mix exists, */
    assert_row(out, hidden, 2 * (kept + sum) / (n + 1));
    residual_final(&r.run, 1, a->x + a->hidden_w); /* and may write over the sum it reads */
    assert_memory_equal(a->x + a->hidden_w, out, hidden * sizeof(float));
    waste_close(r.ctx);
}

/* ---- 17.2: attention over one position ---- */

static void attention_over_one_position_returns_its_value(void **state)
{
    static const unsigned which[] = {KIMI_LINEAR, K3, DEEPSEEK};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct setup s = {0};
        waste_ctx *ctx = model_open(models[which[i]].dir, &s);
        const struct model *m = &ctx->model;
        unsigned width = m->hp.kv_lora + m->hp.rope, stride = hparams_latent_stride(&m->hp);
        alignas(64) float scratch[2560];
        float key[256] = {0}, q[256] = {0}, out[256];

        struct attend_shape shape = {.heads = 1,
                                     .width = width,
                                     .value_width = m->hp.kv_lora,
                                     .key_stride = stride,
                                     .scale = m->hp.attn_scale};

        assert_true(stride <= 256 && attend_scratch_floats(m->hp.kv_lora, 1) <= 2560);
        for (unsigned j = 0; j < width; j++) {
            key[j] = (float)j / 7 - 3;
            q[j] = 11 - (float)j;
        }
        m->k.attend(out, q, key, 1, 1, &shape, scratch);
        assert_memory_equal(out, key, m->hp.kv_lora * sizeof(float));
        waste_close(ctx);
    }
}

/* ---- 23: head_dim of the configuration ---- */

static int add_shape(const struct weight *w, void *arg, struct err *e)
{
    uint64_t *sum = arg;

    (void)e;
    for (const char *c = w->name; *c; c++)
        *sum = *sum * 31 + (uint64_t)*c;
    *sum = (*sum * 31 + w->rows) * 31 + w->cols;
    return 0;
}

static void head_dim_of_the_configuration_means_nothing(void **state)
{
    static const char *const value[] = {NULL, "72", "1", "128", "null"};
    uint64_t want = 0;

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        json_t *config = shape_config(shape_find("kimi-linear-48b"));
        uint64_t sum = 0;
        struct hparams hp;
        struct err e;

        json_object_del(config, "head_dim");
        if (value[i])
            json_object_set_new(config, "head_dim", json_loads(value[i], JSON_DECODE_ANY, NULL));
        if (hparams_read(&hp, config, &e) || weights_each(&hp, NULL, add_shape, &sum, &e))
            fail_msg("%s", e.text);
        assert_int_equal(hp.kda_dim, 128); /* of linear_attn_config, which is another head_dim */
        assert_true(hp.attn_scale == (float)(1 / sqrt(192)));
        want = i ? want : sum;
        assert_int_equal(sum, want);
        json_decref(config);
    }
}

/* ---- of the interfaces ---- */

struct heard {
    waste_ctx *ctx;
    unsigned n, fed;
    size_t pos[8];
    float logprob[8];
    int32_t token[8];
};

static int hear(const waste_token_info *info, const char *piece, void *user)
{
    struct heard *h = user;

    assert_non_null(piece);
    assert_int_equal(info->token_index, h->n);
    h->pos[h->n] = waste_session_pos(waste_session_default(h->ctx));
    h->logprob[h->n] = info->logprob;
    h->token[h->n++] = info->token;
    return 0;
}

/* T39, T38: a token is handed over as soon as it is chosen, not after the next pass; and its log
 * probability is one. */
static void a_token_is_heard_before_it_is_fed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        struct setup s = {0};
        struct heard h = {.ctx = model_open(models[i].dir, &s)};
        waste_gen_params p;

        waste_gen_params_init(&p);
        p.temperature = 1;
        p.max_tokens = 8;
        assert_int_equal(waste_generate(h.ctx, models[i].gold.ids, 3, &p, hear, &h), WASTE_OK);
        assert_true(h.n > 0);
        for (unsigned t = 0; t < h.n; t++) {
            assert_int_equal(h.pos[t], 3 + t);
            assert_true(h.logprob[t] < 0 && h.logprob[t] > -50);
        }
        /* at return all of them are in the session */
        assert_int_equal(waste_session_pos(waste_session_default(h.ctx)), 3 + h.n);
        waste_close(h.ctx);
    }
}

/* T33: seed 0 is a seed like any other, and not a hidden constant for "none". */
static void seed_zero_is_a_seed_like_any_other(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[MINI].dir, &s);
    struct heard h[3];

    (void)state;
    for (unsigned i = 0; i < 3; i++) { /* 0, 1, and 0 again */
        waste_gen_params p;

        h[i] = (struct heard){.ctx = ctx};
        waste_gen_params_init(&p);
        p.temperature = 5;
        p.max_tokens = 8;
        p.seed = i % 2;
        waste_state_reset(ctx);
        assert_int_equal(waste_generate(ctx, models[MINI].gold.ids, 3, &p, hear, &h[i]), WASTE_OK);
    }
    assert_int_equal(h[0].n, h[2].n);
    assert_memory_equal(h[0].token, h[2].token, h[0].n * sizeof(int32_t));
    assert_true(h[0].n != h[1].n || memcmp(h[0].token, h[1].token, h[0].n * sizeof(int32_t)) != 0);
    assert_true(sampler_uniform(0, 0, 0) != sampler_uniform(42, 0, 0));
    waste_close(ctx);
}

/* The draw of a position does not depend on where a generation began: 4 + 4 tokens are 8 tokens. */
static void a_text_cut_into_two_generations_is_the_same_text(void **state)
{
    struct setup s = {0};
    waste_ctx *ctx = model_open(models[MINI].dir, &s);
    struct heard whole = {.ctx = ctx};
    waste_gen_params p;

    (void)state;
    waste_gen_params_init(&p);
    p.temperature = 3;
    p.seed = 6;
    p.max_tokens = 8;
    assert_int_equal(waste_generate(ctx, models[MINI].gold.ids, 3, &p, hear, &whole), WASTE_OK);
    for (unsigned cut = 1; cut < whole.n; cut++) {
        struct heard a = {.ctx = ctx}, b = {.ctx = ctx};

        waste_state_reset(ctx);
        p.max_tokens = cut;
        assert_int_equal(waste_generate(ctx, models[MINI].gold.ids, 3, &p, hear, &a), WASTE_OK);
        assert_int_equal(a.n, cut);
        waste_state_reset(ctx); /* the host sends the text so far, and asks for more */
        model_feed(ctx, models[MINI].gold.ids, 3, 3);
        if (cut > 1)
            model_feed(ctx, a.token, cut - 1, 8);
        p.max_tokens = whole.n - cut;
        assert_int_equal(waste_generate(ctx, a.token + cut - 1, 1, &p, hear, &b), WASTE_OK);
        assert_int_equal(b.n, whole.n - cut);
        assert_memory_equal(b.token, whole.token + cut, b.n * sizeof(int32_t));
    }
    waste_close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_lists_count_from_one_and_k3_ends_with_two_full_layers),
        cmocka_unit_test(values_behind_the_heads_of_a_log_mean_nothing),
        cmocka_unit_test(without_positions_the_second_part_of_a_key_is_kept_as_it_is),
        cmocka_unit_test(without_positions_the_second_part_of_a_key_still_counts),
        cmocka_unit_test(yarn_turns_keys_from_the_first_position),
        cmocka_unit_test(yarn_multiplies_the_attention_scale_twice),
        cmocka_unit_test(without_projections_every_mix_is_a_mean_of_unmixed_sums),
        cmocka_unit_test(attention_over_one_position_returns_its_value),
        cmocka_unit_test(head_dim_of_the_configuration_means_nothing),
        cmocka_unit_test(a_token_is_heard_before_it_is_fed),
        cmocka_unit_test(seed_zero_is_a_seed_like_any_other),
        cmocka_unit_test(a_text_cut_into_two_generations_is_the_same_text),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
