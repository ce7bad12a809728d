#include "expertfs/writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/half.h"
#include "base/json.h"
#include "expertfs/writer_state.h"
#include "storage/file.h"

enum { PART_CRC = 4 }; /* bytes, behind the codebooks of a layer */

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

void writer_part_name(char *out, unsigned layer)
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
    writer_part_name(name, layer);
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

    writer_part_name(name, layer);
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

void writer_bank_name(char *out, unsigned layer)
{
    snprintf(out, NAME_BYTES, "experts-L%u.bin", layer);
}

const struct record_layout *writer_record_layout(const struct writer *w)
{
    return w->n_experts ? &w->record : NULL;
}

bool writer_direct(const struct writer *w)
{
    return w->direct && !atomic_load(&w->refused);
}

bool writer_bank_keep(struct writer *w, unsigned layer)
{
    const unsigned ends[2] = {0, w->n_experts - 1};
    uint8_t *bytes = malloc(w->record.bytes);
    char name[NAME_BYTES];
    struct err e;
    bool sound;
    int fd;

    writer_bank_name(name, layer);
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
    writer_bank_name(name, layer);
#ifdef O_DIRECT
    if (w->direct && out_create(&w->out, name, O_DIRECT, &fd, e) && e->code != ERR_IO)
        return err_wrap(e, "%s", w->dir);
#endif
    if (fd < 0 && w->direct)
        atomic_store(&w->refused, true);
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
    writer_bank_name(name, layer);
    record_seal(&w->record, bytes, layer, expert, writer_codebook_base(w, layer));
    bad = out_write(&w->out, b->fd, bytes, w->record.bytes, (uint64_t)expert * w->record.bytes,
                    name, e);
#ifdef O_DIRECT
    if (bad && w->direct && errno == EINVAL) { /* opened, but refused: FUSE, odd sectors */
        atomic_store(&w->refused, true);
        bad = out_reopen(&w->out, b->fd, name, e) ||
              out_write(&w->out, b->fd, bytes, w->record.bytes, (uint64_t)expert * w->record.bytes,
                        name, e);
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

    writer_bank_name(name, layer);
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

    writer_bank_name(name, layer);
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

        writer_bank_name(name, l);
        out_remove_temporary(&w->out, name);
        writer_part_name(name, l);
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
    return out_sync_name(&w->out, e);
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
