#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "model/kernels/poly.h"

/* One visit: the caller's function, and the layer whose prefix names are built with. */
struct visit {
    weight_fn *fn;
    void *arg;
    struct err *e;
    bool store; /* members are there to be filled */
    char prefix[64];
};

static int visit_one(struct visit *v, const char *name, enum weight_class kind, uint32_t rows,
                     uint32_t cols, bool optional, struct tensor *t, const float **f)
{
    char full[160];
    struct weight w = {
        .name = full,
        .kind = kind,
        .rows = rows,
        .cols = cols,
        .optional = optional,
        .resident = true,
        .tensor = v->store ? t : NULL,
        .vector = v->store ? f : NULL,
    };

    snprintf(full, sizeof(full), "%s%s", v->prefix, name);
    return v->fn(&w, v->arg, v->e);
}

static int matrix(struct visit *v, const char *name, uint32_t rows, uint32_t cols, struct tensor *t)
{
    return visit_one(v, name, WEIGHT_MATRIX, rows, cols, false, t, NULL);
}

static int vector(struct visit *v, const char *name, uint32_t n, const float **f)
{
    return visit_one(v, name, WEIGHT_VECTOR, 1, n, false, NULL, f);
}

static int at_least(struct visit *v, const char *name, uint32_t n, const float **f)
{
    return visit_one(v, name, WEIGHT_AT_LEAST, 1, n, false, NULL, f);
}

static int each_kda(struct visit *v, const struct hparams *hp, struct kda_weights *w)
{
    uint32_t C = hparams_kda_channels(hp), h = hp->hidden, D = hp->kda_dim, taps = hp->conv_taps;

    if (matrix(v, "self_attn.q_proj.weight", C, h, &w->q) ||
        matrix(v, "self_attn.k_proj.weight", C, h, &w->k) ||
        matrix(v, "self_attn.v_proj.weight", C, h, &w->v) ||
        at_least(v, "self_attn.q_conv1d.weight", C * taps, &w->q_conv) ||
        at_least(v, "self_attn.k_conv1d.weight", C * taps, &w->k_conv) ||
        at_least(v, "self_attn.v_conv1d.weight", C * taps, &w->v_conv) ||
        matrix(v, "self_attn.f_a_proj.weight", D, h, &w->f_a) ||
        matrix(v, "self_attn.f_b_proj.weight", C, D, &w->f_b) ||
        matrix(v, "self_attn.b_proj.weight", hp->kda_heads, h, &w->b) ||
        at_least(v, "self_attn.A_log", hp->kda_heads, &w->a_log) ||
        at_least(v, "self_attn.dt_bias", C, &w->dt_bias) ||
        vector(v, "self_attn.o_norm.weight", D, &w->o_norm) ||
        matrix(v, "self_attn.o_proj.weight", h, C, &w->o))
        return v->e->code;
    if (hp->kda_full_gate)
        return matrix(v, "self_attn.g_proj.weight", C, h, &w->g);
    if (matrix(v, "self_attn.g_a_proj.weight", D, h, &w->g_a))
        return v->e->code;
    return matrix(v, "self_attn.g_b_proj.weight", C, D, &w->g_b);
}

