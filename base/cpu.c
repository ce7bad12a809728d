#include "base/cpu.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>

/* What the system saves and restores on a task switch; 0 when it does not say. */
static uint32_t enabled_state(uint32_t leaf1_ecx)
{
    uint32_t low, high;

    if (!(leaf1_ecx & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* The kernels are compiled for the x86-64-v3 and -v4 levels, which are more than AVX2 and AVX-512:
 * a bit is set only where everything of the level is there. */
unsigned cpu_detect(void)
{
    enum { XCR0_YMM = 0x6, XCR0_ZMM = 0xe6, LZCNT = 1 << 5 };
    const uint32_t v3_ecx = bit_FMA | bit_MOVBE | bit_AVX | bit_F16C | bit_POPCNT | bit_SSE4_2;
    const uint32_t v3_ebx = bit_BMI | bit_AVX2 | bit_BMI2;
    const uint32_t v4_ebx = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
    const uint32_t vbmi_ecx = bit_AVX512VBMI | bit_AVX512VNNI;
    uint32_t a, b, c1, c7, ce, d, b7, state;
    unsigned cpu = 0;

    if (!__get_cpuid(1, &a, &b, &c1, &d) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) ||
        !__get_cpuid(0x80000001, &a, &b, &ce, &d))
        return 0;
    state = enabled_state(c1);
    if ((state & XCR0_YMM) != XCR0_YMM || (c1 & v3_ecx) != v3_ecx || (b7 & v3_ebx) != v3_ebx ||
        !(ce & LZCNT))
        return 0;
    cpu |= CPU_AVX2;
    if ((state & XCR0_ZMM) != XCR0_ZMM || (b7 & v4_ebx) != v4_ebx)
        return cpu;
    cpu |= CPU_AVX512;
    if ((c7 & vbmi_ecx) == vbmi_ecx)
        cpu |= CPU_AVX512_VBMI;
    return cpu;
}
#elif defined(__aarch64__)
unsigned cpu_detect(void)
{
    return CPU_NEON; /* of every processor that runs what is compiled for aarch64 */
}
#else
unsigned cpu_detect(void)
{
    return 0;
}
#endif

int cpu_level(unsigned *out, const char *name, struct err *e)
{
    static const struct {
        const char *name;
        unsigned cpu;
    } level[] = {
        {"c", 0},
        {"avx2", CPU_AVX2},
        {"avx512", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VBMI},
        {"neon", CPU_NEON},
    };

    for (size_t i = 0; i < sizeof(level) / sizeof(level[0]); i++)
        if (strcmp(name, level[i].name) == 0) {
            *out = level[i].cpu;
            return 0;
        }
    return err_set(e, ERR_ARG, "cpu level \"%s\" is none of c, avx2, avx512, neon", name);
}
