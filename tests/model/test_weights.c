/* test_weights.c - every tensor a model needs is there, has its shape and class, or is refused by
 * name; what it does not need is let be. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "expertfs/format.h"
#include "model/context.h"
#include "model/vision_shape.h"
#include "tests/model/models.h"
#include "tests/support/tiny_container.h"

enum { TAIL = 1 << 17 }; /* room behind the mini container's trunk for tensors that grew */

/* A mini container in a directory of its own, with that room. */
static int set_up(void **state)
{
    char *dir = malloc(512);
    uint8_t *trunk;
    size_t n;

    tiny_dir(dir, 512);
    tiny_write(dir, TINY_VQ3R);
    trunk = tiny_file_read(dir, "trunk.bin", &n);
    assert_int_equal(n, TINY_TRUNK_BYTES);
    trunk = realloc(trunk, TINY_TRUNK_BYTES + TAIL);
    memset(trunk + TINY_TRUNK_BYTES, 0, TAIL);
    tiny_file_write(dir, "trunk.bin", trunk, TINY_TRUNK_BYTES + TAIL);
    free(trunk);
    *state = dir;
    return 0;
}

static int tear_down(void **state)
{
    tiny_remove(*state);
    free(*state);
    return 0;
}

/* As waste_open begins: hyperparameters, then every tensor by name. */
static int bind_at(const char *dir, struct err *e)
{
    static struct model m;
    struct container *c = NULL;
    struct trunk *trunk = NULL;
    struct container_options o = {.direct = false};

    memset(&m, 0, sizeof(m));
    e->code = 0;
    if (!container_open(&c, dir, &o, e) && !hparams_read(&m.hp, container_manifest(c)->config, e) &&
        !trunk_open(&trunk, c, e))
        weights_bind(&m, c, trunk, e);
    trunk_close(trunk);
    container_close(c);
    return e->code;
}

static void accepted(const char *dir, const json_t *manifest, const char *what)
{
    struct err e;

    tiny_manifest_write(dir, manifest);
    if (bind_at(dir, &e))
        fail_msg("%s: %s", what, e.text);
}

static void refused(const char *dir, const json_t *manifest, const char *what, const char *says)
{
    struct err e;

    tiny_manifest_write(dir, manifest);
    if (!bind_at(dir, &e))
        fail_msg("%s was accepted", what);
    if (e.code != ERR_FORMAT || !strstr(e.text, says))
        fail_msg("%s: code %d, \"%s\" does not say \"%s\"", what, e.code, e.text, says);
}

/* ---- tensors, changed ---- */

struct tensor_entry {
    char name[96];
    int fmt;
    unsigned rank, dim[4];
};

static json_t *entry_at(const json_t *manifest, size_t i)
{
    return json_array_get(json_object_get(manifest, "trunk"), i);
}

static struct tensor_entry read_entry(const json_t *manifest, size_t i)
{
    const json_t *j = entry_at(manifest, i), *shape = json_object_get(j, "shape");
    struct tensor_entry t = {.fmt = (int)json_integer_value(json_object_get(j, "fmt")),
                             .rank = (unsigned)json_array_size(shape)};

    snprintf(t.name, sizeof(t.name), "%s", json_string_value(json_object_get(j, "name")));
    for (unsigned d = 0; d < t.rank; d++)
        t.dim[d] = (unsigned)json_integer_value(json_array_get(shape, d));
    return t;
}

/* The entry as t says, consistent in itself, its bytes in the room behind the others. */
static json_t *new_entry(const struct tensor_entry *t)
{
    json_t *shape = json_array(), *j;
    json_int_t rows = 1, cols = t->dim[t->rank - 1], groups = (cols + 127) / 128, payload;

    for (unsigned d = 0; d < t->rank; d++) {
        rows *= d + 1 < t->rank ? t->dim[d] : 1;
        json_array_append_new(shape, json_integer(t->dim[d]));
    }
    payload = rows * (t->fmt == FMT_F32   ? 4 * cols
                      : t->fmt == FMT_Q8G ? 128 * groups
                      : t->fmt == FMT_Q4G ? 64 * groups
                                          : 48 * groups + 1);
    j = json_pack("{s:s s:i s:I s:o s:I}", "name", t->name, "fmt", t->fmt, "off",
                  (json_int_t)TINY_TRUNK_BYTES, "shape", shape, "bytes",
                  payload + (t->fmt == FMT_F32 ? 0 : 2 * rows * groups));
    if (t->fmt != FMT_F32) {
        json_object_set_new(j, "group", json_integer(128));
        json_object_set_new(j, "scale_off", json_integer(TINY_TRUNK_BYTES + payload));
    }
    return j;
}

