#include "expertfs/row_stream.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "storage/file.h"
#include "storage/io.h"

enum { PARTS = 2 }; /* of a span: payload, companion */

#define NO_FILE        UINT_MAX
#define SPAN_BYTES_MAX ((size_t)1 << 31) /* an extent counts in 32 bits */

struct slot { /* one span in memory */
    uint8_t *bytes;
    struct io_read read[PARTS];
    unsigned pending; /* reads in flight */
    unsigned span;
    unsigned next; /* free slot, while it is free */
};

struct place { /* of a span */
    unsigned slot;
    bool ready;
};

struct row_stream {
    const struct checkpoint *c;
    const struct row_span *span;
    unsigned n;
    struct file *view; /* [n_files]: the shards, direct or not */
    const struct file **file;
    unsigned n_files, *file_of; /* by shard */
    struct io *io;
    struct slot *slot;
    unsigned window;
    struct io_read **queue; /* [PARTS * window] of the reading thread */
    bool reading;           /* the thread is there */
    pthread_t thread;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t came, gone;
    struct place *place; /* [n] */
    unsigned begun, free, in_flight;
    bool stop;
};

/* ---- where the bytes are ---- */

/* What the engine reads of a part: the pages around it that the file has whole. */
static struct extent pages_of(const struct source_part *part, unsigned file)
{
    uint64_t begin = part->off / IO_ALIGN * IO_ALIGN, end = part->off + part->bytes;
    uint64_t whole = part->file->bytes / IO_ALIGN * IO_ALIGN;

    end = (end + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN;
    end = end < whole ? end : whole;
    return (struct extent){begin, part->bytes && end > begin ? (uint32_t)(end - begin) : 0, file};
}

/* Memory for a part with the pages around it, the incomplete one at the file's end included. */
static size_t room_of(const struct source_part *part)
{
    size_t lead = part->off % IO_ALIGN;

    return part->bytes ? (lead + part->bytes + IO_ALIGN - 1) / IO_ALIGN * IO_ALIGN : 0;
}

/* A file ends where it likes, direct reads only at whole pages: the rest of a part. */
static int read_tail(uint8_t *at, const struct source_part *part, struct err *e)
{
    struct extent pages = pages_of(part, 0);
    uint64_t have = pages.offset + pages.length, end = part->off + part->bytes;

    if (!part->bytes || have >= end)
        return 0;
    return file_read(part->file, at + pages.length, end - have, have, e);
}

/* ---- the thread that reads ---- */

/* Queue the reads of the next span into a free slot. Locked. */
static unsigned begin_next(struct row_stream *s, struct io_read **queue)
{
    unsigned i = s->begun++, id = s->free, n = 0;
    const struct row_span *x = &s->span[i];
    struct slot *slot = &s->slot[id];
    struct source_part part[PARTS];
    uint8_t *at = slot->bytes;

    s->free = slot->next;
    s->place[i].slot = id;
    checkpoint_parts(s->c, x->tensor, x->row, x->n, part);
    for (unsigned p = 0; p < PARTS; at += room_of(&part[p]), p++) {
        struct extent pages = pages_of(&part[p], s->file_of[part[p].shard]);

        slot->read[p] = (struct io_read){.at = pages, .dst = at};
        if (pages.length)
            queue[n++] = &slot->read[p];
    }
    slot->pending = n;
    slot->span = i;
    s->place[i].ready = !n;
    s->in_flight += n;
    return n;
}

static void finish(struct row_stream *s, struct io_read **done, unsigned n)
{
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < n; i++) {
        struct slot *slot = &s->slot[((char *)done[i] - (char *)s->slot) / sizeof(*slot)];

        s->in_flight--;
        if (!--slot->pending)
            s->place[slot->span].ready = true;
    }
    pthread_cond_broadcast(&s->came);
    pthread_mutex_unlock(&s->lock);
}

static void reap(struct row_stream *s)
{
    struct io_read *done[16];

    finish(s, done, s->io->ops->reap(s->io, done, sizeof(done) / sizeof(*done), true));
}

