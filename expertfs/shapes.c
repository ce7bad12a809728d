#include "expertfs/shapes.h"

#include <string.h>

#include "base/json.h"
#include "expertfs/format.h"

enum { KIMI_VOCAB = 163840, KIMI_RANKS = 163584, DEEPSEEK_VOCAB = 129280, DEEPSEEK_RANKS = 128000 };
enum { TINY_RANKS = 2048, TINY_VOCAB = TINY_RANKS + 256 };

enum { MEDIA_PAD = 21 }; /* of K3's control tokens */

static const struct shape_tower k3_tower = {1024, 12, 1536, 4096, 27, 64};
static const struct shape_tower tiny_tower = {64, 2, 96, 160, 2, 16};

static const struct shape shapes[] = {
    {.name = "kimi-linear-48b",
     .about = "Kimi-Linear-48B-A3B: 27 layers, 256 experts, top 8; 17.9 GiB",
     .family = FAMILY_KIMI_LINEAR,
     .n_layers = 27,
     .first_dense = 1,
     .last_full = 27,
     .hidden = 2304,
     .vocab = KIMI_VOCAB,
     .n_ranks = KIMI_RANKS,
     .n_heads = 32,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v_dim = 128,
     .kda_heads = 32,
     .kda_dim = 128,
     .a_log = 32,
     .dense_inter = 9216,
     .n_experts = 256,
     .top_k = 8,
     .inter = 1024,
     .n_shared = 1,
     .n_group = 1,
     .topk_group = 1,
     .routed_scale = 2.446,
     .eps = 1e-5,
     .rope_theta = 10000,
     .max_positions = 1048576},
    {.name = "k3",
     .about = "Kimi K3, 2.78 T: 93 layers, 896 experts, top 16; 981 GiB",
     .family = FAMILY_K3,
     .tower = &k3_tower,
     .n_layers = 93,
     .first_dense = 1,
     .last_full = 93,
     .hidden = 7168,
     .vocab = KIMI_VOCAB,
     .n_ranks = KIMI_RANKS,
     .n_heads = 96,
     .q_lora = 1536,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v_dim = 128,
     .kda_heads = 96,
     .kda_dim = 128,
     .a_log = 128,
     .dense_inter = 33792,
     .n_experts = 896,
     .top_k = 16,
     .inter = 3072,
     .latent = 3584,
     .n_shared = 2,
     .n_group = 1,
     .topk_group = 1,
     .attn_res_block = 12,
     .routed_scale = 1.0,
     .eps = 1e-5,
     .rope_theta = 10000,
     .max_positions = 1048576},
    {.name = "deepseek-v3",
     .about = "DeepSeek-V3 and R1, 671 B: 61 layers, 256 experts in 8 groups, top 8; 238 GiB",
     .family = FAMILY_DEEPSEEK,
     .n_layers = 61,
     .first_dense = 3,
     .hidden = 7168,
     .vocab = DEEPSEEK_VOCAB,
     .n_ranks = DEEPSEEK_RANKS,
     .n_heads = 128,
     .q_lora = 1536,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v_dim = 128,
     .dense_inter = 18432,
     .n_experts = 256,
     .top_k = 8,
     .inter = 2048,
     .n_shared = 1,
     .n_group = 8,
     .topk_group = 4,
     .routed_scale = 2.5,
     .eps = 1e-6,
     .rope_theta = 10000,
     .yarn_factor = 40,
     .yarn_beta_fast = 32,
     .yarn_original = 4096,
     .max_positions = 163840},
    {.name = "kimi-k2",
     .about = "Kimi-K2-Instruct, 1.03 T: 61 layers, 384 experts, top 8; 362 GiB",
     .family = FAMILY_KIMI_K2,
     .n_layers = 61,
     .first_dense = 1,
     .hidden = 7168,
     .vocab = KIMI_VOCAB,
     .n_ranks = KIMI_RANKS,
     .n_heads = 64,
     .q_lora = 1536,
     .kv_lora = 512,
     .nope = 128,
     .rope = 64,
     .v_dim = 128,
     .dense_inter = 18432,
     .n_experts = 384,
     .top_k = 8,
     .inter = 2048,
     .n_shared = 1,
     .n_group = 1,
     .topk_group = 1,
     .routed_scale = 2.827,
     .eps = 1e-6,
     .rope_theta = 50000,
     .yarn_factor = 32,
     .yarn_beta_fast = 1,
     .yarn_original = 4096,
     .max_positions = 131072},
    {.name = "tiny-kimi",
     .about = "the Kimi-Linear family in 6 layers, 32 experts, top 4; 13 MiB",
     .family = FAMILY_KIMI_LINEAR,
     .n_layers = 6,
     .first_dense = 1,
     .last_full = 6,
     .hidden = 256,
     .vocab = TINY_VOCAB,
     .n_ranks = TINY_RANKS,
     .n_heads = 4,
     .kv_lora = 64,
     .nope = 32,
     .rope = 16,
     .v_dim = 32,
     .kda_heads = 4,
     .kda_dim = 64,
     .a_log = 4,
     .dense_inter = 1024,
     .n_experts = 32,
     .top_k = 4,
     .inter = 128,
     .n_shared = 1,
     .n_group = 1,
     .topk_group = 1,
     .routed_scale = 2.446,
     .eps = 1e-5,
     .rope_theta = 10000,
     .max_positions = 65536},
    {.name = "tiny-k3",
     .about = "the K3 family in 9 layers, 32 experts, top 4; 14 MiB",
     .family = FAMILY_K3,
     .tower = &tiny_tower,
     .n_layers = 9,
     .first_dense = 1,
     .last_full = 9,
     .hidden = 256,
     .vocab = TINY_VOCAB,
     .n_ranks = TINY_RANKS,
     .n_heads = 4,
     .q_lora = 96,
     .kv_lora = 64,
     .nope = 32,
     .rope = 16,
     .v_dim = 32,
     .kda_heads = 4,
     .kda_dim = 64,
     .a_log = 6,
     .dense_inter = 1024,
     .n_experts = 32,
     .top_k = 4,
     .inter = 128,
     .latent = 128,
     .n_shared = 2,
     .n_group = 1,
     .topk_group = 1,
     .attn_res_block = 4,
     .routed_scale = 1.0,
     .eps = 1e-5,
     .rope_theta = 10000,
     .max_positions = 65536},
    {.name = "tiny-deepseek",
     .about = "the DeepSeek-V3 family in 6 layers, 32 experts in 4 groups, top 4; 13 MiB",
     .family = FAMILY_DEEPSEEK,
     .n_layers = 6,
     .first_dense = 1,
     .hidden = 256,
     .vocab = TINY_VOCAB,
     .n_ranks = TINY_RANKS,
     .n_heads = 4,
     .q_lora = 96,
     .kv_lora = 64,
     .nope = 32,
     .rope = 16,
     .v_dim = 32,
     .dense_inter = 1024,
     .n_experts = 32,
     .top_k = 4,
     .inter = 128,
     .n_shared = 1,
     .n_group = 4,
     .topk_group = 2,
     .routed_scale = 2.5,
     .eps = 1e-6,
     .rope_theta = 10000,
     .yarn_factor = 40,
     .yarn_beta_fast = 32,
     .yarn_original = 4096,
     .max_positions = 65536},
};

