/* base/topology.h - which CPUs share what: cores, last-level caches, NUMA nodes, kinds of core.
 *
 * From hwloc where the build has it, else from sysfs, which says the same on Linux. A description
 * only; base/cpu_place.h draws conclusions.
 */
#ifndef BASE_TOPOLOGY_H
#define BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/machine.h"

enum { TOPOLOGY_UNKNOWN = 0xffff };

struct topology_cpu { /* a core or cache is named by its first CPU; TOPOLOGY_UNKNOWN: not said */
    uint16_t cpu, core, cache, node;
    uint16_t kind; /* of core: 0 = the fastest */
};

struct topology {
    unsigned n;
    struct topology_cpu cpu[CPU_LIST_MAX]; /* online ones, ascending */
};

/* This machine's; with a root that replaces "/", what sysfs says there. false: nothing is said, or
 * there are more CPUs than a cpu_list names. */
bool topology_read(struct topology *out, const char *root);

bool topology_sysfs(struct topology *out, const char *root);

/* hwloc's view of this machine (NULL), or of one it makes up ("pack:2 l3:1 core:4 pu:2"). false:
 * hwloc says nothing, or this build has none. */
bool topology_hwloc(struct topology *out, const char *synthetic);

#endif
