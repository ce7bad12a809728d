/* cli/bench/bench_sweep.c - cache sizes in one process on a real container: what does memory buy?
 */
#include "cli/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "cli/bench/model_run.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* Where nobody names budgets: the floor, and so much of all experts beyond it. */
static const double default_share[] = {0, 0.0625, 0.125, 0.25, 0.5, 1};
static const double usable_share = 0.75; /* of the memory that this process may take */

static struct {
    struct flag_list budgets;
    int64_t prompt, warm, tokens;
} opt = {.prompt = 32, .warm = 16, .tokens = 32};

static const struct flag flags[] = {
    {"budgets", FLAG_SIZES, &opt.budgets, 1 << 20, 1e15, "SIZE,...",
     "everything the model may take (the floor and up, as far as the machine has memory)"},
    {"prompt", FLAG_INT, &opt.prompt, 1, 1 << 20, "N", "tokens fed at once first (32)"},
    {"warm", FLAG_INT, &opt.warm, 0, 1 << 20, "N", "fed one by one then, not counted (16)"},
    {"tokens", FLAG_INT, &opt.tokens, 1, 1 << 20, "N", "fed one by one and counted (32)"},
    {"numeric", FLAG_CHOICE, &model_choice.numeric, 0, 0, "f32|direct|i16|i8", "arithmetic"},
    MODEL_FLAGS,
    {0},
};

static const struct metric metrics[] = {
    {"tokens_s", "tokens/s"},     {"hit_percent", "hits %"}, /* resident ones, as in replay; early:
                                                                read for a guess */
    {"early_percent", "early %"}, {"mb_per_token", "MB/token"},    {"gb_s", "GB/s"},
    {"wait_s", "exposed s"},      {"wait_percent", "exposed %"},   {"pool_records", "records"},
    {"pool_mib", "pool MiB"},     {"device_per_read", "dev/read"},
};
enum {
    M_TOKENS,
    M_HIT,
    M_EARLY,
    M_MB,
    M_GB_S,
    M_WAIT,
    M_WAIT_SHARE,
    M_RECORDS,
    M_POOL,
    M_DEVICE,
};

struct sweep_arm {
    struct model_way way;
    const int32_t *ids;
    struct arm *arm;
};

static void put(struct sample *out, const struct model_took *t, const struct model_run *m)
{
    const double pins = t->hits + t->early + t->misses;

    out->value[M_TOKENS] = (double)opt.tokens / t->seconds;
    if (pins > 0) {
        out->value[M_HIT] = 100 * t->hits / pins;
        out->value[M_EARLY] = 100 * t->early / pins;
    }
    out->value[M_MB] = t->bytes * 1e-6 / (double)opt.tokens;
    out->value[M_GB_S] = t->bytes * 1e-9 / t->seconds;
    out->value[M_WAIT] = t->wait_s;
    out->value[M_WAIT_SHARE] = 100 * t->wait_s / t->seconds;
    out->value[M_RECORDS] = m->engine.n_frames;
    out->value[M_POOL] = (double)m->engine.n_frames * (double)m->engine.frame_bytes / (1 << 20);
    if (t->bytes > 0)
        out->value[M_DEVICE] = t->from_device / t->bytes;
    out->digest = t->digest;
    out->has_digest = true;
}

static int run_arm(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct sweep_arm *a = context;
    struct model_took prompt, warm, took;
    struct model_run m = {.ctx = NULL};
    const int32_t *ids = a->ids;
    int rc;

    (void)round;
    if (model_run_open(&m, &a->way, e))
        return e->code;
    rc = model_feed(&m, ids, (size_t)opt.prompt, false, &prompt, e) ||
                 model_feed(&m, ids + opt.prompt, (size_t)opt.warm, true, &warm, e) ||
                 model_feed(&m, ids + opt.prompt + opt.warm, (size_t)opt.tokens, true, &took, e)
             ? e->code
             : 0;
    if (!rc) {
        took.digest = digest_bytes(prompt.digest ^ warm.digest, &took.digest, sizeof(took.digest));
        put(out, &took, &m);
        model_run_note(a->arm->note, sizeof(a->arm->note), &m);
    }
    model_run_close(&m);
    return rc;
}

