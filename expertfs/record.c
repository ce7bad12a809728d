#include "expertfs/record.h"

#include <libdeflate.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"

const char *matrix_name(enum matrix m)
{
    static const char *const name[MATRICES] = {"gate", "up", "down"};

    return name[m];
}

const char *record_format_name(const struct record_layout *l)
{
    return l->index_bits == 6 ? "VQ4P" : l->stages == 2 ? "VQ2R" : "VQ3R";
}

/* Rule F8: what a format v0 record may be made of. */
static int quantisation_check(uint32_t stages, uint32_t entries, uint32_t index_bits, struct err *e)
{
    if (stages < 1 || stages > FORMAT_STAGES_MAX)
        return err_set(e, ERR_FORMAT, "expert_quant.stages = %u is out of range 1...%d", stages,
                       FORMAT_STAGES_MAX);
    if (entries < 1 || entries > FORMAT_ENTRIES_MAX)
        return err_set(e, ERR_FORMAT, "expert_quant.entries = %u is out of range 1...%d", entries,
                       FORMAT_ENTRIES_MAX);
    if (index_bits != 8 && index_bits != 6)
        return err_set(e, ERR_UNSUPPORTED,
                       "expert_quant.index_bits = %u is not supported (8 or 6 expected)",
                       index_bits);
    if (index_bits == 6 && (stages != 4 || entries != 64))
        return err_set(e, ERR_FORMAT,
                       "expert_quant.index_bits = 6 needs 4 stages of 64 entries, not %u of %u",
                       stages, entries);
    return 0;
}

static int dimension_check(const char *name, uint32_t n, struct err *e)
{
    if (n < 1 || n > 1u << 20)
        return err_set(e, ERR_FORMAT, "%s = %u is out of range 1...%u", name, n, 1u << 20);
    if (n % FORMAT_VEC_DIM)
        return err_set(e, ERR_FORMAT, "%s = %u is not divisible by vec_dim = %d", name, n,
                       FORMAT_VEC_DIM);
    return 0;
}

static uint64_t index_bytes(const struct record_layout *l, enum matrix m)
{
    uint64_t blocks = (record_rows(l, m) + FORMAT_INDEX_BLOCK - 1) / FORMAT_INDEX_BLOCK;

    return blocks * (record_cols(l, m) / FORMAT_VEC_DIM) * FORMAT_INDEX_BLOCK * l->cell_bytes;
}

int record_layout_init(struct record_layout *out, uint32_t latent, uint32_t inter, uint32_t stages,
                       uint32_t entries, uint32_t index_bits, struct err *e)
{
    struct record_layout l = {.latent = latent,
                              .inter = inter,
                              .stages = stages,
                              .entries = entries,
                              .index_bits = index_bits,
                              .cell_bytes = index_bits == 6 ? 3 : stages};
    uint64_t at = FORMAT_RECORD_HEADER;
    enum matrix m;

    if (quantisation_check(stages, entries, index_bits, e) ||
        dimension_check("expert latent size", latent, e) ||
        dimension_check("config.moe_intermediate_size", inter, e))
        return e->code;
    for (m = MATRIX_GATE; m < MATRICES; m++) { /* at most 3 * 2^40: no overflow in 64 bits */
        l.index_off[m] = (uint32_t)at;
        at += index_bytes(&l, m);
    }
    for (m = MATRIX_GATE; m < MATRICES; m++) {
        l.scale_off[m] = (uint32_t)at;
        at += 2 * (uint64_t)record_rows(&l, m);
    }
    if (at > (1u << 31) - FORMAT_PAGE)
        return err_set(e, ERR_LIMIT,
                       "a record of [%u][%u] experts in %u stages needs %llu bytes, beyond 2^31",
                       inter, latent, stages, (unsigned long long)at);
    l.used = (uint32_t)at;
    l.bytes = (l.used + FORMAT_PAGE - 1) / FORMAT_PAGE * FORMAT_PAGE;
    *out = l;
    return 0;
}

/* Is that format byte legal where the manifest declares index_bits? (container format, 5.3) */
static bool fmt_matches(uint8_t fmt, uint32_t index_bits)
{
    return index_bits == 6 ? fmt == FMT_VQ4P : fmt == FMT_VQ3R || fmt == FMT_VQ2R;
}

static int header_check(const struct record_layout *l, const uint8_t *h, unsigned layer,
                        unsigned expert, unsigned codebook_base, struct err *e)
{
    unsigned is_layer = load_le16(h + REC_LAYER), is_expert = load_le16(h + REC_EXPERT);
    uint32_t blocks = load_le32(h + REC_BLOCKS), codebook = load_le16(h + REC_CODEBOOK);

    if (load_le32(h + REC_MAGIC) != RECORD_MAGIC)
        return err_set(e, ERR_FORMAT, "layer %u expert %u: not an expert record (magic %08x)",
                       layer, expert, load_le32(h + REC_MAGIC));
    if (is_layer != layer || is_expert != expert)
        return err_set(e, ERR_FORMAT, "layer %u expert %u: record says layer %u expert %u", layer,
                       expert, is_layer, is_expert);
    if ((uint64_t)blocks * FORMAT_PAGE != l->bytes)
        return err_set(e, ERR_FORMAT,
                       "layer %u expert %u: record says %u pages, configuration needs %u", layer,
                       expert, blocks, l->bytes / FORMAT_PAGE);
    if (!fmt_matches(h[REC_FMT], l->index_bits))
        return err_set(e, ERR_FORMAT,
                       "layer %u expert %u: record has format %u, container declares %d", layer,
                       expert, h[REC_FMT], l->index_bits == 6 ? FMT_VQ4P : FMT_VQ3R);
    if (h[REC_FLAGS] & 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "layer %u expert %u: flags %02x (bf16) are not supported", layer, expert,
                       h[REC_FLAGS]);
    if (load_le16(h + REC_LOWRANK))
        return err_set(e, ERR_UNSUPPORTED,
                       "layer %u expert %u: low-rank factors (id %u) are not supported", layer,
                       expert, load_le16(h + REC_LOWRANK));
    if (codebook != codebook_base)
        return err_set(e, ERR_FORMAT, "layer %u expert %u: uses codebook %u, layer uses %u", layer,
                       expert, codebook, codebook_base);
    return 0;
}

