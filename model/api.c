/* api.c - versions, statuses, and what an open model says of itself: a part of waste.h (see
 * context.h). */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "model/context.h"

static _Thread_local struct err thread_error;

waste_status status_of(int code)
{
    switch (code) {
    case 0:
        return WASTE_OK;
    case ERR_ARG:
        return WASTE_E_ARG;
    case ERR_FORMAT:
        return WASTE_E_FORMAT;
    case ERR_CORRUPT:
        return WASTE_E_CORRUPT;
    case ERR_LIMIT:
        return WASTE_E_LIMIT;
    case ERR_UNSUPPORTED:
        return WASTE_E_UNSUPPORTED;
    case ERR_NOMEM:
        return WASTE_E_OOM;
    case ERR_BUDGET:
        return WASTE_E_RAM_BUDGET;
    case ERR_BUSY:
        return WASTE_E_BUSY;
    case ERR_CANCELLED:
        return WASTE_E_CANCELLED;
    }
    return WASTE_E_IO;
}

waste_status ctx_fail(waste_ctx *ctx, const struct err *e)
{
    ctx->error = *e;
    return status_of(e->code);
}

waste_status ctx_refuse(waste_ctx *ctx, const char *what)
{
    struct err e;

    err_set(&e, ERR_ARG, "%s", what);
    return ctx ? ctx_fail(ctx, &e) : thread_fail(&e);
}

waste_status ctx_enter(waste_ctx *ctx)
{
    struct err e;

    if (!ctx)
        return ctx_refuse(NULL, "the context is NULL");
    if (ctx->pid != (long)getpid())
        err_set(&e, ERR_BUSY, "this context was opened before a fork; open one in the child");
    else if (ctx->running)
        err_set(&e, ERR_BUSY, "called from a callback of this context while a pass runs");
    else {
        ctx->error = (struct err){0};
        return WASTE_OK;
    }
    /* the running call owns ctx->error */
    return thread_fail(&e);
}

waste_status thread_fail(const struct err *e)
{
    thread_error = *e;
    return status_of(e->code);
}

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *waste_error_detail(const waste_ctx *ctx)
{
    const struct err *e = ctx ? &ctx->error : &thread_error;

    return e->code || e->text[0] ? e->text : NULL;
}

const char *waste_version(void)
{
    return WASTE_VERSION_STRING;
}

int waste_version_number(void)
{
    return WASTE_VERSION_NUMBER;
}

const char *waste_build_info(void)
{
    static _Thread_local char text[256];
    const struct io_ops *const *io = io_engines();
    struct kernels k;
    int n;

    kernels_init(&k, cpu_detect(), PROFILE_F32);
    n = snprintf(text, sizeof(text), "WASTE %s (container v%d, io", WASTE_VERSION_STRING,
                 FORMAT_VERSION);
    for (; *io && n < (int)sizeof(text); io++)
        n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", (*io)->name);
    if (n < (int)sizeof(text))
        snprintf(text + n, sizeof(text) - (size_t)n,
                 ", kernels %s, crc32 libdeflate, unicode %s, %s)", k.name,
                 tokenizer_unicode_version(),
#if defined(__x86_64__)
                 "x86_64"
#elif defined(__aarch64__)
                 "aarch64"
#else
                 "other"
#endif
        );
    return text;
}

const char *waste_strerror(waste_status st)
{
    switch (st) {
    case WASTE_OK:
        return "ok";
    case WASTE_E_IO:
        return "input/output error";
    case WASTE_E_FORMAT:
        return "malformed file";
    case WASTE_E_RAM_BUDGET:
        return "does not fit into the memory budget";
    case WASTE_E_OOM:
        return "out of memory";
    case WASTE_E_ARG:
        return "invalid argument";
    case WASTE_E_UNSUPPORTED:
        return "not supported";
    case WASTE_E_CANCELLED:
        return "cancelled";
    case WASTE_E_BUSY:
        return "busy";
    case WASTE_E_CORRUPT:
        return "corrupt data";
    case WASTE_E_LIMIT:
        return "beyond a limit";
    }
    return "unknown status";
}

