#include "model/act.h"

#include <string.h>

#include "model/sampler.h"

enum { KEPT_ROWS = 4 }; /* rows whose gate and up tables are built once a layer */

struct bump { /* hands out pieces of one allocation; with base NULL it only counts */
    uint8_t *base;
    size_t at, top;
};

static void *take(struct bump *b, size_t n, size_t bytes_each)
{
    void *p = b->base ? b->base + b->at : NULL;

    b->at = (b->at + n * bytes_each + 63) & ~(size_t)63;
    b->top = b->at > b->top ? b->at : b->top;
    return p;
}

static float *floats(struct bump *b, size_t n)
{
    return take(b, n, sizeof(float));
}

static void lay_kda(struct kda_act *a, struct bump *b, const struct hparams *hp, struct act_shape s)
{
    size_t C = hparams_kda_channels(hp), T = s.rows;

    a->dim_w = act_pad(hp->kda_dim);
    a->chan_w = act_pad(C);
    a->q_lin = floats(b, T * C);
    a->k_lin = floats(b, T * C);
    a->v_lin = floats(b, T * C);
    a->q = floats(b, T * C);
    a->k = floats(b, T * C);
    a->v = floats(b, T * C);
    a->decay = floats(b, T * C);
    a->beta = floats(b, T * hp->kda_heads);
    a->low_f = floats(b, T * a->dim_w);
    a->low_g = floats(b, T * a->dim_w);
    a->gate = floats(b, T * C);
    a->o = floats(b, T * C);
    a->gated = floats(b, T * a->chan_w);
    a->edge = floats(b, (size_t)s.spans * 3 * 2 * (hp->conv_taps - 1) * C);
}

static void lay_mla(struct mla_act *a, struct bump *b, const struct hparams *hp, struct act_shape s)
{
    size_t T = s.rows;

    a->q_lora_w = act_pad(hp->q_lora);
    a->out_w = act_pad((size_t)hp->n_heads * hp->v_dim);
    a->kv_lora_w = act_pad(hp->kv_lora);
    a->scratch_n = attend_scratch_floats(hp->kv_lora, MLA_QUERIES);
    a->q_low = floats(b, T * a->q_lora_w);
    a->q = floats(b, T * hp->n_heads * (hp->nope + hp->rope));
    a->kv = floats(b, T * (hp->kv_lora + hp->rope));
    a->gate = floats(b, hp->mla_gate ? T * hp->n_heads * hp->v_dim : 0);
    a->o = floats(b, T * a->out_w);
    a->query = floats(b, (size_t)s.threads * MLA_QUERIES * hparams_latent_stride(hp));
    a->context = floats(b, (size_t)s.threads * MLA_QUERIES * a->kv_lora_w);
    a->scratch = floats(b, s.threads * a->scratch_n);
}

static void lay_ffn(struct ffn_act *a, struct bump *b, const struct hparams *hp, struct act_shape s)
{
    size_t inner = hp->first_dense ? hp->dense_inter : 0, sh = (size_t)hp->inter * hp->n_shared;

    if (hp->n_experts && sh > inner)
        inner = sh;
    a->inner_w = act_pad(inner);
    a->gate = floats(b, s.rows * a->inner_w);
    a->up = floats(b, s.rows * a->inner_w);
}

