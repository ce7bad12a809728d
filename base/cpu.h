/* base/cpu.h - what this processor can do, as bits, and a mask to turn them off. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include "base/err.h"

enum {
    CPU_AVX2 = 1,        /* AVX2 and FMA, enabled by the system */
    CPU_AVX512 = 2,      /* F, BW, DQ, VL */
    CPU_AVX512_VBMI = 4, /* and VBMI, VNNI */
    CPU_NEON = 8,
};

unsigned cpu_detect(void);

/* Bits of the levels up to `name` ("c", "avx2", "avx512", "neon"), for tests. ERR_ARG. */
int cpu_level(unsigned *out, const char *name, struct err *e);

#endif
