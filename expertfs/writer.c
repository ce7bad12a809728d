#include "expertfs/writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/half.h"
#include "base/json.h"
#include "expertfs/format.h"
#include "expertfs/manifest.h"
#include "expertfs/out_dir.h"
#include "expertfs/quantise.h"
#include "storage/file.h"

enum { NAME_BYTES = OUT_NAME_BYTES, MANY_ROWS_BYTES = 1 << 20, PART_CRC = 4 };

struct tensor {
    char *name;
    int fmt;
    unsigned rank;
    uint32_t dim[4];
    uint64_t rows;
    uint32_t cols, groups;
    uint64_t row_bytes, off, scale_off, bytes;
    atomic_uint_fast64_t written; /* rows */
};

struct bank_state {
    int fd; /* of the temporary; -1 while none is open */
    bool done;
    atomic_uint_fast32_t written; /* records */
};

struct writer {
    char *dir;
    struct out_dir out;
    json_t *config;
    char *arch, *prefix;
    bool direct, made_directory, locked, finished;
    uint32_t stages, entries, index_bits;
    unsigned n_layers, first_dense, n_experts;
    struct record_layout record;
    int trunk_fd;
    bool trunk_done;
    struct tensor *tensor;
    unsigned n_tensors, tensor_room;
    uint64_t trunk_bytes;
    atomic_uint_fast64_t trunk_sum; /* of the rows written so far */
    uint8_t *codebooks;             /* the file's image */
    size_t codebook_record, codebooks_bytes;
    bool *codebook_given;
    struct bank_state bank[FORMAT_LAYERS_MAX];
};

uint64_t writer_file_bytes(const struct writer *w, const char *name)
{
    return out_bytes(&w->out, name);
}

void writer_remove(struct writer *w, const char *name)
{
    out_remove(&w->out, name);
}

int writer_side_file(struct writer *w, const char *name, const void *bytes, size_t n, struct err *e)
{
    if (strlen(name) >= NAME_BYTES)
        return err_set(e, ERR_ARG, "%s: the name is too long", name);
    if (out_file(&w->out, name, bytes, n, e))
        return err_wrap(e, "%s", w->dir);
    return 0;
}

int writer_check_space(const struct writer *w, uint64_t need_bytes, struct err *e)
{
    return out_check_space(&w->out, need_bytes, e);
}

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

static bool is_moe(const struct writer *w, unsigned layer)
{
    return w->n_experts && layer >= w->first_dense && layer < w->n_layers;
}

unsigned writer_codebook_base(const struct writer *w, unsigned layer)
{
    return (layer - w->first_dense) * MATRICES * w->stages;
}

int writer_codebook(struct writer *w, unsigned layer, enum matrix m, unsigned stage,
                    const uint16_t *entries, struct err *e)
{
    unsigned i = writer_codebook_base(w, layer) + m * w->stages + stage;
    uint8_t *at = w->codebooks + i * w->codebook_record;

    assert(is_moe(w, layer) && stage < w->stages);
    for (unsigned j = 0; j < w->entries * FORMAT_VEC_DIM; j++)
        if (!half_finite(entries[j]))
            return err_set(e, ERR_CORRUPT, "layer %u codebook %u: value %u is not finite", layer,
                           m * w->stages + stage, j);
    store_le32(at, CODEBOOK_MAGIC);
    store_le16(at + 4, (uint16_t)i);
    at[6] = FMT_VQ3R; /* whatever the records hold: nobody ever wrote another */
    at[7] = FORMAT_VEC_DIM;
    store_le32(at + 8, w->entries);
    memcpy(at + FORMAT_CODEBOOK_HEADER, entries, 2ull * w->entries * FORMAT_VEC_DIM);
    w->codebook_given[i] = true;
    return 0;
}

static void part_name(char *out, unsigned layer)
{
    snprintf(out, NAME_BYTES, "codebooks-L%u.bin", layer);
}

int writer_codebooks_part(struct writer *w, unsigned layer, struct err *e)
{
    size_t n = MATRICES * w->stages, bytes = n * w->codebook_record;
    unsigned base = writer_codebook_base(w, layer);
    uint8_t *part = malloc(bytes + PART_CRC);
    char name[NAME_BYTES];
    int bad;

    for (unsigned i = 0; i < n; i++)
        assert(w->codebook_given[base + i]);
    if (!part)
        return err_set(e, ERR_NOMEM, "%zu codebooks", n);
    memcpy(part, w->codebooks + base * w->codebook_record, bytes);
    store_le32(part + bytes, libdeflate_crc32(0, part, bytes));
    part_name(name, layer);
    bad = out_file(&w->out, name, part, bytes + PART_CRC, e);
    free(part);
    return bad ? err_wrap(e, "%s", w->dir) : 0;
}

