#include "tests/support/io_fault.h"

#include <errno.h>
#include <string.h>

static unsigned fault_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct io_fault *f = (struct io_fault *)io;
    unsigned taken = f->inner->ops->submit(f->inner, reads, n);

    if (f->fail_nth > f->n_reads && f->fail_nth <= f->n_reads + taken) {
        f->victim = reads[f->fail_nth - f->n_reads - 1];
        f->bad = f->victim->at;
    }
    for (unsigned i = 0; f->again && !f->victim && i < taken; i++)
        if (extent_equal(reads[i]->at, f->bad))
            f->victim = reads[i];
    f->n_reads += taken;
    return taken;
}

static void spoil(struct io_fault *f, struct io_read *r)
{
    char *half = (char *)r->dst + r->at.length / 2;

    f->victim = NULL;
    f->n_faults++;
    switch (f->kind) {
    case IO_FAULT_ERROR:
        memset(r->dst, 0xee, r->at.length);
        r->status = f->status;
        break;
    case IO_FAULT_SHORT:
        memset(half, 0xee, r->at.length - r->at.length / 2);
        r->status = -ENODATA;
        break;
    case IO_FAULT_FLIP:
        *half ^= 1;
        break;
    }
}

static unsigned fault_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct io_fault *f = (struct io_fault *)io;
    unsigned n = f->inner->ops->reap(f->inner, done, max, wait);

    for (unsigned i = 0; i < n; i++)
        if (done[i] == f->victim)
            spoil(f, done[i]);
    return n;
}

static int fault_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    (void)out, (void)cfg;
    return err_set(e, ERR_UNSUPPORTED, "io_fault: use io_fault_init");
}

static void fault_close(struct io *io)
{
    (void)io; /* the inner engine is borrowed */
}

static void fault_shrink(struct io *io, size_t arena_bytes)
{
    struct io_fault *f = (struct io_fault *)io;

    if (f->inner->ops->shrink)
        f->inner->ops->shrink(f->inner, arena_bytes);
}

static const struct io_ops io_ops_fault = {
    .name = "fault",
    .open = fault_open,
    .submit = fault_submit,
    .reap = fault_reap,
    .close = fault_close,
    .shrink = fault_shrink,
};

void io_fault_init(struct io_fault *f, struct io *inner)
{
    memset(f, 0, sizeof(*f));
    f->io.ops = &io_ops_fault;
    f->inner = inner;
    f->status = -EIO;
}
