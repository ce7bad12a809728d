/* model/laps.h - where the time of passes goes: a stopwatch that is read between the parts of a
 * layer, so that the parts add up to the whole. Read by the thread that runs the pass, some tens of
 * nanoseconds each time.
 */
#ifndef MODEL_LAPS_H
#define MODEL_LAPS_H

#include <stdint.h>
#include <time.h>

enum lap {
    LAP_MIX,     /* KDA, MLA, with their norms and residuals */
    LAP_MLP,     /* dense layers, shared experts */
    LAP_ROUTE,   /* routers, guesses, and handing reads to the engine */
    LAP_PIN,     /* experts: waiting for them, and checking them */
    LAP_EXPERTS, /* routed experts, and the projections around them */
    LAP_HEAD,    /* logits, scores */
    LAP_OTHER,   /* embeddings, the host's callbacks */
    LAPS
};

struct laps {
    uint64_t last_ns, ns[LAPS];
};

/* What ends now was that. NULL: nobody wants to know. */
static inline void lap(struct laps *l, enum lap what)
{
    struct timespec t;
    uint64_t now;

    if (!l)
        return;
    clock_gettime(CLOCK_MONOTONIC, &t);
    now = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
    l->ns[what] += now - l->last_ns;
    l->last_ns = now;
}

#endif
