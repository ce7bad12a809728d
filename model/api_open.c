/* api_open.c - opening and closing a model: a part of waste.h (see context.h). */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "model/context.h"
#include "storage/flight.h"

enum {
    LOOKAHEAD_DEFAULT = 6,
    DEPTH_MAX = 32,
    FLIGHT_BYTES = 32 << 20, /* in flight before a drive is measured */
    GIVE_PART = 16,          /* of the frames, given back when memory is short */
    SAMPLE = 128,            /* records that a drive is measured with */
    MEASURE_NS = 250000000,
    MEASURE_MIN = 256 << 20,  /* of experts: what is smaller is soon in memory */
    MEASURE_BYTES = 96 << 20, /* in flight on a drive, at most; and so many reads, */
    MEASURE_DEPTH = 16,       /* where records are at least */
    MEASURE_LARGE = 1 << 20,  /* so large */
};

void ctx_poll(void *arg)
{
    waste_ctx *ctx = arg;
    uint64_t now = now_ns();
    bool wanted = ctx->n_items == 0; /* nothing runs that could be unwanted */

    for (size_t i = 0; i < ctx->n_items; i++) {
        const waste_item *it =
            (const waste_item *)(const void *)((const char *)ctx->items + i * ctx->item_stride);

        wanted |= it->n_done && !atomic_load(&it->session->s.cancel);
    }
    if (!wanted) /* nobody waits for this pass any more */
        atomic_store(&ctx->progress.cancel, true);
    if (ctx->experts) {
        struct pool_stats s;

        ctx->experts->ops->stats(ctx->experts, &s);
        atomic_store(&ctx->progress.bytes, s.bytes - ctx->bytes0);
    }
    if (ctx->opts.progress && now - ctx->last_poll_ns >= 100000000u) {
        waste_progress p = {.size = sizeof(p)};

        ctx->last_poll_ns = now;
        waste_progress_get(ctx, &p);
        if (ctx->opts.progress(&p, ctx->opts.user))
            atomic_store(&ctx->progress.cancel, true);
    }
}

