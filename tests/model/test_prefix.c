/* test_prefix.c - whatever was kept, dropped, damaged or shared before, a prompt that is taken up
 * gives the bits of one that was fed from the beginning. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include <cmocka.h>

#include "model/context.h"
#include "tests/model/models.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/tiny_container.h"

enum { CTX = 64, NAME = 256 };

struct store {
    waste_ctx *ctx;
    waste_store *st;
    char dir[512];
};

static void store_open(struct store *s, unsigned model, unsigned checkpoints, bool files,
                       uint64_t dir_bytes)
{
    struct setup set = {.checkpoints = checkpoints, .sessions = 2, .ctx = CTX};
    waste_store_cfg c;

    waste_store_cfg_init(&c);
    c.every = 4;
    c.dir = files ? s->dir : NULL;
    c.dir_bytes = dir_bytes;
    s->ctx = model_open(models[model].dir, &set);
    if (waste_store_open(s->ctx, &c, &s->st) != WASTE_OK)
        fail_msg("%s", waste_error_detail(s->ctx));
}

static void store_close(struct store *s)
{
    waste_store_close(s->st);
    waste_close(s->ctx);
}

static waste_store_info info(const struct store *s)
{
    waste_store_info i = {.size = sizeof(i)};

    assert_int_equal(waste_store_get_info(s->st, &i), WASTE_OK);
    return i;
}

/* The logits of a session that is fed from the beginning; free them. */
static float *cold(waste_ctx *ctx, const int32_t *ids, unsigned n)
{
    waste_session *s = waste_session_default(ctx);
    size_t bytes = ctx->model.hp.vocab * sizeof(float);
    float *out = malloc(bytes);

    assert_int_equal(waste_session_reset(s), WASTE_OK);
    memcpy(out, model_feed(ctx, ids, n, CTX), bytes);
    return out;
}

/* As a host does it: go on from what is kept, keep at every place. Returns what was reused. */
static size_t hot(struct store *s, waste_session *se, const int32_t *ids, unsigned n,
                  const char *tag, const float **logits)
{
    waste_item it = {.size = sizeof(it), .session = se};
    size_t reused, found = waste_store_find(s->st, se, ids, n, tag);

    assert_int_equal(waste_store_resume(s->st, se, ids, n, tag, &reused), WASTE_OK);
    assert_int_equal(waste_session_pos(se), reused);
    if (!waste_error_detail(s->ctx))
        assert_int_equal(found, reused);
    for (size_t at = reused; at < n; at += it.n_done) {
        it.ids = ids + at;
        it.n_ids = waste_store_cut(s->st, at, NULL, 0, n) - at;
        it.want = WASTE_WANT_LOGITS;
        assert_int_equal(waste_step(s->ctx, &it, 1), WASTE_OK);
        assert_int_equal(waste_store_keep(s->st, se, tag, 0), WASTE_OK);
    }
    *logits = it.logits;
    return reused;
}

