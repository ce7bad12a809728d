/* What a file may say of a container of three layers and four experts, the first layer dense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "expertfs/container.h"
#include "expertfs/hotlist.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/tiny_container.h"

enum { HEADER = 16, ENTRY = 16, FILE_MAX = 4096, EXPERTS = 2 * TINY_EXPERTS };

struct fixture {
    const char *path;
    struct container *c;
    struct out_dir dir;
    struct hotlist list;
    uint8_t file[FILE_MAX]; /* being made */
    size_t n;
};

static void start(struct fixture *f, void **state)
{
    struct container_options o = {0};
    struct err e;

    *f = (struct fixture){.path = *state};
    if (container_open(&f->c, f->path, &o, &e) ||
        hotlist_open(&f->list, container_manifest(f->c), &e))
        fail_msg("%s", e.text);
    f->dir = (struct out_dir){f->path, open(f->path, O_RDONLY | O_DIRECTORY)};
    assert_true(f->dir.fd >= 0);
    store_le32(f->file, 0x47535557);
    store_le32(f->file + 4, 1);
    store_le64(f->file + 8, 1000);
    f->n = HEADER;
}

static void stop(struct fixture *f)
{
    close(f->dir.fd);
    hotlist_close(&f->list);
    container_close(f->c);
}

static void entry(struct fixture *f, unsigned layer, unsigned expert, uint32_t uses, uint32_t last)
{
    uint8_t *p = f->file + f->n;

    store_le16(p, (uint16_t)layer);
    store_le16(p + 2, (uint16_t)expert);
    store_le32(p + 4, uses);
    store_le32(p + 8, last);
    store_le32(p + 12, 0xdddddddd); /* reserved: not looked at */
    f->n += ENTRY;
}

static bool read_file(struct fixture *f)
{
    tiny_file_write(f->path, "u", f->file, f->n);
    return hotlist_read(&f->list, f->dir.fd, "u");
}

static unsigned n_hot(const struct fixture *f)
{
    struct hot *hot;
    unsigned n = hotlist_hottest(&f->list, EXPERTS, &hot);

    free(hot);
    return n;
}

static void expect(const struct fixture *f, unsigned layer, unsigned expert, uint32_t uses,
                   uint32_t last)
{
    assert_int_equal(hotlist_of(&f->list, layer, expert)->uses, uses);
    assert_int_equal(hotlist_of(&f->list, layer, expert)->last, last);
}

static void entries_are_read(void **state)
{
    struct fixture f;

    start(&f, state);
    entry(&f, 1, 0, 7, 900);
    entry(&f, 2, 3, UINT32_MAX, 1000);
    assert_true(read_file(&f));
    assert_int_equal(f.list.clock, 1000);
    expect(&f, 1, 0, 7, 900);
    expect(&f, 2, 3, UINT32_MAX, 1000);
    assert_int_equal(n_hot(&f), 2);
    stop(&f);
}

static void what_the_container_does_not_have_is_skipped(void **state)
{
    struct fixture f;

    start(&f, state);
    entry(&f, 0, 0, 5, 0); /* dense */
    entry(&f, TINY_LAYERS, 0, 5, 0);
    entry(&f, 65535, 65535, 5, 0);
    entry(&f, 1, TINY_EXPERTS, 5, 0);
    entry(&f, 1, 2, 0, 0); /* never used */
    entry(&f, 2, 1, 6, 1);
    assert_true(read_file(&f));
    assert_int_equal(n_hot(&f), 1);
    expect(&f, 2, 1, 6, 1);
    stop(&f);
}

static void of_two_entries_for_one_expert_the_first_counts(void **state)
{
    struct fixture f;

    start(&f, state);
    entry(&f, 1, 1, 3, 10);
    entry(&f, 1, 1, 9, 20);
    assert_true(read_file(&f));
    expect(&f, 1, 1, 3, 10);
    stop(&f);
}

/* Every length: whole entries count, a part of one does not, less than a header is no list. */
static void a_file_cut_anywhere_gives_its_whole_entries(void **state)
{
    struct fixture f;
    size_t whole;

    start(&f, state);
    for (unsigned i = 0; i < 3; i++)
        entry(&f, 1, i, i + 1, 0);
    whole = f.n;
    for (f.n = 0; f.n <= whole; f.n++) {
        hotlist_cool(&f.list);
        assert_int_equal(read_file(&f), f.n >= HEADER);
        assert_int_equal(n_hot(&f), f.n < HEADER ? 0 : (f.n - HEADER) / ENTRY);
    }
    stop(&f);
}

