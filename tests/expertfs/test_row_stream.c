/* What a stream gives is what checkpoint_read gives, wherever a tensor lies in its shard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/row_stream.h"
#include "tests/support/alloc_fault.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

enum { FLOATS = 1 << 16, SPANS = 200, THREADS = 4 };

/* In the order of the file: small tensors put the others at odd places, the last one ends with its
 * file in the middle of a page. */
static const struct stored_as {
    const char *name, *dtype;
    unsigned rows, cols, width, shard;
} stored_as[] = {
    {"first", "F8_E5M2", 1, 3, 1, 0},       {"first_scale_inv", "F32", 1, 1, 4, 0},
    {"brain", "BF16", 301, 97, 2, 0},       {"x_packed", "U8", 129, 48, 1, 0},
    {"half", "F16", 1, 5000, 2, 0},         {"eight", "F8_E4M3", 130, 50, 1, 0},
    {"full", "F32", 67, 64, 4, 0},          {"x_scale", "U8", 129, 3, 1, 1},
    {"eight_scale_inv", "F32", 5, 3, 4, 1}, {"last", "BF16", 40, 77, 2, 1},
};

static const char *const logical[] = {"brain", "x", "half", "eight", "full", "last", "first"};

struct fixture {
    char dir[64];
    struct checkpoint *c;
    struct row_span span[SPANS];
    float *want, *got;
};

static void write_text(const struct fixture *f, const char *name, const char *text)
{
    char path[128];
    FILE *to;

    snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    to = fopen(path, "w");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

/* Bytes below 0x40: finite in every encoding. */
static void write_shard(const struct fixture *f, unsigned shard)
{
    char path[128], header[2048];
    size_t at = 0, n = (size_t)snprintf(header, sizeof(header), "{\"__metadata__\":{}");
    uint8_t length[8];
    FILE *to;

    for (unsigned i = 0; i < N_ELEMS(stored_as); i++) {
        const struct stored_as *x = &stored_as[i];
        size_t bytes = (size_t)x->rows * x->cols * x->width;

        if (x->shard != shard)
            continue;
        n += (size_t)snprintf(
            header + n, sizeof(header) - n,
            ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]}", x->name,
            x->dtype, x->rows, x->cols, at, at + bytes);
        at += bytes;
    }
    n += (size_t)snprintf(header + n, sizeof(header) - n, "}");
    snprintf(path, sizeof(path), "%s/%u.safetensors", f->dir, shard);
    to = fopen(path, "w");
    assert_non_null(to);
    store_le64(length, n);
    assert_int_equal(fwrite(length, 1, sizeof(length), to), sizeof(length));
    assert_int_equal(fwrite(header, 1, n, to), n);
    for (uint32_t i = 0, x = shard; i < at; i++) {
        x = x * 1664525 + 1013904223;
        fputc(x >> 26, to);
    }
    assert_int_equal(fclose(to), 0);
}

static void write_index(const struct fixture *f)
{
    char text[2048];
    size_t n = (size_t)snprintf(text, sizeof(text), "{\"weight_map\":{");

    for (unsigned i = 0; i < N_ELEMS(stored_as); i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s\"%s\":\"%u.safetensors\"",
                              i ? "," : "", stored_as[i].name, stored_as[i].shard);
    snprintf(text + n, sizeof(text) - n, "}}");
    write_text(f, "model.safetensors.index.json", text);
}

