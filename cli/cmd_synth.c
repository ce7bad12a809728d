/* cli/cmd_synth.c - a container of a real model's shape with noise in it, to measure a machine. */
#include "cli/cmd.h"

#include <stdio.h>
#include <string.h>

#include "cli/places.h"
#include "cli/units.h"
#include "expertfs/synth.h"

static int no_shape(struct cli *c)
{
    char hint[2048] = "Shapes:";
    const char *name, *about;

    for (unsigned i = 0; (name = synth_shape(i, &about)); i++) {
        size_t at = strlen(hint);

        snprintf(hint + at, sizeof(hint) - at, "\n  %-18s %s", name, about);
    }
    return fail(c, EXIT_USAGE, hint, "synth",
                c->opts.shape ? "no shape \"%s\"" : "--shape is missing", c->opts.shape);
}

static bool known_shape(const char *shape)
{
    const char *name, *about;

    for (unsigned i = 0; shape && (name = synth_shape(i, &about)); i++) {
        if (!strcmp(shape, name))
            return true;
    }
    return false;
}

static int report(struct cli *c, const struct synth_options *o, const struct synth_plan *plan,
                  const struct synth_result *result, double seconds)
{
    char total[UNITS_TEXT], rate[UNITS_TEXT];

    if (c->opts.json)
        return say_json(
            c, json_pack("{s:o, s:s, s:i, s:i, s:i, s:i, s:o, s:I, s:I, s:I, s:i, s:b, s:f}",
                         "path", json_text(o->dir, strlen(o->dir)), "shape", o->shape, "layers",
                         (int)plan->layers, "moe_layers", (int)plan->moe_layers, "experts",
                         (int)plan->experts, "top_k", (int)plan->top_k, "seed", json_u64(o->seed),
                         "record_bytes", (json_int_t)plan->record_bytes, "total_bytes",
                         (json_int_t)plan->total_bytes, "bytes_written", (json_int_t)result->bytes,
                         "banks_kept", (int)result->banks_kept, "was_complete",
                         result->was_complete, "seconds", seconds));
    if (result->was_complete)
        printf("%s: complete already, %s\n", o->dir, size_text(total, plan->total_bytes));
    else
        printf("%s: %u layer%s, %u expert%s (%u a token), %s in %.1f s (%s/s)\n", o->dir,
               plan->layers, plural(plan->layers), plan->experts, plural(plan->experts),
               plan->top_k, size_text(total, plan->total_bytes), seconds,
               size_text_decimal(rate, (uint64_t)((double)result->bytes / (seconds + 1e-9))));
    return term_flush(&c->term) ? 0 : fail_output(c);
}

int cmd_synth(struct cli *c)
{
    char dir[PATH_MAX];
    struct synth_options o = {.dir = dir_name(c->opts.arg[1], dir),
                              .shape = c->opts.shape,
                              .layers = (unsigned)c->opts.layers,
                              .experts = (unsigned)c->opts.experts,
                              .top_k = c->opts.top_k > 0 ? (unsigned)c->opts.top_k : 0,
                              .seed = c->opts.seed,
                              .threads = (unsigned)c->opts.threads,
                              .buffered = !c->opts.direct,
                              .vision = c->opts.vision};
    struct progress progress = {0};
    struct synth_plan plan;
    struct synth_result result;
    char total[UNITS_TEXT];
    uint64_t begun = clock_ns();
    struct err e;
    int failed;

    if (!*o.dir)
        return fail(c, EXIT_USAGE, NULL, c->command, "MODEL is empty");
    if (!known_shape(o.shape))
        return no_shape(c);
    if (synth_plan(&plan, &o, &e))
        return fail_err(c, &e, "synth");
    note(c, "%s: %u layer%s, %u expert%s, %s", o.dir, plan.layers, plural(plan.layers),
         plan.experts, plural(plan.experts), size_text(total, plan.total_bytes));
    term_cancels(NULL, &progress.cancel);
    bar_watch(&c->bar, "writing", BAR_BYTES, &progress);
    failed = synth_run(&o, &progress, &result, &e);
    bar_unwatch(&c->bar);
    term_cancels(NULL, NULL);
    if (failed == ERR_CANCELLED)
        note(c, "Finished files are kept; the same command begins the unfinished one anew and goes "
                "on.");
    if (failed)
        return fail_err(c, &e, "synth");
    return report(c, &o, &plan, &result, (double)(clock_ns() - begun) * 1e-9);
}
