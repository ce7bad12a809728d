/* One suite for every replacement policy, then what each of them promises by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "storage/policy.h"
#include "tests/support/alloc_fault.h"

enum { N_MAX = 4096, N_PAGES = 2 * N_MAX, N_GROUPS = 6, N_FUTURE = 5 * N_PAGES, NOWHERE = -1 };

static const struct policy_ops *ops; /* whose turn it is */

static uint64_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005 + 1442695040888963407;
    return *x >> 33;
}

static struct extent page_nth(unsigned i)
{
    return (struct extent){
        .offset = (uint64_t)(i / N_GROUPS) * IO_ALIGN, .length = IO_ALIGN, .file = i % N_GROUPS};
}

static void put(uint64_t *bits, unsigned f)
{
    bits[f / 64] |= UINT64_C(1) << (f % 64);
}

/* A policy, and which frame holds which page, as a pool would know it. */
struct fixture {
    const struct policy_ops *ops;
    struct policy *policy;
    unsigned n;
    int page_in[N_MAX]; /* or NOWHERE: the frame is free */
    int frame_of[N_PAGES];
};

static void load(struct fixture *x, unsigned f, unsigned page, enum hint kind)
{
    if (x->page_in[f] != NOWHERE)
        x->frame_of[x->page_in[f]] = NOWHERE;
    if (x->frame_of[page] != NOWHERE) /* lost without a word, as by pool_purge */
        x->page_in[x->frame_of[page]] = NOWHERE;
    x->page_in[f] = (int)page;
    x->frame_of[page] = (int)f;
    x->ops->loaded(x->policy, f, page_nth(page), kind);
}

/* Frame f holds page f. Every page is to come: 0, 1, ... again and again. */
static void open_policy(struct fixture *x, const struct policy_ops *o, unsigned n, uint64_t seed)
{
    static struct extent future[N_FUTURE];
    struct policy_known known = {
        .n_pages = N_PAGES, .n_files = N_GROUPS, .future = future, .n_future = N_FUTURE};
    struct err e;

    for (unsigned i = 0; i < N_FUTURE; i++)
        future[i] = page_nth(i % N_PAGES);
    x->ops = o;
    x->n = n;
    memset(x->page_in, 0xff, sizeof(x->page_in));
    memset(x->frame_of, 0xff, sizeof(x->frame_of));
    assert_int_equal(o->open(&x->policy, n, seed, &known, &e), 0);
    assert_ptr_equal(x->policy->ops, o);
    for (unsigned f = 0; f < n; f++)
        load(x, f, f, f % 3 ? HINT_SURE : HINT_GUESS);
}

static void close_policy(struct fixture *x)
{
    x->ops->close(x->policy);
}

/* Some of the frames that hold a page, from one to all; false if there are none. */
static bool some_may_go(const struct fixture *x, uint64_t *may, uint64_t *random)
{
    unsigned count = 1 + (unsigned)next_random(random) % (next_random(random) % 2 ? 3 : x->n);
    bool any = false;

    memset(may, 0, N_MAX / 8);
    while (count--) {
        unsigned f = (unsigned)next_random(random) % x->n;

        if (x->page_in[f] != NOWHERE) {
            put(may, f);
            any = true;
        }
    }
    return any;
}

/* Pages come back, are loaded where they are, and vanish to turn up in another frame. */
static void the_victim_is_one_that_may_go(void **state)
{
    static const unsigned sizes[] = {1, 2, 63, 64, 65, 1000, N_MAX};
    static struct fixture x;
    uint64_t random = 1, may[N_MAX / 64];

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        open_policy(&x, ops, sizes[i], i);
        alloc_fault_arm(1000000000);
        for (unsigned round = 0; round < 2000; round++) {
            unsigned f = 0;

            if (some_may_go(&x, may, &random)) {
                f = ops->victim(x.policy, may);
                assert_true(f < x.n);
                assert_true(may[f / 64] >> (f % 64) & 1);
                if (round % 2)
                    ops->used(x.policy, f);
            }
            if (round % 3 || x.page_in[f] == NOWHERE)
                load(&x, f, (unsigned)next_random(&random) % (x.n * 2),
                     round % 5 ? HINT_SURE : HINT_GUESS);
        }
        alloc_fault_disarm();
        assert_int_equal(alloc_fault_seen(), 0); /* nothing is allocated after open */
        close_policy(&x);
    }
}

