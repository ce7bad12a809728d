/* model/kernels/kernels.h - the arithmetic: pure functions without allocation, threads, globals
 * or failure.
 *
 * The C version of a numeric profile defines its bits (docs/ARITHMETIC.md: orders, lanes,
 * rounding); every variant matches them, whatever the number of rows in a call. The table is a
 * member of the model, so that a test can hold two side by side. All row ranges are half-open and
 * may be given to different threads; nothing outside them is written. Vectors of cols floats must
 * be readable up to the next multiple of 128 columns, and those padding columns must be +0, where
 * a function says "padded".
 */
#ifndef MODEL_KERNELS_H
#define MODEL_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/tensor.h"

enum profile { PROFILE_F32, PROFILE_DIRECT, PROFILE_I16, PROFILE_I8, PROFILES };

struct rvq_shape {
    uint32_t rows, cols;      /* cols is a multiple of 8; positions = cols / 8 */
    uint32_t stages, entries; /* 1...8, 1...256 */
    uint32_t cell_bytes; /* index bytes per (row, position): stages, or 3 for four 6-bit ones */
};

/* Bytes rvq_prepare fills, for the plan; a multiple of 64. */
typedef size_t rvq_prepared_bytes_fn(const struct rvq_shape *shape);

/* What depends on x alone, positions [p0, p1); shared by every matrix with this codebook. p0 and
 * p1 are multiples of 32 or the end: a block of 32 positions has one scale. x: [cols]; codebook:
 * [stages][entries][8] f32, which must outlive `prepared` (the direct profile points into it).
 * prepared: 64-byte aligned. Uses up to 330 KiB of stack. */
typedef void rvq_prepare_fn(void *prepared, const float *x, const float *codebook,
                            const struct rvq_shape *shape, uint32_t p0, uint32_t p1);

/* y[r] = scale[r] * sum over p, s of dot(x[8p ... 8p+7], codebook[s][index(r, p, s)]), r in
 * [r0, r1), r0 a multiple of 64. index: [row block of 64][position][row in block][cell_bytes],
 * of the whole matrix, every index below entries; scale: f16. */
typedef void rvq_rows_fn(float *y, const void *prepared, const uint8_t *index,
                         const uint16_t *scale, const struct rvq_shape *shape, uint32_t r0,
                         uint32_t r1);

/* y[t][r] = W[r] . x[t] for T vectors, r in [r0, r1); each y as if it were alone. y: [T] rows of
 * y_stride floats; x: [T] rows of x_stride floats, padded. Any tensor format. */
typedef void gemv_rows_fn(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t T,
                          const struct tensor *w, uint32_t r0, uint32_t r1);

/* out[c] <- fma(x[i] * scale, q[r0 + i][c], out[c]) over rows r0 + i, i ascending in [0, n): the
 * transposed product of a run of rows. out: [cols], not cleared here. */
typedef void axpy_rows_fn(float *out, const float *x, const struct tensor *w, uint32_t r0,
                          uint32_t n);

/* T tokens of one session through the gated delta rule, in order, heads [h0, h1).
 *   S  <- diag(d) S               forget, per key channel
 *   u   = beta (v - k'S)          correct what S would have answered for k
 *   S  <- S + k u'
 *   o   = q'S
 * q, k, d: [T][H][K]; d in (0, 1] is the decay, q carries the 1/sqrt(K). v, o: [T][H][V]. beta:
 * [T][H]. from, to: [H][K][V], the state before and after; may be the same. Source: Kimi Linear,
 * arXiv:2510.26692. */
struct delta_shape {
    uint32_t heads, key, value; /* H, K, V */
};
typedef void delta_heads_fn(float *o, float *to, const float *from, const float *q, const float *k,
                            const float *v, const float *d, const float *beta, uint32_t T,
                            const struct delta_shape *shape, uint32_t h0, uint32_t h1);

/* Queries against cached keys, in fixed blocks of 256 positions, merged in order. Query (t, h) of T
 * consecutive positions and `heads` heads sees positions [0, n_keys + t), n_keys >= 1; each result
 * is as if it were alone.
 *   s_j = dot(q, key_j) * scale;  out = sum_j softmax_j(s) value_j
 * q: [T][heads] rows of q_stride floats, width of them, padded to a multiple of 16 with +0; key_j =
 * keys + j * key_stride, readable and +0 up to the same multiple; value_j = its first value_width
 * floats. out: [T][heads] rows of out_stride floats. scratch: attend_scratch_floats, 64-byte
 * aligned. */
struct attend_shape {
    uint32_t heads, width, value_width;
    size_t q_stride, key_stride, out_stride;
    float scale;
};
typedef void attend_fn(float *out, const float *q, const float *keys, uint32_t n_keys, uint32_t T,
                       const struct attend_shape *shape, float *scratch);
enum { ATTEND_QUERIES = 4 }; /* that a variant may take at once */
static inline size_t attend_scratch_floats(uint32_t value_width, uint32_t queries)
{
    size_t padded = ((size_t)value_width + 15) / 16 * 16;

    return ATTEND_QUERIES * (256 + padded) + 2 * (((size_t)queries + 15) / 16 * 16);
}

