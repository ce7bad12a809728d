#include "cli/bench/create.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/bench/partial.h"
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

static int fill(const struct partial *p, uint64_t bytes, struct err *e)
{
    uint64_t seed = 1, *chunk = malloc(CREATE_CHUNK);
    int rc = 0;

    if (!chunk)
        return err_set(e, ERR_NOMEM, "%s", p->path);
    for (uint64_t at = 0; at < bytes && !rc;) {
        const size_t n = bytes - at < CREATE_CHUNK ? (size_t)(bytes - at) : CREATE_CHUNK;
        ssize_t put;

        for (size_t i = 0; i < CREATE_CHUNK / sizeof(*chunk); i++)
            chunk[i] = random_next(&seed);
        put = write(p->fd, chunk, n);
        if (put <= 0)
            rc = err_sys(e, put < 0 ? errno : ENOSPC, "%s: after %llu of %llu bytes", p->path,
                         (unsigned long long)at, (unsigned long long)bytes);
        else if (signal_waits())
            rc = err_set(e, ERR_CANCELLED, "%s", p->path);
        else
            at += (uint64_t)put;
    }
    free(chunk);
    return rc;
}

int create_file(const char *path, uint64_t bytes, struct err *e)
{
    struct partial p;
    sigset_t before;
    int rc;

    hold_signals(&before);
    if (partial_open(&p, path, e) || fill(&p, bytes, e) || partial_publish(&p, e))
        rc = err_wrap(e, "--create");
    else
        rc = 0;
    partial_drop(&p);
    pthread_sigmask(SIG_SETMASK, &before, NULL); /* SIGTERM, if it waited, ends the program here */
    return rc;
}
