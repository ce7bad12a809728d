#include "expertfs/container.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/placement.h"

#ifndef O_PATH /* a directory we may search but not list can still be used */
#define O_PATH O_RDONLY
#endif

#define CODEBOOKS_BYTES_MAX (UINT64_C(1) << 30)

/* Sole use of a directory by this process, shared by its contexts. */
struct dir_lock {
    dev_t dev;
    ino_t ino;
    int fd; /* flock-ed */
    unsigned users;
    struct dir_lock *next;
};

struct container {
    char *dir;
    int dirfd;
    struct dir_lock *lock; /* NULL: not asked for, or not to be had */
    struct manifest manifest;
    struct file trunk, codebooks;
    struct placement placement;
    struct file *bank; /* [n_banks]: in layer order; of a spread layer one a drive */
    const struct file **files;
    unsigned n_banks, *layer_of; /* [n_banks] */
    unsigned first_file[FORMAT_LAYERS_MAX];
    unsigned drive_file[PLACEMENT_DRIVES_MAX]; /* of a spread layer: a drive's, from its first */
    uint32_t fingerprint;
    struct stat trunk_stat; /* at open */
};

static pthread_mutex_t locks_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct dir_lock *locks; /* of this process */

/* Take the lock, or a share in ours. *out stays NULL where the system does not lock: what cannot be
 * had is not insisted on. ERR_BUSY: another process has it. */
static int lock_take(struct dir_lock **out, int dirfd, const char *dir, struct err *e)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dir_lock *l;
    struct stat st;
    int code = 0;

    if (fd < 0 || fstat(fd, &st)) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    pthread_mutex_lock(&locks_mutex);
    for (l = locks; l && (l->dev != st.st_dev || l->ino != st.st_ino);)
        l = l->next;
    if (l) {
        l->users++;
        *out = l;
    } else if (!flock(fd, LOCK_EX | LOCK_NB)) {
        l = malloc(sizeof(*l));
        if (l) {
            *l = (struct dir_lock){st.st_dev, st.st_ino, fd, 1, locks};
            *out = locks = l;
            fd = -1;
        } else {
            code = err_set(e, ERR_NOMEM, "container %.200s", dir);
        }
    } else if (errno == EWOULDBLOCK) {
        code =
            err_set(e, ERR_BUSY, "container %.200s: another process has it open for sole use", dir);
    }
    pthread_mutex_unlock(&locks_mutex);
    if (fd >= 0)
        close(fd);
    return code;
}

static void lock_drop(struct dir_lock *l)
{
    struct dir_lock **at;

    pthread_mutex_lock(&locks_mutex);
    if (--l->users == 0) {
        for (at = &locks; *at != l;)
            at = &(*at)->next;
        *at = l->next;
        close(l->fd);
        free(l);
    }
    pthread_mutex_unlock(&locks_mutex);
}

