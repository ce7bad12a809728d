#include "storage/flight.h"

#include <assert.h>
#include <stdlib.h>

#include "storage/drive_notes.h"
#include "storage/io.h"

enum { DEPTHS_TRIED = 8 }; /* 1, 2, 3, 4, 6, 8, 12, 16 */

/* Whether no file before this one is on its drive. */
static bool is_first(const struct flight_request *q, unsigned file)
{
    for (unsigned i = 0; i < file; i++)
        if (q->drive[i].id == q->drive[file].id)
            return false;
    return true;
}

static bool known(struct drive_speed *out, const struct flight_request *q, unsigned file)
{
    return q->notes &&
           drive_note_find(out, q->notes, &q->drive[file], drive_note_class(q->at[0].length));
}

/* The drive that this file is on, alone. */
static int measure(struct drive_speed *out, const struct flight_request *q, struct io *io,
                   unsigned file, uint64_t ns, struct err *e)
{
    struct extent *at = malloc(q->n * sizeof(*at));
    struct drive_trial t = {.io = io,
                            .at = at,
                            .memory = q->memory,
                            .depth_max = q->depth_max,
                            .ns = ns / DEPTHS_TRIED,
                            .total_ns = ns};
    int rc;

    if (!at)
        return err_set(e, ERR_NOMEM, "measuring a drive: %u pages", q->n);
    for (unsigned i = 0; i < q->n; i++)
        if (q->drive[q->at[i].file].id == q->drive[file].id)
            at[t.n++] = q->at[i];
    rc = t.n ? drive_measure(out, &t, e)
             : err_set(e, ERR_ARG, "measuring drive %s: no page of it", q->drive[file].name);
    free(at);
    return rc;
}

static int measure_unknown(struct flight *out, const struct flight_request *q, struct io *io,
                           unsigned n_unknown, struct err *e)
{
    for (unsigned f = 0; f < q->n_files; f++) {
        struct drive_speed s;

        if (!is_first(q, f))
            continue;
        if (!known(&s, q, f)) {
            assert(n_unknown); /* this is one */
            if (measure(&s, q, io, f, q->ns / n_unknown, e))
                return e->code;
            if (q->notes)
                drive_note_keep(q->notes, &q->drive[f], drive_note_class(q->at[0].length), &s,
                                &out->unkept);
            out->n_measured++;
        }
        out->depth += s.depth;
        out->bytes_per_s += s.bytes_per_s;
    }
    return 0;
}

int flight_find(struct flight *out, const struct flight_request *q, struct err *e)
{
    struct io_config cfg = {.files = q->files,
                            .n_files = q->n_files,
                            .depth = q->depth_max,
                            .arena = q->memory,
                            .arena_bytes = (size_t)q->depth_max * q->at[0].length};
    struct flight found = {.depth = 0};
    struct io *io = q->io;
    unsigned n_unknown = 0;
    struct drive_speed s;
    int rc;

    for (unsigned f = 0; f < q->n_files; f++) {
        found.n_drives += is_first(q, f);
        n_unknown += is_first(q, f) && !known(&s, q, f);
    }
    if (n_unknown && !io && io_open(&io, q->engine, &cfg, NULL, e))
        return e->code;
    rc = io && io->ops == &io_ops_sync ? 0 : measure_unknown(&found, q, io, n_unknown, e);
    if (io && !q->io)
        io->ops->close(io);
    if (!rc)
        *out = found;
    return rc;
}
