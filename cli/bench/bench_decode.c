/* cli/bench/bench_decode.c - a token's time in each arithmetic, and what memory and drive explain
 * of it. */
#include "cli/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "cli/bench/floors.h"
#include "cli/bench/model_run.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static const char *const known_profile[] = {"f32", "direct", "i16", "i8"};
static const char *const known_level[] = {"c", "avx2", "avx512", "neon"};
static const double honest_share = 0.98; /* of what the drive is asked for must come from it */

static struct {
    const char *profiles, *levels;
    uint64_t budget;
    int64_t prompt, warm, tokens;
} opt = {.prompt = 32, .warm = 16, .tokens = 32};

static const struct flag flags[] = {
    {"numeric", FLAG_TEXT, &opt.profiles, 0, 0, "A,B,...", "only these: f32, direct, i16, i8"},
    {"cpu", FLAG_TEXT, &opt.levels, 0, 0, "A,B,...", "only these: c, avx2, avx512, neon"},
    {"budget", FLAG_SIZE, &opt.budget, 1 << 20, 1e15, "SIZE",
     "everything the model may take (as `waste run` chooses)"},
    {"prompt", FLAG_INT, &opt.prompt, 1, 1 << 20, "N", "tokens fed at once first (32)"},
    {"warm", FLAG_INT, &opt.warm, 0, 1 << 20, "N", "fed one by one then, not counted (16)"},
    {"tokens", FLAG_INT, &opt.tokens, 1, 1 << 20, "N", "fed one by one and counted (32)"},
    MODEL_FLAGS,
    {0},
};

static const struct metric metrics[] = {
    {"tokens_s", "tokens/s"},      {"token_ms", "ms/token"},        {"wait_ms", "waiting"},
    {"experts_ms", "experts"},     {"trunk_ms", "trunk"},           {"rest_ms", "rest"},
    {"ram_floor_ms", "RAM floor"}, {"drive_floor_ms", "drv floor"}, {"explained_percent", "expl %"},
    {"mb_per_token", "MB/token"},  {"ram_gb_s", "RAM GB/s"},        {"drive_gb_s", "drv GB/s"},
};
enum {
    M_TOKENS,
    M_TOKEN_MS,
    M_WAIT,
    M_EXPERTS,
    M_TRUNK,
    M_REST,
    M_RAM_FLOOR,
    M_DRIVE_FLOOR,
    M_EXPLAINED,
    M_MB,
    M_RAM_RATE,
    M_DRIVE_RATE,
};

struct bed { /* what the arms share */
    const char *path;
    int32_t *ids;
    waste_plan plan;
    waste_engine engine; /* numbers only: its texts belong to a context that is closed */
    struct floors *floors;
    double token_bytes;    /* of trunk and experts */
    double ram_s, drive_s; /* bytes a second in this round */
};

struct decode_arm {
    struct bed *bed;
    struct model_way way;
    struct arm *arm;
};

/* The first of each round: the others are held against the same seconds of the machine. */
static int run_floors(void *context, unsigned round, struct sample *out, struct err *e)
{
    struct decode_arm *a = context;
    struct bed *bed = a->bed;
    double from_device;

    if (floors_ram(bed->floors, &bed->ram_s, e) ||
        floors_drive(bed->floors, round, &bed->drive_s, &from_device, e))
        return e->code;
    out->value[M_TOKENS] = bed->ram_s / bed->token_bytes;
    out->value[M_RAM_FLOOR] = out->value[M_TOKEN_MS] = 1e3 * bed->token_bytes / bed->ram_s;
    out->value[M_RAM_RATE] = bed->ram_s * 1e-9;
    out->value[M_DRIVE_RATE] = bed->drive_s * 1e-9;
    if (from_device < honest_share)
        snprintf(a->arm->note, sizeof(a->arm->note),
                 "drive: %.0f %% came from a device: page cache", 100 * from_device);
    return 0;
}