unsigned shape_count(void)
{
    return sizeof(shapes) / sizeof(*shapes);
}

const struct shape *shape_nth(unsigned i)
{
    return &shapes[i];
}

const struct shape *shape_find(const char *name)
{
    if (!strcmp(name, "kimi-k3"))
        name = "k3";
    for (unsigned i = 0; i < shape_count(); i++)
        if (!strcmp(shapes[i].name, name))
            return &shapes[i];
    return NULL;
}

int shape_cut(struct shape *s, unsigned layers, unsigned experts, unsigned top_k, struct err *e)
{
    unsigned top_k_max;

    if (layers > s->n_layers)
        return err_set(e, ERR_ARG, "shape %s has %u layers, %u asked for", s->name, s->n_layers,
                       layers);
    if (layers && layers <= s->first_dense)
        return err_set(e, ERR_ARG, "shape %s: the first %u layers are dense; ask for %u or more",
                       s->name, s->first_dense, s->first_dense + 1);
    if (experts > FORMAT_EXPERTS_MAX)
        return err_set(e, ERR_ARG, "%u experts; the format ends at %d", experts,
                       FORMAT_EXPERTS_MAX);
    s->n_layers = layers ? layers : s->n_layers;
    s->n_experts = experts ? experts : s->n_experts;
    top_k_max = s->n_experts < FORMAT_TOP_K_MAX ? s->n_experts : FORMAT_TOP_K_MAX;
    if (!top_k)
        top_k = s->top_k < s->n_experts ? s->top_k : s->n_experts;
    if (top_k > top_k_max)
        return err_set(e, ERR_ARG, "top %u of %u expert%s; at most %u", top_k, s->n_experts,
                       s->n_experts == 1 ? "" : "s", top_k_max);
    s->top_k = top_k;
    if (s->n_experts % s->n_group || (s->n_group > 1 && s->n_experts < 2 * s->n_group) ||
        s->top_k > s->topk_group * (s->n_experts / s->n_group))
        return err_set(e, ERR_ARG, "shape %s routes in %u of %u groups: %u experts, top %u do not",
                       s->name, s->topk_group, s->n_group, s->n_experts, s->top_k);
    if (s->attn_res_block > s->n_layers)
        s->attn_res_block = s->n_layers;
    return 0;
}

