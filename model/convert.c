#include "model/convert.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/machine.h"
#include "base/slurp.h"
#include "expertfs/codebook.h"
#include "expertfs/container.h"
#include "expertfs/out_dir.h"
#include "expertfs/quantise.h"
#include "model/convert_state.h"

/* What an interrupted run was making; its `member` is in the manifest afterwards, and the list of
 * what it was made of. */
static const char state_file[] = "waste-convert.json", member[] = "waste_convert";
static const char shards_member[] = "waste_convert_shards";

enum { VERSION = 1 }; /* of fitting and encoding: another version may give other bytes */
enum { STAGES = 3, ENTRIES = 256, INDEX_BITS = 8, TRUNK_BITS = 4, SAMPLE = 12 };
enum { CHUNK_FLOATS = 1 << 20, ENTRY_BYTES = 400, GENERATION_BYTES = 16 << 20 };

/* ---- before: what is there, and is it whole ---- */

static void fill_in(struct convert_options *o)
{
    o->stages = o->stages ? o->stages : STAGES;
    o->entries = o->entries ? o->entries : ENTRIES;
    o->index_bits = o->index_bits ? o->index_bits : INDEX_BITS;
    o->trunk_bits = o->trunk_bits ? o->trunk_bits : TRUNK_BITS;
    o->sample = o->sample ? o->sample : SAMPLE;
    o->threads = o->threads ? o->threads : machine_cores();
    o->threads = o->threads < THREADS_MAX ? o->threads : THREADS_MAX;
}

static int read_release(struct convert *cv, struct err *e)
{
    static const char name[] = "generation_config.json";
    json_t *generation = NULL;
    char *text;
    size_t n;
    int bad;

    if (slurp(&text, &n, cv->dirfd, name, GENERATION_BYTES, e))
        return e->code;
    bad = text ? json_parse(&generation, text, n, name, e) : 0;
    free(text);
    bad = bad || release_read(&cv->release, checkpoint_config(cv->source), generation, e) ||
          hparams_read(&cv->hp, cv->release.config, e);
    json_decref(generation);
    return bad ? e->code : 0;
}

/* What the bytes depend on, beside the weights (cv->shards): configuration and names, and how it is
 * converted. */
static int name_it(struct convert *cv, struct err *e)
{
    const struct convert_options *o = &cv->o;
    char *config = json_dumps(cv->release.config, JSON_COMPACT | JSON_SORT_KEYS), source[16];
    uint32_t crc;

    if (!config)
        return err_set(e, ERR_NOMEM, "config.json");
    crc = libdeflate_crc32(0, config, strlen(config));
    free(config);
    for (unsigned i = 0; i < checkpoint_n_tensors(cv->source); i++) {
        const char *name = checkpoint_tensor(cv->source, i)->name;

        crc = libdeflate_crc32(crc, name, strlen(name) + 1);
    }
    snprintf(source, sizeof(source), "%08x", crc);
    cv->identity = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "source", source, "stages",
                             (int)o->stages, "entries", (int)o->entries, "index_bits",
                             (int)o->index_bits, "trunk_bits", (int)o->trunk_bits, "router_bits",
                             (int)o->router_bits, "sample", (int)o->sample, "version", VERSION);
    return cv->identity ? 0 : err_set(e, ERR_NOMEM, "%s", o->dir);
}

/* Locked before anything is looked at, when shards are to be deleted: of two conversions each could
 * delete what the other has not read yet, and once both are killed neither could go on. */
