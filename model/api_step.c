/* api_step.c - passes: a part of waste.h (see context.h). */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "model/context.h"

enum {
    WANT_LOGITS = WASTE_WANT_TOKEN | WASTE_WANT_LOGITS, /* of the last row */
    WANT_ALL = WANT_LOGITS | WASTE_WANT_ID_LOGPROBS,
    ITEM_BYTES_MIN = offsetof(waste_item, next_ids), /* of hosts that know no logprobs */
};

struct step { /* the items of one call */
    waste_ctx *ctx;
    waste_item *first;
    size_t n, stride;
    size_t done0; /* ids fed by passes before this one */
};

static waste_item *item(const struct step *s, size_t i)
{
    return (waste_item *)(void *)((char *)s->first + i * s->stride);
}

static int item_refuse(waste_item *it, struct err *e)
{
    it->status = status_of(e->code);
    return e->code;
}

static int next_ids_check(const struct step *s, size_t i, struct err *e)
{
    const waste_item *it = item(s, i);
    unsigned vocab = s->ctx->model.hp.vocab;

    if (s->stride < offsetof(waste_item, n_next) + sizeof(it->n_next))
        return err_set(e, ERR_ARG,
                       "item %zu: id logprobs are wanted, but items[0].size = %zu ends before them "
                       "(%zu expected)",
                       i, s->stride, sizeof(*it));
    if (!it->next_ids || !it->id_logprobs)
        return err_set(e, ERR_ARG, "item %zu: id logprobs are wanted, but %s is NULL", i,
                       it->next_ids ? "id_logprobs" : "next_ids");
    if (it->n_next < it->n_ids)
        return err_set(e, ERR_ARG,
                       "item %zu: id logprobs are wanted, n_next = %zu is less than n_ids = %zu", i,
                       it->n_next, it->n_ids);
    for (size_t k = 0; k < it->n_ids; k++)
        if (it->next_ids[k] < -1 || (it->next_ids[k] >= 0 && (unsigned)it->next_ids[k] >= vocab))
            return err_set(e, ERR_ARG,
                           "item %zu: next id %d at %zu is outside the vocabulary of %u (-1: none)",
                           i, it->next_ids[k], k, vocab);
    return 0;
}

static int items_check(const struct step *s, struct err *e)
{
    const waste_ctx *ctx = s->ctx;

    for (size_t i = 0; i < s->n; i++) {
        waste_item *it = item(s, i);

        it->status = WASTE_OK;
        it->n_done = 0;
        if (!it->session || it->session->ctx != ctx || !it->session->s.open) {
            err_set(e, ERR_ARG, "item %zu: not an open session of this context", i);
            return item_refuse(it, e);
        }
        for (size_t j = 0; j < i; j++)
            if (item(s, j)->session == it->session) {
                err_set(e, ERR_ARG, "items %zu and %zu are of one session", j, i);
                return item_refuse(it, e);
            }
        if (it->want & ~(uint32_t)WANT_ALL) {
            err_set(e, ERR_ARG, "item %zu: want = %u has unknown bits", i, it->want);
            return item_refuse(it, e);
        }
        if (!it->ids || !it->n_ids) {
            err_set(e, ERR_ARG, "item %zu: nothing to feed", i);
            return item_refuse(it, e);
        }
        for (size_t k = 0; k < it->n_ids; k++)
            if (it->ids[k] < 0 || (unsigned)it->ids[k] >= ctx->model.hp.vocab) {
                err_set(e, ERR_ARG, "item %zu: id %d at %zu is outside the vocabulary of %u", i,
                        it->ids[k], k, ctx->model.hp.vocab);
                return item_refuse(it, e);
            }
        if (images_check(it->session, it->ids, it->n_ids, false, e)) {
            err_wrap(e, "item %zu", i);
            return item_refuse(it, e);
        }
        if (it->want & WASTE_WANT_ID_LOGPROBS && next_ids_check(s, i, e))
            return item_refuse(it, e);
    }
    return 0;
}

/* Pictures to rows, before there is a pass. */
static int items_see(const struct step *s, struct err *e)
{
    for (size_t i = 0; i < s->n; i++) {
        waste_item *it = item(s, i);
        const struct session *se = &it->session->s;

        if (it->n_ids > se->ctx - se->pos) /* the pass will refuse it */
            continue;
        if (images_encode(it->session, it->ids, it->n_ids, e))
            return e->code;
    }
    return 0;
}

