/* Everything at once: random calls, on an engine that the test drives and on every real one,
 * against what must be true of each answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "storage/file.h"
#include "storage/frames.h"
#include "storage/pool.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/io_fault.h"
#include "tests/support/io_script.h"

enum { N_EXTENTS = 48, N_FILES = 2, HELD_MAX = 12, STRESS_DEPTH = 6, STRESS_FRAMES = 10 };

struct tap { /* between the pool and an engine: counts the reads of each extent */
    struct io io;
    struct io *inner;
    unsigned depth, in_flight, n_errors;
    unsigned n_reads[N_EXTENTS];
    uint64_t bytes;
};

static struct extent stress_extent(unsigned i)
{
    static const uint8_t pages[] = {4, 1, 3, 4, 2};
    struct extent at = {.file = i % N_FILES, .length = pages[i % 5] * IO_ALIGN};

    at.offset = (uint64_t)(i / N_FILES) * 4 * IO_ALIGN;
    return at;
}

static unsigned stress_index(struct extent at)
{
    return (unsigned)(at.offset / (4 * IO_ALIGN)) * N_FILES + at.file;
}

static unsigned tap_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct tap *t = (struct tap *)io;
    unsigned taken = t->inner->ops->submit(t->inner, reads, n);

    for (unsigned i = 0; i < taken; i++)
        t->n_reads[stress_index(reads[i]->at)]++;
    t->in_flight += taken;
    assert_true(t->in_flight <= t->depth);
    return taken;
}

static unsigned tap_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct tap *t = (struct tap *)io;
    unsigned n = t->inner->ops->reap(t->inner, done, max, wait);

    for (unsigned i = 0; i < n; i++) {
        t->n_errors += done[i]->status != 0;
        t->bytes += done[i]->status ? 0 : done[i]->at.length;
    }
    t->in_flight -= n;
    return n;
}

static const struct io_ops tap_ops = {.name = "tap", .submit = tap_submit, .reap = tap_reap};

struct stress {
    struct tap tap;
    struct io_fault fault;
    struct mem mem;
    struct frames frames;
    struct pool *pool;
    uint64_t random;
    unsigned n_pins, n_reported;
    unsigned reads_at_pin[N_EXTENTS]; /* reads of it when it was pinned last */
    unsigned n_held;
    struct held {
        struct page page;
        unsigned extent;
    } held[HELD_MAX];
};

static unsigned below(struct stress *s, unsigned n)
{
    s->random = s->random * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((s->random >> 32) * n) >> 32);
}

static unsigned some_extents(struct stress *s, struct extent *want, unsigned most)
{
    unsigned n = below(s, most + 1), from = below(s, N_EXTENTS);

    for (unsigned i = 0; i < n; i++) /* half from a neighbourhood, half from anywhere */
        want[i] =
            stress_extent(below(s, 2) ? (from + below(s, 8)) % N_EXTENTS : below(s, N_EXTENTS));
    return n;
}

static unsigned frames_held(const struct stress *s)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n_held; i++) {
        bool again = false;

        for (unsigned j = 0; j < i; j++)
            again |= s->held[j].page.frame == s->held[i].page.frame;
        n += !again;
    }
    return n;
}

static void stress_pin(struct stress *s)
{
    struct extent want[6];
    unsigned n = some_extents(s, want, 6), which = 99, x;
    struct page page;
    struct err e;

    if (!n || s->n_held == HELD_MAX)
        return;
    if (pool_pin_any(s->pool, want, n, &which, &page, &e)) {
        if (e.code == ERR_BUSY) {
            assert_int_equal(frames_held(s), pool_frames(s->pool));
        } else {
            assert_int_equal(e.code, ERR_IO);
            assert_true(which < n);
            assert_true(++s->n_reported <= s->tap.n_errors);
        }
        return;
    }
    s->n_pins++;
    assert_true(which < n);
    assert_true(io_script_check(page.bytes, want[which]));
    x = stress_index(want[which]);
    assert_int_equal(page.fresh, s->reads_at_pin[x] != s->tap.n_reads[x]);
    s->reads_at_pin[x] = s->tap.n_reads[x];
    s->held[s->n_held++] = (struct held){.page = page, .extent = x};
}

static void stress_give_back(struct stress *s, bool drop)
{
    unsigned i;

    if (!s->n_held)
        return;
    i = below(s, s->n_held);
    assert_true(io_script_check(s->held[i].page.bytes, stress_extent(s->held[i].extent)));
    (drop ? pool_drop : pool_unpin)(s->pool, &s->held[i].page);
    s->held[i] = s->held[--s->n_held];
}

static void stress_step(struct stress *s)
{
    struct extent want[16];
    unsigned n, what = below(s, 100);

    if (what < 10) {
        n = some_extents(s, want, 8);
        pool_hint(s->pool, want, n, HINT_SURE);
    } else if (what < 20) {
        n = some_extents(s, want, 16);
        pool_hint(s->pool, want, n, HINT_GUESS);
    } else if (what < 22) {
        n = some_extents(s, want, 16);
        pool_warm(s->pool, want, n);
    } else if (what < 24) {
        pool_idle(s->pool);
    } else if (what < 60) {
        stress_pin(s);
    } else if (what < 97) {
        stress_give_back(s, false);
    } else if (what < 99) {
        stress_give_back(s, true);
    } else if (below(s, 4) == 0) {
        pool_purge(s->pool);
    }
    if (s->fault.fail_nth <= s->fault.n_reads && !s->fault.victim)
        s->fault.fail_nth = s->fault.n_reads + 1 + below(s, 60);
    for (unsigned i = 0; i < s->n_held; i++)
        assert_true(io_script_check(s->held[i].page.bytes, stress_extent(s->held[i].extent)));
}