static int each_mla(struct visit *v, const struct hparams *hp, struct mla_weights *w)
{
    uint32_t h = hp->hidden, qd = hp->n_heads * (hp->nope + hp->rope);

    if (hp->q_lora) {
        if (matrix(v, "self_attn.q_a_proj.weight", hp->q_lora, h, &w->q_a) ||
            vector(v, "self_attn.q_a_layernorm.weight", hp->q_lora, &w->q_norm) ||
            matrix(v, "self_attn.q_b_proj.weight", qd, hp->q_lora, &w->q_b))
            return v->e->code;
    } else if (matrix(v, "self_attn.q_proj.weight", qd, h, &w->q)) {
        return v->e->code;
    }
    if (matrix(v, "self_attn.kv_a_proj_with_mqa.weight", hp->kv_lora + hp->rope, h, &w->kv_a) ||
        vector(v, "self_attn.kv_a_layernorm.weight", hp->kv_lora, &w->kv_norm) ||
        matrix(v, "self_attn.kv_b_proj.weight", hp->n_heads * (hp->nope + hp->v_dim), hp->kv_lora,
               &w->kv_b) ||
        matrix(v, "self_attn.o_proj.weight", h, hp->n_heads * hp->v_dim, &w->o))
        return v->e->code;
    return hp->mla_gate ? matrix(v, "self_attn.g_proj.weight", hp->n_heads * hp->v_dim, h, &w->g)
                        : 0;
}

static int each_moe(struct visit *v, const struct hparams *hp, struct layer *l)
{
    uint32_t h = hp->hidden, sh = hp->inter * hp->n_shared;

    if (matrix(v, "block_sparse_moe.gate.weight", hp->n_experts, h, &l->moe.router) ||
        visit_one(v, "block_sparse_moe.gate.e_score_correction_bias", WEIGHT_VECTOR, 1,
                  hp->n_experts, true, NULL, &l->moe.bias) ||
        matrix(v, "block_sparse_moe.shared_experts.gate_proj.weight", sh, h, &l->ffn.gate) ||
        matrix(v, "block_sparse_moe.shared_experts.up_proj.weight", sh, h, &l->ffn.up) ||
        matrix(v, "block_sparse_moe.shared_experts.down_proj.weight", h, sh, &l->ffn.down))
        return v->e->code;
    if (!hp->latent_moe)
        return 0;
    if (matrix(v, "block_sparse_moe.routed_expert_down_proj.weight", hp->latent, h,
               &l->moe.latent_down) ||
        matrix(v, "block_sparse_moe.routed_expert_up_proj.weight", h, hp->latent,
               &l->moe.latent_up))
        return v->e->code;
    return hp->latent_norm ? vector(v, "block_sparse_moe.routed_expert_norm.weight", hp->latent,
                                    &l->moe.latent_norm)
                           : 0;
}

static int each_dense(struct visit *v, const struct hparams *hp, struct ffn_weights *w)
{
    if (matrix(v, "mlp.gate_proj.weight", hp->dense_inter, hp->hidden, &w->gate) ||
        matrix(v, "mlp.up_proj.weight", hp->dense_inter, hp->hidden, &w->up))
        return v->e->code;
    return matrix(v, "mlp.down_proj.weight", hp->hidden, hp->dense_inter, &w->down);
}

static int each_layer(struct visit *v, const struct hparams *hp, unsigned n, struct layer *l)
{
    snprintf(v->prefix, sizeof(v->prefix), "model.layers.%u.", n);
    if (vector(v, "input_layernorm.weight", hp->hidden, &l->mix_norm) ||
        vector(v, "post_attention_layernorm.weight", hp->hidden, &l->mlp_norm))
        return v->e->code;
    if (hp->is_kda[n] ? each_kda(v, hp, &l->kda) : each_mla(v, hp, &l->mla))
        return v->e->code;
    if (hp->attn_res_block &&
        (vector(v, "self_attention_res_norm.weight", hp->hidden, &l->mix_res.norm) ||
         vector(v, "self_attention_res_proj.weight", hp->hidden, &l->mix_res.proj) ||
         vector(v, "mlp_res_norm.weight", hp->hidden, &l->mlp_res.norm) ||
         vector(v, "mlp_res_proj.weight", hp->hidden, &l->mlp_res.proj)))
        return v->e->code;
    return hparams_is_moe(hp, n) ? each_moe(v, hp, l) : each_dense(v, hp, &l->ffn);
}

