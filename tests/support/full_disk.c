/* tests/support/full_disk.c - preload it: a disk that is full although the check for space has
 * passed.
 *
 * When a program first asks how much room a volume has, there is plenty; later answers are true.
 * With NO_FALLOCATE in the environment room cannot be reserved either, as on file systems that know
 * no such thing, and files run full while they are being written.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(__GLIBC__) && defined(_FILE_OFFSET_BITS) && _FILE_OFFSET_BITS == 64
#define REAL(name) #name "64" /* what the headers make of it */
#else
#define REAL(name) #name
#endif

EXPORT int fstatvfs(int fd, struct statvfs *v)
{
    static atomic_flag has_lied = ATOMIC_FLAG_INIT;
    int (*real)(int, struct statvfs *) = NULL;
    int rc;

    *(void **)&real = dlsym(RTLD_NEXT, REAL(fstatvfs));
    rc = real ? real(fd, v) : -1;
    if (!rc && !atomic_flag_test_and_set(&has_lied))
        v->f_bavail = 1ul << 40;
    return rc;
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
    int (*real)(int, int, off_t, off_t) = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, REAL(fallocate));
    if (real && !getenv("NO_FALLOCATE"))
        return real(fd, mode, offset, length);
    errno = EOPNOTSUPP;
    return -1;
}
