#include "expertfs/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expertfs/container.h"

struct mover {
    struct container *c;
    const struct manifest *m;
    struct placement p;
    int dirfd, drive_fd[PLACEMENT_DRIVES_MAX]; /* -1: not open */
    char home[PATH_MAX];                       /* the container's real path */
    uint8_t *record;
    struct progress *progress;
};

static struct out_dir dir_of(const struct mover *v, unsigned drive)
{
    return (struct out_dir){drive ? v->p.dir[drive] : container_dir(v->c), v->drive_fd[drive]};
}

static int write_map(struct mover *v, const struct placement *p, struct err *e)
{
    struct out_dir home = dir_of(v, 0);

    return placement_write(p, &home, e);
}

/* One of n records of a new file. */
static int copy_record(struct mover *v, const struct out_dir *to, int fd, const char *name,
                       unsigned layer, unsigned expert, uint64_t offset, struct err *e)
{
    struct extent at = container_extent(v->c, layer, expert);
    unsigned n;
    const struct file *const *files = container_files(v->c, &n);

    if (progress_cancelled(v->progress))
        return err_set(e, ERR_CANCELLED, "cancelled; the same command goes on");
    if (file_read(files[at.file], v->record, at.length, at.offset, e) ||
        out_write(to, fd, v->record, at.length, offset, name, e))
        return e->code;
    out_start_writeback(fd, offset, at.length);
    atomic_fetch_add(&v->progress->done, at.length);
    atomic_fetch_add(&v->progress->bytes, at.length);
    return 0;
}

/* Write `n` records, which `expert` names in order, into a new file of a drive's directory. */
static int write_records(struct mover *v, unsigned drive, const char *name, unsigned layer,
                         unsigned n,
                         unsigned (*expert)(const struct mover *v, unsigned drive, unsigned i),
                         struct err *e)
{
    struct out_dir to = dir_of(v, drive);
    uint32_t size = v->m->record.bytes;
    int fd, bad;