static void the_same_calls_give_the_same_victims(void **state)
{
    enum { N = 200 };
    static struct fixture a, b;
    uint64_t random = 3, may[N_MAX / 64];

    (void)state;
    open_policy(&a, ops, N, 7);
    open_policy(&b, ops, N, 7);
    for (unsigned round = 0; round < 5000; round++) {
        unsigned page = (unsigned)next_random(&random) % (2 * N), f;

        if (a.frame_of[page] != NOWHERE) {
            ops->used(a.policy, (unsigned)a.frame_of[page]);
            ops->used(b.policy, (unsigned)a.frame_of[page]);
            continue;
        }
        if (!some_may_go(&a, may, &random))
            continue;
        f = ops->victim(a.policy, may);
        assert_int_equal(ops->victim(b.policy, may), f);
        load(&a, f, page, HINT_SURE);
        load(&b, f, page, HINT_SURE);
    }
    close_policy(&a);
    close_policy(&b);
}

/* Tokens: a layer after the other, one page of each that every token wants and three that come
 * once. */
static void a_page_in_use_stays_while_colder_ones_may_go(void **state)
{
    enum { N = 64 };
    static struct fixture x;
    uint64_t random = 2;

    (void)state;
    open_policy(&x, ops, N, 1);
    for (unsigned token = 0; token < 2000; token++)
        for (unsigned g = 0; g < N_GROUPS; g++)
            for (unsigned k = 0; k < 4; k++) {
                unsigned page = k ? g + N_GROUPS * (1 + (unsigned)next_random(&random) % 1000) : g;
                uint64_t all[N_MAX / 64] = {UINT64_MAX};

                if (x.frame_of[page] != NOWHERE) {
                    ops->used(x.policy, (unsigned)x.frame_of[page]);
                    continue;
                }
                assert_true(token < 40 || k); /* the first 40 may be needed to learn it */
                load(&x, ops->victim(x.policy, all), page, HINT_SURE);
            }
    close_policy(&x);
}

static void opening_meets_every_failed_allocation(void **state)
{
    struct extent future = page_nth(0);
    struct policy_known known = {.n_files = N_GROUPS, .future = &future, .n_future = 1};
    unsigned refused = 0;
    struct err e;

    (void)state;
    for (unsigned nth = 1, failed = 1; failed; nth++) {
        struct policy *p = NULL;
        int rc;

        alloc_fault_arm(nth);
        rc = ops->open(&p, 10, 0, &known, &e);
        failed = alloc_fault_disarm();
        if (rc) {
            assert_int_equal(rc, ERR_NOMEM);
            assert_null(p);
            refused++;
        } else {
            ops->close(p);
        }
        assert_int_equal(failed, rc != 0);
    }
    assert_true(refused);
    ops->close(NULL);
}

static void it_is_found_by_its_name(void **state)
{
    (void)state;
    assert_ptr_equal(policy_named(ops->name), ops == &policy_belady ? NULL : ops);
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
    static struct fixture x;
    uint64_t last[N], now = N, random = 5;

    (void)state;
    open_policy(&x, &policy_lru, N, 1);
    for (unsigned f = 0; f < N; f++)
        last[f] = f;
    for (unsigned round = 0; round < 20000; round++) {
        uint64_t may[N_MAX / 64] = {0};
        unsigned oldest = N, f = (unsigned)next_random(&random) % N;

        policy_lru.used(x.policy, f);
        last[f] = now++;
        for (f = 0; f < N; f++)
            if (next_random(&random) % 8 == 0) {
                put(may, f);
                if (oldest == N || last[f] < last[oldest])
                    oldest = f;
            }
        if (oldest == N)
            continue;
        assert_int_equal(policy_lru.victim(x.policy, may), oldest);
        policy_lru.loaded(x.policy, oldest, page_nth(oldest), HINT_SURE);
        last[oldest] = now++;
    }
    close_policy(&x);
}

/* Two candidates among thousands: the sample of 16 misses them, and all frames are looked at. */
static void lfru_gives_up_the_fewest_hits_then_the_oldest(void **state)
{
    static struct fixture x;
    uint64_t may[N_MAX / 64] = {0};

    (void)state;
    open_policy(&x, &policy_lfru, N_MAX, 42);
    put(may, 100);
    put(may, 3000);
    policy_lfru.used(x.policy, 3000);
    assert_int_equal(policy_lfru.victim(x.policy, may), 100); /* 1 hit against 2 */
    policy_lfru.used(x.policy, 100);
    assert_int_equal(policy_lfru.victim(x.policy, may), 3000); /* 2 and 2, used before */
    policy_lfru.used(x.policy, 3000);
    policy_lfru.used(x.policy, 100);
    policy_lfru.used(x.policy, 100);
    assert_int_equal(policy_lfru.victim(x.policy, may), 3000); /* 3 against 4 */
    policy_lfru.used(x.policy, 3000);
    assert_int_equal(policy_lfru.victim(x.policy, may), 100); /* 4 and 4 */
    load(&x, 3000, N_MAX + 1, HINT_SURE);
    assert_int_equal(policy_lfru.victim(x.policy, may), 3000); /* a new page begins at 1 */
    close_policy(&x);
}

