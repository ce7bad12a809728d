/* writer_trunk.c - trunk.bin: tensors are announced, then their rows come in any order. */
#include <assert.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "expertfs/quantise.h"
#include "expertfs/writer_state.h"
#include "storage/file.h"

enum { MANY_ROWS_BYTES = 1 << 20 };

static int tensor_size(struct tensor *t, struct err *e)
{
    t->rows = 1;
    for (unsigned i = 0; i < t->rank; i++) {
        if (t->dim[i] < 1 || t->dim[i] > 1u << 26)
            return err_set(e, ERR_ARG, "trunk: \"%s\" has a dimension of %u", t->name, t->dim[i]);
        if (i + 1 < t->rank)
            t->rows *= t->dim[i];
        if (t->rows > 1ull << 40)
            return err_set(e, ERR_LIMIT, "trunk: \"%s\" is too large", t->name);
    }
    t->cols = t->dim[t->rank - 1];
    t->row_bytes = trunk_row_bytes(t->fmt, t->cols, &t->groups);
    t->bytes = t->rows * (t->row_bytes + 2 * (uint64_t)t->groups);
    return 0;
}

int writer_trunk_add(struct writer *w, unsigned *id, const char *name, int fmt, const uint32_t *dim,
                     unsigned rank, struct err *e)
{
    struct tensor *t;

    if (!name[0] || strlen(name) > 255 || rank < 1 || rank > 4)
        return err_set(e, ERR_ARG, "trunk: bad tensor \"%s\" of rank %u", name, rank);
    if (fmt != FMT_F32 && fmt != FMT_Q8G && fmt != FMT_Q4G && fmt != FMT_Q3G)
        return err_set(e, ERR_ARG, "trunk: \"%s\": format %d is not one of the trunk's", name, fmt);
    if (w->n_tensors == w->tensor_room) {
        unsigned room = w->tensor_room ? 2 * w->tensor_room : 256;

        t = realloc(w->tensor, room * sizeof(*t));
        if (!t)
            return err_set(e, ERR_NOMEM, "trunk: %u tensors", room);
        w->tensor = t;
        w->tensor_room = room;
    }
    t = &w->tensor[w->n_tensors];
    memset(t, 0, sizeof(*t));
    t->name = strdup(name);
    if (!t->name)
        return err_set(e, ERR_NOMEM, "trunk: \"%s\"", name);
    t->fmt = fmt;
    t->rank = rank;
    memcpy(t->dim, dim, rank * sizeof(*dim));
    if (tensor_size(t, e)) {
        free(t->name);
        return e->code;
    }
    t->off = w->trunk_bytes;
    t->scale_off = t->off + t->rows * t->row_bytes;
    w->trunk_bytes += t->bytes;
    *id = w->n_tensors++;
    return 0;
}

uint64_t writer_trunk_bytes(const struct writer *w)
{
    return w->trunk_bytes;
}

bool writer_trunk_keep(struct writer *w)
{
    if (w->trunk_bytes && writer_file_bytes(w, "trunk.bin") == w->trunk_bytes)
        w->trunk_done = true;
    return w->trunk_done;
}

int writer_trunk_begin(struct writer *w, struct err *e)
{
    assert(w->trunk_fd < 0 && !w->trunk_done);
    atomic_store(&w->trunk_sum, 0);
    if (out_create(&w->out, "trunk.bin", 0, &w->trunk_fd, e) ||
        out_reserve(&w->out, w->trunk_fd, w->trunk_bytes, "trunk.bin", e))
        return err_wrap(e, "%s", w->dir);
    return 0;
}

/* Whatever the order in which rows are written: the sum of a CRC-32 of each row and its place. */
static uint64_t rows_sum(const struct tensor *t, uint64_t row, uint64_t n, const uint8_t *codes,
                         const uint8_t *scales)
{
    uint64_t scale_row = 2 * (uint64_t)t->groups, sum = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint8_t place[8];
        uint32_t crc;

        store_le64(place, t->off + (row + i) * t->row_bytes);
        crc = libdeflate_crc32(0, place, sizeof(place));
        crc = libdeflate_crc32(crc, codes + i * t->row_bytes, t->row_bytes);
        if (scale_row)
            crc = libdeflate_crc32(crc, scales + i * scale_row, scale_row);
        sum += crc;
    }
    return sum;
}

uint64_t writer_trunk_sum(const struct writer *w)
{
    return atomic_load(&w->trunk_sum);
}

