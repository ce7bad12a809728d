#include "model/reclaim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expertfs/ledger.h"
#include "model/convert_shards.h"

static const char ledger[] = ".reclaimed";

struct consumers { /* who still needs a shard */
    bool layer[FORMAT_LAYERS_MAX], trunk;
};

struct reclaim {
    struct checkpoint *c;
    const json_t *prints;
    enum reclaim_mode mode;
    int dirfd;
    struct consumers *shard;
    unsigned n_shards, n_gone;
    uint64_t bytes_gone;
};

/* Absolute, links resolved; of a directory that does not exist yet, its parent's and its name. */
static int resolve(char *out, const char *dir, struct err *e)
{
    char copy[PATH_MAX], *slash;
    size_t n;

    if (realpath(dir, out))
        return 0;
    if (errno != ENOENT || strlen(dir) >= sizeof(copy))
        return err_sys(e, errno, "%s", dir);
    strcpy(copy, dir);
    for (n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = 0;
    slash = strrchr(copy, '/');
    if (slash == copy)
        strcpy(out, "/");
    else if (slash)
        *slash = 0;
    if (slash != copy && !realpath(slash ? copy : ".", out))
        return err_sys(e, errno, "%s", dir);
    n = strlen(out);
    slash = slash ? slash + 1 : copy;
    if (n + 1 + strlen(slash) >= PATH_MAX)
        return err_set(e, ERR_ARG, "%s: the path is too long", dir);
    out[n] = '/';
    strcpy(out + n + 1, slash);
    return 0;
}

static bool lies_in(const char *inner, const char *outer)
{
    size_t n = strlen(outer);

    return !strncmp(inner, outer, n) && (inner[n] == 0 || inner[n] == '/' || outer[n - 1] == '/');
}

static int not_in_each_other(const char *source, const char *container, struct err *e)
{
    char a[PATH_MAX], b[PATH_MAX];

    if (resolve(a, source, e) || resolve(b, container, e))
        return e->code;
    if (lies_in(a, b) || lies_in(b, a))
        return err_set(e, ERR_ARG,
                       "%s and %s lie in each other: shards cannot be deleted while converting",
                       source, container);
    return 0;
}

static int no_links(const struct reclaim *r, struct err *e)
{
    for (unsigned i = 0; i < r->n_shards; i++) {
        const char *name = checkpoint_shard(r->c, i);
        struct stat st;

        if (!checkpoint_shard_present(r->c, i))
            continue;
        if (fstatat(r->dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
            return err_sys(e, errno, "%s", name);
        if (!S_ISREG(st.st_mode))
            return err_set(e, ERR_ARG, "%s: is a link: deleting it frees nothing", name);
        if (st.st_nlink > 1)
            return err_set(e, ERR_ARG,
                           "%s: is one of %ju hard links to a file: deleting it frees nothing",
                           name, (uintmax_t)st.st_nlink);
    }
    return 0;
}

/* Found out now, and not when hours are spent. */
static int can_delete(const struct reclaim *r, struct err *e)
{
    const char *dir = checkpoint_dir(r->c);

    if (!checkpoint_indexed(r->c))
        return err_set(
            e, ERR_ARG,
            "%s: a release of one file, which nothing is left of before all is converted: "
            "delete it afterwards",
            dir);
    if (faccessat(r->dirfd, ".", W_OK, AT_EACCESS))
        return err_sys(e, errno, "%s: its shards cannot be deleted", dir);
    return no_links(r, e);
}

static void note_consumers(struct reclaim *r, const struct tensor_map *m)
{
    for (unsigned i = 0; i < r->n_shards; i++)
        r->shard[i].trunk = true; /* what nobody needs goes with the trunk */
    for (unsigned l = m->first_dense; m->n_experts && l < m->n_layers; l++)
        for (unsigned x = 0; x < m->n_experts; x++)
            for (enum matrix k = MATRIX_GATE; k < MATRICES; k++) {
                const struct source_tensor *t = tensor_map_expert(m, l, x, k);

                r->shard[t->shard].layer[l] = true;
                r->shard[t->scale_shard].layer[l] = true;
            }
}

int reclaim_open(struct reclaim **out, struct checkpoint *c, const struct tensor_map *m,
                 const json_t *prints, const char *container, enum reclaim_mode mode, struct err *e)
{
    struct reclaim *r = calloc(1, sizeof(*r));

    if (!r)
        return err_set(e, ERR_NOMEM, "reclaim");
    r->dirfd = -1;
    r->c = c;
    r->prints = prints;
    r->mode = mode;
    if (mode != RECLAIM_OFF) {
        r->n_shards = checkpoint_n_shards(c);
        r->shard = calloc(r->n_shards + 1, sizeof(*r->shard));
        r->dirfd = open(checkpoint_dir(c), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (!r->shard || r->dirfd < 0)
            err_sys(e, r->shard ? errno : ENOMEM, "%s", checkpoint_dir(c));
        if (!r->shard || r->dirfd < 0 || not_in_each_other(checkpoint_dir(c), container, e) ||
            can_delete(r, e)) {
            reclaim_close(r);
            return e->code;
        }
        note_consumers(r, m);
    }
    *out = r;
    return 0;
}

void reclaim_close(struct reclaim *r)
{
    if (!r)
        return;
    if (r->dirfd >= 0)
        close(r->dirfd);
    free(r->shard);
    free(r);
}

static int delete_shard(struct reclaim *r, unsigned i, struct err *e)
{
    const char *name = checkpoint_shard(r->c, i);
    struct stat st;

    if (fstatat(r->dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
        return err_sys(e, errno, "%s/%s", checkpoint_dir(r->c), name);
    if (r->mode == RECLAIM_ON) {
        if (shards_check_one(r->prints, r->dirfd, name, e))
            return e->code;
        if (!checkpoint_shard_untouched(r->c, i, r->dirfd))
            return err_set(
                e, ERR_IO,
                "%s/%s: has changed while it was converted (another file, or written to): "
                "not deleted",
                checkpoint_dir(r->c), name);
        if (ledger_add(r->dirfd, ledger, name, e))
            return err_wrap(e, "%s", checkpoint_dir(r->c));
        checkpoint_shard_close(r->c, i); /* a file that is open keeps its room on the disk */
        if (unlinkat(r->dirfd, name, 0))
            return err_sys(e, errno, "%s/%s: deleting", checkpoint_dir(r->c), name);
    }
    r->n_gone++;
    r->bytes_gone += (uint64_t)st.st_size;
    return 0;
}

static bool needed(const struct consumers *c)
{
    static const struct consumers nobody;

    return memcmp(c, &nobody, sizeof(nobody)) != 0;
}

static int delete_unneeded(struct reclaim *r, struct consumers *done, struct err *e)
{
    for (unsigned i = 0; i < r->n_shards; i++) {
        struct consumers *c = &r->shard[i];
        bool before = needed(c);

        for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++)
            c->layer[l] &= !done->layer[l];
        c->trunk &= !done->trunk;
        if (before && !needed(c) && checkpoint_shard_present(r->c, i) && delete_shard(r, i, e))
            return e->code;
    }
    return 0;
}

int reclaim_trunk(struct reclaim *r, struct err *e)
{
    struct consumers done = {.trunk = true};

    return delete_unneeded(r, &done, e);
}

int reclaim_layer(struct reclaim *r, unsigned layer, struct err *e)
{
    struct consumers done = {0};

    done.layer[layer] = true;
    return delete_unneeded(r, &done, e);
}

static int last_consumer(const struct consumers *c)
{
    int l = FORMAT_LAYERS_MAX - 1;

    while (l >= 0 && !c->layer[l])
        l--;
    return l; /* or RECLAIM_TRUNK */
}

uint64_t reclaim_frees(const struct reclaim *r, int consumer)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < r->n_shards; i++) {
        struct stat st;

        if (checkpoint_shard_present(r->c, i) && last_consumer(&r->shard[i]) == consumer &&
            !fstatat(r->dirfd, checkpoint_shard(r->c, i), &st, AT_SYMLINK_NOFOLLOW))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    return bytes;
}

unsigned reclaim_count(const struct reclaim *r)
{
    return r->n_gone;
}

uint64_t reclaim_bytes(const struct reclaim *r)
{
    return r->bytes_gone;
}
