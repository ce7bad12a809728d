/* Nearest codebook entries: one vector per lane, entries one after another, so that no lane meets
 * another and the first entry of several equals wins by itself.
 */
#include <string.h>

#include "base/half.h"
#include "model/kernels/lanes.h"
#include "model/kernels/level.h"

enum {
    DIM = FORMAT_VEC_DIM,
    TILES = VEC == 16 ? 2 : 1, /* of VEC vectors, as many as there are registers for */
    GROUP = TILES * VEC,       /* vectors that go through a codebook together */
};

/* What is best so far in each lane, and which entry that is. */
struct found {
    vec best;
    ivec entry;
};

/* `entry` where s > best. The order of the operands is what makes max the same choice. */
INLINE void found_take(struct found *f, vec s, ivec entry)
{
#if defined(__AVX512F__)
    __mmask16 m = _mm512_cmp_ps_mask(s, f->best, _CMP_GT_OQ);

    f->entry = (ivec)_mm512_mask_mov_epi32((__m512i)f->entry, m, (__m512i)entry);
    f->best = _mm512_max_ps(s, f->best);
#elif defined(__AVX2__)
    __m256 m = _mm256_cmp_ps(s, f->best, _CMP_GT_OQ);

    f->entry = (ivec)_mm256_blendv_ps((__m256)f->entry, (__m256)entry, m);
    f->best = _mm256_max_ps(s, f->best);
#else
    ivec m = s > f->best;

    f->entry = (entry & m) | (f->entry & ~m);
    f->best = (vec)(((ivec)s & m) | ((ivec)f->best & ~m));
#endif
}

/* Every second lane of a and b, from lane 0 or lane 1. */
#if defined(__AVX512F__)
#define UNZIP(a, b, o)                                                                             \
    __builtin_shufflevector(a, b, o, o + 2, o + 4, o + 6, o + 8, o + 10, o + 12, o + 14, o + 16,   \
                            o + 18, o + 20, o + 22, o + 24, o + 26, o + 28, o + 30)
#elif defined(__AVX2__) && defined(__FMA__)
#define UNZIP(a, b, o)                                                                             \
    __builtin_shufflevector(a, b, o, o + 2, o + 4, o + 6, o + 8, o + 10, o + 12, o + 14)
#else
#define UNZIP(a, b, o) __builtin_shufflevector(a, b, o, o + 2, o + 4, o + 6)
#endif

/* t[d] = component d of VEC vectors. Position vector * 8 + d becomes d * VEC + vector when its
 * lowest bit has been moved to the top three times. */
INLINE void tile_load(vec *t, const float *x)
{
    vec from[DIM];

    for (unsigned i = 0; i < DIM; i++)
        t[i] = lanes_load(x + i * VEC);
#pragma GCC unroll 3
    for (unsigned bit = 0; bit < 3; bit++) {
        memcpy(from, t, sizeof(from));
#pragma GCC unroll 4
        for (unsigned i = 0; i < DIM / 2; i++) {
            t[i] = UNZIP(from[2 * i], from[2 * i + 1], 0);
            t[i + DIM / 2] = UNZIP(from[2 * i], from[2 * i + 1], 1);
        }
    }
}

/* s_e of the tiles. */
INLINE void scores(vec *acc, vec t[TILES][DIM], const struct assign_book *b, uint32_t e)
{
    const float *c = b->entry + e * DIM;

#pragma GCC unroll 2
    for (unsigned i = 0; i < TILES; i++)
        acc[i] = lanes_all(b->bias[e]);
#pragma GCC unroll 8
    for (unsigned d = 0; d < DIM; d++)
#pragma GCC unroll 2
        for (unsigned i = 0; i < TILES; i++)
            acc[i] = lanes_fma(t[i][d], lanes_all(c[d]), acc[i]);
}

/* GROUP vectors. A function of its own has all the registers to itself. */
static __attribute__((noinline)) void search(struct found *f, const float *x,
                                             const struct assign_book *b)
{
    vec t[TILES][DIM], acc[TILES];
    ivec entry = {0};

    for (unsigned i = 0; i < TILES; i++)
        tile_load(t[i], x + i * VEC * DIM);
    scores(acc, t, b, 0);
    for (unsigned i = 0; i < TILES; i++)
        f[i] = (struct found){acc[i], entry};
    for (uint32_t e = 1; e < b->n; e++) {
        entry += 1;
        scores(acc, t, b, e);
#pragma GCC unroll 2
        for (unsigned i = 0; i < TILES; i++)
            found_take(&f[i], acc[i], entry);
    }
}

