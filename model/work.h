/* model/work.h - a team over a list of work that can fail: the first failure stops all. */
#ifndef MODEL_WORK_H
#define MODEL_WORK_H

#include "base/progress.h"
#include "model/team.h"

/* Item i, on thread `thread` of the team. */
typedef int work_fn(void *arg, unsigned i, unsigned thread, struct err *e);

/* Items [0, n), begun in their order, each by whichever thread is free; n + 64 fits in 32 bits.
 * progress (may be NULL) is asked before each: ERR_CANCELLED. */
int work_all(struct team *t, unsigned n, work_fn *fn, void *arg, const struct progress *progress,
             struct err *e);

#endif
