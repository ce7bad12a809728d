/* Every validation rule and every known damaged file of the format, by its id: what is wrong must
 * be refused with that code and a message that names the thing. The rules about the arithmetic (F2,
 * F4, F5, F7, F9, T10-T12, T15) are the model's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/codebook.h"
#include "expertfs/source.h"
#include "expertfs/trunk.h"
#include "tests/support/tiny_container.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { BANK = 81920, REC = TINY_RECORD_BYTES, CODEBOOK = 4112 };

static int load_trunk(const struct container *c, struct err *e)
{
    const struct manifest *m = container_manifest(c);
    struct trunk *t;

    if (trunk_open(&t, c, e))
        return e->code;
    for (unsigned i = 0; i < m->n_trunk; i++)
        trunk_want(t, &m->trunk[i]);
    trunk_load(t, NULL, NULL, e);
    trunk_close(t);
    return e->code;
}

/* Open and read all there is, in the order in which a model does; the first error. */
static int read_all(const char *dir, bool verify, struct err *e)
{
    static const struct container_options o = {.direct = false};
    struct expert_source *s;
    struct codebooks *cb;
    struct container *c;

    *e = (struct err){0};
    if (container_open(&c, dir, &o, e))
        return e->code;
    if (!codebooks_open(&cb, c, NULL, e)) {
        codebooks_close(cb);
        if (!load_trunk(c, e) && !source_mem_open(&s, c, NULL, verify, e))
            s->ops->close(s);
    }
    container_close(c);
    return e->code;
}

static void assert_refused(const char *dir, const char *rule, int code, const char *fragment)
{
    struct err e;

    if (read_all(dir, true, &e) != code || !strstr(e.text, fragment))
        fail_msg("%s: wanted %d \"%s\", got %d \"%s\"", rule, code, fragment, e.code, e.text);
}

static void assert_opens(const char *dir, const char *rule, bool verify)
{
    struct err e;

    if (read_all(dir, verify, &e))
        fail_msg("%s: %s", rule, e.text);
}

/* Rules J1 and J2, and a conversion that was interrupted. */
static void what_is_no_manifest_is_refused(void **state)
{
    const char *dir = *state;
    char path[300];

    assert_refused("/nonexistent/x.waste", "J1", ERR_IO,
                   "/nonexistent/x.waste: no manifest.json (not a .waste container?)");
    snprintf(path, sizeof(path), "%s/trunk.bin", dir);
    assert_refused(path, "J1", ERR_IO, "trunk.bin: no manifest.json");
    tiny_file_write(dir, "manifest.json", "", 0);
    assert_refused(dir, "J2", ERR_FORMAT, "manifest.json: it is empty (an incomplete copy?)");
    snprintf(path, sizeof(path), "%s/manifest.json", dir);
    assert_int_equal(truncate(path, (64 << 20) + 1), 0);
    assert_refused(dir, "J2", ERR_LIMIT, "manifest.json: 67108865 bytes, it may have 67108864");
    assert_int_equal(unlink(path), 0);
    assert_refused(dir, "J1", ERR_IO, "no manifest.json (not a .waste container?)");
    tiny_file_write(dir, "trunk.bin.tmp", "x", 1);
    assert_refused(dir, "interrupted", ERR_IO,
                   "no manifest.json (an unfinished conversion? run the conversion again");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused(dir, "J2", ERR_IO, "manifest.json: not a regular file");
}

/* Rules J3 to J7, on texts. */
static void what_is_not_the_json_of_this_version_is_refused(void **state)
{
    static const struct {
        const char *rule, *text;
        int code;
        const char *fragment;
    } rows[] = {
        {"J3", "{", ERR_FORMAT, "manifest.json: JSON error at byte 1: "},
        {"J3", "{\"format_version\":0,}", ERR_FORMAT, "manifest.json: JSON error at byte "},
        {"J3", "{\"format_version\":0} x", ERR_FORMAT, "manifest.json: JSON error at byte "},
        {"J3", "{\"a\":\"\xff\"}", ERR_FORMAT, "manifest.json: JSON error at byte "},
        {"J3", "{\"a\":\"\\u0000\"}", ERR_FORMAT, "manifest.json: a NUL character"},
        {"J3", "{\"a\":nul}", ERR_FORMAT, "manifest.json: JSON error at byte "},
        {"J3", "0", ERR_FORMAT, "manifest.json: JSON error at byte "},
        {"J5", "{\"format_version\":1,\"format_version\":0}", ERR_FORMAT,
         "manifest.json: duplicate key \"format_version\""},
        {"J5", "{\"config\":{\"x\":{\"y\":1,\"y\":1}}}", ERR_FORMAT,
         "manifest.json: duplicate key \"y\""},
        {"J6", "{\"a\":NaN}", ERR_FORMAT, "manifest.json: JSON error"},
        {"J6", "{\"a\":Infinity}", ERR_FORMAT, "manifest.json: JSON error"},
        {"J6", "{\"a\":1e400}", ERR_FORMAT, "manifest.json: JSON error"},
        {"J6", "{\"a\":18446744073709551616}", ERR_FORMAT, "manifest.json: JSON error"},
        {"J6", "{\"a\":1000000000000000000000000000000000000000000000000000000000000000000}",
         ERR_FORMAT, "manifest.json: JSON error at byte 68: number of more than 63"},
        {"J7", "{}", ERR_FORMAT, "manifest.json: format_version is absent"},
        {"J7", "{\"format_version\":1}", ERR_FORMAT,
         "unsupported container format version 1; only 0 is known"},
        {"J7", "{\"format_version\":-1}", ERR_FORMAT,
         "unsupported container format version -1; only 0 is known"},
        {"J7", "{\"format_version\":0.5}", ERR_FORMAT,
         "unsupported container format version 0.5; only 0 is known"},
        {"J7", "{\"format_version\":\"0\"}", ERR_FORMAT,
         "unsupported container format version \"0\"; only 0 is known"},
        {"J7", "{\"format_version\":null}", ERR_FORMAT,
         "unsupported container format version null; only 0 is known"},
        {"J7", "{\"format_version\":false}", ERR_FORMAT,
         "unsupported container format version false; only 0 is known"},
        {"J7", "{\"format_version\":[]}", ERR_FORMAT,
         "unsupported container format version []; only 0 is known"},
        {"J8", "[]", ERR_FORMAT, "manifest.json: the root must be an object"},
        {"J8", "{\"format_version\":0}", ERR_FORMAT, "manifest.json: config is absent"},
    };
    static const char nul[] = "{\"format_version\":0}\0";
    const char *dir = *state;
    char *deep = malloc(200000);

    for (size_t i = 0; i < N_ELEMS(rows); i++) {
        tiny_file_write(dir, "manifest.json", rows[i].text, strlen(rows[i].text));
        assert_refused(dir, rows[i].rule, rows[i].code, rows[i].fragment);
    }
    tiny_file_write(dir, "manifest.json", nul, sizeof(nul) - 1);
    assert_refused(dir, "J3", ERR_FORMAT, "manifest.json: JSON error at byte 20: NUL byte");
    memset(deep, '[', 100000);
    memset(deep + 100000, ']', 100000);
    tiny_file_write(dir, "manifest.json", deep, 200000);
    assert_refused(dir, "J4", ERR_LIMIT, "manifest.json: nested deeper than 64 at byte 65");
    free(deep);
}

