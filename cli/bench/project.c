#include "cli/bench/project.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench/route_replay.h"
#include "storage/frames.h"
#include "storage/io_sim.h"

struct machine {
    const struct routes *r;
    const struct projection *how;
    struct mem mem;
    struct frames frames;
    struct io *io;
    struct pool *pool;
    uint64_t random;
    bool *in_next; /* [n_experts] scratch: the next layer asks for it, and no guess has named it */
};

static uint64_t next_random(uint64_t *x)
{
    uint64_t z = *x += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *x)
{
    return (double)(next_random(x) >> 11) * 0x1p-53;
}

static unsigned below(uint64_t *x, unsigned n)
{
    return (unsigned)(((next_random(x) >> 32) * n) >> 32);
}

/* How often the guess of this rank, from 0, is right: measured on K3, every third rank published.
 */
static double precision_of(unsigned rank)
{
    static const double published[] = {0.922, 0.802, 0.643, 0.533, 0.394, 0.279};
    double at = rank / 3.0;
    unsigned i = (unsigned)at;

    if (i >= sizeof(published) / sizeof(published[0]) - 1)
        return published[sizeof(published) / sizeof(published[0]) - 1];
    return published[i] + (at - i) * (published[i + 1] - published[i]);
}

/* One of c's experts that no guess has named yet, or -1. */
static int right_guess(struct machine *m, const struct route_call *c)
{
    unsigned from = below(&m->random, c->n);

    for (unsigned i = 0; i < c->n; i++) {
        unsigned id = m->r->id[c->first + (from + i) % c->n];

        if (m->in_next[id]) {
            m->in_next[id] = false;
            return (int)id;
        }
    }
    return -1;
}

/* Guesses for call c, of which `before` is the same layer one token earlier (or NULL). */
static unsigned draw_guesses(struct machine *m, const struct route_call *c,
                             const struct route_call *before, struct extent *want)
{
    unsigned n = 0;

    for (unsigned i = 0; i < c->n; i++)
        m->in_next[m->r->id[c->first + i]] = true;
    for (unsigned rank = 0; rank < m->how->lookahead; rank++) {
        bool right = uniform(&m->random) < precision_of(rank);
        int id = right ? right_guess(m, c) : -1;

        if (!right)
            id = before && below(&m->random, 2)
                     ? m->r->id[before->first + below(&m->random, before->n)]
                     : (int)below(&m->random, m->r->n_experts);
        if (id >= 0 && (right || !m->in_next[id]))
            want[n++] = route_extent(c->layer, (unsigned)id);
    }
    for (unsigned i = 0; i < c->n; i++)
        m->in_next[m->r->id[c->first + i]] = false;
    return n;
}

static void look_ahead(struct machine *m, size_t call)
{
    const struct route_call *c = &m->r->call[call];
    bool last = call + 1 == m->r->n_calls || m->r->call[call + 1].layer < c->layer;
    struct extent want[ROUTES_CALL_MAX] = {{0}};
    unsigned n = 0;

    if (!m->how->lookahead || last) {
        n = 0;
    } else if (m->r->guess) {
        for (unsigned i = 0; i < c->n && i < m->how->lookahead; i++)
            if (m->r->guess[c->first + i] >= 0)
                want[n++] =
                    route_extent(m->r->call[call + 1].layer, (unsigned)m->r->guess[c->first + i]);
    } else {
        const struct route_call *next = c + 1;

        n = draw_guesses(m, next, call + 1 >= m->r->n_layers ? next - m->r->n_layers : NULL, want);
    }
    pool_hint(m->pool, want, n, HINT_GUESS);
}

static int serve(struct machine *m, size_t call, struct err *e)
{
    const struct route_call *c = &m->r->call[call];
    struct extent want[ROUTES_CALL_MAX] = {{0}};
    unsigned n = c->n, which = 0;
    struct page page;

    for (unsigned i = 0; i < n; i++)
        want[i] = route_extent(c->layer, m->r->id[c->first + i]);
    pool_hint(m->pool, want, n, HINT_SURE);
    look_ahead(m, call);
    io_sim_advance(m->io, m->how->shared_ns);
    while (n) {
        if (pool_pin_any(m->pool, want, m->how->in_order ? 1 : n, &which, &page, e))
            return e->code;
        io_sim_advance(m->io, m->how->expert_ns);
        pool_unpin(m->pool, &page);
        n--;
        memmove(want + which, want + which + 1, (n - which) * sizeof(*want));
    }
    io_sim_advance(m->io, m->how->rest_ns);
    return 0;
}

static int drive_open(struct machine *m, struct err *e)
{
    struct io_sim_config sim = {.source = IO_SIM_NOTHING, .seed = 1};
    struct io_config io = {.n_files = m->r->n_layers,
                           .depth = m->how->depth,
                           .arena = m->frames.base,
                           .arena_bytes = m->frames.frame_bytes * m->frames.n};
    double scale = (double)IO_ALIGN / (double)m->how->record_bytes;

    if (io_sim_add(&sim, m->how->drive, e))
        return e->code;
    for (unsigned d = 0; d < sim.n_drives; d++) {
        sim.drive[d].bytes_per_s = (uint64_t)((double)sim.drive[d].bytes_per_s * scale);
        sim.drive[d].read_bytes_per_s = (uint64_t)((double)sim.drive[d].read_bytes_per_s * scale);
    }
    sim.stripe_bytes = IO_ALIGN;
    return io_sim_open(&m->io, &io, &sim, e);
}

