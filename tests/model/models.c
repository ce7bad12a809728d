#include "tests/model/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/context.h"
#include "tests/support/tiny_container.h"

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

struct test_model *models;

int models_setup(void **state)
{
    static const struct {
        const char *name;
        int tiny; /* TINY_*: made here; -1: it stands beside its golden results */
    } all[N_MODELS] = {{"kimi-linear", -1}, {"k3", -1},          {"deepseek", -1},
                       {"k2", -1},          {"mini", TINY_VQ3R}, {"mini-vq4p", TINY_VQ4P}};
    struct test_model *m = calloc(N_MODELS, sizeof(*m));
    char path[600];

    (void)state;
    assert_non_null(m);
    for (unsigned i = 0; i < N_MODELS; i++) {
        m[i].name = all[i].name;
        m[i].made = all[i].tiny >= 0;
        snprintf(path, sizeof(path), "%s/%s.gold", GOLDEN_DIR, m[i].name);
        golden_open(&m[i].gold, path);
        if (m[i].made) {
            tiny_dir(m[i].dir, sizeof(m[i].dir));
            tiny_write(m[i].dir, (enum tiny)all[i].tiny);
        } else {
            snprintf(m[i].dir, sizeof(m[i].dir), "%s/%s.waste", GOLDEN_DIR, m[i].name);
        }
    }
    models = m;
    return 0;
}

int models_teardown(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_MODELS; i++) {
        golden_close(&models[i].gold);
        if (models[i].made)
            tiny_remove(models[i].dir);
    }
    free(models);
    return 0;
}

static void settings(const struct setup *s, waste_cfg *cfg, waste_opts *opts)
{
    waste_cfg_init(cfg);
    waste_opts_init(opts);
    cfg->ctx_tokens = s->ctx ? s->ctx : 64;
    cfg->n_threads = s->threads ? (int)s->threads : 1;
    cfg->ram_budget_bytes = s->budget;
    cfg->use_direct_io = !s->buffered;
    cfg->verify_records = !s->no_verify;
    opts->max_sessions = s->sessions ? s->sessions : 1;
    opts->max_rows = s->rows ? s->rows : 64;
    opts->checkpoints = s->checkpoints;
    opts->lookahead = s->lookahead;
    opts->io_engine = s->io ? s->io : "sync";
    opts->numeric = s->numeric ? s->numeric : "f32";
    opts->cpu_level = s->cpu;
    opts->policy = s->policy;
    cfg->usage_path = s->usage;
}

uint64_t model_floor(const char *dir, const struct setup *s)
{
    waste_plan p = {.size = sizeof(p)};
    waste_cfg cfg;
    waste_opts opts;

    settings(s, &cfg, &opts);
    assert_int_equal(waste_plan_ex(dir, &cfg, &opts, &p), WASTE_OK);
    return p.mem.floor_bytes;
}

waste_ctx *model_open(const char *dir, const struct setup *s)
{
    waste_ctx *ctx;
    waste_cfg cfg;
    waste_opts opts;

    settings(s, &cfg, &opts);
    if (!cfg.ram_budget_bytes)
        cfg.ram_budget_bytes = model_floor(dir, s);
    if (waste_open_ex(dir, &cfg, &opts, &ctx) != WASTE_OK)
        fail_msg("%s: %s", dir, waste_error_detail(NULL));
    return ctx;
}

const char *model_engine(unsigned i)
{
    const char *only = getenv("WASTE_TEST_ENGINES");

    for (const struct io_ops *const *ops = io_engines(); *ops; ops++)
        if ((!only || strstr(only, (*ops)->name)) && i-- == 0)
            return (*ops)->name;
    return NULL;
}

const float *model_feed(waste_ctx *ctx, const int32_t *ids, unsigned n, unsigned cut)
{
    waste_item it = {.size = sizeof(it), .session = waste_session_default(ctx)};

    for (unsigned at = 0; at < n; at += (unsigned)it.n_done) {
        it.ids = ids + at;
        it.n_ids = n - at < cut ? n - at : cut;
        it.want = at + it.n_ids == n ? WASTE_WANT_LOGITS : 0;
        if (waste_step(ctx, &it, 1) != WASTE_OK)
            fail_msg("step: %s", waste_error_detail(ctx));
        assert_true(it.n_done > 0);
    }
    return it.logits;
}

void *model_memory(waste_ctx *ctx, size_t *n)
{
    const struct hparams *hp = &ctx->model.hp;
    struct session *s = &ctx->session[0].s;
    size_t kda = hp->n_kda * session_state_floats(hp) * sizeof(float);
    size_t win = hp->n_kda * 3 * session_window_floats(hp) * sizeof(float);
    size_t row = s->pos * hparams_latent_stride(hp) * sizeof(float);
    char *p, *at;

    *n = kda + win + hp->n_mla * row + sizeof(s->pos);
    p = at = malloc(*n);
    assert_non_null(p);
    memcpy(at, s->state[s->side], kda);
    memcpy(at += kda, s->window[s->side], win);
    at += win;
    for (unsigned l = 0; l < hp->n_mla; l++, at += row)
        memcpy(at, session_latent(s, l, 0), row);
    memcpy(at, &s->pos, sizeof(s->pos));
    return p;
}
