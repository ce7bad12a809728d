#include "tests/support/tiny_container.h"

#include <dirent.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/half.h"
#include "expertfs/format.h"

static void die_unless(bool ok, const char *what, const char *which)
{
    if (ok)
        return;
    fprintf(stderr, "tiny container: %s %s: ", what, which);
    perror(NULL);
    abort();
}

/* stream(label): a byte per step of a linear congruential generator. */
struct stream {
    uint32_t x;
};

static struct stream stream_of(const char *label, const char *suffix)
{
    uint32_t x = libdeflate_crc32(0, label, strlen(label));

    return (struct stream){*suffix ? libdeflate_crc32(x, suffix, strlen(suffix)) : x};
}

static uint8_t stream_next(struct stream *s)
{
    s->x = 1664525 * s->x + 1013904223;
    return (uint8_t)(s->x >> 24);
}

struct tensor {
    char name[80];
    unsigned rank, dim[4];
};

/* Names below "model.layers.L." */
static const struct tensor every_layer[] = {{"input_layernorm.weight", 1, {136}},
                                            {"post_attention_layernorm.weight", 1, {136}}};
static const struct tensor kda_layer[] = {{"self_attn.q_proj.weight", 2, {32, 136}},
                                          {"self_attn.k_proj.weight", 2, {32, 136}},
                                          {"self_attn.v_proj.weight", 2, {32, 136}},
                                          {"self_attn.q_conv1d.weight", 3, {32, 1, 4}},
                                          {"self_attn.k_conv1d.weight", 3, {32, 1, 4}},
                                          {"self_attn.v_conv1d.weight", 3, {32, 1, 4}},
                                          {"self_attn.f_a_proj.weight", 2, {16, 136}},
                                          {"self_attn.f_b_proj.weight", 2, {32, 16}},
                                          {"self_attn.b_proj.weight", 2, {2, 136}},
                                          {"self_attn.A_log", 4, {1, 1, 2, 1}},
                                          {"self_attn.dt_bias", 1, {32}},
                                          {"self_attn.g_a_proj.weight", 2, {16, 136}},
                                          {"self_attn.g_b_proj.weight", 2, {32, 16}},
                                          {"self_attn.o_norm.weight", 1, {16}},
                                          {"self_attn.o_proj.weight", 2, {136, 32}}};
static const struct tensor mla_layer[] = {{"self_attn.q_proj.weight", 2, {48, 136}},
                                          {"self_attn.kv_a_proj_with_mqa.weight", 2, {32, 136}},
                                          {"self_attn.kv_a_layernorm.weight", 1, {24}},
                                          {"self_attn.kv_b_proj.weight", 2, {64, 24}},
                                          {"self_attn.o_proj.weight", 2, {136, 32}}};
static const struct tensor dense_layer[] = {{"mlp.gate_proj.weight", 2, {160, 136}},
                                            {"mlp.up_proj.weight", 2, {160, 136}},
                                            {"mlp.down_proj.weight", 2, {136, 160}}};
static const struct tensor moe_layer[] = {
    {"block_sparse_moe.gate.weight", 2, {4, 136}},
    {"block_sparse_moe.gate.e_score_correction_bias", 1, {4}},
    {"block_sparse_moe.shared_experts.gate_proj.weight", 2, {72, 136}},
    {"block_sparse_moe.shared_experts.up_proj.weight", 2, {72, 136}},
    {"block_sparse_moe.shared_experts.down_proj.weight", 2, {136, 72}}};
static const struct tensor top[] = {{"model.embed_tokens.weight", 2, {64, 136}},
                                    {"lm_head.weight", 2, {64, 136}},
                                    {"model.norm.weight", 1, {136}}};

