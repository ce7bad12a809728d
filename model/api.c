/* api.c - opening, planning and informing: the first part of waste.h (see context.h). */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "model/context.h"

static _Thread_local struct err thread_error;

enum {
    LOOKAHEAD_DEFAULT = 6,
    DEPTH_MAX = 32,
    FLIGHT_BYTES = 32 << 20, /* in flight before a drive is measured */
};

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

void waste_cfg_init(waste_cfg *cfg)
{
    if (!cfg)
        return;
    memset(cfg, 0, sizeof(*cfg));
    cfg->ctx_tokens = CTX_DEFAULT;
    cfg->use_direct_io = 1;
    cfg->verify_records = 1;
}

void waste_opts_init(waste_opts *o)
{
    if (!o)
        return;
    memset(o, 0, sizeof(*o));
    o->size = sizeof(*o);
    o->max_sessions = 1;
    o->max_rows = ROWS_DEFAULT;
    o->lookahead = -1;
}

/* ---- what was asked for ---- */

struct wish { /* cfg and opts, resolved against this machine */
    waste_cfg cfg;
    waste_opts opts;
    struct cpu_list cpus;
    unsigned n_threads, ctx, cpu;
    enum profile profile;
    const struct policy_ops *policy;
};

static int profile_of(enum profile *out, const char *name, struct err *e)
{
    *out = PROFILE_F32;
    if (!name)
        return 0;
    for (unsigned p = 0; p < PROFILES; p++)
        if (!strcmp(name, profile_name(p))) {
            *out = p;
            return 0;
        }
    return err_set(e, ERR_ARG, "numeric profile \"%s\" (f32, direct, i16, i8 are known)", name);
}

static int wish_threads(struct wish *w, struct err *e)
{
    int n = w->cfg.n_threads;

    w->cpus.n = 0;
    if (w->cfg.cpu_list && cpu_list_parse(&w->cpus, w->cfg.cpu_list, e))
        return err_wrap(e, "cpu list");
    if (n < 0 || n > THREADS_MAX)
        return err_set(e, ERR_ARG, "%d threads: 1...%d are possible, 0 = one per core", n,
                       THREADS_MAX);
    w->n_threads = n ? (unsigned)n : w->cpus.n ? w->cpus.n : machine_cores();
    if (w->n_threads > THREADS_MAX)
        w->n_threads = THREADS_MAX;
    return 0;
}

static int wish_of(struct wish *w, const waste_cfg *cfg, const waste_opts *opts, struct err *e)
{
    const char *policy;
    unsigned level = ~0u;

    waste_cfg_init(&w->cfg);
    waste_opts_init(&w->opts);
    if (cfg)
        w->cfg = *cfg;
    if (opts) {
        if (opts->size < sizeof(uint32_t) || opts->size > 4096)
            return err_set(e, ERR_ARG, "opts.size = %u: call waste_opts_init first", opts->size);
        memcpy(&w->opts, opts, opts->size < sizeof(*opts) ? opts->size : sizeof(*opts));
        w->opts.size = sizeof(*opts);
    }
    w->ctx = w->cfg.ctx_tokens ? w->cfg.ctx_tokens : CTX_DEFAULT;
    if (w->ctx > CTX_MAX)
        return err_set(e, ERR_ARG, "ctx_tokens = %u: 1...%d are possible", w->ctx, CTX_MAX);
    if (w->opts.max_sessions < 1 || w->opts.max_sessions > 256)
        return err_set(e, ERR_ARG, "max_sessions = %u: 1...256 are possible", w->opts.max_sessions);
    if (w->opts.max_rows < 1 || w->opts.max_rows > 4096 || w->opts.max_rows < w->opts.max_sessions)
        return err_set(e, ERR_ARG, "max_rows = %u: max_sessions (%u)...4096 are possible",
                       w->opts.max_rows, w->opts.max_sessions);
    if (w->opts.lookahead < -1 || w->opts.lookahead > FORMAT_TOP_K_MAX)
        return err_set(e, ERR_ARG, "lookahead = %d: 0...%d are possible, -1 = chosen",
                       w->opts.lookahead, FORMAT_TOP_K_MAX);
    if (w->cfg.cache_policy < 0 || w->cfg.cache_policy > 1)
        return err_set(e, ERR_ARG, "cache_policy = %d: 0 (LFRU) or 1 (LRU)", w->cfg.cache_policy);
    policy = w->opts.policy ? w->opts.policy : w->cfg.cache_policy ? "lru" : "lfru";
    w->policy = policy_named(policy);
    if (!w->policy)
        return err_set(e, ERR_ARG, "policy \"%s\" (lfru, lru are known)", policy);
    if (w->cfg.vision)
        return err_set(e, ERR_UNSUPPORTED, "images are not in this version");
    if (w->opts.cpu_level && cpu_level(&level, w->opts.cpu_level, e))
        return e->code;
    w->cpu = cpu_detect() & level;
    if (profile_of(&w->profile, w->opts.numeric, e))
        return e->code;
    return wish_threads(w, e);
}

