#include "model/prefix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

enum { NAME_BYTES = 80, AGE_MIN = 30, FILES_MAX = 65536 };

static const char suffix[] = ".wstate";

struct kept {
    struct cell cell;      /* when in_memory */
    char name[NAME_BYTES]; /* of the file, when on_disk */
    uint64_t file_bytes;
    uint64_t key, parent; /* of its ids; of the next shorter one, 0: none */
    uint64_t used;        /* seconds since 1970 */
    unsigned pos, parent_pos;
    char tag[STATE_TAG_BYTES];
    bool in_memory, on_disk, pinned;
    bool foreign;      /* another model's: it only takes space */
    struct kept *next; /* of as many positions, or more */
};

struct prefix_store {
    struct prefix_config c;
    char *dir;
    struct kept *first;
    struct prefix_stats stats;
};

/* ---- keys ---- */

static void tag_of(char out[STATE_TAG_BYTES], const char *tag)
{
    memset(out, 0, STATE_TAG_BYTES);
    if (tag)
        memcpy(out, tag, strnlen(tag, STATE_TAG_BYTES));
}

/* Over what is equal: it finds, and the ids themselves decide. */
static uint64_t key_begin(const char tag[STATE_TAG_BYTES])
{
    return hash_bytes(HASH_BEGIN, tag, STATE_TAG_BYTES);
}

static uint64_t key_add(uint64_t h, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = hash_step(h, (uint32_t)ids[i]);
    return h;
}

static bool same_kind(const struct state_kind *a, const struct state_kind *b)
{
    return a->container == b->container && a->trunk == b->trunk &&
           !strcmp(a->numeric, b->numeric) && !strcmp(a->arch, b->arch);
}

/* ---- letting go ---- */

/* What is lost with it: positions to compute again, by bytes and by seconds since it was used. */
static double worth(const struct kept *k, uint64_t now)
{
    double age = now > k->used ? (double)(now - k->used) : 0;
    double bytes = (double)(k->file_bytes ? k->file_bytes : k->cell.bytes) + 1;

    return (double)(k->pos - k->parent_pos) / bytes / (age + AGE_MIN);
}

static void file_path(const struct prefix_store *p, const char *name, char *out, size_t room)
{
    snprintf(out, room, "%s/%s", p->dir, name);
}

static void memory_drop(struct prefix_store *p, struct kept *k)
{
    room_give(p->c.room, &k->cell);
    k->in_memory = false;
    p->stats.n_memory--;
    p->stats.memory_bytes -= k->cell.bytes;
}

static void file_drop(struct prefix_store *p, struct kept *k, bool remove)
{
    char path[4096];

    file_path(p, k->name, path, sizeof(path));
    if (remove)
        unlink(path);
    k->on_disk = false;
    p->stats.n_files--;
    p->stats.file_bytes -= k->file_bytes;
    k->file_bytes = 0;
}

static void put_in_order(struct prefix_store *p, struct kept *k)
{
    struct kept **at = &p->first;

    while (*at && (*at)->pos < k->pos)
        at = &(*at)->next;
    k->next = *at;
    *at = k;
}

/* Nowhere any more: those that counted on it go back to what it counted on. */
static void forget_if_gone(struct prefix_store *p, struct kept *k)
{
    struct kept **at = &p->first;

    if (k->in_memory || k->on_disk)
        return;
    for (struct kept *o = p->first; o; o = o->next)
        if (o != k && o->parent == k->key && o->parent_pos == k->pos) {
            o->parent = k->parent;
            o->parent_pos = k->parent_pos;
        }
    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    p->stats.dropped++;
    free(k);
}

/* The least useful one in memory (on disk), but for `spare`; NULL: there is none. */
static struct kept *least(struct prefix_store *p, bool on_disk, const struct kept *spare)
{
    uint64_t now = (uint64_t)time(NULL);
    struct kept *found = NULL;

    for (struct kept *k = p->first; k; k = k->next) {
        if (k == spare || !(on_disk ? k->on_disk : k->in_memory))
            continue;
        if (!found || k->pinned < found->pinned ||
            (k->pinned == found->pinned && worth(k, now) < worth(found, now)))
            found = k;
    }
    return found;
}

