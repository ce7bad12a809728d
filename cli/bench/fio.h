/* cli/bench/fio.h - the same reads by fio, if it is installed: what other people's program reaches.
 */
#ifndef CLI_BENCH_FIO_H
#define CLI_BENCH_FIO_H

#include <stdbool.h>

#include "cli/bench/reader.h"

/* Whether a program called fio can be run; version ("fio-3.33") may be NULL. */
bool fio_version(char *version, unsigned version_bytes);

struct fio_way {
    bool registered; /* fixed buffers and files */
    bool huge;       /* its buffers on huge pages, where glibc can be told to ask for them */
};

/* Random direct reads with io_uring, no record twice. The digest is not known. cpu_s: fio's
 * own, of the job. ERR_IO: fio failed, in its own words; ERR_FORMAT: it said something else. */
int fio_run(const char *file, const struct read_work *w, struct fio_way way,
            struct read_result *out, double *cpu_s, struct err *e);

#endif