static struct plan_request request_of(const struct wish *w, char *why, unsigned why_bytes)
{
    return (struct plan_request){
        .budget = w->cfg.ram_budget_bytes,
        .usable = machine_usable_ram(NULL, why, why_bytes),
        .ctx = w->ctx,
        .sessions = w->opts.max_sessions,
        .rows_max = w->opts.max_rows,
        .threads = w->n_threads,
        .cpu = w->cpu,
        .profile = w->profile,
    };
}

/* ---- planning ---- */

/* path as a container, a release's directory, or its config.json. */
static int facts_at(struct facts *out, const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;
    struct manifest m;
    struct stat st;
    json_t *config;

    if (fd < 0) { /* not a directory: a config.json */
        fd = AT_FDCWD;
        if (stat(path, &st) || !S_ISREG(st.st_mode))
            return err_set(e, ERR_IO, "%s: no such container, release directory or config.json",
                           path);
        if (json_parse_file(&config, fd, path, 64 << 20, e))
            return e->code;
    } else if (!fstatat(fd, "manifest.json", &st, 0)) {
        if (!manifest_read(&m, fd, path, e)) {
            facts_of_manifest(out, &m, fd, e);
            manifest_release(&m);
        }
        close(fd);
        return e->code;
    } else if (!fstatat(fd, "config.json", &st, 0)) {
        rc = json_parse_file(&config, fd, "config.json", 64 << 20, e);
        close(fd);
        if (rc)
            return rc;
    } else {
        close(fd);
        return err_set(e, ERR_IO,
                       "%s: no manifest.json (not a .waste container?) and no config.json", path);
    }
    rc = facts_of_config(out, config, e);
    json_decref(config);
    return rc ? err_wrap(e, "%s", path) : 0;
}

static void memplan_of(waste_memplan *out, const struct plan *p)
{
    *out = (waste_memplan){
        .trunk_bytes = p->trunk,
        .state_bytes = p->state,
        .scratch_bytes = p->scratch,
        .min_expert_cache = p->cache_min,
        .floor_bytes = p->floor,
        .recommended_bytes = p->recommended,
        .working_set_bytes = p->working_set,
    };
}

static uint64_t expert_params(const struct hparams *hp, unsigned n)
{
    return 3ull * hp->inter * hp->latent * n * (hp->n_layers - hp->first_dense);
}

