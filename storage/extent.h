/* storage/extent.h - a place on disk: the address of a page, and its identity. */
#ifndef STORAGE_EXTENT_H
#define STORAGE_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

enum { IO_ALIGN = 4096 };

struct extent {
    uint64_t offset; /* bytes from the start of the file; a multiple of IO_ALIGN */
    uint32_t length; /* bytes; a multiple of IO_ALIGN, not 0 */
    uint32_t file;   /* index into the files the engine was opened with */
};

static inline bool extent_equal(struct extent a, struct extent b)
{
    return a.offset == b.offset && a.file == b.file && a.length == b.length;
}

#endif