static int open_source(struct convert *cv, struct err *e)
{
    const char *dir = cv->o.source;

    cv->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cv->dirfd < 0)
        return err_sys(e, errno, "%s", dir);
    if (cv->o.reclaim == RECLAIM_ON && flock(cv->dirfd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return err_set(e, ERR_BUSY,
                       "%s: another process is at work there, a download or a conversion with "
                       "--reclaim; run it again when that has ended",
                       dir);
    return checkpoint_open(&cv->source, dir, e);
}

static int look_in(struct unfinished *out, const struct convert *cv, struct err *e)
{
    return unfinished_look(out, cv->o.dir, state_file, member, cv->identity, "not by waste convert",
                           e);
}

static int look_at_directory(struct convert *cv, struct err *e)
{
    const json_t *known = NULL;

    if (look_in(&cv->before, cv, e))
        return e->code;
    if (cv->before.found == FOUND_NOTHING && cv->o.resume)
        return err_set(e, ERR_ARG, "%s: no unfinished conversion is there", cv->o.dir);
    cv->plan.unfinished = cv->before.found == FOUND_UNFINISHED;
    cv->plan.complete = cv->before.found == FOUND_SEALED;
    if (cv->before.state) {
        const char *sum = json_string_value(json_object_get(cv->before.state, "trunk_sum"));

        snprintf(cv->trunk_sum, sizeof(cv->trunk_sum), "%s", sum ? sum : "");
        known = json_object_get(cv->before.state, shards_member);
        known = known ? known : json_null();
    }
    return shards_identify(&cv->shards, cv->source, cv->dirfd, known, cv->o.dir, e);
}

static uint64_t item_row_bytes(const struct trunk_item *t, uint64_t *rows)
{
    uint32_t groups;
    uint64_t codes = trunk_row_bytes(t->fmt, t->dim[t->rank - 1], &groups);

    *rows = 1;
    for (unsigned d = 0; d + 1 < t->rank; d++)
        *rows *= t->dim[d];
    return codes + 2 * (uint64_t)groups;
}

/* About: the manifest, and the files that are taken over. */
static uint64_t side_bytes(const struct convert *cv)
{
    static const char *const taken[] = {"config.json", "tiktoken.model", "tokenizer.model",
                                        "tokenizer_config.json", "chat_template.jinja"};
    uint64_t bytes = (uint64_t)cv->map.n_trunk * ENTRY_BYTES + 65536;
    struct stat st;

    for (unsigned i = 0; i < sizeof(taken) / sizeof(*taken); i++)
        bytes += fstatat(cv->dirfd, taken[i], &st, 0) ? 0 : (uint64_t)st.st_size;
    return bytes;
}

static int make_plan(struct convert *cv, struct err *e)
{
    struct convert_plan *p = &cv->plan;
    const struct hparams *hp = &cv->hp;

    p->arch = cv->release.arch;
    p->layers = hp->n_layers;
    p->experts = hp->n_experts;
    p->moe_layers = hp->n_experts ? hp->n_layers - hp->first_dense : 0;
    p->tensors = cv->map.n_trunk;
    p->dropped = cv->map.n_dropped;
    for (unsigned i = 0; i < cv->map.n_trunk; i++) {
        uint64_t rows, row = item_row_bytes(&cv->map.trunk[i], &rows);

        p->trunk_bytes += rows * row;
    }
    if (hp->n_experts && record_layout_init(&cv->layout, hp->latent, hp->inter, cv->o.stages,
                                            cv->o.entries, cv->o.index_bits, e))
        return e->code;
    p->record_bytes = cv->layout.bytes;
    p->bank_bytes = p->record_bytes * p->experts;
    p->codebook_bytes = (uint64_t)p->moe_layers * MATRICES * cv->o.stages *
                        (FORMAT_CODEBOOK_HEADER + 2ull * cv->o.entries * FORMAT_VEC_DIM);
    p->side_bytes = side_bytes(cv);
    p->total_bytes =
        p->trunk_bytes + p->codebook_bytes + p->side_bytes + p->moe_layers * p->bank_bytes;
    return 0;
}

/* Of a container that is finished they stay what they are. */
static int read_files(struct convert *cv, struct err *e)
{
    if (cv->plan.complete)
        return 0;
    return release_files_read(&cv->files, cv->dirfd, &cv->release, cv->map.vision,
                              &cv->result.notices, e);
}

int convert_open(struct convert **out, const struct convert_options *o, struct err *e)
{
    struct convert *cv = calloc(1, sizeof(*cv));
    struct trunk_widths w;

    if (!cv)
        return err_set(e, ERR_NOMEM, "convert");
    cv->dirfd = -1;
    cv->o = *o;
    fill_in(&cv->o);
    w = (struct trunk_widths){.bits = cv->o.trunk_bits, .router = cv->o.router_bits};
    if (!open_source(cv, e) && !read_release(cv, e) && !name_it(cv, e) &&
        !look_at_directory(cv, e) &&
        !tensor_map_init(&cv->map, cv->source, &cv->release, &cv->hp, &w,
                         json_object_get(cv->before.state, "trunk"), e) &&
        !make_plan(cv, e) && !read_files(cv, e) &&
        !reclaim_open(&cv->reclaim, cv->source, &cv->map, cv->shards, o->dir, o->reclaim, e)) {
        *out = cv;
        return 0;
    }
    convert_close(cv);
    return e->code;
}

const struct convert_plan *convert_plan(const struct convert *cv)
{
    return &cv->plan;
}

void convert_close(struct convert *cv)
{
    if (!cv)
        return;
    row_stream_close(cv->stream);
    writer_close(cv->writer);
    team_close(cv->team);
    reclaim_close(cv->reclaim);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        free(cv->values[i]);
        free(cv->record[i]);
    }
    for (unsigned k = 0; k < MATRICES; k++)
        free(cv->books[k]);
    free(cv->chunk);
    free(cv->span);
    json_decref(cv->before.state);
    json_decref(cv->identity);
    json_decref(cv->shards);
    tensor_map_release(&cv->map);
    release_files_release(&cv->files);
    release_release(&cv->release);
    if (cv->dirfd >= 0)
        close(cv->dirfd);
    checkpoint_close(cv->source);
    free(cv);
}

