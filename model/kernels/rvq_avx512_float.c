/* Float tables by vpermi2ps, which looks up sixteen indices among 32 floats and looks at five bits
 * of each: eight such slices are 256 entries, and the upper bits choose. Without VBMI this is the
 * fastest way (docs/RVQ.md). */
#include "model/kernels/rvq_avx2.h"

enum {
    QUARTERS = ROWS / 16,
    SLICES = ENTRIES / 32,
    AT_ONCE = 4,  /* positions whose tables should stay in L1 */
    GROUP = 16,   /* row blocks that meet them there */
    AHEAD = 4096, /* bytes between what is fetched and what is used */
};

#include "model/kernels/rvq_f32.h"

/* Lanes of a where the bit is clear, of b where it is set. */
INLINE __m512 choose(__m512i x, int bit, __m512 a, __m512 b)
{
    return _mm512_mask_blend_ps(_mm512_test_epi32_mask(x, _mm512_set1_epi32(bit)), a, b);
}

/* Floats of 16 entries in a table of 2 or 8 slices, a constant. */
INLINE __m512 look_up(const __m512 (*t)[2], __m512i x, const unsigned slices)
{
    __m512 v[SLICES];

    for (unsigned i = 0; i < slices; i++)
        v[i] = _mm512_permutex2var_ps(t[i][0], x, t[i][1]);
    for (unsigned i = 0; i < slices; i += 2)
        v[i] = choose(x, 32, v[i], v[i + 1]);
    if (slices == 2)
        return v[0];
    return choose(x, 128, choose(x, 64, v[0], v[2]), choose(x, 64, v[4], v[6]));
}

/* The floats of one stage of a row block; nothing beyond the table is read. */
INLINE void stage_floats(__m512 *v, const float *table, const uint8_t *entry, uint32_t entries,
                         const unsigned slices)
{
    __m512 t[SLICES][2];

#pragma GCC unroll 16
    for (unsigned i = 0; i < 2 * slices; i++) {
        uint32_t left = entries > 16 * i ? entries - 16 * i : 0;

        t[i / 2][i % 2] = _mm512_maskz_loadu_ps((__mmask16)(left < 16 ? (1u << left) - 1 : 0xffff),
                                                table + (left ? 16 * i : 0));
        /* In registers: compilers would rather read it again for each lookup. */
        __asm__("" : "+v"(t[i / 2][i % 2]));
    }
    for (unsigned q = 0; q < QUARTERS; q++) {
        __m128i e = _mm_load_si128((const __m128i *)(const void *)(entry + 16 * q));

        v[q] = look_up(t, _mm512_cvtepu8_epi32(e), slices);
    }
}

/* entry[stage][ROWS] */
INLINE void unpack(uint8_t *entry, const uint8_t *cell, const uint32_t stages, const bool packed)
{
    for (unsigned h = 0; h < 2; h++) {
        __m256i e[STAGES];

        entries_of(e, cell + h * HALF * (packed ? 3 : stages), stages, packed);
        for (uint32_t s = 0; s < stages; s++)
            _mm256_store_si256((__m256i *)(void *)(entry + s * ROWS + h * HALF), e[s]);
    }
}

/* Adds a tile to a row block. */
INLINE void add_whole(float *acc, struct tile t, const uint32_t stages, const bool packed,
                      const uint32_t entries, const unsigned slices)
{
    const uint32_t cell_bytes = ROWS * (packed ? 3 : stages);

    for (uint32_t p = 0; p < t.positions; p++, t.cell += cell_bytes, t.table += stages * entries) {
        alignas(64) uint8_t entry[STAGES * ROWS];
        __m512 sum[QUARTERS], v[QUARTERS];

        prefetch(t.cell + AHEAD, cell_bytes);
        unpack(entry, t.cell, stages, packed);
        stage_floats(sum, t.table, entry, entries, slices);
#pragma GCC unroll 4
        for (uint32_t s = 1; s < stages; s++) {
            stage_floats(v, t.table + s * entries, entry + s * ROWS, entries, slices);
            for (unsigned q = 0; q < QUARTERS; q++)
                sum[q] = _mm512_add_ps(sum[q], v[q]);
        }
        for (unsigned q = 0; q < QUARTERS; q++) {
            __m512 a = _mm512_load_ps(acc + 16 * q);

            _mm512_store_ps(acc + 16 * q, _mm512_add_ps(a, sum[q]));
        }
    }
}

static void add_tile(float *acc, const struct tile *t, uint32_t n, const struct rvq_shape *shape)
{
    const bool packed = is_packed(shape);

    (void)n;
    if (packed && t->entries == 64)
        add_whole(acc, *t, 4, true, 64, 2);
    else if (packed)
        add_whole(acc, *t, 4, true, t->entries, 2);
    else if (t->stages == 3 && t->entries == ENTRIES)
        add_whole(acc, *t, 3, false, ENTRIES, SLICES);
    else if (t->stages == 2 && t->entries == ENTRIES)
        add_whole(acc, *t, 2, false, ENTRIES, SLICES);
    else
        add_whole(acc, *t, t->stages, false, t->entries, SLICES);
}

void rvq_by_hand_avx512_float(struct kernels *k)
{
    if (k->profile == PROFILE_F32)
        k->rvq_rows = rows_f32;
}
