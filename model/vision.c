#include "model/vision.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/act.h"

enum {
    CHUNK = 64,   /* rows that a product sees at once */
    UNIT = 16,    /* output rows that stay together */
    QUERIES = 32, /* that meet the keys together */
};

static const float ROTARY_BASE = 10000.0f, POST_EPS = 1e-5f;

struct vision {
    struct vision_shape shape;
    struct vision_weights w;
    const struct kernels *k;
    struct trunk *trunk;
    struct mem *mem;
    void *dense;
};

/* Every buffer of one picture of L patches; one mapping. A key row is its value, then the key
 * itself, each padded to 16: what the attention kernel weighs is the beginning of a key, and the
 * queries are zero there. */
struct tower {
    struct vision *v;
    struct team *team;
    const struct image *image;
    uint32_t n; /* patches */
    size_t hidden_w, wide_w, inter_w, tile_w, lin_w, text_w, dim_w;
    float *x;       /* [n][hidden_w] */
    float *q;       /* [heads][n][dim_w] */
    float *kv;      /* [heads][n][2 dim_w] */
    float *o;       /* [n][wide_w] */
    float *h;       /* [CHUNK][tile_w] */
    float *lin;     /* [CHUNK][lin_w] */
    float *y;       /* [CHUNK][text_w] */
    float *turn;    /* [side][dim / 4][cos, sin] */
    float *query;   /* [threads][QUERIES][2 dim_w] */
    float *scratch; /* [threads][scratch_n] */
    size_t scratch_n;
};

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static float *take(uint8_t *base, size_t *at, size_t n)
{
    float *p = base ? (float *)(void *)(base + *at) : NULL;

    *at += align_up(n * sizeof(float), 64);
    return p;
}

static size_t lay(struct tower *t, uint8_t *base, const struct vision_shape *s, uint32_t n,
                  unsigned threads)
{
    size_t at = 0, wide = (size_t)s->heads * s->dim;

    t->n = n;
    t->hidden_w = act_pad(s->hidden);
    t->wide_w = act_pad(wide);
    t->inter_w = act_pad(s->inter);
    t->tile_w = act_pad(4 * (size_t)s->hidden);
    t->text_w = most(act_pad(s->text), t->hidden_w);
    t->lin_w = most(most(act_pad(IMAGE_COLUMNS), act_pad(3 * wide)), most(t->inter_w, t->tile_w));
    t->dim_w = align_up(s->dim, 16);
    t->scratch_n = attend_scratch_floats(s->dim, QUERIES);
    t->x = take(base, &at, n * t->hidden_w);
    t->q = take(base, &at, (size_t)s->heads * n * t->dim_w);
    t->kv = take(base, &at, (size_t)s->heads * n * 2 * t->dim_w);
    t->o = take(base, &at, n * t->wide_w);
    t->h = take(base, &at, CHUNK * t->tile_w);
    t->lin = take(base, &at, CHUNK * t->lin_w);
    t->y = take(base, &at, CHUNK * t->text_w);
    t->turn = take(base, &at, (size_t)2 * (s->side_patches + 2) * s->dim / 4);
    t->query = take(base, &at, (size_t)threads * QUERIES * 2 * t->dim_w);
    t->scratch = take(base, &at, threads * t->scratch_n);
    return at;
}

uint64_t vision_scratch_bytes(const struct vision_shape *s, uint32_t patches, unsigned threads)
{
    struct tower t;

    return align_up(lay(&t, NULL, s, patches, threads), 4096);
}

struct product_job {
    const struct kernels *k;
    const struct tensor *w;
    const float *x;
    float *y;
    size_t x_w, y_w;
    unsigned n;
};

static void product_units(void *arg, unsigned u0, unsigned u1, unsigned thread)
{
    const struct product_job *j = arg;
    uint32_t r1 = u1 * UNIT < j->w->rows ? u1 * UNIT : j->w->rows;

    (void)thread;
    j->k->gemv(j->y, j->y_w, j->x, j->x_w, j->n, j->w, u0 * UNIT, r1);
}

/* y[i] = W x[i] for n rows. */
static void multiply(const struct tower *t, const struct tensor *w, const float *x, size_t x_w,
                     float *y, size_t y_w, unsigned n)
{
    struct product_job j = {t->v->k, w, x, y, x_w, y_w, n};

    team_for(t->team, (w->rows + UNIT - 1) / UNIT, 1, product_units, &j);
}

