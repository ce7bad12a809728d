/* expertfs/ledger.h - lists of names beside a checkpoint's shards, one a line: `.download-state`,
 * what a download vouches for; `.reclaimed`, what a conversion has used up and deleted.
 *
 * Others write them too: lines may end in CR LF, and the last one not at all. A full disk or a loss
 * of power can leave a line that is cut short, or zero bytes; neither hides another line.
 */
#ifndef EXPERTFS_LEDGER_H
#define EXPERTFS_LEDGER_H

#include <stdbool.h>

#include "base/err.h"

/* The text of `ledger` below dirfd, or NULL where there is none; the caller frees. ERR_IO,
 * ERR_LIMIT. */
int ledger_read(char **out, int dirfd, const char *ledger, struct err *e);
bool ledger_lists(const char *text, const char *name); /* text may be NULL */

/* Add a line, so that it lasts: what it says may be done from here on. `name` is a file's, at most
 * NAME_MAX bytes. ERR_IO: it may be there all the same, or a part of it. */
int ledger_add(int dirfd, const char *ledger, const char *name, struct err *e);

#endif
