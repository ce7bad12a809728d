#include "expertfs/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/machine.h"
#include "base/thread.h"
#include "expertfs/shapes.h"
#include "expertfs/synth_weights.h"
#include "expertfs/synth_words.h"
#include "expertfs/unfinished.h"
#include "expertfs/writer.h"

/* What an interrupted run was making; a private member of the manifest afterwards. */
static const char state_file[] = "waste-synth.json", member[] = "waste_synth";

enum { STAGES = 3, ENTRIES = 256, INDEX_BITS = 8 };
enum { VERSION = 1 }; /* of the generator: another version gives other bytes */
enum { CHUNK_BYTES = 4 << 20, THREADS_MORE = 2, THREADS_DEFAULT_MAX = 16 };
enum { ENTRY_BYTES = 400 };

struct synth {
    const struct synth_options *options;
    struct synth_weights weights;
    struct synth_plan plan;
    json_t *config, *identity, *made_as; /* made_as: the identity, under the name `member` */
    struct writer *writer;
    struct progress *progress; /* never NULL */
    struct progress nobody;
    struct synth_result result;
    struct chunk {
        unsigned tensor;
        uint64_t row, n;
    } * chunk;
    uint64_t n_chunks;
    size_t buffer_bytes;
    uint8_t *buffer[THREADS_MAX];
    unsigned n_threads;
};

const char *synth_shape(unsigned i, const char **about)
{
    if (i >= shape_count())
        return NULL;
    *about = shape_nth(i)->about;
    return shape_nth(i)->name;
}

static int choose_shape(struct shape *out, const struct synth_options *o, struct err *e)
{
    const struct shape *found = shape_find(o->shape);

    if (!found)
        return err_set(e, ERR_ARG, "no shape \"%s\"", o->shape);
    if (o->seed >> 53)
        return err_set(e, ERR_ARG, "seed %llu is beyond 2^53", (unsigned long long)o->seed);
    if (o->vision && !found->tower)
        return err_set(e, ERR_ARG, "shape %s has no vision tower; k3 and tiny-k3 have", o->shape);
    *out = *found;
    if (!o->vision)
        out->tower = NULL;
    return shape_cut(out, o->layers, o->experts, o->top_k, e);
}

static int make_plan(struct synth_plan *p, const struct synth_weights *w, struct err *e)
{
    const struct shape *s = &w->shape;
    struct record_layout l;

    if (record_layout_init(&l, s->latent ? s->latent : s->hidden, s->inter, STAGES, ENTRIES,
                           INDEX_BITS, e))
        return e->code;
    *p = (struct synth_plan){.layers = s->n_layers,
                             .moe_layers = s->n_layers - s->first_dense,
                             .experts = s->n_experts,
                             .top_k = s->top_k,
                             .tensors = w->n_tensors,
                             .record_bytes = l.bytes,
                             .bank_bytes = (uint64_t)l.bytes * s->n_experts};
    for (unsigned i = 0; i < w->n_tensors; i++) {
        const struct synth_tensor *t = &w->tensor[i];

        p->trunk_bytes += t->rows * (t->row_bytes + 2 * (uint64_t)t->groups);
    }
    p->codebook_bytes = (uint64_t)p->moe_layers * MATRICES * STAGES *
                        (FORMAT_CODEBOOK_HEADER + 2 * ENTRIES * FORMAT_VEC_DIM);
    p->side_bytes = s->n_ranks * 24ull + (uint64_t)w->n_tensors * ENTRY_BYTES + 65536;
    p->total_bytes =
        p->trunk_bytes + p->codebook_bytes + p->side_bytes + p->moe_layers * p->bank_bytes;
    return 0;
}

int synth_plan(struct synth_plan *out, const struct synth_options *o, struct err *e)
{
    struct synth_weights w;
    struct shape s;
    int bad;

    if (choose_shape(&s, o, e) || synth_weights_init(&w, &s, o->seed, e))
        return e->code;
    bad = make_plan(out, &w, e);
    synth_weights_release(&w);
    return bad;
}

/* Many threads, one list of work. Each has a buffer of its own; the first failure stops all. */
struct work {
    struct synth *s;
    int (*item)(struct synth *s, uint64_t i, uint8_t *buffer, void *with, struct err *e);
    void *with;
    uint64_t n;
    atomic_uint_fast64_t next;
    atomic_bool stop;
    pthread_mutex_t lock;
    struct err first;
};

struct worker {
    struct work *work;
    uint8_t *buffer;
    pthread_t thread;
};

