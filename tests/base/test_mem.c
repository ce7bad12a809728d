#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/alloc_fault.h"

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void a_mapping_is_zeroed_and_counted_in_whole_pages(void **state)
{
    struct mem m;
    struct err e;
    void *p;

    (void)state;
    mem_init(&m, 0);
    assert_int_equal(mem_map(&m, MEM_TRUNK, page() + 1, false, &p, &e), 0);
    assert_int_equal((uintptr_t)p % page(), 0);
    for (size_t i = 0; i < 2 * page(); i++)
        assert_int_equal(((char *)p)[i], 0);
    memset(p, 1, 2 * page());
    assert_int_equal(m.used[MEM_TRUNK], 2 * page());
    assert_int_equal(m.used_total, 2 * page());
    mem_unmap(&m, MEM_TRUNK, p, page() + 1);
    assert_int_equal(m.used[MEM_TRUNK], 0);
    assert_int_equal(m.used_total, 0);
    assert_int_equal(m.peak_total, 2 * page());
}

static void a_huge_mapping_begins_on_a_huge_page_and_costs_no_more(void **state)
{
    const size_t huge = 2 << 20;
    struct mem m;
    struct err e;
    void *p[4];

    (void)state;
    mem_init(&m, 0);
    for (size_t i = 0; i < 4; i++) {
        size_t bytes = huge + i * page();

        assert_int_equal(mem_map(&m, MEM_POOL, bytes, true, &p[i], &e), 0);
        assert_int_equal((uintptr_t)p[i] % huge, 0);
        memset(p[i], 1, bytes);
    }
    assert_int_equal(m.used[MEM_POOL], 4 * huge + 6 * page());
    for (size_t i = 0; i < 4; i++)
        mem_unmap(&m, MEM_POOL, p[i], huge + i * page());
    assert_int_equal(m.used_total, 0);
}

static void a_small_mapping_may_ask_for_huge_pages(void **state)
{
    struct mem m;
    struct err e;
    void *p;

    (void)state;
    mem_init(&m, 0);
    assert_int_equal(mem_map(&m, MEM_STATE, 1, true, &p, &e), 0);
    assert_int_equal(m.used_total, page());
    mem_unmap(&m, MEM_STATE, p, 1);
}

static void the_limit_holds_over_all_tags(void **state)
{
    struct mem m;
    struct err e;
    void *p, *untouched = &m;

    (void)state;
    mem_init(&m, 4 * page());
    assert_int_equal(mem_map(&m, MEM_TRUNK, 2 * page(), false, &p, &e), 0);
    assert_int_equal(mem_charge(&m, MEM_OTHER, page(), &e), 0);
    assert_int_equal(mem_map(&m, MEM_POOL, page() + 1, false, &untouched, &e), ERR_BUDGET);
    assert_ptr_equal(untouched, &m);
    assert_non_null(strstr(e.text, "pool"));
    assert_int_equal(mem_charge(&m, MEM_POOL, page() + 1, &e), ERR_BUDGET);
    assert_int_equal(mem_charge(&m, MEM_POOL, UINT64_MAX, &e), ERR_BUDGET);
    assert_int_equal(m.used[MEM_POOL], 0);
    assert_int_equal(mem_charge(&m, MEM_POOL, page(), &e), 0); /* exactly full */
    mem_uncharge(&m, MEM_POOL, page());
    mem_uncharge(&m, MEM_OTHER, page());
    mem_unmap(&m, MEM_TRUNK, p, 2 * page());
    assert_int_equal(m.used_total, 0);
    assert_int_equal(m.peak_total, 4 * page());
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    struct mem m;
    struct err e;
    void *p;

    (void)state;
    mem_init(&m, 0);
    assert_int_equal(mem_map(&m, MEM_POOL, 0, false, &p, &e), ERR_ARG);
    assert_int_equal(mem_map(&m, MEM_POOL, SIZE_MAX, true, &p, &e), ERR_ARG);
    assert_int_equal(mem_map(&m, MEM_POOL, SIZE_MAX / 4, true, &p, &e), ERR_NOMEM);
    assert_int_equal(m.used_total, 0);
    mem_unmap(&m, MEM_POOL, NULL, 0);
}

static void a_refused_mapping_is_not_counted(void **state)
{
    struct mem m;
    struct err e;
    void *p;

    (void)state;
    mem_init(&m, 0);
    for (unsigned huge = 0; huge < 2; huge++) {
        alloc_fault_arm(1);
        assert_int_equal(mem_map(&m, MEM_POOL, 4 << 20, huge, &p, &e), ERR_NOMEM);
        assert_true(alloc_fault_disarm());
        assert_int_equal(m.used_total, 0);
    }
}

static void aligning_up_goes_to_the_next_multiple_and_no_further(void **state)
{
    (void)state;
    for (uint64_t to = 1; to < 20; to++)
        for (uint64_t n = 0; n < 100; n++) {
            uint64_t up = align_up(n, to);

            assert_true(up % to == 0 && up >= n && up - n < to);
        }
    assert_int_equal(align_up(UINT64_MAX - 4095, 4096), UINT64_MAX - 4095);
    assert_int_equal(align_up((UINT64_C(1) << 40) + 1, 4096), (UINT64_C(1) << 40) + 4096);
}

static void every_tag_has_a_name(void **state)
{
    (void)state;
    for (unsigned a = 0; a < MEM_TAGS; a++)
        for (unsigned b = 0; b < a; b++)
            assert_string_not_equal(mem_tag_name(a), mem_tag_name(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mapping_is_zeroed_and_counted_in_whole_pages),
        cmocka_unit_test(a_huge_mapping_begins_on_a_huge_page_and_costs_no_more),
        cmocka_unit_test(a_small_mapping_may_ask_for_huge_pages),
        cmocka_unit_test(the_limit_holds_over_all_tags),
        cmocka_unit_test(sizes_that_cannot_be_are_refused),
        cmocka_unit_test(a_refused_mapping_is_not_counted),
        cmocka_unit_test(aligning_up_goes_to_the_next_multiple_and_no_further),
        cmocka_unit_test(every_tag_has_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