static void put(struct sample *out, const struct bed *bed, const struct model_took *t)
{
    const double n = (double)opt.tokens, token_s = t->seconds / n;
    const double ram = bed->token_bytes / bed->ram_s;
    const double reads = t->early + t->misses;
    const double drive = reads > 0 ? reads * (double)bed->plan.record_bytes / n / bed->drive_s : 0;

    out->value[M_TOKENS] = 1 / token_s;
    out->value[M_TOKEN_MS] = 1e3 * token_s;
    out->value[M_WAIT] = 1e3 * t->wait_s / n;
    out->value[M_EXPERTS] = 1e3 * t->experts_s / n;
    out->value[M_TRUNK] = 1e3 * t->trunk_s / n;
    out->value[M_REST] = 1e3 * (t->seconds - t->wait_s - t->experts_s - t->trunk_s) / n;
    out->value[M_RAM_FLOOR] = 1e3 * ram;
    out->value[M_DRIVE_FLOOR] = 1e3 * drive;
    out->value[M_EXPLAINED] = 100 * fmax(ram, drive) / token_s;
    out->value[M_MB] = t->bytes * 1e-6 / n;
    out->digest = t->digest;
    out->has_digest = true;
}

static int run_arm(void *context, unsigned round, struct sample *out, struct err *e)
{
    const struct decode_arm *a = context;
    const int32_t *ids = a->bed->ids;
    struct model_took took;
    struct model_run m = {.ctx = NULL};
    int rc;

    (void)round;
    if (model_run_open(&m, &a->way, e))
        return e->code;
    rc = model_feed(&m, ids, (size_t)opt.prompt, false, &took, e) ||
                 model_feed(&m, ids + opt.prompt, (size_t)opt.warm, true, &took, e) ||
                 model_feed(&m, ids + opt.prompt + opt.warm, (size_t)opt.tokens, true, &took, e)
             ? e->code
             : 0;
    if (!rc) {
        put(out, a->bed, &took);
        model_run_note(a->arm->note, sizeof(a->arm->note), &m);
    }
    model_run_close(&m);
    return rc;
}

static bool level_here(const char *level)
{
    unsigned bits = 0;
    struct err e;

    if (!strcmp(level, "c"))
        return true;
    /* What the level adds, the machine must have. */
    return !cpu_level(&bits, level, &e) &&
           (cpu_detect() & (!strcmp(level, "avx512") ? (unsigned)CPU_AVX512
                            : !strcmp(level, "neon") ? (unsigned)CPU_NEON
                                                     : (unsigned)CPU_AVX2));
}

static void add_arms(struct trial *t, struct decode_arm *arm, struct bed *bed)
{
    const uint32_t positions = (uint32_t)(opt.prompt + opt.warm + opt.tokens);
    unsigned n = 0;

    arm[n].bed = bed;
    arm[n].arm = trial_add(t, run_floors, &arm[n], "memory: trunk and experts");
    arm[n++].arm->ceiling = true;
    for (unsigned p = 0; p < N_ELEMS(known_profile); p++)
        for (unsigned l = 0; l < N_ELEMS(known_level); l++) {
            struct decode_arm *a = &arm[n];

            if (!flag_names(opt.profiles, known_profile[p]) ||
                !(opt.levels ? flag_names(opt.levels, known_level[l]) : level_here(known_level[l])))
                continue;
            n++;
            *a = (struct decode_arm){.bed = bed,
                                     .way = {.path = bed->path,
                                             .budget = opt.budget,
                                             .numeric = known_profile[p],
                                             .cpu_level = known_level[l],
                                             .positions = positions}};
            a->arm = trial_add(t, run_arm, a, "%s, %s", known_profile[p], known_level[l]);
            a->arm->group = p;
            if (!level_here(known_level[l])) {
                a->arm->state = ARM_ABSENT;
                a->arm->run = NULL;
                snprintf(a->arm->why, sizeof(a->arm->why), "not on this machine");
            }
        }
}

