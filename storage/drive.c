#include "storage/drive.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif
#include <unistd.h>

#include "storage/file.h"
#include "storage/io.h"

enum { NS_PER_S = 1000000000, STEPS_MAX = 32, LEVELS_MAX = 8, ENOUGH_PERCENT = 95 };

static uint64_t id_of(unsigned major, unsigned minor)
{
    return (uint64_t)major << 32 | minor;
}

/* The number that a directory of sysfs has in its file `dev`. */
static bool read_number(const char *dir, unsigned *major, unsigned *minor)
{
    char path[PATH_MAX];
    bool ok = false;
    FILE *f;

    if (snprintf(path, sizeof(path), "%s/dev", dir) >= (int)sizeof(path))
        return false;
    f = fopen(path, "re");
    if (f) {
        ok = fscanf(f, "%u:%u", major, minor) == 2;
        fclose(f);
    }
    return ok;
}

/* The only device below this one; false where there is none, or more. */
static bool only_slave(const char *dir, char *out, size_t room)
{
    char path[PATH_MAX];
    unsigned n = 0;
    DIR *d;

    if (snprintf(path, sizeof(path), "%s/slaves", dir) >= (int)sizeof(path))
        return false;
    d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));)
        if (x->d_name[0] != '.')
            n += snprintf(out, room, "%s/slaves/%s", dir, x->d_name) < (int)room;
    if (d)
        closedir(d);
    return n == 1;
}

void drive_of_device(struct drive *out, const char *sys, unsigned major, unsigned minor)
{
    char link[PATH_MAX], dir[PATH_MAX], path[PATH_MAX];

    *out = (struct drive){.id = id_of(major, minor)};
    for (unsigned level = 0; level < LEVELS_MAX; level++) {
        if (snprintf(link, sizeof(link), "%s/dev/block/%u:%u", sys, major, minor) >=
                (int)sizeof(link) ||
            !realpath(link, dir))
            return;
        if (snprintf(path, sizeof(path), "%s/partition", dir) < (int)sizeof(path) &&
            !access(path, F_OK)) {
            *strrchr(dir, '/') = '\0'; /* the disk that has the partition */
            if (!read_number(dir, &major, &minor))
                return;
        }
        out->id = id_of(major, minor);
        snprintf(out->name, sizeof(out->name), "%.63s", strrchr(dir, '/') + 1);
        if (!only_slave(dir, path, sizeof(path)) || !read_number(path, &major, &minor))
            return;
    }
}

void drive_of(struct drive *out, const struct file *f)
{
    struct stat st;

    *out = (struct drive){.id = UINT64_MAX};
    if (fstat(f->fd, &st))
        return;
#ifdef __linux__
    drive_of_device(out, "/sys", major(st.st_dev), minor(st.st_dev));
#else
    out->id = (uint64_t)st.st_dev;
#endif
}

struct run { /* reads at one depth */
    const struct drive_trial *t;
    struct io_read *read, **start, **done; /* [depth] */
    unsigned depth, in_flight, next;       /* of the extents */
    uint64_t bytes;                        /* arrived */
    const struct io_read *failed;
};

static void start_reads(struct run *x, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        x->start[i]->at = x->t->at[x->next++ % x->t->n];
    x->in_flight += x->t->io->ops->submit(x->t->io, x->start, n);
}

/* Wait for some; they are the next to start. */
static unsigned end_reads(struct run *x)
{
    unsigned n = x->t->io->ops->reap(x->t->io, x->done, x->depth, true);

    for (unsigned i = 0; i < n; i++) {
        if (x->done[i]->status && !x->failed)
            x->failed = x->done[i];
        x->bytes += x->done[i]->at.length;
        x->start[i] = x->done[i];
    }
    x->in_flight -= n;
    return n;
}

/* Bytes per second with so many in flight, or 0 when a read failed. */
static uint64_t speed_at(struct run *x, unsigned depth)
{
    uint64_t from = io_now_ns(x->t->io), ns, bytes;

    x->depth = depth;
    x->bytes = 0;
    for (unsigned i = 0; i < depth; i++) {
        if (x->t->memory)
            x->read[i].dst = x->t->memory + (size_t)i * x->t->at[0].length;
        x->start[i] = &x->read[i];
    }
    start_reads(x, depth);
    for (;;) {
        unsigned n = end_reads(x);

        ns = io_now_ns(x->t->io) - from;
        if (x->failed || !n || ns >= x->t->ns / 2)
            break;
        start_reads(x, n);
    }
    bytes = x->bytes;
    while (x->in_flight)
        end_reads(x);
    return x->failed ? 0 : (uint64_t)((double)bytes * NS_PER_S / (double)(ns ? ns : 1));
}

/* 1, 2, 3, 4, 6, 8, 12, 16, 24, ... */
static unsigned deeper(unsigned depth)
{
    if (depth < 4)
        return depth + 1;
    return depth & (depth - 1) ? depth / 3 * 4 : depth / 2 * 3;
}

/* Each depth, or as many as ns allow (0: all); the best so far into speed. How many it were. */
static unsigned measure_all(struct run *x, uint64_t speed[STEPS_MAX], uint64_t ns)
{
    uint64_t from = io_now_ns(x->t->io), now;
    unsigned n = 0;

    for (unsigned depth = 1; n < STEPS_MAX && depth <= x->t->depth_max; depth = deeper(depth)) {
        if (n && ns && io_now_ns(x->t->io) - from >= ns)
            break;
        now = speed_at(x, depth);
        speed[n] = now > speed[n] ? now : speed[n];
        if (x->failed)
            break;
        n++;
    }
    return n;
}

int drive_measure(struct drive_speed *out, const struct drive_trial *t, struct err *e)
{
    struct run x = {.t = t};
    uint64_t speed[STEPS_MAX] = {0}, best = 0;
    unsigned n, depth, i = 0;

    x.read = calloc(t->depth_max, sizeof(*x.read) + 2 * sizeof(*x.start));
    if (!x.read)
        return err_set(e, ERR_NOMEM, "measuring a drive: %u reads", t->depth_max);
    x.start = (struct io_read **)(x.read + t->depth_max);
    x.done = x.start + t->depth_max;
    n = measure_all(&x, speed, t->total_ns / 2);
    if (!x.failed)
        measure_all(&x, speed, t->total_ns / 2);
    for (unsigned k = 0; k < n; k++)
        best = speed[k] > best ? speed[k] : best;
    if (x.failed) {
        err_sys(e, -x.failed->status, "measuring a drive: %u bytes at %" PRIu64 " of file %u",
                x.failed->at.length, x.failed->at.offset, x.failed->at.file);
        free(x.read);
        return e->code;
    }
    free(x.read);
    for (depth = 1; speed[i] < best / 100 * ENOUGH_PERCENT; depth = deeper(depth))
        i++;
    *out = (struct drive_speed){.depth = depth, .bytes_per_s = speed[i], .alone = speed[0]};
    return 0;
}