static void *work_on(void *arg)
{
    struct worker *me = arg;
    struct work *work = me->work;
    struct err e;

    while (!atomic_load(&work->stop)) {
        uint64_t i = atomic_fetch_add(&work->next, 1);

        if (i >= work->n)
            break;
        if (progress_cancelled(work->s->progress))
            err_set(&e, ERR_CANCELLED, "%s: cancelled", work->s->options->dir);
        else if (!work->item(work->s, i, me->buffer, work->with, &e))
            continue;
        pthread_mutex_lock(&work->lock);
        if (!work->first.code)
            work->first = e;
        pthread_mutex_unlock(&work->lock);
        atomic_store(&work->stop, true);
    }
    return NULL;
}

static int work_all(struct synth *s, uint64_t n,
                    int (*item)(struct synth *, uint64_t, uint8_t *, void *, struct err *),
                    void *with, struct err *e)
{
    struct work work = {.s = s, .item = item, .with = with, .n = n};
    struct worker worker[THREADS_MAX];
    unsigned started = 1; /* this thread is the first */

    pthread_mutex_init(&work.lock, NULL);
    for (unsigned i = 0; i < s->n_threads; i++)
        worker[i] = (struct worker){.work = &work, .buffer = s->buffer[i]};
    while (started < s->n_threads &&
           !thread_start(&worker[started].thread, work_on, &worker[started]))
        started++; /* fewer than asked for only take longer */
    work_on(&worker[0]);
    while (started > 1)
        pthread_join(worker[--started].thread, NULL);
    pthread_mutex_destroy(&work.lock);
    if (work.first.code)
        *e = work.first;
    return work.first.code;
}

static void count(struct synth *s, uint64_t bytes, bool written)
{
    atomic_fetch_add(&s->progress->done, bytes);
    if (written)
        atomic_fetch_add(&s->progress->bytes, bytes);
}

static int take_buffers(struct synth *s, struct err *e)
{
    unsigned cores = machine_cores(), n = s->options->threads;

    if (!n) /* more threads than cores: some wait for the disk */
        n = cores + THREADS_MORE < THREADS_DEFAULT_MAX ? cores + THREADS_MORE : THREADS_DEFAULT_MAX;
    s->n_threads = n < THREADS_MAX ? n : THREADS_MAX;
    s->buffer_bytes = CHUNK_BYTES;
    for (unsigned i = 0; i < s->weights.n_tensors; i++) {
        const struct synth_tensor *t = &s->weights.tensor[i];
        uint64_t row = t->row_bytes + 2 * (uint64_t)t->groups;

        s->buffer_bytes = row > s->buffer_bytes ? row : s->buffer_bytes;
    }
    if (s->plan.record_bytes > s->buffer_bytes)
        s->buffer_bytes = s->plan.record_bytes;
    s->buffer_bytes = (s->buffer_bytes + FORMAT_PAGE - 1) / FORMAT_PAGE * FORMAT_PAGE;
    for (unsigned i = 0; i < s->n_threads; i++) {
        s->buffer[i] = aligned_alloc(FORMAT_PAGE, s->buffer_bytes);
        if (!s->buffer[i])
            return err_set(e, ERR_NOMEM, "%u buffers of %zu bytes", s->n_threads, s->buffer_bytes);
    }
    return 0;
}

static int list_trunk(struct synth *s, struct err *e)
{
    for (unsigned i = 0; i < s->weights.n_tensors; i++) {
        const struct synth_tensor *t = &s->weights.tensor[i];
        uint64_t at_once = CHUNK_BYTES / (t->row_bytes + 2 * (uint64_t)t->groups);
        uint64_t n = at_once ? (t->rows + at_once - 1) / at_once : t->rows;
        struct chunk *more = realloc(s->chunk, (s->n_chunks + n) * sizeof(*more));
        unsigned id;

        if (!more)
            return err_set(e, ERR_NOMEM, "a trunk of %u tensors", s->weights.n_tensors);
        s->chunk = more;
        for (uint64_t row = 0; row < t->rows; row += at_once ? at_once : 1)
            s->chunk[s->n_chunks++] = (struct chunk){i, row, at_once ? at_once : 1};
        s->chunk[s->n_chunks - 1].n = t->rows - s->chunk[s->n_chunks - 1].row;
        if (writer_trunk_add(s->writer, &id, t->name, t->fmt, t->dim, t->rank, e))
            return e->code;
    }
    return 0;
}

