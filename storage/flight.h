/* storage/flight.h - how many reads in flight some files want: what their drives want together.
 *
 * A drive is measured once, for a fraction of a second, and what came of it is kept in a file
 * (drive_notes.h). It decides when bytes come and never which.
 */
#ifndef STORAGE_FLIGHT_H
#define STORAGE_FLIGHT_H

#include "storage/drive.h"

struct flight_request {
    const char *notes;               /* where answers are kept; NULL: nowhere, so measure */
    const struct file *const *files; /* all direct, or memory is measured */
    const struct drive *drive;       /* [n_files]: of each file; all with names */
    unsigned n_files;
    const struct extent *at; /* n pages to read, all of one length, some of each drive */
    unsigned n;
    uint8_t *memory;    /* of depth_max pages */
    unsigned depth_max; /* for each drive, at least 1 */
    uint64_t ns;        /* for all measurements together; a slow drive's last reads come later */
    const char *engine; /* as io_open has it */
    struct io *io;      /* NULL: opened for this; or one to measure with, of depth_max */
};

struct flight {
    unsigned depth;       /* the sum of the drives'; 0: the engine reads one at a time anyway */
    uint64_t bytes_per_s; /* the same */
    unsigned n_drives, n_measured;
    struct err unkept; /* code 0, or why an answer could not be kept */
};

/* ERR_IO: a read failed, or no engine opens. Nothing is in flight when it returns. */
int flight_find(struct flight *out, const struct flight_request *q, struct err *e);

#endif
