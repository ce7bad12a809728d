/* topology.c - the reader of sysfs, and the choice between readers. */
#include "base/topology.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT = 4096, CACHES = 10 };

/* The first line of a file below root. false: no such file, an empty one, or a longer line. */
static bool line_of(char text[TEXT], const char *root, const char *format, va_list args)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s", root);
    FILE *f;
    bool ok;

    if (n < 0 || n >= (int)sizeof(path) ||
        vsnprintf(path + n, sizeof(path) - (size_t)n, format, args) >= (int)sizeof(path) - n)
        return false;
    f = fopen(path, "re");
    if (!f)
        return false;
    ok = fgets(text, TEXT, f) != NULL;
    fclose(f);
    return ok && text[strcspn(text, "\n")] == '\n' && (text[strcspn(text, "\n")] = '\0', *text);
}

__attribute__((format(printf, 3, 4))) static bool list_at(struct cpu_list *out, const char *root,
                                                          const char *format, ...)
{
    char text[TEXT];
    struct err ignored;
    va_list args;
    bool ok;

    va_start(args, format);
    ok = line_of(text, root, format, args);
    va_end(args);
    return ok && !cpu_list_parse(out, text, &ignored);
}

__attribute__((format(printf, 2, 3))) static unsigned number_at(const char *root,
                                                                const char *format, ...)
{
    char text[TEXT];
    unsigned v = 0;
    va_list args;

    va_start(args, format);
    if (!line_of(text, root, format, args) || sscanf(text, "%9u", &v) != 1)
        v = 0;
    va_end(args);
    return v;
}

/* Siblings that are offline are not in these lists: a core has the name of its first CPU online. */
static uint16_t core_of(const char *root, unsigned cpu)
{
    static const char at[] = "/sys/devices/system/cpu/cpu%u/topology/%s";
    struct cpu_list with;

    if (list_at(&with, root, at, cpu, "core_cpus_list") ||
        list_at(&with, root, at, cpu, "thread_siblings_list"))
        return with.cpu[0];
    return (uint16_t)cpu;
}

static uint16_t cache_of(const char *root, unsigned cpu)
{
    static const char at[] = "/sys/devices/system/cpu/cpu%u/cache/index%u/%s";
    struct cpu_list with;

    for (unsigned i = 0; i < CACHES; i++)
        if (number_at(root, at, cpu, i, "level") == 3 &&
            list_at(&with, root, at, cpu, i, "shared_cpu_list"))
            return with.cpu[0];
    return TOPOLOGY_UNKNOWN;
}

static struct topology_cpu *find(struct topology *t, unsigned cpu)
{
    for (unsigned i = 0; i < t->n; i++)
        if (t->cpu[i].cpu == cpu)
            return &t->cpu[i];
    return NULL;
}

static void nodes(struct topology *t, const char *root)
{
    struct topology_cpu *c;
    struct cpu_list of;
    unsigned node;
    char path[PATH_MAX];
    DIR *dir;

    snprintf(path, sizeof(path), "%s/sys/devices/system/node", root);
    dir = opendir(path);
    if (!dir)
        return;
    for (const struct dirent *d; (d = readdir(dir));) {
        if (sscanf(d->d_name, "node%5u", &node) != 1 || node >= TOPOLOGY_UNKNOWN ||
            !list_at(&of, root, "/sys/devices/system/node/node%u/cpulist", node))
            continue; /* a node of memory alone has an empty list */
        for (unsigned i = 0; i < of.n; i++)
            if ((c = find(t, of.cpu[i])))
                c->node = (uint16_t)node;
    }
    closedir(dir);
}

/* Arm tells each CPU's share of the largest one's speed; Intel lists the small ones. */
static void kinds(struct topology *t, const char *root)
{
    struct topology_cpu *c;
    struct cpu_list small;
    unsigned most = 0, capacity[CPU_LIST_MAX];

    for (unsigned i = 0; i < t->n; i++) {
        capacity[i] = number_at(root, "/sys/devices/system/cpu/cpu%u/cpu_capacity", t->cpu[i].cpu);
        most = capacity[i] > most ? capacity[i] : most;
    }
    for (unsigned i = 0; i < t->n; i++)
        t->cpu[i].kind = capacity[i] && capacity[i] < most - most / 8;
    if (list_at(&small, root, "/sys/devices/cpu_atom/cpus"))
        for (unsigned i = 0; i < small.n; i++)
            if ((c = find(t, small.cpu[i])))
                c->kind = 1;
}

bool topology_sysfs(struct topology *out, const char *root)
{
    struct cpu_list online;

    root = root && strcmp(root, "/") != 0 ? root : "";
    if (!list_at(&online, root, "/sys/devices/system/cpu/online"))
        return false;
    out->n = online.n;
    for (unsigned i = 0; i < online.n; i++)
        out->cpu[i] = (struct topology_cpu){.cpu = online.cpu[i],
                                            .core = core_of(root, online.cpu[i]),
                                            .cache = cache_of(root, online.cpu[i]),
                                            .node = TOPOLOGY_UNKNOWN};
    nodes(out, root);
    kinds(out, root);
    return true;
}

#ifndef HAVE_HWLOC
bool topology_hwloc(struct topology *out, const char *synthetic)
{
    (void)out, (void)synthetic;
    return false;
}
#endif

bool topology_read(struct topology *out, const char *root)
{
    if (root && *root && strcmp(root, "/") != 0)
        return topology_sysfs(out, root);
    return topology_hwloc(out, NULL) || topology_sysfs(out, NULL);
}