uint64_t waste_physical_ram(void)
{
    return machine_ram();
}

uint64_t waste_usable_ram(void)
{
    char why[128];

    return machine_usable_ram(NULL, why, sizeof(why));
}

size_t waste_abi(int kind)
{
    switch (kind) {
    case WASTE_ABI_CFG:
        return sizeof(waste_cfg);
    case WASTE_ABI_MEMPLAN:
        return sizeof(waste_memplan);
    case WASTE_ABI_GEN_PARAMS:
        return sizeof(waste_gen_params);
    case WASTE_ABI_TOKEN_INFO:
        return sizeof(waste_token_info);
    case WASTE_ABI_MODEL_INFO:
        return sizeof(waste_model_info);
    case WASTE_ABI_STATS:
        return sizeof(waste_stats);
    case WASTE_ABI_OPTS:
        return sizeof(waste_opts);
    case WASTE_ABI_PLAN:
        return sizeof(waste_plan);
    case WASTE_ABI_ENGINE:
        return sizeof(waste_engine);
    case WASTE_ABI_COUNTERS:
        return sizeof(waste_counters);
    case WASTE_ABI_SAMPLING:
        return sizeof(waste_sampling);
    case WASTE_ABI_ITEM:
        return sizeof(waste_item);
    case WASTE_ABI_PROGRESS:
        return sizeof(waste_progress);
    case WASTE_ABI_STATE_INFO:
        return sizeof(waste_state_info);
    case WASTE_ABI_STORE_CFG:
        return sizeof(waste_store_cfg);
    case WASTE_ABI_STORE_INFO:
        return sizeof(waste_store_info);
    case WASTE_ABI_CHAT_OPTS:
        return sizeof(waste_chat_opts);
    case WASTE_ABI_CHAT_INFO:
        return sizeof(waste_chat_info);
    case WASTE_ABI_SEGMENT:
        return sizeof(waste_segment);
    case WASTE_ABI_MESSAGE_END:
        return sizeof(waste_message_end);
    case WASTE_ABI_IMAGE_PLACE:
        return sizeof(waste_image_place);
    case WASTE_ABI_PROMPT_INFO:
        return sizeof(waste_prompt_info);
    case WASTE_ABI_EVENT:
        return sizeof(waste_event);
    case WASTE_ABI_LAYER_USE:
        return sizeof(waste_layer_use);
    case WASTE_ABI_CONSTRAINT:
        return sizeof(waste_constraint);
    case WASTE_ABI_IMAGE_INFO:
        return sizeof(waste_image_info);
    }
    return 0;
}

/* The published binding passes buffers of exactly these sizes. */
_Static_assert(sizeof(void *) != 8 || sizeof(waste_cfg) == 56, "waste_cfg");
_Static_assert(sizeof(void *) != 8 || sizeof(waste_memplan) == 64, "waste_memplan");
_Static_assert(sizeof(void *) != 8 || sizeof(waste_gen_params) == 56, "waste_gen_params");
_Static_assert(sizeof(void *) != 8 || sizeof(waste_token_info) == 48, "waste_token_info");
_Static_assert(sizeof(void *) != 8 || sizeof(waste_model_info) == 56, "waste_model_info");
_Static_assert(sizeof(void *) != 8 || sizeof(waste_stats) == 56, "waste_stats");

waste_status waste_memory_used(const waste_ctx *ctx, waste_memplan *out)
{
    if (!ctx || !out)
        return ctx_refuse(NULL, "waste_memory_used: context and out are needed");
    memplan_of(out, &ctx->plan);
    out->scratch_bytes = ctx->plan.scratch_rows;
    out->min_expert_cache = (uint64_t)ctx->frames.n * ctx->frames.frame_bytes;
    return WASTE_OK;
}

