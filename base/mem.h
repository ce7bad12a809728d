/* base/mem.h - aligned and huge mappings, counted by tag against a budget.
 *
 * Everything large is taken here, so that the plan can be compared with what was taken. Mappings
 * are page-aligned and zeroed. One thread takes and gives back; readers of the counters may be
 * any.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum mem_tag { MEM_TRUNK, MEM_STATE, MEM_SCRATCH, MEM_POOL, MEM_OTHER, MEM_TAGS };

struct mem {        /* an account; init with mem_init, owned by one context */
    uint64_t limit; /* bytes; 0 = no limit */
    uint64_t used[MEM_TAGS];
    uint64_t used_total, peak_total;
};

void mem_init(struct mem *m, uint64_t limit);

/* Map bytes (rounded up to pages), zeroed. huge asks for transparent huge pages; it is advice.
 * ERR_BUDGET: the account would exceed its limit. ERR_NOMEM: the system refused. */
int mem_map(struct mem *m, enum mem_tag tag, size_t bytes, bool huge, void **out, struct err *e);
void mem_unmap(struct mem *m, enum mem_tag tag, void *p, size_t bytes);

/* Count what was taken elsewhere (a library's tables): same limit, same errors. */
int mem_charge(struct mem *m, enum mem_tag tag, uint64_t bytes, struct err *e);
void mem_uncharge(struct mem *m, enum mem_tag tag, uint64_t bytes);

const char *mem_tag_name(enum mem_tag tag);

/* The first multiple of `to` that is not below n. n + to - 1 must fit. */
static inline uint64_t align_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

#endif
