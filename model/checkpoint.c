#include "model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "expertfs/out_dir.h"
#include "include/waste.h"

static const char magic[8] = {'W', 'S', 'T', 'A', 'T', 'E', '\r', '\n'};

enum { WINDOW_BYTES = 256 << 10, CRC_AT = STATE_HEADER_BYTES - 4, SHAPES = 8 };

static const char *const shape_name[SHAPES] = {
    "vocabulary",       "KDA layers",   "KDA heads",  "KDA head width",
    "convolution taps", "KDA channels", "MLA layers", "latent row",
};

/* ---- in memory ---- */

void checkpoint_copy(const struct session *s, void *out)
{
    uint8_t *at = out;

    for (unsigned i = 0; i < session_n_parts(s->hp); i++) {
        struct session_part p = session_part(s, i, s->pos, s->side);

        memcpy(at, p.at, p.bytes);
        at += p.bytes;
    }
}

void checkpoint_apply(struct session *s, const void *bytes, unsigned pos, int32_t choice)
{
    const uint8_t *at = bytes;

    for (unsigned i = 0; i < session_n_parts(s->hp); i++) {
        struct session_part p = session_part(s, i, pos, !s->side);

        memcpy(p.at, at, p.bytes);
        at += p.bytes;
    }
    session_adopt(s, pos, choice);
}

/* ---- the header ---- */

static void shape_of(uint32_t shape[SHAPES], const struct hparams *hp)
{
    const uint32_t of[SHAPES] = {
        hp->vocab,     hp->n_kda,
        hp->kda_heads, hp->kda_dim,
        hp->conv_taps, hparams_kda_channels(hp),
        hp->n_mla,     hparams_latent_stride(hp),
    };

    memcpy(shape, of, sizeof(of));
}

void state_head_of(struct state_head *h, const struct session *s, const struct state_kind *kind)
{
    *h = (struct state_head){.kind = *kind,
                             .pos = s->pos,
                             .choice = s->choice,
                             .created = (uint64_t)time(NULL),
                             .engine = WASTE_VERSION_STRING,
                             .parts_bytes = session_parts_bytes(s->hp, s->pos)};
    shape_of(h->shape, s->hp);
}

uint64_t state_file_bytes(const struct state_head *h)
{
    return STATE_HEADER_BYTES + h->parts_bytes + h->note_bytes;
}

static uint8_t *put32(uint8_t *at, uint32_t v)
{
    store_le32(at, v);
    return at + 4;
}

static uint8_t *put64(uint8_t *at, uint64_t v)
{
    store_le64(at, v);
    return at + 8;
}

static uint8_t *put(uint8_t *at, const void *from, size_t n)
{
    memcpy(at, from, n);
    return at + n;
}

/* docs/STATE.md has the offsets. */
static void head_put(const struct state_head *h, uint8_t out[STATE_HEADER_BYTES])
{
    uint8_t *at = out;

    memset(out, 0, STATE_HEADER_BYTES);
    at = put(at, magic, sizeof(magic));
    at = put32(at, STATE_VERSION);
    at = put32(at, ARITHMETIC_VERSION);
    at = put64(at, state_file_bytes(h));
    at = put32(at, h->kind.container);
    at = put32(at, h->kind.trunk);
    at = put(at, h->kind.numeric, sizeof(h->kind.numeric));
    at = put(at, h->kind.arch, sizeof(h->kind.arch));
    at = put(at, h->engine, sizeof(h->engine));
    for (unsigned i = 0; i < SHAPES; i++)
        at = put32(at, h->shape[i]);
    at = put32(at, h->pos);
    at = put32(at, (uint32_t)h->choice);
    at = put64(at, h->created);
    at = put64(at, h->key);
    at = put64(at, h->parent);
    at = put32(at, h->parent_pos);
    at = put(at, h->tag, sizeof(h->tag));
    at = put32(at, h->parts_crc);
    at = put32(at, h->note_crc);
    at = put64(at, h->parts_bytes);
    put64(at, h->note_bytes);
    store_le32(out + CRC_AT, libdeflate_crc32(0, out, CRC_AT));
}