    if (out_create(&to, name, 0, &fd, e))
        return e->code;
    bad = out_reserve(&to, fd, (uint64_t)n * size, name, e);
    for (unsigned i = 0; i < n && !bad; i++)
        bad = copy_record(v, &to, fd, name, layer, expert(v, drive, i), (uint64_t)i * size, e);
    if (bad)
        close(fd);
    else if (!out_publish(&to, name, fd, e))
        return 0;
    out_remove_temporary(&to, name);
    return e->code;
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

static int spread_layer(struct mover *v, unsigned layer, struct err *e)
{
    char piece[PLACEMENT_NAME_BYTES];

    placement_piece(piece, layer);
    for (unsigned d = 0; d < v->p.n; d++) {
        unsigned n = placement_records(&v->p, d, v->m->n_experts);

        if (n && write_records(v, d, piece, layer, n, expert_of_piece, e))
            return err_wrap(e, "drive %u (%.200s)", d, v->p.dir[d]);
    }
    v->p.spread[layer] = true;
    return write_map(v, &v->p, e);
}

static int gather_layer(struct mover *v, unsigned layer, struct err *e)
{
    const struct bank *bank = &v->m->bank[layer];

    if (write_records(v, 0, bank->file, layer, v->m->n_experts, expert_of_bank, e))
        return e->code;
    v->p.spread[layer] = false;
    return write_map(v, &v->p, e);
}

/* Files that drives.json says are not in use: left over from a layer that was moved, or begun. The
 * pieces of a container that this one is a copy of are its own affair. */
static void drop_unused(struct mover *v, unsigned layer)
{
    char name[300], other[PLACEMENT_DIR_BYTES];

    for (unsigned d = 0; d < v->p.n || !d; d++) { /* the container's own, always */
        if (v->drive_fd[d] < 0 ||
            (d && placement_is_anothers(&v->p, v->drive_fd[d], v->home, other)))
            continue;
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
    struct out_dir home;

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
    v->drive_fd[0] = openat(v->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    home = dir_of(v, 0);
    if (!v->record)
        err_set(e, ERR_NOMEM, "one record of %u bytes", v->m->record.bytes);
    else if (v->drive_fd[0] < 0 || !realpath(dir, v->home))
        err_sys(e, errno, "%.200s", dir);
    else if (!out_sync(&home, e)) /* a map that a killed run has just renamed says what may go */
        return 0;
    mover_close(v);
    return e->code;
}

static bool same_drives(const struct placement *a, const struct placement *b)
{
    for (unsigned d = 0; d < a->n; d++)
        if (d >= b->n || a->share[d] != b->share[d] || strcmp(a->dir[d], b->dir[d]))
            return false;
    return a->n == b->n;
}

static bool any_spread(const struct placement *p)
{
    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++)
        if (p->spread[l])
            return true;
    return false;
}

/* The directory of a drive, made where it is new. */
static int drive_begin(struct mover *v, unsigned d, struct err *e)
{
    struct out_dir to;

    if (mkdir(v->p.dir[d], 0777) && errno != EEXIST)
        return err_sys(e, errno, "%.200s", v->p.dir[d]);
    v->drive_fd[d] = openat(v->dirfd, v->p.dir[d], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v->drive_fd[d] < 0)
        return err_sys(e, errno, "%.200s", v->p.dir[d]);
    to = dir_of(v, d);
    return out_sync_name(&to, e) || placement_mark_dir(&v->p, d, &to, v->home, e) ? e->code : 0;
}

/* Take the marks off; what cannot be removed now does no harm. */
static void drives_end(struct mover *v)
{
    for (unsigned d = 1; d < v->p.n; d++) {
        if (v->drive_fd[d] < 0)
            continue;
        placement_unmark_dir(&v->p, v->drive_fd[d], v->home);
        rmdir(v->p.dir[d]); /* if nothing is in it */
    }
}

/* Drives first, then the map: one that cannot be used leaves the container as it was. */
static int begin_spread(struct mover *v, const struct placement *want, struct err *e)
{
    bool going_on = any_spread(&v->p);
    int code = 0;

    if (going_on && !same_drives(&v->p, want))
        return err_set(e, ERR_ARG,
                       "%.200s is spread over other drives or with other shares (`waste place` "
                       "without options tells): gather it first",
                       container_dir(v->c));
    if (!going_on) {
        v->p = *want;
        memset(v->p.spread, 0, sizeof(v->p.spread));
        while (!v->p.set)
            if (getrandom(&v->p.set, sizeof(v->p.set), 0) < 0)
                return err_sys(e, errno, "a number for this set of drives");
        placement_lay(&v->p);
    }
    for (unsigned d = 1; d < v->p.n && !code; d++)
        code = drive_begin(v, d, e);
    if (!code && !going_on)
        code = write_map(v, &v->p, e);
    if (code && !going_on)
        drives_end(v);
    return code;
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

/* Drives of a set that is to be gathered. Where nothing is spread, those that are there will do. */
static int drives_open(struct mover *v, bool all, struct err *e)
{
    for (unsigned d = 1; d < v->p.n; d++) {
        v->drive_fd[d] = placement_open_dir(&v->p, d, v->dirfd, e);
        if (v->drive_fd[d] < 0 && all)
            return e->code;
    }
    return 0;
}

int place_gather(const char *dir, struct progress *progress, struct err *e)
{
    const struct placement none = {.n = 0};
    struct mover v;
    int code;

    if (mover_open(&v, dir, progress, e))
        return e->code;
    code = drives_open(&v, any_spread(&v.p), e);
    progress_begin(progress, PHASE_PLACE, code ? 0 : bytes_left(&v, false));
    for (unsigned l = v.m->first_dense; !code && l < v.m->n_layers; l++) {
        drop_unused(&v, l);
        if (v.p.spread[l] && !(code = gather_layer(&v, l, e)))
            drop_unused(&v, l);
    }
    if (!code && v.p.n) {
        drives_end(&v); /* before the map goes: a mark alone is taken over by who comes next */
        code = write_map(&v, &none, e);
    }
    mover_close(&v);
    return code;
}
