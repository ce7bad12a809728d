#include "model/image_codec.h"

#include <math.h>
#include <string.h>

/* Coefficients are 2.22 fixed point; Pillow's src/libImaging/Resample.c is what is matched here,
 * down to the order of its double-precision operations. */
enum { PRECISION = 32 - 8 - 2 };

struct axis { /* how one axis is shrunk: output i reads [first[i], first[i] + n[i]) */
    uint32_t from, to, taps;
    uint32_t *first, *n;
    int32_t *weight; /* [to][taps] */
};

static double bicubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double filter_scale(uint32_t from, uint32_t to)
{
    double scale = (double)from / to;

    return scale < 1.0 ? 1.0 : scale;
}

static uint32_t axis_taps(uint32_t from, uint32_t to)
{
    return (uint32_t)ceil(2.0 * filter_scale(from, to)) * 2 + 1;
}

static uint64_t axis_bytes(uint32_t from, uint32_t to)
{
    uint64_t taps = axis_taps(from, to);

    return align_up(to * 8 + to * taps * 4 + taps * 8, 64);
}

/* Weights of one output, normalised in doubles and rounded to fixed point. */
static void axis_output(struct axis *a, uint32_t i, double *k)
{
    double scale = (double)a->from / a->to, wide = filter_scale(a->from, a->to);
    double support = 2.0 * wide, centre = (i + 0.5) * scale, sum = 0.0, inverse = 1.0 / wide;
    int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);

    first = first < 0 ? 0 : first;
    end = end > (int)a->from ? (int)a->from : end;
    a->first[i] = (uint32_t)first;
    a->n[i] = (uint32_t)(end - first);
    for (int x = 0; x < end - first; x++) {
        k[x] = bicubic((x + first - centre + 0.5) * inverse);
        sum += k[x];
    }
    for (int x = 0; x < end - first; x++) {
        double w = (sum != 0.0 ? k[x] / sum : k[x]) * (1 << PRECISION);

        a->weight[(size_t)i * a->taps + x] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
}

static void axis_init(struct axis *a, uint32_t from, uint32_t to, uint8_t *memory)
{
    uint32_t taps = axis_taps(from, to);
    double *k = (void *)memory;

    a->from = from;
    a->to = to;
    a->taps = taps;
    a->first = (void *)(memory + (size_t)taps * 8);
    a->n = a->first + to;
    a->weight = (void *)(a->n + to);
    for (uint32_t i = 0; i < to; i++)
        axis_output(a, i, k);
}

static uint8_t clip(int32_t sum)
{
    int32_t v = sum >> PRECISION;

    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* One output row from one input row; the channels of a pixel lie together. */
static void along_row(uint8_t *out, const uint8_t *row, ptrdiff_t dx, unsigned channels,
                      const struct axis *a)
{
    for (uint32_t i = 0; i < a->to; i++, out += channels) {
        const int32_t *w = a->weight + (size_t)i * a->taps;
        const uint8_t *p = row + (ptrdiff_t)a->first[i] * dx;
        int32_t s0 = 1 << (PRECISION - 1), s1 = s0, s2 = s0, s3 = s0;

        for (uint32_t x = 0; x < a->n[i]; x++, p += dx) {
            s0 += p[0] * w[x];
            s1 += p[1] * w[x];
            s2 += p[2] * w[x];
            if (channels == 4)
                s3 += p[3] * w[x];
        }
        out[0] = clip(s0);
        out[1] = clip(s1);
        out[2] = clip(s2);
        if (channels == 4)
            out[3] = clip(s3);
    }
}

/* One output row from several rows of `bytes` values each; sums: [bytes]. */
static void across_rows(uint8_t *out, const uint8_t *rows, size_t bytes, const int32_t *w,
                        uint32_t n, int32_t *sums)
{
    for (size_t c = 0; c < bytes; c++)
        sums[c] = 1 << (PRECISION - 1);
    for (uint32_t y = 0; y < n; y++, rows += bytes)
        for (size_t c = 0; c < bytes; c++)
            sums[c] += rows[c] * w[y];
    for (size_t c = 0; c < bytes; c++)
        out[c] = clip(sums[c]);
}

static void copy(uint8_t *out, size_t out_stride, const struct image_view *from)
{
    for (uint32_t y = 0; y < from->height; y++, out += out_stride) {
        const uint8_t *p = from->at + (ptrdiff_t)y * from->dy;

        for (uint32_t x = 0; x < from->width; x++, p += from->dx)
            memcpy(out + (size_t)x * from->channels, p, from->channels);
    }
}

uint64_t image_resize_bytes(uint32_t from_w, uint32_t from_h, unsigned channels, uint32_t to_w,
                            uint32_t to_h)
{
    uint64_t row = (uint64_t)to_w * channels;

    if (from_w == to_w && from_h == to_h)
        return 0;
    return axis_bytes(from_w, to_w) + axis_bytes(from_h, to_h) + align_up(row * 4, 64) +
           row * from_h;
}

void image_resize(uint8_t *out, size_t out_stride, uint32_t to_w, uint32_t to_h,
                  const struct image_view *from, void *scratch)
{
    size_t row = (size_t)to_w * from->channels;
    uint8_t *memory = scratch, *narrow;
    struct axis x, y;
    int32_t *sums;

    if (from->width == to_w && from->height == to_h) {
        copy(out, out_stride, from);
        return;
    }
    axis_init(&x, from->width, to_w, memory);
    memory += axis_bytes(from->width, to_w);
    axis_init(&y, from->height, to_h, memory);
    memory += axis_bytes(from->height, to_h);
    sums = (void *)memory;
    narrow = memory + align_up(row * 4, 64);
    for (uint32_t i = 0; i < from->height; i++)
        along_row(narrow + i * row, from->at + (ptrdiff_t)i * from->dy, from->dx, from->channels,
                  &x);
    for (uint32_t i = 0; i < to_h; i++)
        across_rows(out + i * out_stride, narrow + y.first[i] * row, row,
                    y.weight + (size_t)i * y.taps, y.n[i], sums);
}
