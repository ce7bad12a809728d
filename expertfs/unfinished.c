#include "expertfs/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_BYTES = 64 << 20 };

/* A member that only one of the two objects has, or with another value; NULL: they are equal, or
 * `theirs` is no object. */
static const char *first_difference(const json_t *theirs, const json_t *ours)
{
    const json_t *side[2] = {ours, theirs};

    for (unsigned i = 0; i < 2 && json_is_object(theirs); i++) {
        const char *key;
        json_t *value;

        json_object_foreach((json_t *)(uintptr_t)side[i], key, value)
        {
            if (!json_equal(value, json_object_get(side[1 - i], key)))
                return key;
        }
    }
    return NULL;
}

static char *value_text(const json_t *value)
{
    return value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
}

static int same_work(const char *dir, const json_t *state, const char *member,
                     const json_t *identity, const char *otherwise, struct err *e)
{
    const json_t *theirs = json_object_get(state, member);
    const char *key;
    char *a, *b;

    if (theirs && json_equal(theirs, identity))
        return 0;
    key = first_difference(theirs, identity);
    if (!key)
        return err_set(e, ERR_ARG, "%s: holds a container made %s; choose another directory", dir,
                       otherwise);
    a = value_text(json_object_get(theirs, key));
    b = value_text(json_object_get(identity, key));
    err_set(e, ERR_ARG,
            "%s: holds a container made of other parameters: %.40s is %.100s there and %.100s "
            "here; choose another directory",
            dir, key, a ? a : "nothing", b ? b : "nothing");
    free(a);
    free(b);
    return e->code;
}

/* Files that nobody of ours put there? Temporaries of ours go when the writer opens. */
static int check_empty(int dirfd, const char *dir, struct err *e)
{
    int again = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again < 0 ? NULL : fdopendir(again);
    const struct dirent *entry;
    int bad = 0;

    if (!d) {
        err_sys(e, errno, "%s", dir);
        if (again >= 0)
            close(again);
        return e->code;
    }
    while (!bad && (entry = readdir(d))) {
        size_t n = strlen(entry->d_name);

        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "lost+found") ||
            !strcmp(entry->d_name, "chat.json") ||
            (n > 4 && !strcmp(entry->d_name + n - 4, ".tmp")))
            continue;
        bad = err_set(e, ERR_ARG, "%s: is not empty (%s), and not an unfinished container", dir,
                      entry->d_name);
    }
    closedir(d);
    return bad;
}

static int look(struct unfinished *u, int dirfd, const char *dir, const char *state_file,
                const char *member, const json_t *identity, const char *otherwise, struct err *e)
{
    const char *file = "manifest.json";
    struct stat st;

    u->found = FOUND_SEALED;
    if (fstatat(dirfd, file, &st, AT_SYMLINK_NOFOLLOW)) {
        file = state_file;
        u->found = FOUND_UNFINISHED;
        if (fstatat(dirfd, file, &st, AT_SYMLINK_NOFOLLOW)) {
            u->found = FOUND_NOTHING;
            return check_empty(dirfd, dir, e);
        }
    }
    if (json_parse_file(&u->state, dirfd, file, STATE_BYTES, e))
        return err_wrap(e, "%s", dir);
    if (same_work(dir, u->state, member, identity, otherwise, e)) {
        json_decref(u->state);
        return e->code;
    }
    return 0;
}

int unfinished_look(struct unfinished *out, const char *dir, const char *state_file,
                    const char *member, const json_t *identity, const char *otherwise,
                    struct err *e)
{
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), bad;
    struct unfinished u = {0};

    if (dirfd < 0 && errno != ENOENT)
        return err_sys(e, errno, "%s", dir);
    bad = dirfd < 0 ? 0 : look(&u, dirfd, dir, state_file, member, identity, otherwise, e);
    if (dirfd >= 0)
        close(dirfd);
    if (!bad)
        *out = u;
    return bad;
}
