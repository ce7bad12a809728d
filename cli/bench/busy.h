/* cli/bench/busy.h - threads that compute while others read: what does reading cost them? */
#ifndef CLI_BENCH_BUSY_H
#define CLI_BENCH_BUSY_H

#include "base/err.h"

struct busy; /* NULL: no threads */

/* n = 0 gives NULL. ERR_NOMEM. */
int busy_start(struct busy **out, unsigned n, struct err *e);
void busy_stop(struct busy *b);

struct busy_count {
    double fmas;  /* done so far by all of them */
    double cpu_s; /* that it took */
};
struct busy_count busy_now(const struct busy *b);

#endif
