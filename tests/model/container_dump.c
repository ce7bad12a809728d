/* tests/model/container_dump.c - what the engine makes of a container's weights, for
 * test_read_container.py.
 *
 *     container_dump DIRECTORY LAYER:EXPERT...
 *
 * For each tensor of the trunk, each codebook in use, and gate, up and down of the experts named: a
 * line with its name and the number of its elements, then so many f32. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "expertfs/codebook.h"
#include "expertfs/trunk.h"
#include "model/rvq_encode.h"

static int dump_tensors(const struct container *c, struct err *e)
{
    const struct manifest *m = container_manifest(c);
    struct trunk *t;

    if (trunk_open(&t, c, e))
        return e->code;
    for (unsigned i = 0; i < m->n_trunk && !e->code; i++) {
        const struct trunk_entry *x = &m->trunk[i];
        float *row = malloc(x->cols * sizeof(*row));

        printf("%s %" PRIu64 "\n", x->name, x->rows * x->cols);
        for (uint64_t r = 0; row && r < x->rows && !trunk_read_row(t, x, r, row, e); r++)
            fwrite(row, sizeof(*row), x->cols, stdout);
        free(row);
    }
    trunk_close(t);
    return e->code;
}

static void dump_codebooks(const struct container *c, const struct codebooks *cb)
{
    const struct manifest *m = container_manifest(c);
    size_t one = (size_t)m->record.entries * FORMAT_VEC_DIM;

    for (unsigned layer = m->first_dense; layer < m->n_layers; layer++)
        for (unsigned i = 0; i < MATRICES * m->record.stages; i++) {
            const float *books = codebook_at(cb, layer, (enum matrix)(i / m->record.stages));

            printf("codebook.%u %zu\n", m->bank[layer].codebook_base + i, one);
            fwrite(books + i % m->record.stages * one, sizeof(*books), one, stdout);
        }
}

static void dump_matrix(const struct record_layout *l, const uint8_t *record, const float *books,
                        enum matrix m)
{
    const uint16_t *scale = (const uint16_t *)(const void *)(record + l->scale_off[m]);
    float *row = malloc(record_cols(l, m) * sizeof(*row));

    for (uint32_t r = 0; row && r < record_rows(l, m); r++) {
        rvq_decode_row(row, record + l->index_off[m], scale, books, l, m, r);
        fwrite(row, sizeof(*row), record_cols(l, m), stdout);
    }
    free(row);
}

static int dump_expert(const struct container *c, const struct codebooks *cb, const char *which,
                       struct err *e)
{
    const struct manifest *m = container_manifest(c);
    const struct record_layout *l = &m->record;
    uint8_t *record = malloc(l->bytes);
    unsigned layer, expert, n;
    struct extent at;

    if (!record || sscanf(which, "%u:%u", &layer, &expert) != 2)
        err_set(e, ERR_ARG, "%s", which);
    if (!e->code) {
        at = container_extent(c, layer, expert);
        if (!file_read(container_files(c, &n)[at.file], record, l->bytes, at.offset, e) &&
            !record_check(l, record, layer, expert, m->bank[layer].codebook_base, e))
            record_verify(l, record, layer, expert, e);
    }
    for (enum matrix i = 0; i < MATRICES && !e->code; i++) {
        printf("expert.%s.%s %" PRIu64 "\n", which, matrix_name(i),
               (uint64_t)record_rows(l, i) * record_cols(l, i));
        dump_matrix(l, record, codebook_at(cb, layer, i), i);
    }
    free(record);
    return e->code;
}

int main(int argc, char **argv)
{
    struct container_options o = {0};
    struct codebooks *cb = NULL;
    struct container *c = NULL;
    struct err e = {0};

    if (argc < 2 || container_open(&c, argv[1], &o, &e) || dump_tensors(c, &e))
        goto out;
    if (container_manifest(c)->n_experts && !codebooks_open(&cb, c, NULL, &e)) {
        dump_codebooks(c, cb);
        for (int i = 2; i < argc && !dump_expert(c, cb, argv[i], &e); i++)
            ;
    }
out:
    if (e.code)
        fprintf(stderr, "%s\n", e.text);
    codebooks_close(cb);
    container_close(c);
    return argc < 2 || e.code;
}
