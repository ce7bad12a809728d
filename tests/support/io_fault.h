/* tests/support/io_fault.h - a fault between an engine and whoever uses it: the n-th read fails, or
 * gives half of its bytes. Borrows the engine; use `io` in its place. */
#ifndef SUPPORT_IO_FAULT_H
#define SUPPORT_IO_FAULT_H

#include <stdbool.h>

#include "storage/io.h"

enum io_fault_kind {
    IO_FAULT_ERROR, /* no bytes, `status` */
    IO_FAULT_SHORT, /* the first half, then what was there before; -ENODATA, as engines say it */
    IO_FAULT_FLIP,  /* all bytes and no error, but one bit in the middle is wrong */
};

struct io_fault {
    struct io io; /* first */
    struct io *inner;
    unsigned fail_nth; /* the n-th read submitted since init; 0 = none */
    bool again;        /* every later read of those bytes, too */
    enum io_fault_kind kind;
    int status;        /* of IO_FAULT_ERROR; -EIO at first */
    unsigned n_reads;  /* submitted since init */
    unsigned n_faults; /* put in so far */
    struct io_read *victim;
    struct extent bad; /* what `again` is about; zeroed: nothing yet */
};

void io_fault_init(struct io_fault *f, struct io *inner);

#endif