waste_status waste_plan_ex(const char *path, const waste_cfg *cfg, const waste_opts *opts,
                           waste_plan *out)
{
    struct err e = {0};
    struct wish w;
    struct facts f;
    struct plan p;
    waste_plan r = {.size = sizeof(r)};
    struct plan_request q;

    if (!path || !out || out->size < sizeof(uint32_t) || out->size > 65536) {
        err_set(&e, ERR_ARG, "plan: path and out with its size set are needed");
        return thread_fail(&e);
    }
    if (wish_of(&w, cfg, opts, &e) || facts_at(&f, path, &e))
        return thread_fail(&e);
    q = request_of(&w, r.usable_why, sizeof(r.usable_why));
    plan_make(&p, &f, &q);
    memplan_of(&r.mem, &p);
    r.ctx_tokens = w.ctx;
    r.max_sessions = w.opts.max_sessions;
    r.max_rows = p.rows;
    r.physical_ram_bytes = machine_ram();
    r.usable_ram_bytes = q.usable;
    r.budget_bytes = p.budget;
    r.budget_chosen = p.chosen;
    r.fits = p.fits;
    r.pool_bytes = (uint64_t)p.frames * f.record.bytes;
    r.record_bytes = f.record.bytes;
    r.expert_bytes = p.all_experts;
    r.disk_bytes = f.disk_bytes;
    r.trunk_file_bytes = f.trunk_file_bytes;
    r.n_layers = f.hp.n_layers;
    r.n_moe_layers = f.hp.n_layers - f.hp.first_dense;
    r.n_experts = f.hp.n_experts;
    r.top_k = f.hp.top_k;
    r.params_total = f.params_trunk + f.params_embed + expert_params(&f.hp, f.hp.n_experts);
    r.params_active = f.params_trunk + expert_params(&f.hp, f.hp.top_k);
    r.from_config = f.from_config;
    snprintf(r.arch, sizeof(r.arch), "%s", f.arch);
    r.size = out->size;
    memcpy(out, &r, out->size < sizeof(r) ? out->size : sizeof(r));
    return WASTE_OK;
}

waste_status waste_plan_memory(const char *path, uint32_t ctx_tokens, waste_memplan *out)
{
    waste_plan p = {.size = sizeof(p)};
    waste_status st;
    waste_cfg cfg;

    waste_cfg_init(&cfg);
    cfg.ctx_tokens = ctx_tokens;
    st = out ? waste_plan_ex(path, &cfg, NULL, &p) : WASTE_E_ARG;
    if (st == WASTE_OK)
        *out = p.mem;
    return st;
}

/* ---- opening ---- */

void ctx_poll(void *arg)
{
    waste_ctx *ctx = arg;
    uint64_t now = now_ns();
    bool wanted = ctx->n_items == 0; /* nothing runs that could be unwanted */

    for (size_t i = 0; i < ctx->n_items; i++) {
        const waste_item *it =
            (const waste_item *)(const void *)((const char *)ctx->items + i * ctx->item_stride);

        wanted |= !atomic_load(&it->session->s.cancel);
    }
    if (!wanted) /* nobody waits for this pass any more */
        atomic_store(&ctx->progress.cancel, true);
    if (ctx->opts.progress && now - ctx->last_poll_ns >= 100000000u) {
        waste_progress p = {.size = sizeof(p)};

        ctx->last_poll_ns = now;
        waste_progress_get(ctx, &p);
        if (ctx->opts.progress(&p, ctx->opts.user))
            atomic_store(&ctx->progress.cancel, true);
    }
}

static void say(waste_ctx *ctx, int level, const char *text)
{
    if (ctx->opts.log && text[0])
        ctx->opts.log(level, text, ctx->opts.user);
}

/* Ids that are never chosen: those without a meaning, and places of images. */
static int masks_open(waste_ctx *ctx, struct err *e)
{
    static const char *const media[] = {"<|media_begin|>", "<|media_content|>", "<|media_end|>",
                                        "<|media_pad|>"};
    const struct tokenizer *t = ctx->tokenizer;
    unsigned vocab = ctx->model.hp.vocab;

    if (!t)
        return 0;
    ctx->never = malloc(vocab);
    ctx->spared = calloc(1, vocab);
    if (!ctx->never || !ctx->spared)
        return err_set(e, ERR_NOMEM, "id masks");
    for (unsigned i = 0; i < vocab; i++)
        ctx->never[i] = i >= tokenizer_n_ranks(t);
    for (unsigned i = 0; i < tokenizer_n_specials(t); i++) {
        const char *text;
        size_t len;
        int32_t id;

        tokenizer_special(t, i, &id, &text, &len);
        ctx->never[id] = 0;
        ctx->spared[id] = 1;
        for (unsigned m = 0; m < sizeof(media) / sizeof(*media); m++)
            if (len == strlen(media[m]) && !memcmp(text, media[m], len))
                ctx->never[id] = 1;
    }
    return 0;
}

