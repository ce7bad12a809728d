/* model/team.h - fork-join over ranges, by threads that wait for each other.
 *
 * One thread (the one that runs passes) calls team_for; the team's other threads help. Who computes
 * which range never changes a result: ranges only say which rows or heads to write. Nothing is
 * allocated after open.
 */
#ifndef MODEL_TEAM_H
#define MODEL_TEAM_H

#include "base/err.h"
#include "base/cpu_place.h"

struct team;

/* Items [i0, i1), on thread `thread` of the team (0...team_size - 1): index of private scratch. */
typedef void team_fn(void *arg, unsigned i0, unsigned i1, unsigned thread);

/* As many threads as that, the caller's among them, 1...THREADS_MAX, bound to the CPUs of the
 * placement; the caller is, too, between team_begin and team_end. */
int team_open(struct team **out, const struct cpu_place *p, struct err *e);
/* n threads, bound to nothing. */
int team_open_n(struct team **out, unsigned n, struct err *e);
void team_close(struct team *t); /* NULL-safe */
unsigned team_size(const struct team *t);

/* Call fn over all of [0, n), in pieces that begin at multiples of grain; returns when all are
 * done. */
void team_for(struct team *t, unsigned n, unsigned grain, team_fn *fn, void *arg);

/* Subnormals kept and rounding to nearest: what the arithmetic is defined with, whatever the host
 * has set. fp_begin returns what was before, for fp_end. Team threads have it already. */
unsigned fp_begin(void);
void fp_end(unsigned before);

/* Around a pass, on the thread that runs it: fp_begin, and the thread where its placement has it.
 * team_end puts back what was before. */
void team_begin(struct team *t);
void team_end(struct team *t);

#endif
