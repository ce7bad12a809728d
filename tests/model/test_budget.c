/* test_budget.c - the plan: published sizes from published shapes, and what a budget buys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "expertfs/codebook.h"
#include "expertfs/shapes.h"
#include "expertfs/synth.h"
#include "model/budget.h"
#include "model/session.h"
#include "tests/support/tiny_container.h"

static const double GIB = 1 << 30;

/* ---- the published models, from their configurations ---- */

static const char kimi_linear[] =
    "{\"architectures\":[\"KimiLinearForCausalLM\"],\"model_type\":\"kimi_linear\","
    "\"num_hidden_layers\":27,\"hidden_size\":2304,\"vocab_size\":163840,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"head_dim\":72,\"q_lora_rank\":null,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"mla_use_nope\":true,\"first_k_dense_replace\":1,\"intermediate_size\":9216,"
    "\"moe_intermediate_size\":1024,\"num_experts\":256,\"num_experts_per_token\":8,"
    "\"num_shared_experts\":1,\"num_expert_group\":1,\"topk_group\":1,\"moe_renormalize\":true,"
    "\"moe_router_activation_func\":\"sigmoid\",\"routed_scaling_factor\":2.446,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"rope_scaling\":null,"
    "\"eos_token_id\":163586,\"linear_attn_config\":{\"head_dim\":128,\"num_heads\":32,"
    "\"short_conv_kernel_size\":4,\"kda_layers\":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,"
    "25,26],\"full_attn_layers\":[4,8,12,16,20,24,27]}}";

/* The text part; its layer lists and the wrapper are put around it by k3_config. */
static const char k3_text[] =
    "{\"model_type\":\"kimi_linear\",\"num_hidden_layers\":93,\"hidden_size\":7168,"
    "\"vocab_size\":163840,\"num_attention_heads\":96,\"num_key_value_heads\":96,"
    "\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
    "\"v_head_dim\":128,\"mla_use_nope\":true,\"mla_use_output_gate\":true,"
    "\"first_k_dense_replace\":1,\"intermediate_size\":33792,\"moe_intermediate_size\":3072,"
    "\"num_experts\":896,\"num_experts_per_token\":16,\"num_shared_experts\":2,"
    "\"routed_expert_hidden_size\":3584,\"latent_moe_use_norm\":true,\"attn_res_block_size\":12,"
    "\"moe_renormalize\":true,\"routed_scaling_factor\":1.0,\"hidden_act\":\"situ\","
    "\"activation_situ_beta\":4.0,\"activation_situ_linear_beta\":25.0,\"rms_norm_eps\":1e-05,"
    "\"eos_token_id\":163586,\"linear_attn_config\":{\"head_dim\":128,\"num_heads\":96,"
    "\"short_conv_kernel_size\":4,\"use_full_rank_gate\":true,\"gate_lower_bound\":-5.0}}";