static int run_trial(struct bench *b, struct bed *bed)
{
    struct decode_arm arm[ARMS_MAX] = {{.bed = NULL}};
    struct trial *t = trial_new(metrics, N_ELEMS(metrics), (unsigned)b->rounds,
                                "%lld tokens one by one, by arithmetic", (long long)opt.tokens);
    int rc;

    if (!t)
        return bench_fail(b, EXIT_MEMORY, NULL, "out of memory");
    add_arms(t, arm, bed);
    rc = trial_run(t) ? 0 : EXIT_INTERRUPTED;
    report_trial(&b->report, t,
                 json_pack("{s:o, s:o, s:f, s:o, s:i}", "model",
                           json_text(bed->path, strlen(bed->path)), "budget", json_u64(opt.budget),
                           "trunk_bytes_per_token", floors_trunk_bytes(bed->floors),
                           "expert_bytes_per_token", json_u64(bed->plan.mem.working_set_bytes),
                           "threads", (int)bed->engine.n_threads));
    free(t);
    return rc;
}

/* Threads, depth and budget as the arms will have them. */
static int look(struct bed *bed, const struct model_way *way, struct err *e)
{
    struct model_run m = {.ctx = NULL};

    if (model_run_plan(&bed->plan, way, e) || model_run_open(&m, way, e))
        return e->code;
    bed->engine = m.engine;
    model_run_close(&m);
    return 0;
}

static int bed_open(struct bed *bed, bool quick, struct err *e)
{
    const uint32_t positions = (uint32_t)(opt.prompt + opt.warm + opt.tokens);
    const struct model_way way = {.path = bed->path, .budget = opt.budget, .positions = positions};

    if (flag_names_check(opt.profiles, "numeric", "there are", known_profile,
                         N_ELEMS(known_profile), e) ||
        flag_names_check(opt.levels, "cpu", "there are", known_level, N_ELEMS(known_level), e) ||
        look(bed, &way, e) || model_run_ids(&bed->ids, positions, bed->path, e) ||
        floors_open(&bed->floors, bed->path, bed->engine.n_threads, bed->engine.io_depth,
                    model_choice.engine, quick, e))
        return e->code;
    bed->token_bytes = floors_trunk_bytes(bed->floors) + (double)bed->plan.mem.working_set_bytes;
    opt.budget =
        bed->engine.budget_bytes; /* the same for all, whatever the machine's state later */
    return 0;
}

static int run(struct bench *b)
{
    struct bed bed = {.path = b->arg[0], .ram_s = NAN, .drive_s = NAN};
    char budget[UNITS_TEXT], bytes[UNITS_TEXT];
    struct err e;
    int rc;

    if (bed_open(&bed, b->quick, &e)) {
        rc = bench_fail_err(b, &e);
    } else {
        report_note(&b->report,
                    "%s, %u threads, budget %s; a token reads %s of trunk and experts; floors are "
                    "that over the read rate of memory, and the records that were no resident hits "
                    "over the read rate of the drive, both measured in the same round",
                    model_choice.text ? model_choice.text : "invented ids", bed.engine.n_threads,
                    size_text(budget, opt.budget), size_text(bytes, (uint64_t)bed.token_bytes));
        rc = run_trial(b, &bed);
    }
    floors_close(bed.floors);
    free(bed.ids);
    return rc;
}

const struct bench_command bench_decode = {
    .name = "decode",
    .args = "[OPTIONS] MODEL",
    .summary = "a token's time in each arithmetic and CPU level, beside RAM and drive floors",
    .text =
        "Feeds the same tokens one by one in each numeric profile and CPU level, and splits the\n"
        "time of a token into waiting for reads, experts, trunk and rest. Beside it what no\n"
        "program could be faster than: memory, read once at the rate of a plain sum on all\n"
        "threads, and the drive, at the rate of reads that nothing else goes on beside. `expl`\n"
        "is the share of the time that the larger floor explains. Levels of one profile must\n"
        "agree to the bit.",
    .flags = flags,
    .min_args = 1,
    .max_args = 1,
    .takes_model = true,
    .examples = "  waste-bench decode kl.waste --budget 4G --numeric i16,i8\n"
                "  waste-bench decode share/demo.waste --cpu avx2 --rounds 3\n",
    .run = run,
};
