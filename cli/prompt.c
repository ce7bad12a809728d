#include "cli/prompt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/load.h"
#include "cli/units.h"

ssize_t text_some(int fd, char *to, size_t room)
{
    ssize_t got;

    do {
        if (!term_wait_input(fd)) {
            errno = EINTR;
            return -1;
        }
        got = read(fd, to, room);
    } while (got < 0 && (errno == EAGAIN || errno == EINTR));
    return got;
}

int fail_read(struct cli *c, const char *name, int error)
{
    return fail(c, error == EINTR ? EXIT_INTERRUPTED : EXIT_RUNTIME, NULL, name, "%s",
                strerror(error));
}

enum { TEXT_BYTES_MAX = 256 << 20 }; /* /dev/zero has no end */

static int read_all(struct cli *c, int fd, const char *name, struct text *out)
{
    size_t room = 1 << 16;
    struct text t = {.bytes = malloc(room), .from_file = true};
    ssize_t got;

    for (;;) {
        if (t.len > TEXT_BYTES_MAX) {
            free(t.bytes);
            return fail(c, EXIT_RUNTIME, NULL, name,
                        "more than %d MiB of text; no context holds so much", TEXT_BYTES_MAX >> 20);
        }
        if (t.bytes && t.len == room) {
            char *more = realloc(t.bytes, room *= 2);

            if (!more)
                free(t.bytes);
            t.bytes = more;
        }
        if (!t.bytes)
            return fail(c, EXIT_MEMORY, NULL, name, "no memory for %zu bytes of text", room);
        got = text_some(fd, t.bytes + t.len, room - t.len);
        if (got <= 0)
            break;
        t.len += (size_t)got;
    }
    if (got < 0) {
        int error = errno;

        free(t.bytes);
        return fail_read(c, name, error);
    }
    *out = t;
    return 0;
}

int text_open(struct cli *c, const char *name, int *fd)
{
    *fd = 0;
    if (!strcmp(name, "-"))
        return 0;
    /* Waiting for the writer of a FIFO is left to term_wait_input, where an interrupt ends it. */
    *fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return fail(c, EXIT_RUNTIME, NULL, name, "%s", strerror(errno));
    return 0;
}

int text_of_file(struct cli *c, const char *name, struct text *out)
{
    int fd, rc = text_open(c, name, &fd);

    if (rc)
        return rc;
    rc = read_all(c, fd, fd ? name : "standard input", out);
    if (fd)
        close(fd);
    return rc;
}

static int copy_text(struct cli *c, const char *arg, struct text *out)
{
    out->len = strlen(arg);
    out->bytes = malloc(out->len + 1);
    if (!out->bytes)
        return fail(c, EXIT_MEMORY, NULL, c->command, "no memory for the text");
    memcpy(out->bytes, arg, out->len + 1);
    return 0;
}

int text_read(struct cli *c, unsigned index, struct text *out)
{
    const char *arg = c->opts.n_args > index ? c->opts.arg[index] : NULL;

    if (arg && c->opts.file)
        return fail(c, EXIT_USAGE, NULL, c->command, "both a text and --file are given");
    if (arg && strcmp(arg, "-"))
        return copy_text(c, arg, out);
    if (arg || c->opts.file)
        return text_of_file(c, c->opts.file ? c->opts.file : "-", out);
    if (isatty(0))
        return fail(c, EXIT_USAGE, NULL, c->command,
                    "no text: give it as an argument, with --file, or pipe it in");
    return text_of_file(c, "-", out);
}

