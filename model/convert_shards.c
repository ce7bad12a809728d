#include "model/convert_shards.h"

#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "storage/file.h"

enum { PIECE = 64 << 10, PAGE = 4096, PAGES = 30, LENGTH_BYTES = 8 };

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int add_bytes(uint32_t *crc, const struct file *f, uint64_t at, uint64_t n, uint8_t *buffer,
                     struct err *e)
{
    for (uint64_t done = 0, now; done < n; done += now) {
        now = least(n - done, PIECE);
        if (file_read(f, buffer, now, at + done, e))
            return e->code;
        *crc = libdeflate_crc32(*crc, buffer, now);
    }
    return 0;
}

/* The header, both ends of the payload, and pages that are spread over it. */
static int add_samples(uint32_t *crc, const struct file *f, uint8_t *buffer, struct err *e)
{
    uint64_t data = f->bytes, payload;

    if (f->bytes >= LENGTH_BYTES) {
        if (file_read(f, buffer, LENGTH_BYTES, 0, e))
            return e->code;
        data = least(load_le64(buffer), f->bytes - LENGTH_BYTES) + LENGTH_BYTES;
    }
    payload = f->bytes - data;
    if (add_bytes(crc, f, 0, data, buffer, e) ||
        add_bytes(crc, f, data, least(payload, PIECE), buffer, e))
        return e->code;
    for (unsigned i = 1; i <= PAGES; i++) {
        uint64_t at = data + payload / (PAGES + 1) * i;

        if (add_bytes(crc, f, at, least(f->bytes - at, PAGE), buffer, e))
            return e->code;
    }
    return add_bytes(crc, f, f->bytes - least(payload, PIECE), least(payload, PIECE), buffer, e);
}

static int identify(json_t **out, int dirfd, const char *name, struct err *e)
{
    uint8_t *buffer = malloc(PIECE);
    uint32_t crc = 0;
    struct file f;
    char text[16];
    int bad;

    if (!buffer)
        return err_set(e, ERR_NOMEM, "%s", name);
    if (file_open(&f, dirfd, name, false, e)) {
        free(buffer);
        return e->code;
    }
    posix_fadvise(f.buffered, 0, 0, POSIX_FADV_RANDOM);
    bad = add_samples(&crc, &f, buffer, e);
    posix_fadvise(f.buffered, 0, 0, POSIX_FADV_DONTNEED);
    free(buffer);
    if (!bad) {
        snprintf(text, sizeof(text), "%08x", crc);
        *out = json_pack("{s:I, s:s}", "bytes", (json_int_t)f.bytes, "crc", text);
        bad = *out ? 0 : err_set(e, ERR_NOMEM, "%s", name);
    }
    file_close(&f);
    return bad;
}

/* "123 bytes, CRC 89abcdef", for a message. */
static const char *print_text(char *out, size_t n, const json_t *print)
{
    const char *crc = json_string_value(json_object_get(print, "crc"));

    snprintf(out, n, "%lld bytes, CRC %.8s",
             (long long)json_integer_value(json_object_get(print, "bytes")), crc ? crc : "none");
    return out;
}

static int check_known(const struct checkpoint *c, const json_t *known, const char *dir,
                       struct err *e)
{
    unsigned n = checkpoint_n_shards(c);

    if (!json_is_object(known))
        return err_set(e, ERR_ARG,
                       "%s: does not say which shards it is made of; choose another directory",
                       dir);
    for (unsigned i = 0; i < n; i++)
        if (!json_object_get(known, checkpoint_shard(c, i)))
            return err_set(e, ERR_ARG,
                           "%s: is made of another release, without a shard %s; choose another "
                           "directory",
                           dir, checkpoint_shard(c, i));
    if (json_object_size(known) != n)
        return err_set(e, ERR_ARG,
                       "%s: is made of another release, of %zu shards, where %s has %u; choose "
                       "another directory",
                       dir, json_object_size(known), checkpoint_dir(c), n);
    return 0;
}

int shards_identify(json_t **out, const struct checkpoint *c, int dirfd, const json_t *known,
                    const char *dir, struct err *e)
{
    json_t *list;

    if (known && check_known(c, known, dir, e))
        return e->code;
    list = json_object();
    if (!list)
        return err_set(e, ERR_NOMEM, "shards");
    for (unsigned i = 0; i < checkpoint_n_shards(c); i++) {
        const char *name = checkpoint_shard(c, i);
        json_t *theirs = json_object_get(known, name), *ours = NULL;
        char a[64], b[64];

        if (!checkpoint_shard_present(c, i))
            ours = json_incref(theirs);
        else if (identify(&ours, dirfd, name, e))
            goto failed;
        if (ours && json_object_set_new(list, name, ours)) {
            err_set(e, ERR_NOMEM, "shards");
            goto failed;
        }
        if (theirs && !json_equal(ours, theirs)) {
            err_set(e, ERR_ARG,
                    "%s: is made of another release: its %s has %s, the one in %s has %s; choose "
                    "another directory",
                    dir, name, print_text(a, sizeof(a), theirs), checkpoint_dir(c),
                    print_text(b, sizeof(b), ours));
            goto failed;
        }
    }
    *out = list;
    return 0;
failed:
    json_decref(list);
    return e->code;
}

int shards_check_one(const json_t *list, int dirfd, const char *name, struct err *e)
{
    const json_t *then = json_object_get(list, name);
    char a[64], b[64];
    json_t *now;
    int bad = 0;

    if (identify(&now, dirfd, name, e))
        return e->code;
    if (!json_equal(now, then))
        bad = err_set(e, ERR_IO, "%s: has changed while it was converted (%s, was %s): not deleted",
                      name, print_text(a, sizeof(a), now), print_text(b, sizeof(b), then));
    json_decref(now);
    return bad;
}
