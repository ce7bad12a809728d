/* tests/support/kqueue/sys/event.h - kqueue as far as io_kqueue.c calls it; see ../aio.h. */
#ifndef SUPPORT_KQUEUE_EVENT_H
#define SUPPORT_KQUEUE_EVENT_H

#include <stdint.h>
#include <time.h>

struct kevent {
    uintptr_t ident;
    short filter;
    unsigned short flags;
    unsigned fflags;
    int64_t data;
    void *udata;
};

int kqueue(void);
int kevent(int kq, const struct kevent *change, int n_changes, struct kevent *event, int n_events,
           const struct timespec *timeout);

#endif
