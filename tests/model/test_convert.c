/* A release's configuration and names, as a container has them. Whole conversions are in
 * tests/cli/test_convert.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/convert_names.h"
#include "model/release.h"

static struct release read_text(const char *config, const char *generation)
{
    json_t *c = json_loads(config, 0, NULL),
           *g = generation ? json_loads(generation, 0, NULL) : NULL;
    struct release r = {0};
    struct err e;

    assert_non_null(c);
    assert_int_equal(release_read(&r, c, g, &e), 0);
    json_decref(c);
    json_decref(g);
    return r;
}

static void a_nested_configuration_becomes_flat_with_the_rest_beside_it(void **state)
{
    struct release r =
        read_text("{\"architectures\": [\"KimiK3ForConditionalGeneration\"], \"text_config\": "
                  "{\"hidden_size\": 7}, \"vision_config\": {\"patch_size\": 14}, "
                  "\"eos_token_id\": 5}",
                  NULL);

    (void)state;
    assert_string_equal(r.prefix, "language_model.");
    assert_string_equal(r.arch, "kimi-k3");
    assert_int_equal(json_integer_value(json_object_get(r.config, "hidden_size")), 7);
    assert_int_equal(json_integer_value(json_object_get(r.config, "eos_token_id")), 5);
    assert_null(json_object_get(json_object_get(r.config, "_outer"), "text_config"));
    assert_non_null(release_vision(&r));
    release_release(&r);
    r = read_text("{\"architectures\": [\"KimiLinearForCausalLM\"]}", NULL);
    assert_string_equal(r.prefix, "");
    assert_string_equal(r.arch, "kimi-linear");
    assert_null(json_object_get(r.config, "_outer"));
    assert_null(release_vision(&r));
    release_release(&r);
}

static void canonical_names_are_added_and_the_others_stay(void **state)
{
    struct release r = read_text("{\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                                 "\"n_shared_experts\": 1, \"norm_topk_prob\": true}",
                                 NULL);

    (void)state;
    assert_int_equal(json_integer_value(json_object_get(r.config, "num_experts")), 8);
    assert_int_equal(json_integer_value(json_object_get(r.config, "n_routed_experts")), 8);
    assert_int_equal(json_integer_value(json_object_get(r.config, "num_experts_per_token")), 2);
    assert_int_equal(json_integer_value(json_object_get(r.config, "num_shared_experts")), 1);
    assert_true(json_is_true(json_object_get(r.config, "moe_renormalize")));
    release_release(&r);
    r = read_text("{\"num_experts\": 3, \"n_routed_experts\": 8, \"norm_topk_prob\": false}", NULL);
    assert_int_equal(json_integer_value(json_object_get(r.config, "num_experts")), 3);
    assert_null(json_object_get(r.config, "moe_renormalize"));
    release_release(&r);
}

/* Some readers take a flag for set when it is merely there. */
static void flags_are_there_only_when_they_are_true(void **state)
{
    struct release r = read_text("{\"moe_renormalize\": false, \"latent_moe_use_norm\": null, "
                                 "\"mla_use_output_gate\": true, \"mla_use_nope\": null, "
                                 "\"norm_topk_prob\": false, \"linear_attn_config\": "
                                 "{\"use_full_rank_gate\": false, \"head_dim\": 3}}",
                                 NULL);

    (void)state;
    assert_null(json_object_get(r.config, "moe_renormalize"));
    assert_null(json_object_get(r.config, "latent_moe_use_norm"));
    assert_null(json_object_get(r.config, "mla_use_nope"));
    assert_true(json_is_true(json_object_get(r.config, "mla_use_output_gate")));
    assert_null(
        json_object_get(json_object_get(r.config, "linear_attn_config"), "use_full_rank_gate"));
    assert_non_null(json_object_get(json_object_get(r.config, "linear_attn_config"), "head_dim"));
    release_release(&r);
}

