/* cli/bench/store.h - a stretch of memory that the inputs of one measurement are laid out in.
 *
 * Used from the start again for the next one. The same seed gives the same contents.
 */
#ifndef CLI_BENCH_STORE_H
#define CLI_BENCH_STORE_H

#include <stddef.h>
#include <stdint.h>

struct store {
    uint8_t *base;
    size_t bytes, used;
    uint64_t seed;
};

/* Each is 64-byte aligned, with at least 64 bytes of ours behind it. The store must have room. */
void *store_zeros(struct store *s, size_t bytes);
uint8_t *store_random(struct store *s, size_t bytes);
float *store_floats(struct store *s, size_t n, float lo, float hi); /* in [lo, hi) */

/* Scales as rows have them, in f16: from 2^-10 to 2^-4. */
void fill_scales(struct store *s, uint16_t *scale, size_t n);

uint64_t random_next(uint64_t *seed); /* splitmix64 */

#endif