static void *read_spans(void *arg)
{
    struct row_stream *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->in_flight) {
        unsigned n = 0, sent = 0;
        bool none_read = false;

        while (!s->stop && s->begun < s->n && s->free < s->window) {
            unsigned more = begin_next(s, s->queue + n);

            none_read = none_read || !more;
            n += more;
        }
        if (none_read)
            pthread_cond_broadcast(&s->came);
        if (!s->in_flight) {
            if (!s->stop)
                pthread_cond_wait(&s->gone, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        while (sent += s->io->ops->submit(s->io, s->queue + sent, n - sent), sent < n)
            reap(s);
        reap(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- who takes ---- */

static int widen(struct row_stream *s, unsigned i, const struct slot *slot, float *out,
                 struct err *e)
{
    const struct row_span *x = &s->span[i];
    const uint8_t *inside[PARTS];
    struct source_part part[PARTS];
    uint8_t *at = slot->bytes;

    checkpoint_parts(s->c, x->tensor, x->row, x->n, part);
    for (unsigned p = 0; p < PARTS; at += room_of(&part[p]), p++) {
        int status = part[p].bytes && slot->read[p].at.length ? slot->read[p].status : 0;

        if (status == -ENODATA)
            return err_set(e, ERR_IO, "%s: %s: it has become shorter since it was opened",
                           x->tensor->name, part[p].file->name);
        if (status)
            return err_sys(e, -status, "%s: %s: %zu bytes at %" PRIu64, x->tensor->name,
                           part[p].file->name, part[p].bytes, part[p].off);
        if (read_tail(at, &part[p], e))
            return err_wrap(e, "%s", x->tensor->name);
        inside[p] = at + part[p].off % IO_ALIGN;
    }
    return checkpoint_widen(s->c, x->tensor, x->row, x->n, inside[0], inside[1], out, e);
}

int row_stream_take(struct row_stream *s, unsigned i, float *out, struct err *e)
{
    unsigned id;
    int code;

    assert(i < s->n);
    pthread_mutex_lock(&s->lock);
    while (!s->place[i].ready)
        pthread_cond_wait(&s->came, &s->lock);
    id = s->place[i].slot;
    pthread_mutex_unlock(&s->lock);
    code = widen(s, i, &s->slot[id], out, e);
    pthread_mutex_lock(&s->lock);
    s->place[i].ready = false;
    s->slot[id].next = s->free;
    s->free = id;
    pthread_cond_signal(&s->gone);
    pthread_mutex_unlock(&s->lock);
    return code;
}

/* ---- open and close ---- */

/* The engine's list of files: the shards that are needed, once each. */
static int take_file(struct row_stream *s, const struct source_part *part, bool direct)
{
    struct file *f;

    if (s->file_of[part->shard] != NO_FILE)
        return 0;
    f = realloc(s->view, (s->n_files + 1) * sizeof(*f));
    if (!f)
        return -1;
    s->view = f;
    f += s->n_files;
    *f = *part->file;
    if (!direct) {
        f->fd = f->buffered;
        f->direct = false;
    }
    s->file_of[part->shard] = s->n_files++;
    return 0;
}

/* The files, and the bytes that the largest span takes. */
static int take_files(struct row_stream *s, bool direct, size_t *most, struct err *e)
{
    unsigned shards = checkpoint_n_shards(s->c);

    s->file_of = malloc(shards * sizeof(*s->file_of));
    for (unsigned i = 0; s->file_of && i < shards; i++)
        s->file_of[i] = NO_FILE;
    *most = IO_ALIGN;
    for (unsigned i = 0; i < s->n; i++) {
        const struct row_span *x = &s->span[i];
        struct source_part part[PARTS];
        size_t room = 0;

        if (checkpoint_check_present(s->c, x->tensor, e))
            return e->code;
        checkpoint_parts(s->c, x->tensor, x->row, x->n, part);
        for (unsigned p = 0; p < PARTS; p++) {
            room += room_of(&part[p]);
            if (!s->file_of || take_file(s, &part[p], direct))
                return err_set(e, ERR_NOMEM, "reading ahead in %u shards", shards);
        }
        if (room > SPAN_BYTES_MAX)
            return err_set(e, ERR_LIMIT, "%s: %zu bytes are too many to read at once",
                           x->tensor->name, room);
        *most = room > *most ? room : *most;
    }
    s->file = malloc(s->n_files * sizeof(*s->file));
    for (unsigned i = 0; s->file && i < s->n_files; i++)
        s->file[i] = &s->view[i];
    return s->file ? 0 : err_set(e, ERR_NOMEM, "reading ahead in %u shards", shards);
}

static int take_slots(struct row_stream *s, size_t bytes, struct err *e)
{
    s->slot = calloc(s->window, sizeof(*s->slot));
    s->queue = malloc(PARTS * s->window * sizeof(*s->queue));
    s->place = calloc(s->n, sizeof(*s->place));
    for (unsigned i = 0; s->slot && i < s->window; i++) {
        void *at = NULL;

        if (posix_memalign(&at, IO_ALIGN, bytes))
            at = NULL;
        s->slot[i].bytes = at;
        s->slot[i].next = i + 1;
        if (!at)
            return err_set(e, ERR_NOMEM, "%u reads ahead of %zu bytes; use fewer threads",
                           s->window, bytes);
    }
    return s->slot && s->queue && s->place ? 0 : err_set(e, ERR_NOMEM, "reading ahead");
}

int row_stream_open(struct row_stream **out, const struct checkpoint *c,
                    const struct row_span *span, unsigned n, unsigned window, bool direct,
                    struct err *e)
{
    struct row_stream *s = calloc(1, sizeof(*s));
    struct io_config io;
    size_t bytes;

    assert(n && window);
    if (!s)
        return err_set(e, ERR_NOMEM, "reading ahead");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->came, NULL);
    pthread_cond_init(&s->gone, NULL);
    s->c = c;
    s->span = span;
    s->n = n;
    s->window = window < n ? window : n;
    if (take_files(s, direct, &bytes, e) || take_slots(s, bytes, e)) {
        row_stream_close(s);
        return e->code;
    }
    io = (struct io_config){.files = s->file, .n_files = s->n_files, .depth = PARTS * s->window};
    if (io.depth > IO_DEPTH_MAX)
        io.depth = IO_DEPTH_MAX;
    if (io_open(&s->io, NULL, &io, NULL, e)) {
        row_stream_close(s);
        return e->code;
    }
    s->reading = !thread_start(&s->thread, read_spans, s);
    if (!s->reading) {
        row_stream_close(s);
        return err_set(e, ERR_NOMEM, "reading ahead: no thread");
    }
    *out = s;
    return 0;
}

void row_stream_close(struct row_stream *s)
{
    if (!s)
        return;
    if (s->reading) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->gone);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (s->io)
        s->io->ops->close(s->io);
    for (unsigned i = 0; s->slot && i < s->window; i++)
        free(s->slot[i].bytes);
    free(s->slot);
    free(s->queue);
    free(s->place);
    free(s->file_of);
    free(s->file);
    free(s->view);
    pthread_cond_destroy(&s->gone);
    pthread_cond_destroy(&s->came);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
