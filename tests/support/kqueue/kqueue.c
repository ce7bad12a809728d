/* The descriptor of a kqueue is here the reading end of a pipe, through which the addresses of
 * requests pass; the other end is found in a table. */
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/event.h>
#include <unistd.h>

enum { FD_MAX = 1024, REFUSED = 5 };

static int writing_end[FD_MAX];
static atomic_uint n_calls;

int kqueue(void)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC))
        return -1;
    if (ends[0] >= FD_MAX) {
        errno = EMFILE;
        return -1;
    }
    if (writing_end[ends[0]]) /* of an earlier one, closed since */
        close(writing_end[ends[0]]);
    writing_end[ends[0]] = ends[1];
    return ends[0];
}

int aio_read(struct aiocb *cb)
{
    if (atomic_fetch_add(&n_calls, 1) % REFUSED == REFUSED - 1) {
        errno = EAGAIN;
        return -1;
    }
    cb->result =
        pread(cb->aio_fildes, (void *)(uintptr_t)cb->aio_buf, cb->aio_nbytes, cb->aio_offset);
    cb->error = cb->result < 0 ? errno : 0;
    return write(writing_end[cb->aio_sigevent.sigev_notify_kqueue], &cb, sizeof(cb)) == sizeof(cb)
               ? 0
               : -1;
}

int aio_error(const struct aiocb *cb)
{
    return cb->error;
}

ssize_t aio_return(struct aiocb *cb)
{
    return cb->result;
}

int kevent(int kq, const struct kevent *change, int n_changes, struct kevent *event, int n_events,
           const struct timespec *timeout)
{
    struct pollfd one = {.fd = kq, .events = POLLIN};
    int n = 0, ready = poll(&one, 1, timeout ? 0 : -1);
    struct aiocb *cb;

    (void)change, (void)n_changes;
    while (ready == 1 && n < n_events && read(kq, &cb, sizeof(cb)) == sizeof(cb)) {
        event[n++] = (struct kevent){.ident = (uintptr_t)cb};
        ready = poll(&one, 1, 0);
    }
    return ready < 0 && !n ? -1 : n;
}
