/* cli/cmd_verify.c - every byte of a container that can be checked, whatever else is wrong with it.
 *
 * Experts are read bank by bank as the manifest lays them out, so that a missing bank hides no
 * other damage. What needs the container as a whole (codebooks, trunk, whether they make a model)
 * is looked at if it opens; if not, the report says that it was not.
 */
#include "cli/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/json.h"
#include "base/machine.h"
#include "base/thread.h"
#include "cli/against.h"
#include "cli/load.h"
#include "cli/safe.h"
#include "cli/units.h"
#include "expertfs/codebook.h"
#include "expertfs/container.h"
#include "expertfs/placement.h"
#include "expertfs/trunk.h"
#include "model/hparams.h"
#include "model/tokenizer.h"
#include "model/vision_shape.h"
#include "model/weights.h"

#define MANIFEST_MAX (64u << 20)

enum { FOUND_MAX = 100, FOUND_SHOWN = 20, THREADS_LEAST = 4, THREADS_DEFAULT_MAX = 16 };
enum { SMALL_JSON_BYTES_MAX = 1 << 20 };

struct found { /* something that is wrong; -1: of no layer, or of no single expert */
    int layer, expert;
    struct err err;
};

struct bank_file { /* one that can be opened */
    struct file file;
    unsigned layer;
    int drive;         /* of a layer that is spread over several; -1: it is not */
    uint64_t first, n; /* its records, of all that are examined; whole ones only */
};

struct verify {
    struct cli *c;
    const char *path;
    int dir;
    struct manifest m;
    struct placement placement;
    int drive_fd[PLACEMENT_DRIVES_MAX]; /* -1: not open */
    struct bank_file *bank;             /* [n_banks] */
    unsigned n_banks;
    uint64_t n_records;
    unsigned n_tensors;      /* of the trunk, that were looked at */
    bool trunk_seen, opened; /* trunk_seen: its size allows what the manifest says */
    struct err whole;        /* why the container does not open */
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
    return status ? err_sys(e, -status, "%s: bytes %" PRIu64 "...%" PRIu64, f->name, offset + from,
                            offset + to)
                  : 0;
}

/* The header's page and the scales' pages, or all of it. */
static int read_record(struct verify *v, const struct file *f, uint8_t *record, uint64_t offset,
                       struct err *e)
{
    const struct record_layout *l = &v->m.record;
    uint32_t scales = l->scale_off[MATRIX_GATE] / FORMAT_PAGE * FORMAT_PAGE;

    if (!v->c->opts.headers || scales <= FORMAT_PAGE)
        return read_part(v, f, record, offset, 0, l->bytes, e);
    if (read_part(v, f, record, offset, 0, FORMAT_PAGE, e))
        return e->code;
    return read_part(v, f, record, offset, scales, l->bytes, e);
}

/* The bank that has record i of all. */
static const struct bank_file *bank_of(const struct verify *v, uint64_t i)
{
    const struct bank_file *b = v->bank;

    while (i >= b->first + b->n)
        b++;
    return b;
}

static void check_record(struct verify *v, uint64_t i, uint8_t *record)
{
    const struct record_layout *l = &v->m.record;
    const struct bank_file *b = bank_of(v, i);
    unsigned layer = b->layer, rank = (unsigned)(i - b->first);
    unsigned expert =
        b->drive < 0 ? rank : placement_expert(&v->placement, (unsigned)b->drive, rank);
    struct err e;

    if (read_record(v, &b->file, record, (uint64_t)rank * l->bytes, &e))
        err_wrap(&e, "layer %u expert %u", layer, expert);
    else if (!record_check(l, record, layer, expert, v->m.bank[layer].codebook_base, &e) &&
             (v->c->opts.headers || !record_verify(l, record, layer, expert, &e)))
        e.code = 0;
    if (e.code)
        found(v, (int)layer, (int)expert, &e);
    atomic_fetch_add(&v->progress.done, 1);
}

