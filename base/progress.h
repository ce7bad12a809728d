/* base/progress.h - counters of long work, and the flag that cancels it.
 *
 * The worker writes, anyone reads, from any thread. Work that is watched checks
 * progress_cancelled at each unit (a layer, a tensor, a record) and ends with ERR_CANCELLED.
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum phase {
    PHASE_IDLE,
    PHASE_OPEN,
    PHASE_PREFILL,
    PHASE_DECODE,
    PHASE_VERIFY,
    PHASE_SYNTH,
    PHASE_CONVERT,
    PHASE_PLACE,
    PHASE_IMAGE
};

struct progress {
    atomic_int phase;           /* enum phase */
    atomic_uint_fast64_t done;  /* units of the phase: bytes, tokens or records */
    atomic_uint_fast64_t total; /* of the same; 0 while unknown */
    atomic_uint_fast64_t bytes; /* read or written so far */
    atomic_bool cancel;         /* set by whoever watches */
};

static inline void progress_begin(struct progress *p, enum phase phase, uint64_t total)
{
    atomic_store(&p->done, 0);
    atomic_store(&p->bytes, 0);
    atomic_store(&p->total, total);
    atomic_store(&p->phase, (int)phase);
}

static inline bool progress_cancelled(const struct progress *p)
{
    return atomic_load_explicit(&p->cancel, memory_order_relaxed);
}

#endif