static void add(struct tensor *list, unsigned *n, const struct tensor *from, size_t n_from,
                int layer)
{
    for (size_t i = 0; i < n_from; i++) {
        struct tensor *t = &list[(*n)++];

        *t = from[i];
        if (layer >= 0)
            snprintf(t->name, sizeof(t->name), "model.layers.%d.%.50s", layer, from[i].name);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

#define ADD(from, layer) add(list, &n, from, sizeof(from) / sizeof((from)[0]), layer)

static void tensors(struct tensor list[TINY_TENSORS])
{
    unsigned n = 0;

    ADD(top, -1);
    for (int layer = 0; layer < TINY_LAYERS; layer++) {
        ADD(every_layer, layer);
        if (layer < 2)
            ADD(kda_layer, layer);
        else
            ADD(mla_layer, layer);
        if (layer < 1)
            ADD(dense_layer, layer);
        else
            ADD(moe_layer, layer);
    }
    die_unless(n == TINY_TENSORS, "count of", "tensors");
    qsort(list, n, sizeof(list[0]), by_name);
}

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static int fmt_of(const char *name)
{
    if (has(name, "norm") || has(name, "_conv1d.weight") || has(name, "A_log") ||
        has(name, "dt_bias") || has(name, "e_score_correction_bias"))
        return FMT_F32;
    if (has(name, "embed_tokens") || has(name, "lm_head"))
        return FMT_Q8G;
    if (has(name, "f_a_proj") || has(name, "layers.0.mlp.up_proj"))
        return FMT_Q3G;
    return FMT_Q4G;
}

struct sizes {
    unsigned rows, cols, groups;
    size_t stride, payload, scales;
};

static struct sizes sizes_of(const struct tensor *t)
{
    struct sizes z = {.rows = 1, .cols = t->dim[t->rank - 1]};
    int fmt = fmt_of(t->name);

    for (unsigned i = 0; i + 1 < t->rank; i++)
        z.rows *= t->dim[i];
    z.groups = fmt == FMT_F32 ? 0 : (z.cols + 127) / 128;
    z.stride = fmt == FMT_F32   ? 4 * (size_t)z.cols
               : fmt == FMT_Q8G ? 128 * (size_t)z.groups
               : fmt == FMT_Q4G ? 64 * (size_t)z.groups
                                : 48 * (size_t)z.groups + 1;
    z.payload = z.rows * z.stride;
    z.scales = 2 * (size_t)z.rows * z.groups;
    return z;
}

static void put_f32(uint8_t *out, const struct tensor *t, const struct sizes *z)
{
    struct stream s = stream_of(t->name, "");

    for (unsigned i = 0; i < z->rows * z->cols; i++) {
        float v = (float)((int)stream_next(&s) - 128) / 1024 + (has(t->name, "norm") ? 1 : 0);

        store_le32(out + 4 * (size_t)i, f32_to_bits(v));
    }
}

/* Store the low bits of b as column c of a row; columns beyond the last hold what encodes zero. */
static void put_code(uint8_t *row, int fmt, unsigned c, uint8_t b)
{
    uint16_t two;

    switch (fmt) {
    case FMT_Q8G:
        row[c] = b;
        break;
    case FMT_Q4G:
        row[c / 2] |= (uint8_t)((b & 15) << c % 2 * 4);
        break;
    case FMT_Q3G:
        two = (uint16_t)(load_le16(row + 3 * c / 8) | (b & 7) << 3 * c % 8);
        store_le16(row + 3 * c / 8, two);
        break;
    }
}

static void put_quantised(uint8_t *out, const struct tensor *t, const struct sizes *z)
{
    int fmt = fmt_of(t->name);
    uint8_t zero = fmt == FMT_Q8G ? 0 : fmt == FMT_Q4G ? 8 : 4;
    uint16_t base = fmt == FMT_Q8G ? 0x1400 : fmt == FMT_Q4G ? 0x2000 : 0x2400;
    struct stream s = stream_of(t->name, ""), scale = stream_of(t->name, "#s");
    bool subnormal = !strcmp(t->name, "model.layers.0.mlp.down_proj.weight");

    for (unsigned row = 0; row < z->rows; row++)
        for (unsigned c = 0; c < 128 * z->groups; c++) {
            uint8_t b = c < z->cols ? stream_next(&s) : zero;

            put_code(out + row * z->stride, fmt, c, b == 128 ? 129 : b);
        }
    for (unsigned i = 0; i < z->rows * z->groups; i++) {
        uint16_t v = (uint16_t)(base + stream_next(&scale));

        store_le16(out + z->payload + 2 * (size_t)i, subnormal && i == 3 * z->groups ? 0x0155 : v);
    }
}

static void trunk_write(const char *dir)
{
    struct tensor list[TINY_TENSORS];
    uint8_t *trunk = calloc(1, TINY_TRUNK_BYTES + 1);
    size_t at = 0;

    die_unless(trunk, "memory for", "trunk.bin");
    tensors(list);
    for (unsigned i = 0; i < TINY_TENSORS; i++) {
        struct sizes z = sizes_of(&list[i]);

        if (fmt_of(list[i].name) == FMT_F32)
            put_f32(trunk + at, &list[i], &z);
        else
            put_quantised(trunk + at, &list[i], &z);
        at += z.payload + z.scales;
    }
    die_unless(at == TINY_TRUNK_BYTES, "size of", "trunk.bin");
    tiny_file_write(dir, "trunk.bin", trunk, at);
    free(trunk);
}

struct record_layout tiny_layout(enum tiny variant)
{
    struct record_layout l;
    struct err e;
    bool vq4p = variant == TINY_VQ4P;

    die_unless(!record_layout_init(&l, TINY_HIDDEN, TINY_INTER, vq4p ? 4 : 3, vq4p ? 64 : 256,
                                   vq4p ? 6 : 8, &e),
               "layout of", "a record");
    return l;
}

static void codebooks_write(const char *dir, enum tiny variant)
{
    struct record_layout l = tiny_layout(variant);
    unsigned n = 2 * MATRICES * l.stages;
    size_t size = 16 + 2 * 8 * (size_t)l.entries;
    uint8_t *all = calloc(n, size);

    die_unless(all, "memory for", "codebooks.bin");
    for (unsigned i = 0; i < n; i++) {
        uint8_t *p = all + i * size;
        char label[16];
        struct stream s;

        snprintf(label, sizeof(label), "cb%u", i);
        s = stream_of(label, "");
        store_le32(p, CODEBOOK_MAGIC);
        store_le16(p + 4, (uint16_t)i);
        p[6] = FMT_VQ3R;
        p[7] = FORMAT_VEC_DIM;
        store_le32(p + 8, l.entries);
        for (unsigned v = 0; v < 8 * l.entries; v++)
            store_le16(p + 16 + 2 * (size_t)v,
                       f32_to_half((float)((int)stream_next(&s) - 128) / 256));
    }
    tiny_file_write(dir, "codebooks.bin", all, n * size);
    free(all);
}

/* Row i, position v: the entry numbers of all stages, as bytes or as four times six bits. */
static void put_cell(uint8_t *cell, const struct record_layout *l, const uint8_t stage[])
{
    if (l->index_bits == 8) {
        memcpy(cell, stage, l->stages);
        return;
    }
    cell[0] = (uint8_t)(stage[0] | (stage[1] & 3) << 6);
    cell[1] = (uint8_t)(stage[1] >> 2 | (stage[2] & 15) << 4);
    cell[2] = (uint8_t)(stage[2] >> 4 | stage[3] << 2);
}

void tiny_record(uint8_t *out, enum tiny variant, unsigned layer, unsigned expert)
{
    static const char *const kind[MATRICES] = {"gate", "up", "down"};
    struct record_layout l = tiny_layout(variant);

    memset(out, 0, l.bytes);
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        unsigned rows = record_rows(&l, m), nv = record_cols(&l, m) / 8;
        struct stream index, scale;
        char label[32];

        snprintf(label, sizeof(label), "L%uE%u%s", layer, expert, kind[m]);
        index = stream_of(label, "");
        scale = stream_of(label, "#s");
        for (unsigned i = 0; i < rows; i++)
            for (unsigned v = 0; v < nv; v++) {
                uint8_t stage[FORMAT_STAGES_MAX] = {0};
                size_t cell = ((size_t)(i / 64) * nv + v) * 64 + i % 64;

                for (unsigned s = 0; s < l.stages; s++)
                    stage[s] = stream_next(&index) & (uint8_t)(l.entries - 1);
                put_cell(out + l.index_off[m] + cell * l.cell_bytes, &l, stage);
            }
        for (unsigned i = 0; i < rows; i++)
            store_le16(out + l.scale_off[m] + 2 * (size_t)i,
                       (uint16_t)(0x2C00 + stream_next(&scale)));
    }
    record_seal(&l, out, layer, expert, (layer - 1) * MATRICES * l.stages);
}

static void banks_write(const char *dir, enum tiny variant)
{
    uint8_t *bank = malloc(TINY_BANK_BYTES);
    char name[32];

    die_unless(bank, "memory for", "a bank");
    for (unsigned layer = 1; layer < TINY_LAYERS; layer++) {
        for (unsigned expert = 0; expert < TINY_EXPERTS; expert++)
            tiny_record(bank + expert * TINY_RECORD_BYTES, variant, layer, expert);
        snprintf(name, sizeof(name), "experts-L%u.bin", layer);
        tiny_file_write(dir, name, bank, TINY_BANK_BYTES);
    }
    free(bank);
}

static json_t *trunk_list(void)
{
    struct tensor list[TINY_TENSORS];
    json_t *all = json_array();
    size_t at = 0;

    tensors(list);
    for (unsigned i = 0; i < TINY_TENSORS; i++) {
        struct sizes z = sizes_of(&list[i]);
        json_t *shape = json_array();
        json_t *entry;

        for (unsigned d = 0; d < list[i].rank; d++)
            json_array_append_new(shape, json_integer(list[i].dim[d]));
        entry = json_pack("{s:s s:i s:I s:o s:I}", "name", list[i].name, "fmt",
                          fmt_of(list[i].name), "off", (json_int_t)at, "shape", shape, "bytes",
                          (json_int_t)(z.payload + z.scales));
        if (z.scales) {
            json_object_set_new(entry, "group", json_integer(128));
            json_object_set_new(entry, "scale_off", json_integer((json_int_t)(at + z.payload)));
        }
        json_array_append_new(all, entry);
        at += z.payload + z.scales;
    }
    return all;
}

json_t *tiny_manifest(enum tiny variant)
{
    static const char *const text =
        "{\"architectures\": [\"KimiLinearForCausalLM\"], \"model_type\": \"kimi_linear\","
        " \"hidden_size\": 136, \"num_hidden_layers\": 3, \"first_k_dense_replace\": 1,"
        " \"intermediate_size\": 160, \"moe_intermediate_size\": 72, \"num_experts\": 4,"
        " \"num_experts_per_token\": 2, \"num_shared_experts\": 1, \"moe_renormalize\": true,"
        " \"routed_scaling_factor\": 1.5, \"num_attention_heads\": 2, \"qk_nope_head_dim\": 16,"
        " \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"kv_lora_rank\": 24,"
        " \"q_lora_rank\": null, \"mla_use_nope\": true, \"rms_norm_eps\": 1e-5,"
        " \"vocab_size\": 64, \"eos_token_id\": 2, \"linear_attn_config\": {\"head_dim\": 16,"
        " \"num_heads\": 2, \"short_conv_kernel_size\": 4, \"kda_layers\": [1, 2],"
        " \"full_attn_layers\": [3]}}";
    struct record_layout l = tiny_layout(variant);
    json_t *config = json_loads(text, 0, NULL), *layers = json_object();

    for (unsigned layer = 1; layer < TINY_LAYERS; layer++) {
        char key[16], file[32];

        snprintf(key, sizeof(key), "%u", layer);
        snprintf(file, sizeof(file), "experts-L%u.bin", layer);
        json_object_set_new(layers, key,
                            json_pack("{s:s s:i s:i s:i}", "file", file, "experts", TINY_EXPERTS,
                                      "bytes", TINY_BANK_BYTES, "codebook_base",
                                      (int)((layer - 1) * MATRICES * l.stages)));
    }
    return json_pack("{s:i s:s s:s s:o s:{s:s s:i s:i s:i s:i s:i s:f} s:o s:o}", "format_version",
                     0, "arch", "kimi-linear", "tensor_prefix", "", "config", config,
                     "expert_quant", "fmt", variant == TINY_VQ4P ? "VQ4P" : "VQ3R", "stages",
                     (int)l.stages, "vec_dim", 8, "entries", (int)l.entries, "index_block", 64,
                     "index_bits", (int)l.index_bits, "bits_per_weight", 3.0, "layers", layers,
                     "trunk", trunk_list());
}

void tiny_manifest_write(const char *dir, const json_t *manifest)
{
    char *text = json_dumps(manifest, JSON_INDENT(1) | JSON_ENSURE_ASCII);

    die_unless(text, "text of", "manifest.json");
    tiny_file_write(dir, "manifest.json", text, strlen(text));
    free(text);
}

void tiny_set(json_t *manifest, const char *path, const char *json)
{
    json_t *at = manifest, *value = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    const char *dot;
    char key[64];

    die_unless(!json || value, "value", json ? json : "");
    for (; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(key, sizeof(key), "%.*s", (int)(dot - path), path);
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        die_unless(at, "path", path);
    }
    if (json_is_array(at) && value)
        die_unless(!json_array_set_new(at, strtoul(path, NULL, 10), value), "index", path);
    else if (json_is_array(at))
        die_unless(!json_array_remove(at, strtoul(path, NULL, 10)), "index", path);
    else if (value)
        die_unless(!json_object_set_new(at, path, value), "member", path);
    else
        die_unless(!json_object_del(at, path), "member", path);
}

void tiny_write(const char *dir, enum tiny variant)
{
    json_t *manifest = tiny_manifest(variant);

    trunk_write(dir);
    codebooks_write(dir, variant);
    banks_write(dir, variant);
    tiny_manifest_write(dir, manifest);
    json_decref(manifest);
}

void tiny_dir(char *out, size_t out_bytes)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(out, out_bytes, "%s/tiny-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    die_unless(mkdtemp(out), "a directory like", out);
}

void tiny_remove(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *entry;

    die_unless(d, "opening", dir);
    while ((entry = readdir(d)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
            unlinkat(dirfd(d), entry->d_name, 0))
            unlinkat(dirfd(d), entry->d_name, AT_REMOVEDIR);
    closedir(d);
    die_unless(!rmdir(dir), "removing", dir);
}

static int file_of(const char *dir, const char *name, int flags)
{
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, flags | O_CLOEXEC, 0644);
    die_unless(fd >= 0, "opening", path);
    return fd;
}

uint8_t *tiny_file_read(const char *dir, const char *name, size_t *bytes)
{
    int fd = file_of(dir, name, O_RDONLY);
    struct stat st;
    uint8_t *data;

    die_unless(!fstat(fd, &st), "size of", name);
    *bytes = (size_t)st.st_size;
    data = malloc(*bytes + 1);
    die_unless(data && read(fd, data, *bytes) == (ssize_t)*bytes, "reading", name);
    close(fd);
    return data;
}

void tiny_file_write(const char *dir, const char *name, const void *bytes, size_t n)
{
    int fd = file_of(dir, name, O_WRONLY | O_CREAT | O_TRUNC);

    die_unless(write(fd, bytes, n) == (ssize_t)n, "writing", name);
    close(fd);
}

int tiny_setup(void **state)
{
    char *dir = malloc(256);

    if (!dir)
        abort();
    tiny_dir(dir, 256);
    tiny_write(dir, TINY_VQ3R);
    *state = dir;
    return 0;
}

int tiny_teardown(void **state)
{
    tiny_remove(*state);
    free(*state);
    return 0;
}
