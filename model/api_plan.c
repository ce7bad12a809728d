/* api_plan.c - what a host asks for, held against this machine, and the plan: a part of waste.h
 * (see context.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "model/context.h"

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

static int profile_of(enum profile *out, const char *name, unsigned cpu, struct err *e)
{
    *out = profile_default(cpu);
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
    struct cpu_list listed;

    if (w->cfg.cpu_list && cpu_list_parse(&listed, w->cfg.cpu_list, e))
        return e->code;
    if (n < 0 || n > THREADS_MAX)
        return err_set(e, ERR_ARG, "%d threads: 1...%d are possible, 0 = one per physical core", n,
                       THREADS_MAX);
    cpu_place_here(&w->placement, (unsigned)n, w->cfg.cpu_list ? &listed : NULL);
    return 0;
}

int wish_of(struct wish *w, const waste_cfg *cfg, const waste_opts *opts, struct err *e)
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
    if (w->opts.checkpoints > 4096)
        return err_set(e, ERR_ARG, "checkpoints = %u: 0...4096 are possible", w->opts.checkpoints);
    if (w->opts.max_rows < 1 || w->opts.max_rows > 4096 || w->opts.max_rows < w->opts.max_sessions)
        return err_set(e, ERR_ARG, "max_rows = %u: max_sessions (%u)...4096 are possible",
                       w->opts.max_rows, w->opts.max_sessions);
    if (w->opts.lookahead < -1 || w->opts.lookahead > FORMAT_TOP_K_MAX)
        return err_set(e, ERR_ARG, "lookahead = %d: 0...%d are possible, -1 = chosen",
                       w->opts.lookahead, FORMAT_TOP_K_MAX);
    if (w->cfg.cache_policy < 0 || w->cfg.cache_policy > 1)
        return err_set(e, ERR_ARG, "cache_policy = %d: 0 (the default) or 1 (LRU)",
                       w->cfg.cache_policy);
    policy = w->opts.policy ? w->opts.policy : w->cfg.cache_policy ? "lru" : "nextuse";
    w->policy = policy_named(policy);
    if (!w->policy)
        return err_set(e, ERR_ARG, "policy \"%s\" (nextuse, lfru, lru, s3fifo are known)", policy);
    if (w->opts.cpu_level && cpu_level(&level, w->opts.cpu_level, e))
        return e->code;
    w->cpu = cpu_detect() & level;
    if (profile_of(&w->profile, w->opts.numeric, w->cpu, e))
        return e->code;
    return wish_threads(w, e);
}

struct plan_request request_of(const struct wish *w, char *why, unsigned why_bytes)
{
    return (struct plan_request){
        .budget = w->cfg.ram_budget_bytes,
        .usable = machine_usable_ram(NULL, why, why_bytes),
        .ctx = w->ctx,
        .sessions = w->opts.max_sessions,
        .checkpoints = w->opts.checkpoints,
        .rows_max = w->opts.max_rows,
        .threads = w->placement.n_threads,
        .cpu = w->cpu,
        .profile = w->profile,
    };
}

void memplan_of(waste_memplan *out, const struct plan *p)
{
    *out = (waste_memplan){
        .trunk_bytes = p->trunk,
        .state_bytes = p->state,
        .scratch_bytes = p->scratch,
        .min_expert_cache = p->cache_min,
        .floor_bytes = p->floor,
        .recommended_bytes = p->recommended,
        .vision_bytes = p->vision,
        .working_set_bytes = p->working_set,
    };
}

uint64_t expert_params(const struct hparams *hp, unsigned n)
{
    return 3ull * hp->inter * hp->latent * n * (hp->n_layers - hp->first_dense);
}

/* path as a container, a release's directory, or its config.json. *tower: a container with one. */
static int facts_at(struct facts *out, bool *tower, const char *path, const struct wish *w,
                    struct err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc, why = errno;
    struct manifest m;
    struct stat st;
    json_t *config;

    if (fd < 0) { /* not a directory: a config.json */
        fd = AT_FDCWD;
        if (why != ENOTDIR && why != ENOENT)
            return err_sys(e, why, "%s", path);
        if (stat(path, &st) || !S_ISREG(st.st_mode))
            return err_set(e, ERR_IO, "%s: no such container, release directory or config.json",
                           path);
        if (json_parse_file(&config, fd, path, 64 << 20, e))
            return e->code;
    } else if (!fstatat(fd, "manifest.json", &st, 0)) {
        *tower = !no_such_entry(fd, "vision.json");
        if (!manifest_read(&m, fd, path, e)) {
            if (!facts_of_manifest(out, &m, fd, e) && w->cfg.vision &&
                facts_add_vision(out, &m, fd, w->opts.image_patches, e))
                err_wrap(e, "%s", path);
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
    rc = w->cfg.vision ? err_set(e, ERR_UNSUPPORTED,
                                 "a vision tower is planned from a container, not from a "
                                 "release: convert it first")
                       : facts_of_config(out, config, e);
    json_decref(config);
    return rc ? err_wrap(e, "%s", path) : 0;
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
    bool tower = false;
    unsigned fp;
    int rc;

    if (!path || !out || out->size < sizeof(uint32_t) || out->size > 65536) {
        err_set(&e, ERR_ARG, "plan: path and out with its size set are needed");
        return thread_fail(&e);
    }
    fp = fp_begin();
    rc = wish_of(&w, cfg, opts, &e) || facts_at(&f, &tower, path, &w, &e);
    fp_end(fp);
    if (rc)
        return thread_fail(&e);
    q = request_of(&w, r.usable_why, sizeof(r.usable_why));
    plan_make(&p, &f, &q);
    memplan_of(&r.mem, &p);
    r.ctx_tokens = w.ctx;
    r.max_sessions = w.opts.max_sessions;
    r.max_rows = p.rows;
    r.scratch_growth_bytes = p.scratch_rows - p.scratch;
    r.checkpoint_bytes = p.checkpoints;
    r.session_bytes = session_bytes(&f.hp, w.ctx);
    r.state_fixed_bytes = session_parts_bytes(&f.hp, 0);
    r.state_token_bytes = session_parts_bytes(&f.hp, 1) - r.state_fixed_bytes;
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
    r.vision_tower = tower;
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
    st = out ? waste_plan_ex(path, &cfg, NULL, &p) : ctx_refuse(NULL, "out is NULL");
    if (st == WASTE_OK)
        *out = p.mem;
    return st;
}
