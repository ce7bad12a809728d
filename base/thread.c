#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

int thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);

    if (rc)
        return rc;
    rc = pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread inherits the mask */
    if (!rc)
        rc = pthread_create(out, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

int thread_main_stack(struct err *e)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_STACK, &r) || r.rlim_cur >= THREAD_STACK_BYTES)
        return 0;
    if (r.rlim_max < THREAD_STACK_BYTES)
        return err_set(e, ERR_LIMIT, "limited to %llu KiB, %d are needed (ulimit -Hs)",
                       (unsigned long long)r.rlim_max >> 10, THREAD_STACK_BYTES >> 10);
    r.rlim_cur = THREAD_STACK_BYTES;
    return setrlimit(RLIMIT_STACK, &r) ? err_sys(e, errno, "raising its limit") : 0;
}