static void lfru_remembers_the_hits_of_a_page_that_left(void **state)
{
    static struct fixture x;
    uint64_t both[N_MAX / 64] = {3};

    (void)state;
    open_policy(&x, &policy_lfru, 2, 1);
    for (unsigned i = 0; i < 5; i++)
        policy_lfru.used(x.policy, 0); /* page 0: 6 hits, page 1: 1 */
    load(&x, 0, 2, HINT_SURE);
    policy_lfru.used(x.policy, 1);
    policy_lfru.used(x.policy, 1); /* page 1: 3 hits */
    assert_int_equal(policy_lfru.victim(x.policy, both), 0);
    load(&x, 0, 0, HINT_SURE);
    assert_int_equal(policy_lfru.victim(x.policy, both), 1); /* 7 hits against 3 */
    close_policy(&x);
}

static void lfru_samples_with_its_seed(void **state)
{
    static struct fixture a, b;
    uint64_t may[N_MAX / 64];
    unsigned differ = 0;

    (void)state;
    open_policy(&a, &policy_lfru, N_MAX, 1);
    open_policy(&b, &policy_lfru, N_MAX, 2);
    memset(may, 0xff, sizeof(may));
    for (unsigned round = 0; round < 100; round++)
        differ += policy_lfru.victim(a.policy, may) != policy_lfru.victim(b.policy, may);
    assert_true(differ > 50);
    close_policy(&a);
    close_policy(&b);
}

/* All pages equally hot: the oldest of 16 random ones goes, so the age of victims among 4096
 * averages 1/17 from the old end. The seed is fixed, so this is arithmetic, not luck. */
static void lfru_looks_at_sixteen(void **state)
{
    static struct fixture x;
    uint64_t may[N_MAX / 64], sum = 0;

    (void)state;
    open_policy(&x, &policy_lfru, N_MAX, 9);
    memset(may, 0xff, sizeof(may));
    for (unsigned round = 0; round < 4000; round++)
        sum += policy_lfru.victim(x.policy, may); /* frame number is age here: loaded in order */
    assert_in_range(sum / 4000, N_MAX / 17 - 20, N_MAX / 17 + 20);
    close_policy(&x);
}

/* Against the definition: of all pages the one whose next request comes last. */
static void belady_gives_up_what_is_asked_for_last(void **state)
{
    enum { N = 12, N_ASKED = 3000, N_KINDS = 40 };
    static struct extent asked[N_ASKED];
    static unsigned page_of[N_ASKED];
    struct policy_known known = {.future = asked, .n_future = N_ASKED};
    unsigned in[N], n_in = 0, n_chosen = 0;
    struct policy *p;
    uint64_t random = 8;
    struct err e;

    (void)state;
    for (unsigned i = 0; i < N_ASKED; i++)
        asked[i] = page_nth(page_of[i] = (unsigned)next_random(&random) % N_KINDS);
    assert_int_equal(policy_belady.open(&p, N, 0, &known, &e), 0);
    for (unsigned i = 0; i < N_ASKED; i++) {
        uint64_t all[1] = {(1u << N) - 1};
        unsigned f = 0, next[N];

        while (f < n_in && in[f] != page_of[i])
            f++;
        if (f < n_in) {
            policy_belady.used(p, f);
            continue;
        }
        if (n_in < N) {
            f = n_in++;
        } else {
            unsigned far = 0;

            f = policy_belady.victim(p, all);
            for (unsigned g = 0; g < N; g++) {
                for (next[g] = i; next[g] < N_ASKED && page_of[next[g]] != in[g]; next[g]++)
                    ;
                far = next[g] > far ? next[g] : far;
            }
            assert_int_equal(next[f], far);
            n_chosen++;
        }
        in[f] = page_of[i];
        policy_belady.loaded(p, f, asked[i], HINT_SURE);
    }
    assert_true(n_chosen > N_ASKED / 4);
    policy_belady.close(p);
    known.n_future = 0;
    assert_int_equal(policy_belady.open(&p, N, 0, &known, &e), ERR_ARG);
}

/* Three groups in turn, every page used by every visit but one of the last, which is used by
 * every fifth: what comes next is kept, whatever was used last. */
