/* cli/cmd_plan.c - what a model needs and what to expect of it, before anything is loaded. */
#include "cli/cmd.h"

#include <stdio.h>
#include <string.h>

#include "cli/estimate.h"
#include "cli/load.h"
#include "cli/pictures.h"
#include "cli/safe.h"
#include "cli/units.h"

struct rates {
    double drive, ram; /* bytes per second; 0: no estimate was asked for */
    double tower;      /* multiply-adds per second, measured if there are images */
    bool measured;     /* the drive */
    bool direct;       /* what was measured is the disk, not the page cache */
};

static int find_rates(struct cli *c, const char *path, const waste_plan *p, struct rates *r)
{
    struct err e;

    *r = (struct rates){.drive = (double)c->opts.drive, .ram = (double)c->opts.ram};
    if (!c->opts.drive && !c->opts.measure)
        return c->opts.ram
                   ? fail(c, EXIT_USAGE, NULL, "plan", "--ram goes with --drive or --measure")
                   : 0;
    if (c->opts.drive && c->opts.measure)
        return fail(c, EXIT_USAGE, NULL, "plan", "both --drive and --measure are given");
    if (!p->record_bytes)
        return fail(c, EXIT_UNSUPPORTED, NULL, "plan", "a model without experts reads nothing");
    if (c->opts.measure && p->from_config)
        return fail(c, EXIT_USAGE, "Give the rate of a drive with --drive 7GB/s.", "plan",
                    "--measure reads a container, and this is a configuration");
    if (c->opts.measure && measure_drive(&r->drive, &r->direct, path, c->opts.direct, &e))
        return fail_err(c, &e, "plan");
    r->measured = c->opts.measure;
    if (c->opts.n_images && measure_tower(&r->tower, (unsigned)c->opts.threads, &e))
        return fail_err(c, &e, "plan");
    if (!c->opts.ram && measure_ram(&r->ram, &e))
        return fail_err(c, &e, "plan");
    return 0;
}

static struct estimate estimate_of(const waste_plan *p, const struct rates *r)
{
    return estimate_decode(p->pool_bytes, p->mem.working_set_bytes, p->expert_bytes,
                           p->mem.trunk_bytes, r->drive, r->ram);
}

static json_t *estimate_json(struct cli *c, const waste_plan *p, const struct rates *r)
{
    struct estimate s = estimate_of(p, r);
    json_t *o = json_pack(
        "{s:f, s:f, s:s, s:s, s:f, s:f, s:f, s:f}", "drive_bytes_per_s", r->drive,
        "ram_bytes_per_s", r->ram, "drive_from", r->measured ? "measured" : "given", "ram_from",
        c->opts.ram ? "given" : "measured", "hit_rate", s.hit_rate, "disk_s_per_token",
        s.disk_seconds, "ram_s_per_token", s.ram_seconds, "tok_per_s", s.tokens_per_second);

    if (o && r->measured)
        json_object_set_new(o, "direct_io", json_boolean(r->direct));
    return o;
}

static json_int_t count(uint64_t v)
{
    return (json_int_t)v;
}

/* The published fields, then ours. */
static json_t *plan_json(const waste_plan *p)
{
    const waste_memplan *m = &p->mem;
    json_t *o =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "ctx",
                  count(p->ctx_tokens), "trunk_bytes", count(m->trunk_bytes), "state_bytes",
                  count(m->state_bytes), "scratch_bytes", count(m->scratch_bytes),
                  "min_expert_cache", count(m->min_expert_cache), "floor_bytes",
                  count(m->floor_bytes), "recommended_bytes", count(m->recommended_bytes),
                  "working_set_bytes", count(m->working_set_bytes), "physical_ram_bytes",
                  count(p->physical_ram_bytes), "usable_ram_bytes", count(p->usable_ram_bytes),
                  "vision_bytes", count(m->vision_bytes), "budget_bytes", count(p->budget_bytes),
                  "expert_cache_bytes", p->fits ? count(p->pool_bytes) : (json_int_t)-1);
    json_t *more = json_pack(
        "{s:b, s:b, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b, "
        "s:I, s:I, s:I, s:I, s:I}",
        "budget_chosen", p->budget_chosen, "fits", p->fits, "usable_why", p->usable_why, "arch",
        json_text(p->arch, strnlen(p->arch, sizeof(p->arch))), "sessions", (int)p->max_sessions,
        "max_rows", (int)p->max_rows, "layers", (int)p->n_layers, "moe_layers",
        (int)p->n_moe_layers, "experts", (int)p->n_experts, "top_k", (int)p->top_k, "params_total",
        count(p->params_total), "params_active", count(p->params_active), "record_bytes",
        count(p->record_bytes), "expert_bytes", count(p->expert_bytes), "trunk_file_bytes",
        count(p->trunk_file_bytes), "disk_bytes", count(p->disk_bytes), "from_config",
        p->from_config, "scratch_growth_bytes", count(p->scratch_growth_bytes), "session_bytes",
        count(p->session_bytes), "checkpoint_bytes", count(p->checkpoint_bytes),
        "state_fixed_bytes", count(p->state_fixed_bytes), "state_token_bytes",
        count(p->state_token_bytes));

    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

