#include "cli/perplexity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/load.h"
#include "cli/stream.h"

struct scoring {
    struct cli *c;
    waste_ctx *ctx;
    const waste_tokenizer *tokenizer;
    struct stream text;
    struct ids ids; /* the first predicts the next; the last is only predicted, so far */
    size_t at;      /* ids fed */
    float *logprob; /* [max_rows] */
    size_t max_rows, positions;
    uint64_t bytes_read; /* before the text */

    uint64_t tokens, bytes; /* predicted */
    uint64_t stretches;
    double nats, seconds;
};

static uint64_t bytes_read(const waste_ctx *ctx)
{
    waste_counters n = {.size = sizeof(n)};

    waste_get_counters(ctx, &n);
    return n.bytes_read;
}

/* A full pass of ids and the one behind it, unless the text ends before. */
static int refill(struct scoring *s)
{
    size_t before = s->ids.n + 1;

    while (s->ids.n - s->at <= s->max_rows && s->ids.n != before) {
        int rc;

        s->ids.n -= s->at;
        memmove(s->ids.id, s->ids.id + s->at, s->ids.n * sizeof(*s->ids.id));
        s->at = 0;
        before = s->ids.n;
        rc = stream_more(&s->text, s->tokenizer, &s->ids);
        if (rc)
            return rc;
    }
    return 0;
}

static void count(struct scoring *s, size_t n)
{
    const int32_t *next = s->ids.id + s->at + 1;

    for (size_t i = 0; i < n; i++) {
        const char *bytes;
        size_t len;

        s->nats -= s->logprob[i];
        if (waste_token_bytes(s->tokenizer, next[i], &bytes, &len) == WASTE_OK)
            s->bytes += len;
    }
    s->at += n;
    s->tokens += n;
}

static int pass(struct scoring *s, size_t n)
{
    waste_session *session = waste_session_default(s->ctx);
    size_t pos = waste_session_pos(session);
    waste_item item = {.size = sizeof(item),
                       .want = WASTE_WANT_ID_LOGPROBS,
                       .session = session,
                       .ids = s->ids.id + s->at,
                       .next_ids = s->ids.id + s->at + 1,
                       .id_logprobs = s->logprob};
    uint64_t total = stream_total(&s->text);
    waste_status st;

    if (pos == s->positions) {
        waste_session_reset(session);
        pos = 0;
    }
    s->stretches += !pos;
    item.n_ids = n < s->positions - pos ? n : s->positions - pos;
    item.n_next = item.n_ids;
    s->c->prompt_done = s->tokens;
    s->c->prompt_total = total ? total - 1 + (s->c->opts.bos != 0) : 0;
    s->c->prompt_bytes = bytes_read(s->ctx) - s->bytes_read;
    st = waste_step(s->ctx, &item, 1);
    if (st != WASTE_OK)
        return fail_status(s->c, st, s->ctx, "eval");
    count(s, item.n_done);
    return 0;
}

static int feed(struct scoring *s)
{
    uint64_t begun = clock_ns();
    int rc = 0;

    s->bytes_read = bytes_read(s->ctx);
    s->c->prompt_label = "text";
    while (!rc) {
        size_t left;

        rc = refill(s);
        left = rc ? 0 : s->ids.n - s->at - 1;
        if (!left)
            break;
        rc = pass(s, left < s->max_rows ? left : s->max_rows);
    }
    bar_end(&s->c->bar);
    s->c->prompt_label = NULL;
    s->seconds = (double)(clock_ns() - begun) * 1e-9;
    return rc;
}

