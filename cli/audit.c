#include "cli/audit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "expertfs/placement.h"

/* What a conversion with the usual settings has: 3 stages of 256, trunk at 4 bits. */
static const struct published {
    const char *model;
    unsigned n_layers, first_dense, n_experts, hidden;
    uint64_t record, codebooks, trunk, trunk_vision8; /* bytes; the last: vision tower at 8 bits */
    unsigned tensors, tensors_text; /* tensors_text: without the vision tower; 0: there is none */
} models[] = {
    {"Kimi-Linear 48B", 27, 1, 256, 2304, 2666496, 962208, 1419257600, 0, 525, 0},
    {"Kimi K3", 93, 1, 896, 7168, 12406784, 3404736, 30720353792, 31174692352, 2628, 2460},
};

__attribute__((format(printf, 2, 3))) static void add_note(struct audit *a, const char *fmt, ...)
{
    va_list ap;

    if (a->n_notes == AUDIT_NOTES_MAX)
        return;
    va_start(ap, fmt);
    vsnprintf(a->note[a->n_notes++], AUDIT_NOTE_BYTES, fmt, ap);
    va_end(ap);
}

static void add_check(struct audit *a, const char *what, bool count, uint64_t found,
                      uint64_t published)
{
    a->check[a->n_checks++] = (struct audit_check){what, count, found, published};
}

/* 0 also when there is no such file. */
static uint64_t file_bytes(int dirfd, const char *name)
{
    struct stat st;

    return fstatat(dirfd, name, &st, 0) ? 0 : (uint64_t)st.st_size;
}

static const struct published *published_shape(const struct manifest *m)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        const struct published *p = &models[i];

        if (m->n_layers == p->n_layers && m->first_dense == p->first_dense &&
            m->n_experts == p->n_experts && m->hidden == p->hidden)
            return p;
    }
    return NULL;
}

static void compare(struct audit *a, const struct manifest *m, const struct published *p, int dirfd)
{
    uint64_t trunk = file_bytes(dirfd, "trunk.bin"), banks = 0;
    uint64_t n_moe = p->n_layers - p->first_dense;
    bool vision8 = p->trunk_vision8 && trunk == p->trunk_vision8;

    a->model = p->model;
    for (unsigned i = 0; i < m->n_layers; i++)
        banks += m->bank[i].present ? m->bank[i].bytes : 0;
    add_check(a, "record", false, m->record.bytes, p->record);
    add_check(a, "all banks", false, banks, n_moe * p->n_experts * p->record);
    add_check(a, "codebooks.bin", false, file_bytes(dirfd, "codebooks.bin"), p->codebooks);
    add_check(a, "trunk.bin", false, trunk, vision8 ? p->trunk_vision8 : p->trunk);
    add_check(a, "trunk tensors", true, m->n_trunk, p->tensors);
    if (vision8)
        add_note(a, "the vision tower was rewritten at 8 bits");
    if (p->tensors_text && m->n_trunk == p->tensors_text)
        add_note(a, "text only: the vision tower's tensors are not there");
}

/* Variants in circulation; all of them open. */
static void note_variants(struct audit *a, const struct manifest *m)
{
    const json_t *quant = json_object_get(m->root, "expert_quant");
    const char *arch = json_string_value(json_object_get(m->root, "arch"));

    if (m->n_experts && !json_object_get(quant, "index_bits"))
        add_note(a, "no index_bits in the manifest: made before 2026-08-04");
    if (arch && !strcmp(arch, "kimi_linear"))
        add_note(a, "arch is \"kimi_linear\": made before 2026-07-29");
    if (!json_object_get(m->root, "tensor_prefix"))
        add_note(a, "no tensor_prefix in the manifest: made before 2026-07-27");
    if (m->record.stages == 2)
        add_note(a,
                 "two stages: about 33 %% error in the experts' weights, where three have 19.5 %%");
    if (*m->warning)
        add_note(a, "%s", m->warning);
}

static void note_files(struct audit *a, const struct manifest *m, int dirfd)
{
    unsigned bad = 0, spread = 0;
    struct placement where;
    struct err e, size;

    if (!file_bytes(dirfd, "tokenizer.model") && !file_bytes(dirfd, "tiktoken.model"))
        add_note(a, "no tokenizer.model: only token ids can be used");
    if (!file_bytes(dirfd, "specials.json"))
        add_note(a, "no specials.json: control texts are ordinary text");
    if (placement_read(&where, dirfd, m->first_dense, m->n_layers, &e))
        add_note(a, "%s", e.text);
    for (unsigned i = 0; i < m->n_layers; i++) {
        const struct bank *b = &m->bank[i];

        spread += where.spread[i];
        if (b->present && !where.spread[i] &&
            manifest_check_bank_bytes(b->file, file_bytes(dirfd, b->file), b->bytes,
                                      bad ? &e : &size))
            bad++;
    }
    if (bad)
        add_note(a, "%s%s", size.text, bad > 1 ? "; and others" : "");
    if (spread)
        add_note(a, "experts of %u layers are spread over %u drives (waste place)", spread,
                 where.n);
}

void audit_container(struct audit *a, const struct manifest *m, int dirfd)
{
    const struct published *p = published_shape(m);

    *a = (struct audit){0};
    if (p)
        compare(a, m, p, dirfd);
    note_variants(a, m);
    note_files(a, m, dirfd);
}

unsigned audit_same(const struct audit *a)
{
    unsigned n = 0;

    for (unsigned i = 0; i < a->n_checks; i++)
        n += a->check[i].found == a->check[i].published;
    return n;
}