static void nextuse_knows_whose_turn_it_is(void **state)
{
    enum { N = 6 };
    struct policy_known known = {.n_files = 3};
    struct extent page[N + 1];
    struct policy *p;
    uint64_t all = (1u << N) - 1;
    struct err e;

    (void)state;
    for (unsigned i = 0; i <= N; i++)
        page[i] = (struct extent){.offset = i * IO_ALIGN, .length = IO_ALIGN, .file = i % 3};
    assert_int_equal(policy_nextuse.open(&p, N, 0, &known, &e), 0);
    for (unsigned i = 0; i < N; i++)
        policy_nextuse.loaded(p, i, page[i], HINT_SURE);
    for (unsigned token = 0; token < 50; token++)
        for (unsigned g = 0; g < 3; g++)
            for (unsigned i = g; i < N; i += 3)
                if (i != 5 || token % 5 == 0) /* 5 is of the last group, and seldom wanted */
                    policy_nextuse.used(p, i);
    assert_int_equal(policy_nextuse.victim(p, &all), 5);
    all &= ~(UINT64_C(1) << 5);
    assert_int_equal(policy_nextuse.victim(p, &all), 2); /* group 2 was visited just now */
    policy_nextuse.used(p, 0);
    policy_nextuse.used(p, 3);
    assert_int_equal(policy_nextuse.victim(p, &all) % 3, 0); /* and now group 0 */
    policy_nextuse.used(p, 1);
    policy_nextuse.used(p, 4);
    assert_int_equal(policy_nextuse.victim(p, &all) % 3, 1);
    policy_nextuse.close(p);
}

/* The small queue may hold a tenth of the frames: 2 of 20. */
static void s3fifo_lets_new_pages_prove_themselves(void **state)
{
    enum { N = 20 };
    static struct fixture x;
    uint64_t all[N_MAX / 64] = {(1u << N) - 1};

    (void)state;
    open_policy(&x, &policy_s3fifo, N, 0);
    for (unsigned f = 1; f < N; f++)
        for (unsigned i = 0; i < 2; i++)
            policy_s3fifo.used(x.policy, f);
    assert_int_equal(policy_s3fifo.victim(x.policy, all), 0); /* the one not asked for again */
    load(&x, 0, 100, HINT_SURE);
    assert_int_equal(policy_s3fifo.victim(x.policy, all), 0); /* the others have moved to main */
    load(&x, 0, 101, HINT_SURE);
    policy_s3fifo.used(x.policy, 0);                          /* once is not enough */
    assert_int_equal(policy_s3fifo.victim(x.policy, all), 1); /* small is below its share */
    load(&x, 1, 100, HINT_SURE);                              /* left small not long ago: main */
    load(&x, 2, 102, HINT_SURE);
    assert_int_equal(policy_s3fifo.victim(x.policy, all), 0); /* small, 101 and 102: the older */
    load(&x, 0, 1, HINT_SURE);                                /* left main: no ghost, small */
    assert_int_equal(policy_s3fifo.victim(x.policy, all), 2);
    close_policy(&x);
}

int main(void)
{
    static const struct policy_ops *const all[] = {&policy_lfru, &policy_nextuse, &policy_lru,
                                                   &policy_s3fifo, &policy_belady};
    const struct CMUnitTest each[] = {
        cmocka_unit_test(the_victim_is_one_that_may_go),
        cmocka_unit_test(the_same_calls_give_the_same_victims),
        cmocka_unit_test(opening_meets_every_failed_allocation),
        cmocka_unit_test(it_is_found_by_its_name),
    };
    const struct CMUnitTest learning[] = {
        cmocka_unit_test(a_page_in_use_stays_while_colder_ones_may_go),
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(other_names_are_nobody),
        cmocka_unit_test(lru_gives_up_the_page_unused_for_longest),
        cmocka_unit_test(lfru_gives_up_the_fewest_hits_then_the_oldest),
        cmocka_unit_test(lfru_remembers_the_hits_of_a_page_that_left),
        cmocka_unit_test(lfru_samples_with_its_seed),
        cmocka_unit_test(lfru_looks_at_sixteen),
        cmocka_unit_test(belady_gives_up_what_is_asked_for_last),
        cmocka_unit_test(nextuse_knows_whose_turn_it_is),
        cmocka_unit_test(s3fifo_lets_new_pages_prove_themselves),
    };
    int failed = 0;

    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ops = all[i];
        failed += cmocka_run_group_tests_name(ops->name, each, NULL, NULL);
        if (ops != &policy_belady) /* which goes by what it was told */
            failed += cmocka_run_group_tests_name(ops->name, learning, NULL, NULL);
    }
    return failed + cmocka_run_group_tests_name("one by one", own, NULL, NULL);
}
