#include "model/hparams.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* One integer member with its range, under either name. */
struct dim {
    unsigned *to;
    const char *key, *alias;
    int64_t fallback, lo, hi;
};

static int read_dims(const struct json_at *at, const struct dim *d, unsigned n, struct err *e)
{
    for (unsigned i = 0; i < n; i++) {
        const char *name;
        int64_t x;

        if (json_get_int_named(&x, &name, at, d[i].key, d[i].alias, d[i].fallback, d[i].lo, d[i].hi,
                               e))
            return e->code;
        if (x < d[i].lo) /* absent, and there is no default */
            return err_set(e, ERR_FORMAT, "%s.%s is absent", at->path, name);
        *d[i].to = (unsigned)x;
    }
    return 0;
}

static int read_f32(float *out, const struct json_at *at, const char *key, double fallback,
                    double lo, double hi, struct err *e)
{
    double v;

    if (json_get_f64(&v, at, key, fallback, e))
        return e->code;
    if (!isfinite(v) || v < lo || v > hi)
        return err_set(e, ERR_FORMAT, "%s.%s = %g is not a usable number (%g...%g expected)",
                       at->path, key, v, lo, hi);
    *out = (float)v;
    return 0;
}

static int refuse_unless(const struct json_at *at, const char *key, const char *const *known,
                         struct err *e)
{
    const char *text;

    if (json_get_text(&text, at, key, e))
        return e->code;
    if (!text)
        return 0;
    for (unsigned i = 0; known[i]; i++)
        if (!strcmp(text, known[i]))
            return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s.%s \"%s\" is not supported (\"%s\" is)", at->path, key,
                   text, known[0]);
}

static int refuse_flag(const struct json_at *at, const char *key, bool only, struct err *e)
{
    const json_t *v = json_object_get(at->object, key);

    if (!v || json_is_null(v) || (only ? json_is_true(v) : json_is_false(v)))
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s.%s other than %s is not supported", at->path, key,
                   only ? "true" : "false");
}

static int read_kda_layers(struct hparams *hp, const struct json_at *at, struct err *e)
{
    bool is_full[FORMAT_LAYERS_MAX] = {false};
    const json_t *kda, *full;
    size_t i;
    json_t *v;
    int64_t x;

    if (json_get_array(&kda, at, "kda_layers", e) ||
        json_get_array(&full, at, "full_attn_layers", e))
        return e->code;
    json_array_foreach((json_t *)kda, i, v)
    {
        if (!json_exact_int(v, &x) || x < 1 || x > hp->n_layers)
            return err_set(e, ERR_FORMAT, "%s.kda_layers: entry %zu is not a layer 1...%u",
                           at->path, i, hp->n_layers);
        if (hp->is_kda[x - 1])
            return err_set(e, ERR_FORMAT, "%s.kda_layers: layer %d is listed twice", at->path,
                           (int)x);
        hp->is_kda[x - 1] = true; /* the release counts layers from 1 */
        hp->n_kda++;
    }
    json_array_foreach((json_t *)full, i, v)
    {
        if (!json_exact_int(v, &x) || x < 1 || x > hp->n_layers)
            return err_set(e, ERR_FORMAT, "%s.full_attn_layers: entry %zu is not a layer 1...%u",
                           at->path, i, hp->n_layers);
        if (hp->is_kda[x - 1])
            return err_set(e, ERR_FORMAT, "%s: layer %d is in both kda_layers and full_attn_layers",
                           at->path, (int)x);
        if (is_full[x - 1])
            return err_set(e, ERR_FORMAT, "%s.full_attn_layers: layer %d is listed twice", at->path,
                           (int)x);
        is_full[x - 1] = true;
    }
    if (full && json_array_size(full) + hp->n_kda != hp->n_layers)
        return err_set(e, ERR_FORMAT, "%s: %u kda_layers and %zu full_attn_layers for %u layers",
                       at->path, hp->n_kda, json_array_size(full), hp->n_layers);
    return 0;
}

