/* cli/tally.h - what a run took: reads, hits, guesses, and where the time went. */
#ifndef CLI_TALLY_H
#define CLI_TALLY_H

#include "cli/say.h"

struct tally { /* of some passes */
    waste_counters c;
    int64_t bytes_device; /* that the system fetched for us, page cache and all; -1: it won't say */
};

void tally_now(struct tally *t, const waste_ctx *ctx); /* since open */
struct tally tally_between(const struct tally *from, const struct tally *to);

void tally_add(struct tally *sum, const struct tally *more);

/* Members of a run's JSON summary; -1 without memory. */
int tally_json(json_t *into, const struct tally *t);

/* The same for people, in two lines and a third one when reads went wrong. */
void tally_lines(struct cli *c, const struct tally *t);

struct profile {
    struct tally prefill, decode;
    double ram_rate;        /* bytes per second that this machine's memory gives; 0: not known */
    uint64_t trunk, record; /* bytes that each pass, and each expert, takes from memory */
};

/* With --profile, before a model takes the memory: what memory gives. Half a GiB is touched for
 * 0.3 s. Returns 0 or EXIT_INTERRUPTED. */
int profile_begin(struct cli *c, struct profile *p);

/* What decides: "disk", "memory", "compute"; "memory or compute" where ram_rate is not known;
 * "nothing" before a pass. */
const char *profile_bound(const struct profile *p);
json_t *profile_json(const struct profile *p);
void profile_lines(struct cli *c, const struct profile *p); /* one screen, as notes */

#endif
