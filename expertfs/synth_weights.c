#include "expertfs/synth_weights.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/hash.h"
#include "expertfs/quantise.h"

/* What the weights are scaled to. u is a normed vector (each element about 1); a matrix of standard
 * deviation g / sqrt(columns) turns it into outputs of standard deviation g.
 *
 * Routing. A trained router's choices repeat, for two reasons: some experts are popular with every
 * token, and neighbouring tokens look alike. Popularity comes from the selection bias (BIAS_STD, in
 * units of the sigmoid score, a long upper tail). Likeness comes from the short convolutions:
 * `taps` averages four neighbouring tokens, so what a KDA layer adds to the stream is alike from
 * one token to the next and forgets within a few; MIX_STD against EMBED_STD sets how much of the
 * router's input is that, LOGIT_STD how much a difference in input matters against the bias.
 * QKV_STD is small because SiLU of larger values has a mean that all tokens share: routing would
 * freeze with depth. Families without convolutions have popularity only, and a larger share of it.
 *
 * Chosen by running a narrow model (27 layers, 256 experts, top 8, hidden 512) over 150 random
 * tokens and comparing with the published Kimi-Linear trace (in brackets): experts chosen again 1,
 * 2, 4, 8, 64 tokens later 34.7 29.3 21.0 18.8 15.9 % (33.6 26.6 22.7 17.8 15.8); use of the most
 * popular, the 3rd, 8th, 31st, 101st 59 37 20 7 2 % (61 36 16 6 2); LRU hits with 6, 12, 24, 48 %
 * of the records 45 59 73 84 % (41 57 72 86).
 */
#define EMBED_STD      0.7
#define MIX_STD        0.64 /* what an attention block adds to the stream */
#define MIX_STD_ALONE  0.25 /* without KDA layers: what averages all tokens is always alike */
#define FFN_STD        0.25
#define QKV_STD        0.3 /* before the convolution and SiLU of KDA: small, nearly linear */
#define GATE_STD       1.0 /* inputs of sigmoids and SiLUs */
#define LOGIT_STD      0.6 /* the router's */
#define HEAD_STD       3.5 /* the vocabulary's */
#define DECAY_STD      0.3 /* of the token-dependent part of the log decay rate */
#define BIAS_STD       0.033
#define BIAS_TAIL      0.8  /* 0 would be a bell */
#define BIAS_STD_ALONE 0.05 /* without KDA layers */
#define RMS_SITU       0.54 /* of act(g) * u for standard normal g and u, measured */
#define RMS_KDA        0.54 /* of a normed head times a sigmoid gate */
#define RMS_MLA        0.7  /* of an attention output after some tens of tokens */

static const float taps[4] = {0.5f, 0.5f, 0.5f, 0.5f}; /* oldest first; the squares add to 1 */

enum { STREAM_SCALE = 1, STREAM_CODEBOOK = 2, STREAM_RECORD = 3, STREAM_TENSOR = 4 };

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Word i of a stream: splitmix64, which can start anywhere. */
static inline uint64_t word(uint64_t key, uint64_t i)
{
    return mix(key + i * 0x9e3779b97f4a7c15u);
}

static uint64_t key_of(uint64_t seed, unsigned stream, uint64_t a, uint64_t b)
{
    return mix(mix(mix(seed * 0x9e3779b97f4a7c15u + stream) + a) + b);
}

static uint64_t key_of_name(uint64_t seed, const char *name, unsigned stream)
{
    return key_of(seed, STREAM_TENSOR, hash_bytes(HASH_BEGIN, name, strlen(name)), stream);
}

/* [0, 1) */
static double uniform(uint64_t x)
{
    return (double)(x >> 11) * 0x1p-53;
}

/* About normal: the sum of four uniforms, standard deviation 1. */
static double bell(uint64_t x)
{
    double sum = (double)(x & 0xffff) + (double)(x >> 16 & 0xffff) + (double)(x >> 32 & 0xffff) +
                 (double)(x >> 48);

    return (sum - 2 * 65535.0) / 37837.2;
}

static void fill_words(uint64_t *out, uint64_t n, uint64_t key, uint64_t first)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = word(key, first + i);
}

