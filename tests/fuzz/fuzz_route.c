/* tests/fuzz/fuzz_route.c - the input as a routing trace: refused with a reason, or within every
 * bound, and then a policy can be driven by it. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench/route_replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct routes r = {0};
    struct err e = {0};
    size_t ids = 0;

    if (routes_parse(&r, (const char *)data, size, "fuzz", &e)) {
        CHECK(e.code && e.text[0] && !r.call);
        return 0;
    }
    CHECK(r.n_ids && r.n_layers && r.n_layers <= ROUTES_LAYERS_MAX && r.n_tokens);
    for (size_t i = 0; i < r.n_calls; i++) {
        CHECK(r.call[i].first == ids && r.call[i].layer < r.n_layers && r.call[i].n <= r.top_k);
        ids += r.call[i].n;
    }
    CHECK(ids == r.n_ids);
    for (size_t i = 0; i < ids; i++)
        CHECK(r.id[i] < r.n_experts);
    if ((uint64_t)r.n_layers * r.n_experts < 1 << 16) {
        struct replay_counts n;

        CHECK(!replay(&n, &r, &policy_nextuse, 3, 1, &e));
        CHECK(n.hits + n.misses == r.n_ids);
    }
    routes_release(&r);
    return 0;
}