static int embed_entry(struct visit *v, const struct hparams *hp)
{
    struct weight w = {.name = "model.embed_tokens.weight",
                       .kind = WEIGHT_MATRIX,
                       .rows = hp->vocab,
                       .cols = hp->hidden,
                       .resident = false};

    return v->fn(&w, v->arg, v->e);
}

int weights_each(const struct hparams *hp, struct model *m, weight_fn *fn, void *arg, struct err *e)
{
    static struct layer nowhere; /* members to name when there are none to fill; never written */
    static struct model no_model;
    struct visit v = {.fn = fn, .arg = arg, .e = e, .store = m != NULL};
    struct model *to = m ? m : &no_model;

    if (embed_entry(&v, hp) || matrix(&v, "lm_head.weight", hp->vocab, hp->hidden, &to->head) ||
        vector(&v, "model.norm.weight", hp->hidden, &to->norm))
        return e->code;
    if (hp->attn_res_block &&
        (vector(&v, "model.output_attn_res_norm.weight", hp->hidden, &to->out_res.norm) ||
         vector(&v, "model.output_attn_res_proj.weight", hp->hidden, &to->out_res.proj)))
        return e->code;
    for (unsigned n = 0; n < hp->n_layers; n++)
        if (each_layer(&v, hp, n, m ? &m->layer[n] : &nowhere))
            return e->code;
    return 0;
}

struct binding {
    struct model *m;
    const struct container *c;
    struct trunk *trunk;
};

static const char *shape_text(const struct trunk_entry *t, char *text, size_t n)
{
    size_t used = 0;

    for (unsigned i = 0; i < t->rank && used < n; i++)
        used += (size_t)snprintf(text + used, n - used, "%s%u", i ? "," : "", t->dim[i]);
    return text;
}

static const char *fmt_text(int fmt)
{
    return fmt == FMT_F32 ? "F32" : fmt == FMT_Q8G ? "Q8G" : fmt == FMT_Q4G ? "Q4G" : "Q3G";
}

static int check(const struct weight *w, const struct trunk_entry *t, struct err *e)
{
    uint64_t want = (uint64_t)w->rows * w->cols, have = t->rows * t->cols;
    char shape[64];
    bool ok;

    if (w->kind == WEIGHT_MATRIX)
        ok = t->rank == 2 && t->rows == w->rows && t->cols == w->cols;
    else
        ok = t->fmt == FMT_F32 && (w->kind == WEIGHT_VECTOR ? have == want : have >= want);
    if (ok)
        return 0;
    shape_text(t, shape, sizeof(shape));
    if (w->kind == WEIGHT_MATRIX)
        return err_set(e, ERR_FORMAT, "trunk: \"%s\" is [%s] %s, expected [%u,%u]", t->name, shape,
                       fmt_text(t->fmt), w->rows, w->cols);
    return err_set(e, ERR_FORMAT, "trunk: \"%s\" is [%s] %s, expected F32 with %s%llu elements",
                   t->name, shape, fmt_text(t->fmt), w->kind == WEIGHT_VECTOR ? "" : "at least ",
                   (unsigned long long)want);
}

static int bind_one(const struct weight *w, void *arg, struct err *e)
{
    struct binding *b = arg;
    const struct manifest *mf = container_manifest(b->c);
    const struct trunk_entry *t = manifest_tensor(mf, w->name);

    if (!t) {
        if (w->optional)
            return 0;
        return err_set(e, ERR_FORMAT,
                       "trunk: tensor \"%s%s\" is needed by this model but not listed", mf->prefix,
                       w->name);
    }
    if (check(w, t, e))
        return e->code;
    if (w->resident)
        trunk_want(b->trunk, t);
    else
        b->m->embed = t;
    return 0;
}

/* Rule T12: a router where none belongs means that the configuration is not this model's. */
static int no_stray_router(const struct hparams *hp, const struct manifest *mf, struct err *e)
{
    char name[96];

    for (unsigned n = 0; n < hp->n_layers; n++) {
        snprintf(name, sizeof(name), "model.layers.%u.block_sparse_moe.gate.weight", n);
        if (!hparams_is_moe(hp, n) && manifest_tensor(mf, name))
            return err_set(e, ERR_FORMAT, "layer %u: router present but layer is dense", n);
    }
    return 0;
}