/* Encoding. A codebook to find entries in: entry [n][8], n in 1...256; bias[e] = -0.5 * square,
 * square = ((c_0 c_0 + c_1 c_1) + c_2 c_2) + ... of entry e. */
struct assign_book {
    const float *entry, *bias;
    uint32_t n;
};

/* The nearest entries of n vectors x [n][8]: the s_e of an entry is acc = bias[e]; acc <- fma(x_d,
 * c_d, acc), d = 0...7, and |x - c|^2 = |x|^2 - 2 s_e. found = 0; for e = 1, 2 ... if s_e >
 * s_found, found = e: the lowest among equals. index[i] = found, best[i] = s_found. */
typedef void assign_nearest_fn(uint8_t *index, float *best, const float *x, uint32_t n,
                               const struct assign_book *b);

/* Residual stages b[0], b[1] ... of vectors x = w / a, w [n][8]: index[s * stride + i] = the
 * nearest entry c of stage s, which is then taken off: x_d <- x_d - c_d. */
typedef void assign_stages_fn(uint8_t *index, size_t stride, const float *w, float a, uint32_t n,
                              const struct assign_book *b, uint32_t stages);

/* distance[i] = |x_i - centre|^2 where that is below distance[i]; the square: acc <- fma(off, off,
 * acc), off = x_d - centre_d, d = 0...7. Returns the sum of all distance[i], in lanes i mod 16. */
typedef float assign_closer_fn(float *distance, const float *x, const float *centre, uint32_t n);

struct kernels {
    const char *name; /* the best level that filled a slot: "c", "avx2", "avx512", "neon" */
    enum profile profile;
    rvq_prepared_bytes_fn *rvq_prepared_bytes;
    rvq_prepare_fn *rvq_prepare;
    rvq_rows_fn *rvq_rows;
    gemv_rows_fn *gemv;
    axpy_rows_fn *axpy_rows;
    delta_heads_fn *delta_heads;
    attend_fn *attend;
    assign_nearest_fn *assign_nearest;
    assign_stages_fn *assign_stages;
    assign_closer_fn *assign_closer;

    float (*dot)(const float *a, const float *b, uint32_t n); /* no padding needed */
    float (*largest)(const float *x, uint32_t n); /* magnitude; NaN if there is one; 0 of none */
    /* y[i] = (x[i] * r) * w[i], r = 1 / sqrt(dot(x, x) / n + eps); y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    /* x[i] = x[i] * (r * c), r = 1 / sqrt(dot(x, x) + eps). */
    void (*l2norm)(float *x, uint32_t n, float eps, float c);
    /* y[i] = (g * sigmoid(g)) * u. y may be g or u. */
    void (*silu_mul)(float *y, const float *g, const float *u, uint32_t n);
    /* y[i] = ((beta * tanh(g / beta)) * sigmoid(g)) * (lambda * tanh(u / lambda)); lambda 0: u. */
    void (*situ_mul)(float *y, const float *g, const float *u, uint32_t n, float beta,
                     float lambda);
    /* y[i] = (0.5 x)(1 + tanh(0.7978846 (x fma(0.044715 x, x, 1)))). y may be x. */
    void (*gelu_tanh)(float *y, const float *x, uint32_t n);
    void (*sigmoid)(float *y, const float *x, uint32_t n);        /* y may be x */
    void (*sigmoid_mul)(float *y, const float *gate, uint32_t n); /* y[i] *= sigmoid(gate[i]) */
    /* Depthwise causal convolution, then SiLU, of one token; window: [taps - 1][n], the previous
     * pre-activation projections, oldest first; x: [n] the newest; w: [n][taps], the last tap
     * meets the newest. out may be neither. */
    void (*conv_silu)(float *out, const float *window, const float *x, const float *w, uint32_t n,
                      uint32_t taps);
    /* d[i] = exp(-(ea * softplus(z[i]))), or with lower_bound < 0 exp(lower_bound *
     * sigmoid(ea * z[i])); z[i] = x[i] + bias[i]. ea = exp(A_log) of the head. */
    void (*decay)(float *d, const float *x, const float *bias, float ea, float lower_bound,
                  uint32_t n);
    void (*axpy)(float *y, float a, const float *x, uint32_t n);  /* y[i] = fma(a, x[i], y[i]) */
    void (*add)(float *y, const float *x, uint32_t n);            /* y[i] = y[i] + x[i] */
    void (*scale)(float *y, float a, const float *x, uint32_t n); /* y[i] = a * x[i]; may alias */
};

/* Fill the table for these cpu bits (base/cpu.h); cpu = 0 gives the C reference. */
void kernels_init(struct kernels *k, unsigned cpu, enum profile profile);

/* The profile for those who ask for none: i16 where bytes are looked up 64 at a time, else f32. */
enum profile profile_default(unsigned cpu);

/* "f32", "direct", "i16", "i8"; NULL beyond. */
const char *profile_name(enum profile p);

#endif