static void another_magic_or_version_is_no_hotlist(void **state)
{
    struct fixture f;

    start(&f, state);
    entry(&f, 1, 0, 7, 900);
    for (unsigned byte = 0; byte < 8; byte++) {
        f.file[byte] ^= 0x40;
        assert_false(read_file(&f));
        assert_int_equal(n_hot(&f), 0);
        assert_int_equal(f.list.clock, 0);
        f.file[byte] ^= 0x40;
    }
    assert_true(read_file(&f));
    stop(&f);
}

static void what_is_no_file_is_no_hotlist(void **state)
{
    struct fixture f;

    start(&f, state);
    assert_false(hotlist_read(&f.list, f.dir.fd, "none"));
    assert_false(hotlist_read(&f.list, f.dir.fd, ".")); /* a directory */
    assert_int_equal(mkfifoat(f.dir.fd, "fifo", 0600), 0);
    assert_false(hotlist_read(&f.list, f.dir.fd, "fifo")); /* and it does not wait for a writer */
    assert_false(hotlist_read(&f.list, AT_FDCWD, "/dev/zero"));
    unlinkat(f.dir.fd, "fifo", 0);
    stop(&f);
}

/* Most of it holes, that is experts 0 of a dense layer; read is what lies within 16 MiB. */
static void a_huge_file_is_read_up_to_a_bound(void **state)
{
    struct fixture f;
    int fd;

    start(&f, state);
    entry(&f, 1, 0, 7, 0);
    tiny_file_write(f.path, "u", f.file, f.n);
    fd = openat(f.dir.fd, "u", O_WRONLY);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    close(fd);
    assert_true(hotlist_read(&f.list, f.dir.fd, "u"));
    assert_int_equal(n_hot(&f), 1);
    stop(&f);
}

static void the_hottest_come_first_and_ties_go_by_layer_then_expert(void **state)
{
    static const struct hot want[] = {
        {2, 0, {9, 0}}, {1, 1, {5, 0}}, {1, 3, {5, 0}}, {2, 2, {5, 0}}, {1, 0, {1, 0}}};
    static const unsigned mixed[] = {3, 0, 4, 2, 1};
    struct fixture f;
    struct hot *hot;

    start(&f, state);
    for (unsigned i = 0; i < 5; i++) {
        const struct hot *x = &want[mixed[i]];

        *hotlist_of(&f.list, x->layer, x->expert) = x->heat;
    }
    for (unsigned n = 0; n <= 6; n++) {
        unsigned got = hotlist_hottest(&f.list, n, &hot);

        assert_int_equal(got, n < 5 ? n : 5);
        assert_memory_equal(hot, want, got * sizeof(*hot));
        free(hot);
    }
    stop(&f);
}

static void old_uses_count_half_and_new_ones_are_added(void **state)
{
    struct hotlist more;
    struct fixture f;
    struct err e;

    start(&f, state);
    f.list.clock = UINT64_C(0x1fffffffe);
    *hotlist_of(&f.list, 1, 0) = (struct heat){9, 17};
    *hotlist_of(&f.list, 1, 1) = (struct heat){1, 18};
    *hotlist_of(&f.list, 2, 2) = (struct heat){UINT32_MAX, 19};
    assert_int_equal(hotlist_open(&more, container_manifest(f.c), &e), 0);
    hotlist_use(&more, 1, 0);
    hotlist_use(&more, 2, 3);
    hotlist_use(&more, 1, 0);
    *hotlist_of(&more, 2, 2) = (struct heat){UINT32_MAX, 3};
    hotlist_merge(&f.list, &more);
    expect(&f, 1, 0, 4 + 2, 1); /* the clock's low bits have come round */
    expect(&f, 1, 1, 0, 18);    /* it has faded */
    expect(&f, 2, 3, 1, 0);
    expect(&f, 2, 2, UINT32_MAX, 1); /* and not past the end */
    assert_int_equal(f.list.clock, UINT64_C(0x200000001));
    assert_int_equal(n_hot(&f), 3);
    hotlist_cool(&more);
    assert_int_equal(more.clock, 0);
    assert_int_equal(hotlist_of(&more, 1, 0)->uses, 0);
    hotlist_close(&more);
    stop(&f);
}

static void a_count_of_uses_stops_at_its_end(void **state)
{
    struct fixture f;

    start(&f, state);
    hotlist_of(&f.list, 1, 0)->uses = UINT32_MAX - 1;
    for (unsigned i = 0; i < 3; i++)
        hotlist_use(&f.list, 1, 0);
    expect(&f, 1, 0, UINT32_MAX, 3);
    stop(&f);
}