static int read_kda(struct hparams *hp, const struct json_at *config, struct err *e)
{
    struct json_at at;
    float bound = 0;

    if (json_enter(&at, config, "linear_attn_config", e))
        return e->code;
    hp->conv_taps = 4;
    if (at.object && read_kda_layers(hp, &at, e))
        return e->code;
    hp->n_mla = hp->n_layers - hp->n_kda;
    if (!hp->n_kda)
        return 0;

    struct dim dims[] = {
        {&hp->kda_heads, "num_heads", NULL, 0, 1, 65536},
        {&hp->kda_dim, "head_dim", NULL, 0, 1, 4096},
        {&hp->conv_taps, "short_conv_kernel_size", NULL, 4, 1, 64},
    };
    if (read_dims(&at, dims, 3, e) ||
        json_get_flag(&hp->kda_full_gate, &at, "use_full_rank_gate", e) ||
        read_f32(&bound, &at, "gate_lower_bound", 0, -80, 0, e))
        return e->code;
    hp->gate_lower_bound = bound;
    if ((uint64_t)hp->kda_heads * hp->kda_dim > 1u << 20)
        return err_set(e, ERR_LIMIT, "%s: %u heads of %u channels", at.path, hp->kda_heads,
                       hp->kda_dim);
    return 0;
}

/* YaRN (arXiv:2309.00071): frequencies blended between the plain and the stretched, from position
 * 0 on. */
static void yarn_frequencies(struct hparams *hp, double theta, double factor, double original,
                             double fast, double slow)
{
    double d = hp->rope, two_pi = 2 * 3.14159265358979323846;
    double low = fmax(floor(d * log(original / (two_pi * fast)) / (2 * log(theta))), 0);
    double high = fmin(ceil(d * log(original / (two_pi * slow)) / (2 * log(theta))), d - 1);

    if (low == high)
        high += 0.001;
    for (unsigned j = 0; j < hp->rope / 2; j++) {
        double f = pow(theta, -2.0 * j / d);
        double ramp = fmin(fmax((j - low) / (high - low), 0), 1);

        hp->rope_freq[j] = (float)(factor > 1 ? f / factor * ramp + f * (1 - ramp) : f);
    }
}

/* Frequencies, and YaRN's factor on the attention scale. */
static int read_rope(struct hparams *hp, const struct json_at *config, struct err *e)
{
    static const char *const yarn[] = {"yarn", NULL};
    double scale = 1 / sqrt((double)hp->nope + hp->rope), mu = 1;
    double theta, factor = 1, mscale = 1, all_dim = 0, original = 4096, fast = 32, slow = 1;
    struct json_at at;
    bool nope;
    const json_t *flag = json_object_get(config->object, "mla_use_nope");

    if (flag && !json_is_boolean(flag))
        return err_set(e, ERR_FORMAT, "%s.mla_use_nope must be true or false", config->path);
    nope = json_is_true(flag);
    hp->mla_rotary = !nope && hp->rope > 0;
    hp->attn_scale = (float)scale;
    if (!hp->mla_rotary)
        return 0;
    if (hp->rope > ROPE_DIM_MAX || hp->rope % 2)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s.qk_rope_head_dim = %u: rotary embedding needs an even number up to %d",
                       config->path, hp->rope, ROPE_DIM_MAX);
    if (json_get_f64(&theta, config, "rope_theta", 10000, e) ||
        json_enter(&at, config, "rope_scaling", e))
        return e->code;
    if (!(theta > 0) || !isfinite(theta))
        return err_set(e, ERR_FORMAT, "%s.rope_theta = %g is not a usable number", config->path,
                       theta);
    if (refuse_flag(config, "rope_interleave", true, e))
        return e->code;
    if (at.object && json_object_size(at.object)) {
        const char *type, *rope_type;

        if (json_get_text(&type, &at, "type", e) || json_get_text(&rope_type, &at, "rope_type", e))
            return e->code;
        if (!type && !rope_type)
            return err_set(e, ERR_UNSUPPORTED, "rope_scaling has no type (\"yarn\" is supported)");
        if (refuse_unless(&at, type ? "type" : "rope_type", yarn, e))
            return err_set(e, e->code, "rope_scaling type \"%s\" is not supported (\"yarn\" is)",
                           type ? type : rope_type);
        if (json_get_f64(&factor, &at, "factor", 1, e) ||
            json_get_f64(&mscale, &at, "mscale", 1, e) ||
            json_get_f64(&all_dim, &at, "mscale_all_dim", 0, e) ||
            json_get_f64(&original, &at, "original_max_position_embeddings", 4096, e) ||
            json_get_f64(&fast, &at, "beta_fast", 32, e) ||
            json_get_f64(&slow, &at, "beta_slow", 1, e))
            return e->code;
        if (!(factor > 0 && original > 0 && fast > 0 && slow > 0) || !isfinite(factor) ||
            !isfinite(original) || !isfinite(fast) || !isfinite(slow) || !isfinite(mscale) ||
            !isfinite(all_dim))
            return err_set(e, ERR_FORMAT, "%s: not usable numbers (factor %g, original %g)",
                           at.path, factor, original);
        if (factor > 1 && mscale != all_dim)
            return err_set(e, ERR_UNSUPPORTED, "%s: mscale %g differs from mscale_all_dim %g",
                           at.path, mscale, all_dim);
        if (factor > 1)
            mu = 0.1 * all_dim * log(factor) + 1;
    }
    hp->attn_scale = (float)(scale * mu * mu);
    yarn_frequencies(hp, theta, factor, original, fast, slow);
    return 0;
}

