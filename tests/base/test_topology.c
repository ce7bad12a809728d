/* test_topology.c - machines made up of files or of words, as both readers see them. */
#include "base/topology.h"

#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static char root[64];
static struct topology t;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/test_topology.XXXXXX");
    memset(&t, 0xff, sizeof(t));
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

__attribute__((format(printf, 2, 3))) static void put(const char *text, const char *format, ...)
{
    char path[512];
    va_list args;
    int n = snprintf(path, sizeof(path), "%s/sys/devices/", root);
    FILE *f;

    va_start(args, format);
    vsnprintf(path + n, sizeof(path) - (size_t)n, format, args);
    va_end(args);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (mkdir(path, 0755) && errno != EEXIST)
            fail_msg("mkdir %s: %s", path, strerror(errno));
        *p = '/';
    }
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void cpu(unsigned n, const char *siblings, const char *l3)
{
    put(siblings, "system/cpu/cpu%u/topology/core_cpus_list", n);
    put("1\n", "system/cpu/cpu%u/cache/index0/level", n);
    put(siblings, "system/cpu/cpu%u/cache/index0/shared_cpu_list", n);
    if (l3) {
        put("3\n", "system/cpu/cpu%u/cache/index3/level", n);
        put(l3, "system/cpu/cpu%u/cache/index3/shared_cpu_list", n);
    }
}

static void expect(unsigned i, unsigned number, unsigned core, unsigned cache, unsigned node,
                   unsigned kind)
{
    const struct topology_cpu *c = &t.cpu[i];

    if (c->cpu != number || c->core != core || c->cache != cache || c->node != node ||
        c->kind != kind)
        fail_msg("entry %u: CPU %u core %u cache %u node %u kind %u; want %u %u %u %u %u", i,
                 c->cpu, c->core, c->cache, c->node, c->kind, number, core, cache, node, kind);
}

static void sockets_caches_and_siblings_are_told_apart(void **state)
{
    (void)state;
    put("0-7\n", "system/cpu/online");
    put("0-1,4-5\n", "system/node/node0/cpulist");
    put("2-3,6-7\n", "system/node/node1/cpulist");
    put("\n", "system/node/node2/cpulist"); /* memory alone */
    for (unsigned i = 0; i < 8; i++) {
        static const char *const pair[] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};

        cpu(i, pair[i % 4], i % 4 < 2 ? "0-1,4-5\n" : "2-3,6-7\n");
    }
    assert_true(topology_read(&t, root));
    assert_int_equal(t.n, 8);
    for (unsigned i = 0; i < 8; i++)
        expect(i, i, i % 4, i % 4 < 2 ? 0 : 2, i % 4 >= 2, 0);
}

static void what_is_offline_is_not_there(void **state)
{
    (void)state;
    put("1,3\n", "system/cpu/online");
    cpu(0, "0-1\n", NULL); /* its files may stay */
    cpu(1, "1\n", NULL);
    cpu(3, "3\n", NULL);
    assert_true(topology_read(&t, root));
    assert_int_equal(t.n, 2);
    expect(0, 1, 1, TOPOLOGY_UNKNOWN, TOPOLOGY_UNKNOWN, 0);
    expect(1, 3, 3, TOPOLOGY_UNKNOWN, TOPOLOGY_UNKNOWN, 0);
}

static void small_cores_are_known_by_list_or_by_capacity(void **state)
{
    (void)state;
    put("0-3\n", "system/cpu/online");
    put("2-3\n", "cpu_atom/cpus");
    assert_true(topology_read(&t, root));
    expect(1, 1, 1, TOPOLOGY_UNKNOWN, TOPOLOGY_UNKNOWN, 0);
    expect(2, 2, 2, TOPOLOGY_UNKNOWN, TOPOLOGY_UNKNOWN, 1);
    put("\n", "cpu_atom/cpus");
    put("446\n", "system/cpu/cpu0/cpu_capacity");
    put("1024\n", "system/cpu/cpu1/cpu_capacity");
    put("1009\n", "system/cpu/cpu2/cpu_capacity"); /* a better piece of silicon is no other kind */
    put("1024\n", "system/cpu/cpu3/cpu_capacity");
    assert_true(topology_read(&t, root));
    for (unsigned i = 0; i < 4; i++)
        expect(i, i, i, TOPOLOGY_UNKNOWN, TOPOLOGY_UNKNOWN, i == 0);
}

static void older_kernels_say_thread_siblings(void **state)
{
    (void)state;
    put("0-1\n", "system/cpu/online");
    put("0-1\n", "system/cpu/cpu0/topology/thread_siblings_list");
    put("0-1\n", "system/cpu/cpu1/topology/thread_siblings_list");
    assert_true(topology_read(&t, root));
    expect(1, 1, 0, TOPOLOGY_UNKNOWN, TOPOLOGY_UNKNOWN, 0);
}

static void a_machine_that_makes_no_sense_is_unknown(void **state)
{
    static const char *const bad[] = {"", "\n", "0-\n", "x\n", "0-1024\n", "0-3"};

    (void)state;
    assert_false(topology_read(&t, root));
    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        put(bad[i], "system/cpu/online");
        if (topology_read(&t, root))
            fail_msg("\"%s\" is a machine of %u CPUs", bad[i], t.n);
    }
}

static void hwloc_sees_what_it_is_told(void **state)
{
    (void)state;
    if (!topology_hwloc(&t, "node:2 l3:2 core:2 pu:2"))
        skip(); /* a build without hwloc */
    assert_int_equal(t.n, 16);
    for (unsigned i = 0; i < 16; i++)
        expect(i, i, i / 2 * 2, i / 4 * 4, i / 8, 0);
    /* siblings far apart, as Linux numbers them on Intel's: sorted by number all the same */
    assert_true(topology_hwloc(&t, "l3:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)"));
    for (unsigned i = 0; i < 8; i++)
        expect(i, i, i % 4, 0, 0, 0);
    assert_true(topology_hwloc(&t, "core:3 pu:1"));
    assert_int_equal(t.n, 3);
    expect(2, 2, 2, TOPOLOGY_UNKNOWN, 0, 0);
    assert_false(topology_hwloc(&t, "nonsense"));
}

/* Both readers of the machine that the test runs on. */
static void the_two_readers_agree_about_this_machine(void **state)
{
    static struct topology other;

    (void)state;
    if (!topology_hwloc(&t, NULL) || !topology_sysfs(&other, NULL) || getenv("HWLOC_SYNTHETIC"))
        skip();
    if (t.n != other.n)
        skip(); /* a cpuset narrower than the machine: hwloc looks inside it only */
    for (unsigned i = 0; i < t.n; i++) {
        assert_int_equal(t.cpu[i].cpu, other.cpu[i].cpu);
        assert_int_equal(t.cpu[i].core, other.cpu[i].core);
        if (other.cpu[i].cache != TOPOLOGY_UNKNOWN)
            assert_int_equal(t.cpu[i].cache, other.cpu[i].cache);
        if (other.cpu[i].node != TOPOLOGY_UNKNOWN)
            assert_int_equal(t.cpu[i].node, other.cpu[i].node);
    }
}

#define T(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(sockets_caches_and_siblings_are_told_apart),   T(what_is_offline_is_not_there),
        T(small_cores_are_known_by_list_or_by_capacity), T(older_kernels_say_thread_siblings),
        T(a_machine_that_makes_no_sense_is_unknown),     T(hwloc_sees_what_it_is_told),
        T(the_two_readers_agree_about_this_machine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
