/* model/rvq_encode.h - fit codebooks, encode matrices: what a conversion spends its time in.
 *
 * Vectors are 8 consecutive columns of a row divided by the row's largest magnitude. Stage s is
 * fitted on what the stages before it leave over. Everything is deterministic in its inputs and the
 * seed, whatever the threads and the CPU level.
 */
#ifndef MODEL_RVQ_ENCODE_H
#define MODEL_RVQ_ENCODE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/record.h"
#include "model/kernels/kernels.h"
#include "model/team.h"

struct rvq_fit {
    unsigned stages, entries;
    unsigned iterations; /* most Lloyd iterations a stage; stops when it has converged */
    uint64_t seed;
};

/* vectors: [n][8], used as scratch (what is left over of them afterwards). books:
 * [stages][entries][8] out, rounded to what f16 holds. k-means++ initialisation; an empty cluster
 * is given the vector farthest from its centre. scratch: rvq_fit_scratch_bytes. */
size_t rvq_fit_scratch_bytes(const struct rvq_fit *f, size_t n);
int rvq_fit_books(const struct rvq_fit *f, float *vectors, size_t n, float *books, void *scratch,
                  const struct kernels *k, struct team *team, struct err *e);

/* Encode rows [r0, r1) of w [rows][cols] into a record's index stream of matrix m (blocked, see
 * expertfs/record.h; padding rows are left alone) and its scales [rows] f16. r0 is a multiple of 64
 * or any row: rows are independent. Greedy per stage, lowest index among equals. */
void rvq_encode_rows(uint8_t *index, uint16_t *scale, const float *w, const float *books,
                     const struct record_layout *l, enum matrix m, uint32_t r0, uint32_t r1,
                     const struct kernels *k);

/* Row r of a record's matrix, decoded: out [cols] f32. */
void rvq_decode_row(float *out, const uint8_t *index, const uint16_t *scale, const float *books,
                    const struct record_layout *l, enum matrix m, uint32_t r);

#endif
