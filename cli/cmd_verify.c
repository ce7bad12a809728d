/* cli/cmd_verify.c - every byte of a container that can be checked: codebooks, the trunk's scales,
 * and each expert's header, scales and checksum. */
#include "cli/cmd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/machine.h"
#include "base/thread.h"
#include "cli/load.h"
#include "cli/units.h"
#include "expertfs/codebook.h"
#include "expertfs/container.h"
#include "expertfs/trunk.h"

enum { FOUND_MAX = 100, FOUND_SHOWN = 20, THREADS_LEAST = 4, THREADS_DEFAULT_MAX = 16 };

struct found { /* something that is wrong; layer and expert -1: not an expert */
    int layer, expert;
    struct err err;
};

struct verify {
    struct cli *c;
    struct container *container;
    const struct manifest *m;
    uint64_t n_records;
    atomic_uint_fast64_t next;
    struct progress progress;
    pthread_mutex_t lock; /* for the rest */
    struct found found[FOUND_MAX];
    unsigned n_kept;
    uint64_t n_found, n_damaged; /* damaged: not merely unreadable */
    struct err stopped;          /* no memory, say; code 0: no */
};

static void found(struct verify *v, int layer, int expert, const struct err *e)
{
    pthread_mutex_lock(&v->lock);
    if (e->code == ERR_NOMEM || e->code == ERR_BUDGET)
        v->stopped = *e;
    else if (e->code != ERR_CANCELLED) {
        if (v->n_kept < FOUND_MAX)
            v->found[v->n_kept++] = (struct found){layer, expert, *e};
        v->n_found++;
        v->n_damaged += e->code != ERR_IO;
    }
    pthread_mutex_unlock(&v->lock);
}

static int read_part(struct verify *v, const struct file *f, uint8_t *record, uint64_t offset,
                     uint32_t from, uint32_t to, struct err *e)
{
    int status = file_pread(f, record + from, to - from, offset + from);

    atomic_fetch_add(&v->progress.bytes, status ? 0 : to - from);
    return status ? err_sys(e, -status, "%s: bytes %llu...%llu", f->name,
                            (unsigned long long)(offset + from), (unsigned long long)(offset + to))
                  : 0;
}

/* The header's page and the scales' pages, or all of it. */
static int read_record(struct verify *v, const struct file *f, uint8_t *record, uint64_t offset,
                       struct err *e)
{
    const struct record_layout *l = &v->m->record;
    uint32_t scales = l->scale_off[MATRIX_GATE] / FORMAT_PAGE * FORMAT_PAGE;

    if (!v->c->opts.headers || scales <= FORMAT_PAGE)
        return read_part(v, f, record, offset, 0, l->bytes, e);
    if (read_part(v, f, record, offset, 0, FORMAT_PAGE, e))
        return e->code;
    return read_part(v, f, record, offset, scales, l->bytes, e);
}

static void check_record(struct verify *v, uint64_t i, uint8_t *record)
{
    unsigned n_files, file = (unsigned)(i / v->m->n_experts);
    unsigned expert = (unsigned)(i % v->m->n_experts);
    const struct file *f = container_files(v->container, &n_files)[file];
    unsigned layer = container_file_layer(v->container, file);
    struct extent at = container_extent(v->container, layer, expert);
    struct err e;

    if (read_record(v, f, record, at.offset, &e))
        err_wrap(&e, "layer %u expert %u", layer, expert);
    else if (!record_check(&v->m->record, record, layer, expert, v->m->bank[layer].codebook_base,
                           &e) &&
             (v->c->opts.headers || !record_verify(&v->m->record, record, layer, expert, &e)))
        e.code = 0;
    if (e.code)
        found(v, (int)layer, (int)expert, &e);
    atomic_fetch_add(&v->progress.done, 1);
}

static void *check_records(void *arg)
{
    struct verify *v = arg;
    uint8_t *record = aligned_alloc(FORMAT_PAGE, v->m->record.bytes);
    struct err e;

    if (!record) {
        err_set(&e, ERR_NOMEM, "a record of %u bytes", v->m->record.bytes);
        found(v, -1, -1, &e);
        return NULL;
    }
    while (!progress_cancelled(&v->progress)) {
        uint64_t i = atomic_fetch_add(&v->next, 1);

        if (i >= v->n_records)
            break;
        check_record(v, i, record);
    }
    free(record);
    return NULL;
}

static unsigned choose_threads(const struct verify *v)
{
    unsigned cores = machine_cores(), n = cores < THREADS_LEAST ? THREADS_LEAST : cores;

    if (v->c->opts.threads)
        return (unsigned)v->c->opts.threads;
    return n < THREADS_DEFAULT_MAX ? n : THREADS_DEFAULT_MAX;
}

static void check_banks(struct verify *v)
{
    unsigned n = choose_threads(v), started = 0;
    pthread_t thread[THREADS_MAX];

    if (!v->n_records)
        return;
    progress_begin(&v->progress, PHASE_VERIFY, v->n_records);
    bar_watch(&v->c->bar, "experts", BAR_RECORDS, &v->progress);
    while (started + 1 < n && !thread_start(&thread[started], check_records, v))
        started++;
    check_records(v);
    while (started)
        pthread_join(thread[--started], NULL);
    bar_unwatch(&v->c->bar);
}

static void check_codebooks(struct verify *v)
{
    struct codebooks *cb;
    struct err e;

    if (!v->m->n_experts)
        return;
    if (codebooks_open(&cb, v->container, NULL, &e))
        found(v, -1, -1, &e);
    else
        codebooks_close(cb);
}

