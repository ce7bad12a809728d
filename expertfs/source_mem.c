#include <assert.h>
#include <stdlib.h>

#include "expertfs/source.h"

struct source_mem {
    struct expert_source source; /* first, so that it can be cast back */
    const struct manifest *m;
    struct mem *mem, own; /* mem == &own when the caller keeps no account */
    uint8_t *records;     /* [MoE layers][n_experts][record.bytes] */
    size_t bytes;
    uint64_t pins;
};

static uint8_t *record_of(const struct source_mem *s, unsigned layer, unsigned expert)
{
    assert(manifest_is_moe(s->m, layer) && expert < s->m->n_experts);
    return s->records +
           ((size_t)(layer - s->m->first_dense) * s->m->n_experts + expert) * s->m->record.bytes;
}

static void source_mem_hint(struct expert_source *source, unsigned layer, const uint16_t *ids,
                            unsigned n, enum hint kind)
{
    (void)source, (void)layer, (void)ids, (void)n, (void)kind;
}

static int source_mem_pin_any(struct expert_source *source, unsigned layer, const uint16_t *ids,
                              unsigned n, unsigned *which, struct expert *out, struct err *e)
{
    struct source_mem *s = (struct source_mem *)source;

    assert(n);
    (void)n, (void)e;
    s->pins++;
    *which = 0;
    *out = expert_at(&s->m->record, (struct page){.bytes = record_of(s, layer, ids[0])});
    return 0;
}

static void source_mem_unpin(struct expert_source *source, struct expert *x)
{
    (void)source;
    x->page.bytes = NULL;
}

static size_t source_mem_trim(struct expert_source *source, size_t bytes)
{
    (void)source, (void)bytes;
    return 0; /* everything is resident, always */
}

static void source_mem_stats(const struct expert_source *source, struct pool_stats *out)
{
    const struct source_mem *s = (const struct source_mem *)source;

    *out = (struct pool_stats){.hits_resident = s->pins, .bytes = s->bytes};
}

static void source_mem_close(struct expert_source *source)
{
    struct source_mem *s = (struct source_mem *)source;

    if (!s)
        return;
    if (s->records)
        mem_unmap(s->mem, MEM_POOL, s->records, s->bytes);
    free(s);
}

static const struct expert_source_ops source_mem_ops = {
    .hint = source_mem_hint,
    .pin_any = source_mem_pin_any,
    .unpin = source_mem_unpin,
    .trim = source_mem_trim,
    .stats = source_mem_stats,
    .close = source_mem_close,
};

/* Read one record, and check it as if it had come through a pool. */
static int record_load(struct source_mem *s, const struct file *f, struct extent at, unsigned layer,
                       unsigned expert, bool verify, struct err *e)
{
    const struct record_layout *l = &s->m->record;
    uint8_t *bytes = record_of(s, layer, expert);

    if (file_read(f, bytes, at.length, at.offset, e))
        return err_wrap(e, "layer %u expert %u", layer, expert);
    if (record_check(l, bytes, layer, expert, s->m->bank[layer].codebook_base, e))
        return e->code;
    return verify ? record_verify(l, bytes, layer, expert, e)
                  : record_check_indices(l, bytes, layer, expert, e);
}

static int records_load(struct source_mem *s, const struct container *c, bool verify, struct err *e)
{
    unsigned n_files;
    const struct file *const *files = container_files(c, &n_files);

    for (unsigned layer = s->m->first_dense; n_files && layer < s->m->n_layers; layer++)
        for (unsigned expert = 0; expert < s->m->n_experts; expert++) {
            struct extent at = container_extent(c, layer, expert);

            if (record_load(s, files[at.file], at, layer, expert, verify, e))
                return e->code;
        }
    return 0;
}

int source_mem_open(struct expert_source **out, const struct container *c, struct mem *mem,
                    bool verify, struct err *e)
{
    struct source_mem *s = calloc(1, sizeof(*s));
    void *records;

    if (!s)
        return err_set(e, ERR_NOMEM, "expert source");
    s->source.ops = &source_mem_ops;
    s->m = container_manifest(c);
    mem_init(&s->own, 0);
    s->mem = mem ? mem : &s->own;
    s->bytes = (size_t)(s->m->n_layers - s->m->first_dense) * s->m->n_experts * s->m->record.bytes;
    if (s->bytes) {
        if (mem_map(s->mem, MEM_POOL, s->bytes, true, &records, e)) {
            source_mem_close(&s->source);
            return e->code;
        }
        s->records = records;
        if (records_load(s, c, verify, e)) {
            source_mem_close(&s->source);
            return e->code;
        }
    }
    *out = &s->source;
    return 0;
}