struct row { /* the golden manifest with one value replaced, or taken away */
    const char *rule, *path, *json;
    int code;
    const char *fragment;
};

static void assert_rows(const char *dir, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_t *root = tiny_manifest(TINY_VQ3R);
        char rule[160];

        tiny_set(root, rows[i].path, rows[i].json);
        tiny_manifest_write(dir, root);
        json_decref(root);
        snprintf(rule, sizeof(rule), "%s, %s = %.60s", rows[i].rule, rows[i].path,
                 rows[i].json ? rows[i].json : "(absent)");
        assert_refused(dir, rule, rows[i].code, rows[i].fragment);
    }
    tiny_write(dir, TINY_VQ3R);
    assert_opens(dir, "golden", true);
}

static void a_key_of_the_wrong_type_is_refused(void **state)
{
    static const struct row rows[] = {
        {"J6", "config.hidden_size", "136.5", ERR_FORMAT,
         "manifest.json: config.hidden_size: \"136.5\" is not an integer"},
        {"J6", "config.hidden_size", "9007199254740993", ERR_FORMAT,
         "manifest.json: config.hidden_size: \"9007199254740993\" is not an integer"},
        {"J6", "config.hidden_size", "1e300", ERR_FORMAT, "is not an integer"},
        {"J6", "layers.1.bytes", "81920.25", ERR_FORMAT,
         "manifest.json: layers.1.bytes: \"81920.25\" is not an integer"},
        {"J8", "config", "[]", ERR_FORMAT, "manifest.json: config must be an object"},
        {"J8", "config.text_config", "1", ERR_FORMAT, "config.text_config must be an object"},
        {"J8", "config._outer", "\"x\"", ERR_FORMAT, "config._outer must be an object"},
        {"J8", "config.hidden_size", "\"136\"", ERR_FORMAT,
         "manifest.json: config.hidden_size must be an integer"},
        {"J8", "config.num_experts", "true", ERR_FORMAT, "config.num_experts must be an integer"},
        {"J8", "config.architectures", "\"Kimi\"", ERR_FORMAT,
         "config.architectures must be an array"},
        {"J8", "config.architectures", "[7]", ERR_FORMAT, "config.architectures must hold strings"},
        {"J8", "tensor_prefix", "3", ERR_FORMAT, "manifest.json: tensor_prefix must be a string"},
        {"J8", "expert_quant", "[]", ERR_FORMAT, "expert_quant must be an object"},
        {"J8", "expert_quant.stages", "\"3\"", ERR_FORMAT,
         "expert_quant.stages must be an integer"},
        {"J8", "layers", "[]", ERR_FORMAT, "manifest.json: layers must be an object"},
        {"J8", "layers.1", "7", ERR_FORMAT, "manifest.json: layers.1 must be an object"},
        {"J8", "layers.1.file", "7", ERR_FORMAT, "layers.1.file must be a string"},
        {"J8", "layers.1.file", NULL, ERR_FORMAT, "layers.1.file is absent"},
        {"J8", "layers.1.experts", "\"4\"", ERR_FORMAT, "layers.1.experts must be an integer"},
        {"J8", "layers.1.bytes", NULL, ERR_FORMAT, "layers.1.bytes is absent"},
        {"J8", "layers.1.codebook_base", "null", ERR_FORMAT, "layers.1.codebook_base is absent"},
        {"J8", "trunk", "{}", ERR_FORMAT, "manifest.json: trunk must be an array"},
        {"J8", "trunk.3", "7", ERR_FORMAT, "manifest.json: trunk[3] must be an object"},
        {"J8", "trunk.3.off", "\"0\"", ERR_FORMAT, "trunk[3].off must be an integer"},
        {"J8", "trunk.3.off", NULL, ERR_FORMAT, "trunk[3].off is absent"},
        {"J8", "trunk.3.fmt", NULL, ERR_FORMAT, "trunk[3].fmt is absent"},
        {"J8", "trunk.3.bytes", NULL, ERR_FORMAT, "trunk[3].bytes is absent"},
        {"J8", "trunk.3.shape", NULL, ERR_FORMAT, "trunk[3].shape is absent"},
        {"J8", "trunk.3.shape", "64", ERR_FORMAT, "trunk[3].shape must be an array"},
        {"J8", "trunk.3.shape", "[\"64\"]", ERR_FORMAT, "trunk[3].shape must be an array of int"},
        {"J8", "trunk.0.scale_off", NULL, ERR_FORMAT, "trunk[0].scale_off is absent"},
    };

    assert_rows(*state, rows, N_ELEMS(rows));
}

