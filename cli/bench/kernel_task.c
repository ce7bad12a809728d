#include "cli/bench/kernel_task.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench/flags.h"
#include "expertfs/shapes.h"
#include "model/rvq_encode.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum {
    HOT_BYTES = 512 << 10, /* stays in a core's own cache */
    ROWS_BLOCK = FORMAT_INDEX_BLOCK,
    KEYS_FEW = 256,
    KEYS_MANY = 4096,
    PREFILL = 16, /* rows of a pass, where there are several */
};

/* share/demo.waste */
static const struct kernel_shape demo = {.name = "demo",
                                         .hidden = 256,
                                         .expert_cols = 256,
                                         .expert_rows = 64,
                                         .heads = 4,
                                         .kv_lora = 64,
                                         .rope = 16,
                                         .nope = 48,
                                         .kda_heads = 4,
                                         .kda_dim = 64,
                                         .vocab = 4097,
                                         .n_experts = 32};

int kernel_shape_find(struct kernel_shape *out, const char *name, struct err *e)
{
    const struct shape *s = shape_find(name);
    char names[256] = "demo";

    if (!strcmp(name, demo.name)) {
        *out = demo;
        return 0;
    }
    if (s) {
        *out = (struct kernel_shape){.name = s->name,
                                     .hidden = s->hidden,
                                     .expert_cols = s->latent ? s->latent : s->hidden,
                                     .expert_rows = s->inter,
                                     .heads = s->n_heads,
                                     .kv_lora = s->kv_lora,
                                     .rope = s->rope,
                                     .nope = s->nope,
                                     .kda_heads = s->kda_heads,
                                     .kda_dim = s->kda_dim,
                                     .vocab = s->vocab,
                                     .n_experts = s->n_experts};
        return 0;
    }
    for (unsigned i = 0; i < shape_count(); i++) {
        size_t at = strlen(names);

        snprintf(names + at, sizeof(names) - at, ", %s", shape_nth(i)->name);
    }
    return err_set(e, ERR_ARG, "no shape \"%s\": there are %s", name, names);
}

struct making { /* what every maker gets */
    const struct kernel_shape *shape;
    struct store *store;
    size_t ram_bytes;
    bool quick;
};

/* One copy, or as many as fill ram_bytes. */
static unsigned copies_of(const struct making *m, bool from_ram, size_t bytes)
{
    return from_ram ? (unsigned)(m->ram_bytes / bytes) + 1 : 1;
}

static void take_out(struct task *t, struct store *s, size_t bytes)
{
    t->out_bytes = bytes;
    t->out = store_zeros(s, bytes * t->copies);
}

static float *out_of(const struct task *t, unsigned copy)
{
    return (float *)(void *)(t->out + copy * t->out_bytes);
}

static const struct quant {
    const char *name;
    uint32_t stages, entries, index_bits;
} quants[] = {{"3x256", 3, 256, 8}, {"2x256", 2, 256, 8}, {"4x64", 4, 64, 6}};

static void call_encode(const struct task *t, const struct kernels *k, unsigned copy)
{
    uint16_t *scale = (uint16_t *)(void *)t->out;

    (void)copy;
    rvq_encode_rows(t->out + t->n * sizeof(*scale), scale, t->a, t->book, &t->layout, MATRIX_GATE,
                    0, t->n, k);
}

/* Rows of a gate projection, as `waste convert` encodes them. */
static void make_encode(struct task *t, const struct making *m, unsigned variant)
{
    const struct quant *q = &quants[variant];
    const uint32_t cols = m->shape->expert_cols;
    struct err e;
    int failed = record_layout_init(&t->layout, cols, m->shape->expert_rows, q->stages, q->entries,
                                    q->index_bits, &e);

    assert(!failed);
    (void)failed;
    t->n = m->quick ? 2 : 16;
    snprintf(t->name, sizeof(t->name), "encode %s, %u columns", q->name, cols);
    t->unit = "M weights/s per core";
    t->weights = (double)t->n * cols;
    t->units = t->weights * 1e-6;
    t->fmas = t->weights * q->stages * q->entries;
    t->a = store_floats(m->store, (size_t)t->n * cols, -1, 1);
    t->book = store_floats(m->store, (size_t)q->stages * q->entries * FORMAT_VEC_DIM, -1, 1);
    t->call = call_encode;
    take_out(t, m->store, t->n * sizeof(uint16_t) + (size_t)cols / 8 * ROWS_BLOCK * q->stages);
}

