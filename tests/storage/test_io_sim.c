/* The simulated drives: what is exact is tested as such, chance by its mean. The bytes are tested
 * with those of every engine, in test_io.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <string.h>

#include <cmocka.h>

#include "storage/io_sim.h"

enum { MIB = 1 << 20, DEPTH = 16, N_FILES = 4, US = 1000, MS = 1000000 };

/* 1 GB/s, up to half of it for one read, 100 us, four at a time: times one can do in the head. */
static const struct io_sim_drive plain = {
    .bytes_per_s = 1000000000, .read_bytes_per_s = 500000000, .latency_ns = 100 * US, .lanes = 4};

struct fixture {
    struct io_sim_config sim;
    struct io *io;
    struct io_read read[DEPTH], *start[DEPTH], *done[DEPTH];
};

static void open_drives(struct fixture *f, unsigned n_drives)
{
    struct io_config cfg = {.n_files = N_FILES, .depth = DEPTH};
    struct err e;

    f->sim.n_drives = n_drives;
    for (unsigned i = 0; i < n_drives; i++)
        if (!f->sim.drive[i].lanes)
            f->sim.drive[i] = plain;
    if (f->sim.source == IO_SIM_FILES) /* there are none */
        f->sim.source = IO_SIM_NOTHING;
    if (io_sim_open(&f->io, &cfg, &f->sim, &e))
        fail_msg("%s", e.text);
}

/* n reads of this many bytes, one after the other through file 0. */
static void submit(struct fixture *f, unsigned n, uint32_t bytes)
{
    for (unsigned i = 0; i < n; i++) {
        f->read[i] = (struct io_read){.at = {.offset = (uint64_t)i * bytes, .length = bytes}};
        f->start[i] = &f->read[i];
    }
    assert_int_equal(f->io->ops->submit(f->io, f->start, n), n);
}

static unsigned reap(struct fixture *f, bool wait)
{
    return f->io->ops->reap(f->io, f->done, DEPTH, wait);
}

static uint64_t read_all(struct fixture *f, unsigned n, uint32_t bytes)
{
    uint64_t before = io_sim_now(f->io);

    submit(f, n, bytes);
    while (n)
        n -= reap(f, true);
    return io_sim_now(f->io) - before;
}

static void close_drives(struct fixture *f)
{
    f->io->ops->close(f->io);
    f->io = NULL;
}

static void a_read_takes_its_latency_and_its_share_of_the_bandwidth(void **state)
{
    struct fixture f = {.io = NULL};
    uint64_t half = 2 * 1000 * 4096ull; /* ns for 4 MB / 1000 of 4096 bytes at half a GB/s */

    (void)state;
    open_drives(&f, 1);
    assert_int_equal(read_all(&f, 1, 1000 * 4096), 100 * US + half);
    assert_int_equal(read_all(&f, 2, 1000 * 4096), 100 * US + half); /* half for each */
    assert_int_equal(read_all(&f, 4, 1000 * 4096), 100 * US + 2 * half);
    /* Four lanes: the next four begin when the first four are over. */
    assert_int_equal(read_all(&f, 8, 1000 * 4096), 2 * (100 * US + 2 * half));
    close_drives(&f);
}

/* One is half done when a second joins, and gets what the other leaves when that is over. */
static void shares_change_when_reads_come_and_go(void **state)
{
    struct fixture f = {.io = NULL};
    struct io_read late = {.at = {.length = 1000 * 4096}}, *start = &late;

    (void)state;
    f.sim.drive[0] = plain;
    f.sim.drive[0].read_bytes_per_s = plain.bytes_per_s;
    f.sim.drive[0].latency_ns = 0;
    open_drives(&f, 1);
    submit(&f, 1, 1000 * 4096); /* 4096 us alone */
    io_sim_advance(f.io, 2048 * US);
    assert_int_equal(f.io->ops->submit(f.io, &start, 1), 1);
    assert_int_equal(reap(&f, true), 1);
    assert_ptr_equal(f.done[0], &f.read[0]);
    assert_int_equal(io_sim_now(f.io), (2048 + 4096) * US);
    assert_int_equal(reap(&f, true), 1);
    assert_int_equal(io_sim_now(f.io), (4096 + 4096) * US);
    close_drives(&f);
}