static void a_configuration_that_sizes_nothing_sane_is_refused(void **state)
{
    static const struct row rows[] = {
        {"F1", "config.num_hidden_layers", "0", ERR_FORMAT,
         "config.num_hidden_layers = 0 is out of range 1...128"},
        {"F1", "config.num_hidden_layers", "129", ERR_FORMAT,
         "config.num_hidden_layers = 129 is out of range 1...128"},
        {"F1", "config.num_hidden_layers", NULL, ERR_FORMAT,
         "config.num_hidden_layers = 0 is out of range 1...128"},
        {"F1", "config.hidden_size", "-1", ERR_FORMAT,
         "config.hidden_size = -1 is out of range 1...1048576"},
        {"F1", "config.hidden_size", "1048577", ERR_FORMAT,
         "config.hidden_size = 1048577 is out of range 1...1048576"},
        {"F1", "config.hidden_size", NULL, ERR_FORMAT,
         "config.hidden_size = 0 is out of range 1...1048576"},
        {"F1", "config.vocab_size", "16777217", ERR_FORMAT,
         "config.vocab_size = 16777217 is out of range 1...16777216"},
        {"F1", "config.vocab_size", "null", ERR_FORMAT, "config.vocab_size = 0 is out of range"},
        {"F1", "config.first_k_dense_replace", "4", ERR_FORMAT,
         "config.first_k_dense_replace = 4 is out of range 0...3"},
        {"F1", "config.moe_intermediate_size", "0", ERR_FORMAT,
         "config.moe_intermediate_size = 0 is out of range 1...1048576"},
        {"F1", "config.moe_intermediate_size", "9007199254740992", ERR_FORMAT,
         "config.moe_intermediate_size = 9007199254740992 is out of range 1...1048576"},
        {"F1", "config.routed_expert_hidden_size", "-8", ERR_FORMAT,
         "config.routed_expert_hidden_size = -8 is out of range 0...1048576"},
        {"F3", "config.num_experts", "65536", ERR_FORMAT,
         "config.num_experts = 65536 is out of range 0...65535"},
        {"F3", "config.num_experts_per_token", "5", ERR_FORMAT,
         "config.num_experts_per_token = 5 is out of range 1...4"},
        {"F3", "config.num_experts_per_token", "0", ERR_FORMAT,
         "config.num_experts_per_token = 0 is out of range 1...4"},
        {"F3", "config.num_experts_per_token", NULL, ERR_FORMAT,
         "config.num_experts_per_token = 0 is out of range 1...4"},
        {"F6", "config.moe_intermediate_size", "1048576", ERR_FORMAT, "record of 20480 bytes"},
        {"F8", "expert_quant.stages", "0", ERR_FORMAT, "expert_quant.stages = 0 is out of range"},
        {"F8", "expert_quant.stages", "9", ERR_FORMAT, "expert_quant.stages = 9 is out of range"},
        {"F8", "expert_quant.entries", "0", ERR_FORMAT, "expert_quant.entries = 0 is out of"},
        {"F8", "expert_quant.entries", "257", ERR_FORMAT, "expert_quant.entries = 257 is out of"},
        {"F8", "expert_quant.vec_dim", "0", ERR_FORMAT, "expert_quant.vec_dim = 0 is out of range"},
        {"F8", "expert_quant.vec_dim", "65", ERR_FORMAT, "expert_quant.vec_dim = 65 is out of"},
        {"F8", "expert_quant.vec_dim", "4", ERR_UNSUPPORTED,
         "expert_quant.vec_dim = 4 is not supported (8 expected)"},
        {"F8", "expert_quant.index_bits", "7", ERR_UNSUPPORTED,
         "expert_quant.index_bits = 7 is not supported"},
        {"F8", "expert_quant.index_bits", "-6", ERR_FORMAT, "expert_quant.index_bits = -6 is out"},
        {"F8", "expert_quant.index_bits", "6", ERR_FORMAT,
         "expert_quant.index_bits = 6 needs 4 stages of 64 entries, not 3 of 256"},
        {"F8", "expert_quant.index_block", NULL, ERR_UNSUPPORTED,
         "expert_quant.index_block = 0 is not supported (64 expected)"},
        {"F8", "expert_quant.index_block", "128", ERR_UNSUPPORTED,
         "expert_quant.index_block = 128 is not supported (64 expected)"},
        {"F8", "expert_quant", NULL, ERR_UNSUPPORTED, "expert_quant.index_block = 0 is not"},
        {"F8", "config.hidden_size", "132", ERR_FORMAT, "132 is not divisible by vec_dim = 8"},
        {"F8", "config.routed_expert_hidden_size", "20", ERR_FORMAT,
         "20 is not divisible by vec_dim = 8"},
        {"F8", "config.moe_intermediate_size", "71", ERR_FORMAT,
         "config.moe_intermediate_size = 71 is not divisible by vec_dim = 8"},
    };
    const char *dir = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);

    assert_rows(dir, rows, N_ELEMS(rows));
    tiny_set(root, "config.moe_intermediate_size", "1048576");
    tiny_set(root, "config.routed_expert_hidden_size", "1048576");
    tiny_manifest_write(dir, root);
    assert_refused(dir, "F6", ERR_LIMIT, "beyond 2^31");
    json_decref(root);
}

#define NAME_255                                                                                   \
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab" \
    "cdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef01234567" \
    "89abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"