/* Rows [row0, row0 + n) of a chunk, given to the team one by one. */
struct chunk {
    const struct tower *t;
    const float *norm;
    uint32_t row0;
    unsigned n;
};

/* The learned grid at one place, bilinearly: align_corners = false, no antialiasing. */
static void axis_at(uint32_t i, uint32_t n, uint32_t grid, uint32_t *low, uint32_t *high, float *f)
{
    double c = (i + 0.5) * grid / n - 0.5;

    c = c < 0 ? 0 : c;
    *low = (uint32_t)c;
    *high = *low + 1 < grid ? *low + 1 : grid - 1;
    *f = (float)(c - *low);
}

static void add_position(const struct tower *t, float *x, uint32_t row)
{
    const struct vision_shape *s = &t->v->shape;
    const struct image_fit *fit = &t->image->fit;
    uint32_t x0, x1, y0, y1, h = s->hidden;
    const float *a, *b, *c, *d;
    float fx, fy;

    axis_at(row % fit->patches_x, fit->patches_x, s->pos_w, &x0, &x1, &fx);
    axis_at(row / fit->patches_x, fit->patches_y, s->pos_h, &y0, &y1, &fy);
    a = t->v->w.pos + ((size_t)y0 * s->pos_w + x0) * h;
    b = t->v->w.pos + ((size_t)y0 * s->pos_w + x1) * h;
    c = t->v->w.pos + ((size_t)y1 * s->pos_w + x0) * h;
    d = t->v->w.pos + ((size_t)y1 * s->pos_w + x1) * h;
    for (uint32_t i = 0; i < h; i++) {
        float top = a[i] * (1.0f - fx) + b[i] * fx;
        float below = c[i] * (1.0f - fx) + d[i] * fx;

        x[i] += top * (1.0f - fy) + below * fy;
    }
}

static void patch_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;
    const struct vision_shape *s = &t->v->shape;

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        float *x = t->lin + i * t->lin_w;

        image_patch(x, t->image, c->row0 + i, s->mean, s->std);
        memset(x + IMAGE_COLUMNS, 0, (act_pad(IMAGE_COLUMNS) - IMAGE_COLUMNS) * sizeof(*x));
    }
}

static void position_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        add_position(c->t, c->t->x + (c->row0 + i) * c->t->hidden_w, c->row0 + i);
}

static struct chunk chunk_at(const struct tower *t, uint32_t row0, uint32_t n, const float *norm)
{
    return (struct chunk){t, norm, row0, n - row0 < CHUNK ? n - row0 : CHUNK};
}

static void embed(const struct tower *t)
{
    for (uint32_t row = 0; row < t->n; row += CHUNK) {
        struct chunk c = chunk_at(t, row, t->n, NULL);

        team_for(t->team, c.n, 1, patch_rows, &c);
        multiply(t, &t->v->w.patch, t->lin, t->lin_w, t->x + row * t->hidden_w, t->hidden_w, c.n);
        team_for(t->team, c.n, 1, position_rows, &c);
    }
}

/* cos and sin of every coordinate and frequency: 10000^(-4i / dim), angles in binary32. */
static void make_turns(const struct tower *t)
{
    const struct vision_shape *s = &t->v->shape;
    const struct image_fit *fit = &t->image->fit;
    uint32_t side = fit->patches_x > fit->patches_y ? fit->patches_x : fit->patches_y;
    float *turn = t->turn;

    for (uint32_t at = 0; at < side; at++)
        for (uint32_t i = 0; i < s->dim / 4; i++, turn += 2) {
            float freq = (float)pow((double)ROTARY_BASE, -4.0 * i / s->dim);
            float angle = (float)at * freq;

            turn[0] = (float)cos((double)angle);
            turn[1] = (float)sin((double)angle);
        }
}

static void rotate_pair(float *out, const float *x, const float *turn)
{
    out[0] = fmaf(x[0], turn[0], -(x[1] * turn[1]));
    out[1] = fmaf(x[0], turn[1], x[1] * turn[0]);
}