enum { FLOOR_ROWS = 64 }; /* the floor is for passes of so many rows, or fewer (waste.h) */

static void row(const char *name, uint64_t bytes, const char *remark)
{
    char binary[UNITS_TEXT], decimal[UNITS_TEXT];

    printf("  %-24s %12s %12s%s%s\n", name, size_text(binary, bytes),
           size_text_decimal(decimal, bytes), *remark ? "  " : "", remark);
}

static void print_memory(const waste_plan *p)
{
    unsigned rows = p->max_rows < FLOOR_ROWS ? p->max_rows : FLOOR_ROWS;
    char remark[96];

    printf("Memory, for %u position%s\n", p->ctx_tokens, plural(p->ctx_tokens));
    row("trunk", p->mem.trunk_bytes, "");
    row("state", p->mem.state_bytes, "");
    row("scratch", p->mem.scratch_bytes, "");
    if (p->mem.vision_bytes)
        row("vision", p->mem.vision_bytes, "tower, its buffers, rows that wait");
    row("experts, at least", p->mem.min_expert_cache, "");
    snprintf(remark, sizeof(remark), "for passes of %u rows; less is refused", rows);
    row("floor", p->mem.floor_bytes, remark);
    row("recommended", p->mem.recommended_bytes, "");
    row("this machine", p->usable_ram_bytes, p->usable_why);
    row("budget", p->budget_bytes, p->budget_chosen ? "chosen" : "given");
    if (!p->fits)
        return;
    snprintf(remark, sizeof(remark), "scratch for %u rows instead of %u", p->max_rows, rows);
    row("  longer passes", p->scratch_growth_bytes, p->max_rows > rows ? remark : "");
    if (!p->record_bytes)
        return;
    snprintf(remark, sizeof(remark), "with the least above: %llu of %llu, %.2f tokens' worth",
             (unsigned long long)(p->pool_bytes / p->record_bytes),
             (unsigned long long)(p->expert_bytes / p->record_bytes),
             p->mem.working_set_bytes ? (double)p->pool_bytes / (double)p->mem.working_set_bytes
                                      : 0);
    row("  left for experts", p->pool_bytes, remark);
}

static void print_disk(const waste_plan *p)
{
    char each[64];

    printf("Disk%s\n", p->from_config ? ", once converted" : "");
    row("container", p->disk_bytes, "");
    row("  trunk", p->trunk_file_bytes, "");
    row("  experts", p->expert_bytes, "");
    row("one expert", p->record_bytes, "");
    row("one token's experts", p->mem.working_set_bytes, "");
    snprintf(each, sizeof(each), "and %llu bytes for each position",
             (unsigned long long)p->state_token_bytes);
    row("a saved conversation", p->state_fixed_bytes, each);
}

static void print_estimate(struct cli *c, const waste_plan *p, const struct rates *r)
{
    struct estimate s = estimate_of(p, r);
    double disk_ms = 1e3 * s.disk_seconds, ram_ms = 1e3 * s.ram_seconds;
    char drive[UNITS_TEXT], ram[UNITS_TEXT];

    printf("Estimate, not a measurement\n");
    printf(
        "  at most %.*f tok/s: %.1f %% of experts found in memory, disk floor %.*f ms, RAM floor "
        "%.*f ms a token\n",
        estimate_decimals(s.tokens_per_second), s.tokens_per_second, 100 * s.hit_rate,
        estimate_decimals(disk_ms), disk_ms, estimate_decimals(ram_ms), ram_ms);
    printf("  from %s/s %s%s, %s/s of memory %s; hits as published for Kimi-Linear and K3;\n"
           "  reading and computing overlap completely\n",
           size_text_decimal(drive, (uint64_t)r->drive),
           r->measured ? "measured on these records" : "of drive given",
           r->measured && !r->direct ? " (PAGE CACHE, not the disk)" : "",
           size_text_decimal(ram, (uint64_t)r->ram), c->opts.ram ? "given" : "measured");
}

static void print_verdict(const struct cli *c, const waste_plan *p)
{
    char a[UNITS_TEXT], b[UNITS_TEXT], source[SAY_OPTION];

    if (!p->fits && !p->budget_chosen)
        printf("Does not fit: needs %s, the budget is %s (%s).\n", size_text(a, p->mem.floor_bytes),
               size_text(b, p->budget_bytes), say_option(c, "budget", source));
    else if (!p->fits)
        printf("Does not fit: needs %s, this machine offers %s.\n",
               size_text(a, p->mem.floor_bytes), size_text(b, p->usable_ram_bytes));
    else if (p->usable_ram_bytes && p->budget_bytes > p->usable_ram_bytes)
        printf("Fits the budget, but the budget of %s is above the %s this machine offers.\n",
               size_text(a, p->budget_bytes), size_text(b, p->usable_ram_bytes));
    else
        printf("Fits.\n");
}

