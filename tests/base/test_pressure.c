#include "base/pressure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>

#define S UINT64_C(1000000000)

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/waste-pressure-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void file(const char *at, const char *text)
{
    char command[256], path[160];
    FILE *f;

    snprintf(path, sizeof(path), "%s%s", root, at);
    snprintf(command, sizeof(command), "mkdir -p $(dirname %s)", path);
    assert_int_equal(system(command), 0);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#define STALL(some, full)                                                                          \
    "some avg10=" some " avg60=0.00 avg300=0.00 total=9\n"                                         \
    "full avg10=" full " avg60=50.00 avg300=50.00 total=9\n"

static void nothing_to_look_at_is_no_pressure(void **state)
{
    struct pressure p;

    (void)state;
    pressure_open(&p, root);
    for (uint64_t t = 0; t < 20; t++)
        assert_false(pressure_look(&p, t * S));
}

static void the_machines_stalls_count_where_there_is_no_cgroup(void **state)
{
    struct pressure p;

    (void)state;
    file("/proc/pressure/memory", STALL("90.00", "0.99"));
    pressure_open(&p, root);
    assert_false(pressure_look(&p, 0));
    file("/proc/pressure/memory", STALL("90.00", "1.01"));
    assert_true(pressure_look(&p, 2 * S));
}

static void a_look_is_taken_every_two_seconds(void **state)
{
    struct pressure p;

    (void)state;
    file("/proc/pressure/memory", STALL("0.00", "20.00"));
    pressure_open(&p, root);
    assert_true(pressure_look(&p, 5 * S));
    assert_false(pressure_look(&p, 5 * S));
    assert_false(pressure_look(&p, 7 * S - 1));
    assert_true(pressure_look(&p, 7 * S));
}

static void the_cgroups_own_stalls_come_before_the_machines(void **state)
{
    struct pressure p;

    (void)state;
    file("/proc/pressure/memory", STALL("90.00", "90.00"));
    file("/proc/self/cgroup", "0::/a/b\n");
    file("/sys/fs/cgroup/cgroup.controllers", "memory\n");
    file("/sys/fs/cgroup/a/b/memory.pressure", STALL("0.00", "0.00"));
    pressure_open(&p, root);
    assert_false(pressure_look(&p, 0));
    file("/sys/fs/cgroup/a/b/memory.pressure", STALL("0.00", "2.00"));
    assert_true(pressure_look(&p, 2 * S));
}

static void a_hit_of_memory_high_counts_once(void **state)
{
    struct pressure p;

    (void)state;
    file("/proc/self/cgroup", "0::/a\n");
    file("/sys/fs/cgroup/cgroup.controllers", "memory\n");
    file("/sys/fs/cgroup/a/memory.events", "low 0\nhigh 7\nmax 0\n");
    pressure_open(&p, root);
    assert_false(pressure_look(&p, 0)); /* before our time */
    file("/sys/fs/cgroup/a/memory.events", "low 0\nhigh 8\nmax 0\n");
    assert_true(pressure_look(&p, 2 * S));
    assert_false(pressure_look(&p, 4 * S));
}

static void files_that_go_away_or_hold_nonsense_say_nothing(void **state)
{
    struct pressure p;

    (void)state;
    file("/proc/self/cgroup", "0::/a\n");
    file("/sys/fs/cgroup/cgroup.controllers", "memory\n");
    file("/sys/fs/cgroup/a/memory.pressure", STALL("0.00", "50.00"));
    file("/sys/fs/cgroup/a/memory.events", "high many\n");
    pressure_open(&p, root);
    file("/sys/fs/cgroup/a/memory.pressure", "full avg10=nan\n");
    assert_false(pressure_look(&p, 0));
    remove_root(NULL);
    assert_false(pressure_look(&p, 2 * S));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        T(nothing_to_look_at_is_no_pressure), T(the_machines_stalls_count_where_there_is_no_cgroup),
        T(a_look_is_taken_every_two_seconds), T(the_cgroups_own_stalls_come_before_the_machines),
        T(a_hit_of_memory_high_counts_once),  T(files_that_go_away_or_hold_nonsense_say_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
