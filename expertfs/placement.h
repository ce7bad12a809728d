/* expertfs/placement.h - the records of a layer, spread over several drives.
 *
 * drives.json beside the manifest lists the drives' directories with a share each, and which layers
 * are spread. Such a layer has no bank: every drive holds a piece of it, experts-L3.piece, with its
 * records in ascending order. Which drive has a record follows from the shares alone: they are laid
 * out evenly over a period of sum(share) experts. Drive 0 is the container's own directory. Each
 * further directory holds waste-drive.json, so that drives mounted in each other's place are seen.
 * A container without drives.json is what it always was.
 */
#ifndef EXPERTFS_PLACEMENT_H
#define EXPERTFS_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "expertfs/format.h"
#include "expertfs/out_dir.h"

enum {
    PLACEMENT_DRIVES_MAX = 16,
    PLACEMENT_SHARE_MAX = 16,
    PLACEMENT_PERIOD_MAX = PLACEMENT_DRIVES_MAX * PLACEMENT_SHARE_MAX,
    PLACEMENT_DIR_BYTES = 512,
    PLACEMENT_NAME_BYTES = 32,
};

struct placement {
    unsigned n;   /* drives, the container's own included; 0: no layer is spread */
    uint64_t set; /* drives.json and every waste-drive.json have the same number */
    char dir[PLACEMENT_DRIVES_MAX][PLACEMENT_DIR_BYTES]; /* absolute, but "." for the first */
    unsigned share[PLACEMENT_DRIVES_MAX]; /* 0 (the first only) ... PLACEMENT_SHARE_MAX */
    bool spread[FORMAT_LAYERS_MAX];

    /* What follows from the shares: of the experts 0...period-1, whose each is and as which. */
    unsigned period;
    uint8_t drive[PLACEMENT_PERIOD_MAX], rank[PLACEMENT_PERIOD_MAX];
};

/* Lay the period out from n and share; at least one share is not 0. */
void placement_lay(struct placement *p);

/* Read drives.json below dirfd, if it is there; else n = 0. Layers outside [first, end) are
 * ERR_FORMAT. */
int placement_read(struct placement *p, int dirfd, unsigned first, unsigned end, struct err *e);
/* Write it, whole or not at all, to the disk. n = 0 removes it. */
int placement_write(const struct placement *p, const struct out_dir *d, struct err *e);

/* Which drive has this expert of a spread layer, and as which of its records. */
unsigned placement_drive(const struct placement *p, unsigned expert, unsigned *rank);
/* The inverse, and how many of n_experts a drive has. */
unsigned placement_expert(const struct placement *p, unsigned drive, unsigned rank);
unsigned placement_records(const struct placement *p, unsigned drive, unsigned n_experts);

void placement_piece(char name[PLACEMENT_NAME_BYTES], unsigned layer);

/* The directory of a drive, opened and recognised; -1: err. dirfd is the container's. */
int placement_open_dir(const struct placement *p, unsigned drive, int dirfd, struct err *e);
/* Mark a directory as a drive of this set, whose container is `home`, an absolute path without
 * links. A mark of another set is taken over where it has no pieces, or only
 * what a move of this container left behind. ERR_ARG: it has some; or the
 * set's pieces are another container's, of which this one is a copy. */
int placement_mark_dir(const struct placement *p, unsigned drive, const struct out_dir *d,
                       const char *home, struct err *e);

/* Take this set's mark off, unless it is another container's, of which `home` is a copy. */
void placement_unmark_dir(const struct placement *p, int fd, const char *home);

/* Are the pieces in this directory those of a container elsewhere, of which `home` is a copy? Its
 * path, cut to PLACEMENT_DIR_BYTES. */
bool placement_is_anothers(const struct placement *p, int fd, const char *home,
                           char other[PLACEMENT_DIR_BYTES]);

#endif