static void call_nearest(const struct task *t, const struct kernels *k, unsigned copy)
{
    const struct assign_book b = {t->book, t->b, FORMAT_ENTRIES_MAX};

    (void)copy;
    k->assign_nearest(t->out + t->n * sizeof(float), (float *)(void *)t->out, t->a, t->n, &b);
}

static void call_closer(const struct task *t, const struct kernels *k, unsigned copy)
{
    float *distance = out_of(t, copy);

    memset(distance, 0x7f, t->n * sizeof(*distance)); /* 3.4e38: everything is closer */
    k->assign_closer(distance, t->a, t->book, t->n);
}

/* The two halves of fitting: initial centres, then iterations. */
static void make_fit(struct task *t, const struct making *m, unsigned variant)
{
    float *bias;

    t->n = m->quick ? 256 : 4096;
    snprintf(t->name, sizeof(t->name), "fit, %s",
             variant ? "distance to one centre" : "nearest of 256");
    t->unit = "M vectors/s per core";
    t->units = t->n * 1e-6;
    t->fmas = (double)t->n * FORMAT_VEC_DIM * (variant ? 1 : FORMAT_ENTRIES_MAX);
    t->a = store_floats(m->store, (size_t)t->n * FORMAT_VEC_DIM, -1, 1);
    t->book = store_floats(m->store, FORMAT_ENTRIES_MAX * FORMAT_VEC_DIM, -1, 1);
    bias =
        store_floats(m->store, FORMAT_ENTRIES_MAX, -2, -1); /* any will do: the work is the same */
    t->b = bias;
    t->call = variant ? call_closer : call_nearest;
    take_out(t, m->store, t->n * (sizeof(float) + 1));
}

static void call_prepare(const struct task *t, const struct kernels *k, unsigned copy)
{
    (void)copy;
    k->rvq_prepare(t->scratch, t->a, t->book, &t->rvq, 0, t->rvq.cols / FORMAT_VEC_DIM);
}

static const uint16_t *scale_of(const struct task *t, unsigned copy)
{
    return (const uint16_t *)(const void *)(t->data + copy * t->data_bytes + t->scale_at);
}

static void call_rows(const struct task *t, const struct kernels *k, unsigned copy)
{
    k->rvq_rows(out_of(t, copy), t->scratch, t->data + copy * t->data_bytes, scale_of(t, copy),
                &t->rvq, 0, t->rvq.rows);
}

static void begin_rows(const struct task *t, const struct kernels *k)
{
    assert(k->rvq_prepared_bytes(&t->rvq) <= t->scratch_bytes);
    call_prepare(t, k, 0);
}

/* What a level prepares is its own business; the rows that come of it are not. */
static void finish_prepare(const struct task *t, const struct kernels *k)
{
    call_rows(t, k, 0);
}

/* Matrices of codes and f16 scales behind them; rows_bytes of codes. */
static void take_matrices(struct task *t, struct store *s, size_t code_bytes, size_t n_scales)
{
    t->scale_at = align_up(code_bytes, 64);
    t->read_bytes = code_bytes + n_scales * sizeof(uint16_t);
    t->data_bytes = align_up(t->scale_at + n_scales * sizeof(uint16_t), 64);
    t->data = store_random(s, t->copies * t->data_bytes);
    for (unsigned i = 0; i < t->copies; i++)
        fill_scales(s, (uint16_t *)(void *)(t->data + i * t->data_bytes + t->scale_at), n_scales);
}

static void take_rvq(struct task *t, const struct making *m, const struct quant *q, bool hot)
{
    const uint32_t cols = m->shape->expert_cols, cell = q->index_bits == 6 ? 3 : q->stages;
    const size_t row_bytes = (size_t)cols / FORMAT_VEC_DIM * cell;
    uint32_t rows = m->shape->expert_rows;

    if (hot && rows * row_bytes > HOT_BYTES)
        rows = (uint32_t)(HOT_BYTES / row_bytes / ROWS_BLOCK + 1) * ROWS_BLOCK;
    t->rvq = (struct rvq_shape){rows, cols, q->stages, q->entries, cell};
    t->copies = copies_of(m, !hot, rows * row_bytes);
    take_matrices(t, m->store, align_up(rows, ROWS_BLOCK) * row_bytes, rows);
    t->a = store_floats(m->store, align_up(cols, FORMAT_GROUP), -1, 1);
    t->book = store_floats(m->store, (size_t)q->stages * q->entries * FORMAT_VEC_DIM, -1, 1);
    /* the widest known is a table of floats; twice that leaves room for one that is padded */
    t->scratch_bytes = 2 * sizeof(float) * cols / FORMAT_VEC_DIM * q->stages * q->entries + 65536;
    t->scratch = store_zeros(m->store, t->scratch_bytes);
    take_out(t, m->store, align_up(rows, ROWS_BLOCK) * sizeof(float));
}

