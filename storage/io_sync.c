/* io_sync.c - the reference engine: pread in submit, finished when it returns. */
#include "storage/io.h"

#include <assert.h>
#include <stdlib.h>

#include "storage/file.h"

struct sync {
    struct io io;
    struct io_config cfg;
    unsigned head, n;       /* the ring of finished reads, first in first out */
    struct io_read *done[]; /* [cfg.depth] */
};

static int sync_open(struct io **out, const struct io_config *cfg, struct err *e)
{
    struct sync *s = calloc(1, sizeof(*s) + cfg->depth * sizeof(s->done[0]));

    if (!s)
        return err_set(e, ERR_NOMEM, "sync: a queue of %u reads", cfg->depth);
    s->cfg = *cfg;
    s->io.ops = &io_ops_sync;
    *out = &s->io;
    return 0;
}

static unsigned sync_submit(struct io *io, struct io_read *const *reads, unsigned n)
{
    struct sync *s = (struct sync *)io;
    unsigned i;

    for (i = 0; i < n && s->n < s->cfg.depth; i++) {
        struct io_read *r = reads[i];

        assert(r->at.file < s->cfg.n_files);
        r->status = file_pread(s->cfg.files[r->at.file], r->dst, r->at.length, r->at.offset);
        s->done[(s->head + s->n++) % s->cfg.depth] = r;
    }
    return i;
}

static unsigned sync_reap(struct io *io, struct io_read **done, unsigned max, bool wait)
{
    struct sync *s = (struct sync *)io;
    unsigned i;

    (void)wait;
    for (i = 0; i < max && s->n; i++, s->n--) {
        done[i] = s->done[s->head];
        s->head = (s->head + 1) % s->cfg.depth;
    }
    return i;
}

static void sync_close(struct io *io)
{
    free(io);
}

const struct io_ops io_ops_sync = {
    .name = "sync",
    .open = sync_open,
    .submit = sync_submit,
    .reap = sync_reap,
    .close = sync_close,
};
