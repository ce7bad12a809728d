#include "tests/support/alloc_fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__real_mmap(void *p, size_t n, int prot, int flags, int fd, off_t offset);

void *__real_mmap64(void *p, size_t n, int prot, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_mmap(void *p, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *p, size_t n, int prot, int flags, int fd, off_t offset);

static atomic_uint armed, seen; /* armed: 0 = off */

static bool fails(void)
{
    unsigned nth = atomic_load(&armed);

    if (!nth || atomic_fetch_add(&seen, 1) + 1 != nth)
        return false;
    errno = ENOMEM;
    return true;
}

void alloc_fault_arm(unsigned nth)
{
    atomic_store(&seen, 0);
    atomic_store(&armed, nth);
}

bool alloc_fault_disarm(void)
{
    return atomic_load(&seen) >= atomic_exchange(&armed, 0);
}

unsigned alloc_fault_seen(void)
{
    return atomic_load(&seen);
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return fails() ? ENOMEM : __real_posix_memalign(out, align, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

void *__wrap_mmap(void *p, size_t n, int prot, int flags, int fd, off_t offset)
{
    return fails() ? MAP_FAILED : __real_mmap(p, n, prot, flags, fd, offset);
}

/* What mmap is called with 64-bit file offsets. */
void *__wrap_mmap64(void *p, size_t n, int prot, int flags, int fd, off_t offset)
{
    return fails() ? MAP_FAILED : __real_mmap64(p, n, prot, flags, fd, offset);
}
