#include "cli/bench/create.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/store.h"

enum { CREATE_CHUNK = 1 << 20 };

int create_file(const char *path, uint64_t bytes, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    uint64_t seed = 1, *chunk = malloc(CREATE_CHUNK);
    int rc = 0;

    if (fd < 0 || !chunk) {
        rc = fd < 0 ? err_sys(e, errno, "--create %s", path)
                    : err_set(e, ERR_NOMEM, "--create %s", path);
        goto out;
    }
    for (uint64_t at = 0; at < bytes && !rc;) {
        const size_t n = bytes - at < CREATE_CHUNK ? (size_t)(bytes - at) : CREATE_CHUNK;
        ssize_t put;

        for (size_t i = 0; i < CREATE_CHUNK / sizeof(*chunk); i++)
            chunk[i] = random_next(&seed);
        put = write(fd, chunk, n);
        if (put <= 0)
            rc = err_sys(e, put < 0 ? errno : ENOSPC, "--create %s: after %llu of %llu bytes", path,
                         (unsigned long long)at, (unsigned long long)bytes);
        else
            at += (uint64_t)put;
    }
    if (!rc && fsync(fd))
        rc = err_sys(e, errno, "--create %s", path);
    if (rc)
        unlink(path); /* ours: it did not exist */
out:
    if (fd >= 0)
        close(fd);
    free(chunk);
    return rc;
}