/* What a configuration calls itself, for messages. */
static const char *architecture(const json_t *config, char *text, size_t n)
{
    const json_t *name = json_array_get(json_object_get(config, "architectures"), 0);

    if (!json_is_string(name))
        name = json_object_get(config, "model_type");
    if (!json_is_string(name))
        return "this model's";
    return json_printable(text, n, json_string_value(name), json_string_length(name));
}

static int read_mla(struct hparams *hp, const struct json_at *at, struct err *e)
{
    const json_t *kv = json_object_get(at->object, "num_key_value_heads");
    struct dim dims[] = {
        {&hp->kv_lora, "kv_lora_rank", NULL, 0, 0, 1 << 20},
        {&hp->q_lora, "q_lora_rank", NULL, 0, 0, 1 << 20},
        {&hp->nope, "qk_nope_head_dim", NULL, 0, 0, 1 << 20},
        {&hp->rope, "qk_rope_head_dim", NULL, 0, 0, 1 << 20},
        {&hp->v_dim, "v_head_dim", NULL, 0, 0, 1 << 20},
    };
    char name[64];
    int64_t n;

    if (read_dims(at, dims, 5, e) || json_get_flag(&hp->mla_gate, at, "mla_use_output_gate", e))
        return e->code;
    if (!hp->n_mla)
        return 0;
    if (!json_object_get(at->object, "kv_lora_rank"))
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s has no kv_lora_rank: %s attention is not supported (latent attention and "
            "KDA are)",
            at->path, architecture(at->object, name, sizeof(name)));
    if (!hp->kv_lora || !(hp->nope + hp->rope) || !hp->v_dim)
        return err_set(e, ERR_FORMAT,
                       "%s: attention layers need kv_lora_rank (%u), qk_nope_head_dim + "
                       "qk_rope_head_dim (%u) and v_head_dim (%u) above 0",
                       at->path, hp->kv_lora, hp->nope + hp->rope, hp->v_dim);
    if (json_given(kv) && (!json_exact_int(kv, &n) || n != hp->n_heads))
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s.num_key_value_heads other than num_attention_heads (%u) is not supported", at->path,
            hp->n_heads);
    if ((uint64_t)hp->n_heads * (hp->nope + hp->rope) > INT32_MAX ||
        (uint64_t)hp->n_heads * (hp->nope + hp->v_dim) > INT32_MAX)
        return err_set(e, ERR_LIMIT, "%s: %u attention heads of %u + %u columns overflow", at->path,
                       hp->n_heads, hp->nope + hp->rope, hp->v_dim);
    return read_rope(hp, at, e);
}