/* As writer_codebook makes it? */
static bool sound_codebook(const struct writer *w, const uint8_t *at, unsigned index)
{
    bool sound = load_le32(at) == CODEBOOK_MAGIC && load_le16(at + 4) == (index & 0xffff) &&
                 at[6] == FMT_VQ3R && at[7] == FORMAT_VEC_DIM && load_le32(at + 8) == w->entries &&
                 load_le32(at + 12) == 0;

    for (unsigned j = 0; sound && j < w->entries * FORMAT_VEC_DIM; j++)
        sound = half_finite(load_le16(at + FORMAT_CODEBOOK_HEADER + 2 * j));
    return sound;
}

bool writer_codebooks_keep(struct writer *w, unsigned layer)
{
    size_t n = MATRICES * w->stages, bytes = n * w->codebook_record;
    unsigned base = writer_codebook_base(w, layer);
    uint8_t *part = malloc(bytes + PART_CRC);
    char name[NAME_BYTES];
    bool sound;
    int fd;

    part_name(name, layer);
    fd = is_moe(w, layer) ? openat(w->out.fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    sound = part && fd >= 0 && writer_file_bytes(w, name) == bytes + PART_CRC &&
            pread(fd, part, bytes + PART_CRC, 0) == (ssize_t)(bytes + PART_CRC) &&
            load_le32(part + bytes) == libdeflate_crc32(0, part, bytes);
    for (unsigned i = 0; i < n && sound; i++)
        sound = sound_codebook(w, part + i * w->codebook_record, base + i);
    if (sound) {
        memcpy(w->codebooks + base * w->codebook_record, part, bytes);
        for (unsigned i = 0; i < n; i++)
            w->codebook_given[base + i] = true;
    }
    if (fd >= 0)
        close(fd);
    free(part);
    return sound;
}

const uint16_t *writer_codebook_at(const struct writer *w, unsigned layer, enum matrix m,
                                   unsigned stage)
{
    unsigned i = writer_codebook_base(w, layer) + m * w->stages + stage;

    if (!w->codebook_given[i])
        return NULL;
    return (const uint16_t *)(const void *)(w->codebooks + i * w->codebook_record +
                                            FORMAT_CODEBOOK_HEADER);
}

static void bank_name(char *out, unsigned layer)
{
    snprintf(out, NAME_BYTES, "experts-L%u.bin", layer);
}

const struct record_layout *writer_record_layout(const struct writer *w)
{
    return w->n_experts ? &w->record : NULL;
}

bool writer_bank_keep(struct writer *w, unsigned layer)
{
    const unsigned ends[2] = {0, w->n_experts - 1};
    uint8_t *bytes = malloc(w->record.bytes);
    char name[NAME_BYTES];
    struct err e;
    bool sound;
    int fd;

    bank_name(name, layer);
    fd = openat(w->out.fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    sound =
        bytes && fd >= 0 && writer_file_bytes(w, name) == (uint64_t)w->n_experts * w->record.bytes;
    for (unsigned i = 0; i < 2 && sound; i++) {
        off_t at = (off_t)ends[i] * w->record.bytes;

        sound =
            pread(fd, bytes, w->record.bytes, at) == (ssize_t)w->record.bytes &&
            !record_check(&w->record, bytes, layer, ends[i], writer_codebook_base(w, layer), &e);
    }
    if (fd >= 0)
        close(fd);
    free(bytes);
    w->bank[layer].done = sound;
    return sound;
}

int writer_bank_begin(struct writer *w, unsigned layer, struct err *e)
{
    struct bank_state *b = &w->bank[layer];
    uint64_t bytes = (uint64_t)w->n_experts * w->record.bytes;
    char name[NAME_BYTES];
    int fd = -1;

    assert(is_moe(w, layer) && b->fd < 0 && !b->done);
    bank_name(name, layer);
#ifdef O_DIRECT
    if (w->direct && out_create(&w->out, name, O_DIRECT, &fd, e) && e->code != ERR_IO)
        return err_wrap(e, "%s", w->dir);
#endif
    if (fd < 0 && out_create(&w->out, name, 0, &fd, e))
        return err_wrap(e, "%s", w->dir);
    if (out_reserve(&w->out, fd, bytes, name, e)) {
        close(fd);
        return err_wrap(e, "%s", w->dir);
    }
    atomic_store(&b->written, 0);
    b->fd = fd;
    return 0;
}

int writer_record(struct writer *w, unsigned layer, unsigned expert, uint8_t *bytes, struct err *e)
{
    struct bank_state *b = &w->bank[layer];
    char name[NAME_BYTES];
    int bad;

    assert(is_moe(w, layer) && expert < w->n_experts && (uintptr_t)bytes % FORMAT_PAGE == 0);
    bank_name(name, layer);
    record_seal(&w->record, bytes, layer, expert, writer_codebook_base(w, layer));
    bad = out_write(&w->out, b->fd, bytes, w->record.bytes, (uint64_t)expert * w->record.bytes,
                    name, e);
#ifdef O_DIRECT
    if (bad && w->direct && errno == EINVAL) { /* opened, but refused: overlay, odd sectors */
        int flags = fcntl(b->fd, F_GETFL);

        if (flags >= 0 && !fcntl(b->fd, F_SETFL, flags & ~O_DIRECT))
            bad = out_write(&w->out, b->fd, bytes, w->record.bytes,
                            (uint64_t)expert * w->record.bytes, name, e);
    }
#endif
    if (bad)
        return err_wrap(e, "%s: expert %u", w->dir, expert);
    out_start_writeback(b->fd, (uint64_t)expert * w->record.bytes, w->record.bytes);
    atomic_fetch_add(&b->written, 1);
    return 0;
}

int writer_bank_end(struct writer *w, unsigned layer, struct err *e)
{
    struct bank_state *b = &w->bank[layer];
    unsigned written = (unsigned)atomic_load(&b->written);
    char name[NAME_BYTES];
    int fd = b->fd;

    bank_name(name, layer);
    if (written != w->n_experts)
        return err_set(e, ERR_ARG, "%s has %u of %u experts", name, written, w->n_experts);
    b->fd = -1;
    if (out_publish(&w->out, name, fd, e))
        return err_wrap(e, "%s", w->dir);
    b->done = true;
    return 0;
}

int writer_bank_check(const struct writer *w, unsigned layer, unsigned expert, uint8_t *scratch,
                      struct err *e)
{
    uint64_t at = (uint64_t)expert * w->record.bytes;
    char name[NAME_BYTES];
    struct file f;
    int status;

    bank_name(name, layer);
    if (file_open(&f, w->out.fd, name, w->direct, e))
        return err_wrap(e, "%s", w->dir);
    status = file_pread(&f, scratch, w->record.bytes, at);
    file_close(&f);
    if (status)
        return err_sys(e, status == -ENODATA ? EIO : -status, "%s: %s: expert %u", w->dir, name,
                       expert);
    if (record_check(&w->record, scratch, layer, expert, writer_codebook_base(w, layer), e) ||
        record_verify(&w->record, scratch, layer, expert, e))
        return err_wrap(e, "%s: %s", w->dir, name);
    return 0;
}

static json_t *trunk_json(const struct writer *w)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensor[i];
        json_t *shape = json_array();
        json_t *entry =
            json_pack("{s:s, s:i, s:I, s:o, s:I}", "name", t->name, "fmt", t->fmt, "off",
                      (json_int_t)t->off, "shape", shape, "bytes", (json_int_t)t->bytes);

        for (unsigned d = 0; entry && d < t->rank; d++)
            json_array_append_new(shape, json_integer(t->dim[d]));
        if (entry && t->groups) {
            json_object_set_new(entry, "group", json_integer(FORMAT_GROUP));
            json_object_set_new(entry, "scale_off", json_integer((json_int_t)t->scale_off));
        }
        if (json_array_append_new(list, entry)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *layers_json(const struct writer *w)
{
    json_t *layers = json_object();

    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        char key[16], file[NAME_BYTES];

        snprintf(key, sizeof(key), "%u", l);
        bank_name(file, l);
        json_object_set_new(layers, key,
                            json_pack("{s:s, s:i, s:I, s:i}", "file", file, "experts",
                                      (int)w->n_experts, "bytes",
                                      (json_int_t)w->n_experts * w->record.bytes, "codebook_base",
                                      (int)writer_codebook_base(w, l)));
    }
    return layers;
}

static json_t *quant_json(const struct writer *w)
{
    const char *fmt = w->index_bits == 6 ? "VQ4P" : w->stages == 2 ? "VQ2R" : "VQ3R";

    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "fmt", fmt, "stages", (int)w->stages,
                     "vec_dim", FORMAT_VEC_DIM, "entries", (int)w->entries, "index_block",
                     FORMAT_INDEX_BLOCK, "index_bits", (int)w->index_bits, "bits_per_weight",
                     (double)(w->stages * w->index_bits) / FORMAT_VEC_DIM);
}

/* Numbers with as few digits as read back the same: 2.446, not 2.4460000000000002. */
static char *manifest_text(const json_t *root)
{
    size_t flags = JSON_INDENT(1) | JSON_ENSURE_ASCII;
    char *text = json_dumps(root, flags | JSON_REAL_PRECISION(15));
    json_t *back = text ? json_loads(text, 0, NULL) : NULL;

    if (text && !(back && json_equal(root, back))) {
        free(text);
        text = json_dumps(root, flags | JSON_REAL_PRECISION(17));
    }
    json_decref(back);
    return text;
}

static int everything_given(const struct writer *w, struct err *e)
{
    if (!w->trunk_done)
        return err_set(e, ERR_ARG, "%s: the trunk is not finished", w->dir);
    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        if (!w->bank[l].done)
            return err_set(e, ERR_ARG, "%s: the bank of layer %u is not finished", w->dir, l);
        for (unsigned i = 0; i < MATRICES * w->stages; i++)
            if (!w->codebook_given[writer_codebook_base(w, l) + i])
                return err_set(e, ERR_ARG, "%s: layer %u lacks codebook %u", w->dir, l, i);
    }
    return 0;
}

