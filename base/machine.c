#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/machine.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A path of the file system below root, and a cgroup path below that. */
enum { PATH_BYTES = 2 * PATH_MAX };

/* Values of this size and above mean "no limit": v1 says so with 2^63 less a page. */
#define UNLIMITED (UINT64_C(1) << 60)

uint64_t machine_ram(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

/* The first line of a file, without its newline. false: no such file, or nothing in it. */
static bool read_line(const char *path, char *out, int bytes)
{
    FILE *f = fopen(path, "re");
    bool ok;

    if (!f)
        return false;
    ok = fgets(out, bytes, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok && *out;
}

/* Digits only, at least one, no overflow; *end is what follows them. */
static bool parse_u64(const char *text, const char **end, uint64_t *out)
{
    uint64_t v = 0;
    const char *p = text;

    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');

        if (v > (UINT64_MAX - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *end = p;
    *out = v;
    return p > text;
}

/* A cgroup path as a place below its mount: no empty or "." components, no "/" at the end. A
 * process outside its cgroup namespace sees "..": no such step climbs above the mount, because
 * what lies there is not visible to us. */
static bool cgroup_clean(char *out, size_t bytes, const char *path)
{
    size_t n = 0;

    out[0] = '\0';
    while (*path) {
        size_t len = strcspn(path, "/");

        if (len == 2 && path[0] == '.' && path[1] == '.') {
            while (n > 0 && out[--n] != '/')
                ;
            out[n] = '\0';
        } else if (len > 1 || (len == 1 && path[0] != '.')) {
            if (n + 1 + len >= bytes)
                return false;
            out[n++] = '/';
            memcpy(out + n, path, len);
            n += len;
            out[n] = '\0';
        }
        path += len + (path[len] == '/');
    }
    return true;
}

/* Leave the last component off. false: it was the root. */
static bool cgroup_parent(char *path)
{
    char *slash = strrchr(path, '/');

    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static bool has_controller(const char *list, const char *name)
{
    size_t want = strlen(name);

    for (; *list; list += strcspn(list, ","), list += *list == ',') {
        if (strcspn(list, ",") == want && strncmp(list, name, want) == 0)
            return true;
    }
    return false;
}

/* The cgroup of this process: under v2 (controller NULL), or in the v1 hierarchy that has the
 * controller. false: it is in none, or the path makes no sense. */
static bool cgroup_of_self(const char *root, const char *controller, char *out, size_t bytes)
{
    char path[PATH_BYTES], *line = NULL;
    size_t room = 0;
    bool found = false;
    FILE *f;

    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && getline(&line, &room, f) > 0) { /* hierarchy:controllers:path */
        char *list = strchr(line, ':'), *at = list ? strchr(list + 1, ':') : NULL;

        if (!at || at[1] != '/')
            continue;
        *list++ = '\0';
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        found = controller ? has_controller(list, controller) : !strcmp(line, "0") && !*list;
        if (found && !cgroup_clean(out, bytes, at))
            found = false;
    }
    free(line);
    fclose(f);
    return found;
}

static bool exists(const char *root, const char *path)
{
    char full[PATH_BYTES];

    return snprintf(full, sizeof(full), "%s%s", root, path) < (int)sizeof(full) &&
           access(full, F_OK) == 0;
}

/* Beside v1 hierarchies (hybrid) the v2 tree is one directory down. */
static const char *unified_mount(const char *root)
{
    bool hybrid = exists(root, "/sys/fs/cgroup/unified") &&
                  !exists(root, "/sys/fs/cgroup/cgroup.controllers");

    return hybrid ? "/sys/fs/cgroup/unified" : "/sys/fs/cgroup";
}

bool machine_cgroup(const char *root, char *out, unsigned out_bytes)
{
    char cgroup[PATH_MAX];
    int n;

    if (!root || !strcmp(root, "/"))
        root = "";
    if (strlen(root) >= PATH_MAX || !cgroup_of_self(root, NULL, cgroup, sizeof(cgroup)))
        return false;
    n = snprintf(out, out_bytes, "%s%s%s", root, unified_mount(root), cgroup);
    return n > 0 && (unsigned)n < out_bytes && access(out, F_OK) == 0;
}

/* The smallest limit seen so far. */
struct least {
    const char *root;
    uint64_t bytes;
    char *what; /* may be NULL */
    unsigned what_bytes;
};

static void decided_by(struct least *l, const char *what)
{
    if (l->what && l->what_bytes)
        snprintf(l->what, l->what_bytes, "%s", what);
}

/* Take MOUNT CGROUP / FILE into account. false: there is no such file. */
static bool limit_from(struct least *l, const char *mount, const char *cgroup, const char *file)
{
    char path[PATH_BYTES], text[64];
    size_t skip = strlen(l->root);
    const char *end;
    uint64_t v;

    if (snprintf(path, sizeof(path), "%s%s%s/%s", l->root, mount, cgroup, file) >=
        (int)sizeof(path))
        return false;
    if (!read_line(path, text, sizeof(text)))
        return false;
    if (!parse_u64(text, &end, &v) || *end || v == 0 || v >= UNLIMITED)
        return true; /* "max", or nothing we understand: no limit */
    if (l->bytes == 0 || v < l->bytes) {
        l->bytes = v;
        decided_by(l, path + skip);
    }
    return true;
}

static void limits_v2(struct least *l)
{
    const char *mount = unified_mount(l->root);
    char cgroup[PATH_MAX];

    if (!cgroup_of_self(l->root, NULL, cgroup, sizeof(cgroup)))
        return;
    do {
        limit_from(l, mount, cgroup, "memory.max");
        limit_from(l, mount, cgroup, "memory.high");
    } while (cgroup_parent(cgroup));
}

/* An ancestor limits us only where it counts its descendants. The first directory that exists is
 * our own: a container may see its cgroup as the root of the mount. */
static void limits_v1(struct least *l)
{
    static const char mount[] = "/sys/fs/cgroup/memory";
    char cgroup[PATH_MAX], path[PATH_BYTES], text[8];
    bool own = true;

    if (!cgroup_of_self(l->root, "memory", cgroup, sizeof(cgroup)))
        return;
    do {
        snprintf(path, sizeof(path), "%s%s%s/memory.use_hierarchy", l->root, mount, cgroup);
        if (!own && read_line(path, text, sizeof(text)) && !strcmp(text, "0"))
            continue;
        if (limit_from(l, mount, cgroup, "memory.limit_in_bytes"))
            own = false;
    } while (cgroup_parent(cgroup));
}

uint64_t machine_usable_ram(const char *root, char *what, unsigned what_bytes)
{
    struct least l = {root ? root : "", machine_ram(), what, what_bytes};

    if (!strcmp(l.root, "/"))
        l.root = "";
    decided_by(&l, l.bytes ? "physical RAM" : "unknown");
    if (strlen(l.root) < PATH_MAX) {
        limits_v2(&l);
        limits_v1(&l);
    }
    return l.bytes;
}

/* Percent of a core, rounded up. 0: no limit. */
static unsigned percent(uint64_t quota, uint64_t period)
{
    if (quota == 0 || period == 0 || quota > UINT64_MAX / 100)
        return 0;
    quota = quota * 100 / period + (quota * 100 % period != 0);
    return quota < UINT_MAX ? (unsigned)quota : 0;
}

/* "200000 100000": two cores. 0: no limit, or nothing we understand. */
static unsigned quota_v2(const char *path)
{
    uint64_t quota, period;
    const char *end;
    char text[64];

    if (!read_line(path, text, sizeof(text)) || !parse_u64(text, &end, &quota) || *end != ' ')
        return 0;
    return parse_u64(end + 1, &end, &period) && !*end ? percent(quota, period) : 0;
}

/* Two files; a quota of -1 is none. */
static unsigned quota_v1(const char *quota_path, const char *period_path)
{
    uint64_t quota, period;
    const char *end;
    char text[64];

    if (!read_line(quota_path, text, sizeof(text)) || !parse_u64(text, &end, &quota) || *end)
        return 0;
    if (!read_line(period_path, text, sizeof(text)) || !parse_u64(text, &end, &period) || *end)
        return 0;
    return percent(quota, period);
}

static unsigned tighter(unsigned a, unsigned b)
{
    return !a || (b && b < a) ? b : a;
}

unsigned machine_quota_percent(const char *root)
{
    static const char v1[] = "/sys/fs/cgroup/cpu";
    char cgroup[PATH_MAX], path[PATH_BYTES], second[PATH_BYTES];
    unsigned least = 0;

    if (!root || !strcmp(root, "/"))
        root = "";
    if (strlen(root) >= PATH_MAX)
        return 0;
    if (cgroup_of_self(root, NULL, cgroup, sizeof(cgroup)))
        do {
            if (snprintf(path, sizeof(path), "%s%s%s/cpu.max", root, unified_mount(root), cgroup) <
                (int)sizeof(path))
                least = tighter(least, quota_v2(path));
        } while (cgroup_parent(cgroup));
    if (cgroup_of_self(root, "cpu", cgroup, sizeof(cgroup)))
        do {
            if (snprintf(path, sizeof(path), "%s%s%s/cpu.cfs_quota_us", root, v1, cgroup) <
                    (int)sizeof(path) &&
                snprintf(second, sizeof(second), "%s%s%s/cpu.cfs_period_us", root, v1, cgroup) <
                    (int)sizeof(second))
                least = tighter(least, quota_v1(path, second));
        } while (cgroup_parent(cgroup));
    return least;
}

unsigned machine_quota_cores(const char *root)
{
    unsigned percent_of_one = machine_quota_percent(root);

    return percent_of_one / 100 + (percent_of_one % 100 != 0);
}

#ifdef __linux__

/* This thread's affinity mask, however many CPUs the kernel knows: how many, and those below
 * CPU_LIST_MAX in out. 0: cannot tell. */
static unsigned affinity(struct cpu_list *out)
{
    unsigned all = 0;

    out->n = 0;
    for (unsigned cpus = CPU_LIST_MAX; cpus <= 1u << 16 && !all; cpus *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = CPU_ALLOC(cpus);

        if (!set)
            break;
        if (!sched_getaffinity(0, bytes, set)) {
            all = (unsigned)CPU_COUNT_S(bytes, set);
            for (unsigned cpu = 0; cpu < CPU_LIST_MAX; cpu++)
                if (CPU_ISSET_S(cpu, bytes, set))
                    out->cpu[out->n++] = (uint16_t)cpu;
        } else if (errno != EINVAL) { /* EINVAL: the mask is larger than that */
            cpus = 1u << 16;
        }
        CPU_FREE(set);
    }
    return all;
}

/* 0, or why not, of errno. */
static int bind_to(const struct cpu_list *cpus)
{
    size_t bytes = CPU_ALLOC_SIZE(CPU_LIST_MAX);
    cpu_set_t *set = CPU_ALLOC(CPU_LIST_MAX);
    int rc;

    if (!set)
        return ENOMEM;
    CPU_ZERO_S(bytes, set);
    for (unsigned i = 0; i < cpus->n; i++)
        CPU_SET_S(cpus->cpu[i], bytes, set);
    rc = sched_setaffinity(0, bytes, set) ? errno : 0;
    CPU_FREE(set);
    return rc;
}

int machine_bind_thread(unsigned cpu, struct err *e)
{
    struct cpu_list one = {1, {(uint16_t)cpu}};
    int reason;

    if (cpu >= CPU_LIST_MAX)
        return err_set(e, ERR_ARG, "cpu %u: the highest is %d", cpu, CPU_LIST_MAX - 1);
    reason = bind_to(&one);
    if (reason == EINVAL)
        return err_set(e, ERR_ARG, "cpu %u is not one this process may use", cpu);
    if (reason)
        return err_set(e, ERR_UNSUPPORTED, "cannot bind a thread to cpu %u: %s", cpu,
                       strerror(reason));
    return 0;
}

int machine_bind_among(const struct cpu_list *cpus, struct err *e)
{
    int reason = bind_to(cpus);

    if (reason == EINVAL)
        return err_set(e, ERR_ARG, "none of %u listed cpus is one this process may use", cpus->n);
    if (reason)
        return err_set(e, ERR_UNSUPPORTED, "cannot bind a thread to %u cpus: %s", cpus->n,
                       strerror(reason));
    return 0;
}

unsigned machine_here(void)
{
    int cpu = sched_getcpu();

    return cpu < 0 ? ~0u : (unsigned)cpu;
}

bool machine_can_bind(const struct cpu_list *cpus)
{
    struct cpu_list before;

    return affinity(&before) == before.n && before.n && !bind_to(cpus) && !bind_to(&before);
}

#else

static unsigned affinity(struct cpu_list *out)
{
    out->n = 0;
    return 0;
}

int machine_bind_thread(unsigned cpu, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "cpu %u: this system cannot bind threads", cpu);
}

int machine_bind_among(const struct cpu_list *cpus, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "%u cpus: this system cannot bind threads", cpus->n);
}

unsigned machine_here(void)
{
    return ~0u;
}

bool machine_can_bind(const struct cpu_list *cpus)
{
    (void)cpus;
    return false;
}

#endif

static unsigned online(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n > 0 ? (unsigned)n : 1;
}

void machine_allowed(struct cpu_list *out)
{
    if (affinity(out) && out->n)
        return;
    out->n = online() < CPU_LIST_MAX ? online() : CPU_LIST_MAX;
    for (unsigned i = 0; i < out->n; i++)
        out->cpu[i] = (uint16_t)i;
}

unsigned machine_cores(void)
{
    struct cpu_list mine;
    unsigned n = affinity(&mine), quota = machine_quota_cores(NULL);

    n = n ? n : online();
    return quota && quota < n ? quota : n;
}

static const char *skip_spaces(const char *p)
{
    return p + strspn(p, " ");
}

/* Complain about the byte at p. */
static int list_error(struct err *e, const char *text, const char *p, const char *want)
{
    if (!*p)
        return err_set(e, ERR_ARG, "cpu list \"%s\": ends where %s is expected", text, want);
    return err_set(e, ERR_ARG, "cpu list \"%s\": byte %d: '%c' where %s is expected", text,
                   (int)(p - text), *p >= ' ' && *p <= '~' ? *p : '?', want);
}

static int list_number(unsigned *out, const char **at, const char *text, struct err *e)
{
    const char *p = skip_spaces(*at);
    uint64_t v;

    if (*p < '0' || *p > '9')
        return list_error(e, text, p, "a number");
    if (!parse_u64(p, at, &v) || v >= CPU_LIST_MAX)
        return err_set(e, ERR_ARG, "cpu list \"%s\": cpu %.*s is out of range 0...%d", text,
                       (int)strspn(p, "0123456789"), p, CPU_LIST_MAX - 1);
    *at = skip_spaces(*at);
    *out = (unsigned)v;
    return 0;
}

int cpu_list_parse(struct cpu_list *out, const char *text, struct err *e)
{
    bool listed[CPU_LIST_MAX] = {false};
    const char *p = text;

    if (!text)
        return err_set(e, ERR_ARG, "cpu list: none given");
    for (;;) {
        unsigned from, to;

        if (list_number(&from, &p, text, e))
            return e->code;
        to = from;
        if (*p == '-') {
            p++;
            if (list_number(&to, &p, text, e))
                return e->code;
        }
        if (to < from)
            return err_set(e, ERR_ARG, "cpu list \"%s\": %u-%u runs backwards", text, from, to);
        memset(listed + from, true, to - from + 1);
        if (!*p)
            break;
        if (*p != ',')
            return list_error(e, text, p, "a comma");
        p++;
    }
    out->n = 0;
    for (unsigned cpu = 0; cpu < CPU_LIST_MAX; cpu++) {
        if (listed[cpu])
            out->cpu[out->n++] = (uint16_t)cpu;
    }
    return 0;
}
