#include "cli/bench/provenance.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/machine.h"
#include "cli/say.h"
#include "model/kernels/kernels.h"

const char *first_line(char *text, size_t text_bytes, const char *path)
{
    FILE *f = fopen(path, "re");
    size_t n;

    text[0] = '\0';
    if (!f)
        return text;
    if (!fgets(text, (int)text_bytes, f))
        text[0] = '\0';
    fclose(f);
    n = strcspn(text, "\n");
    while (n && isspace((unsigned char)text[n - 1]))
        n--;
    text[n] = '\0';
    return text;
}

static json_t *text_or_null(const char *text)
{
    return *text ? json_text(text, strlen(text)) : json_null();
}

static json_t *line_of(const char *path)
{
    char text[256];

    return text_or_null(first_line(text, sizeof(text), path));
}

/* The choice in brackets of "always [madvise] never". */
static json_t *chosen_of(const char *path)
{
    char text[256], *from, *to;

    first_line(text, sizeof(text), path);
    from = strchr(text, '[');
    to = from ? strchr(from, ']') : NULL;
    return to ? json_text(from + 1, (size_t)(to - from - 1)) : text_or_null(text);
}

static json_t *cpu_model(void)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512], *colon;
    json_t *found = NULL;

    while (f && !found && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10))
            found = text_or_null(colon + 1 + strspn(colon + 1, " \t"));
    }
    if (f)
        fclose(f);
    return found ? found : json_null();
}

static json_t *kernel_level(void)
{
    struct kernels k;

    kernels_init(&k, cpu_detect(), PROFILE_F32);
    return json_string(k.name);
}

json_t *load_average(void)
{
    double load[3];

    return getloadavg(load, 3) == 3 ? json_pack("[f, f, f]", load[0], load[1], load[2])
                                    : json_null();
}

static json_t *now_text(void)
{
    char text[32] = "";
    time_t now = time(NULL);
    struct tm tm;

    if (gmtime_r(&now, &tm))
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    return text_or_null(text);
}

json_t *provenance(void)
{
    struct utsname u = {.sysname = ""};
    char limit[128] = "";
    uint64_t usable = machine_usable_ram(NULL, limit, sizeof(limit));

    uname(&u);
    return json_pack(
        "{s:{s:s, s:s, s:s, s:s, s:s}, s:{s:o, s:i, s:i, s:o, s:o, s:o, s:s, s:o, s:s, s:o}, s:o, "
        "s:o}",
        "build", "version", BENCH_VERSION, "revision", BENCH_REVISION, "type", BENCH_BUILDTYPE,
        "compiler", BENCH_COMPILER, "compiler_version", __VERSION__, "machine", "cpu", cpu_model(),
        "cores", (int)machine_cores(), "cores_online", (int)sysconf(_SC_NPROCESSORS_ONLN),
        "kernels", kernel_level(), "governor",
        line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"), "ram_bytes",
        json_u64(usable), "ram_limited_by", limit, "huge_pages",
        chosen_of("/sys/kernel/mm/transparent_hugepage/enabled"), "arch", u.machine, "kernel",
        json_text(u.release, strlen(u.release)), "date", now_text(), "load", load_average());
}

/* The line of /proc/self/mountinfo of this device: its file system and options. */
static void add_mount(json_t *to, unsigned major_, unsigned minor_)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    char line[2048], fs[64], options[256];

    while (f && fgets(line, sizeof(line), f)) {
        const char *dash = strstr(line, " - ");
        unsigned a, b;

        if (sscanf(line, "%*u %*u %u:%u %*s %*s %255s", &a, &b, options) != 3 || a != major_ ||
            b != minor_ || !dash || sscanf(dash, " - %63s", fs) != 1)
            continue;
        json_object_set_new(to, "file_system", json_text(fs, strlen(fs)));
        json_object_set_new(to, "mount_options", json_text(options, strlen(options)));
        break;
    }
    if (f)
        fclose(f);
}

/* A partition's queue is its disk's. */
static json_t *queue_of(const char *dev, const char *name)
{
    static const char *const place[] = {"queue", "../queue"};
    char path[128];

    for (unsigned i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s/%s", dev, place[i], name);
        if (!access(path, R_OK))
            return strcmp(name, "scheduler") ? line_of(path) : chosen_of(path);
    }
    return json_null();
}

json_t *provenance_of_file(int fd)
{
    struct stat st;
    char dev[64], target[256] = "", path[96];
    ssize_t n;
    json_t *o = json_object();

    if (!o || fstat(fd, &st))
        return o;
    json_object_set_new(o, "bytes", json_u64((uint64_t)st.st_size));
    add_mount(o, major(st.st_dev), minor(st.st_dev));
    snprintf(dev, sizeof(dev), "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
    n = readlink(dev, target, sizeof(target) - 1);
    if (n <= 0) { /* overlay, tmpfs, btrfs, network: no one block device */
        json_object_set_new(o, "device", json_null());
        return o;
    }
    target[n] = '\0';
    json_object_set_new(o, "device", json_string(strrchr(target, '/') + 1));
    snprintf(path, sizeof(path), "%s/device/model", dev);
    json_object_set_new(o, "model", line_of(path));
    json_object_set_new(o, "scheduler", queue_of(dev, "scheduler"));
    json_object_set_new(o, "nr_requests", queue_of(dev, "nr_requests"));
    json_object_set_new(o, "max_sectors_kb", queue_of(dev, "max_sectors_kb"));
    return o;
}