waste_status waste_model_get_info(const waste_ctx *ctx, waste_model_info *out)
{
    const struct hparams *hp;

    if (!ctx || !out)
        return ctx_refuse(NULL, "waste_model_get_info: context and out are needed");
    hp = &ctx->model.hp;
    *out = (waste_model_info){
        .n_layers = hp->n_layers,
        .n_experts = hp->n_experts,
        .top_k = hp->top_k,
        .hidden = hp->hidden,
        .ctx_max = ctx->ctx_tokens,
        .params_total =
            ctx->facts.params_trunk + ctx->facts.params_embed + expert_params(hp, hp->n_experts),
        .params_active = ctx->facts.params_trunk + expert_params(hp, hp->top_k),
        .arch = ctx->arch,
        .quant_summary = ctx->quant,
    };
    return WASTE_OK;
}

waste_status give_sized(void *out, const void *from, size_t bytes)
{
    uint32_t size;

    if (!out)
        return ctx_refuse(NULL, "out is NULL");
    memcpy(&size, out, sizeof(size));
    if (size < sizeof(size) || size > 65536)
        return ctx_refuse(NULL, "out->size is not set");
    memcpy((char *)out + sizeof(size), (const char *)from + sizeof(size),
           (size < bytes ? size : bytes) - sizeof(size));
    return WASTE_OK;
}

waste_status waste_engine_info(const waste_ctx *ctx, waste_engine *out)
{
    waste_engine e;

    if (!ctx)
        return ctx_refuse(NULL, "the context is NULL");
    e = (waste_engine){
        .size = sizeof(e),
        .n_threads = ctx->placement.n_threads,
        .n_frames = ctx->frames.n,
        .io_depth = ctx->depth,
        .lookahead = ctx->lookahead,
        .max_rows = ctx->plan.rows,
        .frame_bytes = ctx->frames.frame_bytes,
        .budget_bytes = ctx->plan.budget,
        .n_banks = ctx->n_banks,
        .n_banks_direct = ctx->n_direct,
        .io_engine = ctx->io_report.engine ? ctx->io_report.engine : "none",
        .io_steps = ctx->io_report.steps,
        .direct_why = ctx->direct_why,
        .numeric = profile_name(ctx->profile),
        .kernels = ctx->model.k.name,
        .policy = ctx->opts.policy,
        .verify = ctx->cfg.verify_records != 0,
        .io_note = ctx->io_report.note,
        .vocab = ctx->model.hp.vocab,
        .n_preload = ctx->n_preload,
        .usage = ctx->usage_read,
        .depth_from = ctx->depth_from,
        .drive_bytes_per_s = ctx->drive_bytes_per_s,
        .placement = ctx->placement.text,
    };
    return give_sized(out, &e, sizeof(e));
}

/* Parts that add up to the passes: what no lap saw is `other`, with the choice of a token. */
static void seconds_of(const waste_ctx *ctx, const struct pool_stats *s, waste_counters *c)
{
    const uint64_t *ns = ctx->laps.ns;

    c->sec_io = (double)s->wait_ns * 1e-9;
    c->sec_in_flight = (double)s->flight_ns * 1e-9;
    c->sec_mix = (double)ns[LAP_MIX] * 1e-9;
    c->sec_mlp = (double)ns[LAP_MLP] * 1e-9;
    c->sec_route = (double)ns[LAP_ROUTE] * 1e-9;
    c->sec_experts = (double)ns[LAP_EXPERTS] * 1e-9;
    c->sec_checks = ns[LAP_PIN] > s->wait_ns ? (double)(ns[LAP_PIN] - s->wait_ns) * 1e-9 : 0;
    c->sec_head = (double)ns[LAP_HEAD] * 1e-9;
    c->sec_other = c->sec_prefill + c->sec_decode - c->sec_io - c->sec_mix - c->sec_mlp -
                   c->sec_route - c->sec_experts - c->sec_checks - c->sec_head;
}

