#include "cli/against.h"

#include <stdio.h>
#include <string.h>

#include "cli/places.h"
#include "cli/units.h"
#include "expertfs/safetensors.h"
#include "model/compare.h"
#include "model/hparams.h"
#include "model/release.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* ---- what the model computes with, whatever the configuration calls it ---- */

enum kind { COUNT, REAL, FLAG };

static const struct {
    const char *name; /* the configuration's, where it has one */
    enum kind kind;
    size_t at;
    unsigned n; /* of an array; 1 */
} hyper[] = {
#define HYPER(name, kind, field)                                                                   \
    {                                                                                              \
        name, kind, offsetof(struct hparams, field), 1                                             \
    }
    HYPER("hidden_size", COUNT, hidden),
    HYPER("vocab_size", COUNT, vocab),
    HYPER("rms_norm_eps", REAL, eps),
    HYPER("waste_latent_norm_eps", REAL, latent_eps),
    HYPER("linear_attn_config.num_heads", COUNT, kda_heads),
    HYPER("linear_attn_config.head_dim", COUNT, kda_dim),
    HYPER("linear_attn_config.short_conv_kernel_size", COUNT, conv_taps),
    HYPER("linear_attn_config.use_full_rank_gate", FLAG, kda_full_gate),
    HYPER("linear_attn_config.gate_lower_bound", REAL, gate_lower_bound),
    HYPER("num_attention_heads", COUNT, n_heads),
    HYPER("q_lora_rank", COUNT, q_lora),
    HYPER("kv_lora_rank", COUNT, kv_lora),
    HYPER("qk_nope_head_dim", COUNT, nope),
    HYPER("qk_rope_head_dim", COUNT, rope),
    HYPER("v_head_dim", COUNT, v_dim),
    HYPER("rotation of queries and keys", FLAG, mla_rotary),
    HYPER("mla_use_output_gate", FLAG, mla_gate),
    HYPER("scale of attention", REAL, attn_scale),
    {"rope frequency", REAL, offsetof(struct hparams, rope_freq), ROPE_DIM_MAX / 2},
    {"linear attention of layer", FLAG, offsetof(struct hparams, is_kda), FORMAT_LAYERS_MAX},
    HYPER("intermediate_size", COUNT, dense_inter),
    HYPER("num_experts_per_token", COUNT, top_k),
    HYPER("num_shared_experts", COUNT, n_shared),
    HYPER("latent_moe_use_norm", FLAG, latent_norm),
    HYPER("moe_renormalize", FLAG, renormalize),
    HYPER("routed_scaling_factor", REAL, routed_scale),
    HYPER("num_expert_group", COUNT, n_group),
    HYPER("topk_group", COUNT, topk_group),
    HYPER("activation_situ_beta", REAL, situ_beta),
    HYPER("activation_situ_linear_beta", REAL, situ_lambda),
    HYPER("attn_res_block_size", COUNT, attn_res_block),
#undef HYPER
};

enum { DIFFERENCES_MAX = N_ELEMS(hyper) };

struct difference { /* of one of them; an array's first */
    char name[64];
    double here, there; /* the container's, the source's */
};

struct differences {
    struct difference of[DIFFERENCES_MAX];
    unsigned n;
};

static double value_of(const struct hparams *hp, unsigned h, unsigned i)
{
    const char *at = (const char *)hp + hyper[h].at;

    if (hyper[h].kind == COUNT)
        return ((const unsigned *)(const void *)at)[i];
    if (hyper[h].kind == REAL)
        return ((const float *)(const void *)at)[i];
    return ((const bool *)(const void *)at)[i];
}

static void find_differences(struct differences *d, const struct hparams *here,
                             const struct hparams *there)
{
    for (unsigned h = 0; h < N_ELEMS(hyper); h++) {
        unsigned i = 0;

        while (i < hyper[h].n && value_of(here, h, i) == value_of(there, h, i))
            i++;
        if (i == hyper[h].n)
            continue;
        d->of[d->n] =
            (struct difference){.here = value_of(here, h, i), .there = value_of(there, h, i)};
        if (hyper[h].n > 1)
            snprintf(d->of[d->n].name, sizeof(d->of[0].name), "%s %u", hyper[h].name, i);
        else
            snprintf(d->of[d->n].name, sizeof(d->of[0].name), "%s", hyper[h].name);
        d->n++;
    }
}

