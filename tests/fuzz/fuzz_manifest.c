/* Whatever the text of a manifest: refused with words, or bounded as manifest.h promises. The trunk
 * is taken to be that of the golden mini container. */
#include <stdlib.h>
#include <string.h>

#include "expertfs/manifest.h"

enum { TRUNK_BYTES = 236432 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_entry(const struct manifest *m, const struct trunk_entry *t)
{
    size_t prefix = strlen(m->prefix);

    require(t->rank >= 1 && t->rank <= 4 && t->rows >= 1 && t->cols >= 1);
    require(t->off <= TRUNK_BYTES && t->payload_bytes <= TRUNK_BYTES - t->off);
    require(t->scale_off <= TRUNK_BYTES && t->scale_bytes <= TRUNK_BYTES - t->scale_off);
    require(t->payload_bytes == t->rows * t->row_bytes);
    require(t->scale_bytes == 2 * t->rows * t->groups);
    if (!strncmp(t->name, m->prefix, prefix))
        require(manifest_tensor(m, t->name + prefix) == t);
}

static void check(const struct manifest *m)
{
    require(m->n_layers >= 1 && m->n_layers <= FORMAT_LAYERS_MAX && m->n_trunk >= 1);
    require(m->n_experts <= FORMAT_EXPERTS_MAX && m->top_k <= FORMAT_TOP_K_MAX);
    for (unsigned layer = 0; layer < FORMAT_LAYERS_MAX; layer++) {
        const struct bank *b = &m->bank[layer];

        require(b->present == manifest_is_moe(m, layer));
        require(!b->present || (b->bytes == (uint64_t)m->n_experts * m->record.bytes &&
                                !strchr(b->file, '/') && b->file[0] && b->file[0] != '.'));
    }
    for (unsigned i = 0; i < m->n_trunk; i++)
        check_entry(m, &m->trunk[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest m;
    struct err e = {0};

    if (manifest_parse(&m, (const char *)data, size, TRUNK_BYTES, &e)) {
        require(e.code < 0 && e.text[0]);
        return 0;
    }
    check(&m);
    manifest_release(&m);
    return 0;
}