/* Pairs 2i turn by the column, pairs 2i + 1 by the row: the released code, not its comment. */
static void rotate(float *out, const float *x, const float *by_column, const float *by_row,
                   uint32_t dim)
{
    for (uint32_t i = 0; i < dim / 4; i++) {
        rotate_pair(out + 4 * i, x + 4 * i, by_column + 2 * i);
        rotate_pair(out + 4 * i + 2, x + 4 * i + 2, by_row + 2 * i);
    }
}

static void norm_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        t->v->k->rmsnorm(t->h + i * t->tile_w, t->x + (c->row0 + i) * t->hidden_w, c->norm,
                         t->v->shape.hidden, t->v->shape.eps);
}

/* Rows of wqkv's product to where the attention reads them, turned. */
static void scatter_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;
    const struct vision_shape *s = &t->v->shape;
    size_t wide = (size_t)s->heads * s->dim;
    uint32_t across = t->image->fit.patches_x;

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        uint32_t row = c->row0 + i;
        const float *from = t->lin + i * t->lin_w;
        const float *by_column = t->turn + (size_t)(row % across) * (s->dim / 4) * 2;
        const float *by_row = t->turn + (size_t)(row / across) * (s->dim / 4) * 2;

        for (uint32_t head = 0; head < s->heads; head++, from += s->dim) {
            float *q = t->q + ((size_t)head * t->n + row) * t->dim_w;
            float *kv = t->kv + ((size_t)head * t->n + row) * 2 * t->dim_w;

            rotate(q, from, by_column, by_row, s->dim);
            rotate(kv + t->dim_w, from + wide, by_column, by_row, s->dim);
            memcpy(kv, from + 2 * wide, s->dim * sizeof(*kv));
        }
    }
}

/* Some queries of one head against all of its keys. */
static void attend_part(const struct tower *t, uint32_t head, uint32_t row0, unsigned thread)
{
    const struct vision_shape *s = &t->v->shape;
    uint32_t n = t->n - row0 < QUERIES ? t->n - row0 : QUERIES;
    float *query = t->query + (size_t)thread * QUERIES * 2 * t->dim_w;
    struct attend_shape shape = {
        .heads = n,
        .width = (uint32_t)(2 * t->dim_w),
        .value_width = s->dim,
        .q_stride = 2 * t->dim_w,
        .key_stride = 2 * t->dim_w,
        .out_stride = t->wide_w,
        .scale = (float)(1.0 / sqrt(s->dim)),
    };

    for (uint32_t i = 0; i < n; i++)
        memcpy(query + (2 * i + 1) * t->dim_w, t->q + ((size_t)head * t->n + row0 + i) * t->dim_w,
               t->dim_w * sizeof(*query));
    t->v->k->attend(t->o + row0 * t->wide_w + (size_t)head * s->dim, query,
                    t->kv + (size_t)head * t->n * 2 * t->dim_w, t->n, 1, &shape,
                    t->scratch + thread * t->scratch_n);
}

static void attend_parts(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct tower *t = arg;
    uint32_t parts = (t->n + QUERIES - 1) / QUERIES;

    for (unsigned i = i0; i < i1; i++)
        attend_part(t, i / parts, i % parts * QUERIES, thread);
}

static void add_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        t->v->k->add(t->x + (c->row0 + i) * t->hidden_w, t->y + i * t->text_w, t->v->shape.hidden);
}

static void gelu_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        t->v->k->gelu_tanh(t->lin + i * t->lin_w, t->lin + i * t->lin_w, t->v->shape.inter);
}

static void mix(const struct tower *t, const struct vision_block *b)
{
    const struct vision_shape *s = &t->v->shape;
    uint32_t parts = (t->n + QUERIES - 1) / QUERIES;

    for (uint32_t row = 0; row < t->n; row += CHUNK) {
        struct chunk c = chunk_at(t, row, t->n, b->norm0);

        team_for(t->team, c.n, 1, norm_rows, &c);
        multiply(t, &b->qkv, t->h, t->tile_w, t->lin, t->lin_w, c.n);
        team_for(t->team, c.n, 1, scatter_rows, &c);
    }
    team_for(t->team, s->heads * parts, 1, attend_parts, (void *)(uintptr_t)t);
    for (uint32_t row = 0; row < t->n; row += CHUNK) {
        struct chunk c = chunk_at(t, row, t->n, NULL);

        multiply(t, &b->o, t->o + row * t->wide_w, t->wide_w, t->y, t->text_w, c.n);
        team_for(t->team, c.n, 1, add_rows, &c);
    }
}