void convert_count(struct convert *cv, uint64_t bytes)
{
    atomic_fetch_add(&cv->progress->done, bytes);
    atomic_fetch_add(&cv->progress->bytes, bytes);
}

/* n items, each of which takes `each` of the spans that cv->span lists, read ahead of it. A thread
 * takes the spans of its item in their order: so the window has room for those of every thread, and
 * for some of the next items. */
int convert_streamed(struct convert *cv, unsigned n, unsigned each, work_fn *fn, void *arg,
                     struct err *e)
{
    unsigned window = (each + 1) * team_size(cv->team);
    int bad;

    if (row_stream_open(&cv->stream, cv->source, cv->span, n * each, window, !cv->o.buffered, e))
        return e->code;
    bad = work_all(cv->team, n, fn, arg, cv->progress, e);
    row_stream_close(cv->stream);
    cv->stream = NULL;
    return bad;
}

/* The trunk's list as well: with its shards gone, nobody else knows the shapes. */
static int write_state(struct convert *cv, struct err *e)
{
    json_t *list = json_array(),
           *state = json_pack("{s:O, s:O, s:s, s:o}", member, cv->identity, shards_member,
                              cv->shards, "trunk_sum", cv->trunk_sum, "trunk", list);
    char *text;
    int bad;

    for (unsigned i = 0; i < cv->map.n_trunk && state; i++) {
        const struct trunk_item *t = &cv->map.trunk[i];
        json_t *shape = json_array();

        for (unsigned d = 0; d < t->rank; d++)
            json_array_append_new(shape, json_integer(t->dim[d]));
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:o}", "name", t->name, "fmt", t->fmt, "shape", shape));
    }
    text = state ? json_dumps(state, JSON_COMPACT) : NULL;
    json_decref(state);
    if (!text)
        return err_set(e, ERR_NOMEM, "%s", state_file);
    bad = writer_side_file(cv->writer, state_file, text, strlen(text), e);
    free(text);
    return bad;
}

/* ---- the trunk ---- */

