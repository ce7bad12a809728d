#include "expertfs/trunk.h"

#include <assert.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/half.h"
#include "storage/extent.h"

/* Tables are used as they lie in the file. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the container is little-endian");

enum {
    PLACE_ALIGN = 64, /* of a table in memory */
    ROW_GROUPS = 128, /* groups of a row decoded at once, so that the stack is enough */
};

struct placed { /* where a wanted tensor's tables lie in the mapping */
    bool wanted;
    uint64_t data, scale;
};

struct trunk {
    const struct manifest *m;
    const struct file *file;
    struct mem *mem, own;  /* mem == &own when the caller keeps no account */
    struct placed *placed; /* [m->n_trunk] */
    uint8_t *base;         /* the mapping; NULL until loaded */
    size_t bytes;          /* of the mapping */
    uint32_t crc;          /* of what was read into it */
};

struct piece { /* a table to be read: file bytes [off, off + bytes) to dst */
    uint64_t off, bytes;
    uint8_t *dst;
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

int trunk_open(struct trunk **out, const struct container *c, struct err *e)
{
    struct trunk *t = calloc(1, sizeof(*t));

    if (!t)
        return err_set(e, ERR_NOMEM, "trunk");
    t->m = container_manifest(c);
    t->file = container_trunk(c);
    t->placed = calloc(t->m->n_trunk, sizeof(*t->placed));
    if (!t->placed) {
        trunk_close(t);
        return err_set(e, ERR_NOMEM, "trunk");
    }
    *out = t;
    return 0;
}

void trunk_close(struct trunk *t)
{
    if (!t)
        return;
    if (t->base)
        mem_unmap(t->mem, MEM_TRUNK, t->base, t->bytes);
    free(t->placed);
    free(t);
}

static struct placed *placed_of(const struct trunk *t, const struct trunk_entry *entry)
{
    assert(entry >= t->m->trunk && entry < t->m->trunk + t->m->n_trunk);
    return &t->placed[entry - t->m->trunk];
}

void trunk_want(struct trunk *t, const struct trunk_entry *entry)
{
    assert(!t->base);
    placed_of(t, entry)->wanted = true;
}

/* Give every wanted table its place; returns the bytes of all. */
static uint64_t tables_place(struct placed *placed, const struct manifest *m)
{
    uint64_t at = 0;

    for (unsigned i = 0; i < m->n_trunk; i++) {
        if (!placed[i].wanted)
            continue;
        placed[i].data = at;
        at += round_up(m->trunk[i].payload_bytes, PLACE_ALIGN);
        placed[i].scale = at;
        at += round_up(m->trunk[i].scale_bytes, PLACE_ALIGN);
    }
    return at;
}

uint64_t trunk_resident_bytes(const struct trunk *t)
{
    return round_up(tables_place(t->placed, t->m), IO_ALIGN);
}

static int by_off(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;

    return x->off < y->off ? -1 : x->off > y->off;
}

/* Every wanted table in file order; returns how many. piece: room for two per tensor. */
static size_t pieces_list(const struct trunk *t, struct piece *piece)
{
    size_t n = 0;

    for (unsigned i = 0; i < t->m->n_trunk; i++) {
        const struct trunk_entry *x = &t->m->trunk[i];
        const struct placed *p = &t->placed[i];

        if (!p->wanted)
            continue;
        piece[n++] = (struct piece){x->off, x->payload_bytes, t->base + p->data};
        if (x->scale_bytes)
            piece[n++] = (struct piece){x->scale_off, x->scale_bytes, t->base + p->scale};
    }
    qsort(piece, n, sizeof(*piece), by_off);
    return n;
}

/* File bytes [begin, end) into window, direct where the file allows: all but a ragged last page.
 * begin is a multiple of IO_ALIGN. A failed direct read is tried once more without. */
static int window_read(const struct file *f, uint8_t *window, uint64_t begin, uint64_t end,
                       struct err *e)
{
    uint64_t pages = round_up(end, IO_ALIGN) <= f->bytes ? round_up(end, IO_ALIGN)
                                                         : f->bytes / IO_ALIGN * IO_ALIGN;

