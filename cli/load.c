#include "cli/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "cli/places.h"
#include "cli/units.h"

static bool exists(const char *path)
{
    struct stat st;

    return !stat(path, &st);
}

/* dir/[sub/]NAME.waste, noted in `tried`; false if dir is NULL or has none. */
static bool look_in(const char *dir, const char *sub, const char *name, char path[PATH_MAX],
                    char *tried, size_t tried_bytes)
{
    size_t at = strlen(tried);
    const char *suffix = ".waste";
    size_t len = strlen(name);

    if (!dir || !*dir)
        return false;
    if (len > 6 && !strcmp(name + len - 6, suffix))
        suffix = "";
    if (snprintf(path, PATH_MAX, "%s%s/%s%s", dir, sub, name, suffix) >= PATH_MAX)
        return false;
    snprintf(tried + at, tried_bytes - at, ", %s", path);
    return exists(path);
}

static const char make_one[] =
    "`demo` is a small one that comes along; `waste help synth` has how to make others.";

/* A path, and no bare name. */
static bool is_path(const char *name)
{
    size_t len = strlen(name);

    return strchr(name, '/') || (len > 5 && !strcmp(name + len - 5, ".json"));
}

/* Where models are installed; every place looked at is added to `tried`. */
static bool look_everywhere(const char *name, char path[PATH_MAX], char *tried, size_t tried_bytes)
{
    const char *data = getenv("XDG_DATA_HOME");
    char installed[PATH_MAX];

    if (data && *data == '/') { /* the standard ignores relative ones */
        if (look_in(data, "/waste", name, path, tried, tried_bytes))
            return true;
    } else if (look_in(getenv("HOME"), "/.local/share/waste", name, path, tried, tried_bytes)) {
        return true;
    }
    place_installed(WASTE_DATADIR "/waste", installed);
    return look_in(installed, "", name, path, tried, tried_bytes) ||
           (place_is_build() && look_in(WASTE_SOURCE_SHARE, "", name, path, tried, tried_bytes));
}

bool model_look(const char *name, char path[PATH_MAX])
{
    char tried[900] = "";

    return !is_path(name) && !exists(name) && look_everywhere(name, path, tried, sizeof(tried));
}

int model_find(struct cli *c, const char *name, char path[PATH_MAX])
{
    char tried[900] = "";

    if (!*name)
        return fail(c, EXIT_USAGE, NULL, c->command, "MODEL is empty");
    if (snprintf(path, PATH_MAX, "%s", name) >= PATH_MAX)
        return fail(c, EXIT_USAGE, NULL, c->command, "MODEL is too long a path");
    if (exists(path)) {
        dir_name(name, path);
        return 0;
    }
    if (errno != ENOENT)
        return fail(c, EXIT_RUNTIME, NULL, name, "%s", strerror(errno));
    if (is_path(name))
        return fail(c, EXIT_RUNTIME, make_one, name, "no such model");
    if (look_everywhere(name, path, tried, sizeof(tried)))
        return 0;
    return fail(c, EXIT_RUNTIME, make_one, name, "no such model: looked for ./%s%s", name, tried);
}

int model_check(struct cli *c, const char *path)
{
    char manifest[PATH_MAX + 16];
    struct stat st;

    if (stat(path, &st))
        return fail(c, EXIT_RUNTIME, NULL, path, "%s", strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return fail(c, EXIT_RUNTIME, NULL, path, "not a .waste container: that is a directory");
    snprintf(manifest, sizeof(manifest), "%s/manifest.json", path);
    if (lstat(manifest, &st) && errno == ENOENT)
        return fail(c, EXIT_RUNTIME,
                    "It is written last: without it a conversion or `waste synth` is unfinished, "
                    "and the same\ncommand goes on.",
                    path, "no manifest.json (not a .waste container?)");
    return 0;
}

int fail_tokenizer(struct cli *c, waste_status st, const char *path)
{
    char detail[600];
    const char *text = waste_error_detail(NULL);
    int rc;

    snprintf(detail, sizeof(detail), "%s", text ? text : waste_strerror(st));
    rc = st == WASTE_E_UNSUPPORTED ? model_check(c, path) : 0;
    return rc ? rc : fail_detail(c, st, path, detail);
}

int ids_check(struct cli *c, waste_ctx *ctx, const int32_t *ids, size_t n)
{
    waste_engine engine = {.size = sizeof(engine)};
    char name[SAY_OPTION];
    int64_t vocab;

    waste_engine_info(ctx, &engine);
    vocab = engine.vocab;

    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= vocab)
            return fail(c, EXIT_USAGE, NULL, c->command, "id %d is outside the vocabulary of %lld",
                        ids[i], (long long)vocab);
    }
    for (unsigned i = 0; i < c->opts.n_bias; i++) {
        if (c->opts.bias[i].id >= vocab)
            return fail(c, EXIT_USAGE, NULL, say_option(c, "logit-bias", name),
                        "id %d is outside the vocabulary of %lld", c->opts.bias[i].id,
                        (long long)vocab);
    }
    return 0;
}

