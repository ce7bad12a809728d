#include "cli/bench/create.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/store.h"

enum { CREATE_CHUNK = 1 << 20 };

/* Ctrl-C and kill wait until a chunk is written, so that nothing is left behind. What is ignored,
 * as SIGINT is in a shell's background jobs, stays so: held, it would wait like the others. */
static void hold_signals(sigset_t *before)
{
    static const int ends[] = {SIGINT, SIGTERM};
    struct sigaction now;
    sigset_t held;

    sigemptyset(&held);
    for (unsigned i = 0; i < 2; i++)
        if (!sigaction(ends[i], NULL, &now) && now.sa_handler != SIG_IGN)
            sigaddset(&held, ends[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

static bool signal_waits(void)
{
    sigset_t waiting;

    return !sigpending(&waiting) &&
           (sigismember(&waiting, SIGINT) || sigismember(&waiting, SIGTERM));
}

static int fill(int fd, const char *path, uint64_t bytes, struct err *e)
{
    uint64_t seed = 1, *chunk = malloc(CREATE_CHUNK);
    int rc = 0;

    if (!chunk)
        return err_set(e, ERR_NOMEM, "--create %s", path);
    for (uint64_t at = 0; at < bytes && !rc;) {
        const size_t n = bytes - at < CREATE_CHUNK ? (size_t)(bytes - at) : CREATE_CHUNK;
        ssize_t put;

        for (size_t i = 0; i < CREATE_CHUNK / sizeof(*chunk); i++)
            chunk[i] = random_next(&seed);
        put = write(fd, chunk, n);
        if (put <= 0)
            rc = err_sys(e, put < 0 ? errno : ENOSPC, "--create %s: after %llu of %llu bytes", path,
                         (unsigned long long)at, (unsigned long long)bytes);
        else if (signal_waits())
            rc = err_set(e, ERR_CANCELLED, "--create %s", path);
        else
            at += (uint64_t)put;
    }
    if (!rc && fsync(fd))
        rc = err_sys(e, errno, "--create %s", path);
    free(chunk);
    return rc;
}

int create_file(const char *path, uint64_t bytes, struct err *e)
{
    char partial[PATH_MAX];
    sigset_t before;
    int fd, rc;

    if (!access(path, F_OK))
        return err_sys(e, EEXIST, "--create %s", path);
    if (snprintf(partial, sizeof(partial), "%s.partial", path) >= (int)sizeof(partial))
        return err_sys(e, ENAMETOOLONG, "--create %s", path);
    fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(e, errno, "--create %s", partial);
    hold_signals(&before);
    rc = fill(fd, path, bytes, e);
    close(fd);
    if (!rc && rename(partial, path))
        rc = err_sys(e, errno, "--create %s", path);
    if (rc)
        unlink(partial);
    pthread_sigmask(SIG_SETMASK, &before, NULL); /* what waited ends the program here */
    return rc;
}
