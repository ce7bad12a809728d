/* cli/bench/create.h - a scratch file to read from. */
#ifndef CLI_BENCH_CREATE_H
#define CLI_BENCH_CREATE_H

#include <stdint.h>

#include "base/err.h"

/* So many random bytes, on the disk when it returns. ERR_IO: also when path exists. Until then it
 * is PATH.partial (partial.h), which goes with a failure, with SIGINT (ERR_CANCELLED) and with
 * SIGTERM. */
int create_file(const char *path, uint64_t bytes, struct err *e);

#endif