static int machine_open(struct machine *m, struct err *e)
{
    struct pool_config cfg = {.frames = &m->frames,
                              .policy = m->how->policy,
                              .depth = m->how->depth,
                              .seed = 1,
                              .known = replay_known(m->r, NULL)};

    mem_init(&m->mem, 0);
    m->in_next = calloc(m->r->n_experts, sizeof(*m->in_next));
    if (!m->in_next)
        return err_set(e, ERR_NOMEM, "%u experts", m->r->n_experts);
    if (frames_open(&m->frames, &m->mem, IO_ALIGN, m->how->n_frames, e) || drive_open(m, e))
        return e->code;
    cfg.io = m->io;
    return pool_open(&m->pool, &cfg, e);
}

static void machine_close(struct machine *m)
{
    pool_close(m->pool);
    if (m->io)
        m->io->ops->close(m->io);
    if (m->frames.base)
        frames_close(&m->frames);
    free(m->in_next);
}

static uint64_t waited(const struct machine *m, uint64_t *bytes)
{
    struct io_sim_stats s;

    io_sim_get_stats(m->io, &s);
    *bytes = s.bytes / IO_ALIGN * m->how->record_bytes;
    return s.waited_ns;
}

int project(struct projected *out, const struct routes *r, const struct projection *how,
            struct err *e)
{
    struct machine m = {.r = r, .how = how, .random = 7};
    size_t warm = (size_t)how->warm * r->n_layers;
    uint64_t from_ns = 0, from_waited = 0, from_bytes = 0, bytes = 0;
    int rc = machine_open(&m, e);

    for (size_t i = 0; !rc && i < r->n_calls; i++) {
        if (i == warm) {
            from_ns = io_sim_now(m.io);
            from_waited = waited(&m, &from_bytes);
        }
        rc = serve(&m, i, e);
    }
    if (!rc) {
        out->tokens = r->n_tokens - how->warm;
        out->waited_ns = waited(&m, &bytes) - from_waited;
        out->total_ns = io_sim_now(m.io) - from_ns;
        out->bytes = bytes - from_bytes;
        pool_get_stats(m.pool, &out->pool);
    }
    machine_close(&m);
    return rc;
}

struct inventor {
    struct routes *r;
    unsigned n_layers, n_experts, top_k;
    uint64_t random;
    double *popular; /* [n_layers][n_experts] running sums of one layer's weights */
    bool *taken;     /* [n_experts] */
};

static unsigned popular_expert(struct inventor *v, unsigned layer)
{
    const double *sum = v->popular + (size_t)layer * v->n_experts;
    double at = uniform(&v->random) * sum[v->n_experts - 1];
    unsigned lo = 0, hi = v->n_experts - 1;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (sum[mid] > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* An expert that this layer chose `lag` tokens ago. */
static unsigned earlier_expert(struct inventor *v, unsigned token, unsigned layer, unsigned lag)
{
    size_t call = (size_t)(token - lag) * v->n_layers + layer;

    return v->r->id[v->r->call[call].first + below(&v->random, v->top_k)];
}

static unsigned invent_expert(struct inventor *v, unsigned token, unsigned layer)
{
    double what = uniform(&v->random);
    unsigned lag = 2 + (unsigned)(-12 * log(1 - uniform(&v->random)));

    if (what < 0.22 && token)
        return earlier_expert(v, token, layer, 1);
    if (what < 0.50 && token >= lag)
        return earlier_expert(v, token, layer, lag);
    return popular_expert(v, layer);
}

static void invent_call(struct inventor *v, unsigned token, unsigned layer)
{
    struct routes *r = v->r;
    struct route_call *c = &r->call[r->n_calls++];

    *c = (struct route_call){.first = (uint32_t)r->n_ids, .layer = (uint16_t)layer};
    memset(v->taken, 0, v->n_experts * sizeof(*v->taken));
    while (c->n < v->top_k) {
        unsigned id = invent_expert(v, token, layer);

        if (v->taken[id])
            continue;
        v->taken[id] = true;
        r->id[r->n_ids++] = (uint16_t)id;
        c->n++;
    }
}

int routes_invent(struct routes *out, unsigned n_layers, unsigned n_experts, unsigned top_k,
                  unsigned n_tokens, uint64_t seed, struct err *e)
{
    size_t calls = (size_t)n_layers * n_tokens;
    struct routes r = {
        .n_tokens = n_tokens, .n_layers = n_layers, .n_experts = n_experts, .top_k = top_k};
    struct inventor v = {&r, n_layers, n_experts, top_k, seed, NULL, NULL};

    r.call = calloc(calls, sizeof(*r.call));
    r.id = calloc(calls * top_k, sizeof(*r.id));
    v.popular = calloc((size_t)n_layers * n_experts, sizeof(*v.popular));
    v.taken = calloc(n_experts, sizeof(*v.taken));
    if (r.call && r.id && v.popular && v.taken) {
        for (size_t i = 0; i < (size_t)n_layers * n_experts; i++)
            v.popular[i] = (i % n_experts ? v.popular[i - 1] : 0) +
                           pow(1 - uniform(&v.random), -0.45); /* a heavy tail */
        for (unsigned t = 0; t < n_tokens; t++)
            for (unsigned l = 0; l < n_layers; l++)
                invent_call(&v, t, l);
        *out = r;
    } else {
        routes_release(&r);
    }
    free(v.popular);
    free(v.taken);
    return r.call ? 0 : err_set(e, ERR_NOMEM, "a trace of %u tokens", n_tokens);
}
