/* test_hparams.c - values are read, not the presence of keys; what is not implemented is refused by
 * name, never run wrongly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model/hparams.h"

/* DeepSeek-V3's configuration, as far as it matters. */
static const char v3[] =
    "{\"num_hidden_layers\":61,\"hidden_size\":7168,\"vocab_size\":129280,"
    "\"num_attention_heads\":128,\"num_key_value_heads\":128,\"q_lora_rank\":1536,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"first_k_dense_replace\":3,\"intermediate_size\":18432,\"moe_intermediate_size\":2048,"
    "\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"n_group\":8,"
    "\"topk_group\":4,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
    "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"hidden_act\":\"silu\","
    "\"rms_norm_eps\":1e-06,\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"yarn\","
    "\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,\"beta_fast\":32,\"beta_slow\":1,"
    "\"original_max_position_embeddings\":4096},\"num_nextn_predict_layers\":1,"
    "\"eos_token_id\":1}";

/* Kimi-Linear's. */
static const char kl[] =
    "{\"num_hidden_layers\":4,\"hidden_size\":2304,\"vocab_size\":1000,\"head_dim\":72,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"q_lora_rank\":null,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"mla_use_nope\":true,\"first_k_dense_replace\":1,\"intermediate_size\":9216,"
    "\"moe_intermediate_size\":1024,\"num_experts\":256,\"num_experts_per_token\":8,"
    "\"num_shared_experts\":1,\"moe_renormalize\":true,\"routed_scaling_factor\":2.446,"
    "\"moe_router_activation_func\":\"sigmoid\",\"rms_norm_eps\":1e-05,\"rope_scaling\":null,"
    "\"linear_attn_config\":{\"head_dim\":128,\"num_heads\":32,\"short_conv_kernel_size\":4,"
    "\"kda_layers\":[1,2,3],\"full_attn_layers\":[4]},\"eos_token_id\":[5,7]}";

static int read_with(const char *base, const char *path, const char *value, struct hparams *hp,
                     struct err *e)
{
    json_t *root = json_loads(base, 0, NULL), *at = root, *v;
    char key[128], *dot;
    int rc;

    assert_non_null(root);
    if (path) {
        snprintf(key, sizeof(key), "%s", path);
        while ((dot = strchr(key, '.'))) {
            *dot = 0;
            at = json_object_get(at, key);
            memmove(key, dot + 1, strlen(dot + 1) + 1);
        }
        v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
        if (value) {
            assert_non_null(v);
            json_object_set_new(at, key, v);
        } else {
            json_object_del(at, key);
        }
    }
    rc = hparams_read(hp, root, e);
    json_decref(root);
    return rc;
}

static struct hparams read_ok(const char *base, const char *path, const char *value)
{
    struct hparams hp;
    struct err e;

    if (read_with(base, path, value, &hp, &e))
        fail_msg("%s = %s: %s", path ? path : "-", value ? value : "-", e.text);
    return hp;
}

static void refused(const char *base, const char *path, const char *value, int code,
                    const char *says)
{
    struct hparams hp = {.n_layers = 77};
    struct err e;

    if (!read_with(base, path, value, &hp, &e))
        fail_msg("%s = %s was accepted", path, value);
    if (e.code != code || !strstr(e.text, says))
        fail_msg("%s = %s: code %d, \"%s\"; expected %d, \"%s\"", path, value, e.code, e.text, code,
                 says);
    assert_int_equal(hp.n_layers, 77); /* outputs untouched */
}

static void published_configurations_are_read(void **state)
{
    struct hparams a = read_ok(v3, NULL, NULL), b = read_ok(kl, NULL, NULL);

    (void)state;
    assert_int_equal(a.n_group, 8);
    assert_int_equal(a.topk_group, 4);
    assert_int_equal(a.n_mla, 61);
    assert_true(a.renormalize && a.mla_rotary && !a.mla_gate);
    assert_int_equal(b.n_kda, 3);
    assert_true(b.is_kda[0] && b.is_kda[2] && !b.is_kda[3]); /* the lists count from 1 */
    assert_false(b.mla_rotary);
    assert_int_equal(b.n_eos, 2);
    assert_int_equal(b.latent, 2304);
    assert_false(b.latent_moe || b.kda_full_gate);
    assert_true(b.gate_lower_bound == 0);
    assert_true(b.latent_eps == 1e-6f && b.eps == 1e-5f); /* not the same epsilon */
}

