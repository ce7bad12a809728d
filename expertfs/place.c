#include "expertfs/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "expertfs/container.h"

struct mover {
    struct container *c;
    const struct manifest *m;
    struct placement p;
    int dirfd, drive_fd[PLACEMENT_DRIVES_MAX]; /* -1: not open */
    uint8_t *record;
    struct progress *progress;
};

static int write_whole(int fd, const uint8_t *bytes, size_t n, const char *name, struct err *e)
{
    while (n) {
        ssize_t did = write(fd, bytes, n);

        if (did < 0 && errno == EINTR)
            continue;
        if (did <= 0)
            return err_sys(e, did ? errno : ENOSPC, "%s", name);
        bytes += did;
        n -= (size_t)did;
    }
    return 0;
}

static int copy_record(struct mover *v, int fd, unsigned layer, unsigned expert, const char *name,
                       struct err *e)
{
    struct extent at = container_extent(v->c, layer, expert);
    unsigned n;
    const struct file *const *files = container_files(v->c, &n);

    if (progress_cancelled(v->progress))
        return err_set(e, ERR_CANCELLED, "cancelled; the same command goes on");
    if (file_read(files[at.file], v->record, at.length, at.offset, e) ||
        write_whole(fd, v->record, at.length, name, e))
        return e->code;
    atomic_fetch_add(&v->progress->done, at.length);
    atomic_fetch_add(&v->progress->bytes, at.length);
    return 0;
}

/* Write `n` records, which `expert` names in order, into a new file below dirfd; it gets its name
 * when it is whole and on the disk. */