/* Logits of the prompt, taken up in the second session, against a cold run in the first. */
static size_t same_as_cold(struct store *s, waste_session *se, const int32_t *ids, unsigned n,
                           const char *tag)
{
    float *want = cold(s->ctx, ids, n);
    const float *got;
    size_t reused = hot(s, se, ids, n, tag, &got);

    assert_memory_equal(got, want, s->ctx->model.hp.vocab * sizeof(*want));
    free(want);
    return reused;
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Conversations that grow, branch, are edited, tried again and shortened, in every kind of store.
 */
static void conversations_in_any_order_equal_cold_runs(void **state)
{
    static const struct {
        unsigned checkpoints;
        bool files;
        unsigned limit; /* states that fit into the directory, about */
    } kind[] = {{0, false, 0}, {2, false, 0}, {9, false, 0},
                {0, true, 0},  {1, true, 3},  {2, true, 0}};

    (void)state;
    for (unsigned m = 0; m < N_MODELS; m++)
        for (unsigned k = 0; k < sizeof(kind) / sizeof(*kind); k++) {
            struct store s;
            waste_session *se;
            int32_t ids[CTX];
            unsigned n = 0, vocab, reused = 0;
            uint32_t seed = 100 * m + k;
            uint64_t limit;

            tiny_dir(s.dir, sizeof(s.dir));
            store_open(&s, m, kind[k].checkpoints, kind[k].files, 0);
            vocab = s.ctx->model.hp.vocab;
            limit = kind[k].limit * (session_parts_bytes(&s.ctx->model.hp, CTX / 2) + 4096);
            store_close(&s);
            store_open(&s, m, kind[k].checkpoints, kind[k].files, limit);
            assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
            for (unsigned turn = 0; turn < 14; turn++) {
                unsigned what = next(&seed) % 4;

                if (what == 0 && n > 2) /* an edit somewhere */
                    n = 1 + next(&seed) % (n - 1);
                for (unsigned more = 1 + next(&seed) % 9; more && n < CTX - 1; more--)
                    ids[n++] = (int32_t)(next(&seed) % vocab);
                reused += same_as_cold(&s, se, ids, n, NULL) > 0;
                if (what == 1) /* tried again: the same prompt */
                    reused += same_as_cold(&s, se, ids, n, NULL) > 0;
                if (what == 2 && kind[k].files) { /* killed, and started again */
                    store_close(&s);
                    store_open(&s, m, kind[k].checkpoints, true, limit);
                    assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
                }
                if (n > CTX - 12)
                    n = 0;
                if (limit)
                    assert_true(info(&s).file_bytes <= limit);
            }
            assert_true(reused > 2);
            assert_int_equal(info(&s).refused, 0);
            store_close(&s);
            tiny_remove(s.dir);
        }
}

static const int32_t text[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4};

static void the_longest_prefix_is_taken_and_one_id_is_left(void **state)
{
    struct store s;
    waste_session *se;
    int32_t other[20];
    size_t n;

    (void)state;
    tiny_dir(s.dir, sizeof(s.dir));
    store_open(&s, 0, 9, false, 0);
    assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
    assert_int_equal(same_as_cold(&s, se, text, 10, NULL), 0); /* keeps 4, 8, 10 */
    assert_int_equal(info(&s).n_memory, 3);
    assert_int_equal(same_as_cold(&s, se, text, 10, NULL), 8); /* 10 would leave nothing to feed */
    assert_int_equal(same_as_cold(&s, se, text, 12, NULL), 10);
    memcpy(other, text, sizeof(text));
    other[9] = 60;
    assert_int_equal(same_as_cold(&s, se, other, 20, NULL), 8);
    other[5] = 61;
    assert_int_equal(same_as_cold(&s, se, other, 20, NULL), 4);
    other[0] = 62;
    assert_int_equal(same_as_cold(&s, se, other, 20, NULL), 0);
    assert_int_equal(waste_session_reset(se), WASTE_OK);
    assert_int_equal(waste_store_resume(s.st, se, text, 1, NULL, &n), WASTE_OK);
    assert_int_equal(n, 0);
    assert_int_equal(waste_store_resume(s.st, se, text, 0, NULL, &n), WASTE_E_ARG);
    store_close(&s);
    tiny_remove(s.dir);
}

static void another_tag_finds_nothing(void **state)
{
    struct store s;
    waste_session *se;

    (void)state;
    for (unsigned files = 0; files < 2; files++) {
        tiny_dir(s.dir, sizeof(s.dir));
        store_open(&s, 0, files ? 0 : 9, files, 0);
        assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
        same_as_cold(&s, se, text, 12, "alice");
        assert_int_equal(waste_session_reset(se), WASTE_OK);
        assert_int_equal(waste_store_find(s.st, se, text, 20, "alice"), 12);
        assert_int_equal(waste_store_find(s.st, se, text, 20, "alic"), 0);
        assert_int_equal(waste_store_find(s.st, se, text, 20, NULL), 0);
        assert_int_equal(
            waste_store_keep(s.st, se, "a tag of more than 32 bytes, cut, is another's", 0),
            WASTE_E_ARG);
        assert_int_equal(same_as_cold(&s, se, text, 20, "bob"), 0);
        store_close(&s);
        tiny_remove(s.dir);
    }
}

/* Of three, the one goes first without which the least is to be computed again. */
static void what_saves_least_goes_first(void **state)
{
    struct store s;
    waste_session *se;
    waste_item it = {.size = sizeof(it)};
    uint64_t three;

    (void)state;
    tiny_dir(s.dir, sizeof(s.dir));
    store_open(&s, 0, 0, true, 0);
    three = session_parts_bytes(&s.ctx->model.hp, 1) * 3 +
            session_parts_bytes(&s.ctx->model.hp, 64) - session_parts_bytes(&s.ctx->model.hp, 0) +
            3 * 4096;
    store_close(&s);
    store_open(&s, 0, 0, true, three);
    assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
    it.session = se;
    for (unsigned at = 0, i = 0; i < 4; i++) {
        static const unsigned end[] = {8, 9, 17, 20};

        it.ids = text + at;
        it.n_ids = end[i] - at;
        assert_int_equal(waste_step(s.ctx, &it, 1), WASTE_OK);
        assert_int_equal(waste_store_keep(s.st, se, NULL, 0), WASTE_OK);
        at = end[i];
    }
    assert_int_equal(info(&s).n_files, 3);
    assert_int_equal(waste_session_reset(se), WASTE_OK);
    assert_int_equal(waste_store_find(s.st, se, text, 10, NULL), 8); /* 9 is gone: it saved one */
    assert_int_equal(waste_store_find(s.st, se, text, 18, NULL), 17);
    store_close(&s);
    tiny_remove(s.dir);
}

/* ---- files that are not what they were ---- */

static unsigned files_in(const char *dir, char name[][NAME], unsigned most)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    unsigned n = 0;

    while ((f = readdir(d)))
        if (f->d_name[0] != '.' && n < most)
            snprintf(name[n++], NAME, "%s", f->d_name);
    closedir(d);
    return n;
}