enum rvq_part { RVQ_PREPARE, RVQ_HOT, RVQ_RAM, RVQ_PARTS };

static void make_rvq(struct task *t, const struct making *m, unsigned variant)
{
    static const char *const part_name[RVQ_PARTS] = {"prepare", "rows hot", "rows from RAM"};
    const struct quant *q = &quants[variant / (RVQ_PARTS * PROFILES)];
    const enum rvq_part part = variant % RVQ_PARTS;

    t->profile = variant / RVQ_PARTS % PROFILES;
    take_rvq(t, m, q, part != RVQ_RAM);
    snprintf(t->name, sizeof(t->name), "rvq %s %s %s, %u x %u", q->name, profile_name(t->profile),
             part_name[part], t->rvq.rows, t->rvq.cols);
    t->unit = part == RVQ_PREPARE ? "M columns/s" : "GB/s of indices";
    t->units = part == RVQ_PREPARE ? t->rvq.cols * 1e-6 : (double)t->read_bytes * 1e-9;
    if (part == RVQ_PREPARE)
        t->read_bytes = 0; /* of the matrix, which is not touched */
    t->begin = part == RVQ_PREPARE ? NULL : begin_rows;
    t->call = part == RVQ_PREPARE ? call_prepare : call_rows;
    t->finish = part == RVQ_PREPARE ? finish_prepare : NULL;
}

static void call_gemv(const struct task *t, const struct kernels *k, unsigned copy)
{
    struct tensor w = t->tensor;

    w.data = t->data + copy * t->data_bytes;
    w.scale = w.groups ? scale_of(t, copy) : NULL;
    k->gemv(out_of(t, copy), w.rows, t->a, align_up(w.cols, FORMAT_GROUP), t->T, &w, 0, w.rows);
}

static struct tensor tensor_of(int fmt, uint32_t rows, uint32_t cols)
{
    const uint32_t groups = (uint32_t)align_up(cols, FORMAT_GROUP) / FORMAT_GROUP;
    struct tensor w = {.fmt = fmt, .rows = rows, .cols = cols, .groups = groups};

    w.row_bytes = fmt == FMT_Q8G   ? groups * 128
                  : fmt == FMT_Q4G ? groups * 64
                  : fmt == FMT_Q3G ? groups * 48 + 1
                                   : cols * sizeof(float);
    if (fmt == FMT_F32)
        w.groups = 0;
    return w;
}

static void take_tensor(struct task *t, const struct making *m, int fmt, uint32_t rows, bool hot)
{
    struct tensor *w = &t->tensor;

    *w = tensor_of(fmt, rows, m->shape->hidden);
    if (hot && rows * w->row_bytes > HOT_BYTES)
        w->rows = (uint32_t)(HOT_BYTES / w->row_bytes);
    t->copies = copies_of(m, !hot, w->rows * w->row_bytes);
    if (fmt == FMT_F32) {
        t->read_bytes = t->data_bytes = w->rows * w->row_bytes;
        t->data = (uint8_t *)(void *)store_floats(m->store,
                                                  t->copies * t->data_bytes / sizeof(float), -1, 1);
        return;
    }
    take_matrices(t, m->store, w->rows * w->row_bytes, (size_t)w->rows * w->groups);
}

static const struct gemv_case {
    const char *name;
    int fmt;
    uint32_t T;
    bool hot;
} gemv_cases[] = {
    {"Q4 hot", FMT_Q4G, 1, true},
    {"Q4 from RAM", FMT_Q4G, 1, false},
    {"Q4 16 rows of x", FMT_Q4G, PREFILL, true},
    {"Q8 hot", FMT_Q8G, 1, true},
    {"Q8 from RAM", FMT_Q8G, 1, false},
    {"Q8 16 rows of x", FMT_Q8G, PREFILL, true},
    {"Q3 hot", FMT_Q3G, 1, true},
    {"Q3 from RAM", FMT_Q3G, 1, false},
    {"Q3 16 rows of x", FMT_Q3G, PREFILL, true},
    {"F32 from RAM", FMT_F32, 1, false},
};

