#include "model/convert_names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expertfs/quantise.h"
#include "model/weights.h"

enum { NAME_BYTES = 256, SHAPE_BYTES = 64, DIM_MAX = 1 << 26 }; /* DIM_MAX: of the trunk's */

/* Elements of a tensor of the trunk. */
static const uint64_t TENSOR_MAX = 1ull << 40;

static const char *const expert_module[] = {".block_sparse_moe.experts.", ".mlp.experts."};
static const char *const expert_matrix[][MATRICES] = {
    {"w1.weight", "w3.weight", "w2.weight"},
    {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}};

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
    size_t n = strlen(text), m = strlen(with);

    return n >= m && strcmp(text + n - m, with) == 0;
}

/* A decimal without leading zeros at *at; moves behind it. */
static bool take_number(const char **at, unsigned *out)
{
    const char *p = *at;
    unsigned v = 0, digits = 0;

    for (; *p >= '0' && *p <= '9' && digits < 9; p++, digits++)
        v = 10 * v + (unsigned)(*p - '0');
    if (!digits || (digits > 1 && **at == '0') || (*p >= '0' && *p <= '9'))
        return false;
    *at = p;
    *out = v;
    return true;
}

/* "model.layers.7" below the prefix: *at is what follows the number. */
static bool take_layer(const char *name, const char *prefix, unsigned *layer, const char **at)
{
    static const char layers[] = "model.layers.";

    if (!begins(name, prefix) || !begins(name + strlen(prefix), layers))
        return false;
    *at = name + strlen(prefix) + strlen(layers);
    return take_number(at, layer) && **at == '.';
}

int source_place(struct source_place *out, const char *name, const char *prefix, enum naming naming,
                 unsigned n_layers, struct err *e)
{
    const char *at = name, *module = expert_module[naming];
    bool in_layer = take_layer(name, prefix, &out->layer, &at);

    out->role = ROLE_TRUNK;
    if ((in_layer && out->layer >= n_layers) || ends(name, "_scale_inv")) {
        out->role = ROLE_DROPPED;
        return 0;
    }
    if (!strstr(name, ".experts."))
        return 0;
    if (in_layer && begins(at, module)) {
        at += strlen(module);
        if (take_number(&at, &out->expert) && *at == '.')
            for (enum matrix k = MATRIX_GATE; k < MATRICES; k++)
                if (!strcmp(at + 1, expert_matrix[naming][k])) {
                    out->role = ROLE_EXPERT;
                    out->matrix = k;
                    return 0;
                }
    }
    return err_set(e, ERR_FORMAT, "\"%s\": not a matrix of an expert as in the other layers", name);
}

/* The first expert says how the others are called; every layer must do the same. */
static int find_naming(enum naming *out, const struct checkpoint *c, const struct release *r,
                       const struct hparams *hp, struct err *e)
{
    unsigned first[2] = {0, 0}; /* 1 + a layer */

    for (unsigned l = 0; l < hp->n_layers; l++)
        for (unsigned n = 0; n < 2; n++) {
            char name[NAME_BYTES];

            snprintf(name, sizeof(name), "%smodel.layers.%u%s0.%s", r->prefix, l, expert_module[n],
                     expert_matrix[n][MATRIX_GATE]);
            if (checkpoint_find(c, name) && !first[n])
                first[n] = l + 1;
        }
    if (first[0] && first[1])
        return err_set(e, ERR_FORMAT, "layers %u and %u use different expert naming", first[0] - 1,
                       first[1] - 1);
    if (!first[0] && !first[1] && hp->n_experts)
        return err_set(e, ERR_FORMAT,
                       "%s: no experts found: neither \"%smodel.layers.%u%s0.w1.weight\" nor "
                       "\"...%s0.gate_proj.weight\"",
                       checkpoint_dir(c), r->prefix, hp->first_dense, expert_module[0],
                       expert_module[1]);
    *out = first[1] ? NAMING_DEEPSEEK : NAMING_MIXTRAL;
    return 0;
}