/* Whole tensors first, then runs of rows anywhere. */
static void choose_spans(struct fixture *f)
{
    uint32_t x = 7;

    for (unsigned i = 0; i < SPANS; i++) {
        const struct source_tensor *t = checkpoint_find(f->c, logical[i % N_ELEMS(logical)]);

        assert_non_null(t);
        f->span[i] = (struct row_span){t, 0, t->rows};
        if (i < N_ELEMS(logical))
            continue;
        x = x * 1664525 + 1013904223;
        f->span[i].row = (x >> 8) % t->rows;
        x = x * 1664525 + 1013904223;
        f->span[i].n = 1 + (x >> 8) % (t->rows - f->span[i].row);
    }
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err e;

    assert_non_null(f);
    snprintf(f->dir, sizeof(f->dir), "/tmp/test_row_stream.XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    write_text(f, "config.json", "{\"quantization_config\":{\"weight_block_size\":[32,24]}}");
    write_shard(f, 0);
    write_shard(f, 1);
    write_index(f);
    assert_int_equal(checkpoint_open(&f->c, f->dir, &e), 0);
    choose_spans(f);
    f->want = malloc(FLOATS * sizeof(float));
    f->got = malloc(FLOATS * sizeof(float));
    assert_true(f->want && f->got);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char command[128];

    checkpoint_close(f->c);
    snprintf(command, sizeof(command), "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f->want);
    free(f->got);
    free(f);
    return 0;
}

/* Not asserts of cmocka's: other threads ask, too. */
static bool takes_the_same(struct fixture *f, struct row_stream *s, unsigned i, float *want,
                           float *got)
{
    const struct row_span *x = &f->span[i];
    struct err e;

    return !checkpoint_read(f->c, x->tensor, x->row, x->n, want, &e) &&
           !row_stream_take(s, i, got, &e) &&
           !memcmp(want, got, x->n * x->tensor->cols * sizeof(float));
}

static void each_span_is_what_checkpoint_read_gives(void **state)
{
    static const unsigned windows[] = {1, 2, 7, SPANS, 5000};
    struct fixture *f = *state;
    struct row_stream *s;
    struct err e;

    for (unsigned i = 0; i < 2 * N_ELEMS(windows); i++) {
        assert_int_equal(row_stream_open(&s, f->c, f->span, SPANS, windows[i / 2], i % 2, &e), 0);
        for (unsigned k = 0; k < SPANS; k++)
            assert_true(takes_the_same(f, s, k, f->want, f->got));
        row_stream_close(s);
    }
}

struct takers {
    struct fixture *f;
    struct row_stream *s;
    atomic_uint next, same;
};

/* Two spans an item, the later one first: what the window has to allow for. */
static void *take_pairs(void *arg)
{
    struct takers *t = arg;
    float *want = malloc(FLOATS * sizeof(float)), *got = malloc(FLOATS * sizeof(float));
    unsigned i;

    while ((i = atomic_fetch_add(&t->next, 2)) < SPANS) {
        t->same += takes_the_same(t->f, t->s, i + 1, want, got);
        t->same += takes_the_same(t->f, t->s, i, want, got);
    }
    free(want);
    free(got);
    return NULL;
}

static void threads_take_in_their_own_order_what_the_window_holds(void **state)
{
    struct takers t = {.f = *state};
    pthread_t thread[THREADS];
    struct err e;

    assert_int_equal(row_stream_open(&t.s, t.f->c, t.f->span, SPANS, 2 * THREADS, true, &e), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, take_pairs, &t), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    row_stream_close(t.s);
    assert_int_equal(t.same, SPANS);
}

static void what_is_not_taken_is_dropped(void **state)
{
    struct fixture *f = *state;
    struct row_stream *s;
    struct err e;

    for (unsigned taken = 0; taken < 5; taken++) {
        assert_int_equal(row_stream_open(&s, f->c, f->span, SPANS, 3, true, &e), 0);
        for (unsigned i = 0; i < taken; i++)
            assert_true(takes_the_same(f, s, i, f->want, f->got));
        row_stream_close(s);
    }
    row_stream_close(NULL);
}

static void a_shard_that_has_become_shorter_is_named_and_the_others_still_come(void **state)
{
    struct fixture *f = *state;
    struct row_span span[3];
    struct row_stream *s;
    char path[128];
    struct err e;

    for (unsigned direct = 0; direct < 2; direct++) {
        write_shard(f, 0);
        for (unsigned i = 0; i < 3; i++) {
            const struct source_tensor *t = checkpoint_find(f->c, i == 1 ? "full" : "last");

            span[i] = (struct row_span){t, 0, t->rows};
        }
        snprintf(path, sizeof(path), "%s/0.safetensors", f->dir);
        assert_int_equal(truncate(path, 8192), 0);
        assert_int_equal(row_stream_open(&s, f->c, span, 3, 2, direct, &e), 0);
        assert_int_equal(row_stream_take(s, 0, f->got, &e), 0);
        assert_int_equal(row_stream_take(s, 1, f->got, &e), ERR_IO);
        assert_non_null(strstr(e.text, "full"));
        assert_non_null(strstr(e.text, "0.safetensors"));
        assert_non_null(strstr(e.text, "shorter"));
        assert_int_equal(row_stream_take(s, 2, f->got, &e), 0);
        row_stream_close(s);
    }
}

static void a_value_that_is_not_finite_costs_its_span_alone(void **state)
{
    struct fixture *f = *state;
    const struct source_tensor *t = checkpoint_find(f->c, "last");
    struct row_span span[2] = {{t, t->rows - 1, 1}, {t, 0, t->rows - 1}};
    struct row_stream *s;
    char path[128];
    struct err e;
    int fd;

    snprintf(path, sizeof(path), "%s/1.safetensors", f->dir);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x80\x7f", 2, lseek(fd, 0, SEEK_END) - 2), 2);
    close(fd);
    assert_int_equal(row_stream_open(&s, f->c, span, 2, 2, true, &e), 0);
    assert_int_equal(row_stream_take(s, 0, f->got, &e), ERR_CORRUPT);
    assert_string_equal(e.text, "last: non-finite value at [39][76]");
    assert_int_equal(row_stream_take(s, 1, f->got, &e), 0);
    row_stream_close(s);
}

static void a_reclaimed_shard_is_refused_by_the_tensors_name(void **state)
{
    struct fixture *f = *state;
    struct row_stream *s = NULL;
    struct err e;

    checkpoint_shard_close(f->c, 1);
    assert_int_equal(row_stream_open(&s, f->c, f->span, SPANS, 4, true, &e), ERR_IO);
    assert_non_null(strstr(e.text, "x: its shard 1.safetensors was reclaimed"));
    assert_null(s);
}

static void memory_that_is_refused_fails_the_open(void **state)
{
    struct fixture *f = *state;
    struct err e;
    bool failed = true;

    for (unsigned nth = 1; failed; nth++) {
        struct row_stream *s = NULL;
        int rc;

        alloc_fault_arm(nth);
        rc = row_stream_open(&s, f->c, f->span, SPANS, 3, true, &e);
        failed = alloc_fault_disarm();
        if (rc) {
            assert_true(failed && !s);
            assert_true(e.code == ERR_NOMEM || e.code == ERR_IO);
            continue;
        }
        assert_true(takes_the_same(f, s, 0, f->want, f->got)); /* an engine less, at most */
        row_stream_close(s);
        assert_true(nth > 5);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(each_span_is_what_checkpoint_read_gives),
        TEST(threads_take_in_their_own_order_what_the_window_holds),
        TEST(what_is_not_taken_is_dropped),
        TEST(a_shard_that_has_become_shorter_is_named_and_the_others_still_come),
        TEST(a_value_that_is_not_finite_costs_its_span_alone),
        TEST(a_reclaimed_shard_is_refused_by_the_tensors_name),
        TEST(memory_that_is_refused_fails_the_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
