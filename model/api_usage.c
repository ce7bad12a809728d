/* api_usage.c - the hotlist: read at open, preloaded until the first pass, saved when asked: a part
 * of waste.h (see context.h). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/thread.h"
#include "expertfs/hotlist.h"
#include "model/context.h"

static const char in_container[] = "usage.waste";

/* What the file says that the host named, or else the container's own; all cold if there is none.
 * Returns which was read, "" for none. */
static const char *usage_read(waste_ctx *ctx, struct hotlist *h)
{
    struct stat st;

    if (ctx->usage_path && !*ctx->usage_path)
        return ""; /* the host wants none */
    if (ctx->usage_path && hotlist_read(h, AT_FDCWD, ctx->usage_path))
        return ctx->usage_path;
    if (ctx->usage_path && !stat(ctx->usage_path, &st) && st.st_size && ctx->opts.log)
        ctx->opts.log(1, "the hotlist that was named is none: its bytes are ignored",
                      ctx->opts.user);
    return hotlist_read(h, container_dirfd(ctx->container), in_container) ? in_container : "";
}

/* The pool is the thread's until preload_end has joined it. */
static void *preload_thread(void *arg)
{
    waste_ctx *ctx = arg;
    struct preload *p = &ctx->preload;

    while (!atomic_load(&p->stop) && pool_idle(ctx->pool)) {
        pthread_mutex_lock(&p->lock);
        pool_get_stats(ctx->pool, &p->stats);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

void preload_begin(waste_ctx *ctx)
{
    struct hotlist list;
    struct hot *hot;
    unsigned n;
    struct err e;

    ctx->usage_read = "";
    if (!ctx->experts || hotlist_open(&list, container_manifest(ctx->container), &e))
        return;
    ctx->usage_read = usage_read(ctx, &list);
    n = hotlist_hottest(&list, ctx->frames.n, &hot);
    if (n)
        ctx->n_preload = source_pool_warm(ctx->experts, hot, n);
    free(hot);
    hotlist_close(&list);
    ctx->preload.running =
        ctx->n_preload && !thread_start(&ctx->preload.thread, preload_thread, ctx);
}

void preload_end(waste_ctx *ctx)
{
    if (!ctx->preload.running || ctx->pid != (long)getpid()) /* no thread survives a fork */
        return;
    atomic_store(&ctx->preload.stop, true);
    pthread_join(ctx->preload.thread, NULL);
    ctx->preload.running = false;
}

void ctx_pool_stats(const waste_ctx *ctx, struct pool_stats *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&ctx->preload.lock; /* a question changes nothing */

    *out = (struct pool_stats){0};
    if (!ctx->preload.running) {
        if (ctx->experts)
            ctx->experts->ops->stats(ctx->experts, out);
        return;
    }
    pthread_mutex_lock(lock);
    *out = ctx->preload.stats;
    pthread_mutex_unlock(lock);
}

/* Where it goes: as the host said, or into the container. */
static int usage_parent(const waste_ctx *ctx, struct out_dir *d, const char **name, struct err *e)
{
    char path[4096];

    if (ctx->usage_path)
        return out_parent_open(d, ctx->usage_path, name, e);
    *name = in_container;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", container_dir(ctx->container),
                         in_container) >= sizeof(path))
        return err_set(e, ERR_ARG, "%s: the path is too long", container_dir(ctx->container));
    return out_parent_open(d, path, &(const char *){NULL}, e);
}

static int usage_write(waste_ctx *ctx, const struct hotlist *h, struct err *e)
{
    struct out_dir d;
    const char *name;

    if (usage_parent(ctx, &d, &name, e))
        return e->code;
    if (!out_replaceable(&d, name, "WUSG", 4, "hotlist", e) &&
        hotlist_write(h, 2 * ctx->frames.n, &d, name, e))
        err_wrap(e, "%s", d.path);
    out_parent_close(&d);
    return e->code;
}

waste_status waste_save_usage(waste_ctx *ctx)
{
    waste_status st = ctx_enter(ctx);
    struct hotlist *uses, list;
    struct err e = {0};

    if (st != WASTE_OK || !ctx->experts)
        return st;
    uses = source_pool_uses(ctx->experts);
    if (!uses->clock)
        return WASTE_OK; /* what there is should not fade for nothing */
    if (hotlist_open(&list, container_manifest(ctx->container), &e))
        return ctx_fail(ctx, &e);
    usage_read(ctx, &list);
    hotlist_merge(&list, uses);
    if (!usage_write(ctx, &list, &e))
        hotlist_cool(uses);
    hotlist_close(&list);
    return e.code ? ctx_fail(ctx, &e) : WASTE_OK;
}
