/* cli/bench/bench_prefill.c - a prompt by its length: tokens/s, and what is read for it. */
#include "cli/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench/model_run.h"
#include "cli/bench/routes.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static struct {
    struct flag_list lengths;
    uint64_t budget;
    bool no_check;
} opt = {.lengths = {{16, 64, 256, 512}, 4}};

static const struct flag flags[] = {
    {"lengths", FLAG_INTS, &opt.lengths, 2, 1 << 20, "N,...", "tokens (16,64,256,512)"},
    {"budget", FLAG_SIZE, &opt.budget, 1 << 20, 1e15, "SIZE",
     "everything the model may take (as `waste run` chooses)"},
    {"no-check", FLAG_SET, &opt.no_check, 0, 0, NULL,
     "do not count first, a token at a time, which records the longest prompt needs"},
    {"numeric", FLAG_CHOICE, &model_choice.numeric, 0, 0, "f32|direct|i16|i8", "arithmetic"},
    MODEL_FLAGS,
    {0},
};

static const struct metric metrics[] = {
    {"tokens_s", "tokens/s"},     {"mb_per_token", "MB/token"},     {"gb_s", "GB/s"},
    {"wait_s", "exposed s"},      {"wait_percent", "exposed %"},    {"records_read", "records"},
    {"records_needed", "needed"}, {"read_per_needed", "read/need"},
};
enum { M_TOKENS, M_MB, M_GB_S, M_WAIT, M_WAIT_SHARE, M_READ, M_NEEDED, M_SHARE };

struct prefill {
    const char *path;
    int32_t *ids;
    unsigned longest;
    double record_bytes;
    struct routes routes; /* of the longest; no calls: not known */
    uint32_t *page;       /* [routes.n_ids] scratch */
};

struct prefill_arm {
    const struct prefill *of;
    struct model_way way;
    unsigned length;
    struct arm *arm;
};

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* Distinct records of tokens [t0, t1). */
static unsigned distinct(const struct prefill *p, unsigned t0, unsigned t1)
{
    const struct routes *r = &p->routes;
    unsigned n = 0, found = 0;

    for (size_t i = (size_t)t0 * r->n_layers; i < (size_t)t1 * r->n_layers; i++)
        for (unsigned k = 0; k < r->call[i].n; k++)
            p->page[n++] = r->call[i].layer * r->n_experts + r->id[r->call[i].first + k];
    qsort(p->page, n, sizeof(*p->page), compare_u32);
    for (unsigned i = 0; i < n; i++)
        found += !i || p->page[i] != p->page[i - 1];
    return found;
}

/* Records that passes of so many rows ask for, each once a pass. */
static double needed(const struct prefill *p, unsigned length, unsigned rows)
{
    double n = 0;

    for (unsigned at = 0; at < length; at += rows)
        n += distinct(p, at, at + rows < length ? at + rows : length);
    return n;
}

/* Reading more than every pass needs once is a fault of the engine, whatever its speed. */
static void judge(struct sample *out, const struct prefill_arm *a, double read, unsigned rows)
{
    double need;

    if (!a->of->routes.n_calls)
        return;
    need = needed(a->of, a->length, rows);
    out->value[M_NEEDED] = need;
    out->value[M_SHARE] = read / need;
    if (read > need)
        snprintf(out->invalid, sizeof(out->invalid),
                 "%.0f records were read, passes of %u rows need %.0f: some were read twice", read,
                 rows, need);
}

static int run_arm(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct prefill_arm *a = context;
    struct model_run m = {.ctx = NULL};
    struct model_took took;
    double read;
    int rc;

    (void)round;
    if (model_run_open(&m, &a->way, e))
        return e->code;
    rc = model_feed(&m, a->of->ids, a->length, false, &took, e);
    if (!rc) {
        read = a->of->record_bytes > 0 ? took.bytes / a->of->record_bytes : 0;
        out->value[M_TOKENS] = a->length / took.seconds;
        out->value[M_MB] = took.bytes * 1e-6 / a->length;
        out->value[M_GB_S] = took.bytes * 1e-9 / took.seconds;
        out->value[M_WAIT] = took.wait_s;
        out->value[M_WAIT_SHARE] = 100 * took.wait_s / took.seconds;
        out->value[M_READ] = read;
        out->digest = took.digest;
        out->has_digest = true;
        model_run_note(a->arm->note, sizeof(a->arm->note), &m);
        judge(out, a, read, m.engine.max_rows);
    }
    model_run_close(&m);
    return rc;
}

/* One token a pass: the rows' routes do not depend on the cut, so they are those of any prompt
 * that begins like this one. */
