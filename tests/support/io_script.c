#include "tests/support/io_script.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Word i of the file: 64 bits that tell their place, so a page shifted or torn is seen. */
static uint64_t word_at(uint32_t file, uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15 + (uint64_t)file * 0xd1342543de82ef95;

    z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93;
    return z ^ (z >> 32);
}

void io_script_fill(void *dst, struct extent at)
{
    uint64_t *word = dst;

    for (uint32_t i = 0; i < at.length / 8; i++)
        word[i] = word_at(at.file, at.offset / 8 + i);
}

bool io_script_check(const void *bytes, struct extent at)
{
    const uint64_t *word = bytes;

    for (uint32_t i = 0; i < at.length / 8; i++)
        if (word[i] != word_at(at.file, at.offset / 8 + i))
            return false;
    return true;
}

static unsigned random_below(struct io_script *s, unsigned n)
{
    s->random = s->random * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((s->random >> 32) * n) >> 32);
}

static void finish(struct io_script *s, struct flight *f)
{
    f->finished = true;
    if (f->nth == s->fail_nth) {
        memset(f->read->dst, 0xee, f->read->at.length / 2);
        f->read->status = s->fail_status;
        s->n_failed++;
        return;
    }
    io_script_fill(f->read->dst, f->read->at);
    f->read->status = 0;
}

/* One more read completes, by the order set; there is one that has not. */
static void finish_one(struct io_script *s)
{
    unsigned open[IO_SCRIPT_DEPTH_MAX], n = 0, pick = 0;

    for (unsigned i = 0; i < s->n_flight; i++)
        if (!s->flight[i].finished)
            open[n++] = i;
    assert(n);
    if (s->order == IO_SCRIPT_LAST)
        pick = n - 1;
    else if (s->order == IO_SCRIPT_RANDOM)
        pick = random_below(s, n);
    finish(s, &s->flight[open[pick]]);
}

static unsigned count_finished(const struct io_script *s)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n_flight; i++)
        n += s->flight[i].finished;
    return n;
}

static unsigned script_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct io_script *s = (struct io_script *)io;
    unsigned i;

    if (s->take_max && n > s->take_max)
        n = s->take_max;
    for (i = 0; i < n && s->n_flight < s->depth; i++) {
        s->log[s->n_reads++ % IO_SCRIPT_LOG] = reads[i]->at;
        s->flight[s->n_flight++] = (struct flight){.read = reads[i], .nth = s->n_reads};
    }
    return i;
}

static unsigned script_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct io_script *s = (struct io_script *)io;
    unsigned n = 0, open = s->n_flight - count_finished(s);

    if (!s->held)
        for (unsigned i = s->order == IO_SCRIPT_RANDOM ? random_below(s, open + 1) : open; i; i--)
            finish_one(s);
    if (wait && s->n_flight && !count_finished(s)) {
        s->n_waits++;
        finish_one(s);
    }
    for (unsigned i = 0; i < s->n_flight && n < max;) {
        if (!s->flight[i].finished) {
            i++;
            continue;
        }
        done[n++] = s->flight[i].read;
        s->n_flight--;
        memmove(&s->flight[i], &s->flight[i + 1], (s->n_flight - i) * sizeof(s->flight[0]));
    }
    return n;
}

static int script_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    (void)out, (void)cfg;
    return err_set(e, ERR_UNSUPPORTED, "io_script: use io_script_init");
}

static void script_close(struct io *io)
{
    struct io_script *s = (struct io_script *)io;

    for (unsigned i = 0; s && i < s->n_flight; i++) /* as every engine: still gets written */
        if (!s->flight[i].finished)
            finish(s, &s->flight[i]);
    if (s)
        s->n_flight = 0;
}

static void script_shrink(struct io *io, size_t arena_bytes)
{
    ((struct io_script *)io)->arena_bytes = arena_bytes;
}

static const struct io_ops io_ops_script = {
    .name = "script",
    .open = script_open,
    .submit = script_submit,
    .reap = script_reap,
    .close = script_close,
    .shrink = script_shrink,
};

void io_script_init(struct io_script *s, unsigned depth, uint64_t seed)
{
    assert(depth && depth <= IO_SCRIPT_DEPTH_MAX);
    memset(s, 0, sizeof(*s));
    s->io.ops = &io_ops_script;
    s->depth = depth;
    s->fail_status = -EIO;
    s->random = seed;
    s->arena_bytes = SIZE_MAX;
}

bool io_script_finish(struct io_script *s, struct extent at)
{
    for (unsigned i = 0; i < s->n_flight; i++)
        if (extent_equal(s->flight[i].read->at, at) && !s->flight[i].finished) {
            finish(s, &s->flight[i]);
            return true;
        }
    return false;
}

bool io_script_in_flight(const struct io_script *s, struct extent at)
{
    for (unsigned i = 0; i < s->n_flight; i++)
        if (extent_equal(s->flight[i].read->at, at))
            return true;
    return false;
}
