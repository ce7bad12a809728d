#include "model/ranks.h"

#include "base/bytes.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define RANK_LIMIT (1u << 24)
#define TOKEN_MAX  4096u      /* bytes of one token; bounds the cost of a look-up */
#define PROBES_MAX 1024u      /* an honest file needs some dozens; bounds it too */
#define EMPTY_SLOT UINT32_MAX /* no rank: RANKS_BYTES_MAX cannot hold 2^24 tokens */

static uint64_t bytes_hash(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    uint64_t h = 0x9e3779b97f4a7c15u * (n + 1), tail = 0;

    for (; n >= 8; n -= 8, p += 8) {
        h = (h ^ load_le64(p)) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 31;
    }
    while (n)
        tail = tail << 8 | p[--n];
    h = (h ^ tail) * 0x94d049bb133111ebu;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

/* The slot that holds these bytes, or the empty one where they would go. */
static uint32_t slot_find(const struct ranks *r, const char *s, size_t n, uint32_t *tag,
                          uint32_t *n_probes)
{
    uint64_t h = bytes_hash(s, n);
    uint32_t i = (uint32_t)h & (r->n_slots - 1);

    *tag = (uint32_t)(h >> 56) << 24;
    *n_probes = 0;
    for (; r->slots[i] != EMPTY_SLOT; i = (i + 1) & (r->n_slots - 1), ++*n_probes) {
        uint32_t rank = r->slots[i] & 0xffffff;

        if (*tag == (r->slots[i] & 0xff000000) && r->at[rank + 1] - r->at[rank] == n &&
            !memcmp(r->blob + r->at[rank], s, n))
            break;
    }
    return i;
}

uint32_t ranks_find(const struct ranks *r, const char *s, size_t n)
{
    uint32_t slot, tag, n_probes;

    if (n > r->longest)
        return NO_RANK;
    slot = r->slots[slot_find(r, s, n, &tag, &n_probes)];
    return slot == EMPTY_SLOT ? NO_RANK : slot & 0xffffff;
}

struct line {
    const char *s;
    size_t len;
    size_t number; /* from 1 */
};

/* The next line that is not empty, without its line end. *at: where to go on in text. */
static bool line_next(const char *text, size_t len, size_t *at, struct line *l)
{
    while (*at < len) {
        const char *lf = memchr(text + *at, '\n', len - *at);

        l->s = text + *at;
        l->len = lf ? (size_t)(lf - l->s) : len - *at;
        l->number++;
        *at += l->len + (lf != NULL);
        if (l->len && l->s[l->len - 1] == '\r')
            l->len--;
        if (l->len)
            return true;
    }
    return false;
}

static size_t line_number(const char *text, size_t at)
{
    size_t n = 1;

    for (size_t i = 0; i < at; i++)
        n += text[i] == '\n';
    return n;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Standard alphabet, padded, no bits left over. Returns the number of bytes, or -1. */
static long base64_decode(char *out, const char *s, size_t len)
{
    size_t n_pad = 0, n = 0;

    if (len % 4)
        return -1;
    while (n_pad < 2 && n_pad < len && s[len - 1 - n_pad] == '=')
        n_pad++;
    for (size_t i = 0; i < len; i += 4) {
        size_t n_chars = i + 4 < len ? 4 : 4 - n_pad;
        uint32_t bits = 0;

        for (size_t k = 0; k < 4; k++) {
            int v = k < n_chars ? base64_value(s[i + k]) : 0;

            if (v < 0)
                return -1;
            bits = bits << 6 | (uint32_t)v;
        }
        for (size_t k = 0; k + 1 < n_chars; k++)
            out[n++] = (char)(bits >> (16 - 8 * k));
        if (n_chars < 4 && bits << (8 * n_chars - 8) & 0xffffff)
            return -1;
    }
    return (long)n;
}

/* "base64 rank" -> bytes, TOKEN_MAX at most, and rank. */
static int line_parse(const struct line *l, char *bytes, size_t *n_bytes, uint32_t *rank,
                      struct err *e)
{
    const char *space = memchr(l->s, ' ', l->len);
    size_t n_base64 = space ? (size_t)(space - l->s) : l->len, i = n_base64 + 1;
    long n;

    if (n_base64 > (TOKEN_MAX + 2) / 3 * 4)
        return err_set(e, space ? ERR_LIMIT : ERR_FORMAT,
                       "line %zu: %zu characters of base64, but a token has at most %u bytes%s",
                       l->number, n_base64, TOKEN_MAX, space ? "" : ", and no rank follows");
    n = base64_decode(bytes, l->s, n_base64);
    if (n < 0)
        return err_set(e, ERR_FORMAT,
                       "line %zu: bad base64 (%zu characters); a tiktoken rank file is expected, "
                       "\"base64 rank\" on each line",
                       l->number, n_base64);
    if (n > (long)TOKEN_MAX)
        return err_set(e, ERR_LIMIT, "line %zu: a token of %ld bytes, more than %u", l->number, n,
                       TOKEN_MAX);
    if (i >= l->len)
        return err_set(e, ERR_FORMAT, "line %zu: missing rank after the token", l->number);
    if (!n)
        return err_set(e, ERR_FORMAT, "line %zu: a token of no bytes", l->number);
    for (*rank = 0; i < l->len && l->s[i] >= '0' && l->s[i] <= '9'; i++) {
        *rank = *rank * 10 + (uint32_t)(l->s[i] - '0');
        if (*rank >= RANK_LIMIT)
            return err_set(e, ERR_FORMAT, "line %zu: rank is not below %u", l->number, RANK_LIMIT);
    }
    if (i < l->len)
        return err_set(e, ERR_FORMAT, "line %zu: byte 0x%02x at column %zu, a rank is digits only",
                       l->number, (unsigned char)l->s[i], i + 1);
    *n_bytes = (size_t)n;
    return 0;
}

/* Check every line by itself, and that the ranks are 0 to n_ranks - 1. Out: the offset of each
 * rank's line, and the bytes of all tokens together. */
static int ranks_scan(struct ranks *r, const char *text, size_t len, uint32_t **line_at,
                      size_t *blob_bytes, struct err *e)
{
    struct line l = {0};
    char bytes[TOKEN_MAX + 2];
    uint32_t rank = 0;
    size_t at = 0, n = 0;
    bool *seen;
    int rc = 0;

    while (line_next(text, len, &at, &l))
        r->n++;
    *line_at = malloc((r->n + 1) * sizeof(**line_at));
    seen = calloc(r->n + 1, sizeof(*seen));
    if (!*line_at || !seen) {
        free(seen);
        return err_set(e, ERR_NOMEM, "%u tokens", r->n);
    }
    at = 0;
    l = (struct line){0};
    *blob_bytes = 0;
    while (!rc && line_next(text, len, &at, &l)) {
        if (line_parse(&l, bytes, &n, &rank, e)) {
            rc = e->code;
        } else if (rank >= r->n) {
            rc = err_set(e, ERR_FORMAT,
                         "line %zu: rank %u, but there are %u tokens: the ranks have a hole",
                         l.number, rank, r->n);
        } else if (seen[rank]) {
            rc = err_set(e, ERR_FORMAT, "line %zu: rank %u again, it is on line %zu already",
                         l.number, rank, line_number(text, (*line_at)[rank]));
        } else {
            seen[rank] = true;
            (*line_at)[rank] = (uint32_t)(l.s - text);
            *blob_bytes += n;
        }
    }
    free(seen);
    return rc;
}

/* Bytes in order of rank, from lines that ranks_scan has passed. */
static int ranks_load(struct ranks *r, const char *text, size_t len, const uint32_t *line_at,
                      size_t blob_bytes, struct err *e)
{
    r->blob = malloc(blob_bytes + 1);
    r->at = malloc((r->n + 1) * sizeof(*r->at));
    if (!r->blob || !r->at)
        return err_set(e, ERR_NOMEM, "%u tokens of %zu bytes", r->n, blob_bytes);
    r->at[0] = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        const char *s = text + line_at[i], *space = memchr(s, ' ', len - line_at[i]);
        uint32_t n = (uint32_t)base64_decode(r->blob + r->at[i], s, (size_t)(space - s));

        r->at[i + 1] = r->at[i] + n;
        if (n > r->longest)
            r->longest = n;
    }
    return 0;
}

static int ranks_index(struct ranks *r, const char *text, const uint32_t *line_at, struct err *e)
{
    r->n_slots = 512;
    while (r->n_slots < r->n + r->n / 2)
        r->n_slots *= 2;
    r->slots = malloc(r->n_slots * sizeof(*r->slots));
    if (!r->slots)
        return err_set(e, ERR_NOMEM, "index of %u tokens", r->n);
    memset(r->slots, 0xff, r->n_slots * sizeof(*r->slots));
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t tag, n_probes;
        uint32_t slot = slot_find(r, r->blob + r->at[i], r->at[i + 1] - r->at[i], &tag, &n_probes);
        size_t line, other;

        if (r->slots[slot] != EMPTY_SLOT) {
            line = line_number(text, line_at[i]);
            other = line_number(text, line_at[r->slots[slot] & 0xffffff]);
            return err_set(e, ERR_FORMAT, "line %zu: the same bytes as on line %zu",
                           line > other ? line : other, line > other ? other : line);
        }
        if (n_probes > PROBES_MAX)
            return err_set(e, ERR_LIMIT, "line %zu: more than %u tokens collide in the index",
                           line_number(text, line_at[i]), PROBES_MAX);
        r->slots[slot] = tag | i;
    }
    return 0;
}

