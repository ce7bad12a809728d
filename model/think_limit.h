/* model/think_limit.h - a limit on reasoning: after so many choices, the ids that close it.
 *
 * An answer that closes its reasoning in time never notices. One that does not is given the closing
 * ids as its next choices, one after the other; from then on it is free again.
 */
#ifndef MODEL_THINK_LIMIT_H
#define MODEL_THINK_LIMIT_H

#include <stdint.h>

enum { THINK_CLOSE_MAX = 16 };

struct think_limit {
    int32_t close[THINK_CLOSE_MAX];
    unsigned n_close; /* 0: no limit */
    uint32_t after;
    uint32_t left; /* choices until close[0] */
    unsigned at;   /* of close, chosen so far; n_close: the reasoning is over */
};

/* close: n ids, at most THINK_CLOSE_MAX, copied; n 0: no limit. An answer begins. */
void think_limit_set(struct think_limit *l, const int32_t *close, unsigned n, uint32_t after);
void think_limit_restart(struct think_limit *l); /* another one */
/* The id that has to be chosen now; -1: any. */
int32_t think_limit_due(const struct think_limit *l);
/* This one was. */
void think_limit_chosen(struct think_limit *l, int32_t id);

#endif
