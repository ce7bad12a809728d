/* api_image.c - pictures in prompts: a part of waste.h (see context.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/slurp.h"
#include "model/context.h"

/* A picture's file, whole; the caller frees it. */
static int read_file(char **out, size_t *n, const char *path, struct err *e)
{
    if (slurp(out, n, AT_FDCWD, path, IMAGE_FILE_MAX, e))
        return e->code;
    return *out ? 0 : err_open(e, ENOENT, AT_FDCWD, path);
}

waste_status waste_image_dimensions(const char *path, uint32_t *width, uint32_t *height)
{
    struct image_head head;
    struct err e = {0};
    char *data;
    size_t n;
    int rc;

    if (!path || !width || !height) {
        err_set(&e, ERR_ARG, "waste_image_dimensions: path, width and height are needed");
        return thread_fail(&e);
    }
    if (read_file(&data, &n, path, &e))
        return thread_fail(&e);
    rc = image_head(&head, (const uint8_t *)data, n, &e);
    free(data);
    if (rc) {
        err_wrap(&e, "%s", path);
        return thread_fail(&e);
    }
    *width = head.upright_w;
    *height = head.upright_h;
    return WASTE_OK;
}

/* The rule a picture is shrunk by: the container's, or the default where there is none. */
static int rule_of(struct vision_shape *out, const char *container, struct err *e)
{
    struct manifest m;
    uint64_t bytes; /* asked for because it looks whether all is there */
    int fd, rc;

    *out = (struct vision_shape){.max_patches = IMAGE_PATCHES_DEFAULT,
                                 .side_patches = IMAGE_SIDE_PATCHES};
    if (!container)
        return 0;
    fd = open(container, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, errno, "%s", container);
    rc = manifest_read(&m, fd, container, e);
    if (!rc) {
        rc = vision_shape_read(out, &m, fd, e) || vision_weight_bytes(&bytes, out, &m, e) ? e->code
                                                                                          : 0;
        manifest_release(&m);
    }
    close(fd);
    return rc ? err_wrap(e, "%s", container) : 0;
}

waste_status waste_image_look(const char *container, uint32_t max_patches, const void *bytes,
                              size_t len, waste_image_info *out)
{
    waste_image_info r = {.size = sizeof(r)};
    struct vision_shape s;
    struct image_head head;
    struct image_fit fit;
    struct err e = {0};
    unsigned fp = fp_begin();
    int rc;

    if (!bytes || !out || (max_patches && max_patches < 4) || max_patches > IMAGE_PATCHES_RELEASE ||
        out->size < sizeof(uint32_t) || out->size > 65536)
        rc = err_set(
            &e, ERR_ARG,
            "waste_image_look: bytes, out with its size set, and 4...65536 patches or 0 are "
            "needed");
    else
        rc = rule_of(&s, container, &e) || image_head(&head, bytes, len, &e);
    fp_end(fp);
    if (rc)
        return thread_fail(&e);
    s.max_patches = max_patches ? max_patches : s.max_patches;
    image_fit(&fit, head.upright_w, head.upright_h, s.max_patches, s.side_patches);
    r.width = head.upright_w;
    r.height = head.upright_h;
    r.fit_width = fit.width;
    r.fit_height = fit.height;
    r.padded_width = fit.padded_w;
    r.padded_height = fit.padded_h;
    r.patches_x = fit.patches_x;
    r.patches_y = fit.patches_y;
    r.n_rows = fit.tokens;
    r.max_patches = s.max_patches;
    r.side_patches = s.side_patches;
    r.tower_macs = container ? vision_macs(&s, fit.patches_x * fit.patches_y) : 0;
    r.decode_bytes = image_peak_bytes(&head, &fit);
    snprintf(r.format, sizeof(r.format), "%s", head.format);
    r.size = out->size;
    memcpy(out, &r, out->size < sizeof(r) ? out->size : sizeof(r));
    return WASTE_OK;
}

/* Places for rows of images among ids. */
static size_t count_places(const waste_ctx *ctx, const int32_t *ids, size_t n)
{
    size_t places = 0;

    for (size_t i = 0; ctx->media_id >= 0 && i < n; i++)
        places += ids[i] == ctx->media_id;
    return places;
}

static int no_vision(struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "this context was opened without its vision tower (cfg.vision, --vision)");
}

/* ---- from pixels to rows ---- */

struct watched { /* a tower at work for a session that may lose interest */
    waste_session *s;
    bool unwanted;
};

