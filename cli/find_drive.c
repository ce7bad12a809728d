/* cli/find_drive.c - where a path lies: mount, file system, devices, queues, links. */
#include "cli/findings.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char DRIVE[] = "drive";

struct mount {
    unsigned major, minor;
    char point[PATH_MAX], type[64], source[256], options[512];
};

/* "\040" and its like, which mountinfo has for blanks. */
static void unescape(char *s)
{
    char *out = s;
    unsigned octal;

    for (; *s; out++) {
        if (*s == '\\' && sscanf(s + 1, "%3o", &octal) == 1) {
            *out = (char)octal;
            s += 4;
        } else {
            *out = *s++;
        }
    }
    *out = 0;
}

/* One line of mountinfo: id parent major:minor root point options fields* - type source options */
static bool parse_mount(struct mount *m, const char *line)
{
    const char *dash = strstr(line, " - ");
    char format[96], own[256];

    snprintf(format, sizeof(format), "%%*d %%*d %%u:%%u %%*s %%%ds %%%zus", PATH_MAX - 1,
             sizeof(own) - 1);
    if (!dash || sscanf(line, format, &m->major, &m->minor, m->point, own) != 4)
        return false;
    if (sscanf(dash, " - %63s %255s %511s", m->type, m->source, m->options) < 2)
        return false;
    unescape(m->point);
    unescape(m->source);
    return true;
}

static bool below(const char *path, const char *point)
{
    size_t n = strlen(point);

    if (!strcmp(point, "/"))
        return true;
    return !strncmp(path, point, n) && (!path[n] || path[n] == '/');
}

/* The mount that path is seen through: the longest point above it, of equals the last. */
static bool mount_of(struct mount *out, const char *root, const char *path)
{
    char full[512], line[3 * PATH_MAX];
    struct mount m = {.options = ""};
    bool there = false;
    FILE *file;

    snprintf(full, sizeof(full), "%s/proc/self/mountinfo", root);
    file = fopen(full, "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (!parse_mount(&m, line) || !below(path, m.point) ||
            (there && strlen(m.point) < strlen(out->point)))
            continue;
        *out = m;
        there = true;
    }
    if (file)
        fclose(file);
    return there;
}

static const struct kind {
    const char *type;
    enum judged judged;
    const char *cure;
} kinds[] = {
    {"ext4", FOUND_GOOD, NULL},
    {"xfs", FOUND_GOOD, NULL},
    {"f2fs", FOUND_GOOD, NULL},
    {"btrfs", FOUND_BETTER,
     "checksums and copy-on-write cost CPU time on every read; on a compressed mount reads go "
     "through the page cache: chattr +C before the container is copied here, or use ext4 or xfs"},
    {"bcachefs", FOUND_BETTER, "checksums cost CPU time on every read; ext4 or xfs do not"},
    {"zfs", FOUND_BETTER,
     "before 2.3 reads go through a cache of its own: limit it (zfs_arc_max), or use ext4 or xfs"},
    {"overlay", FOUND_BETTER,
     "this is a container image's own layer: mount a volume or the host's directory instead"},
    {"tmpfs", FOUND_BETTER,
     "this is memory, not a drive: experts are kept twice. A measurement here says nothing"},
    {"ramfs", FOUND_BETTER, "this is memory, not a drive: experts are kept twice"},
    {"squashfs", FOUND_BAD, "a compressed image is unpacked on each read: copy it to ext4 or xfs"},
    {"9p", FOUND_BAD,
     "a host's files seen through 9p are several times slower than its drive: use a virtual disk; "
     "under WSL copy the container to the Linux file system"},
    {"virtiofs", FOUND_BETTER, "a virtual disk is faster than a shared directory"},
    {"nfs", FOUND_BAD, "the network decides how fast it reads: copy it to a local NVMe drive"},
    {"nfs4", FOUND_BAD, "the network decides how fast it reads: copy it to a local NVMe drive"},
    {"cifs", FOUND_BAD, "the network decides how fast it reads: copy it to a local NVMe drive"},
    {"smb3", FOUND_BAD, "the network decides how fast it reads: copy it to a local NVMe drive"},
    {"ntfs", FOUND_BAD, "copy it to ext4 or xfs: this driver reads through the page cache"},
    {"ntfs3", FOUND_BETTER, "ext4 or xfs read past the page cache with less CPU time"},
    {"exfat", FOUND_BETTER, "ext4 or xfs read past the page cache with less CPU time"},
    {"vfat", FOUND_BAD, "no file here can hold more than 4 GiB: use ext4 or xfs"},
};

static void file_system(struct findings *f, const struct mount *m)
{
    if (!strncmp(m->type, "fuse", 4)) {
        found(f, DRIVE, "file system", FOUND_BAD,
              "a program in between copies each byte: mount the drive itself (NTFS: type ntfs3)",
              "%s on %s", m->type, m->point);
        return;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (!strcmp(kinds[i].type, m->type)) {
            found(f, DRIVE, "file system", kinds[i].judged, kinds[i].cure, "%s on %s", m->type,
                  m->point);
            return;
        }
    }
    found(f, DRIVE, "file system", FOUND_UNKNOWN, "ext4 and xfs are known to work well", "%s on %s",
          m->type, m->point);
}

