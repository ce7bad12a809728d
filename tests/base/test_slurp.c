#include "base/slurp.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct dir {
    char path[32];
    int fd;
};

static int enter(void **state)
{
    static struct dir d;

    strcpy(d.path, "/tmp/slurp-XXXXXX");
    if (!mkdtemp(d.path))
        return -1;
    d.fd = open(d.path, O_RDONLY | O_DIRECTORY);
    *state = &d;
    return d.fd < 0;
}

static int leave(void **state)
{
    struct dir *d = *state;

    unlinkat(d->fd, "x", 0);
    close(d->fd);
    return rmdir(d->path);
}

static void put(const struct dir *d, const char *text, size_t n)
{
    int fd = openat(d->fd, "x", O_CREAT | O_WRONLY | O_TRUNC, 0600);

    assert_int_equal(write(fd, text, n), n);
    close(fd);
}

static void refused(const struct dir *d, size_t most, int code, const char *text)
{
    struct err e = {0};
    char *bytes;
    size_t n;

    assert_int_equal(slurp(&bytes, &n, d->fd, "x", most, &e), code);
    assert_null(bytes);
    assert_string_equal(e.text, text);
}

static void a_file_comes_whole_and_ends_with_a_nul(void **state)
{
    struct dir *d = *state;
    struct err e = {0};
    char *bytes;
    size_t n;

    put(d, "a\0b", 3);
    assert_int_equal(slurp(&bytes, &n, d->fd, "x", 3, &e), 0);
    assert_int_equal(n, 3);
    assert_memory_equal(bytes, "a\0b", 4);
    free(bytes);
    put(d, "", 0);
    assert_int_equal(slurp(&bytes, &n, d->fd, "x", 0, &e), 0);
    assert_int_equal(n, 0);
    assert_string_equal(bytes, "");
    free(bytes);
}

static void no_file_is_no_error(void **state)
{
    struct dir *d = *state;
    struct err e = {0};
    char *bytes = (char *)d;
    size_t n = 1;

    assert_int_equal(slurp(&bytes, &n, d->fd, "x", 3, &e), 0);
    assert_null(bytes);
    assert_int_equal(n, 0);
}

static void what_is_no_file_or_too_large_is_refused_at_once(void **state)
{
    struct dir *d = *state;

    put(d, "four", 4);
    refused(d, 3, ERR_LIMIT, "x: 4 bytes, it may have 3");
    unlinkat(d->fd, "x", 0);
    assert_int_equal(mkfifoat(d->fd, "x", 0600), 0);
    refused(d, 3, ERR_IO, "x: not a regular file");
    unlinkat(d->fd, "x", 0);
    assert_int_equal(mkdirat(d->fd, "x", 0700), 0);
    refused(d, 1 << 20, ERR_IO, "x: not a regular file");
    unlinkat(d->fd, "x", AT_REMOVEDIR);
}

static void a_link_to_nothing_is_not_an_absent_file(void **state)
{
    struct dir *d = *state;
    struct err e = {0};
    char *bytes;
    size_t n;

    assert_int_equal(symlinkat("nowhere", d->fd, "x"), 0);
    assert_int_equal(slurp(&bytes, &n, d->fd, "x", 3, &e), ERR_IO);
    assert_null(bytes);
    assert_non_null(strstr(e.text, "x: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_comes_whole_and_ends_with_a_nul, enter, leave),
        cmocka_unit_test_setup_teardown(no_file_is_no_error, enter, leave),
        cmocka_unit_test_setup_teardown(what_is_no_file_or_too_large_is_refused_at_once, enter,
                                        leave),
        cmocka_unit_test_setup_teardown(a_link_to_nothing_is_not_an_absent_file, enter, leave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