static int bytes_check(struct ranks *r, const char *text, size_t len, struct err *e)
{
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;

        r->of_byte[b] = ranks_find(r, &c, 1);
        if (r->of_byte[b] == NO_RANK)
            return err_set(e, ERR_FORMAT,
                           "line %zu: the file ends with no token for the single byte 0x%02x",
                           line_number(text, len ? len - 1 : 0), b);
    }
    return 0;
}

int ranks_parse(struct ranks *r, const char *text, size_t len, struct err *e)
{
    uint32_t *line_at = NULL;
    size_t blob_bytes;
    int rc;

    if (len > RANKS_BYTES_MAX)
        return err_set(e, ERR_LIMIT, "%zu bytes, more than %u", len, RANKS_BYTES_MAX);
    rc = ranks_scan(r, text, len, &line_at, &blob_bytes, e);
    if (!rc)
        rc = ranks_load(r, text, len, line_at, blob_bytes, e);
    if (!rc)
        rc = ranks_index(r, text, line_at, e);
    if (!rc)
        rc = bytes_check(r, text, len, e);
    free(line_at);
    return rc;
}

void ranks_release(struct ranks *r)
{
    free(r->slots);
    free(r->at);
    free(r->blob);
    *r = (struct ranks){0};
}

size_t ranks_bytes(const struct ranks *r)
{
    return r->at[r->n] + (r->n + 1) * sizeof(*r->at) + r->n_slots * sizeof(*r->slots);
}
