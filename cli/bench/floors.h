/* cli/bench/floors.h - how fast this machine moves what a token needs: memory with all threads, and
 * the drive that the experts lie on. */
#ifndef CLI_BENCH_FLOORS_H
#define CLI_BENCH_FLOORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct floors;

/* threads: that read memory. engine (NULL: the best) and depth: as the model's, when it reads.
 * quick: less is read, and the figures mean nothing. */
int floors_open(struct floors **out, const char *model, unsigned threads, unsigned depth,
                const char *engine, bool quick, struct err *e);
void floors_close(struct floors *f); /* NULL-safe */

/* Of the trunk, what one token reads: everything but the embedding's other rows. */
double floors_trunk_bytes(const struct floors *f);

/* Bytes a second, each of them read once. */
int floors_ram(const struct floors *f, double *bytes_s, struct err *e);
/* Records of the first bank, or of its first part if it is spread over drives. NaN: a model without
 * experts. from_device: the share of the bytes that came from a device. */
int floors_drive(struct floors *f, unsigned round, double *bytes_s, double *from_device,
                 struct err *e);

#endif
