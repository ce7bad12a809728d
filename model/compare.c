#include "model/compare.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/machine.h"
#include "expertfs/codebook.h"
#include "expertfs/quantise.h"
#include "model/convert_names.h"
#include "model/release_files.h"
#include "model/rvq_encode.h"
#include "model/work.h"

enum { SAMPLE = 4, CHUNK_FLOATS = 1 << 20 };

struct compare {
    const struct compare_options *o;
    const struct container *c;
    const struct manifest *m;
    struct checkpoint *source;
    struct release release;
    struct hparams hp;
    struct tensor_map map;
    struct codebooks *books;
    struct team *team;
    struct progress *progress, nobody;
    unsigned per_layer, step;  /* experts compared, and the distance between them */
    double (*error)[MATRICES]; /* [layer][expert compared] */
    float *values[THREADS_MAX], *row[THREADS_MAX];
    uint8_t *bytes[THREADS_MAX]; /* a record; codes of the trunk, wanted and found */
    size_t bytes_room;
    pthread_mutex_t lock; /* for the trunk's part of: */
    struct compare_result r;
};

static const struct trunk_entry *entry_of(const struct manifest *m, const char *name)
{
    unsigned lo = 0, hi = m->n_trunk;

    while (lo < hi) { /* sorted by name */
        unsigned mid = (lo + hi) / 2;
        int order = strcmp(name, m->trunk[mid].name);

        if (!order)
            return &m->trunk[mid];
        *(order < 0 ? &hi : &lo) = order < 0 ? mid : mid + 1;
    }
    return NULL;
}

/* ---- experts ---- */

static double matrix_error(struct compare *x, unsigned layer, enum matrix m, unsigned thread)
{
    const struct record_layout *l = &x->m->record;
    const uint8_t *record = x->bytes[thread];
    const uint16_t *scale = (const uint16_t *)(const void *)(record + l->scale_off[m]);
    const float *books = codebook_at(x->books, layer, m), *w = x->values[thread];
    uint32_t cols = record_cols(l, m);
    double off = 0, all = 0;

    for (uint32_t r = 0; r < record_rows(l, m); r++, w += cols) {
        rvq_decode_row(x->row[thread], record + l->index_off[m], scale, books, l, m, r);
        for (uint32_t i = 0; i < cols; i++) {
            double d = (double)w[i] - (double)x->row[thread][i];

            off += d * d;
            all += (double)w[i] * (double)w[i];
        }
    }
    return all > 0 ? sqrt(off / all) : off > 0 ? 1 : 0;
}

static int compare_expert(void *arg, unsigned i, unsigned thread, struct err *e)
{
    struct compare *x = arg;
    unsigned n_files, layer = x->m->first_dense + i / x->per_layer;
    unsigned expert = i % x->per_layer * x->step;
    struct extent at = container_extent(x->c, layer, expert);
    const struct record_layout *l = &x->m->record;

    if (file_read(container_files(x->c, &n_files)[at.file], x->bytes[thread], l->bytes, at.offset,
                  e) ||
        record_check(l, x->bytes[thread], layer, expert, x->m->bank[layer].codebook_base, e) ||
        record_verify(l, x->bytes[thread], layer, expert, e))
        return e->code;
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        const struct source_tensor *t = tensor_map_expert(&x->map, layer, expert, m);

        if (checkpoint_read(x->source, t, 0, t->rows, x->values[thread], e))
            return e->code;
        x->error[i][m] = matrix_error(x, layer, m, thread);
        atomic_fetch_add(&x->progress->done, t->rows * t->cols);
        atomic_fetch_add(&x->progress->bytes, t->rows * t->cols);
    }
    return 0;
}

static void tally_one(struct compare_error *t, double error, unsigned layer, unsigned expert)
{
    if (!t->n || error < t->least)
        t->least = error;
    if (!t->n || error > t->most) {
        t->most = error;
        t->layer = layer;
        t->expert = expert;
    }
    t->mean += (error - t->mean) / (double)++t->n;
}

static void tally(struct compare *x, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
            unsigned layer = x->m->first_dense + i / x->per_layer;
            unsigned expert = i % x->per_layer * x->step;

            tally_one(&x->r.all[m], x->error[i][m], layer, expert);
            tally_one(&x->r.layer[layer][m], x->error[i][m], layer, expert);
            x->r.n_over += !(x->error[i][m] <= x->r.limit);
        }
}

/* ---- the trunk ---- */

/* Rows of the entry that are looked at. */
static uint64_t rows_compared(const struct compare *x, const struct trunk_entry *t)
{
    uint64_t some = CHUNK_FLOATS / t->cols;

    some = some ? some : 1;
    return x->o->all || some > t->rows ? t->rows : some;
}

