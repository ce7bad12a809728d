#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/machine.h"

#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define MIB        (UINT64_C(1) << 20)
#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* A directory that stands for "/"; every test gets an empty one. */
struct fixture {
    char root[64];
    char what[256];
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (!f)
        return -1;
    strcpy(f->root, "/tmp/test_machine.XXXXXX");
    *state = f;
    return mkdtemp(f->root) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    nftw(f->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f);
    return 0;
}

/* Write text to root/path, making the directories that lead to it. */
static void put(struct fixture *f, const char *path, const char *text)
{
    char full[512];
    FILE *out;

    snprintf(full, sizeof(full), "%s/%s", f->root, path);
    for (char *p = full + strlen(f->root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        if (mkdir(full, 0755) && errno != EEXIST)
            fail_msg("mkdir %s: %s", full, strerror(errno));
        *p = '/';
    }
    out = fopen(full, "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static void self(struct fixture *f, const char *lines)
{
    put(f, "proc/self/cgroup", lines);
}

static uint64_t usable(struct fixture *f)
{
    return machine_usable_ram(f->root, f->what, sizeof(f->what));
}

static void nothing_known_leaves_physical_ram(void **state)
{
    struct fixture *f = *state;

    assert_true(machine_ram() > 64 * MIB); /* or the tests below mean nothing */
    assert_int_equal(usable(f), machine_ram());
    assert_string_equal(f->what, "physical RAM");
}

static void this_machine_is_never_larger_than_its_ram(void **state)
{
    char what[64] = "";
    uint64_t n = machine_usable_ram(NULL, what, sizeof(what));

    (void)state;
    assert_true(n > 0 && n <= machine_ram());
    assert_true(what[0] != '\0');
    assert_int_equal(machine_usable_ram("/", NULL, 0), n);
}

static void v2_limit_of_the_own_cgroup_counts(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/user/job\n");
    put(f, "sys/fs/cgroup/cgroup.controllers", "memory\n");
    put(f, "sys/fs/cgroup/user/job/memory.max", "50331648\n");
    put(f, "sys/fs/cgroup/user/job/memory.high", "max\n");
    put(f, "sys/fs/cgroup/user/memory.max", "max\n");
    assert_int_equal(usable(f), 48 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/user/job/memory.max");
}

static void v2_limit_of_an_ancestor_counts(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/a/b/c\n");
    put(f, "sys/fs/cgroup/a/b/c/memory.max", "62914560\n");
    put(f, "sys/fs/cgroup/a/b/memory.max", "max\n");
    put(f, "sys/fs/cgroup/a/memory.max", "33554432\n");
    assert_int_equal(usable(f), 32 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/a/memory.max");
}

static void v2_memory_high_counts_like_memory_max(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/a\n");
    put(f, "sys/fs/cgroup/a/memory.max", "50331648\n");
    put(f, "sys/fs/cgroup/a/memory.high", "41943040\n");
    assert_int_equal(usable(f), 40 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/a/memory.high");
}

static void v2_limit_at_the_root_of_the_mount_counts(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/\n"); /* a container: its cgroup is the root of what it sees */
    put(f, "sys/fs/cgroup/memory.max", "20971520\n");
    assert_int_equal(usable(f), 20 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/memory.max");
}

static void v2_directories_that_do_not_exist_are_skipped(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/gone/job (deleted)\n");
    put(f, "sys/fs/cgroup/gone/memory.high", "20971520\n");
    assert_int_equal(usable(f), 20 * MIB);
}

static void dots_never_climb_above_the_mount(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/../../x/./y/../z\n"); /* as seen from another cgroup namespace */
    put(f, "sys/fs/memory.max", "1048576\n");
    put(f, "sys/memory.max", "1048576\n");
    put(f, "sys/fs/cgroup/x/y/memory.max", "1048576\n");
    put(f, "sys/fs/cgroup/x/z/memory.max", "52428800\n");
    put(f, "sys/fs/cgroup/memory.max", "62914560\n");
    assert_int_equal(usable(f), 50 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/x/z/memory.max");

    self(f, "0::/../..\n");
    assert_int_equal(usable(f), 60 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/memory.max");
}

static void limits_that_make_no_sense_do_not_limit(void **state)
{
    static const char *const bad[] = {
        "max\n",
        "",
        "\n",
        "0\n",
        "-1\n",
        "1e6\n",
        "1048576 bytes\n",
        " 1048576\n",
        "0x100000\n",
        "9223372036854771712\n",
        "18446744073709551615\n",
        "99999999999999999999999\n",
        "1152921504606846976\n",
        "unlimited\n",
    };
    struct fixture *f = *state;

    self(f, "0::/a\n");
    for (size_t i = 0; i < N_ELEMS(bad); i++) {
        put(f, "sys/fs/cgroup/a/memory.max", bad[i]);
        assert_int_equal(usable(f), machine_ram());
        assert_string_equal(f->what, "physical RAM");
    }
    put(f, "sys/fs/cgroup/a/memory.max", "1048576"); /* no newline is fine */
    assert_int_equal(usable(f), MIB);
}

static void cgroup_files_that_make_no_sense_do_not_limit(void **state)
{
    static const char *const bad[] = {
        "",       "\n",      "0\n",        "0:\n",      "0::\n",    "0::a\n",
        "::/a\n", "1::/a\n", "0:memory\n", "garbage\n", "0:x:/a\n", "00::/a\n",
    };
    struct fixture *f = *state;

    put(f, "sys/fs/cgroup/a/memory.max", "1048576\n");
    for (size_t i = 0; i < N_ELEMS(bad); i++) {
        self(f, bad[i]);
        assert_int_equal(usable(f), machine_ram());
    }
    self(f, "garbage\n0::/a"); /* a bad line does not hide a good one */
    assert_int_equal(usable(f), MIB);
}

static void a_cgroup_path_may_be_as_long_as_the_kernel_likes(void **state)
{
    struct fixture *f = *state;
    size_t n = 9000;
    char *line = malloc(n + 8);

    assert_non_null(line);
    memcpy(line, "0::/", 4);
    for (size_t i = 4; i < n; i++)
        line[i] = i % 100 ? 'a' : '/';
    strcpy(line + n, "\n");
    self(f, line);
    free(line);
    put(f, "sys/fs/cgroup/memory.max", "1048576\n");
    assert_int_equal(usable(f), machine_ram()); /* not understood, so no limit; and no crash */
}

static void v1_limits_of_the_hierarchy_count(void **state)
{
    struct fixture *f = *state;

    self(f, "12:cpuset:/\n4:cpu,memory:/docker/abc\n1:name=systemd:/x\n");
    put(f, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put(f, "sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "31457280\n");
    put(f, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(usable(f), 30 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes");
}

static void v1_ancestors_that_do_not_count_descendants_do_not_limit(void **state)
{
    struct fixture *f = *state;

    self(f, "4:memory:/a/b\n");
    put(f, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "50331648\n");
    put(f, "sys/fs/cgroup/memory/a/b/memory.use_hierarchy", "0\n");
    put(f, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "31457280\n");
    put(f, "sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
    put(f, "sys/fs/cgroup/memory/memory.limit_in_bytes", "41943040\n");
    put(f, "sys/fs/cgroup/memory/memory.use_hierarchy", "1\n");
    assert_int_equal(usable(f), 40 * MIB);
}

static void v1_container_that_sees_its_cgroup_as_the_root_is_limited(void **state)
{
    struct fixture *f = *state;

    self(f, "4:memory:/docker/abc\n");
    put(f, "sys/fs/cgroup/memory/memory.limit_in_bytes", "31457280\n");
    put(f, "sys/fs/cgroup/memory/memory.use_hierarchy", "0\n");
    assert_int_equal(usable(f), 30 * MIB);
}

static void controllers_are_whole_words(void **state)
{
    struct fixture *f = *state;

    self(f, "4:memoryx,xmemory:/a\n3:name=memory:/a\n");
    put(f, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1048576\n");
    assert_int_equal(usable(f), machine_ram());
    self(f, "4:cpu,memory,pids:/a\n");
    assert_int_equal(usable(f), MIB);
}

static void hybrid_takes_the_smaller_of_both_trees(void **state)
{
    struct fixture *f = *state;

    self(f, "4:memory:/a\n0::/b\n");
    put(f, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "31457280\n");
    put(f, "sys/fs/cgroup/unified/b/memory.max", "41943040\n");
    put(f, "sys/fs/cgroup/b/memory.max", "1048576\n"); /* not a cgroup: the v2 tree is elsewhere */
    assert_int_equal(usable(f), 30 * MIB);
    put(f, "sys/fs/cgroup/unified/b/memory.high", "20971520\n");
    assert_int_equal(usable(f), 20 * MIB);
    assert_string_equal(f->what, "/sys/fs/cgroup/unified/b/memory.high");
}

static void a_cgroup_called_unified_is_only_a_name_under_pure_v2(void **state)
{
    struct fixture *f = *state;

    self(f, "0::/unified/x\n");
    put(f, "sys/fs/cgroup/cgroup.controllers", "memory\n");
    put(f, "sys/fs/cgroup/unified/x/memory.max", "20971520\n");
    assert_int_equal(usable(f), 20 * MIB);
}

static void a_short_text_for_the_reason_is_cut_not_overrun(void **state)
{
    struct fixture *f = *state;
    char what[8] = "1234567";

    self(f, "0::/a\n");
    put(f, "sys/fs/cgroup/a/memory.max", "1048576\n");
    assert_int_equal(machine_usable_ram(f->root, what, 5), MIB);
    assert_string_equal(what, "/sys");
    assert_int_equal(what[5], '6');
    assert_int_equal(machine_usable_ram(f->root, NULL, 0), MIB);
}

static void quota_is_rounded_up_and_the_tightest_counts(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(machine_quota_cores(f->root), 0);
    self(f, "0::/a/b\n");
    assert_int_equal(machine_quota_cores(f->root), 0);
    put(f, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(machine_quota_cores(f->root), 0);
    put(f, "sys/fs/cgroup/a/cpu.max", "400000 100000\n");
    assert_int_equal(machine_quota_cores(f->root), 4);
    put(f, "sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    assert_int_equal(machine_quota_cores(f->root), 2);
    put(f, "sys/fs/cgroup/cpu.max", "1000 100000\n");
    assert_int_equal(machine_quota_cores(f->root), 1);
}

static void a_quota_of_v1_counts_beside_one_of_v2(void **state)
{
    struct fixture *f = *state;

    self(f, "4:cpu,cpuacct:/j/k\n0::/a\n");
    put(f, "sys/fs/cgroup/cpu/j/k/cpu.cfs_quota_us", "-1\n");
    put(f, "sys/fs/cgroup/cpu/j/k/cpu.cfs_period_us", "100000\n");
    assert_int_equal(machine_quota_percent(f->root), 0);
    put(f, "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us", "150000\n");
    assert_int_equal(machine_quota_percent(f->root), 0); /* a quota of what? */
    put(f, "sys/fs/cgroup/cpu/j/cpu.cfs_period_us", "100000\n");
    assert_int_equal(machine_quota_percent(f->root), 150);
    assert_int_equal(machine_quota_cores(f->root), 2);
    put(f, "sys/fs/cgroup/unified/a/cpu.max", "100001 100000\n");
    assert_int_equal(machine_quota_percent(f->root), 101);
    put(f, "sys/fs/cgroup/cpu/j/k/cpu.cfs_quota_us", "50000\n");
    assert_int_equal(machine_quota_percent(f->root), 50);
}

static void quotas_that_make_no_sense_do_not_limit(void **state)
{
    static const char *const bad[] = {
        "",
        "max",
        "100000",
        "100000 ",
        "100000 0",
        "0 100000",
        "100000 100000 1",
        "1.5 1",
        "-1 100000",
        "99999999999999999999 1",
        "18446744073709551615 1",
    };
    struct fixture *f = *state;

    self(f, "0::/a\n");
    for (size_t i = 0; i < N_ELEMS(bad); i++) {
        put(f, "sys/fs/cgroup/a/cpu.max", bad[i]);
        assert_int_equal(machine_quota_cores(f->root), 0);
    }
}

static void cores_follow_the_affinity_mask(void **state)
{
    cpu_set_t before, one;
    unsigned cpu = 0;

    (void)state;
    assert_true(machine_cores() >= 1);
    if (sched_getaffinity(0, sizeof(before), &before))
        skip(); /* more CPUs than a cpu_set_t holds */
    assert_true(machine_cores() <= (unsigned)CPU_COUNT(&before));
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(machine_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

struct bound { /* what a thread found after it bound itself */
    unsigned cpu;
    int rc, count;
    bool there;
};

static void *bind_and_look(void *arg)
{
    struct bound *b = arg;
    cpu_set_t set;
    struct err e;

    b->rc = machine_bind_thread(b->cpu, &e);
    CPU_ZERO(&set);
    pthread_getaffinity_np(pthread_self(), sizeof(set), &set);
    b->count = CPU_COUNT(&set);
    b->there = CPU_ISSET(b->cpu, &set);
    return NULL;
}

static void binding_moves_the_calling_thread_and_no_other(void **state)
{
    struct bound b = {0};
    cpu_set_t before, after;
    pthread_t thread;

    (void)state;
    if (sched_getaffinity(0, sizeof(before), &before))
        skip();
    while (!CPU_ISSET(b.cpu, &before))
        b.cpu++;
    assert_int_equal(pthread_create(&thread, NULL, bind_and_look, &b), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (b.rc == ERR_UNSUPPORTED)
        skip(); /* a sandbox that forbids it */
    assert_int_equal(b.rc, 0);
    assert_int_equal(b.count, 1);
    assert_true(b.there);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void binding_to_a_cpu_that_is_not_there_is_refused(void **state)
{
    struct err e = {0};
    int rc;

    (void)state;
    assert_int_equal(machine_bind_thread(CPU_LIST_MAX, &e), ERR_ARG);
    assert_non_null(strstr(e.text, "1024"));
    if (sysconf(_SC_NPROCESSORS_CONF) >= CPU_LIST_MAX)
        skip();
    rc = machine_bind_thread(CPU_LIST_MAX - 1, &e);
    assert_true(rc == ERR_ARG || rc == ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "1023"));
}

static void cpu_lists_are_read(void **state)
{
    static const struct {
        const char *text;
        unsigned n, first, last;
    } good[] = {
        {"0", 1, 0, 0},
        {"7", 1, 7, 7},
        {"1023", 1, 1023, 1023},
        {"0-3", 4, 0, 3},
        {"0-3,8", 5, 0, 8},
        {"3-3", 1, 3, 3},
        {"8,0-3", 5, 0, 8},
        {"1,1,1", 1, 1, 1},
        {"0-3,2-5", 6, 0, 5},
        {" 0 - 3 , 8 ", 5, 0, 8},
        {"   4", 1, 4, 4},
        {"4   ", 1, 4, 4},
        {"0-1023", 1024, 0, 1023},
        {"007", 1, 7, 7},
        {"0000000000000000000000000012", 1, 12, 12},
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(good); i++) {
        struct cpu_list list;
        struct err e;

        if (cpu_list_parse(&list, good[i].text, &e))
            fail_msg("\"%s\": %s", good[i].text, e.text);
        assert_int_equal(list.n, good[i].n);
        assert_int_equal(list.cpu[0], good[i].first);
        assert_int_equal(list.cpu[list.n - 1], good[i].last);
        for (unsigned k = 1; k < list.n; k++)
            assert_true(list.cpu[k - 1] < list.cpu[k]);
    }
}

static void cpu_lists_that_are_none_are_refused_and_change_nothing(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        ",",
        "0,",
        ",0",
        "0,,1",
        "0, ,1",
        "0-",
        "-0",
        "-",
        "3-1",
        "0..3",
        "0 3",
        "0-1 2",
        "0-1-2",
        "a",
        "0a",
        "0x1",
        "+1",
        "-1",
        "1.5",
        "0;1",
        "1024",
        "0-1024",
        "1023-1024",
        "99999999999999999999999",
        "0-99999999999999999999999",
        "all",
        "0\t-1",
        "0\n",
        "0--1",
        "\xff",
    };

    (void)state;
    for (size_t i = 0; i < N_ELEMS(bad); i++) {
        struct cpu_list list = {.n = 77, .cpu = {5}};
        struct err e = {0};

        if (cpu_list_parse(&list, bad[i], &e) != ERR_ARG)
            fail_msg("\"%s\" was accepted", bad[i]);
        assert_int_equal(e.code, ERR_ARG);
        assert_true(e.text[0] != '\0');
        assert_int_equal(list.n, 77);
        assert_int_equal(list.cpu[0], 5);
    }
}

static void a_refused_cpu_list_says_what_and_where(void **state)
{
    struct cpu_list list;
    struct err e;

    (void)state;
    assert_int_equal(cpu_list_parse(&list, NULL, &e), ERR_ARG);
    cpu_list_parse(&list, "0-3,", &e);
    assert_string_equal(e.text, "cpu list \"0-3,\": ends where a number is expected");
    cpu_list_parse(&list, "0..3", &e);
    assert_string_equal(e.text, "cpu list \"0..3\": byte 1: '.' where a comma is expected");
    cpu_list_parse(&list, "5-2", &e);
    assert_string_equal(e.text, "cpu list \"5-2\": 5-2 runs backwards");
    cpu_list_parse(&list, "2,5000", &e);
    assert_string_equal(e.text, "cpu list \"2,5000\": cpu 5000 is out of range 0...1023");
}

#define WITH_ROOT(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(nothing_known_leaves_physical_ram),
        cmocka_unit_test(this_machine_is_never_larger_than_its_ram),
        WITH_ROOT(v2_limit_of_the_own_cgroup_counts),
        WITH_ROOT(v2_limit_of_an_ancestor_counts),
        WITH_ROOT(v2_memory_high_counts_like_memory_max),
        WITH_ROOT(v2_limit_at_the_root_of_the_mount_counts),
        WITH_ROOT(v2_directories_that_do_not_exist_are_skipped),
        WITH_ROOT(dots_never_climb_above_the_mount),
        WITH_ROOT(limits_that_make_no_sense_do_not_limit),
        WITH_ROOT(cgroup_files_that_make_no_sense_do_not_limit),
        WITH_ROOT(a_cgroup_path_may_be_as_long_as_the_kernel_likes),
        WITH_ROOT(v1_limits_of_the_hierarchy_count),
        WITH_ROOT(v1_ancestors_that_do_not_count_descendants_do_not_limit),
        WITH_ROOT(v1_container_that_sees_its_cgroup_as_the_root_is_limited),
        WITH_ROOT(controllers_are_whole_words),
        WITH_ROOT(hybrid_takes_the_smaller_of_both_trees),
        WITH_ROOT(a_cgroup_called_unified_is_only_a_name_under_pure_v2),
        WITH_ROOT(a_short_text_for_the_reason_is_cut_not_overrun),
        WITH_ROOT(quota_is_rounded_up_and_the_tightest_counts),
        WITH_ROOT(a_quota_of_v1_counts_beside_one_of_v2),
        WITH_ROOT(quotas_that_make_no_sense_do_not_limit),
        cmocka_unit_test(cores_follow_the_affinity_mask),
        cmocka_unit_test(binding_moves_the_calling_thread_and_no_other),
        cmocka_unit_test(binding_to_a_cpu_that_is_not_there_is_refused),
        cmocka_unit_test(cpu_lists_are_read),
        cmocka_unit_test(cpu_lists_that_are_none_are_refused_and_change_nothing),
        cmocka_unit_test(a_refused_cpu_list_says_what_and_where),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