static void *check_records(void *arg)
{
    struct verify *v = arg;
    uint8_t *record = aligned_alloc(FORMAT_PAGE, v->m.record.bytes);
    struct err e;

    if (!record) {
        err_set(&e, ERR_NOMEM, "a record of %u bytes", v->m.record.bytes);
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

/* A file of n records of a layer. drive: of a spread layer, else -1. */
static void bank_open(struct verify *v, unsigned layer, int drive, int dirfd, const char *name,
                      unsigned n)
{
    uint64_t bytes = (uint64_t)n * v->m.record.bytes;
    struct bank_file *b = &v->bank[v->n_banks];
    struct err e;

    if (file_open(&b->file, dirfd, name, v->c->opts.direct, &e)) {
        err_wrap(&e, "layer %u", layer);
        found(v, (int)layer, -1, &e);
        return;
    }
    if (manifest_check_bank_bytes(name, b->file.bytes, bytes, &e)) {
        err_wrap(&e, "layer %u", layer);
        found(v, (int)layer, -1, &e);
    }
    b->layer = layer;
    b->drive = drive;
    b->first = v->n_records;
    b->n = b->file.bytes / v->m.record.bytes;
    b->n = b->n < n ? b->n : n;
    v->n_records += b->n;
    v->n_banks++;
}

static void pieces_open(struct verify *v, unsigned layer)
{
    char name[PLACEMENT_NAME_BYTES];

    placement_piece(name, layer);
    for (unsigned d = 0; d < v->placement.n; d++) {
        unsigned n = placement_records(&v->placement, d, v->m.n_experts);

        if (n && v->drive_fd[d] >= 0)
            bank_open(v, layer, (int)d, v->drive_fd[d], name, n);
    }
}

static void drives_open(struct verify *v)
{
    struct err e;
    bool any = false;

    if (placement_read(&v->placement, v->dir, v->m.first_dense, v->m.n_layers, &e))
        found(v, -1, -1, &e);
    for (unsigned l = 0; l < FORMAT_LAYERS_MAX; l++)
        any |= v->placement.spread[l];
    for (unsigned d = 0; any && d < v->placement.n; d++) {
        v->drive_fd[d] = placement_open_dir(&v->placement, d, v->dir, &e);
        if (v->drive_fd[d] < 0)
            found(v, -1, -1, &e);
    }
}

static void drives_close(struct verify *v)
{
    for (unsigned d = 0; d < PLACEMENT_DRIVES_MAX; d++)
        if (v->drive_fd[d] >= 0)
            close(v->drive_fd[d]);
}

static void layer_open(struct verify *v, unsigned layer)
{
    if (v->placement.spread[layer])
        pieces_open(v, layer);
    else
        bank_open(v, layer, -1, v->dir, v->m.bank[layer].file, v->m.n_experts);
}

static int banks_open(struct verify *v)
{
    drives_open(v);
    v->bank = calloc((size_t)v->m.n_layers * (v->placement.n + 1), sizeof(*v->bank));
    for (unsigned layer = 0; v->bank && layer < v->m.n_layers; layer++)
        if (manifest_is_moe(&v->m, layer))
            layer_open(v, layer);
    return v->bank ? 0 : ERR_NOMEM;
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

static void check_codebooks(struct verify *v, const struct container *k)
{
    struct codebooks *cb;
    struct err e;

    if (!v->m.n_experts)
        return;
    if (codebooks_open(&cb, k, NULL, &e))
        found(v, -1, -1, &e);
    else
        codebooks_close(cb);
}

/* One tensor at a time, so that memory for one is enough. */
static void check_tensor(struct verify *v, const struct container *k, unsigned i)
{
    struct trunk *t;
    struct err e;

    if (trunk_open(&t, k, &e)) {
        found(v, -1, -1, &e);
        return;
    }
    trunk_want(t, &container_manifest(k)->trunk[i]);
    if (trunk_load(t, NULL, &v->progress, &e))
        found(v, -1, -1, &e);
    v->n_tensors += !progress_cancelled(&v->progress);
    trunk_close(t);
}

static void check_trunk(struct verify *v, const struct container *k)
{
    progress_begin(&v->progress, PHASE_VERIFY, container_trunk(k)->bytes);
    bar_watch(&v->c->bar, "trunk", BAR_BYTES, &v->progress);
    for (unsigned i = 0; i < v->m.n_trunk && !progress_cancelled(&v->progress); i++)
        check_tensor(v, k, i);
    bar_unwatch(&v->c->bar);
}

/* Do the configuration and the list of tensors make a model? One that this version does not know is
 * no damage. */
static void check_model(struct verify *v, const struct container *k)
{
    struct model *model = calloc(1, sizeof(*model));
    struct trunk *trunk = NULL;
    struct err e = {0};

    if (!model)
        err_set(&e, ERR_NOMEM, "a model's list of tensors");
    else if (!hparams_read(&model->hp, v->m.config, &e) && !trunk_open(&trunk, k, &e))
        weights_bind(model, k, trunk, &e);
    if (e.code && e.code != ERR_UNSUPPORTED && e.code != ERR_LIMIT)
        found(v, -1, -1, &e);
    trunk_close(trunk);
    free(model);
}

/* There may be none; then only ids can be used. */
static void check_tokenizer(struct verify *v)
{
    struct tokenizer *t;
    struct err e;

    if (!tokenizer_open(&t, v->path, v->m.vocab, &e))
        tokenizer_close(t);
    else if (e.code != ERR_UNSUPPORTED)
        found(v, -1, -1, &e);
}

/* Read by some formats and some commands only; what cannot be read is damage all the same. */
static bool check_json(struct verify *v, const char *name)
{
    json_t *root;
    struct err e;

    if (no_such_entry(v->dir, name))
        return false;
    if (json_parse_file(&root, v->dir, name, SMALL_JSON_BYTES_MAX, &e)) {
        found(v, -1, -1, &e);
        return false;
    }
    json_decref(root);
    return true;
}

static void check_vision(struct verify *v)
{
    struct vision_shape shape;
    struct err e;

    if (check_json(v, "vision.json") && vision_shape_read(&shape, &v->m, v->dir, &e) &&
        e.code != ERR_UNSUPPORTED)
        found(v, -1, -1, &e);
}

static void check_file(struct verify *v, const char *name)
{
    struct file f;
    struct err e;

    if (file_open(&f, v->dir, name, false, &e))
        found(v, -1, -1, &e);
    else
        file_close(&f);
}

/* Returns the bytes it read of the trunk. */
static uint64_t check_whole(struct verify *v)
{
    struct container_options o = {.direct = v->c->opts.direct};
    struct container *k;

    v->opened = v->trunk_seen && !container_open(&k, v->path, &o, &v->whole);
    if (!v->opened) {
        if (v->trunk_seen)
            check_file(v, "trunk.bin");
        if (v->m.n_experts)
            check_file(v, "codebooks.bin");
        return 0;
    }
    check_model(v, k);
    check_codebooks(v, k);
    if (!v->c->opts.headers)
        check_trunk(v, k);
    container_close(k);
    return atomic_load(&v->progress.bytes);
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

    if (f->layer >= 0)
        json_object_set_new(o, "layer", json_integer(f->layer));
    if (f->expert >= 0)
        json_object_set_new(o, "expert", json_integer(f->expert));
    return o;
}

struct tally {
    uint64_t records, bytes;
    double seconds;
    bool finished, complete; /* every record; and all the rest */
};

static int print_json(const struct verify *v, const struct tally *t)
{
    json_t *errors = json_array(), *unchecked = json_array(), *notes = json_array();

    for (unsigned i = 0; i < v->n_kept; i++)
        json_array_append_new(errors, found_json(&v->found[i]));
    if (*v->m.warning)
        json_array_append_new(notes, json_text(v->m.warning, strlen(v->m.warning)));
    json_array_append_new(unchecked, json_string("trunk.bin"));
    if (v->m.n_experts)
        json_array_append_new(unchecked, json_string("codebooks.bin"));
    return say_json(v->c, json_pack("{s:I, s:I, s:I, s:f, s:b, s:b, s:i, s:o, s:o, s:o}", "records",
                                    (json_int_t)t->records, "bad", (json_int_t)v->n_found, "bytes",
                                    (json_int_t)t->bytes, "seconds", t->seconds, "complete",
                                    t->complete, "headers_only", v->c->opts.headers,
                                    "trunk_tensors", (int)v->n_tensors, "unchecked", unchecked,
                                    "errors", errors, "notes", notes));
}

static void print_verdict(const struct verify *v, const struct tally *t)
{
    const char *both = v->m.n_experts ? "trunk and codebooks" : "trunk";

    if (v->n_found)
        printf("%llu bad%s\n", (unsigned long long)v->n_found, t->finished ? "" : ", not finished");
    else if (!t->finished)
        printf("good so far, not finished\n");
    else if (v->m.n_experts)
        printf("records: %s\n", v->c->opts.headers
                                    ? "headers and scales good, checksums not looked at"
                                    : "all good");
    if (!v->opened)
        printf("%s: not looked at, because the container does not open; verify again once that is "
               "mended\n",
               both);
    else if (v->c->opts.headers)
        printf("%s: no checksum in the format; the values of the trunk were not looked at\n", both);
    else
        printf("%s: no checksum in the format; sizes, headers and finite values were checked\n",
               both);
}

static int print_text(const struct verify *v, const struct tally *t)
{
    char bytes[UNITS_TEXT], rate[UNITS_TEXT], safe[4 * sizeof(v->found[0].err.text)];
    unsigned shown = v->n_kept < FOUND_SHOWN ? v->n_kept : FOUND_SHOWN;

    for (unsigned i = 0; i < shown; i++)
        printf("%s\n", safe_text(safe, sizeof(safe), v->found[i].err.text,
                                 strlen(v->found[i].err.text), ""));
    if (v->n_found > shown)
        printf("... and %llu more\n", (unsigned long long)(v->n_found - shown));
    if (*v->m.warning)
        printf("note: %s\n", v->m.warning);
    printf("%llu records%s, %u trunk tensors, %s in %.1f s (%s/s)\n",
           (unsigned long long)t->records, v->c->opts.headers ? " (headers and scales only)" : "",
           v->n_tensors, size_text_decimal(bytes, t->bytes), t->seconds,
           size_text_decimal(rate, (uint64_t)((double)t->bytes / (t->seconds + 1e-9))));
    print_verdict(v, t);
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
    uint64_t begun = clock_ns(), whole_bytes;
    struct tally t = {0};

    term_cancels(NULL, &v->progress.cancel);
    check_tokenizer(v);
    check_json(v, "chat.json");
    check_vision(v);
    whole_bytes = check_whole(v);
    if (banks_open(v))
        return fail(v->c, EXIT_MEMORY, NULL, "verify", "no memory");
    if (v->whole.code && !v->n_found)
        found(v, -1, -1, &v->whole); /* nothing that we looked for */
    progress_begin(&v->progress, PHASE_VERIFY, 0);
    check_banks(v);
    term_cancels(NULL, NULL);
    t.records = atomic_load(&v->progress.done);
    t.bytes = whole_bytes + atomic_load(&v->progress.bytes);
    t.seconds = (double)(clock_ns() - begun) * 1e-9;
    t.finished = t.records == v->n_records && !v->stopped.code && !term_interrupted();
    t.complete = t.finished && v->opened;
    return report(v, &t);
}

/* The manifest as if trunk.bin were large enough: is that all that is wrong? */
static bool manifest_without_trunk(struct verify *v)
{
    struct file f;
    struct err e;
    char *text;
    bool good = false;

    if (file_open(&f, v->dir, "manifest.json", false, &e))
        return false;
    text = f.bytes <= MANIFEST_MAX ? malloc(f.bytes + 1) : NULL;
    if (text && !file_read(&f, text, f.bytes, 0, &e))
        good = !manifest_parse(&v->m, text, f.bytes, INT64_MAX, &e);
    free(text);
    file_close(&f);
    return good;
}

static int open_manifest(struct verify *v)
{
    struct err e;

    v->trunk_seen = !manifest_read(&v->m, v->dir, v->path, &e);
    if (v->trunk_seen)
        return 0;
    if (!manifest_without_trunk(v))
        return fail_err(v->c, &e, v->path);
    if (strncmp(e.text, "trunk.bin", 9))
        err_wrap(&e, "trunk.bin");
    found(v, -1, -1, &e);
    return 0;
}

static int open_directory(struct verify *v)
{
    v->dir = open(v->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v->dir < 0)
        return fail(v->c, EXIT_RUNTIME, NULL, v->path, "%s", strerror(errno));
    if (v->c->opts.exclusive && flock(v->dir, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return fail(v->c, EXIT_BUSY, NULL, v->path, "another process has it open for sole use");
    return 0;
}

static void verify_close(struct verify *v)
{
    for (unsigned i = 0; i < v->n_banks; i++)
        file_close(&v->bank[i].file);
    free(v->bank);
    drives_close(v);
    manifest_release(&v->m);
    if (v->dir >= 0)
        close(v->dir);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

/* Against the checkpoint it was made from, instead of against itself. */
static int verify_against(struct cli *c, const char *path)
{
    static const struct container_options o = {.direct = false};
    struct container *container;
    struct err e;
    int rc;

    if (container_open(&container, path, &o, &e))
        return fail_err(c, &e, "verify");
    rc = against_source(c, container);
    container_close(container);
    return rc;
}

int cmd_verify(struct cli *c)
{
    struct verify *v = calloc(1, sizeof(*v));
    char path[PATH_MAX];
    int rc;

    if (!v)
        return fail(c, EXIT_MEMORY, NULL, "verify", "no memory");
    if (!c->opts.against && (c->opts.sample || c->opts.all)) {
        free(v);
        return fail(c, EXIT_USAGE, NULL, "verify", "--sample and --all go only with --against");
    }
    if (c->opts.against && c->opts.headers) {
        free(v);
        return fail(c, EXIT_USAGE, NULL, "verify", "--headers does not go with --against");
    }
    v->c = c;
    v->path = path;
    v->dir = -1;
    memset(v->drive_fd, -1, sizeof(v->drive_fd));
    pthread_mutex_init(&v->lock, NULL);
    rc = model_find(c, c->opts.arg[1], path);
    if (!rc)
        rc = model_check(c, path);
    if (!rc && c->opts.against) {
        rc = verify_against(c, path);
        verify_close(v);
        return rc;
    }
    if (!rc)
        rc = open_directory(v);
    if (!rc)
        rc = open_manifest(v);
    if (!rc)
        rc = verify_all(v);
    verify_close(v);
    return rc;
}
