/* api_state.c - checkpoints, saved states, the store of prefixes: a part of waste.h (see
 * context.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/context.h"

int states_open(waste_ctx *ctx, struct err *e)
{
    ctx->kind = (struct state_kind){.container = container_fingerprint(ctx->container),
                                    .trunk = trunk_crc(ctx->trunk)};
    snprintf(ctx->kind.numeric, sizeof(ctx->kind.numeric), "%s", profile_name(ctx->profile));
    snprintf(ctx->kind.arch, sizeof(ctx->kind.arch), "%s", ctx->facts.arch);
    if (ctx->plan.checkpoints &&
        mem_map(&ctx->mem, MEM_STATE, ctx->plan.checkpoints, true, &ctx->checkpoint_memory, e))
        return err_wrap(e, "checkpoints");
    room_init(&ctx->room, ctx->checkpoint_memory, ctx->plan.checkpoints);
    return 0;
}

void states_close(waste_ctx *ctx)
{
    while (ctx->checkpoint)
        waste_checkpoint_close(ctx->checkpoint);
    if (ctx->checkpoint_memory)
        mem_unmap(&ctx->mem, MEM_STATE, ctx->checkpoint_memory, ctx->plan.checkpoints);
}

/* ---- in memory ---- */

waste_status waste_checkpoint_take(waste_session *s, waste_checkpoint **out)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);
    struct err e = {0};
    waste_checkpoint *c;
    uint64_t bytes;

    if (st != WASTE_OK)
        return st;
    if (!out)
        return ctx_refuse(s->ctx, "waste_checkpoint_take: out is needed");
    c = calloc(1, sizeof(*c));
    if (!c) {
        err_set(&e, ERR_NOMEM, "a checkpoint");
        return ctx_fail(s->ctx, &e);
    }
    bytes = session_parts_bytes(s->s.hp, s->s.pos);
    if (!room_take(&s->ctx->room, &c->cell, bytes)) {
        free(c);
        err_set(
            &e, ERR_LIMIT,
            "a checkpoint of %u positions takes %.1f MiB, %.1f of the %.1f planned for them are "
            "free (opts.checkpoints)",
            s->s.pos, (double)bytes / (1 << 20),
            (double)(s->ctx->room.bytes - s->ctx->room.used) / (1 << 20),
            (double)s->ctx->room.bytes / (1 << 20));
        return ctx_fail(s->ctx, &e);
    }
    checkpoint_copy(&s->s, room_at(&s->ctx->room, &c->cell));
    c->ctx = s->ctx;
    c->pos = s->s.pos;
    c->choice = s->s.choice;
    c->next = s->ctx->checkpoint;
    s->ctx->checkpoint = c;
    *out = c;
    return WASTE_OK;
}

waste_status waste_checkpoint_restore(const waste_checkpoint *c, waste_session *s)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);
    struct err e = {0};

    if (st != WASTE_OK)
        return st;
    if (!c || c->ctx != s->ctx || !s->s.open)
        return ctx_refuse(s->ctx, "waste_checkpoint_restore: a checkpoint of this context and an "
                                  "open session are needed");
    if (answer_begin(s, &e))
        return ctx_fail(s->ctx, &e);
    checkpoint_apply(&s->s, room_at(&c->ctx->room, &c->cell), c->pos, c->choice);
    return WASTE_OK;
}

size_t waste_checkpoint_pos(const waste_checkpoint *c)
{
    return c ? c->pos : 0;
}

void waste_checkpoint_close(waste_checkpoint *c)
{
    waste_checkpoint **at;

    if (!c)
        return;
    room_give(&c->ctx->room, &c->cell);
    at = &c->ctx->checkpoint;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    free(c);
}

waste_status waste_session_truncate(waste_session *s, size_t pos)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);
    struct err e = {0};

    if (st != WASTE_OK)
        return st;
    if (pos > s->s.pos) {
        err_set(&e, ERR_ARG, "waste_session_truncate: position %zu, the session has %u", pos,
                s->s.pos);
        return ctx_fail(s->ctx, &e);
    }
    if (pos && pos < s->s.pos && s->s.hp->n_kda) {
        err_set(&e, ERR_UNSUPPORTED,
                "waste_session_truncate: %u layers have a recurrent state that cannot be cut from "
                "%u positions to %zu; restore a checkpoint, or feed the ids again",
                s->s.hp->n_kda, s->s.pos, pos);
        return ctx_fail(s->ctx, &e);
    }
    if (answer_begin(s, &e))
        return ctx_fail(s->ctx, &e);
    session_truncate(&s->s, (unsigned)pos);
    return WASTE_OK;
}

