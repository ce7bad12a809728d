#include "cli/pictures.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES_MAX = 64 << 20 }; /* as the library has it */

static int no_memory(struct cli *c)
{
    return fail(c, EXIT_MEMORY, NULL, c->command, "no memory for the prompt's ids");
}

static int add_all(struct cli *c, waste_ctx *ctx)
{
    for (unsigned i = 0; i < c->opts.n_images; i++) {
        uint32_t rows;
        waste_status st = waste_image_add(ctx, c->opts.image[i], &rows);

        if (st != WASTE_OK)
            return fail_status(c, st, ctx, "--image");
        note(c, "image    %s: %u positions", c->opts.image[i], rows);
    }
    return 0;
}

static size_t places(const struct ids *ids, int32_t pad)
{
    size_t n = 0;

    for (size_t i = 0; i < ids->n; i++)
        n += ids->id[i] == pad;
    return n;
}

/* The block of one picture behind ids[*at]; *at moves past it. */
static int insert_block(struct cli *c, const waste_tokenizer *t, const char *path, struct ids *ids,
                        size_t *at)
{
    uint32_t w, h;
    char text[128];
    int32_t block[128], *more;
    size_t n;

    if (waste_image_dimensions(path, &w, &h) != WASTE_OK)
        return fail(c, EXIT_RUNTIME, NULL, path, "%s", waste_error_detail(NULL));
    snprintf(text, sizeof(text),
             "<|media_begin|>image %ux%u<|media_content|><|media_pad|><|media_end|>", w, h);
    if (waste_encode(t, WASTE_MARKUP, text, strlen(text), block, 128, &n) != WASTE_OK)
        return fail(c, EXIT_UNSUPPORTED, NULL, "--image",
                    "the tokenizer has no such control tokens");
    more = realloc(ids->id, (ids->n + n) * sizeof(*more));
    if (!more)
        return no_memory(c);
    memmove(more + *at + n, more + *at, (ids->n - *at) * sizeof(*more));
    memcpy(more + *at, block, n * sizeof(*more));
    ids->id = more;
    ids->n += n;
    *at += n;
    return 0;
}

static int expand(struct cli *c, waste_ctx *ctx, struct ids *ids)
{
    size_t n = 0;
    int32_t *all;

    waste_image_expand(ctx, ids->id, ids->n, NULL, 0, &n); /* how many there will be */
    all = malloc((n ? n : 1) * sizeof(*all));
    if (!all)
        return no_memory(c);
    if (waste_image_expand(ctx, ids->id, ids->n, all, n, &n) != WASTE_OK) {
        free(all);
        return fail(c, EXIT_USAGE, NULL, "--image", "%s", waste_error_detail(ctx));
    }
    free(ids->id);
    ids->id = all;
    ids->n = n;
    return 0;
}

int pictures_place(struct cli *c, waste_ctx *ctx, struct ids *prompt)
{
    const waste_tokenizer *t = waste_tokenizer_of(ctx);
    size_t n_pad = 0, at = c->opts.bos && !c->opts.ids;
    int32_t pad;
    bool placed; /* by whoever wrote the prompt */
    int rc;

    if (!c->opts.n_images)
        return 0;
    if (!t || waste_encode(t, WASTE_MARKUP, "<|media_pad|>", 13, &pad, 1, &n_pad) != WASTE_OK)
        return fail(c, EXIT_UNSUPPORTED, NULL, "--image",
                    "this container's tokenizer has no <|media_pad|>");
    rc = add_all(c, ctx);
    placed = c->opts.ids || places(prompt, pad);
    for (unsigned i = 0; !rc && !placed && i < c->opts.n_images; i++)
        rc = insert_block(c, t, c->opts.image[i], prompt, &at);
    return rc ? rc : expand(c, ctx, prompt);
}

/* Bytes of fd up to its end, or so many. */
static ssize_t read_some(int fd, char *to, size_t room)
{
    size_t at = 0;
    ssize_t got = 1;

    while (at < room && got > 0) {
        got = text_some(fd, to + at, room - at);
        at += got > 0 ? (size_t)got : 0;
    }
    return got < 0 ? -1 : (ssize_t)at;
}

int picture_read(struct cli *c, const char *path, void **bytes, size_t *len)
{
    int fd, rc = text_open(c, path, &fd);
    struct stat st = {0};
    size_t room = BYTES_MAX + 1;
    ssize_t n;

    if (rc)
        return rc;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size < BYTES_MAX)
        room = (size_t)st.st_size + 1;
    *bytes = malloc(room);
    n = *bytes ? read_some(fd, *bytes, room) : 0;
    if (!*bytes)
        rc = fail(c, EXIT_MEMORY, NULL, path, "no memory for %zu bytes", room);
    else if (n < 0)
        rc = fail_read(c, path, errno);
    else if (n > BYTES_MAX)
        rc = fail(c, EXIT_UNSUPPORTED, NULL, path, "a picture has at most %d bytes", BYTES_MAX);
    if (fd)
        close(fd);
    if (rc)
        free(*bytes);
    *len = (size_t)n;
    return rc;
}

int picture_look(struct cli *c, const char *container, const char *path, waste_image_info *out)
{
    waste_status st;
    void *bytes;
    size_t len;
    int rc = picture_read(c, path, &bytes, &len);

    if (rc)
        return rc;
    out->size = sizeof(*out);
    st = waste_image_look(container, (uint32_t)c->opts.image_patches, bytes, len, out);
    free(bytes);
    if (st == WASTE_OK)
        return 0;
    return fail(c, exit_of_status(st), NULL, path, "%s", waste_error_detail(NULL));
}