static int list_trunk(struct convert *cv, struct err *e)
{
    for (unsigned i = 0; i < cv->map.n_trunk; i++) {
        const struct trunk_item *t = &cv->map.trunk[i];
        uint64_t rows, at_once = CHUNK_FLOATS / t->dim[t->rank - 1], n;
        struct chunk *more;
        unsigned id;

        item_row_bytes(t, &rows);
        at_once = at_once ? at_once : 1;
        n = (rows + at_once - 1) / at_once;
        more = realloc(cv->chunk, (cv->n_chunks + n) * sizeof(*more));
        if (!more)
            return err_set(e, ERR_NOMEM, "a trunk of %u tensors", cv->map.n_trunk);
        cv->chunk = more;
        for (uint64_t row = 0; row < rows; row += at_once)
            more[cv->n_chunks++] =
                (struct chunk){i, row, rows - row < at_once ? rows - row : at_once};
        if (writer_trunk_add(cv->writer, &id, t->name, t->fmt, t->dim, t->rank, e))
            return e->code;
    }
    return 0;
}

static int trunk_chunk(void *arg, unsigned i, unsigned thread, struct err *e)
{
    struct convert *cv = arg;
    const struct chunk *c = &cv->chunk[i];
    const struct trunk_item *t = &cv->map.trunk[c->item];
    uint64_t rows, row_bytes = item_row_bytes(t, &rows);

    if (row_stream_take(cv->stream, i, cv->values[thread], e) ||
        writer_trunk_f32(cv->writer, c->item, c->row, c->n, cv->values[thread], e))
        return e->code;
    convert_count(cv, c->n * row_bytes);
    return 0;
}

static bool is_present(const struct convert *cv, const struct source_tensor *t)
{
    return checkpoint_shard_present(cv->source, t->shard) &&
           checkpoint_shard_present(cv->source, t->scale_shard);
}

static void span_chunks(struct convert *cv)
{
    for (unsigned i = 0; i < cv->n_chunks; i++) {
        const struct chunk *c = &cv->chunk[i];
        const struct trunk_item *t = &cv->map.trunk[c->item];
        uint64_t wide = t->dim[t->rank - 1] / t->source->cols; /* source rows in one of ours */

        cv->span[i] = (struct row_span){t->source, c->row * wide, c->n * wide};
    }
}

/* A tensor whose shard is gone, or NULL. */
static const struct source_tensor *trunk_gone(const struct convert *cv)
{
    for (unsigned i = 0; i < cv->map.n_trunk; i++)
        if (!is_present(cv, cv->map.trunk[i].source))
            return cv->map.trunk[i].source;
    return NULL;
}

const struct source_tensor *convert_layer_gone(const struct convert *cv, unsigned layer)
{
    for (unsigned i = 0; i < cv->map.n_experts * MATRICES; i++) {
        const struct source_tensor *t =
            tensor_map_expert(&cv->map, layer, i / MATRICES, i % MATRICES);

        if (!is_present(cv, t))
            return t;
    }
    return NULL;
}

int convert_discard(struct convert *cv, const char *name, const struct source_tensor *gone,
                    const char *why, struct err *e)
{
    uint64_t bytes = writer_file_bytes(cv->writer, name);

    if (gone)
        return err_set(e, ERR_CORRUPT,
                       "%s: %s or its codebooks are damaged, and shard %s, which it is made of, "
                       "was reclaimed; fetch the release again%s%s",
                       cv->o.dir, name, checkpoint_shard(cv->source, gone->shard),
                       *why ? ". Reading it: " : "", why);
    if (bytes)
        atomic_fetch_add(&cv->progress->total, bytes);
    writer_remove(cv->writer, name);
    return 0;
}

static int read_tensor_sum(void *arg, unsigned i, unsigned thread, struct err *e)
{
    struct convert *cv = arg;
    uint64_t sum;

    (void)thread;
    if (writer_trunk_read_sum(cv->writer, i, &sum, e))
        return e->code;
    atomic_fetch_add(&cv->sum_read, sum);
    return 0;
}

