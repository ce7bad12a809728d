#include "tests/support/aio_fault.h"

#ifdef HAVE_LIBAIO
#include <errno.h>
#include <libaio.h>
#include <stdbool.h>
#include <string.h>

#include "storage/io.h"

int __real_io_submit(io_context_t ctx, long n, struct iocb *cb[]);
int __real_io_getevents(io_context_t ctx, long min, long n, struct io_event *event,
                        struct timespec *timeout);
int __wrap_io_submit(io_context_t ctx, long n, struct iocb *cb[]);
int __wrap_io_getevents(io_context_t ctx, long min, long n, struct io_event *event,
                        struct timespec *timeout);

static unsigned active, submits, waits, completions, count;
static unsigned entered, enter_from, enter_n;
static int enter_errnum, complete_errnum;

void aio_fault_set(unsigned faults)
{
    active = faults;
    submits = waits = completions = count = 0;
}

unsigned aio_fault_count(void)
{
    return count;
}

void aio_fault_enter(unsigned from, unsigned n, int errnum)
{
    entered = count = 0;
    enter_from = from;
    enter_n = n;
    enter_errnum = errnum;
}

void aio_fault_complete(int errnum)
{
    complete_errnum = errnum;
}

static bool fails(enum aio_fault which)
{
    if (!(active & which))
        return false;
    count++;
    return true;
}

int __wrap_io_submit(io_context_t ctx, long n, struct iocb *cb[])
{
    if (++entered >= enter_from && entered - enter_from < enter_n) {
        count++;
        return -enter_errnum;
    }
    if (submits++ % 2 == 0 && fails(AIO_SUBMIT))
        return -EAGAIN;
    if (n > 1 && fails(AIO_PART))
        n = 1;
    return __real_io_submit(ctx, n, cb);
}

/* Take bytes away from a completion. What the engine reads into it has arrived, status of it. */
static void spoil(struct io_event *event)
{
    struct io_read *r = event->data;
    char *dst = (char *)r->dst + r->status;
    long res = (long)event->res, keep = res / 2 / IO_ALIGN * IO_ALIGN, now = res;

    completions++;
    if (res <= 0)
        return;
    if (complete_errnum)
        now = -complete_errnum;
    else if (completions % 3 == 0 && fails(AIO_AGAIN))
        now = completions % 2 ? -EAGAIN : -EINTR;
    else if (keep && completions % 2 && fails(AIO_SHORT))
        now = keep;
    event->res = (unsigned long)now;
    if (now < res)
        memset(dst + (now > 0 ? now : 0), 0, (size_t)(res - (now > 0 ? now : 0)));
}

int __wrap_io_getevents(io_context_t ctx, long min, long n, struct io_event *event,
                        struct timespec *timeout)
{
    int got;

    if (fails(AIO_BLIND))
        return -EPERM;
    if (waits++ % 2 == 0 && fails(AIO_WAIT))
        return -EINTR;
    if (n > 1 && fails(AIO_FEW))
        n = 1;
    got = __real_io_getevents(ctx, min, n, event, timeout);
    for (int i = 0; i < got; i++)
        spoil(&event[i]);
    return got;
}
#endif