static unsigned at_most(unsigned n, unsigned most)
{
    return n < most ? n : most;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void say(waste_ctx *ctx, int level, const char *text)
{
    if (ctx->opts.log && text[0])
        ctx->opts.log(level, text, ctx->opts.user);
}

void ctx_relieve(waste_ctx *ctx)
{
    unsigned least = 2 * ctx->model.hp.top_k, n = ctx->frames.n, give = n / GIVE_PART;
    size_t bytes;
    char text[160];

    if (!ctx->experts || n <= least || !pressure_look(&ctx->pressure, now_ns()))
        return;
    give = give ? give : 1;
    give = give < n - least ? give : n - least;
    bytes = ctx->experts->ops->trim(ctx->experts, give * ctx->frames.frame_bytes);
    if (!bytes)
        return;
    snprintf(text, sizeof(text),
             "memory is short: %.1f MiB of the expert pool given back for good, %.1f MiB are left",
             mib(bytes), mib(ctx->frames.n * ctx->frames.frame_bytes));
    say(ctx, 1, text);
}

int ctx_reserve(waste_ctx *ctx, uint64_t bytes, const char *what, struct err *e)
{
    uint64_t left = ctx->mem.limit - ctx->mem.used_total, more = bytes > left ? bytes - left : 0;
    unsigned least = 2 * ctx->model.hp.top_k, n = ctx->frames.n;

    preload_end(ctx);
    if (more && ctx->plan.chosen) {
        ctx->mem.limit += more;
        ctx->plan.budget += more;
    } else if (more && ctx->experts && n > least) {
        size_t frame = ctx->frames.frame_bytes;
        unsigned give = at_most((unsigned)((more + frame - 1) / frame), n - least);

        ctx->experts->ops->trim(ctx->experts, give * frame);
    }
    return mem_charge(&ctx->mem, MEM_OTHER, bytes, e)
               ? err_wrap(e, "%s needs %.1f MiB beside what the budget was planned for", what,
                          mib(bytes))
               : 0;
}

/* Ids that are never chosen: those without a meaning, and places of images. */
static int masks_open(waste_ctx *ctx, struct err *e)
{
    enum { MEDIA_PAD = 3, N_MEDIA = 4 };
    static const char *const media[N_MEDIA] = {"<|media_begin|>", "<|media_content|>",
                                               "<|media_end|>", "<|media_pad|>"};
    const struct tokenizer *t = ctx->tokenizer;
    unsigned vocab = ctx->model.hp.vocab;

    ctx->media_id = -1;
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
        for (unsigned m = 0; m < N_MEDIA; m++)
            if (len == strlen(media[m]) && !memcmp(text, media[m], len)) {
                ctx->never[id] = 1;
                ctx->media_id = m == MEDIA_PAD ? id : ctx->media_id;
            }
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

    if (facts_of_manifest(&ctx->facts, m, container_dirfd(ctx->container), e))
        return e->code;
    if (w->cfg.vision &&
        facts_add_vision(&ctx->facts, m, container_dirfd(ctx->container), w->opts.image_patches, e))
        return err_wrap(e, "%s", container_dir(ctx->container));
    plan_make(&ctx->plan, &ctx->facts, &q);
    if (!ctx->plan.fits && ctx->plan.chosen)
        return err_set(e, ERR_BUDGET,
                       "the floor of %.1f MiB is above the %.1f MiB that this machine offers (%s)",
                       mib(ctx->plan.floor), mib(q.usable), why);
    if (!ctx->plan.fits)
        return err_set(e, ERR_BUDGET,
                       "budget %.1f MiB is below the floor of %.1f MiB (trunk %.1f, state %.1f at "
                       "%u positions, scratch %.1f, experts %.1f); \"waste plan\" has the details",
                       mib(ctx->plan.budget), mib(ctx->plan.floor), mib(ctx->plan.trunk),
                       mib(ctx->plan.state), w->ctx, mib(ctx->plan.scratch),
                       mib(ctx->plan.cache_min));
    mem_init(&ctx->mem, ctx->plan.budget);
    mem_init(&ctx->vision_mem, ctx->plan.vision);
    return mem_charge(&ctx->mem, MEM_OTHER, ctx->plan.process + ctx->plan.vision, e);
}

/* The tower, and where rows of images lie during a pass. */
static int images_open(waste_ctx *ctx, struct err *e)
{
    if (!ctx->cfg.vision)
        return 0;
    if (ctx->media_id >= 0 && ctx->media_id != ctx->facts.vision.media_id)
        return err_set(
            e, ERR_FORMAT,
            "vision.json: media_placeholder_token_id is %d, the tokenizer's <|media_pad|> "
            "%d",
            ctx->facts.vision.media_id, ctx->media_id);
    ctx->media_id = ctx->facts.vision.media_id;
    ctx->image_row = calloc(ctx->plan.rows, sizeof(*ctx->image_row));
    if (!ctx->image_row)
        return err_set(e, ERR_NOMEM, "rows of images");
    if (ctx->opts.vision_free)
        return 0; /* read when a picture needs it */
    return vision_open(&ctx->vision, ctx->container, &ctx->facts.vision, &ctx->model.k,
                       &ctx->vision_mem, &ctx->progress, e);
}

struct load { /* trunk_load on a thread of its own, so that the host hears how far it is */
    waste_ctx *ctx;
    struct err e;
};

static void *load_thread(void *arg)
{
    struct load *l = arg;

    fp_begin();
    trunk_load(l->ctx->trunk, &l->ctx->mem, &l->ctx->progress, &l->e);
    return NULL;
}

static int trunk_load_watched(waste_ctx *ctx, struct err *e)
{
    struct load l = {.ctx = ctx};
    struct timespec until;
    pthread_t thread;

    if (!ctx->opts.progress || thread_start(&thread, load_thread, &l))
        return trunk_load(ctx->trunk, &ctx->mem, &ctx->progress, e);
    do {
        ctx_poll(ctx);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    } while (pthread_timedjoin_np(thread, NULL, &until));
    if (!l.e.code &&
        progress_cancelled(&ctx->progress)) /* too late for the load, not for the open */
        return err_set(e, ERR_CANCELLED, "cancelled while opening");
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
    ctx->score = calloc(ctx->plan.rows, sizeof(*ctx->score));
    ctx->span = calloc(n, sizeof(*ctx->span));
    ctx->top = calloc(n, SAMPLER_TOP_MAX * sizeof(*ctx->top));
    if (!ctx->session || !ctx->token || !ctx->score || !ctx->span || !ctx->top)
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
        images_init(&s->images, &ctx->vision_mem, ctx->model.hp.hidden);
        s->s.sampler.never = ctx->never;
        s->s.sampler.spared = ctx->spared;
    }
    ctx->session[0].s.open = true;
    return 0;
}