static void yarn_has_its_published_frequencies_and_scale(void **state)
{
    struct hparams v = read_ok(v3, NULL, NULL), k;
    static const struct {
        unsigned j;
        double f;
    } want_v3[] = {{0, 1},
                   {10, 0.0562341325},
                   {16, 0.0055},
                   {19, 0.00137051364},
                   {20, 0.000790569415},
                   {31, 3.33380358e-6}},
      want_k2[] = {{10, 0.0340072782},
                   {16, 0.00447213595},
                   {19, 0.00162175991},
                   {20, 3.61404677e-5},
                   {31, 8.76441291e-7}};

    (void)state;
    for (unsigned i = 0; i < 6; i++)
        assert_true(fabs((double)v.rope_freq[want_v3[i].j] / want_v3[i].f - 1) < 1e-6);
    assert_true(fabs((double)v.attn_scale - 0.1352338) < 1e-7);
    {
        char text[2000];
        const char *from = strstr(v3, "\"rope_theta\"");

        snprintf(text, sizeof(text),
                 "%.*s\"rope_theta\":50000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32,"
                 "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"beta_fast\":1,\"beta_slow\":1,"
                 "\"original_max_position_embeddings\":4096}}",
                 (int)(from - v3), v3);
        k = read_ok(text, NULL, NULL);
    }
    for (unsigned i = 0; i < 5; i++)
        assert_true(fabs((double)k.rope_freq[want_k2[i].j] / want_k2[i].f - 1) < 1e-6);
    assert_true(fabs((double)k.attn_scale - 0.1308608) < 1e-7);
    /* null, {} and absent are the same: plain rotary */
    v = read_ok(v3, "rope_scaling", "null");
    k = read_ok(v3, "rope_scaling", "{}");
    assert_memory_equal(v.rope_freq, k.rope_freq, sizeof(v.rope_freq));
    k = read_ok(v3, "rope_scaling", NULL);
    assert_memory_equal(v.rope_freq, k.rope_freq, sizeof(v.rope_freq));
    assert_true(fabs((double)v.attn_scale - 0.0721688) < 1e-7);
    /* a factor of 1 or less is plain too */
    k = read_ok(v3, "rope_scaling.factor", "1");
    assert_memory_equal(v.rope_freq, k.rope_freq, sizeof(v.rope_freq));
}

static void flags_mean_their_value(void **state)
{
    (void)state;
    assert_false(read_ok(kl, "moe_renormalize", "false").renormalize);
    assert_false(read_ok(kl, "moe_renormalize", "null").renormalize);
    assert_false(read_ok(kl, "mla_use_output_gate", "false").mla_gate);
    assert_true(read_ok(kl, "mla_use_output_gate", "true").mla_gate);
    assert_false(read_ok(kl, "linear_attn_config.use_full_rank_gate", "false").kda_full_gate);
    assert_true(read_ok(kl, "linear_attn_config.use_full_rank_gate", "true").kda_full_gate);
    refused(kl, "moe_renormalize", "1", ERR_FORMAT, "moe_renormalize must be true or false");
    refused(kl, "mla_use_nope", "null", ERR_FORMAT, "mla_use_nope must be true or false");
    refused(kl, "mla_use_nope", "1", ERR_FORMAT, "mla_use_nope must be true or false");
    refused(kl, "mla_use_output_gate", "\"yes\"", ERR_FORMAT, "must be true or false");
    /* leaving mla_use_nope out is false */
    assert_true(read_ok(kl, "mla_use_nope", NULL).mla_rotary);
    assert_true(read_ok(kl, "mla_use_nope", "false").mla_rotary);
}

static void what_is_not_implemented_is_refused_by_name(void **state)
{
    (void)state;
    refused(v3, "rope_scaling.type", "\"linear\"", ERR_UNSUPPORTED,
            "rope_scaling type \"linear\" is not supported");
    refused(v3, "rope_scaling.type", NULL, ERR_UNSUPPORTED, "rope_scaling has no type");
    refused(v3, "rope_scaling.mscale", "0.7", ERR_UNSUPPORTED, "mscale 0.7 differs");
    refused(v3, "qk_rope_head_dim", "130", ERR_UNSUPPORTED, "qk_rope_head_dim = 130");
    refused(v3, "scoring_func", "\"softmax\"", ERR_UNSUPPORTED, "scoring_func \"softmax\"");
    refused(kl, "moe_router_activation_func", "\"softmax\"", ERR_UNSUPPORTED, "softmax");
    refused(v3, "topk_method", "\"greedy_v9\"", ERR_UNSUPPORTED, "topk_method \"greedy_v9\"");
    refused(v3, "hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act \"gelu\"");
    refused(v3, "num_key_value_heads", "8", ERR_UNSUPPORTED, "num_key_value_heads");
    refused(v3, "moe_layer_freq", "2", ERR_UNSUPPORTED, "moe_layer_freq = 2");
    refused(v3, "attention_bias", "true", ERR_UNSUPPORTED, "attention_bias");
    refused(v3, "kv_lora_rank", NULL, ERR_UNSUPPORTED, "kv_lora_rank");
    refused(v3, "rope_interleave", "false", ERR_UNSUPPORTED, "rope_interleave");
}

