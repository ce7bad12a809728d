/* api_text.c - text and ids: a part of waste.h (see context.h). A waste_tokenizer is a
 * struct tokenizer; hosts see only the name. */
#include <stdlib.h>
#include <string.h>

#include "model/context.h"
#include "model/stop.h"
#include "model/utf8.h"

enum { STOPS_MAX = 4096 };

static const struct tokenizer *in(const waste_tokenizer *t)
{
    return (const struct tokenizer *)(const void *)t;
}

waste_status waste_tokenizer_open(const char *path, waste_tokenizer **out)
{
    struct tokenizer *t;
    struct err e = {0};

    if (!path || !out) {
        err_set(&e, ERR_ARG, "waste_tokenizer_open: path and out are needed");
        return thread_fail(&e);
    }
    *out = NULL;
    if (tokenizer_open(&t, path, 0, &e))
        return thread_fail(&e);
    *out = (waste_tokenizer *)(void *)t;
    return WASTE_OK;
}

void waste_tokenizer_close(waste_tokenizer *t)
{
    tokenizer_close((struct tokenizer *)(void *)t);
}

waste_tokenizer *waste_tokenizer_of(waste_ctx *ctx)
{
    return ctx ? (waste_tokenizer *)(void *)ctx->tokenizer : NULL;
}

waste_status waste_encode(const waste_tokenizer *t, int mode, const char *text, size_t len,
                          int32_t *out, size_t cap, size_t *n_out)
{
    struct err e = {0};

    if (!t || (!text && len) || !n_out || (mode != WASTE_CONTENT && mode != WASTE_MARKUP)) {
        err_set(&e, ERR_ARG, "waste_encode: tokenizer, text, n_out and a known mode are needed");
        return thread_fail(&e);
    }
    if (tokenizer_encode(in(t), mode == WASTE_MARKUP ? TOKEN_MARKUP : TOKEN_CONTENT,
                         text ? text : "", len, out, cap, n_out, &e))
        return thread_fail(&e);
    return WASTE_OK;
}

size_t waste_encode_block(const char *text, size_t len, int end)
{
    return text ? tokenizer_chunk(text, len, end != 0) : 0;
}

waste_status waste_decode(const waste_tokenizer *t, const int32_t *ids, size_t n, char *out,
                          size_t cap, size_t *n_out)
{
    struct err e = {0};

    if (!t || (!ids && n) || !n_out) {
        err_set(&e, ERR_ARG, "waste_decode: tokenizer, ids and n_out are needed");
        return thread_fail(&e);
    }
    if (tokenizer_decode(in(t), ids, n, out, cap, n_out, &e))
        return thread_fail(&e);
    return WASTE_OK;
}

waste_status waste_token_bytes(const waste_tokenizer *t, int32_t id, const char **bytes,
                               size_t *len)
{
    if (!t || !bytes || !len || !tokenizer_token_bytes(in(t), id, bytes, len))
        return ctx_refuse(NULL, "waste_token_bytes: an id that has bytes is needed");
    return WASTE_OK;
}

int32_t waste_token_bos(const waste_tokenizer *t)
{
    return t ? tokenizer_bos(in(t)) : -1;
}

int waste_token_is_control(const waste_tokenizer *t, int32_t id)
{
    return t && tokenizer_is_special(in(t), id);
}

size_t waste_utf8_feed(waste_utf8 *u, const char *bytes, size_t len, int end, char *out)
{
    struct utf8 s = {.n_held = u->n_held <= 3 ? u->n_held : 0};
    size_t n;

    memcpy(s.held, u->held, 3);
    n = utf8_feed(&s, bytes, len, out);
    if (end)
        n += utf8_flush(&s, out + n);
    memcpy(u->held, s.held, 3);
    u->n_held = (uint32_t)s.n_held;
    return n;
}