static void sum_text(char *out, size_t n, uint64_t sum)
{
    snprintf(out, n, "%016llx", (unsigned long long)sum);
}

/* Does all of trunk.bin read back as it was written? An error: it cannot be read; or cancelled. */
static int check_trunk(struct convert *cv, bool *sound, struct err *e)
{
    char text[sizeof(cv->trunk_sum)];
    int bad;

    *sound = false;
    if (!cv->trunk_sum[0] || writer_file_bytes(cv->writer, "trunk.bin") != cv->plan.trunk_bytes)
        return 0;
    atomic_store(&cv->sum_read, 0);
    bad = work_all(cv->team, cv->map.n_trunk, read_tensor_sum, cv, cv->progress, e);
    sum_text(text, sizeof(text), atomic_load(&cv->sum_read));
    *sound = !bad && !strcmp(text, cv->trunk_sum);
    return bad;
}

static int write_trunk(struct convert *cv, const char *why, struct err *e)
{
    bool sound = true;

    if (convert_discard(cv, "trunk.bin", trunk_gone(cv), why, e))
        return e->code;
    span_chunks(cv);
    if (writer_trunk_begin(cv->writer, e) ||
        convert_streamed(cv, cv->n_chunks, 1, trunk_chunk, cv, e) ||
        writer_trunk_end(cv->writer, e))
        return e->code;
    sum_text(cv->trunk_sum, sizeof(cv->trunk_sum), writer_trunk_sum(cv->writer));
    if (write_state(cv, e) || (cv->o.reclaim == RECLAIM_ON && check_trunk(cv, &sound, e)))
        return e->code;
    if (!sound)
        return err_set(e, ERR_CORRUPT, "%s: trunk.bin does not read back as it was written",
                       cv->o.dir);
    return 0;
}

static int make_trunk(struct convert *cv, struct err *e)
{
    char why[sizeof(e->text)] = "";
    bool sound;
    int bad = check_trunk(cv, &sound, e);

    if (bad == ERR_CANCELLED)
        return bad;
    if (bad)
        memcpy(why, e->text, sizeof(why));
    if (!sound && write_trunk(cv, why, e))
        return e->code;
    if (sound)
        writer_trunk_keep(cv->writer);
    return reclaim_trunk(cv->reclaim, e);
}

/* ---- all of it ---- */

/* Bytes that are still to be written, at most. */
static uint64_t bytes_left(const struct convert *cv)
{
    uint64_t left = cv->plan.total_bytes - cv->plan.side_bytes - cv->plan.codebook_bytes;

    if (writer_file_bytes(cv->writer, "trunk.bin") == cv->plan.trunk_bytes)
        left -= cv->plan.trunk_bytes;
    for (unsigned l = cv->map.first_dense; cv->map.n_experts && l < cv->map.n_layers; l++)
        left -= convert_bank_there(cv, l) ? cv->plan.bank_bytes : 0;
    return left;
}

/* The most that is taken at one time where each shard that goes makes room. */
static uint64_t most_at_once(const struct convert *cv)
{
    bool trunk = writer_file_bytes(cv->writer, "trunk.bin") == cv->plan.trunk_bytes;
    uint64_t written = trunk ? 0 : cv->plan.trunk_bytes, most = written;
    uint64_t freed = reclaim_frees(cv->reclaim, RECLAIM_TRUNK);

    for (unsigned l = cv->map.first_dense; cv->map.n_experts && l < cv->map.n_layers; l++) {
        written += convert_bank_there(cv, l) ? 0 : cv->plan.bank_bytes;
        if (written > freed && written - freed > most)
            most = written - freed;
        freed += reclaim_frees(cv->reclaim, (int)l);
    }
    return most;
}

