/* cli/bench/route_replay.h - a routing trace through a replacement policy: what a pool of so many
 * frames would have hit.
 *
 * The policy's code is the pool's own, and it hears what it would hear from a pool under which
 * every read completes at once and the queue has room: each call of the trace is one sure hint,
 * then pins of whatever is ready, in the order of the trace. No bytes, no clock, no guesses.
 * tests/cli/test_route_replay.c holds the counters against a pool's.
 */
#ifndef CLI_BENCH_ROUTE_REPLAY_H
#define CLI_BENCH_ROUTE_REPLAY_H

#include "cli/bench/routes.h"
#include "storage/policy.h"

struct replay_counts {
    uint64_t hits, misses, evictions; /* hits + misses: every id of the trace */
};

/* Where page (layer, id) would lie, for policies and pools: a file per layer, records of one
 * IO_ALIGN. */
static inline struct extent route_extent(unsigned layer, unsigned id)
{
    return (struct extent){.offset = (uint64_t)id * IO_ALIGN, .length = IO_ALIGN, .file = layer};
}

/* Every request, in order, for belady; the caller's to free. NULL: no memory. */
struct extent *replay_future(const struct routes *r);

/* What a policy may know of these pages. future: NULL but for belady. */
static inline struct policy_known replay_known(const struct routes *r, const struct extent *future)
{
    return (struct policy_known){.n_pages = r->n_layers * r->n_experts,
                                 .n_files = r->n_layers,
                                 .future = future,
                                 .n_future = future ? r->n_ids : 0};
}

int replay(struct replay_counts *out, const struct routes *r, const struct policy_ops *policy,
           unsigned n_frames, uint64_t seed, struct err *e);

#endif
