#include "cli/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 1 << 19 }; /* a block of ASCII and what is looked at behind it */

int stream_open(struct stream *s, struct cli *c, const char *name)
{
    struct stream new = {.c = c, .name = name, .room = ROOM};
    struct stat st;
    int rc = text_open(c, name, &new.fd);

    if (rc)
        return rc;
    new.text.bytes = malloc(new.room);
    if (!new.text.bytes) {
        stream_close(&new);
        return fail(c, EXIT_MEMORY, NULL, name, "no memory for %zu bytes of text", new.room);
    }
    if (!new.fd)
        new.name = "standard input";
    if (!fstat(new.fd, &st) && S_ISREG(st.st_mode))
        new.size = (uint64_t)st.st_size;
    *s = new;
    return 0;
}

void stream_close(struct stream *s)
{
    if (s->fd)
        close(s->fd);
    free(s->text.bytes);
}

static int grow(struct stream *s)
{
    char *more = realloc(s->text.bytes, 2 * s->room);

    if (!more)
        return fail(s->c, EXIT_MEMORY, NULL, s->name, "no memory for %zu bytes of text",
                    2 * s->room);
    s->text.bytes = more;
    s->room *= 2;
    return 0;
}

/* Until the room is full or the text ends. */
static int fill(struct stream *s)
{
    while (!s->end && s->text.len < s->room) {
        ssize_t got = text_some(s->fd, s->text.bytes + s->text.len, s->room - s->text.len);

        if (got < 0)
            return fail_read(s->c, s->name, errno);
        s->text.len += (size_t)got;
        s->end = !got;
    }
    if (s->end)
        remove_newlines(&s->text);
    return 0;
}

/* What is certainly text: newlines at the end of what is known may be at the end of all. */
static size_t certain(const struct stream *s)
{
    size_t n = s->text.len;

    while (!s->end && n && (s->text.bytes[n - 1] == '\n' || s->text.bytes[n - 1] == '\r'))
        n--;
    return n;
}

static int encode_block(struct stream *s, const waste_tokenizer *t, size_t len, struct ids *ids)
{
    int mode = s->c->opts.markup_set && s->c->opts.markup ? WASTE_MARKUP : WASTE_CONTENT;
    int32_t *id = realloc(ids->id, (ids->n + len) * sizeof(*id)); /* a token is at least a byte */
    waste_status st;
    size_t n;

    if (!id)
        return fail(s->c, EXIT_MEMORY, NULL, s->name, "no memory for %zu tokens", ids->n + len);
    ids->id = id;
    st = waste_encode(t, mode, s->text.bytes, len, id + ids->n, len, &n);
    if (st != WASTE_OK)
        return fail(s->c, exit_of_status(st), NULL, "tokenizer", "%s", waste_strerror(st));
    ids->n += n;
    s->n_ids += n;
    s->n_bytes += len;
    s->text.len -= len;
    memmove(s->text.bytes, s->text.bytes + len, s->text.len);
    return 0;
}

int stream_more(struct stream *s, const waste_tokenizer *t, struct ids *ids)
{
    for (;;) {
        int rc = fill(s);
        size_t n = rc ? 0 : waste_encode_block(s->text.bytes, certain(s), s->end);

        if (n)
            return encode_block(s, t, n, ids);
        if (rc || s->end)
            return rc;
        rc = grow(s);
        if (rc)
            return rc;
    }
}

uint64_t stream_total(const struct stream *s)
{
    if (s->end && !s->text.len)
        return s->n_ids;
    if (!s->size || !s->n_bytes || s->size < s->n_bytes)
        return 0;
    return (uint64_t)((double)s->n_ids * ((double)s->size / (double)s->n_bytes));
}
