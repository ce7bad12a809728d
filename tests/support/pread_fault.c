#include "tests/support/pread_fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/types.h>

ssize_t __real_pread(int fd, void *dst, size_t n, off_t offset);
ssize_t __real_pread64(int fd, void *dst, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *dst, size_t n, off_t offset);
ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t offset);

static atomic_size_t most_bytes;
static atomic_uint calls, faults;
static atomic_int fail_errnum;

void pread_fault_set(size_t most)
{
    atomic_store(&most_bytes, most);
    atomic_store(&calls, 0);
    atomic_store(&faults, 0);
}

unsigned pread_fault_count(void)
{
    return atomic_load(&faults);
}

void pread_fault_fail(int errnum)
{
    atomic_store(&fail_errnum, errnum);
}

typedef ssize_t pread_fn(int fd, void *dst, size_t n, off_t offset);

static ssize_t perhaps(pread_fn *real, int fd, void *dst, size_t n, off_t offset)
{
    size_t most = atomic_load(&most_bytes);
    int errnum = atomic_load(&fail_errnum);

    if (errnum) {
        errno = errnum;
        return -1;
    }
    if (!most)
        return real(fd, dst, n, offset);
    if (atomic_fetch_add(&calls, 1) % 2 == 0) {
        atomic_fetch_add(&faults, 1);
        errno = EINTR;
        return -1;
    }
    if (n > most) {
        atomic_fetch_add(&faults, 1);
        n = most;
    }
    return real(fd, dst, n, offset);
}

ssize_t __wrap_pread(int fd, void *dst, size_t n, off_t offset)
{
    return perhaps(__real_pread, fd, dst, n, offset);
}

/* What pread is called with 64-bit file offsets. */
ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t offset)
{
    return perhaps(__real_pread64, fd, dst, n, offset);
}
