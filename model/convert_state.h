/* model/convert_state.h - a conversion under way, shared by convert.c (what there is, the trunk,
 * the order of things) and convert_layer.c (codebooks and bank of a layer).
 */
#ifndef MODEL_CONVERT_STATE_H
#define MODEL_CONVERT_STATE_H

#include <stdatomic.h>

#include "expertfs/row_stream.h"
#include "expertfs/unfinished.h"
#include "expertfs/writer.h"
#include "model/convert.h"
#include "model/convert_shards.h"
#include "model/kernels/kernels.h"
#include "model/work.h"

struct chunk { /* rows of the container's tensor */
    unsigned item;
    uint64_t row, n;
};

struct convert {
    struct convert_options o; /* defaults filled in */
    struct convert_plan plan;
    struct convert_result result;
    struct checkpoint *source;
    int dirfd; /* of the source */
    struct release release;
    struct release_files files;
    struct hparams hp;
    struct tensor_map map;
    struct record_layout layout;
    json_t *identity, *shards; /* convert_shards.h */
    char trunk_sum[24];        /* of the finished trunk, hexadecimal; "": it is not finished */
    atomic_uint_fast64_t sum_read;
    struct unfinished before;
    struct reclaim *reclaim;
    struct writer *writer;
    struct kernels kernels;
    struct team *team;
    struct progress *progress, nobody;
    struct chunk *chunk;
    unsigned n_chunks;
    struct row_span *span; /* what the items at hand need of the source, in their order */
    struct row_stream *stream;
    float *values[THREADS_MAX]; /* a matrix, or rows of the trunk */
    uint8_t *record[THREADS_MAX];
    float *books[MATRICES]; /* [stages][entries][8] */
};

/* Bytes are done. */
void convert_count(struct convert *cv, uint64_t bytes);
/* n items, each of which takes `each` of the spans that cv->span lists, read ahead of it. */
int convert_streamed(struct convert *cv, unsigned n, unsigned each, work_fn *fn, void *arg,
                     struct err *e);
/* A tensor of the layer's experts whose shard is gone, or NULL. */
const struct source_tensor *convert_layer_gone(const struct convert *cv, unsigned layer);
/* The file of an earlier run cannot be used: it goes, unless it cannot be made again. why: what
 * reading it said, or "". */
int convert_discard(struct convert *cv, const char *name, const struct source_tensor *gone,
                    const char *why, struct err *e);

/* Codebooks and bank, or what an earlier run left of them, if it is sound. */
int convert_layer(struct convert *cv, unsigned layer, struct err *e);
bool convert_bank_there(const struct convert *cv, unsigned layer);

#endif