int writer_trunk_read_sum(const struct writer *w, unsigned id, uint64_t *sum, struct err *e)
{
    const struct tensor *t = &w->tensor[id];
    uint64_t scale_row = 2 * (uint64_t)t->groups, unit = t->row_bytes + scale_row;
    uint64_t at_once = unit < MANY_ROWS_BYTES ? MANY_ROWS_BYTES / unit : 1;
    uint8_t *rows = malloc(at_once * unit);
    struct file f;
    int bad = 0;

    if (!rows)
        return err_set(e, ERR_NOMEM, "trunk: \"%s\"", t->name);
    if (file_open(&f, w->out.fd, "trunk.bin", false, e)) {
        free(rows);
        return err_wrap(e, "%s", w->dir);
    }
    *sum = 0;
    for (uint64_t row = 0; row < t->rows && !bad; row += at_once) {
        uint64_t n = t->rows - row < at_once ? t->rows - row : at_once;
        uint8_t *scales = rows + n * t->row_bytes;

        bad =
            file_read(&f, rows, n * t->row_bytes, t->off + row * t->row_bytes, e) ||
            (scale_row && file_read(&f, scales, n * scale_row, t->scale_off + row * scale_row, e));
        if (!bad)
            *sum += rows_sum(t, row, n, rows, scales);
    }
    posix_fadvise(f.buffered, (off_t)t->off, (off_t)t->bytes, POSIX_FADV_DONTNEED);
    file_close(&f);
    free(rows);
    return bad ? err_wrap(e, "%s: tensor \"%s\"", w->dir, t->name) : 0;
}

static int trunk_write(struct writer *w, struct tensor *t, uint64_t row, uint64_t n,
                       const void *codes, const uint16_t *scale, struct err *e)
{
    uint64_t scale_row = 2 * (uint64_t)t->groups;

    if (out_write(&w->out, w->trunk_fd, codes, n * t->row_bytes, t->off + row * t->row_bytes,
                  "trunk.bin", e) ||
        out_write(&w->out, w->trunk_fd, scale, n * scale_row, t->scale_off + row * scale_row,
                  "trunk.bin", e))
        return err_wrap(e, "%s: tensor \"%s\"", w->dir, t->name);
    atomic_fetch_add(&w->trunk_sum, rows_sum(t, row, n, codes, (const uint8_t *)scale));
    out_start_writeback(w->trunk_fd, t->off + row * t->row_bytes, n * t->row_bytes);
    if (atomic_fetch_add(&t->written, n) + n == t->rows &&
        out_settle(&w->out, w->trunk_fd, t->off, t->bytes, "trunk.bin", e))
        return err_wrap(e, "%s: tensor \"%s\"", w->dir, t->name);
    return 0;
}

int writer_trunk_codes(struct writer *w, unsigned id, uint64_t row, uint64_t n, const void *codes,
                       const uint16_t *scale, struct err *e)
{
    struct tensor *t = &w->tensor[id];

    assert(id < w->n_tensors && row + n <= t->rows && !w->trunk_done);
    return trunk_write(w, t, row, n, codes, scale, e);
}

int writer_trunk_f32(struct writer *w, unsigned id, uint64_t row, uint64_t n, const float *x,
                     struct err *e)
{
    struct tensor *t = &w->tensor[id];
    uint64_t unit = t->row_bytes + 2 * (uint64_t)t->groups, at_once;
    uint8_t *codes;
    int bad = 0;

    assert(id < w->n_tensors && row + n <= t->rows && !w->trunk_done);
    if (t->fmt == FMT_F32)
        return trunk_write(w, t, row, n, x, NULL, e);
    at_once = unit < MANY_ROWS_BYTES ? MANY_ROWS_BYTES / unit : 1;
    at_once = at_once < n ? at_once : n;
    codes = malloc(at_once * (t->row_bytes + 1 + 2 * (uint64_t)t->groups)); /* 1: alignment */
    if (!codes)
        return err_set(e, ERR_NOMEM, "trunk: \"%s\"", t->name);
    for (uint64_t r = 0; r < n && !bad; r += at_once) {
        uint64_t m = n - r < at_once ? n - r : at_once;
        uint64_t scale_at = (at_once * t->row_bytes + 1) & ~1ull;
        uint16_t *scale = (uint16_t *)(void *)(codes + scale_at);

        for (uint64_t i = 0; i < m && !bad; i++) {
            bad = quantise_row(codes + i * t->row_bytes, scale + i * t->groups, t->fmt,
                               x + (r + i) * t->cols, t->cols, e);
            if (bad)
                err_wrap(e, "tensor \"%s\" row %llu", t->name, (unsigned long long)(row + r + i));
        }
        if (!bad)
            bad = trunk_write(w, t, row + r, m, codes, scale, e);
    }
    free(codes);
    return bad;
}

int writer_trunk_end(struct writer *w, struct err *e)
{
    int fd = w->trunk_fd;

    if (w->trunk_done)
        return 0;
    for (unsigned i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensor[i];
        uint64_t rows = atomic_load(&t->written);

        if (rows != t->rows)
            return err_set(e, ERR_ARG, "trunk: \"%s\" has %llu of %llu rows", t->name,
                           (unsigned long long)rows, (unsigned long long)t->rows);
    }
    w->trunk_fd = -1;
    if (out_publish(&w->out, "trunk.bin", fd, e))
        return err_wrap(e, "%s", w->dir);
    w->trunk_done = true;
    return 0;
}
