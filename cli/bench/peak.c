/* One source per width, in GNU vector types. Twelve sums cover two units of four to five cycles. */
#include "cli/bench/peak.h"

#include <string.h>

#include "base/cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#define TARGET_AVX2   __attribute__((target("avx2,fma")))
#define TARGET_AVX512 __attribute__((target("avx512f")))
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#define FMA_PLAIN(x, y, z) vfmaq_f32(z, x, y)
#else
#define FMA_PLAIN(x, y, z) ((x) * (y) + (z)) /* two instructions: no fma is in the base set */
#endif

enum { SUMS = 12, LOADS = 8 };

/* target: of the function; name: ends it; width: bytes of a vector; FMA: of three vectors. */
#define PEAK(target, name, width, FMA)                                                             \
    typedef uint64_t words_##name __attribute__((vector_size(width), may_alias));                  \
    typedef float floats_##name __attribute__((vector_size(width)));                               \
    target static uint64_t sum_##name(const uint8_t *p, size_t bytes)                              \
    {                                                                                              \
        words_##name acc[LOADS] = {{0}};                                                           \
        uint64_t total = 0;                                                                        \
                                                                                                   \
        for (size_t at = 0; at + LOADS * (width) <= bytes; at += LOADS * (width))                  \
            _Pragma("GCC unroll 8") for (unsigned i = 0; i < LOADS; i++) acc[i] +=                 \
                *(const words_##name *)(const void *)(p + at + i * (width));                       \
        for (unsigned i = 0; i < LOADS; i++)                                                       \
            for (unsigned l = 0; l < (width) / 8; l++)                                             \
                total += acc[i][l];                                                                \
        return total;                                                                              \
    }                                                                                              \
    target static float fmas_##name(size_t n)                                                      \
    {                                                                                              \
        floats_##name acc[SUMS], a, b;                                                             \
        float total = 0;                                                                           \
                                                                                                   \
        memset(acc, 0, sizeof(acc));                                                               \
        for (unsigned l = 0; l < (width) / 4; l++) {                                               \
            a[l] = 0.999f;                                                                         \
            b[l] = 0.001f;                                                                         \
        }                                                                                          \
        __asm__ volatile("" : "+m"(a), "+m"(b)); /* not known to the compiler */                   \
        for (size_t i = 0; i < n; i++)                                                             \
            _Pragma("GCC unroll 12") for (unsigned s = 0; s < SUMS; s++) acc[s] =                  \
                FMA(acc[s], a, b);                                                                 \
        for (unsigned s = 0; s < SUMS; s++)                                                        \
            for (unsigned l = 0; l < (width) / 4; l++)                                             \
                total += acc[s][l];                                                                \
        return total;                                                                              \
    }

PEAK(, plain, 16, FMA_PLAIN)
#ifdef __x86_64__
PEAK(TARGET_AVX2, avx2, 32, _mm256_fmadd_ps)
PEAK(TARGET_AVX512, avx512, 64, _mm512_fmadd_ps)
#endif

struct peak peak_of(unsigned cpu)
{
#ifdef __x86_64__
    if (cpu & CPU_AVX2 && cpu & CPU_AVX512)
        return (struct peak){sum_avx512, fmas_avx512, SUMS * 16, "avx512"};
    if (cpu & CPU_AVX2)
        return (struct peak){sum_avx2, fmas_avx2, SUMS * 8, "avx2"};
#endif
    (void)cpu;
    return (struct peak){sum_plain, fmas_plain, SUMS * 4, "plain"};
}
