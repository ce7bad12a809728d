/* base/machine.h - what the machine offers: memory under cgroups, cores, thread placement.
 *
 * Capacities, not current free amounts: the same command sizes itself the same way twice.
 */
#ifndef BASE_MACHINE_H
#define BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { CPU_LIST_MAX = 1024, THREADS_MAX = 64 };

/* Bytes of physical RAM; 0 = unknown. */
uint64_t machine_ram(void);

/* min(machine_ram, every finite memory limit of this process's cgroup and of its ancestors):
 * memory.max and memory.high under v2, memory.limit_in_bytes under v1. `what` names the limit that
 * decided ("physical RAM", "/sys/fs/cgroup/x/memory.high"). root replaces "/" in tests; NULL = "/".
 * Never fails: what cannot be read does not limit. */
uint64_t machine_usable_ram(const char *root, char *what, unsigned what_bytes);

/* The directory of this process's cgroup under v2, "/sys/fs/cgroup/x" below root (NULL = "/").
 * false: there is none that we can see, or out is too small. */
bool machine_cgroup(const char *root, char *out, unsigned out_bytes);

/* What cpu.max of this process's cgroup and its ancestors pays for (v1: cpu.cfs_quota_us), in
 * percent of one core, rounded up; 0 = no limit. root as above. */
unsigned machine_quota_percent(const char *root);
/* The same in cores, rounded up: a quota of 1.5 keeps two threads busy for most of their time. */
unsigned machine_quota_cores(const char *root);

/* Cores the calling thread may run on (affinity, then machine_quota_cores); at least 1. */
unsigned machine_cores(void);

struct cpu_list {
    unsigned n;
    uint16_t cpu[CPU_LIST_MAX]; /* ascending, distinct */
};

/* "0-3, 8": items N or A-B, spaces around punctuation, duplicates fold, 0...1023. ERR_ARG for an
 * empty item, a trailing comma, a reversed range, anything else. */
int cpu_list_parse(struct cpu_list *out, const char *text, struct err *e);

/* The CPUs that the calling thread may run on; where that cannot be told, the first so many as are
 * online. At least one. */
void machine_allowed(struct cpu_list *out);

/* The CPU that the calling thread is on, for the moment; ~0u: cannot tell. */
unsigned machine_here(void);

/* Bind the calling thread to one CPU. ERR_ARG: that CPU is not ours; ERR_UNSUPPORTED. */
int machine_bind_thread(unsigned cpu, struct err *e);

/* Let the calling thread run on these CPUs only. ERR_ARG: none of them is ours; ERR_UNSUPPORTED. */
int machine_bind_among(const struct cpu_list *cpus, struct err *e);

/* Whether machine_bind_among would work. The thread stays where it may run now. */
bool machine_can_bind(const struct cpu_list *cpus);

#endif
