/* tests/storage/pool_fixture.h - a pool on an engine that the test drives, and pages by number. */
#ifndef TESTS_STORAGE_POOL_FIXTURE_H
#define TESTS_STORAGE_POOL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "storage/frames.h"
#include "storage/pool.h"
#include "tests/support/io_script.h"

enum { PAGE_BYTES = 2 * IO_ALIGN };

struct fixture {
    struct mem mem;
    struct frames frames;
    struct io_script script;
    struct pool *pool;
};

static inline struct extent extent_nth(unsigned i)
{
    return (struct extent){.offset = (uint64_t)i * PAGE_BYTES, .length = PAGE_BYTES, .file = i % 3};
}

static inline void open_known(struct fixture *f, unsigned n_frames, unsigned depth,
                              const struct policy_ops *policy, const struct policy_known *known)
{
    struct pool_config cfg = {.io = &f->script.io,
                              .frames = &f->frames,
                              .policy = policy,
                              .depth = depth,
                              .seed = 1,
                              .known = *known};
    struct err e;

    mem_init(&f->mem, 0);
    io_script_init(&f->script, depth, 1);
    assert_int_equal(frames_open(&f->frames, &f->mem, PAGE_BYTES, n_frames, &e), 0);
    assert_int_equal(pool_open(&f->pool, &cfg, &e), 0);
}

static inline void open_with(struct fixture *f, unsigned n_frames, unsigned depth,
                             const struct policy_ops *policy)
{
    open_known(f, n_frames, depth, policy, &(struct policy_known){.n_files = 3});
}

static inline void open_pool(struct fixture *f, unsigned n_frames, unsigned depth)
{
    open_with(f, n_frames, depth, &policy_lru);
}

static inline void close_pool(struct fixture *f)
{
    pool_close(f->pool);
    frames_close(&f->frames);
    assert_int_equal(f->mem.used_total, 0);
}

static inline struct page pinned(struct fixture *f, unsigned i)
{
    struct page page;
    struct err e;

    if (pool_pin(f->pool, extent_nth(i), &page, &e))
        fail_msg("%s", e.text);
    assert_true(io_script_check(page.bytes, extent_nth(i)));
    return page;
}

static inline void use(struct fixture *f, unsigned i)
{
    struct page page = pinned(f, i);

    pool_unpin(f->pool, &page);
}

static inline void hint(struct fixture *f, enum hint kind, unsigned from, unsigned to)
{
    struct extent want[POOL_HINT_MAX + 8];

    assert_true(to - from <= POOL_HINT_MAX + 8);
    for (unsigned i = from; i < to; i++)
        want[i - from] = extent_nth(i);
    pool_hint(f->pool, want, to - from, kind);
}

static inline unsigned warm(struct fixture *f, unsigned from, unsigned to)
{
    struct extent want[64];

    assert_true(to - from <= 64);
    for (unsigned i = from; i < to; i++)
        want[i - from] = extent_nth(i);
    return pool_warm(f->pool, want, to - from);
}

/* Whether this read, counted from 0, was of page i. */
static inline bool read_was(const struct fixture *f, unsigned nth, unsigned i)
{
    return nth < f->script.n_reads && extent_equal(f->script.log[nth], extent_nth(i));
}

/* Whether page i is in memory or on its way: pinning it starts no read. */
static inline bool resident(struct fixture *f, unsigned i)
{
    unsigned before = f->script.n_reads;

    use(f, i);
    return f->script.n_reads == before;
}

#endif