/* io: the engine, opened for STRESS_DEPTH reads, and the frames as its arena. */
static void stress(struct stress *s, struct io *io, const struct policy_ops *policy, unsigned steps)
{
    struct pool_config cfg = {.io = &s->tap.io,
                              .frames = &s->frames,
                              .policy = policy,
                              .depth = STRESS_DEPTH,
                              .retries = below(s, 2),
                              .seed = s->random};
    struct pool_stats stats;
    struct err e;

    io_fault_init(&s->fault, io);
    s->fault.kind = below(s, 2) ? IO_FAULT_ERROR : IO_FAULT_SHORT;
    s->tap.io.ops = &tap_ops;
    s->tap.inner = &s->fault.io;
    s->tap.depth = STRESS_DEPTH;
    assert_int_equal(pool_open(&s->pool, &cfg, &e), 0);
    alloc_fault_arm(1000000000);
    for (unsigned i = 0; i < steps; i++) {
        stress_step(s);
        if (i == steps / 2 || i == steps * 3 / 4)
            pool_trim(s->pool, s->frames.frame_bytes * 4, 2);
    }
    alloc_fault_disarm();
    assert_int_equal(alloc_fault_seen(), 0); /* nothing is allocated after open */
    while (s->n_held)
        stress_give_back(s, false);
    pool_get_stats(s->pool, &stats);
    assert_int_equal(stats.hits_resident + stats.hits_guess + stats.misses, s->n_pins);
    assert_int_equal(stats.bytes, s->tap.bytes);
    assert_true(stats.bytes_guess && stats.bytes_guess < stats.bytes);
    assert_true(stats.hits_resident && stats.hits_guess && stats.misses && stats.evictions);
    if (cfg.retries && s->fault.kind == IO_FAULT_ERROR)
        assert_true(stats.retries && !s->n_reported);
    else
        assert_true(s->n_reported);
    pool_close(s->pool);
    assert_int_equal(s->tap.in_flight, 0);
}

static void stress_frames(struct stress *s, uint64_t seed)
{
    struct err e;

    memset(s, 0, sizeof(*s));
    s->random = seed;
    mem_init(&s->mem, 0);
    assert_int_equal(frames_open(&s->frames, &s->mem, 4 * IO_ALIGN, STRESS_FRAMES, &e), 0);
}

static void random_calls_keep_every_promise_in_any_order_of_completion(void **state)
{
    struct stress s;

    (void)state;
    for (unsigned seed = 0; seed < 24; seed++) {
        struct io_script script;

        io_script_init(&script, STRESS_DEPTH, seed);
        script.order = seed % 4 < 3 ? IO_SCRIPT_RANDOM : IO_SCRIPT_LAST;
        script.held = seed % 5 == 0;
        script.take_max = seed % 7 == 0 ? 2 : 0;
        stress_frames(&s, seed);
        stress(&s, &script.io, policies()[seed % 4], 5000);
        frames_close(&s.frames);
    }
}

/* Two files with what io_script would have given, in a directory of their own. */
static void make_files(char *dir, size_t size, struct file *file)
{
    const char *tmp = getenv("TMPDIR");
    struct err e;

    snprintf(dir, size, "%s/waste-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    for (unsigned i = 0; i < N_FILES; i++) {
        struct extent whole = {.file = i, .length = N_EXTENTS / N_FILES * 4 * IO_ALIGN};
        char path[300], *content = malloc(whole.length);
        int fd;

        assert_non_null(content);
        io_script_fill(content, whole);
        snprintf(path, sizeof(path), "%s/%u", dir, i);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(write(fd, content, whole.length), (ssize_t)whole.length);
        fsync(fd);
        close(fd);
        free(content);
        assert_int_equal(file_open(&file[i], AT_FDCWD, path, true, &e), 0);
        unlink(path);
    }
    rmdir(dir);
}

static void random_calls_keep_every_promise_on_real_engines(void **state)
{
    struct file file[N_FILES];
    const struct file *files[N_FILES] = {&file[0], &file[1]};
    struct stress s;
    char dir[256];

    (void)state;
    make_files(dir, sizeof(dir), file);
    for (unsigned i = 0; io_engines()[i]; i++) {
        struct io_config cfg = {.files = files, .n_files = N_FILES, .depth = STRESS_DEPTH};
        struct io *io;
        struct err e;

        stress_frames(&s, i);
        cfg.arena = s.frames.base;
        cfg.arena_bytes = s.frames.frame_bytes * s.frames.n;
        if (io_open(&io, io_engines()[i]->name, &cfg, NULL, &e)) {
            print_message("skipped: %s\n", e.text);
        } else {
            stress(&s, io, &policy_lfru, 20000);
            io->ops->close(io);
        }
        frames_close(&s.frames);
    }
    for (unsigned i = 0; i < N_FILES; i++)
        file_close(&file[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_calls_keep_every_promise_in_any_order_of_completion),
        cmocka_unit_test(random_calls_keep_every_promise_on_real_engines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
