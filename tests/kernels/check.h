/* tests/kernels/check.h - every level of this machine against the C reference, bit for bit.
 *
 * Inputs come from one seed, printed at the start and taken back with --seed N. `waste-bench
 * kernels` times the same functions.
 */
#ifndef TESTS_KERNELS_CHECK_H
#define TESTS_KERNELS_CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "model/kernels/kernels.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum fill {
    FILL_PLAIN,     /* (-1, 1), full mantissas */
    FILL_WILD,      /* exponents from subnormal to 2^40, zeros of both signs */
    FILL_NONFINITE, /* plain, with one NaN, +inf or -inf */
    FILLS,
};

int check_run(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t n);

/* The i-th level, 0 being "c"; false beyond the last one this machine has. */
bool check_level(unsigned i, enum profile profile, struct kernels *k);

uint32_t check_random(void);
void check_fill(float *x, size_t n, enum fill kind);

/* Zeroed and 64-byte aligned, exactly as long as asked, so that ASan sees what lies behind. All of
 * them are freed by check_free. */
void *check_new(size_t bytes);
void check_free(void);

/* n floats between two margins that nobody may write; all bytes start as 0xa5. */
float *check_guarded(size_t n);

/* Equal bits, any NaN equalling any other; with the margins of two check_guarded. */
void check_same(const float *got, const float *want, size_t n, const char *level);
void check_same_guarded(const float *got, const float *want, size_t n, const char *level);

/* A tensor of random codes; scale bits in [lo, hi]. Code kinds: random, all lowest, all highest. */
enum codes { CODES_RANDOM, CODES_LOWEST, CODES_HIGHEST, CODES };
struct tensor check_tensor(int fmt, uint32_t rows, uint32_t cols, enum codes codes,
                           uint16_t scale_lo, uint16_t scale_hi);
void check_set_code(const struct tensor *w, uint32_t r, uint32_t c, int q);
int check_code(const struct tensor *w, uint32_t r, uint32_t c);

/* Additions in the order of the contract, spelled out once more. */
float check_fold(const float *lane, unsigned n);

#endif
