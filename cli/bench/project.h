/* cli/bench/project.h - a routing trace on a drive that we do not have: the real pool, under the
 * engine whose time is a number (storage/io_sim.h).
 *
 * What a decode step does is modelled, call by call as model/moe.c makes them, with computation as
 * fixed times:
 *
 *     sure hint - guesses for the next layer - shared part - [pin, expert, unpin] * k - the rest
 *
 * A record is one IO_ALIGN here and the drive slower by as much, so that no memory is taken; that
 * changes no time but the rounding.
 */
#ifndef CLI_BENCH_PROJECT_H
#define CLI_BENCH_PROJECT_H

#include "cli/bench/routes.h"
#include "storage/pool.h"

struct projection {
    const char *drive; /* a preset of io_sim */
    const struct policy_ops *policy;
    unsigned n_frames, depth;
    uint64_t record_bytes;
    uint64_t shared_ns, expert_ns, rest_ns; /* of a layer; of one expert; of a layer */
    unsigned lookahead;                     /* guesses for the next layer; 0: none */
    bool in_order; /* experts are waited for in selection order: no hits first */
    unsigned warm; /* tokens that fill the pool and are not counted */
};

struct projected { /* of the tokens that count */
    unsigned tokens;
    uint64_t total_ns, waited_ns;
    uint64_t bytes;         /* of records as they would be */
    struct pool_stats pool; /* since open */
};

/* Guesses are the trace's own where it has them. Else they are drawn: the guess of each rank is
 * right as often as was published for K3 (0.92 for the first, 0.81 over six, 0.28 for the last of
 * 16), and wrong ones are experts of the token before or any. */
int project(struct projected *out, const struct routes *r, const struct projection *how,
            struct err *e);

/* A trace of so many tokens, seeded, for models of which none is published: neighbours share about
 * 23 % of their experts, some experts are popular, and what was in use some tokens ago comes back.
 * release what it gives. ERR_NOMEM. */
int routes_invent(struct routes *out, unsigned n_layers, unsigned n_experts, unsigned top_k,
                  unsigned n_tokens, uint64_t seed, struct err *e);

#endif
