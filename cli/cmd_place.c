/* cli/cmd_place.c - spread a container's experts over several drives, or gather them again. */
#include "cli/cmd.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/estimate.h"
#include "cli/load.h"
#include "cli/units.h"
#include "expertfs/container.h"
#include "expertfs/place.h"

enum { MEASURED_SHARE_MAX = 8 };

struct place {
    struct cli *c;
    char path[PATH_MAX], real[PATH_MAX];
    struct placement want;
    double rate[PLACEMENT_DRIVES_MAX]; /* 0: not measured */
};

/* One "DIR" or "DIR=SHARE" of the list; -1 stands for a share that is not given. */
static int parse_drive(struct place *p, const char *text, size_t len, int share[])
{
    char dir[PATH_MAX], real[PATH_MAX];
    const char *equals = memchr(text, '=', len), *base = strrchr(p->real, '/') + 1;
    size_t n = equals ? (size_t)(equals - text) : len;
    unsigned d = p->want.n;
    int given = -1;

    snprintf(dir, sizeof(dir), "%.*s", (int)n, text);
    if (equals) {
        char *end;
        long v = strtol(equals + 1, &end, 10);

        if (end != text + len || end == equals + 1 || v < 0 || v > PLACEMENT_SHARE_MAX)
            return fail(p->c, EXIT_USAGE, NULL, "--drives",
                        "\"%.*s\": a share is 1 to %d, or 0 for \".\"", (int)len, text,
                        PLACEMENT_SHARE_MAX);
        given = (int)v;
    }
    if (!strcmp(dir, ".")) {
        share[0] = given;
        return 0;
    }
    if (!given)
        return fail(p->c, EXIT_USAGE, NULL, "--drives", "\"%s\": only \".\" can have no share",
                    dir);
    if (d == PLACEMENT_DRIVES_MAX)
        return fail(p->c, EXIT_USAGE, NULL, "--drives", "more than %d drives", d);
    if (!realpath(dir, real))
        return fail(p->c, EXIT_RUNTIME, NULL, dir, "%s (is the drive mounted?)", strerror(errno));
    if ((size_t)snprintf(p->want.dir[d], PLACEMENT_DIR_BYTES, "%s/%s.pieces",
                         strcmp(real, "/") ? real : "", base) >= PLACEMENT_DIR_BYTES)
        return fail(p->c, EXIT_USAGE, NULL, dir, "the path is too long");
    for (unsigned i = 1; i < d; i++)
        if (!strcmp(p->want.dir[i], p->want.dir[d]))
            return fail(p->c, EXIT_USAGE, NULL, "--drives", "%s is named twice", dir);
    share[d] = given;
    p->want.n++;
    return 0;
}

/* Shares as given; the others' from what half a second of reading shows. */
static int measure_shares(struct place *p, int share[])
{
    double most = 0;
    const struct container_options o = {.direct = false};
    struct container *k;
    bool any = false;
    uint32_t record;
    struct err e;
    int rc = 0;

    for (unsigned d = 0; d < p->want.n; d++)
        any |= share[d] > 0;
    for (unsigned d = 0; any && d < p->want.n; d++)
        if (share[d] < 0)
            return fail(p->c, EXIT_USAGE, NULL, "--drives",
                        "give every drive a share, \".\" (the container's own) included, or none");
    for (unsigned d = 0; d < p->want.n; d++)
        p->want.share[d] = share[d] > 0 ? (unsigned)share[d] : 0;
    if (any)
        return 0;
    if (container_open(&k, p->real, &o, &e))
        return fail_err(p->c, &e, p->path);
    record = container_manifest(k)->record.bytes;
    container_close(k);
    for (unsigned d = 0; d < p->want.n && !rc; d++) {
        char dir[PATH_MAX];

        snprintf(dir, sizeof(dir), "%s", d ? p->want.dir[d] : p->real);
        if (d)
            *strrchr(dir, '/') = 0; /* the pieces' directory is not there yet */
        if (share[d] && record && measure_dir(&p->rate[d], dir, record, &e))
            rc = fail_err(p->c, &e, "place");
        most = p->rate[d] > most ? p->rate[d] : most;
    }
    for (unsigned d = 0; d < p->want.n && !rc; d++) {
        p->want.share[d] = most > 0 ? (unsigned)(p->rate[d] / most * MEASURED_SHARE_MAX + 0.5) : 1;
        if (share[d] && !p->want.share[d])
            p->want.share[d] = 1;
    }
    return rc;
}

