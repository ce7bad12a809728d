/* cli/estimate.h - tokens per second to expect from sizes and rates: floors, not promises.
 *
 * disk floor = misses * record / drive; RAM floor = (trunk + experts of a token) / memory. A token
 * takes at least the longer of the two, if reading and computing overlap completely.
 */
#ifndef CLI_ESTIMATE_H
#define CLI_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct estimate {
    double hit_rate; /* 0...1 */
    double disk_seconds, ram_seconds;
    double tokens_per_second;
};

/* The published hit rates of Kimi-Linear and K3 (lookahead on), by pool size in working sets (what
 * one token touches); 1 once everything fits. */
double estimate_hit_rate(uint64_t pool_bytes, uint64_t working_set_bytes, uint64_t expert_bytes);

struct estimate estimate_decode(uint64_t pool_bytes, uint64_t working_set_bytes,
                                uint64_t expert_bytes, uint64_t trunk_bytes, double drive_rate,
                                double ram_rate);

/* All measurements end early at an interrupt: ERR_CANCELLED. */

/* Bytes per second of this machine's memory: a sum over a large buffer on all cores, 0.3 s. */
int measure_ram(double *rate, struct err *e);

/* Multiply-adds per second of the vision tower's products (8 bits, 1024 columns, f32) on so many
 * threads (0: as a model would choose), 0.3 s. ERR_NOMEM. */
int measure_tower(double *rate, unsigned threads, struct err *e);

/* Bytes per second of random reads of record_bytes in a directory, for half a second; writes and
 * removes a file of 256 MiB. ERR_IO. */
int measure_dir(double *rate, const char *dir, uint32_t record_bytes, struct err *e);

/* Bytes per second of random expert records of the container in `dir`, as decoding reads them,
 * for about a second. *direct: every bank past the page cache; otherwise it is not the disk. */
int measure_drive(double *rate, bool *direct, const char *dir, bool want_direct, struct err *e);

#endif