/* trunk.0 is lm_head.weight: Q8G [64][136], codes at 0, scales at 16384, 16640 bytes. */
static void a_trunk_directory_that_does_not_add_up_is_refused(void **state)
{
    static const struct row rows[] = {
        {"T0", "trunk", NULL, ERR_FORMAT, "manifest.json: trunk lists no tensor"},
        {"T0", "trunk", "[]", ERR_FORMAT, "manifest.json: trunk lists no tensor"},
        {"T1", "trunk.3.name", NULL, ERR_FORMAT, "trunk[3]: bad name"},
        {"T1", "trunk.3.name", "\"\"", ERR_FORMAT, "trunk[3]: bad name"},
        {"T1", "trunk.3.name", "\"a\\nb\"", ERR_FORMAT, "trunk[3]: bad name"},
        {"T1", "trunk.3.name", "\"\\u007f\"", ERR_FORMAT, "trunk[3]: bad name"},
        {"T1", "trunk.3.name", "\"" NAME_255 "f\"", ERR_FORMAT, "trunk[3]: bad name"},
        {"T2", "trunk.3.name", "\"lm_head.weight\"", ERR_FORMAT,
         "trunk: tensor \"lm_head.weight\" listed twice"},
        {"T3", "trunk.0.fmt", "1", ERR_UNSUPPORTED,
         "trunk: \"lm_head.weight\" has storage format 1 (16-bit floats"},
        {"T3", "trunk.0.fmt", "4", ERR_UNSUPPORTED, "\"lm_head.weight\" has storage format 4"},
        {"T3", "trunk.0.fmt", "6", ERR_UNSUPPORTED, "\"lm_head.weight\" has storage format 6"},
        {"T3", "trunk.0.fmt", "8", ERR_UNSUPPORTED, "\"lm_head.weight\" has storage format 8"},
        {"T3", "trunk.0.fmt", "9", ERR_UNSUPPORTED, "\"lm_head.weight\" has storage format 9"},
        {"T3", "trunk.0.fmt", "-1", ERR_UNSUPPORTED, "\"lm_head.weight\" has storage format -1"},
        {"T3", "trunk.0.fmt", "4294967298", ERR_UNSUPPORTED, "has storage format 4294967298"},
        {"T4", "trunk.0.shape", "[]", ERR_FORMAT,
         "trunk: \"lm_head.weight\" shape [] is impossible for a 236432-byte file"},
        {"T4", "trunk.0.shape", "[1,1,1,1,1]", ERR_FORMAT, "shape [1,1,1,1,1] is impossible"},
        {"T4", "trunk.0.shape", "[64,0]", ERR_FORMAT, "shape [64,0] is impossible for a 236432-"},
        {"T4", "trunk.0.shape", "[-64,136]", ERR_FORMAT, "shape [-64,136] is impossible"},
        {"T4", "trunk.0.shape", "[64.5,136]", ERR_FORMAT, "shape [64.5,136] is impossible"},
        {"T4", "trunk.0.shape", "[67108865,1]", ERR_FORMAT, "shape [67108865,1] is impossible"},
        {"T4", "trunk.0.shape", "[67108864,67108864,67108864,67108864]", ERR_FORMAT,
         "is impossible for a 236432-byte file"},
        {"T4", "trunk.0.shape", "[1891457]", ERR_FORMAT, "shape [1891457] is impossible"},
        {"T5", "trunk.0.group", NULL, ERR_FORMAT, "trunk: \"lm_head.weight\" group 0"},
        {"T5", "trunk.0.group", "0", ERR_FORMAT, "trunk: \"lm_head.weight\" group 0"},
        {"T5", "trunk.0.group", "64", ERR_FORMAT, "trunk: \"lm_head.weight\" group 64"},
        {"T5", "trunk.0.group", "2147483647", ERR_FORMAT, "\"lm_head.weight\" group 2147483647"},
        {"T6", "trunk.0.off", "-1", ERR_FORMAT,
         "trunk.bin: \"lm_head.weight\" needs bytes -1...16383, file has 236432"},
        {"T6", "trunk.0.off", "220049", ERR_FORMAT,
         "trunk.bin: \"lm_head.weight\" needs bytes 220049...236433, file has 236432"},
        {"T6", "trunk.0.off", "9007199254740992", ERR_FORMAT,
         "trunk.bin: \"lm_head.weight\" needs bytes 9007199254740992..."},
        {"T6", "trunk.0.scale_off", "236177", ERR_FORMAT,
         "trunk.bin: \"lm_head.weight\" needs bytes 236177...236433, file has 236432"},
        {"T6", "trunk.0.scale_off", "-2", ERR_FORMAT, "\"lm_head.weight\" needs bytes -2...254"},
        {"T7", "trunk.0.scale_off", "16383", ERR_FORMAT,
         "trunk: \"lm_head.weight\" has its scales inside its payload"},
        {"T7", "trunk.0.scale_off", "0", ERR_FORMAT, "has its scales inside its payload"},
        {"T8", "trunk.0.bytes", "16639", ERR_FORMAT,
         "trunk: \"lm_head.weight\" says 16639 bytes, its shape needs 16640"},
        {"T8", "trunk.0.bytes", "-16640", ERR_FORMAT, "says -16640 bytes, its shape needs 16640"},
        {"T8", "trunk.0.shape", "[65,136]", ERR_FORMAT,
         "trunk: \"lm_head.weight\" says 16640 bytes, its shape needs 16900"},
        {"T8", "trunk.0.fmt", "3", ERR_FORMAT, "says 16640 bytes, its shape needs 8448"},
        {"T9", "trunk.0.off", "1", ERR_FORMAT, "has its scales inside its payload"},
        {"T9", "trunk.0.scale_off", "16385", ERR_FORMAT,
         "trunk: \"lm_head.weight\" and \"model.embed_tokens.weight\" overlap in trunk.bin"},
        {"T9", "trunk.56.off", "5", ERR_FORMAT,
         "trunk: \"lm_head.weight\" and \"model.norm.weight\" overlap in trunk.bin"},
        {"T1", "tensor_prefix", "\"a\\tb\"", ERR_FORMAT, "tensor_prefix is longer than 63 bytes"},
        {"T1", "tensor_prefix", "\"" NAME_255 "\"", ERR_FORMAT, "tensor_prefix is longer than 63"},
    };
    char name[300];
    json_t *root = tiny_manifest(TINY_VQ3R);

    assert_rows(*state, rows, N_ELEMS(rows));
    snprintf(name, sizeof(name), "\"%s\"", NAME_255); /* the longest that is legal */
    tiny_set(root, "trunk.3.name", name);
    tiny_manifest_write(*state, root);
    assert_opens(*state, "T1", true);
    json_decref(root);
}

