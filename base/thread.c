#include "base/thread.h"

#include <signal.h>

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
