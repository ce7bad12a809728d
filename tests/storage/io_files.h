/* tests/storage/io_files.h - real files to read, an arena to read them into. */
#ifndef TESTS_STORAGE_IO_FILES_H
#define TESTS_STORAGE_IO_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/file.h"
#include "storage/io.h"
#include "tests/support/io_script.h"

enum {
    N_FILES = 3, /* direct where possible, of 4 and 1 MiB; and one always buffered */
    EXTENT_MAX = 64 * IO_ALIGN,
    DEPTH = 8,
    ARENA_BYTES = DEPTH * EXTENT_MAX,
};

static const size_t file_bytes[N_FILES] = {4 << 20, 1 << 20, 1 << 20};

static char dir[256];
static int dirfd;
static struct file file[N_FILES];
static const struct file *files[N_FILES];
static char *arena;

static inline struct io_config config(unsigned depth)
{
    return (struct io_config){.files = files,
                              .n_files = N_FILES,
                              .depth = depth,
                              .arena = arena,
                              .arena_bytes = ARENA_BYTES};
}

static inline void write_file(const char *name, uint32_t number, size_t bytes)
{
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct extent at = {.file = number, .length = (uint32_t)bytes};
    char *content = malloc(bytes);

    assert_non_null(content);
    io_script_fill(content, at);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, bytes), (ssize_t)bytes);
    assert_int_equal(fsync(fd), 0);
    close(fd);
    free(content);
}

static inline int make_files(void)
{
    const char *tmp = getenv("TMPDIR");
    char name[16];
    struct err e;

    snprintf(dir, sizeof(dir), "%s/waste-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (unsigned i = 0; i < N_FILES; i++) {
        snprintf(name, sizeof(name), "file%u", i);
        write_file(name, i, file_bytes[i]);
        if (file_open(&file[i], dirfd, name, i < 2, &e))
            return -1;
        files[i] = &file[i];
    }
    arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return arena == MAP_FAILED ? -1 : 0;
}

static inline int remove_files(void)
{
    static const char *const names[] = {"file0", "file1", "file2", "cut"};

    munmap(arena, ARENA_BYTES);
    for (unsigned i = 0; i < N_FILES; i++)
        file_close(&file[i]);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlinkat(dirfd, names[i], 0);
    close(dirfd);
    return rmdir(dir);
}

/* Reads of `pages` pages each, one after the other through file 0. */
static inline void prepare(struct io_read *reads, struct io_read **start, unsigned n,
                           unsigned pages)
{
    for (unsigned i = 0; i < n; i++) {
        struct extent at = {.offset = (uint64_t)i * pages * IO_ALIGN, .length = pages * IO_ALIGN};

        reads[i] = (struct io_read){.at = at, .dst = arena + (size_t)i * EXTENT_MAX};
        memset(reads[i].dst, 0, at.length);
        start[i] = &reads[i];
    }
}

/* Why this engine does not open here; "": it does. */
static inline const char *why_not(const char *name)
{
    static struct err e;
    struct io_config cfg = config(DEPTH);
    struct io *io;

    if (io_open(&io, name, &cfg, NULL, &e))
        return e.text;
    io->ops->close(io);
    return "";
}

#endif
