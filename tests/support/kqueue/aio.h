/* tests/support/kqueue/aio.h - FreeBSD's aio_read as far as io_kqueue.c calls it, over pread and a
 * pipe: a request has ended when aio_read returns, and its event waits in the pipe. Each fifth
 * request is refused with EAGAIN, as where a process has too many. */
#ifndef SUPPORT_KQUEUE_AIO_H
#define SUPPORT_KQUEUE_AIO_H

#include <signal.h>
#include <sys/types.h>

#define SIGEV_KEVENT        3
#define sigev_notify_kqueue sigev_signo /* a union in the original too */

struct aiocb {
    int aio_fildes;
    off_t aio_offset;
    volatile void *aio_buf;
    size_t aio_nbytes;
    struct sigevent aio_sigevent;
    ssize_t result;
    int error;
};

int aio_read(struct aiocb *cb);
int aio_error(const struct aiocb *cb);
ssize_t aio_return(struct aiocb *cb);

#endif
