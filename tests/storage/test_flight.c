/* How many reads in flight: on simulated drives, so always the same answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/drive_notes.h"
#include "storage/flight.h"
#include "storage/io.h"
#include "storage/io_sim.h"

enum { BYTES = 2670592, DEPTH = 32, N = 60, N_FILES = 4 };

static char dir[] = "/tmp/waste-test-XXXXXX", path[64];

struct drives { /* two of them; files 0 and 2 are on the first */
    unsigned char of_file[N_FILES];
    struct drive drive[N_FILES];
    struct extent at[N];
    struct io_sim_config sim;
    struct flight_request q;
    struct io *io;
};

static void open_drives(struct drives *d, const char *first, const char *second)
{
    struct io_config cfg = {.n_files = N_FILES, .depth = DEPTH};
    struct err e;

    *d = (struct drives){.sim = {.source = IO_SIM_NOTHING, .seed = 1}};
    for (unsigned f = 0; f < N_FILES; f++) {
        d->of_file[f] = f % 2;
        d->drive[f].id = 5 + f % 2;
        snprintf(d->drive[f].name, sizeof(d->drive[f].name), "nvme%un1", f % 2);
    }
    for (unsigned i = 0; i < N; i++)
        d->at[i] = (struct extent){
            .file = i % N_FILES, .offset = (uint64_t)i * 3 * BYTES, .length = BYTES};
    d->sim.file_drive = d->of_file;
    assert_int_equal(io_sim_add(&d->sim, first, &e), 0);
    assert_int_equal(io_sim_add(&d->sim, second, &e), 0);
    assert_int_equal(io_sim_open(&d->io, &cfg, &d->sim, &e), 0);
    d->q = (struct flight_request){.notes = path,
                                   .drive = d->drive,
                                   .n_files = N_FILES,
                                   .at = d->at,
                                   .n = N,
                                   .depth_max = DEPTH,
                                   .ns = 500000000,
                                   .io = d->io};
}

static uint64_t reads(const struct drives *d, unsigned drive)
{
    struct io_sim_stats s;

    io_sim_get_stats(d->io, &s);
    return s.drive[drive].reads;
}

static struct flight found(struct drives *d)
{
    struct flight f;
    struct err e;

    if (flight_find(&f, &d->q, &e))
        fail_msg("%s", e.text);
    return f;
}

static void each_drive_is_measured_once_and_the_sum_is_in_flight(void **state)
{
    struct drives d;
    struct flight both, again, alone;
    struct drive_speed s;

    (void)state;
    unlink(path);
    open_drives(&d, "nvme14", "usb");
    both = found(&d);
    assert_int_equal(both.n_drives, 2);
    assert_int_equal(both.n_measured, 2);
    assert_int_equal(both.unkept.code, 0);
    assert_true(reads(&d, 0) && reads(&d, 1));
    d.io->ops->close(d.io);

    open_drives(&d, "nvme14", "usb");
    again = found(&d);
    assert_int_equal(again.depth, both.depth);
    assert_int_equal(again.bytes_per_s, both.bytes_per_s);
    assert_int_equal(again.n_measured, 0);
    assert_int_equal(reads(&d, 0) + reads(&d, 1), 0); /* it was known */
    d.drive[1].id = d.drive[3].id = 9;                /* another drive in its place */
    assert_int_equal(found(&d).n_measured, 1);
    assert_true(!reads(&d, 0) && reads(&d, 1));
    d.io->ops->close(d.io);

    assert_true(drive_note_find(&s, path, &d.drive[0], drive_note_class(BYTES)));
    assert_in_range(s.depth, 3, 8); /* as test_drive.c has it */
    assert_in_range(both.depth - s.depth, 2, 3);
    unlink(path);
    open_drives(&d, "nvme14", "usb");
    d.q.notes = NULL; /* nowhere to keep it */
    alone = found(&d);
    assert_int_equal(alone.depth, both.depth); /* whatever the machine was doing */
    assert_int_equal(access(path, F_OK), -1);
    d.io->ops->close(d.io);
}

static void a_measurement_ends_in_time(void **state)
{
    static const char *const presets[] = {"nvme3", "nvme7", "nvme14", "qlc", "usb"};

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        struct drives d;
        uint64_t slow = strcmp(presets[i], "usb") ? 60000000 : 180000000;

        open_drives(&d, presets[i], presets[i]);
        d.q.notes = NULL;
        assert_true(found(&d).depth >= 4);
        /* Each drive's last depth may begin at the end, and waits for its reads. */
        if (io_sim_now(d.io) > d.q.ns + 2 * slow)
            fail_msg("%s: %u ms", presets[i], (unsigned)(io_sim_now(d.io) / 1000000));
        d.io->ops->close(d.io);
    }
}

static void what_cannot_be_measured_or_kept_is_said(void **state)
{
    struct io_sim_faults away = {.down_drives = 2, .down_ns = {0, UINT64_MAX}};
    struct flight f = {.depth = 77};
    struct drives d;
    struct err e;

    (void)state;
    unlink(path);
    open_drives(&d, "nvme7", "nvme7");
    io_sim_set_faults(d.io, &away);
    assert_int_equal(flight_find(&f, &d.q, &e), ERR_IO);
    assert_int_equal(f.depth, 77);
    io_sim_set_faults(d.io, &(struct io_sim_faults){0});
    d.q.notes = "/proc/nowhere/drives";
    f = found(&d);
    assert_true(f.depth && f.n_measured == 2 && f.unkept.code == ERR_IO);
    d.drive[1].id = 1234; /* a drive that no page is on */
    d.drive[3].id = 1235;
    for (unsigned i = 0; i < N; i++)
        d.at[i].file = d.at[i].file % 2 ? 1 : 0;
    assert_int_equal(flight_find(&f, &d.q, &e), ERR_ARG);
    d.io->ops->close(d.io);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof(path), "%s/drives", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_drive_is_measured_once_and_the_sum_is_in_flight),
        cmocka_unit_test(a_measurement_ends_in_time),
        cmocka_unit_test(what_cannot_be_measured_or_kept_is_said),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