waste_status waste_get_counters(const waste_ctx *ctx, waste_counters *out)
{
    waste_counters c;
    struct pool_stats s;

    if (!ctx)
        return ctx_refuse(NULL, "the context is NULL");
    c = ctx->counters;
    ctx_pool_stats(ctx, &s);
    seconds_of(ctx, &s, &c);
    c.hits_resident = s.hits_resident;
    c.hits_prefetch = s.hits_guess;
    c.misses = s.misses;
    c.bytes_read = s.bytes;
    c.bytes_prefetch = s.bytes_guess;
    c.preloaded = s.warm;
    c.hits_preload = s.hits_warm;
    c.late_prefetch = s.late_guess;
    c.late_misses = s.late_miss;
    c.guesses = s.guesses;
    c.guesses_wasted = s.wasted;
    c.guesses_refused = s.refused;
    c.reads_retried = s.retries;
    c.reads_failed = s.failed;
    c.records_refused = s.dropped;
    return give_sized(out, &c, sizeof(c));
}

waste_status waste_layer_get_use(waste_ctx *ctx, uint32_t layer, waste_layer_use *out, uint8_t *map,
                                 size_t cap)
{
    waste_status st = ctx_enter(ctx);
    waste_layer_use u = {.size = sizeof(u)};
    const struct hparams *hp;
    struct layer_use found;
    struct err e;

    if (st != WASTE_OK)
        return st;
    hp = &ctx->model.hp;
    if (layer >= hp->n_layers) {
        err_set(&e, ERR_ARG, "layer %u: this model has %u", layer, hp->n_layers);
        return ctx_fail(ctx, &e);
    }
    if (ctx->experts && layer >= hp->first_dense) {
        u.n_experts = hp->n_experts;
        if (map && cap < u.n_experts) {
            err_set(&e, ERR_ARG, "a map of %zu experts, layer %u has %u", cap, layer, u.n_experts);
            return ctx_fail(ctx, &e);
        }
        preload_end(ctx);
        found = source_pool_layer(ctx->experts, layer, map);
        u.hits_resident = found.resident;
        u.hits_prefetch = found.guessed;
        u.misses = found.missed;
        for (unsigned i = 0; map && i < u.n_experts; i++) {
            u.n_resident += map[i] == WASTE_EXPERT_RESIDENT;
            u.n_reading += map[i] == WASTE_EXPERT_READING;
        }
    }
    return give_sized(out, &u, sizeof(u));
}

waste_status waste_get_stats(const waste_ctx *ctx, waste_stats *out)
{
    waste_counters c = {.size = sizeof(c)};

    if (!ctx || !out || waste_get_counters(ctx, &c))
        return ctx_refuse(NULL, "waste_get_stats: context and out are needed");
    *out = (waste_stats){
        .tokens_generated = c.decode_tokens,
        .experts_hit = c.hits_resident + c.hits_prefetch,
        .experts_missed = c.misses,
        .bytes_read = c.bytes_read,
        .sec_total = c.sec_prefill + c.sec_decode,
        .sec_io = c.sec_io,
        .direct_io = ctx->n_banks > 0 && ctx->n_direct == ctx->n_banks,
    };
    return WASTE_OK;
}

void waste_progress_get(const waste_ctx *ctx, waste_progress *out)
{
    static const uint32_t phase[] = {[PHASE_IDLE] = 0,
                                     [PHASE_OPEN] = 1,
                                     [PHASE_PREFILL] = 2,
                                     [PHASE_DECODE] = 3,
                                     [PHASE_IMAGE] = 4};
    waste_progress p = {.size = sizeof(p)};

    if (!ctx)
        return;
    p.phase = phase[atomic_load(&ctx->progress.phase)];
    p.done = atomic_load(&ctx->progress.done);
    p.total = atomic_load(&ctx->progress.total);
    p.bytes = atomic_load(&ctx->progress.bytes);
    give_sized(out, &p, sizeof(p));
}

void waste_cancel(waste_ctx *ctx)
{
    if (ctx)
        atomic_store(&ctx->progress.cancel, true);
}
