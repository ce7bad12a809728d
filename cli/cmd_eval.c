/* cli/cmd_eval.c - what the model expects next: the likeliest tokens, or every logit. */
#include "cli/cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/load.h"
#include "cli/perplexity.h"
#include "cli/prompt.h"
#include "cli/safe.h"

enum { ROWS_DEFAULT = 10 };

struct eval {
    struct cli *c;
    waste_ctx *ctx;
    const waste_tokenizer *tokenizer; /* NULL: none */
    struct ids prompt;
    const float *logits; /* [vocab], the engine's */
    size_t vocab;
    struct logit {
        float value;
        int32_t id;
    } * order;      /* [vocab], falling */
    double log_sum; /* log of the sum of exp(logit) */
    size_t rows;
};

static int falling(const void *a, const void *b)
{
    const struct logit *x = a, *y = b;

    if (x->value != y->value)
        return x->value < y->value ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int rank_logits(struct eval *v)
{
    double sum = 0;

    v->order = malloc(v->vocab * sizeof(*v->order));
    if (!v->order)
        return fail(v->c, EXIT_MEMORY, NULL, "eval", "no memory for %zu logits", v->vocab);
    for (size_t i = 0; i < v->vocab; i++) {
        if (isnan(v->logits[i]))
            return fail(v->c, EXIT_RUNTIME, NULL, "eval", "the logit of token %zu is not a number",
                        i);
        v->order[i] = (struct logit){v->logits[i], (int32_t)i};
    }
    qsort(v->order, v->vocab, sizeof(*v->order), falling);
    for (size_t i = v->vocab; i-- > 0;) /* the small ones first */
        sum += exp((double)v->order[i].value - v->order[0].value);
    v->log_sum = log(sum) + v->order[0].value;
    v->rows = v->c->opts.top_k < 0 ? ROWS_DEFAULT : (size_t)v->c->opts.top_k;
    if (!v->rows || v->rows > v->vocab)
        v->rows = v->vocab;
    return 0;
}

static json_t *row_text(const struct eval *v, int32_t id)
{
    const char *bytes;
    size_t len;

    if (!v->tokenizer || waste_token_bytes(v->tokenizer, id, &bytes, &len) != WASTE_OK)
        return json_string("");
    return json_text(bytes, len);
}

static int print_json(const struct eval *v)
{
    json_t *top = json_array(), *all;
    json_t *o = json_pack("{s:I, s:I, s:O}", "prompt_tokens", (json_int_t)v->prompt.n, "vocab",
                          (json_int_t)v->vocab, "top", top);

    for (size_t i = 0; i < v->rows; i++) {
        const struct logit *x = &v->order[i];

        json_array_append_new(top, json_pack("{s:i, s:o, s:o, s:o}", "id", x->id, "logit",
                                             json_f64(x->value), "prob",
                                             json_f64(exp((double)x->value - v->log_sum)), "text",
                                             row_text(v, x->id)));
    }
    json_decref(top);
    if (v->c->opts.logits) {
        all = json_array();
        for (size_t i = 0; i < v->vocab; i++)
            json_array_append_new(all, json_f64(v->logits[i]));
        json_object_set_new(o, "logits", all);
    }
    return say_json(v->c, o);
}

/* Text on one line: what would move the cursor is shown as an escape. */
static void print_row(const struct eval *v, const struct logit *x)
{
    json_t *text = row_text(v, x->id);
    char *quoted = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL, safe[1024];

    printf("%8d %12.4f %9.6f  %s\n", x->id, x->value, exp((double)x->value - v->log_sum),
           quoted ? safe_text(safe, sizeof(safe), quoted, strlen(quoted), "") : "");
    free(quoted);
    json_decref(text);
}

static int print_table(const struct eval *v)
{
    printf("%8s %12s %9s  %s\n", "id", "logit", "prob", "text");
    for (size_t i = 0; i < v->rows; i++)
        print_row(v, &v->order[i]);
    for (size_t i = 0; v->c->opts.logits && i < v->vocab; i++)
        printf("%zu %.9g\n", i, v->logits[i]);
    return term_flush(&v->c->term) ? 0 : fail_output(v->c);
}

static int evaluate(struct eval *v)
{
    waste_status st;
    int rc = ids_check(v->c, v->ctx, v->prompt.id, v->prompt.n);

    if (rc)
        return rc;
    model_banner(v->c, v->ctx);
    v->tokenizer = waste_tokenizer_of(v->ctx);
    st = waste_eval(v->ctx, v->prompt.id, v->prompt.n, &v->logits, &v->vocab);
    bar_end(&v->c->bar);
    if (st != WASTE_OK)
        return fail_status(v->c, st, v->ctx, "eval");
    if (!v->vocab)
        return fail(v->c, EXIT_RUNTIME, NULL, "eval", "the model has no vocabulary");
    rc = rank_logits(v);
    if (!rc)
        rc = v->c->opts.json ? print_json(v) : print_table(v);
    free(v->order);
    return rc;
}

int cmd_eval(struct cli *c)
{
    struct eval v = {.c = c};
    char path[PATH_MAX];
    int rc;

    if (c->opts.perplexity)
        return perplexity(c);
    rc = model_find(c, c->opts.arg[1], path);
    if (!rc)
        rc = model_check(c, path);
    if (!rc)
        rc = prompt_read(c, path, 2, TEXT_PROMPT, &v.prompt);
    if (!rc)
        rc = prompt_fits(c, v.prompt.n);
    if (!rc)
        rc = model_open(c, path, &v.ctx);
    if (!rc) {
        rc = evaluate(&v);
        model_learn(c, v.ctx, path);
        model_close(v.ctx);
    }
    free(v.prompt.id);
    return rc;
}