static void mlp(const struct tower *t, const struct vision_block *b)
{
    for (uint32_t row = 0; row < t->n; row += CHUNK) {
        struct chunk c = chunk_at(t, row, t->n, b->norm1);

        team_for(t->team, c.n, 1, norm_rows, &c);
        multiply(t, &b->fc0, t->h, t->tile_w, t->lin, t->lin_w, c.n);
        team_for(t->team, c.n, 1, gelu_rows, &c);
        act_zero_padding(t->lin, c.n, t->lin_w, t->v->shape.inter);
        multiply(t, &b->fc1, t->lin, t->lin_w, t->y, t->text_w, c.n);
        team_for(t->team, c.n, 1, add_rows, &c);
    }
}

/* Four neighbouring patches, normed, side by side: (0, 0), (0, 1), (1, 0), (1, 1). */
static void merge_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;
    const struct vision_shape *s = &t->v->shape;
    uint32_t across = t->image->fit.patches_x;

    (void)thread;
    for (unsigned i = i0; i < i1; i++) {
        uint32_t tile = c->row0 + i;
        uint32_t first = tile / (across / 2) * 2 * across + tile % (across / 2) * 2;
        float *out = t->h + i * t->tile_w;

        for (unsigned part = 0; part < 4; part++, out += s->hidden)
            t->v->k->rmsnorm(out, t->x + (first + part / 2 * across + part % 2) * t->hidden_w,
                             c->norm, s->hidden, s->eps);
    }
}

static void gelu_erf_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        for (uint32_t j = 0; j < 4 * t->v->shape.hidden; j++) {
            double x = (double)t->lin[i * t->lin_w + j];

            t->lin[i * t->lin_w + j] = (float)(0.5 * x * (1 + erf(x * M_SQRT1_2)));
        }
}

static void post_rows(void *arg, unsigned i0, unsigned i1, unsigned thread)
{
    const struct chunk *c = arg;
    const struct tower *t = c->t;

    (void)thread;
    for (unsigned i = i0; i < i1; i++)
        t->v->k->rmsnorm(t->y + i * t->text_w, t->y + i * t->text_w, t->v->w.post_norm,
                         t->v->shape.text, POST_EPS);
}

static void project(const struct tower *t, float *rows)
{
    const struct vision_shape *s = &t->v->shape;
    uint32_t n = t->n / 4;

    for (uint32_t row = 0; row < n; row += CHUNK) {
        struct chunk c = chunk_at(t, row, n, t->v->w.norm);

        team_for(t->team, c.n, 1, merge_rows, &c);
        act_zero_padding(t->h, c.n, t->tile_w, 4 * (size_t)s->hidden);
        multiply(t, &t->v->w.proj0, t->h, t->tile_w, t->lin, t->lin_w, c.n);
        team_for(t->team, c.n, 1, gelu_erf_rows, &c);
        act_zero_padding(t->lin, c.n, t->lin_w, 4 * (size_t)s->hidden);
        multiply(t, &t->v->w.proj2, t->lin, t->lin_w, t->y, t->text_w, c.n);
        team_for(t->team, c.n, 1, post_rows, &c);
        for (unsigned i = 0; i < c.n; i++)
            memcpy(rows + (size_t)(row + i) * s->text, t->y + i * t->text_w,
                   s->text * sizeof(*rows));
    }
}

static int blocks(const struct tower *t, const struct vision_watch *w, struct err *e)
{
    struct vision *v = t->v;

    for (unsigned i = 0; i < v->shape.blocks; i++) {
        if (w && w->progress)
            atomic_store(&w->progress->done, i);
        if (w && w->poll)
            w->poll(w->poll_arg);
        if (w && w->progress && progress_cancelled(w->progress))
            return err_set(e, ERR_CANCELLED, "cancelled before block %u of the vision tower", i);
        mix(t, &v->w.block[i]);
        mlp(t, &v->w.block[i]);
    }
    return 0;
}

static int check_rows(const float *rows, uint32_t n, uint32_t width, struct err *e)
{
    for (size_t i = 0; i < (size_t)n * width; i++)
        if (!isfinite(rows[i]))
            return err_set(e, ERR_CORRUPT,
                           "row %zu of the picture is not finite; some weight of the vision tower "
                           "is damaged",
                           i / width);
    return 0;
}

