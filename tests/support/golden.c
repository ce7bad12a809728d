#include "tests/support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

static void die(const char *what, const char *path)
{
    fprintf(stderr, "golden %s: %s\n", path, what);
    abort();
}

static void *take(struct bytes *b, size_t n, const char *path)
{
    const uint8_t *p = bytes_take(b, n * 4);

    if (!p)
        die("too short", path);
    return (void *)(uintptr_t)p;
}

void golden_open(struct golden *g, const char *path)
{
    FILE *f = fopen(path, "rb");
    struct bytes b;
    long n = 0;

    if (!f || fseek(f, 0, SEEK_END) || (n = ftell(f)) < 24 || fseek(f, 0, SEEK_SET))
        die("cannot read", path);
    memset(g, 0, sizeof(*g));
    g->file = malloc((size_t)n);
    if (!g->file || fread(g->file, 1, (size_t)n, f) != (size_t)n)
        die("cannot read", path);
    fclose(f);
    b = bytes_of(g->file, (size_t)n);
    if (memcmp(bytes_take(&b, 8), "WGOLD1\0", 8))
        die("not a golden file", path);
    g->n_tokens = bytes_u32(&b);
    g->n_layers = bytes_u32(&b);
    g->hidden = bytes_u32(&b);
    g->vocab = bytes_u32(&b);
    g->ids = take(&b, g->n_tokens, path);
    g->x = take(&b, (size_t)g->n_layers * g->n_tokens * g->hidden, path);
    g->normed = take(&b, (size_t)g->n_tokens * g->hidden, path);
    g->logits = take(&b, (size_t)g->n_tokens * g->vocab, path);
    g->n_moe = bytes_u32(&b);
    g->top_k = bytes_u32(&b);
    g->expert = take(&b, (size_t)g->n_moe * g->n_tokens * g->top_k, path);
    g->n_kda = bytes_u32(&b);
    g->heads = bytes_u32(&b);
    g->dim = bytes_u32(&b);
    g->state = take(&b, (size_t)g->n_kda * g->heads * g->dim * g->dim, path);
    if (b.bad || b.at != b.end)
        die("wrong length", path);
}

void golden_close(struct golden *g)
{
    free(g->file);
}

double relative_error(const float *a, const float *b, unsigned n)
{
    double diff = 0, norm = 0;

    for (unsigned i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}
