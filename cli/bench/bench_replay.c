/* cli/bench/bench_replay.c - routing traces through the policies: what a pool of each size hits. */
#include "cli/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/project.h"
#include "cli/bench/route_replay.h"
#include "cli/units.h"
#include "expertfs/record.h"
#include "expertfs/shapes.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { SIZES_MAX = FLAG_LIST_MAX, SEED = 1 };

/* The last is the bound, and always there. */
static const struct policy_ops *const known_policy[] = {&policy_lru, &policy_lfru, &policy_s3fifo,
                                                        &policy_nextuse, &policy_belady};

enum { N_POLICIES = N_ELEMS(known_policy), BOUND = N_POLICIES - 1, N_ARMS = 3 };

/* Shares of all records, where nobody names sizes. */
static const double default_share[] = {0.015, 0.03, 0.045, 0.06, 0.09,
                                       0.12,  0.18, 0.24,  0.36, 0.48};

static struct {
    const char *policies, *shape;
    struct flag_list records, ram;
    uint64_t record_bytes;
    const char *drives;
    int64_t depth, lookahead, shared_us, expert_us, rest_us;
} opt = {.depth = 8, .lookahead = 6, .shared_us = 1200, .expert_us = 155, .rest_us = 2780};

static const struct flag flags[] = {
    {"policy", FLAG_TEXT, &opt.policies, 0, 0, "A,B,...",
     "only these: lru, lfru, s3fifo, nextuse (belady, the bound, is always there)"},
    {"records", FLAG_INTS, &opt.records, 1, 1e9, "N,...", "sizes of the pool, in records"},
    {"ram", FLAG_SIZES, &opt.ram, 4096, 1e15, "SIZE,...",
     "sizes of the pool, as memory; needs --record or --shape"},
    {"record", FLAG_SIZE, &opt.record_bytes, 4096, 1 << 30, "SIZE", "bytes of a record"},
    {"shape", FLAG_TEXT, &opt.shape, 0, 0, "NAME",
     "the traced model, for its experts and bytes of a record: kimi-linear-48b, k3, ..."},
    {"drive-model", FLAG_TEXT, &opt.drives, 0, 0, "A,B,...",
     "project tokens/s on simulated drives: nvme3, nvme7, nvme14, nvme28, qlc, usb"},
    {"depth", FLAG_INT, &opt.depth, 1, 4096, "N", "their reads in flight (8)"},
    {"lookahead", FLAG_INT, &opt.lookahead, 1, 64, "N", "their guesses for the next layer (6)"},
    {"shared-us", FLAG_INT, &opt.shared_us, 0, 1e9, "N",
     "computing of a layer while its experts are read (1200: K3 at 80 GB/s of memory)"},
    {"expert-us", FLAG_INT, &opt.expert_us, 0, 1e9, "N", "of an expert (155)"},
    {"rest-us", FLAG_INT, &opt.rest_us, 0, 1e9, "N", "of a layer after its experts (2780)"},
    {0},
};

struct point { /* a size of the pool */
    unsigned n_frames;
    struct replay_counts n[N_POLICIES];
};

struct curve { /* a trace */
    struct routes r;
    uint64_t record_bytes; /* 0: not known */
    unsigned n_records;    /* of the model, as far as the trace or the shape tells */
    unsigned n_distinct;   /* that are asked for at all */
    struct point point[SIZES_MAX];
    unsigned n_points;
};

static bool policy_wanted(unsigned p)
{
    return p == BOUND || flag_names(opt.policies, known_policy[p]->name);
}

static int check_policies(struct err *e)
{
    const char *names[N_POLICIES];

    for (unsigned p = 0; p < N_POLICIES; p++)
        names[p] = known_policy[p]->name;
    return flag_names_check(opt.policies, "policy", "there are", names, N_POLICIES, e);
}

static int shape_record(uint64_t *out, const struct shape *s, struct err *e)
{
    struct record_layout l;

    if (record_layout_init(&l, s->latent ? s->latent : s->hidden, s->inter, 3, 256, 8, e))
        return e->code;
    *out = l.bytes;
    return 0;
}

