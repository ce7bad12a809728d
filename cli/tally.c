#include "cli/tally.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cli/estimate.h"
#include "cli/units.h"

#define N_ELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* The process's own reads as the block layer saw them: what /proc/diskstats has is everybody's. */
static int64_t device_bytes(void)
{
    FILE *f = fopen("/proc/self/io", "re");
    long long bytes = -1;
    char line[128];

    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "read_bytes: %lld", &bytes) == 1)
            break;
    }
    if (f)
        fclose(f);
    return bytes;
}

void tally_now(struct tally *t, const waste_ctx *ctx)
{
    memset(t, 0, sizeof(*t));
    t->c.size = sizeof(t->c);
    waste_get_counters(ctx, &t->c);
    t->bytes_device = device_bytes();
}

#define COUNTS(X)                                                                                  \
    X(prefill_tokens)                                                                              \
    X(decode_tokens)                                                                               \
    X(hits_resident)                                                                               \
    X(hits_prefetch)                                                                               \
    X(misses)                                                                                      \
    X(bytes_read)                                                                                  \
    X(bytes_prefetch)                                                                              \
    X(late_prefetch)                                                                               \
    X(late_misses)                                                                                 \
    X(guesses)                                                                                     \
    X(guesses_wasted)                                                                              \
    X(guesses_refused)                                                                             \
    X(reads_retried)                                                                               \
    X(reads_failed)                                                                                \
    X(records_refused)                                                                             \
    X(preloaded)                                                                                   \
    X(hits_preload)                                                                                \
    X(images)
#define SECONDS(X)                                                                                 \
    X(sec_prefill)                                                                                 \
    X(sec_decode)                                                                                  \
    X(sec_io)                                                                                      \
    X(sec_in_flight)                                                                               \
    X(sec_mix)                                                                                     \
    X(sec_mlp)                                                                                     \
    X(sec_route)                                                                                   \
    X(sec_checks)                                                                                  \
    X(sec_experts)                                                                                 \
    X(sec_head)                                                                                    \
    X(sec_other)                                                                                   \
    X(sec_images)

struct tally tally_between(const struct tally *from, const struct tally *to)
{
    struct tally d = *to;

#define SUBTRACT(field) d.c.field -= from->c.field;
    COUNTS(SUBTRACT)
    SECONDS(SUBTRACT)
#undef SUBTRACT
    d.bytes_device = from->bytes_device < 0 ? -1 : to->bytes_device - from->bytes_device;
    return d;
}

void tally_add(struct tally *sum, const struct tally *more)
{
#define ADD(field) sum->c.field += more->c.field;
    COUNTS(ADD)
    SECONDS(ADD)
#undef ADD
    sum->bytes_device = sum->bytes_device < 0 || more->bytes_device < 0
                            ? -1
                            : sum->bytes_device + more->bytes_device;
}

static double hidden(const waste_counters *c)
{
    return c->sec_in_flight > c->sec_io ? c->sec_in_flight - c->sec_io : 0;
}

int tally_json(json_t *into, const struct tally *t)
{
    const waste_counters *c = &t->c;
    json_t *more = json_pack(
        "{s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I}",
        "io_wait_s", c->sec_io, "io_hidden_s", hidden(c), "hits_resident",
        (json_int_t)c->hits_resident, "hits_prefetch", (json_int_t)c->hits_prefetch,
        "late_prefetch", (json_int_t)c->late_prefetch, "experts_hit",
        (json_int_t)c->hits_resident + (json_int_t)c->hits_prefetch, "experts_missed",
        (json_int_t)c->misses, "late_misses", (json_int_t)c->late_misses, "bytes_read",
        (json_int_t)c->bytes_read, "bytes_device",
        t->bytes_device < 0 ? json_null() : json_integer(t->bytes_device), "guesses",
        (json_int_t)c->guesses, "guesses_wasted", (json_int_t)c->guesses_wasted, "guesses_refused",
        (json_int_t)c->guesses_refused, "reads_retried", (json_int_t)c->reads_retried,
        "reads_failed", (json_int_t)c->reads_failed, "records_refused",
        (json_int_t)c->records_refused, "preloaded", (json_int_t)c->preloaded, "hits_preload",
        (json_int_t)c->hits_preload);
    int rc = more ? json_object_update(into, more) : -1;

    if (!rc && c->images)
        rc = json_object_set_new(into, "images", json_integer((json_int_t)c->images)) |
             json_object_set_new(into, "tower_s", json_real(c->sec_images));

    json_decref(more);
    return rc;
}

typedef unsigned long long ull;

void tally_lines(struct cli *c, const struct tally *t)
{
    const waste_counters *d = &t->c;
    uint64_t hits = d->hits_resident + d->hits_prefetch, pins = hits + d->misses;
    char bytes[UNITS_TEXT];

    if (!pins)
        return;
    note(c,
         "experts  %.1f %% hits: %llu resident, %llu prefetched; %llu missed; %s read, %.1f s "
         "waited",
         100.0 * (double)hits / (double)pins, (ull)d->hits_resident, (ull)d->hits_prefetch,
         (ull)d->misses, size_text_decimal(bytes, d->bytes_read), d->sec_io);
    if (d->preloaded)
        note(c, "hotlist  %llu experts preloaded, %llu of them used", (ull)d->preloaded,
             (ull)d->hits_preload);
    if (d->guesses || d->guesses_refused)
        note(c, "guesses  %llu read: %llu used (%llu late), %llu wasted; %.1f s of reading hidden",
             (ull)d->guesses, (ull)d->hits_prefetch, (ull)d->late_prefetch, (ull)d->guesses_wasted,
             hidden(d));
    if (d->reads_retried || d->reads_failed || d->records_refused)
        note(c, "trouble  %llu reads tried again, %llu failed; %llu experts came with bad bytes",
             (ull)d->reads_retried, (ull)d->reads_failed, (ull)d->records_refused);
}