/* Rows of a query projection (F32: of a router). Slow levels would take minutes for many rows of
 * input from RAM, where arithmetic is the limit anyway: those are hot. */
static void make_gemv(struct task *t, const struct making *m, unsigned variant)
{
    const struct gemv_case *g = &gemv_cases[variant];
    const struct kernel_shape *s = m->shape;

    take_tensor(t, m, g->fmt, g->fmt == FMT_F32 ? s->n_experts : s->heads * (s->nope + s->rope),
                g->hot);
    t->T = g->T;
    snprintf(t->name, sizeof(t->name), "gemv %s, %u x %u", g->name, t->tensor.rows, t->tensor.cols);
    t->fmas = (double)t->tensor.rows * t->tensor.cols * g->T;
    t->unit = g->T > 1 ? "GFLOP/s" : "GB/s of weights";
    t->units = g->T > 1 ? 2 * t->fmas * 1e-9 : (double)t->read_bytes * 1e-9;
    t->a = store_floats(m->store, g->T * align_up(t->tensor.cols, FORMAT_GROUP), -1, 1);
    t->call = call_gemv;
    take_out(t, m->store, (size_t)g->T * t->tensor.rows * sizeof(float));
}

static void call_axpy_rows(const struct task *t, const struct kernels *k, unsigned copy)
{
    struct tensor w = t->tensor;

    w.data = t->data + copy * t->data_bytes;
    w.scale = scale_of(t, copy);
    memset(out_of(t, copy), 0, t->out_bytes);
    k->axpy_rows(out_of(t, copy), t->a, &w, 0, w.rows);
}

/* The transposed product of absorbed latent attention: one head's key rows of kv_b_proj. */
static void make_axpy_rows(struct task *t, const struct making *m, unsigned variant)
{
    struct tensor *w = &t->tensor;

    (void)variant;
    *w = tensor_of(FMT_Q4G, m->shape->nope, m->shape->kv_lora);
    take_matrices(t, m->store, w->rows * w->row_bytes, (size_t)w->rows * w->groups);
    snprintf(t->name, sizeof(t->name), "gemv Q4 transposed, %u x %u", w->rows, w->cols);
    t->fmas = (double)w->rows * w->cols;
    t->unit = "GFLOP/s";
    t->units = 2 * t->fmas * 1e-9;
    t->a = store_floats(m->store, w->rows, -1, 1);
    t->call = call_axpy_rows;
    take_out(t, m->store, w->cols * sizeof(float));
}

static void call_delta(const struct task *t, const struct kernels *k, unsigned copy)
{
    const size_t state = (size_t)t->delta.heads * t->delta.key * t->delta.value;
    float *to = out_of(t, copy);

    k->delta_heads(to + state, to, (const float *)(const void *)(t->data + copy * t->data_bytes),
                   t->a, t->b, t->c, t->d, t->e, t->T, &t->delta, 0, t->delta.heads);
}

/* A KDA layer's state; what is decoded comes from memory, a pass of rows stays with its state. */
static void make_delta(struct task *t, const struct making *m, unsigned variant)
{
    const uint32_t H = m->shape->kda_heads, K = m->shape->kda_dim;
    const size_t row = (size_t)H * K;

    t->T = variant ? PREFILL : 1;
    t->delta = (struct delta_shape){H, K, K};
    t->read_bytes = t->data_bytes = row * K * sizeof(float);
    t->copies = copies_of(m, t->T == 1, t->data_bytes);
    snprintf(t->name, sizeof(t->name), "delta %u heads %u x %u, %s", H, K, K,
             t->T == 1 ? "1 token, state from RAM" : "16 tokens");
    t->unit = "k tokens/s a layer";
    t->units = t->T * 1e-3;
    t->fmas = 3.0 * t->T * (double)row * K; /* k'S, S + k u', q'S; the decay is a product more */
    t->data = (uint8_t *)(void *)store_floats(m->store, t->copies * row * K, -1, 1);
    t->a = store_floats(m->store, t->T * row, -0.1f, 0.1f);
    t->b = store_floats(m->store, t->T * row, -0.1f, 0.1f);
    t->c = store_floats(m->store, t->T * row, -1, 1);
    t->d = store_floats(m->store, t->T * row, 0.5f, 1);
    t->e = store_floats(m->store, (size_t)t->T * H, 0, 1);
    t->call = call_delta;
    take_out(t, m->store, (row * K + t->T * row) * sizeof(float));
}

