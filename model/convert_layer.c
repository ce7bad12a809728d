/* convert_layer.c - a layer of a conversion: its codebooks, fitted to a sample of all experts; its
 * bank, encoded with them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "expertfs/quantise.h"
#include "model/convert_state.h"
#include "model/rvq_encode.h"

#define HALF_MOST 65504.0
enum { VECTORS = 300000, ITERATIONS = 50 }; /* of a matrix's codebooks */

struct fitting { /* the sample for one matrix of one layer */
    struct convert *cv;
    unsigned layer;
    enum matrix m;
    unsigned step; /* between the experts that are sampled */
    size_t take;   /* vectors of each */
    float *vectors;
};

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t seed_of(unsigned layer, enum matrix m, unsigned expert)
{
    uint64_t state = ((uint64_t)layer << 32 | expert) * MATRICES + m;

    return next_random(&state);
}

static struct row_span span_matrix(const struct convert *cv, unsigned layer, unsigned expert,
                                   enum matrix m)
{
    const struct source_tensor *t = tensor_map_expert(&cv->map, layer, expert, m);

    return (struct row_span){t, 0, t->rows};
}

static float largest(const float *x, uint32_t n)
{
    float most = 1e-8f;

    for (uint32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* `take` of an expert's vectors, each as likely as any other, in their order (Knuth 3.4.2, S). */
static int sample_expert(void *arg, unsigned i, unsigned thread, struct err *e)
{
    const struct fitting *f = arg;
    struct convert *cv = f->cv;
    uint32_t rows = record_rows(&cv->layout, f->m), cols = record_cols(&cv->layout, f->m);
    uint64_t random = seed_of(f->layer, f->m, i * f->step);
    uint64_t left = (uint64_t)rows * (cols / FORMAT_VEC_DIM);
    float *out = f->vectors + i * f->take * FORMAT_VEC_DIM, *w = cv->values[thread];
    size_t want = f->take;

    if (row_stream_take(cv->stream, i, w, e))
        return e->code;
    for (uint32_t r = 0; r < rows && want; r++) {
        const float *row = w + (size_t)r * cols;
        float most = largest(row, cols);

        for (uint32_t c = 0; c < cols; c += FORMAT_VEC_DIM, left--) {
            if (next_random(&random) % left >= want)
                continue;
            for (unsigned d = 0; d < FORMAT_VEC_DIM; d++)
                *out++ = row[c + d] / most;
            want--;
        }
    }
    return 0;
}

static int give_books(struct convert *cv, unsigned layer, enum matrix m, struct err *e)
{
    uint16_t entries[FORMAT_ENTRIES_MAX * FORMAT_VEC_DIM];
    unsigned n = cv->o.entries * FORMAT_VEC_DIM;

    for (unsigned s = 0; s < cv->o.stages; s++) {
        for (unsigned i = 0; i < n; i++)
            entries[i] = f32_to_half(cv->books[m][s * n + i]);
        if (writer_codebook(cv->writer, layer, m, s, entries, e))
            return e->code;
    }
    return 0;
}

static int fit_matrix(struct convert *cv, unsigned layer, enum matrix m, struct err *e)
{
    const struct rvq_fit fit = {.stages = cv->o.stages,
                                .entries = cv->o.entries,
                                .iterations = ITERATIONS,
                                .seed = seed_of(layer, m, FORMAT_EXPERTS_MAX)};
    unsigned experts = cv->hp.n_experts, step = experts / cv->o.sample;
    unsigned n = experts < cv->o.sample ? experts : cv->o.sample;
    struct fitting f = {
        .cv = cv, .layer = layer, .m = m, .step = step ? step : 1, .take = VECTORS / n};
    size_t all = (size_t)record_rows(&cv->layout, m) * (record_cols(&cv->layout, m) / 8);
    void *scratch;
    int bad;

    for (unsigned i = 0; i < n; i++)
        cv->span[i] = span_matrix(cv, layer, i * f.step, m);
    f.take = f.take ? f.take : 1;
    f.take = f.take < all ? f.take : all;
    f.vectors = malloc(n * f.take * FORMAT_VEC_DIM * sizeof(float));
    scratch = malloc(rvq_fit_scratch_bytes(&fit, n * f.take));
    if (!f.vectors || !scratch)
        bad = err_set(e, ERR_NOMEM, "codebooks of %zu vectors", n * f.take);
    else
        bad = convert_streamed(cv, n, 1, sample_expert, &f, e) ||
              rvq_fit_books(&fit, f.vectors, n * f.take, cv->books[m], scratch, &cv->kernels,
                            cv->team, e) ||
              give_books(cv, layer, m, e);
    free(scratch);
    free(f.vectors);
    return bad ? err_wrap(e, "layer %u %s", layer, matrix_name(m)) : 0;
}

/* Those of an earlier run, or new ones, on stable storage before a record refers to them. */
static int make_codebooks(struct convert *cv, unsigned layer, bool kept, struct err *e)
{
    unsigned n = cv->o.entries * FORMAT_VEC_DIM;

    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        if (!kept && fit_matrix(cv, layer, m, e))
            return e->code;
        for (unsigned s = 0; kept && s < cv->o.stages; s++) {
            const uint16_t *half = writer_codebook_at(cv->writer, layer, m, s);

            for (unsigned i = 0; i < n; i++)
                cv->books[m][s * n + i] = half_to_f32(half[i]);
        }
    }
    return kept ? 0 : writer_codebooks_part(cv->writer, layer, e);
}

struct bank_work {
    struct convert *cv;
    unsigned layer;
};

static int make_record(void *arg, unsigned expert, unsigned thread, struct err *e)
{
    const struct bank_work *b = arg;
    struct convert *cv = b->cv;
    const struct record_layout *l = &cv->layout;
    unsigned layer = b->layer;
    uint8_t *record = cv->record[thread];

    memset(record, 0, l->bytes);
    for (enum matrix m = MATRIX_GATE; m < MATRICES; m++) {
        uint16_t *scale = (uint16_t *)(void *)(record + l->scale_off[m]);
        uint32_t rows = record_rows(l, m);

        if (row_stream_take(cv->stream, expert * MATRICES + m, cv->values[thread], e))
            return e->code;
        rvq_encode_rows(record + l->index_off[m], scale, cv->values[thread], cv->books[m], l, m, 0,
                        rows, &cv->kernels);
        for (uint32_t r = 0; r < rows; r++)
            if (!half_finite(scale[r]))
                return err_set(e, ERR_CORRUPT,
                               "\"%s\" row %u: a value of %g has no f16 scale, which ends at %g",
                               tensor_map_expert(&cv->map, layer, expert, m)->name, r,
                               (double)largest(cv->values[thread] + (size_t)r * record_cols(l, m),
                                               record_cols(l, m)),
                               HALF_MOST);
    }
    if (writer_record(cv->writer, layer, expert, record, e))
        return e->code;
    convert_count(cv, l->bytes);
    return 0;
}

static int check_record(void *arg, unsigned expert, unsigned thread, struct err *e)
{
    const struct bank_work *b = arg;

    return writer_bank_check(b->cv->writer, b->layer, expert, b->cv->record[thread], e);
}

static int make_bank(struct convert *cv, unsigned layer, struct err *e)
{
    struct bank_work b = {cv, layer};

    for (unsigned i = 0; i < cv->hp.n_experts * MATRICES; i++)
        cv->span[i] = span_matrix(cv, layer, i / MATRICES, i % MATRICES);
    if (writer_bank_begin(cv->writer, layer, e) ||
        convert_streamed(cv, cv->hp.n_experts, MATRICES, make_record, &b, e) ||
        writer_bank_end(cv->writer, layer, e))
        return e->code;
    return 0;
}

static const char *bank_name(char *out, size_t n, unsigned layer)
{
    snprintf(out, n, "experts-L%u.bin", layer);
    return out;
}

bool convert_bank_there(const struct convert *cv, unsigned layer)
{
    char name[32];

    return writer_file_bytes(cv->writer, bank_name(name, sizeof(name), layer)) ==
           cv->plan.bank_bytes;
}

static int check_bank(struct convert *cv, unsigned layer, struct err *e)
{
    struct bank_work b = {cv, layer};

    return work_all(cv->team, cv->hp.n_experts, check_record, &b, cv->progress, e);
}

/* Again with codebooks that are kept: after a kill, or when the bank is damaged. */
static int write_layer(struct convert *cv, unsigned layer, bool books, const char *why,
                       struct err *e)
{
    char name[32];

    if (convert_discard(cv, bank_name(name, sizeof(name), layer), convert_layer_gone(cv, layer),
                        why, e) ||
        make_codebooks(cv, layer, books, e) || make_bank(cv, layer, e))
        return e->code;
    if (cv->o.reclaim != RECLAIM_ON)
        return 0;
    /* What is deleted cannot be converted again: everything is read back first. */
    if (check_bank(cv, layer, e))
        return e->code;
    if (!writer_codebooks_keep(cv->writer, layer))
        return err_set(e, ERR_CORRUPT,
                       "%s: the codebooks of layer %u do not read back as they were written",
                       cv->o.dir, layer);
    return 0;
}

int convert_layer(struct convert *cv, unsigned layer, struct err *e)
{
    bool books = writer_codebooks_keep(cv->writer, layer);
    bool there = books && convert_bank_there(cv, layer);
    char why[sizeof(e->text)] = "";
    int bad = there ? check_bank(cv, layer, e) : 0;

    if (bad == ERR_CANCELLED)
        return bad;
    if (bad)
        memcpy(why, e->text, sizeof(why));
    if (there && !bad && writer_bank_keep(cv->writer, layer))
        cv->result.banks_kept++;
    else if (write_layer(cv, layer, books, why, e))
        return e->code;
    return reclaim_layer(cv->reclaim, layer, e);
}
