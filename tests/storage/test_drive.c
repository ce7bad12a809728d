/* Which drive: in a sysfs made for the test. How many in flight: on simulated drives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/drive.h"
#include "storage/file.h"
#include "storage/io.h"
#include "storage/io_sim.h"
#include "tests/support/alloc_fault.h"

static void shell(const char *dir, const char *script)
{
    char command[4096];

    snprintf(command, sizeof(command), "cd %s && %s", dir, script);
    assert_int_equal(system(command), 0);
}

static void expect_drive(const char *sys, unsigned major, unsigned minor, const char *name,
                         uint64_t id)
{
    struct drive d;

    drive_of_device(&d, sys, major, minor);
    assert_string_equal(d.name, name);
    assert_int_equal(d.id, id);
}

static void a_drive_is_the_disk_below_partitions_and_mappings(void **state)
{
    char sys[] = "/tmp/waste-test-XXXXXX";
    uint64_t nvme0 = 259ull << 32, nvme1 = nvme0 | 5;

    (void)state;
    assert_non_null(mkdtemp(sys));
    shell(sys, "mkdir -p dev/block d/nvme0n1/nvme0n1p2 d/nvme1n1 d/dm-0/slaves d/dm-1/slaves "
               "d/md0/slaves d/loop/slaves &&"
               "echo 259:0 >d/nvme0n1/dev && echo 259:2 >d/nvme0n1/nvme0n1p2/dev &&"
               "echo 2 >d/nvme0n1/nvme0n1p2/partition && echo 259:5 >d/nvme1n1/dev &&"
               "echo 252:0 >d/dm-0/dev && echo 252:1 >d/dm-1/dev && echo 9:0 >d/md0/dev &&"
               "echo 7:0 >d/loop/dev &&"
               "for x in nvme0n1 nvme0n1/nvme0n1p2 nvme1n1 dm-0 dm-1 md0 loop; do "
               "ln -s ../../d/$x dev/block/$(cat d/$x/dev); done &&"
               "ln -s ../../nvme0n1/nvme0n1p2 d/dm-0/slaves/ && ln -s ../../dm-0 d/dm-1/slaves/ &&"
               "ln -s ../../nvme0n1 d/md0/slaves/ && ln -s ../../nvme1n1 d/md0/slaves/ &&"
               "ln -s ../../loop d/loop/slaves/");
    expect_drive(sys, 259, 0, "nvme0n1", nvme0);
    expect_drive(sys, 259, 2, "nvme0n1", nvme0); /* a partition */
    expect_drive(sys, 252, 0, "nvme0n1", nvme0); /* encrypted */
    expect_drive(sys, 252, 1, "nvme0n1", nvme0); /* a volume in that */
    expect_drive(sys, 259, 5, "nvme1n1", nvme1);
    expect_drive(sys, 9, 0, "md0", 9ull << 32);  /* of two disks */
    expect_drive(sys, 0, 42, "", 42);            /* no device */
    expect_drive(sys, 7, 0, "loop", 7ull << 32); /* below itself: ends all the same */
    shell(sys, "rm -r dev d");
    assert_int_equal(rmdir(sys), 0);
}

static void files_of_one_directory_are_on_one_drive(void **state)
{
    struct file file[2];
    struct drive a, b;
    struct err e;

    (void)state;
    assert_int_equal(file_open(&file[0], AT_FDCWD, "/proc/self/exe", false, &e), 0);
    assert_int_equal(file_open(&file[1], AT_FDCWD, "/proc/self/exe", true, &e), 0);
    drive_of(&a, &file[0]);
    drive_of(&b, &file[1]);
    assert_true(a.id == b.id && !strcmp(a.name, b.name));
    file_close(&file[0]);
    file_close(&file[1]);
}

enum { BYTES = 2670592, DEPTH = 32, N_EXTENTS = 50 };

struct bench {
    struct extent at[N_EXTENTS];
    struct drive_trial trial;
};

