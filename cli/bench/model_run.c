#include "cli/bench/model_run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/reader.h"
#include "cli/bench/store.h"
#include "cli/bench/trial.h"
#include "cli/term.h"
#include "expertfs/manifest.h"

enum { POSITIONS_UNIT = 64, SEED = 1, TEXT_MAX = 16 << 20 };

struct model_choice model_choice = {.lookahead = -1};

static int fail_status_of(struct err *e, waste_status st, const waste_ctx *ctx)
{
    static const int code[] = {
        [-WASTE_E_IO] = ERR_IO,
        [-WASTE_E_FORMAT] = ERR_FORMAT,
        [-WASTE_E_RAM_BUDGET] = ERR_BUDGET,
        [-WASTE_E_OOM] = ERR_NOMEM,
        [-WASTE_E_ARG] = ERR_ARG,
        [-WASTE_E_UNSUPPORTED] = ERR_UNSUPPORTED,
        [-WASTE_E_CANCELLED] = ERR_CANCELLED,
        [-WASTE_E_BUSY] = ERR_BUSY,
        [-WASTE_E_CORRUPT] = ERR_CORRUPT,
        [-WASTE_E_LIMIT] = ERR_LIMIT,
    };
    const char *detail = waste_error_detail(ctx);

    return err_set(e, code[-st], "%s", detail ? detail : waste_strerror(st));
}

/* Reading a model in takes minutes. */
static int on_progress(const waste_progress *p, void *user)
{
    (void)p;
    (void)user;
    return term_interrupted();
}

static void settings(waste_cfg *cfg, waste_opts *opts, const struct model_way *way)
{
    waste_cfg_init(cfg);
    waste_opts_init(opts);
    cfg->ram_budget_bytes = way->budget;
    cfg->ctx_tokens = (way->positions / POSITIONS_UNIT + 1) * POSITIONS_UNIT;
    cfg->n_threads = (int)model_choice.threads;
    cfg->cpu_list = model_choice.cpus;
    cfg->usage_path = ""; /* pools begin empty, whatever was learned */
    opts->lookahead = (int32_t)model_choice.lookahead;
    opts->policy = model_choice.policy;
    opts->io_engine = model_choice.engine;
    opts->numeric = way->numeric ? way->numeric : model_choice.numeric;
    opts->cpu_level = way->cpu_level;
    opts->route_trace = way->route_trace;
    opts->progress = on_progress;
}

int model_run_open(struct model_run *m, const struct model_way *way, struct err *e)
{
    waste_cfg cfg;
    waste_opts opts;
    waste_status st;

    *m = (struct model_run){.engine = {.size = sizeof(m->engine)}};
    settings(&cfg, &opts, way);
    st = waste_open_ex(way->path, &cfg, &opts, &m->ctx);
    if (st)
        return fail_status_of(e, st, NULL);
    term_cancels(m->ctx, NULL);
    st = waste_engine_info(m->ctx, &m->engine);
    if (!st)
        st = waste_memory_used(m->ctx, &m->used);
    return st ? fail_status_of(e, st, m->ctx) : 0;
}

void model_run_close(struct model_run *m)
{
    term_cancels(NULL, NULL);
    waste_close(m->ctx);
    m->ctx = NULL;
}

int model_run_plan(waste_plan *out, const struct model_way *way, struct err *e)
{
    waste_cfg cfg;
    waste_opts opts;
    waste_status st;

    settings(&cfg, &opts, way);
    *out = (waste_plan){.size = sizeof(*out)};
    st = waste_plan_ex(way->path, &cfg, &opts, out);
    return st ? fail_status_of(e, st, NULL) : 0;
}

/* The manifest tells the vocabulary without loading anything. */
static int invent_ids(int32_t *ids, size_t n, const char *path, struct err *e)
{
    const int dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct manifest m;
    uint64_t seed = SEED;
    int rc;

    if (dirfd < 0)
        return err_sys(e, errno, "%s", path);
    rc = manifest_read(&m, dirfd, path, e);
    close(dirfd);
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(random_next(&seed) % m.vocab);
    manifest_release(&m);
    return 0;
}

static int read_text(char **out, size_t *len, const char *path, struct err *e)
{
    FILE *f = fopen(path, "re");
    int rc = 0;

    *out = f ? malloc(TEXT_MAX) : NULL;
    if (!f)
        return err_sys(e, errno, "--text %s", path);
    *len = *out ? fread(*out, 1, TEXT_MAX, f) : 0;
    if (!*out)
        rc = err_set(e, ERR_NOMEM, "--text %s", path);
    else if (ferror(f))
        rc = err_sys(e, errno, "--text %s", path);
    fclose(f);
    return rc;
}