/* A key that one of the two leaves out stands for its default, so the values are compared that a
 * model would be run with. */
static int compare_hyper(struct differences *d, const struct container *container,
                         const char *source, struct err *e)
{
    struct release release = {.config = NULL};
    struct checkpoint *checkpoint = NULL;
    struct hparams here, there;
    int rc = checkpoint_open(&checkpoint, source, e) ||
                     release_read(&release, checkpoint_config(checkpoint), NULL, e) ||
                     hparams_read(&there, release.config, e) ||
                     hparams_read(&here, container_manifest(container)->config, e)
                 ? e->code
                 : 0;

    if (!rc)
        find_differences(d, &here, &there);
    release_release(&release);
    checkpoint_close(checkpoint);
    return rc;
}

/* ---- the report ---- */

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

static bool is_good(const struct compare_result *r, const struct differences *d)
{
    return !r->n_over && !r->n_different && !r->config[0] && !d->n;
}

static json_t *differences_json(const struct differences *d)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < d->n; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "name", d->of[i].name, "container",
                                              d->of[i].here, "source", d->of[i].there));
    return list;
}

static int print_json(struct cli *c, const struct compare_result *r, const struct differences *d,
                      double seconds)
{
    json_t *layers = json_object();

    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++) {
        char key[16];

        snprintf(key, sizeof(key), "%u", l);
        if (r->layer[l][0].n)
            json_object_set_new(layers, key, kinds_json(r->layer[l]));
    }
    return say_json(c, json_pack("{s:b, s:o, s:o, s:f, s:I, s:i, s:I, s:i, s:s, s:s, s:o, s:f}",
                                 "good", is_good(r, d), "errors", kinds_json(r->all), "layers",
                                 layers, "limit", r->limit, "over_limit", (json_int_t)r->n_over,
                                 "trunk_tensors", (int)r->n_trunk, "trunk_rows",
                                 (json_int_t)r->trunk_rows, "trunk_different", (int)r->n_different,
                                 "first_different", r->different, "config_different", r->config,
                                 "computed_with", differences_json(d), "seconds", seconds));
}

static bool is_among(const struct differences *d, const char *name)
{
    for (unsigned i = 0; i < d->n; i++)
        if (!strcmp(d->of[i].name, name))
            return true;
    return false;
}

static int print_text(struct cli *c, const struct compare_result *r, const struct differences *d,
                      double seconds)
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
    for (unsigned i = 0; i < d->n; i++)
        printf("configuration: %s is not what the source has: %.7g, there %.7g\n", d->of[i].name,
               d->of[i].here, d->of[i].there);
    if (r->config[0] && !is_among(d, r->config))
        printf("configuration: %s is not what the source has\n", r->config);
    printf("%llu matrices and %u tensors of the trunk in %.1f s: ", (unsigned long long)n,
           r->n_trunk, seconds);
    if (r->n_over)
        printf("%llu matrices are off by more than %.0f%%\n", (unsigned long long)r->n_over,
               100 * r->limit);
    else
        printf("%s\n", is_good(r, d) ? "all good" : "not the same");
    return term_flush(&c->term) ? 0 : fail_output(c);
}

int against_source(struct cli *c, const struct container *container)
{
    char source[PATH_MAX];
    const struct compare_options o = {.source = dir_name(c->opts.against, source),
                                      .sample = (unsigned)c->opts.sample,
                                      .all = c->opts.all,
                                      .threads = (unsigned)c->opts.threads};
    struct progress progress = {0};
    struct compare_result r = {0};
    struct differences d = {.n = 0};
    uint64_t begun = clock_ns();
    struct err e;
    double seconds;
    int failed, rc;

    term_cancels(NULL, &progress.cancel);
    bar_watch(&c->bar, "comparing", BAR_BYTES, &progress);
    failed =
        compare_run(&r, container, &o, &progress, &e) || compare_hyper(&d, container, o.source, &e);
    bar_unwatch(&c->bar);
    term_cancels(NULL, NULL);
    if (failed)
        return fail_err(c, &e, "verify");
    seconds = (double)(clock_ns() - begun) * 1e-9;
    rc = c->opts.json ? print_json(c, &r, &d, seconds) : print_text(c, &r, &d, seconds);
    return rc ? rc : is_good(&r, &d) ? 0 : EXIT_DAMAGED;
}