static void only_what_computing_does_not_hide_is_waited_for(void **state)
{
    struct fixture f = {.io = NULL};
    struct io_sim_stats s;
    uint64_t whole = 100 * US + 2 * 4096 * 1000;

    (void)state;
    open_drives(&f, 1);
    submit(&f, 1, 1000 * 4096);
    io_sim_advance(f.io, whole - 1);
    assert_int_equal(reap(&f, false), 0);
    io_sim_advance(f.io, 1);
    assert_int_equal(reap(&f, false), 1);
    submit(&f, 1, 1000 * 4096);
    io_sim_advance(f.io, 1000);
    assert_int_equal(reap(&f, true), 1);
    assert_int_equal(reap(&f, true), 0); /* nothing in flight: no time passes */
    io_sim_advance(f.io, 5 * MS);
    io_sim_get_stats(f.io, &s);
    assert_int_equal(s.waited_ns, whole - 1000);
    assert_int_equal(s.drive[0].busy_ns, 2 * whole);
    assert_int_equal(s.drive[0].latency_ns, 2 * whole);
    assert_int_equal(io_sim_now(f.io), 2 * whole + 5 * MS);
    assert_int_equal(s.reads, 2);
    assert_int_equal(s.bytes, 2 * 1000 * 4096);
    close_drives(&f);
}

static void drives_work_side_by_side(void **state)
{
    static const unsigned char file_drive[N_FILES] = {0, 1, 2, 1};
    struct fixture f = {.io = NULL};
    struct io_sim_stats s;
    uint64_t one = 100 * US + 2 * 1000 * 4096;

    (void)state;
    f.sim.stripe_bytes = 1000 * 4096;
    open_drives(&f, 2);
    assert_int_equal(read_all(&f, 4, 1000 * 4096), one); /* two each */
    f.io->ops->close(f.io);

    f.sim.file_drive = file_drive;
    f.sim.stripe_bytes = 0;
    open_drives(&f, 2);
    for (unsigned i = 0; i < N_FILES; i++) {
        f.read[i] = (struct io_read){.at = {.length = 1000 * 4096, .file = i}};
        f.start[i] = &f.read[i];
    }
    assert_int_equal(f.io->ops->submit(f.io, f.start, N_FILES), N_FILES);
    for (unsigned n = 0; n < N_FILES;)
        n += reap(&f, true);
    io_sim_get_stats(f.io, &s);
    assert_int_equal(s.drive[0].reads, 2); /* files 0 and 2: there are two drives */
    assert_int_equal(s.drive[1].bytes, 2 * 1000 * 4096);
    assert_int_equal(io_sim_now(f.io), one);
    close_drives(&f);
}

/* A workload with computing and tails; its times as one number. */
static uint64_t digest(uint64_t seed, const struct io_sim_faults *faults)
{
    struct fixture f = {.sim = {.seed = seed, .stripe_bytes = MIB}};
    uint64_t sum = 0;
    struct err e;

    assert_int_equal(io_sim_add(&f.sim, "nvme28", &e), 0);
    assert_int_equal(io_sim_add(&f.sim, "qlc", &e), 0);
    open_drives(&f, 3);
    io_sim_set_faults(f.io, faults);
    for (unsigned round = 0; round < 50; round++) {
        unsigned n = 1 + round % DEPTH;

        submit(&f, n, (1 + round % 3) * MIB);
        io_sim_advance(f.io, round * 10 * US);
        while (n) {
            unsigned got = reap(&f, true);

            for (unsigned i = 0; i < got; i++)
                sum = (sum + (uint64_t)(f.done[i] - f.read) + (unsigned)f.done[i]->status) * 31 +
                      io_sim_now(f.io);
            n -= got;
        }
    }
    close_drives(&f);
    return sum;
}

static void the_same_calls_take_the_same_time_and_another_seed_another(void **state)
{
    const struct io_sim_faults none = {.fail_nth = 0}, late = {.fail_nth = 400};
    const struct io_sim_faults disorder = {.reorder = true};

    (void)state;
    assert_true(digest(1, &none) == digest(1, &none));
    assert_true(digest(1, &none) != digest(2, &none));
    assert_true(digest(1, &none) != digest(1, &late));
    assert_true(digest(1, &disorder) == digest(1, &disorder));
}