static int encode(int32_t *ids, size_t n, const char *text, size_t len, const char *path,
                  struct err *e)
{
    waste_tokenizer *t = NULL;
    waste_status st = waste_tokenizer_open(path, &t);
    int32_t *all = malloc((len + 1) * sizeof(*all)); /* a token has a byte */
    size_t found = 0;
    int rc = 0;

    if (!all)
        rc = err_set(e, ERR_NOMEM, "%zu bytes of text", len);
    else if (st || (st = waste_encode(t, WASTE_CONTENT, text, len, all, len + 1, &found)))
        rc = fail_status_of(e, st, NULL);
    else if (found < n)
        rc = err_set(e, ERR_ARG,
                     "--text %s: %zu tokens, %zu are fed: take a longer text or feed fewer",
                     model_choice.text, found, n);
    else
        memcpy(ids, all, n * sizeof(*ids));
    free(all);
    waste_tokenizer_close(t);
    return rc;
}

int model_run_ids(int32_t **out, size_t n, const char *path, struct err *e)
{
    int32_t *ids = calloc(n, sizeof(*ids));
    char *text = NULL;
    size_t len = 0;
    int rc;

    if (!ids)
        rc = err_set(e, ERR_NOMEM, "%zu ids", n);
    else if (!model_choice.text)
        rc = invent_ids(ids, n, path, e);
    else
        rc = read_text(&text, &len, model_choice.text, e) || encode(ids, n, text, len, path, e)
                 ? e->code
                 : 0;
    free(text);
    if (rc)
        free(ids);
    else
        *out = ids;
    return rc;
}

static int feed_all(struct model_run *m, const int32_t *ids, size_t n, bool one_by_one,
                    uint64_t *digest, struct err *e)
{
    for (size_t at = 0; at < n;) {
        waste_item it = {.size = sizeof(it),
                         .want = WASTE_WANT_TOKEN,
                         .session = waste_session_default(m->ctx),
                         .ids = ids + at,
                         .n_ids = one_by_one ? 1 : n - at};
        waste_status st = waste_step(m->ctx, &it, 1);

        if (st)
            return fail_status_of(e, st, m->ctx);
        if (it.stop & WASTE_STOP_CONTEXT)
            return err_set(e, ERR_LIMIT, "the context is full after %zu positions", at);
        at += it.n_done;
        if (it.token >= 0) {
            *digest = digest_bytes(*digest, &it.token, sizeof(it.token));
            *digest = digest_bytes(*digest, &it.logprob, sizeof(it.logprob));
        }
    }
    return 0;
}

static int greedy(struct model_run *m, struct err *e)
{
    waste_sampling s;
    waste_status st;

    waste_sampling_init(&s);
    s.temperature = 0;
    st = waste_session_sampling(waste_session_default(m->ctx), &s);
    return st ? fail_status_of(e, st, m->ctx) : 0;
}

int model_feed(struct model_run *m, const int32_t *ids, size_t n, bool one_by_one,
               struct model_took *out, struct err *e)
{
    waste_counters before = {.size = sizeof(before)}, after = before;
    const double device = usage_now().from_device;
    double began;

    *out = (struct model_took){.digest = 0};
    if (greedy(m, e))
        return e->code;
    waste_get_counters(m->ctx, &before);
    began = now_s();
    if (feed_all(m, ids, n, one_by_one, &out->digest, e))
        return e->code;
    out->seconds = now_s() - began;
    waste_get_counters(m->ctx, &after);
    out->from_device = usage_now().from_device - device;
    out->wait_s = after.sec_io - before.sec_io;
    out->experts_s = after.sec_experts - before.sec_experts;
    out->trunk_s = after.sec_mix + after.sec_mlp + after.sec_head -
                   (before.sec_mix + before.sec_mlp + before.sec_head);
    out->hits = (double)(after.hits_resident - before.hits_resident);
    out->early = (double)(after.hits_prefetch - before.hits_prefetch);
    out->misses = (double)(after.misses - before.misses);
    out->bytes = (double)(after.bytes_read - before.bytes_read);
    return 0;
}

void model_run_note(char *note, size_t note_bytes, const struct model_run *m)
{
    if (m->engine.n_banks_direct < m->engine.n_banks)
        snprintf(note, note_bytes, "not direct: %.70s", m->engine.direct_why);
}
