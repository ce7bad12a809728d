/* cli/bench/partial.h - a file that has its name only once it is whole.
 *
 * Until then it is NAME.partial, which is new, too: of two programs that make one file at once one
 * makes it, and neither takes anything away from anybody. Only SIGKILL leaves it behind.
 */
#ifndef CLI_BENCH_PARTIAL_H
#define CLI_BENCH_PARTIAL_H

#include <limits.h>

#include "base/err.h"

struct partial {
    const char *path; /* the name it is to have; borrowed */
    char name[PATH_MAX];
    int fd; /* to write to */
};

/* ERR_IO: also when something has one of the names. */
int partial_open(struct partial *p, const char *path, struct err *e);

/* It is whole, and on the disk when this returns. ERR_IO, and it is gone: also when something has
 * got the name meanwhile. */
int partial_publish(struct partial *p, struct err *e);

void partial_drop(struct partial *p);

#endif
