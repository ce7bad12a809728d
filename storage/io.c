#include "storage/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/file.h"

static const struct io_ops *const engines[] = {
#ifdef HAVE_IO_URING
    &io_ops_uring,
#endif
#ifdef HAVE_LIBAIO
    &io_ops_libaio,
#endif
#ifdef HAVE_KQUEUE
    &io_ops_kqueue,
#endif
    &io_ops_threads, &io_ops_sync, NULL,
};

const struct io_ops *const *io_engines(void)
{
    return engines;
}

uint64_t io_now_ns(const struct io *io)
{
    struct timespec t;

    if (io->ops->now_ns)
        return io->ops->now_ns(io);
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

bool io_read_over(struct io_read *r, int64_t said, bool direct)
{
    if (said < 0) {
        r->status = file_status((int)-said);
        return true;
    }
    r->status += (int)said;
    if ((uint32_t)r->status == r->at.length)
        r->status = 0;
    else if (!said || (direct && r->status % IO_ALIGN)) /* the end of the file */
        r->status = -ENODATA;
    else
        return false;
    return true;
}

/* One real read of the first IO_ALIGN bytes of the first file, into dst. */
static int probe(struct io *io, const struct file *file, void *dst, struct err *e)
{
    struct io_read r = {.at = {.length = IO_ALIGN}, .dst = dst}, *reads = &r, *done;

    if (io->ops->submit(io, &reads, 1) != 1 || io->ops->reap(io, &done, 1, true) != 1)
        return err_set(e, ERR_IO, "%s: did not finish a first read", io->ops->name);
    if (r.status)
        return err_sys(e, -r.status, "%s: a first read of %s", io->ops->name, file->name);
    return 0;
}

static int open_and_probe(struct io **out, const struct io_ops *ops, const struct io_config *cfg,
                          struct err *e)
{
    struct io *io;
    void *own = NULL, *dst = cfg->arena;

    if (ops->open(&io, cfg, e))
        return e->code;
    if (cfg->n_files && cfg->files[0]->bytes >= IO_ALIGN) {
        if (cfg->arena_bytes < IO_ALIGN) {
            if (posix_memalign(&own, IO_ALIGN, IO_ALIGN)) {
                ops->close(io);
                return err_set(e, ERR_NOMEM, "%s: out of memory for a first read", ops->name);
            }
            dst = own;
        }
        if (probe(io, cfg->files[0], dst, e)) {
            ops->close(io); /* before free: it waits for what is in flight */
            free(own);
            return e->code;
        }
        free(own);
    }
    *out = io;
    return 0;
}

/* A reason may be as long as leaves an equal part of the room to each of the rungs to come. */
static void add_step(struct io_report *report, const char *text, unsigned n_to_come)
{
    const size_t part = sizeof(report->steps) / (sizeof(engines) / sizeof(engines[0]) - 1);
    size_t at = strlen(report->steps), n = strlen(text);
    size_t most = sizeof(report->steps) - at - n_to_come * part - sizeof("; ...");
    bool cut = n > most;

    for (n = cut ? most : n; cut && (text[n] & 0xc0) == 0x80;) /* not inside a UTF-8 sequence */
        n--;
    snprintf(report->steps + at, sizeof(report->steps) - at, "%s%.*s%s", at ? "; " : "", (int)n,
             text, cut ? "..." : "");
}

static int open_forced(struct io **out, const char *name, const struct io_config *cfg,
                       struct err *e)
{
    char names[64] = "";

    for (unsigned i = 0; engines[i]; i++) {
        size_t n = strlen(names);

        if (!strcmp(engines[i]->name, name))
            return open_and_probe(out, engines[i], cfg, e);
        snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", engines[i]->name);
    }
    return err_set(e, ERR_UNSUPPORTED, "I/O engine %s: this build has %s", name, names);
}

int io_open(struct io **out, const char *name, const struct io_config *cfg,
            struct io_report *report, struct err *e)
{
    struct io_report r = {.engine = NULL};
    int rc = -1;

    if (!cfg->depth || cfg->depth > IO_DEPTH_MAX)
        return err_set(e, ERR_ARG, "I/O depth %u: from 1 to %d", cfg->depth, IO_DEPTH_MAX);
    if (name) {
        rc = open_forced(out, name, cfg, e);
    } else {
        for (unsigned i = 0; engines[i] && rc; i++) {
            rc = engines[i]->fits ? engines[i]->fits(cfg, e) : 0;
            rc = rc ? rc : open_and_probe(out, engines[i], cfg, e);
            if (rc)
                add_step(&r, e->text, (unsigned)(sizeof(engines) / sizeof(engines[0])) - 2 - i);
        }
        if (rc)
            err_set(e, rc, "no I/O engine works: %s", r.steps);
    }
    if (rc)
        return rc;
    r.engine = (*out)->ops->name;
    memcpy(r.note, (*out)->note, sizeof(r.note));
    if (report)
        *report = r;
    return 0;
}