/* A pass reads each expert that a row of it wants; of many rows, that is every one. */
static double image_disk_s(const waste_plan *p, const waste_image_info *i, double drive)
{
    uint64_t passes = (i->n_rows + p->max_rows - 1) / p->max_rows;
    double wanted = (double)i->n_rows * (double)p->mem.working_set_bytes;
    double all = (double)passes * (double)p->expert_bytes;

    return (wanted < all ? wanted : all) / drive;
}

static int print_images(struct cli *c, const char *path, const waste_plan *p, const struct rates *r)
{
    waste_image_info i;
    int rc = 0;

    if (c->opts.n_images)
        printf("Images\n");
    for (unsigned k = 0; !rc && k < c->opts.n_images; k++) {
        rc = picture_look(c, path, c->opts.image[k], &i);
        if (rc)
            break;
        printf("  %s: %u x %u, %u positions, %.1f G multiply-adds in the tower", c->opts.image[k],
               i.width, i.height, i.n_rows, (double)i.tower_macs * 1e-9);
        if (r->drive > 0)
            printf(": at least %.1f s at the %.1f G/s of its products here",
                   (double)i.tower_macs / r->tower, r->tower * 1e-9);
        if (r->drive > 0 && p->fits)
            printf("; at most %.1f s of reading", image_disk_s(p, &i, r->drive));
        printf("\n");
    }
    return rc;
}

static int print_text(struct cli *c, const char *path, const waste_plan *p, const struct rates *r)
{
    char total[UNITS_TEXT], active[UNITS_TEXT], arch[256];
    int rc;

    printf("%s: %u layer%s, %u of them with %u expert%s (%u a token), %s parameters (%s a token)\n",
           safe_text(arch, sizeof(arch), p->arch, strnlen(p->arch, sizeof(p->arch)), ""),
           p->n_layers, plural(p->n_layers), p->n_moe_layers, p->n_experts, plural(p->n_experts),
           p->top_k, count_text(total, p->params_total), count_text(active, p->params_active));
    print_memory(p);
    print_disk(p);
    if (r->drive > 0 && p->fits)
        print_estimate(c, p, r);
    rc = print_images(c, path, p, r);
    if (rc)
        return rc;
    print_verdict(c, p);
    return term_flush(&c->term) ? 0 : fail_output(c);
}

static int images_json(struct cli *c, const char *path, const waste_plan *p, const struct rates *r,
                       json_t *list)
{
    waste_image_info i;
    int rc = 0;

    for (unsigned k = 0; !rc && k < c->opts.n_images; k++) {
        json_t *o;

        rc = picture_look(c, path, c->opts.image[k], &i);
        if (rc)
            break;
        o = json_pack("{s:o, s:i, s:i, s:i, s:I, s:I}", "file",
                      json_text(c->opts.image[k], strlen(c->opts.image[k])), "width", (int)i.width,
                      "height", (int)i.height, "positions", (int)i.n_rows, "tower_macs",
                      count(i.tower_macs), "decode_bytes", count(i.decode_bytes));
        if (o && r->drive > 0) {
            json_object_set_new(o, "macs_per_s", json_f64(r->tower));
            json_object_set_new(o, "tower_s", json_f64((double)i.tower_macs / r->tower));
        }
        if (o && r->drive > 0 && p->fits)
            json_object_set_new(o, "disk_s", json_f64(image_disk_s(p, &i, r->drive)));
        json_array_append_new(list, o);
    }
    return rc;
}

static int print_json(struct cli *c, const char *path, const waste_plan *p, const struct rates *r)
{
    json_t *o = plan_json(p), *images = json_array();
    int rc = images_json(c, path, p, r, images);

    if (rc) {
        json_decref(o);
        json_decref(images);
        return rc;
    }
    if (c->opts.n_images)
        json_object_set(o, "images", images);
    json_decref(images);
    if (o && r->drive > 0 && p->fits)
        json_object_set_new(o, "estimate", estimate_json(c, p, r));
    rc = say_json(c, o);
    /* Scripts ask with --json whether it fits. The table is an answer either way: people plan on
     * their laptop what a server is to run. */
    return rc ? rc : p->fits ? 0 : EXIT_MEMORY;
}

int cmd_plan(struct cli *c)
{
    waste_plan plan = {.size = sizeof(plan)};
    struct rates rates;
    char path[PATH_MAX];
    waste_cfg cfg;
    waste_opts opts;
    waste_status st;
    int rc = model_find(c, c->opts.arg[1], path);

    if (rc)
        return rc;
    model_settings(c, &cfg, &opts);
    st = waste_plan_ex(path, &cfg, &opts, &plan);
    if (st != WASTE_OK)
        return fail_settings(c, st, path);
    rc = find_rates(c, path, &plan, &rates);
    if (rc)
        return rc;
    return c->opts.json ? print_json(c, path, &plan, &rates) : print_text(c, path, &plan, &rates);
}