/* What the trace does not say itself. */
static int know_model(struct curve *c, const char *path, struct err *e)
{
    const struct shape *s;

    c->record_bytes = opt.record_bytes;
    if (!opt.shape)
        return 0;
    s = shape_find(opt.shape);
    if (!s)
        return err_set(e, ERR_ARG, "--shape \"%s\": no such model; `waste synth --help` lists them",
                       opt.shape);
    if (c->r.n_layers != s->n_layers - s->first_dense || c->r.n_experts > s->n_experts)
        return err_set(e, ERR_ARG,
                       "%s: %u layers and experts up to %u, but --shape %s has %u layers of %u",
                       path, c->r.n_layers, c->r.n_experts - 1, s->name,
                       s->n_layers - s->first_dense, s->n_experts);
    c->r.n_experts = s->n_experts;
    return c->record_bytes ? 0 : shape_record(&c->record_bytes, s, e);
}

static int count_distinct(struct curve *c, struct err *e)
{
    bool *seen = calloc(c->n_records, sizeof(*seen));

    if (!seen)
        return err_set(e, ERR_NOMEM, "%u records", c->n_records);
    for (size_t i = 0; i < c->r.n_calls; i++)
        for (unsigned k = 0; k < c->r.call[i].n; k++) {
            unsigned page = c->r.call[i].layer * c->r.n_experts + c->r.id[c->r.call[i].first + k];

            c->n_distinct += !seen[page];
            seen[page] = true;
        }
    free(seen);
    return 0;
}

static void add_point(struct curve *c, uint64_t n_frames)
{
    if (n_frames > c->n_records)
        n_frames = c->n_records;
    c->point[c->n_points++].n_frames = n_frames ? (unsigned)n_frames : 1;
}

static int choose_points(struct curve *c, struct err *e)
{
    if (opt.ram.n && !c->record_bytes)
        return err_set(e, ERR_ARG, "--ram needs the size of a record: --record or --shape");
    if (opt.ram.n && opt.records.n)
        return err_set(e, ERR_ARG, "--ram and --records: one of them");
    for (unsigned i = 0; i < opt.records.n; i++)
        add_point(c, opt.records.v[i]);
    for (unsigned i = 0; i < opt.ram.n; i++)
        add_point(c, opt.ram.v[i] / c->record_bytes);
    for (unsigned i = 0; !opt.records.n && !opt.ram.n && i < N_ELEMS(default_share); i++)
        add_point(c, (uint64_t)lround(default_share[i] * c->n_records));
    return 0;
}

static double hit_percent(const struct curve *c, const struct point *at, unsigned policy)
{
    return 100.0 * (double)at->n[policy].hits / (double)c->r.n_ids;
}

static double records_per_token(const struct curve *c, const struct point *at, unsigned policy)
{
    return (double)at->n[policy].misses / c->r.n_tokens;
}

/* Where more memory begins to bring less than it did on average: the point farthest below the line
 * from the smallest size to the largest, in misses over frames. NULL: fewer than three sizes, or
 * no such bend. */
static const struct point *knee(const struct curve *c, unsigned policy)
{
    const struct point *first = &c->point[0], *last = first, *best = NULL;
    double deepest = 0;

    for (unsigned i = 0; i < c->n_points; i++) {
        first = c->point[i].n_frames < first->n_frames ? &c->point[i] : first;
        last = c->point[i].n_frames > last->n_frames ? &c->point[i] : last;
    }
    for (unsigned i = 0; first != last && i < c->n_points; i++) {
        double x = (double)(c->point[i].n_frames - first->n_frames) /
                   (double)(last->n_frames - first->n_frames);
        double miss0 = (double)first->n[policy].misses, miss1 = (double)last->n[policy].misses;
        double below = miss0 + x * (miss1 - miss0) - (double)c->point[i].n[policy].misses;

        if (below > deepest) {
            deepest = below;
            best = &c->point[i];
        }
    }
    return best;
}

