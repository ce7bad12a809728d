#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/extent.h"
#include "storage/file.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/pread_fault.h"

enum { BYTES = 5 * IO_ALIGN + 100 };

static char dir[256];
static int dirfd;
static uint8_t content[BYTES];

static void write_file(const char *name, const void *bytes, size_t n)
{
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static int make_dir(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(dir, sizeof(dir), "%s/waste-test-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return -1;
    dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (unsigned i = 0; i < BYTES; i++)
        content[i] = (uint8_t)(i * 7 + i / 256);
    write_file("data", content, BYTES);
    return dirfd < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    static const char *const names[] = {"data", "small", "link", "fifo", "sub", "loop"};

    (void)state;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (unlinkat(dirfd, names[i], 0))
            unlinkat(dirfd, names[i], AT_REMOVEDIR);
    close(dirfd);
    return rmdir(dir);
}

static void direct_is_what_the_descriptor_says_or_there_is_a_reason(void **state)
{
    struct file f;
    struct err e;

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    assert_int_equal(f.bytes, BYTES);
    assert_string_equal(f.name, "data");
    assert_int_equal(f.direct, !f.why[0]);
    assert_int_equal(f.direct, !!(fcntl(f.fd, F_GETFL) & O_DIRECT));
    assert_int_equal(f.direct, f.fd != f.buffered);
    assert_false(fcntl(f.buffered, F_GETFL) & (O_DIRECT | O_NONBLOCK));
    assert_true(fcntl(f.fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(f.buffered, F_GETFD) & FD_CLOEXEC);
    if (!f.direct)
        print_message("buffered here: %s\n", f.why);
    file_close(&f);
}

static void buffered_when_direct_is_not_wanted_or_cannot_be(void **state)
{
    struct file f;
    struct err e;

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", false, &e), 0);
    assert_false(f.direct);
    assert_int_equal(f.fd, f.buffered);
    file_close(&f);
    write_file("small", content, IO_ALIGN - 1);
    assert_int_equal(file_open(&f, dirfd, "small", true, &e), 0);
    assert_false(f.direct);
    assert_non_null(strstr(f.why, "4095"));
    file_close(&f);
    write_file("small", content, 0);
    assert_int_equal(file_open(&f, dirfd, "small", true, &e), 0);
    assert_false(f.direct);
    assert_int_equal(f.bytes, 0);
    file_close(&f);
}

/* Where the direct read is refused, or gives less than it should, we step down and say so. */
static void direct_is_proven_by_a_read(void **state)
{
    struct file f;
    struct err e;

    (void)state;
    pread_fault_set(512);
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    pread_fault_set(0);
    assert_false(f.direct);
    assert_true(f.why[0]);
    file_close(&f);
}

#ifdef STATX_DIOALIGN
int __real_statx(int at, const char *name, int flags, unsigned mask, struct statx *out);
int __wrap_statx(int at, const char *name, int flags, unsigned mask, struct statx *out);

static struct statx said; /* what the file system says, when stx_mask says that it does */
static int statx_errno;   /* or how the call fails */

/* Link with -Wl,--wrap=statx. */
int __wrap_statx(int at, const char *name, int flags, unsigned mask, struct statx *out)
{
    if (statx_errno) {
        errno = statx_errno;
        return -1;
    }
    if (!said.stx_mask)
        return __real_statx(at, name, flags, mask, out);
    *out = said;
    return 0;
}

static void what_the_file_system_says_about_direct_reads_is_heard(void **state)
{
    static const struct {
        unsigned memory, offset;
        const char *why;
    } say[] = {
        {0, 0, "no direct reads"},
        {512, 8192, "8192"},
        {65536, 512, "65536"},
    };
    struct file f;
    struct err e;
    bool works;

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    works = f.direct;
    file_close(&f);
    for (unsigned i = 0; i < sizeof(say) / sizeof(say[0]); i++) {
        said = (struct statx){.stx_mask = STATX_DIOALIGN,
                              .stx_dio_mem_align = say[i].memory,
                              .stx_dio_offset_align = say[i].offset};
        assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
        assert_false(f.direct);
        if (works)
            assert_non_null(strstr(f.why, say[i].why));
        file_close(&f);
    }
    said = (struct statx){.stx_mask = STATX_TYPE}; /* says nothing: the read decides */
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    assert_int_equal(f.direct, works);
    file_close(&f);
    said.stx_mask = 0;
    statx_errno = ENOSYS; /* the same on an old kernel */
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    assert_int_equal(f.direct, works);
    file_close(&f);
    statx_errno = 0;
}
#endif

/* A file system that takes O_DIRECT and fills the page cache: a buffered read does what it would.
 */
int __real_mincore(void *at, size_t n, unsigned char *in);
int __wrap_mincore(void *at, size_t n, unsigned char *in);

static struct {
    unsigned calls, cached; /* a bit for each call */
    int errnum;
} core;

/* Link with -Wl,--wrap=mincore. */
int __wrap_mincore(void *at, size_t n, unsigned char *in)
{
    if (core.errnum) {
        errno = core.errnum;
        return -1;
    }
    if (!core.cached)
        return __real_mincore(at, n, in);
    *in = core.cached >> core.calls++ & 1;
    return 0;
}

static void direct_reads_that_fill_the_page_cache_are_none(void **state)
{
    static const struct {
        unsigned cached; /* before the first read, after it, before the second, after it */
        bool direct;
    } seen[] = {{10, false}, {2, true}, {8, true}, {15, true}, {14, true}};
    struct file f;
    struct err e;
    bool works;

    (void)state;
    core.errnum = ENOSYS;
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    works = f.direct;
    file_close(&f);
    core.errnum = 0;
    for (unsigned i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) {
        core.calls = 0;
        core.cached = seen[i].cached;
        assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
        assert_int_equal(f.direct, works && seen[i].direct);
        if (works && !seen[i].direct)
            assert_non_null(strstr(f.why, "page cache all the same"));
        file_close(&f);
    }
    core.cached = 0;
}

static void no_memory_for_the_proof_means_buffered(void **state)
{
    struct file f;
    struct err e;

    (void)state;
    for (unsigned nth = 1, failed = 1; failed; nth++) {
        alloc_fault_arm(nth);
        assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
        failed = alloc_fault_disarm();
        if (failed &&
            nth == 1) /* without the map of a page what went through the cache is not known */
            assert_false(f.direct);
        file_close(&f);
    }
}

static void only_regular_files_open(void **state)
{
    struct file f = {0};
    struct err e;

    (void)state;
    assert_int_equal(mkdirat(dirfd, "sub", 0700), 0);
    assert_int_equal(mkfifoat(dirfd, "fifo", 0600), 0);
    assert_int_equal(symlinkat("loop", dirfd, "loop"), 0);
    assert_int_equal(file_open(&f, dirfd, "sub", true, &e), ERR_IO);
    assert_string_equal(e.text, "sub: not a regular file");
    assert_int_equal(file_open(&f, dirfd, "fifo", true, &e), ERR_IO); /* and does not hang */
    assert_string_equal(e.text, "fifo: not a regular file");
    assert_int_equal(file_open(&f, dirfd, "loop", true, &e), ERR_IO);
    assert_int_equal(file_open(&f, dirfd, "none", true, &e), ERR_IO);
    assert_non_null(strstr(e.text, "none"));
    assert_int_equal(f.fd, 0);
    file_close(&f); /* never opened: closes nothing */
    assert_true(fcntl(0, F_GETFD) >= 0);
}

static void a_symbolic_link_to_a_file_opens(void **state)
{
    struct file f;
    struct err e;
    uint8_t byte;

    (void)state;
    assert_int_equal(symlinkat("data", dirfd, "link"), 0);
    assert_int_equal(file_open(&f, dirfd, "link", true, &e), 0);
    assert_int_equal(file_read(&f, &byte, 1, 77, &e), 0);
    assert_int_equal(byte, content[77]);
    file_close(&f);
}

/* A host that has closed its standard streams gets descriptor 0 from open; in struct file that
 * means none. */
static void descriptors_are_never_the_standard_ones(void **state)
{
    struct file f;
    struct err e;
    int saved = dup(0);

    (void)state;
    close(0);
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    assert_true(f.fd > 2 && f.buffered > 2);
    if (saved >= 0) {
        dup2(saved, 0);
        close(saved);
    }
    file_close(&f);
}

static void any_range_can_be_read_however_pread_behaves(void **state)
{
    static const struct {
        size_t n;
        uint64_t offset;
    } range[] = {{0, 0}, {1, 0}, {BYTES, 0}, {4097, 4095}, {100, 5 * IO_ALIGN}, {1, BYTES - 1}};
    struct file f;
    struct err e;
    uint8_t got[BYTES];

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    for (size_t most = 0; most < 5000; most += 833)
        for (unsigned i = 0; i < sizeof(range) / sizeof(range[0]); i++) {
            memset(got, 0, sizeof(got));
            pread_fault_set(most);
            assert_int_equal(file_read(&f, got, range[i].n, range[i].offset, &e), 0);
            assert_true(!most || !range[i].n || pread_fault_count());
            assert_memory_equal(got, content + range[i].offset, range[i].n);
        }
    pread_fault_set(0);
    file_close(&f);
}

static void the_end_of_the_file_is_an_error_that_names_both_sizes(void **state)
{
    struct file f;
    struct err e;
    uint8_t got[200];

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", true, &e), 0);
    assert_int_equal(file_read(&f, got, 101, 5 * IO_ALIGN, &e), ERR_IO);
    assert_non_null(strstr(e.text, "data"));
    assert_non_null(strstr(e.text, "101 bytes at 20480"));
    assert_non_null(strstr(e.text, "20580 bytes"));
    assert_int_equal(file_read(&f, got, 1, BYTES, &e), ERR_IO);
    assert_int_equal(file_read(&f, got, 1, UINT64_C(1) << 63, &e), ERR_IO); /* no such offset */
    assert_int_equal(file_read(&f, got, 0, BYTES + 1, &e), 0);
    file_close(&f);
}

static void a_whole_extent_arrives_or_none(void **state)
{
    struct file f;
    struct err e;
    void *page;

    (void)state;
    assert_int_equal(posix_memalign(&page, IO_ALIGN, 4 * IO_ALIGN), 0);
    for (unsigned direct = 0; direct < 2; direct++) {
        assert_int_equal(file_open(&f, dirfd, "data", direct, &e), 0);
        for (size_t most = 0; most <= 2 * IO_ALIGN; most += IO_ALIGN) {
            pread_fault_set(most);
            memset(page, 0, 4 * IO_ALIGN);
            assert_int_equal(file_pread(&f, page, 4 * IO_ALIGN, IO_ALIGN), 0);
            assert_memory_equal(page, content + IO_ALIGN, 4 * IO_ALIGN);
            assert_int_equal(file_pread(&f, page, 2 * IO_ALIGN, 4 * IO_ALIGN), -ENODATA);
            assert_int_equal(file_pread(&f, page, IO_ALIGN, 6 * IO_ALIGN), -ENODATA);
        }
        pread_fault_set(0);
        file_close(&f);
        assert_int_equal(f.fd, 0);
    }
    free(page);
}

/* EAGAIN was tried again without a pause and without an end. */
static void a_system_that_always_says_try_again_is_an_error_in_the_end(void **state)
{
    struct file f;
    struct err e;
    uint8_t byte;

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", false, &e), 0);
    pread_fault_fail(EAGAIN);
    assert_int_equal(file_pread(&f, &byte, 1, 0), -EAGAIN);
    assert_int_equal(file_read(&f, &byte, 1, 0, &e), ERR_IO);
    assert_non_null(strstr(e.text, strerror(EAGAIN)));
    pread_fault_fail(0);
    assert_int_equal(file_pread(&f, &byte, 1, 7), 0);
    assert_int_equal(byte, content[7]);
    file_close(&f);
}

/* Linux says ENODATA of a sector that cannot be read. */
static void a_bad_place_on_the_disk_is_not_the_end_of_the_file(void **state)
{
    struct file f;
    struct err e;
    uint8_t byte;

    (void)state;
    assert_int_equal(file_open(&f, dirfd, "data", false, &e), 0);
    pread_fault_fail(ENODATA);
    assert_int_equal(file_pread(&f, &byte, 1, 0), -EIO);
    assert_int_equal(file_read(&f, &byte, 1, 0, &e), ERR_IO);
    assert_non_null(strstr(e.text, strerror(EIO)));
    pread_fault_fail(0);
    file_close(&f);
    assert_int_equal(file_status(EBADF), -EBADF);
}

static void trying_again_ends_and_stays_ended(void **state)
{
    unsigned tries = 0, n = 1;

    (void)state;
    while (file_try_again(&tries))
        n++;
    assert_int_equal(n, FILE_TRIES_MAX);
    assert_false(file_try_again(&tries));
    assert_int_equal(tries, FILE_TRIES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct_is_what_the_descriptor_says_or_there_is_a_reason),
        cmocka_unit_test(buffered_when_direct_is_not_wanted_or_cannot_be),
        cmocka_unit_test(direct_is_proven_by_a_read),
#ifdef STATX_DIOALIGN
        cmocka_unit_test(what_the_file_system_says_about_direct_reads_is_heard),
#endif
        cmocka_unit_test(direct_reads_that_fill_the_page_cache_are_none),
        cmocka_unit_test(no_memory_for_the_proof_means_buffered),
        cmocka_unit_test(only_regular_files_open),
        cmocka_unit_test(a_symbolic_link_to_a_file_opens),
        cmocka_unit_test(descriptors_are_never_the_standard_ones),
        cmocka_unit_test(any_range_can_be_read_however_pread_behaves),
        cmocka_unit_test(the_end_of_the_file_is_an_error_that_names_both_sizes),
        cmocka_unit_test(a_whole_extent_arrives_or_none),
        cmocka_unit_test(a_system_that_always_says_try_again_is_an_error_in_the_end),
        cmocka_unit_test(a_bad_place_on_the_disk_is_not_the_end_of_the_file),
        cmocka_unit_test(trying_again_ends_and_stays_ended),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