/* ---- memory ---- */

static void memory_put(struct prefix_store *p, struct kept *k, const struct session *s)
{
    uint64_t bytes = session_parts_bytes(s->hp, s->pos);
    struct kept *out;

    if (k->in_memory || bytes > p->c.room->bytes)
        return;
    while (!room_take(p->c.room, &k->cell, bytes)) {
        out = least(p, false, k);
        if (!out) /* the host's own checkpoints fill it */
            return;
        memory_drop(p, out);
        forget_if_gone(p, out);
    }
    checkpoint_copy(s, room_at(p->c.room, &k->cell));
    k->in_memory = true;
    p->stats.n_memory++;
    p->stats.memory_bytes += k->cell.bytes;
}

/* ---- files ---- */

static void file_name(const struct prefix_store *p, const struct kept *k, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "%08x%08x-%s-%016" PRIx64 "-%u%s", p->c.kind->container,
             p->c.kind->trunk, p->c.kind->numeric, k->key, k->pos, suffix);
}

static int file_put(struct prefix_store *p, struct kept *k, const struct session *s, struct err *e)
{
    struct state_head h;
    char path[4096];
    uint64_t bytes;

    if (!p->dir || k->on_disk)
        return 0;
    state_head_of(&h, s, p->c.kind);
    bytes = state_file_bytes(&h);
    if (p->c.dir_bytes && bytes > p->c.dir_bytes)
        return 0;
    while (p->c.dir_bytes && p->stats.file_bytes + bytes > p->c.dir_bytes) {
        struct kept *out = least(p, true, k);

        file_drop(p, out, true);
        forget_if_gone(p, out);
    }
    h.choice = -1;
    h.key = k->key;
    h.parent = k->parent;
    h.parent_pos = k->parent_pos;
    memcpy(h.tag, k->tag, sizeof(h.tag));
    file_name(p, k, k->name);
    file_path(p, k->name, path, sizeof(path));
    if (state_write(path, s, &h, NULL, 0, STATE_FOR_CACHE, e))
        return e->code;
    k->on_disk = true;
    k->file_bytes = bytes;
    p->stats.n_files++;
    p->stats.file_bytes += bytes;
    return 0;
}

static bool named_for(const struct prefix_store *p, const char *name)
{
    struct kept none = {.pos = 0};
    char ours[NAME_BYTES];

    file_name(p, &none, ours);
    return !strncmp(name, ours, strlen(ours) - strlen("0000000000000000-0") - strlen(suffix));
}

/* A file that was found at open. */
static void file_found(struct prefix_store *p, const char *name)
{
    char path[4096];
    struct state_head h;
    struct kept *k;
    struct stat st;
    struct err e;
    int fd;

    file_path(p, name, path, sizeof(path));
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (fstat(fd, &st) || state_read_head(fd, path, &h, &e)) {
        p->stats.refused++;
        if (named_for(p, name)) /* what a loss of power has left of one */
            unlink(path);
        close(fd);
        return;
    }
    close(fd);
    k = calloc(1, sizeof(*k));
    if (!k)
        return;
    snprintf(k->name, sizeof(k->name), "%s", name);
    k->file_bytes = (uint64_t)st.st_size;
    k->used = (uint64_t)st.st_mtime;
    k->pos = h.pos;
    k->key = h.key;
    k->parent = h.parent;
    k->parent_pos = h.parent_pos <= h.pos ? h.parent_pos : 0;
    memcpy(k->tag, h.tag, sizeof(k->tag));
    k->on_disk = true;
    k->foreign = !same_kind(&h.kind, p->c.kind);
    put_in_order(p, k);
    p->stats.n_files++;
    p->stats.file_bytes += k->file_bytes;
}

static bool is_ours(const char *name)
{
    size_t n = strlen(name);

    return n > sizeof(suffix) - 1 && n < NAME_BYTES && name[0] != '.' &&
           !strcmp(name + n - (sizeof(suffix) - 1), suffix);
}

