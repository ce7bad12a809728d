#include "storage/drive_notes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 128 };

static const char head[] = "waste drives 1\n";

struct note {
    struct drive drive;
    uint32_t class;
    struct drive_speed speed;
};

struct notes {
    unsigned n;
    struct note note[DRIVE_NOTES_MAX];
};

uint32_t drive_note_class(uint32_t page_bytes)
{
    uint32_t class = 1u << 31;

    while (class / 2 >= page_bytes && class > 1)
        class /= 2;
    return class;
}

static int note_print(char line[LINE_MAX_BYTES], const struct note *x)
{
    return snprintf(line, LINE_MAX_BYTES, "%s %" PRIx64 " %" PRIu32 " %u %" PRIu64 "\n",
                    x->drive.name, x->drive.id, x->class, x->speed.depth, x->speed.bytes_per_s);
}

/* One line; only what note_print would write. */
static bool note_parse(struct note *x, const char *line)
{
    char again[LINE_MAX_BYTES];

    *x = (struct note){.class = 0};
    if (strlen(line) >= LINE_MAX_BYTES ||
        sscanf(line, "%63s %16" SCNx64 " %10" SCNu32 " %3u %19" SCNu64, x->drive.name, &x->drive.id,
               &x->class, &x->speed.depth, &x->speed.bytes_per_s) != 5)
        return false;
    note_print(again, x);
    return !strcmp(line, again) && x->speed.depth && x->speed.depth <= DRIVE_NOTE_DEPTH_MAX;
}

static bool notes_parse(struct notes *all, FILE *f)
{
    char line[LINE_MAX_BYTES];

    if (!fgets(line, sizeof(line), f) || strcmp(line, head) != 0)
        return false;
    while (fgets(line, sizeof(line), f)) {
        if (all->n == DRIVE_NOTES_MAX || !note_parse(&all->note[all->n], line))
            return false;
        all->n++;
    }
    return feof(f);
}

static void notes_read(struct notes *all, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO must not block */
    struct stat st;
    FILE *f;

    all->n = 0;
    if (fd < 0)
        return;
    f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return;
    }
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !notes_parse(all, f))
        all->n = 0;
    fclose(f);
}

/* The number of the note on that, or n. */
static unsigned notes_find(const struct notes *all, const struct drive *d, uint32_t class)
{
    unsigned i = 0;

    while (i < all->n && (all->note[i].class != class || all->note[i].drive.id != d->id ||
                          strcmp(all->note[i].drive.name, d->name) != 0))
        i++;
    return i;
}

bool drive_note_find(struct drive_speed *out, const char *path, const struct drive *d,
                     uint32_t class)
{
    struct notes *all = malloc(sizeof(*all));
    bool found = false;
    unsigned i;

    if (!all)
        return false;
    notes_read(all, path);
    i = notes_find(all, d, class);
    if (i < all->n) {
        *out = all->note[i].speed;
        found = true;
    }
    free(all);
    return found;
}

/* The directory of a path, and so many above it. */
static bool make_dirs(const char *path, unsigned levels)
{
    const char *slash = strrchr(path, '/');
    char dir[PATH_MAX];

    if (!levels || !slash || slash == path)
        return false;
    snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
    return !mkdir(dir, 0700) ||
           (errno == ENOENT && make_dirs(dir, levels - 1) && !mkdir(dir, 0700));
}

static int create(const char *temporary)
{
    return open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static int notes_write(const struct notes *all, const char *path, struct err *e)
{
    char temporary[PATH_MAX], line[LINE_MAX_BYTES];
    bool bad;
    FILE *f;
    int fd;

    if (snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid()) >=
        (int)sizeof(temporary))
        return err_sys(e, ENAMETOOLONG, "%.200s", path);
    fd = create(temporary);
    if (fd < 0 && errno == ENOENT && make_dirs(path, 2))
        fd = create(temporary);
    if (fd < 0)
        return err_sys(e, errno, "%.200s", path);
    f = fdopen(fd, "w");
    bad = !f || fputs(head, f) < 0;
    for (unsigned i = 0; !bad && i < all->n; i++) {
        note_print(line, &all->note[i]);
        bad = fputs(line, f) < 0;
    }
    bad |= f ? fclose(f) != 0 : close(fd) != 0;
    if (bad || rename(temporary, path)) {
        err_sys(e, errno, "%.200s", path);
        unlink(temporary);
        return e->code;
    }
    return 0;
}

int drive_note_keep(const char *path, const struct drive *d, uint32_t class,
                    const struct drive_speed *speed, struct err *e)
{
    struct note x = {.drive = *d, .class = class, .speed = *speed};
    struct notes *all;
    unsigned i;
    int rc;

    if (!d->name[0] || strpbrk(d->name, " \t\n\v\f\r"))
        return err_set(e, ERR_ARG, "%.200s: a drive named \"%s\"", path, d->name);
    all = malloc(sizeof(*all));
    if (!all)
        return err_set(e, ERR_NOMEM, "%.200s", path);
    notes_read(all, path);
    i = notes_find(all, d, class);
    if (i == DRIVE_NOTES_MAX) /* full, and not in it */
        i = 0;
    if (i < all->n) {
        memmove(&all->note[i], &all->note[i + 1], (all->n - i - 1) * sizeof(x));
        all->n--;
    }
    all->note[all->n++] = x; /* the newest last */
    rc = notes_write(all, path, e);
    free(all);
    return rc;
}