static void tower_poll(void *arg)
{
    struct watched *w = arg;
    waste_ctx *ctx = w->s->ctx;

    if (!progress_cancelled(&ctx->progress) && atomic_load(&w->s->s.cancel)) {
        w->unwanted = true;
        atomic_store(&ctx->progress.cancel, true);
    }
    ctx_poll(ctx);
}

static int tower_open(waste_ctx *ctx, struct err *e)
{
    return ctx->vision ? 0
                       : vision_open(&ctx->vision, ctx->container, &ctx->facts.vision,
                                     &ctx->model.k, &ctx->vision_mem, NULL, e);
}

/* With opts.vision_free: no picture waits for the tower, so that its memory can go. */
static void tower_rest(waste_ctx *ctx)
{
    if (!ctx->opts.vision_free)
        return;
    for (unsigned i = 0; i < ctx->n_sessions; i++)
        if (images_unseen(&ctx->session[i].images, SIZE_MAX))
            return;
    vision_close(ctx->vision);
    ctx->vision = NULL;
}

static int encode(waste_ctx *ctx, struct waiting *w, struct watched *by, struct err *e)
{
    struct vision_watch watch = {&ctx->progress, tower_poll, by};
    uint64_t t0 = now_ns();
    int rc;

    tower_poll(by);
    if (progress_cancelled(&ctx->progress))
        return err_set(e, ERR_CANCELLED, "cancelled before a picture was seen");
    if (tower_open(ctx, e))
        return e->code;
    progress_begin(&ctx->progress, PHASE_IMAGE, ctx->facts.vision.blocks);
    ctx->running = true;
    team_begin(ctx->team);
    rc = vision_encode(ctx->vision, &w->picture, w->rows, ctx->team, &watch, e);
    team_end(ctx->team);
    ctx->running = false;
    ctx->counters.sec_images += (double)(now_ns() - t0) * 1e-9;
    if (!rc) {
        ctx->counters.images++;
        images_seen(w);
    }
    return rc;
}

int images_encode(waste_session *s, const int32_t *ids, size_t n, struct err *e)
{
    struct watched by = {.s = s};
    struct waiting *w;
    size_t places = s->images.n ? count_places(s->ctx, ids, n) : 0;
    int rc = 0;

    while (places && !rc && (w = images_unseen(&s->images, places)))
        rc = encode(s->ctx, w, &by, e);
    if (places)
        tower_rest(s->ctx);
    if (rc == ERR_CANCELLED && by.unwanted) { /* the pass will say so to this session alone */
        atomic_store(&s->ctx->progress.cancel, false);
        *e = (struct err){0};
        rc = 0;
    }
    return rc;
}

/* ---- pictures into a queue ---- */

static int image_add(waste_session *s, const void *bytes, size_t len, uint32_t *n_rows,
                     struct err *e)
{
    waste_ctx *ctx = s->ctx;
    const struct vision_shape *shape = &ctx->facts.vision;
    struct image_rule rule = {shape->max_patches, shape->side_patches, 0};
    struct image m;

    if (!ctx->cfg.vision)
        return no_vision(e);
    if (s->images.n == WASTE_IMAGES_MAX)
        return err_set(e, ERR_ARG, "%d images wait already for their places", WASTE_IMAGES_MAX);
    if (image_open(&m, &ctx->vision_mem, bytes, len, &rule, e))
        return e->code;
    if (images_push(&s->images, &m, e)) {
        image_close(&m);
        return e->code;
    }
    if (n_rows)
        *n_rows = m.fit.tokens;
    return 0;
}

waste_status waste_session_image_add(waste_session *s, const void *bytes, size_t len,
                                     uint32_t *n_rows)
{
    struct err e = {0};
    waste_status st = ctx_enter(s ? s->ctx : NULL);

    if (st != WASTE_OK)
        return st;
    if (!bytes)
        return ctx_refuse(s->ctx, "waste_session_image_add: bytes are needed");
    return step_end(s->ctx, image_add(s, bytes, len, n_rows, &e), &e);
}

waste_status waste_image_add(waste_ctx *ctx, const char *path, uint32_t *n_rows)
{
    struct err e = {0};
    waste_status st = ctx_enter(ctx);
    char *data;
    size_t n;

    if (st != WASTE_OK)
        return st;
    if (!path)
        return ctx_refuse(ctx, "waste_image_add: path is needed");
    if (!ctx->cfg.vision) {
        no_vision(&e);
        return ctx_fail(ctx, &e);
    }
    if (read_file(&data, &n, path, &e))
        return ctx_fail(ctx, &e);
    if (image_add(&ctx->session[0], (const uint8_t *)data, n, n_rows, &e))
        err_wrap(&e, "%s", path);
    free(data);
    return step_end(ctx, e.code, &e);
}