static void call_attend(const struct task *t, const struct kernels *k, unsigned copy)
{
    k->attend(out_of(t, copy), t->a, (const float *)(const void *)(t->data + copy * t->data_bytes),
              t->n, t->T, &t->attend, t->scratch);
}

static const struct attend_case {
    uint32_t keys, heads, rows;
} attend_cases[] = {
    {KEYS_FEW, 1, 1}, {KEYS_MANY, 1, 1}, {KEYS_MANY, PREFILL, 1}, {KEYS_MANY, 1, PREFILL}};

/* Keys of the first row's sight; the rows after it see one more each. */
static void make_attend(struct task *t, const struct making *m, unsigned variant)
{
    const struct attend_case *c = &attend_cases[variant];
    const uint32_t value = m->shape->kv_lora, width = value + m->shape->rope;
    const uint32_t queries = c->heads * c->rows, all = c->keys + c->rows - 1;

    t->n = c->keys;
    t->T = c->rows;
    t->attend = (struct attend_shape){.heads = c->heads,
                                      .width = width,
                                      .value_width = value,
                                      .q_stride = align_up(width, 16),
                                      .key_stride = width,
                                      .out_stride = value,
                                      .scale = 0.07f};
    t->read_bytes = t->data_bytes = (size_t)all * width * sizeof(float);
    t->copies = copies_of(m, c->keys == KEYS_MANY, t->data_bytes);
    snprintf(t->name, sizeof(t->name), "attend %u head%s x %u row%s, %u keys of %u%s", c->heads,
             c->heads > 1 ? "s" : "", c->rows, c->rows > 1 ? "s" : "", c->keys, width,
             c->keys == KEYS_MANY ? ", from RAM" : "");
    t->unit = "M keys/s"; /* met by a query each */
    t->units = (double)queries * t->n * 1e-6;
    t->fmas = (double)queries * t->n * (width + value);
    t->data =
        (uint8_t *)(void *)store_floats(m->store, t->copies * t->data_bytes / sizeof(float), -1, 1);
    t->a = store_floats(m->store, queries * t->attend.q_stride, -1, 1);
    t->scratch = store_zeros(m->store, attend_scratch_floats(value, queries) * sizeof(float));
    t->call = call_attend;
    take_out(t, m->store, (size_t)queries * value * sizeof(float));
}

enum { /* K3's vision tower, over a picture of 896 x 896 as it is shown: 448 x 448 */
       TOWER_HIDDEN = 1024,
       TOWER_HEADS = 12,
       TOWER_DIM = 128,
       TOWER_WIDE = TOWER_HEADS * TOWER_DIM,
       TOWER_INNER = 4096,
       TOWER_BLOCKS = 27,
       TOWER_PATCHES = 1024,
};

struct tower_case { /* what is between the norms of one block, for T of its rows */
    struct tensor qkv, o, fc0, fc1;
    float *lin, *query, *mixed, *scratch;
};

static void call_tower(const struct task *t, const struct kernels *k, unsigned copy)
{
    const struct tower_case *c = t->scratch;
    const float *keys = (const float *)(const void *)t->data;
    const size_t per_head = (size_t)TOWER_PATCHES * 2 * TOWER_DIM;

    k->gemv(c->lin, 3 * TOWER_WIDE, t->a, TOWER_HIDDEN, t->T, &c->qkv, 0, c->qkv.rows);
    for (unsigned h = 0; h < TOWER_HEADS; h++)
        k->attend(c->mixed + (size_t)h * TOWER_DIM, c->query, keys + h * per_head, TOWER_PATCHES, 1,
                  &t->attend, c->scratch);
    k->gemv(out_of(t, copy), TOWER_HIDDEN, c->mixed, TOWER_WIDE, t->T, &c->o, 0, c->o.rows);
    k->gemv(c->lin, TOWER_INNER, t->a, TOWER_HIDDEN, t->T, &c->fc0, 0, c->fc0.rows);
    k->gelu_tanh(c->lin, c->lin, t->T * TOWER_INNER);
    k->gemv(out_of(t, copy), TOWER_HIDDEN, c->lin, TOWER_INNER, t->T, &c->fc1, 0, c->fc1.rows);
}

