/* test_cuts.c - a prompt of 4096 tokens leaves the same bits behind however it is cut into passes,
 * by however many threads, in whatever company; also where decays are as hostile as they can be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "expertfs/container.h"
#include "model/context.h"
#include "tests/model/models.h"
#include "tests/support/tiny_container.h"

/* Under the address sanitizer, which is after other things, a sixth of it. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { LONG = 700 };
#define LONG LONG
#endif
#endif
#ifndef LONG
enum { LONG = 4096 };
#endif

struct left { /* by a prompt */
    float *logits;
    size_t n_logits, bytes;
    void *memory;
};

static void ids_make(int32_t *ids, unsigned vocab, uint32_t seed)
{
    for (unsigned i = 0; i < LONG; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % vocab);
    }
}

static waste_ctx *open_long(const char *dir, unsigned threads, unsigned sessions)
{
    struct setup s = {.threads = threads, .sessions = sessions, .rows = LONG, .ctx = LONG};

    s.budget = model_floor(dir, &s) + (1ull << 30); /* all experts, passes of 4096 rows */
    return model_open(dir, &s);
}

static struct left left_by(waste_ctx *ctx, const float *logits)
{
    struct left l = {.n_logits = ctx->model.hp.vocab};

    l.logits = malloc(l.n_logits * sizeof(*l.logits));
    assert_non_null(l.logits);
    memcpy(l.logits, logits, l.n_logits * sizeof(*l.logits));
    l.memory = model_memory(ctx, &l.bytes);
    return l;
}

static void left_free(struct left *l)
{
    free(l->logits);
    free(l->memory);
}

static void same(const struct left *want, struct left got, const char *name, const char *what,
                 unsigned n)
{
    if (got.bytes != want->bytes || memcmp(got.memory, want->memory, want->bytes) != 0)
        fail_msg("%s, %s %u: the session holds other bits", name, what, n);
    if (memcmp(got.logits, want->logits, want->n_logits * sizeof(*want->logits)) != 0)
        fail_msg("%s, %s %u: other logits", name, what, n);
    left_free(&got);
}

/* The prompt in the default session, `cut` rows a pass; in each pass rows of another session too,
 * before and behind it in turn. */
static const float *in_company(waste_ctx *ctx, const int32_t *ids, const int32_t *other,
                               unsigned cut)
{
    waste_item it[2] = {{.size = sizeof(*it)}, {.size = sizeof(*it)}};
    const float *logits = NULL;

    for (unsigned at = 0, o = 0, turn = 0; at < LONG; turn++) {
        waste_item *ours = &it[turn % 2], *theirs = &it[(turn + 1) % 2];
        unsigned n = LONG - at < cut ? LONG - at : cut, more = 1 + turn * 7 % 40;

        more = more < LONG - o ? more : LONG - o;
        *ours = (waste_item){.size = sizeof(*ours),
                             .session = &ctx->session[0],
                             .ids = ids + at,
                             .n_ids = n,
                             .want = WASTE_WANT_LOGITS};
        *theirs = (waste_item){
            .size = sizeof(*theirs), .session = &ctx->session[1], .ids = other + o, .n_ids = more};
        if (!more)
            *(ours == it ? theirs : it) = *ours;
        assert_int_equal(waste_step(ctx, it, more ? 2 : 1), WASTE_OK);
        at += n;
        o += more;
        logits = more ? ours->logits : it[0].logits;
    }
    return logits;
}

static void cuts_of(const char *name, const char *dir)
{
    static const unsigned cuts[] = {1, 2, 63, 64, 65, 512};
    int32_t ids[LONG], other[LONG];
    waste_ctx *ctx = open_long(dir, 1, 1);
    struct left want;

    ids_make(ids, ctx->model.hp.vocab, 1);
    ids_make(other, ctx->model.hp.vocab, 2);
    assert_int_equal(ctx->plan.rows, LONG);
    want = left_by(ctx, model_feed(ctx, ids, LONG, LONG));
    for (unsigned c = 0; c < sizeof(cuts) / sizeof(*cuts); c++) {
        waste_state_reset(ctx);
        same(&want, left_by(ctx, model_feed(ctx, ids, LONG, cuts[c])), name, "passes of", cuts[c]);
    }
    waste_close(ctx);
    for (unsigned threads = 2; threads <= 4; threads++) {
        ctx = open_long(dir, threads, 1);
        same(&want, left_by(ctx, model_feed(ctx, ids, LONG, LONG)), name, "threads", threads);
        waste_state_reset(ctx);
        same(&want, left_by(ctx, model_feed(ctx, ids, LONG, 65)), name, "passes of 65, threads",
             threads);
        waste_close(ctx);
    }
    ctx = open_long(dir, 2, 2);
    {
        waste_session *theirs;

        assert_int_equal(waste_session_open(ctx, &theirs), WASTE_OK);
        same(&want, left_by(ctx, in_company(ctx, ids, other, 64)), name, "company, passes of", 64);
    }
    waste_close(ctx);
    left_free(&want);
}

static void a_long_prompt_may_be_cut_anywhere(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) /* of each family one; decays below are of a fourth */
        cuts_of(models[i].name, models[i].dir);
}

/* Values of an F32 tensor, in turn, over all of its elements. */
static void tensors_plant(const char *dir, const char *part, const float *value, unsigned n)
{
    struct container_options o = {.direct = false};
    struct container *c;
    const struct manifest *m;
    uint8_t *trunk;
    size_t bytes;
    unsigned found = 0;
    struct err e;

    assert_int_equal(container_open(&c, dir, &o, &e), 0);
    m = container_manifest(c);
    trunk = tiny_file_read(dir, "trunk.bin", &bytes);
    for (unsigned i = 0; i < m->n_trunk; i++) {
        const struct trunk_entry *t = &m->trunk[i];

        if (!strstr(t->name, part))
            continue;
        found++;
        assert_int_equal(t->fmt, FMT_F32);
        for (uint64_t k = 0; k < t->rows * t->cols; k++)
            memcpy(trunk + t->off + 4 * k, &value[k % n], 4);
    }
    assert_true(found > 0);
    container_close(c);
    tiny_file_write(dir, "trunk.bin", trunk, bytes);
    free(trunk);
}

/* Channels that forget everything at once, next to some that never do, and those in between. */
static void hostile_decays_may_be_cut_anywhere(void **state)
{
    static const float rates[][3] = {{6, 6, 6}, {-20, -20, -20}, {6, -20, 0}};
    static const float biases[][4] = {{40, 40, 40, 40}, {-40, 40, -3, 0}, {-90, -90, -90, -90}};

    (void)state;
    for (unsigned v = 0; v < 3; v++) {
        char dir[512], name[32];

        tiny_dir(dir, sizeof(dir));
        tiny_write(dir, TINY_VQ3R);
        tensors_plant(dir, "A_log", rates[v], 3);
        tensors_plant(dir, "dt_bias", biases[v], 4);
        snprintf(name, sizeof(name), "decays %u", v);
        cuts_of(name, dir);
        tiny_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_may_be_cut_anywhere),
        cmocka_unit_test(hostile_decays_may_be_cut_anywhere),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