static int dir_scan(struct prefix_store *p, struct err *e)
{
    struct dirent *d;
    DIR *dir;

    if (mkdir(p->dir, 0700) && errno != EEXIST)
        return err_sys(e, errno, "%s: a directory for kept states", p->dir);
    dir = opendir(p->dir);
    if (!dir)
        return err_sys(e, errno, "%s: a directory for kept states", p->dir);
    while ((d = readdir(dir)) && p->stats.n_files < FILES_MAX)
        if (is_ours(d->d_name))
            file_found(p, d->d_name);
    closedir(dir);
    return 0;
}

/* ---- finding ---- */

static bool memory_matches(const struct prefix_store *p, const struct kept *k, const int32_t *ids)
{
    return !memcmp(room_at(p->c.room, &k->cell), ids, k->pos * sizeof(*ids));
}

/* The longest one of which ids are the beginning, shorter than `below`; of those that are in a file
 * only, by its key. Keys are made on the way: each is that of the one before, and some more ids. */
static struct kept *find(const struct prefix_store *p, const int32_t *ids, size_t n,
                         const char tag[STATE_TAG_BYTES], unsigned below)
{
    struct kept *best = NULL;
    uint64_t key = key_begin(tag);
    unsigned at = 0;

    for (struct kept *k = p->first; k && k->pos < n && k->pos < below; k = k->next) {
        if (k->foreign || !k->pos || memcmp(k->tag, tag, STATE_TAG_BYTES) != 0)
            continue;
        key = key_add(key, ids + at, k->pos - at);
        at = k->pos;
        if (key == k->key && (!k->in_memory || memory_matches(p, k, ids)))
            best = k;
    }
    return best;
}

static int ids_equal(int fd, const char *path, const struct state_head *h, const int32_t *ids,
                     struct err *e)
{
    int32_t *there = malloc(4 * (size_t)h->pos);
    int rc;

    if (!there)
        return err_set(e, ERR_NOMEM, "%s: %u ids", path, h->pos);
    rc = state_read_ids(fd, path, h, there, e);
    if (!rc && memcmp(there, ids, 4 * (size_t)h->pos) != 0)
        rc = err_set(e, ERR_FORMAT, "%s: other ids than its name says", path);
    free(there);
    return rc;
}

static int file_take(struct prefix_store *p, const struct kept *k, struct session *s,
                     const int32_t *ids, struct err *e)
{
    struct state_head h;
    char path[4096];
    int fd, rc;

    file_path(p, k->name, path, sizeof(path));
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(e, errno, "%s", path);
    rc = state_read_head(fd, path, &h, e) || state_fits(&h, path, p->c.kind, p->c.hp, p->c.ctx, e);
    if (!rc && h.pos != k->pos)
        rc = err_set(e, ERR_FORMAT, "%s: %u positions, it had %u", path, h.pos, k->pos);
    rc = rc || ids_equal(fd, path, &h, ids, e) || state_verify(fd, path, &h, e) ||
         state_load(fd, path, &h, s, e);
    if (!rc)
        futimens(fd, NULL); /* used now; whether that can be written does not matter */
    close(fd);
    return rc ? e->code : 0;
}

static unsigned shared(const struct session *s, const int32_t *ids, size_t n)
{
    unsigned k = 0;

    while (k < s->pos && k < n && s->ids[k] == ids[k])
        k++;
    return k;
}

/* How many of the ids the session has as it is, and could go on from. */
static unsigned own(const struct session *s, const int32_t *ids, size_t n)
{
    unsigned k = shared(s, ids, n);

    if (s->hp->n_kda)
        return k == s->pos && k < n ? k : 0;
    return k < n ? k : (unsigned)n - 1;
}

unsigned prefix_find(struct prefix_store *p, const struct session *s, const int32_t *ids, size_t n,
                     const char *tag)
{
    char t[STATE_TAG_BYTES];
    unsigned has = n ? own(s, ids, n) : 0;
    struct kept *k;

    tag_of(t, tag);
    k = find(p, ids, n, t, ~0u);
    return k && k->pos > has ? k->pos : has;
}

