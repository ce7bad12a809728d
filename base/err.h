/* base/err.h - errors: a code for the program, a sentence for the person.
 *
 * A function that can fail returns 0 or a negative code and takes `struct err *` last, never
 * NULL. Failing is one statement: `return err_set(e, ERR_FORMAT, "bank %u: ...", n);`. The text
 * names the object and the two values that disagree. Callers add context on the way up with
 * err_wrap. Nothing here allocates.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

enum {
    ERR_ARG = -1,         /* the caller asked for something impossible */
    ERR_IO = -2,          /* the system refused or a read failed */
    ERR_FORMAT = -3,      /* malformed or inconsistent file */
    ERR_CORRUPT = -4,     /* a check failed: the bytes are not what was written */
    ERR_LIMIT = -5,       /* well formed, beyond a bound of ours */
    ERR_UNSUPPORTED = -6, /* well formed, not implemented */
    ERR_NOMEM = -7,
    ERR_BUDGET = -8, /* does not fit into the memory budget */
    ERR_BUSY = -9,   /* somebody else holds it */
    ERR_CANCELLED = -10,
};

struct err {
    int code; /* one of the above; 0 before anything failed */
    char text[480];
};

/* Set code and text; returns code. Text that does not fit is cut. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set with ERR_IO (ERR_NOMEM for ENOMEM), ": " and the system's words for errnum added. */
int err_sys(struct err *e, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same for an openat() that failed: a link whose target is missing is called one. */
int err_open(struct err *e, int errnum, int dirfd, const char *name);

/* No entry of that name. A link to nothing is one: what it stood for is missing, not absent. */
bool no_such_entry(int dirfd, const char *name);

/* Put "context: " in front of the text that is there; returns e->code. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "io", "format", ... for a code; never NULL. */
const char *err_name(int code);

#endif