/* The manifest's text, which the reader of manifests accepts; the caller frees. */
static int make_manifest(const struct writer *w, const json_t *extra, char **out, struct err *e)
{
    struct manifest m;
    char *text = NULL;
    json_t *root;

    root =
        json_pack("{s:i, s:s, s:s, s:O, s:o, s:o, s:o}", "format_version", FORMAT_VERSION, "arch",
                  w->arch, "tensor_prefix", w->prefix, "config", w->config, "expert_quant",
                  quant_json(w), "layers", layers_json(w), "trunk", trunk_json(w));
    if (root && !(extra && json_object_update_missing(root, (json_t *)(uintptr_t)extra)))
        text = manifest_text(root);
    json_decref(root);
    if (!text)
        return err_set(e, ERR_NOMEM, "manifest.json: cannot be built");
    if (manifest_parse(&m, text, strlen(text), w->trunk_bytes, e)) {
        free(text);
        return e->code;
    }
    manifest_release(&m);
    *out = text;
    return 0;
}

int writer_check_manifest(const struct writer *w, const json_t *extra, struct err *e)
{
    char *text;

    if (make_manifest(w, extra, &text, e))
        return err_wrap(e, "%s", w->dir);
    free(text);
    return 0;
}

int writer_finish(struct writer *w, const json_t *extra, struct err *e)
{
    char *text;
    int bad;

    if (everything_given(w, e))
        return e->code;
    if (out_file(&w->out, "codebooks.bin", w->codebooks, w->codebooks_bytes, e) ||
        make_manifest(w, extra, &text, e))
        return err_wrap(e, "%s", w->dir);
    bad = out_file(&w->out, "manifest.json", text, strlen(text), e);
    free(text);
    if (bad)
        return err_wrap(e, "%s", w->dir);
    w->finished = true;
    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        char name[NAME_BYTES];

        part_name(name, l);
        writer_remove(w, name);
    }
    return 0;
}

