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
    struct file bank[FORMAT_LAYERS_MAX]; /* n_banks of them, in layer order */
    const struct file *files[FORMAT_LAYERS_MAX];
    unsigned n_banks;
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
static int bank_open(struct container *c, unsigned layer, bool direct, struct err *e)
{
    const struct bank *says = &c->manifest.bank[layer];
    struct file *f = &c->bank[c->n_banks];
    struct stat a, b;

    if (file_open(f, c->dirfd, says->file, direct, e))
        return e->code;
    c->files[c->n_banks++] = f;
    if (f->bytes != says->bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: %" PRIu64 " bytes on disk, manifest says %" PRIu64
                       " (incomplete copy?)",
                       says->file, f->bytes, says->bytes);
    if (fstat(f->fd, &a))
        return err_sys(e, errno, "%s", says->file);
    for (const struct file *other = c->bank; other < f; other++)
        if (!fstat(other->fd, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return err_set(e, ERR_FORMAT, "%s: the same file is the bank of another layer, as %s",
                           says->file, other->name);
    return 0;
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
    for (unsigned layer = m->first_dense; layer < m->n_layers; layer++)
        if (bank_open(c, layer, direct, e))
            return e->code;
    return 0;
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
    for (unsigned i = 0; i < c->n_banks; i++)
        crc = crc_u64(crc, c->bank[i].bytes);
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

const struct file *const *container_files(const struct container *c, unsigned *n)
{
    *n = c->n_banks;
    return c->files;
}

struct extent container_extent(const struct container *c, unsigned layer, unsigned expert)
{
    const struct manifest *m = &c->manifest;

    assert(manifest_is_moe(m, layer) && expert < m->n_experts);
    return (struct extent){.offset = (uint64_t)expert * m->record.bytes,
                           .length = m->record.bytes,
                           .file = layer - m->first_dense};
}

unsigned container_file_layer(const struct container *c, unsigned file)
{
    assert(file < c->n_banks);
    return c->manifest.first_dense + file;
}

uint32_t container_fingerprint(const struct container *c)
{
    return c->fingerprint;
}