static void choose_budgets(const struct bench *b, const waste_plan *plan)
{
    const double most = usable_share * (double)plan->usable_ram_bytes;
    const double least = (double)plan->mem.floor_bytes;

    for (size_t i = 0; i < N_ELEMS(default_share) && !(b->quick && i > 1); i++) {
        double budget = least + default_share[i] * (double)plan->expert_bytes;

        if (i && budget > most)
            break;
        opt.budgets.v[opt.budgets.n++] = (uint64_t)budget;
    }
}

/* Below the floor nothing runs; say so instead of failing halfway. */
static void add_arm(struct trial *t, struct sweep_arm *a, const waste_plan *plan)
{
    char name[UNITS_TEXT], floor[UNITS_TEXT], why[128];

    size_text(name, a->way.budget);
    if (a->way.budget >= plan->mem.floor_bytes) {
        a->arm = trial_add(t, run_arm, a, "%s", name);
        return;
    }
    snprintf(why, sizeof(why), "%s needs at least %s", a->way.path,
             size_text(floor, plan->mem.floor_bytes));
    trial_add_absent(t, name, why);
}

static json_t *facts(const struct bench *b, const waste_plan *plan)
{
    json_t *budgets = json_array();

    for (unsigned i = 0; i < opt.budgets.n; i++)
        json_array_append_new(budgets, json_u64(opt.budgets.v[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "model", json_text(b->arg[0], strlen(b->arg[0])),
        "budgets", budgets, "record_bytes", json_u64(plan->record_bytes), "records",
        (json_int_t)plan->n_moe_layers * plan->n_experts, "prompt", (json_int_t)opt.prompt, "warm",
        (json_int_t)opt.warm, "tokens", (json_int_t)opt.tokens);
}

static int run_trial(struct bench *b, const int32_t *ids, const waste_plan *plan)
{
    struct sweep_arm arm[FLAG_LIST_MAX];
    struct trial *t = trial_new(metrics, N_ELEMS(metrics), (unsigned)b->rounds,
                                "%lld tokens one by one, by memory", (long long)opt.tokens);
    int rc;

    if (!t)
        return bench_fail(b, EXIT_MEMORY, NULL, "out of memory");
    for (unsigned i = 0; i < opt.budgets.n; i++) {
        arm[i] =
            (struct sweep_arm){.way = {.path = b->arg[0],
                                       .budget = opt.budgets.v[i],
                                       .positions = (uint32_t)(opt.prompt + opt.warm + opt.tokens)},
                               .ids = ids};
        add_arm(t, &arm[i], plan);
    }
    rc = trial_run(t) ? 0 : EXIT_INTERRUPTED;
    report_trial(&b->report, t, facts(b, plan));
    free(t);
    return rc;
}

static int run(struct bench *b)
{
    const uint32_t positions = (uint32_t)(opt.prompt + opt.warm + opt.tokens);
    const struct model_way way = {.path = b->arg[0], .positions = positions};
    int32_t *ids = NULL;
    waste_plan plan;
    struct err e;
    int rc;

    if (model_run_plan(&plan, &way, &e) || model_run_ids(&ids, positions, b->arg[0], &e))
        return bench_fail_err(b, &e);
    if (!opt.budgets.n)
        choose_budgets(b, &plan);
    report_note(&b->report,
                "%s; each sample opens the model anew, feeds %lld and %lld tokens and counts the "
                "%lld after them",
                model_choice.text ? model_choice.text : "invented ids", (long long)opt.prompt,
                (long long)opt.warm, (long long)opt.tokens);
    rc = run_trial(b, ids, &plan);
    free(ids);
    return rc;
}

const struct bench_command bench_sweep = {
    .name = "sweep",
    .args = "[OPTIONS] MODEL",
    .summary = "a model at several sizes of its memory: tokens/s, hits, bytes, waiting",
    .text =
        "Feeds the same tokens to a model under each budget and counts the last of them, one a\n"
        "step: tokens a second, hits, what was read, how long the step waited for it. What\n"
        "comes out of the model must not depend on the budget: an arm whose digest differs is\n"
        "invalid.",
    .flags = flags,
    .min_args = 1,
    .max_args = 1,
    .takes_model = true,
    .examples = "  waste-bench sweep kl.waste --budgets 1250M,2G,4G,8G --text novel.txt\n"
                "  waste-bench sweep share/demo.waste --rounds 3 --json >sweep.json\n",
    .run = run,
};