static void take(struct bytes *b, void *out, size_t n)
{
    memcpy(out, bytes_take(b, n), n); /* a header is longer than all of them */
}

static void head_take(struct state_head *h, struct bytes *b)
{
    h->kind.container = bytes_u32(b);
    h->kind.trunk = bytes_u32(b);
    take(b, h->kind.numeric, sizeof(h->kind.numeric));
    take(b, h->kind.arch, sizeof(h->kind.arch));
    take(b, h->engine, sizeof(h->engine));
    for (unsigned i = 0; i < SHAPES; i++)
        h->shape[i] = bytes_u32(b);
    h->pos = bytes_u32(b);
    h->choice = (int32_t)bytes_u32(b);
    h->created = bytes_u64(b);
    h->key = bytes_u64(b);
    h->parent = bytes_u64(b);
    h->parent_pos = bytes_u32(b);
    take(b, h->tag, sizeof(h->tag));
    h->parts_crc = bytes_u32(b);
    h->note_crc = bytes_u32(b);
    h->parts_bytes = bytes_u64(b);
    h->note_bytes = bytes_u64(b);
}

static bool texts_end(const struct state_head *h)
{
    return !h->kind.numeric[sizeof(h->kind.numeric) - 1] &&
           !h->kind.arch[sizeof(h->kind.arch) - 1] && !h->engine[sizeof(h->engine) - 1];
}

/* ---- reading ---- */

static int read_at(int fd, const char *path, void *out, uint64_t n, uint64_t at, struct err *e)
{
    uint8_t *p = out;

    while (n) {
        ssize_t got = pread(fd, p, n < 1u << 30 ? n : 1u << 30, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(e, errno, "%s: reading at %" PRIu64, path, at);
        if (!got)
            return err_set(e, ERR_CORRUPT, "%s: ends at byte %" PRIu64 ", %" PRIu64 " are missing",
                           path, at, n);
        p += got;
        n -= (uint64_t)got;
        at += (uint64_t)got;
    }
    return 0;
}

int state_read_head(int fd, const char *path, struct state_head *h, struct err *e)
{
    uint8_t raw[STATE_HEADER_BYTES];
    struct bytes b = bytes_of(raw, sizeof(raw));
    uint64_t bytes;
    uint32_t version, arithmetic, crc;
    struct stat st;

    if (fstat(fd, &st))
        return err_sys(e, errno, "%s", path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < sizeof(raw))
        return err_set(e, ERR_FORMAT, "%s: no saved state: %s", path,
                       S_ISREG(st.st_mode) ? "shorter than its header of 4096 bytes"
                                           : "not a regular file");
    if (read_at(fd, path, raw, sizeof(raw), 0, e))
        return e->code;
    if (memcmp(bytes_take(&b, sizeof(magic)), magic, sizeof(magic)) != 0)
        return err_set(e, ERR_FORMAT, "%s: no saved state (it begins otherwise)", path);
    version = bytes_u32(&b);
    if (version != STATE_VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: a state of version %u, this program knows version %d", path, version,
                       STATE_VERSION);
    crc = libdeflate_crc32(0, raw, CRC_AT);
    if (crc != load_le32(raw + CRC_AT))
        return err_set(e, ERR_CORRUPT, "%s: header checksum %08x, %08x expected: it is damaged",
                       path, crc, load_le32(raw + CRC_AT));
    arithmetic = bytes_u32(&b);
    if (arithmetic != ARITHMETIC_VERSION)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: made by arithmetic number %u, this program's is %d; compute it again",
                       path, arithmetic, ARITHMETIC_VERSION);
    bytes = bytes_u64(&b);
    head_take(h, &b);
    if (!texts_end(h))
        return err_set(e, ERR_CORRUPT, "%s: a name in its header has no end", path);
    if (h->note_bytes > STATE_NOTE_MAX || h->parts_bytes > UINT64_MAX / 2 ||
        bytes != state_file_bytes(h) || bytes != (uint64_t)st.st_size)
        return err_set(e, ERR_CORRUPT,
                       "%s: has %lld bytes, its header says %" PRIu64 " (%" PRIu64
                       " of state, %" PRIu64 " of notes)",
                       path, (long long)st.st_size, bytes, h->parts_bytes, h->note_bytes);
    return 0;
}

