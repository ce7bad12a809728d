/* One suite for every replacement policy, then what each of them promises by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "storage/policy.h"
#include "tests/support/alloc_fault.h"

enum { N_MAX = 4096 };

static const struct policy_ops *ops; /* whose turn it is */

static const struct extent anywhere = {.length = IO_ALIGN};

static uint64_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005 + 1442695040888963407;
    return *x >> 33;
}

static struct policy *opened(const struct policy_ops *o, unsigned n, uint64_t seed)
{
    struct policy *p;
    struct err e;

    assert_int_equal(o->open(&p, n, seed, &e), 0);
    assert_ptr_equal(p->ops, o);
    for (unsigned f = 0; f < n; f++)
        o->loaded(p, f, anywhere, f % 3 ? HINT_SURE : HINT_GUESS);
    return p;
}

static void put(uint64_t *bits, unsigned f)
{
    bits[f / 64] |= UINT64_C(1) << (f % 64);
}

static void the_victim_is_one_that_may_go(void **state)
{
    static const unsigned sizes[] = {1, 2, 63, 64, 65, 1000, N_MAX};
    uint64_t x = 1;

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned n = sizes[i];
        struct policy *p = opened(ops, n, i);

        for (unsigned round = 0; round < 2000; round++) {
            uint64_t may[N_MAX / 64] = {0};
            unsigned count = 1 + (unsigned)next_random(&x) % (round % 2 ? 3 : n), f;

            while (count--)
                put(may, (unsigned)next_random(&x) % n);
            f = ops->victim(p, may);
            assert_true(f < n);
            assert_true(may[f / 64] >> (f % 64) & 1);
            if (round % 3)
                ops->loaded(p, f, anywhere, HINT_SURE);
            ops->used(p, (unsigned)next_random(&x) % n);
        }
        ops->close(p);
    }
}

static void the_same_calls_give_the_same_victims(void **state)
{
    enum { N = 200 };
    struct policy *a = opened(ops, N, 7), *b = opened(ops, N, 7);
    uint64_t x = 3, may[(N + 63) / 64] = {0};

    (void)state;
    for (unsigned f = 0; f < N; f += 1 + f % 2)
        put(may, f);
    for (unsigned round = 0; round < 5000; round++) {
        unsigned f = ops->victim(a, may), used = (unsigned)next_random(&x) % N;

        assert_int_equal(ops->victim(b, may), f);
        ops->loaded(a, f, anywhere, HINT_SURE);
        ops->loaded(b, f, anywhere, HINT_SURE);
        ops->used(a, used);
        ops->used(b, used);
    }
    ops->close(a);
    ops->close(b);
}

static void a_page_in_use_stays_while_colder_ones_may_go(void **state)
{
    enum { N = 64 };
    struct policy *p = opened(ops, N, 1);
    uint64_t all[1] = {UINT64_MAX};

    (void)state;
    for (unsigned round = 0; round < 10000; round++) {
        unsigned f;

        for (unsigned hot = 0; hot < 8; hot++)
            ops->used(p, hot * 8);
        f = ops->victim(p, all);
        assert_true(f % 8);
        ops->loaded(p, f, anywhere, HINT_SURE);
    }
    ops->close(p);
}

static void opening_without_memory_is_an_error(void **state)
{
    struct policy *p = NULL;
    struct err e;

    (void)state;
    alloc_fault_arm(1);
    assert_int_equal(ops->open(&p, 10, 0, &e), ERR_NOMEM);
    assert_true(alloc_fault_disarm());
    assert_null(p);
    ops->close(NULL);
}

static void it_is_found_by_its_name(void **state)
{
    (void)state;
    assert_ptr_equal(policy_named(ops->name), ops);
}

static void other_names_are_nobody(void **state)
{
    (void)state;
    assert_null(policy_named(""));
    assert_null(policy_named("LRU"));
    assert_null(policy_named("lru "));
}