static int text_open(waste_ctx *ctx, struct err *e)
{
    const struct hparams *hp = &ctx->model.hp;
    int rc = tokenizer_open(&ctx->tokenizer, container_dir(ctx->container), hp->vocab,
                            &ctx->no_tokenizer);

    if (rc && rc != ERR_UNSUPPORTED) {
        *e = ctx->no_tokenizer;
        return rc;
    }
    memcpy(ctx->stop, hp->eos, sizeof(hp->eos));
    ctx->n_stop = hp->n_eos;
    if (!ctx->n_stop && ctx->tokenizer && tokenizer_n_ranks(ctx->tokenizer) + 2 < hp->vocab)
        ctx->stop[ctx->n_stop++] = (int32_t)tokenizer_n_ranks(ctx->tokenizer) + 2;
    return masks_open(ctx, e);
}

static int plan_open(waste_ctx *ctx, const struct wish *w, struct err *e)
{
    const struct manifest *m = container_manifest(ctx->container);
    char why[128];
    struct plan_request q = request_of(w, why, sizeof(why));
    int fd = open(container_dir(ctx->container), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = facts_of_manifest(&ctx->facts, m, fd, e);

    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    plan_make(&ctx->plan, &ctx->facts, &q);
    if (!ctx->plan.fits)
        return err_set(e, ERR_BUDGET,
                       "budget %.2f GiB is below the floor of %.2f GiB (trunk %.2f, state %.2f at "
                       "%u positions, scratch %.2f, experts %.2f); \"waste plan\" has the details",
                       (double)ctx->plan.budget / (1 << 30), (double)ctx->plan.floor / (1 << 30),
                       (double)ctx->plan.trunk / (1 << 30), (double)ctx->plan.state / (1 << 30),
                       w->ctx, (double)ctx->plan.scratch / (1 << 30),
                       (double)ctx->plan.cache_min / (1 << 30));
    mem_init(&ctx->mem, ctx->plan.budget);
    return mem_charge(&ctx->mem, MEM_OTHER, ctx->plan.process, e);
}

struct load { /* trunk_load on a thread of its own, so that the host hears how far it is */
    waste_ctx *ctx;
    struct err e;
};

static void *load_thread(void *arg)
{
    struct load *l = arg;

    trunk_load(l->ctx->trunk, &l->ctx->mem, &l->ctx->progress, &l->e);
    return NULL;
}

static int trunk_load_watched(waste_ctx *ctx, struct err *e)
{
    struct load l = {.ctx = ctx};
    struct timespec until;
    pthread_t thread;

    if (!ctx->opts.progress || pthread_create(&thread, NULL, load_thread, &l))
        return trunk_load(ctx->trunk, &ctx->mem, &ctx->progress, e);
    do {
        ctx_poll(ctx);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    } while (pthread_timedjoin_np(thread, NULL, &until));
    if (l.e.code)
        *e = l.e;
    return l.e.code;
}

static int weights_open(waste_ctx *ctx, struct err *e)
{
    size_t extra = weights_extra_bytes(&ctx->model.hp);

    progress_begin(&ctx->progress, PHASE_OPEN, trunk_resident_bytes(ctx->trunk));
    if (trunk_load_watched(ctx, e))
        return e->code;
    if (ctx->model.hp.n_experts && codebooks_open(&ctx->books, ctx->container, &ctx->mem, e))
        return e->code;
    if (extra && mem_map(&ctx->mem, MEM_TRUNK, extra, false, &ctx->extra, e))
        return e->code;
    weights_load(&ctx->model, ctx->container, ctx->trunk, ctx->books, ctx->extra);
    return 0;
}

static int sessions_open(waste_ctx *ctx, unsigned n, struct err *e)
{
    ctx->session = calloc(n, sizeof(*ctx->session));
    ctx->token = calloc(ctx->plan.rows, sizeof(*ctx->token));
    ctx->span = calloc(n, sizeof(*ctx->span));
    ctx->recent = calloc(ctx->ctx_tokens, sizeof(*ctx->recent));
    if (!ctx->session || !ctx->token || !ctx->span || !ctx->recent)
        return err_set(e, ERR_NOMEM, "%u sessions", n);
    for (; ctx->n_sessions < n; ctx->n_sessions++) {
        waste_session *s = &ctx->session[ctx->n_sessions];
        void *memory;

        if (mem_map(&ctx->mem, MEM_STATE, session_bytes(&ctx->model.hp, ctx->ctx_tokens), false,
                    &memory, e))
            return err_wrap(e, "session %u", ctx->n_sessions);
        session_init(&s->s, &ctx->model.hp, ctx->ctx_tokens, memory);
        s->memory = memory;
        s->ctx = ctx;
        s->s.sampler.never = ctx->never;
        s->s.sampler.spared = ctx->spared;
    }
    ctx->session[0].s.open = true;
    return 0;
}

static unsigned depth_of(const waste_ctx *ctx, unsigned asked)
{
    unsigned depth = asked ? asked : FLIGHT_BYTES / ctx->facts.record.bytes;

    depth = depth < 2 ? 2 : depth > DEPTH_MAX && !asked ? DEPTH_MAX : depth;
    return depth < ctx->plan.frames ? depth : ctx->plan.frames;
}

static int experts_open(waste_ctx *ctx, const struct wish *w, struct err *e)
{
    const struct file *const *files = container_files(ctx->container, &ctx->n_banks);
    struct io_config io = {.files = files, .n_files = ctx->n_banks};
    struct pool_config pool = {.policy = w->policy, .seed = 1};

    if (!ctx->model.hp.n_experts)
        return 0;
    for (unsigned i = 0; i < ctx->n_banks; i++) {
        ctx->n_direct += files[i]->direct;
        if (!files[i]->direct && !ctx->direct_why[0])
            snprintf(ctx->direct_why, sizeof(ctx->direct_why), "%s", files[i]->why);
    }
    if (frames_open(&ctx->frames, &ctx->mem, ctx->facts.record.bytes, ctx->plan.frames, e))
        return err_wrap(e, "expert pool");
    ctx->depth = depth_of(ctx, w->opts.io_depth);
    io.depth = ctx->depth;
    io.arena = ctx->frames.base;
    io.arena_bytes = ctx->frames.frame_bytes * ctx->frames.n;
    if (io_open(&ctx->io, w->opts.io_engine, &io, &ctx->io_report, e))
        return e->code;
    pool.io = ctx->io;
    pool.frames = &ctx->frames;
    pool.depth = ctx->depth;
    if (pool_open(&ctx->pool, &pool, e))
        return e->code;
    return source_pool_open(&ctx->experts, ctx->container, ctx->pool, w->cfg.verify_records, e);
}

/* Width of the trunk's matrices: of the largest layer matrices, and of the head. */
static void describe(waste_ctx *ctx)
{
    static const char *const fmt[] = {
        [FMT_F32] = "F32", [FMT_Q8G] = "Q8G", [FMT_Q4G] = "Q4G", [FMT_Q3G] = "Q3G"};
    const struct record_layout *r = &ctx->facts.record;
    const struct layer *l = &ctx->model.layer[0];
    const struct tensor *o = l->mix == MIX_KDA ? &l->kda.o : &l->mla.o;
    int n = 0;

    snprintf(ctx->arch, sizeof(ctx->arch), "%s", ctx->facts.arch);
    if (ctx->model.hp.n_experts)
        n = snprintf(ctx->quant, sizeof(ctx->quant), "experts %s (%u x %u, %g bits), ",
                     r->index_bits == 6 ? "VQ4P"
                     : r->stages == 2   ? "VQ2R"
                                        : "VQ3R",
                     r->stages, r->entries, (double)r->stages * r->index_bits / 8);
    snprintf(ctx->quant + n, sizeof(ctx->quant) - (size_t)n, "trunk %s, head %s", fmt[o->fmt],
             fmt[ctx->model.head.fmt]);
}

static int ctx_open(waste_ctx *ctx, const char *path, const struct wish *w, struct err *e)
{
    struct container_options co = {.direct = w->cfg.use_direct_io,
                                   .exclusive = w->cfg.exclusive_open};

    if (container_open(&ctx->container, path, &co, e))
        return e->code;
    say(ctx, 1, container_manifest(ctx->container)->warning);
    if (hparams_read(&ctx->model.hp, container_manifest(ctx->container)->config, e) ||
        trunk_open(&ctx->trunk, ctx->container, e) ||
        weights_bind(&ctx->model, ctx->container, ctx->trunk, e))
        return err_wrap(e, "%s", path);
    kernels_init(&ctx->model.k, w->cpu, w->profile);
    if (plan_open(ctx, w, e) || text_open(ctx, e) || weights_open(ctx, e) ||
        sessions_open(ctx, w->opts.max_sessions, e))
        return e->code;
    struct act_shape shape = {ctx->plan.rows, ctx->n_sessions, w->n_threads};
    if (act_open(&ctx->act, &ctx->mem, &ctx->model, shape, e) ||
        team_open(&ctx->team, w->n_threads, w->cpus.n ? &w->cpus : NULL, e) ||
        experts_open(ctx, w, e))
        return e->code;
    if (w->opts.route_trace && ctx->model.hp.n_experts &&
        route_trace_open(&ctx->trace, w->opts.route_trace, &ctx->model.hp, e))
        return e->code;
    say(ctx, 1, ctx->io_report.steps);
    describe(ctx);
    progress_begin(&ctx->progress, PHASE_IDLE, 0);
    return 0;
}

waste_status waste_open_ex(const char *path, const waste_cfg *cfg, const waste_opts *opts,
                           waste_ctx **out)
{
    struct err e = {0};
    struct wish w;
    waste_ctx *ctx;

    if (!out) {
        err_set(&e, ERR_ARG, "waste_open: out is NULL");
        return thread_fail(&e);
    }
    *out = NULL;
    if (!path) {
        err_set(&e, ERR_ARG, "waste_open: path is NULL");
        return thread_fail(&e);
    }
    if (wish_of(&w, cfg, opts, &e))
        return thread_fail(&e);
    ctx = calloc(1, sizeof(*ctx));
    if (!ctx) {
        err_set(&e, ERR_NOMEM, "context");
        return thread_fail(&e);
    }
    ctx->cfg = w.cfg;
    ctx->opts = w.opts;
    ctx->profile = w.profile;
    ctx->n_threads = w.n_threads;
    ctx->ctx_tokens = w.ctx;
    ctx->lookahead = w.opts.lookahead < 0 ? LOOKAHEAD_DEFAULT : (unsigned)w.opts.lookahead;
    ctx->counters.size = sizeof(ctx->counters);
    if (ctx_open(ctx, path, &w, &e)) {
        waste_close(ctx);
        return thread_fail(&e);
    }
    ctx->cfg.cpu_list = NULL; /* the host's texts end with the call */
    ctx->cfg.usage_path = NULL;
    ctx->opts.io_engine = ctx->opts.numeric = ctx->opts.cpu_level = NULL;
    ctx->opts.route_trace = NULL;
    ctx->opts.policy = w.policy->name;
    *out = ctx;
    return WASTE_OK;
}

waste_status waste_open(const char *path, const waste_cfg *cfg, waste_ctx **out)
{
    return waste_open_ex(path, cfg, NULL, out);
}

void waste_close(waste_ctx *ctx)
{
    struct err ignored;

    if (!ctx)
        return;
    route_trace_close(ctx->trace, &ignored);
    if (ctx->experts)
        ctx->experts->ops->close(ctx->experts);
    pool_close(ctx->pool);
    if (ctx->io)
        ctx->io->ops->close(ctx->io);
    if (ctx->frames.base)
        frames_close(&ctx->frames);
    team_close(ctx->team);
    act_close(&ctx->act);
    for (unsigned i = 0; i < ctx->n_sessions; i++)
        mem_unmap(&ctx->mem, MEM_STATE, ctx->session[i].memory,
                  session_bytes(&ctx->model.hp, ctx->ctx_tokens));
    if (ctx->extra)
        mem_unmap(&ctx->mem, MEM_TRUNK, ctx->extra, weights_extra_bytes(&ctx->model.hp));
    codebooks_close(ctx->books);
    trunk_close(ctx->trunk);
    tokenizer_close(ctx->tokenizer);
    container_close(ctx->container);
    free(ctx->session);
    free(ctx->token);
    free(ctx->span);
    free(ctx->recent);
    free(ctx->never);
    free(ctx->spared);
    free(ctx);
}

/* ---- informing ---- */

waste_status waste_memory_used(const waste_ctx *ctx, waste_memplan *out)
{
    if (!ctx || !out)
        return WASTE_E_ARG;
    memplan_of(out, &ctx->plan);
    out->scratch_bytes = ctx->plan.scratch_rows;
    out->min_expert_cache = (uint64_t)ctx->frames.n * ctx->frames.frame_bytes;
    return WASTE_OK;
}

waste_status waste_model_get_info(const waste_ctx *ctx, waste_model_info *out)
{
    const struct hparams *hp;

    if (!ctx || !out)
        return WASTE_E_ARG;
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

/* Copy a sized answer into the host's struct, however old. */
static waste_status answer(void *out, const void *from, size_t bytes)
{
    uint32_t size;

    if (!out)
        return WASTE_E_ARG;
    memcpy(&size, out, sizeof(size));
    if (size < sizeof(size) || size > 65536)
        return WASTE_E_ARG;
    memcpy((char *)out + sizeof(size), (const char *)from + sizeof(size),
           (size < bytes ? size : bytes) - sizeof(size));
    return WASTE_OK;
}

waste_status waste_engine_info(const waste_ctx *ctx, waste_engine *out)
{
    waste_engine e;

    if (!ctx)
        return WASTE_E_ARG;
    e = (waste_engine){
        .size = sizeof(e),
        .n_threads = ctx->n_threads,
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
    };
    return answer(out, &e, sizeof(e));
}

waste_status waste_get_counters(const waste_ctx *ctx, waste_counters *out)
{
    waste_counters c;
    struct pool_stats s = {0};

    if (!ctx)
        return WASTE_E_ARG;
    c = ctx->counters;
    if (ctx->experts)
        ctx->experts->ops->stats(ctx->experts, &s);
    c.sec_io = (double)s.wait_ns * 1e-9;
    c.hits_resident = s.hits_resident;
    c.hits_prefetch = s.hits_guess;
    c.misses = s.misses;
    c.bytes_read = s.bytes;
    c.bytes_prefetch = s.bytes_guess;
    return answer(out, &c, sizeof(c));
}

waste_status waste_get_stats(const waste_ctx *ctx, waste_stats *out)
{
    waste_counters c = {.size = sizeof(c)};

    if (!ctx || !out || waste_get_counters(ctx, &c))
        return WASTE_E_ARG;
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
    static const uint32_t phase[] = {
        [PHASE_IDLE] = 0, [PHASE_OPEN] = 1, [PHASE_PREFILL] = 2, [PHASE_DECODE] = 3};
    waste_progress p = {.size = sizeof(p)};

    if (!ctx)
        return;
    p.phase = phase[atomic_load(&ctx->progress.phase)];
    p.done = atomic_load(&ctx->progress.done);
    p.total = atomic_load(&ctx->progress.total);
    p.bytes = atomic_load(&ctx->progress.bytes);
    answer(out, &p, sizeof(p));
}

void waste_cancel(waste_ctx *ctx)
{
    if (ctx)
        atomic_store(&ctx->progress.cancel, true);
}