INLINE void store_entries(uint8_t *index, const struct found *f, uint32_t n)
{
    int32_t entry[GROUP];

    for (unsigned i = 0; i < TILES; i++)
        memcpy(entry + i * VEC, &f[i].entry, sizeof(f[i].entry));
    for (uint32_t i = 0; i < n; i++)
        index[i] = (uint8_t)entry[i];
}

/* n vectors, 1...GROUP, zeros behind them. */
INLINE const float *padded(float *buffer, const float *x, uint32_t n)
{
    if (n == GROUP)
        return x;
    memcpy(buffer, x, n * DIM * sizeof(*x));
    memset(buffer + n * DIM, 0, (GROUP - n) * DIM * sizeof(*x));
    return buffer;
}

static void nearest(uint8_t *index, float *best, const float *x, uint32_t n,
                    const struct assign_book *b)
{
    for (uint32_t i = 0; i < n; i += GROUP) {
        uint32_t here = min_u32(n - i, GROUP);
        float buffer[GROUP * DIM], score[GROUP];
        struct found f[TILES];

        search(f, padded(buffer, x + (size_t)i * DIM, here), b);
        store_entries(index + i, f, here);
        for (unsigned t = 0; t < TILES; t++)
            lanes_store(score + t * VEC, f[t].best);
        memcpy(best + i, score, here * sizeof(*best));
    }
}

static void stages(uint8_t *index, size_t stride, const float *w, float a, uint32_t n,
                   const struct assign_book *b, uint32_t n_stages)
{
    for (uint32_t i = 0; i < n; i += GROUP) {
        uint32_t here = min_u32(n - i, GROUP);
        float left[GROUP * DIM];
        uint8_t entry[GROUP];
        struct found f[TILES];
        const float *from = padded(left, w + (size_t)i * DIM, here);

        for (unsigned j = 0; j < GROUP * DIM; j += VEC)
            lanes_store(left + j, lanes_load(from + j) / lanes_all(a));
        for (uint32_t s = 0; s < n_stages; s++) {
            search(f, left, &b[s]);
            store_entries(entry, f, GROUP);
            memcpy(index + s * stride + i, entry, here);
            if (s + 1 == n_stages)
                break;
            for (unsigned v = 0; v < GROUP; v++)
                for (unsigned d = 0; d < DIM; d++)
                    left[v * DIM + d] = left[v * DIM + d] - b[s].entry[entry[v] * DIM + d];
        }
    }
}

static float closer(float *distance, const float *x, const float *centre, uint32_t n)
{
    float sum[LANES] = {0};

    for (uint32_t i = 0; i < n; i += VEC) {
        uint32_t here = min_u32(n - i, VEC);
        float buffer[GROUP * DIM], d2[VEC];
        vec t[DIM], acc = {0};

        if (here < VEC) {
            memset(buffer, 0, sizeof(buffer));
            memcpy(buffer, x + (size_t)i * DIM, here * DIM * sizeof(*x));
        }
        tile_load(t, here < VEC ? buffer : x + (size_t)i * DIM);
#pragma GCC unroll 8
        for (unsigned d = 0; d < DIM; d++) {
            vec off = t[d] - lanes_all(centre[d]);

            acc = lanes_fma(off, off, acc);
        }
        lanes_store(d2, acc);
        for (uint32_t l = 0; l < here; l++) {
            float d = d2[l] < distance[i + l] ? d2[l] : distance[i + l];

            distance[i + l] = d;
            sum[(i + l) % LANES] += d;
        }
    }
    return fold16(sum);
}

/* As integers, magnitudes compare the same and a compiler may take any order. */
static float largest(const float *x, uint32_t n)
{
    int32_t max = 0;

    for (uint32_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(f32_to_bits(x[i]) & 0x7fffffffu);

        max = bits > max ? bits : max;
    }
    return bits_to_f32((uint32_t)max);
}

void K(assign_fill)(struct kernels *k)
{
    k->assign_nearest = nearest;
    k->assign_stages = stages;
    k->assign_closer = closer;
    k->largest = largest;
}