/* DeepSeek's routers and shared experts have other names here; dense layers do not. */
static void container_name(char *out, const char *source, enum naming naming)
{
    static const char *const renamed[] = {".mlp.gate.weight", ".mlp.gate.e_score_correction_bias",
                                          ".mlp.shared_experts."};
    const char *at = NULL;

    for (unsigned i = 0; naming == NAMING_DEEPSEEK && i < 3 && !at; i++)
        if (i == 2 ? strstr(source, renamed[i]) != NULL : ends(source, renamed[i]))
            at = strstr(source, renamed[i]);
    if (at)
        snprintf(out, NAME_BYTES, "%.*s.block_sparse_moe.%s", (int)(at - source), source,
                 at + strlen(".mlp."));
    else
        snprintf(out, NAME_BYTES, "%s", source);
}

/* The other way round, for messages: people look for the name in the release. */
static void source_name(char *out, const char *name, enum naming naming)
{
    static const char ours[] = ".block_sparse_moe.";
    const char *at = naming == NAMING_DEEPSEEK ? strstr(name, ours) : NULL;

    if (at)
        snprintf(out, NAME_BYTES, "%.*s.mlp.%s", (int)(at - name), name, at + strlen(ours));
    else
        snprintf(out, NAME_BYTES, "%s", name);
}

static bool is_vision(const char *name)
{
    return begins(name, "vision_tower.") || begins(name, "mm_projector.");
}

static const char *shape_text(char *text, const uint32_t *dim, unsigned rank)
{
    size_t used = 0;

    text[0] = 0;
    for (unsigned i = 0; i < rank && used < SHAPE_BYTES; i++)
        used += (size_t)snprintf(text + used, SHAPE_BYTES - used, "%s%u", i ? "," : "", dim[i]);
    return text;
}

/* Its dimensions and its elements can be counted from here on. */
static int check_dimensions(const struct trunk_item *t, struct err *e)
{
    const struct source_tensor *s = t->source;
    char shape[SHAPE_BYTES];
    uint64_t n = 1;

    for (unsigned d = 0; d < t->rank; d++) {
        if (t->dim[d] < 1 || t->dim[d] > DIM_MAX || n > TENSOR_MAX / t->dim[d])
            return err_set(e, ERR_LIMIT,
                           "\"%s\" is [%s]: a dimension of the trunk has at most %d, a tensor "
                           "2^40 elements",
                           s->name,
                           s->rank ? shape_text(shape, s->dim, s->rank)
                                   : shape_text(shape, t->dim, t->rank),
                           DIM_MAX);
        n *= t->dim[d];
    }
    return 0;
}

/* a * b, or what check_dimensions refuses. */
static uint32_t flat(uint32_t a, uint32_t b)
{
    uint64_t n = (uint64_t)a * b;

    return n > DIM_MAX ? UINT32_MAX : (uint32_t)n;
}

/* The tower is kept at 8 bits, as matrices: at 4 bits along a kernel's last axis it is ruined. */
static void place_vision(struct trunk_item *t)
{
    if (t->rank == 4) {
        t->dim[1] = flat(t->dim[1], flat(t->dim[2], t->dim[3]));
    } else if (t->rank == 3) {
        t->dim[0] = flat(t->dim[0], t->dim[1]);
        t->dim[1] = t->dim[2];
    }
    if (t->rank > 2 || t->fmt != FMT_F32)
        t->fmt = FMT_Q8G;
    t->rank = t->rank > 2 ? 2 : t->rank;
}

static void choose_format(struct trunk_item *t, const struct trunk_widths *w)
{
    t->fmt = trunk_fmt_policy(t->name, t->dim, t->rank, w->bits);
    if (w->router == 8 && t->fmt != FMT_F32 &&
        (ends(t->name, ".block_sparse_moe.gate.weight") || ends(t->name, ".b_proj.weight")))
        t->fmt = FMT_Q8G;
    if (is_vision(t->name))
        place_vision(t);
}