int state_fits(const struct state_head *h, const char *path, const struct state_kind *kind,
               const struct hparams *hp, unsigned ctx, struct err *e)
{
    uint32_t shape[SHAPES];

    shape_of(shape, hp);
    if (memcmp(h->kind.arch, kind->arch, sizeof(kind->arch)) != 0)
        return err_set(e, ERR_FORMAT, "%s: a state of a %s, this model is a %s", path, h->kind.arch,
                       kind->arch);
    for (unsigned i = 0; i < SHAPES; i++)
        if (h->shape[i] != shape[i])
            return err_set(e, ERR_FORMAT, "%s: a state of another model: %s %u, here %u", path,
                           shape_name[i], h->shape[i], shape[i]);
    if (h->kind.container != kind->container || h->kind.trunk != kind->trunk)
        return err_set(e, ERR_FORMAT,
                       "%s: made with other weights (container %08x trunk %08x, here %08x %08x)",
                       path, h->kind.container, h->kind.trunk, kind->container, kind->trunk);
    if (memcmp(h->kind.numeric, kind->numeric, sizeof(kind->numeric)) != 0)
        return err_set(e, ERR_FORMAT,
                       "%s: made with numeric profile %s, this model was opened with %s "
                       "(--numeric)",
                       path, h->kind.numeric, kind->numeric);
    if (h->pos > ctx)
        return err_set(e, ERR_LIMIT, "%s: %u positions, this context has %u (--ctx)", path, h->pos,
                       ctx);
    if (h->choice < -1 || (h->choice >= 0 && (uint32_t)h->choice >= shape[0]) ||
        h->parts_bytes != session_parts_bytes(hp, h->pos))
        return err_set(e, ERR_CORRUPT,
                       "%s: %" PRIu64 " bytes of state, %u positions take %" PRIu64
                       " (chosen id %d)",
                       path, h->parts_bytes, h->pos, session_parts_bytes(hp, h->pos), h->choice);
    return 0;
}

static int ids_check(const uint8_t *ids, size_t n, uint64_t first, uint32_t vocab, const char *path,
                     struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (load_le32(ids + 4 * i) >= vocab && load_le32(ids + 4 * i) <= INT32_MAX)
            return err_set(e, ERR_CORRUPT,
                           "%s: id %u at position %" PRIu64 " is outside the vocabulary of %u",
                           path, load_le32(ids + 4 * i), first + i, vocab);
    return 0;
}

/* CRC of n bytes from `at`; those below ids_end are ids. */
static int crc_range(int fd, const char *path, uint64_t at, uint64_t n, uint64_t ids_end,
                     uint32_t vocab, uint32_t *crc, struct err *e)
{
    uint8_t *window = malloc(WINDOW_BYTES);
    uint64_t end = at + n;

    *crc = 0;
    if (!window)
        return err_set(e, ERR_NOMEM, "%s: a window to read through", path);
    e->code = 0;
    while (at < end && !e->code) {
        uint64_t part = end - at < WINDOW_BYTES ? end - at : WINDOW_BYTES;
        uint64_t ids = at >= ids_end ? 0 : ids_end - at < part ? ids_end - at : part;

        if (read_at(fd, path, window, part, at, e) ||
            ids_check(window, ids / 4, (at - STATE_HEADER_BYTES) / 4, vocab, path, e))
            break;
        *crc = libdeflate_crc32(*crc, window, part);
        at += part;
    }
    free(window);
    return e->code;
}

static int crc_differs(const char *path, const char *what, uint32_t got, uint32_t want,
                       struct err *e)
{
    return err_set(e, ERR_CORRUPT, "%s: checksum of the %s is %08x, %08x expected: it is damaged",
                   path, what, got, want);
}