static void lay_moe(struct moe_act *a, struct bump *b, const struct hparams *hp,
                    const struct kernels *k, const struct rvq_shape *rvq, struct act_shape s)
{
    size_t T = s.rows, E = hp->n_experts, K = hp->top_k;

    if (!E)
        return;
    a->latent_w = act_pad(hp->latent);
    a->inter_w = act_pad(hp->inter);
    a->tables_bytes = 0;
    for (unsigned m = 0; m < MATRICES; m++) {
        a->table_bytes[m] = k->rvq_prepared_bytes(&rvq[m]);
        a->tables_bytes += a->table_bytes[m];
    }
    a->kept_rows = T < KEPT_ROWS ? (unsigned)T : KEPT_ROWS;
    a->z = hp->latent_moe ? floats(b, T * a->latent_w) : NULL;
    a->score = floats(b, T * E);
    a->id = take(b, T * K, sizeof(uint16_t));
    a->weight = floats(b, T * K);
    a->slot = floats(b, T * K * hp->latent);
    a->sum = floats(b, T * a->latent_w);
    a->shared = floats(b, T * hp->hidden);
    a->wanted = take(b, E, sizeof(uint16_t));
    a->first = take(b, E + 1, sizeof(uint32_t));
    a->user = take(b, T * K, sizeof(uint32_t));
    a->table = take(b, s.threads, a->tables_bytes);
    a->kept = take(b, a->kept_rows, a->table_bytes[MATRIX_GATE] + a->table_bytes[MATRIX_UP]);
    a->inner = floats(b, s.threads * 2 * a->inter_w);
    a->guess = floats(b, E);
    a->route = floats(b, s.threads * 2 * E);
}

static size_t lay(struct act *a, uint8_t *base, const struct hparams *hp, const struct kernels *k,
                  const struct rvq_shape *rvq, struct act_shape s)
{
    struct bump b = {.base = base};
    size_t T = s.rows, blocks = 0, shared;

    if (hp->attn_res_block)
        blocks = (hp->n_layers + hp->attn_res_block - 1) / hp->attn_res_block;
    a->shape = s;
    a->hidden_w = act_pad(hp->hidden);
    a->x = floats(&b, T * a->hidden_w);
    a->mixed = floats(&b, blocks ? T * a->hidden_w : 0);
    a->h = floats(&b, T * a->hidden_w);
    a->y = floats(&b, T * a->hidden_w);
    a->block = floats(&b, blocks * T * hp->hidden);
    a->rope_cos = floats(&b, T * hp->rope / 2);
    a->rope_sin = floats(&b, T * hp->rope / 2);
    a->last = floats(&b, s.spans * a->hidden_w);
    a->logits = floats(&b, (size_t)s.spans * hp->vocab);
    a->choose = floats(&b, sampler_scratch_floats(hp->vocab));
    a->logprob = floats(&b, T);
    shared = b.at;
    if (hp->n_kda)
        lay_kda(&a->kda, &b, hp, s);
    b.at = shared;
    if (hp->n_mla)
        lay_mla(&a->mla, &b, hp, s);
    b.at = shared;
    lay_ffn(&a->ffn, &b, hp, s);
    lay_moe(&a->moe, &b, hp, k, rvq, s);
    b.at = shared; /* the head runs when the blocks are done */
    a->head_rows = T < HEAD_ROWS ? (unsigned)T : HEAD_ROWS;
    a->head = floats(&b, (size_t)a->head_rows * hp->vocab);
    return b.top + 1024; /* vectors are read up to 128 columns past their start */
}

size_t act_bytes(const struct hparams *hp, const struct kernels *k,
                 const struct rvq_shape rvq[MATRICES], struct act_shape shape)
{
    struct act a = {0};

    return lay(&a, NULL, hp, k, rvq, shape);
}

int act_open(struct act *out, struct mem *mem, const struct model *m, struct act_shape shape,
             struct err *e)
{
    struct act a = {.mem = mem};

    a.bytes = act_bytes(&m->hp, &m->k, m->rvq, shape);
    if (mem_map(mem, MEM_SCRATCH, a.bytes, true, &a.memory, e))
        return err_wrap(e, "activations of %u rows", shape.rows);
    lay(&a, a.memory, &m->hp, &m->k, m->rvq, shape);
    *out = a;
    return 0;
}

void act_close(struct act *a)
{
    if (a->memory)
        mem_unmap(a->mem, MEM_SCRATCH, a->memory, a->bytes);
    a->memory = NULL;
}

void act_zero_padding(float *p, unsigned rows, size_t width, size_t n)
{
    for (unsigned i = 0; n < width && i < rows; i++)
        memset(p + i * width + n, 0, (width - n) * sizeof(*p));
}