struct list {
    struct synth_weights *w;
    unsigned room;
    bool failed;
    bool tower; /* what comes is the tower's: no prefix, 8 bits */
};

/* One tensor; dims end at the first 0. */
static struct synth_tensor *add(struct list *l, enum synth_kind kind, double std,
                                const uint32_t dim[4], const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static struct synth_tensor *add(struct list *l, enum synth_kind kind, double std,
                                const uint32_t dim[4], const char *fmt, ...)
{
    static struct synth_tensor nowhere;
    struct synth_weights *w = l->w;
    struct synth_tensor *t;
    int at;
    va_list ap;

    if (w->n_tensors == l->room) {
        unsigned room = l->room ? 2 * l->room : 256;

        t = realloc(w->tensor, room * sizeof(*t));
        if (!t) {
            l->failed = true;
            return &nowhere;
        }
        w->tensor = t;
        l->room = room;
    }
    t = &w->tensor[w->n_tensors++];
    *t = (struct synth_tensor){.kind = kind, .std = (float)std};
    at = snprintf(t->name, sizeof(t->name), "%s", l->tower ? "" : shape_prefix(&w->shape));
    va_start(ap, fmt);
    vsnprintf(t->name + at, sizeof(t->name) - (size_t)at, fmt, ap);
    va_end(ap);
    t->rows = 1;
    while (t->rank < 4 && dim[t->rank]) {
        t->dim[t->rank] = dim[t->rank];
        t->rows *= t->rank ? t->dim[t->rank - 1] : 1;
        t->rank++;
    }
    t->cols = t->dim[t->rank - 1];
    t->live_rows = t->rows;
    t->fmt = kind == SYNTH_MATRIX ? trunk_fmt_policy(t->name, t->dim, t->rank, l->tower ? 8 : 4)
                                  : FMT_F32;
    t->row_bytes = trunk_row_bytes(t->fmt, t->cols, &t->groups);
    return t;
}

#define DIM(...) ((const uint32_t[4]){__VA_ARGS__})

/* A matrix whose inputs have root mean square `in` and whose outputs shall have `out`. */
static struct synth_tensor *add_matrix(struct list *l, uint32_t rows, uint32_t cols, double in,
                                       double out, const char *where, unsigned layer,
                                       const char *name)
{
    double std = out / (in * sqrt((double)cols));

    return add(l, SYNTH_MATRIX, std, DIM(rows, cols), "model.layers.%u.%s%s.weight", layer, where,
               name);
}

static void add_norm(struct list *l, uint32_t n, unsigned layer, const char *name)
{
    add(l, SYNTH_NORM, 0.05, DIM(n), "model.layers.%u.%s.weight", layer, name);
}

static void add_kda(struct list *l, unsigned L)
{
    const struct shape *s = &l->w->shape;
    uint32_t h = s->hidden, heads = s->kda_heads, d = s->kda_dim, c = heads * d;
    const char *at = "self_attn.";
    static const char kind[3] = "qkv";

    for (unsigned i = 0; i < 3; i++) {
        char name[16] = {kind[i], 0};

        strcat(name, "_proj");
        add_matrix(l, c, h, 1, QKV_STD, at, L, name);
        add(l, SYNTH_TAPS, 0.1, DIM(c, 1, 4), "model.layers.%u.self_attn.%c_conv1d.weight", L,
            kind[i]);
    }
    add_matrix(l, d, h, 1, 1, at, L, "f_a_proj");
    add_matrix(l, c, d, 1, DECAY_STD, at, L, "f_b_proj");
    add_matrix(l, heads, h, 1, GATE_STD, at, L, "b_proj");
    if (s->family == FAMILY_K3) {
        add(l, SYNTH_A_LOG, 0, DIM(s->a_log), "model.layers.%u.self_attn.A_log", L);
        add_matrix(l, c, h, 1, GATE_STD, at, L, "g_proj");
    } else {
        add(l, SYNTH_A_LOG, 0, DIM(1, 1, s->a_log, 1), "model.layers.%u.self_attn.A_log", L);
        add_matrix(l, d, h, 1, 1, at, L, "g_a_proj");
        add_matrix(l, c, d, 1, GATE_STD, at, L, "g_b_proj");
    }
    add(l, SYNTH_DT_BIAS, 0, DIM(c), "model.layers.%u.self_attn.dt_bias", L)->layer = L;
    add_norm(l, d, L, "self_attn.o_norm");
    add_matrix(l, h, c, RMS_KDA, MIX_STD, at, L, "o_proj");
}

static void add_mla(struct list *l, unsigned L)
{
    const struct shape *s = &l->w->shape;
    uint32_t h = s->hidden, heads = s->n_heads, q = heads * (s->nope + s->rope);
    double in = RMS_MLA;
    const char *at = "self_attn.";

    if (s->q_lora) {
        add_matrix(l, s->q_lora, h, 1, 1, at, L, "q_a_proj");
        add_norm(l, s->q_lora, L, "self_attn.q_a_layernorm");
        add_matrix(l, q, s->q_lora, 1, 1, at, L, "q_b_proj");
    } else {
        add_matrix(l, q, h, 1, 1, at, L, "q_proj");
    }
    add_matrix(l, s->kv_lora + s->rope, h, 1, 1, at, L, "kv_a_proj_with_mqa");
    add_norm(l, s->kv_lora, L, "self_attn.kv_a_layernorm");
    add_matrix(l, heads * (s->nope + s->v_dim), s->kv_lora, 1, 1, at, L, "kv_b_proj");
    if (s->family == FAMILY_K3) {
        add_matrix(l, heads * s->v_dim, h, 1, GATE_STD, at, L, "g_proj");
        in *= RMS_KDA;
    }
    add_matrix(l, h, heads * s->v_dim, in, s->last_full ? MIX_STD : MIX_STD_ALONE, at, L, "o_proj");
}

static void add_mlp(struct list *l, uint32_t inter, double out, unsigned L, const char *where)
{
    uint32_t h = l->w->shape.hidden;

    add_matrix(l, inter, h, 1, 1, where, L, "gate_proj");
    add_matrix(l, inter, h, 1, 1, where, L, "up_proj");
    add_matrix(l, h, inter, RMS_SITU, out, where, L, "down_proj");
}

static void add_moe(struct list *l, unsigned L)
{
    const struct shape *s = &l->w->shape;
    bool kda = s->last_full != 0;
    const char *at = "block_sparse_moe.";

    add_matrix(l, s->n_experts, s->hidden, 1, LOGIT_STD, at, L, "gate");
    add(l, SYNTH_BIAS, kda ? BIAS_STD : BIAS_STD_ALONE, DIM(s->n_experts),
        "model.layers.%u.block_sparse_moe.gate.e_score_correction_bias", L);
    add_mlp(l, s->inter * s->n_shared, FFN_STD * 0.6, L, "block_sparse_moe.shared_experts.");
    if (!s->latent)
        return;
    add_matrix(l, s->latent, s->hidden, 1, 1, at, L, "routed_expert_down_proj");
    add_norm(l, s->latent, L, "block_sparse_moe.routed_expert_norm");
    add_matrix(l, s->hidden, s->latent, 1, FFN_STD * 0.8, at, L, "routed_expert_up_proj");
}

static void add_residual(struct list *l, const char *name)
{
    uint32_t h = l->w->shape.hidden;

    add(l, SYNTH_NORM, 0.05, DIM(h), "model.%s_norm.weight", name);
    add(l, SYNTH_MATRIX, 1 / sqrt((double)h), DIM(1, h), "model.%s_proj.weight", name);
}

static void add_layer(struct list *l, unsigned L)
{
    const struct shape *s = &l->w->shape;
    char name[64];

    add_norm(l, s->hidden, L, "input_layernorm");
    add_norm(l, s->hidden, L, "post_attention_layernorm");
    if (shape_is_full_attention(s, L))
        add_mla(l, L);
    else
        add_kda(l, L);
    if (s->attn_res_block) {
        snprintf(name, sizeof(name), "layers.%u.self_attention_res", L);
        add_residual(l, name);
        snprintf(name, sizeof(name), "layers.%u.mlp_res", L);
        add_residual(l, name);
    }
    if (L < s->first_dense)
        add_mlp(l, s->dense_inter, FFN_STD, L, "mlp.");
    else
        add_moe(l, L);
}

/* Patch kernel and grid as the matrices that conversions store. */
static void add_tower(struct list *l)
{
    const struct shape_tower *s = l->w->shape.tower;
    uint32_t h = s->hidden, text = l->w->shape.hidden;
    double in = 1 / sqrt((double)h);

    l->tower = true;
    add(l, SYNTH_MATRIX, 1 / sqrt(588.0), DIM(h, 588), "vision_tower.patch_embed.proj.weight");
    add(l, SYNTH_MATRIX, EMBED_STD, DIM(s->grid * s->grid, h),
        "vision_tower.patch_embed.pos_emb.weight");
    for (unsigned b = 0; b < s->blocks; b++) {
        static const char at[] = "vision_tower.encoder.blocks";

        add(l, SYNTH_NORM, 0.05, DIM(h), "%s.%u.norm0.weight", at, b);
        add(l, SYNTH_NORM, 0.05, DIM(h), "%s.%u.norm1.weight", at, b);
        add(l, SYNTH_MATRIX, in, DIM(3 * s->wide, h), "%s.%u.wqkv.weight", at, b);
        add(l, SYNTH_MATRIX, FFN_STD / sqrt((double)s->wide), DIM(h, s->wide), "%s.%u.wo.weight",
            at, b);
        add(l, SYNTH_MATRIX, in, DIM(s->inter, h), "%s.%u.mlp.fc0.weight", at, b);
        add(l, SYNTH_MATRIX, FFN_STD / sqrt((double)s->inter), DIM(h, s->inter),
            "%s.%u.mlp.fc1.weight", at, b);
    }
    add(l, SYNTH_NORM, 0.05, DIM(h), "vision_tower.encoder.final_layernorm.weight");
    add(l, SYNTH_MATRIX, in / 2, DIM(4 * h, 4 * h), "mm_projector.proj.0.weight");
    add(l, SYNTH_MATRIX, in / 2, DIM(text, 4 * h), "mm_projector.proj.2.weight");
    add(l, SYNTH_NORM, 0.05, DIM(text), "mm_projector.post_norm.weight");
    l->tower = false;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct synth_tensor *)a)->name, ((const struct synth_tensor *)b)->name);
}

