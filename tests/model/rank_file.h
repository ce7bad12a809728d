/* tests/model/rank_file.h - rank files for tests: the 256 single bytes (rank = byte), then more.
 */
#ifndef TESTS_MODEL_RANK_FILE_H
#define TESTS_MODEL_RANK_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rank_file {
    char *text; /* free it */
    size_t len;
    unsigned n; /* lines, and so the next rank */
};

/* One line: these n bytes and this rank. */
static inline void rank_file_line(struct rank_file *f, const void *bytes, size_t n, unsigned rank)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *b = bytes;
    char *to = realloc(f->text, f->len + n / 3 * 4 + 32);

    if (!to)
        abort();
    f->text = to;
    to += f->len;
    for (size_t i = 0; i < n; i += 3) {
        unsigned second = i + 1 < n ? b[i + 1] : 0, third = i + 2 < n ? b[i + 2] : 0;

        *to++ = digits[b[i] >> 2];
        *to++ = digits[(b[i] & 3) << 4 | second >> 4];
        *to++ = i + 1 < n ? digits[(second & 15) << 2 | third >> 6] : '=';
        *to++ = i + 2 < n ? digits[third & 63] : '=';
    }
    to += sprintf(to, " %u\n", rank);
    f->len = (size_t)(to - f->text);
    f->n++;
}

static inline void rank_file_add(struct rank_file *f, const void *bytes, size_t n)
{
    rank_file_line(f, bytes, n, f->n);
}

/* The single bytes, then these strings; the list ends with NULL, and may be NULL itself. */
static inline struct rank_file rank_file_of(const char *const *strings)
{
    struct rank_file f = {0};

    for (unsigned b = 0; b < 256; b++) {
        unsigned char c = (unsigned char)b;

        rank_file_add(&f, &c, 1);
    }
    for (; strings && *strings; strings++)
        rank_file_add(&f, *strings, strlen(*strings));
    return f;
}

#endif