static void a_list_of_banks_that_does_not_fit_the_model_is_refused(void **state)
{
    static const struct row rows[] = {
        {"B1", "layers", NULL, ERR_FORMAT,
         "layer 1 has no expert bank in the manifest (partial conversion?)"},
        {"B1", "layers.2", NULL, ERR_FORMAT,
         "layer 2 has no expert bank in the manifest (partial conversion?)"},
        {"B1", "layers.2", "null", ERR_FORMAT, "layer 2 has no expert bank in the manifest"},
        {"B1", "layers.0", "{}", ERR_FORMAT, "layer 0 is dense, but has an expert bank"},
        {"B1", "layers.01", "{}", ERR_FORMAT, "layers: \"01\" is not a layer number"},
        {"B1", "layers.-1", "{}", ERR_FORMAT, "layers: \"-1\" is not a layer number"},
        {"B1", "layers.1x", "{}", ERR_FORMAT, "layers: \"1x\" is not a layer number"},
        {"B1", "layers.99999999999999999999", "{}", ERR_FORMAT, "is not a layer number"},
        {"B2", "layers.1.file", "\"../../etc/passwd\"", ERR_FORMAT,
         "layers.1.file \"../../etc/passwd\" is not a file name inside the container"},
        {"B2", "layers.1.file", "\"/etc/passwd\"", ERR_FORMAT, "is not a file name inside the"},
        {"B2", "layers.1.file", "\"\"", ERR_FORMAT, "layers.1.file \"\" is not a file name"},
        {"B2", "layers.1.file", "\".\"", ERR_FORMAT, "is not a file name inside the container"},
        {"B2", "layers.1.file", "\"..\"", ERR_FORMAT, "is not a file name inside the container"},
        {"B2", "layers.1.file", "\".hidden\"", ERR_FORMAT, "is not a file name inside the"},
        {"B2", "layers.1.file", "\"a/b\"", ERR_FORMAT, "is not a file name inside the container"},
        {"B2", "layers.1.file", "\"a\\\\b\"", ERR_FORMAT, "is not a file name inside the"},
        {"B2", "layers.1.file", "\"c:x\"", ERR_FORMAT, "is not a file name inside the container"},
        {"B2", "layers.1.file", "\"a\\nb\"", ERR_FORMAT,
         "layers.1.file \"a?b\" is not a file name inside the container"},
        {"B2", "layers.1.file", "\"" NAME_255 "f\"", ERR_FORMAT, "is not a file name inside the"},
        {"B3", "layers.1.file", "\"experts-L9.bin\"", ERR_IO, "experts-L9.bin: No such file"},
        {"B4", "layers.1.experts", "5", ERR_FORMAT, "layers.1.experts = 5, config.num_experts is"},
        {"B4", "layers.1.bytes", "0", ERR_FORMAT, "layers.1.bytes = 0 is not a whole number of 4"},
        {"B4", "layers.1.bytes", "-81920", ERR_FORMAT, "layers.1.bytes = -81920 is not a whole"},
        {"B4", "layers.1.bytes", "81921", ERR_FORMAT, "layers.1.bytes = 81921 is not a whole"},
        {"B6", "layers.1.bytes", "65536", ERR_FORMAT,
         "experts-L1.bin: record of 16384 bytes, configuration needs 20480"},
        {"B6", "expert_quant.stages", "2", ERR_FORMAT,
         "experts-L1.bin: record of 20480 bytes, configuration needs 16384"},
        {"B7", "layers.2.file", "\"experts-L1.bin\"", ERR_FORMAT,
         "experts-L1.bin: the same file is the bank of layers 1 and 2"},
        {"C6", "layers.1.codebook_base", "-1", ERR_FORMAT,
         "layers.1.codebook_base = -1 is out of range 0...65527"},
        {"C6", "layers.1.codebook_base", "65528", ERR_FORMAT,
         "layers.1.codebook_base = 65528 is out of range 0...65527"},
        {"C6", "layers.2.codebook_base", "10", ERR_FORMAT,
         "layers.2.codebook_base 10 needs 19 records, codebooks.bin has 18"},
        {"C7", "layers.2.codebook_base", "8", ERR_FORMAT,
         "layers.1.codebook_base 0 overlaps layers.2.codebook_base 8"},
        {"C7", "layers.2.codebook_base", "0", ERR_FORMAT, "codebook_base 0 overlaps"},
    };

    assert_rows(*state, rows, N_ELEMS(rows));
}

/* A plain file name is looked up in the container even if it could be found elsewhere. */
static void a_bank_outside_the_container_is_refused_even_if_it_exists(void **state)
{
    const char *dir = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);
    char path[300], json[400];

    snprintf(path, sizeof(path), "%s/experts-L1.bin", dir);
    snprintf(json, sizeof(json), "\"%s\"", path);
    tiny_set(root, "layers.1.file", json);
    tiny_manifest_write(dir, root);
    assert_refused(dir, "B2", ERR_FORMAT, "is not a file name inside the container");
    json_decref(root);
}

struct patch { /* bytes of a file that are overwritten */
    const char *rule, *file;
    uint32_t at, n;
    uint64_t with; /* n bytes of it, little-endian */
    int code;
    const char *fragment;
};

static void assert_patches(const char *dir, const struct patch *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[8], *file, was[8];
        char rule[80];
        size_t size;

        file = tiny_file_read(dir, rows[i].file, &size);
        store_le64(bytes, rows[i].with);
        memcpy(was, file + rows[i].at, rows[i].n);
        memcpy(file + rows[i].at, bytes, rows[i].n);
        tiny_file_write(dir, rows[i].file, file, size);
        snprintf(rule, sizeof(rule), "%s, %s byte %u", rows[i].rule, rows[i].file, rows[i].at);
        assert_refused(dir, rule, rows[i].code, rows[i].fragment);
        memcpy(file + rows[i].at, was, rows[i].n);
        tiny_file_write(dir, rows[i].file, file, size);
        free(file);
    }
    assert_opens(dir, "golden", true);
}