static json_t *with_entry(size_t i, const struct tensor_entry *t)
{
    json_t *manifest = tiny_manifest(TINY_VQ3R);

    json_array_set_new(json_object_get(manifest, "trunk"), i, new_entry(t));
    return manifest;
}

static bool part_of(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static bool may_be_longer(const char *name) /* class A */
{
    return part_of(name, "_conv1d.weight") || part_of(name, "A_log") || part_of(name, "dt_bias");
}

static bool is_vector(const char *name)
{
    return part_of(name, "norm") || part_of(name, "e_score_correction_bias") || may_be_longer(name);
}

static void every_tensor_that_is_missing_is_named(void **state)
{
    const char *dir = *state;

    for (size_t i = 0; i < TINY_TENSORS; i++) {
        json_t *manifest = tiny_manifest(TINY_VQ3R);
        struct tensor_entry t = read_entry(manifest, i);
        char want[160];

        json_array_remove(json_object_get(manifest, "trunk"), i);
        snprintf(want, sizeof(want), "trunk: tensor \"%s\" is needed by this model but not listed",
                 t.name);
        if (part_of(t.name, "e_score_correction_bias"))
            accepted(dir, manifest, t.name); /* absent: zeros */
        else
            refused(dir, manifest, t.name, want);
        json_decref(manifest);
    }
}

/* One row or element less, and one more, in each dimension. */
static void every_tensor_of_another_shape_is_named(void **state)
{
    const char *dir = *state;
    json_t *golden = tiny_manifest(TINY_VQ3R);

    for (size_t i = 0; i < TINY_TENSORS; i++) {
        struct tensor_entry good = read_entry(golden, i);

        for (unsigned d = 0; d < good.rank; d++)
            for (int more = -1; more <= 1; more++) {
                struct tensor_entry t = good;
                json_t *manifest;
                char what[200], want[200];

                t.dim[d] = (unsigned)((int)t.dim[d] + more);
                if (!t.dim[d])
                    continue;
                snprintf(what, sizeof(what), "%s, dimension %u %+d", t.name, d, more);
                if (is_vector(t.name))
                    snprintf(want, sizeof(want), "\"%s\" is [%u", t.name, t.dim[0]);
                else
                    snprintf(want, sizeof(want), "\"%s\" is [%u,%u] %s, expected [%u,%u]", t.name,
                             t.dim[0], t.dim[1],
                             t.fmt == FMT_Q8G   ? "Q8G"
                             : t.fmt == FMT_Q4G ? "Q4G"
                                                : "Q3G",
                             good.dim[0], good.dim[1]);
                manifest = with_entry(i, &t);
                if (!more || (more > 0 && may_be_longer(t.name)))
                    accepted(dir, manifest, what);
                else
                    refused(dir, manifest, what, want);
                json_decref(manifest);
            }
    }
    json_decref(golden);
}

static void a_vector_may_have_any_rank_and_a_matrix_only_two(void **state)
{
    const char *dir = *state;
    json_t *golden = tiny_manifest(TINY_VQ3R);

    for (size_t i = 0; i < TINY_TENSORS; i++) {
        struct tensor_entry t = read_entry(golden, i);
        json_t *manifest;

        if (t.rank > 2)
            continue;
        memmove(t.dim + 1, t.dim, t.rank * sizeof(*t.dim));
        t.dim[0] = 1;
        t.rank++; /* [1][...]: the same elements */
        manifest = with_entry(i, &t);
        if (is_vector(t.name))
            accepted(dir, manifest, t.name);
        else
            refused(dir, manifest, t.name, t.name);
        json_decref(manifest);
    }
    json_decref(golden);
}

static void a_matrix_may_have_any_format_and_a_vector_only_floats(void **state)
{
    static const int fmts[] = {FMT_F32, FMT_Q8G, FMT_Q4G, FMT_Q3G};
    const char *dir = *state;
    json_t *golden = tiny_manifest(TINY_VQ3R);

    for (size_t i = 0; i < TINY_TENSORS; i++)
        for (unsigned f = 0; f < 4; f++) {
            struct tensor_entry t = read_entry(golden, i);
            json_t *manifest;

            t.fmt = fmts[f];
            manifest = with_entry(i, &t);
            if (is_vector(t.name) && t.fmt != FMT_F32)
                refused(dir, manifest, t.name, "expected F32 with ");
            else
                accepted(dir, manifest, t.name);
            json_decref(manifest);
        }
    json_decref(golden);
}

/* ---- rules T11 and T12 ---- */

static size_t index_of(const json_t *manifest, const char *name)
{
    for (size_t i = 0; i < TINY_TENSORS; i++)
        if (!strcmp(read_entry(manifest, i).name, name))
            return i;
    fail_msg("no tensor %s", name);
    return 0;
}

static void a_routing_bias_that_is_too_short_is_refused(void **state)
{
    static const char *const name = "model.layers.2.block_sparse_moe.gate.e_score_correction_bias";
    const char *dir = *state;
    json_t *golden = tiny_manifest(TINY_VQ3R);
    size_t i = index_of(golden, name);

    for (unsigned n = 1; n <= 5; n++) {
        struct tensor_entry t = read_entry(golden, i);
        json_t *manifest;
        char want[200];

        t.dim[0] = n;
        manifest = with_entry(i, &t);
        snprintf(want, sizeof(want), "\"%s\" is [%u] F32, expected F32 with 4 elements", name, n);
        if (n == 4)
            accepted(dir, manifest, "four of four");
        else
            refused(dir, manifest, "a bias of another length", want);
        json_decref(manifest);
    }
    json_decref(golden);
}

static void a_router_on_a_dense_layer_is_refused(void **state)
{
    struct tensor_entry t = {"model.layers.0.block_sparse_moe.gate.weight", FMT_F32, 2, {4, 136}};
    json_t *manifest = tiny_manifest(TINY_VQ3R);

    json_array_append_new(json_object_get(manifest, "trunk"), new_entry(&t));
    refused(*state, manifest, "a stray router", "layer 0: router present but layer is dense");
    json_decref(manifest);
}

static void a_layer_of_experts_needs_its_router(void **state)
{
    static const char *const name = "model.layers.1.block_sparse_moe.gate.weight";
    json_t *manifest = tiny_manifest(TINY_VQ3R);

    json_array_remove(json_object_get(manifest, "trunk"), index_of(manifest, name));
    refused(*state, manifest, "no router", name);
    json_decref(manifest);
}

/* A configuration that asks for more than the trunk has: named by the tensor. */
static void what_only_the_configuration_asks_for_is_missed(void **state)
{
    static const struct {
        const char *path, *value, *says;
    } c[] = {
        {"config.mla_use_output_gate", "true", "model.layers.2.self_attn.g_proj.weight"},
        {"config.q_lora_rank", "8", "model.layers.2.self_attn.q_a_proj.weight"},
        {"config.linear_attn_config.use_full_rank_gate", "true",
         "model.layers.0.self_attn.g_proj.weight"},
        {"config.attn_res_block_size", "2", "model.output_attn_res_norm.weight"},
        {"config.vocab_size", "65", "\"model.embed_tokens.weight\" is [64,136] Q8G, expected [65,"},
        {"config.num_shared_experts", "2", "shared_experts.gate_proj.weight\" is [72,136]"},
        {"config.intermediate_size", "161", "\"model.layers.0.mlp.gate_proj.weight\" is [160,136]"},
        {"config.linear_attn_config.short_conv_kernel_size", "5", "self_attn.q_conv1d.weight"},
        {"config.linear_attn_config.num_heads", "3", "self_attn.q_proj.weight"},
        {"config.num_attention_heads", "3", "model.layers.2.self_attn.q_proj.weight"},
        {"tensor_prefix", "\"language_model.\"",
         "tensor \"language_model.model.embed_tokens.weight\" is needed"},
    };

    for (unsigned i = 0; i < sizeof(c) / sizeof(*c); i++) {
        json_t *manifest = tiny_manifest(TINY_VQ3R);

        tiny_set(manifest, c[i].path, c[i].value);
        refused(*state, manifest, c[i].path, c[i].says);
        json_decref(manifest);
    }
}

/* ---- tensors nobody asked for ---- */

static void feed_four(const char *dir, float *logits, uint64_t *used)
{
    static const int32_t ids[] = {3, 7, 11, 5};
    struct setup s = {0};
    waste_ctx *ctx = model_open(dir, &s);

    memcpy(logits, model_feed(ctx, ids, 4, 4), 64 * sizeof(*logits));
    *used = trunk_resident_bytes(ctx->trunk);
    waste_close(ctx);
}

static void extra_tensors_change_nothing_and_take_no_memory(void **state)
{
    static const char *const extra[] = {
        "model.layers.1.self_attn.q_proj.weight_scale_inv",
        "model.layers.3.block_sparse_moe.gate.weight", /* a prediction layer beyond the last */
        "vision_tower.encoder.blocks.0.wqkv.weight",
        "a",
    };
    const char *dir = *state;
    float want[64], got[64];
    uint64_t before, after;

    feed_four(dir, want, &before);
    for (unsigned i = 0; i < 4; i++) {
        struct tensor_entry t = {"", FMT_Q4G, 2, {40, 136}};
        json_t *manifest = tiny_manifest(TINY_VQ3R);

        snprintf(t.name, sizeof(t.name), "%s", extra[i]);
        json_array_append_new(json_object_get(manifest, "trunk"), new_entry(&t));
        accepted(dir, manifest, extra[i]);
        feed_four(dir, got, &after);
        assert_memory_equal(got, want, sizeof(want));
        assert_int_equal(after, before);
        json_decref(manifest);
    }
}

/* ---- the list against four families ---- */

static const char *const family[] = {"kimi-linear", "k3", "deepseek", "k2"};

#ifndef GOLDEN_DIR
#define GOLDEN_DIR "tests/golden"
#endif

static int count_one(const struct weight *w, void *arg, struct err *e)
{
    const struct manifest *m = ((void **)arg)[0];
    unsigned *n = ((void **)arg)[1];

    (void)e;
    assert_null(w->tensor); /* there is no model to fill */
    assert_null(w->vector);
    assert_non_null(manifest_tensor(m, w->name));
    *n += 1;
    return 0;
}

/* The list asks for each tensor that a family's containers have, once, and for no other. */
static void the_list_is_what_containers_hold(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct container_options o = {.direct = false};
        struct container *c;
        struct hparams hp;
        unsigned n = 0;
        struct err e;
        char dir[600];
        void *arg[2];

        snprintf(dir, sizeof(dir), "%s/%s.waste", GOLDEN_DIR, family[i]);
        if (container_open(&c, dir, &o, &e) || hparams_read(&hp, container_manifest(c)->config, &e))
            fail_msg("%s", e.text);
        arg[0] = (void *)(uintptr_t)container_manifest(c);
        arg[1] = &n;
        assert_int_equal(weights_each(&hp, NULL, count_one, arg, &e), 0);
        assert_int_equal(n, container_manifest(c)->n_trunk);
        container_close(c);
    }
}