/* A tensor whose shard was reclaimed: what the earlier run made of it. */
static int recall(struct trunk_item *t, const json_t *known, struct err *e)
{
    const json_t *entry = NULL, *shape = NULL;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)known, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (name && !strcmp(name, t->name)) {
            shape = json_object_get(entry, "shape");
            break;
        }
    }
    t->rank = (unsigned)json_array_size(shape);
    if (!t->rank || t->rank > 4)
        return err_set(e, ERR_IO, "\"%s\": its shard was reclaimed, and the trunk is not finished",
                       t->source->name);
    for (unsigned d = 0; d < t->rank; d++) {
        json_int_t n = json_integer_value(json_array_get(shape, d));

        t->dim[d] = n < 0 || n > DIM_MAX ? 0 : (uint32_t)n;
    }
    t->fmt = (int)json_integer_value(json_object_get(entry, "fmt"));
    return check_dimensions(t, e);
}

static int add_trunk(struct tensor_map *m, const struct checkpoint *c,
                     const struct source_tensor *source, const char *name,
                     const struct trunk_widths *w, const json_t *known, struct err *e)
{
    struct trunk_item *t = &m->trunk[m->n_trunk];

    *t = (struct trunk_item){.source = source, .rank = source->rank, .name = strdup(name)};
    if (!t->name)
        return err_set(e, ERR_NOMEM, "\"%s\"", name);
    m->n_trunk++;
    m->vision |= is_vision(name);
    if (!checkpoint_shard_present(c, source->shard))
        return recall(t, known, e);
    memcpy(t->dim, source->dim, sizeof(t->dim));
    if (check_dimensions(t, e))
        return e->code;
    choose_format(t, w);
    return check_dimensions(t, e);
}

static int add_expert(struct tensor_map *m, const struct checkpoint *c, const struct hparams *hp,
                      const struct source_tensor *t, const struct source_place *p, struct err *e)
{
    const struct source_tensor **slot;
    uint32_t rows = p->matrix == MATRIX_DOWN ? hp->latent : hp->inter;
    uint32_t cols = p->matrix == MATRIX_DOWN ? hp->inter : hp->latent;
    char shape[SHAPE_BYTES];

    if (!hparams_is_moe(hp, p->layer) || p->expert >= hp->n_experts)
        return err_set(e, ERR_FORMAT, "\"%s\": the configuration has %u experts in layers %u...%u",
                       t->name, hp->n_experts, hp->first_dense, hp->n_layers - 1);
    if (checkpoint_shard_present(c, t->shard) &&
        (t->rank != 2 || t->rows != rows || t->cols != cols))
        return err_set(e, ERR_FORMAT,
                       "layer %u: %s of expert %u is [%s], configuration says [%u,%u] (\"%s\")",
                       p->layer, matrix_name(p->matrix), p->expert,
                       shape_text(shape, t->dim, t->rank), rows, cols, t->name);
    slot = &m->expert[((size_t)(p->layer - m->first_dense) * m->n_experts + p->expert) * MATRICES +
                      p->matrix];
    *slot = t;
    return 0;
}

static int sort_out(struct tensor_map *m, const struct checkpoint *c, const struct release *r,
                    const struct hparams *hp, const struct trunk_widths *w, const json_t *known,
                    struct err *e)
{
    char name[NAME_BYTES], head[NAME_BYTES];
    const struct source_tensor *embed = NULL;
    bool has_head = false;

    snprintf(head, sizeof(head), "%slm_head.weight", r->prefix);
    for (unsigned i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct source_tensor *t = checkpoint_tensor(c, i);
        struct source_place p;

        if (strlen(t->name) > 200)
            return err_set(e, ERR_LIMIT, "\"%.80s...\": a name of %zu bytes", t->name,
                           strlen(t->name));
        if (source_place(&p, t->name, r->prefix, m->naming, hp->n_layers, e))
            return e->code;
        if (p.role == ROLE_DROPPED) {
            m->n_dropped++;
            continue;
        }
        if (p.role == ROLE_EXPERT) {
            if (add_expert(m, c, hp, t, &p, e))
                return e->code;
            continue;
        }
        container_name(name, t->name, m->naming);
        if (add_trunk(m, c, t, name, w, known, e))
            return e->code;
        has_head |= !strcmp(name, head);
        if (ends(name, "model.embed_tokens.weight"))
            embed = t;
    }
    /* Tied embeddings: readers want the head by its own name. */
    if (!has_head && embed && json_is_true(json_object_get(r->config, "tie_word_embeddings")))
        return add_trunk(m, c, embed, head, w, known, e);
    return 0;
}