/* Records to read, a few of each bank and no two beside each other. */
static unsigned sample_records(const waste_ctx *ctx, struct extent at[SAMPLE])
{
    unsigned n_experts = ctx->model.hp.n_experts;

    for (unsigned i = 0; i < SAMPLE; i++)
        at[i] =
            container_extent(ctx->container, container_file_layer(ctx->container, i % ctx->n_banks),
                             (unsigned)((uint64_t)i * 7919 % n_experts));
    return SAMPLE;
}

/* What the drives were found to want, now or earlier. Never fails: then it stays as chosen. */
static void depth_measure(waste_ctx *ctx, const struct file *const *files, const struct wish *w)
{
    unsigned record = (unsigned)ctx->facts.record.bytes;
    struct drive *drive = calloc(ctx->n_banks, sizeof(*drive));
    struct extent at[SAMPLE];
    struct flight_request q = {.notes = w->opts.drive_notes,
                               .files = files,
                               .drive = drive,
                               .n_files = ctx->n_banks,
                               .at = at,
                               .n = sample_records(ctx, at),
                               .memory = ctx->frames.base,
                               .depth_max = at_most(2 + MEASURE_BYTES / record, ctx->frames.n),
                               .ns = MEASURE_NS,
                               .engine = w->opts.io_engine};
    struct flight found;
    bool named = drive;
    struct err e;

    for (unsigned i = 0; drive && i < ctx->n_banks; i++) {
        drive_of(&drive[i], files[i]);
        named &= drive[i].name[0] != 0;
    }
    q.depth_max = at_most(q.depth_max, record < MEASURE_LARGE ? DEPTH_MAX : MEASURE_DEPTH);
    if (named && flight_find(&found, &q, &e)) {
        say(ctx, 1, e.text);
    } else if (named && found.depth) {
        ctx->depth = found.depth < 2 ? 2 : at_most(found.depth, DEPTH_MAX);
        ctx->depth_from = found.n_measured ? DEPTH_MEASURED : DEPTH_KNOWN;
        ctx->drive_bytes_per_s = found.bytes_per_s;
        if (found.unkept.code)
            say(ctx, 2, found.unkept.text);
    }
    free(drive);
}

/* Reads in flight: as asked, as measured, or as many as come to FLIGHT_BYTES. */
static void depth_find(waste_ctx *ctx, const struct file *const *files, const struct wish *w)
{
    uint64_t record = ctx->facts.record.bytes;
    uint64_t experts = record * ctx->model.hp.n_experts * ctx->n_banks;
    unsigned chosen = at_most((unsigned)(FLIGHT_BYTES / record), DEPTH_MAX);

    ctx->depth = w->opts.io_depth ? w->opts.io_depth : chosen;
    ctx->depth = ctx->depth < 2 ? 2 : ctx->depth;
    ctx->depth_from = w->opts.io_depth ? DEPTH_GIVEN : DEPTH_CHOSEN;
    if (!w->opts.io_depth && w->opts.drive_notes && ctx->n_direct == ctx->n_banks &&
        experts >= MEASURE_MIN)
        depth_measure(ctx, files, w);
    ctx->depth = at_most(ctx->depth, ctx->frames.n);
}

