/* cli/find_system.c - kernel, processor, memory and limits, as `waste doctor` sees them. */
#include "cli/findings.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "base/cpu.h"
#include "base/machine.h"
#include "cli/units.h"
#include "storage/io.h"

static const char SYSTEM[] = "system", MEMORY[] = "memory";

/* The number behind a key of a file of "key: number" lines; false if there is none. */
static bool keyed(uint64_t *out, const char *root, const char *path, const char *key)
{
    char full[512], line[256];
    size_t n = strlen(key);
    bool there = false;
    FILE *file;

    snprintf(full, sizeof(full), "%s%s", root, path);
    file = fopen(full, "re");
    while (file && !there && fgets(line, sizeof(line), file)) {
        if (strncmp(line, key, n) || line[n] != ':')
            continue;
        there = sscanf(line + n + 1, "%" SCNu64, out) == 1;
    }
    if (file)
        fclose(file);
    return there;
}

/* Which choice of "always [madvise] never" is taken. */
static bool chosen(char *out, size_t room, const char *line)
{
    const char *open = strchr(line, '['), *close = open ? strchr(open, ']') : NULL;

    if (!close)
        return false;
    snprintf(out, room, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

static void kernel(struct findings *f, const char *root)
{
    char release[128];
    struct utsname u;

    uname(&u);
    if (!first_line(release, sizeof(release), root, "/proc/sys/kernel/osrelease"))
        snprintf(release, sizeof(release), "%s", u.release);
    if (strstr(release, "microsoft") || strstr(release, "Microsoft"))
        found(f, SYSTEM, "kernel", FOUND_BETTER,
              "under WSL keep the container in the Linux file system, not below /mnt/c, and give "
              "the machine its memory in .wslconfig",
              "%s %s, %s (WSL)", u.sysname, release, u.machine);
    else
        found(f, SYSTEM, "kernel", FOUND_FACT, NULL, "%s %s, %s", u.sysname, release, u.machine);
}

static void processor(struct findings *f, const char *root)
{
    unsigned bits = cpu_detect(), cores = machine_cores();
    unsigned quota = machine_quota_cores(*root ? root : NULL);
    const char *level = bits & CPU_AVX512_VBMI ? "AVX-512 with VBMI"
                        : bits & CPU_AVX512    ? "AVX-512"
                        : bits & CPU_AVX2      ? "AVX2"
                        : bits & CPU_NEON      ? "NEON"
                                               : NULL;
    char governor[64];

    if (level)
        found(f, SYSTEM, "processor", FOUND_GOOD, NULL, "%s", level);
    else
        found(f, SYSTEM, "processor", FOUND_BETTER,
              "kernels for AVX2 or better are several times faster; a virtual machine may hide "
              "them: ask for the host's CPU model",
              "no vector extension that has kernels: plain C");
    found(f, SYSTEM, "cores", FOUND_FACT, NULL, "%u for this process%s", cores,
          quota && quota <= cores ? ", as its CPU quota allows" : "");
    if (first_line(governor, sizeof(governor), root,
                   "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) {
        bool slow = !strcmp(governor, "powersave") || !strcmp(governor, "conservative");

        found(f, SYSTEM, "governor", slow ? FOUND_BETTER : FOUND_GOOD,
              slow ? "cpupower frequency-set -g performance" : NULL, "%s", governor);
    }
}

static void numa(struct findings *f, const char *root)
{
    char path[512];
    unsigned nodes = 0, number;
    struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/sys/devices/system/node", root);
    dir = opendir(path);
    while (dir && (entry = readdir(dir)))
        nodes += sscanf(entry->d_name, "node%u", &number) == 1;
    if (dir)
        closedir(dir);
    if (nodes > 1)
        found(f, SYSTEM, "NUMA", FOUND_BETTER,
              "bind to the node that the drive hangs on: numactl --cpunodebind=N --membind=N",
              "%u nodes", nodes);
}

/* Why io_uring may be forbidden, where the system says so. */
static const char *uring_cure(const char *root)
{
    char value[32];
    uint64_t seccomp;

    if (first_line(value, sizeof(value), root, "/proc/sys/kernel/io_uring_disabled") &&
        value[0] != '0')
        return "sysctl kernel.io_uring_disabled=0";
    if (keyed(&seccomp, root, "/proc/self/status", "Seccomp") && seccomp)
        return "a seccomp filter is active: allow io_uring_setup, io_uring_enter and "
               "io_uring_register (docker run --security-opt seccomp=FILE)";
    return "needs Linux 5.6 and a kernel built with CONFIG_IO_URING";
}

static void engines(struct findings *f, const char *root)
{
    const struct io_config cfg = {.depth = 4};
    const struct io_ops *const *engine = io_engines();
    bool best = true;

    for (; *engine; engine++, best = false) {
        bool uring = !strcmp((*engine)->name, "io_uring");
        struct io_report report;
        struct io *io;
        struct err e;

        if (io_open(&io, (*engine)->name, &cfg, &report, &e)) {
            found(f, SYSTEM, (*engine)->name, best ? FOUND_BETTER : FOUND_FACT,
                  uring ? uring_cure(root) : NULL, "%s", e.text);
            continue;
        }
        found(f, SYSTEM, (*engine)->name, FOUND_GOOD, NULL, "works");
        io->ops->close(io);
    }
}

static void ram(struct findings *f, const char *root)
{
    char what[128], text[UNITS_TEXT];
    uint64_t usable = machine_usable_ram(*root ? root : NULL, what, sizeof(what));

    if (!usable)
        found(f, MEMORY, "usable", FOUND_UNKNOWN, NULL, "unknown");
    else
        found(f, MEMORY, "usable", FOUND_FACT, NULL, "%s (%s)", size_text(text, usable), what);
}

static void swap(struct findings *f, const char *root)
{
    uint64_t total = 0, free = 0;
    char text[UNITS_TEXT], used[UNITS_TEXT];

    if (!keyed(&total, root, "/proc/meminfo", "SwapTotal"))
        return;
    keyed(&free, root, "/proc/meminfo", "SwapFree");
    if (total > free)
        found(f, MEMORY, "swap", FOUND_BETTER,
              "something was swapped out already: give the model less (--budget), or what else "
              "runs here",
              "%s of %s in use", size_text(used, (total - free) << 10),
              size_text(text, total << 10));
    else
        found(f, MEMORY, "swap", FOUND_FACT, NULL, "%s%s",
              total ? size_text(text, total << 10) : "none", total ? ", unused" : "");
}

static void huge_pages(struct findings *f, const char *root)
{
    char line[128], mode[32];
    uint64_t reserved = 0;

    if (!first_line(line, sizeof(line), root, "/sys/kernel/mm/transparent_hugepage/enabled") ||
        !chosen(mode, sizeof(mode), line))
        found(f, MEMORY, "huge pages", FOUND_BETTER,
              "reads into 4 KiB pages cost several times the CPU time per byte",
              "transparent huge pages are not in this kernel");
    else if (!strcmp(mode, "never"))
        found(f, MEMORY, "huge pages", FOUND_BETTER,
              "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", "never");
    else
        found(f, MEMORY, "huge pages", FOUND_GOOD, NULL, "%s", mode);
    if (keyed(&reserved, root, "/proc/meminfo", "Hugetlb") && reserved) {
        char text[UNITS_TEXT];

        found(f, MEMORY, "hugetlb", FOUND_FACT, NULL, "%s set aside, which nothing else can use",
              size_text(text, reserved << 10));
    }
}

/* May this process lock and register what it likes? */
static bool may_lock(const char *root)
{
    enum { CAP_IPC_LOCK_BIT = 14 };
    char full[512], line[256];
    uint64_t effective = 0;
    FILE *file;

    snprintf(full, sizeof(full), "%s/proc/self/status", root);
    file = fopen(full, "re");
    while (file && fgets(line, sizeof(line), file) &&
           sscanf(line, "CapEff: %" SCNx64, &effective) != 1)
        ;
    if (file)
        fclose(file);
    return effective >> CAP_IPC_LOCK_BIT & 1;
}

static void memlock(struct findings *f, const char *root)
{
    enum { SMALL = 64 << 20 };
    char text[UNITS_TEXT];
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        return;
    if (limit.rlim_cur == RLIM_INFINITY)
        found(f, MEMORY, "memlock", FOUND_GOOD, NULL, "no limit");
    else if (may_lock(root))
        found(f, MEMORY, "memlock", FOUND_GOOD, NULL, "%s, which does not bind this user",
              size_text(text, limit.rlim_cur));
    else
        found(f, MEMORY, "memlock", limit.rlim_cur < SMALL ? FOUND_BETTER : FOUND_FACT,
              "a pool beyond this is not registered with the kernel, and reads cost more CPU time: "
              "ulimit -l unlimited; LimitMEMLOCK=infinity in a unit; docker run --ulimit "
              "memlock=-1",
              "%s", size_text(text, limit.rlim_cur));
}

/* A container is a file for each layer and drive, twice where it is read direct. */
static void descriptors(struct findings *f)
{
    enum { FEW = 1024 };
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return;
    found(f, SYSTEM, "open files", limit.rlim_cur < FEW ? FOUND_BETTER : FOUND_GOOD,
          limit.rlim_cur < FEW ? "a model is a file or two for each layer and drive: ulimit -n 4096"
                               : NULL,
          "at most %llu", (unsigned long long)limit.rlim_cur);
}

static void pressure(struct findings *f, const char *root)
{
    char line[160];
    const char *avg;
    double percent;

    if (!first_line(line, sizeof(line), root, "/proc/pressure/memory"))
        return;
    avg = strstr(line, "avg60=");
    if (!avg)
        return;
    percent = strtod(avg + strlen("avg60="), NULL);
    found(f, MEMORY, "pressure", percent > 1 ? FOUND_BETTER : FOUND_GOOD,
          percent > 1 ? "others want this memory too: a smaller --budget would be faster" : NULL,
          "something waited for memory %.1f %% of the last minute", percent);
}

void find_system(struct findings *f, const char *root)
{
    kernel(f, root);
    processor(f, root);
    numa(f, root);
    engines(f, root);
    descriptors(f);
    ram(f, root);
    swap(f, root);
    huge_pages(f, root);
    memlock(f, root);
    pressure(f, root);
}