static int print(const struct scoring *s)
{
    struct cli *c = s->c;
    double per_token = s->nats / (double)s->tokens;
    double per_byte = s->nats / M_LN2 / (double)s->bytes;
    double rate = (double)s->tokens / s->seconds;

    if (c->opts.json)
        return say_json(c,
                        json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "tokens",
                                  (json_int_t)s->tokens, "bytes", (json_int_t)s->bytes, "context",
                                  (json_int_t)s->positions, "stretches", (json_int_t)s->stretches,
                                  "nats", json_f64(s->nats), "perplexity", json_f64(exp(per_token)),
                                  "bits_per_token", json_f64(per_token / M_LN2), "bits_per_byte",
                                  json_f64(per_byte), "seconds", json_f64(s->seconds),
                                  "tokens_per_second", json_f64(rate)));
    printf("%llu tokens, %llu bytes: perplexity %.3f, %.4f bits per token, %.4f bits per byte\n",
           (unsigned long long)s->tokens, (unsigned long long)s->bytes, exp(per_token),
           per_token / M_LN2, per_byte);
    if (!term_flush(&c->term))
        return fail_output(c);
    note(c, "%llu stretch%s of at most %zu positions; %.1f s, %.*f tokens per second",
         (unsigned long long)s->stretches, s->stretches == 1 ? "" : "es", s->positions, s->seconds,
         rate < 10 ? 2 : 0, rate);
    return 0;
}

static int evaluate(struct scoring *s)
{
    waste_engine engine = {.size = sizeof(engine)};
    waste_model_info info;
    int rc = ids_check(s->c, s->ctx, s->ids.id, s->ids.n);

    if (rc)
        return rc;
    model_banner(s->c, s->ctx);
    waste_engine_info(s->ctx, &engine);
    waste_model_get_info(s->ctx, &info);
    s->tokenizer = waste_tokenizer_of(s->ctx);
    s->max_rows = engine.max_rows;
    s->positions = info.ctx_max;
    s->logprob = malloc(s->max_rows * sizeof(*s->logprob));
    if (!s->logprob)
        return fail(s->c, EXIT_MEMORY, NULL, "eval", "no memory for %zu figures", s->max_rows);
    rc = feed(s);
    return rc ? rc : print(s);
}

/* The first block, with a tokenizer of its own: a text that cannot be read or is too short is said
 * before the model is opened. */
static int begin(struct scoring *s, const char *path)
{
    waste_tokenizer *t;
    waste_status st = waste_tokenizer_open(path, &t);
    int rc = 0;

    if (st != WASTE_OK)
        return fail_tokenizer(s->c, st, path);
    if (s->c->opts.bos) {
        s->ids.id = malloc(sizeof(*s->ids.id));
        if (!s->ids.id)
            rc = fail(s->c, EXIT_MEMORY, NULL, "eval", "no memory for a token");
        else
            s->ids.id[s->ids.n++] = waste_token_bos(t);
    }
    if (!rc)
        rc = stream_more(&s->text, t, &s->ids);
    waste_tokenizer_close(t);
    if (!rc && s->ids.n < 2)
        rc = fail(s->c, EXIT_USAGE, NULL, s->c->opts.perplexity,
                  "%zu token%s: two are the least that can be predicted", s->ids.n,
                  plural(s->ids.n));
    return rc;
}

int perplexity(struct cli *c)
{
    struct scoring s = {.c = c};
    char path[PATH_MAX];
    int rc;

    if (c->opts.n_args > 2 || c->opts.file || c->opts.ids || c->opts.logits)
        return fail(c, EXIT_USAGE, NULL, "--perplexity",
                    "goes without a text, --file, --ids and --logits");
    rc = model_find(c, c->opts.arg[1], path);
    if (!rc)
        rc = model_check(c, path);
    if (!rc)
        rc = stream_open(&s.text, c, c->opts.perplexity);
    if (rc)
        return rc;
    rc = begin(&s, path);
    if (!rc)
        rc = model_open(c, path, &s.ctx);
    if (!rc) {
        rc = evaluate(&s);
        model_learn(c, s.ctx, path);
        model_close(s.ctx);
    }
    stream_close(&s.text);
    free(s.ids.id);
    free(s.logprob);
    return rc;
}