static int parse_drives(struct place *p)
{
    const char *text = p->c->opts.drives;
    int share[PLACEMENT_DRIVES_MAX], rc = 0;

    for (unsigned d = 0; d < PLACEMENT_DRIVES_MAX; d++)
        share[d] = -1;
    strcpy(p->want.dir[0], ".");
    p->want.n = 1;
    while (!rc) {
        size_t len = strcspn(text, ",");

        if (!len)
            return fail(p->c, EXIT_USAGE, NULL, "--drives", "\"%s\": an empty name",
                        p->c->opts.drives);
        rc = parse_drive(p, text, len, share);
        text += len;
        if (!*text++)
            break;
    }
    if (!rc && p->want.n == 1)
        return fail(p->c, EXIT_USAGE, NULL, "--drives", "names no other drive");
    return rc ? rc : measure_shares(p, share);
}

/* Where the records are now. */
static int show(struct place *p)
{
    const struct container_options o = {.direct = false};
    const struct placement *now;
    const struct manifest *m;
    struct container *k;
    unsigned spread = 0;
    struct err e;
    json_t *drives = json_array();

    if (container_open(&k, p->path, &o, &e)) {
        json_decref(drives);
        return fail_err(p->c, &e, p->path);
    }
    now = container_placement(k);
    m = container_manifest(k);
    for (unsigned l = m->first_dense; l < m->n_layers; l++)
        spread += now->spread[l];
    if (!p->c->opts.json)
        printf("%u of %u layers with experts are spread over %u drive%s.\n", spread,
               m->n_layers - m->first_dense, now->n ? now->n : 1, plural(now->n ? now->n : 1));
    for (unsigned d = 0; d < now->n; d++) {
        unsigned n = placement_records(now, d, m->n_experts);
        char size[UNITS_TEXT];

        json_array_append_new(
            drives, json_pack("{s:o, s:i, s:i}", "dir", json_text(now->dir[d], strlen(now->dir[d])),
                              "share", (int)now->share[d], "experts_of_a_layer", (int)n));
        if (!p->c->opts.json)
            printf("  %2u/%-2u %5u experts of a layer, %s in all: %s\n", now->share[d], now->period,
                   n, size_text(size, (uint64_t)spread * n * m->record.bytes), now->dir[d]);
    }
    container_close(k);
    if (p->c->opts.json)
        return say_json(p->c,
                        json_pack("{s:i, s:o}", "layers_spread", (int)spread, "drives", drives));
    json_decref(drives);
    return term_flush(&p->c->term) ? 0 : fail_output(p->c);
}

static int move(struct place *p)
{
    struct progress progress = {0};
    struct err e;
    int code;

    term_cancels(NULL, &progress.cancel);
    bar_watch(&p->c->bar, p->c->opts.gather ? "gathering" : "spreading", BAR_BYTES, &progress);
    code = p->c->opts.gather ? place_gather(p->path, &progress, &e)
                             : place_spread(p->path, &p->want, &progress, &e);
    bar_unwatch(&p->c->bar);
    term_cancels(NULL, NULL);
    if (code == ERR_CANCELLED) {
        note(p->c, "interrupted; nothing is lost, and the same command goes on");
        return EXIT_INTERRUPTED;
    }
    return code ? fail_err(p->c, &e, p->path) : show(p);
}

int cmd_place(struct cli *c)
{
    struct place p = {.c = c};
    int rc = model_find(c, c->opts.arg[1], p.path);

    if (!rc)
        rc = model_check(c, p.path);
    if (rc)
        return rc;
    if (!realpath(p.path, p.real))
        return fail(c, EXIT_RUNTIME, NULL, p.path, "%s", strerror(errno));
    if (c->opts.drives && c->opts.gather)
        return fail(c, EXIT_USAGE, NULL, "place", "both --drives and --gather are given");
    if (c->opts.drives && (rc = parse_drives(&p)))
        return rc;
    return c->opts.drives || c->opts.gather ? move(&p) : show(&p);
}
