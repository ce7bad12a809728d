#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void failing_is_one_statement(void **state)
{
    struct err e;

    (void)state;
    memset(&e, 0xa5, sizeof(e)); /* nobody has to prepare one */
    assert_int_equal(err_set(&e, ERR_FORMAT, "bank %u: expert %d", 37u, 412), ERR_FORMAT);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.text, "bank 37: expert 412");
    assert_int_equal(err_set(&e, ERR_BUSY, "%s", ""), ERR_BUSY); /* the last failure counts */
    assert_string_equal(e.text, "");
}

static void system_errors_are_io_except_for_memory(void **state)
{
    struct err e;
    char want[128];

    (void)state;
    assert_int_equal(err_sys(&e, ENOENT, "open %s", "x.bin"), ERR_IO);
    snprintf(want, sizeof(want), "open x.bin: %s", strerror(ENOENT));
    assert_string_equal(e.text, want);
    assert_int_equal(err_sys(&e, ENOMEM, "map"), ERR_NOMEM);
    assert_int_equal(e.code, ERR_NOMEM);
    snprintf(want, sizeof(want), "map: %s", strerror(ENOMEM));
    assert_string_equal(e.text, want);
}

static void a_link_to_nothing_is_no_absence_and_says_so(void **state)
{
    char dir[] = "/tmp/waste-test-err-XXXXXX";
    struct err e;
    int fd;

    (void)state;
    assert_non_null(mkdtemp(dir));
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(no_such_entry(fd, "a"));
    assert_int_equal(err_open(&e, ENOENT, fd, "a"), ERR_IO);
    assert_null(strstr(e.text, "link"));
    assert_int_equal(symlinkat("b", fd, "a"), 0);
    assert_false(no_such_entry(fd, "a"));
    assert_int_equal(err_open(&e, ENOENT, fd, "a"), ERR_IO);
    assert_string_equal(e.text, "a: a link to what is not there (is its drive mounted?)");
    assert_int_equal(unlinkat(fd, "a", 0), 0);
    close(fd);
    rmdir(dir);
}

static void context_comes_first_and_the_code_stays(void **state)
{
    struct err e;

    (void)state;
    err_set(&e, ERR_CORRUPT, "checksum %08X", 0xAD8A39ACu);
    assert_int_equal(err_wrap(&e, "expert %u", 3u), ERR_CORRUPT);
    assert_int_equal(err_wrap(&e, "layer %u", 12u), ERR_CORRUPT);
    assert_string_equal(e.text, "layer 12: expert 3: checksum AD8A39AC");
    assert_int_equal(e.code, ERR_CORRUPT);
}

/* A text may hold what looks like a format: it came from a file name. */
static void a_percent_sign_in_the_text_is_only_a_character(void **state)
{
    struct err e;

    (void)state;
    err_set(&e, ERR_IO, "%s", "100%s%n.bin");
    err_wrap(&e, "%s", "50%d");
    assert_string_equal(e.text, "50%d: 100%s%n.bin");
}

/* Texts of every length around the room there is: cut, ended, and nothing beside it touched. */
static void long_texts_are_cut_not_overrun(void **state)
{
    struct {
        struct err e;
        char guard[16];
    } g;
    char text[2 * sizeof(g.e.text)], guard[sizeof(g.guard)];
    const size_t room = sizeof(g.e.text) - 1;

    (void)state;
    memset(guard, 0x77, sizeof(guard));
    memset(g.guard, 0x77, sizeof(g.guard));
    for (size_t n = room - 8; n < room + 8; n++) {
        memset(text, 'x', n);
        text[n] = '\0';
        err_set(&g.e, ERR_ARG, "%s", text);
        assert_int_equal(strlen(g.e.text), n < room ? n : room);
        err_sys(&g.e, EIO, "%s", text);
        assert_true(strlen(g.e.text) <= room);
        assert_memory_equal(g.e.text, text, n < room ? n : room);
        err_set(&g.e, ERR_ARG, "the reason");
        err_wrap(&g.e, "%s", text); /* context may crowd the reason out, not the end mark */
        assert_true(strlen(g.e.text) <= room);
        err_set(&g.e, ERR_ARG, "%s", text);
        err_wrap(&g.e, "file");
        assert_int_equal(strlen(g.e.text), n + 6 < room ? n + 6 : room);
        assert_memory_equal(g.e.text, "file: xxx", 9);
        assert_memory_equal(g.guard, guard, sizeof(guard));
    }
}

static void every_code_has_a_name_of_its_own(void **state)
{
    (void)state;
    assert_string_equal(err_name(0), "ok");
    assert_string_equal(err_name(ERR_IO), "io");
    assert_string_equal(err_name(ERR_FORMAT), "format");
    for (int a = ERR_CANCELLED; a <= 0; a++) {
        assert_string_not_equal(err_name(a), "unknown");
        for (int b = a + 1; b <= 0; b++)
            assert_string_not_equal(err_name(a), err_name(b));
    }
    assert_string_equal(err_name(1), "unknown");
    assert_string_equal(err_name(-1000), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_is_one_statement),
        cmocka_unit_test(system_errors_are_io_except_for_memory),
        cmocka_unit_test(a_link_to_nothing_is_no_absence_and_says_so),
        cmocka_unit_test(context_comes_first_and_the_code_stays),
        cmocka_unit_test(a_percent_sign_in_the_text_is_only_a_character),
        cmocka_unit_test(long_texts_are_cut_not_overrun),
        cmocka_unit_test(every_code_has_a_name_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