bool shape_is_full_attention(const struct shape *s, unsigned layer)
{
    return !s->last_full || (layer + 1) % 4 == 0 || layer + 1 == s->last_full;
}

const char *shape_prefix(const struct shape *s)
{
    return s->family == FAMILY_K3 ? "language_model." : "";
}

const char *shape_arch(const struct shape *s)
{
    switch (s->family) {
    case FAMILY_KIMI_LINEAR:
        return "kimi-linear";
    case FAMILY_K3:
        return "kimi-k3";
    default:
        return "DeepseekV3ForCausalLM";
    }
}

static void put(json_t *o, const char *key, json_t *value)
{
    json_object_set_new(o, key, value); /* failing, it lacks the key: shape_config counts */
}

static void put_int(json_t *o, const char *key, unsigned v)
{
    put(o, key, json_integer(v));
}

static json_t *strings(const char *only)
{
    return json_pack("[s]", only);
}

/* 1-based numbers of the layers of one kind. */
static json_t *layer_list(const struct shape *s, bool full)
{
    json_t *list = json_array();

    for (unsigned l = 0; l < s->n_layers; l++)
        if (shape_is_full_attention(s, l) == full)
            json_array_append_new(list, json_integer(l + 1));
    return list;
}

static void put_linear_attention(json_t *c, const struct shape *s)
{
    json_t *linear = json_object();

    put(linear, "full_attn_layers", layer_list(s, true));
    put(linear, "kda_layers", layer_list(s, false));
    put_int(linear, "head_dim", s->kda_dim);
    put_int(linear, "num_heads", s->kda_heads);
    put_int(linear, "short_conv_kernel_size", 4);
    if (s->family == FAMILY_K3) {
        put(linear, "use_full_rank_gate", json_true());
        put(linear, "gate_lower_bound", json_real(-5.0));
    }
    put(c, "linear_attn_config", linear);
}

