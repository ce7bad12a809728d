/* model/kernels/gemv.h - what does not depend on how codes are unpacked: the formats, f32 rows. */
#ifndef MODEL_KERNELS_GEMV_H
#define MODEL_KERNELS_GEMV_H

#include <math.h>

#include "model/kernels/lanes.h"
#include "model/kernels/level.h"

enum { STEPS = FORMAT_GROUP / LANES };

INLINE size_t group_bytes(const int fmt)
{
    return fmt == FMT_Q8G ? 128 : fmt == FMT_Q4G ? 64 : 48;
}

INLINE const float *float_row(const struct tensor *w, size_t r)
{
    return (const float *)(const void *)(w->data + r * w->row_bytes);
}

static void gemv_f32(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                     const struct tensor *w, uint32_t r0, uint32_t r1)
{
    size_t stride = w->row_bytes / sizeof(float);
    uint32_t r = r0;

    for (; r + 4 <= r1; r += 4)
        for (uint32_t t = 0; t < T; t++)
            lanes_dots(y + t * y_stride + r, x + t * x_stride, float_row(w, r), stride, 4, w->cols);
    for (; r < r1; r++)
        for (uint32_t t = 0; t < T; t++)
            lanes_dots(y + t * y_stride + r, x + t * x_stride, float_row(w, r), stride, 1, w->cols);
}

INLINE void axpy_f32(float *out, const float *x, const struct tensor *w, uint32_t r0, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float *row = float_row(w, (size_t)r0 + i);

        for (uint32_t c = 0; c < w->cols; c++)
            out[c] = fmaf(x[i], row[c], out[c]);
    }
}

/* axpy_rows, from axpy_grouped(fmt, ...) of a constant format. */
#define AXPY_ROWS(axpy_grouped)                                                                    \
    static void axpy_rows(float *out, const float *x, const struct tensor *w, uint32_t r0,         \
                          uint32_t n)                                                              \
    {                                                                                              \
        if (w->fmt == FMT_Q8G)                                                                     \
            axpy_grouped(FMT_Q8G, out, x, w, r0, n);                                               \
        else if (w->fmt == FMT_Q4G)                                                                \
            axpy_grouped(FMT_Q4G, out, x, w, r0, n);                                               \
        else if (w->fmt == FMT_Q3G)                                                                \
            axpy_grouped(FMT_Q3G, out, x, w, r0, n);                                               \
        else                                                                                       \
            axpy_f32(out, x, w, r0, n);                                                            \
    }

#endif