static char *file_bytes(int fd, const char *path, size_t most, size_t *len, struct err *e)
{
    struct stat st;
    char *text;
    ssize_t got = 1;

    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        err_set(e, ERR_IO, "%s: not a file", path);
        return NULL;
    }
    if ((uint64_t)st.st_size > most) {
        err_set(e, ERR_LIMIT, "%s: %lld bytes, it may have %zu", path, (long long)st.st_size, most);
        return NULL;
    }
    text = malloc((size_t)st.st_size + 1);
    if (!text) {
        err_set(e, ERR_NOMEM, "%s", path);
        return NULL;
    }
    for (*len = 0; got > 0 && *len<(size_t)st.st_size; *len += got> 0 ? (size_t)got : 0)
        got = read(fd, text + *len, (size_t)st.st_size - *len);
    if (got < 0) {
        err_sys(e, errno, "%s", path);
        free(text);
        return NULL;
    }
    text[*len] = '\0';
    return text;
}

char *file_text(const char *path, size_t most, size_t *len, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    char *text;

    if (fd < 0) {
        err_sys(e, errno, "%s", path);
        return NULL;
    }
    text = file_bytes(fd, path, most, len, e);
    close(fd);
    return text;
}

void remove_newlines(struct text *t)
{
    while (t->len && t->bytes[t->len - 1] == '\n') {
        t->len--;
        if (t->len && t->bytes[t->len - 1] == '\r')
            t->len--;
    }
}

/* The id that begins a text, in front; ids has room for it. */
static void add_bos(const waste_tokenizer *t, struct ids *ids)
{
    memmove(ids->id + 1, ids->id, ids->n * sizeof(*ids->id));
    ids->id[0] = waste_token_bos(t);
    ids->n++;
}

static int encode(struct cli *c, const waste_tokenizer *t, const struct text *text, bool markup,
                  struct ids *out)
{
    size_t cap = text->len; /* a token is at least a byte */
    waste_status st;

    out->id = malloc((cap + 1) * sizeof(*out->id)); /* and room for [BOS] */
    if (!out->id)
        return fail(c, EXIT_MEMORY, NULL, c->command, "no memory for %zu tokens", cap);
    out->n = 0;
    if (text->len) {
        st = waste_encode(t, markup ? WASTE_MARKUP : WASTE_CONTENT, text->bytes, text->len, out->id,
                          cap, &out->n);
        if (st != WASTE_OK)
            return fail(c, exit_of_status(st), NULL, "tokenizer", "%s", waste_strerror(st));
    }
    if (c->opts.bos)
        add_bos(t, out);
    return 0;
}

static int encode_with(struct cli *c, const char *path, const struct text *text, bool markup,
                       struct ids *out)
{
    waste_tokenizer *t;
    waste_status st = waste_tokenizer_open(path, &t);
    int rc;

    if (st != WASTE_OK)
        return fail_tokenizer(c, st, path);
    rc = encode(c, t, text, markup, out);
    waste_tokenizer_close(t);
    return rc;
}

static int given_ids(struct cli *c, struct ids *out)
{
    struct err e;

    if (c->opts.bos)
        return fail(c, EXIT_USAGE, NULL, c->command, "--bos goes with text, not with --ids");
    if (ids_parse(&out->id, &out->n, c->opts.ids, strlen(c->opts.ids), &e))
        return fail_err(c, &e, "--ids");
    return 0;
}

int prompt_read(struct cli *c, const char *path, unsigned index, enum text_kind kind,
                struct ids *out)
{
    bool markup = c->opts.markup_set ? c->opts.markup : kind == TEXT_TEMPLATE;
    struct ids ids = {NULL, 0};
    struct text text = {.bytes = NULL};
    int rc;

    if (c->opts.ids && (c->opts.n_args > index || c->opts.file))
        return fail(c, EXIT_USAGE, NULL, c->command, "both text and --ids are given");
    if (c->opts.ids) {
        rc = given_ids(c, &ids);
    } else {
        rc = text_read(c, index, &text);
        if (!rc && text.from_file && kind == TEXT_PROMPT)
            remove_newlines(&text);
        if (!rc)
            rc = encode_with(c, path, &text, markup, &ids);
        free(text.bytes);
    }
    if (rc) {
        free(ids.id);
        return rc;
    }
    *out = ids;
    return 0;
}