static const char deepseek_v3[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
    "\"num_hidden_layers\":61,\"hidden_size\":7168,\"vocab_size\":129280,"
    "\"num_attention_heads\":128,\"num_key_value_heads\":128,\"q_lora_rank\":1536,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"first_k_dense_replace\":3,\"intermediate_size\":18432,\"moe_intermediate_size\":2048,"
    "\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"n_group\":8,"
    "\"topk_group\":4,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
    "\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"moe_layer_freq\":1,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"rope_theta\":10000,\"rope_scaling\":{"
    "\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,\"beta_fast\":32,"
    "\"beta_slow\":1,\"original_max_position_embeddings\":4096},\"num_nextn_predict_layers\":1}";

static json_t *parsed(const char *text)
{
    json_t *j = json_loads(text, 0, NULL);

    assert_non_null(j);
    return j;
}

static json_t *k3_config(void)
{
    json_t *text = parsed(k3_text), *linear = json_object_get(text, "linear_attn_config");
    json_t *kda = json_array(), *full = json_array();

    for (unsigned l = 1; l <= 93; l++)
        json_array_append_new(l % 4 == 0 || l == 93 ? full : kda, json_integer(l));
    json_object_set_new(linear, "kda_layers", kda);
    json_object_set_new(linear, "full_attn_layers", full);
    return json_pack("{s:[s] s:s s:o}", "architectures", "KimiK3ForConditionalGeneration",
                     "model_type", "kimi_k3", "text_config", text);
}

/* DeepSeek's configuration with Kimi-K2's numbers. */
static json_t *k2_config(void)
{
    static const struct {
        const char *key;
        int value;
    } change[] = {{"vocab_size", 163840},    {"num_attention_heads", 64},
                  {"n_routed_experts", 384}, {"n_group", 1},
                  {"topk_group", 1},         {"first_k_dense_replace", 1}};
    json_t *c = parsed(deepseek_v3);

    for (unsigned i = 0; i < sizeof(change) / sizeof(*change); i++)
        json_object_set_new(c, change[i].key, json_integer(change[i].value));
    json_object_set_new(c, "num_key_value_heads", json_integer(64));
    return c;
}

static struct facts facts_from(json_t *config) /* takes the reference */
{
    struct facts f;
    struct err e;

    if (facts_of_config(&f, config, &e))
        fail_msg("%s", e.text);
    json_decref(config);
    return f;
}

static uint64_t codebooks_of(const struct facts *f)
{
    return (uint64_t)(f->hp.n_layers - f->hp.first_dense) * 3 * 3 * 256 * 8 * sizeof(float);
}

static struct plan_request request(uint64_t budget, uint64_t usable)
{
    return (struct plan_request){
        .budget = budget,
        .usable = usable,
        .ctx = 4096,
        .sessions = 1,
        .rows_max = 512,
        .threads = 8,
    };
}

static struct plan plan_of(const struct facts *f, const struct plan_request *r)
{
    struct plan p;

    plan_make(&p, f, r);
    return p;
}

static void kimi_linear_has_its_published_sizes(void **state)
{
    struct facts f = facts_from(parsed(kimi_linear));
    struct plan_request r = request(0, 0);
    struct plan p = plan_of(&f, &r);

    (void)state;
    assert_string_equal(f.arch, "kimi-linear");
    assert_true(f.from_config);
    assert_int_equal(f.record.bytes, 2666496);
    assert_int_equal(f.n_tensors, 525);
    assert_int_equal(f.trunk_file_bytes, 1419257600);
    assert_int_equal(f.trunk_bytes - codebooks_of(&f), 1035872000);
    /* the rest of the disk: banks and codebooks */
    assert_int_equal(f.disk_bytes - f.trunk_file_bytes, 17748197376 + 962208);
    assert_int_equal(p.all_experts, 17748197376);
    assert_int_equal(p.working_set, 26ull * 8 * 2666496);
    assert_int_equal(p.cache_min, 16 * 2666496);
    /* published: state 149 MiB, floor about 1.36 GiB, with scratch of larger passes */
    assert_int_equal(p.state >> 20, 148);
    assert_true((double)p.floor / GIB > 1.15 && (double)p.floor / GIB < 1.36);
    /* 48 B parameters, 3.1 B active */
    assert_int_equal((f.params_trunk + f.params_embed + 26ull * 256 * 7077888) / 100000000, 491);
}

static void k3_has_its_published_sizes(void **state)
{
    /* the vision tower as the converter writes it, by its shapes */
    static const uint64_t vision_bytes = 233418752;
    /* A_log is stored with 128 values for 96 heads, which no configuration says */
    static const uint64_t padding = 69 * 32 * sizeof(float);
    struct facts f = facts_from(k3_config());
    struct plan_request r = request(0, 0);
    struct plan p = plan_of(&f, &r);

    (void)state;
    assert_string_equal(f.arch, "kimi-k3");
    assert_int_equal(f.hp.n_kda, 69);
    assert_int_equal(f.hp.n_mla, 24);
    assert_int_equal(f.record.bytes, 12406784);
    assert_int_equal(f.n_tensors, 2460);
    assert_int_equal(f.trunk_bytes - codebooks_of(&f) + padding, 29294179840);
    assert_int_equal(f.trunk_file_bytes + padding + vision_bytes, 30720353792);
    assert_int_equal(p.all_experts, 1022716018688);
    assert_int_equal(p.working_set, 92ull * 16 * 12406784);
    assert_int_equal(p.cache_min, 32 * 12406784);
    /* published: state 1,102 MiB, floor about 29.6 GiB, with scratch of larger passes */
    assert_int_equal(p.state >> 20, 1102);
    assert_true((double)p.floor / GIB > 28.7 && (double)p.floor / GIB < 29.6);
}

static void deepseek_and_k2_are_as_large_as_published(void **state)
{
    struct facts v3 = facts_from(parsed(deepseek_v3)), k2 = facts_from(k2_config());
    struct plan_request r = request(0, 0);
    struct plan p3 = plan_of(&v3, &r), p2 = plan_of(&k2, &r);

    (void)state;
    assert_int_equal(v3.record.bytes, 16539648);
    assert_int_equal(k2.record.bytes, 16539648);
    assert_true((double)v3.trunk_bytes / GIB > 8.1 && (double)v3.trunk_bytes / GIB < 8.3);
    assert_true((double)k2.trunk_bytes / GIB > 5.5 && (double)k2.trunk_bytes / GIB < 5.7);
    assert_int_equal(p3.all_experts >> 30, 228); /* 229 GiB, 58 layers */
    assert_int_equal(p2.all_experts >> 30, 354); /* 355 GiB */
    assert_int_equal(p2.state >> 20, 549);       /* 61 layers of 576 floats, 4096 positions */
    assert_string_equal(k2.arch, "DeepseekV3ForCausalLM");
}

/* ---- configuration and container ---- */

static void a_configuration_that_is_none_is_refused(void **state)
{
    static const char *const bad[] = {"[]", "{}", "{\"text_config\":{}}",
                                      "{\"text_config\":7,\"num_hidden_layers\":0}"};
    struct facts f = {.n_tensors = 77};
    struct err e;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        json_t *c = parsed(bad[i]);

        assert_int_equal(facts_of_config(&f, c, &e), ERR_FORMAT);
        assert_int_equal(f.n_tensors, 77);
        json_decref(c);
    }
}