static void tails_are_as_many_and_as_long_as_asked_for(void **state)
{
    struct fixture f = {.sim = {.seed = 7}};
    unsigned n_tails = 0;
    double sum = 0, above = 0;

    (void)state;
    f.sim.drive[0] = plain;
    f.sim.drive[0].tail_ns = 10 * MS;
    f.sim.drive[0].tail_per_mille = 200;
    open_drives(&f, 1);
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t tail = read_all(&f, 1, 4096) - 100 * US - 2 * 4096;

        n_tails += tail > 0;
        sum += (double)tail;
        above += tail > 30 * MS;
    }
    assert_in_range(n_tails, 3800, 4200);
    assert_in_range((uint64_t)(sum / n_tails), 9.5 * MS, 11 * MS); /* 4 % too long by its making */
    assert_in_range((uint64_t)(above / n_tails * 1000), 40, 65);   /* e^-3 is 50 */
    close_drives(&f);
}

static void what_is_to_go_wrong_does(void **state)
{
    struct io_sim_faults faults = {.fail_nth = 3};
    struct fixture f = {.io = NULL};
    struct io_sim_stats s;
    uint64_t now, right;

    (void)state;
    open_drives(&f, 2);
    io_sim_set_faults(f.io, &faults);
    right = read_all(&f, 4, 4096);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(f.read[i].status, i == 2 ? -EIO : 0);

    now = io_sim_now(f.io); /* drive 0 is away for 10 ms; drive 1 has no reads here */
    faults = (struct io_sim_faults){.down_drives = 1, .down_ns = {now + MS, now + 11 * MS}};
    io_sim_set_faults(f.io, &faults);
    for (unsigned i = 0; io_sim_now(f.io) < now + 20 * MS; i++) {
        bool down;

        read_all(&f, 1, 4096);
        down = io_sim_now(f.io) >= now + MS && io_sim_now(f.io) < now + 11 * MS;
        assert_int_equal(f.read[0].status, down ? -EIO : 0);
    }
    faults.down_drives = 2;
    faults.down_ns[0] = 0;
    faults.down_ns[1] = UINT64_MAX;
    io_sim_set_faults(f.io, &faults);
    read_all(&f, 1, 4096);
    assert_int_equal(f.read[0].status, 0);
    io_sim_get_stats(f.io, &s);
    assert_in_range(s.failed, 50, 100);

    faults = (struct io_sim_faults){.delay_per_mille = 1000, .delay_ns = 50 * MS};
    io_sim_set_faults(f.io, &faults);
    now = read_all(&f, 4, 4096);
    assert_in_range(now, right + 1, right + 50 * MS);
    close_drives(&f);
}

static void reads_that_wait_for_a_lane_come_in_order_or_in_any(void **state)
{
    (void)state;
    for (unsigned any = 0; any < 2; any++) {
        struct io_sim_faults faults = {.reorder = any};
        struct fixture f = {.io = NULL};
        unsigned n = 0, backwards = 0;
        bool seen[DEPTH] = {false};

        f.sim.drive[0] = plain;
        f.sim.drive[0].lanes = 1;
        open_drives(&f, 1);
        io_sim_set_faults(f.io, &faults);
        submit(&f, DEPTH, 4096);
        for (ptrdiff_t last = -1; n < DEPTH; n++) {
            assert_int_equal(f.io->ops->reap(f.io, f.done, 1, true), 1);
            backwards += f.done[0] - f.read < last;
            last = f.done[0] - f.read;
            assert_false(seen[last]);
            seen[last] = true;
        }
        assert_int_equal(!!backwards, any);
        close_drives(&f);
    }
}

static void bytes_follow_from_the_seed_or_are_left_alone(void **state)
{
    static _Alignas(IO_ALIGN) unsigned char a[2 * 4096], b[4096];
    struct io_read whole = {.at = {.offset = 4096, .length = 8192, .file = 1}, .dst = a};
    struct io_read half = {.at = {.offset = 8192, .length = 4096, .file = 1}, .dst = b};
    struct io_read *start[] = {&whole, &half};

    (void)state;
    for (unsigned touched = 0; touched < 2; touched++) {
        struct fixture f = {.sim = {.source = touched ? IO_SIM_SEED : IO_SIM_NOTHING}};

        memset(a, 0x11, sizeof(a));
        memset(b, 0x22, sizeof(b));
        open_drives(&f, 1);
        assert_int_equal(f.io->ops->submit(f.io, start, 2), 2);
        for (unsigned n = 0; n < 2;)
            n += reap(&f, true);
        if (touched)
            assert_memory_equal(a + 4096, b, sizeof(b));
        assert_int_equal(memcmp(a, a + 4096, 4096) != 0, touched);
        assert_int_equal(b[0] == 0x22 && b[1] == 0x22 && b[4095] == 0x22, !touched);
        close_drives(&f);
    }
}

