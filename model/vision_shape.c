#include "model/vision_shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/budget.h"
#include "model/image.h"

enum { JSON_BYTES = 1 << 20 };

static int get(uint32_t *out, const struct json_at *at, const char *key, uint32_t fallback,
               int64_t most, struct err *e)
{
    int64_t v;

    if (json_get_int(&v, at, key, fallback, 1, most, e))
        return e->code;
    *out = (uint32_t)v;
    return 0;
}

static int get_three(float out[3], const struct json_at *at, const char *key, bool positive,
                     struct err *e)
{
    const json_t *list;

    for (unsigned c = 0; c < 3; c++)
        out[c] = 0.5f;
    if (json_get_array(&list, at, key, e))
        return e->code;
    if (!list)
        return 0;
    if (json_array_size(list) != 3)
        return err_set(e, ERR_FORMAT, "%s.%s has %zu numbers, not 3", at->path, key,
                       json_array_size(list));
    for (unsigned c = 0; c < 3; c++) {
        const json_t *v = json_array_get(list, c);

        out[c] = (float)json_number_value(v);
        if (!json_is_number(v) || !isfinite(out[c]) || (positive && out[c] <= 0))
            return err_set(e, ERR_FORMAT, "%s.%s[%u] is not a%s number", at->path, key, c,
                           positive ? " positive" : " finite");
    }
    return 0;
}

static int read_geometry(struct vision_shape *s, const struct json_at *at, const struct manifest *m,
                         struct err *e)
{
    uint32_t wide = 0, patch = 0;

    if (get(&s->hidden, at, "vt_hidden_size", 1024, 1 << 20, e) ||
        get(&s->heads, at, "vt_num_attention_heads", 12, 65536, e) ||
        get(&wide, at, "qkv_hidden_size", 1536, 1 << 20, e) ||
        get(&s->inter, at, "vt_intermediate_size", 4096, 1 << 22, e) ||
        get(&s->blocks, at, "vt_num_hidden_layers", 27, VISION_BLOCKS_MAX, e) ||
        get(&s->pos_h, at, "init_pos_emb_height", 64, 65536, e) ||
        get(&s->pos_w, at, "init_pos_emb_width", 64, 65536, e) ||
        get(&s->text, at, "text_hidden_size", m->hidden, 1 << 20, e) ||
        get(&patch, at, "patch_size", IMAGE_PATCH, 65536, e))
        return e->code;
    if (patch != IMAGE_PATCH)
        return err_set(e, ERR_UNSUPPORTED, "vision.json: patch_size is %u, only %d is known", patch,
                       IMAGE_PATCH);
    if (s->text != m->hidden)
        return err_set(e, ERR_FORMAT,
                       "vision.json: text_hidden_size is %u, the model's hidden size %u", s->text,
                       m->hidden);
    if (wide % s->heads || wide / s->heads % 4)
        return err_set(e, ERR_FORMAT,
                       "vision.json: qkv_hidden_size %u over %u heads: not a multiple of 4 each",
                       wide, s->heads);
    s->dim = wide / s->heads;
    return 0;
}

static int read_rule(struct vision_shape *s, const struct json_at *at, const struct manifest *m,
                     struct err *e)
{
    double eps = 0x1p-23;
    int64_t id;

    if (get(&s->max_patches, at, "max_patches", IMAGE_PATCHES_DEFAULT, 1 << 20, e) ||
        get(&s->side_patches, at, "patch_limit_on_one_side", IMAGE_SIDE_PATCHES, 4096, e) ||
        get_three(s->mean, at, "image_mean", false, e) ||
        get_three(s->std, at, "image_std", true, e) ||
        json_get_f64(&eps, at, "vt_rms_eps", eps, e) ||
        json_get_int(&id, at, "media_placeholder_token_id", -1, -1, INT32_MAX, e))
        return e->code;
    if (id < 0 || id >= m->vocab)
        return err_set(e, ERR_FORMAT,
                       "vision.json: media_placeholder_token_id is %lld, the vocabulary has %u",
                       (long long)id, m->vocab);
    if (s->max_patches < 4)
        return err_set(e, ERR_FORMAT, "vision.json: max_patches is %u: 4 are needed",
                       s->max_patches);
    if (!(eps > 0 && eps < 1))
        return err_set(e, ERR_FORMAT, "vision.json: vt_rms_eps is %g", eps);
    s->media_id = (int32_t)id;
    s->eps = (float)eps;
    return 0;
}