static int experts_open(waste_ctx *ctx, const struct wish *w, struct err *e)
{
    const struct file *const *files = container_files(ctx->container, &ctx->n_banks);
    const struct manifest *m = container_manifest(ctx->container);
    struct io_config io = {.files = files, .n_files = ctx->n_banks};
    struct pool_config pool = {.policy = w->policy,
                               .retries = POOL_RETRIES,
                               .seed = 1,
                               .known = {.n_pages = (m->n_layers - m->first_dense) * m->n_experts,
                                         .n_files = ctx->n_banks}};
    uint16_t *group;
    int rc;

    if (!ctx->model.hp.n_experts)
        return 0;
    for (unsigned i = 0; i < ctx->n_banks; i++) {
        ctx->n_direct += files[i]->direct;
        if (!files[i]->direct && !ctx->direct_why[0])
            snprintf(ctx->direct_why, sizeof(ctx->direct_why), "%s", files[i]->why);
    }
    if (frames_open(&ctx->frames, &ctx->mem, ctx->facts.record.bytes, ctx->plan.frames, e))
        return err_wrap(e, "expert pool");
    depth_find(ctx, files, w);
    io.depth = ctx->depth;
    io.arena = ctx->frames.base;
    io.arena_bytes = ctx->frames.frame_bytes * ctx->frames.n;
    if (io_open(&ctx->io, w->opts.io_engine, &io, &ctx->io_report, e))
        return e->code;
    pool.io = ctx->io;
    pool.frames = &ctx->frames;
    pool.depth = ctx->depth;
    group = malloc(ctx->n_banks * sizeof(*group));
    if (!group)
        return err_set(e, ERR_NOMEM, "%u banks", ctx->n_banks);
    for (unsigned i = 0; i < ctx->n_banks; i++) /* the files of a spread layer are asked together */
        group[i] = (uint16_t)(container_file_layer(ctx->container, i) - m->first_dense);
    pool.known.group = group;
    rc = pool_open(&ctx->pool, &pool, e);
    free(group);
    if (rc)
        return rc;
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
                     record_format_name(r), r->stages, r->entries,
                     (double)r->stages * r->index_bits / 8);
    snprintf(ctx->quant + n, sizeof(ctx->quant) - (size_t)n, "trunk %s, head %s", fmt[o->fmt],
             fmt[ctx->model.head.fmt]);
}

static int ctx_open(waste_ctx *ctx, const char *path, const struct wish *w, struct err *e)
{
    struct container_options co = {.direct = w->cfg.use_direct_io,
                                   .exclusive = w->cfg.exclusive_open};

    if (w->cfg.usage_path && !(ctx->usage_path = strdup(w->cfg.usage_path)))
        return err_set(e, ERR_NOMEM, "%s", w->cfg.usage_path);
    if (container_open(&ctx->container, path, &co, e))
        return e->code;
    say(ctx, 1, container_manifest(ctx->container)->warning);
    if (hparams_read(&ctx->model.hp, container_manifest(ctx->container)->config, e) ||
        trunk_open(&ctx->trunk, ctx->container, e) ||
        weights_bind(&ctx->model, ctx->container, ctx->trunk, e))
        return err_wrap(e, "%s", path);
    kernels_init(&ctx->model.k, w->cpu, w->profile);
    if (plan_open(ctx, w, e) || text_open(ctx, e) || weights_open(ctx, e) || images_open(ctx, e) ||
        sessions_open(ctx, w->opts.max_sessions, e) || states_open(ctx, e))
        return e->code;
    struct act_shape shape = {ctx->plan.rows, ctx->n_sessions, w->placement.n_threads};
    if (act_open(&ctx->act, &ctx->mem, &ctx->model, shape, e) ||
        team_open(&ctx->team, &w->placement, e) || experts_open(ctx, w, e))
        return e->code;
    if (w->opts.route_trace && ctx->model.hp.n_experts &&
        route_trace_open(&ctx->trace, w->opts.route_trace, &ctx->model.hp, e))
        return e->code;
    say(ctx, 1, ctx->io_report.steps);
    describe(ctx);
    pressure_open(&ctx->pressure, NULL);
    progress_begin(&ctx->progress, PHASE_IDLE, 0);
    preload_begin(ctx);
    return 0;
}

