#include "expertfs/placement.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

static const char MAP[] = "drives.json", MARK[] = "waste-drive.json";

enum { MAP_BYTES = 64 << 10, VERSION = 1 };

/* Each place of the period goes to the drive that is furthest behind its share. */
void placement_lay(struct placement *p)
{
    int behind[PLACEMENT_DRIVES_MAX] = {0};
    unsigned had[PLACEMENT_DRIVES_MAX] = {0};

    p->period = 0;
    for (unsigned d = 0; d < p->n; d++)
        p->period += p->share[d];
    for (unsigned i = 0; i < p->period; i++) {
        unsigned most = 0;

        for (unsigned d = 0; d < p->n; d++) {
            behind[d] += (int)p->share[d];
            if (behind[d] > behind[most])
                most = d;
        }
        behind[most] -= (int)p->period;
        p->drive[i] = (uint8_t)most;
        p->rank[i] = (uint8_t)had[most]++;
    }
}

unsigned placement_drive(const struct placement *p, unsigned expert, unsigned *rank)
{
    unsigned round = expert / p->period, i = expert % p->period, d = p->drive[i];

    *rank = round * p->share[d] + p->rank[i];
    return d;
}

unsigned placement_expert(const struct placement *p, unsigned drive, unsigned rank)
{
    unsigned round = rank / p->share[drive], within = rank % p->share[drive], i = 0;

    while (p->drive[i] != drive || p->rank[i] != within)
        i++;
    return round * p->period + i;
}

unsigned placement_records(const struct placement *p, unsigned drive, unsigned n_experts)
{
    unsigned n = n_experts / p->period * p->share[drive];

    for (unsigned i = 0; i < n_experts % p->period; i++)
        n += p->drive[i] == drive;
    return n;
}

void placement_piece(char name[PLACEMENT_NAME_BYTES], unsigned layer)
{
    snprintf(name, PLACEMENT_NAME_BYTES, "experts-L%u.piece", layer);
}

static int read_drive(struct placement *p, const json_t *entry, unsigned d, struct err *e)
{
    struct json_at at = {.object = entry};
    const char *dir;
    int64_t share;

    snprintf(at.path, sizeof(at.path), "%s: drives[%u]", MAP, d);
    if (!json_is_object(entry))
        return err_set(e, ERR_FORMAT, "%s is not an object", at.path);
    if (json_get_text(&dir, &at, "dir", e) ||
        json_get_int(&share, &at, "share", -1, d ? 1 : 0, PLACEMENT_SHARE_MAX, e))
        return e->code;
    if (share < 0 || !dir || strlen(dir) >= PLACEMENT_DIR_BYTES ||
        (d ? dir[0] != '/' : strcmp(dir, ".") != 0))
        return err_set(e, ERR_FORMAT, "%s: needs a share, and as dir %s", at.path,
                       d ? "an absolute path" : "\".\"");
    strcpy(p->dir[d], dir);
    p->share[d] = (unsigned)share;
    return 0;
}

static int read_set(uint64_t *set, const struct json_at *at, struct err *e)
{
    const char *text;
    char *end;

    if (json_get_text(&text, at, "set", e))
        return e->code;
    *set = text ? strtoull(text, &end, 16) : 0;
    if (!text || !*text || *end || !*set)
        return err_set(e, ERR_FORMAT, "%s: set is not a number in hexadecimal", at->path);
    return 0;
}

static int read_map(struct placement *p, const json_t *root, unsigned first, unsigned last,
                    struct err *e)
{
    struct json_at at = json_root(root, MAP);
    const json_t *drives, *layers;
    int64_t version, layer;

    if (json_get_int(&version, &at, "version", 0, 0, 1 << 30, e) ||
        json_get_array(&drives, &at, "drives", e) || json_get_array(&layers, &at, "layers", e) ||
        read_set(&p->set, &at, e))
        return e->code;
    if (version != VERSION)
        return err_set(e, ERR_UNSUPPORTED, "%s: version %" PRId64 ", this program reads %d", MAP,
                       version, VERSION);
    if (json_array_size(drives) < 1 || json_array_size(drives) > PLACEMENT_DRIVES_MAX)
        return err_set(e, ERR_FORMAT, "%s: %zu drives, from 1 to %d are possible", MAP,
                       json_array_size(drives), PLACEMENT_DRIVES_MAX);
    p->n = (unsigned)json_array_size(drives);
    for (unsigned d = 0; d < p->n; d++)
        if (read_drive(p, json_array_get(drives, d), d, e))
            return e->code;
    placement_lay(p);
    if (!p->period)
        return err_set(e, ERR_FORMAT, "%s: no drive has a share", MAP);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        if (!json_exact_int(json_array_get(layers, i), &layer) || layer < (int64_t)first ||
            layer >= (int64_t)last)
            return err_set(e, ERR_FORMAT, "%s: layers[%zu] is not a layer with experts (%u...%u)",
                           MAP, i, first, last ? last - 1 : 0);
        p->spread[layer] = true;
    }
    return 0;
}

int placement_read(struct placement *p, int dirfd, unsigned first, unsigned end, struct err *e)
{
    json_t *root;

    memset(p, 0, sizeof(*p));
    if (no_such_entry(dirfd, MAP))
        return 0;
    if (json_parse_file(&root, dirfd, MAP, MAP_BYTES, e))
        return e->code;
    if (read_map(p, root, first, end, e))
        memset(p, 0, sizeof(*p));
    json_decref(root);
    return p->n ? 0 : e->code;
}

/* Takes the reference. */
static int write_json(const struct out_dir *d, const char *name, json_t *value, struct err *e)
{
    char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
    int bad = text ? out_file(d, name, text, strlen(text), e) : err_set(e, ERR_NOMEM, "%s", name);

    json_decref(value);
    free(text);
    return bad;
}

