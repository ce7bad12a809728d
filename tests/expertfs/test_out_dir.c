/* Files appear whole or not at all, and hold what was written, wherever the page cache has put it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expertfs/out_dir.h"

enum { PIECE = 10000, PIECES = 7 };

static char path[64];
static struct out_dir dir;

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/test_out_dir.XXXXXX");
    assert_non_null(mkdtemp(path));
    dir = (struct out_dir){path, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    assert_true(dir.fd >= 0);
    return 0;
}

static int tear_down(void **state)
{
    char command[96];

    (void)state;
    close(dir.fd);
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    return system(command);
}

static bool is_there(const char *name)
{
    return !faccessat(dir.fd, name, F_OK, 0);
}

static void holds(const char *name, const void *bytes, size_t n)
{
    int fd = openat(dir.fd, name, O_RDONLY);
    char *got = malloc(n + 1);

    assert_true(fd >= 0 && got);
    assert_int_equal(read(fd, got, n + 1), (ssize_t)n);
    assert_memory_equal(got, bytes, n);
    close(fd);
    free(got);
}

static void a_small_file_is_replaced_whole(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(out_bytes(&dir, "a"), 0);
    assert_int_equal(out_file(&dir, "a", "first", 5, &e), 0);
    holds("a", "first", 5);
    assert_int_equal(out_file(&dir, "a", "2nd", 3, &e), 0);
    holds("a", "2nd", 3);
    assert_int_equal(out_bytes(&dir, "a"), 3);
    assert_false(is_there("a.tmp"));
    out_remove(&dir, "a");
    assert_false(is_there("a"));
}

static void what_could_not_be_published_leaves_nothing(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(mkdirat(dir.fd, "a", 0700), 0); /* no file can take its place */
    assert_int_equal(out_file(&dir, "a", "x", 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "a: renaming: "));
    assert_false(is_there("a.tmp"));
    assert_int_equal(mkdirat(dir.fd, "b.tmp", 0700), 0);
    assert_int_equal(out_file(&dir, "b", "x", 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "b: creating: "));
    assert_false(is_there("b"));
}

static void a_large_file_is_under_its_name_only_when_it_is_whole(void **state)
{
    uint8_t *all = malloc(PIECES * PIECE);
    struct err e;
    int fd;

    (void)state;
    assert_non_null(all);
    for (unsigned i = 0; i < PIECES * PIECE; i++)
        all[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(out_create(&dir, "big", 0, &fd, &e), 0);
    assert_int_equal(out_reserve(&dir, fd, PIECES * PIECE, "big", &e), 0);
    for (unsigned i = PIECES; i--;) {
        assert_int_equal(out_write(&dir, fd, all + i * PIECE, PIECE, i * PIECE, "big", &e), 0);
        out_start_writeback(fd, i * PIECE, PIECE);
        if (i % 2) /* a page of it belongs to pieces that are yet to come */
            assert_int_equal(out_settle(&dir, fd, i * PIECE, PIECE, "big", &e), 0);
    }
    assert_false(is_there("big"));
    assert_int_equal(out_publish(&dir, "big", fd, &e), 0);
    assert_false(is_there("big.tmp"));
    holds("big", all, PIECES * PIECE);
    free(all);
}

static void what_was_begun_is_removed_on_request(void **state)
{
    struct err e;
    int fd;

    (void)state;
    assert_int_equal(out_create(&dir, "x", 0, &fd, &e), 0);
    close(fd);
    assert_true(is_there("x.tmp"));
    out_remove_temporary(&dir, "x");
    assert_false(is_there("x.tmp"));
}

/* Symptom: "states//: 1.wstate: reserving: ...". */
static void the_directory_of_a_file_is_named_without_slashes_behind_it(void **state)
{
    static const struct {
        const char *path, *dir, *name;
    } cases[] = {{"x", ".", "x"},
                 {"/x", "/", "x"},
                 {"//x", "/", "x"},
                 {"/tmp/x", "/tmp", "x"},
                 {"/tmp///x", "/tmp", "x"}};
    struct out_dir d;
    const char *name;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(out_parent_open(&d, cases[i].path, &name, &e), 0);
        assert_string_equal(d.path, cases[i].dir);
        assert_string_equal(name, cases[i].name);
        out_parent_close(&d);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_small_file_is_replaced_whole),
        TEST(what_could_not_be_published_leaves_nothing),
        TEST(the_directory_of_a_file_is_named_without_slashes_behind_it),
        TEST(a_large_file_is_under_its_name_only_when_it_is_whole),
        TEST(what_was_begun_is_removed_on_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
