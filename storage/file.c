#include "storage/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "storage/extent.h"

enum {
    READ_MAX = 1 << 30, /* bytes per pread; the system's own bound is just below 2 GiB */
    PAUSE_DOUBLINGS = 13,
};

/* Never 0, 1 or 2: a host may have closed them, and in struct file 0 means none. */
static int open_above_stdio(int dirfd, const char *name, int flags)
{
    int fd, high;

    do
        fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 || fd > 2)
        return fd;
    high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return high;
}

static void __attribute__((format(printf, 2, 3))) why_not(struct file *f, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(f->why, sizeof(f->why), fmt, ap);
    va_end(ap);
}

/* What the file system says about direct reads; true also when it says nothing. */
static bool alignment_fits(struct file *f, int fd)
{
#ifdef STATX_DIOALIGN
    struct statx sx;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) || !(sx.stx_mask & STATX_DIOALIGN))
        return true;
    if (!sx.stx_dio_mem_align || !sx.stx_dio_offset_align) {
        why_not(f, "the file system says it has no direct reads");
        return false;
    }
    if (sx.stx_dio_mem_align > IO_ALIGN || sx.stx_dio_offset_align > IO_ALIGN) {
        why_not(f, "direct reads want multiples of %u bytes in memory, %u in the file; we have %d",
                sx.stx_dio_mem_align, sx.stx_dio_offset_align, IO_ALIGN);
        return false;
    }
#else
    (void)f, (void)fd;
#endif
    return true;
}

/* Is the file's first page in the page cache? False too where the system does not tell (*known).
 * The mapping is only asked about: nobody can read it, so a file that is cut raises no signal. */
static bool first_page_cached(const struct file *f, bool *known)
{
#ifdef O_DIRECT
    void *at = mmap(NULL, IO_ALIGN, PROT_NONE, MAP_SHARED, f->buffered, 0);
    unsigned char in = 0;

    *known = at != MAP_FAILED && !mincore(at, IO_ALIGN, (void *)&in);
    if (at != MAP_FAILED)
        munmap(at, IO_ALIGN);
    return *known && (in & 1);
#else
    (void)f;
    return *known = false;
#endif
}

/* A file system may take O_DIRECT and read through the page cache all the same, as btrfs does with
 * what it compresses: then the page is in it afterwards. Others may be reading the file: twice is
 * no accident. False too where nobody can tell, as of a page that stays in the cache. */
static bool goes_through_cache(const struct file *f, int fd, void *page)
{
    unsigned times = 0;
    bool known = true;

    while (times < 2) {
        posix_fadvise(f->buffered, 0, IO_ALIGN, POSIX_FADV_DONTNEED);
        if (first_page_cached(f, &known) || !known || pread(fd, page, IO_ALIGN, 0) != IO_ALIGN ||
            !first_page_cached(f, &known))
            return false;
        times++;
    }
    return true;
}

/* open may accept O_DIRECT where read refuses it: only a read that delivers is a proof. */
static bool direct_read_works(struct file *f, int fd)
{
    void *page;
    ssize_t got;
    bool works;
    int err;

    if (posix_memalign(&page, IO_ALIGN, IO_ALIGN)) {
        why_not(f, "no memory to try a direct read");
        return false;
    }
    do
        got = pread(fd, page, IO_ALIGN, 0);
    while (got < 0 && errno == EINTR);
    err = errno;
    works = got == IO_ALIGN && !goes_through_cache(f, fd, page);
    free(page);
    if (got < 0)
        why_not(f, "a direct read failed: %s", strerror(err));
    else if (got < IO_ALIGN)
        why_not(f, "a direct read gave %zd of %d bytes", got, IO_ALIGN);
    else if (!works)
        why_not(f, "the file system reads through the page cache all the same (is it compressed?)");
    return works;
}

/* Linux and FreeBSD say it at open. macOS says it later; UNTESTED there. */
#ifdef O_DIRECT
enum { DIRECT = O_DIRECT };
#else
enum { DIRECT = 0 };
#endif

static bool pass_cache_by(struct file *f, int fd)
{
#if defined(O_DIRECT)
    (void)f, (void)fd;
    return true;
#elif defined(F_NOCACHE)
    if (fcntl(fd, F_NOCACHE, 1) != -1)
        return true;
    why_not(f, "F_NOCACHE: %s", strerror(errno));
    return false;
#else
    (void)fd;
    why_not(f, "this system has no O_DIRECT");
    return false;
#endif
}

