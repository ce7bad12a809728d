/* base/cpu_place.h - how many threads compute, and on which CPUs.
 *
 * One thread per physical core, of the fast ones where cores differ; fewer threads than cores stay
 * together below one last-level cache, or on one NUMA node, or else are spread evenly over nodes.
 * The CPUs of a core are one place: which of them a thread runs on is the kernel's choice.
 * No result depends on it.
 */
#ifndef BASE_CPU_PLACE_H
#define BASE_CPU_PLACE_H

#include "base/topology.h"

struct cpu_place {
    unsigned n_threads; /* 1...THREADS_MAX */
    enum {
        PLACE_ANYWHERE, /* where the process may run; cpus is empty */
        PLACE_AMONG,    /* each thread on any of cpus */
        PLACE_EACH,     /* thread i on entry i mod n of cpus */
    } how;
    bool spin; /* every thread has a CPU to itself, so that waiting for the others may be busy */
    struct cpu_list cpus;
    char text[200]; /* "4 threads on CPUs 0-3 (one L3 of node 0), SMT siblings left idle" */
};

struct cpu_place_wish {
    unsigned threads;              /* 0: choose */
    unsigned quota_percent;        /* of one CPU; 0: none */
    const struct cpu_list *listed; /* NULL: choose */
    const struct cpu_list *allowed;
    unsigned here; /* the CPU that the caller runs on: of equal places, that one */
    const struct topology *topology; /* NULL: not known */
};

/* threads above THREADS_MAX become that. Needs no machine. */
void cpu_place_choose(struct cpu_place *out, const struct cpu_place_wish *w);

/* The same for the calling thread's mask, the quota of its cgroup and this machine. threads 0,
 * listed NULL: choose. Where threads cannot be bound and no list is given, they are not. */
void cpu_place_here(struct cpu_place *out, unsigned threads, const struct cpu_list *listed);

#endif