static int take_dimensions(struct writer *w, struct err *e)
{
    struct json_at at = json_root(w->config, "config");
    int64_t n_layers, first_dense, experts, hidden, latent, inter;

    if (json_get_int(&n_layers, &at, "num_hidden_layers", 0, 1, FORMAT_LAYERS_MAX, e) ||
        json_get_int(&first_dense, &at, "first_k_dense_replace", 0, 0, n_layers, e) ||
        json_get_int(&experts, &at, "num_experts", 0, 0, FORMAT_EXPERTS_MAX, e) ||
        json_get_int(&hidden, &at, "hidden_size", 0, 1, 1 << 20, e) ||
        json_get_int(&latent, &at, "routed_expert_hidden_size", 0, 0, 1 << 20, e) ||
        json_get_int(&inter, &at, "moe_intermediate_size", 0, 0, 1 << 20, e))
        return e->code;
    w->n_layers = (unsigned)n_layers;
    w->first_dense = (unsigned)first_dense;
    w->n_experts = (unsigned)experts;
    if (!experts)
        return 0;
    return record_layout_init(&w->record, (uint32_t)(latent ? latent : hidden), (uint32_t)inter,
                              w->stages, w->entries, w->index_bits, e);
}

static int take_codebooks(struct writer *w, struct err *e)
{
    size_t n = w->n_experts ? (size_t)(w->n_layers - w->first_dense) * MATRICES * w->stages : 0;

    w->codebook_record = FORMAT_CODEBOOK_HEADER + 2ull * w->entries * FORMAT_VEC_DIM;
    w->codebooks_bytes = n * w->codebook_record;
    w->codebooks = calloc(n + 1, w->codebook_record);
    w->codebook_given = calloc(n + 1, sizeof(*w->codebook_given));
    if (!w->codebooks || !w->codebook_given)
        return err_set(e, ERR_NOMEM, "%zu codebooks", n);
    return 0;
}