static struct facts facts_at(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    struct manifest m;
    struct facts f;
    struct err e;

    assert_true(fd >= 0);
    if (manifest_read(&m, fd, dir, &e) || facts_of_manifest(&f, &m, fd, &e))
        fail_msg("%s", e.text);
    if (m.n_experts)
        assert_int_equal(codebooks_bytes(&m.record, manifest_moe_layers(&m)),
                         (uint64_t)(f.hp.n_layers - f.hp.first_dense) * MATRICES * f.record.stages *
                             f.record.entries * 8 * sizeof(float));
    manifest_release(&m);
    close(fd);
    return f;
}

/* Before a model is downloaded its plan is made from config.json; after it was converted, from the
 * manifest. The two agree in everything but what a configuration cannot know: A_log's padding, the
 * size of the tokenizer, and what no text model reads. */
static void a_plan_before_the_download_is_the_plan_after_it(void **state)
{
    static const char *const shapes[] = {"tiny-kimi", "tiny-k3", "tiny-deepseek"};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        const struct shape *shape = shape_find(shapes[i]);
        struct shape cut = *shape;
        struct synth_options o = {.shape = shapes[i], .layers = 4, .experts = 8, .buffered = true};
        struct facts made, said;
        struct plan_request r = request(0, 0);
        struct plan a, b;
        uint64_t pad;
        char dir[512], sub[600];
        struct err e;

        tiny_dir(dir, sizeof(dir));
        snprintf(sub, sizeof(sub), "%s/it.waste", dir);
        o.dir = sub;
        if (synth_run(&o, NULL, NULL, &e))
            fail_msg("%s", e.text);
        made = facts_at(sub);
        assert_int_equal(shape_cut(&cut, 4, 8, 0, &e), 0);
        said = facts_from(shape_config(&cut));
        pad = (uint64_t)said.hp.n_kda * (cut.a_log - said.hp.kda_heads) * sizeof(float);
        assert_int_equal(made.n_tensors, said.n_tensors);
        assert_int_equal(made.params_trunk, said.params_trunk);
        assert_int_equal(made.params_embed, said.params_embed);
        assert_int_equal(made.record.bytes, said.record.bytes);
        assert_int_equal(made.record.stages, said.record.stages);
        assert_int_equal(made.record.entries, said.record.entries);
        assert_int_equal(made.trunk_file_bytes, said.trunk_file_bytes + pad);
        assert_true(made.trunk_bytes >= said.trunk_bytes);
        assert_true(made.trunk_bytes - said.trunk_bytes <= (pad + 63) / 64 * 64 * said.hp.n_kda);
        assert_int_equal(made.disk_bytes, said.disk_bytes + pad);
        assert_false(made.from_config);
        assert_true(made.tokenizer_bytes > 0);
        said.tokenizer_bytes = made.tokenizer_bytes;
        said.trunk_bytes = made.trunk_bytes;
        a = plan_of(&made, &r);
        b = plan_of(&said, &r);
        assert_int_equal(a.floor, b.floor);
        assert_int_equal(a.trunk, b.trunk);
        assert_int_equal(a.scratch, b.scratch);
        assert_int_equal(a.all_experts, b.all_experts);
        assert_int_equal(a.frames, b.frames);
        assert_int_equal(a.recommended, b.recommended);
        tiny_remove(sub);
        tiny_remove(dir);
    }
}