void images_drop(waste_session *s)
{
    images_clear(&s->images);
    tower_rest(s->ctx);
}

waste_status waste_session_image_clear(waste_session *s)
{
    waste_status st = ctx_enter(s ? s->ctx : NULL);

    if (st == WASTE_OK)
        images_drop(s);
    return st;
}

waste_status waste_image_clear(waste_ctx *ctx)
{
    return waste_session_image_clear(waste_session_default(ctx));
}

/* Rows of each picture that waits, the first one's used ones left out. */
static uint32_t rows_of(const struct image_queue *q, unsigned i)
{
    return q->item[i].n - (i ? 0 : q->used);
}

static int expand(const waste_session *s, const int32_t *ids, size_t n, int32_t *out, size_t cap,
                  size_t *n_out, struct err *e)
{
    const struct image_queue *q = &s->images;
    size_t need = n, places = count_places(s->ctx, ids, n);

    if (!s->ctx->cfg.vision)
        return no_vision(e);
    if (places != q->n)
        return err_set(e, ERR_ARG, "%zu places for images, but %u images wait", places, q->n);
    for (unsigned i = 0; i < q->n; i++)
        need += rows_of(q, i) - 1;
    *n_out = need;
    if (cap < need)
        return err_set(e, ERR_ARG, "%zu ids with all rows of the images, room for %zu", need, cap);
    for (size_t i = n, at = need; i--;) { /* from behind: out may be ids */
        int32_t id = ids[i];
        uint32_t times = id == s->ctx->media_id ? rows_of(q, (unsigned)--places) : 1;

        while (times--)
            out[--at] = id;
    }
    return 0;
}

waste_status waste_session_image_expand(const waste_session *s, const int32_t *ids, size_t n,
                                        int32_t *out, size_t cap, size_t *n_out)
{
    struct err e = {0};
    waste_status st = ctx_enter(s ? s->ctx : NULL);

    if (st != WASTE_OK)
        return st;
    if (!ids || !n_out || (!out && cap))
        return ctx_refuse(s->ctx, "waste_session_image_expand: ids, out and n_out are needed");
    return expand(s, ids, n, out, cap, n_out, &e) ? ctx_fail(s->ctx, &e) : WASTE_OK;
}

waste_status waste_image_expand(waste_ctx *ctx, const int32_t *ids, size_t n, int32_t *out,
                                size_t cap, size_t *n_out)
{
    return waste_session_image_expand(waste_session_default(ctx), ids, n, out, cap, n_out);
}

waste_status waste_session_image_ids(const waste_session *s, const int32_t *ids, size_t n,
                                     int32_t *out)
{
    struct err e = {0};
    waste_status st = ctx_enter(s ? s->ctx : NULL);

    if (st != WASTE_OK)
        return st;
    if (!ids || !out)
        return ctx_refuse(s->ctx, "waste_session_image_ids: ids and out are needed");
    if (images_check(s, ids, n, true, &e))
        return ctx_fail(s->ctx, &e);
    memmove(out, ids, n * sizeof(*ids));
    images_name(s, out, n, NULL);
    return WASTE_OK;
}

int images_check(const waste_session *s, const int32_t *ids, size_t n, bool all, struct err *e)
{
    const waste_ctx *ctx = s->ctx;
    size_t places = count_places(ctx, ids, n), rows = images_pending(&s->images);

    if (places && !ctx->cfg.vision)
        return no_vision(e);
    if (places > rows || (all && places != rows))
        return err_set(e, ERR_ARG,
                       "%zu places for rows of images, but %zu rows wait (waste_image_add and "
                       "waste_image_expand make them agree)",
                       places, rows);
    return 0;
}

void images_name(const waste_session *s, int32_t *ids, size_t n, const float **row)
{
    size_t k = 0, waiting = images_pending(&s->images);

    for (size_t i = 0; i < n; i++) {
        bool image = k < waiting && ids[i] == s->ctx->media_id;

        if (row)
            row[i] = image ? images_row(&s->images, k) : NULL;
        if (image)
            ids[i] = images_id(&s->images, k++);
    }
}

void images_committed(waste_session *s, const int32_t *ids, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++)
        used += ids[i] < 0;
    images_use(&s->images, used);
    tower_rest(s->ctx);
}
