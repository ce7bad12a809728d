/* Whatever the bytes of a record: refused with words, or its parts lie inside it and no index
 * reaches past a codebook.
 *
 * Input: byte 0 chooses the layout (bits 0, 1), and whether to seal the record first so that what
 * is behind the checksum is reached (bit 2); then the record, cut or filled up with zeros. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"
#include "expertfs/record.h"

static const struct {
    uint32_t latent, inter, stages, entries, index_bits;
} layouts[4] = {{16, 8, 3, 256, 8}, {8, 16, 4, 64, 6}, {24, 72, 2, 16, 8}, {8, 8, 1, 1, 8}};

enum { LAYER = 1, EXPERT = 2, CODEBOOK = 3 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check(const struct record_layout *l, const uint8_t *bytes)
{
    require(l->used <= l->bytes);
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++)
        for (uint32_t i = 0; i < record_rows(l, m); i++)
            require(half_finite(load_le16(bytes + l->scale_off[m] + 2 * i)));
    for (uint32_t i = l->index_off[MATRIX_GATE]; i < l->scale_off[MATRIX_GATE]; i++)
        require(l->index_bits == 6 || bytes[i] < l->entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned which = size ? data[0] & 3 : 0;
    struct record_layout l;
    struct err e = {0};
    uint8_t *bytes;
    size_t n;

    require(!record_layout_init(&l, layouts[which].latent, layouts[which].inter,
                                layouts[which].stages, layouts[which].entries,
                                layouts[which].index_bits, &e));
    bytes = calloc(1, l.bytes);
    require(bytes);
    n = size > l.bytes ? l.bytes : size ? size - 1 : 0;
    if (n)
        memcpy(bytes, data + 1, n);
    if (size && data[0] & 4)
        record_seal(&l, bytes, LAYER, EXPERT, CODEBOOK);
    if (record_check(&l, bytes, LAYER, EXPERT, CODEBOOK, &e) ||
        record_verify(&l, bytes, LAYER, EXPERT, &e))
        require(e.code < 0 && !strncmp(e.text, "layer 1 expert 2: ", 18));
    else
        check(&l, bytes);
    free(bytes);
    return 0;
}