/* The device's directory in /sys: of the whole disk if it is a partition. */
static bool sys_of(char dir[PATH_MAX], const char *root, unsigned major, unsigned minor)
{
    char link[PATH_MAX], probe[PATH_MAX + 16];

    snprintf(link, sizeof(link), "%s/sys/dev/block/%u:%u", root, major, minor);
    if (!realpath(link, dir))
        return false;
    snprintf(probe, sizeof(probe), "%s/partition", dir);
    if (!access(probe, F_OK))
        *strrchr(dir, '/') = 0;
    return true;
}

static bool attribute(char *out, size_t room, const char *dir, const char *name)
{
    char path[PATH_MAX + 64];
    size_t n;

    snprintf(path, sizeof(path), "/%s", name);
    if (!first_line(out, room, dir, path))
        return false;
    for (n = strlen(out); n && out[n - 1] == ' '; n--)
        out[n - 1] = 0;
    return *out;
}

/* GB/s of a PCIe link; 0 where it cannot be read. speed: "16.0 GT/s PCIe", width: "4". */
static double link_rate(const char *dir, const char *speed_name, const char *width_name)
{
    char speed[64], width[32];
    double gt;

    if (!attribute(speed, sizeof(speed), dir, speed_name) ||
        !attribute(width, sizeof(width), dir, width_name))
        return 0;
    gt = strtod(speed, NULL);
    return gt * strtod(width, NULL) * (gt < 8 ? 8. / 10 : 128. / 130) / 8;
}

static void pcie(struct findings *f, const char *disk, const char *name)
{
    char dir[PATH_MAX + 32], slot[PATH_MAX + 40];
    double now, most, offered;

    snprintf(dir, sizeof(dir), "%s/device/device", disk);
    now = link_rate(dir, "current_link_speed", "current_link_width");
    most = link_rate(dir, "max_link_speed", "max_link_width");
    if (now <= 0 || most <= 0)
        return;
    if (realpath(dir, slot) && strrchr(slot, '/'))
        *strrchr(slot, '/') = 0; /* the port it hangs on */
    offered = link_rate(slot, "max_link_speed", "max_link_width");
    if (now >= most * 0.99)
        found(f, DRIVE, "link", FOUND_GOOD, NULL, "%s: %.1f GB/s, all that the drive can do", name,
              now);
    else if (offered > 0 && now >= offered * 0.99)
        found(f, DRIVE, "link", FOUND_BETTER, "move the drive to a slot with more or faster lanes",
              "%s: %.1f GB/s, all that the slot gives; the drive could do %.1f", name, now, most);
    else
        found(f, DRIVE, "link", FOUND_BAD,
              "reseat the drive, look at riser, slot sharing and the firmware's settings; power "
              "saving may lower it while idle",
              "%s: %.1f GB/s now; the drive could do %.1f%s", name, now, most,
              offered > 0 ? " and so could the slot" : "");
}

static void temperature(struct findings *f, const char *disk, const char *name)
{
    char dir[PATH_MAX + 32], milli[32], file[300];
    struct dirent *entry;
    DIR *d;

    snprintf(dir, sizeof(dir), "%s/device", disk);
    d = opendir(dir);
    while (d && (entry = readdir(d))) {
        int degrees;

        if (strncmp(entry->d_name, "hwmon", 5))
            continue;
        snprintf(file, sizeof(file), "%s/temp1_input", entry->d_name);
        if (!attribute(milli, sizeof(milli), dir, file))
            continue;
        degrees = atoi(milli) / 1000;
        found(f, DRIVE, "temperature", degrees >= 70 ? FOUND_BAD : FOUND_GOOD,
              degrees >= 70 ? "drives slow down near 80 °C: a heat sink, or air over it" : NULL,
              "%s: %d °C", name, degrees);
    }
    if (d)
        closedir(d);
}

static void queue(struct findings *f, const char *disk, const char *name)
{
    char line[160], sectors[32], requests[32], spins[8] = "";
    const char *open;
    bool nvme = !strncmp(name, "nvme", 4), virtual = name[0] == 'v' || name[0] == 'x';

    if (attribute(line, sizeof(line), disk, "queue/scheduler") && (open = strchr(line, '['))) {
        char advice[160] = "";
        bool plain = !strncmp(open, "[none]", 6);

        if (!plain && nvme)
            snprintf(advice, sizeof(advice), "as root: echo none > /sys/block/%s/queue/scheduler",
                     name);
        found(f, DRIVE, "scheduler",
              plain  ? FOUND_GOOD
              : nvme ? FOUND_BETTER
                     : FOUND_FACT,
              advice, "%s: %.*s", name, (int)strcspn(open + 1, "]"), open + 1);
    }
    if (attribute(sectors, sizeof(sectors), disk, "queue/max_sectors_kb") &&
        attribute(requests, sizeof(requests), disk, "queue/nr_requests")) {
        char advice[200] = "";
        bool small = atoi(sectors) < 256;

        if (small)
            snprintf(advice, sizeof(advice),
                     "each read of an expert becomes many: raise /sys/block/%s/queue/"
                     "max_sectors_kb towards max_hw_sectors_kb",
                     name);
        found(f, DRIVE, "requests", small ? FOUND_BETTER : FOUND_GOOD, advice,
              "%s: up to %s KiB each, %s queued", name, sectors, requests);
    }
    attribute(spins, sizeof(spins), disk, "queue/rotational");
    if (spins[0] == '1' && !virtual)
        found(f, DRIVE, "rotation", FOUND_BAD,
              "a spinning disk reads a few hundred MB/s: use an NVMe drive", "%s spins", name);
}