int weights_bind(struct model *m, const struct container *c, struct trunk *trunk, struct err *e)
{
    struct binding b = {.m = m, .c = c, .trunk = trunk};

    if (no_stray_router(&m->hp, container_manifest(c), e))
        return e->code;
    return weights_each(&m->hp, m, bind_one, &b, e);
}

void weight_point(const struct weight *w, const struct trunk *trunk, const struct trunk_entry *t)
{
    struct trunk_view v = trunk_at(trunk, t);

    if (w->vector)
        *w->vector = (const float *)(const void *)v.data;
    if (w->tensor)
        *w->tensor = (struct tensor){
            .fmt = t->fmt,
            .rows = (uint32_t)t->rows,
            .cols = (uint32_t)t->cols,
            .groups = t->groups,
            .row_bytes = t->row_bytes,
            .data = v.data,
            .scale = v.scale,
        };
}

static int point_one(const struct weight *w, void *arg, struct err *e)
{
    struct binding *b = arg;
    const struct trunk_entry *t = manifest_tensor(container_manifest(b->c), w->name);

    (void)e;
    if (t && w->resident)
        weight_point(w, b->trunk, t);
    return 0;
}

static void res_product(struct res_weights *r, unsigned n, float **next)
{
    r->both = *next;
    *next += n;
    for (unsigned i = 0; i < n; i++)
        r->both[i] = r->norm[i] * r->proj[i];
}

uint64_t weights_extra_bytes(const struct hparams *hp)
{
    uint64_t floats = (uint64_t)hp->n_kda * hp->kda_heads;

    if (hp->attn_res_block)
        floats += (2ull * hp->n_layers + 1) * hp->hidden;
    return align_up(floats * sizeof(float), 64);
}

void weights_load(struct model *m, const struct container *c, struct trunk *trunk,
                  struct codebooks *books, void *extra)
{
    const struct record_layout *rec = &container_manifest(c)->record;
    struct binding b = {.m = m, .c = c, .trunk = trunk};
    const struct hparams *hp = &m->hp;
    float *next = extra;
    unsigned nth[2] = {0, 0};
    struct err e;

    m->trunk = trunk;
    m->books = books;
    weights_each(hp, m, point_one, &b, &e);
    for (unsigned n = 0; n < hp->n_layers; n++) {
        struct layer *l = &m->layer[n];

        l->mix = hp->is_kda[n] ? MIX_KDA : MIX_MLA;
        l->mlp = hparams_is_moe(hp, n) ? MLP_MOE : MLP_DENSE;
        l->nth = nth[l->mix]++;
        if (l->mix == MIX_KDA) {
            l->kda.decay_rate = next;
            next += hp->kda_heads;
            for (unsigned i = 0; i < hp->kda_heads; i++)
                l->kda.decay_rate[i] = poly_exp(l->kda.a_log[i]);
        }
        if (hp->attn_res_block) {
            res_product(&l->mix_res, hp->hidden, &next);
            res_product(&l->mlp_res, hp->hidden, &next);
        }
        for (unsigned k = 0; l->mlp == MLP_MOE && k < MATRICES; k++)
            l->moe.codebook[k] = codebook_at(books, n, k);
    }
    if (hp->attn_res_block)
        res_product(&m->out_res, hp->hidden, &next);
    for (unsigned k = 0; hp->n_experts && k < MATRICES; k++)
        m->rvq[k] = (struct rvq_shape){
            .rows = record_rows(rec, k),
            .cols = record_cols(rec, k),
            .stages = rec->stages,
            .entries = rec->entries,
            .cell_bytes = rec->cell_bytes,
        };
}
