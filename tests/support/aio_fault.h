/* tests/support/aio_fault.h - libaio as its man pages allow it: a kernel that takes a part of a
 * submission or none, is interrupted, gives few completions or parts of reads. Link with
 * -Wl,--wrap=io_submit,--wrap=io_getevents. */
#ifndef SUPPORT_AIO_FAULT_H
#define SUPPORT_AIO_FAULT_H

enum aio_fault {
    AIO_SUBMIT = 1, /* io_submit: every other call says EAGAIN and takes nothing */
    AIO_PART = 2,   /* the same: takes one read at a time */
    AIO_WAIT = 4,   /* io_getevents: every other call says EINTR */
    AIO_FEW = 8,    /* the same: gives one completion at a time */
    AIO_SHORT = 16, /* completions with a part of their pages */
    AIO_AGAIN = 32, /* the same: EAGAIN and EINTR in turn, without bytes */
    AIO_BLIND = 64, /* io_getevents: EPERM at every call */
};

void aio_fault_set(unsigned faults);
unsigned aio_fault_count(void); /* since the last set or enter */

/* Of the calls of io_submit from now on, n from number `from` on fail with errnum and do nothing.
 * With n = 0 none does. */
void aio_fault_enter(unsigned from, unsigned n, int errnum);

/* From now on every completion says errnum and has brought no bytes; with 0 none does. */
void aio_fault_complete(int errnum);

#endif
