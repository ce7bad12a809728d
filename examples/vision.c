/* vision.c - a question about a picture.
 *
 *     ./vision MODEL PICTURE "What is this?" [TOKENS]
 *
 * MODEL has to have a vision tower (Kimi K3, or a synthetic one: waste synth tiny.waste
 * --shape tiny-k3 --vision). The request is JSON, as for chat.c; a part of a message says that
 * there is a picture and how large it is, and the picture itself is handed to the session in the
 * order of the parts.
 */
#include <errno.h>
#include <inttypes.h>
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

/* A request with one message: a picture, then the question. Freed by the caller; NULL: no memory.
 */
static char *request(const char *question, uint32_t width, uint32_t height)
{
    char *json = malloc(256 + 6 * strlen(question)), *to = json;

    if (!json)
        return NULL;
    to += sprintf(to,
                  "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", "
                  "\"width\": %u, \"height\": %u}, {\"type\": \"text\", \"text\": \"",
                  width, height);
    for (const char *at = question; *at; at++) /* a JSON string */
        to += (unsigned char)*at < ' '    ? sprintf(to, "\\u%04x", (unsigned char)*at)
              : *at == '"' || *at == '\\' ? sprintf(to, "\\%c", *at)
                                          : sprintf(to, "%c", *at);
    strcpy(to, "\"}]}]}");
    return json;
}

static int on_token(const waste_token_info *info, const char *piece, void *user)
{
    (void)info, (void)user;
    return fputs(piece, stdout) < 0 || fflush(stdout);
}

/* The prompt has one place for the picture; it needs as many as the picture has rows. */
static int answer(waste_ctx *ctx, const waste_prompt_info *prompt, uint32_t n_rows, int32_t end_id,
                  uint32_t n_tokens)
{
    size_t n, room = prompt->n_ids + n_rows;
    int32_t *ids = malloc(room * sizeof(*ids));
    waste_gen_params params;
    int rc = 0;

    if (!ids)
        return fprintf(stderr, "out of memory\n"), 1;
    waste_gen_params_init(&params);
    params.max_tokens = n_tokens;
    params.stop_tokens = &end_id;
    params.n_stop = 1;
    if (waste_image_expand(ctx, prompt->ids, prompt->n_ids, ids, room, &n) != WASTE_OK)
        rc = fail(ctx, "picture");
    else if (waste_generate(ctx, ids, n, &params, on_token, NULL) != WASTE_OK)
        rc = fail(ctx, "generate");
    free(ids);
    return rc;
}

/* Calls without a context leave their sentence with the thread: waste_error_detail(NULL). */
static int ask(waste_ctx *ctx, const char *model, const char *picture, const char *question,
               uint32_t n_tokens)
{
    waste_chat_info info = {.size = sizeof(info)};
    waste_prompt_info rendered = {.size = sizeof(rendered)};
    waste_chat *chat = NULL;
    waste_prompt *prompt = NULL;
    char *json = NULL;
    uint32_t width, height, n_rows;
    int rc;

    if (waste_image_dimensions(picture, &width, &height) != WASTE_OK)
        return fail(NULL, picture);
    if (waste_image_add(ctx, picture, &n_rows) != WASTE_OK)
        return fail(ctx, picture);
    fprintf(stderr, "%s: %u x %u pixels, %u positions\n", picture, width, height, n_rows);
    json = request(question, width, height);
    if (!json)
        rc = (fprintf(stderr, "out of memory\n"), 1);
    else if (waste_chat_open(waste_tokenizer_of(ctx), model, NULL, &chat) != WASTE_OK ||
             waste_chat_get_info(chat, &info) != WASTE_OK ||
             waste_chat_render(chat, json, strlen(json), &prompt) != WASTE_OK ||
             waste_prompt_get_info(prompt, &rendered) != WASTE_OK)
        rc = fail(NULL, model);
    else
        rc = answer(ctx, &rendered, n_rows, info.end_id, n_tokens);
    waste_prompt_close(prompt);
    waste_chat_close(chat);
    free(json);
    return rc;
}

int main(int argc, char **argv)
{
    waste_cfg cfg;
    waste_ctx *ctx;
    uint64_t n_tokens = 64;
    int rc;

    if (argc < 4 || argc > 5)
        return fprintf(stderr, "usage: %s MODEL PICTURE QUESTION [TOKENS]\n", argv[0]), 2;
    if (argc > 4 && number(&n_tokens, argv[4], 1, UINT32_MAX))
        return 2;
    waste_cfg_init(&cfg);
    cfg.vision = 1; /* plans for the tower, and reads it */
    if (waste_open(argv[1], &cfg, &ctx) != WASTE_OK)
        return fail(NULL, argv[1]);
    rc = ask(ctx, argv[1], argv[2], argv[3], (uint32_t)n_tokens);
    putchar('\n');
    waste_close(ctx);
    return rc;
}
