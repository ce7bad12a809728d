#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expertfs/container.h"
#include "tests/support/tiny_container.h"

static const struct container_options plain = {.direct = false}, direct = {.direct = true},
                                      alone = {.exclusive = true};

static struct container *must_open(const char *dir, const struct container_options *o)
{
    struct container *c;
    struct err e;

    if (container_open(&c, dir, o, &e))
        fail_msg("%s", e.text);
    return c;
}

static void assert_refused(const char *dir, int code, const char *fragment)
{
    struct container *c = (struct container *)dir; /* anything, to see that it stays */
    struct err e = {0};

    assert_int_equal(container_open(&c, dir, &plain, &e), code);
    assert_int_equal(e.code, code);
    assert_ptr_equal(c, dir);
    if (!strstr(e.text, fragment))
        fail_msg("\"%s\" lacks \"%s\"", e.text, fragment);
}

static void every_expert_has_its_extent(void **state)
{
    struct container *c = must_open(*state, &direct);
    const struct file *const *files;
    unsigned n;

    assert_string_equal(container_dir(c), *state);
    assert_int_equal(container_manifest(c)->n_experts, TINY_EXPERTS);
    assert_int_equal(container_trunk(c)->bytes, TINY_TRUNK_BYTES);
    assert_int_equal(container_codebooks(c)->bytes, 74016);
    files = container_files(c, &n);
    assert_int_equal(n, 2);
    for (unsigned layer = 1; layer < TINY_LAYERS; layer++)
        for (unsigned expert = 0; expert < TINY_EXPERTS; expert++) {
            struct extent at = container_extent(c, layer, expert);

            assert_int_equal(at.offset, expert * TINY_RECORD_BYTES);
            assert_int_equal(at.length, TINY_RECORD_BYTES);
            assert_int_equal(at.offset % IO_ALIGN, 0);
            assert_int_equal(container_file_layer(c, at.file), layer);
            assert_string_equal(files[at.file]->name, container_manifest(c)->bank[layer].file);
        }
    container_close(c);
    container_close(NULL);
}

static void unknown_files_and_linked_banks_are_accepted(void **state)
{
    const char *dir = *state;
    char bank[300], moved[300], other[256];

    tiny_file_write(dir, "REPORT.md", "x", 1);
    tiny_file_write(dir, "codebooks-L1.bin", "x", 1);
    tiny_file_write(dir, "trunk.bin.tmp", "x", 1);
    tiny_dir(other, sizeof(other));
    snprintf(bank, sizeof(bank), "%s/experts-L2.bin", dir);
    snprintf(moved, sizeof(moved), "%s/anything", other);
    assert_int_equal(rename(bank, moved), 0);
    assert_int_equal(symlink(moved, bank), 0);
    container_close(must_open(dir, &direct));
    assert_int_equal(unlink(bank), 0);
    assert_int_equal(rename(moved, bank), 0);
    tiny_remove(other);
}

static void a_directory_without_a_manifest_is_no_container(void **state)
{
    const char *dir = *state;
    char path[300];

    snprintf(path, sizeof(path), "%s/nothing here", dir);
    assert_refused(path, ERR_IO, "nothing here: no manifest.json (not a .waste container?)");
    snprintf(path, sizeof(path), "%s/manifest.json", dir);
    assert_refused(path, ERR_IO, "manifest.json: no manifest.json (not a .waste container?)");
    assert_int_equal(unlink(path), 0);
    assert_refused(dir, ERR_IO, ": no manifest.json (not a .waste container?)");
    tiny_file_write(dir, "codebooks-L17.bin", "", 0);
    assert_refused(dir, ERR_IO, ": no manifest.json (an unfinished conversion?");
}