static int trunk_chunk(struct synth *s, uint64_t i, uint8_t *buffer, void *with, struct err *e)
{
    const struct chunk *c = &s->chunk[i];
    const struct synth_tensor *t = &s->weights.tensor[c->tensor];
    uint64_t codes = c->n * t->row_bytes; /* even: a scale may follow */
    uint16_t *scale = t->groups ? (uint16_t *)(void *)(buffer + codes) : NULL;

    (void)with;
    synth_rows(&s->weights, c->tensor, c->row, c->n, buffer, scale);
    if (writer_trunk_codes(s->writer, c->tensor, c->row, c->n, buffer, scale, e))
        return e->code;
    count(s, codes + 2 * c->n * t->groups, true);
    return 0;
}

static int make_trunk(struct synth *s, struct err *e)
{
    if (writer_trunk_keep(s->writer)) {
        count(s, s->plan.trunk_bytes, false);
        return 0;
    }
    if (writer_trunk_begin(s->writer, e) || work_all(s, s->n_chunks, trunk_chunk, NULL, e))
        return e->code;
    return writer_trunk_end(s->writer, e);
}

static int make_record(struct synth *s, uint64_t i, uint8_t *buffer, void *with, struct err *e)
{
    unsigned layer = *(const unsigned *)with;

    synth_record(&s->weights, writer_record_layout(s->writer), layer, (unsigned)i, buffer);
    if (writer_record(s->writer, layer, (unsigned)i, buffer, e))
        return e->code;
    count(s, s->plan.record_bytes, true);
    return 0;
}

static int make_bank(struct synth *s, unsigned layer, struct err *e)
{
    if (writer_bank_keep(s->writer, layer)) {
        s->result.banks_kept++;
        count(s, s->plan.bank_bytes, false);
        return 0;
    }
    if (writer_bank_begin(s->writer, layer, e) ||
        work_all(s, s->plan.experts, make_record, &layer, e))
        return e->code;
    return writer_bank_end(s->writer, layer, e);
}

static int make_codebooks(struct synth *s, unsigned layer, struct err *e)
{
    uint16_t entries[ENTRIES * FORMAT_VEC_DIM];

    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++)
        for (unsigned stage = 0; stage < STAGES; stage++) {
            synth_codebook(&s->weights, layer, m, stage, ENTRIES, entries);
            if (writer_codebook(s->writer, layer, m, stage, entries, e))
                return e->code;
        }
    return 0;
}

static int write_json(struct synth *s, const char *name, const json_t *value, struct err *e)
{
    char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
    int bad;

    if (!text)
        return err_set(e, ERR_NOMEM, "%s", name);
    bad = writer_side_file(s->writer, name, text, strlen(text), e);
    free(text);
    return bad;
}

static int make_tokenizer(struct synth *s, struct err *e)
{
    json_t *specials;
    char *text;
    size_t len;
    int bad;

    if (synth_words(&text, &len, s->weights.shape.n_ranks, e))
        return e->code;
    bad = writer_side_file(s->writer, "tokenizer.model", text, len, e);
    free(text);
    if (bad)
        return bad;
    specials = shape_specials(&s->weights.shape);
    bad = write_json(s, "specials.json", specials, e);
    json_decref(specials);
    return bad;
}

static int make_vision(struct synth *s, struct err *e)
{
    json_t *vision;
    int bad;

    if (!s->weights.shape.tower)
        return 0;
    vision = shape_vision(&s->weights.shape);
    bad = write_json(s, "vision.json", vision, e);
    json_decref(vision);
    return bad;
}

/* What the bytes depend on. */
static int name_it(struct synth *s, struct err *e)
{
    const struct shape *shape = &s->weights.shape;

    s->config = shape_config(shape);
    s->identity =
        json_pack("{s:s, s:i, s:i, s:i, s:I, s:i}", "shape", shape->name, "layers",
                  (int)shape->n_layers, "experts", (int)shape->n_experts, "top_k",
                  (int)shape->top_k, "seed", (json_int_t)s->weights.seed, "version", VERSION);
    s->made_as = s->identity ? json_pack("{s:O}", member, s->identity) : NULL;
    if (s->identity && shape->tower)
        json_object_set_new(s->identity, "vision", json_true());
    if (!s->config || !s->made_as)
        return err_set(e, ERR_NOMEM, "shape %s", shape->name);
    return 0;
}

static int same_size(int dirfd, const char *dir, const char *name, uint64_t bytes, struct err *e)
{
    struct stat st;

    if (fstatat(dirfd, name, &st, 0))
        return err_sys(e, errno,
                       "%s: %s is listed in the manifest; remove the directory and run "
                       "again",
                       dir, name);
    if ((uint64_t)st.st_size != bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: %s has %llu bytes, %llu expected; remove the directory "
                       "and run again",
                       dir, name, (unsigned long long)st.st_size, (unsigned long long)bytes);
    return 0;
}