/* One tensor at a time, so that memory for one is enough. */
static void check_tensor(struct verify *v, const struct trunk_entry *x)
{
    struct trunk *t;
    struct err e;

    if (trunk_open(&t, v->container, &e)) {
        found(v, -1, -1, &e);
        return;
    }
    trunk_want(t, x);
    if (trunk_load(t, NULL, &v->progress, &e))
        found(v, -1, -1, &e);
    trunk_close(t);
}

static void check_trunk(struct verify *v)
{
    progress_begin(&v->progress, PHASE_VERIFY, container_trunk(v->container)->bytes);
    bar_watch(&v->c->bar, "trunk", BAR_BYTES, &v->progress);
    for (unsigned i = 0; i < v->m->n_trunk && !progress_cancelled(&v->progress); i++)
        check_tensor(v, &v->m->trunk[i]);
    bar_unwatch(&v->c->bar);
}

static int by_place(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

static json_t *found_json(const struct found *f)
{
    json_t *o = json_pack("{s:s, s:o}", "kind", err_name(f->err.code), "detail",
                          json_text(f->err.text, strlen(f->err.text)));

    if (f->layer >= 0) {
        json_object_set_new(o, "layer", json_integer(f->layer));
        json_object_set_new(o, "expert", json_integer(f->expert));
    }
    return o;
}

struct tally {
    uint64_t records, bytes;
    double seconds;
    bool complete;
};

static int print_json(const struct verify *v, const struct tally *t)
{
    json_t *errors = json_array();

    for (unsigned i = 0; i < v->n_kept; i++)
        json_array_append_new(errors, found_json(&v->found[i]));
    return say_json(v->c,
                    json_pack("{s:I, s:I, s:I, s:f, s:b, s:b, s:o}", "records",
                              (json_int_t)t->records, "bad", (json_int_t)v->n_found, "bytes",
                              (json_int_t)t->bytes, "seconds", t->seconds, "complete", t->complete,
                              "headers_only", v->c->opts.headers, "errors", errors));
}

static int print_text(const struct verify *v, const struct tally *t)
{
    char bytes[UNITS_TEXT], rate[UNITS_TEXT];
    unsigned shown = v->n_kept < FOUND_SHOWN ? v->n_kept : FOUND_SHOWN;

    for (unsigned i = 0; i < shown; i++)
        printf("%s\n", v->found[i].err.text);
    if (v->n_found > shown)
        printf("... and %llu more\n", (unsigned long long)(v->n_found - shown));
    printf("%llu records%s, %s in %.1f s (%s/s): ", (unsigned long long)t->records,
           v->c->opts.headers ? " (headers and scales only)" : "",
           size_text_decimal(bytes, t->bytes), t->seconds,
           size_text_decimal(rate, (uint64_t)((double)t->bytes / (t->seconds + 1e-9))));
    if (v->n_found)
        printf("%llu bad%s\n", (unsigned long long)v->n_found, t->complete ? "" : ", not finished");
    else
        printf("%s\n", t->complete ? "all good" : "good so far, not finished");
    return term_flush(&v->c->term) ? 0 : fail_output(v->c);
}

static int report(struct verify *v, const struct tally *t)
{
    int rc;

    qsort(v->found, v->n_kept, sizeof(v->found[0]), by_place);
    rc = v->c->opts.json ? print_json(v, t) : print_text(v, t);
    if (rc)
        return rc;
    if (v->stopped.code)
        return fail_err(v->c, &v->stopped, "verify");
    if (term_interrupted())
        return EXIT_INTERRUPTED;
    return v->n_damaged ? EXIT_DAMAGED : v->n_found ? EXIT_RUNTIME : 0;
}

static int verify_all(struct verify *v)
{
    uint64_t begun = clock_ns(), trunk_bytes = 0;
    struct tally t = {0};

    term_cancels(NULL, &v->progress.cancel);
    check_codebooks(v);
    if (!v->c->opts.headers) {
        check_trunk(v);
        trunk_bytes = atomic_load(&v->progress.bytes);
        progress_begin(&v->progress, PHASE_VERIFY, 0);
    }
    check_banks(v);
    term_cancels(NULL, NULL);
    t.records = atomic_load(&v->progress.done);
    t.bytes = trunk_bytes + atomic_load(&v->progress.bytes);
    t.seconds = (double)(clock_ns() - begun) * 1e-9;
    t.complete = t.records == v->n_records && !v->stopped.code && !term_interrupted();
    return report(v, &t);
}

int cmd_verify(struct cli *c)
{
    struct container_options o = {.direct = c->opts.direct, .exclusive = c->opts.exclusive};
    struct verify *v = calloc(1, sizeof(*v));
    char path[PATH_MAX];
    unsigned n_files;
    struct err e;
    int rc;

    if (!v)
        return fail(c, EXIT_MEMORY, NULL, "verify", "no memory");
    v->c = c;
    pthread_mutex_init(&v->lock, NULL);
    rc = model_find(c, c->opts.arg[1], path);
    if (!rc && container_open(&v->container, path, &o, &e))
        rc = fail_err(c, &e, "verify");
    if (!rc) {
        v->m = container_manifest(v->container);
        container_files(v->container, &n_files);
        v->n_records = (uint64_t)n_files * v->m->n_experts;
        rc = verify_all(v);
    }
    container_close(v->container);
    pthread_mutex_destroy(&v->lock);
    free(v);
    return rc;
}