int vision_shape_read(struct vision_shape *out, const struct manifest *m, int dirfd, struct err *e)
{
    struct vision_shape s;
    struct json_at at;
    json_t *root;
    int rc;

    if (no_such_entry(dirfd, "vision.json"))
        return err_set(e, ERR_UNSUPPORTED,
                       "there is no vision.json: this container was made without a vision tower");
    if (json_parse_file(&root, dirfd, "vision.json", JSON_BYTES, e))
        return e->code;
    at = json_root(root, "vision.json");
    rc = !json_is_object(root) ? err_set(e, ERR_FORMAT, "vision.json is not an object")
         : read_geometry(&s, &at, m, e) || read_rule(&s, &at, m, e) ? e->code
                                                                    : 0;
    json_decref(root);
    if (!rc)
        *out = s;
    return rc;
}

struct visit {
    weight_fn *fn;
    void *arg;
    struct err *e;
    char prefix[64];
};

static int visit(struct visit *v, const char *name, uint32_t rows, uint32_t cols, struct tensor *t,
                 const float **f)
{
    char full[160];
    struct weight w = {
        .name = full,
        .kind = rows ? WEIGHT_MATRIX : WEIGHT_VECTOR,
        .rows = rows ? rows : 1,
        .cols = cols,
        .resident = true,
        .tensor = t,
        .vector = f,
    };

    snprintf(full, sizeof(full), "%s%s.weight", v->prefix, name);
    return v->fn(&w, v->arg, v->e);
}

static int each_block(struct visit *v, const struct vision_shape *s, unsigned i,
                      struct vision_block *b)
{
    uint32_t h = s->hidden, wide = s->heads * s->dim;

    snprintf(v->prefix, sizeof(v->prefix), "vision_tower.encoder.blocks.%u.", i);
    if (visit(v, "norm0", 0, h, NULL, b ? &b->norm0 : NULL) ||
        visit(v, "norm1", 0, h, NULL, b ? &b->norm1 : NULL) ||
        visit(v, "wqkv", 3 * wide, h, b ? &b->qkv : NULL, NULL) ||
        visit(v, "wo", h, wide, b ? &b->o : NULL, NULL) ||
        visit(v, "mlp.fc0", s->inter, h, b ? &b->fc0 : NULL, NULL))
        return v->e->code;
    return visit(v, "mlp.fc1", h, s->inter, b ? &b->fc1 : NULL, NULL);
}

int vision_each(const struct vision_shape *s, struct vision_weights *to, weight_fn *fn, void *arg,
                struct err *e)
{
    struct visit v = {.fn = fn, .arg = arg, .e = e};
    uint32_t tile = 4 * s->hidden;

    for (unsigned i = 0; i < s->blocks; i++)
        if (each_block(&v, s, i, to ? &to->block[i] : NULL))
            return e->code;
    snprintf(v.prefix, sizeof(v.prefix), "vision_tower.encoder.");
    if (visit(&v, "final_layernorm", 0, s->hidden, NULL, to ? &to->norm : NULL))
        return e->code;
    snprintf(v.prefix, sizeof(v.prefix), "mm_projector.");
    if (visit(&v, "proj.0", tile, tile, to ? &to->proj0 : NULL, NULL) ||
        visit(&v, "proj.2", s->text, tile, to ? &to->proj2 : NULL, NULL))
        return e->code;
    return visit(&v, "post_norm", 0, s->text, NULL, to ? &to->post_norm : NULL);
}

static const struct trunk_entry *listed(const struct manifest *m, const char *name, struct err *e)
{
    const struct trunk_entry *t = manifest_entry(m, name);

    if (!t)
        err_set(e, ERR_FORMAT, "trunk: tensor \"%s\" of the vision tower is not listed", name);
    return t;
}

