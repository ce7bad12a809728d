#include <assert.h>
#include <stdlib.h>

#include "expertfs/source.h"

struct source_pool {
    struct expert_source source; /* first, so that it can be cast back */
    const struct container *c;
    const struct manifest *m;
    struct pool *pool;
    bool verify;
    struct hotlist uses;
    struct layer_use *layer; /* [n_layers] */
    struct extent want[];    /* [n_experts], scratch of one call */
};

static struct source_pool *self(struct expert_source *s)
{
    return (struct source_pool *)s;
}

static void translate(struct source_pool *s, unsigned layer, const uint16_t *ids, unsigned n)
{
    assert(n <= s->m->n_experts);
    for (unsigned i = 0; i < n; i++)
        s->want[i] = container_extent(s->c, layer, ids[i]);
}

static void source_pool_hint(struct expert_source *source, unsigned layer, const uint16_t *ids,
                             unsigned n, enum hint kind)
{
    struct source_pool *s = self(source);

    translate(s, layer, ids, n);
    pool_hint(s->pool, s->want, n, kind);
}

/* Bytes that have just come from disk: are they that expert? */
static int fresh_check(const struct source_pool *s, const uint8_t *bytes, unsigned layer,
                       unsigned expert, struct err *e)
{
    const struct record_layout *l = &s->m->record;

    if (record_check(l, bytes, layer, expert, s->m->bank[layer].codebook_base, e))
        return e->code;
    return s->verify ? record_verify(l, bytes, layer, expert, e)
                     : record_check_indices(l, bytes, layer, expert, e);
}

/* Bad bytes may be a bit that flipped on the way: drop the page and read it once more. */
static int read_again(struct source_pool *s, struct page *page, unsigned layer, unsigned expert,
                      struct err *e)
{
    pool_drop(s->pool, page);
    if (pool_pin(s->pool, container_extent(s->c, layer, expert), page, e))
        return err_wrap(e, "layer %u expert %u: %s", layer, expert, s->m->bank[layer].file);
    if (fresh_check(s, page->bytes, layer, expert, e)) {
        pool_drop(s->pool, page);
        return e->code;
    }
    return 0;
}

static int source_pool_pin_any(struct expert_source *source, unsigned layer, const uint16_t *ids,
                               unsigned n, unsigned *which, struct expert *out, struct err *e)
{
    struct source_pool *s = self(source);
    unsigned got = n;
    struct page page;

    translate(s, layer, ids, n);
    if (pool_pin_any(s->pool, s->want, n, &got, &page, e)) {
        if (got >= n) /* not the fault of one of them */
            return e->code;
        return err_wrap(e, "layer %u expert %u: %s", layer, ids[got], s->m->bank[layer].file);
    }
    if (page.fresh && fresh_check(s, page.bytes, layer, ids[got], e) &&
        read_again(s, &page, layer, ids[got], e))
        return e->code;
    hotlist_use(&s->uses, layer, ids[got]);
    s->layer[layer].resident += !page.fresh;
    s->layer[layer].guessed += page.guessed;
    s->layer[layer].missed += page.fresh && !page.guessed;
    *which = got;
    *out = expert_at(&s->m->record, page);
    return 0;
}

static void source_pool_unpin(struct expert_source *source, struct expert *x)
{
    pool_unpin(self(source)->pool, &x->page);
}

static size_t source_pool_trim(struct expert_source *source, size_t bytes)
{
    struct source_pool *s = self(source);

    return pool_trim(s->pool, bytes, s->m->top_k);
}

static void source_pool_stats(const struct expert_source *source, struct pool_stats *out)
{
    pool_get_stats(((const struct source_pool *)source)->pool, out);
}

static void source_pool_close(struct expert_source *source)
{
    if (source) {
        hotlist_close(&self(source)->uses);
        free(self(source)->layer);
    }
    free(source);
}

static const struct expert_source_ops source_pool_ops = {
    .hint = source_pool_hint,
    .pin_any = source_pool_pin_any,
    .unpin = source_pool_unpin,
    .trim = source_pool_trim,
    .stats = source_pool_stats,
    .close = source_pool_close,
};

int source_pool_open(struct expert_source **out, const struct container *c, struct pool *pool,
                     bool verify, struct err *e)
{
    const struct manifest *m = container_manifest(c);
    struct source_pool *s = calloc(1, sizeof(*s) + m->n_experts * sizeof(s->want[0]));

    if (!s)
        return err_set(e, ERR_NOMEM, "expert source");
    s->layer = calloc(m->n_layers, sizeof(*s->layer));
    if (!s->layer)
        err_set(e, ERR_NOMEM, "expert source");
    if (!s->layer || hotlist_open(&s->uses, m, e)) {
        free(s->layer);
        free(s);
        return e->code;
    }
    s->source.ops = &source_pool_ops;
    s->c = c;
    s->m = m;
    s->pool = pool;
    s->verify = verify;
    *out = &s->source;
    return 0;
}

struct layer_use source_pool_layer(const struct expert_source *source, unsigned layer, uint8_t *map)
{
    const struct source_pool *s = (const struct source_pool *)source;

    assert(source->ops == &source_pool_ops && manifest_is_moe(s->m, layer));
    for (unsigned i = 0; map && i < s->m->n_experts; i++)
        map[i] = (uint8_t)pool_has(s->pool, container_extent(s->c, layer, i));
    return s->layer[layer];
}

struct hotlist *source_pool_uses(struct expert_source *s)
{
    assert(s->ops == &source_pool_ops);
    return &self(s)->uses;
}

unsigned source_pool_warm(struct expert_source *source, const struct hot *hot, unsigned n)
{
    struct source_pool *s = self(source);
    struct extent *want = malloc((n + 1u) * sizeof(*want));

    assert(source->ops == &source_pool_ops);
    if (!want)
        return 0;
    for (unsigned i = 0; i < n; i++)
        want[i] = container_extent(s->c, hot[i].layer, hot[i].expert);
    n = pool_warm(s->pool, want, n);
    free(want);
    return n;
}
