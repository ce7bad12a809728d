/* expertfs/out_dir.h - a directory that files appear in whole or not at all.
 *
 * A file is written as NAME.tmp, synced and renamed. What is written goes to the disk at once and
 * does not stay in the page cache. A full disk is told with what was needed, what is free, and
 * where. Any thread may write; names are shorter than OUT_NAME_BYTES.
 */
#ifndef EXPERTFS_OUT_DIR_H
#define EXPERTFS_OUT_DIR_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { OUT_NAME_BYTES = 252 };  /* with ".tmp" and its end, what a file system takes */
enum { OUT_PRIVATE = 1 << 30 }; /* among flags: for the owner's eyes only */

struct out_dir {
    const char *path; /* for messages; borrowed */
    int fd;
};

/* The directory that `path` names a file in, open; *name: that file, in path. */
int out_parent_open(struct out_dir *d, const char *path, const char **name, struct err *e);
void out_parent_close(struct out_dir *d);
/* Does a regular file begin with these bytes, is it empty, or not there? ERR_ARG otherwise: what is
 * there is something else (`kind` says what it is not) and is not to be replaced. */
int out_replaceable(const struct out_dir *d, const char *name, const char *magic, size_t n,
                    const char *kind, struct err *e);

/* A small file, whole, replaced atomically. */
int out_file(const struct out_dir *d, const char *name, const void *bytes, uint64_t n,
             struct err *e);

/* A large one in steps. flags: of open, beside those for writing. */
int out_create(const struct out_dir *d, const char *name, int flags, int *fd, struct err *e);
/* It was created with O_DIRECT, which the file system took and does not mean: the same file
 * without, under the same descriptor. Clearing the flag is not enough where a process behind FUSE
 * has it. */
int out_reopen(const struct out_dir *d, int fd, const char *name, struct err *e);
/* All the room at once: a full disk shows before hours of work, and the file lies in few pieces.
 * Not every file system can. */
int out_reserve(const struct out_dir *d, int fd, uint64_t bytes, const char *name, struct err *e);
/* Leaves the reason in errno as well, for who can do something about it. */
int out_write(const struct out_dir *d, int fd, const void *bytes, uint64_t n, uint64_t at,
              const char *name, struct err *e);
/* Begin to write these bytes out, so that not all of a file is still to come at its end. */
void out_start_writeback(int fd, uint64_t at, uint64_t n);
/* Wait until they are on the disk, and let the page cache forget them. */
int out_settle(const struct out_dir *d, int fd, uint64_t at, uint64_t n, const char *name,
               struct err *e);
/* Sync, close and rename; fd is closed whatever happens. */
int out_publish(const struct out_dir *d, const char *name, int fd, struct err *e);
/* The same without waiting for the disk: after a loss of power the file may be there and empty. */
int out_publish_unsynced(const struct out_dir *d, const char *name, int fd, struct err *e);

/* Names that were added to the directory, or taken from it, last from here on. Where a file system
 * cannot do that, nothing is done. */
int out_sync(const struct out_dir *d, struct err *e);
/* So does its own name, which mkdir alone does not promise: before what it holds becomes the only
 * copy. Nothing is done where the parent cannot be read. */
int out_sync_name(const struct out_dir *d, struct err *e);

uint64_t out_bytes(const struct out_dir *d, const char *name); /* 0: no regular file is there */
void out_remove(const struct out_dir *d, const char *name);
void out_remove_temporary(const struct out_dir *d, const char *name);

/* ERR_IO "need 19.2 GiB on /data, 12.0 GiB free" when the directory's volume has less. */
int out_check_space(const struct out_dir *d, uint64_t need, struct err *e);

#endif
