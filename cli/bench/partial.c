#include "cli/bench/partial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int partial_open(struct partial *p, const char *path, struct err *e)
{
    *p = (struct partial){.path = path, .fd = -1};
    if (!no_such_entry(AT_FDCWD, path))
        return err_set(e, ERR_IO,
                       "%s: File exists and is not overwritten; remove it or name another", path);
    if (snprintf(p->name, sizeof(p->name), "%s.partial", path) >= (int)sizeof(p->name))
        return err_sys(e, ENAMETOOLONG, "%s", path);
    p->fd = open(p->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (p->fd < 0 && errno == EEXIST)
        return err_set(e, ERR_IO,
                       "%s: is there: another run is writing it now, or left it when it was "
                       "killed; remove it then",
                       p->name);
    return p->fd < 0 ? err_sys(e, errno, "%s", p->name) : 0;
}

/* It has two names for a moment where the file system cannot rename without replacing. */
static int take_name(const struct partial *p)
{
#ifdef RENAME_NOREPLACE
    if (!renameat2(AT_FDCWD, p->name, AT_FDCWD, p->path, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
#endif
    if (link(p->name, p->path))
        return -1;
    unlink(p->name);
    return 0;
}

int partial_publish(struct partial *p, struct err *e)
{
    if (fsync(p->fd) || take_name(p)) {
        err_sys(e, errno, "%s", p->path);
        partial_drop(p);
        return e->code;
    }
    close(p->fd);
    p->fd = -1;
    return 0;
}

void partial_drop(struct partial *p)
{
    if (p->fd < 0)
        return;
    unlink(p->name);
    close(p->fd);
    p->fd = -1;
}