static json_t *set_text(uint64_t set)
{
    return json_sprintf("%016" PRIx64, set);
}

int placement_write(const struct placement *p, const struct out_dir *d, struct err *e)
{
    json_t *drives = json_array(), *layers = json_array();

    if (!p->n) {
        json_decref(drives);
        json_decref(layers);
        if (unlinkat(d->fd, MAP, 0) && errno != ENOENT)
            return err_sys(e, errno, "%s", MAP);
        return out_sync(d, e);
    }
    for (unsigned i = 0; i < p->n; i++)
        json_array_append_new(drives,
                              json_pack("{s:s, s:i}", "dir", p->dir[i], "share", (int)p->share[i]));
    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++)
        if (p->spread[l])
            json_array_append_new(layers, json_integer(l));
    return write_json(d, MAP,
                      json_pack("{s:i, s:o, s:o, s:o}", "version", VERSION, "set", set_text(p->set),
                                "drives", drives, "layers", layers),
                      e);
}

struct mark {     /* what waste-drive.json says */
    uint64_t set; /* 0: there is none */
    int64_t drive;
    char home[PLACEMENT_DIR_BYTES]; /* "" where it does not say */
};

static int read_mark(struct mark *m, int fd, const char *dir, struct err *e)
{
    const char *home;
    struct json_at at;
    json_t *root;

    *m = (struct mark){.drive = -1};
    if (no_such_entry(fd, MARK))
        return 0;
    if (json_parse_file(&root, fd, MARK, MAP_BYTES, e))
        return err_wrap(e, "%.200s", dir);
    at = json_root(root, MARK);
    if (json_get_int(&m->drive, &at, "drive", -1, 0, PLACEMENT_DRIVES_MAX, e) ||
        json_get_text(&home, &at, "home", e) || read_set(&m->set, &at, e))
        err_wrap(e, "%.200s", dir);
    else if (home)
        snprintf(m->home, sizeof(m->home), "%s", home);
    json_decref(root);
    return m->set ? 0 : e->code;
}

int placement_open_dir(const struct placement *p, unsigned drive, int dirfd, struct err *e)
{
    int fd = openat(dirfd, p->dir[drive], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct mark m;

    if (fd < 0) {
        err_sys(e, errno,
                "drive %u: %.200s, where drives.json has a part of each layer's experts (is the "
                "drive mounted?)",
                drive, p->dir[drive]);
        return -1;
    }
    if (!drive)
        return fd;
    if (!read_mark(&m, fd, p->dir[drive], e) && (m.set != p->set || m.drive != (int64_t)drive))
        err_set(e, ERR_FORMAT,
                "drive %u: %.200s is marked as drive %" PRId64 " of set %016" PRIx64
                ", expected of set %016" PRIx64 " (mounted in another's place?)",
                drive, p->dir[drive], m.drive, m.set, p->set);
    else if (m.set == p->set)
        return fd;
    close(fd);
    return -1;
}

static bool has_pieces(int fd)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *entry;
    bool any = !dir; /* what cannot be looked at is left alone */

    while (dir && !any && (entry = readdir(dir)))
        any = strstr(entry->d_name, ".piece") != NULL;
    if (dir)
        closedir(dir);
    else if (copy >= 0)
        close(copy);
    return any;
}

/* The set of the container in a directory; 0: none is there, or it is not spread. */
static uint64_t set_at(const char *home)
{
    int fd = open(home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t set = 0;
    json_t *root;
    struct err e;

    if (fd < 0)
        return 0;
    if (!json_parse_file(&root, fd, MAP, MAP_BYTES, &e)) {
        struct json_at at = json_root(root, MAP);

        read_set(&set, &at, &e);
        json_decref(root);
    }
    close(fd);
    return set;
}

bool placement_is_anothers(const struct placement *p, int fd, const char *home,
                           char other[PLACEMENT_DIR_BYTES])
{
    struct mark m;
    struct err e;

    if (read_mark(&m, fd, "", &e) || !m.home[0] || !strncmp(m.home, home, sizeof(m.home) - 1) ||
        set_at(m.home) != p->set)
        return false;
    strcpy(other, m.home);
    return true;
}

void placement_unmark_dir(const struct placement *p, int fd, const char *home)
{
    char other[PLACEMENT_DIR_BYTES];
    struct mark m;
    struct err e;

    if (!read_mark(&m, fd, "", &e) && m.set == p->set && !placement_is_anothers(p, fd, home, other))
        unlinkat(fd, MARK, 0);
}

int placement_mark_dir(const struct placement *p, unsigned drive, const struct out_dir *d,
                       const char *home, struct err *e)
{
    char other[PLACEMENT_DIR_BYTES];
    struct mark m;

    if (read_mark(&m, d->fd, d->path, e))
        return e->code;
    if (m.set && (m.set != p->set || m.drive != (int64_t)drive) && has_pieces(d->fd) &&
        strncmp(m.home, home, sizeof(m.home) - 1))
        return err_set(e, ERR_ARG,
                       "%.200s holds drive %" PRId64
                       " of another container (%.200s, set %016" PRIx64
                       "): gather that first, or name another directory",
                       d->path, m.drive, m.home[0] ? m.home : "?", m.set);
    if (m.set == p->set && placement_is_anothers(p, d->fd, home, other))
        return err_set(e, ERR_ARG,
                       "%.200s is a copy of %.200s, whose pieces are in %.200s: gather the copy, "
                       "which leaves them, and then spread it elsewhere",
                       home, other, d->path);
    return write_json(
        d, MARK,
        json_pack("{s:o, s:i, s:s}", "set", set_text(p->set), "drive", (int)drive, "home", home),
        e);
}
