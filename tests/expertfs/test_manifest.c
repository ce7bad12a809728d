#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "expertfs/manifest.h"
#include "tests/support/tiny_container.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

static int parse_json(struct manifest *m, const json_t *root, uint64_t trunk_bytes, struct err *e)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    int code;

    assert_non_null(text);
    code = manifest_parse(m, text, strlen(text), trunk_bytes, e);
    free(text);
    return code;
}

/* The golden manifest with one value replaced, which must still be accepted. */
static void accept(struct manifest *m, const char *path, const char *json)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct err e = {0};

    tiny_set(root, path, json);
    if (parse_json(m, root, TINY_TRUNK_BYTES, &e))
        fail_msg("%s = %s: %s", path, json ? json : "(absent)", e.text);
    json_decref(root);
}

static void the_golden_manifest_is_read(void **state)
{
    for (enum tiny v = TINY_VQ3R; v <= TINY_VQ4P; v++) {
        json_t *root = tiny_manifest(v);
        struct manifest m;
        struct err e;

        (void)state;
        assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
        assert_int_equal(m.n_layers, 3);
        assert_int_equal(m.first_dense, 1);
        assert_int_equal(m.n_experts, 4);
        assert_int_equal(m.top_k, 2);
        assert_int_equal(m.hidden, 136);
        assert_int_equal(m.latent, 136);
        assert_int_equal(m.inter, 72);
        assert_int_equal(m.vocab, 64);
        assert_string_equal(m.prefix, "");
        assert_string_equal(m.arch, "kimi-linear");
        assert_string_equal(m.warning, "");
        assert_null(m.outer);
        assert_non_null(m.config);
        assert_int_equal(m.record.bytes, TINY_RECORD_BYTES);
        assert_int_equal(m.record.index_bits, v == TINY_VQ4P ? 6 : 8);
        assert_false(m.bank[0].present);
        assert_true(m.bank[1].present && m.bank[2].present);
        assert_string_equal(m.bank[2].file, "experts-L2.bin");
        assert_int_equal(m.bank[2].bytes, TINY_BANK_BYTES);
        assert_int_equal(m.bank[2].codebook_base, v == TINY_VQ4P ? 12 : 9);
        assert_int_equal(m.n_trunk, TINY_TENSORS);
        assert_false(manifest_is_moe(&m, 0));
        assert_true(manifest_is_moe(&m, 1));
        assert_false(manifest_is_moe(&m, 3));
        manifest_release(&m);
        manifest_release(&m); /* a released one may be released */
        json_decref(root);
    }
}

