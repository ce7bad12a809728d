/* tests/model/models.h - the models that tests run: the oracle's four families and the golden mini
 * container in its two variants. */
#ifndef TESTS_MODELS_H
#define TESTS_MODELS_H

#include <stdbool.h>

#include "include/waste.h"
#include "tests/support/golden.h"

enum { N_MODELS = 6 };

struct test_model {
    const char *name;
    char dir[512];
    bool made; /* dir is ours, and goes with the group */
    struct golden gold;
};

/* Group set-up and teardown: all six, the mini containers written to temporary directories. */
extern struct test_model *models;
int models_setup(void **state);
int models_teardown(void **state);

/* Open with everything at its plainest: one thread, sync engine, no lookahead, floor budget. */
struct setup {
    unsigned threads, sessions, rows, ctx, checkpoints;
    int lookahead;
    uint64_t budget;
    const char *io, *numeric, *cpu, *policy, *usage;
    int buffered, no_verify;
};
waste_ctx *model_open(const char *dir, const struct setup *s); /* asserts */
uint64_t model_floor(const char *dir, const struct setup *s);

/* Names of the I/O engines in this build; NULL beyond. */
const char *model_engine(unsigned i);

/* Feed ids to the default session in passes of at most `cut`; logits of the last, borrowed. */
const float *model_feed(waste_ctx *ctx, const int32_t *ids, unsigned n, unsigned cut);

/* Everything a session's committed positions have left behind, in one piece of memory; free it. */
void *model_memory(waste_ctx *ctx, size_t *n);

#endif