/* What was half written, now or by a run that was killed, is of no use. */
static void remove_temporaries(struct writer *w)
{
    out_remove_temporary(&w->out, "trunk.bin");
    out_remove_temporary(&w->out, "codebooks.bin");
    out_remove_temporary(&w->out, "manifest.json");
    for (unsigned l = w->first_dense; w->n_experts && l < w->n_layers; l++) {
        char name[NAME_BYTES];

        bank_name(name, l);
        out_remove_temporary(&w->out, name);
        part_name(name, l);
        out_remove_temporary(&w->out, name);
    }
}

static int take_directory(struct writer *w, struct err *e)
{
    struct stat st;

    w->made_directory = !mkdir(w->dir, 0777);
    if (!w->made_directory && errno != EEXIST)
        return err_sys(e, errno, "%s: creating the directory", w->dir);
    w->out.fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->out.fd < 0)
        return err_sys(e, errno, "%s", w->dir);
    if (flock(w->out.fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return err_set(e, ERR_BUSY, "%s: another process is using it", w->dir);
    w->locked = true; /* or the file system knows no locks */
    if (!fstatat(w->out.fd, "manifest.json", &st, AT_SYMLINK_NOFOLLOW))
        return err_set(e, ERR_ARG, "%s: is a container already", w->dir);
    remove_temporaries(w);
    return 0;
}

int writer_open(struct writer **out, const char *dir, const struct writer_options *o, struct err *e)
{
    struct writer *w = calloc(1, sizeof(*w));

    if (!w)
        return err_set(e, ERR_NOMEM, "writer of %s", dir);
    w->out.fd = w->trunk_fd = -1;
    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++)
        w->bank[l].fd = -1;
    w->dir = strdup(dir);
    w->out.path = w->dir;
    w->arch = strdup(o->arch);
    w->prefix = strdup(o->prefix);
    w->config = json_incref((json_t *)(uintptr_t)o->config);
    w->stages = o->stages;
    w->entries = o->entries;
    w->index_bits = o->index_bits;
    w->direct = o->direct;
    if (!w->dir || !w->arch || !w->prefix)
        err_set(e, ERR_NOMEM, "writer of %s", dir);
    else if (!take_dimensions(w, e) && !take_codebooks(w, e) && !take_directory(w, e)) {
        *out = w;
        return 0;
    }
    writer_close(w);
    return e->code;
}

void writer_close(struct writer *w)
{
    if (!w)
        return;
    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++)
        if (w->bank[l].fd >= 0)
            close(w->bank[l].fd);
    if (w->trunk_fd >= 0)
        close(w->trunk_fd);
    if (w->out.fd >= 0) {
        if (w->locked && !w->finished) {
            remove_temporaries(w);
            if (w->made_directory)
                rmdir(w->dir); /* if nothing was finished */
        }
        close(w->out.fd);
    }
    for (unsigned i = 0; i < w->n_tensors; i++)
        free(w->tensor[i].name);
    free(w->tensor);
    free(w->codebooks);
    free(w->codebook_given);
    json_decref(w->config);
    free(w->arch);
    free(w->prefix);
    free(w->dir);
    free(w);
}
