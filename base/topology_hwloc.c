/* topology_hwloc.c - the reader that asks hwloc, which knows more systems than Linux. */
#include <hwloc.h>

#include "base/topology.h"

static uint16_t first_of(hwloc_const_bitmap_t set)
{
    int i = set ? hwloc_bitmap_first(set) : -1;

    return i < 0 || i >= TOPOLOGY_UNKNOWN ? TOPOLOGY_UNKNOWN : (uint16_t)i;
}

/* hwloc numbers kinds from the slowest; where it cannot compare them, all are alike. */
static uint16_t kind_of(hwloc_topology_t h, hwloc_const_bitmap_t cpu, int n_kinds)
{
    int kind = n_kinds > 1 ? hwloc_cpukinds_get_by_cpuset(h, cpu, 0) : -1, efficiency = -1;

    if (kind < 0 || hwloc_cpukinds_get_info(h, (unsigned)kind, NULL, &efficiency, NULL, NULL, 0) ||
        efficiency < 0)
        return 0;
    return (uint16_t)(n_kinds - 1 - kind);
}

static bool take(struct topology *out, hwloc_topology_t h)
{
    int n_kinds = hwloc_cpukinds_get_nr(h, 0);
    hwloc_obj_t pu = NULL;

    out->n = 0;
    while ((pu = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_PU, pu))) {
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(h, HWLOC_OBJ_CORE, pu);
        hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(h, HWLOC_OBJ_L3CACHE, pu);
        struct topology_cpu c = {.cpu = first_of(pu->cpuset),
                                 .core = first_of(core ? core->cpuset : pu->cpuset),
                                 .cache = first_of(cache ? cache->cpuset : NULL),
                                 .node = first_of(pu->nodeset),
                                 .kind = kind_of(h, pu->cpuset, n_kinds)};
        unsigned i = out->n;

        if (c.cpu >= CPU_LIST_MAX)
            return false;
        for (; i > 0 && out->cpu[i - 1].cpu > c.cpu; i--) /* hwloc's order is the tree's */
            out->cpu[i] = out->cpu[i - 1];
        out->cpu[i] = c;
        out->n++;
    }
    return out->n > 0;
}

bool topology_hwloc(struct topology *out, const char *synthetic)
{
    hwloc_topology_t h;
    bool ok;

    if (hwloc_topology_init(&h))
        return false;
    ok = !hwloc_topology_set_io_types_filter(h, HWLOC_TYPE_FILTER_KEEP_NONE) &&
         !hwloc_topology_set_flags(h, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) &&
         (!synthetic || !hwloc_topology_set_synthetic(h, synthetic)) && !hwloc_topology_load(h) &&
         take(out, h);
    hwloc_topology_destroy(h);
    return ok;
}