static void what_is_written_is_read_back_but_for_the_coldest(void **state)
{
    struct hotlist back;
    struct fixture f;
    uint8_t *file;
    size_t bytes;
    struct err e;

    start(&f, state);
    f.list.clock = UINT64_C(0x123456789a);
    *hotlist_of(&f.list, 1, 2) = (struct heat){3, 30};
    *hotlist_of(&f.list, 2, 0) = (struct heat){8, 80};
    *hotlist_of(&f.list, 2, 1) = (struct heat){2, 20};
    assert_int_equal(hotlist_write(&f.list, 2, &f.dir, "w", &e), 0);
    file = tiny_file_read(f.path, "w", &bytes);
    assert_int_equal(bytes, HEADER + 2 * ENTRY);
    assert_memory_equal(file, "WUSG\1\0\0\0\x9a\x78\x56\x34\x12\0\0\0", HEADER);
    assert_memory_equal(file + HEADER, "\2\0\0\0\x08\0\0\0\x50\0\0\0\0\0\0\0", ENTRY);
    free(file);
    assert_int_equal(out_bytes(&f.dir, "w.tmp"), 0);
    assert_int_equal(hotlist_open(&back, container_manifest(f.c), &e), 0);
    assert_true(hotlist_read(&back, f.dir.fd, "w"));
    assert_int_equal(back.clock, f.list.clock);
    assert_memory_equal(hotlist_of(&back, 1, 2), hotlist_of(&f.list, 1, 2), sizeof(struct heat));
    assert_memory_equal(hotlist_of(&back, 2, 0), hotlist_of(&f.list, 2, 0), sizeof(struct heat));
    assert_int_equal(hotlist_of(&back, 2, 1)->uses, 0);
    hotlist_close(&back);
    stop(&f);
}

/* What a crash in the middle of a save leaves, and one that cannot begin. */
static void a_save_that_fails_leaves_the_old_file(void **state)
{
    struct fixture f;
    struct err e;

    start(&f, state);
    hotlist_use(&f.list, 1, 0);
    assert_int_equal(hotlist_write(&f.list, 8, &f.dir, "w", &e), 0);
    tiny_file_write(f.path, "w.tmp", "WUSG\1", 5); /* what a crash leaves */
    hotlist_cool(&f.list);
    assert_true(hotlist_read(&f.list, f.dir.fd, "w"));
    expect(&f, 1, 0, 1, 1);
    hotlist_use(&f.list, 1, 0);
    assert_int_equal(hotlist_write(&f.list, 8, &f.dir, "w", &e), 0);
    unlinkat(f.dir.fd, "w.tmp", 0);
    assert_int_equal(mkdirat(f.dir.fd, "w.tmp", 0700), 0); /* the temporary cannot be made */
    hotlist_use(&f.list, 1, 0);
    assert_int_equal(hotlist_write(&f.list, 8, &f.dir, "w", &e), ERR_IO);
    hotlist_cool(&f.list);
    assert_true(hotlist_read(&f.list, f.dir.fd, "w"));
    expect(&f, 1, 0, 2, 2);
    unlinkat(f.dir.fd, "w.tmp", AT_REMOVEDIR);
    stop(&f);
}

static void without_memory_there_is_no_list_and_no_harm(void **state)
{
    struct hotlist list;
    struct hot *hot;
    struct fixture f;
    bool failed = true;
    struct err e;

    start(&f, state);
    hotlist_use(&f.list, 1, 0);
    for (unsigned nth = 1; failed; nth++) {
        int opened, written;
        unsigned n;

        alloc_fault_arm(nth);
        opened = hotlist_open(&list, container_manifest(f.c), &e);
        n = hotlist_hottest(&f.list, 8, &hot);
        written = hotlist_write(&f.list, 8, &f.dir, "w", &e);
        failed = alloc_fault_disarm();
        assert_int_equal(n, hot ? 1 : 0);
        free(hot);
        if (!opened)
            hotlist_close(&list);
        assert_int_equal(opened == ERR_NOMEM || !hot || written == ERR_NOMEM, failed);
    }
    stop(&f);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, tiny_setup, tiny_teardown)
    const struct CMUnitTest tests[] = {
        TEST(entries_are_read),
        TEST(what_the_container_does_not_have_is_skipped),
        TEST(of_two_entries_for_one_expert_the_first_counts),
        TEST(a_file_cut_anywhere_gives_its_whole_entries),
        TEST(another_magic_or_version_is_no_hotlist),
        TEST(what_is_no_file_is_no_hotlist),
        TEST(a_huge_file_is_read_up_to_a_bound),
        TEST(the_hottest_come_first_and_ties_go_by_layer_then_expert),
        TEST(old_uses_count_half_and_new_ones_are_added),
        TEST(a_count_of_uses_stops_at_its_end),
        TEST(what_is_written_is_read_back_but_for_the_coldest),
        TEST(a_save_that_fails_leaves_the_old_file),
        TEST(without_memory_there_is_no_list_and_no_harm),
    };

    return cmocka_run_group_tests_name("expertfs/hotlist", tests, NULL, NULL);
}
