/* tests/support/alloc_fault.h - the n-th allocation fails. Link with
 *   -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign,--wrap=aligned_alloc,
 *       --wrap=mmap,--wrap=mmap64
 * so that calls from our objects pass here; libraries' own allocations do not.
 *
 *     for (unsigned nth = 1; failed; nth++) {
 *         alloc_fault_arm(nth);
 *         rc = thing_open(&thing, &e);
 *         failed = alloc_fault_disarm();      false: there are fewer than nth, the sweep is over
 *         ...
 */
#ifndef SUPPORT_ALLOC_FAULT_H
#define SUPPORT_ALLOC_FAULT_H

#include <stdbool.h>

void alloc_fault_arm(unsigned nth); /* counted from now, over all threads */
bool alloc_fault_disarm(void);      /* whether it happened */
unsigned alloc_fault_seen(void);    /* allocations since arm, the failed one included */

#endif
