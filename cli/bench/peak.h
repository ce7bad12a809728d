/* cli/bench/peak.h - the two roofs of arithmetic on one core: how fast memory can be read and how
 * many multiply-adds there are, with the widest instructions that this machine has. */
#ifndef CLI_BENCH_PEAK_H
#define CLI_BENCH_PEAK_H

#include <stddef.h>
#include <stdint.h>

struct peak {
    /* A plain streaming sum; bytes is a multiple of 512, p 64-byte aligned. */
    uint64_t (*sum)(const uint8_t *p, size_t bytes);
    /* n times PEAK_FMAS f32 multiply-adds out of registers. */
    float (*fmas)(size_t n);
    unsigned fmas_per_call; /* multiply-adds per n */
    const char *name;
};

struct peak peak_of(unsigned cpu); /* bits of base/cpu.h */

#endif