static int check_space(const struct convert *cv, struct err *e)
{
    const struct convert_plan *p = &cv->plan;
    uint64_t need = bytes_left(cv);
    struct stat from, to;

    if (cv->o.reclaim == RECLAIM_ON && !fstat(cv->dirfd, &from) && !stat(cv->o.dir, &to) &&
        from.st_dev == to.st_dev)
        need = most_at_once(cv);
    return writer_check_space(cv->writer, need + p->side_bytes + 2 * p->codebook_bytes, e);
}

/* Shards that are gone must be ones that nothing is left to be made of. */
static int check_shards(const struct convert *cv, struct err *e)
{
    bool trunk = writer_file_bytes(cv->writer, "trunk.bin") == cv->plan.trunk_bytes;
    const struct source_tensor *gone = trunk ? NULL : trunk_gone(cv);

    if (gone)
        return err_set(e, ERR_IO,
                       "\"%s\": its shard %s was reclaimed, but the trunk is not finished",
                       gone->name, checkpoint_shard(cv->source, gone->shard));
    for (unsigned l = cv->map.first_dense; cv->map.n_experts && l < cv->map.n_layers; l++) {
        gone = convert_bank_there(cv, l) ? NULL : convert_layer_gone(cv, l);
        if (gone)
            return err_set(e, ERR_IO,
                           "\"%s\": its shard %s was reclaimed, but layer %u is not finished",
                           gone->name, checkpoint_shard(cv->source, gone->shard), l);
    }
    return 0;
}

static int take_memory(struct convert *cv, struct err *e)
{
    size_t floats = (size_t)cv->hp.latent * cv->hp.inter, rounded = cv->layout.bytes;
    size_t spans = (size_t)cv->hp.n_experts * MATRICES;

    spans = spans > cv->n_chunks ? spans : cv->n_chunks;
    cv->span = malloc(spans * sizeof(*cv->span));
    if (!cv->span)
        return err_set(e, ERR_NOMEM, "a list of %zu reads", spans);
    if (team_open_n(&cv->team, cv->o.threads, e))
        return e->code;
    floats = cv->hp.n_experts && floats > CHUNK_FLOATS ? floats : CHUNK_FLOATS;
    for (unsigned i = 0; i < cv->map.n_trunk; i++) {
        const struct trunk_item *t = &cv->map.trunk[i];

        floats = t->dim[t->rank - 1] > floats ? t->dim[t->rank - 1] : floats;
    }
    for (unsigned i = 0; i < team_size(cv->team); i++) {
        cv->values[i] = malloc(floats * sizeof(float));
        cv->record[i] = aligned_alloc(FORMAT_PAGE, rounded ? rounded : FORMAT_PAGE);
        if (!cv->values[i] || !cv->record[i])
            return err_set(e, ERR_NOMEM, "%u threads of %zu bytes; use fewer", cv->o.threads,
                           floats * sizeof(float) + rounded);
    }
    for (unsigned k = 0; k < MATRICES; k++) {
        cv->books[k] =
            malloc((size_t)cv->o.stages * cv->o.entries * FORMAT_VEC_DIM * sizeof(float));
        if (!cv->books[k])
            return err_set(e, ERR_NOMEM, "codebooks");
    }
    return 0;
}

static int open_writer(struct convert *cv, struct err *e)
{
    const struct writer_options o = {.config = cv->release.config,
                                     .arch = cv->release.arch,
                                     .prefix = cv->release.prefix,
                                     .stages = cv->o.stages,
                                     .entries = cv->o.entries,
                                     .index_bits = cv->o.index_bits,
                                     .direct = !cv->o.buffered};

    return writer_open(&cv->writer, cv->o.dir, &o, e);
}

/* It was looked at before it was locked: what another run did in between must not be written over.
 */
static int check_directory(const struct convert *cv, struct err *e)
{
    struct unfinished now;
    bool same;

    if (look_in(&now, cv, e))
        return e->code;
    same = now.found == cv->before.found &&
           (now.found == FOUND_NOTHING || json_equal(now.state, cv->before.state));
    json_decref(now.state);
    return same ? 0
                : err_set(e, ERR_BUSY,
                          "%s: another run was at work there until now; run it again to go on",
                          cv->o.dir);
}

