#include "model/budget.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "expertfs/codebook.h"
#include "model/image.h"
#include "model/image_queue.h"
#include "model/session.h"
#include "model/vision.h"
#include "model/weights.h"

enum {
    MIB = 1 << 20,
    DECODE_BYTES = 256 << 20, /* pixels of a picture while it is read: 8000 x 6000 fit */
    PAGE_MEMORY = 232, /* what is remembered of a page: storage/history.h, expertfs/hotlist.h */
};

static unsigned moe_layers(const struct facts *f)
{
    return f->hp.n_layers - f->hp.first_dense;
}

static uint64_t codebook_file_bytes(const struct facts *f)
{
    return (uint64_t)moe_layers(f) * MATRICES * f->record.stages *
           (FORMAT_CODEBOOK_HEADER + 2ull * f->record.entries * FORMAT_VEC_DIM);
}

static int add_listed(const struct weight *w, void *arg, struct err *e)
{
    struct {
        struct facts *f;
        const struct manifest *m;
    } *a = arg;
    const struct trunk_entry *t = manifest_tensor(a->m, w->name);
    uint64_t n = (uint64_t)w->rows * w->cols;

    (void)e;
    if (!t) /* missing ones are refused at open; a plan can do without */
        return 0;
    if (w->resident) {
        a->f->trunk_bytes += budget_tensor_bytes(t->payload_bytes, t->scale_bytes);
        a->f->params_trunk += n;
    } else {
        a->f->params_embed += n;
    }
    return 0;
}

static uint64_t tokenizer_file_bytes(int dirfd)
{
    struct stat st;

    if (!fstatat(dirfd, "tokenizer.model", &st, 0) || !fstatat(dirfd, "tiktoken.model", &st, 0))
        return (uint64_t)st.st_size;
    return 0;
}

int facts_of_manifest(struct facts *out, const struct manifest *m, int dirfd, struct err *e)
{
    struct facts f = {.record = m->record, .n_tensors = m->n_trunk};
    struct {
        struct facts *f;
        const struct manifest *m;
    } a = {&f, m};
    uint64_t end = 0;

    if (hparams_read(&f.hp, m->config, e) || weights_each(&f.hp, NULL, add_listed, &a, e))
        return e->code;
    for (unsigned i = 0; i < m->n_trunk; i++) {
        const struct trunk_entry *t = &m->trunk[i];
        uint64_t last = t->scale_bytes && t->scale_off > t->off ? t->scale_off + t->scale_bytes
                                                                : t->off + t->payload_bytes;

        end = last > end ? last : end;
    }
    f.trunk_file_bytes = end;
    f.disk_bytes = end;
    for (unsigned n = 0; n < m->n_layers; n++)
        f.disk_bytes += m->bank[n].present ? m->bank[n].bytes : 0;
    if (m->n_experts) {
        f.trunk_bytes += codebooks_bytes(&f.record, moe_layers(&f));
        f.disk_bytes += codebook_file_bytes(&f);
    }
    f.tokenizer_bytes = tokenizer_file_bytes(dirfd);
    snprintf(f.arch, sizeof(f.arch), "%s", m->arch);
    *out = f;
    return 0;
}

/* The converter's widths: small and one-dimensional tensors F32, embedding and head 8 bits, the
 * rest 4. */
static int add_converted(const struct weight *w, void *arg, struct err *e)
{
    struct facts *f = arg;
    uint64_t n = (uint64_t)w->rows * w->cols, groups = (w->cols + 127) / 128;
    uint64_t payload = n * sizeof(float), scales = 0;

    (void)e;
    if (w->kind == WEIGHT_MATRIX && n >= 65536) {
        bool wide = !w->resident || strstr(w->name, "lm_head.weight");

        payload = w->rows * groups * (wide ? 128 : 64);
        scales = w->rows * groups * 2;
    }
    f->trunk_file_bytes += payload + scales;
    f->n_tensors++;
    if (w->resident) {
        f->trunk_bytes += budget_tensor_bytes(payload, scales);
        f->params_trunk += n;
    } else {
        f->params_embed += n;
    }
    return 0;
}

static void arch_of_config(struct facts *f, const json_t *config)
{
    const json_t *list = json_object_get(config, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));

    snprintf(f->arch, sizeof(f->arch), "%s",
             !name                        ? "unknown"
             : strstr(name, "KimiK3")     ? "kimi-k3"
             : strstr(name, "KimiLinear") ? "kimi-linear"
                                          : name);
}

int facts_of_config(struct facts *out, const json_t *config, struct err *e)
{
    const json_t *text = json_object_get(config, "text_config");
    struct facts f = {.from_config = true};

    if (!json_is_object(config))
        return err_set(e, ERR_FORMAT, "config.json is not an object");
    if (hparams_read(&f.hp, json_is_object(text) ? text : config, e) ||
        weights_each(&f.hp, NULL, add_converted, &f, e))
        return e->code;
    arch_of_config(&f, config);
    f.disk_bytes = f.trunk_file_bytes;
    if (f.hp.n_experts) {
        if (record_layout_init(&f.record, f.hp.latent, f.hp.inter, 3, 256, 8, e))
            return e->code;
        f.trunk_bytes += codebooks_bytes(&f.record, moe_layers(&f));
        f.disk_bytes +=
            codebook_file_bytes(&f) + (uint64_t)moe_layers(&f) * f.hp.n_experts * f.record.bytes;
    }
    f.tokenizer_bytes = (uint64_t)f.hp.vocab * 18; /* base64 of a token and its rank */
    *out = f;
    return 0;
}