unsigned prefix_resume(struct prefix_store *p, struct session *s, const int32_t *ids, size_t n,
                       const char *tag, struct err *e)
{
    unsigned below = ~0u, has = n ? own(s, ids, n) : 0;
    char t[STATE_TAG_BYTES];
    struct kept *k;

    e->code = 0;
    tag_of(t, tag);
    while ((k = find(p, ids, n, t, below)) && k->pos > has) {
        if (k->in_memory) {
            checkpoint_apply(s, room_at(p->c.room, &k->cell), k->pos, -1);
        } else if (file_take(p, k, s, ids, e)) {
            below = k->pos;
            has = has <= s->pos ? has : 0; /* a file that failed late has emptied it */
            p->stats.refused++;
            file_drop(p, k, e->code == ERR_CORRUPT);
            forget_if_gone(p, k);
            continue;
        }
        k->used = (uint64_t)time(NULL);
        memory_put(p, k, s);
        has = k->pos;
        break;
    }
    session_truncate(s, has);
    s->choice = -1;
    memset(s->made, 0, s->pos);
    p->stats.resumed += has > 0;
    p->stats.positions += has;
    return has;
}

/* ---- keeping ---- */

static struct kept *kept_of(const struct prefix_store *p, const struct session *s,
                            const char tag[STATE_TAG_BYTES], uint64_t key)
{
    for (struct kept *k = p->first; k; k = k->next)
        if (!k->foreign && k->key == key && k->pos == s->pos &&
            !memcmp(k->tag, tag, STATE_TAG_BYTES) &&
            (!k->in_memory || memory_matches(p, k, s->ids)))
            return k;
    return NULL;
}

int prefix_keep(struct prefix_store *p, const struct session *s, const char *tag, bool pinned,
                struct err *e)
{
    char t[STATE_TAG_BYTES];
    struct kept *k, *parent;
    uint64_t key;
    int rc;

    if (!s->pos)
        return 0;
    tag_of(t, tag);
    key = key_add(key_begin(t), s->ids, s->pos);
    k = kept_of(p, s, t, key);
    if (!k) {
        k = calloc(1, sizeof(*k));
        if (!k)
            return err_set(e, ERR_NOMEM, "a kept state");
        parent = find(p, s->ids, s->pos, t, ~0u);
        k->key = key;
        k->pos = s->pos;
        k->parent = parent ? parent->key : 0;
        k->parent_pos = parent ? parent->pos : 0;
        memcpy(k->tag, t, sizeof(t));
        put_in_order(p, k);
        p->stats.kept++;
    }
    k->pinned |= pinned;
    k->used = (uint64_t)time(NULL);
    memory_put(p, k, s);
    rc = file_put(p, k, s, e);
    forget_if_gone(p, k);
    return rc;
}

size_t prefix_cut(const struct prefix_store *p, size_t pos, const size_t *ends, size_t n_ends,
                  size_t n)
{
    size_t cut = n;

    for (size_t i = 0; i < n_ends; i++)
        if (ends[i] > pos && ends[i] < cut)
            cut = ends[i];
    if (p->c.every && pos / p->c.every * p->c.every + p->c.every < cut)
        cut = pos / p->c.every * p->c.every + p->c.every;
    return cut;
}

/* ---- the store ---- */

int prefix_open(struct prefix_store **out, const struct prefix_config *c, struct err *e)
{
    struct prefix_store *p = calloc(1, sizeof(*p));

    if (!p || (c->dir && !(p->dir = strdup(c->dir)))) {
        free(p);
        return err_set(e, ERR_NOMEM, "a store of states");
    }
    p->c = *c;
    if (p->dir && dir_scan(p, e)) {
        prefix_close(p);
        return e->code;
    }
    *out = p;
    return 0;
}

void prefix_close(struct prefix_store *p)
{
    if (!p)
        return;
    while (p->first) {
        struct kept *k = p->first;

        if (k->in_memory)
            memory_drop(p, k);
        p->first = k->next;
        free(k);
    }
    free(p->dir);
    free(p);
}

void prefix_stats(const struct prefix_store *p, struct prefix_stats *out)
{
    *out = p->stats;
}