static void note_readers(struct convert *cv)
{
    if (cv->o.index_bits == 6)
        notice_add(&cv->result.notices,
                   "VQ4P: other engines need a version of 2026-08-04 or later to open it");
}

static int make_all(struct convert *cv, const json_t *extra, struct err *e)
{
    int bad;

    if (open_writer(cv, e) || check_directory(cv, e) || list_trunk(cv, e) ||
        writer_check_manifest(cv->writer, extra, e) || check_shards(cv, e) || check_space(cv, e) ||
        take_memory(cv, e))
        return e->code;
    atomic_store(&cv->progress->total, bytes_left(cv)); /* from here on something is written */
    note_readers(cv);
    if (write_state(cv, e) || release_files_write(&cv->files, cv->writer, &cv->result.notices, e))
        return e->code;
    if (make_trunk(cv, e))
        return e->code;
    for (unsigned l = cv->map.first_dense; cv->map.n_experts && l < cv->map.n_layers; l++)
        if (convert_layer(cv, l, e))
            return e->code;
    if (!cv->o.buffered && !writer_direct(cv->writer))
        notice_add(&cv->result.notices, "banks were written through the page cache: this file "
                                        "system takes no direct writes");
    bad = writer_finish(cv->writer, extra, e);
    if (!bad)
        writer_remove(cv->writer, state_file);
    return bad;
}

/* Nothing that the manifest lists is missing, or of another size. */
static int open_complete(const struct convert *cv, struct err *e)
{
    const struct container_options o = {.direct = false};
    struct codebooks *books;
    struct container *k;
    int bad;

    if (container_open(&k, cv->o.dir, &o, e))
        return e->code;
    bad = codebooks_open(&books, k, NULL, e);
    if (!bad)
        codebooks_close(books);
    container_close(k);
    return bad;
}

static int check_complete(const struct convert *cv, struct err *e)
{
    if (open_complete(cv, e))
        return err_wrap(e,
                        "%s: finished before, but it does not open now (restore what is named, or "
                        "convert into another directory)",
                        cv->o.dir);
    return 0;
}

/* Killed between the last two steps: what only an unfinished container has is still there. It goes
 * once the manifest lasts: the kill may have come before its directory was synced. */
static void tidy(const struct convert *cv)
{
    const struct out_dir d = {.path = cv->o.dir,
                              .fd = open(cv->o.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    struct err ignored;

    if (d.fd < 0)
        return;
    if (!out_sync(&d, &ignored)) {
        for (unsigned l = cv->map.first_dense; cv->map.n_experts && l < cv->map.n_layers; l++) {
            char name[32];

            snprintf(name, sizeof(name), "codebooks-L%u.bin", l);
            out_remove(&d, name);
        }
        out_remove(&d, state_file);
    }
    close(d.fd);
}

int convert_run(struct convert *cv, struct progress *progress, struct convert_result *result,
                struct err *e)
{
    int bad = 0;

    cv->progress = progress ? progress : &cv->nobody;
    kernels_init(&cv->kernels, cv->o.cpu, PROFILE_F32);
    progress_begin(cv->progress, PHASE_CONVERT, 0);
    if (cv->plan.complete) {
        bad = check_complete(cv, e);
        if (!bad)
            tidy(cv);
    } else {
        json_t *extra = json_pack("{s:O, s:O}", member, cv->identity, shards_member, cv->shards);
        unsigned before = fp_begin();

        bad = extra ? make_all(cv, extra, e) : err_set(e, ERR_NOMEM, "%s", cv->o.dir);
        fp_end(before);
        json_decref(extra);
    }
    cv->result.bytes = atomic_load(&cv->progress->bytes);
    cv->result.shards_reclaimed = reclaim_count(cv->reclaim);
    cv->result.shard_bytes_reclaimed = reclaim_bytes(cv->reclaim);
    if (result)
        *result = cv->result;
    return bad;
}
