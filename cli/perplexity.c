#include "cli/perplexity.h"

#include <math.h>
#include <stdio.h>

#include "cli/load.h"

struct cost {
    uint64_t tokens, bytes; /* predicted */
    double nats;
};

static double surprise(const float *logits, size_t vocab, int32_t id)
{
    double sum = 0, most = logits[0];

    for (size_t i = 1; i < vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (size_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - most);
    return log(sum) + most - logits[id];
}

static int feed(struct cli *c, waste_ctx *ctx, const struct ids *text, struct cost *cost)
{
    const waste_tokenizer *tokenizer = waste_tokenizer_of(ctx);
    waste_session *session = waste_session_default(ctx);
    waste_engine engine = {.size = sizeof(engine)};
    waste_item item = {.size = sizeof(item), .want = WASTE_WANT_LOGITS, .session = session};

    waste_engine_info(ctx, &engine);
    bar_begin(&c->bar, "text", BAR_TOKENS);
    for (size_t i = 0; i + 1 < text->n; i++) {
        const char *bytes;
        size_t len = 0;
        waste_status st;

        item.ids = &text->id[i];
        item.n_ids = 1;
        st = waste_step(ctx, &item, 1);
        if (st == WASTE_OK && item.stop == WASTE_STOP_CONTEXT) {
            waste_session_reset(session);
            st = waste_step(ctx, &item, 1);
        }
        if (st != WASTE_OK) {
            bar_end(&c->bar);
            return fail_status(c, st, ctx, "eval");
        }
        cost->nats += surprise(item.logits, engine.vocab, text->id[i + 1]);
        cost->tokens++;
        if (tokenizer && waste_token_bytes(tokenizer, text->id[i + 1], &bytes, &len) == WASTE_OK)
            cost->bytes += len;
        bar_update(&c->bar, i + 1, text->n - 1, 0);
    }
    bar_end(&c->bar);
    return 0;
}

int perplexity_print(struct cli *c, waste_ctx *ctx, const struct ids *text)
{
    struct cost cost = {0};
    double per_token, per_byte;
    int rc;

    if (text->n < 2)
        return fail(c, EXIT_USAGE, NULL, "--perplexity", "%zu tokens: two are the least", text->n);
    rc = feed(c, ctx, text, &cost);
    if (rc)
        return rc;
    per_token = cost.nats / (double)cost.tokens;
    per_byte = cost.bytes ? cost.nats / M_LN2 / (double)cost.bytes : 0;
    if (c->opts.json)
        return say_json(c, json_pack("{s:I, s:I, s:o, s:o, s:o}", "tokens", (json_int_t)cost.tokens,
                                     "bytes", (json_int_t)cost.bytes, "perplexity",
                                     json_f64(exp(per_token)), "bits_per_token",
                                     json_f64(per_token / M_LN2), "bits_per_byte",
                                     json_f64(per_byte)));
    printf("%llu tokens, %llu bytes: perplexity %.3f, %.4f bits per token, %.4f bits per byte\n",
           (unsigned long long)cost.tokens, (unsigned long long)cost.bytes, exp(per_token),
           per_token / M_LN2, per_byte);
    return term_flush(&c->term) ? 0 : fail_output(c);
}
