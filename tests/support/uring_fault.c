#include "tests/support/uring_fault.h"

#ifdef HAVE_IO_URING
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "storage/io.h"

int __real_io_uring_submit(struct io_uring *ring);
int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
unsigned __real_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqe,
                                        unsigned n);
int __real_io_uring_register_files(struct io_uring *ring, const int *fd, unsigned n);
int __real_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov, unsigned n);
int __real_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned at,
                                                const struct iovec *iov, const __u64 *tags,
                                                unsigned n);

int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqe,
                                        unsigned n);
int __wrap_io_uring_register_files(struct io_uring *ring, const int *fd, unsigned n);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov, unsigned n);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned at,
                                                const struct iovec *iov, const __u64 *tags,
                                                unsigned n);

static unsigned active, submits, waits, completions, count;

void uring_fault_set(unsigned faults)
{
    active = faults;
    submits = waits = completions = count = 0;
}

unsigned uring_fault_count(void)
{
    return count;
}

static unsigned entered, enter_from, enter_n;
static int enter_errnum, complete_errnum;

void uring_fault_enter(unsigned from, unsigned n, int errnum)
{
    entered = count = 0;
    enter_from = from;
    enter_n = n;
    enter_errnum = errnum;
}

void uring_fault_complete(int errnum)
{
    complete_errnum = errnum;
}

static bool enter_fails(void)
{
    if (++entered < enter_from || entered - enter_from >= enter_n)
        return false;
    count++;
    return true;
}

static bool fails(enum uring_fault which)
{
    if (!(active & which))
        return false;
    count++;
    return true;
}

int __wrap_io_uring_submit(struct io_uring *ring)
{
    if (enter_fails())
        return -enter_errnum;
    if (submits++ % 2 == 0 && fails(URING_SUBMIT))
        return -EAGAIN;
    return __real_io_uring_submit(ring);
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned n)
{
    if (enter_fails())
        return -enter_errnum;
    if (waits++ % 2 == 0 && fails(URING_WAIT))
        return -EINTR;
    return __real_io_uring_submit_and_wait(ring, n);
}

/* Take bytes away from a completion. What the engine reads into it has arrived, status of it. */
static void spoil(struct io_uring_cqe *cqe)
{
    static const int errors[] = {EAGAIN, EINTR, ECANCELED};
    struct io_read *r = io_uring_cqe_get_data(cqe);
    char *dst = (char *)r->dst + r->status;
    int keep = cqe->res / 2 / IO_ALIGN * IO_ALIGN;

    completions++;
    if (cqe->res <= 0)
        return;
    if (complete_errnum) {
        memset(dst, 0, (size_t)cqe->res);
        cqe->res = -complete_errnum;
        return;
    }
    if (completions % 3 == 0 && fails(URING_AGAIN)) {
        memset(dst, 0, (size_t)cqe->res);
        cqe->res = -errors[completions / 3 % 3];
    } else if (keep && completions % 2 && fails(URING_SHORT)) {
        memset(dst + keep, 0, (size_t)(cqe->res - keep));
        cqe->res = keep;
    }
}

unsigned __wrap_io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **cqe,
                                        unsigned n)
{
    unsigned got = __real_io_uring_peek_batch_cqe(ring, cqe, n);

    for (unsigned i = 0; i < got; i++)
        if (complete_errnum || active & (URING_SHORT | URING_AGAIN))
            spoil(cqe[i]);
    return got;
}

int __wrap_io_uring_register_files(struct io_uring *ring, const int *fd, unsigned n)
{
    return fails(URING_FILES) ? -EMFILE : __real_io_uring_register_files(ring, fd, n);
}

int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iov, unsigned n)
{
    return fails(URING_BUFFERS) ? -ENOMEM : __real_io_uring_register_buffers(ring, iov, n);
}

int __wrap_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned at,
                                                const struct iovec *iov, const __u64 *tags,
                                                unsigned n)
{
    if (fails(URING_UPDATE))
        return -EINVAL;
    return __real_io_uring_register_buffers_update_tag(ring, at, iov, tags, n);
}
#endif