static void lru_gives_up_the_page_unused_for_longest(void **state)
{
    enum { N = 130 };
    struct policy *p = opened(&policy_lru, N, 1);
    uint64_t last[N], now = N, x = 5;

    (void)state;
    for (unsigned f = 0; f < N; f++)
        last[f] = f;
    for (unsigned round = 0; round < 20000; round++) {
        uint64_t may[(N + 63) / 64] = {0};
        unsigned oldest = N, f = (unsigned)next_random(&x) % N;

        policy_lru.used(p, f);
        last[f] = now++;
        for (f = 0; f < N; f++)
            if (next_random(&x) % 8 == 0) {
                put(may, f);
                if (oldest == N || last[f] < last[oldest])
                    oldest = f;
            }
        if (oldest == N)
            continue;
        assert_int_equal(policy_lru.victim(p, may), oldest);
        policy_lru.loaded(p, oldest, anywhere, HINT_SURE);
        last[oldest] = now++;
    }
    policy_lru.close(p);
}

/* Two candidates among thousands: the sample of 16 misses them, and all frames are looked at. */
static void lfru_gives_up_the_fewest_hits_then_the_oldest(void **state)
{
    struct policy *p = opened(&policy_lfru, N_MAX, 42);
    uint64_t may[N_MAX / 64] = {0};

    (void)state;
    put(may, 100);
    put(may, 3000);
    policy_lfru.used(p, 3000);
    assert_int_equal(policy_lfru.victim(p, may), 100); /* 1 hit against 2 */
    policy_lfru.used(p, 100);
    assert_int_equal(policy_lfru.victim(p, may), 3000); /* 2 and 2, used before */
    policy_lfru.used(p, 3000);
    policy_lfru.used(p, 100);
    policy_lfru.used(p, 100);
    assert_int_equal(policy_lfru.victim(p, may), 3000); /* 3 against 4 */
    policy_lfru.used(p, 3000);
    assert_int_equal(policy_lfru.victim(p, may), 100); /* 4 and 4 */
    policy_lfru.loaded(p, 3000, anywhere, HINT_SURE);
    assert_int_equal(policy_lfru.victim(p, may), 3000); /* a load begins at 1 again, however new */
    policy_lfru.close(p);
}

static void lfru_samples_with_its_seed(void **state)
{
    struct policy *a = opened(&policy_lfru, N_MAX, 1), *b = opened(&policy_lfru, N_MAX, 2);
    uint64_t may[N_MAX / 64];
    unsigned differ = 0;

    (void)state;
    memset(may, 0xff, sizeof(may));
    for (unsigned round = 0; round < 100; round++)
        differ += policy_lfru.victim(a, may) != policy_lfru.victim(b, may);
    assert_true(differ > 50);
    policy_lfru.close(a);
    policy_lfru.close(b);
}

/* All pages equally hot: the oldest of 16 random ones goes, so the age of victims among 4096
 * averages 1/17 from the old end. The seed is fixed, so this is arithmetic, not luck. */
static void lfru_looks_at_sixteen(void **state)
{
    struct policy *p = opened(&policy_lfru, N_MAX, 9);
    uint64_t may[N_MAX / 64], sum = 0;

    (void)state;
    memset(may, 0xff, sizeof(may));
    for (unsigned round = 0; round < 4000; round++)
        sum += policy_lfru.victim(p, may); /* frame number is age here: loaded in order */
    assert_in_range(sum / 4000, N_MAX / 17 - 20, N_MAX / 17 + 20);
    policy_lfru.close(p);
}

int main(void)
{
    static const struct policy_ops *const all[] = {&policy_lfru, &policy_lru};
    const struct CMUnitTest each[] = {
        cmocka_unit_test(the_victim_is_one_that_may_go),
        cmocka_unit_test(the_same_calls_give_the_same_victims),
        cmocka_unit_test(a_page_in_use_stays_while_colder_ones_may_go),
        cmocka_unit_test(opening_without_memory_is_an_error),
        cmocka_unit_test(it_is_found_by_its_name),
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(other_names_are_nobody),
        cmocka_unit_test(lru_gives_up_the_page_unused_for_longest),
        cmocka_unit_test(lfru_gives_up_the_fewest_hits_then_the_oldest),
        cmocka_unit_test(lfru_samples_with_its_seed),
        cmocka_unit_test(lfru_looks_at_sixteen),
    };
    int failed = 0;

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ops = all[i];
        failed += cmocka_run_group_tests_name(ops->name, each, NULL, NULL);
    }
    return failed + cmocka_run_group_tests_name("one by one", own, NULL, NULL);
}