static int find(const struct trunk_entry **out, const struct manifest *m, const char *name,
                uint64_t elements, struct err *e)
{
    const struct trunk_entry *t = listed(m, name, e);

    if (!t)
        return e->code;
    if (t->rows * t->cols != elements)
        return err_set(e, ERR_FORMAT,
                       "trunk: \"%s\" has %" PRIu64 " elements, vision.json makes it %" PRIu64,
                       name, t->rows * t->cols, elements);
    *out = t;
    return 0;
}

int vision_dense_find(struct vision_dense *out, const struct vision_shape *s,
                      const struct manifest *m, struct err *e)
{
    if (find(&out->patch, m, "vision_tower.patch_embed.proj.weight",
             (uint64_t)s->hidden * IMAGE_COLUMNS, e))
        return e->code;
    return find(&out->pos, m, "vision_tower.patch_embed.pos_emb.weight",
                (uint64_t)s->pos_h * s->pos_w * s->hidden, e);
}

struct sum {
    const struct manifest *m;
    uint64_t bytes;
};

static int add_one(const struct weight *w, void *arg, struct err *e)
{
    struct sum *sum = arg;
    const struct trunk_entry *t = listed(sum->m, w->name, e);
    bool matrix = w->kind == WEIGHT_MATRIX;

    if (!t)
        return e->code;
    if (matrix ? t->rank != 2 || t->rows != w->rows || t->cols != w->cols
               : t->fmt != FMT_F32 || t->rows * t->cols != w->cols)
        return err_set(e, ERR_FORMAT, "trunk: \"%s\" is [%llu,%llu], vision.json makes it [%u,%u]",
                       w->name, (unsigned long long)t->rows, (unsigned long long)t->cols, w->rows,
                       w->cols);
    sum->bytes += budget_tensor_bytes(t->payload_bytes, t->scale_bytes);
    return 0;
}

uint64_t vision_dense_bytes(const struct vision_shape *s)
{
    return align_up((uint64_t)s->hidden * IMAGE_COLUMNS * sizeof(float), 64) +
           align_up((uint64_t)s->pos_h * s->pos_w * s->hidden * sizeof(float), 64);
}

int vision_weight_bytes(uint64_t *out, const struct vision_shape *s, const struct manifest *m,
                        struct err *e)
{
    struct sum sum = {.m = m};
    struct vision_dense dense;

    if (!manifest_entry(m, "vision_tower.patch_embed.proj.weight"))
        return err_set(e, ERR_UNSUPPORTED,
                       "this container has no vision tower: it was made from a text-only release");
    if (vision_dense_find(&dense, s, m, e) || vision_each(s, NULL, add_one, &sum, e))
        return e->code;
    *out = sum.bytes + vision_dense_bytes(s);
    return 0;
}

/* With a = floor(w / 14) and b likewise, a side of the padded picture has at most a + 2 patches,
 * and (a b)^2 <= N (a + 1)(b + 1) whether it was shrunk or not: of the sides before, a < s (a0 + 1)
 * and s^2 a0 b0 <= N, so that a b < N (a0 + 1)(b0 + 1) / (a0 b0), which falls as a0 >= a grows. */
uint32_t vision_patches_max(const struct vision_shape *s)
{
    uint32_t side = (uint32_t)align_up(s->side_patches, 2), most = 4;

    for (uint32_t x = 2; x <= side; x += 2)
        for (uint32_t y = side; y >= 2; y -= 2) {
            double a = x - 2, b = y - 2;

            if (a * a * b * b > s->max_patches * (a + 1) * (b + 1))
                continue;
            most = x * y > most ? x * y : most;
            break;
        }
    return most;
}

uint64_t vision_macs(const struct vision_shape *s, uint32_t patches)
{
    uint64_t n = patches, h = s->hidden, wide = (uint64_t)s->heads * s->dim;
    uint64_t block = n * (4 * h * wide + 2 * h * s->inter) + 2 * n * n * wide;

    return n * IMAGE_COLUMNS * h + s->blocks * block + n / 4 * 4 * h * (4 * h + s->text);
}