static void put_common(json_t *c, const struct shape *s)
{
    put_int(c, "vocab_size", s->vocab);
    put_int(c, "hidden_size", s->hidden);
    put_int(c, "intermediate_size", s->dense_inter);
    put_int(c, "moe_intermediate_size", s->inter);
    put_int(c, "num_hidden_layers", s->n_layers);
    put_int(c, "num_attention_heads", s->n_heads);
    put_int(c, "num_key_value_heads", s->n_heads);
    put(c, "q_lora_rank", s->q_lora ? json_integer(s->q_lora) : json_null());
    put_int(c, "kv_lora_rank", s->kv_lora);
    put_int(c, "qk_nope_head_dim", s->nope);
    put_int(c, "qk_rope_head_dim", s->rope);
    put_int(c, "v_head_dim", s->v_dim);
    put_int(c, "first_k_dense_replace", s->first_dense);
    put_int(c, "moe_layer_freq", 1);
    put_int(c, "topk_group", s->topk_group);
    put(c, "routed_scaling_factor", json_real(s->routed_scale));
    put(c, "rms_norm_eps", json_real(s->eps));
    put(c, "rope_theta", json_real(s->rope_theta));
    put(c, "tie_word_embeddings", json_false());
    put(c, "use_cache", json_true());
}

static void put_kimi(json_t *c, const struct shape *s)
{
    put(c, "model_type", json_string("kimi_linear"));
    put_int(c, "num_experts", s->n_experts);
    put_int(c, "num_experts_per_token", s->top_k);
    put_int(c, "num_shared_experts", s->n_shared);
    put_int(c, "num_expert_group", s->n_group);
    put(c, "moe_renormalize", json_true());
    put(c, "moe_router_activation_func", json_string("sigmoid"));
    put(c, "use_grouped_topk", json_true());
    put(c, "mla_use_nope", json_true());
    put(c, "rope_scaling", json_null());
    put_int(c, "num_nextn_predict_layers", 0);
    put_int(c, "model_max_length", s->max_positions);
    put_int(c, "bos_token_id", s->n_ranks);
    put_int(c, "eos_token_id", s->n_ranks + 2);
    put_int(c, "pad_token_id", s->vocab - 1);
    put_linear_attention(c, s);
    if (s->family == FAMILY_KIMI_LINEAR) {
        put(c, "architectures", strings("KimiLinearForCausalLM"));
        put(c, "hidden_act", json_string("silu"));
        return;
    }
    put(c, "architectures", strings("KimiLinearForCausalLM"));
    put(c, "hidden_act", json_string("situ"));
    put(c, "activation_situ_beta", json_real(4.0));
    put(c, "activation_situ_linear_beta", json_real(25.0));
    put_int(c, "routed_expert_hidden_size", s->latent);
    put(c, "latent_moe_use_norm", json_true());
    put_int(c, "attn_res_block_size", s->attn_res_block);
    put(c, "mla_use_output_gate", json_true());
    put(c, "_outer",
        json_pack("{s:[s], s:s, s:i}", "architectures", "KimiK3ForConditionalGeneration",
                  "model_type", "kimi_k3", "media_placeholder_token_id", (int)s->n_ranks + 21));
}

static void put_deepseek(json_t *c, const struct shape *s)
{
    bool k2 = s->family == FAMILY_KIMI_K2;

    put(c, "architectures", strings("DeepseekV3ForCausalLM"));
    put(c, "model_type", json_string(k2 ? "kimi_k2" : "deepseek_v3"));
    put(c, "hidden_act", json_string("silu"));
    put_int(c, "n_routed_experts", s->n_experts);
    put_int(c, "num_experts_per_tok", s->top_k);
    put_int(c, "n_shared_experts", s->n_shared);
    put_int(c, "n_group", s->n_group);
    put(c, "norm_topk_prob", json_true());
    put(c, "scoring_func", json_string("sigmoid"));
    put(c, "topk_method", json_string("noaux_tc"));
    put_int(c, "num_nextn_predict_layers", k2 ? 0 : 1);
    put_int(c, "max_position_embeddings", s->max_positions);
    put_int(c, "bos_token_id", s->n_ranks);
    put_int(c, "eos_token_id", k2 ? s->n_ranks + 2 : s->n_ranks + 1);
    put(c, "rope_scaling",
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:i}", "type", "yarn", "factor", s->yarn_factor,
                  "beta_fast", s->yarn_beta_fast, "beta_slow", 1.0, "mscale", 1.0, "mscale_all_dim",
                  1.0, "original_max_position_embeddings", (int)s->yarn_original));
    put_int(c, "num_experts", s->n_experts); /* the aliases a conversion adds */
    put_int(c, "num_experts_per_token", s->top_k);
    put_int(c, "num_shared_experts", s->n_shared);
    put(c, "moe_renormalize", json_true());
}