static int write_records(struct mover *v, int dirfd, const char *name, unsigned layer, unsigned n,
                         unsigned (*expert)(const struct mover *v, unsigned drive, unsigned i),
                         unsigned drive, struct err *e)
{
    char temporary[300];
    int fd, bad = 0;

    snprintf(temporary, sizeof(temporary), "%s.tmp", name);
    fd = openat(dirfd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(e, errno, "%s", temporary);
    for (unsigned i = 0; i < n && !bad; i++)
        bad = copy_record(v, fd, layer, expert(v, drive, i), temporary, e);
    if (!bad && (fsync(fd) || renameat(dirfd, temporary, dirfd, name) || placement_sync(dirfd)))
        bad = err_sys(e, errno, "%s", name);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (bad)
        unlinkat(dirfd, temporary, 0);
    return bad;
}

static unsigned expert_of_piece(const struct mover *v, unsigned drive, unsigned i)
{
    return placement_expert(&v->p, drive, i);
}

static unsigned expert_of_bank(const struct mover *v, unsigned drive, unsigned i)
{
    (void)v, (void)drive;
    return i;
}

/* Is there room for `bytes` below this directory? */
static int room_for(int fd, uint64_t bytes, const char *name, struct err *e)
{
    struct statvfs st;
    uint64_t room;

    if (fstatvfs(fd, &st))
        return err_sys(e, errno, "%.200s", name);
    room = (uint64_t)st.f_bavail * st.f_frsize;
    if (room >= bytes)
        return 0;
    return err_set(
        e, ERR_IO,
        "%.200s: %.1f MiB are free, the next part takes %.1f MiB; make room or give this "
        "drive a smaller share",
        name, (double)room / (1 << 20), (double)bytes / (1 << 20));
}

static int spread_layer(struct mover *v, unsigned layer, struct err *e)
{
    char piece[PLACEMENT_NAME_BYTES];

    placement_piece(piece, layer);
    for (unsigned d = 0; d < v->p.n; d++) {
        unsigned n = placement_records(&v->p, d, v->m->n_experts);

        if (n && (room_for(v->drive_fd[d], (uint64_t)n * v->m->record.bytes, v->p.dir[d], e) ||
                  write_records(v, v->drive_fd[d], piece, layer, n, expert_of_piece, d, e)))
            return err_wrap(e, "drive %u (%.200s)", d, v->p.dir[d]);
    }
    v->p.spread[layer] = true;
    return placement_write(&v->p, v->dirfd, e);
}

static int gather_layer(struct mover *v, unsigned layer, struct err *e)
{
    const struct bank *bank = &v->m->bank[layer];

    if (room_for(v->dirfd, bank->bytes, container_dir(v->c), e) ||
        write_records(v, v->dirfd, bank->file, layer, v->m->n_experts, expert_of_bank, 0, e))
        return e->code;
    v->p.spread[layer] = false;
    return placement_write(&v->p, v->dirfd, e);
}

/* Files that drives.json says are not in use: left over from a layer that was moved, or begun. */
static void drop_unused(struct mover *v, unsigned layer)
{
    char name[300];

    for (unsigned d = 0; d < v->p.n; d++) {
        placement_piece(name, layer);
        if (!v->p.spread[layer])
            unlinkat(v->drive_fd[d], name, 0);
        strcat(name, ".tmp");
        unlinkat(v->drive_fd[d], name, 0);
    }
    snprintf(name, sizeof(name), "%s.tmp", v->m->bank[layer].file);
    unlinkat(v->dirfd, name, 0);
    if (v->p.spread[layer])
        unlinkat(v->dirfd, v->m->bank[layer].file, 0);
}

static void mover_close(struct mover *v)
{
    for (unsigned d = 0; d < PLACEMENT_DRIVES_MAX; d++)
        if (v->drive_fd[d] >= 0)
            close(v->drive_fd[d]);
    free(v->record);
    container_close(v->c);
}

static int mover_open(struct mover *v, const char *dir, struct progress *progress, struct err *e)
{
    const struct container_options o = {.exclusive = true};

    *v = (struct mover){.progress = progress};
    for (unsigned d = 0; d < PLACEMENT_DRIVES_MAX; d++)
        v->drive_fd[d] = -1;
    if (container_open(&v->c, dir, &o, e))
        return e->code;
    v->m = container_manifest(v->c);
    v->dirfd = container_dirfd(v->c);
    v->p = *container_placement(v->c);
    if (!v->m->n_experts) {
        mover_close(v);
        return err_set(e, ERR_UNSUPPORTED, "%.200s has no experts to move", dir);
    }
    v->record = malloc(v->m->record.bytes);
    if (v->record)
        return 0;
    mover_close(v);
    return err_set(e, ERR_NOMEM, "one record of %u bytes", v->m->record.bytes);
}

static bool same_drives(const struct placement *a, const struct placement *b)
{
    for (unsigned d = 0; d < a->n; d++)
        if (d >= b->n || a->share[d] != b->share[d] || strcmp(a->dir[d], b->dir[d]))
            return false;
    return a->n == b->n;
}

/* Directories of all drives, made and marked where they are new. */
static int drives_begin(struct mover *v, struct err *e)
{
    for (unsigned d = 0; d < v->p.n; d++) {
        if (d && mkdir(v->p.dir[d], 0777) && errno != EEXIST)
            return err_sys(e, errno, "%.200s", v->p.dir[d]);
        v->drive_fd[d] = openat(v->dirfd, v->p.dir[d], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (v->drive_fd[d] < 0)
            return err_sys(e, errno, "%.200s", v->p.dir[d]);
        if (placement_mark_dir(&v->p, d, v->drive_fd[d], e))
            return e->code;
    }
    return 0;
}

static int begin_spread(struct mover *v, const struct placement *want, struct err *e)
{
    if (v->p.n && !same_drives(&v->p, want))
        return err_set(e, ERR_ARG,
                       "%.200s is spread over other drives or with other shares: gather it first",
                       container_dir(v->c));
    if (!v->p.n) {
        v->p = *want;
        memset(v->p.spread, 0, sizeof(v->p.spread));
        while (!v->p.set)
            if (getrandom(&v->p.set, sizeof(v->p.set), 0) < 0)
                return err_sys(e, errno, "a number for this set of drives");
        placement_lay(&v->p);
        if (placement_write(&v->p, v->dirfd, e))
            return e->code;
    }
    return drives_begin(v, e);
}

static uint64_t bytes_left(const struct mover *v, bool spread)
{
    uint64_t n = 0;

    for (unsigned l = v->m->first_dense; l < v->m->n_layers; l++)
        n += v->p.spread[l] != spread ? v->m->bank[l].bytes : 0;
    return n;
}

int place_spread(const char *dir, const struct placement *want, struct progress *progress,
                 struct err *e)
{
    struct mover v;
    int code;

    if (mover_open(&v, dir, progress, e))
        return e->code;
    code = begin_spread(&v, want, e);
    progress_begin(progress, PHASE_PLACE, code ? 0 : bytes_left(&v, true));
    for (unsigned l = v.m->first_dense; !code && l < v.m->n_layers; l++) {
        drop_unused(&v, l);
        if (!v.p.spread[l] && !(code = spread_layer(&v, l, e)))
            drop_unused(&v, l);
    }
    mover_close(&v);
    return code;
}

/* Marks first: without them and without a spread layer, drives.json is of no consequence. */
static int end_gather(struct mover *v, struct err *e)
{
    const struct placement none = {.n = 0};

    for (unsigned d = 1; d < v->p.n; d++) { /* what cannot be removed now does no harm */
        unlinkat(v->drive_fd[d], "waste-drive.json", 0);
        rmdir(v->p.dir[d]);
    }
    return placement_write(&none, v->dirfd, e);
}

int place_gather(const char *dir, struct progress *progress, struct err *e)
{
    struct mover v;
    int code = 0;

    if (mover_open(&v, dir, progress, e))
        return e->code;
    if (v.p.n)
        code = drives_begin(&v, e);
    progress_begin(progress, PHASE_PLACE, code ? 0 : bytes_left(&v, false));
    for (unsigned l = v.m->first_dense; v.p.n && !code && l < v.m->n_layers; l++) {
        drop_unused(&v, l);
        if (v.p.spread[l] && !(code = gather_layer(&v, l, e)))
            drop_unused(&v, l);
    }
    if (!code && v.p.n)
        code = end_gather(&v, e);
    mover_close(&v);
    return code;
}
