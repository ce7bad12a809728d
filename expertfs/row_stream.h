/* expertfs/row_stream.h - rows of a checkpoint, read ahead of who wants them.
 *
 * A list of spans is read in its order through an I/O engine, past the page cache where that works,
 * into a window of a few spans. Tensors begin anywhere in a shard: the aligned bytes around them
 * are read. One thread opens and closes; any thread takes. A thread of the stream's own drives the
 * engine.
 */
#ifndef EXPERTFS_ROW_STREAM_H
#define EXPERTFS_ROW_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/safetensors.h"

struct row_span { /* rows [row, row + n) */
    const struct source_tensor *tensor;
    uint64_t row, n;
};

struct row_stream;

/* span [n], at least 1, borrowed; shards stay open until close. window: most spans in memory, taken
 * or not. A span comes in only when fewer than `window` before it are yet to be taken: who lets
 * some wait while it takes later ones gives a window that is larger than these. ERR_IO: a shard was
 * reclaimed. */
int row_stream_open(struct row_stream **out, const struct checkpoint *c,
                    const struct row_span *span, unsigned n, unsigned window, bool direct,
                    struct err *e);
void row_stream_close(struct row_stream *s); /* NULL-safe; spans not taken are dropped */

/* Span i as f32, as checkpoint_read has it; waits for it. Each span at most once. */
int row_stream_take(struct row_stream *s, unsigned i, float *out, struct err *e);

#endif
