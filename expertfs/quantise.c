#include "expertfs/quantise.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "expertfs/format.h"

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);

    return n >= t && strcmp(name + n - t, tail) == 0;
}

int trunk_fmt_policy(const char *name, const uint32_t *dim, unsigned rank, unsigned bits)
{
    uint64_t elements = 1;

    for (unsigned i = 0; i < rank; i++)
        elements *= dim[i];
    if (rank == 1 || elements < 65536)
        return FMT_F32;
    if (ends_with(name, "_conv1d.weight") || ends_with(name, "A_log") || ends_with(name, "dt_bias"))
        return FMT_F32; /* a reader insists, whatever their size */
    if (ends_with(name, "embed_tokens.weight") || ends_with(name, "lm_head.weight"))
        return FMT_Q8G;
    return bits == 8 ? FMT_Q8G : bits == 3 ? FMT_Q3G : FMT_Q4G;
}

uint64_t trunk_row_bytes(int fmt, uint32_t cols, uint32_t *groups)
{
    uint64_t n = ((uint64_t)cols + FORMAT_GROUP - 1) / FORMAT_GROUP;

    *groups = fmt == FMT_F32 ? 0 : (uint32_t)n;
    switch (fmt) {
    case FMT_F32:
        return 4 * (uint64_t)cols;
    case FMT_Q8G:
        return n * FORMAT_GROUP;
    case FMT_Q4G:
        return n * FORMAT_GROUP / 2;
    }
    assert(fmt == FMT_Q3G);
    return n * FORMAT_GROUP * 3 / 8 + 1; /* a guard byte: two bytes may be read at every column */
}

/* amax -> scale -> round; the division is by the scale before it is rounded to f16. */
static int quantise_group(int8_t *q, uint16_t *scale, float most, float lo, float hi,
                          const float *x, uint32_t n, struct err *e)
{
    float amax = 0, s;

    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);

        if (!isfinite(a))
            return err_set(e, ERR_CORRUPT, "a value is not finite");
        amax = a > amax ? a : amax;
    }
    s = (amax > 1e-8f ? amax : 1e-8f) / most;
    *scale = f32_to_half(s);
    if (!half_finite(*scale))
        return err_set(e, ERR_CORRUPT, "a value of %g has no f16 scale, which ends at %g",
                       (double)amax, 65504.0 * (double)most);
    for (uint32_t i = 0; i < n; i++) {
        float v = rintf(x[i] / s);

        q[i] = (int8_t)(v < lo ? lo : v > hi ? hi : v);
    }
    memset(q + n, 0, FORMAT_GROUP - n);
    return 0;
}

int quantise_row(uint8_t *codes, uint16_t *scale, int fmt, const float *x, uint32_t cols,
                 struct err *e)
{
    int8_t q[FORMAT_GROUP];
    uint32_t groups;
    uint64_t bytes = trunk_row_bytes(fmt, cols, &groups);

    assert(fmt == FMT_Q8G || fmt == FMT_Q4G || fmt == FMT_Q3G);
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t left = cols - g * FORMAT_GROUP;
        uint32_t n = left < FORMAT_GROUP ? left : FORMAT_GROUP;
        float most = fmt == FMT_Q8G ? 127 : fmt == FMT_Q4G ? 7 : 3;
        float lo = fmt == FMT_Q8G ? -127 : fmt == FMT_Q4G ? -8 : -4;

        if (quantise_group(q, &scale[g], most, lo, most, x + g * FORMAT_GROUP, n, e))
            return err_wrap(e, "group %u", g);
        if (fmt == FMT_Q8G) {
            memcpy(codes + g * FORMAT_GROUP, q, FORMAT_GROUP);
        } else if (fmt == FMT_Q4G) {
            uint8_t *c = codes + g * (FORMAT_GROUP / 2);

            for (unsigned i = 0; i < FORMAT_GROUP / 2; i++)
                c[i] = (uint8_t)((q[2 * i] + 8) | (q[2 * i + 1] + 8) << 4);
        } else {
            uint8_t *c = codes + g * (FORMAT_GROUP * 3 / 8);

            for (unsigned i = 0; i < FORMAT_GROUP / 8; i++, c += 3) { /* 8 columns in 3 bytes */
                uint32_t v = 0;

                for (unsigned j = 0; j < 8; j++)
                    v |= (uint32_t)(q[8 * i + j] + 4) << 3 * j;
                c[0] = (uint8_t)v;
                c[1] = (uint8_t)(v >> 8);
                c[2] = (uint8_t)(v >> 16);
            }
        }
    }
    if (fmt == FMT_Q3G)
        codes[bytes - 1] = 0;
    return 0;
}
