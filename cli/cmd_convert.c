/* cli/cmd_convert.c - a published checkpoint becomes a container. */
#include "cli/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "cli/places.h"
#include "cli/units.h"
#include "model/convert.h"

static unsigned number(const char *choice)
{
    return choice ? (unsigned)atoi(choice) : 0;
}

/* What --format, or --stages in its place, asks for. False: the two disagree. */
static bool take_format(struct convert_options *o, const struct opts *opts)
{
    static const struct {
        const char *name;
        unsigned stages, entries, index_bits;
    } formats[] = {{"vq3r", 3, 256, 8}, {"vq2r", 2, 256, 8}, {"vq4p", 4, 64, 6}};

    o->stages = number(opts->stages);
    for (unsigned i = 0; opts->format && i < sizeof(formats) / sizeof(*formats); i++) {
        if (strcmp(opts->format, formats[i].name) != 0)
            continue;
        if (o->stages && o->stages != formats[i].stages)
            return false;
        o->stages = formats[i].stages;
        o->entries = formats[i].entries;
        o->index_bits = formats[i].index_bits;
    }
    return true;
}

static enum reclaim_mode reclaim_of(const char *choice)
{
    return !choice ? RECLAIM_OFF : !strcmp(choice, "on") ? RECLAIM_ON : RECLAIM_DRY;
}

static json_t *notices_json(const struct notices *n)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < n->n; i++)
        json_array_append_new(list, json_text(n->text[i], strlen(n->text[i])));
    return list;
}

static int report_json(struct cli *c, const struct convert_plan *p, const struct convert_result *r,
                       double seconds)
{
    const char *path = c->opts.out;
    json_t *o = json_pack(
        "{s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:i, s:b, s:f, s:o}", "path",
        json_text(path, strlen(path)), "arch", p->arch, "layers", (int)p->layers, "moe_layers",
        (int)p->moe_layers, "experts", (int)p->experts, "tensors", (int)p->tensors,
        "tensors_left_out", (int)p->dropped, "record_bytes", (json_int_t)p->record_bytes,
        "trunk_bytes", (json_int_t)p->trunk_bytes, "total_bytes", (json_int_t)p->total_bytes,
        "bytes_written", (json_int_t)r->bytes, "banks_kept", (int)r->banks_kept, "was_complete",
        p->complete, "seconds", seconds, "notices", notices_json(&r->notices));

    if (o && c->opts.reclaim) {
        json_object_set_new(o, "shards_reclaimed", json_integer(r->shards_reclaimed));
        json_object_set_new(o, "shard_bytes_reclaimed",
                            json_integer((json_int_t)r->shard_bytes_reclaimed));
    }
    return say_json(c, o);
}

static int report(struct cli *c, const struct convert_plan *p, const struct convert_result *r,
                  double seconds)
{
    bool on = reclaim_of(c->opts.reclaim) == RECLAIM_ON;
    char total[UNITS_TEXT], rate[UNITS_TEXT], gone[UNITS_TEXT];

    for (unsigned i = 0; i < r->notices.n; i++)
        note(c, "%s", r->notices.text[i]);
    if (c->opts.json)
        return report_json(c, p, r, seconds);
    if (p->complete)
        printf("%s: complete already, %s\n", c->opts.out, size_text(total, p->total_bytes));
    else
        printf("%s: %s, %u layer%s, %u expert%s, %s in %.1f s (%s/s)\n", c->opts.out, p->arch,
               p->layers, plural(p->layers), p->experts, plural(p->experts),
               size_text(total, p->total_bytes), seconds,
               size_text_decimal(rate, (uint64_t)((double)r->bytes / (seconds + 1e-9))));
    if (c->opts.reclaim)
        printf("%u source shards, %s, %s\n", r->shards_reclaimed,
               size_text(gone, r->shard_bytes_reclaimed),
               on ? "deleted" : "would have been deleted");
    return term_flush(&c->term) ? 0 : fail_output(c);
}

static int convert(struct cli *c, struct convert *cv)
{
    const struct convert_plan *p = convert_plan(cv);
    struct progress progress = {0};
    struct convert_result result;
    uint64_t begun = clock_ns();
    char total[UNITS_TEXT];
    struct err e;
    int failed;

    note(c, "%s: %s, %u layer%s, %u expert%s, %u tensors of the trunk, %u left out, %s%s",
         c->opts.out, p->arch, p->layers, plural(p->layers), p->experts, plural(p->experts),
         p->tensors, p->dropped, size_text(total, p->total_bytes),
         p->unfinished ? "; going on" : "");
    term_cancels(NULL, &progress.cancel);
    bar_watch(&c->bar, "writing", BAR_BYTES, &progress);
    failed = convert_run(cv, &progress, &result, &e);
    bar_unwatch(&c->bar);
    term_cancels(NULL, NULL);
    if (failed && atomic_load(&progress.total)) /* it had begun */
        note(c, "Finished files stay; the same command goes on from there.");
    if (failed)
        return fail_err(c, &e, "convert");
    return report(c, p, &result, (double)(clock_ns() - begun) * 1e-9);
}

int cmd_convert(struct cli *c)
{
    char src[PATH_MAX], out[PATH_MAX];
    struct convert_options o = {.source = c->opts.src ? dir_name(c->opts.src, src) : NULL,
                                .dir = c->opts.out ? dir_name(c->opts.out, out) : NULL,
                                .trunk_bits = number(c->opts.trunk_bits),
                                .router_bits = number(c->opts.router_bits),
                                .sample = (unsigned)c->opts.sample,
                                .threads = (unsigned)c->opts.jobs,
                                .cpu = cpu_detect(),
                                .reclaim = reclaim_of(c->opts.reclaim),
                                .resume = c->opts.resume,
                                .buffered = !c->opts.direct};
    struct convert *cv;
    struct err e;
    int rc;

    if (!o.source || !o.dir)
        return fail(c, EXIT_USAGE, "`waste help convert` has the options and examples.", "convert",
                    "%s is missing; usage: waste convert "
                    "--src DIR --out DIR.waste",
                    o.source ? "--out" : "--src");
    if (!take_format(&o, &c->opts))
        return fail(c, EXIT_USAGE, NULL, "convert",
                    "--format %s does not have %s stages; give only one of the two", c->opts.format,
                    c->opts.stages);
    if (convert_open(&cv, &o, &e))
        return fail_err(c, &e, "convert");
    rc = convert(c, cv);
    convert_close(cv);
    return rc;
}
