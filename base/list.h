/* base/list.h - arrays that grow. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Room for n elements of `size` bytes in the array whose pointer is at `list` (a T **; NULL at
 * first), which has room for *cap: more than twice what was needed, so that adding one by one takes
 * linear time. false: no memory, or no size_t for it; *list and *cap are as they were. */
static inline bool list_room(void *list, size_t *cap, size_t n, size_t size)
{
    size_t more = 2 * n + 16;
    void *had, *p;

    if (n <= *cap)
        return true;
    if (n > SIZE_MAX / 4 || more > SIZE_MAX / size)
        return false;
    memcpy(&had, list, sizeof(had));
    p = realloc(had, more * size);
    if (!p)
        return false;
    memcpy(list, &p, sizeof(p));
    *cap = more;
    return true; /* cppcheck-suppress memleak ; memcpy gave it to *list */
}

#endif