int state_verify(int fd, const char *path, const struct state_head *h, struct err *e)
{
    uint64_t ids_end = STATE_HEADER_BYTES + 4ull * h->pos;
    uint32_t crc;

    if (crc_range(fd, path, STATE_HEADER_BYTES, h->parts_bytes, ids_end, h->shape[0], &crc, e))
        return e->code;
    if (crc != h->parts_crc)
        return crc_differs(path, "state", crc, h->parts_crc, e);
    if (crc_range(fd, path, STATE_HEADER_BYTES + h->parts_bytes, h->note_bytes, 0, 0, &crc, e))
        return e->code;
    return crc == h->note_crc ? 0 : crc_differs(path, "note", crc, h->note_crc, e);
}

int state_load(int fd, const char *path, const struct state_head *h, struct session *s,
               struct err *e)
{
    uint64_t at = STATE_HEADER_BYTES;
    uint32_t crc = 0;

    for (unsigned i = 0; i < session_n_parts(s->hp); i++) {
        struct session_part p = session_part(s, i, h->pos, !s->side);

        if (read_at(fd, path, p.at, p.bytes, at, e)) {
            session_reset(s);
            return e->code;
        }
        crc = libdeflate_crc32(crc, p.at, p.bytes);
        at += p.bytes;
    }
    if (crc != h->parts_crc) {
        session_reset(s);
        return crc_differs(path, "state", crc, h->parts_crc, e);
    }
    session_adopt(s, h->pos, h->choice);
    return 0;
}

int state_read_note(int fd, const char *path, const struct state_head *h, void *out, struct err *e)
{
    uint32_t crc;

    if (read_at(fd, path, out, h->note_bytes, STATE_HEADER_BYTES + h->parts_bytes, e))
        return e->code;
    crc = libdeflate_crc32(0, out, h->note_bytes);
    return crc == h->note_crc ? 0 : crc_differs(path, "note", crc, h->note_crc, e);
}

int state_read_ids(int fd, const char *path, const struct state_head *h, int32_t *out,
                   struct err *e)
{
    return read_at(fd, path, out, 4ull * h->pos, STATE_HEADER_BYTES, e);
}

/* ---- writing ---- */

static int body_write(const struct out_dir *d, int fd, const char *name, const struct session *s,
                      struct state_head *h, const void *note, size_t n_note, struct err *e)
{
    uint8_t raw[STATE_HEADER_BYTES];
    uint64_t at = sizeof(raw);

    h->parts_crc = 0;
    h->note_bytes = n_note;
    h->note_crc = libdeflate_crc32(0, note, n_note);
    if (out_reserve(d, fd, state_file_bytes(h), name, e))
        return e->code;
    for (unsigned i = 0; i < session_n_parts(s->hp); i++) {
        struct session_part p = session_part(s, i, s->pos, s->side);

        h->parts_crc = libdeflate_crc32(h->parts_crc, p.at, p.bytes);
        if (out_write(d, fd, p.at, p.bytes, at, name, e))
            return e->code;
        at += p.bytes;
    }
    head_put(h, raw);
    return out_write(d, fd, note, n_note, at, name, e) ||
                   out_write(d, fd, raw, sizeof(raw), 0, name, e)
               ? e->code
               : 0;
}

int state_write(const char *path, const struct session *s, struct state_head *h, const void *note,
                size_t n_note, enum state_for whom, struct err *e)
{
    struct out_dir d;
    const char *name;
    int fd;

    if (n_note > STATE_NOTE_MAX)
        return err_set(e, ERR_LIMIT, "%s: a note of %zu bytes, at most %d", path, n_note,
                       STATE_NOTE_MAX);
    if (out_parent_open(&d, path, &name, e))
        return e->code;
    e->code = 0;
    if ((whom == STATE_FOR_PERSON &&
         out_replaceable(&d, name, magic, sizeof(magic), "saved state", e)) ||
        out_create(&d, name, OUT_PRIVATE, &fd, e)) {
        out_parent_close(&d);
        return e->code;
    }
    if (body_write(&d, fd, name, s, h, note, n_note, e))
        close(fd);
    else if (whom == STATE_FOR_PERSON)
        out_publish(&d, name, fd, e);
    else
        out_publish_unsynced(&d, name, fd, e);
    if (e->code) {
        out_remove_temporary(&d, name);
        err_wrap(e, "%s", d.path);
    }
    out_parent_close(&d);
    return e->code;
}
