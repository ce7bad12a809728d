#include "model/release.h"

#include <stdio.h>
#include <string.h>

/* Names of the DeepSeek family and the canonical ones. */
static const struct {
    const char *canonical, *theirs;
} aliases[] = {
    {"num_experts", "n_routed_experts"},
    {"num_experts_per_token", "num_experts_per_tok"},
    {"num_shared_experts", "n_shared_experts"},
};

static const char *const presence_tested[] = {"moe_renormalize", "latent_moe_use_norm",
                                              "mla_use_output_gate"};

/* The members of text_config, and all others below _outer. */
static json_t *flatten(const json_t *whole)
{
    const json_t *text = json_object_get(whole, "text_config");
    json_t *config = json_deep_copy(text), *outer = json_deep_copy(whole);

    json_object_del(outer, "text_config");
    if (!config || !outer || json_object_set(config, "_outer", outer)) {
        json_decref(config);
        config = NULL;
    }
    json_decref(outer);
    return config;
}

static int add_aliases(json_t *config)
{
    int bad = 0;

    for (size_t i = 0; i < sizeof(aliases) / sizeof(*aliases); i++) {
        json_t *theirs = json_object_get(config, aliases[i].theirs);

        if (json_given(theirs) && !json_given(json_object_get(config, aliases[i].canonical)))
            bad |= json_object_set(config, aliases[i].canonical, theirs);
    }
    if (!json_object_get(config, "moe_renormalize") &&
        json_is_true(json_object_get(config, "norm_topk_prob")))
        bad |= json_object_set_new(config, "moe_renormalize", json_true());
    return bad;
}

/* What is neither true nor false is left for hparams to refuse by name. */
static void drop_unless_true(json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (json_is_false(value) || json_is_null(value))
        json_object_del(object, key);
}

static void drop_idle_flags(json_t *config)
{
    for (size_t i = 0; i < sizeof(presence_tested) / sizeof(*presence_tested); i++)
        drop_unless_true(config, presence_tested[i]);
    drop_unless_true(json_object_get(config, "linear_attn_config"), "use_full_rank_gate");
    if (json_is_null(json_object_get(config, "mla_use_nope")))
        json_object_del(config, "mla_use_nope");
}

/* Where releases keep the ids that end an answer: beside the text model, around it, or in
 * generation_config.json. A list of one is that one: some readers know no lists. */
static int add_eos(json_t *config, const json_t *generation)
{
    const json_t *outer = json_object_get(config, "_outer");
    json_t *eos = json_object_get(config, "eos_token_id");

    if (!json_given(eos))
        eos = json_object_get(outer, "eos_token_id");
    if (!json_given(eos))
        eos = json_object_get(generation, "eos_token_id");
    if (json_is_array(eos) && json_array_size(eos) == 1)
        eos = json_array_get(eos, 0);
    return json_given(eos) ? json_object_set(config, "eos_token_id", eos) : 0;
}

static void name_architecture(struct release *r, const json_t *whole)
{
    const json_t *name = json_array_get(json_object_get(whole, "architectures"), 0);
    const char *text;

    if (!json_is_string(name))
        name = json_array_get(json_object_get(r->config, "architectures"), 0);
    if (!json_is_string(name))
        name = json_object_get(r->config, "model_type");
    text = json_is_string(name) ? json_string_value(name) : "unknown";
    if (strstr(text, "KimiK3"))
        text = "kimi-k3";
    else if (strstr(text, "KimiLinear"))
        text = "kimi-linear";
    json_printable(r->arch, sizeof(r->arch), text, strlen(text));
}

int release_read(struct release *out, const json_t *config, const json_t *generation, struct err *e)
{
    const json_t *text = json_object_get(config, "text_config");
    struct release r = {0};

    if (json_given(text) && !json_is_object(text))
        return err_set(e, ERR_FORMAT, "config.json: text_config must be an object");
    r.config = json_is_object(text) ? flatten(config) : json_deep_copy(config);
    snprintf(r.prefix, sizeof(r.prefix), "%s", json_is_object(text) ? "language_model." : "");
    if (!r.config || add_aliases(r.config) || add_eos(r.config, generation)) {
        json_decref(r.config);
        return err_set(e, ERR_NOMEM, "config.json");
    }
    drop_idle_flags(r.config);
    name_architecture(&r, config);
    *out = r;
    return 0;
}

void release_release(struct release *r)
{
    json_decref(r->config);
    r->config = NULL;
}

const json_t *release_outer(const struct release *r, const char *key)
{
    const json_t *outer = json_object_get(r->config, "_outer");
    const json_t *value = json_object_get(outer, key);

    return json_given(value) ? value : json_object_get(r->config, key);
}

const json_t *release_vision(const struct release *r)
{
    const json_t *vision = release_outer(r, "vision_config");

    return json_is_object(vision) ? vision : NULL;
}
