/* tests/model/heard.h - an answer, as a host's on_token is told it. */
#ifndef TESTS_MODEL_HEARD_H
#define TESTS_MODEL_HEARD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/model/models.h"

enum { N_MOST = 64 };

struct heard { /* what on_token was told */
    unsigned n, stop_after;
    int32_t id[N_MOST];
    float logprob[N_MOST];
    char text[1024];
    waste_ctx *ctx;
    unsigned cancel_at;
};

static inline int on_token(const waste_token_info *info, const char *piece, void *user)
{
    struct heard *h = user;

    assert_int_equal(info->token_index, h->n);
    assert_true(info->ms_total >= 0 && info->ms_io >= 0 && info->ms_io <= info->ms_total + 1);
    h->id[h->n] = info->token;
    h->logprob[h->n++] = info->logprob;
    strncat(h->text, piece, sizeof(h->text) - strlen(h->text) - 1);
    if (h->cancel_at && h->n == h->cancel_at)
        waste_cancel(h->ctx);
    return h->stop_after && h->n == h->stop_after;
}

static inline struct heard generate(waste_ctx *ctx, const struct golden *g, unsigned n,
                                    unsigned max, float temperature, uint64_t seed)
{
    struct heard h = {.ctx = ctx};
    waste_gen_params p;

    waste_gen_params_init(&p);
    p.max_tokens = max;
    p.temperature = temperature;
    p.seed = seed;
    if (waste_generate(ctx, g->ids, n, &p, on_token, &h) != WASTE_OK)
        fail_msg("generate: %s", waste_error_detail(ctx));
    return h;
}

#endif