static void the_end_of_a_text_is_looked_for_in_three_places(void **state)
{
    struct release r = read_text("{\"eos_token_id\": 4}", "{\"eos_token_id\": 5}");

    (void)state;
    assert_int_equal(json_integer_value(json_object_get(r.config, "eos_token_id")), 4);
    release_release(&r);
    r = read_text("{\"eos_token_id\": null}", "{\"eos_token_id\": [5]}");
    assert_int_equal(json_integer_value(json_object_get(r.config, "eos_token_id")), 5);
    release_release(&r);
    r = read_text("{}", "{\"eos_token_id\": [5, 6]}");
    assert_int_equal(json_array_size(json_object_get(r.config, "eos_token_id")), 2);
    release_release(&r);
    r = read_text("{}", "{}");
    assert_null(json_object_get(r.config, "eos_token_id"));
    release_release(&r);
}

static enum source_role role(const char *name, const char *prefix, enum naming naming,
                             struct source_place *p)
{
    struct err e;

    assert_int_equal(source_place(p, name, prefix, naming, 4, &e), 0);
    return p->role;
}

static void every_name_has_its_place(void **state)
{
    struct source_place p;

    (void)state;
    assert_int_equal(
        role("model.layers.3.block_sparse_moe.experts.17.w2.weight", "", NAMING_MIXTRAL, &p),
        ROLE_EXPERT);
    assert_int_equal(p.layer, 3);
    assert_int_equal(p.expert, 17);
    assert_int_equal(p.matrix, MATRIX_DOWN);
    assert_int_equal(role("language_model.model.layers.1.block_sparse_moe.experts.0.w3.weight",
                          "language_model.", NAMING_MIXTRAL, &p),
                     ROLE_EXPERT);
    assert_int_equal(p.matrix, MATRIX_UP);
    assert_int_equal(role("model.layers.2.mlp.experts.5.gate_proj.weight", "", NAMING_DEEPSEEK, &p),
                     ROLE_EXPERT);
    assert_int_equal(p.matrix, MATRIX_GATE);
    assert_int_equal(
        role("model.layers.2.mlp.shared_experts.gate_proj.weight", "", NAMING_DEEPSEEK, &p),
        ROLE_TRUNK);
    assert_int_equal(
        role("vision_tower.encoder.blocks.9.wo.weight", "language_model.", NAMING_MIXTRAL, &p),
        ROLE_TRUNK);
    assert_int_equal(role("model.layers.4.eh_proj.weight", "", NAMING_DEEPSEEK, &p), ROLE_DROPPED);
    assert_int_equal(role("model.layers.4.mlp.experts.0.up_proj.weight", "", NAMING_DEEPSEEK, &p),
                     ROLE_DROPPED);
    assert_int_equal(role("model.layers.0.mlp.up_proj.weight_scale_inv", "", NAMING_DEEPSEEK, &p),
                     ROLE_DROPPED);
}

static void an_experts_tensor_of_no_known_kind_is_refused_by_name(void **state)
{
    static const char *const names[] = {
        "model.layers.1.block_sparse_moe.experts.0.w4.weight",
        "model.layers.1.block_sparse_moe.experts.0.w1.bias",
        "model.layers.1.block_sparse_moe.experts.01.w1.weight",
        "model.layers.1.block_sparse_moe.experts.4294967296.w1.weight",
        "model.layers.x.block_sparse_moe.experts.0.w1.weight",
        "model.layers.1.mlp.experts.0.up_proj.weight", /* the other naming */
    };
    struct source_place p;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        assert_int_equal(source_place(&p, names[i], "", NAMING_MIXTRAL, 4, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, names[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nested_configuration_becomes_flat_with_the_rest_beside_it),
        cmocka_unit_test(canonical_names_are_added_and_the_others_stay),
        cmocka_unit_test(flags_are_there_only_when_they_are_true),
        cmocka_unit_test(the_end_of_a_text_is_looked_for_in_three_places),
        cmocka_unit_test(every_name_has_its_place),
        cmocka_unit_test(an_experts_tensor_of_no_known_kind_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