static void set_up(struct bench *b, const char *preset)
{
    struct io_sim_config sim = {.source = IO_SIM_NOTHING, .stripe_bytes = BYTES, .seed = 1};
    struct io_config cfg = {.n_files = 1, .depth = DEPTH};
    struct err e;

    assert_int_equal(io_sim_add(&sim, preset, &e), 0);
    for (unsigned i = 0; i < N_EXTENTS; i++)
        b->at[i] = (struct extent){.offset = (uint64_t)i * BYTES, .length = BYTES};
    b->trial =
        (struct drive_trial){.at = b->at, .n = N_EXTENTS, .depth_max = DEPTH, .ns = 200000000};
    assert_int_equal(io_sim_open(&b->trial.io, &cfg, &sim, &e), 0);
}

static void the_depth_is_the_least_that_fills_the_drive(void **state)
{
    static const struct {
        const char *preset;
        unsigned least, most;
        double gbps, alone;
    } want[] = {
        {"nvme3", 2, 4, 3.5, 2.3}, {"nvme7", 2, 8, 7, 3.7}, {"nvme14", 3, 8, 14, 6},
        {"nvme28", 4, 16, 28, 6},  {"qlc", 2, 8, 2.4, 1.4}, {"usb", 2, 3, 1, 0.9},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct drive_speed s, again;
        struct bench b;
        struct err e;

        for (unsigned k = 0; k < 2; k++) {
            set_up(&b, want[i].preset);
            assert_int_equal(drive_measure(k ? &again : &s, &b.trial, &e), 0);
            b.trial.io->ops->close(b.trial.io);
        }
        assert_int_equal(s.depth, again.depth); /* whatever the machine was doing */
        assert_int_equal(s.bytes_per_s, again.bytes_per_s);
        assert_int_equal(s.alone, again.alone);
        assert_in_range(s.depth, want[i].least, want[i].most);
        assert_true((double)s.bytes_per_s > 0.85e9 * want[i].gbps);
        assert_true((double)s.bytes_per_s < 1.01e9 * want[i].gbps);
        assert_true((double)s.alone > 0.85e9 * want[i].alone);
        assert_true((double)s.alone < 1.15e9 * want[i].alone);
    }
}

static void a_failed_read_is_named_and_none_is_left_in_flight(void **state)
{
    (void)state;
    for (unsigned nth = 1; nth < 30; nth++) {
        struct io_sim_faults faults = {.fail_nth = nth};
        struct drive_speed s = {.depth = 77};
        struct io_read *done;
        struct bench b;
        struct err e;
        char want[64];

        set_up(&b, "nvme7");
        io_sim_set_faults(b.trial.io, &faults);
        assert_int_equal(drive_measure(&s, &b.trial, &e), ERR_IO);
        snprintf(want, sizeof(want), "at %u of file 0", (nth - 1) % N_EXTENTS * BYTES);
        assert_non_null(strstr(e.text, want));
        assert_int_equal(s.depth, 77);
        assert_int_equal(b.trial.io->ops->reap(b.trial.io, &done, 1, true), 0);
        b.trial.io->ops->close(b.trial.io);
    }
}

static void a_measurement_without_memory_or_depth_fails_or_is_of_one(void **state)
{
    struct drive_speed s;
    struct bench b;
    struct err e;

    (void)state;
    set_up(&b, "usb");
    alloc_fault_arm(1);
    assert_int_equal(drive_measure(&s, &b.trial, &e), ERR_NOMEM);
    assert_true(alloc_fault_disarm());
    b.trial.depth_max = 1;
    b.trial.ns = 0;
    assert_int_equal(drive_measure(&s, &b.trial, &e), 0);
    assert_int_equal(s.depth, 1);
    assert_int_equal(s.bytes_per_s, s.alone);
    b.trial.io->ops->close(b.trial.io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drive_is_the_disk_below_partitions_and_mappings),
        cmocka_unit_test(files_of_one_directory_are_on_one_drive),
        cmocka_unit_test(the_depth_is_the_least_that_fills_the_drive),
        cmocka_unit_test(a_failed_read_is_named_and_none_is_left_in_flight),
        cmocka_unit_test(a_measurement_without_memory_or_depth_fails_or_is_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