static void a_missing_file_is_named(void **state)
{
    static const char *const files[] = {"trunk.bin", "codebooks.bin", "experts-L1.bin",
                                        "experts-L2.bin"};
    const char *dir = *state;

    for (unsigned i = 0; i < 4; i++) {
        char path[300], away[300], want[64];

        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        snprintf(away, sizeof(away), "%s/away", dir);
        snprintf(want, sizeof(want), "%s: No such file", files[i]);
        assert_int_equal(rename(path, away), 0);
        assert_refused(dir, ERR_IO, want);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_refused(dir, ERR_IO, files[i]);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(mkfifo(path, 0600), 0); /* and must not wait for a writer */
        assert_refused(dir, ERR_IO, files[i]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rename(away, path), 0);
    }
    container_close(must_open(dir, &plain));
}

static void a_bank_of_another_size_is_refused(void **state)
{
    const char *dir = *state;
    char path[300], want[128];

    snprintf(path, sizeof(path), "%s/experts-L2.bin", dir);
    for (long n = 0; n < TINY_BANK_BYTES; n += n < 8 ? 1 : 509) {
        assert_int_equal(truncate(path, n), 0);
        snprintf(want, sizeof(want),
                 "experts-L2.bin: %ld bytes on disk, manifest says 81920 (incomplete copy?)", n);
        assert_refused(dir, ERR_FORMAT, want);
    }
    assert_int_equal(truncate(path, 3 * TINY_RECORD_BYTES), 0); /* a whole number of records */
    assert_refused(dir, ERR_FORMAT, "61440 bytes on disk, manifest says 81920");
    assert_int_equal(truncate(path, TINY_BANK_BYTES + 4096), 0);
    assert_refused(dir, ERR_FORMAT,
                   "86016 bytes on disk, manifest says 81920 (of another conversion, or something "
                   "was appended?)");
    assert_int_equal(truncate(path, INT64_C(5) << 32), 0); /* sparse, beyond 32 bits */
    assert_refused(dir, ERR_FORMAT, "21474836480 bytes on disk, manifest says 81920");
}

static void one_file_under_two_names_is_refused(void **state)
{
    const char *dir = *state;
    char a[300], b[300];

    snprintf(a, sizeof(a), "%s/experts-L1.bin", dir);
    snprintf(b, sizeof(b), "%s/experts-L2.bin", dir);
    assert_int_equal(unlink(b), 0);
    assert_int_equal(link(a, b), 0);
    assert_refused(dir, ERR_FORMAT, "experts-L2.bin: the same file is the bank of another layer");
    assert_int_equal(unlink(b), 0);
    assert_int_equal(symlink("experts-L1.bin", b), 0);
    assert_refused(dir, ERR_FORMAT, "experts-L2.bin: the same file is the bank of another layer");
}

static void a_model_without_experts_needs_no_codebooks(void **state)
{
    const char *dir = *state;
    json_t *root = tiny_manifest(TINY_VQ3R);
    struct container *c;
    char path[300];
    unsigned n;

    tiny_set(root, "config.num_experts", "0");
    tiny_set(root, "layers", "{}");
    tiny_manifest_write(dir, root);
    json_decref(root);
    snprintf(path, sizeof(path), "%s/codebooks.bin", dir);
    assert_int_equal(unlink(path), 0);
    c = must_open(dir, &plain);
    container_files(c, &n);
    assert_int_equal(n, 0);
    assert_int_equal(container_codebooks(c)->bytes, 0);
    container_close(c);
}

static void the_fingerprint_follows_manifest_codebooks_and_sizes(void **state)
{
    const char *dir = *state;
    struct container *c = must_open(dir, &plain);
    uint32_t first = container_fingerprint(c);
    json_t *root;
    uint8_t *bytes;
    size_t n;

    container_close(c);
    c = must_open(dir, &direct);
    assert_int_equal(container_fingerprint(c), first);
    container_close(c);

    bytes = tiny_file_read(dir, "codebooks.bin", &n);
    bytes[n - 1] ^= 1;
    tiny_file_write(dir, "codebooks.bin", bytes, n);
    c = must_open(dir, &plain);
    assert_int_not_equal(container_fingerprint(c), first);
    container_close(c);
    bytes[n - 1] ^= 1;
    tiny_file_write(dir, "codebooks.bin", bytes, n);
    free(bytes);

    bytes = tiny_file_read(dir, "trunk.bin", &n);
    bytes[n] = 0;
    tiny_file_write(dir, "trunk.bin", bytes, n + 1);
    c = must_open(dir, &plain);
    assert_int_not_equal(container_fingerprint(c), first);
    container_close(c);
    tiny_file_write(dir, "trunk.bin", bytes, n);
    free(bytes);

    c = must_open(dir, &plain);
    assert_int_equal(container_fingerprint(c), first);
    container_close(c);
    root = tiny_manifest(TINY_VQ3R);
    tiny_set(root, "config.routed_scaling_factor", "1.25");
    tiny_manifest_write(dir, root);
    json_decref(root);
    c = must_open(dir, &plain);
    assert_int_not_equal(container_fingerprint(c), first);
    container_close(c);
}