/* ---- in a file ---- */

waste_status waste_session_save(waste_session *s, const char *path, const void *note, size_t n_note)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);
    struct state_head h;
    struct err e = {0};

    if (st != WASTE_OK)
        return st;
    if (!path || (n_note && !note))
        return ctx_refuse(s->ctx, "waste_session_save: a path is needed, and the note it counts");
    state_head_of(&h, &s->s, &s->ctx->kind);
    if (state_write(path, &s->s, &h, note, n_note, STATE_FOR_PERSON, &e))
        return ctx_fail(s->ctx, &e);
    return WASTE_OK;
}

static int state_open(const char *path, int *fd, struct state_head *h, struct err *e)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return err_sys(e, errno, "%s", path);
    if (state_read_head(*fd, path, h, e)) {
        close(*fd);
        return e->code;
    }
    return 0;
}

waste_status waste_session_load(waste_session *s, const char *path)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);
    struct state_head h;
    struct err e = {0};
    int fd, rc;

    if (st != WASTE_OK)
        return st;
    if (!path)
        return ctx_refuse(s->ctx, "waste_session_load: a path is needed");
    if (state_open(path, &fd, &h, &e))
        return ctx_fail(s->ctx, &e);
    rc = state_fits(&h, path, &s->ctx->kind, s->s.hp, s->s.ctx, &e) ||
         state_verify(fd, path, &h, &e) || answer_begin(s, &e);
    if (!rc && state_load(fd, path, &h, &s->s, &e))
        rc = err_wrap(&e, "it changed or failed while it was read, and the session is empty now");
    close(fd);
    return rc ? ctx_fail(s->ctx, &e) : WASTE_OK;
}

waste_status waste_state_save(waste_ctx *ctx, const char *path)
{
    return waste_session_save(waste_session_default(ctx), path, NULL, 0);
}

waste_status waste_state_load(waste_ctx *ctx, const char *path)
{
    return waste_session_load(waste_session_default(ctx), path);
}

waste_status waste_state_read(const char *path, waste_state_info *out, void *note, size_t cap)
{
    waste_state_info r = {.size = sizeof(r)};
    struct state_head h;
    struct err e = {0};
    int fd;

    if (!path || !out || out->size < sizeof(uint32_t) || out->size > 65536)
        return ctx_refuse(NULL, "waste_state_read: path and out with its size set are needed");
    if (state_open(path, &fd, &h, &e))
        return thread_fail(&e);
    r.pos = h.pos;
    r.created = h.created;
    r.bytes = state_file_bytes(&h);
    r.note_bytes = h.note_bytes;
    memcpy(r.arch, h.kind.arch, sizeof(r.arch));
    memcpy(r.numeric, h.kind.numeric, sizeof(r.numeric));
    memcpy(r.engine, h.engine, sizeof(r.engine));
    if (note && cap < h.note_bytes)
        err_set(&e, ERR_ARG, "%s: a note of %llu bytes, there is room for %zu", path,
                (unsigned long long)h.note_bytes, cap);
    else if (note && h.note_bytes)
        state_read_note(fd, path, &h, note, &e);
    close(fd);
    give_sized(out, &r, sizeof(r));
    return e.code ? thread_fail(&e) : WASTE_OK;
}

/* ---- the store ---- */

void waste_store_cfg_init(waste_store_cfg *c)
{
    if (c)
        *c = (waste_store_cfg){.size = sizeof(*c), .every = 512};
}

waste_status waste_store_open(waste_ctx *ctx, const waste_store_cfg *cfg, waste_store **out)
{
    waste_status st = ctx_enter(ctx);
    struct prefix_config c;
    waste_store_cfg from;
    struct err e = {0};
    waste_store *s;

    if (st != WASTE_OK)
        return st;
    if (!out)
        return ctx_refuse(ctx, "waste_store_open: out is needed");
    *out = NULL;
    waste_store_cfg_init(&from);
    if (cfg && (cfg->size < sizeof(uint32_t) || cfg->size > 4096))
        return ctx_refuse(ctx, "waste_store_cfg.size: call waste_store_cfg_init first");
    if (cfg)
        memcpy(&from, cfg, cfg->size < sizeof(from) ? cfg->size : sizeof(from));
    c = (struct prefix_config){.kind = &ctx->kind,
                               .hp = &ctx->model.hp,
                               .room = &ctx->room,
                               .ctx = ctx->ctx_tokens,
                               .every = from.every,
                               .dir = from.dir,
                               .dir_bytes = from.dir_bytes};
    s = calloc(1, sizeof(*s));
    if (!s || prefix_open(&s->prefix, &c, &e)) {
        if (!s)
            err_set(&e, ERR_NOMEM, "a store");
        free(s);
        return ctx_fail(ctx, &e);
    }
    s->ctx = ctx;
    *out = s;
    return WASTE_OK;
}