/* A direct descriptor of the file that f->buffered is, or -1 with the reason in f->why. */
static int open_direct(struct file *f, int dirfd, const char *name, const struct stat *st)
{
    struct stat now;
    int fd;

    if (f->bytes < IO_ALIGN) {
        why_not(f, "the file has %" PRIu64 " bytes, less than %d", f->bytes, IO_ALIGN);
        return -1;
    }
    fd = open_above_stdio(dirfd, name, DIRECT);
    if (fd < 0) {
        why_not(f, "open with O_DIRECT: %s", strerror(errno));
        return -1;
    }
    if (fstat(fd, &now) || now.st_dev != st->st_dev || now.st_ino != st->st_ino)
        why_not(f, "the file was replaced while it was being opened");
    else if (pass_cache_by(f, fd) && alignment_fits(f, fd) && direct_read_works(f, fd))
        return fd;
    close(fd);
    return -1;
}

int file_open(struct file *out, int dirfd, const char *name, bool want_direct, struct err *e)
{
    struct file f = {.direct = false};
    struct stat st;
    int direct = -1;

    snprintf(f.name, sizeof(f.name), "%s", name);
    /* O_NONBLOCK, so that a FIFO in the place of a file does not hang us; taken off again because
     * it also tells io_uring to give up where it would have to wait. */
    f.buffered = open_above_stdio(dirfd, name, O_NONBLOCK);
    if (f.buffered < 0)
        return err_open(e, errno, dirfd, name);
    if (fstat(f.buffered, &st) || fcntl(f.buffered, F_SETFL, O_RDONLY) < 0) {
        err_sys(e, errno, "%s", name);
        close(f.buffered);
        return e->code;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f.buffered);
        return err_set(e, ERR_IO, "%s: not a regular file", name);
    }
    f.bytes = (uint64_t)st.st_size;
    if (want_direct)
        direct = open_direct(&f, dirfd, name, &st);
    else
        why_not(&f, "not asked for");
    f.direct = direct >= 0;
    f.fd = f.direct ? direct : f.buffered;
    *out = f;
    return 0;
}

void file_close(struct file *f)
{
    if (f->buffered > 0 && f->buffered != f->fd)
        close(f->buffered);
    if (f->fd > 0)
        close(f->fd);
    memset(f, 0, sizeof(*f));
}

int file_status(int errnum)
{
    return errnum == ENODATA ? -EIO : -errnum;
}

bool file_try_again(unsigned *tries)
{
    unsigned doublings = *tries < PAUSE_DOUBLINGS ? *tries : PAUSE_DOUBLINGS;
    struct timespec pause = {.tv_nsec = 1000L << doublings};

    nanosleep(&pause, NULL);
    *tries += *tries < FILE_TRIES_MAX;
    return *tries < FILE_TRIES_MAX;
}

/* Bytes read, less than n only at the end of the file, or a status. unit: what a short count must
 * be a multiple of to go on from; a direct read stops elsewhere only at the end. */
static int64_t read_to_end(int fd, void *dst, size_t n, uint64_t offset, unsigned unit)
{
    size_t done = 0;
    unsigned tries = 0;

    while (done < n) {
        size_t want = n - done < READ_MAX ? n - done : READ_MAX;
        ssize_t got = pread(fd, (char *)dst + done, want, (off_t)(offset + done));

        if (got < 0) {
            int errnum = errno;

            if (errnum == EINTR || (errnum == EAGAIN && file_try_again(&tries)))
                continue;
            return file_status(errnum);
        }
        tries = 0;
        done += (size_t)got;
        if (!got || done % unit)
            break;
    }
    return (int64_t)done;
}

int file_read(const struct file *f, void *dst, size_t n, uint64_t offset, struct err *e)
{
    int64_t got = read_to_end(f->buffered, dst, n, offset, 1);

    if (got < 0)
        return err_sys(e, (int)-got, "%s: %zu bytes at %" PRIu64, f->name, n, offset);
    if ((size_t)got < n)
        return err_set(e, ERR_IO,
                       "%s: %zu bytes at %" PRIu64 ": only %" PRId64 " came (the file had %" PRIu64
                       " bytes when it was opened)",
                       f->name, n, offset, got, f->bytes);
    return 0;
}

int file_pread(const struct file *f, void *dst, size_t n, uint64_t offset)
{
    int64_t got = read_to_end(f->fd, dst, n, offset, f->direct ? IO_ALIGN : 1);

    if (got < 0)
        return (int)got;
    return (size_t)got < n ? -ENODATA : 0;
}