static void damaged_files_cost_time_and_nothing_else(void **state)
{
    (void)state;
    for (unsigned how = 0; how < 5; how++) {
        struct store s;
        waste_session *se;
        char name[16][NAME];
        unsigned n;
        size_t reused;

        tiny_dir(s.dir, sizeof(s.dir));
        store_open(&s, 1, 0, true, 0);
        assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
        same_as_cold(&s, se, text, 20, NULL);
        if (how != 1) { /* found anew, or under the store that wrote them */
            store_close(&s);
            store_open(&s, 1, 0, true, 0);
            assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
        }
        n = files_in(s.dir, name, 16);
        assert_int_equal(n, 5);
        for (unsigned i = 0; i < n; i++) {
            size_t bytes;
            uint8_t *b = tiny_file_read(s.dir, name[i], &bytes);
            char path[1024];

            snprintf(path, sizeof(path), "%.500s/%.255s", s.dir, name[i]);
            if (how < 2)
                b[STATE_HEADER_BYTES + 300] ^= 4;
            else if (how == 2)
                bytes -= 7;
            else if (how == 3)
                unlink(path);
            else
                memset(b, 0, bytes);
            if (how != 3)
                tiny_file_write(s.dir, name[i], b, bytes);
            free(b);
        }
        assert_int_equal(waste_session_reset(se), WASTE_OK);
        {
            float *want = cold(s.ctx, text, 20);
            const float *got;

            reused = hot(&s, se, text, 20, NULL, &got);
            assert_int_equal(reused, 0);
            assert_memory_equal(got, want, s.ctx->model.hp.vocab * sizeof(*want));
            free(want);
        }
        assert_true(info(&s).refused >= 4);
        assert_int_equal(same_as_cold(&s, se, text, 20, NULL), 16); /* kept anew, sound */
        store_close(&s);
        tiny_remove(s.dir);
    }
}