static int row_differs(struct compare *x, const struct trunk_entry *t, uint64_t row,
                       const float *values, unsigned thread, bool *differs, struct err *e)
{
    uint8_t *want = x->bytes[thread], *have = want + t->row_bytes + 2 * (uint64_t)t->groups + 64;
    uint8_t *want_scale = want + (t->row_bytes + 1) / 2 * 2;
    uint8_t *have_scale = have + t->row_bytes;
    const struct file *f = container_trunk(x->c);

    if (t->fmt == FMT_F32)
        memcpy(want, values, t->row_bytes);
    else if (quantise_row(want, (uint16_t *)(void *)want_scale, t->fmt, values, (uint32_t)t->cols,
                          e))
        return err_wrap(e, "tensor \"%s\" row %llu", t->name, (unsigned long long)row);
    if (file_read(f, have, t->row_bytes, t->off + row * t->row_bytes, e) ||
        (t->groups &&
         file_read(f, have_scale, 2ull * t->groups, t->scale_off + row * 2 * t->groups, e)))
        return e->code;
    *differs = memcmp(want, have, t->row_bytes) || memcmp(want_scale, have_scale, 2ull * t->groups);
    return 0;
}

static void note_tensor(struct compare *x, const char *name, uint64_t rows, bool differs)
{
    pthread_mutex_lock(&x->lock);
    x->r.n_trunk++;
    x->r.trunk_rows += rows;
    if (differs) {
        if (!x->r.n_different++ || strcmp(name, x->r.different) < 0)
            json_printable(x->r.different, sizeof(x->r.different), name, strlen(name));
    }
    pthread_mutex_unlock(&x->lock);
}

static int compare_tensor(void *arg, unsigned i, unsigned thread, struct err *e)
{
    struct compare *x = arg;
    const struct trunk_item *item = &x->map.trunk[i];
    const struct trunk_entry *t = entry_of(x->m, item->name);
    const struct source_tensor *s = item->source;
    uint64_t rows, at_once, wide;
    bool differs = false;

    if (!t || t->rows * t->cols != s->rows * s->cols || t->cols % s->cols) {
        note_tensor(x, item->name, 0, true);
        return 0;
    }
    rows = rows_compared(x, t);
    wide = t->cols / s->cols;
    at_once = CHUNK_FLOATS / t->cols ? CHUNK_FLOATS / t->cols : 1;
    for (uint64_t row = 0; row < rows && !differs; row += at_once) {
        uint64_t n = rows - row < at_once ? rows - row : at_once;

        if (checkpoint_read(x->source, s, row * wide, n * wide, x->values[thread], e))
            return e->code;
        for (uint64_t r = 0; r < n && !differs; r++)
            if (row_differs(x, t, row + r, x->values[thread] + r * t->cols, thread, &differs, e))
                return e->code;
    }
    atomic_fetch_add(&x->progress->done, rows * t->cols);
    atomic_fetch_add(&x->progress->bytes, rows * t->cols);
    note_tensor(x, item->name, rows, differs);
    return 0;
}

/* ---- both ---- */

static int read_source(struct compare *x, struct err *e)
{
    const struct trunk_widths widths = {.bits = 4};
    const struct manifest *m = x->m;

    if (checkpoint_open(&x->source, x->o->source, e) ||
        release_read(&x->release, checkpoint_config(x->source), NULL, e) ||
        hparams_read(&x->hp, x->release.config, e))
        return e->code;
    if (x->hp.n_layers != m->n_layers || x->hp.n_experts != m->n_experts ||
        (m->n_experts && (x->hp.first_dense != m->first_dense || x->hp.latent != m->latent ||
                          x->hp.inter != m->inter)))
        return err_set(e, ERR_ARG,
                       "%s: %u layers of %u experts [%u][%u]; the container has %u of %u [%u][%u]",
                       x->o->source, x->hp.n_layers, x->hp.n_experts, x->hp.inter, x->hp.latent,
                       m->n_layers, m->n_experts, m->inter, m->latent);
    for (unsigned i = 0; i < checkpoint_n_shards(x->source); i++)
        if (!checkpoint_shard_present(x->source, i))
            return err_set(e, ERR_IO, "%s: %s was reclaimed: nothing is left to compare with",
                           x->o->source, checkpoint_shard(x->source, i));
    if (tensor_map_init(&x->map, x->source, &x->release, &x->hp, &widths, NULL, e))
        return e->code;
    return m->n_experts ? codebooks_open(&x->books, x->c, NULL, e) : 0;
}