static void tensors_are_found_by_name(void **state)
{
    struct manifest m;
    const struct trunk_entry *t;
    char name[600];

    (void)state;
    accept(&m, "arch", NULL);
    t = manifest_tensor(&m, "model.layers.0.mlp.up_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->fmt, FMT_Q3G);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->rows, 160);
    assert_int_equal(t->cols, 136);
    assert_int_equal(t->groups, 2);
    assert_int_equal(t->row_bytes, 97);
    assert_int_equal(t->payload_bytes, 160 * 97);
    assert_int_equal(t->scale_bytes, 160 * 2 * 2);
    assert_int_equal(t->scale_off, t->off + t->payload_bytes);
    t = manifest_tensor(&m, "model.layers.1.self_attn.A_log");
    assert_non_null(t);
    assert_int_equal(t->fmt, FMT_F32);
    assert_int_equal(t->rank, 4);
    assert_int_equal(t->rows, 2);
    assert_int_equal(t->cols, 1);
    assert_int_equal(t->groups, 0);
    assert_int_equal(t->scale_bytes, 0);
    assert_null(manifest_tensor(&m, ""));
    assert_null(manifest_tensor(&m, "model.norm"));
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_null(manifest_tensor(&m, name));
    manifest_release(&m);
}

static void the_largest_example_of_the_format_has_its_sizes(void **state)
{
    struct manifest m;

    (void)state;
    accept(&m, "trunk",
           "[{\"name\":\"w\",\"fmt\":3,\"shape\":[136,520],\"off\":1,\"group\":128,"
           "\"scale_off\":43523,\"bytes\":44880}]"); /* odd offsets, a gap before the scales */
    assert_int_equal(m.trunk[0].row_bytes, 320);
    assert_int_equal(m.trunk[0].payload_bytes, 43520);
    assert_int_equal(m.trunk[0].scale_bytes, 1360);
    assert_int_equal(m.trunk[0].groups, 5);
    manifest_release(&m);
}

static void what_a_v0_container_may_leave_out_or_add_is_accepted(void **state)
{
    static const struct {
        const char *path, *json;
    } may[] = {
        {"format_version", "0.0"},
        {"arch", NULL},
        {"arch", "\"kimi_linear\""},
        {"tensor_prefix", NULL},
        {"tensor_prefix", "null"},
        {"expert_quant.index_bits", NULL},
        {"expert_quant.fmt", NULL},
        {"expert_quant.stages", NULL},
        {"expert_quant.vec_dim", NULL},
        {"expert_quant.entries", NULL},
        {"expert_quant.stages", "3.0"},
        {"expert_quant.bits_per_weight", "3"},
        {"expert_quant.bits_per_weight", "3.0"},
        {"expert_quant.bits_per_weight", NULL},
        {"config.architectures", NULL},
        {"config.architectures", "[]"},
        {"config.unknown", "{\"nested\":[1,2,{\"x\":null}]}"},
        {"config.routed_expert_hidden_size", "0"},
        {"config.routed_expert_hidden_size", "null"},
        {"config.routed_expert_hidden_size", "136"},
        {"config.num_experts", "4e0"},
        {"unknown", "[[[]]]"},
        {"layers.1.unknown", "1"},
        {"layers.1.codebook_base", "65527"},
        {"layers.2.codebook_base", "40"},
        {"layers.1.file", "\"experts of layer 1\""},
        {"trunk.0.unknown", "\"x\""},
        {"trunk.56.group", "7"},         /* an F32 tensor has no groups */
        {"trunk.56.scale_off", "-7"},    /* nor scales */
        {"trunk.40", NULL},              /* then its bytes are dead */
        {"trunk.0.name", "\"\\u00e9\""}, /* names are any text */
    };
    struct manifest m;

    (void)state;
    for (size_t i = 0; i < N_ELEMS(may); i++) {
        accept(&m, may[i].path, may[i].json);
        assert_string_equal(m.warning, "");
        assert_int_equal(m.record.bytes, TINY_RECORD_BYTES);
        manifest_release(&m);
    }
}

static void trunk_entries_may_come_in_any_order(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R), *trunk = json_object_get(root, "trunk");
    struct manifest m;
    struct err e;

    (void)state;
    for (size_t i = 0; i + 1 < json_array_size(trunk); i++) {
        json_array_insert(trunk, 0, json_array_get(trunk, i + 1));
        json_array_remove(trunk, i + 2);
    }
    assert_string_equal(json_string_value(json_object_get(json_array_get(trunk, 0), "name")),
                        "model.norm.weight");
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_string_equal(m.trunk[0].name, "lm_head.weight");
    assert_int_equal(manifest_tensor(&m, "lm_head.weight")->off, 0);
    manifest_release(&m);
    json_decref(root);
}

