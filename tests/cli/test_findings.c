/* Machines made up of files: what the doctor says of each. */
#include "cli/findings.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/waste-doctor-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void make_way(char *path)
{
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
}

static void file(const char *at, const char *text)
{
    char path[PATH_MAX];
    FILE *f;

    snprintf(path, sizeof(path), "%s%s", root, at);
    make_way(path);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void link_to(const char *at, const char *target)
{
    char path[PATH_MAX], there[PATH_MAX];

    snprintf(path, sizeof(path), "%s%s", root, at);
    make_way(path);
    snprintf(there, sizeof(there), "%s%s", root, target);
    assert_int_equal(symlink(there, path), 0);
}

static const struct finding *named(const struct findings *f, const char *name)
{
    for (unsigned i = 0; i < f->n; i++) {
        if (!strcmp(f->of[i].name, name))
            return &f->of[i];
    }
    return NULL;
}

static void expect(const struct findings *f, const char *name, enum judged judged,
                   const char *value, const char *cure)
{
    const struct finding *x = named(f, name);

    if (!x)
        fail_msg("nothing was found of %s", name);
    if (x->judged != judged || !strstr(x->value, value) || !strstr(x->cure, cure))
        fail_msg("%s: %s, \"%s\" -> \"%s\"", name, judged_name(x->judged), x->value, x->cure);
}

#define NVME "/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/nvme/nvme0/nvme0n1"
#define PCI  "/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0"
#define PORT "/sys/devices/pci0000:00/0000:00:06.0"

/* A drive of four lanes of 32 GT/s in a slot that gives as much, and its partition 1. */
static void make_nvme(const char *speed, const char *width)
{
    link_to("/sys/dev/block/259:0", NVME);
    link_to("/sys/dev/block/259:1", NVME "/nvme0n1p1");
    file(NVME "/nvme0n1p1/partition", "1\n");
    file(NVME "/queue/scheduler", "[none] mq-deadline kyber \n");
    file(NVME "/queue/max_sectors_kb", "1280\n");
    file(NVME "/queue/nr_requests", "1023\n");
    file(NVME "/queue/rotational", "0\n");
    link_to(NVME "/device", "/sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/nvme/nvme0");
    file(PCI "/nvme/nvme0/model", "Made-up Drive 4TB                       \n");
    link_to(PCI "/nvme/nvme0/device", PCI);
    file(PCI "/nvme/nvme0/hwmon3/temp1_input", "45850\n");
    file(PCI "/current_link_speed", speed);
    file(PCI "/current_link_width", width);
    file(PCI "/max_link_speed", "32.0 GT/s PCIe\n");
    file(PCI "/max_link_width", "4\n");
    file(PORT "/max_link_speed", "32.0 GT/s PCIe\n");
    file(PORT "/max_link_width", "16\n");
}

static void a_good_drive_is_called_one(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    make_nvme("32.0 GT/s PCIe\n", "4\n");
    file("/proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n"
                                 "30 22 259:1 / /mnt/my\\040models rw - xfs /dev/nvme0n1p1 rw\n");
    find_drive(&f, root, "/mnt/my models/k3.waste");
    expect(&f, "file system", FOUND_GOOD, "xfs on /mnt/my models", "");
    expect(&f, "device", FOUND_FACT, "nvme0n1, Made-up Drive 4TB", "");
    expect(&f, "scheduler", FOUND_GOOD, "none", "");
    expect(&f, "requests", FOUND_GOOD, "1280 KiB each, 1023 queued", "");
    expect(&f, "link", FOUND_GOOD, "15.8 GB/s", "");
    expect(&f, "temperature", FOUND_GOOD, "45", "");
    for (unsigned i = 0; i < f.n; i++)
        assert_true(f.of[i].judged <= FOUND_FACT);
}

static void a_name_that_begins_alike_is_another_mount(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    make_nvme("32.0 GT/s PCIe\n", "4\n");
    file("/proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n"
                                 "30 22 259:1 / /mnt/a rw - xfs /dev/nvme0n1p1 rw\n");
    find_drive(&f, root, "/mnt/another");
    expect(&f, "file system", FOUND_GOOD, "ext4 on /", "");
}

static void of_mounts_over_each_other_the_last_counts(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    file("/proc/self/mountinfo", "30 22 259:1 / /mnt rw - xfs /dev/nvme0n1p1 rw\n"
                                 "31 30 0:40 / /mnt rw - tmpfs tmpfs rw\n");
    find_drive(&f, root, "/mnt/x");
    expect(&f, "file system", FOUND_BETTER, "tmpfs", "memory, not a drive");
    expect(&f, "device", FOUND_UNKNOWN, "no block device", "");
}

static void a_lame_link_is_named_with_what_the_slot_could(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    make_nvme("8.0 GT/s PCIe\n", "2\n");
    file("/proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "link", FOUND_BAD, "2.0 GB/s now; the drive could do 15.8 and so could the slot",
           "reseat");
}

static void a_slow_slot_is_not_the_drives_fault(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    make_nvme("16.0 GT/s PCIe\n", "4\n");
    file(PORT "/max_link_speed", "16.0 GT/s PCIe\n");
    file(PORT "/max_link_width", "4\n");
    file("/proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "link", FOUND_BETTER, "7.9 GB/s, all that the slot gives", "slot");
}

static void a_hot_drive_with_small_requests_is_warned_of(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    make_nvme("32.0 GT/s PCIe\n", "4\n");
    file(PCI "/nvme/nvme0/hwmon3/temp1_input", "81850\n");
    file(NVME "/queue/scheduler", "none [bfq]\n");
    file(NVME "/queue/max_sectors_kb", "128\n");
    file("/proc/self/mountinfo", "22 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "temperature", FOUND_BAD, "81", "heat sink");
    expect(&f, "scheduler", FOUND_BETTER, "bfq", "/sys/block/nvme0n1/queue/scheduler");
    expect(&f, "requests", FOUND_BETTER, "128", "max_sectors_kb");
}

static void what_lies_between_is_taken_apart(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    make_nvme("32.0 GT/s PCIe\n", "4\n");
    link_to("/sys/dev/block/253:1", "/sys/devices/virtual/block/dm-1");
    file("/sys/devices/virtual/block/dm-1/dm/uuid", "LVM-abc\n");
    file("/sys/devices/virtual/block/dm-1/dm/name", "vg-data\n");
    link_to("/sys/devices/virtual/block/dm-1/slaves/dm-0", "/sys/devices/virtual/block/dm-0");
    file("/sys/devices/virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-abc\n");
    file("/sys/devices/virtual/block/dm-0/dm/name", "safe\n");
    link_to("/sys/devices/virtual/block/dm-0/slaves/nvme0n1p1", NVME "/nvme0n1p1");
    file("/proc/self/mountinfo", "22 1 253:1 / / rw - ext4 /dev/mapper/vg-data rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "mapping", FOUND_FACT, "dm-1 (vg-data), LVM", "");
    expect(&f, "encryption", FOUND_BETTER, "dm-0 (safe) is dm-crypt", "no_read_workqueue");
    expect(&f, "device", FOUND_FACT, "nvme0n1", "");
}

static void devices_that_hold_each_other_end(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    file("/sys/devices/virtual/block/dm-0/dm/name", "a\n");
    link_to("/sys/devices/virtual/block/dm-0/slaves/dm-0", "/sys/devices/virtual/block/dm-0");
    link_to("/sys/dev/block/253:0", "/sys/devices/virtual/block/dm-0");
    file("/proc/self/mountinfo", "22 1 253:0 / / rw - ext4 /dev/mapper/a rw\n");
    find_drive(&f, root, "/x");
    assert_in_range(f.n, 2, 16);
}

static void other_kinds_of_drives(void **state)
{
    static const struct {
        const char *type, *source, *name;
        enum judged judged;
        const char *value, *cure;
    } kinds[] = {
        {"overlay", "overlay", "file system", FOUND_BETTER, "overlay", "volume"},
        {"fuse.sshfs", "me@there:", "file system", FOUND_BAD, "fuse.sshfs", "program"},
        {"fuseblk", "/dev/sdb1", "file system", FOUND_BAD, "fuseblk", "ntfs3"},
        {"9p", "C:\\134", "file system", FOUND_BAD, "9p", "WSL"},
        {"nfs4", "there:/x", "file system", FOUND_BAD, "nfs4", "network"},
        {"btrfs", "/dev/none", "file system", FOUND_BETTER, "btrfs", "chattr"},
        {"neverheardof", "none", "file system", FOUND_UNKNOWN, "neverheardof", "ext4"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct findings f = {.n = 0};
        char line[256];

        snprintf(line, sizeof(line), "22 1 0:50 / / rw shared:1 - %s %s rw\n", kinds[i].type,
                 kinds[i].source);
        file("/proc/self/mountinfo", line);
        find_drive(&f, root, "/x");
        expect(&f, kinds[i].name, kinds[i].judged, kinds[i].value, kinds[i].cure);
    }
}

static void spinning_loop_and_zram(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    file("/sys/devices/x/block/sda/queue/rotational", "1\n");
    link_to("/sys/dev/block/8:0", "/sys/devices/x/block/sda");
    file("/proc/self/mountinfo", "22 1 8:0 / / rw - ext4 /dev/sda rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "rotation", FOUND_BAD, "sda spins", "NVMe");

    f.n = 0;
    file("/sys/devices/virtual/block/loop0/loop/backing_file", "/images/disk.img\n");
    link_to("/sys/dev/block/7:0", "/sys/devices/virtual/block/loop0");
    file("/proc/self/mountinfo", "22 1 7:0 / / rw - ext4 /dev/loop0 rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "loop", FOUND_BETTER, "/images/disk.img", "--direct-io=on");

    f.n = 0;
    file("/sys/devices/virtual/block/zram0/queue/rotational", "0\n");
    link_to("/sys/dev/block/254:0", "/sys/devices/virtual/block/zram0");
    file("/proc/self/mountinfo", "22 1 254:0 / / rw - ext4 /dev/zram0 rw\n");
    find_drive(&f, root, "/x");
    expect(&f, "device", FOUND_BAD, "zram0", "memory");
}

static void a_machine_that_tells_nothing(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    find_drive(&f, root, "/x");
    expect(&f, "mount", FOUND_UNKNOWN, "/x", "");
    file("/proc/self/mountinfo", "nonsense\n22 1 x:0 / / rw - ext4 a b\n - - - \n22 1 8:0 / /\n");
    f.n = 0;
    find_drive(&f, root, "/x");
    expect(&f, "mount", FOUND_UNKNOWN, "/x", "");
    f.n = 0;
    find_system(&f, root);
    expect(&f, "huge pages", FOUND_BETTER, "not in this kernel", "4 KiB");
    assert_null(named(&f, "swap"));
    assert_null(named(&f, "pressure"));
    assert_null(named(&f, "governor"));
}

static void a_machine_that_could_be_better(void **state)
{
    struct findings f = {.n = 0};

    (void)state;
    file("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    file("/proc/meminfo", "MemTotal: 1024 kB\nSwapTotal: 4096 kB\nSwapFree:\t1024 kB\n"
                          "Hugetlb: 2048 kB\n");
    file("/proc/pressure/memory", "some avg10=0.00 avg60=7.50 avg300=0.91 total=1\n");
    file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    file("/sys/devices/system/node/node0/x", "");
    file("/sys/devices/system/node/node1/x", "");
    find_system(&f, root);
    expect(&f, "kernel", FOUND_BETTER, "WSL", ".wslconfig");
    expect(&f, "huge pages", FOUND_BETTER, "never", "echo madvise");
    expect(&f, "swap", FOUND_BETTER, "3.0 MiB of 4.0 MiB", "--budget");
    expect(&f, "hugetlb", FOUND_FACT, "2.0 MiB", "");
    expect(&f, "pressure", FOUND_BETTER, "7.5 %", "--budget");
    expect(&f, "governor", FOUND_BETTER, "powersave", "performance");
    expect(&f, "NUMA", FOUND_BETTER, "2 nodes", "numactl");
}

static void more_than_fits_is_dropped(void **state)
{
    static struct findings f;

    (void)state;
    for (int i = 0; i < FINDINGS_MAX + 5; i++)
        found(&f, "x", "y", FOUND_GOOD, NULL, "%d", i);
    assert_int_equal(f.n, FINDINGS_MAX);
    assert_string_equal(f.of[FINDINGS_MAX - 1].value, "95");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        T(a_good_drive_is_called_one),
        T(a_name_that_begins_alike_is_another_mount),
        T(of_mounts_over_each_other_the_last_counts),
        T(a_lame_link_is_named_with_what_the_slot_could),
        T(a_slow_slot_is_not_the_drives_fault),
        T(a_hot_drive_with_small_requests_is_warned_of),
        T(what_lies_between_is_taken_apart),
        T(devices_that_hold_each_other_end),
        T(other_kinds_of_drives),
        T(spinning_loop_and_zram),
        T(a_machine_that_tells_nothing),
        T(a_machine_that_could_be_better),
        T(more_than_fits_is_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