static bool has_top(const struct step *s)
{
    return s->stride >= offsetof(waste_item, n_top) + sizeof(size_t);
}

static void item_clear(const struct step *s, waste_item *it)
{
    if (has_top(s)) {
        it->top = NULL;
        it->n_top = 0;
    }
    it->n_done = 0;
    it->token = -1;
    it->logprob = 0;
    it->stop = 0;
    it->logits = NULL;
}

/* The ids whose log probabilities an item wants, beside its rows [row0, row0 + n). */
static void score_take(const waste_item *it, unsigned n, struct rows *rows, int32_t *score)
{
    bool wanted = it->want & WASTE_WANT_ID_LOGPROBS;

    for (unsigned i = 0; i < n; i++)
        score[rows->n + i] = wanted ? it->next_ids[i] : -1;
    if (wanted)
        rows->score = score;
}

/* Rows from the items in order until the pass is full; cancelled and overflowing items get none.
 * An item's ids are read here and never again: they may be its own `token`. */
static void rows_take(const struct step *s, struct rows *rows)
{
    waste_ctx *ctx = s->ctx;

    *rows = (struct rows){.span = ctx->span, .token = ctx->token, .image = ctx->image_row};
    for (size_t i = 0; i < s->n; i++) {
        waste_item *it = item(s, i);
        struct session *se = &it->session->s;
        size_t n = it->n_ids, room = ctx->plan.rows - rows->n;

        n = n < room ? n : room;
        memcpy(ctx->token + rows->n, it->ids, n * sizeof(*ctx->token));
        item_clear(s, it);
        if (atomic_exchange(&se->cancel, false)) {
            it->status = WASTE_E_CANCELLED;
            continue;
        }
        if (it->n_ids > se->ctx - se->pos) {
            it->stop = WASTE_STOP_CONTEXT;
            continue;
        }
        if (!n)
            continue;
        images_name(it->session, ctx->token + rows->n, n,
                    ctx->image_row ? ctx->image_row + rows->n : NULL);
        rows->span[rows->n_spans++] = (struct span){
            .session = se,
            .row0 = rows->n,
            .n = (unsigned)n,
            .pos0 = se->pos,
            .logits = n == it->n_ids && it->want & WANT_LOGITS,
        };
        score_take(it, (unsigned)n, rows, ctx->score);
        rows->n += (unsigned)n;
        it->n_done = n;
    }
}

/* The ids this session chose itself in the last repeat_window positions, those of this pass
 * included, newest last: what penalties look at. */
static unsigned recent_ids(const struct span *sp, int32_t first_id)
{
    const struct session *se = sp->session;
    unsigned window = se->sampler.repeat_window, end = sp->pos0 + sp->n, n = 0;
    unsigned first = end > window ? end - window : 0;

    for (unsigned i = first; i < sp->pos0; i++)
        if (se->made[i])
            se->recent[n++] = se->ids[i];
    if (first <= sp->pos0 && first_id == se->choice)
        se->recent[n++] = first_id;
    return n;
}

bool ctx_ends_turn(const waste_ctx *ctx, const struct session *se, int32_t id)
{
    for (unsigned i = 0; i < ctx->n_stop; i++)
        if (ctx->stop[i] == id)
            return true;
    for (unsigned i = 0; i < se->sampler.n_stop; i++)
        if (se->sampler.stop[i] == id)
            return true;
    return false;
}

static void item_top(const waste_ctx *ctx, waste_item *it, const float *logits)
{
    waste_logprob *top = ctx->top + (it->session - ctx->session) * SAMPLER_TOP_MAX;
    int32_t id[SAMPLER_TOP_MAX];
    float logprob[SAMPLER_TOP_MAX];
    unsigned n =
        sampler_top(logits, ctx->model.hp.vocab, it->session->s.sampler.n_top, id, logprob);

    for (unsigned i = 0; i < n; i++)
        top[i] = (waste_logprob){.id = id[i], .logprob = logprob[i]};
    it->top = top;
    it->n_top = n;
}

/* What the host wanted to know of a finished item. Before anything is committed: a logit that is
 * not finite ends the pass like any other damage. */