/* ---- what a plan adds up to ---- */

static struct facts mini(void)
{
    char dir[512];
    struct facts f;

    tiny_dir(dir, sizeof(dir));
    tiny_write(dir, TINY_VQ3R);
    f = facts_at(dir);
    tiny_remove(dir);
    return f;
}

enum { N_FACTS = 4 };

static void some_facts(struct facts f[N_FACTS])
{
    f[0] = mini();
    f[1] = facts_from(parsed(kimi_linear));
    f[2] = facts_from(k3_config());
    f[3] = facts_from(parsed(deepseek_v3));
}

static void the_floor_is_the_sum_of_its_parts(void **state)
{
    struct facts f[N_FACTS];

    (void)state;
    some_facts(f);
    for (unsigned i = 0; i < N_FACTS; i++)
        for (unsigned sessions = 1; sessions <= 4; sessions *= 2)
            for (unsigned ctx = 1; ctx <= 131072; ctx *= 16) {
                struct plan_request r = request(0, 0);
                uint64_t each = (session_bytes(&f[i].hp, ctx) + 4095) / 4096 * 4096;
                struct plan p;

                r.sessions = sessions;
                r.ctx = ctx;
                p = plan_of(&f[i], &r);
                assert_int_equal(p.floor, p.trunk + p.state + p.scratch + p.cache_min);
                assert_int_equal(p.state, sessions * each);
                assert_true(p.trunk >= f[i].trunk_bytes);
                assert_true(p.trunk < f[i].trunk_bytes + (8 << 20));
                assert_true(p.process < p.scratch);
                assert_true(p.budget == p.floor && p.chosen && p.fits);
                assert_int_equal(p.recommended - p.floor, 3 * p.working_set < p.all_experts
                                                              ? 3 * p.working_set
                                                              : p.all_experts);
            }
}

static void state_is_what_a_session_keeps(void **state)
{
    struct facts f = facts_from(k3_config());
    struct plan_request r = request(0, 0);
    uint64_t kda = 69ull * 96 * 128 * 128 * 4, window = 69ull * 3 * 3 * 96 * 128 * 4;
    uint64_t latent = 24ull * 4096 * 576 * 4, ids = 4096 * 9;
    struct plan p = plan_of(&f, &r);

    (void)state;
    assert_true(p.state >= 2 * (kda + window) + latent + ids); /* twice: a pass is whole or not */
    assert_true(p.state < 2 * (kda + window) + latent + ids + 8192);
}

static void a_budget_below_the_floor_does_not_fit(void **state)
{
    struct facts f[N_FACTS];

    (void)state;
    some_facts(f);
    for (unsigned i = 0; i < N_FACTS; i++) {
        struct plan_request r = request(0, 0);
        uint64_t floor = plan_of(&f[i], &r).floor;
        static const double part[] = {0.999999, 0.5, 1e-6};
        struct plan p;

        for (unsigned j = 0; j < 4; j++) {
            r.budget = j ? (uint64_t)((double)floor * part[j - 1]) : floor - 1;
            p = plan_of(&f[i], &r);
            assert_false(p.fits);
            assert_false(p.chosen);
            assert_int_equal(p.frames, 0);
            assert_int_equal(p.floor, floor); /* what it would take */
            assert_int_equal(p.budget, r.budget);
        }
        r.budget = floor;
        p = plan_of(&f[i], &r);
        assert_true(p.fits);
        assert_int_equal(p.scratch_rows, p.scratch);
        assert_true(i ? p.rows == ROWS_MIN : p.rows >= ROWS_MIN); /* a mini model's cost nothing */
        assert_int_equal(p.frames, 2 * f[i].hp.top_k);
        r.budget = UINT64_MAX / 2; /* more than there is to buy */
        p = plan_of(&f[i], &r);
        assert_int_equal(p.rows, 512);
        assert_int_equal(p.frames, (f[i].hp.n_layers - f[i].hp.first_dense) * f[i].hp.n_experts);
    }
}

