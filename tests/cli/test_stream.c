/* test_stream.c - a text in blocks has the ids of the whole, whatever the file ends with and
 * however it arrives. */
#include "cli/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 1200000 };

static waste_tokenizer *tokenizer;
static char dir[] = "/tmp/waste-stream-XXXXXX", name[64], text[MOST];
static int32_t want[MOST];

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(name, sizeof(name), "%s/text", dir);
    return waste_tokenizer_open(GOLDEN_DIR "/kimi-linear.waste", &tokenizer);
}

static int teardown(void **state)
{
    (void)state;
    waste_tokenizer_close(tokenizer);
    unlink(name);
    return rmdir(dir);
}

/* n bytes of words and lines, the last `newlines` of them line ends. */
static void write_text(size_t n, size_t newlines)
{
    uint32_t x = 5;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        text[i] = i >= n - newlines ? (x >> 20) % 3 ? '\n' : '\r' : "etaoin \n"[x >> 29];
    }
    if (n && newlines)
        text[n - 1] = '\n';
}

/* To the file, or through a FIFO in pieces of `piece` bytes. */
struct writer {
    size_t n, piece;
};

static void *write_all(void *arg)
{
    const struct writer *w = arg;
    FILE *f = fopen(name, "w");

    assert_non_null(f);
    for (size_t at = 0; at < w->n; at += w->piece) {
        fwrite(text + at, 1, w->piece < w->n - at ? w->piece : w->n - at, f);
        fflush(f);
    }
    fclose(f);
    return NULL;
}

static void read_back(size_t bytes, const int32_t *ids, size_t n, bool fifo)
{
    struct cli c = {.command = "test"};
    struct ids got = {NULL, 0};
    struct stream s;
    size_t before;

    assert_int_equal(stream_open(&s, &c, name), 0);
    assert_int_equal(stream_total(&s), 0);
    do {
        before = got.n;
        assert_int_equal(stream_more(&s, tokenizer, &got), 0);
        assert_true(s.room <= 1 << 20); /* a block, not the text */
        if (!fifo && before < got.n)    /* one can tell from the size */
            assert_in_range(stream_total(&s), got.n, 2 * n + 1);
    } while (got.n != before);
    assert_int_equal(stream_total(&s), n);
    assert_int_equal(s.n_bytes, bytes);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.id, ids, n * sizeof(*ids));
    stream_close(&s);
    free(got.id);
}

static void the_ids_are_those_of_the_whole_text(void **state)
{
    static const struct {
        size_t n, newlines;
    } c[] = {{0, 0},      {1, 0},       {1, 1},      {5, 3},           {400000, 0},
             {400001, 1}, {400010, 20}, {900000, 7}, {1048576 + 9, 40}};

    (void)state;
    for (unsigned i = 0; i < sizeof(c) / sizeof(*c); i++) {
        struct writer w = {c[i].n, c[i].n > 100 ? 65521 : 1};
        size_t len = c[i].n, n;
        pthread_t thread;

        write_text(c[i].n, c[i].newlines);
        while (len && text[len - 1] == '\n') {
            len--;
            len -= len && text[len - 1] == '\r';
        }
        assert_int_equal(waste_encode(tokenizer, WASTE_CONTENT, text, len, want, MOST, &n), 0);
        unlink(name);
        write_all(&w);
        read_back(len, want, n, false);
        unlink(name);
        assert_int_equal(mkfifo(name, 0600), 0);
        assert_int_equal(pthread_create(&thread, NULL, write_all, &w), 0);
        read_back(len, want, n, true);
        pthread_join(thread, NULL);
    }
}

/* Line ends that may be the last ones are held back, though there be more than a block of them. */
static void line_ends_are_kept_where_text_follows(void **state)
{
    struct cli c = {.command = "test"};
    struct ids got = {NULL, 0};
    struct writer w = {1100001, 1 << 20};
    struct stream s;
    size_t n, before;

    (void)state;
    memset(text, '\n', w.n);
    text[0] = 'a';
    text[w.n - 1] = 'b';
    unlink(name);
    write_all(&w);
    assert_int_equal(waste_encode(tokenizer, WASTE_CONTENT, text, w.n, want, MOST, &n), 0);
    assert_int_equal(stream_open(&s, &c, name), 0);
    do {
        before = got.n;
        assert_int_equal(stream_more(&s, tokenizer, &got), 0);
    } while (got.n != before);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.id, want, n * sizeof(*want));
    stream_close(&s);
    free(got.id);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ids_are_those_of_the_whole_text),
        cmocka_unit_test(line_ends_are_kept_where_text_follows),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