/* What libraries take and RSS shows: code and libc, thread stacks, the manifest's values, the
 * tokenizer's tables, the pool's and the engine's bookkeeping. */
static uint64_t process_bytes(const struct facts *f, const struct plan_request *r)
{
    return 20ull * MIB + r->threads * 256ull * 1024 + f->n_tensors * 4096ull +
           3 * f->tokenizer_bytes + (uint64_t)moe_layers(f) * f->hp.n_experts * PAGE_MEMORY;
}

static uint64_t scratch_bytes(const struct facts *f, const struct plan_request *r, unsigned rows)
{
    struct act_shape shape = {.rows = rows, .spans = r->sessions, .threads = r->threads};
    struct rvq_shape rvq[MATRICES] = {{0}};
    struct kernels k;
    uint64_t bytes;

    kernels_init(&k, r->cpu, r->profile);
    for (unsigned m = 0; f->hp.n_experts && m < MATRICES; m++)
        rvq[m] = (struct rvq_shape){.rows = record_rows(&f->record, m),
                                    .cols = record_cols(&f->record, m),
                                    .stages = f->record.stages,
                                    .entries = f->record.entries,
                                    .cell_bytes = f->record.cell_bytes};
    bytes = align_up(act_bytes(&f->hp, &k, rvq, shape), 4096);
    return bytes > TRUNK_WINDOW_BYTES ? bytes : TRUNK_WINDOW_BYTES; /* one after the other */
}

int facts_add_vision(struct facts *f, const struct manifest *m, int dirfd, uint32_t patches,
                     struct err *e)
{
    if (patches && (patches < 4 || patches > IMAGE_PATCHES_RELEASE))
        return err_set(e, ERR_ARG, "image_patches = %u: 4...%d are possible, 0 = the container's",
                       patches, IMAGE_PATCHES_RELEASE);
    if (vision_shape_read(&f->vision, m, dirfd, e) ||
        vision_weight_bytes(&f->vision_weights, &f->vision, m, e))
        return e->code;
    f->vision.max_patches = patches ? patches : f->vision.max_patches;
    return 0;
}

/* A picture is decoded, then encoded; pixels and rows wait until they are fed: of as many rows as a
 * context takes or one picture has, and of no more pictures than can wait. */
static uint64_t vision_plan(const struct facts *f, const struct plan_request *r)
{
    const struct vision_shape *s = &f->vision;
    uint64_t patches, work, rows, most;

    if (!f->vision_weights)
        return 0;
    patches = vision_patches_max(s);
    work = vision_scratch_bytes(s, (uint32_t)patches, r->threads);
    work = work > DECODE_BYTES ? work : DECODE_BYTES;
    rows = r->ctx > patches / 4 ? r->ctx : patches / 4;
    most = WASTE_IMAGES_MAX * patches / 4;
    rows = rows < most ? rows : most;
    return align_up(f->vision_weights, 4096) + TRUNK_WINDOW_BYTES + work + patches * IMAGE_COLUMNS +
           rows * (s->text * sizeof(float) + 4 * IMAGE_COLUMNS) + (2 * WASTE_IMAGES_MAX + 8) * 4096;
}

void plan_make(struct plan *out, const struct facts *f, const struct plan_request *r)
{
    struct plan p = {.rows = r->rows_max < ROWS_MIN ? r->rows_max : ROWS_MIN};
    uint64_t record = f->record.bytes, moe = moe_layers(f), least, left;

    p.process = process_bytes(f, r);
    p.trunk = align_up(f->trunk_bytes, 64) + weights_extra_bytes(&f->hp) + 3 * 4096;
    p.checkpoints =
        align_up(r->checkpoints * align_up(session_parts_bytes(&f->hp, r->ctx), 64), 4096);
    p.state = r->sessions * (align_up(session_bytes(&f->hp, r->ctx), 4096)) + p.checkpoints;
    least = scratch_bytes(f, r, p.rows);
    p.scratch = least + p.process;
    p.all_experts = record * moe * f->hp.n_experts;
    p.cache_min = 2 * record * f->hp.top_k;
    if (p.cache_min > p.all_experts)
        p.cache_min = p.all_experts;
    p.vision = vision_plan(f, r);
    p.floor = p.trunk + p.state + p.scratch + p.cache_min + p.vision;
    p.working_set = record * moe * f->hp.top_k;
    p.recommended =
        p.floor + (3 * p.working_set < p.all_experts ? 3 * p.working_set : p.all_experts);
    p.budget = r->budget;
    if (!p.budget) {
        p.chosen = true;
        p.budget = p.floor;
        for (unsigned sets = 3; sets && r->usable; sets--) {
            uint64_t more = sets * p.working_set;

            more = more < p.all_experts ? more : p.all_experts;
            if (p.floor + more <= r->usable / 4 * 3) {
                p.budget = p.floor + more;
                break;
            }
        }
    }
    p.fits = p.budget >= p.floor && !(p.chosen && r->usable && p.floor > r->usable);
    left = p.fits ? p.budget - p.floor : 0;
    p.scratch_rows = p.scratch;
    for (unsigned rows = r->rows_max; p.fits && rows > p.rows; rows = rows / 2) {
        uint64_t more = scratch_bytes(f, r, rows) - least;

        if (more > left / 2)
            continue;
        p.rows = rows;
        p.scratch_rows = p.scratch + more;
    }
    if (record) {
        uint64_t bytes = left + p.cache_min - (p.scratch_rows - p.scratch);

        bytes = bytes < p.all_experts ? bytes : p.all_experts;
        p.frames = p.fits ? (unsigned)(bytes / record) : 0;
    }
    *out = p;
}
