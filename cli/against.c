#include "cli/against.h"

#include <stdio.h>
#include <string.h>

#include "cli/units.h"
#include "model/compare.h"

static json_t *error_json(const struct compare_error *x)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:i, s:i}", "n", (json_int_t)x->n, "min", x->least,
                     "mean", x->mean, "max", x->most, "max_layer", (int)x->layer, "max_expert",
                     (int)x->expert);
}

static json_t *kinds_json(const struct compare_error *x)
{
    json_t *o = json_object();

    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++)
        json_object_set_new(o, matrix_name(m), error_json(&x[m]));
    return o;
}

static bool is_good(const struct compare_result *r)
{
    return !r->n_over && !r->n_different && !r->config[0];
}

static int print_json(struct cli *c, const struct compare_result *r, double seconds)
{
    json_t *layers = json_object();

    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++) {
        char key[16];

        snprintf(key, sizeof(key), "%u", l);
        if (r->layer[l][0].n)
            json_object_set_new(layers, key, kinds_json(r->layer[l]));
    }
    return say_json(c,
                    json_pack("{s:b, s:o, s:o, s:f, s:I, s:i, s:I, s:i, s:s, s:s, s:f}", "good",
                              is_good(r), "errors", kinds_json(r->all), "layers", layers, "limit",
                              r->limit, "over_limit", (json_int_t)r->n_over, "trunk_tensors",
                              (int)r->n_trunk, "trunk_rows", (json_int_t)r->trunk_rows,
                              "trunk_different", (int)r->n_different, "first_different",
                              r->different, "config_different", r->config, "seconds", seconds));
}

static int print_text(struct cli *c, const struct compare_result *r, double seconds)
{
    uint64_t n = 0;

    if (r->all[0].n)
        printf("%-6s %9s %9s %9s   relative error ||W - W'|| / ||W||\n", "", "min", "mean", "max");
    for (enum matrix m = MATRIX_GATE; r->all[0].n && m < MATRICES; m++) {
        const struct compare_error *x = &r->all[m];

        n += x->n;
        printf("%-6s %8.2f%% %8.2f%% %8.2f%%   of %llu; the most in layer %u expert %u\n",
               matrix_name(m), 100 * x->least, 100 * x->mean, 100 * x->most,
               (unsigned long long)x->n, x->layer, x->expert);
    }
    if (r->n_different)
        printf("trunk: %u of %u tensors are not what the source gives, the first is %s\n",
               r->n_different, r->n_trunk, r->different);
    if (r->config[0])
        printf("configuration: %s is not what the source has\n", r->config);
    printf("%llu matrices and %u tensors of the trunk in %.1f s: ", (unsigned long long)n,
           r->n_trunk, seconds);
    if (r->n_over)
        printf("%llu matrices are off by more than %.0f%%\n", (unsigned long long)r->n_over,
               100 * r->limit);
    else
        printf("%s\n", is_good(r) ? "all good" : "not the same");
    return term_flush(&c->term) ? 0 : fail_output(c);
}

int against_source(struct cli *c, const struct container *container)
{
    const struct compare_options o = {.source = c->opts.against,
                                      .sample = (unsigned)c->opts.sample,
                                      .all = c->opts.all,
                                      .threads = (unsigned)c->opts.threads};
    struct progress progress = {0};
    struct compare_result r = {0};
    uint64_t begun = clock_ns();
    struct err e;
    double seconds;
    int failed, rc;

    term_cancels(NULL, &progress.cancel);
    bar_watch(&c->bar, "comparing", BAR_BYTES, &progress);
    failed = compare_run(&r, container, &o, &progress, &e);
    bar_unwatch(&c->bar);
    term_cancels(NULL, NULL);
    if (failed)
        return fail_err(c, &e, "verify");
    seconds = (double)(clock_ns() - begun) * 1e-9;
    rc = c->opts.json ? print_json(c, &r, seconds) : print_text(c, &r, seconds);
    return rc ? rc : is_good(&r) ? 0 : EXIT_DAMAGED;
}