static void every_dimension_has_its_bound(void **state)
{
    static const struct {
        const char *key, *value, *says;
    } bad[] = {
        {"num_hidden_layers", "0", "num_hidden_layers = 0 is out of range 1...128"},
        {"num_hidden_layers", "129", "num_hidden_layers"},
        {"hidden_size", "0", "hidden_size"},
        {"hidden_size", "1048577", "hidden_size"},
        {"vocab_size", "16777217", "vocab_size"},
        {"vocab_size", "-1", "vocab_size"},
        {"num_attention_heads", "65537", "num_attention_heads"},
        {"rms_norm_eps", "0", "rms_norm_eps"},
        {"rms_norm_eps", "1", "rms_norm_eps"},
        {"rms_norm_eps", "1e400", NULL},
        {"num_experts", "65536", "num_experts"},
        {"num_experts_per_token", "0", "num_experts_per_token"},
        {"num_experts_per_token", "65", "num_experts_per_token"},
        {"num_experts_per_token", "8.5", "num_experts_per_token"},
        {"moe_intermediate_size", "0", "moe_intermediate_size"},
        {"intermediate_size", "0", "intermediate_size"},
        {"num_shared_experts", "65", "num_shared_experts"},
        {"first_k_dense_replace", "5", "first_k_dense_replace"},
        {"kv_lora_rank", "0", "kv_lora_rank"},
        {"v_head_dim", "0", "v_head_dim"},
        {"routed_expert_hidden_size", "1048577", "routed_expert_hidden_size"},
        {"attn_res_block_size", "5", "attn_res_block_size"},
        {"n_group", "3", "n_group 3"},
        {"topk_group", "2", "topk_group 2"},
        {"n_group", "256", "n_group 256"},
        {"eos_token_id", "1000", "eos_token_id"},
        {"linear_attn_config.num_heads", "0", "num_heads"},
        {"linear_attn_config.head_dim", "0", "head_dim"},
        {"linear_attn_config.short_conv_kernel_size", "65", "short_conv_kernel_size"},
        {"linear_attn_config.gate_lower_bound", "1", "gate_lower_bound"},
        {"linear_attn_config.kda_layers", "[0]", "kda_layers"},
        {"linear_attn_config.kda_layers", "[5]", "kda_layers"},
        {"linear_attn_config.kda_layers", "[1,1]", "listed twice"},
        {"linear_attn_config.kda_layers", "[1,2,4]", "in both"},
        {"linear_attn_config.kda_layers", "[1,2]", "for 4 layers"},
        {"linear_attn_config.full_attn_layers", "[4,4]",
         "full_attn_layers: layer 4 is listed twice"},
        {"n_routed_experts", "3", "but n_routed_experts is 3"},
        {"linear_attn_config", "[]", "linear_attn_config"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (bad[i].says)
            refused(kl, bad[i].key, bad[i].value, ERR_FORMAT, bad[i].says);
    refused(v3, "num_attention_heads", "65536", ERR_UNSUPPORTED, "num_key_value_heads");
    refused(kl, "hidden_size", "\"big\"", ERR_FORMAT, "hidden_size");
}

static void situ_needs_a_positive_beta(void **state)
{
    char text[2000];
    struct hparams hp;

    (void)state;
    snprintf(text, sizeof(text), "%.*s,\"hidden_act\":\"situ\"}", (int)strlen(kl) - 1, kl);
    hp = read_ok(text, "activation_situ_beta", "4.0");
    assert_true(hp.act == ACT_SITU && hp.situ_beta == 4 && hp.situ_lambda == 0);
    refused(text, "activation_situ_beta", "0", ERR_FORMAT, "activation_situ_beta");
    refused(text, "activation_situ_linear_beta", "-1", ERR_FORMAT, "activation_situ_linear_beta");
}

static void a_private_key_overrides_the_latent_epsilon(void **state)
{
    (void)state;
    assert_true(read_ok(kl, "waste_latent_norm_eps", "1e-5").latent_eps == 1e-5f);
    refused(kl, "waste_latent_norm_eps", "2", ERR_FORMAT, "waste_latent_norm_eps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_configurations_are_read),
        cmocka_unit_test(yarn_has_its_published_frequencies_and_scale),
        cmocka_unit_test(flags_mean_their_value),
        cmocka_unit_test(what_is_not_implemented_is_refused_by_name),
        cmocka_unit_test(every_dimension_has_its_bound),
        cmocka_unit_test(situ_needs_a_positive_beta),
        cmocka_unit_test(a_private_key_overrides_the_latent_epsilon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
