/* text.c - continue a text, token by token, to standard output.
 *
 *     ./text MODEL "Once upon a time" [TOKENS]
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <waste.h>

static int on_token(const waste_token_info *info, const char *piece, void *user)
{
    (void)info, (void)user;
    return fputs(piece, stdout) < 0 || fflush(stdout); /* anything but 0 stops */
}

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

/* As many ids as there are bytes will always do. */
static int write_on(waste_ctx *ctx, const char *text, uint32_t n_tokens)
{
    size_t n_ids, room = strlen(text) + 1;
    int32_t *ids = malloc(room * sizeof(*ids));
    waste_gen_params params;
    int rc = 0;

    if (!ids)
        return fprintf(stderr, "out of memory\n"), 1;
    waste_gen_params_init(&params); /* temperature 0: the likeliest token, always the same text */
    params.max_tokens = n_tokens;
    if (waste_tokenize(ctx, text, 0, ids, room, &n_ids) != WASTE_OK)
        rc = fail(ctx, "prompt");
    else if (waste_generate(ctx, ids, n_ids, &params, on_token, NULL) != WASTE_OK)
        rc = fail(ctx, "generate");
    free(ids);
    return rc;
}

int main(int argc, char **argv)
{
    waste_ctx *ctx;
    uint64_t n_tokens = 64;
    int rc;

    if (argc < 3 || argc > 4)
        return fprintf(stderr, "usage: %s MODEL PROMPT [TOKENS]\n", argv[0]), 2;
    if (argc > 3 && number(&n_tokens, argv[3], 1, UINT32_MAX))
        return 2;
    if (waste_open(argv[1], NULL, &ctx) != WASTE_OK)
        return fail(NULL, argv[1]);
    rc = write_on(ctx, argv[2], (uint32_t)n_tokens);
    waste_close(ctx);
    putchar('\n');
    return rc;
}