int synth_weights_init(struct synth_weights *out, const struct shape *s, uint64_t seed,
                       struct err *e)
{
    struct synth_weights w = {.shape = *s, .seed = seed};
    struct list l = {.w = &w};

    add(&l, SYNTH_MATRIX, EMBED_STD, DIM(s->vocab, s->hidden), "model.embed_tokens.weight");
    for (unsigned L = 0; L < s->n_layers; L++)
        add_layer(&l, L);
    if (s->attn_res_block)
        add_residual(&l, "output_attn_res");
    add(&l, SYNTH_NORM, 0.05, DIM(s->hidden), "model.norm.weight");
    /* Control tokens and unused ids get a logit of 0, far below the winner's: no run ends early. */
    add(&l, SYNTH_MATRIX, HEAD_STD / sqrt((double)s->hidden), DIM(s->vocab, s->hidden),
        "lm_head.weight")
        ->live_rows = s->n_ranks;
    if (s->tower)
        add_tower(&l);
    if (l.failed) {
        synth_weights_release(&w);
        return err_set(e, ERR_NOMEM, "shape %s", s->name);
    }
    qsort(w.tensor, w.n_tensors, sizeof(*w.tensor), by_name); /* as a conversion orders them */
    *out = w;
    return 0;
}

void synth_weights_release(struct synth_weights *w)
{
    free(w->tensor);
    w->tensor = NULL;
}

