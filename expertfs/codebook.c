#include "expertfs/codebook.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/half.h"

enum { RECORDS_MAX = 65535 }; /* and one layer's worth: what a 16-bit base can reach */

struct codebooks {
    struct mem *mem, own; /* mem == &own when the caller keeps no account */
    float *values;        /* [MoE layers][MATRICES][stride] */
    size_t bytes;         /* of values */
    size_t stride;        /* floats per matrix: stages * entries * 8, rounded up to 64 bytes */
    const struct manifest *m;
};

static size_t stride_of(const struct record_layout *l)
{
    return ((size_t)l->stages * l->entries * FORMAT_VEC_DIM + 15) / 16 * 16;
}

uint64_t codebooks_bytes(const struct record_layout *l, unsigned n_layers)
{
    uint64_t bytes = (uint64_t)n_layers * MATRICES * stride_of(l) * sizeof(float);

    return (bytes + FORMAT_PAGE - 1) / FORMAT_PAGE * FORMAT_PAGE;
}

static size_t record_bytes(const struct record_layout *l)
{
    return FORMAT_CODEBOOK_HEADER + 2 * (size_t)l->entries * FORMAT_VEC_DIM;
}

/* Rules C2, C3, C6 and C7: is every layer's range of records there, and its own? */
static int ranges_check(const struct manifest *m, uint64_t file_bytes, struct err *e)
{
    uint64_t size = record_bytes(&m->record), n = file_bytes / size;
    uint32_t per_layer = MATRICES * m->record.stages;

    if (file_bytes % size)
        return err_set(e, ERR_FORMAT,
                       "codebooks.bin: %" PRIu64 " bytes is not a whole number of %" PRIu64
                       "-byte records",
                       file_bytes, size);
    if (n > RECORDS_MAX + per_layer)
        return err_set(e, ERR_LIMIT, "codebooks.bin: %" PRIu64 " records, at most %u can be used",
                       n, RECORDS_MAX + per_layer);
    for (unsigned a = m->first_dense; a < m->n_layers; a++) {
        uint32_t base = m->bank[a].codebook_base;

        if (base + per_layer > n)
            return err_set(
                e, ERR_FORMAT,
                "layers.%u.codebook_base %u needs %u records, codebooks.bin has %" PRIu64, a, base,
                base + per_layer, n);
        for (unsigned b = m->first_dense; b < a; b++) {
            uint32_t other = m->bank[b].codebook_base;

            if (base < other + per_layer && other < base + per_layer)
                return err_set(e, ERR_FORMAT,
                               "layers.%u.codebook_base %u overlaps layers.%u.codebook_base %u", b,
                               other, a, base);
        }
    }
    return 0;
}

/* Rules C4 and C5 on one record, and its values. The format byte is not looked at: always 4. */
static int record_read(float *out, const uint8_t *bytes, const struct record_layout *l,
                       uint32_t index, unsigned layer, unsigned nth, struct err *e)
{
    struct bytes in = bytes_of(bytes, record_bytes(l));
    uint32_t magic = bytes_u32(&in);
    unsigned id = bytes_u16(&in), vec_dim, entries, n = l->entries * FORMAT_VEC_DIM;
    char who[64];

    bytes_u8(&in);
    vec_dim = bytes_u8(&in);
    entries = bytes_u32(&in);
    bytes_u32(&in);
    snprintf(who, sizeof(who), "record %u (layer %u %s stage %u)", index, layer,
             matrix_name(nth / l->stages), nth % l->stages);
    if (magic != CODEBOOK_MAGIC)
        return err_set(e, ERR_FORMAT, "codebooks.bin: %s has magic %08x", who, magic);
    if (id != (index & 0xffff))
        return err_set(e, ERR_FORMAT, "codebooks.bin: %s has id %u", who, id);
    if (vec_dim != FORMAT_VEC_DIM)
        return err_set(e, ERR_FORMAT, "codebooks.bin: %s has vec_dim %u, expected %d", who, vec_dim,
                       FORMAT_VEC_DIM);
    if (entries != l->entries)
        return err_set(e, ERR_FORMAT, "codebooks.bin: %s has %u entries, expected %u", who, entries,
                       l->entries);
    for (unsigned i = 0; i < n; i++) {
        uint16_t half = bytes_u16(&in);

        if (!half_finite(half))
            return err_set(e, ERR_CORRUPT, "codebooks.bin: %s has a non-finite value at element %u",
                           who, i);
        out[i] = half_to_f32(half);
    }
    return 0;
}

static int layer_read(struct codebooks *cb, const struct file *f, unsigned layer, uint8_t *bytes,
                      struct err *e)
{
    const struct record_layout *l = &cb->m->record;
    uint32_t base = cb->m->bank[layer].codebook_base, n = MATRICES * l->stages;
    size_t size = record_bytes(l);
    float *out = cb->values + (size_t)(layer - cb->m->first_dense) * MATRICES * cb->stride;

    if (file_read(f, bytes, n * size, base * size, e))
        return e->code;
    for (unsigned i = 0; i < n; i++) {
        float *at = out + i / l->stages * cb->stride +
                    (size_t)(i % l->stages) * l->entries * FORMAT_VEC_DIM;

        if (record_read(at, bytes + i * size, l, base + i, layer, i, e))
            return e->code;
    }
    return 0;
}

/* The layers one after another, through one buffer. */
static int layers_read(struct codebooks *cb, const struct file *f, struct err *e)
{
    size_t size = MATRICES * cb->m->record.stages * record_bytes(&cb->m->record);
    uint8_t *bytes = malloc(size);
    int code = 0;

    if (!bytes)
        return err_set(e, ERR_NOMEM, "codebooks.bin: %zu bytes", size);
    for (unsigned layer = cb->m->first_dense; layer < cb->m->n_layers && !code; layer++)
        code = layer_read(cb, f, layer, bytes, e);
    free(bytes);
    return code;
}

int codebooks_open(struct codebooks **out, const struct container *c, struct mem *mem,
                   struct err *e)
{
    const struct manifest *m = container_manifest(c);
    struct codebooks *cb = calloc(1, sizeof(*cb));
    void *values;

    if (!cb)
        return err_set(e, ERR_NOMEM, "codebooks");
    mem_init(&cb->own, 0);
    cb->mem = mem ? mem : &cb->own;
    cb->m = m;
    cb->stride = stride_of(&m->record);
    if (manifest_moe_layers(m) == 0) {
        *out = cb;
        return 0;
    }
    if (ranges_check(m, container_codebooks(c)->bytes, e) ||
        mem_map(cb->mem, MEM_TRUNK, codebooks_bytes(&m->record, manifest_moe_layers(m)), false,
                &values, e)) {
        codebooks_close(cb);
        return e->code;
    }
    cb->values = values;
    cb->bytes = codebooks_bytes(&m->record, manifest_moe_layers(m));
    if (layers_read(cb, container_codebooks(c), e)) {
        codebooks_close(cb);
        return e->code;
    }
    *out = cb;
    return 0;
}

void codebooks_close(struct codebooks *cb)
{
    if (!cb)
        return;
    if (cb->values)
        mem_unmap(cb->mem, MEM_TRUNK, cb->values, cb->bytes);
    free(cb);
}

const float *codebook_at(const struct codebooks *cb, unsigned layer, enum matrix m)
{
    assert(manifest_is_moe(cb->m, layer) && (unsigned)m < MATRICES);
    return cb->values + ((size_t)(layer - cb->m->first_dense) * MATRICES + m) * cb->stride;
}