waste_status waste_open_ex(const char *path, const waste_cfg *cfg, const waste_opts *opts,
                           waste_ctx **out)
{
    struct err e = {0};
    struct wish w;
    waste_ctx *ctx;
    unsigned fp;
    int rc;

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
    pthread_mutex_init(&ctx->preload.lock, NULL);
    ctx->cfg = w.cfg;
    ctx->opts = w.opts;
    ctx->profile = w.profile;
    ctx->placement = w.placement;
    ctx->ctx_tokens = w.ctx;
    ctx->pid = (long)getpid();
    ctx->lookahead = w.opts.lookahead < 0 ? LOOKAHEAD_DEFAULT : (unsigned)w.opts.lookahead;
    ctx->counters.size = sizeof(ctx->counters);
    fp = fp_begin(); /* what is computed once is computed as defined, too */
    ctx->running = true;
    rc = ctx_open(ctx, path, &w, &e);
    ctx->running = false;
    fp_end(fp);
    if (rc) {
        waste_close(ctx);
        return thread_fail(&e);
    }
    ctx->cfg.cpu_list = NULL; /* the host's texts end with the call */
    ctx->cfg.usage_path = NULL;
    ctx->opts.io_engine = ctx->opts.numeric = ctx->opts.cpu_level = NULL;
    ctx->opts.route_trace = ctx->opts.drive_notes = NULL;
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
    struct err e;

    if (!ctx || ctx->pid != (long)getpid()) /* in a forked child the threads that it would wait for
                                              are not there; what it has ends with the process */
        return;
    if (route_trace_close(ctx->trace, &e))
        say(ctx, 0, e.text);
    preload_end(ctx);
    if (ctx->experts)
        ctx->experts->ops->close(ctx->experts);
    pool_close(ctx->pool);
    if (ctx->io)
        ctx->io->ops->close(ctx->io);
    if (ctx->frames.base)
        frames_close(&ctx->frames);
    team_close(ctx->team);
    act_close(&ctx->act);
    states_close(ctx);
    for (unsigned i = 0; i < ctx->n_sessions; i++) {
        grammar_drop(&ctx->session[i]);
        images_clear(&ctx->session[i].images);
    }
    token_trie_close(ctx->trie);
    free(ctx->allowed);
    vision_close(ctx->vision);
    for (unsigned i = 0; i < ctx->n_sessions; i++)
        mem_unmap(&ctx->mem, MEM_STATE, ctx->session[i].memory,
                  session_bytes(&ctx->model.hp, ctx->ctx_tokens));
    if (ctx->extra)
        mem_unmap(&ctx->mem, MEM_TRUNK, ctx->extra, weights_extra_bytes(&ctx->model.hp));
    codebooks_close(ctx->books);
    trunk_close(ctx->trunk);
    tokenizer_close(ctx->tokenizer);
    container_close(ctx->container);
    pthread_mutex_destroy(&ctx->preload.lock);
    free(ctx->usage_path);
    free(ctx->session);
    free(ctx->token);
    free(ctx->score);
    free(ctx->span);
    free(ctx->top);
    free(ctx->image_row);
    free(ctx->never);
    free(ctx->spared);
    free(ctx);
}