void waste_store_close(waste_store *st)
{
    if (!st)
        return;
    prefix_close(st->prefix);
    free(st);
}

/* A call on a store and a session of its context. */
static waste_status store_enter(const waste_store *st, const waste_session *s, const char *tag)
{
    struct err e = {0};
    waste_status rc = ctx_enter(st ? st->ctx : NULL);

    if (rc != WASTE_OK)
        return rc;
    if (!s || s->ctx != st->ctx || !s->s.open)
        return ctx_refuse(st->ctx, "waste_store: an open session of its context is needed");
    if (tag && strnlen(tag, STATE_TAG_BYTES + 1) > STATE_TAG_BYTES) {
        err_set(&e, ERR_ARG, "a tag of more than %d bytes: two of them could be taken for one",
                STATE_TAG_BYTES);
        return ctx_fail(st->ctx, &e);
    }
    return WASTE_OK;
}

waste_status waste_store_keep(waste_store *st, waste_session *s, const char *tag, uint32_t flags)
{
    waste_status rc = store_enter(st, s, tag);
    struct err e = {0};

    if (rc != WASTE_OK)
        return rc;
    if (flags & ~(uint32_t)WASTE_KEEP_LONG)
        return ctx_refuse(st->ctx, "waste_store_keep: unknown flags");
    if (prefix_keep(st->prefix, &s->s, tag, flags & WASTE_KEEP_LONG, &e))
        return ctx_fail(st->ctx, &e);
    return WASTE_OK;
}

/* ids with the names of the pictures that wait, by which prefixes are compared; NULL: no memory. */
static int32_t *named_ids(const waste_session *s, const int32_t *ids, size_t n)
{
    int32_t *named = malloc((n ? n : 1) * sizeof(*named));

    if (named) {
        memcpy(named, ids, n * sizeof(*named));
        images_name(s, named, n, NULL);
    }
    return named;
}

waste_status waste_store_resume(waste_store *st, waste_session *s, const int32_t *ids, size_t n,
                                const char *tag, size_t *n_reused)
{
    waste_status rc = store_enter(st, s, tag);
    struct err e = {0};
    int32_t *named;
    unsigned k;

    if (rc != WASTE_OK)
        return rc;
    if (!ids || !n || !n_reused)
        return ctx_refuse(st->ctx, "waste_store_resume: ids and n_reused are needed");
    if (answer_begin(s, &e))
        return ctx_fail(st->ctx, &e);
    named = named_ids(s, ids, n);
    if (!named) {
        err_set(&e, ERR_NOMEM, "waste_store_resume: %zu ids", n);
        return ctx_fail(st->ctx, &e);
    }
    k = prefix_resume(st->prefix, &s->s, named, n, tag, &e);
    images_committed(s, named, k); /* their places are behind us */
    free(named);
    *n_reused = k;
    if (e.code)
        ctx_fail(st->ctx, &e);
    return WASTE_OK;
}

size_t waste_store_find(waste_store *st, const waste_session *s, const int32_t *ids, size_t n,
                        const char *tag)
{
    int32_t *named;
    size_t k;

    if (store_enter(st, s, tag) != WASTE_OK || !ids)
        return 0;
    named = named_ids(s, ids, n);
    k = named ? prefix_find(st->prefix, &s->s, named, n, tag) : 0;
    free(named);
    return k;
}

size_t waste_store_cut(const waste_store *st, size_t pos, const size_t *ends, size_t n_ends,
                       size_t n)
{
    return st ? prefix_cut(st->prefix, pos, ends, ends ? n_ends : 0, n) : n;
}

waste_status waste_store_get_info(const waste_store *st, waste_store_info *out)
{
    waste_store_info r = {.size = sizeof(r)};
    struct prefix_stats s;

    if (!st)
        return ctx_refuse(NULL, "waste_store_get_info: a store is needed");
    prefix_stats(st->prefix, &s);
    r.n_memory = s.n_memory;
    r.n_files = s.n_files;
    r.memory_bytes = s.memory_bytes;
    r.file_bytes = s.file_bytes;
    r.kept = s.kept;
    r.dropped = s.dropped;
    r.refused = s.refused;
    r.resumed = s.resumed;
    r.positions_saved = s.positions;
    return give_sized(out, &r, sizeof(r));
}