/* Can somebody who is not us lock the directory? */
static bool is_free(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY), got;

    assert_true(fd >= 0);
    got = flock(fd, LOCK_EX | LOCK_NB);
    close(fd);
    return got == 0;
}

static void sole_use_is_shared_by_the_contexts_of_a_process(void **state)
{
    const char *dir = *state;
    struct container *a = must_open(dir, &alone), *b, *c;
    struct container *untouched = a;
    char path[300], away[300];
    struct err e;

    assert_false(is_free(dir));
    b = must_open(dir, &alone);
    c = must_open(dir, &plain);
    container_close(a);
    assert_false(is_free(dir));
    snprintf(path, sizeof(path), "%s/trunk.bin", dir);
    snprintf(away, sizeof(away), "%s/away", dir);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(container_open(&untouched, dir, &alone, &e),
                     ERR_IO); /* gives its share back */
    assert_int_equal(rename(away, path), 0);
    assert_false(is_free(dir));
    container_close(b);
    assert_true(is_free(dir));
    container_close(c);
}

static void a_container_that_another_process_uses_alone_is_busy(void **state)
{
    const char *dir = *state;
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    struct container *c = NULL;
    struct err e = {0};

    /* Another open file description stands for another process: flock knows no difference. */
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(container_open(&c, dir, &alone, &e), ERR_BUSY);
    assert_non_null(strstr(e.text, "another process"));
    assert_null(c);
    container_close(must_open(dir, &plain)); /* who does not ask is not kept out */
    close(fd);
    container_close(must_open(dir, &alone));
}

static void a_failed_open_gives_the_lock_back(void **state)
{
    const char *dir = *state;
    struct container *c;
    struct err e;

    tiny_file_write(dir, "manifest.json", "{}", 2);
    assert_int_equal(container_open(&c, dir, &alone, &e), ERR_FORMAT);
    assert_true(is_free(dir));
}

/* Every descriptor taken is given back, whichever step fails. */
static void nothing_stays_open_after_a_failure(void **state)
{
    const char *dir = *state;
    char path[300];
    int before, after;

    before = dup(0);
    close(before);
    a_failed_open_gives_the_lock_back(state);
    tiny_write(dir, TINY_VQ3R);
    snprintf(path, sizeof(path), "%s/experts-L2.bin", dir);
    assert_int_equal(truncate(path, 4096), 0);
    assert_refused(dir, ERR_FORMAT, "experts-L2.bin");
    after = dup(0);
    close(after);
    assert_int_equal(before, after);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, tiny_setup, tiny_teardown)
    const struct CMUnitTest tests[] = {
        T(every_expert_has_its_extent),
        T(unknown_files_and_linked_banks_are_accepted),
        T(a_directory_without_a_manifest_is_no_container),
        T(a_missing_file_is_named),
        T(a_bank_of_another_size_is_refused),
        T(one_file_under_two_names_is_refused),
        T(a_model_without_experts_needs_no_codebooks),
        T(the_fingerprint_follows_manifest_codebooks_and_sizes),
        T(sole_use_is_shared_by_the_contexts_of_a_process),
        T(a_container_that_another_process_uses_alone_is_busy),
        T(a_failed_open_gives_the_lock_back),
        T(nothing_stays_open_after_a_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
