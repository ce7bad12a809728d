/* cli/bench/routes.h - a routing trace: which experts each layer of each token asked for.
 *
 * Both published forms are read, told apart by a first byte '{':
 *
 *     {"tok": 0, "layers": [[3, 17, ...], ...]}     one object per token, a list per MoE layer
 *     position layer id * K weight * K guess * K    one line per token and MoE layer, as
 *                                                   model/route_trace.h writes it
 *
 * A trace is untrusted: whatever it says, reading is bounded, and what is wrong is named by line.
 */
#ifndef CLI_BENCH_ROUTES_H
#define CLI_BENCH_ROUTES_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    ROUTES_LINE_MAX = 1 << 20, /* bytes */
    ROUTES_LAYERS_MAX = 1024,
    ROUTES_ID_MAX = 65535,
    ROUTES_CALL_MAX = 1024, /* experts of one layer and token, at most ROUTES_ID_MAX + 1 */
    ROUTES_REQUESTS_MAX = 1 << 26,
};

struct route_call { /* one layer of one token */
    uint32_t first; /* id[first ... first + n), distinct */
    uint16_t n;
    uint16_t layer; /* numbered as they first appear */
};

struct routes {
    unsigned n_tokens, n_layers;
    unsigned n_experts; /* the largest id and one */
    unsigned top_k;     /* the most of one call */
    size_t n_calls, n_ids;
    struct route_call *call; /* in the order of the trace */
    uint16_t *id;
    int32_t *guess; /* [n_ids] what was asked early for the next layer, -1: nothing. NULL: the form
                       of the trace has none */
};

/* ERR_IO; ERR_FORMAT, ERR_LIMIT: "FILE:LINE: ...". routes_release what was read. */
int routes_read(struct routes *out, const char *path, struct err *e);
void routes_release(struct routes *r); /* null-safe on a zeroed struct */

/* Read a trace of len bytes; name is for messages. */
int routes_parse(struct routes *out, const char *text, size_t len, const char *name, struct err *e);

#endif