static int offsets_check(const struct record_layout *l, const uint8_t *h, unsigned layer,
                         unsigned expert, struct err *e)
{
    uint32_t gate = load_le32(h + REC_GATE_OFF), up = load_le32(h + REC_UP_OFF);
    uint32_t down = load_le32(h + REC_DOWN_OFF), scale = load_le32(h + REC_SCALE_OFF);

    if (gate == l->index_off[MATRIX_GATE] && up == l->index_off[MATRIX_UP] &&
        down == l->index_off[MATRIX_DOWN] && scale == l->scale_off[MATRIX_GATE])
        return 0;
    return err_set(e, ERR_FORMAT,
                   "layer %u expert %u: payload offsets %u %u %u %u, expected %u %u %u %u", layer,
                   expert, gate, up, down, scale, l->index_off[MATRIX_GATE],
                   l->index_off[MATRIX_UP], l->index_off[MATRIX_DOWN], l->scale_off[MATRIX_GATE]);
}

static int scales_check(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                        unsigned expert, struct err *e)
{
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        const uint8_t *scale = bytes + l->scale_off[m];
        uint32_t rows = record_rows(l, m);
        unsigned bad = 0;

        for (uint32_t i = 0; i < rows; i++) /* no early exit: this way it vectorises */
            bad |= !half_finite(load_le16(scale + 2 * (size_t)i));
        for (uint32_t i = 0; bad && i < rows; i++)
            if (!half_finite(load_le16(scale + 2 * (size_t)i)))
                return err_set(e, ERR_CORRUPT,
                               "layer %u expert %u: %s scale of row %u is %04x, "
                               "not finite",
                               layer, expert, matrix_name(m), i, load_le16(scale + 2 * (size_t)i));
    }
    return 0;
}

int record_check(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                 unsigned expert, unsigned codebook_base, struct err *e)
{
    if (header_check(l, bytes, layer, expert, codebook_base, e) ||
        offsets_check(l, bytes, layer, expert, e))
        return e->code;
    return scales_check(l, bytes, layer, expert, e);
}

int record_check_indices(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                         unsigned expert, struct err *e)
{
    uint32_t begin = l->index_off[MATRIX_GATE], end = l->scale_off[MATRIX_GATE];
    unsigned bad = 0;

    if (l->index_bits != 8 || l->entries == FORMAT_ENTRIES_MAX)
        return 0;
    for (uint32_t i = begin; i < end; i++)
        bad |= bytes[i] >= l->entries;
    for (uint32_t i = begin; bad && i < end; i++)
        if (bytes[i] >= l->entries)
            return err_set(e, ERR_CORRUPT,
                           "layer %u expert %u: index %u at byte %u, codebooks have %u entries",
                           layer, expert, bytes[i], i, l->entries);
    return 0;
}

static uint32_t checksum(const struct record_layout *l, const uint8_t *bytes)
{
    return libdeflate_crc32(0, bytes + FORMAT_RECORD_HEADER, l->used - FORMAT_RECORD_HEADER);
}

int record_verify(const struct record_layout *l, const uint8_t *bytes, unsigned layer,
                  unsigned expert, struct err *e)
{
    uint32_t is = checksum(l, bytes), says = load_le32(bytes + REC_CRC);

    if (is != says)
        return err_set(e, ERR_CORRUPT, "layer %u expert %u: checksum %08x, record says %08x", layer,
                       expert, is, says);
    return record_check_indices(l, bytes, layer, expert, e);
}

void record_seal(const struct record_layout *l, uint8_t *bytes, unsigned layer, unsigned expert,
                 unsigned codebook_base)
{
    memset(bytes, 0, FORMAT_RECORD_HEADER);
    store_le32(bytes + REC_MAGIC, RECORD_MAGIC);
    store_le16(bytes + REC_LAYER, (uint16_t)layer);
    store_le16(bytes + REC_EXPERT, (uint16_t)expert);
    bytes[REC_FMT] = l->index_bits == 6 ? FMT_VQ4P : FMT_VQ3R; /* 4 for any number of stages */
    store_le16(bytes + REC_CODEBOOK, (uint16_t)codebook_base);
    store_le32(bytes + REC_BLOCKS, l->bytes / FORMAT_PAGE);
    store_le32(bytes + REC_GATE_OFF, l->index_off[MATRIX_GATE]);
    store_le32(bytes + REC_UP_OFF, l->index_off[MATRIX_UP]);
    store_le32(bytes + REC_DOWN_OFF, l->index_off[MATRIX_DOWN]);
    store_le32(bytes + REC_SCALE_OFF, l->scale_off[MATRIX_GATE]);
    store_le32(bytes + REC_CRC, checksum(l, bytes));
}
