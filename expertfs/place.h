/* expertfs/place.h - move records between drives: spread a container's layers, or gather them.
 *
 * A layer is moved whole: its pieces are written and synced, drives.json says so, and only then
 * does the bank go (gathering: the other way round). Killed at any point, the container is what it
 * was with some layers moved, and the same call goes on. No drive ever holds more than its share
 * and one layer. Whoever has the container open goes on reading the files that were there.
 */
#ifndef EXPERTFS_PLACE_H
#define EXPERTFS_PLACE_H

#include "base/err.h"
#include "base/progress.h"
#include "expertfs/placement.h"

/* Spread every layer of the container in dir as `want` says: n, dir and share are read; directories
 * beyond the first are made if they are not there. A container that is spread already goes on if
 * drives and shares are the same; ERR_ARG if not (gather first). Progress counts bytes.
 * ERR_BUSY: another process has the container open for sole use. */
int place_spread(const char *dir, const struct placement *want, struct progress *progress,
                 struct err *e);

/* Bring every record back into the container's banks, and take the marks off the drives. */
int place_gather(const char *dir, struct progress *progress, struct err *e);

#endif
