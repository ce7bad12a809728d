#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_BYTES = 2 << 20 };

/* The counters are written by one thread and read by any: whole values, no order between them. */
static void store(uint64_t *counter, uint64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void mem_init(struct mem *m, uint64_t limit)
{
    memset(m, 0, sizeof(*m));
    m->limit = limit;
}

int mem_charge(struct mem *m, enum mem_tag tag, uint64_t bytes, struct err *e)
{
    uint64_t limit = m->limit ? m->limit : UINT64_MAX;

    if (bytes > UINT64_MAX - m->used_total || m->used_total + bytes > limit)
        return err_set(e, ERR_BUDGET,
                       "%" PRIu64 " bytes for %s: %" PRIu64 " of %" PRIu64 " bytes are taken",
                       bytes, mem_tag_name(tag), m->used_total, limit);
    store(&m->used[tag], m->used[tag] + bytes);
    store(&m->used_total, m->used_total + bytes);
    if (m->used_total > m->peak_total)
        store(&m->peak_total, m->used_total);
    return 0;
}

void mem_uncharge(struct mem *m, enum mem_tag tag, uint64_t bytes)
{
    store(&m->used[tag], m->used[tag] - bytes);
    store(&m->used_total, m->used_total - bytes);
}

/* A mapping that begins on a huge page: map one more, cut off what sticks out. Older kernels place
 * mappings on small pages, and then neither end of an arena could be huge. */
static void *map_at_huge(size_t bytes)
{
    size_t room = bytes + HUGE_BYTES, head;
    uint8_t *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return p;
    head = align_up((uintptr_t)p, HUGE_BYTES) - (uintptr_t)p;
    if (head)
        munmap(p, head);
    munmap(p + head + bytes, room - head - bytes);
#ifdef MADV_HUGEPAGE
    madvise(p + head, bytes, MADV_HUGEPAGE);
#endif
    return p + head;
}

int mem_map(struct mem *m, enum mem_tag tag, size_t bytes, bool huge, void **out, struct err *e)
{
    size_t size;
    void *p;

    if (!bytes || bytes > SIZE_MAX - HUGE_BYTES - page_bytes())
        return err_set(e, ERR_ARG, "a mapping of %zu bytes for %s", bytes, mem_tag_name(tag));
    size = align_up(bytes, page_bytes());
    if (mem_charge(m, tag, size, e))
        return e->code;
    if (huge && size >= HUGE_BYTES)
        p = map_at_huge(size);
    else
        p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        mem_uncharge(m, tag, size);
        return err_set(e, ERR_NOMEM, "%zu bytes for %s: %s", size, mem_tag_name(tag),
                       strerror(errno));
    }
    *out = p;
    return 0;
}

void mem_unmap(struct mem *m, enum mem_tag tag, void *p, size_t bytes)
{
    size_t size = align_up(bytes, page_bytes());

    if (!p)
        return;
    munmap(p, size);
    mem_uncharge(m, tag, size);
}

const char *mem_tag_name(enum mem_tag tag)
{
    switch (tag) {
    case MEM_TRUNK:
        return "trunk";
    case MEM_STATE:
        return "state";
    case MEM_SCRATCH:
        return "scratch";
    case MEM_POOL:
        return "pool";
    case MEM_OTHER:
    case MEM_TAGS:
        break;
    }
    return "other";
}