static void print_head(FILE *to, const struct curve *c)
{
    fprintf(to, "  %8s %7s %10s", "records", "share", "memory");
    for (unsigned p = 0; p < N_POLICIES; p++)
        if (policy_wanted(p))
            fprintf(to, " %8s", known_policy[p]->name);
    fprintf(to, "  |");
    for (unsigned p = 0; p < N_POLICIES; p++)
        if (policy_wanted(p))
            fprintf(to, " %8s", known_policy[p]->name);
    fprintf(to, "\n  %27s hits, %%  %*s  | %s read per token\n", "", (int)(9 * (N_POLICIES - 2)),
            "", c->record_bytes ? "MB" : "records");
}

static void print_curve(FILE *to, const struct curve *c)
{
    char size[UNITS_TEXT];

    print_head(to, c);
    for (unsigned i = 0; i < c->n_points; i++) {
        const struct point *at = &c->point[i];

        fprintf(to, "  %8u %6.1f%% %10s", at->n_frames, 100.0 * at->n_frames / c->n_records,
                c->record_bytes ? size_text(size, at->n_frames * c->record_bytes) : "-");
        for (unsigned p = 0; p < N_POLICIES; p++)
            if (policy_wanted(p))
                fprintf(to, " %8.1f", hit_percent(c, at, p));
        fprintf(to, "  |");
        for (unsigned p = 0; p < N_POLICIES; p++)
            if (policy_wanted(p))
                fprintf(to, " %8.1f",
                        records_per_token(c, at, p) *
                            (c->record_bytes ? (double)c->record_bytes / 1e6 : 1));
        fputc('\n', to);
    }
    for (unsigned p = 0; p < N_POLICIES; p++) {
        const struct point *k = policy_wanted(p) ? knee(c, p) : NULL;

        if (k)
            fprintf(to, "  knee of %s: %u records, %.1f %% hits\n", known_policy[p]->name,
                    k->n_frames, hit_percent(c, k, p));
    }
}

static json_t *counts_json(const struct curve *c, const struct point *at, unsigned p)
{
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:f, s:f}", "policy", known_policy[p]->name, "hits",
                          (json_int_t)at->n[p].hits, "misses", (json_int_t)at->n[p].misses,
                          "evictions", (json_int_t)at->n[p].evictions, "hit_percent",
                          hit_percent(c, at, p), "records_per_token", records_per_token(c, at, p));

    if (c->record_bytes)
        json_object_set_new(o, "bytes_per_token",
                            json_real(records_per_token(c, at, p) * (double)c->record_bytes));
    return o;
}

static json_t *curve_json(const struct curve *c, const char *path)
{
    json_t *sizes = json_array(), *knees = json_object();

    for (unsigned i = 0; i < c->n_points; i++) {
        json_t *runs = json_array();

        for (unsigned p = 0; p < N_POLICIES; p++)
            if (policy_wanted(p))
                json_array_append_new(runs, counts_json(c, &c->point[i], p));
        json_array_append_new(
            sizes, json_pack("{s:i, s:o, s:o}", "records", (int)c->point[i].n_frames, "bytes",
                             c->record_bytes ? json_integer((json_int_t)c->point[i].n_frames *
                                                            (json_int_t)c->record_bytes)
                                             : json_null(),
                             "runs", runs));
    }
    for (unsigned p = 0; p < N_POLICIES; p++) {
        const struct point *k = policy_wanted(p) ? knee(c, p) : NULL;

        if (policy_wanted(p))
            json_object_set_new(knees, known_policy[p]->name,
                                k ? json_integer((json_int_t)k->n_frames) : json_null());
    }
    return json_pack("{s:o, s:i, s:i, s:i, s:i, s:I, s:i, s:i, s:o, s:o, s:o}", "trace",
                     json_text(path, strlen(path)), "tokens", (int)c->r.n_tokens, "layers",
                     (int)c->r.n_layers, "experts", (int)c->r.n_experts, "top_k", (int)c->r.top_k,
                     "requests", (json_int_t)c->r.n_ids, "records", (int)c->n_records,
                     "records_asked_for", (int)c->n_distinct, "record_bytes",
                     c->record_bytes ? json_integer((json_int_t)c->record_bytes) : json_null(),
                     "sizes", sizes, "knee_records", knees);
}

