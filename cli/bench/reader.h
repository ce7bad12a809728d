/* cli/bench/reader.h - random reads of whole records through an engine, and what they cost. */
#ifndef CLI_BENCH_READER_H
#define CLI_BENCH_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/file.h"
#include "storage/io.h"

enum { READS_MAX = 1 << 20 };

/* The same seed reads the same records in the same order: all over the file, none twice before all
 * were read, so that no page cache has a reason to help. */
struct read_work {
    uint32_t record_bytes;
    unsigned depth, n_reads;
    uint64_t n_records; /* in the file */
    uint64_t seed;
};

struct read_result {
    double seconds;
    double p50_ms, p95_ms, p99_ms,
        max_ms; /* from handing a read to the engine until it is reaped */
    double bytes;
    uint64_t digest; /* of parts of every record, whatever the order they came in */
};

/* What was used so far: what reading costs is a difference of two. */
struct usage {
    double cpu_s;       /* of this process, threads that the kernel works for it with included */
    double machine_s;   /* of everything on this machine, interrupts included; a tick is 10 ms */
    double from_device; /* bytes that this process had read; NaN if nobody knows */
};
struct usage usage_now(void);

/* arena: depth records. latency: n_reads doubles of scratch. ERR_IO: a read failed. ERR_CANCELLED:
 * an interrupt. */
int reader_run(struct io *io, const struct read_work *w, uint8_t *arena, double *latency,
               struct read_result *out, struct err *e);

/* p50, p95, p99 and max of n > 0 seconds, in ms; sorts them. */
void reader_percentiles(double *seconds, unsigned n, struct read_result *out);

/* --engines: names separated by commas, NULL for all. ERR_ARG: one that this build does not have.
 */
int reader_engines_check(const char *list, struct err *e);

/* Memory to read into: on huge pages as far as the system gives them, or kept to small ones, every
 * page touched. ERR_NOMEM. */
int arena_open(uint8_t **out, size_t bytes, bool huge, struct err *e);
void arena_close(uint8_t *arena, size_t bytes);

/* Share of it that lies on huge pages now; NaN if the system does not say. */
double arena_huge_share(const uint8_t *arena, size_t bytes);

/* Sectors that the file's device has read so far, in bytes; NaN if there is no one device. */
double device_bytes_read(int fd);

#endif
