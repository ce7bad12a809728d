/* storage/page_index.h - which frame holds the page of an extent.
 *
 * A hash table that never grows: nothing is allocated after init.
 */
#ifndef STORAGE_PAGE_INDEX_H
#define STORAGE_PAGE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/extent.h"

enum { NO_FRAME = UINT32_MAX };

struct page_index {
    struct page_slot *slot; /* [mask + 1], open addressing, linear; at most half of them taken */
    uint32_t mask;
};

/* For at most n_max >= 1 pages at a time. False: no memory. */
bool page_index_init(struct page_index *x, uint32_t n_max);
void page_index_release(struct page_index *x); /* null-safe on a zeroed struct */

uint32_t page_index_find(const struct page_index *x, struct extent at);      /* or NO_FRAME */
void page_index_add(struct page_index *x, struct extent at, uint32_t frame); /* not there yet */
void page_index_remove(struct page_index *x, struct extent at);              /* is there */

#endif
