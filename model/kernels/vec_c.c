/* Vectors: dot, norms, gates, decay, convolution. */
#include <math.h>
#include <string.h>

#include "model/kernels/lanes.h"
#include "model/kernels/level.h"
#include "model/kernels/poly.h"

enum { RUN = 32 };

/* y[i] = value for i in [0, n). Whole runs go through a local array, so that y may be one of the
 * vectors in `value` and the compiler needs no proof that it is not. */
#define MAP(y, n, i, value)                                                                        \
    do {                                                                                           \
        uint32_t start_ = 0;                                                                       \
                                                                                                   \
        for (; start_ + RUN <= (n); start_ += RUN) {                                               \
            float run_[RUN];                                                                       \
                                                                                                   \
            for (uint32_t i = start_; i < start_ + RUN; i++)                                       \
                run_[i - start_] = (value);                                                        \
            memcpy((y) + start_, run_, sizeof(run_));                                              \
        }                                                                                          \
        for (uint32_t i = start_; i < (n); i++)                                                    \
            (y)[i] = (value);                                                                      \
    } while (0)

static float dot(const float *a, const float *b, uint32_t n)
{
    float y;

    lanes_dots(&y, a, b, 0, 1, n);
    return y;
}

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    float r = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);

    MAP(y, n, i, (x[i] * r) * w[i]);
}

static void l2norm(float *x, uint32_t n, float eps, float c)
{
    float r = 1.0f / sqrtf(dot(x, x, n) + eps);
    float rc = r * c;

    MAP(x, n, i, x[i] * rc);
}

static void silu_mul(float *y, const float *g, const float *u, uint32_t n)
{
    MAP(y, n, i, (g[i] * poly_sigmoid(g[i])) * u[i]);
}

static void situ_mul(float *y, const float *g, const float *u, uint32_t n, float beta, float lambda)
{
    if (lambda == 0.0f) {
        MAP(y, n, i, ((beta * poly_tanh(g[i] / beta)) * poly_sigmoid(g[i])) * u[i]);
    } else {
        MAP(y, n, i,
            ((beta * poly_tanh(g[i] / beta)) * poly_sigmoid(g[i])) *
                (lambda * poly_tanh(u[i] / lambda)));
    }
}

static void gelu_tanh(float *y, const float *x, uint32_t n)
{
    MAP(y, n, i,
        (0.5f * x[i]) *
            (1.0f + poly_tanh(0.7978846f * (x[i] * fmaf(0.044715f * x[i], x[i], 1.0f)))));
}

static void sigmoid(float *y, const float *x, uint32_t n)
{
    MAP(y, n, i, poly_sigmoid(x[i]));
}

static void sigmoid_mul(float *y, const float *gate, uint32_t n)
{
    MAP(y, n, i, y[i] * poly_sigmoid(gate[i]));
}

/* Channels [c, c + m), m and perhaps taps constants. */
INLINE void conv(float *out, const float *window, const float *x, const float *w, uint32_t n,
                 uint32_t c, const uint32_t m, const uint32_t taps)
{
    float acc[RUN] = {0};

    for (uint32_t i = 0; i < taps; i++) {
        const float *z = i + 1 < taps ? window + (size_t)i * n + c : x + c;

        for (uint32_t j = 0; j < m; j++)
            acc[j] = fmaf(w[(size_t)(c + j) * taps + i], z[j], acc[j]);
    }
    for (uint32_t j = 0; j < m; j++)
        acc[j] = acc[j] * poly_sigmoid(acc[j]);
    memcpy(out + c, acc, m * sizeof(float));
}

static void conv_silu(float *out, const float *window, const float *x, const float *w, uint32_t n,
                      uint32_t taps)
{
    uint32_t c = 0;

    for (; taps == 4 && c + RUN <= n; c += RUN)
        conv(out, window, x, w, n, c, RUN, 4);
    for (; c < n; c++)
        conv(out, window, x, w, n, c, 1, taps);
}

static void decay(float *d, const float *x, const float *bias, float ea, float lower_bound,
                  uint32_t n)
{
    if (lower_bound < 0.0f) {
        MAP(d, n, i, poly_exp(lower_bound * poly_sigmoid(ea * (x[i] + bias[i]))));
    } else {
        MAP(d, n, i, poly_exp(-(ea * poly_softplus(x[i] + bias[i]))));
    }
}

static void axpy(float *y, float a, const float *x, uint32_t n)
{
    MAP(y, n, i, fmaf(a, x[i], y[i]));
}

static void add(float *y, const float *x, uint32_t n)
{
    MAP(y, n, i, y[i] + x[i]);
}

static void scale(float *y, float a, const float *x, uint32_t n)
{
    MAP(y, n, i, a * x[i]);
}

void K(vec_fill)(struct kernels *k)
{
    k->dot = dot;
    k->rmsnorm = rmsnorm;
    k->l2norm = l2norm;
    k->silu_mul = silu_mul;
    k->situ_mul = situ_mul;
    k->gelu_tanh = gelu_tanh;
    k->sigmoid = sigmoid;
    k->sigmoid_mul = sigmoid_mul;
    k->conv_silu = conv_silu;
    k->decay = decay;
    k->axpy = axpy;
    k->add = add;
    k->scale = scale;
}
