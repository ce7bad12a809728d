#include "expertfs/out_dir.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { TMP_BYTES = OUT_NAME_BYTES + 4, PIECE_MAX = 1 << 30 };

/* ---- space ---- */

/* The directory under which the volume of `dir` is mounted. */
static void volume_of(const char *dir, char *out, size_t room)
{
    char *path = realpath(dir, NULL);
    struct stat here, up;

    snprintf(out, room, "%s", path ? path : dir);
    if (path && !stat(path, &here)) {
        while (strcmp(path, "/") != 0) {
            char *slash = strrchr(path, '/');

            slash[slash == path] = 0; /* the parent; "/" keeps its slash */
            if (stat(path, &up) || up.st_dev != here.st_dev)
                break;
            snprintf(out, room, "%s", path);
        }
    }
    free(path);
}

/* "need 1.20 GiB on /data, 0.40 GiB free", in a unit that shows a difference. */
static void space_text(const struct out_dir *d, const struct statvfs *v, uint64_t need, char *out,
                       size_t room)
{
    uint64_t unit = need >= 1 << 30 ? 1 << 30 : need >= 1 << 20 ? 1 << 20 : 1 << 10;
    const char *name = unit == 1 << 30 ? "GiB" : unit == 1 << 20 ? "MiB" : "KiB";
    char volume[256];

    volume_of(d->path, volume, sizeof(volume));
    snprintf(out, room, "need %.2f %s on %s, %.2f %s free", (double)need / (double)unit, name,
             volume, (double)v->f_bavail * (double)v->f_frsize / (double)unit, name);
}

int out_check_space(const struct out_dir *d, uint64_t need, struct err *e)
{
    struct statvfs v;
    char text[384];

    if (fstatvfs(d->fd, &v))
        return err_sys(e, errno, "%s: asking for free space", d->path);
    /* ramfs and some of FUSE do not say how large they are. */
    if (!v.f_blocks || (uint64_t)v.f_bavail * v.f_frsize >= need)
        return 0;
    space_text(d, &v, need, text, sizeof(text));
    return err_set(e, ERR_IO, "%s: %s", d->path, text);
}

/* Writing `need` bytes of the file has failed. */
static int write_failed(const struct out_dir *d, int errnum, const char *name, const char *doing,
                        uint64_t need, struct err *e)
{
    struct statvfs v;
    char text[384];

    if (errnum == EFBIG)
        return err_set(e, ERR_IO,
                       "%s: %s: %s: the file system of %s, or a limit (ulimit -f), has room for "
                       "smaller files only; use another",
                       name, doing, strerror(errnum), d->path);
    if ((errnum != ENOSPC && errnum != EDQUOT) || fstatvfs(d->fd, &v))
        return err_sys(e, errnum, "%s: %s", name, doing);
    if (v.f_files && !v.f_favail)
        snprintf(text, sizeof(text), "the volume has all the files that it can have");
    else
        space_text(d, &v, need, text, sizeof(text));
    return err_set(e, ERR_IO, "%s: %s: %s: %s; make room and run it again", name, doing,
                   strerror(errnum), text);
}

/* ---- files ---- */

static void temporary(char *out, const char *name)
{
    snprintf(out, TMP_BYTES, "%s.tmp", name);
}

uint64_t out_bytes(const struct out_dir *d, const char *name)
{
    struct stat st;

    if (fstatat(d->fd, name, &st, 0) || !S_ISREG(st.st_mode))
        return 0;
    return (uint64_t)st.st_size;
}

void out_remove(const struct out_dir *d, const char *name)
{
    unlinkat(d->fd, name, 0);
}

void out_remove_temporary(const struct out_dir *d, const char *name)
{
    char tmp[TMP_BYTES];

    temporary(tmp, name);
    unlinkat(d->fd, tmp, 0);
}

int out_create(const struct out_dir *d, const char *name, int flags, int *fd, struct err *e)
{
    char tmp[TMP_BYTES];
    mode_t mode = flags & OUT_PRIVATE ? 0600 : 0644;

    temporary(tmp, name);
    *fd =
        openat(d->fd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (flags & ~OUT_PRIVATE), mode);
    if (*fd < 0)
        return write_failed(d, errno, name, "creating", 1, e);
    return 0;
}

int out_reopen(const struct out_dir *d, int fd, const char *name, struct err *e)
{
    char tmp[TMP_BYTES];
    int again, bad;

    temporary(tmp, name);
    again = openat(d->fd, tmp, O_WRONLY | O_CLOEXEC);
    bad = again < 0 || dup2(again, fd) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) ? errno : 0;
    if (again >= 0)
        close(again);
    return bad ? write_failed(d, bad, name, "opening it again", 1, e) : 0;
}

