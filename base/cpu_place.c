#include "base/cpu_place.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct core {
    uint16_t name, cache, node, kind;
    uint16_t first; /* CPU of it that we may use */
    bool smt;       /* there are more */
    bool chosen;
};

struct site { /* the cores that this process may use */
    unsigned n, n_cpus;
    struct core core[CPU_LIST_MAX];
    struct topology_cpu cpu[CPU_LIST_MAX];
};

static bool contains(const struct cpu_list *list, unsigned cpu)
{
    unsigned i = 0;

    while (i < list->n && list->cpu[i] < cpu)
        i++;
    return i < list->n && list->cpu[i] == cpu;
}

static struct core *find_core(struct site *s, uint16_t name)
{
    for (unsigned i = 0; i < s->n; i++)
        if (s->core[i].name == name)
            return &s->core[i];
    return NULL;
}

static void add_cpu(struct site *s, const struct topology_cpu *c)
{
    struct core *core = find_core(s, c->core);

    s->cpu[s->n_cpus++] = *c;
    if (core)
        core->smt = true;
    else
        s->core[s->n++] = (struct core){
            .name = c->core, .cache = c->cache, .node = c->node, .kind = c->kind, .first = c->cpu};
}

static void site_of(struct site *s, const struct cpu_place_wish *w)
{
    s->n = s->n_cpus = 0;
    for (unsigned i = 0; w->topology && i < w->topology->n; i++)
        if (contains(w->allowed, w->topology->cpu[i].cpu))
            add_cpu(s, &w->topology->cpu[i]);
}

/* Cores of a kind up to `kind`; ~0u: all. */
static unsigned count(const struct site *s, unsigned kind)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n; i++)
        n += s->core[i].kind <= kind;
    return n;
}

static unsigned fastest(const struct site *s)
{
    unsigned kind = TOPOLOGY_UNKNOWN;

    for (unsigned i = 0; i < s->n; i++)
        kind = s->core[i].kind < kind ? s->core[i].kind : kind;
    return kind;
}

/* Slower cores only where the faster ones are too few. */
static void leave_slow(struct site *s, unsigned threads)
{
    unsigned kind = fastest(s), n = 0;

    while (kind < TOPOLOGY_UNKNOWN && count(s, kind) < threads && count(s, kind) < s->n)
        kind++;
    for (unsigned i = 0; i < s->n; i++)
        if (s->core[i].kind <= kind)
            s->core[n++] = s->core[i];
    s->n = n;
}

/* What a core lies below: its cache or its node. */
static uint16_t below(const struct core *c, bool cache)
{
    return cache ? c->cache : c->node;
}

static unsigned beside(const struct site *s, uint16_t place, bool cache)
{
    unsigned n = 0;

    for (unsigned i = 0; i < s->n; i++)
        n += below(&s->core[i], cache) == place;
    return n;
}

/* The cache or node that has room: the caller's, else the smallest, else the first. */
static uint16_t roomy(struct site *s, const struct cpu_place_wish *w, unsigned threads, bool cache)
{
    uint16_t best = TOPOLOGY_UNKNOWN;
    unsigned best_n = ~0u;

    for (unsigned i = 0; i < s->n; i++) {
        uint16_t place = below(&s->core[i], cache);
        unsigned n = beside(s, place, cache);

        if (place != TOPOLOGY_UNKNOWN && n >= threads && n < best_n) {
            best = place;
            best_n = n;
        }
    }
    for (unsigned i = 0; i < s->n_cpus; i++) {
        uint16_t place = cache ? s->cpu[i].cache : s->cpu[i].node;

        if (s->cpu[i].cpu == w->here && place != TOPOLOGY_UNKNOWN &&
            beside(s, place, cache) >= threads)
            best = place;
    }
    return best;
}

static void choose_below(struct site *s, uint16_t place, bool cache, unsigned threads)
{
    for (unsigned i = 0; i < s->n && threads; i++)
        if (below(&s->core[i], cache) == place) {
            s->core[i].chosen = true;
            threads--;
        }
}

/* One of each node in turn. */
static void choose_spread(struct site *s, unsigned threads)
{
    for (unsigned turn = 0; threads; turn++) {
        unsigned before = threads;

        for (unsigned i = 0; i < s->n && threads; i++) {
            unsigned rank = 0; /* among the cores of its node */

            for (unsigned k = 0; k < i; k++)
                rank += s->core[k].node == s->core[i].node;
            if (rank == turn) {
                s->core[i].chosen = true;
                threads--;
            }
        }
        if (threads == before)
            return; /* there are no more cores */
    }
}

/* Mark the cores; says what they have in common. */
static void choose_cores(struct site *s, const struct cpu_place_wish *w, unsigned threads,
                         char *where, size_t where_bytes)
{
    uint16_t cache = roomy(s, w, threads, true), node = roomy(s, w, threads, false);

    *where = '\0';
    if (cache != TOPOLOGY_UNKNOWN) {
        choose_below(s, cache, true, threads);
        snprintf(where, where_bytes, " (one L3)");
    } else if (node != TOPOLOGY_UNKNOWN) {
        choose_below(s, node, false, threads);
        snprintf(where, where_bytes, " (node %u)", node);
    } else {
        choose_spread(s, threads);
        snprintf(where, where_bytes, " (spread over nodes)");
    }
}