/* Rules B3, B5 and B7 as the file system sees it. */
static int bank_open(struct container *c, unsigned layer, int dirfd, const char *name,
                     uint64_t bytes, bool direct, struct err *e)
{
    struct file *f = &c->bank[c->n_banks];
    struct stat a, b;

    if (file_open(f, dirfd, name, direct, e))
        return e->code;
    c->layer_of[c->n_banks] = layer;
    c->files[c->n_banks++] = f;
    if (manifest_check_bank_bytes(name, f->bytes, bytes, e))
        return e->code;
    if (fstat(f->fd, &a))
        return err_sys(e, errno, "%s", name);
    for (const struct file *other = c->bank; other < f; other++)
        if (!fstat(other->fd, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return err_set(e, ERR_FORMAT, "%s: the same file is the bank of another layer, as %s",
                           name, other->name);
    return 0;
}

/* One drive's pieces of a layer. */
static int piece_open(struct container *c, unsigned layer, unsigned drive, int drive_fd,
                      bool direct, struct err *e)
{
    const struct manifest *m = &c->manifest;
    unsigned n = placement_records(&c->placement, drive, m->n_experts);
    char name[PLACEMENT_NAME_BYTES];

    placement_piece(name, layer);
    if (bank_open(c, layer, drive_fd, name, (uint64_t)n * m->record.bytes, direct, e))
        return err_wrap(e, "drive %u (%.200s)", drive, c->placement.dir[drive]);
    return 0;
}

static int banks_alloc(struct container *c, struct err *e)
{
    const struct manifest *m = &c->manifest;
    size_t n = 0;

    for (unsigned layer = m->first_dense; layer < m->n_layers; layer++)
        n += c->placement.spread[layer] ? c->placement.n : 1;
    c->bank = calloc(n + 1, sizeof(*c->bank));
    c->files = calloc(n + 1, sizeof(*c->files));
    c->layer_of = calloc(n + 1, sizeof(*c->layer_of));
    return c->bank && c->files && c->layer_of ? 0 : err_set(e, ERR_NOMEM, "%zu banks", n);
}

static int banks_open_from(struct container *c, const int drive_fd[], bool direct, struct err *e)
{
    const struct manifest *m = &c->manifest;

    for (unsigned layer = m->first_dense; layer < m->n_layers; layer++) {
        c->first_file[layer] = c->n_banks;
        if (!c->placement.spread[layer]) {
            if (bank_open(c, layer, c->dirfd, m->bank[layer].file, m->bank[layer].bytes, direct, e))
                return e->code;
            continue;
        }
        for (unsigned d = 0; d < c->placement.n; d++) {
            c->drive_file[d] = c->n_banks - c->first_file[layer];
            if (placement_records(&c->placement, d, m->n_experts) &&
                piece_open(c, layer, d, drive_fd[d], direct, e))
                return e->code;
        }
    }
    return 0;
}

static int banks_open(struct container *c, bool direct, struct err *e)
{
    const struct manifest *m = &c->manifest;
    int drive_fd[PLACEMENT_DRIVES_MAX], code = 0;
    unsigned n = 0;
    bool any = false; /* a move that was begun and no more needs no drive */

    if (placement_read(&c->placement, c->dirfd, m->first_dense, m->n_layers, e) ||
        banks_alloc(c, e))
        return e->code;
    for (unsigned l = m->first_dense; l < m->n_layers; l++)
        any |= c->placement.spread[l];
    for (; any && !code && n < c->placement.n; n += !code)
        if ((drive_fd[n] = placement_open_dir(&c->placement, n, c->dirfd, e)) < 0)
            code = e->code;
    if (!code)
        code = banks_open_from(c, drive_fd, direct, e);
    while (n)
        close(drive_fd[--n]);
    return code;
}

static int files_open(struct container *c, bool direct, struct err *e)
{
    const struct manifest *m = &c->manifest;

    if (file_open(&c->trunk, c->dirfd, "trunk.bin", direct, e))
        return e->code;
    if (fstat(c->trunk.fd, &c->trunk_stat))
        return err_sys(e, errno, "trunk.bin");
    if (m->n_experts == 0)
        return 0;
    if (file_open(&c->codebooks, c->dirfd, "codebooks.bin", false, e))
        return e->code;
    if (c->codebooks.bytes > CODEBOOKS_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "codebooks.bin: %" PRIu64 " bytes, more than %" PRIu64,
                       c->codebooks.bytes, CODEBOOKS_BYTES_MAX);
    return banks_open(c, direct, e);
}

/* crc over a whole file, in pieces. */
static int crc_file(uint32_t *crc, const struct file *f, struct err *e)
{
    uint8_t piece[16384];

    for (uint64_t at = 0; at < f->bytes;) {
        size_t n = f->bytes - at < sizeof(piece) ? (size_t)(f->bytes - at) : sizeof(piece);

        if (file_read(f, piece, n, at, e))
            return e->code;
        *crc = libdeflate_crc32(*crc, piece, n);
        at += n;
    }
    return 0;
}

static uint32_t crc_u64(uint32_t crc, uint64_t v)
{
    uint8_t bytes[8];

    store_le64(bytes, v);
    return libdeflate_crc32(crc, bytes, sizeof(bytes));
}

static int fingerprint_make(struct container *c, struct err *e)
{
    struct file manifest;
    uint32_t crc = 0;

    if (file_open(&manifest, c->dirfd, "manifest.json", false, e))
        return e->code;
    if (crc_file(&crc, &manifest, e) || crc_file(&crc, &c->codebooks, e)) {
        file_close(&manifest);
        return e->code;
    }
    file_close(&manifest);
    crc = crc_u64(crc_u64(crc, c->trunk.bytes), c->codebooks.bytes);
    for (unsigned l = c->manifest.first_dense; c->n_banks && l < c->manifest.n_layers; l++)
        crc = crc_u64(crc, c->manifest.bank[l].bytes); /* wherever its records lie */
    c->fingerprint = crc;
    return 0;
}

static int open_dir(struct container *c, const char *dir, struct err *e)
{
    c->dir = strdup(dir);
    if (!c->dir)
        return err_set(e, ERR_NOMEM, "container %.200s", dir);
    c->dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (c->dirfd < 0)
        return err_sys(e, errno, "%.200s: no manifest.json (not a .waste container?)", dir);
    return 0;
}

int container_open(struct container **out, const char *dir, const struct container_options *o,
                   struct err *e)
{
    struct container *c = calloc(1, sizeof(*c));

    if (!c)
        return err_set(e, ERR_NOMEM, "container %.200s", dir);
    c->dirfd = -1;
    if (open_dir(c, dir, e) || (o->exclusive && lock_take(&c->lock, c->dirfd, dir, e)) ||
        manifest_read(&c->manifest, c->dirfd, dir, e) || files_open(c, o->direct, e) ||
        fingerprint_make(c, e)) {
        container_close(c); /* takes a half-open container: one clean-up for both ways out */
        return e->code;
    }
    *out = c;
    return 0;
}

void container_close(struct container *c)
{
    if (!c)
        return;
    for (unsigned i = 0; i < c->n_banks; i++)
        file_close(&c->bank[i]);
    free(c->bank);
    free(c->files);
    free(c->layer_of);
    file_close(&c->codebooks);
    file_close(&c->trunk);
    manifest_release(&c->manifest);
    if (c->lock)
        lock_drop(c->lock);
    if (c->dirfd >= 0)
        close(c->dirfd);
    free(c->dir);
    free(c);
}

const struct manifest *container_manifest(const struct container *c)
{
    return &c->manifest;
}

int container_check_trunk(const struct container *c, struct err *e)
{
    const struct stat *was = &c->trunk_stat;
    struct stat is;

    if (fstat(c->trunk.fd, &is))
        return err_sys(e, errno, "trunk.bin");
    if (is.st_size != was->st_size || is.st_mtim.tv_sec != was->st_mtim.tv_sec ||
        is.st_mtim.tv_nsec != was->st_mtim.tv_nsec)
        return err_set(
            e, ERR_IO,
            "trunk.bin: changed since it was opened (%lld bytes then, %lld now); open the "
            "model again",
            (long long)was->st_size, (long long)is.st_size);
    return 0;
}

int container_dirfd(const struct container *c)
{
    return c->dirfd;
}

const char *container_dir(const struct container *c)
{
    return c->dir;
}

const struct file *container_trunk(const struct container *c)
{
    return &c->trunk;
}

const struct file *container_codebooks(const struct container *c)
{
    return &c->codebooks;
}

const struct placement *container_placement(const struct container *c)
{
    return &c->placement;
}

const struct file *const *container_files(const struct container *c, unsigned *n)
{
    *n = c->n_banks;
    return c->files;
}

struct extent container_extent(const struct container *c, unsigned layer, unsigned expert)
{
    const struct manifest *m = &c->manifest;

    assert(manifest_is_moe(m, layer) && expert < m->n_experts);
    if (c->placement.spread[layer]) {
        unsigned rank, drive = placement_drive(&c->placement, expert, &rank);

        return (struct extent){.offset = (uint64_t)rank * m->record.bytes,
                               .length = m->record.bytes,
                               .file = c->first_file[layer] + c->drive_file[drive]};
    }
    return (struct extent){.offset = (uint64_t)expert * m->record.bytes,
                           .length = m->record.bytes,
                           .file = c->first_file[layer]};
}

unsigned container_file_layer(const struct container *c, unsigned file)
{
    assert(file < c->n_banks);
    return c->layer_of[file];
}

uint32_t container_fingerprint(const struct container *c)
{
    return c->fingerprint;
}