int out_reserve(const struct out_dir *d, int fd, uint64_t bytes, const char *name, struct err *e)
{
#ifdef __linux__
    if (bytes && fallocate(fd, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP && errno != ENOSYS &&
        errno != EINVAL)
        return write_failed(d, errno, name, "reserving", bytes, e);
#else
    (void)d, (void)fd, (void)bytes, (void)name, (void)e;
#endif
    return 0;
}

int out_write(const struct out_dir *d, int fd, const void *bytes, uint64_t n, uint64_t at,
              const char *name, struct err *e)
{
    const uint8_t *p = bytes;

    while (n) {
        ssize_t done = pwrite(fd, p, n < PIECE_MAX ? (size_t)n : PIECE_MAX, (off_t)at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            int why = done ? errno : ENOSPC;

            write_failed(d, why, name, "writing", n, e);
            errno = why;
            return e->code;
        }
        p += done;
        n -= (uint64_t)done;
        at += (uint64_t)done;
    }
    return 0;
}

void out_start_writeback(int fd, uint64_t at, uint64_t n)
{
#ifdef SYNC_FILE_RANGE_WRITE
    (void)sync_file_range(fd, (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE); /* a sync will tell */
#else
    (void)fd, (void)at, (void)n;
#endif
}

int out_settle(const struct out_dir *d, int fd, uint64_t at, uint64_t n, const char *name,
               struct err *e)
{
#ifdef SYNC_FILE_RANGE_WRITE
    const unsigned all =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

    if (sync_file_range(fd, (off_t)at, (off_t)n, all) && errno != ENOSYS && errno != EINVAL &&
        errno != ESPIPE)
        return write_failed(d, errno, name, "writing out", n, e);
    posix_fadvise(fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
#else
    (void)d, (void)fd, (void)at, (void)n, (void)name, (void)e;
#endif
    return 0;
}

static int publish(const struct out_dir *d, const char *name, int fd, bool sync, struct err *e)
{
    char tmp[TMP_BYTES];
    struct stat st = {.st_size = 0};
    int bad = fstat(fd, &st) || (sync && fsync(fd)) ? errno : 0;

    temporary(tmp, name);
    if (sync)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(fd) && !bad)
        bad = errno;
    if (bad)
        return write_failed(d, bad, name, "syncing", (uint64_t)st.st_size, e);
    if (renameat(d->fd, tmp, d->fd, name))
        return write_failed(d, errno, name, "renaming", 1, e);
    if (sync && fsync(d->fd) && errno != EINVAL) /* some file systems cannot sync a directory */
        return write_failed(d, errno, name, "syncing the directory", 1, e);
    return 0;
}

int out_publish(const struct out_dir *d, const char *name, int fd, struct err *e)
{
    return publish(d, name, fd, true, e);
}

int out_publish_unsynced(const struct out_dir *d, const char *name, int fd, struct err *e)
{
    return publish(d, name, fd, false, e);
}

int out_sync(const struct out_dir *d, struct err *e)
{
    if (fsync(d->fd) && errno != EINVAL) /* some file systems cannot sync a directory */
        return err_sys(e, errno, "%s: syncing the directory", d->path);
    return 0;
}

int out_sync_name(const struct out_dir *d, struct err *e)
{
    struct out_dir up = {d->path, openat(d->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    int bad;

    if (up.fd < 0 && errno == EACCES) /* may be searched and not read */
        return 0;
    if (up.fd < 0)
        return err_sys(e, errno, "%s/..", d->path);
    bad = out_sync(&up, e);
    close(up.fd);
    return bad;
}

int out_parent_open(struct out_dir *d, const char *path, const char **name, struct err *e)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    char *dir;

    while (n && path[n - 1] == '/') /* in messages it goes before ": " */
        n--;
    dir = slash ? strndup(path, n ? n : 1) : strdup(".");
    *d = (struct out_dir){.path = dir, .fd = -1};
    *name = slash ? slash + 1 : path;
    if (!dir)
        return err_set(e, ERR_NOMEM, "%s", path);
    if (!**name || strlen(*name) >= OUT_NAME_BYTES)
        err_set(e, ERR_ARG, "%s: the name of a file has 1 to %d bytes, and not %zu", path,
                OUT_NAME_BYTES - 1, strlen(*name));
    else if ((d->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        err_sys(e, errno, "%s", path);
    else
        return 0;
    out_parent_close(d);
    return e->code;
}

void out_parent_close(struct out_dir *d)
{
    if (d->fd >= 0)
        close(d->fd);
    free((char *)d->path);
    *d = (struct out_dir){.fd = -1};
}

int out_replaceable(const struct out_dir *d, const char *name, const char *magic, size_t n,
                    const char *kind, struct err *e)
{
    int fd = openat(d->fd, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    char found[16] = "";
    ssize_t got = 0;
    struct stat st;
    bool ours;

    assert(n <= sizeof(found));
    if (fd < 0 && errno == ENOENT)
        return 0;
    ours = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
    if (ours)
        got = read(fd, found, n);
    ours = ours && (got == 0 || ((size_t)got == n && !memcmp(found, magic, n)));
    if (fd >= 0)
        close(fd);
    return ours ? 0
                : err_set(e, ERR_ARG,
                          "%s: %s is there and no %s: it is not replaced; name another file",
                          d->path, name, kind);
}

int out_file(const struct out_dir *d, const char *name, const void *bytes, uint64_t n,
             struct err *e)
{
    int fd;

    if (out_create(d, name, 0, &fd, e))
        return e->code;
    if (out_write(d, fd, bytes, n, 0, name, e))
        close(fd);
    else if (!out_publish(d, name, fd, e))
        return 0;
    out_remove_temporary(d, name);
    return e->code;
}