int vision_encode(struct vision *v, const struct image *image, float *rows, struct team *team,
                  const struct vision_watch *watch, struct err *e)
{
    const struct vision_shape *s = &v->shape;
    uint32_t n = image->fit.patches_x * image->fit.patches_y;
    struct tower t = {.v = v, .team = team, .image = image};
    uint64_t bytes = vision_scratch_bytes(s, n, team_size(team));
    void *memory;
    int rc;

    if (mem_map(v->mem, MEM_SCRATCH, bytes, true, &memory, e))
        return err_wrap(e, "a picture of %u patches", n);
    lay(&t, memory, s, n, team_size(team));
    make_turns(&t);
    embed(&t);
    rc = blocks(&t, watch, e);
    if (!rc) {
        project(&t, rows);
        rc = check_rows(rows, image->fit.tokens, s->text, e);
    }
    mem_unmap(v->mem, MEM_SCRATCH, memory, bytes);
    return rc;
}

struct loading {
    struct trunk *trunk;
    const struct manifest *m;
};

static int want_one(const struct weight *w, void *arg, struct err *e)
{
    struct loading *a = arg;

    (void)e;
    trunk_want(a->trunk, manifest_entry(a->m, w->name));
    return 0;
}

static int point_one(const struct weight *w, void *arg, struct err *e)
{
    struct loading *a = arg;

    (void)e;
    weight_point(w, a->trunk, manifest_entry(a->m, w->name));
    return 0;
}

/* All elements of a tensor in their order, whatever its rows are. */
static int decode_all(const struct trunk *trunk, const struct trunk_entry *t, float *out,
                      struct err *e)
{
    for (uint64_t row = 0; row < t->rows; row++)
        if (trunk_read_row(trunk, t, row, out + row * t->cols, e))
            return e->code;
    return 0;
}

static int load_dense(struct vision *v, const struct manifest *m, struct err *e)
{
    const struct vision_shape *s = &v->shape;
    struct vision_dense dense;
    float *patch, *pos;

    if (vision_dense_find(&dense, s, m, e) ||
        mem_map(v->mem, MEM_TRUNK, vision_dense_bytes(s), false, &v->dense, e))
        return e->code;
    patch = v->dense;
    pos = patch + align_up((uint64_t)s->hidden * IMAGE_COLUMNS, 16);
    v->w.pos = pos;
    v->w.patch = (struct tensor){
        .fmt = FMT_F32,
        .rows = s->hidden,
        .cols = IMAGE_COLUMNS,
        .row_bytes = IMAGE_COLUMNS * sizeof(float),
        .data = v->dense,
    };
    return decode_all(v->trunk, dense.patch, patch, e) || decode_all(v->trunk, dense.pos, pos, e)
               ? e->code
               : 0;
}

static int load(struct vision *v, const struct container *c, struct progress *progress,
                struct err *e)
{
    const struct manifest *m = container_manifest(c);
    struct loading a = {.m = m};
    uint64_t bytes;

    if (vision_weight_bytes(&bytes, &v->shape, m, e) || trunk_open(&v->trunk, c, e))
        return e->code;
    a.trunk = v->trunk;
    vision_each(&v->shape, NULL, want_one, &a, e);
    if (trunk_load(v->trunk, v->mem, progress, e))
        return e->code;
    vision_each(&v->shape, &v->w, point_one, &a, e);
    return load_dense(v, m, e);
}

int vision_open(struct vision **out, const struct container *c, const struct vision_shape *s,
                const struct kernels *k, struct mem *mem, struct progress *progress, struct err *e)
{
    struct vision *v = calloc(1, sizeof(*v));

    if (!v)
        return err_set(e, ERR_NOMEM, "vision tower");
    v->shape = *s;
    v->k = k;
    v->mem = mem;
    if (load(v, c, progress, e)) {
        vision_close(v);
        return err_wrap(e, "vision tower");
    }
    *out = v;
    return 0;
}

void vision_close(struct vision *v)
{
    if (!v)
        return;
    if (v->dense)
        mem_unmap(v->mem, MEM_TRUNK, v->dense, vision_dense_bytes(&v->shape));
    trunk_close(v->trunk);
    free(v);
}

const struct vision_shape *vision_shape(const struct vision *v)
{
    return &v->shape;
}
