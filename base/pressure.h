/* base/pressure.h - is memory short? PSI and memory.high as a level that is polled; calls nobody.
 *
 * Short means that tasks stalled on memory, all at once, for more than 1 % of the last ten seconds
 * ("full avg10" of memory.pressure), or that the cgroup ran into its memory.high since the last
 * look. The cgroup's own files count where there are any, the machine's otherwise. Where neither
 * exists, memory is never short.
 */
#ifndef BASE_PRESSURE_H
#define BASE_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

enum { PRESSURE_PATH = 1024 };

struct pressure {
    char stall[PRESSURE_PATH];  /* memory.pressure, or /proc/pressure/memory; "" = none */
    char events[PRESSURE_PATH]; /* memory.events; "" = none */
    uint64_t high;              /* its count of "high" at the last look */
    uint64_t next_ns;           /* no look before */
};

/* root replaces "/" in tests; NULL = "/". Never fails. */
void pressure_open(struct pressure *p, const char *root);

/* Is memory short? Looks at most every two seconds of the caller's clock; false in between, so that
 * what is given back can show before more is. Files that cannot be read say nothing. */
bool pressure_look(struct pressure *p, uint64_t now_ns);

#endif