static void at_the_floor_a_model_with_few_experts_has_them_all(void **state)
{
    struct facts f = mini();
    struct plan_request r = request(0, 0);
    struct plan p;

    (void)state;
    f.hp.n_experts = 3; /* three in all, where twice three would be six */
    f.hp.top_k = 3;
    f.hp.first_dense = 2;
    p = plan_of(&f, &r);
    assert_int_equal(p.all_experts, 3 * f.record.bytes);
    assert_int_equal(p.cache_min, p.all_experts);
    assert_int_equal(p.frames, 3);
}

static void a_model_without_experts_has_no_frames(void **state)
{
    json_t *c = parsed(kimi_linear);
    struct plan_request r = request(0, 64ull << 30);
    struct facts f;
    struct plan p;

    (void)state;
    json_object_set_new(c, "num_experts", json_integer(0));
    f = facts_from(c);
    p = plan_of(&f, &r);
    assert_int_equal(p.frames, 0);
    assert_int_equal(p.cache_min, 0);
    assert_int_equal(p.working_set, 0);
    assert_int_equal(p.all_experts, 0);
    assert_true(p.fits);
    assert_int_equal(p.floor, p.trunk + p.state + p.scratch);
}

/* More budget never gives smaller passes, nor, with passes of one size, fewer frames; and of what
 * is above the floor, at least half is frames. All of it stays inside the budget. */
static void more_budget_buys_more(void **state)
{
    struct facts f[N_FACTS];

    (void)state;
    some_facts(f);
    for (unsigned i = 0; i < N_FACTS; i++) {
        struct plan_request r = request(0, 0);
        struct plan least = plan_of(&f[i], &r), before = least;
        uint64_t record = f[i].record.bytes, all = least.all_experts / record;
        uint64_t step = record / 3 + 4097, n = 0;

        for (uint64_t extra = 0; n < 4000; n++, extra += step + extra / 64) {
            struct plan p;
            uint64_t left = extra, used;

            r.budget = least.floor + extra;
            p = plan_of(&f[i], &r);
            assert_true(p.fits);
            assert_true(p.rows == 64 || p.rows == 128 || p.rows == 256 || p.rows == 512);
            assert_true(p.rows >= before.rows);
            if (p.rows == before.rows)
                assert_true(p.frames >= before.frames);
            assert_true(p.frames <= all);
            assert_true((p.frames + 1) * record > p.cache_min + left / 2 || p.frames == all);
            used = p.trunk + p.state + p.scratch_rows + p.frames * record;
            assert_true(used <= p.budget);
            if (p.frames < all) /* nothing is left over but a part of a frame */
                assert_true(p.budget - used < record);
            assert_true(p.scratch_rows - p.scratch <= left / 2);
            assert_int_equal(p.floor, least.floor);
            before = p;
            if (extra > 2 * least.all_experts + (8ull << 30))
                break;
        }
        assert_int_equal(before.rows, 512);
        assert_int_equal(before.frames, all);
    }
}

static void a_large_budget_gives_the_rows_that_were_asked_for(void **state)
{
    static const struct {
        unsigned max, floor, most;
    } c[] = {{1, 1, 1},      {7, 7, 7},      {63, 63, 63},   {64, 64, 64},     {100, 64, 100},
             {128, 64, 128}, {300, 64, 300}, {512, 64, 512}, {1023, 64, 1023}, {4096, 64, 4096}};
    struct facts f = facts_from(parsed(kimi_linear));

    (void)state;
    for (unsigned i = 0; i < sizeof(c) / sizeof(*c); i++) {
        struct plan_request r = request(0, 0);

        r.rows_max = c[i].max;
        assert_int_equal(plan_of(&f, &r).rows, c[i].floor);
        r.budget = 1ull << 40;
        assert_int_equal(plan_of(&f, &r).rows, c[i].most);
    }
}