/* Decoded standard deviation of codes of scale 1: uniform over -7...7, or -127...127, 0 twice. */
#define STD_Q4 4.1833001
#define STD_Q8 73.4677

/* q = -8 is not used: the mean of the codes must be 0, or every product shares a component that
 * grows from layer to layer. Its code 0 becomes code 8, q = 0. */
static uint64_t no_nibble_0(uint64_t x)
{
    uint64_t any = (x | x >> 1 | x >> 2 | x >> 3) & 0x1111111111111111u;

    return x | (any ^ 0x1111111111111111u) << 3;
}

static void rows_q4(const struct synth_tensor *t, uint64_t key, uint64_t row, uint64_t n,
                    uint8_t *codes)
{
    uint64_t words = n * t->row_bytes / 8, *x = (uint64_t *)(void *)codes;

    fill_words(x, words, key, row * t->row_bytes / 8);
    for (uint64_t i = 0; i < words; i++)
        x[i] = no_nibble_0(x[i]);
    for (uint64_t r = 0; t->cols % FORMAT_GROUP && r < n; r++) {
        uint8_t *c = codes + r * t->row_bytes;

        if (t->cols % 2)
            c[t->cols / 2] = (uint8_t)((c[t->cols / 2] & 15) | 0x80);
        memset(c + (t->cols + 1) / 2, 0x88, t->row_bytes - (t->cols + 1) / 2);
    }
}