static void link_all(const char *dir, const char *from, const json_t *manifest)
{
    static const char *const files[] = {"trunk.bin", "codebooks.bin"};
    char *real = realpath(from, NULL), a[900], b[900];
    const char *layer;
    json_t *bank;

    assert_non_null(real);
    for (unsigned i = 0; i < 2; i++) {
        snprintf(a, sizeof(a), "%.500s/%s", real, files[i]);
        snprintf(b, sizeof(b), "%s/%s", dir, files[i]);
        assert_int_equal(symlink(a, b), 0);
    }
    json_object_foreach(json_object_get(manifest, "layers"), layer, bank)
    {
        const char *file = json_string_value(json_object_get(bank, "file"));

        snprintf(a, sizeof(a), "%.500s/%.100s", real, file);
        snprintf(b, sizeof(b), "%s/%.100s", dir, file);
        assert_int_equal(symlink(a, b), 0);
    }
    free(real);
}

static void no_family_can_do_without_any_of_its_tensors(void **state)
{
    (void)state;
    for (unsigned f = 0; f < 4; f++) {
        char from[600], dir[512];
        size_t bytes, n;
        char *text;
        json_t *whole;

        snprintf(from, sizeof(from), "%s/%s.waste", GOLDEN_DIR, family[f]);
        text = (char *)tiny_file_read(from, "manifest.json", &bytes);
        whole = json_loadb(text, bytes, 0, NULL);
        assert_non_null(whole);
        free(text);
        tiny_dir(dir, sizeof(dir));
        link_all(dir, from, whole);
        accepted(dir, whole, family[f]);
        n = json_array_size(json_object_get(whole, "trunk"));
        for (size_t i = 0; i < n; i++) {
            json_t *manifest = json_deep_copy(whole);
            struct tensor_entry t = read_entry(manifest, i);

            json_array_remove(json_object_get(manifest, "trunk"), i);
            if (part_of(t.name, "e_score_correction_bias"))
                accepted(dir, manifest, t.name);
            else
                refused(dir, manifest, t.name, t.name);
            json_decref(manifest);
        }
        json_decref(whole);
        tiny_remove(dir);
    }
}

