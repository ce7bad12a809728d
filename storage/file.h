/* storage/file.h - a file opened for reading, direct if a real read proves that it works.
 *
 * Whether reads bypass the page cache is decided once, at open, by reading: O_DIRECT may be
 * accepted by open and refused by read (overlay, FUSE), or want more than IO_ALIGN. The answer is
 * latched in the file together with the reason for a step down. Descriptors stay open, so a file
 * renamed over ours does not change what we read; one truncated under us gives short reads, which
 * are errors.
 */
#ifndef STORAGE_FILE_H
#define STORAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct file {
    int fd;         /* what engines read from: direct or buffered, see `direct` */
    int buffered;   /* a buffered descriptor of the same file, for odd sizes and offsets */
    uint64_t bytes; /* size at open */
    bool direct;
    char name[256]; /* for messages */
    char why[128];  /* why not direct ("not asked for" too); "" when direct */
};

/* Open the regular file `name` (symbolic links are followed) below dirfd. want_direct: try O_DIRECT
 * with a read of up to IO_ALIGN bytes at offset 0; a file of less than IO_ALIGN bytes is buffered.
 * ERR_IO: cannot open, not a regular file, cannot read. Never fails because direct does not work.
 */
int file_open(struct file *out, int dirfd, const char *name, bool want_direct, struct err *e);
void file_close(struct file *f); /* null-safe on a zeroed struct (fd 0 and buffered 0 unused) */

/* Read exactly n bytes at any offset through the buffered descriptor, whatever EINTR and short
 * counts come between. ERR_IO: the system's error, or the end of the file (which names both
 * sizes). */
int file_read(const struct file *f, void *dst, size_t n, uint64_t offset, struct err *e);

/* As file_read, but through `fd` and without words, for engines: 0 or a status as in struct
 * io_read, -ENODATA where the file ends before offset + n. With a direct file dst, n and offset are
 * multiples of IO_ALIGN. */
int file_pread(const struct file *f, void *dst, size_t n, uint64_t offset);

/* The status of a read that the system failed with errnum: -errnum, but for the system's own
 * ENODATA. That is how Linux reports a bad place on a disk, and -EIO here, because -ENODATA means
 * that the file ends. */
int file_status(int errnum);

/* The system has failed in a way that may pass (EAGAIN, no memory): wait before the next try, first
 * a microsecond, later 8 milliseconds. *tries counts from 0 to FILE_TRIES_MAX, and there, after a
 * second, it is false: give up. */
enum { FILE_TRIES_MAX = 136 };
bool file_try_again(unsigned *tries);

#endif