static void rows_q8(const struct synth_tensor *t, uint64_t key, uint64_t row, uint64_t n,
                    uint8_t *codes)
{
    uint64_t words = n * t->row_bytes / 8;

    fill_words((uint64_t *)(void *)codes, words, key, row * t->row_bytes / 8);
    for (uint64_t i = 0; i < n * t->row_bytes; i++)
        codes[i] = codes[i] == 0x80 ? 0 : codes[i];
    for (uint64_t r = 0; r < n; r++) {
        uint8_t *c = codes + r * t->row_bytes;

        if (row + r >= t->live_rows)
            memset(c, 0, t->row_bytes);
        else
            memset(c + t->cols, 0, t->row_bytes - t->cols);
    }
}

/* f16 around s, within a quarter of it. */
static uint16_t near(double s, uint64_t x)
{
    return f32_to_half((float)(s * (0.75 + 0.5 * uniform(x))));
}

static float f32_value(const struct synth_weights *w, const struct synth_tensor *t, uint64_t key,
                       uint64_t i)
{
    const struct shape *s = &w->shape;
    uint64_t x = word(key, i);

    switch (t->kind) {
    case SYNTH_NORM:
        return (float)(1 + t->std * bell(x));
    case SYNTH_TAPS:
        return taps[i % 4] + (float)(t->std * bell(x));
    case SYNTH_A_LOG:
        if (i >= s->kda_heads)
            return 0; /* padding */
        return (float)log(s->family == FAMILY_K3 ? 1 + uniform(x) : 1 + 15 * uniform(x));
    case SYNTH_BIAS: /* log-normal: a few experts stand out */
        return (float)(t->std * (exp(BIAS_TAIL * bell(x)) - 1) / BIAS_TAIL);
    default:
        return (float)(t->std * sqrt(3.0) * (2 * uniform(x) - 1));
    }
}

/* A channel of head c / kda_dim loses `rate` a token (keeps e^-rate): between 0.001 and 0.1, evenly
 * on a log scale. The bias is what gives that rate through the gate of the head's A. */
static float dt_bias(const struct synth_weights *w, const struct synth_tensor *t, uint64_t key,
                     uint64_t c)
{
    const struct shape *s = &w->shape;
    double rate = 0.001 * exp(log(100.0) * uniform(word(key, c))), a;
    struct synth_tensor a_log = {.kind = SYNTH_A_LOG};

    snprintf(a_log.name, sizeof(a_log.name), "%smodel.layers.%u.self_attn.A_log", shape_prefix(s),
             t->layer);
    a = exp((double)f32_value(w, &a_log, key_of_name(w->seed, a_log.name, 0), c / s->kda_dim));
    if (s->family == FAMILY_K3) /* 5 sigmoid(a z) = rate */
        return (float)(log(rate / (5 - rate)) / a);
    return (float)log(expm1(rate / a)); /* a softplus(z) = rate */
}

static void rows_f32(const struct synth_weights *w, const struct synth_tensor *t, uint64_t key,
                     uint64_t row, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n * t->cols; i++) {
        uint64_t at = row * t->cols + i;

        if (at / t->cols >= t->live_rows)
            out[i] = 0;
        else
            out[i] = t->kind == SYNTH_DT_BIAS ? dt_bias(w, t, key, at) : f32_value(w, t, key, at);
    }
}

