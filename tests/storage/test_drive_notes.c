/* What was measured comes back, and from a file that is not as we write it nothing does. */
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

#include "storage/drive_notes.h"
#include "tests/support/alloc_fault.h"

static const struct drive nvme = {.id = 0x10300000000, .name = "nvme0n1"};
static const struct drive other = {.id = 0x10300000005, .name = "nvme1n1"};
static const struct drive_speed fast = {.depth = 6, .bytes_per_s = 3214000000};
static char dir[] = "/tmp/waste-test-XXXXXX", path[64];

static void put(const char *text, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static bool known(const struct drive *d, uint32_t class, unsigned depth)
{
    struct drive_speed s = {.depth = 77};

    if (!drive_note_find(&s, path, d, class)) {
        assert_int_equal(s.depth, 77);
        return false;
    }
    assert_int_equal(s.depth, depth);
    return true;
}

static void keep(const struct drive *d, uint32_t class, unsigned depth)
{
    struct drive_speed s = {.depth = depth, .bytes_per_s = depth};
    struct err e;

    assert_int_equal(drive_note_keep(path, d, class, &s, &e), 0);
}

static void what_is_kept_is_found_by_drive_and_class(void **state)
{
    struct stat st;
    struct err e;

    (void)state;
    unlink(path);
    assert_false(known(&nvme, 4194304, 0));
    assert_int_equal(drive_note_keep(path, &nvme, 4194304, &fast, &e), 0);
    assert_true(known(&nvme, 4194304, 6));
    assert_false(known(&nvme, 8388608, 0));
    assert_false(known(&other, 4194304, 0));
    assert_false(known(&(struct drive){.id = nvme.id, .name = "sda"}, 4194304, 0));
    keep(&other, 4194304, 3);
    keep(&nvme, 8388608, 2);
    keep(&nvme, 4194304, 9); /* measured again */
    assert_true(known(&nvme, 4194304, 9) && known(&nvme, 8388608, 2) && known(&other, 4194304, 3));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void of_too_many_the_oldest_goes(void **state)
{
    (void)state;
    unlink(path);
    for (unsigned i = 0; i <= DRIVE_NOTES_MAX; i++)
        keep(&(struct drive){.id = i, .name = "d"}, 4096, 1 + i % DRIVE_NOTE_DEPTH_MAX);
    assert_false(known(&(struct drive){.id = 0, .name = "d"}, 4096, 0));
    for (unsigned i = 1; i <= DRIVE_NOTES_MAX; i++)
        assert_true(
            known(&(struct drive){.id = i, .name = "d"}, 4096, 1 + i % DRIVE_NOTE_DEPTH_MAX));
}

static void a_file_that_is_not_ours_counts_as_none_and_is_replaced(void **state)
{
    static const char good[] = "waste drives 1\nnvme0n1 10300000000 4194304 6 3214000000\n";
    static const char *const bad[] = {
        "",
        "waste drives 2\nnvme0n1 10300000000 4194304 6 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 6 3214000000",
        "waste drives 1\nnvme0n1 10300000000 4194304 6 3214000000 \n",
        "waste drives 1\nnvme0n1 10300000000 4194304 0 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 65 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 -6 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 +6 3214000000\n",
        "waste drives 1\nnvme0n1 0x10300000000 4194304 6 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 99999999999999 6 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 6 99999999999999999999999999\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 6 3214000000\nx\n",
        "waste drives 1\n\nnvme0n1 10300000000 4194304 6 3214000000\n",
        "waste drives 1\nnvme0n1 10300000000 4194304 6\n",
    };
    char long_line[4096];

    (void)state;
    put(good, sizeof(good) - 1);
    assert_true(known(&nvme, 4194304, 6));
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put(bad[i], strlen(bad[i]));
        if (known(&nvme, 4194304, 6))
            fail_msg("believed: %s", bad[i]);
    }
    memset(long_line, 'x', sizeof(long_line));
    memcpy(long_line, good, sizeof(good) - 1);
    put(long_line, sizeof(long_line));
    assert_false(known(&nvme, 4194304, 6));
    for (unsigned i = 0; i + 1 < sizeof(good) - 1; i++) { /* cut anywhere, or a byte of NUL */
        char text[sizeof(good)];

        put(good, i);
        assert_false(known(&nvme, 4194304, 6));
        memcpy(text, good, sizeof(good));
        text[i] = '\0';
        put(text, sizeof(good) - 1);
        assert_false(known(&nvme, 4194304, 6));
    }
    keep(&other, 4096, 2);
    assert_true(known(&other, 4096, 2));
    assert_false(known(&nvme, 4194304, 6));
}

static void what_is_no_file_neither_blocks_nor_counts(void **state)
{
    struct err e;

    (void)state;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(known(&nvme, 4194304, 6));
    keep(&nvme, 4194304, 6); /* takes its place */
    assert_true(known(&nvme, 4194304, 6));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(known(&nvme, 4194304, 6));
    assert_int_equal(drive_note_keep(path, &nvme, 4096, &fast, &e), ERR_IO);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(rmdir(path), 0);
}

static void directories_are_made_two_deep(void **state)
{
    char deep[96], deeper[96];
    struct drive_speed s;
    struct err e;

    (void)state;
    snprintf(deep, sizeof(deep), "%s/cache/waste/drives", dir);
    snprintf(deeper, sizeof(deeper), "%s/no/such/place/drives", dir);
    assert_int_equal(drive_note_keep(deeper, &nvme, 4096, &fast, &e), ERR_IO);
    assert_int_equal(drive_note_keep(deep, &nvme, 4096, &fast, &e), 0);
    assert_true(drive_note_find(&s, deep, &nvme, 4096));
    assert_int_equal(unlink(deep), 0);
    *strrchr(deep, '/') = '\0';
    assert_int_equal(rmdir(deep), 0);
    *strrchr(deep, '/') = '\0';
    assert_int_equal(rmdir(deep), 0);
}

static void names_that_a_line_cannot_hold_are_refused(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(drive_note_keep(path, &(struct drive){.name = ""}, 4096, &fast, &e), ERR_ARG);
    assert_int_equal(drive_note_keep(path, &(struct drive){.name = "a b"}, 4096, &fast, &e),
                     ERR_ARG);
}

static void classes_are_powers_of_two(void **state)
{
    (void)state;
    assert_int_equal(drive_note_class(1), 1);
    assert_int_equal(drive_note_class(4096), 4096);
    assert_int_equal(drive_note_class(4097), 8192);
    assert_int_equal(drive_note_class(2670592), 4194304);
    assert_int_equal(drive_note_class(UINT32_MAX), 1u << 31);
}

static void without_memory_nothing_is_known_or_kept(void **state)
{
    struct err e;

    (void)state;
    unlink(path);
    keep(&nvme, 4096, 5);
    alloc_fault_arm(1);
    assert_false(known(&nvme, 4096, 5));
    assert_true(alloc_fault_disarm());
    alloc_fault_arm(1);
    assert_int_equal(drive_note_keep(path, &nvme, 4096, &fast, &e), ERR_NOMEM);
    assert_true(alloc_fault_disarm());
    assert_true(known(&nvme, 4096, 5));
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
    return rmdir(dir); /* nothing temporary is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_is_found_by_drive_and_class),
        cmocka_unit_test(of_too_many_the_oldest_goes),
        cmocka_unit_test(a_file_that_is_not_ours_counts_as_none_and_is_replaced),
        cmocka_unit_test(what_is_no_file_neither_blocks_nor_counts),
        cmocka_unit_test(directories_are_made_two_deep),
        cmocka_unit_test(names_that_a_line_cannot_hold_are_refused),
        cmocka_unit_test(classes_are_powers_of_two),
        cmocka_unit_test(without_memory_nothing_is_known_or_kept),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