int pictures_check(struct cli *c, const char *model)
{
    waste_image_info info;
    int rc = 0;

    for (unsigned i = 0; !rc && i < c->opts.n_images; i++)
        rc = picture_look(c, model, c->opts.image[i], &info);
    return rc;
}

/* By its whole path: a conversation that was saved is taken up from anywhere. */
static int attach(struct cli *c, const char *model, struct talk *talk, const char *path)
{
    waste_image_info info;
    char whole[PATH_MAX];
    struct err e;
    int rc;

    if (!realpath(path, whole))
        return fail(c, EXIT_RUNTIME, NULL, path, "%s", strerror(errno));
    rc = picture_look(c, model, whole, &info);
    if (rc)
        return rc;
    if (talk_attach(talk, whole, info.width, info.height, &e))
        return fail_err(c, &e, "--image");
    note(c, "image    %s: %u x %u, seen as %u x %u, %u positions", path, info.width, info.height,
         info.fit_width, info.fit_height, info.n_rows);
    return 0;
}

int pictures_attach(struct cli *c, const char *model, struct talk *talk)
{
    int rc = 0;

    for (unsigned i = 0; !rc && i < c->opts.n_images; i++)
        rc = attach(c, model, talk, c->opts.image[i]);
    return rc;
}

/* ---- pictures of messages ---- */

/* What a message calls a picture, as the path of a file. */
static int path_of(char path[PATH_MAX], const char *source, size_t len, struct err *e)
{
    static const char scheme[] = "file://";

    if (len >= sizeof(scheme) && !memcmp(source, scheme, sizeof(scheme) - 1)) {
        source += sizeof(scheme) - 1;
        len -= sizeof(scheme) - 1;
    } else if (memmem(source, len < 12 ? len : 12, "://", 3) ||
               (len > 5 && !memcmp(source, "data:", 5))) {
        return err_set(e, ERR_UNSUPPORTED, "\"%.*s...\": pictures are read from files alone",
                       (int)(len < 12 ? len : 12), source);
    }
    if (!len || len >= PATH_MAX || memchr(source, 0, len))
        return err_set(e, ERR_ARG, "a picture needs the path of its file");
    memcpy(path, source, len);
    path[len] = '\0';
    return 0;
}

static int size_of(const char *path, uint32_t *width, uint32_t *height, struct err *e)
{
    if (waste_image_dimensions(path, width, height) == WASTE_OK)
        return 0;
    return err_set(e, ERR_IO, "%s", waste_error_detail(NULL));
}

/* Its address, as waste_chat_render finds it; NULL: the part is no picture, or has none. */
static const json_t *source_of(const json_t *part)
{
    const json_t *at = json_object_get(part, "image_url");

    at = json_is_object(at) ? json_object_get(at, "url") : at;
    return at ? at : json_object_get(part, "image");
}

static int measure(json_t *part, struct err *e)
{
    const json_t *source = source_of(part);
    const json_t *inner = json_object_get(part, "image_url");
    char path[PATH_MAX];
    uint32_t w, h;

    if (!json_is_string(source) || json_object_get(part, "width") ||
        json_object_get(inner, "width"))
        return 0;
    if (path_of(path, json_string_value(source), json_string_length(source), e) ||
        size_of(path, &w, &h, e))
        return e->code;
    json_object_set_new(part, "width", json_integer(w));
    json_object_set_new(part, "height", json_integer(h));
    return 0;
}

int pictures_measure(json_t *messages, struct err *e)
{
    json_t *message, *part;
    size_t i, k;

    json_array_foreach(messages, i, message)
    {
        json_array_foreach(json_object_get(message, "content"), k, part)
        {
            if (measure(part, e))
                return err_wrap(e, "messages[%zu].content[%zu]", i, k);
        }
    }
    return 0;
}

static int see_one(waste_ctx *ctx, const waste_image_place *at, uint32_t *rows, struct err *e)
{
    char path[PATH_MAX];
    uint32_t w, h;

    if (path_of(path, at->source, at->len, e) || size_of(path, &w, &h, e))
        return e->code;
    if (w != at->width || h != at->height)
        return err_set(e, ERR_ARG, "%s: %u x %u pixels, but the message says %u x %u", path, w, h,
                       at->width, at->height);
    if (waste_image_add(ctx, path, rows) != WASTE_OK)
        return err_set(e, ERR_IO, "%s", waste_error_detail(ctx));
    return 0;
}

int pictures_see(waste_ctx *ctx, const waste_prompt_info *p, uint32_t *rows, int32_t **ids,
                 size_t *n, struct err *e)
{
    size_t all = p->n_ids;
    int32_t *out;

    if (p->n_images > WASTE_IMAGES_MAX)
        return err_set(e, ERR_LIMIT, "%zu pictures, a prompt has at most %d", p->n_images,
                       WASTE_IMAGES_MAX);
    waste_image_clear(ctx);
    for (size_t i = 0; i < p->n_images; i++) {
        if (see_one(ctx, &p->images[i], &rows[i], e))
            return err_wrap(e, "messages[%u].content[%u]", p->images[i].message, p->images[i].part);
        all += rows[i] - 1;
    }
    out = malloc(all * sizeof(*out));
    if (!out)
        return err_set(e, ERR_NOMEM, "%zu ids", all);
    if (waste_image_expand(ctx, p->ids, p->n_ids, out, all, n) != WASTE_OK) {
        free(out);
        return err_set(e, ERR_ARG, "%s", waste_error_detail(ctx));
    }
    *ids = out;
    return 0;
}