/* The bar of a phase begins when the phase does; decoding shows its own progress, as text. */
static int on_progress(const waste_progress *p, void *user)
{
    struct cli *c = user;
    static const char loading[] = "loading", prompt[] = "prompt", image[] = "image";
    const char *label = p->phase == 1     ? loading
                        : p->phase == 4   ? image
                        : c->prompt_label ? c->prompt_label /* passes of one row, too */
                        : p->phase == 2   ? prompt
                                          : NULL;
    enum bar_unit unit = label == loading ? BAR_BYTES : label == image ? BAR_BLOCKS : BAR_TOKENS;

    if (!label)
        bar_end(&c->bar);
    else if (c->bar.label != label)
        bar_begin(&c->bar, label, unit);
    if (label && label != loading && label != image && (c->prompt_total || c->prompt_label))
        bar_update(&c->bar, c->prompt_done + p->done, c->prompt_total, c->prompt_bytes + p->bytes);
    else if (label)
        bar_update(&c->bar, p->done, p->total, p->bytes);
    return term_interrupted();
}

static void on_log(int level, const char *text, void *user)
{
    static const char *const names[] = {"error", "warning"};

    if (level >= 0 && level < 2)
        note(user, "waste: %s: %s", names[level], text);
}

void model_settings(struct cli *c, waste_cfg *cfg, waste_opts *opts)
{
    const struct opts *o = &c->opts;

    waste_cfg_init(cfg);
    cfg->ram_budget_bytes = o->budget;
    cfg->n_threads = (int)o->threads;
    cfg->cpu_list = o->cpus;
    cfg->use_direct_io = o->direct;
    cfg->verify_records = o->verify;
    cfg->exclusive_open = o->exclusive;
    if (o->ctx)
        cfg->ctx_tokens = (uint32_t)o->ctx;
    cfg->vision = o->vision;
    waste_opts_init(opts);
    opts->image_patches = (uint32_t)o->image_patches;
    opts->vision_free = o->free_vision;
    opts->lookahead = (int32_t)o->lookahead;
    opts->io_engine = o->io;
    opts->io_depth = (uint32_t)o->io_depth;
    opts->numeric = o->numeric;
    opts->cpu_level = o->cpu_level;
    opts->policy = o->policy;
    opts->route_trace = o->route_trace;
    opts->checkpoints = o->checkpoints > 0 ? (uint32_t)o->checkpoints : 0;
    if (o->max_rows)
        opts->max_rows = (uint32_t)o->max_rows;
    opts->drive_notes = place_of(PLACE_CACHE, "drives", c->drive_notes) ? c->drive_notes : NULL;
    opts->progress = on_progress;
    opts->log = on_log;
    opts->user = c;
}

int prompt_fits(struct cli *c, size_t n)
{
    waste_cfg cfg;
    waste_opts opts;

    model_settings(c, &cfg, &opts);
    if (!n)
        return fail(c, EXIT_USAGE, NULL, c->command, "the prompt is empty");
    if (cfg.ctx_tokens && n > cfg.ctx_tokens)
        return fail(c, EXIT_USAGE, "--ctx sets more positions, at the price of memory.", c->command,
                    "the prompt has %zu token%s, the context %u position%s", n, plural(n),
                    cfg.ctx_tokens, plural(cfg.ctx_tokens));
    return 0;
}

