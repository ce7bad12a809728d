/* tests/support/pread_fault.h - pread as POSIX allows it and disks rarely do it: interrupted,
 * giving less than was asked, or failing. Link with -Wl,--wrap=pread,--wrap=pread64. */
#ifndef SUPPORT_PREAD_FAULT_H
#define SUPPORT_PREAD_FAULT_H

#include <stddef.h>

/* From now on every other pread of our objects is interrupted, and the rest give at most `most`
 * bytes; with most = 0 all go through untouched. */
void pread_fault_set(size_t most);

/* Calls that were interrupted or cut since the last set. */
unsigned pread_fault_count(void);

/* From now on every pread of our objects fails with errnum; with 0 none does. */
void pread_fault_fail(int errnum);

#endif
