/* tests/support/uring_fault.h - io_uring as its man pages allow it and one rarely sees it: a kernel
 * that is interrupted, has no memory for a request, gives a part, or lacks what came later. Link
 * with -Wl,--wrap= for each function below. */
#ifndef SUPPORT_URING_FAULT_H
#define SUPPORT_URING_FAULT_H

enum uring_fault {
    URING_SUBMIT = 1,   /* io_uring_submit: every other call says EAGAIN and takes nothing */
    URING_WAIT = 2,     /* io_uring_submit_and_wait: every other call says EINTR */
    URING_SHORT = 4,    /* io_uring_peek_batch_cqe: completions with a part of their pages */
    URING_AGAIN = 8,    /* the same: EAGAIN, EINTR, ECANCELED in turn, without bytes */
    URING_FILES = 16,   /* io_uring_register_files refuses */
    URING_BUFFERS = 32, /* io_uring_register_buffers refuses */
    URING_UPDATE = 64,  /* io_uring_register_buffers_update_tag refuses */
};

void uring_fault_set(unsigned faults);
unsigned uring_fault_count(void); /* since the last set */

/* A kernel that is not entered: of the calls of io_uring_submit and io_uring_submit_and_wait from
 * now on, n from number `from` on fail with errnum and do nothing. With n = 0 none does. */
void uring_fault_enter(unsigned from, unsigned n, int errnum);

/* From now on every completion says errnum and has brought no bytes; with 0 none does. */
void uring_fault_complete(int errnum);

#endif