/* Nothing is computed from them, so they refuse nothing. */
static void a_description_that_is_wrong_is_a_warning(void **state)
{
    static const struct {
        const char *member, *json, *meant;
    } wrong[] = {
        {"fmt", "\"VQ9X\"", "VQ3R"},
        {"fmt", "\"VQ2R\"", "VQ3R"},
        {"fmt", "\"VQ4P\"", "VQ3R"},
        {"fmt", "\"V\\nQ\"", "VQ3R"},
        {"fmt", "[3]", "VQ3R"},
        {"bits_per_weight", "1.0", "3"},
        {"bits_per_weight", "\"three\"", "3"},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(wrong); i++) {
        struct manifest m;
        char path[64], want[160];

        snprintf(path, sizeof(path), "expert_quant.%s", wrong[i].member);
        snprintf(want, sizeof(want),
                 "manifest.json: %s %s is not used: 3 stages of 8 bits are read, which is %s", path,
                 wrong[i].json, wrong[i].meant);
        accept(&m, path, wrong[i].json);
        assert_string_equal(m.warning, want);
        assert_int_equal(m.record.bytes, TINY_RECORD_BYTES);
        manifest_release(&m);
    }
}

static void a_layer_beyond_the_last_is_ignored_with_a_warning(void **state)
{
    struct manifest m;

    (void)state;
    accept(&m, "layers.61", "{\"file\":\"../x\"}");
    assert_string_equal(m.warning, "manifest.json: layers.61 ignored: the model has 3 layers");
    manifest_release(&m);
}

static void the_architecture_comes_from_the_configuration(void **state)
{
    static const struct {
        const char *path, *json, *arch;
    } cases[] = {
        {"arch", "\"kimi-k3\"", "kimi-linear"},
        {"config.architectures", "[\"KimiK3ForConditionalGeneration\"]", "kimi-k3"},
        {"config.architectures", "[\"DeepseekV3ForCausalLM\",\"KimiLinear\"]",
         "DeepseekV3ForCausalLM"},
        {"config.architectures", "[\"a\\nb\"]", "a?b"},
        {"config._outer", "{\"architectures\":[\"KimiK3ForConditionalGeneration\"]}", "kimi-k3"},
        {"config._outer", "{\"architectures\":[]}", "kimi-linear"},
        {"config._outer", "{}", "kimi-linear"},
    };
    struct manifest m;

    (void)state;
    for (size_t i = 0; i < N_ELEMS(cases); i++) {
        accept(&m, cases[i].path, cases[i].json);
        assert_string_equal(m.arch, cases[i].arch);
        manifest_release(&m);
    }
    accept(&m, "config.architectures", NULL); /* then the file's own word is the last resort */
    assert_string_equal(m.arch, "kimi-linear");
    manifest_release(&m);
}

static void a_release_configuration_nested_under_text_config_is_read(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R), *config = json_object_get(root, "config");
    json_t *trunk = json_object_get(root, "trunk"), *entry;
    struct manifest m;
    struct err e;
    size_t i;

    (void)state;
    json_object_del(config, "architectures");
    json_object_set_new(root, "config",
                        json_pack("{s:O s:[s] s:i}", "text_config", config, "architectures",
                                  "KimiK3ForConditionalGeneration", "hidden_size", 7));
    json_array_foreach(trunk, i, entry)
    {
        json_t *name = json_object_get(entry, "name");

        json_object_set_new(entry, "name",
                            json_sprintf("language_model.%s", json_string_value(name)));
    }
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_string_equal(m.prefix, "language_model.");
    assert_string_equal(m.arch, "kimi-k3");
    assert_int_equal(m.hidden, 136);
    assert_non_null(m.outer);
    assert_int_equal(json_integer_value(json_object_get(m.outer, "hidden_size")), 7);
    assert_non_null(manifest_tensor(&m, "lm_head.weight"));
    assert_null(manifest_tensor(&m, "language_model.lm_head.weight"));
    manifest_release(&m);
    json_object_set_new(root, "tensor_prefix", json_string("other."));
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_string_equal(m.prefix, "other.");
    manifest_release(&m);
    json_decref(root);
}