static int item_choose(const struct step *s, waste_item *it, const struct span *sp,
                       const float *logits, struct err *e)
{
    waste_ctx *ctx = s->ctx;
    struct session *se = sp->session;
    bool fed = ctx->token[sp->row0] == se->choice, done = false;
    int32_t due = think_limit_due(&it->session->limit);
    unsigned n;

    if (!sp->logits)
        return 0;
    it->logits = it->want & WASTE_WANT_LOGITS ? logits : NULL;
    if (!(it->want & WASTE_WANT_TOKEN)) {
        for (unsigned i = 0; i < ctx->model.hp.vocab; i++)
            if (!isfinite(logits[i]))
                return err_set(e, ERR_CORRUPT,
                               "position %u: logit %u is not finite; some weight or state is "
                               "damaged",
                               sp->pos0 + sp->n, i);
        return 0;
    }
    n = recent_ids(sp, ctx->token[sp->row0]);
    if (grammar_before(it->session, fed, e) ||
        sampler_choose(&se->sampler, logits, ctx->model.hp.vocab, se->recent, n, sp->pos0 + sp->n,
                       ctx->act.choose, &it->token, &it->logprob, e))
        return e->code;
    if (due >= 0) {
        it->token = due;
        it->logprob = sampler_logprob(logits, ctx->model.hp.vocab, due);
    }
    if (grammar_after(it->session, fed, it->token, &done, e)) {
        if (due >= 0)
            err_wrap(e, "close_ids");
        return item_refuse(it, e);
    }
    it->stop = ctx_ends_turn(ctx, se, it->token) ? WASTE_STOP_ID : done ? WASTE_STOP_GRAMMAR : 0;
    if (has_top(s) && se->sampler.n_top)
        item_top(ctx, it, logits);
    return 0;
}

static int pass(const struct step *s, struct rows *rows, struct err *e)
{
    waste_ctx *ctx = s->ctx;
    struct run r = {
        .rows = rows,
        .model = &ctx->model,
        .experts = ctx->experts,
        .act = &ctx->act,
        .team = ctx->team,
        .progress = &ctx->progress,
        .done0 = s->done0,
        .poll = ctx_poll,
        .poll_arg = ctx,
        .lookahead = ctx->lookahead,
        .laps = &ctx->laps,
        .route = ctx->trace && rows->n == 1 ? route_trace_tap(ctx->trace) : NULL,
    };
    unsigned n = 0;
    int rc;

    team_begin(ctx->team);
    rc = forward(&r, e);

    for (size_t i = 0; !rc && i < s->n; i++) {
        waste_item *it = item(s, i);

        if (!it->n_done)
            continue;
        rc = item_choose(s, it, &rows->span[n], ctx->act.logits + (size_t)n * ctx->model.hp.vocab,
                         e);
        n++;
    }
    team_end(ctx->team);
    if (!rc && r.route)
        rc = route_trace_write(ctx->trace, rows->span[0].pos0, e);
    return rc;
}

/* ERR_ARG is one item's fault, which has it already. */
static void items_undo(const struct step *s, int code)
{
    for (size_t i = 0; i < s->n; i++) {
        waste_item *it = item(s, i);

        if (!it->n_done)
            continue;
        item_clear(s, it);
        if (code != ERR_ARG)
            it->status = status_of(code);
        if (code == ERR_CANCELLED)
            atomic_store(&it->session->s.cancel, false);
    }
}

/* The results of rows from row0 on, to where the host wants them. */
static void logprobs_give(const waste_ctx *ctx, const waste_item *it, unsigned row0)
{
    for (size_t i = 0; it->want & WASTE_WANT_ID_LOGPROBS && i < it->n_done; i++)
        if (ctx->score[row0 + i] >= 0)
            it->id_logprobs[i] = ctx->act.logprob[row0 + i];
}

static void items_commit(const struct step *s)
{
    const struct span *sp = s->ctx->span;

    for (size_t i = 0; i < s->n; i++) {
        waste_item *it = item(s, i);
        struct session *se = &it->session->s;
        unsigned row0;

        if (!it->n_done)
            continue;
        row0 = sp++->row0;                         /* spans are the items that got rows, in order */
        if (atomic_exchange(&se->cancel, false)) { /* others wanted the pass; this one does not */
            item_clear(s, it);
            it->status = WASTE_E_CANCELLED;
            continue;
        }
        grammar_commit(it->session, s->ctx->token[row0] == se->choice, it->token >= 0);
        session_commit(se, s->ctx->token + row0, (unsigned)it->n_done);
        images_committed(it->session, s->ctx->token + row0, it->n_done);
        logprobs_give(s->ctx, it, row0);
        se->choice = it->token;
        if (it->token >= 0)
            think_limit_chosen(&it->session->limit, it->token);
    }
}