    if (!f->direct || pages <= begin || file_pread(f, window, pages - begin, begin))
        pages = begin;
    if (pages >= end)
        return 0;
    return file_read(f, window + (pages - begin), end - pages, pages, e);
}

/* Where the window from begin ends: with the last byte of it that a piece from `piece` on wants. */
static uint64_t window_end(const struct piece *piece, size_t n, uint64_t begin)
{
    uint64_t limit = begin + TRUNK_WINDOW_BYTES, end = begin;

    for (size_t i = 0; i < n && piece[i].off < limit; i++)
        end = piece[i].off + piece[i].bytes;
    return end < limit ? end : limit;
}

/* Windows over the file, skipping what nobody wants; each piece takes what a window holds of it.
 * Tables do not overlap, so pieces end in the order in which they begin. */
static int pieces_read(struct trunk *t, const struct piece *piece, size_t n, uint8_t *window,
                       struct progress *progress, struct err *e)
{
    uint64_t done = 0; /* bytes of piece[i] that are in place */

    for (size_t i = 0; i < n;) {
        uint64_t begin = (piece[i].off + done) / IO_ALIGN * IO_ALIGN;
        uint64_t end = window_end(piece + i, n - i, begin);

        if (progress && progress_cancelled(progress))
            return err_set(e, ERR_CANCELLED, "trunk.bin: loading was cancelled");
        if (window_read(t->file, window, begin, end, e))
            return e->code;
        while (i < n && piece[i].off + done < end) {
            uint64_t from = piece[i].off + done, left = piece[i].bytes - done;
            uint64_t take = left < end - from ? left : end - from;

            memcpy(piece[i].dst + done, window + (from - begin), take);
            t->crc = libdeflate_crc32(t->crc, window + (from - begin), take);
            if (progress) {
                atomic_fetch_add(&progress->done, take);
                atomic_fetch_add(&progress->bytes, take);
            }
            done += take;
            if (done < piece[i].bytes)
                break; /* the window is used up */
            done = 0;
            i++;
        }
    }
    return 0;
}

static int not_finite(const struct trunk_entry *x, uint64_t element, struct err *e)
{
    return err_set(e, ERR_CORRUPT,
                   "trunk.bin: \"%s\" contains a non-finite value at element %" PRIu64, x->name,
                   element);
}

/* Index of the first scale, or F32 value, that is not finite; n when all are. */
static uint64_t first_bad_half(const uint8_t *scale, uint64_t n)
{
    uint64_t i = 0;

    while (i < n && half_finite(load_le16(scale + 2 * i)))
        i++;
    return i;
}

static uint64_t first_bad_f32(const uint8_t *value, uint64_t n)
{
    uint64_t i = 0;

    while (i < n && (load_le32(value + 4 * i) & 0x7f800000u) != 0x7f800000u)
        i++;
    return i;
}

/* Rule T13. A scale speaks for the first element of its group. */
static int tensor_check(const struct trunk_entry *x, const uint8_t *data, const uint8_t *scale,
                        struct err *e)
{
    uint64_t n = x->fmt == FMT_F32 ? x->rows * x->cols : x->rows * x->groups;
    uint64_t bad = x->fmt == FMT_F32 ? first_bad_f32(data, n) : first_bad_half(scale, n);

    if (bad == n)
        return 0;
    if (x->fmt == FMT_F32)
        return not_finite(x, bad, e);
    return not_finite(x, bad / x->groups * x->cols + bad % x->groups * FORMAT_GROUP, e);
}

static int tensors_check(const struct trunk *t, struct err *e)
{
    for (unsigned i = 0; i < t->m->n_trunk; i++) {
        const struct placed *p = &t->placed[i];

        if (p->wanted && tensor_check(&t->m->trunk[i], t->base + p->data, t->base + p->scale, e))
            return e->code;
    }
    return 0;
}

/* Read into the mapping, by way of a window. */
static int tables_read(struct trunk *t, struct progress *progress, struct err *e)
{
    struct piece *piece = calloc(2 * (size_t)t->m->n_trunk, sizeof(*piece));
    void *window;
    int code;

    if (!piece)
        return err_set(e, ERR_NOMEM, "trunk: %u tensors", t->m->n_trunk);
    if (mem_map(t->mem, MEM_SCRATCH, TRUNK_WINDOW_BYTES, false, &window, e)) {
        free(piece);
        return e->code;
    }
    code = pieces_read(t, piece, pieces_list(t, piece), window, progress, e);
    mem_unmap(t->mem, MEM_SCRATCH, window, TRUNK_WINDOW_BYTES);
    free(piece);
    return code;
}

int trunk_load(struct trunk *t, struct mem *mem, struct progress *progress, struct err *e)
{
    void *base;

    assert(!t->base);
    t->bytes = trunk_resident_bytes(t);
    if (t->bytes == 0)
        return 0;
    mem_init(&t->own, 0);
    t->mem = mem ? mem : &t->own;
    if (mem_map(t->mem, MEM_TRUNK, t->bytes, true, &base, e))
        return e->code;
    t->base = base;
    if (tables_read(t, progress, e) || tensors_check(t, e)) {
        mem_unmap(t->mem, MEM_TRUNK, t->base, t->bytes);
        t->base = NULL;
        return e->code;
    }
    return 0;
}

uint32_t trunk_crc(const struct trunk *t)
{
    return t->crc;
}

struct trunk_view trunk_at(const struct trunk *t, const struct trunk_entry *entry)
{
    const struct placed *p = placed_of(t, entry);