static void older_containers_spell_the_expert_counts_as_the_release_does(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R), *config = json_object_get(root, "config");
    struct manifest m;
    struct err e;

    (void)state;
    json_object_del(config, "num_experts");
    json_object_del(config, "num_experts_per_token");
    json_object_set_new(config, "n_routed_experts", json_integer(4));
    json_object_set_new(config, "num_experts_per_tok", json_integer(3));
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_int_equal(m.n_experts, 4);
    assert_int_equal(m.top_k, 3);
    manifest_release(&m);
    json_object_set_new(config, "num_experts_per_token", json_integer(1)); /* a user lowered one */
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), ERR_FORMAT);
    assert_string_equal(e.text, "manifest.json: config: num_experts_per_token is 1, but "
                                "num_experts_per_tok is 3");
    json_object_set_new(config, "num_experts_per_tok", json_integer(1));
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_int_equal(m.top_k, 1);
    manifest_release(&m);
    json_decref(root);
}

static void a_model_without_experts_needs_no_banks(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct manifest m;
    struct err e;

    (void)state;
    tiny_set(root, "config.num_experts", "0");
    tiny_set(root, "config.moe_intermediate_size", NULL);
    tiny_set(root, "config.num_experts_per_token", NULL);
    tiny_set(root, "layers", NULL);
    tiny_set(root, "expert_quant", NULL);
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_int_equal(m.n_experts, 0);
    assert_int_equal(m.record.bytes, 0);
    assert_false(manifest_is_moe(&m, 1));
    manifest_release(&m);
    json_decref(root);
}

static void a_latent_size_of_its_own_sizes_the_records(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct record_layout l;
    struct manifest m;
    struct err e;
    char bytes[32];

    (void)state;
    assert_int_equal(record_layout_init(&l, 64, 72, 3, 256, 8, &e), 0);
    snprintf(bytes, sizeof(bytes), "%u", 4 * l.bytes);
    tiny_set(root, "config.routed_expert_hidden_size", "64");
    tiny_set(root, "layers.1.bytes", bytes);
    tiny_set(root, "layers.2.bytes", bytes);
    assert_int_equal(parse_json(&m, root, TINY_TRUNK_BYTES, &e), 0);
    assert_int_equal(m.latent, 64);
    assert_int_equal(m.record.bytes, l.bytes);
    manifest_release(&m);
    json_decref(root);
}

/* Hostile manifests: nothing may crash, everything refused must say why. */

/* What later code relies on without asking again. */
static void assert_sound(const struct manifest *m)
{
    assert_in_range(m->n_layers, 1, FORMAT_LAYERS_MAX);
    assert_true(m->first_dense <= m->n_layers);
    for (unsigned layer = 0; layer < FORMAT_LAYERS_MAX; layer++) {
        const struct bank *b = &m->bank[layer];

        assert_int_equal(b->present, manifest_is_moe(m, layer));
        if (b->present)
            assert_int_equal(b->bytes, (uint64_t)m->n_experts * m->record.bytes);
    }
    for (unsigned i = 0; i < m->n_trunk; i++) {
        const struct trunk_entry *t = &m->trunk[i];

        assert_in_range(t->rank, 1, 4);
        assert_true(t->rows >= 1 && t->cols >= 1);
        assert_true(t->off + t->payload_bytes <= TINY_TRUNK_BYTES);
        assert_true(t->scale_off + t->scale_bytes <= TINY_TRUNK_BYTES);
        assert_int_equal(t->payload_bytes, t->rows * t->row_bytes);
        assert_int_equal(t->scale_bytes, 2 * t->rows * t->groups);
    }
}

static void parse_any(const char *text, size_t len)
{
    struct manifest m;
    struct err e = {0};
    char *exact = malloc(len ? len : 1); /* so that a byte read past the end is seen */

    memcpy(exact, text, len);
    if (manifest_parse(&m, exact, len, TINY_TRUNK_BYTES, &e)) {
        assert_true(e.code < 0);
        assert_true(strlen(e.text) > 10);
    } else {
        assert_sound(&m);
        manifest_release(&m);
    }
    free(exact);
}