/* A missing bias is a bias of zeros, to the bit. */
static void a_missing_bias_is_zeros(void **state)
{
    static const char *const name[] = {
        "model.layers.1.block_sparse_moe.gate.e_score_correction_bias",
        "model.layers.2.block_sparse_moe.gate.e_score_correction_bias"};
    const char *dir = *state;
    json_t *zeros = tiny_manifest(TINY_VQ3R), *none = tiny_manifest(TINY_VQ3R);
    float want[64], got[64];
    uint64_t used;

    for (unsigned i = 0; i < 2; i++) {
        size_t at = index_of(zeros, name[i]);
        struct tensor_entry t = read_entry(zeros, at);
        json_t *j = new_entry(&t);

        json_object_set_new(j, "off", json_integer(TINY_TRUNK_BYTES + 64 * (int)i));
        json_array_set_new(json_object_get(zeros, "trunk"), at, j);
        json_array_remove(json_object_get(none, "trunk"), index_of(none, name[i]));
    }
    tiny_manifest_write(dir, zeros);
    feed_four(dir, want, &used);
    tiny_manifest_write(dir, none);
    feed_four(dir, got, &used);
    assert_memory_equal(got, want, sizeof(want));
    json_decref(zeros);
    json_decref(none);
}

/* Of a container: absent is a text model's, a link to what is not mounted is no absence. */
static void a_missing_drive_is_no_text_model(void **state)
{
    char dir[] = "/tmp/waste-test-weights-XXXXXX";
    static const struct manifest none;
    struct vision_shape shape;
    struct err e;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(dir));
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(vision_shape_read(&shape, &none, fd, &e), ERR_UNSUPPORTED);
    assert_int_equal(symlinkat("away", fd, "vision.json"), 0);
    assert_int_equal(vision_shape_read(&shape, &none, fd, &e), ERR_IO);
    assert_non_null(strstr(e.text, "vision.json: a link to what is not there"));
    assert_int_equal(unlinkat(fd, "vision.json", 0), 0);
    close(fd);
    rmdir(dir);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(every_tensor_that_is_missing_is_named),
        T(every_tensor_of_another_shape_is_named),
        T(a_vector_may_have_any_rank_and_a_matrix_only_two),
        T(a_matrix_may_have_any_format_and_a_vector_only_floats),
        T(a_routing_bias_that_is_too_short_is_refused),
        T(a_router_on_a_dense_layer_is_refused),
        T(a_layer_of_experts_needs_its_router),
        T(what_only_the_configuration_asks_for_is_missed),
        T(extra_tensors_change_nothing_and_take_no_memory),
        cmocka_unit_test(the_list_is_what_containers_hold),
        cmocka_unit_test(no_family_can_do_without_any_of_its_tensors),
        T(a_missing_bias_is_zeros),
        cmocka_unit_test(a_missing_drive_is_no_text_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
