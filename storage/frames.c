#include "storage/frames.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "storage/extent.h"

int frames_open(struct frames *out, struct mem *mem, size_t frame_bytes, unsigned n, struct err *e)
{
    void *base;

    if (!n || !frame_bytes || frame_bytes % IO_ALIGN || frame_bytes > SIZE_MAX / n)
        return err_set(e, ERR_ARG, "%u frames of %zu bytes: need at least one, of whole %d bytes",
                       n, frame_bytes, IO_ALIGN);
    if (mem_map(mem, MEM_POOL, frame_bytes * n, true, &base, e))
        return err_wrap(e, "%u frames of %zu bytes", n, frame_bytes);
    *out = (struct frames){.mem = mem, .base = base, .frame_bytes = frame_bytes, .n = n};
    return 0;
}

void frames_close(struct frames *f)
{
    if (f->base)
        mem_unmap(f->mem, MEM_POOL, f->base, f->frame_bytes * f->n);
    memset(f, 0, sizeof(*f));
}

void frames_give_back(struct frames *f, unsigned count)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t keep = f->frame_bytes * (f->n - count), had = f->frame_bytes * f->n;

    assert(count < f->n);
    keep = align_up(keep, page); /* pages may be larger than IO_ALIGN */
    if (keep < had)
        mem_unmap(f->mem, MEM_POOL, f->base + keep, had - keep);
    f->n -= count;
}

size_t frames_huge_bytes(const struct frames *f)
{
    uintptr_t base = (uintptr_t)f->base, from, to;
    size_t all = f->frame_bytes * f->n, sum = 0, kib;
    FILE *maps = fopen("/proc/self/smaps", "re");
    bool ours = false;
    char line[256];

    while (maps && fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            ours = from < base + all && to > base;
        else if (ours && (sscanf(line, "AnonHugePages: %zu kB", &kib) == 1 ||
                          sscanf(line, "Private_Hugetlb: %zu kB", &kib) == 1))
            sum += kib << 10;
    }
    if (maps)
        fclose(maps);
    return sum < all ? sum : all;
}
