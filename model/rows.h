/* model/rows.h - the rows of one pass, and the sessions they belong to.
 *
 * Spans lie back to back. One span of one row is decode, one span of many is prefill, many spans
 * are serving: any mix of prompts and answers.
 */
#ifndef MODEL_ROWS_H
#define MODEL_ROWS_H

#include <stdbool.h>
#include <stdint.h>

struct session;

struct span {
    struct session *session; /* at most one span of a session in a pass */
    unsigned row0, n;        /* its rows [row0, row0 + n), consecutive positions */
    unsigned pos0;           /* position of the first */
    bool logits;             /* the last row wants them */
};

struct rows {
    unsigned n, n_spans;
    struct span *span;
    const int32_t *token;      /* [n]; negative: a row of an image */
    const float *const *image; /* [n]: what such a row begins with, [hidden]. NULL: there is none */
    const int32_t *score;      /* [n]: the id whose log probability after a row is wanted; -1: none.
                                  NULL: of no row */
};

#endif