static struct tensor tower_tensor(struct store *s, uint32_t rows, uint32_t cols)
{
    struct tensor w = tensor_of(FMT_Q8G, rows, cols);
    uint16_t *scale = store_zeros(s, (size_t)rows * w.groups * sizeof(*scale));

    fill_scales(s, scale, (size_t)rows * w.groups);
    w.scale = scale;
    w.data = store_random(s, rows * w.row_bytes);
    return w;
}

/* A row of every block is the work of a patch: rows a second are pictures a second. The floor is
 * the multiply-adds that the definition needs, not those that the engine does: its scores run over
 * the values, too (model/vision.c). */
static void make_tower(struct task *t, const struct making *m, unsigned variant)
{
    struct tower_case *c = store_zeros(m->store, sizeof(*c));
    struct store *s = m->store;

    (void)variant;
    t->T = m->quick ? 1 : PREFILL;
    c->qkv = tower_tensor(s, 3 * TOWER_WIDE, TOWER_HIDDEN);
    c->o = tower_tensor(s, TOWER_HIDDEN, TOWER_WIDE);
    c->fc0 = tower_tensor(s, TOWER_INNER, TOWER_HIDDEN);
    c->fc1 = tower_tensor(s, TOWER_HIDDEN, TOWER_INNER);
    c->lin = store_zeros(s, (size_t)t->T * 3 * TOWER_WIDE * sizeof(float));
    c->mixed = store_zeros(s, (size_t)t->T * TOWER_WIDE * sizeof(float));
    c->query = store_floats(s, (size_t)t->T * 2 * TOWER_DIM, -1, 1);
    for (uint32_t i = 0; i < t->T; i++)
        memset(c->query + (size_t)i * 2 * TOWER_DIM, 0, TOWER_DIM * sizeof(float));
    c->scratch = store_zeros(s, attend_scratch_floats(TOWER_DIM, t->T) * sizeof(float));
    t->attend = (struct attend_shape){.heads = t->T,
                                      .width = 2 * TOWER_DIM,
                                      .value_width = TOWER_DIM,
                                      .q_stride = 2 * TOWER_DIM,
                                      .key_stride = 2 * TOWER_DIM,
                                      .out_stride = TOWER_WIDE,
                                      .scale = 0.088388348f};
    t->data = (uint8_t *)(void *)store_floats(
        s, (size_t)TOWER_HEADS * TOWER_PATCHES * 2 * TOWER_DIM, -1, 1);
    t->a = store_floats(s, (size_t)t->T * TOWER_HIDDEN, -1, 1);
    snprintf(t->name, sizeof(t->name), "tower Q8, 896 x 896, %d blocks, by %u of %d patches",
             TOWER_BLOCKS, t->T, TOWER_PATCHES);
    t->fmas = (double)t->T * (4.0 * TOWER_HIDDEN * TOWER_WIDE + 2.0 * TOWER_HIDDEN * TOWER_INNER +
                              2.0 * TOWER_PATCHES * TOWER_WIDE);
    t->unit = "images/s";
    t->units = (double)t->T / TOWER_PATCHES / TOWER_BLOCKS;
    t->scratch = c;
    t->call = call_tower;
    take_out(t, s, (size_t)t->T * TOWER_HIDDEN * sizeof(float));
}

struct vec_case {
    const char *name;
    unsigned inputs; /* floats read per element */
    void (*call)(float *y, const float *a, const float *b, uint32_t n, const struct kernels *k);
};

static void vec_dot(float *y, const float *a, const float *b, uint32_t n, const struct kernels *k)
{
    *y = k->dot(a, b, n);
}

static void vec_largest(float *y, const float *a, const float *b, uint32_t n,
                        const struct kernels *k)
{
    (void)b;
    *y = k->largest(a, n);
}

static void vec_rmsnorm(float *y, const float *a, const float *b, uint32_t n,
                        const struct kernels *k)
{
    k->rmsnorm(y, a, b, n, 1e-5f);
}

static void vec_silu(float *y, const float *a, const float *b, uint32_t n, const struct kernels *k)
{
    k->silu_mul(y, a, b, n);
}