static void disk(struct findings *f, const char *dir, const char *name)
{
    char model[96], kind[128] = "";

    if (attribute(model, sizeof(model), dir, "device/model"))
        snprintf(kind, sizeof(kind), ", %s", model);
    if (!strncmp(name, "zram", 4))
        found(f, DRIVE, "device", FOUND_BAD, "this is compressed memory, not a drive", "%s", name);
    else if (name[0] == 'v')
        found(f, DRIVE, "device", FOUND_FACT, NULL, "%s, a virtual disk%s", name, kind);
    else
        found(f, DRIVE, "device", FOUND_FACT, NULL, "%s%s", name, kind);
    queue(f, dir, name);
    if (!strncmp(name, "nvme", 4)) {
        pcie(f, dir, name);
        temperature(f, dir, name);
    }
}

static void mapped(struct findings *f, const char *dir, const char *name)
{
    char uuid[256] = "", label[128] = "?";

    attribute(uuid, sizeof(uuid), dir, "dm/uuid");
    attribute(label, sizeof(label), dir, "dm/name");
    if (!strncmp(uuid, "CRYPT-", 6))
        found(f, DRIVE, "encryption", FOUND_BETTER,
              "each byte is decrypted by a core, and extra queues add delay: cryptsetup refresh "
              "--perf-no_read_workqueue NAME; or keep the container, which is public, on a plain "
              "partition",
              "%s (%s) is dm-crypt", name, label);
    else
        found(f, DRIVE, "mapping", FOUND_FACT, NULL, "%s (%s)%s", name, label,
              !strncmp(uuid, "LVM-", 4) ? ", LVM" : "");
}

static void stack(struct findings *f, const char *dir, unsigned depth);

/* Go on with each device that this one is made of. */
static unsigned slaves(struct findings *f, const char *dir, unsigned depth)
{
    char path[PATH_MAX + 16], one[2 * PATH_MAX], real[PATH_MAX], probe[PATH_MAX + 16];
    struct dirent *entry;
    unsigned n = 0;
    DIR *d;

    snprintf(path, sizeof(path), "%s/slaves", dir);
    d = opendir(path);
    while (d && (entry = readdir(d))) {
        snprintf(one, sizeof(one), "%s/%s", path, entry->d_name);
        if (entry->d_name[0] == '.' || !realpath(one, real))
            continue;
        snprintf(probe, sizeof(probe), "%s/partition", real);
        if (!access(probe, F_OK))
            *strrchr(real, '/') = 0;
        stack(f, real, depth + 1);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

static void stack(struct findings *f, const char *dir, unsigned depth)
{
    enum { DEEPEST = 8 };
    const char *name = strrchr(dir, '/') + 1;
    char text[256];

    if (depth > DEEPEST)
        return;
    if (!strncmp(name, "loop", 4)) {
        bool known = attribute(text, sizeof(text), dir, "loop/backing_file");

        found(f, DRIVE, "loop", FOUND_BETTER,
              "a file mounted as a disk is read twice unless it has direct I/O: losetup "
              "--direct-io=on",
              "%s is the file %s", name, known ? text : "?");
        return;
    }
    if (!strncmp(name, "dm-", 3))
        mapped(f, dir, name);
    else if (attribute(text, sizeof(text), dir, "md/level"))
        found(f, DRIVE, "array", FOUND_FACT, NULL, "%s, %s", name, text);
    if (!slaves(f, dir, depth))
        disk(f, dir, name);
}

void find_drive(struct findings *f, const char *root, const char *path)
{
    char dir[PATH_MAX], source[PATH_MAX + 256];
    struct mount m;
    struct stat st;

    if (!mount_of(&m, root, path)) {
        found(f, DRIVE, "mount", FOUND_UNKNOWN, NULL, "%s: /proc/self/mountinfo does not tell",
              path);
        return;
    }
    file_system(f, &m);
    /* btrfs, ZFS and overlays have device numbers of their own: ask for what was mounted. */
    snprintf(source, sizeof(source), "%s%s", root, m.source);
    if (!m.major && m.source[0] == '/' && !stat(source, &st) && S_ISBLK(st.st_mode)) {
        m.major = major(st.st_rdev);
        m.minor = minor(st.st_rdev);
    }
    if (m.major && sys_of(dir, root, m.major, m.minor))
        stack(f, dir, 0);
    else
        found(f, DRIVE, "device", FOUND_UNKNOWN, NULL, "%s: no block device that can be seen",
              m.source);
}