static waste_status encode_with(waste_ctx *ctx, int mode, const char *text, int add_bos,
                                int32_t *out, size_t cap, size_t *n_out)
{
    struct err e = {0};
    size_t bos = add_bos ? 1 : 0;
    waste_status st = ctx_enter(ctx);

    if (st != WASTE_OK)
        return st;
    if (!text || !n_out || (!out && cap))
        return ctx_refuse(ctx, "waste_tokenize: text, n_out and room for cap ids are needed");
    *n_out = 0;
    if (!ctx->tokenizer)
        return ctx_fail(ctx, &ctx->no_tokenizer);
    if (bos && cap)
        out[0] = tokenizer_bos(ctx->tokenizer);
    if (tokenizer_encode(ctx->tokenizer, mode == WASTE_MARKUP ? TOKEN_MARKUP : TOKEN_CONTENT, text,
                         strlen(text), cap > bos ? out + bos : NULL, cap > bos ? cap - bos : 0,
                         n_out, &e)) {
        *n_out += bos;
        return ctx_fail(ctx, &e);
    }
    *n_out += bos;
    if (*n_out > cap) {
        err_set(&e, ERR_ARG, "%zu ids do not fit into room for %zu", *n_out, cap);
        return ctx_fail(ctx, &e);
    }
    return WASTE_OK;
}

waste_status waste_tokenize(waste_ctx *ctx, const char *text, int add_bos, int32_t *out, size_t cap,
                            size_t *n_out)
{
    return encode_with(ctx, WASTE_CONTENT, text, add_bos, out, cap, n_out);
}

waste_status waste_tokenize_markup(waste_ctx *ctx, const char *text, int add_bos, int32_t *out,
                                   size_t cap, size_t *n_out)
{
    return encode_with(ctx, WASTE_MARKUP, text, add_bos, out, cap, n_out);
}

waste_status waste_detokenize(waste_ctx *ctx, const int32_t *ids, size_t n, char *out, size_t cap,
                              size_t *n_out)
{
    struct err e = {0};
    waste_status st = ctx_enter(ctx);

    if (st != WASTE_OK)
        return st;
    if ((!ids && n) || !n_out || (!out && cap))
        return ctx_refuse(ctx, "waste_detokenize: ids, n_out and room for cap bytes are needed");
    if (!ctx->tokenizer)
        return ctx_fail(ctx, &ctx->no_tokenizer);
    if (tokenizer_decode(ctx->tokenizer, ids, n, cap ? out : NULL, cap ? cap - 1 : 0, n_out, &e))
        return ctx_fail(ctx, &e);
    if (*n_out + 1 > cap) {
        err_set(&e, ERR_ARG, "%zu bytes and a NUL do not fit into room for %zu", *n_out, cap);
        return ctx_fail(ctx, &e);
    }
    out[*n_out] = 0;
    return WASTE_OK;
}

/* ---- stop strings ---- */

waste_status waste_stops_open(const waste_text *strings, size_t n, waste_stops **out)
{
    struct stop *s;
    struct err e;

    if (!out || (n && !strings) || n > STOPS_MAX)
        return ctx_refuse(NULL, "waste_stops_open: out, and at most 4096 strings are needed");
    if (stop_open(&s, strings, (unsigned)n, &e))
        return thread_fail(&e);
    *out = (waste_stops *)s;
    return WASTE_OK;
}

void waste_stops_close(waste_stops *s)
{
    stop_close((struct stop *)s);
}

size_t waste_stops_room(const waste_stops *s, size_t len)
{
    return len + stop_held_max((const struct stop *)s);
}

size_t waste_stops_feed(waste_stops *s, const char *bytes, size_t len, int end, char *out,
                        int32_t *matched)
{
    struct stop *stop = (struct stop *)s;
    int found;
    size_t n = stop_feed(stop, bytes, len, out, &found);

    if (found < 0 && end)
        n += stop_flush(stop, out + n);
    *matched = found;
    return n;
}