static int read_moe(struct hparams *hp, const struct json_at *at, struct err *e)
{
    static const char *const sigmoid[] = {"sigmoid", NULL}, *const noaux[] = {"noaux_tc", NULL};
    struct dim dims[] = {
        {&hp->n_experts, "num_experts", "n_routed_experts", 0, 0, FORMAT_EXPERTS_MAX},
        {&hp->top_k, "num_experts_per_token", "num_experts_per_tok", 0, 0, FORMAT_TOP_K_MAX},
        {&hp->inter, "moe_intermediate_size", NULL, 0, 0, 1 << 20},
        {&hp->dense_inter, "intermediate_size", NULL, 0, 0, 1 << 20},
        {&hp->n_shared, "num_shared_experts", "n_shared_experts", 0, 0, 64},
        {&hp->first_dense, "first_k_dense_replace", NULL, 0, 0, hp->n_layers},
        {&hp->latent, "routed_expert_hidden_size", NULL, 0, 0, 1 << 20},
        {&hp->n_group, "num_expert_group", "n_group", 1, 0, 65536},
        {&hp->topk_group, "topk_group", NULL, 1, 0, 65536},
    };
    const json_t *renorm = json_object_get(at->object, "moe_renormalize");
    int64_t freq;

    if (read_dims(at, dims, sizeof(dims) / sizeof(*dims), e))
        return e->code;
    if (json_get_flag(&hp->renormalize, at, renorm ? "moe_renormalize" : "norm_topk_prob", e) ||
        json_get_flag(&hp->latent_norm, at, "latent_moe_use_norm", e) ||
        read_f32(&hp->routed_scale, at, "routed_scaling_factor", 1, -1e30, 1e30, e))
        return e->code;
    if (!hp->n_experts)
        hp->first_dense = hp->n_layers;
    if (hp->first_dense && !hp->dense_inter)
        return err_set(e, ERR_FORMAT, "%s.intermediate_size = 0, but %u layers are dense", at->path,
                       hp->first_dense);
    if (!hp->n_experts)
        return 0;
    if (refuse_unless(at, "moe_router_activation_func", sigmoid, e) ||
        refuse_unless(at, "scoring_func", sigmoid, e) ||
        refuse_unless(at, "topk_method", noaux, e) ||
        json_get_int(&freq, at, "moe_layer_freq", 1, 0, 1 << 20, e))
        return e->code;
    if (freq != 1)
        return err_set(e, ERR_UNSUPPORTED, "%s.moe_layer_freq = %d is not supported (1 is)",
                       at->path, (int)freq);
    if (!hp->top_k || hp->top_k > hp->n_experts)
        return err_set(e, ERR_FORMAT, "%s.num_experts_per_token = %u is out of range 1...%u",
                       at->path, hp->top_k,
                       hp->n_experts < FORMAT_TOP_K_MAX ? hp->n_experts : FORMAT_TOP_K_MAX);
    if (!hp->inter)
        return err_set(e, ERR_FORMAT, "%s.moe_intermediate_size = 0 with %u experts", at->path,
                       hp->n_experts);
    hp->n_shared = hp->n_shared ? hp->n_shared : 1;
    hp->latent_moe = hp->latent > 0;
    if (!hp->latent_moe)
        hp->latent = hp->hidden;
    if (hp->latent_norm && !hp->latent_moe)
        return err_set(e, ERR_FORMAT, "%s.latent_moe_use_norm without routed_expert_hidden_size",
                       at->path);
    hp->n_group = hp->n_group ? hp->n_group : 1;
    hp->topk_group = hp->topk_group ? hp->topk_group : 1;
    if (hp->n_experts % hp->n_group || (hp->n_group > 1 && hp->n_experts / hp->n_group < 2) ||
        hp->topk_group > hp->n_group ||
        hp->top_k > (uint64_t)hp->topk_group * (hp->n_experts / hp->n_group))
        return err_set(e, ERR_FORMAT,
                       "%s: %u experts in n_group %u, topk_group %u cannot give %u per token",
                       at->path, hp->n_experts, hp->n_group, hp->topk_group, hp->top_k);
    return 0;
}