struct need {
    const struct checkpoint *c;
    const struct release *r;
    struct tensor_map *m;
    struct trunk_item **by_name; /* [n_trunk] ascending */
};

static int item_order(const void *a, const void *b)
{
    const struct trunk_item *x = *(struct trunk_item *const *)a;
    const struct trunk_item *y = *(struct trunk_item *const *)b;

    return strcmp(x->name, y->name);
}

/* What weights_bind will ask of the container, asked of the source. */
static int need_one(const struct weight *w, void *arg, struct err *e)
{
    struct need *need = arg;
    char name[NAME_BYTES], shape[SHAPE_BYTES], theirs[NAME_BYTES];
    struct trunk_item key = {.name = name}, *k = &key, **found, *t;
    uint64_t have = 1, want = (uint64_t)w->rows * w->cols;

    snprintf(name, sizeof(name), "%s%s", need->r->prefix, w->name);
    source_name(theirs, name, need->m->naming);
    found = bsearch(&k, need->by_name, need->m->n_trunk, sizeof(*found), item_order);
    if (!found && w->optional)
        return 0;
    if (!found)
        return err_set(e, ERR_FORMAT, "%s: tensor \"%s\" is missing", checkpoint_dir(need->c),
                       theirs);
    t = *found;
    for (unsigned d = 0; d < t->rank; d++)
        have *= t->dim[d];
    if (w->kind == WEIGHT_MATRIX) {
        if (t->rank == 2 && t->dim[0] == w->rows && t->dim[1] == w->cols)
            return 0;
        return err_set(e, ERR_FORMAT, "\"%s\" is [%s], configuration says [%u,%u]", theirs,
                       shape_text(shape, t->dim, t->rank), w->rows, w->cols);
    }
    t->fmt = FMT_F32; /* whatever its size: readers insist */
    if (w->kind == WEIGHT_VECTOR ? have == want : have >= want)
        return 0;
    return err_set(e, ERR_FORMAT, "\"%s\" is [%s], configuration says %s%llu elements", theirs,
                   shape_text(shape, t->dim, t->rank), w->kind == WEIGHT_VECTOR ? "" : "at least ",
                   (unsigned long long)want);
}

static int nothing_twice(const struct need *need, struct err *e)
{
    for (unsigned i = 1; i < need->m->n_trunk; i++) {
        const struct trunk_item *a = need->by_name[i - 1], *b = need->by_name[i];

        if (!strcmp(a->name, b->name))
            return err_set(e, ERR_FORMAT, "\"%s\" and \"%s\" are both \"%s\"", a->source->name,
                           b->source->name, a->name);
    }
    return 0;
}

static int need_vision(const struct need *need, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int need_vision(const struct need *need, struct err *e, const char *fmt, ...)
{
    char name[NAME_BYTES];
    struct trunk_item key = {.name = name}, *k = &key;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    if (bsearch(&k, need->by_name, need->m->n_trunk, sizeof(*need->by_name), item_order))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: tensor \"%s\" is missing, the rest of the tower is there",
                   checkpoint_dir(need->c), name);
}

/* All of Kimi K3's tower or nothing of it. Other families' towers go over as they are: no list of
 * their tensors is known here. */