static void a_record_that_is_not_what_was_asked_for_is_refused(void **state)
{
    static const char L1[] = "experts-L1.bin", L2[] = "experts-L2.bin";
    static const struct patch rows[] = {
        {"R2", L1, 2 * REC + REC_MAGIC, 4, 0, ERR_FORMAT,
         "layer 1 expert 2: not an expert record (magic 00000000)"},
        {"R2", L1, 2 * REC + REC_MAGIC, 1, 0, ERR_FORMAT,
         "layer 1 expert 2: not an expert record (magic 50584500)"},
        {"R3", L1, 2 * REC + REC_LAYER, 2, 2, ERR_FORMAT,
         "layer 1 expert 2: record says layer 2 expert 2"},
        {"R3", L1, 2 * REC + REC_EXPERT, 2, 65535, ERR_FORMAT,
         "layer 1 expert 2: record says layer 1 expert 65535"},
        {"R4", L1, REC_BLOCKS, 4, 4, ERR_FORMAT,
         "layer 1 expert 0: record says 4 pages, configuration needs 5"},
        {"R4", L1, REC_BLOCKS, 4, 0x100005, ERR_FORMAT, "layer 1 expert 0: record says 1048581"},
        {"R5", L2, 3 * REC + REC_FMT, 1, 8, ERR_FORMAT,
         "layer 2 expert 3: record has format 8, container declares 4"},
        {"R5", L2, 3 * REC + REC_FMT, 1, 0, ERR_FORMAT, "layer 2 expert 3: record has format 0"},
        {"R6", L2, 3 * REC + REC_LOWRANK, 2, 1, ERR_UNSUPPORTED,
         "layer 2 expert 3: low-rank factors (id 1) are not supported"},
        {"R6", L2, 3 * REC + REC_FLAGS, 1, 1, ERR_UNSUPPORTED,
         "layer 2 expert 3: flags 01 (bf16) are not supported"},
        {"R7", L2, REC_CODEBOOK, 2, 0, ERR_FORMAT,
         "layer 2 expert 0: uses codebook 0, layer uses 9"},
        {"R8", L2, REC_GATE_OFF, 4, 49, ERR_FORMAT,
         "layer 2 expert 0: payload offsets 49 6576 13104 18288, expected 48 6576 13104 18288"},
        {"R8", L2, REC_UP_OFF, 4, 6577, ERR_FORMAT, "layer 2 expert 0: payload offsets 48 6577"},
        {"R8", L2, REC_DOWN_OFF, 4, 0xffffffff, ERR_FORMAT, "payload offsets 48 6576 4294967295"},
        {"R8", L2, REC_SCALE_OFF, 4, 20479, ERR_FORMAT, "payload offsets 48 6576 13104 20479"},
        {"R8", L2, REC_SCALE_OFF, 4, 18288 ^ 1 << 20, ERR_FORMAT, "payload offsets 48 6576 13104"},
        {"R10", L1, REC + 18288, 2, 0x7c00, ERR_CORRUPT,
         "layer 1 expert 1: gate scale of row 0 is 7c00, not finite"},
        {"R10", L1, REC + 18846, 2, 0xffff, ERR_CORRUPT,
         "layer 1 expert 1: down scale of row 135 is ffff, not finite"},
        {"R11", L1, 3 * REC + 48, 1, 0xff, ERR_CORRUPT, "layer 1 expert 3: checksum "},
        {"R11", L1, 3 * REC + REC_CRC, 4, 0x12345678, ERR_CORRUPT,
         "layer 1 expert 3: checksum 41c41934, record says 12345678"},
    };

    assert_patches(*state, rows, N_ELEMS(rows));
}

/* A VQ4P container refuses byte-index records, which have the same size. */
static void packed_and_byte_indices_are_never_mistaken(void **state)
{
    const char *dir = *state;
    uint8_t *bank;
    size_t n;

    bank = tiny_file_read(dir, "experts-L1.bin", &n);
    tiny_write(dir, TINY_VQ4P);
    assert_opens(dir, "golden", true);
    tiny_file_write(dir, "experts-L1.bin", bank, n);
    assert_refused(dir, "R5", ERR_FORMAT,
                   "layer 1 expert 0: record has format 4, container declares 8");
    free(bank);
}

/* Rule R9, with a checksum that agrees; rule R1 is a file that shrinks while it is open. */
static void an_index_beyond_the_codebook_or_a_short_read_is_refused(void **state)
{
    static const struct container_options o = {.direct = false};
    const char *dir = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct record_layout l;
    struct container *c;
    struct expert_source *s = NULL;
    struct err e;
    uint8_t *bank, *codebooks;
    char path[300];

    assert_int_equal(record_layout_init(&l, TINY_HIDDEN, TINY_INTER, 3, 128, 8, &e), 0);
    bank = calloc(1, BANK);
    codebooks = calloc(18, 2064);
    for (unsigned i = 0; i < 18; i++) {
        store_le32(codebooks + i * 2064, CODEBOOK_MAGIC);
        store_le16(codebooks + i * 2064 + 4, (uint16_t)i);
        codebooks[i * 2064 + 7] = 8;
        store_le32(codebooks + i * 2064 + 8, 128);
    }
    for (unsigned layer = 1; layer < 3; layer++) {
        for (unsigned expert = 0; expert < 4; expert++) {
            bank[expert * REC + 7000] = layer == 2 && expert == 1 ? 128 : 127;
            record_seal(&l, bank + expert * REC, layer, expert, (layer - 1) * 9);
        }
        tiny_file_write(dir, layer == 1 ? "experts-L1.bin" : "experts-L2.bin", bank, BANK);
    }
    tiny_file_write(dir, "codebooks.bin", codebooks, 18 * 2064);
    tiny_set(root, "expert_quant.entries", "128");
    tiny_manifest_write(dir, root);
    assert_refused(dir, "R9", ERR_CORRUPT,
                   "layer 2 expert 1: index 128 at byte 7000, codebooks have 128 entries");

    tiny_write(dir, TINY_VQ3R);
    assert_int_equal(container_open(&c, dir, &o, &e), 0);
    snprintf(path, sizeof(path), "%s/experts-L2.bin", dir);
    assert_int_equal(truncate(path, 3 * REC + 100), 0);
    assert_int_equal(source_mem_open(&s, c, NULL, true, &e), ERR_IO);
    assert_non_null(strstr(e.text, "layer 2 expert 3: experts-L2.bin: 20480 bytes at 61440"));
    container_close(c);
    json_decref(root);
    free(codebooks);
    free(bank);
}