    assert(t->base && p->wanted);
    return (struct trunk_view){
        .entry = entry,
        .data = t->base + p->data,
        .scale = entry->scale_bytes ? (const uint16_t *)(t->base + p->scale) : NULL,
    };
}

/* Column c of a row, counted from where its codes begin: q of w = scale * q. */
static int code_at(const uint8_t *codes, int fmt, unsigned c)
{
    switch (fmt) {
    case FMT_Q8G:
        return (int8_t)codes[c];
    case FMT_Q4G:
        return (codes[c / 2] >> (c % 2 * 4) & 15) - 8;
    default: /* Q3G: bits [3c, 3c + 3) of a little-endian string with a guard byte */
        return (load_le16(codes + 3 * c / 8) >> (3 * c % 8) & 7) - 4;
    }
}

static int row_f32(const struct trunk *t, const struct trunk_entry *x, uint64_t row, float *out,
                   struct err *e)
{
    uint64_t bad;

    if (file_read(t->file, out, x->row_bytes, x->off + row * x->row_bytes, e))
        return e->code;
    bad = first_bad_f32((const uint8_t *)out, x->cols);
    return bad == x->cols ? 0 : not_finite(x, row * x->cols + bad, e);
}

/* Groups [g0, g0 + n) of one row. */
static int row_groups(const struct trunk *t, const struct trunk_entry *x, uint64_t row, uint32_t g0,
                      uint32_t n, float *out, struct err *e)
{
    uint8_t codes[ROW_GROUPS * FORMAT_GROUP + 1], scale[ROW_GROUPS * 2];
    unsigned guard = x->fmt == FMT_Q3G; /* a byte past the last code may be looked at */
    uint32_t group_bytes = (uint32_t)((x->row_bytes - guard) / x->groups); /* 128, 64 or 48 */
    uint64_t bad, c0 = (uint64_t)g0 * FORMAT_GROUP;

    if (file_read(t->file, codes, n * group_bytes + guard,
                  x->off + row * x->row_bytes + (uint64_t)g0 * group_bytes, e) ||
        file_read(t->file, scale, 2 * n, x->scale_off + 2 * (row * x->groups + g0), e))
        return e->code;
    bad = first_bad_half(scale, n);
    if (bad < n)
        return not_finite(x, row * x->cols + c0 + bad * FORMAT_GROUP, e);
    for (uint32_t c = 0; c < n * FORMAT_GROUP && c0 + c < x->cols; c++)
        out[c0 + c] =
            half_to_f32(load_le16(scale + c / FORMAT_GROUP * 2)) * (float)code_at(codes, x->fmt, c);
    return 0;
}

int trunk_read_row(const struct trunk *t, const struct trunk_entry *entry, uint64_t row, float *out,
                   struct err *e)
{
    int code = 0;

    assert(row < entry->rows);
    if (entry->fmt == FMT_F32)
        code = row_f32(t, entry, row, out, e);
    for (uint32_t g = 0; g < entry->groups && !code; g += ROW_GROUPS) {
        uint32_t left = entry->groups - g;

        code = row_groups(t, entry, row, g, left < ROW_GROUPS ? left : ROW_GROUPS, out, e);
    }
    return code == ERR_IO
               ? err_wrap(e, "trunk.bin: cannot read row %" PRIu64 " of %s", row, entry->name)
               : code;
}