static int check_vision(const struct need *need, struct err *e)
{
    static const char *const once[] = {"vision_tower.patch_embed.proj",
                                       "vision_tower.patch_embed.pos_emb",
                                       "vision_tower.encoder.final_layernorm",
                                       "mm_projector.proj.0",
                                       "mm_projector.proj.2",
                                       "mm_projector.post_norm"};
    static const char *const of_block[] = {"norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1"};
    struct json_at at = json_root(release_vision(need->r), "config.json: vision_config");
    int64_t blocks;

    if (!need->m->vision || !at.object || strcmp(need->r->arch, "kimi-k3") != 0)
        return 0;
    if (json_get_int(&blocks, &at, "vt_num_hidden_layers", 27, 1, 256, e))
        return e->code;
    for (unsigned i = 0; i < sizeof(once) / sizeof(*once); i++)
        if (need_vision(need, e, "%s.weight", once[i]))
            return e->code;
    for (unsigned b = 0; b < (unsigned)blocks; b++)
        for (unsigned i = 0; i < sizeof(of_block) / sizeof(*of_block); i++)
            if (need_vision(need, e, "vision_tower.encoder.blocks.%u.%s.weight", b, of_block[i]))
                return e->code;
    return 0;
}

static int check_trunk(struct tensor_map *m, const struct checkpoint *c, const struct release *r,
                       const struct hparams *hp, struct err *e)
{
    struct need need = {.c = c, .r = r, .m = m};
    int bad;

    need.by_name = calloc(m->n_trunk + 1, sizeof(struct trunk_item *));
    if (!need.by_name)
        return err_set(e, ERR_NOMEM, "%u tensors", m->n_trunk);
    for (unsigned i = 0; i < m->n_trunk; i++)
        need.by_name[i] = &m->trunk[i];
    qsort(need.by_name, m->n_trunk, sizeof(struct trunk_item *), item_order);
    bad = nothing_twice(&need, e) || weights_each(hp, NULL, need_one, &need, e) ||
                  check_vision(&need, e)
              ? e->code
              : 0;
    free(need.by_name);
    return bad;
}

static int check_experts(const struct tensor_map *m, const struct checkpoint *c,
                         const struct release *r, struct err *e)
{
    for (unsigned l = m->first_dense; m->n_experts && l < m->n_layers; l++)
        for (unsigned x = 0; x < m->n_experts; x++)
            for (enum matrix k = MATRIX_GATE; k < MATRICES; k++)
                if (!tensor_map_expert(m, l, x, k))
                    return err_set(e, ERR_FORMAT,
                                   "%s: layer %u: expert %u %s is missing "
                                   "(\"%smodel.layers.%u%s%u.%s\")",
                                   checkpoint_dir(c), l, x, matrix_name(k), r->prefix, l,
                                   expert_module[m->naming], x, expert_matrix[m->naming][k]);
    return 0;
}

int tensor_map_init(struct tensor_map *out, const struct checkpoint *c, const struct release *r,
                    const struct hparams *hp, const struct trunk_widths *w, const json_t *known,
                    struct err *e)
{
    size_t n = hp->n_experts ? (size_t)(hp->n_layers - hp->first_dense) * hp->n_experts : 0;
    struct tensor_map m = {
        .first_dense = hp->first_dense, .n_layers = hp->n_layers, .n_experts = hp->n_experts};

    m.trunk = calloc(checkpoint_n_tensors(c) + 1, sizeof(*m.trunk)); /* 1: a tied head */
    m.expert = calloc(n * MATRICES + 1, sizeof(const struct source_tensor *));
    if (!m.trunk || !m.expert)
        err_set(e, ERR_NOMEM, "%u tensors", checkpoint_n_tensors(c));
    else if (!find_naming(&m.naming, c, r, hp, e) && !sort_out(&m, c, r, hp, w, known, e) &&
             !check_trunk(&m, c, r, hp, e) && !check_experts(&m, c, r, e)) {
        *out = m;
        return 0;
    }
    tensor_map_release(&m);
    return e->code;
}

void tensor_map_release(struct tensor_map *m)
{
    for (unsigned i = 0; i < m->n_trunk; i++)
        free(m->trunk[i].name);
    free(m->trunk);
    free(m->expert);
    *m = (struct tensor_map){0};
}