/* At depth a drive gives its bandwidth, alone a part of it. */
static void presets_reach_what_their_names_say(void **state)
{
    static const double gbps[] = {3.5, 7, 14, 28, 2.4, 1};

    (void)state;
    for (unsigned i = 0; io_sim_presets()[i]; i++) {
        struct fixture f = {.sim = {.stripe_bytes = 4 * MIB}};
        uint64_t alone = 0, deep = 0;
        struct err e;

        assert_true(i < sizeof(gbps) / sizeof(gbps[0]));
        assert_int_equal(io_sim_add(&f.sim, io_sim_presets()[i], &e), 0);
        for (unsigned k = 0; k < f.sim.n_drives; k++)
            f.sim.drive[k].tail_per_mille = 0; /* of chance above */
        open_drives(&f, f.sim.n_drives);
        for (unsigned k = 0; k < 32; k++)
            alone += read_all(&f, 1, 4 * MIB);
        deep = read_all(&f, DEPTH, 4 * MIB);
        assert_true(DEPTH * 4.0 * MIB / (double)deep < gbps[i]);
        assert_true(DEPTH * 4.0 * MIB / (double)deep > 0.85 * gbps[i]);
        assert_true(32 * 4.0 * MIB / (double)alone < 0.95 * gbps[i]);
        close_drives(&f);
    }
}

static void what_cannot_be_simulated_is_refused_by_name(void **state)
{
    struct io_config cfg = {.n_files = 1, .depth = 1};
    struct io_sim_config sim = {.n_drives = 0};
    struct io *io = NULL;
    struct err e;

    (void)state;
    assert_int_equal(io_sim_add(&sim, "floppy", &e), ERR_ARG);
    assert_string_equal(e.text, "drive model floppy: there are nvme3, nvme7, nvme14, nvme28, qlc, "
                                "usb");
    assert_int_equal(io_sim_open(&io, &cfg, &sim, &e), ERR_ARG);
    for (unsigned i = 0; i < IO_SIM_DRIVES_MAX - 1; i++)
        assert_int_equal(io_sim_add(&sim, "usb", &e), 0);
    assert_int_equal(io_sim_add(&sim, "nvme28", &e), ERR_ARG); /* two */
    assert_int_equal(sim.n_drives, IO_SIM_DRIVES_MAX - 1);
    sim.drive[4].lanes = 0;
    assert_int_equal(io_sim_open(&io, &cfg, &sim, &e), ERR_ARG);
    assert_string_equal(e.text, "sim: drive 4 has no lanes");
    sim.drive[4].lanes = 1;
    sim.drive[4].bytes_per_s = 0;
    assert_int_equal(io_sim_open(&io, &cfg, &sim, &e), ERR_ARG);
    assert_int_equal(io_ops_sim.open(&io, &cfg, &e), ERR_UNSUPPORTED);
    assert_null(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_takes_its_latency_and_its_share_of_the_bandwidth),
        cmocka_unit_test(shares_change_when_reads_come_and_go),
        cmocka_unit_test(only_what_computing_does_not_hide_is_waited_for),
        cmocka_unit_test(drives_work_side_by_side),
        cmocka_unit_test(the_same_calls_take_the_same_time_and_another_seed_another),
        cmocka_unit_test(tails_are_as_many_and_as_long_as_asked_for),
        cmocka_unit_test(what_is_to_go_wrong_does),
        cmocka_unit_test(reads_that_wait_for_a_lane_come_in_order_or_in_any),
        cmocka_unit_test(bytes_follow_from_the_seed_or_are_left_alone),
        cmocka_unit_test(presets_reach_what_their_names_say),
        cmocka_unit_test(what_cannot_be_simulated_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
