/* base/buf.h - text that grows. A failed allocation sticks: put what there is to put, ask once. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct str { /* counted and borrowed; NUL is an ordinary byte */
    const char *s;
    size_t len;
};

#define STR(literal) ((struct str){literal, sizeof(literal) - 1})

static inline struct str str_of(const char *text) /* NUL-terminated */
{
    return (struct str){text, strlen(text)};
}

static inline bool str_is(struct str a, struct str b)
{
    return a.len == b.len && (!a.len || !memcmp(a.s, b.s, a.len));
}

struct buf { /* all zero is an empty one */
    char *s;
    size_t n, cap;
    bool failed; /* memory ran out: what is in it is no longer the whole */
};

/* Room for n more bytes at s + n; NULL: there is none, and failed is set. */
static inline char *buf_room(struct buf *b, size_t n)
{
    size_t cap = b->cap ? b->cap : 64;
    char *s;

    if (b->failed)
        return NULL;
    if (b->s && n <= b->cap - b->n)
        return b->s + b->n;
    while (cap - b->n < n && cap <= SIZE_MAX / 2)
        cap *= 2;
    s = cap - b->n < n ? NULL : realloc(b->s, cap);
    if (!s) {
        b->failed = true;
        return NULL;
    }
    b->s = s;
    b->cap = cap;
    return s + b->n;
}

static inline void buf_put(struct buf *b, const char *s, size_t n)
{
    char *to = buf_room(b, n);

    if (to && n)
        memcpy(to, s, n);
    if (to)
        b->n += n;
}

static inline void buf_str(struct buf *b, struct str s)
{
    buf_put(b, s.s, s.len);
}

static inline struct str buf_all(const struct buf *b)
{
    return (struct str){b->n ? b->s : "", b->n};
}

static inline void buf_release(struct buf *b)
{
    free(b->s);
    *b = (struct buf){0};
}

#endif
