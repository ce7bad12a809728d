#include "tests/support/io_chaos.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static unsigned random_below(struct io_chaos *c, unsigned n)
{
    c->random = c->random * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(((c->random >> 32) * n) >> 32);
}

static bool happens(struct io_chaos *c, unsigned per_mille)
{
    return random_below(c, 1000) < per_mille;
}

/* What is kept back counts as in flight, though the inner engine is done with it. */
static unsigned chaos_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct io_chaos *c = (struct io_chaos *)io;
    unsigned room = c->depth - c->in_flight, taken;

    taken = c->inner->ops->submit(c->inner, reads, n < room ? n : room);
    c->in_flight += taken;
    c->n_reads += taken;
    return taken;
}

static void spoil(struct io_chaos *c, struct io_read *r)
{
    if (r->status || !(c->down || happens(c, c->fail_per_mille)))
        return;
    memset(r->dst, 0xee, r->at.length / 2);
    r->status = c->down || random_below(c, 2) ? -EIO : -ENODATA;
    c->n_failed++;
}

static struct io_read *release(struct io_chaos *c)
{
    unsigned which = random_below(c, c->n_held);
    struct io_read *r = c->held[which];

    c->held[which] = c->held[--c->n_held];
    return r;
}

static unsigned chaos_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct io_chaos *c = (struct io_chaos *)io;
    struct io_read *got[IO_CHAOS_DEPTH_MAX];
    unsigned n = 0;

    while (!n) {
        bool sleep = wait && max && c->in_flight > c->n_held && random_below(c, 2);
        unsigned k = max < c->depth ? max : c->depth;

        k = c->inner->ops->reap(c->inner, got, k, sleep);
        for (unsigned i = 0; i < k; i++) {
            spoil(c, got[i]);
            if (happens(c, c->hold_per_mille)) {
                c->held[c->n_held++] = got[i];
                c->n_held_ever++;
            } else {
                done[n++] = got[i];
            }
        }
        while (n < max && c->n_held && random_below(c, 4) == 0)
            done[n++] = release(c);
        if (!n && wait && max && c->in_flight && c->in_flight == c->n_held)
            done[n++] = release(c);
        if (!wait || !max || !c->in_flight)
            break;
    }
    c->in_flight -= n;
    return n;
}

static int chaos_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    (void)out, (void)cfg;
    return err_set(e, ERR_UNSUPPORTED, "io_chaos: use io_chaos_init");
}

static void chaos_close(struct io *io)
{
    (void)io; /* the inner engine is borrowed */
}

static void chaos_shrink(struct io *io, size_t arena_bytes)
{
    struct io_chaos *c = (struct io_chaos *)io;

    if (c->inner->ops->shrink)
        c->inner->ops->shrink(c->inner, arena_bytes);
}

static const struct io_ops io_ops_chaos = {
    .name = "chaos",
    .open = chaos_open,
    .submit = chaos_submit,
    .reap = chaos_reap,
    .close = chaos_close,
    .shrink = chaos_shrink,
};

void io_chaos_init(struct io_chaos *c, struct io *inner, unsigned depth, uint64_t seed)
{
    assert(depth <= IO_CHAOS_DEPTH_MAX);
    memset(c, 0, sizeof(*c));
    c->io.ops = &io_ops_chaos;
    c->inner = inner;
    c->depth = depth;
    c->random = seed;
}