static void vec_situ(float *y, const float *a, const float *b, uint32_t n, const struct kernels *k)
{
    k->situ_mul(y, a, b, n, 4, 25);
}

static void vec_sigmoid(float *y, const float *a, const float *b, uint32_t n,
                        const struct kernels *k)
{
    (void)b;
    k->sigmoid(y, a, n);
}

static void vec_decay(float *y, const float *a, const float *b, uint32_t n, const struct kernels *k)
{
    k->decay(y, a, b, 1, 0, n);
}

static void vec_conv(float *y, const float *a, const float *b, uint32_t n, const struct kernels *k)
{
    k->conv_silu(y, a, a + 3 * n, b, n, 4);
}

static const struct vec_case vec_cases[] = {
    {"dot", 2, vec_dot},       {"largest", 1, vec_largest},       {"rmsnorm", 2, vec_rmsnorm},
    {"silu_mul", 2, vec_silu}, {"situ_mul", 2, vec_situ},         {"sigmoid", 1, vec_sigmoid},
    {"decay", 2, vec_decay},   {"conv_silu 4 taps", 8, vec_conv},
};

static void call_vec(const struct task *t, const struct kernels *k, unsigned copy)
{
    t->vec->call(out_of(t, copy), t->a, t->b, t->n, k);
}

static void make_vec(struct task *t, const struct making *m, unsigned variant)
{
    const struct vec_case *v = &vec_cases[variant];

    t->vec = v;
    t->n = m->shape->hidden;
    snprintf(t->name, sizeof(t->name), "vec %s, %u elements", v->name, t->n);
    t->unit = "G elements/s";
    t->units = t->n * 1e-9;
    t->a = store_floats(m->store, 8 * (size_t)t->n, -4, 4);
    t->b = t->a + 4 * t->n;
    t->data = (uint8_t *)(void *)(uintptr_t)t->a;
    t->read_bytes = t->data_bytes = v->inputs * t->n * sizeof(float);
    t->call = call_vec;
    take_out(t, m->store, t->n * sizeof(float));
}

static const struct maker {
    const char *family;
    unsigned variants;
    void (*make)(struct task *t, const struct making *m, unsigned variant);
} makers[] = {
    {"encode", N_ELEMS(quants), make_encode},
    {"encode", 2, make_fit},
    {"rvq", N_ELEMS(quants) * PROFILES *RVQ_PARTS, make_rvq},
    {"gemv", N_ELEMS(gemv_cases), make_gemv},
    {"gemv", 1, make_axpy_rows},
    {"delta", 2, make_delta},
    {"attend", N_ELEMS(attend_cases), make_attend},
    {"tower", 1, make_tower},
    {"vec", N_ELEMS(vec_cases), make_vec},
};

bool task_next(struct task *out, struct task_walk *w, struct store *s)
{
    const struct making m = {w->shape, s, w->ram_bytes, w->quick};

    for (; w->maker < N_ELEMS(makers); w->maker++, w->variant = 0) {
        const struct maker *k = &makers[w->maker];

        if (k->make == make_delta && !w->shape->kda_heads)
            continue; /* a model without KDA layers */
        if (!flag_names(w->families, k->family) || w->variant == k->variants)
            continue;
        s->used = 0;
        s->seed = w->maker * 64 + w->variant;
        *out = (struct task){.copies = 1};
        k->make(out, &m, w->variant++);
        return true;
    }
    return false;
}

int task_families_check(const char *families, struct err *e)
{
    const char *names[N_ELEMS(makers)];
    unsigned n = 0;

    for (unsigned i = 0; i < N_ELEMS(makers); i++)
        if (!n || strcmp(makers[i].family, names[n - 1]))
            names[n++] = makers[i].family;
    return flag_names_check(families, "families", "there are", names, n, e);
}

/* A task has its copies and as much output again (delta), or one whole matrix in f32 at most; and
 * smaller things beside. */
size_t task_store_bytes(const struct kernel_shape *s, size_t ram_bytes)
{
    size_t head = (size_t)s->heads * (s->nope + s->rope) * s->hidden,
           state = (size_t)s->kda_heads * s->kda_dim * s->kda_dim;
    size_t keys = (size_t)KEYS_MANY * (s->kv_lora + s->rope);

    return 2 * ram_bytes + 2 * sizeof(float) * (head + 4 * state + keys) + (64u << 20);
}
