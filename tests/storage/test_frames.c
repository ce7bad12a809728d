#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "storage/extent.h"
#include "storage/frames.h"
#include "tests/support/alloc_fault.h"

static void frames_lie_one_after_the_other_and_are_charged_to_the_pool(void **state)
{
    const size_t bytes = 3 * IO_ALIGN;
    struct frames f;
    struct mem m;
    struct err e;

    (void)state;
    mem_init(&m, 0);
    assert_int_equal(frames_open(&f, &m, bytes, 5, &e), 0);
    assert_int_equal(f.n, 5);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal((uintptr_t)frame_at(&f, i) % IO_ALIGN, 0);
        assert_ptr_equal(frame_at(&f, i), f.base + i * bytes);
        memset(frame_at(&f, i), (int)i, bytes);
    }
    assert_true(m.used[MEM_POOL] >= 5 * bytes);
    frames_close(&f);
    assert_int_equal(m.used_total, 0);
    frames_close(&f); /* closed or never opened: nothing to do */
}

static void what_is_given_back_is_no_longer_charged_and_the_rest_keeps_its_bytes(void **state)
{
    const size_t bytes = 1 << 20;
    struct frames f;
    struct mem m;
    struct err e;

    (void)state;
    mem_init(&m, 0);
    assert_int_equal(frames_open(&f, &m, bytes, 7, &e), 0);
    for (unsigned i = 0; i < 7; i++)
        memset(frame_at(&f, i), (int)i + 1, bytes);
    frames_give_back(&f, 0);
    assert_int_equal(m.used[MEM_POOL], 7 * bytes);
    frames_give_back(&f, 2);
    assert_int_equal(f.n, 5);
    assert_int_equal(m.used[MEM_POOL], 5 * bytes);
    frames_give_back(&f, 4);
    assert_int_equal(f.n, 1);
    assert_int_equal(m.used[MEM_POOL], bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(frame_at(&f, 0)[i], 1);
    frames_close(&f);
    assert_int_equal(m.used_total, 0);
    assert_int_equal(m.peak_total, 7 * bytes);
}

static void impossible_shapes_budgets_and_memory_are_refused(void **state)
{
    struct frames f, before;
    struct mem m;
    struct err e;

    (void)state;
    memset(&f, 0x55, sizeof(f));
    before = f;
    mem_init(&m, 10 * IO_ALIGN);
    assert_int_equal(frames_open(&f, &m, IO_ALIGN, 0, &e), ERR_ARG);
    assert_int_equal(frames_open(&f, &m, 0, 1, &e), ERR_ARG);
    assert_int_equal(frames_open(&f, &m, IO_ALIGN + 512, 1, &e), ERR_ARG);
    assert_int_equal(frames_open(&f, &m, SIZE_MAX - IO_ALIGN + 1, 2, &e), ERR_ARG);
    assert_int_equal(frames_open(&f, &m, IO_ALIGN, 1000, &e), ERR_BUDGET);
    alloc_fault_arm(1);
    assert_int_equal(frames_open(&f, &m, IO_ALIGN, 1, &e), ERR_NOMEM);
    assert_true(alloc_fault_disarm());
    assert_memory_equal(&f, &before, sizeof(f));
    assert_int_equal(m.used_total, 0);
}

static void huge_pages_are_counted_when_there_are_some(void **state)
{
    const size_t huge = 2 << 20, bytes = 3 * huge + IO_ALIGN;
    struct frames f;
    struct mem m;
    struct err e;
    size_t got;

    (void)state;
    mem_init(&m, 0);
    assert_int_equal(frames_open(&f, &m, bytes, 4, &e), 0);
    memset(f.base, 1, 4 * bytes);
    got = frames_huge_bytes(&f);
    assert_in_range(got, 0, 4 * bytes);
    if (got) { /* or the system gave none: it may be told so, or have none left */
        frames_give_back(&f, 3);
        assert_in_range(frames_huge_bytes(&f), 0, bytes);
    }
    frames_close(&f);
    assert_int_equal(frames_huge_bytes(&f), 0);
    if (!got)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_lie_one_after_the_other_and_are_charged_to_the_pool),
        cmocka_unit_test(what_is_given_back_is_no_longer_charged_and_the_rest_keeps_its_bytes),
        cmocka_unit_test(impossible_shapes_budgets_and_memory_are_refused),
        cmocka_unit_test(huge_pages_are_counted_when_there_are_some),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