static int read_activation(struct hparams *hp, const struct json_at *at, struct err *e)
{
    const char *act;

    if (json_get_text(&act, at, "hidden_act", e))
        return e->code;
    if (!act || !strcmp(act, "silu"))
        return 0;
    if (strcmp(act, "situ"))
        return err_set(e, ERR_UNSUPPORTED, "%s.hidden_act \"%s\" is not supported (silu, situ are)",
                       at->path, act);
    hp->act = ACT_SITU;
    if (read_f32(&hp->situ_beta, at, "activation_situ_beta", 1, 0, 1e30, e) ||
        read_f32(&hp->situ_lambda, at, "activation_situ_linear_beta", 0, 0, 1e30, e))
        return e->code;
    if (!(hp->situ_beta > 0))
        return err_set(e, ERR_FORMAT, "%s.activation_situ_beta = %g must be above 0", at->path,
                       (double)hp->situ_beta);
    return 0;
}

static int read_eos(struct hparams *hp, const struct json_at *at, struct err *e)
{
    const json_t *v = json_object_get(at->object, "eos_token_id");
    size_t n = json_is_array(v) ? json_array_size(v) : json_given(v);

    if (n > EOS_MAX)
        return err_set(e, ERR_LIMIT, "%s.eos_token_id: %zu ids, %d supported", at->path, n,
                       EOS_MAX);
    for (size_t i = 0; i < n; i++) {
        int64_t id;

        if (!json_exact_int(json_is_array(v) ? json_array_get(v, i) : v, &id) || id < 0 ||
            id >= hp->vocab)
            return err_set(e, ERR_FORMAT, "%s.eos_token_id is not an id below vocab_size %u",
                           at->path, hp->vocab);
        if (id) /* 0 means "not stated" */
            hp->eos[hp->n_eos++] = (int32_t)id;
    }
    return 0;
}

int hparams_read(struct hparams *out, const json_t *config, struct err *e)
{
    struct hparams hp = {.l2_eps = 1e-6f};
    struct json_at at = json_root(config, "config");
    struct dim dims[] = {
        {&hp.n_layers, "num_hidden_layers", NULL, 0, 1, FORMAT_LAYERS_MAX},
        {&hp.hidden, "hidden_size", NULL, 0, 1, 1 << 20},
        {&hp.vocab, "vocab_size", NULL, 0, 1, 1 << 24},
        {&hp.n_heads, "num_attention_heads", NULL, 0, 1, 65536},
    };

    if (read_dims(&at, dims, 4, e) || read_f32(&hp.eps, &at, "rms_norm_eps", 1e-5, 1e-30, 1, e) ||
        read_f32(&hp.latent_eps, &at, "waste_latent_norm_eps", 1e-6, 1e-30, 1, e))
        return e->code;
    if (hp.eps >= 1 || hp.latent_eps >= 1)
        return err_set(e, ERR_FORMAT, "config.rms_norm_eps is not a usable number (below 1)");

    struct dim res[] = {
        {&hp.attn_res_block, "attn_res_block_size", NULL, 0, 0, hp.n_layers},
    };
    if (read_dims(&at, res, 1, e) || read_kda(&hp, &at, e) || read_mla(&hp, &at, e) ||
        read_moe(&hp, &at, e) || read_activation(&hp, &at, e) || read_eos(&hp, &at, e) ||
        refuse_flag(&at, "attention_bias", false, e))
        return e->code;
    if ((uint64_t)hp.inter * hp.n_shared > INT32_MAX)
        return err_set(e, ERR_LIMIT, "config: %u shared experts of width %u overflow", hp.n_shared,
                       hp.inter);
    *out = hp;
    return 0;
}
