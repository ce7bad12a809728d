/* sampler.c - choose tokens yourself, from the logits.
 *
 *     ./sampler MODEL PROMPT [TOKENS [TEMPERATURE [SEED]]]
 *
 * The Gumbel-max trick: the token with the largest logit / temperature + noise is a draw from the
 * softmax, without computing one. waste_step feeds ids and gives back logits; what is fed next is
 * the host's business.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waste.h>

static int fail(const waste_ctx *ctx, const char *what)
{
    const char *why = waste_error_detail(ctx);

    if (why && !strncmp(why, what, strlen(what)))
        fprintf(stderr, "%s\n", why); /* it names the file already */
    else
        fprintf(stderr, "%s: %s\n", what, why ? why : "failed");
    return 1;
}

/* strtoull alone would take -3, for a very large number, and 12x for 12. */
static int number(uint64_t *out, const char *text, uint64_t least, uint64_t most)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *out >= least && *out <= most)
        return 0;
    fprintf(stderr, "%s: not a number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
    return 2;
}

static int real(double *out, const char *text)
{
    char *end;

    *out = strtod(text, &end);
    if (*text && !*end && *out >= 0 && *out <= DBL_MAX)
        return 0;
    fprintf(stderr, "%s: not a number from 0 up\n", text);
    return 2;
}

/* splitmix64; in (0, 1) */
static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((double)((z ^ (z >> 31)) >> 12) + 0.5) / 4503599627370496.0;
}

static int32_t choose(const float *logits, uint32_t vocab, double temperature, uint64_t *seed)
{
    int32_t best = 0;
    double most = -INFINITY;

    for (uint32_t i = 0; i < vocab; i++) {
        double value = logits[i];

        if (temperature > 0)
            value = value / temperature - log(-log(uniform(seed)));
        if (value > most) {
            most = value;
            best = (int32_t)i;
        }
    }
    return best;
}

/* Feed all of these; a long prompt takes several passes. The logits behind the last one, good until
 * the next step; NULL: failed. */
static const float *feed(waste_ctx *ctx, const int32_t *ids, size_t n)
{
    waste_item item = {.size = sizeof(item),
                       .want = WASTE_WANT_LOGITS,
                       .session = waste_session_default(ctx),
                       .ids = ids,
                       .n_ids = n};

    for (;;) {
        if (waste_step(ctx, &item, 1) != WASTE_OK || item.status != WASTE_OK) {
            fail(ctx, "step");
            return NULL;
        }
        if (item.stop == WASTE_STOP_CONTEXT) {
            fprintf(stderr, "\nthe context is full\n");
            return NULL;
        }
        if (item.n_done == item.n_ids)
            return item.logits;
        item.ids += item.n_done;
        item.n_ids -= item.n_done;
    }
}

static int write_on(waste_ctx *ctx, const int32_t *ids, size_t n, unsigned n_tokens,
                    double temperature, uint64_t seed)
{
    const waste_tokenizer *t = waste_tokenizer_of(ctx);
    waste_engine engine = {.size = sizeof(engine)};
    const float *logits = feed(ctx, ids, n);

    if (waste_engine_info(ctx, &engine) != WASTE_OK)
        return fail(ctx, "engine");
    for (unsigned i = 0; logits && i < n_tokens; i++) {
        int32_t id = choose(logits, engine.vocab, temperature, &seed);
        const char *bytes;
        size_t len;

        if (waste_token_is_control(t, id)) /* the end of a message, or of the text */
            return 0;
        if (waste_token_bytes(t, id, &bytes, &len) == WASTE_OK)
            fwrite(bytes, 1, len, stdout);
        logits = feed(ctx, &id, 1);
    }
    return logits ? 0 : 1;
}

int main(int argc, char **argv)
{
    waste_ctx *ctx;
    int32_t ids[1024];
    uint64_t n_tokens = 64, seed = 0;
    double temperature = 0;
    size_t n;
    int rc;

    if (argc < 3 || argc > 6)
        return fprintf(stderr, "usage: %s MODEL PROMPT [TOKENS [TEMPERATURE [SEED]]]\n", argv[0]),
               2;
    if ((argc > 3 && number(&n_tokens, argv[3], 1, UINT32_MAX)) ||
        (argc > 4 && real(&temperature, argv[4])) ||
        (argc > 5 && number(&seed, argv[5], 0, UINT64_MAX)))
        return 2;
    if (waste_open(argv[1], NULL, &ctx) != WASTE_OK)
        return fail(NULL, argv[1]);
    if (waste_tokenize(ctx, argv[2], 0, ids, 1024, &n) != WASTE_OK)
        rc = fail(ctx, "prompt");
    else
        rc = write_on(ctx, ids, n, (unsigned)n_tokens, temperature, seed);
    putchar('\n');
    waste_close(ctx);
    return rc;
}