/* Settings that nobody sees on the command line: "WASTE_IO, FILE: line 3: threads". */
static const char *unseen(const struct cli *c, char *text, size_t bytes)
{
    char name[SAY_OPTION];
    size_t at = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < opts_rows && at < bytes; i++) {
        enum opt_origin origin = c->opts.set[i].origin;

        if (opts_table[i].group != GROUP_MEMORY || origin == FROM_DEFAULT || origin == FROM_FLAG)
            continue;
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", at ? ", " : "",
                               opts_table[i].name ? say_option(c, opts_table[i].name, name)
                                                  : opts_table[i].env);
    }
    return text;
}

int fail_settings(struct cli *c, waste_status st, const char *path)
{
    char text[1024], hint[1200];
    const char *detail = waste_error_detail(NULL);

    if ((st != WASTE_E_ARG && st != WASTE_E_UNSUPPORTED && st != WASTE_E_LIMIT) ||
        !*unseen(c, text, sizeof(text)))
        return fail_status(c, st, NULL, path);
    snprintf(hint, sizeof(hint), "In effect, besides the command line: %s.", text);
    return fail(c, exit_of_status(st), hint, path, "%s", detail ? detail : waste_strerror(st));
}

/* The two numbers that somebody whose model does not fit wants to see. */
static int fail_budget(struct cli *c, const char *path, const waste_cfg *cfg,
                       const waste_opts *opts, const char *detail)
{
    waste_plan plan = {.size = sizeof(plan)};
    char text[1024], hint[SAY_OPTION + 256], floor[UNITS_TEXT], usable[UNITS_TEXT];
    char source[SAY_OPTION];
    bool elsewhere = c->opts.budget && opts_origin(&c->opts, "budget") != FROM_FLAG;

    snprintf(text, sizeof(text), "%s", detail); /* the plan replaces what detail points to */
    if (waste_plan_ex(path, cfg, opts, &plan) != WASTE_OK)
        return fail(c, EXIT_MEMORY, NULL, path, "%s", text);
    snprintf(hint, sizeof(hint),
             "It needs at least %s with %u positions; this machine offers %s. `waste plan` shows "
             "what takes it.%s%s%s",
             size_text(floor, plan.mem.floor_bytes), plan.ctx_tokens,
             size_text(usable, plan.usable_ram_bytes), elsewhere ? "\nThe budget is that of " : "",
             elsewhere ? say_option(c, "budget", source) : "", elsewhere ? "." : "");
    return fail(c, EXIT_MEMORY, hint, path, "%s", text);
}

/* Where the hotlist of the model at `path` is: NULL, in the container. Otherwise perhaps in out,
 * under a name for this container alone: another directory's of the same name would mix in its
 * experts, and nothing in the file says whose they are. */
static const char *usage_path(const struct cli *c, const char *path, char out[PATH_MAX])
{
    char whole[PATH_MAX], file[NAME_MAX + 1];
    const char *name;
    uint64_t hash;
    size_t len;

    if (c->opts.usage)
        return c->opts.usage;
    if (!access(path, W_OK) || !realpath(path, whole))
        return NULL;
    name = strrchr(whole, '/') + 1;
    len = strlen(name);
    if (len > 6 && !strcmp(name + len - 6, ".waste"))
        len -= 6;
    if (len > 200) /* and there is room for the rest of a file's name */
        len = 200;
    hash = hash_bytes(HASH_BEGIN, whole, strlen(whole));
    snprintf(file, sizeof(file), "%.*s-%08x.usage", (int)len, name, (uint32_t)(hash ^ hash >> 32));
    return place_of(PLACE_CACHE, file, out) ? out : NULL;
}

