/* storage/drive_notes.h - what was measured of drives, kept in a small text file.
 *
 *     waste drives 1
 *     nvme0n1 10300000000 4194304 6 3214000000       name, id, page bytes, depth, bytes per second
 *
 * It is a cache and nobody's truth: a file that is not exactly as written here counts as none.
 */
#ifndef STORAGE_DRIVE_NOTES_H
#define STORAGE_DRIVE_NOTES_H

#include <stdbool.h>

#include "storage/drive.h"

enum { DRIVE_NOTES_MAX = 64, DRIVE_NOTE_DEPTH_MAX = 64 };

/* The class of sizes that a page is in: the next power of two. */
uint32_t drive_note_class(uint32_t page_bytes);

/* What is known of a drive and pages of a class. False, and *out untouched: nothing. */
bool drive_note_find(struct drive_speed *out, const char *path, const struct drive *d,
                     uint32_t class);

/* Keep it, in the place of what was known; of too many the oldest goes. The file is replaced whole,
 * and its directory made, and the one above, where they are missing. ERR_ARG: a drive without a
 * name. ERR_IO. */
int drive_note_keep(const char *path, const struct drive *d, uint32_t class,
                    const struct drive_speed *speed, struct err *e);

#endif