static void a_manifest_cut_anywhere_is_refused(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    char *text = json_dumps(root, JSON_COMPACT);
    size_t len = strlen(text);
    struct manifest m;
    struct err e;

    (void)state;
    for (size_t n = 0; n < len; n++) {
        char *cut = malloc(n ? n : 1);

        memcpy(cut, text, n);
        assert_int_equal(manifest_parse(&m, cut, n, TINY_TRUNK_BYTES, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "manifest.json: JSON error at byte"));
        free(cut);
    }
    free(text);
    json_decref(root);
}

static void a_manifest_with_any_byte_changed_never_crashes(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    char *text;
    size_t len;

    (void)state;
    for (unsigned i = 50; i > 4; i--) /* enough of the trunk to have every format */
        json_array_remove(json_object_get(root, "trunk"), i);
    text = json_dumps(root, JSON_COMPACT);
    len = strlen(text);
    for (size_t i = 0; i < len; i++) {
        static const char to[] = {'\0', '"', '{', ']', '-', '9', '\\', '\x80'};
        char was = text[i];

        for (size_t k = 0; k < sizeof(to); k++) {
            text[i] = to[k];
            parse_any(text, len);
        }
        text[i] = (char)(was ^ 1);
        parse_any(text, len);
        text[i] = was;
    }
    free(text);
    json_decref(root);
}

static const char *const nasty[] = {"null",  "true",  "-1",    "0",          "1",
                                    "1.5",   "65536", "1e300", "2147483648", "4611686018427387904",
                                    "\"\"",  "\"x\"", "[]",    "{}",         "-9223372036854775808",
                                    "[[[]]]"};

static void parse_root(const json_t *root)
{
    char *text = json_dumps(root, JSON_COMPACT);

    parse_any(text, strlen(text));
    free(text);
}

/* Put every nasty value in the place of every value below `at`, one at a time; take each member
 * away, too. */
static void vandalise(const json_t *root, json_t *at)
{
    const char *key;
    json_t *value;
    size_t n = json_array_size(at);
    void *tmp;

    for (size_t i = 0; i < n; i++) {
        value = json_incref(json_array_get(at, i));
        for (size_t k = 0; k < N_ELEMS(nasty); k++) {
            json_array_set_new(at, i, json_loads(nasty[k], JSON_DECODE_ANY, NULL));
            parse_root(root);
        }
        json_array_set(at, i, value);
        vandalise(root, value);
        json_decref(value);
    }
    json_object_foreach_safe(at, tmp, key, value)
    {
        json_incref(value);
        for (size_t k = 0; k < N_ELEMS(nasty); k++) {
            json_object_set_new(at, key, json_loads(nasty[k], JSON_DECODE_ANY, NULL));
            parse_root(root);
        }
        json_object_set(at, key, value);
        vandalise(root, value);
        json_decref(value);
    }
}

static void a_manifest_with_any_value_replaced_never_crashes(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);

    (void)state;
    for (unsigned i = 50; i > 2; i--)
        json_array_remove(json_object_get(root, "trunk"), i);
    vandalise(root, root);
    json_decref(root);
}

static void a_manifest_with_any_member_missing_never_crashes(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    static const char *const in[] = {"", "config", "expert_quant", "layers", "trunk.0", "trunk.56"};

    (void)state;
    for (size_t i = 0; i < N_ELEMS(in); i++) {
        json_t *at = !*in[i]           ? root
                     : in[i][0] == 't' ? json_array_get(json_object_get(root, "trunk"),
                                                        strtoul(in[i] + 6, NULL, 10))
                                       : json_object_get(root, in[i]);
        json_t *all = json_copy(at), *value;
        const char *key;

        json_object_foreach(all, key, value)
        {
            json_object_del(at, key);
            parse_root(root);
            json_object_set(at, key, value);
        }
        json_decref(all);
    }
    json_decref(root);
}