/* What a drive gives: waiting in selection order, hits first, and lookahead on top. */
static int project_arms(struct projected *out, const struct curve *c, const struct point *at,
                        const struct policy_ops *policy, const char *drive, struct err *e)
{
    for (unsigned arm = 0; arm < N_ARMS; arm++) {
        struct projection how = {.drive = drive,
                                 .policy = policy,
                                 .n_frames = at->n_frames,
                                 .depth = (unsigned)opt.depth,
                                 .record_bytes = c->record_bytes,
                                 .shared_ns = (uint64_t)opt.shared_us * 1000,
                                 .expert_ns = (uint64_t)opt.expert_us * 1000,
                                 .rest_ns = (uint64_t)opt.rest_us * 1000,
                                 .lookahead = arm == 2 ? (unsigned)opt.lookahead : 0,
                                 .in_order = arm == 0,
                                 .warm = c->r.n_tokens / 2};

        if (project(&out[arm], &c->r, &how, e))
            return e->code;
    }
    return 0;
}

static double tokens_per_s(const struct projected *p)
{
    return p->tokens / ((double)p->total_ns * 1e-9);
}

static double exposed_percent(const struct projected *p)
{
    return 100.0 * (double)p->waited_ns / (double)p->total_ns;
}

static json_t *arms_json(const struct projected *arm, const char *drive, const char *policy,
                         unsigned n_frames)
{
    static const char *const name[N_ARMS] = {"in_order", "hits_first", "lookahead"};
    json_t *o =
        json_pack("{s:s, s:s, s:i}", "drive", drive, "policy", policy, "records", (int)n_frames);

    for (unsigned i = 0; i < N_ARMS; i++)
        json_object_set_new(o, name[i],
                            json_pack("{s:f, s:f, s:f}", "tokens_per_s", tokens_per_s(&arm[i]),
                                      "exposed_percent", exposed_percent(&arm[i]),
                                      "bytes_per_token", (double)arm[i].bytes / arm[i].tokens));
    return o;
}

static void print_arms(FILE *to, const struct projected *arm, const char *drive, const char *policy,
                       unsigned n_frames)
{
    fprintf(to, "  %-7s %8u %-8s", drive, n_frames, policy);
    for (unsigned i = 0; i < N_ARMS; i++)
        fprintf(to, "  | %8.3f %6.1f%% %8.2f", tokens_per_s(&arm[i]), exposed_percent(&arm[i]),
                (double)arm[i].bytes / 1e9 / arm[i].tokens);
    fputc('\n', to);
}

/* Of one drive: each size, each policy that a pool can run on. */
static int project_drive(struct bench *b, struct curve *c, json_t *to, const char *drive,
                         struct err *e)
{
    for (unsigned i = 0; i < c->n_points; i++)
        for (unsigned p = 0; p < BOUND; p++) {
            const char *name = known_policy[p]->name;
            struct projected arm[N_ARMS];

            if (!policy_wanted(p))
                continue;
            if (term_interrupted())
                return err_set(e, ERR_CANCELLED, "%s", drive);
            if (project_arms(arm, c, &c->point[i], known_policy[p], drive, e))
                return e->code;
            json_array_append_new(to, arms_json(arm, drive, name, c->point[i].n_frames));
            if (b->report.table)
                print_arms(b->report.table, arm, drive, name, c->point[i].n_frames);
        }
    return 0;
}

static int project_drives(struct bench *b, struct curve *c, struct err *e)
{
    json_t *to = json_array();

    json_object_set_new(b->report.root, "projections", to);
    if (!c->record_bytes)
        return err_set(e, ERR_ARG, "--drive-model needs the size of a record: --record or --shape");
    report_note(&b->report,
                "simulated: the real pool on drives whose time is computed, depth %lld; the second "
                "half of the tokens counts; %s",
                (long long)opt.depth,
                c->r.guess ? "guesses are the trace's own"
                           : "guesses are drawn with the precision published for K3");
    if (b->report.table)
        fprintf(b->report.table,
                "  %-7s %8s %-8s  | in selection order        | hits first                | and "
                "lookahead\n  %25s  | tokens/s exposed   GB/tok | tokens/s exposed   GB/tok | "
                "tokens/s exposed   GB/tok\n",
                "drive", "records", "policy", "");
    for (const char *at = opt.drives; *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        char name[32];

        snprintf(name, sizeof(name), "%.*s", (int)len, at);
        if (project_drive(b, c, to, name, e))
            return err_wrap(e, "--drive-model");
        at += len;
    }
    return 0;
}