static void files_of_another_model_are_left_alone(void **state)
{
    struct store s;
    waste_session *se;
    char name[64][NAME];

    (void)state;
    tiny_dir(s.dir, sizeof(s.dir));
    for (unsigned m = 0; m < 3; m++) {
        store_open(&s, m, 0, true, 0);
        assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
        assert_int_equal(same_as_cold(&s, se, text, 20, NULL), 0);
        assert_int_equal(info(&s).n_files, 5 * (m + 1));
        store_close(&s);
    }
    assert_int_equal(files_in(s.dir, name, 64), 15);
    store_open(&s, 0, 0, true, 0);
    assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
    assert_int_equal(same_as_cold(&s, se, text, 20, NULL), 16);
    store_close(&s);
    tiny_remove(s.dir);
}

static void a_directory_that_cannot_be_is_named(void **state)
{
    struct setup set = {.ctx = CTX};
    waste_ctx *ctx = model_open(models[0].dir, &set);
    waste_store_cfg c;
    waste_store *st = (void *)1;

    (void)state;
    waste_store_cfg_init(&c);
    c.dir = "/dev/null/states";
    assert_int_equal(waste_store_open(ctx, &c, &st), WASTE_E_IO);
    assert_null(st);
    assert_non_null(strstr(waste_error_detail(ctx), "/dev/null/states"));
    waste_close(ctx);
}

static void any_failed_allocation_loses_nothing(void **state)
{
    bool failed = true;
    struct store s;
    waste_session *se;
    float *want;

    (void)state;
    tiny_dir(s.dir, sizeof(s.dir));
    store_open(&s, 0, 2, true, 0);
    assert_int_equal(waste_session_open(s.ctx, &se), WASTE_OK);
    want = cold(s.ctx, text, 20);
    for (unsigned nth = 1; failed; nth++) {
        waste_item it = {.size = sizeof(it), .session = se, .want = WASTE_WANT_LOGITS};
        size_t reused = 0;

        alloc_fault_arm(nth);
        if (waste_store_resume(s.st, se, text, 20, NULL, &reused) != WASTE_OK)
            reused = waste_session_pos(se);
        for (size_t at = reused; at < 20; at += it.n_done) {
            it.ids = text + at;
            it.n_ids = waste_store_cut(s.st, at, NULL, 0, 20) - at;
            assert_int_equal(waste_step(s.ctx, &it, 1), WASTE_OK);
            waste_store_keep(s.st, se, NULL, 0);
        }
        failed = alloc_fault_disarm();
        assert_memory_equal(it.logits, want, s.ctx->model.hp.vocab * sizeof(*want));
        assert_int_equal(waste_session_reset(se), WASTE_OK);
    }
    free(want);
    store_close(&s);
    tiny_remove(s.dir);
}

static void the_places_to_keep_are_ends_and_multiples(void **state)
{
    static const size_t ends[] = {3, 9, 17};
    struct store s;
    size_t at = 0, want[] = {3, 4, 8, 9, 12, 16, 17, 19};

    (void)state;
    tiny_dir(s.dir, sizeof(s.dir));
    store_open(&s, 0, 0, false, 0);
    for (unsigned i = 0; at < 19; i++) {
        at = waste_store_cut(s.st, at, ends, 3, 19);
        assert_int_equal(at, want[i]);
    }
    assert_int_equal(waste_store_cut(NULL, 2, ends, 3, 19), 19);
    store_close(&s);
    tiny_remove(s.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_in_any_order_equal_cold_runs),
        cmocka_unit_test(the_longest_prefix_is_taken_and_one_id_is_left),
        cmocka_unit_test(another_tag_finds_nothing),
        cmocka_unit_test(what_saves_least_goes_first),
        cmocka_unit_test(damaged_files_cost_time_and_nothing_else),
        cmocka_unit_test(files_of_another_model_are_left_alone),
        cmocka_unit_test(a_directory_that_cannot_be_is_named),
        cmocka_unit_test(any_failed_allocation_loses_nothing),
        cmocka_unit_test(the_places_to_keep_are_ends_and_multiples),
    };

    return cmocka_run_group_tests(tests, models_setup, models_teardown);
}