json_t *shape_config(const struct shape *s)
{
    json_t *c = json_object();

    put_common(c, s);
    if (s->family == FAMILY_KIMI_LINEAR || s->family == FAMILY_K3)
        put_kimi(c, s);
    else
        put_deepseek(c, s);
    return c;
}

struct special {
    unsigned at; /* above n_ranks; AT_LAST: the last id of the vocabulary */
    const char *text;
};

enum { AT_LAST = 1u << 30 };

static const struct special k3_specials[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|end_of_msg|>"},
    {3, "<|open|>"},
    {4, "<|close|>"},
    {5, "<|sep|>"},
    {18, "<|media_begin|>"},
    {19, "<|media_content|>"},
    {20, "<|media_end|>"},
    {MEDIA_PAD, "<|media_pad|>"},
    {AT_LAST, "[PAD]"},
    {0, NULL},
};

static const struct special kimi_specials[] = {
    {0, "[BOS]"},
    {1, "[EOS]"},
    {2, "<|im_end|>"},
    {3, "<|im_user|>"},
    {4, "<|im_assistant|>"},
    {10, "<|im_system|>"},
    {11, "<|tool_calls_section_begin|>"},
    {12, "<|tool_calls_section_end|>"},
    {13, "<|tool_call_begin|>"},
    {14, "<|tool_call_argument_begin|>"},
    {15, "<|tool_call_end|>"},
    {17, "<|im_middle|>"},
    {AT_LAST, "[PAD]"},
    {0, NULL},
};

static const struct special deepseek_specials[] = {
    {0, "<|begin_of_sentence|>"},
    {1, "<|end_of_sentence|>"},
    {2, "<|pad|>"},
    {3, "<|User|>"},
    {4, "<|Assistant|>"},
    {0, NULL},
};

json_t *shape_specials(const struct shape *s)
{
    const struct special *of = s->family == FAMILY_K3         ? k3_specials
                               : s->family == FAMILY_DEEPSEEK ? deepseek_specials
                                                              : kimi_specials;
    json_t *list = json_array();

    for (; of->text; of++) {
        unsigned id = of->at == AT_LAST ? s->vocab - 1 : s->n_ranks + of->at;

        json_array_append_new(list, json_pack("{s:i, s:s}", "id", (int)id, "text", of->text));
    }
    return list;
}

json_t *shape_vision(const struct shape *s)
{
    const struct shape_tower *t = s->tower;

    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:[i, i], s:i, s:i, s:i, s:[f, f, f], "
        "s:[f, f, f]}",
        "vt_hidden_size", t->hidden, "vt_num_attention_heads", t->heads, "qkv_hidden_size", t->wide,
        "vt_intermediate_size", t->inter, "vt_num_hidden_layers", t->blocks, "init_pos_emb_height",
        t->grid, "init_pos_emb_width", t->grid, "patch_size", 14, "merge_kernel_size", 2, 2,
        "text_hidden_size", s->hidden, "media_placeholder_token_id", s->n_ranks + MEDIA_PAD,
        "max_patches", 1024, "image_mean", 0.5, 0.5, 0.5, "image_std", 0.5, 0.5, 0.5);
}
