#include "model/kernels/kernels.h"

#include "base/cpu.h"
#include "model/kernels/rvq.h"

#define FILL(k, level)                                                                             \
    do {                                                                                           \
        (k)->name = #level;                                                                        \
        vec_fill_##level(k);                                                                       \
        gemv_fill_##level(k);                                                                      \
        rvq_fill_##level(k);                                                                       \
        delta_fill_##level(k);                                                                     \
        attend_fill_##level(k);                                                                    \
        assign_fill_##level(k);                                                                    \
    } while (0)

#ifdef __x86_64__
/* The levels of rvq_c.c differ in vector width alone; what looks up in vectors replaces them. */
static void rvq_by_hand(struct kernels *k, unsigned cpu)
{
    if (cpu & CPU_AVX2) {
        rvq_by_hand_avx2(k);
        rvq_by_hand_avx2_float(k);
    }
    if (cpu & CPU_AVX2 && cpu & CPU_AVX512)
        rvq_by_hand_avx512_float(k);
    if (cpu & CPU_AVX2 && cpu & CPU_AVX512 && cpu & CPU_AVX512_VBMI) {
        rvq_by_hand_avx512(k);
        rvq_by_hand_vbmi(k);
        rvq_by_hand_vbmi_float(k);
    }
}
#elif defined(__aarch64__)
/* Every aarch64 has NEON, so that the C files are vector code already; these replace the rest. */
static void by_hand_neon(struct kernels *k)
{
    k->name = "neon";
    gemv_fill_neon(k);
    rvq_fill_neon(k);
    attend_fill_neon(k);
}
#endif

void kernels_init(struct kernels *k, unsigned cpu, enum profile profile)
{
    *k = (struct kernels){.profile = profile};
    FILL(k, c);
#ifdef __x86_64__
    if (cpu & CPU_AVX2)
        FILL(k, avx2);
    if (cpu & CPU_AVX2 && cpu & CPU_AVX512)
        FILL(k, avx512);
    rvq_by_hand(k, cpu);
#elif defined(__aarch64__)
    if (cpu & CPU_NEON)
        by_hand_neon(k);
#else
    (void)cpu;
#endif
}

enum profile profile_default(unsigned cpu)
{
    return cpu & CPU_AVX512 && cpu & CPU_AVX512_VBMI ? PROFILE_I16 : PROFILE_F32;
}

const char *profile_name(enum profile p)
{
    static const char *const name[PROFILES] = {"f32", "direct", "i16", "i8"};

    return (unsigned)p < PROFILES ? name[p] : NULL;
}