static uint64_t min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The largest of floor + 3, 2, 1 working sets that is at most three quarters of what is usable. */
static void the_chosen_budget_is_the_largest_step_under_three_quarters(void **state)
{
    struct facts f[N_FACTS];

    (void)state;
    some_facts(f);
    for (unsigned i = 0; i < N_FACTS; i++) {
        struct plan_request r = request(0, 0);
        struct plan least = plan_of(&f[i], &r);
        uint64_t top = (least.floor + 4 * least.working_set) / 3 * 4;
        unsigned seen[4] = {0};

        for (uint64_t usable = 0; usable <= top; usable += top / 5000) {
            uint64_t want = least.floor;
            unsigned sets = 0;
            struct plan p;

            for (unsigned k = 1; k <= 3; k++)
                if (least.floor + min(k * least.working_set, least.all_experts) <= usable / 4 * 3) {
                    want = least.floor + min(k * least.working_set, least.all_experts);
                    sets = k;
                }
            seen[sets]++;
            r.usable = usable;
            p = plan_of(&f[i], &r);
            assert_int_equal(p.budget, want);
            assert_true(p.chosen);
            assert_true(p.fits == (!usable || least.floor <= usable)); /* 0: nobody knows */
            r.budget = want; /* the same budget, given by hand, buys the same */
            if (p.fits) {
                assert_int_equal(plan_of(&f[i], &r).frames, p.frames);
                assert_int_equal(plan_of(&f[i], &r).rows, p.rows);
            }
            r.budget = 0;
        }
        assert_true(seen[0] && seen[3]);
        if (3 * least.working_set <= least.all_experts)
            assert_true(seen[1] && seen[2]);
        { /* exactly at the step, and below it */
            uint64_t at = (least.floor + min(least.working_set, least.all_experts) + 2) / 3 * 4 + 4;

            r.usable = at;
            assert_int_equal(plan_of(&f[i], &r).budget, least.floor + least.working_set);
            r.usable = at - 16;
            assert_int_equal(plan_of(&f[i], &r).budget, least.floor);
        }
    }
}

static void more_threads_rows_sessions_and_positions_cost_more(void **state)
{
    struct facts f[N_FACTS];

    (void)state;
    some_facts(f);
    for (unsigned i = 0; i < N_FACTS; i++) {
        struct plan_request r = request(0, 0), more;
        struct plan a = plan_of(&f[i], &r);

        more = r;
        more.threads = 16;
        assert_true(plan_of(&f[i], &more).scratch > a.scratch);
        more = r;
        more.sessions = 2;
        assert_true(plan_of(&f[i], &more).state == 2 * a.state);
        more = r;
        more.ctx = 8192;
        assert_true(plan_of(&f[i], &more).state > a.state);
        more = r;
        more.budget = 4ull << 40;
        assert_true(plan_of(&f[i], &more).scratch_rows >= a.scratch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kimi_linear_has_its_published_sizes),
        cmocka_unit_test(k3_has_its_published_sizes),
        cmocka_unit_test(deepseek_and_k2_are_as_large_as_published),
        cmocka_unit_test(a_configuration_that_is_none_is_refused),
        cmocka_unit_test(a_plan_before_the_download_is_the_plan_after_it),
        cmocka_unit_test(the_floor_is_the_sum_of_its_parts),
        cmocka_unit_test(state_is_what_a_session_keeps),
        cmocka_unit_test(a_budget_below_the_floor_does_not_fit),
        cmocka_unit_test(at_the_floor_a_model_with_few_experts_has_them_all),
        cmocka_unit_test(a_model_without_experts_has_no_frames),
        cmocka_unit_test(more_budget_buys_more),
        cmocka_unit_test(a_large_budget_gives_the_rows_that_were_asked_for),
        cmocka_unit_test(the_chosen_budget_is_the_largest_step_under_three_quarters),
        cmocka_unit_test(more_threads_rows_sessions_and_positions_cost_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