void model_learn(struct cli *c, waste_ctx *ctx, const char *path)
{
    waste_counters n = {.size = sizeof(n)};
    char room[PATH_MAX];
    const char *to = usage_path(c, path, room), *detail;
    waste_status st;

    if (!c->opts.learn || waste_get_counters(ctx, &n) != WASTE_OK ||
        !(n.hits_resident + n.hits_prefetch + n.misses))
        return;
    if (to == room)
        make_parents(to);
    st = waste_save_usage(ctx);
    detail = waste_error_detail(ctx);
    if (st == WASTE_OK)
        note(c, "learned  the experts used, into %s%s", to ? to : path, to ? "" : "/usage.waste");
    else
        note(c, "waste: warning: nothing learned: %s; --usage names another place for the hotlist",
             detail ? detail : waste_strerror(st));
}

int model_open(struct cli *c, const char *path, waste_ctx **out)
{
    char usage[PATH_MAX];
    waste_cfg cfg;
    waste_opts opts;
    waste_status st;

    model_settings(c, &cfg, &opts);
    cfg.usage_path = usage_path(c, path, usage);
    st = waste_open_ex(path, &cfg, &opts, out);
    bar_end(&c->bar);
    if (st == WASTE_E_RAM_BUDGET) {
        const char *detail = waste_error_detail(NULL);

        return fail_budget(c, path, &cfg, &opts, detail ? detail : waste_strerror(st));
    }
    if (st != WASTE_OK)
        return fail_settings(c, st, path);
    term_cancels(*out, NULL);
    return 0;
}

void model_close(waste_ctx *ctx)
{
    term_cancels(NULL, NULL);
    waste_close(ctx);
}

static void banner_memory(struct cli *c, waste_ctx *ctx, const waste_engine *engine)
{
    char budget[UNITS_TEXT], trunk[UNITS_TEXT], state[UNITS_TEXT], scratch[UNITS_TEXT];
    char pool[UNITS_TEXT], frame[UNITS_TEXT];
    uint64_t usable = waste_usable_ram();
    waste_memplan mem;

    if (c->opts.budget && usable && c->opts.budget > usable)
        note(c, "warning  budget %s is above the %s this machine offers",
             size_text(budget, c->opts.budget), size_text(pool, usable));
    if (waste_memory_used(ctx, &mem) != WASTE_OK)
        return;
    note(c, "memory   %s%s: trunk %s, state %s, scratch %s",
         size_text(budget, engine->budget_bytes), c->opts.budget ? "" : " (chosen)",
         size_text(trunk, mem.trunk_bytes), size_text(state, mem.state_bytes),
         size_text(scratch, mem.scratch_bytes));
    if (engine->n_frames)
        note(c, "         experts %s: %u frames of %s, %s", size_text(pool, mem.min_expert_cache),
             engine->n_frames, size_text(frame, engine->frame_bytes), engine->policy);
}

void model_banner(struct cli *c, waste_ctx *ctx)
{
    static const char *const depth_from[] = {"", "", " (measured)", " (measured before)"};
    waste_engine engine = {.size = sizeof(engine)};
    waste_model_info info;

    if (c->opts.quiet || c->opts.json || waste_model_get_info(ctx, &info) != WASTE_OK ||
        waste_engine_info(ctx, &engine) != WASTE_OK)
        return;
    note(c, "model    %s, %u layer%s, %u expert%s (%u a token), %s", info.arch, info.n_layers,
         plural(info.n_layers), info.n_experts, plural(info.n_experts), info.top_k,
         info.quant_summary);
    banner_memory(c, ctx, &engine);
    if (engine.n_banks) {
        note(c, "reads    %s, %u in flight%s, %u of %u banks direct, lookahead %u, checksums %s",
             engine.io_engine, engine.io_depth, depth_from[engine.depth_from & 3],
             engine.n_banks_direct, engine.n_banks, engine.lookahead, engine.verify ? "on" : "off");
        if (*engine.io_steps)
            note(c, "         not %s", engine.io_steps);
        if (*engine.io_note)
            note(c, "         %s", engine.io_note);
        if (*engine.direct_why)
            note(c, "         not direct: %s", engine.direct_why);
        if (engine.n_preload)
            note(c, "hotlist  %s: the %u hottest experts come in while nothing else is read",
                 engine.usage, engine.n_preload);
    }
    note(c, "compute  %s", engine.placement);
    note(c, "         %s kernels, %s, %u rows a pass", engine.kernels, engine.numeric,
         engine.max_rows);
}