/* Other writers may leave out keys that they do not need: those in both are compared. */
static void compare_config(struct compare *x)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)x->m->config, key, value)
    {
        const json_t *other = json_object_get(x->release.config, key);

        if (other && !json_equal(value, other)) {
            json_printable(x->r.config, sizeof(x->r.config), key, strlen(key));
            return;
        }
    }
}

static void choose_experts(struct compare *x)
{
    unsigned n = x->m->n_experts, want = x->o->sample ? x->o->sample : SAMPLE;

    x->per_layer = x->o->all || want > n ? n : want;
    x->step = x->per_layer ? n / x->per_layer : 1;
}

static int take_memory(struct compare *x, struct err *e)
{
    unsigned threads = x->o->threads ? x->o->threads : machine_cores();
    size_t floats = (size_t)x->hp.latent * x->hp.inter, row = x->hp.latent + x->hp.inter;
    unsigned n = manifest_moe_layers(x->m) * x->per_layer;

    if (team_open_n(&x->team, threads < THREADS_MAX ? threads : THREADS_MAX, e))
        return e->code;
    floats = x->m->n_experts && floats > CHUNK_FLOATS ? floats : CHUNK_FLOATS;
    x->bytes_room = x->m->record.bytes;
    for (unsigned i = 0; i < x->m->n_trunk; i++) {
        const struct trunk_entry *t = &x->m->trunk[i];
        size_t both = 2 * (t->row_bytes + 2 * (size_t)t->groups) + 128;

        x->bytes_room = both > x->bytes_room ? both : x->bytes_room;
        floats = t->cols > floats ? t->cols : floats;
    }
    x->bytes_room = (x->bytes_room + FORMAT_PAGE - 1) / FORMAT_PAGE * FORMAT_PAGE;
    x->error = calloc(n + 1, sizeof(*x->error));
    for (unsigned i = 0; i < team_size(x->team); i++) {
        x->values[i] = malloc(floats * sizeof(float));
        x->row[i] = malloc(row * sizeof(float));
        x->bytes[i] = aligned_alloc(FORMAT_PAGE, x->bytes_room);
        if (!x->values[i] || !x->row[i] || !x->bytes[i] || !x->error)
            return err_set(e, ERR_NOMEM, "%u threads of %zu bytes", team_size(x->team),
                           floats * sizeof(float));
    }
    return 0;
}

static uint64_t weights_compared(const struct compare *x)
{
    uint64_t n =
        (uint64_t)manifest_moe_layers(x->m) * x->per_layer * MATRICES * x->m->latent * x->m->inter;

    for (unsigned i = 0; i < x->map.n_trunk; i++) {
        const struct trunk_entry *t = entry_of(x->m, x->map.trunk[i].name);

        n += t ? rows_compared(x, t) * t->cols : 0;
    }
    return n;
}

/* Gaussian-like weights lose about 19 % in three stages, 33 % in two; half as much again is a
 * mistake somewhere. */
static double limit_of(const struct record_layout *l)
{
    return l->stages >= 3 ? 0.30 : l->stages == 2 ? 0.45 : 0.70;
}

static int compare_all(struct compare *x, struct err *e)
{
    unsigned n = manifest_moe_layers(x->m) * x->per_layer;

    progress_begin(x->progress, PHASE_VERIFY, weights_compared(x));
    if (work_all(x->team, x->map.n_trunk, compare_tensor, x, x->progress, e) ||
        (n && work_all(x->team, n, compare_expert, x, x->progress, e)))
        return e->code;
    tally(x, n);
    return 0;
}

static void release(struct compare *x)
{
    team_close(x->team);
    codebooks_close(x->books);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        free(x->values[i]);
        free(x->row[i]);
        free(x->bytes[i]);
    }
    free(x->error);
    tensor_map_release(&x->map);
    release_release(&x->release);
    checkpoint_close(x->source);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

int compare_run(struct compare_result *out, const struct container *c,
                const struct compare_options *o, struct progress *progress, struct err *e)
{
    struct compare *x = calloc(1, sizeof(*x));
    unsigned before;
    int bad;

    if (!x)
        return err_set(e, ERR_NOMEM, "compare");
    pthread_mutex_init(&x->lock, NULL);
    x->o = o;
    x->c = c;
    x->m = container_manifest(c);
    x->progress = progress ? progress : &x->nobody;
    x->r.limit = limit_of(&x->m->record);
    choose_experts(x);
    before = fp_begin();
    bad = read_source(x, e) || take_memory(x, e) || compare_all(x, e);
    fp_end(before);
    if (!bad) {
        compare_config(x);
        *out = x->r;
    }
    release(x);
    return bad ? e->code : 0;
}
