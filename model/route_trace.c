#include "model/route_trace.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

struct route_trace {
    FILE *file;
    struct hparams hp;
    struct route_tap tap;
    locale_t plain; /* a decimal point is a point, whatever the host's locale */
};

int route_trace_open(struct route_trace **out, const char *path, const struct hparams *hp,
                     struct err *e)
{
    struct route_trace *t = calloc(1, sizeof(*t));
    size_t n = (size_t)hp->n_layers * hp->top_k;

    if (!t)
        return err_set(e, ERR_NOMEM, "route trace");
    t->hp = *hp;
    t->tap.id = calloc(n + 1, sizeof(*t->tap.id));
    t->tap.weight = calloc(n + 1, sizeof(*t->tap.weight));
    t->tap.guess = calloc(n + 1, sizeof(*t->tap.guess));
    t->file = fopen(path, "ae");
    t->plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!t->file || !t->plain || !t->tap.id || !t->tap.weight || !t->tap.guess) {
        struct err ignored;
        int rc = t->file ? err_set(e, ERR_NOMEM, "route trace")
                         : err_sys(e, errno, "route trace %s", path);

        route_trace_close(t, &ignored);
        return rc;
    }
    for (size_t i = 0; i < n; i++)
        t->tap.guess[i] = -1;
    *out = t;
    return 0;
}

struct route_tap *route_trace_tap(struct route_trace *t)
{
    return &t->tap;
}

int route_trace_write(struct route_trace *t, unsigned pos, struct err *e)
{
    locale_t before = uselocale(t->plain);
    unsigned K = t->hp.top_k;

    for (unsigned l = t->hp.first_dense; l < t->hp.n_layers; l++) {
        const int32_t *next = l + 1 < t->hp.n_layers ? t->tap.guess + (l + 1) * K : NULL;

        fprintf(t->file, "%u %u", pos, l);
        for (unsigned i = 0; i < K; i++)
            fprintf(t->file, " %u", t->tap.id[l * K + i]);
        for (unsigned i = 0; i < K; i++)
            fprintf(t->file, " %.6g", (double)t->tap.weight[l * K + i]);
        for (unsigned i = 0; i < K; i++)
            fprintf(t->file, " %d", next ? (int)next[i] : -1);
        fputc('\n', t->file);
    }
    uselocale(before);
    if (fflush(t->file))
        return err_sys(e, errno, "route trace");
    return 0;
}

int route_trace_close(struct route_trace *t, struct err *e)
{
    int rc = 0;

    if (!t)
        return 0;
    if (t->file && fclose(t->file))
        rc = err_sys(e, errno, "route trace");
    if (t->plain)
        freelocale(t->plain);
    free(t->tap.id);
    free(t->tap.weight);
    free(t->tap.guess);
    free(t);
    return rc;
}