static void a_codebook_that_is_not_this_layer_s_is_refused(void **state)
{
    static const char cb[] = "codebooks.bin";
    static const struct patch rows[] = {
        {"C4", cb, 0, 4, 0, ERR_FORMAT,
         "codebooks.bin: record 0 (layer 1 gate stage 0) has magic 00000000"},
        {"C4", cb, 13 * CODEBOOK, 1, 0x58, ERR_FORMAT,
         "codebooks.bin: record 13 (layer 2 up stage 1) has magic 4b424358"},
        {"C4", cb, 17 * CODEBOOK + 4, 2, 16, ERR_FORMAT,
         "codebooks.bin: record 17 (layer 2 down stage 2) has id 16"},
        {"C4", cb, 4 * CODEBOOK + 7, 1, 4, ERR_FORMAT,
         "codebooks.bin: record 4 (layer 1 up stage 1) has vec_dim 4, expected 8"},
        {"C4", cb, 4 * CODEBOOK + 8, 4, 64, ERR_FORMAT,
         "codebooks.bin: record 4 (layer 1 up stage 1) has 64 entries, expected 256"},
        {"C4", cb, 4 * CODEBOOK + 8, 4, 0xffffffff, ERR_FORMAT, "has 4294967295 entries"},
        {"C5", cb, 16, 2, 0x7c00, ERR_CORRUPT,
         "codebooks.bin: record 0 (layer 1 gate stage 0) has a non-finite value at element 0"},
        {"C5", cb, 18 * CODEBOOK - 2, 2, 0xfe01, ERR_CORRUPT,
         "record 17 (layer 2 down stage 2) has a non-finite value at element 2047"},
    };

    assert_patches(*state, rows, N_ELEMS(rows));
}

static void a_codebook_file_of_another_size_is_refused(void **state)
{
    const char *dir = *state;
    uint8_t *other;
    size_t n;
    char path[300];

    snprintf(path, sizeof(path), "%s/codebooks.bin", dir);
    assert_int_equal(truncate(path, 18 * CODEBOOK - 1), 0);
    assert_refused(dir, "C2", ERR_FORMAT,
                   "codebooks.bin: 74015 bytes is not a whole number of 4112-byte records");
    assert_int_equal(truncate(path, 17 * CODEBOOK), 0);
    assert_refused(dir, "C6", ERR_FORMAT,
                   "layers.2.codebook_base 9 needs 18 records, codebooks.bin has 17");
    assert_int_equal(truncate(path, 0), 0);
    assert_refused(dir, "C6", ERR_FORMAT, "codebooks.bin has 0");
    assert_int_equal(truncate(path, INT64_C(65545) * CODEBOOK), 0); /* sparse */
    assert_refused(dir, "C3", ERR_LIMIT, "codebooks.bin: 65545 records");
    assert_int_equal(truncate(path, (INT64_C(1) << 30) + 1), 0);
    assert_refused(dir, "C3", ERR_LIMIT, "codebooks.bin: 1073741825 bytes");
    assert_int_equal(unlink(path), 0);
    assert_refused(dir, "C1", ERR_IO, "codebooks.bin: No such file");
    /* From a conversion with other stages or entries; one that agrees in both is undetectable. */
    tiny_write(dir, TINY_VQ4P);
    other = tiny_file_read(dir, "codebooks.bin", &n);
    tiny_write(dir, TINY_VQ3R);
    tiny_file_write(dir, "codebooks.bin", other, n);
    free(other);
    assert_refused(dir, "other conversion", ERR_FORMAT,
                   "codebooks.bin: 24960 bytes is not a whole number of 4112-byte records");
}

static void a_trunk_value_that_is_not_finite_is_refused(void **state)
{
    static const struct patch rows[] = {
        {"T13", "trunk.bin", 16384 + 2 * 3, 2, 0x7c00, ERR_CORRUPT,
         "trunk.bin: \"lm_head.weight\" contains a non-finite value at element 264"},
        {"T13", "trunk.bin", TINY_TRUNK_BYTES - 4, 4, 0xff800000, ERR_CORRUPT,
         "trunk.bin: \"model.norm.weight\" contains a non-finite value at element 135"},
    };

    assert_patches(*state, rows, N_ELEMS(rows));
}

/* Rule T14: the embedding table is read row by row, long after the open. */
static void a_row_that_cannot_be_read_is_an_error_and_not_zeros(void **state)
{
    static const struct container_options o = {.direct = false};
    const char *dir = *state;
    const struct trunk_entry *x;
    struct container *c;
    struct trunk *t;
    char path[300];
    float row[TINY_HIDDEN];
    struct err e;

    assert_int_equal(container_open(&c, dir, &o, &e), 0);
    assert_int_equal(trunk_open(&t, c, &e), 0);
    x = manifest_tensor(container_manifest(c), "model.embed_tokens.weight");
    snprintf(path, sizeof(path), "%s/trunk.bin", dir);
    assert_int_equal(truncate(path, (off_t)(x->scale_off + 2 * 2 * 7)), 0); /* scales of rows 0-6 */
    assert_int_equal(trunk_read_row(t, x, 6, row, &e), 0);
    assert_int_equal(trunk_read_row(t, x, 7, row, &e), ERR_IO);
    assert_non_null(strstr(e.text, "trunk.bin: cannot read row 7 of model.embed_tokens.weight"));
    trunk_close(t);
    container_close(c);
}