/* ---- the profile ---- */

struct part {
    const char *name, *what;
    size_t field;
};

static const struct part parts[] = {
    {"reads", "waiting for experts to arrive", offsetof(waste_counters, sec_io)},
    {"checks", "checksums of what arrived", offsetof(waste_counters, sec_checks)},
    {"experts", "routed experts", offsetof(waste_counters, sec_experts)},
    {"attention", "attention, norms, residuals", offsetof(waste_counters, sec_mix)},
    {"mlp", "dense layers, shared experts", offsetof(waste_counters, sec_mlp)},
    {"route", "routers, guesses, starting reads", offsetof(waste_counters, sec_route)},
    {"head", "logits", offsetof(waste_counters, sec_head)},
    {"other", "embeddings, choosing, callbacks", offsetof(waste_counters, sec_other)},
};

int profile_begin(struct cli *c, struct profile *p)
{
    struct err e;

    if (!c->opts.profile || waste_usable_ram() < (uint64_t)2 << 30)
        return 0;
    if (measure_ram(&p->ram_rate, &e) && term_interrupted())
        return EXIT_INTERRUPTED;
    return 0;
}

static double part_of(const struct tally *t, unsigned i)
{
    return *(const double *)(const void *)((const char *)&t->c + parts[i].field);
}

static double whole(const struct tally *t)
{
    return t->c.sec_prefill + t->c.sec_decode;
}

/* Bytes per second that decoding took from memory while it computed. */
static double touched_rate(const struct profile *p)
{
    const waste_counters *c = &p->decode.c;
    uint64_t pins = c->hits_resident + c->hits_prefetch + c->misses;
    double computing = whole(&p->decode) - c->sec_io;

    if (computing <= 0)
        return 0;
    return ((double)c->decode_tokens * (double)p->trunk + (double)pins * (double)p->record) /
           computing;
}

const char *profile_bound(const struct profile *p)
{
    const struct tally *t = p->decode.c.decode_tokens ? &p->decode : &p->prefill;

    if (whole(t) <= 0)
        return "nothing";
    if (t->c.sec_io * 2 >= whole(t))
        return "disk";
    if (t == &p->prefill) /* weights are used for many rows each */
        return "compute";
    if (p->ram_rate <= 0)
        return "memory or compute";
    return touched_rate(p) >= 0.6 * p->ram_rate ? "memory" : "compute";
}

static json_t *parts_json(const struct tally *t)
{
    json_t *o = json_object();

    for (unsigned i = 0; i < N_ELEMS(parts); i++)
        json_object_set_new(o, parts[i].name, json_f64(part_of(t, i)));
    json_object_set_new(o, "all", json_f64(whole(t)));
    return o;
}

json_t *profile_json(const struct profile *p)
{
    return json_pack("{s:o, s:o, s:s, s:f, s:o}", "prefill_s", parts_json(&p->prefill), "decode_s",
                     parts_json(&p->decode), "bound_by", profile_bound(p), "bytes_per_s_touched",
                     touched_rate(p), "bytes_per_s_memory",
                     p->ram_rate > 0 ? json_real(p->ram_rate) : json_null());
}

static double percent(double part, double all)
{
    return all > 0 ? 100 * part / all : 0;
}

static void verdict(struct cli *c, const struct profile *p)
{
    const char *bound = profile_bound(p);
    char touched[UNITS_TEXT], ram[UNITS_TEXT];

    size_text_decimal(touched, (uint64_t)touched_rate(p));
    size_text_decimal(ram, (uint64_t)p->ram_rate);
    if (!strcmp(bound, "disk"))
        note(c, "Disk-bound: more memory for experts, or a faster drive, makes it faster.");
    else if (!strcmp(bound, "memory"))
        note(c, "Memory-bound: computing takes %s/s of weights; this memory gives %s/s.", touched,
             ram);
    else if (!strcmp(bound, "compute") && p->ram_rate > 0 && touched_rate(p) > 0)
        note(c,
             "Compute-bound: %s/s of weights are used, where memory gives %s/s. More or faster "
             "cores make it faster.",
             touched, ram);
    else if (!strcmp(bound, "compute"))
        note(c, "Compute-bound: more or faster cores make it faster.");
    else if (strcmp(bound, "nothing"))
        note(c, "Not disk-bound: memory or cores; computing takes %s/s of weights.", touched);
}

void profile_lines(struct cli *c, const struct profile *p)
{
    double n_prompt = (double)p->prefill.c.prefill_tokens + (double)p->prefill.c.decode_tokens;
    double n = (double)p->decode.c.decode_tokens;

    note(c, "%s", "");
    note(c, "%-11s %9s %6s   %9s %6s", "profile", "ms/prompt", "%", "ms/answer", "%");
    for (unsigned i = 0; i <= N_ELEMS(parts); i++) {
        bool sum = i == N_ELEMS(parts);
        double a = sum ? whole(&p->prefill) : part_of(&p->prefill, i);
        double b = sum ? whole(&p->decode) : part_of(&p->decode, i);

        note(c, "%-11s %9.3f %6.1f   %9.3f %6.1f   %s", sum ? "all" : parts[i].name,
             n_prompt > 0 ? 1e3 * a / n_prompt : 0, percent(a, whole(&p->prefill)),
             n > 0 ? 1e3 * b / n : 0, percent(b, whole(&p->decode)),
             sum ? "a token" : parts[i].what);
    }
    verdict(c, p);
}