static int read_or_invent(struct bench *b, struct curve *c, const char *path, struct err *e)
{
    enum { INVENTED_TOKENS = 60 };
    const struct shape *s;

    if (strcmp(path, "invented"))
        return routes_read(&c->r, path, e);
    s = opt.shape ? shape_find(opt.shape) : NULL;
    if (!s)
        return err_set(e, ERR_ARG, "an invented trace needs a model: --shape");
    report_note(&b->report, "the trace is invented: no figure of it is a property of %s", s->name);
    return routes_invent(&c->r, s->n_layers - s->first_dense, s->n_experts, s->top_k,
                         INVENTED_TOKENS, SEED, e);
}

static int play_points(struct curve *c, struct err *e)
{
    for (unsigned i = 0; i < c->n_points; i++)
        for (unsigned p = 0; p < N_POLICIES; p++) {
            struct point *at = &c->point[i];

            if (term_interrupted())
                return err_set(e, ERR_CANCELLED, "replay");
            if (policy_wanted(p) &&
                replay(&at->n[p], &c->r, known_policy[p], at->n_frames, SEED, e))
                return e->code;
        }
    return 0;
}

static int run_curve(struct bench *b, struct curve *c, const char *path, struct err *e)
{
    if (read_or_invent(b, c, path, e) || know_model(c, path, e))
        return e->code;
    c->n_records = c->r.n_layers * c->r.n_experts;
    if (count_distinct(c, e) || choose_points(c, e))
        return e->code;
    report_note(&b->report,
                "%s: %u tokens, %u layers of %u experts%s, at most %u a layer and token; %zu "
                "requests for %u of %u records: without a warm pool no more than %.1f %% can hit",
                path, c->r.n_tokens, c->r.n_layers, c->r.n_experts,
                opt.shape ? "" : " (by the largest id)", c->r.top_k, c->r.n_ids, c->n_distinct,
                c->n_records, 100.0 - 100.0 * c->n_distinct / (double)c->r.n_ids);
    if (play_points(c, e))
        return e->code;
    if (b->report.table)
        print_curve(b->report.table, c);
    return opt.drives ? project_drives(b, c, e) : 0;
}

static int run(struct bench *b)
{
    json_t *replays = json_array();
    struct err e;

    json_object_set_new(b->report.root, "replays", replays);
    if (check_policies(&e))
        return bench_fail_err(b, &e);
    for (unsigned i = 0; i < b->n_args; i++) {
        struct curve *c = calloc(1, sizeof(*c));
        int rc = c ? run_curve(b, c, b->arg[i], &e) : err_set(&e, ERR_NOMEM, "replay");

        if (!rc)
            json_array_append_new(replays, curve_json(c, b->arg[i]));
        if (c)
            routes_release(&c->r);
        free(c);
        if (rc)
            return bench_fail_err(b, &e);
    }
    return 0;
}

const struct bench_command bench_replay = {
    .name = "replay",
    .args = "[OPTIONS] TRACE...",
    .summary = "routing traces through the replacement policies: hits at each size of the pool",
    .text =
        "Plays routing traces through the pool's own replacement policies, demand only, from an\n"
        "empty pool, and prints the share of requests that hit and what is read per token, beside\n"
        "belady, which knows the future: no policy can do better. Nothing is timed and nothing\n"
        "is read but the traces, so --rounds and --quick change nothing. Traces come from\n"
        "`WASTE_DUMP_ROUTE=FILE waste run ...`, or in the published form, an object per token;\n"
        "\"invented\" is a seeded one of the model that --shape names.",
    .flags = flags,
    .min_args = 1,
    .max_args = 64,
    .examples =
        "  waste-bench replay trace.jsonl --shape kimi-linear-48b\n"
        "  waste-bench replay trace.jsonl --record 2600K --ram 1G,2G,4G --policy lfru,nextuse\n"
        "  waste-bench replay invented --shape k3 --records 1472 --drive-model nvme7,nvme14\n",
    .run = run,
};