static void a_trunk_of_any_other_size_never_crashes(void **state)
{
    json_t *root = tiny_manifest(TINY_VQ3R);
    char *text = json_dumps(root, JSON_COMPACT);
    struct manifest m;
    struct err e;

    (void)state;
    for (uint64_t bytes = 0; bytes < TINY_TRUNK_BYTES; bytes += bytes < 64 ? 1 : 499) {
        assert_int_equal(manifest_parse(&m, text, strlen(text), bytes, &e), ERR_FORMAT);
        assert_true(strstr(e.text, "file has") || strstr(e.text, "is impossible for a"));
    }
    assert_int_equal(manifest_parse(&m, text, strlen(text), TINY_TRUNK_BYTES - 1, &e), ERR_FORMAT);
    assert_int_equal(manifest_parse(&m, text, strlen(text), UINT64_MAX, &e), 0);
    manifest_release(&m);
    free(text);
    json_decref(root);
}

/* Sizes whose product with anything wraps around, against a file that claims to be as large. */
static void shapes_that_overflow_are_refused_whatever_the_file_size(void **state)
{
    static const char *const shapes[] = {"[67108864,67108864]",
                                         "[67108864,67108864,67108864]",
                                         "[67108864,67108864,67108864,67108864]",
                                         "[67108864,67108864,4095,1]",
                                         "[67108864,1]",
                                         "[1,67108864]",
                                         "[67108864,67108864,8191]"};

    (void)state;
    for (size_t i = 0; i < N_ELEMS(shapes); i++)
        for (unsigned fmt = 0; fmt < 8; fmt++)
            for (unsigned size = 0; size < 3; size++) {
                static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX / 8, INT64_MAX};
                json_t *root = tiny_manifest(TINY_VQ3R);
                struct manifest m;
                struct err e;
                char code[4];

                snprintf(code, sizeof(code), "%u", fmt);
                tiny_set(root, "trunk.0.shape", shapes[i]);
                tiny_set(root, "trunk.0.fmt", code);
                assert_true(parse_json(&m, root, sizes[size], &e) < 0); /* bytes never fits */
                json_decref(root);
            }
}

static void a_manifest_is_untouched_by_a_failed_read(void **state)
{
    struct manifest m, before;
    struct err e;

    (void)state;
    memset(&m, 0x5a, sizeof(m));
    memset(&before, 0x5a, sizeof(before));
    assert_int_equal(manifest_parse(&m, "{\"format_version\":0}", 20, 0, &e), ERR_FORMAT);
    assert_memory_equal(&m, &before, sizeof(m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_golden_manifest_is_read),
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(the_largest_example_of_the_format_has_its_sizes),
        cmocka_unit_test(what_a_v0_container_may_leave_out_or_add_is_accepted),
        cmocka_unit_test(trunk_entries_may_come_in_any_order),
        cmocka_unit_test(a_description_that_is_wrong_is_a_warning),
        cmocka_unit_test(a_layer_beyond_the_last_is_ignored_with_a_warning),
        cmocka_unit_test(the_architecture_comes_from_the_configuration),
        cmocka_unit_test(a_release_configuration_nested_under_text_config_is_read),
        cmocka_unit_test(older_containers_spell_the_expert_counts_as_the_release_does),
        cmocka_unit_test(a_model_without_experts_needs_no_banks),
        cmocka_unit_test(a_latent_size_of_its_own_sizes_the_records),
        cmocka_unit_test(a_manifest_cut_anywhere_is_refused),
        cmocka_unit_test(a_manifest_with_any_byte_changed_never_crashes),
        cmocka_unit_test(a_manifest_with_any_value_replaced_never_crashes),
        cmocka_unit_test(a_manifest_with_any_member_missing_never_crashes),
        cmocka_unit_test(a_trunk_of_any_other_size_never_crashes),
        cmocka_unit_test(shapes_that_overflow_are_refused_whatever_the_file_size),
        cmocka_unit_test(a_manifest_is_untouched_by_a_failed_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