/* A sealed container of ours: is it whole? */
static int check_complete(struct synth *s, int dirfd, struct err *e)
{
    const struct synth_plan *p = &s->plan;
    const char *dir = s->options->dir;
    int bad = same_size(dirfd, dir, "trunk.bin", p->trunk_bytes, e);

    if (!bad)
        bad = same_size(dirfd, dir, "codebooks.bin", p->codebook_bytes, e);
    for (unsigned l = p->layers - p->moe_layers; !bad && l < p->layers; l++) {
        char name[32];

        snprintf(name, sizeof(name), "experts-L%u.bin", l);
        bad = same_size(dirfd, dir, name, p->bank_bytes, e);
    }
    if (!bad) {
        unlinkat(dirfd, state_file, 0); /* killed between the last two steps */
        s->result.was_complete = true;
    }
    return bad;
}

/* What is there already: nothing, an unfinished container of ours, this container, or something
 * that is not to be touched. */
static int look_at_directory(struct synth *s, struct err *e)
{
    struct unfinished before;
    int dirfd, bad;

    if (unfinished_look(&before, s->options->dir, state_file, member, s->identity,
                        "not by waste synth", e))
        return e->code;
    json_decref(before.state);
    if (before.found != FOUND_SEALED)
        return 0;
    dirfd = open(s->options->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0)
        return err_sys(e, errno, "%s", s->options->dir);
    bad = check_complete(s, dirfd, e);
    close(dirfd);
    return bad;
}

static int check_space(struct synth *s, struct err *e)
{
    const struct synth_plan *p = &s->plan;
    uint64_t need = p->total_bytes;

    if (writer_file_bytes(s->writer, "trunk.bin") == p->trunk_bytes)
        need -= p->trunk_bytes;
    for (unsigned l = p->layers - p->moe_layers; l < p->layers; l++) {
        char name[32];

        snprintf(name, sizeof(name), "experts-L%u.bin", l);
        if (writer_file_bytes(s->writer, name) == p->bank_bytes)
            need -= p->bank_bytes;
    }
    return writer_check_space(s->writer, need, e);
}

static int make_all(struct synth *s, struct err *e)
{
    const struct synth_plan *p = &s->plan;
    int bad;

    if (list_trunk(s, e) || check_space(s, e) || write_json(s, state_file, s->made_as, e) ||
        take_buffers(s, e) || make_tokenizer(s, e) || make_vision(s, e) || make_trunk(s, e))
        return e->code;
    for (unsigned l = p->layers - p->moe_layers; l < p->layers; l++)
        if (make_codebooks(s, l, e) || make_bank(s, l, e))
            return e->code;
    bad = writer_finish(s->writer, s->made_as, e);
    if (bad)
        return bad;
    writer_remove(s->writer, state_file);
    atomic_store(&s->progress->done, p->total_bytes);
    return 0;
}

static int open_writer(struct synth *s, struct err *e)
{
    const struct shape *shape = &s->weights.shape;
    struct writer_options o = {.config = s->config,
                               .arch = shape_arch(shape),
                               .prefix = shape_prefix(shape),
                               .stages = STAGES,
                               .entries = ENTRIES,
                               .index_bits = INDEX_BITS,
                               .direct = !s->options->buffered};

    return writer_open(&s->writer, s->options->dir, &o, e);
}

static void release(struct synth *s)
{
    writer_close(s->writer);
    synth_weights_release(&s->weights);
    json_decref(s->config);
    json_decref(s->identity);
    json_decref(s->made_as);
    free(s->chunk);
    for (unsigned i = 0; i < s->n_threads; i++)
        free(s->buffer[i]);
    free(s);
}

int synth_run(const struct synth_options *o, struct progress *progress, struct synth_result *result,
              struct err *e)
{
    struct synth *s = calloc(1, sizeof(*s));
    struct shape shape;
    int bad;

    if (!s)
        return err_set(e, ERR_NOMEM, "synth");
    s->options = o;
    s->progress = progress ? progress : &s->nobody;
    bad = choose_shape(&shape, o, e) || synth_weights_init(&s->weights, &shape, o->seed, e) ||
          make_plan(&s->plan, &s->weights, e) || name_it(s, e) || look_at_directory(s, e);
    progress_begin(s->progress, PHASE_SYNTH, s->plan.total_bytes);
    if (!bad && !s->result.was_complete) /* again: another run may have ended before the lock */
        bad = open_writer(s, e) || look_at_directory(s, e) || make_all(s, e);
    s->result.bytes = atomic_load(&s->progress->bytes);
    if (!bad && result)
        *result = s->result;
    release(s);
    return bad ? e->code : 0;
}
