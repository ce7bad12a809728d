#include "base/slurp.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_all(char *to, int fd, size_t bytes, const char *name, struct err *e)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, to + got, bytes - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, errno, "%s", name);
        if (n == 0)
            return err_set(e, ERR_IO, "%s: got %zu of %zu bytes", name, got, bytes);
        got += (size_t)n;
    }
    return 0;
}

static int check(const struct stat *st, const char *name, size_t most, struct err *e)
{
    if (!S_ISREG(st->st_mode))
        return err_set(e, ERR_IO, "%s: not a regular file", name);
    if ((uint64_t)st->st_size > most)
        return err_set(e, ERR_LIMIT, "%s: %" PRId64 " bytes, it may have %zu", name,
                       (int64_t)st->st_size, most);
    return 0;
}

int slurp(char **bytes, size_t *n, int dirfd, const char *name, size_t most, struct err *e)
{
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int open_error = errno, rc;
    char *text = NULL;
    struct stat st;

    *bytes = NULL;
    *n = 0;
    if (fd < 0)
        return no_such_entry(dirfd, name) ? 0 : err_open(e, open_error, dirfd, name);
    rc = fstat(fd, &st) ? err_sys(e, errno, "%s", name) : check(&st, name, most, e);
    if (!rc) {
        text = malloc((size_t)st.st_size + 1);
        rc = text ? read_all(text, fd, (size_t)st.st_size, name, e)
                  : err_set(e, ERR_NOMEM, "%s: %" PRId64 " bytes", name, (int64_t)st.st_size);
    }
    close(fd);
    if (rc) {
        free(text);
        return rc;
    }
    text[st.st_size] = '\0';
    *bytes = text;
    *n = (size_t)st.st_size;
    return 0;
}