/* The table of known damaged files, in its order, as far as it is not above. */
static void known_damage_is_seen_where_the_table_says(void **state)
{
    const char *dir = *state;
    uint8_t *a, *b;
    size_t n;
    char path[300];

    /* bank copied only partly; truncated by a whole number of records */
    a = tiny_file_read(dir, "experts-L1.bin", &n);
    b = tiny_file_read(dir, "experts-L2.bin", &n);
    tiny_file_write(dir, "experts-L2.bin", b, 50000);
    assert_refused(dir, "partly copied", ERR_FORMAT,
                   "experts-L2.bin: 50000 bytes on disk, manifest says 81920 (incomplete copy?)");
    tiny_file_write(dir, "experts-L2.bin", b, 2 * REC);
    assert_refused(dir, "whole records missing", ERR_FORMAT,
                   "experts-L2.bin: 40960 bytes on disk, manifest says 81920 (incomplete copy?)");
    /* two banks swapped by renaming */
    tiny_file_write(dir, "experts-L2.bin", a, n);
    tiny_file_write(dir, "experts-L1.bin", b, n);
    assert_refused(dir, "swapped", ERR_FORMAT, "layer 1 expert 0: record says layer 2 expert 0");
    tiny_file_write(dir, "experts-L1.bin", a, n);
    /* shifted by one page, whole or from the second record on */
    memmove(b + 4096, b, n - 4096);
    memset(b, 0, 4096);
    tiny_file_write(dir, "experts-L2.bin", b, n);
    assert_refused(dir, "shifted", ERR_FORMAT,
                   "layer 2 expert 0: not an expert record (magic 00000000)");
    free(b);
    tiny_write(dir, TINY_VQ3R);
    b = tiny_file_read(dir, "experts-L2.bin", &n);
    memmove(b + REC, b + REC + 4096, n - REC - 4096);
    tiny_file_write(dir, "experts-L2.bin", b, n);
    assert_refused(dir, "spliced", ERR_FORMAT, "layer 2 expert 1: not an expert record (magic ");
    tiny_write(dir, TINY_VQ3R);
    /* one flipped bit in a payload: only with verification */
    a[2 * REC + 12345] ^= 0x10;
    tiny_file_write(dir, "experts-L1.bin", a, n);
    assert_refused(dir, "flipped bit", ERR_CORRUPT, "layer 1 expert 2: checksum ");
    assert_opens(dir, "flipped bit, not verified", false);
    a[2 * REC + 12345] ^= 0x10;
    tiny_file_write(dir, "experts-L1.bin", a, n);
    /* trunk truncated, or extended by what nobody refers to */
    snprintf(path, sizeof(path), "%s/trunk.bin", dir);
    assert_int_equal(truncate(path, TINY_TRUNK_BYTES - 1), 0);
    assert_refused(dir, "trunk truncated", ERR_FORMAT,
                   "trunk.bin: \"model.norm.weight\" needs bytes 235888...236432, file has 236431");
    assert_int_equal(truncate(path, 100), 0);
    assert_refused(dir, "trunk truncated", ERR_FORMAT,
                   "trunk: \"lm_head.weight\" shape [64,136] is impossible for a 100-byte file");
    tiny_write(dir, TINY_VQ3R);
    assert_int_equal(truncate(path, TINY_TRUNK_BYTES + 5), 0);
    assert_opens(dir, "dead bytes", true);
    /* stale usage.waste, no tokenizer: nothing to see at open */
    tiny_file_write(dir, "usage.waste", "WUSG\1\0\0\0junk", 12);
    assert_opens(dir, "stale usage.waste", true);
    free(a);
    free(b);
}

/* Damage every record of a bank in turn: each is seen, and by its own name. */
static void every_damaged_record_is_named(void **state)
{
    static const char *const file[] = {"experts-L1.bin", "experts-L2.bin"};
    const char *dir = *state;

    for (unsigned layer = 1; layer < 3; layer++)
        for (unsigned expert = 0; expert < TINY_EXPERTS; expert++) {
            char want[64];
            uint8_t *bank;
            size_t n;

            bank = tiny_file_read(dir, file[layer - 1], &n);
            bank[expert * REC + 48 + 1000 * expert + layer] ^= 4;
            tiny_file_write(dir, file[layer - 1], bank, n);
            snprintf(want, sizeof(want), "layer %u expert %u: checksum ", layer, expert);
            assert_refused(dir, "damaged record", ERR_CORRUPT, want);
            bank[expert * REC + 48 + 1000 * expert + layer] ^= 4;
            tiny_file_write(dir, file[layer - 1], bank, n);
            free(bank);
        }
}

/* Cut each file at many places, the manifest at all: never a crash, always a reason. */
static void a_container_cut_anywhere_is_refused(void **state)
{
    static const struct {
        const char *file;
        size_t step;
    } files[] = {{"manifest.json", 37},
                 {"trunk.bin", 3571},
                 {"codebooks.bin", 1117},
                 {"experts-L1.bin", 1237},
                 {"experts-L2.bin", 4096}};
    const char *dir = *state;

    for (size_t i = 0; i < N_ELEMS(files); i++) {
        uint8_t *data;
        size_t n;

        data = tiny_file_read(dir, files[i].file, &n);
        for (size_t cut = 0; cut < n; cut += files[i].step) {
            struct err e;

            tiny_file_write(dir, files[i].file, data, cut);
            if (read_all(dir, true, &e) == 0 || strlen(e.text) < 20)
                fail_msg("%s cut at %zu: \"%s\"", files[i].file, cut, e.text);
        }
        tiny_file_write(dir, files[i].file, data, n);
        free(data);
    }
    assert_opens(dir, "golden", true);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, tiny_setup, tiny_teardown)
    const struct CMUnitTest tests[] = {
        T(what_is_no_manifest_is_refused),
        T(what_is_not_the_json_of_this_version_is_refused),
        T(a_key_of_the_wrong_type_is_refused),
        T(a_configuration_that_sizes_nothing_sane_is_refused),
        T(a_trunk_directory_that_does_not_add_up_is_refused),
        T(a_list_of_banks_that_does_not_fit_the_model_is_refused),
        T(a_bank_outside_the_container_is_refused_even_if_it_exists),
        T(a_record_that_is_not_what_was_asked_for_is_refused),
        T(packed_and_byte_indices_are_never_mistaken),
        T(an_index_beyond_the_codebook_or_a_short_read_is_refused),
        T(a_codebook_that_is_not_this_layer_s_is_refused),
        T(a_codebook_file_of_another_size_is_refused),
        T(a_trunk_value_that_is_not_finite_is_refused),
        T(a_row_that_cannot_be_read_is_an_error_and_not_zeros),
        T(known_damage_is_seen_where_the_table_says),
        T(every_damaged_record_is_named),
        T(a_container_cut_anywhere_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
