/* model/route_trace.h - what routers chose, one line per decoded token and MoE layer:
 *
 *     position layer id * K weight * K guess * K
 *
 * ids in selection order; guesses are what was asked for early for the next MoE layer, -1 = none.
 */
#ifndef MODEL_ROUTE_TRACE_H
#define MODEL_ROUTE_TRACE_H

#include "base/err.h"
#include "model/layers.h"

struct route_trace;

/* Append to the file at path. ERR_IO. */
int route_trace_open(struct route_trace **out, const char *path, const struct hparams *hp,
                     struct err *e);
/* Where a pass of one row puts its choices; borrowed. */
struct route_tap *route_trace_tap(struct route_trace *t);
/* Write the lines of the pass that just ended, at position pos. ERR_IO: the disk is full, ... */
int route_trace_write(struct route_trace *t, unsigned pos, struct err *e);
int route_trace_close(struct route_trace *t, struct err *e); /* NULL-safe */

#endif
