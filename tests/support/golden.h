/* tests/support/golden.h - read an oracle's output file (format in tests/golden/README.md). */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <stdint.h>

struct golden {
    uint32_t n_tokens, n_layers, hidden, vocab, n_moe, top_k, n_kda, heads, dim;
    int32_t *ids;
    float *x;        /* [n_layers][n_tokens][hidden] after each layer */
    float *normed;   /* [n_tokens][hidden] */
    float *logits;   /* [n_tokens][vocab] */
    int32_t *expert; /* [n_moe][n_tokens][top_k] in selection order */
    float *state;    /* [n_kda][heads][dim][dim] */
    void *file;
};

void golden_open(struct golden *g, const char *path); /* asserts on failure */
void golden_close(struct golden *g);

/* |a - b| / |b| over n floats, L2. */
double relative_error(const float *a, const float *b, unsigned n);

#endif