void synth_rows(const struct synth_weights *w, unsigned i, uint64_t row, uint64_t n, void *codes,
                uint16_t *scale)
{
    const struct synth_tensor *t = &w->tensor[i];
    uint64_t key = key_of_name(w->seed, t->name, 0);
    uint64_t scale_key = key_of_name(w->seed, t->name, STREAM_SCALE);
    double s = t->std / (t->fmt == FMT_Q8G ? STD_Q8 : STD_Q4);

    if (t->fmt == FMT_F32) {
        rows_f32(w, t, key, row, n, codes);
        return;
    }
    if (t->fmt == FMT_Q8G)
        rows_q8(t, key, row, n, codes);
    else
        rows_q4(t, key, row, n, codes);
    for (uint64_t j = 0; j < n * t->groups; j++)
        scale[j] = near(s, word(scale_key, row * t->groups + j));
}

void synth_codebook(const struct synth_weights *w, unsigned layer, enum matrix m, unsigned stage,
                    unsigned entries, uint16_t *out)
{
    /* What is left after 0, 1, 2, 3 stages of a fitted quantiser: 1, 0.575, 0.332, 0.195. A stage's
     * entries make up the difference of the squares. */
    double left = pow(0.577, stage), std = left * sqrt(1 - 0.577 * 0.577);
    uint64_t key = key_of(w->seed, STREAM_CODEBOOK, layer, m * FORMAT_STAGES_MAX + stage);

    for (unsigned j = 0; j < entries * FORMAT_VEC_DIM; j++) {
        unsigned pair = j % (2 * FORMAT_VEC_DIM); /* entry 2i + 1 = -entry 2i: the mean is 0 */

        out[j] = pair < FORMAT_VEC_DIM ? f32_to_half((float)(std * bell(word(key, j))))
                                       : out[j - FORMAT_VEC_DIM] ^ 0x8000;
    }
    if (entries % 2)
        memset(out + (entries - 1) * FORMAT_VEC_DIM, 0, 2 * FORMAT_VEC_DIM);
}

/* Rows of the last block that do not exist: their cells are zero. */
static void clear_missing_rows(const struct record_layout *l, enum matrix m, uint8_t *index)
{
    uint32_t rows = record_rows(l, m), there = rows % FORMAT_INDEX_BLOCK;
    uint32_t positions = record_cols(l, m) / FORMAT_VEC_DIM;
    uint8_t *cell = index + (uint64_t)(rows / FORMAT_INDEX_BLOCK) * positions * FORMAT_INDEX_BLOCK *
                                l->cell_bytes;

    for (uint32_t v = 0; there && v < positions; v++, cell += FORMAT_INDEX_BLOCK * l->cell_bytes)
        memset(cell + there * l->cell_bytes, 0, (FORMAT_INDEX_BLOCK - there) * l->cell_bytes);
}

void synth_record(const struct synth_weights *w, const struct record_layout *l, unsigned layer,
                  unsigned expert, uint8_t *bytes)
{
    const struct shape *s = &w->shape;
    uint64_t key = key_of(w->seed, STREAM_RECORD, layer, expert);
    uint64_t mask = 0x0101010101010101u * (l->entries - 1), *words;
    uint64_t n = l->scale_off[MATRIX_GATE] / 8;
    /* K experts of weight routed_scale / K each, then added; a latent norm undoes any scale. */
    double out = s->latent ? 1 : FFN_STD * 0.8 * sqrt((double)s->top_k) / s->routed_scale;

    assert(l->index_bits == 8 && !(l->entries & (l->entries - 1)));
    words = (uint64_t *)(void *)bytes;
    fill_words(words, n, key, 0); /* the header too: sealing overwrites it */
    for (uint64_t i = 0; mask + 1 && i < n; i++)
        words[i] &= mask;
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        uint32_t rows = record_rows(l, m), cols = record_cols(l, m);
        double scale = (m == MATRIX_DOWN ? out / RMS_SITU : 1) / sqrt((double)cols);
        uint16_t *at = (uint16_t *)(void *)(bytes + l->scale_off[m]);

        clear_missing_rows(l, m, bytes + l->index_off[m]);
        for (uint32_t r = 0; r < rows; r++)
            at[r] = near(scale, word(key, n + l->scale_off[m] + r));
    }
    memset(bytes + l->used, 0, l->bytes - l->used);
}