__attribute__((format(printf, 2, 3))) static void say(struct cpu_place *p, const char *format, ...)
{
    size_t n = strlen(p->text);
    va_list args;

    va_start(args, format);
    vsnprintf(p->text + n, sizeof(p->text) - n, format, args);
    va_end(args);
}

/* " on CPUs 0-3,8" */
static void say_cpus(struct cpu_place *p, const struct cpu_list *l)
{
    say(p, " on CPU%s", l->n == 1 ? "" : "s");
    for (unsigned i = 0, end; i < l->n; i = end) {
        end = i + 1;
        while (end < l->n && l->cpu[end] == l->cpu[end - 1] + 1)
            end++;
        say(p, end - i > 1 ? "%s%u-%u" : "%s%u", i ? "," : " ", l->cpu[i], l->cpu[end - 1]);
    }
}

static void choose_among(struct cpu_place *out, struct site *s, const struct cpu_place_wish *w)
{
    struct cpu_list first = {0};
    char where[32];

    choose_cores(s, w, out->n_threads, where, sizeof(where));
    out->how = PLACE_AMONG;
    for (unsigned i = 0; i < s->n_cpus; i++) {
        const struct core *core = find_core(s, s->cpu[i].core);

        if (!core || !core->chosen)
            continue;
        out->cpus.cpu[out->cpus.n++] = s->cpu[i].cpu;
        if (core->first == s->cpu[i].cpu)
            first.cpu[first.n++] = s->cpu[i].cpu;
    }
    say_cpus(out, &first);
    say(out, "%s", where);
}

static unsigned quota_cores(const struct cpu_place_wish *w)
{
    return (w->quota_percent + 99) / 100;
}

/* A core each of the fastest kind, and no more than the quota pays for. */
static unsigned choose_threads(const struct site *s, const struct cpu_place_wish *w)
{
    unsigned n = s->n ? count(s, fastest(s)) : w->allowed->n, quota = quota_cores(w);

    return quota && quota < n ? quota : n;
}

static unsigned clamp(unsigned n)
{
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
}

static void choose_on(struct cpu_place *out, struct site *s, const struct cpu_place_wish *w)
{
    unsigned n_all = s->n, n_fast = s->n ? count(s, fastest(s)) : 0;
    bool smt = s->n < s->n_cpus;

    out->n_threads = clamp(w->threads ? w->threads : choose_threads(s, w));
    say(out, "%u thread%s", out->n_threads, out->n_threads == 1 ? "" : "s");
    if (!s->n) {
        say(out, ", cores not known");
    } else if (out->n_threads > n_all) {
        say(out, " on %u core%s", n_all, n_all == 1 ? "" : "s");
    } else {
        leave_slow(s, out->n_threads);
        if (out->n_threads < n_all)
            choose_among(out, s, w);
        else
            say(out, ", one per core");
        say(out, "%s%s", smt ? ", SMT siblings left idle" : "",
            n_fast < n_all && out->n_threads <= n_fast ? ", slower cores left idle" : "");
    }
}

void cpu_place_choose(struct cpu_place *out, const struct cpu_place_wish *w)
{
    struct site *s;

    *out = (struct cpu_place){.how = PLACE_ANYWHERE};
    if (w->listed) {
        out->how = PLACE_EACH;
        out->cpus = *w->listed;
        out->n_threads = clamp(w->threads ? w->threads : w->listed->n);
        say(out, "%u thread%s", out->n_threads, out->n_threads == 1 ? "" : "s");
        say_cpus(out, &out->cpus);
        say(out, ", as listed");
    } else if ((s = malloc(sizeof(*s)))) {
        site_of(s, w);
        choose_on(out, s, w);
        free(s);
    } else {
        out->n_threads = clamp(w->threads ? w->threads : w->allowed->n);
        say(out, "%u threads", out->n_threads);
    }
    if (w->quota_percent && w->quota_percent < 100 * w->allowed->n)
        say(out, ", a quota of %u.%02u CPUs", w->quota_percent / 100, w->quota_percent % 100);
    out->spin = out->n_threads <= (out->cpus.n ? out->cpus.n : w->allowed->n) &&
                (!w->quota_percent || out->n_threads * 100 <= w->quota_percent);
}

void cpu_place_here(struct cpu_place *out, unsigned threads, const struct cpu_list *listed)
{
    struct topology *t = malloc(sizeof(*t));
    struct cpu_list allowed;
    struct cpu_place_wish w = {.threads = threads,
                               .quota_percent = machine_quota_percent(NULL),
                               .listed = listed,
                               .allowed = &allowed,
                               .here = machine_here()};

    machine_allowed(&allowed);
    if (t && !listed && topology_read(t, NULL))
        w.topology = t;
    cpu_place_choose(out, &w);
    if (out->how == PLACE_AMONG && !machine_can_bind(&out->cpus)) {
        out->how = PLACE_ANYWHERE;
        out->cpus.n = 0;
        snprintf(out->text, sizeof(out->text), "%u threads; binding is forbidden here",
                 out->n_threads);
    }
    free(t);
}
