/* expertfs/hotlist.h - usage.waste: which experts a workload used; advice, never trusted.
 *
 * A table with a place for every expert of the container, so that what a file says of others has
 * no place to go. What is wrong with a file is left out and told to nobody: the worst that bad
 * advice can do is to have the wrong experts read early. docs/FORMAT.md has the layout.
 */
#ifndef EXPERTFS_HOTLIST_H
#define EXPERTFS_HOTLIST_H

#include <stdbool.h>
#include <stdint.h>

#include "expertfs/manifest.h"
#include "expertfs/out_dir.h"

struct heat {
    uint32_t uses;
    uint32_t last; /* low bits of the clock at its last use */
};

struct hotlist {
    const struct manifest *m; /* borrowed */
    uint64_t clock;           /* uses of all experts, since somebody began to count */
    struct heat *heat;        /* [MoE layers][n_experts] */
};

struct hot { /* one entry of the file */
    uint16_t layer, expert;
    struct heat heat;
};

int hotlist_open(struct hotlist *h, const struct manifest *m, struct err *e); /* all cold */
void hotlist_close(struct hotlist *h); /* NULL-safe on a zeroed struct */

static inline struct heat *hotlist_of(const struct hotlist *h, unsigned layer, unsigned expert)
{
    return h->heat + (size_t)(layer - h->m->first_dense) * h->m->n_experts + expert;
}

/* Into a list that is all cold. dir: of openat. False: there is no such file, or it is none of
 * these. Of two entries for one expert the first counts. */
bool hotlist_read(struct hotlist *h, int dir, const char *path);

/* An expert is used. */
static inline void hotlist_use(struct hotlist *h, unsigned layer, unsigned expert)
{
    struct heat *x = hotlist_of(h, layer, expert);

    x->uses += x->uses < UINT32_MAX;
    x->last = (uint32_t)++h->clock;
}

void hotlist_cool(struct hotlist *h); /* all cold, the clock at 0 */

/* Old uses count half from now on; those of `more`, a list of the same container, are added. */
void hotlist_merge(struct hotlist *h, const struct hotlist *more);

/* The hottest experts, hottest first; among equals the lower layer, then the lower expert. Returns
 * their number, at most n_max. *out is the caller's to free; NULL when there is no memory, too. */
unsigned hotlist_hottest(const struct hotlist *h, unsigned n_max, struct hot **out);

/* A whole file of the n_max hottest, or the one that was there. */
int hotlist_write(const struct hotlist *h, unsigned n_max, const struct out_dir *d,
                  const char *name, struct err *e);

#endif
