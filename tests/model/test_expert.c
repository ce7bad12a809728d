/* test_expert.c - one expert and the rows that chose it: shares of the work change no bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "model/moe.h"

enum { STAGES = 3, ENTRIES = 16, ROWS = 9, TOP_K = 2, EXPERTS = 4, ID = 2 };

struct world { /* a model of one layer and one expert, of arbitrary numbers */
    struct model model;
    struct layer layer;
    struct mem mem;
    struct act act;
    struct rows rows;
    struct run run;
    struct moe_job job;
    struct expert expert;
    float *z;
    void *owned[16];
    unsigned n_owned;
};

static void *own(struct world *w, size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    assert_non_null(p);
    memset(p, 0, (bytes + 63) / 64 * 64);
    w->owned[w->n_owned++] = p;
    return p;
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

static float *numbers(struct world *w, size_t n, uint32_t *seed)
{
    float *p = own(w, (n + 128) * sizeof(*p));

    for (size_t i = 0; i < n; i++)
        p[i] = (float)next(seed) / (1 << 23) - 1;
    return p;
}

static void matrix(struct world *w, enum matrix m, uint32_t rows, uint32_t cols, uint32_t *seed)
{
    size_t cells = (size_t)(rows + 63) / 64 * 64 * (cols / 8) * STAGES;
    uint8_t *index = own(w, cells);
    uint16_t *scale = own(w, rows * sizeof(*scale));

    for (size_t i = 0; i < cells; i++)
        index[i] = (uint8_t)(next(seed) % ENTRIES);
    for (uint32_t i = 0; i < rows; i++)
        scale[i] = (uint16_t)(0x2c00 + next(seed) % 1024); /* 1/16 ... 1/8 */
    w->expert.index[m] = index;
    w->expert.scale[m] = scale;
    w->model.rvq[m] = (struct rvq_shape){rows, cols, STAGES, ENTRIES, STAGES};
    w->layer.moe.codebook[m] = numbers(w, (size_t)STAGES * ENTRIES * 8, seed);
}

static void world_make(struct world *w, unsigned latent, unsigned inter, enum profile profile,
                       unsigned threads, unsigned rows)
{
    struct act_shape shape = {ROWS, 1, threads};
    struct hparams *hp = &w->model.hp;
    uint32_t seed = latent * 7 + inter;
    struct err e;

    memset(w, 0, sizeof(*w));
    hp->hidden = hp->latent = latent;
    hp->inter = inter;
    hp->n_experts = EXPERTS;
    hp->top_k = TOP_K;
    hp->n_layers = hp->vocab = 1;
    kernels_init(&w->model.k, cpu_detect(), profile);
    matrix(w, MATRIX_GATE, inter, latent, &seed);
    matrix(w, MATRIX_UP, inter, latent, &seed);
    matrix(w, MATRIX_DOWN, latent, inter, &seed);
    w->z = numbers(w, (size_t)ROWS * act_pad(latent), &seed);
    mem_init(&w->mem, 1 << 30);
    if (act_open(&w->act, &w->mem, &w->model, shape, &e))
        fail_msg("%s", e.text);
    w->rows.n = rows;
    w->run = (struct run){.rows = &w->rows, .model = &w->model, .act = &w->act};
    if (team_open_n(&w->run.team, threads, &e))
        fail_msg("%s", e.text);
    w->job = (struct moe_job){
        .r = &w->run, .l = &w->layer, .u = w->z, .z = w->z, .z_w = act_pad(latent)};
    for (unsigned i = 0; i < rows; i++) { /* every row chose it, in either place */
        w->act.moe.user[i] = i * TOP_K + i % TOP_K;
        memset(w->z + i * act_pad(latent) + latent, 0, (act_pad(latent) - latent) * sizeof(float));
    }
    for (unsigned id = ID + 1; id <= EXPERTS; id++)
        w->act.moe.first[id] = rows;
}

static void world_close(struct world *w)
{
    team_close(w->run.team);
    act_close(&w->act);
    while (w->n_owned)
        free(w->owned[--w->n_owned]);
}

/* What the expert says to the rows, [rows][latent]. */
static float *said(unsigned latent, unsigned inter, enum profile profile, unsigned threads,
                   unsigned rows)
{
    static struct world w;
    float *out = calloc((size_t)rows * latent, sizeof(*out));

    assert_non_null(out);
    world_make(&w, latent, inter, profile, threads, rows);
    memset(w.act.moe.slot, 0xff, (size_t)ROWS * TOP_K * latent * sizeof(float));
    expert_tables(&w.job);
    expert_rows(&w.job, &w.expert, ID);
    for (unsigned i = 0; i < ROWS * TOP_K; i++) {
        const float *slot = w.act.moe.slot + (size_t)i * latent;
        unsigned row = i / TOP_K;

        if (row < rows && i % TOP_K == row % TOP_K)
            memcpy(out + (size_t)row * latent, slot, latent * sizeof(float));
        else /* of another choice, or of no row: not ours to write */
            for (unsigned k = 0; k < latent * sizeof(float); k++)
                assert_int_equal(((const uint8_t *)slot)[k], 0xff);
    }
    world_close(&w);
    return out;
}

/* Sizes around the pieces: less than one, one each, shares that do not come out even. */
static void no_share_of_the_work_changes_a_bit(void **state)
{
    static const unsigned shapes[][2] = {{64, 8},     {72, 64},    {128, 256},  {320, 512},
                                         {256, 1000}, {576, 1024}, {1152, 768}, {2304, 1536}};

    (void)state;
    for (unsigned s = 0; s < sizeof(shapes) / sizeof(*shapes); s++)
        for (enum profile p = PROFILE_F32; p < PROFILES; p++)
            for (unsigned rows = 1; rows <= ROWS; rows += 4) {
                float *want = said(shapes[s][0], shapes[s][1], p, 1, rows);

                float *alone = said(shapes[s][0], shapes[s][1], p, 1, 1);

                assert_memory_equal(alone, want, shapes[s][0] * sizeof(float));
                free(alone);
                for (unsigned threads = 2; threads <= 8; threads++) {
                    float *got = said(shapes[s][0], shapes[s][1], p, threads, rows);

                    if (memcmp(got, want, (size_t)rows * shapes[s][0] * sizeof(float)) != 0)
                        fail_msg("%u x %u, %s: %u rows, %u threads", shapes[s][0], shapes[s][1],
                                 profile_name(p), rows, threads);
                    free(got);
                }
                free(want);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_share_of_the_work_changes_a_bit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