static int trace(struct prefill *p, uint64_t budget, struct err *e)
{
    const char *dir = getenv("TMPDIR");
    char name[512];
    struct model_way way = {.path = p->path, .budget = budget, .positions = p->longest};
    struct model_run m = {.ctx = NULL};
    struct model_took took;
    int fd, rc;

    snprintf(name, sizeof(name), "%s/waste-bench-XXXXXX", dir && *dir ? dir : "/tmp");
    fd = mkstemp(name);
    if (fd < 0)
        return err_sys(e, errno, "%s", name);
    close(fd);
    way.route_trace = name;
    rc = model_run_open(&m, &way, e);
    if (!rc)
        rc = model_feed(&m, p->ids, p->longest, true, &took, e);
    model_run_close(&m); /* writes the rest */
    if (!rc)
        rc = routes_read(&p->routes, name, e);
    unlink(name);
    if (!rc && p->routes.n_calls != (size_t)p->longest * p->routes.n_layers)
        rc = err_set(e, ERR_FORMAT, "the trace has %zu calls, %u tokens through %u layers have %zu",
                     p->routes.n_calls, p->longest, p->routes.n_layers,
                     (size_t)p->longest * p->routes.n_layers);
    if (!rc && !(p->page = malloc((p->routes.n_ids + 1) * sizeof(*p->page))))
        rc = err_set(e, ERR_NOMEM, "%zu routed ids", p->routes.n_ids);
    return rc;
}

static int run_trial(struct bench *b, const struct prefill *p)
{
    struct prefill_arm arm[FLAG_LIST_MAX];
    struct trial *t =
        trial_new(metrics, N_ELEMS(metrics), (unsigned)b->rounds, "a prompt, by its length");
    json_t *lengths = json_array();
    int rc;

    if (!t)
        return bench_fail(b, EXIT_MEMORY, NULL, "out of memory");
    for (unsigned i = 0; i < opt.lengths.n; i++) {
        arm[i] = (struct prefill_arm){.of = p,
                                      .length = (unsigned)opt.lengths.v[i],
                                      .way = {.path = p->path,
                                              .budget = opt.budget,
                                              .positions = (uint32_t)opt.lengths.v[i]}};
        arm[i].arm = trial_add(t, run_arm, &arm[i], "%u tokens", arm[i].length);
        arm[i].arm->group = arm[i].length; /* other prompts, other bits */
        json_array_append_new(lengths, json_integer(arm[i].length));
    }
    rc = trial_run(t) ? 0 : EXIT_INTERRUPTED;
    report_trial(&b->report, t,
                 json_pack("{s:o, s:o, s:f}", "model", json_text(p->path, strlen(p->path)),
                           "lengths", lengths, "record_bytes", p->record_bytes));
    free(t);
    return rc;
}

static int prepare(struct prefill *p, const struct bench *b, struct err *e)
{
    struct model_way way = {.path = p->path, .budget = opt.budget};
    waste_plan plan;

    if (b->quick)
        opt.lengths = (struct flag_list){{8, 16}, 2};
    for (unsigned i = 0; i < opt.lengths.n; i++)
        if (opt.lengths.v[i] > p->longest)
            p->longest = (unsigned)opt.lengths.v[i];
    way.positions = p->longest;
    if (model_run_plan(&plan, &way, e) || model_run_ids(&p->ids, p->longest, p->path, e))
        return e->code;
    opt.budget = plan.budget_bytes; /* the same for all, whatever the machine's state later */
    p->record_bytes = (double)plan.record_bytes;
    return opt.no_check || !plan.record_bytes ? 0 : trace(p, opt.budget, e);
}

static int run(struct bench *b)
{
    struct prefill p = {.path = b->arg[0]};
    char budget[UNITS_TEXT];
    struct err e;
    int rc;

    if (prepare(&p, b, &e)) {
        rc = bench_fail_err(b, &e);
    } else {
        report_note(&b->report, "%s, budget %s; each sample opens the model anew: an empty pool",
                    model_choice.text ? model_choice.text : "invented ids",
                    size_text(budget, opt.budget));
        rc = run_trial(b, &p);
    }
    routes_release(&p.routes);
    free(p.page);
    free(p.ids);
    return rc;
}

const struct bench_command bench_prefill = {
    .name = "prefill",
    .args = "[OPTIONS] MODEL",
    .summary = "prompts by their length: tokens/s, bytes a token, each record read once",
    .text =
        "Feeds prompts of several lengths to a freshly opened model: tokens a second, what was\n"
        "read for each, how long it was waited for. `needed` are the distinct records that the\n"
        "rows of each pass route to, known from feeding the longest prompt one token at a time\n"
        "first; an arm that read more is invalid.",
    .flags = flags,
    .min_args = 1,
    .max_args = 1,
    .takes_model = true,
    .examples = "  waste-bench prefill kl.waste --budget 4G --text novel.txt\n"
                "  waste-bench prefill share/demo.waste --lengths 16,512 --no-check\n",
    .run = run,
};