/* Forward and commit; the counters of what it took. */
static int step_run(const struct step *s, struct err *e)
{
    waste_ctx *ctx = s->ctx;
    struct rows rows;
    uint64_t t0 = now_ns();
    double sec;
    int rc;

    rows_take(s, &rows);
    if (!rows.n)
        return 0;
    if (container_check_trunk(ctx->container, e)) {
        items_undo(s, e->code);
        return e->code;
    }
    ctx->items = s->first;
    ctx->n_items = s->n;
    ctx->item_stride = s->stride;
    ctx->running = true;
    ctx->laps.last_ns = t0;
    rc = pass(s, &rows, e);
    ctx_relieve(ctx);
    ctx->running = false;
    ctx->n_items = 0;
    sec = (double)(now_ns() - t0) * 1e-9;
    if (rows.n > rows.n_spans)
        ctx->counters.sec_prefill += sec;
    else
        ctx->counters.sec_decode += sec;
    if (rc) {
        items_undo(s, rc);
        return rc;
    }
    items_commit(s);
    if (rows.n > rows.n_spans)
        ctx->counters.prefill_tokens += rows.n;
    else
        ctx->counters.decode_tokens += rows.n;
    return 0;
}

static void step_begin(waste_ctx *ctx, enum phase phase, uint64_t total)
{
    struct pool_stats s;

    preload_end(ctx);
    ctx_pool_stats(ctx, &s);
    ctx->bytes0 = s.bytes;
    progress_begin(&ctx->progress, phase, total);
}

/* Cancelled before it began, or while it ran: the flag is spent either way. */
waste_status step_end(waste_ctx *ctx, int rc, struct err *e)
{
    if (rc == ERR_CANCELLED)
        atomic_store(&ctx->progress.cancel, false);
    progress_begin(&ctx->progress, PHASE_IDLE, 0);
    return rc ? ctx_fail(ctx, e) : WASTE_OK;
}

waste_status waste_step(waste_ctx *ctx, waste_item *items, size_t n_items)
{
    struct err e = {0};
    struct step s = {.ctx = ctx, .first = items, .n = n_items};
    waste_status st = ctx_enter(ctx);
    size_t rows = 0;

    if (st != WASTE_OK)
        return st;
    if (!items || !n_items || n_items > ctx->n_sessions || items->size < ITEM_BYTES_MIN ||
        items->size % _Alignof(waste_item) || items->size > 65536) {
        err_set(&e, ERR_ARG, "%zu items (1...%u sessions), items[0].size = %u (%zu expected)",
                n_items, ctx->n_sessions, items ? items->size : 0, sizeof(waste_item));
        return ctx_fail(ctx, &e);
    }
    s.stride = items->size;
    if (items_check(&s, &e))
        return ctx_fail(ctx, &e);
    for (size_t i = 0; i < n_items; i++)
        rows += item(&s, i)->n_ids;
    if (items_see(&s, &e))
        return step_end(ctx, e.code, &e);
    step_begin(ctx, rows > n_items ? PHASE_PREFILL : PHASE_DECODE, rows);
    return step_end(ctx, step_run(&s, &e), &e);
}

int step_feed(waste_ctx *ctx, waste_item *it, struct err *e)
{
    struct step s = {.ctx = ctx, .first = it, .n = 1, .stride = sizeof(*it)};
    size_t total = it->n_ids, fed = 0;
    const int32_t *ids = it->ids;

    if (items_check(&s, e) || items_see(&s, e))
        return e->code;
    step_begin(ctx, total > 1 ? PHASE_PREFILL : PHASE_DECODE, total);
    while (fed < total) {
        it->ids = ids + fed;
        it->n_ids = total - fed;
        if (step_run(&s, e))
            return e->code;
        if (it->status == WASTE_E_CANCELLED)
            return err_set(e, ERR_CANCELLED, "the session was cancelled");
        fed += it->n_done;
        s.done0 = fed;
    }
    return 0;
}
