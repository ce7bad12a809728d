#include "model/tokenizer.h"

#include "base/slurp.h"
#include "model/pieces.h"
#include "model/ranks.h"
#include "model/specials.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ID_LIMIT (1u << 24) /* if the number of embedding rows is unknown */

struct tokenizer {
    struct ranks ranks;
    struct specials specials;
    pcre2_code *pattern;
};

struct text { /* a file in memory */
    const char *s;
    size_t len;
};

static int tokenizer_load(struct tokenizer *t, const char *ranks_name, struct text ranks,
                          struct text specials, unsigned vocab_size, struct err *e)
{
    uint32_t id_end = vocab_size && vocab_size < ID_LIMIT ? vocab_size : ID_LIMIT;

    if (ranks_parse(&t->ranks, ranks.s, ranks.len, e))
        return err_wrap(e, "%s", ranks_name);
    if (t->ranks.n > id_end)
        return err_set(e, ERR_FORMAT, "%s: %u tokens, but the model has %u (vocab_size)",
                       ranks_name, t->ranks.n, id_end);
    if (specials.s && specials_parse(&t->specials, specials.s, specials.len, t->ranks.n, id_end, e))
        return err_wrap(e, "specials.json");
    return pattern_compile(&t->pattern, e);
}

static int tokenizer_make(struct tokenizer **out, const char *ranks_name, struct text ranks,
                          struct text specials, unsigned vocab_size, struct err *e)
{
    struct tokenizer *t = calloc(1, sizeof(*t));

    if (!t)
        return err_set(e, ERR_NOMEM, "tokenizer");
    if (tokenizer_load(t, ranks_name, ranks, specials, vocab_size, e)) {
        tokenizer_close(t);
        return e->code;
    }
    *out = t;
    return 0;
}

int tokenizer_parse(struct tokenizer **out, const char *ranks, size_t ranks_len,
                    const char *specials, size_t specials_len, unsigned vocab_size, struct err *e)
{
    return tokenizer_make(out, "tokenizer.model", (struct text){ranks, ranks_len},
                          (struct text){specials, specials_len}, vocab_size, e);
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    pcre2_code_free(t->pattern);
    specials_release(&t->specials);
    ranks_release(&t->ranks);
    free(t);
}

int tokenizer_open(struct tokenizer **out, const char *dir, unsigned vocab_size, struct err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;
    char *ranks = NULL, *specials = NULL;
    const char *name = "tokenizer.model";
    size_t n_ranks = 0, n_specials = 0;

    if (fd < 0)
        return err_sys(e, errno, "%s", dir);
    rc = slurp(&ranks, &n_ranks, fd, name, RANKS_BYTES_MAX, e);
    if (!rc && !ranks) {
        name = "tiktoken.model";
        rc = slurp(&ranks, &n_ranks, fd, name, RANKS_BYTES_MAX, e);
    }
    if (!rc && !ranks)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "container has no tokenizer.model; only token ids can be used");
    if (!rc)
        rc = slurp(&specials, &n_specials, fd, "specials.json", RANKS_BYTES_MAX, e);
    if (!rc)
        rc = tokenizer_make(out, name, (struct text){ranks, n_ranks},
                            (struct text){specials, n_specials}, vocab_size, e);
    free(specials);
    free(ranks);
    close(fd);
    return rc;
}

/* Ids found so far, of which the first cap are kept. */
struct ids {
    int32_t *out;
    size_t cap, n;
};

static void ids_add(struct ids *ids, uint32_t id)
{
    if (ids->n < ids->cap)
        ids->out[ids->n] = (int32_t)id;
    ids->n++;
}

/* Room to merge one piece. Parts are known by the offset of their first byte; pair[i] is the rank
 * of part i joined to the next one. The heap holds rank << 32 | i, and also what was overtaken:
 * then pair[i] has another rank. At most n - 1 pairs at first and one more for each merge. */
struct merge {
    size_t cap;
    uint64_t *heap; /* [2 * cap]; the allocation */
    size_t n_heap;
    uint32_t *next, *prev, *id, *pair; /* [cap] */
};

static int merge_reserve(struct merge *m, size_t n, struct err *e)
{
    size_t cap = m->cap ? m->cap : 256;
    uint64_t *heap;

    if (n <= m->cap)
        return 0;
    while (cap < n)
        cap *= 2;
    heap = malloc(cap * (2 * sizeof(*m->heap) + 4 * sizeof(*m->next)));
    if (!heap)
        return err_set(e, ERR_NOMEM, "tokenizer: a piece of %zu bytes", n);
    free(m->heap);
    m->heap = heap;
    m->cap = cap;
    m->next = (uint32_t *)(heap + 2 * cap);
    m->prev = m->next + cap;
    m->id = m->prev + cap;
    m->pair = m->id + cap;
    return 0;
}

static void heap_push(struct merge *m, uint64_t key)
{
    size_t i = m->n_heap++;

    for (; i && m->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = key;
}

static uint64_t heap_pop(struct merge *m)
{
    uint64_t top = m->heap[0], last = m->heap[--m->n_heap];
    size_t i = 0, child;

    for (; (child = 2 * i + 1) < m->n_heap; i = child) {
        if (child + 1 < m->n_heap && m->heap[child + 1] < m->heap[child])
            child++;
        if (m->heap[child] >= last)
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

/* Rank part i joined to its successor, if it has one. */
static void pair_rank(const struct tokenizer *t, struct merge *m, const char *s, uint32_t n,
                      uint32_t i)
{
    uint32_t j = m->next[i];

    m->pair[i] = j == n ? NO_RANK : ranks_find(&t->ranks, s + i, m->next[j] - i);
    if (m->pair[i] != NO_RANK)
        heap_push(m, (uint64_t)m->pair[i] << 32 | i);
}

/* Lowest rank first, leftmost of those. */
static int piece_merge(const struct tokenizer *t, struct merge *m, const char *s, size_t len,
                       struct ids *ids, struct err *e)
{
    uint32_t whole = ranks_find(&t->ranks, s, len), n = (uint32_t)len;

    if (whole != NO_RANK) {
        ids_add(ids, whole);
        return 0;
    }
    if (merge_reserve(m, len, e))
        return e->code;
    m->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        m->next[i] = i + 1;
        m->prev[i] = i - 1;
        m->id[i] = t->ranks.of_byte[(unsigned char)s[i]];
    }
    for (uint32_t i = 0; i < n; i++)
        pair_rank(t, m, s, n, i);
    while (m->n_heap) {
        uint64_t top = heap_pop(m);
        uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32), j;

        if (m->pair[i] != rank)
            continue;
        j = m->next[i];
        m->id[i] = rank;
        m->pair[j] = NO_RANK;
        m->next[i] = m->next[j];
        if (m->next[i] < n)
            m->prev[m->next[i]] = i;
        pair_rank(t, m, s, n, i);
        if (i)
            pair_rank(t, m, s, n, m->prev[i]);
    }
    for (uint32_t i = 0; i < n; i = m->next[i])
        ids_add(ids, m->id[i]);
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, enum token_mode mode, const char *text, size_t len,
                     int32_t *out, size_t cap, size_t *n_out, struct err *e)
{
    const struct specials *specials = mode == TOKEN_MARKUP ? &t->specials : NULL;
    struct ids ids = {.out = out, .cap = out ? cap : 0};
    struct merge m = {0};
    struct pieces pieces;
    struct piece p;
    int rc = pieces_init(&pieces, t->pattern, specials, text, len, e);

    while (!rc && pieces_more(&pieces)) {
        rc = pieces_next(&pieces, &p, e);
        if (!rc && p.special)
            ids_add(&ids, (uint32_t)p.special->id);
        else if (!rc)
            rc = piece_merge(t, &m, p.s, p.len, &ids, e);
    }
    pieces_release(&pieces);
    free(m.heap);
    if (rc)
        return err_wrap(e, "tokenizer");
    *n_out = ids.n;
    if (out && ids.n > cap)
        return err_set(e, ERR_ARG, "%zu token ids, but room for %zu", ids.n, cap);
    return 0;
}

size_t tokenizer_chunk(const char *text, size_t len, bool end)
{
    return pieces_chunk(text, len, end);
}

int tokenizer_split(const struct tokenizer *t, const char *text, size_t len, size_t *out,
                    size_t cap, size_t *n_out, struct err *e)
{
    struct pieces pieces;
    struct piece p;
    size_t n = 0;
    int rc = pieces_init(&pieces, t->pattern, NULL, text, len, e);

    for (; !rc && pieces_more(&pieces); n++) {
        rc = pieces_next(&pieces, &p, e);
        if (!rc && out && n < cap)
            out[n] = p.len;
    }
    pieces_release(&pieces);
    if (rc)
        return err_wrap(e, "tokenizer");
    *n_out = n;
    if (out && n > cap)
        return err_set(e, ERR_ARG, "%zu pieces, but room for %zu", n, cap);
    return 0;
}

bool tokenizer_token_bytes(const struct tokenizer *t, int32_t id, const char **bytes, size_t *len)
{
    const struct special *s;

    if (id >= 0 && (uint32_t)id < t->ranks.n) {
        *bytes = t->ranks.blob + t->ranks.at[id];
        *len = t->ranks.at[id + 1] - t->ranks.at[id];
        return true;
    }
    s = specials_of(&t->specials, id);
    *bytes = s ? s->text : "";
    *len = s ? s->len : 0;
    return s != NULL;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, char *out, size_t cap,
                     size_t *n_out, struct err *e)
{
    size_t total = 0, len;
    const char *bytes;

    for (size_t i = 0; i < n; i++) {
        tokenizer_token_bytes(t, ids[i], &bytes, &len);
        if (out && total < cap)
            memcpy(out + total, bytes, len < cap - total ? len : cap - total);
        total += len;
    }
    *n_out = total;
    if (out && total > cap)
        return err_set(e, ERR_ARG, "%zu bytes of text, but room for %zu", total, cap);
    return 0;
}

unsigned tokenizer_n_ranks(const struct tokenizer *t)
{
    return t->ranks.n;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return (int32_t)t->ranks.n;
}

unsigned tokenizer_n_specials(const struct tokenizer *t)
{
    return t->specials.n;
}

void tokenizer_special(const struct tokenizer *t, unsigned i, int32_t *id, const char **text,
                       size_t *len)
{
    assert(i < t->specials.n);
    *id = t->specials.list[i].id;
    *text = t->specials.list[i].text;
    *len = t->specials.list[i].len;
}

int32_t tokenizer_special_id(const struct tokenizer *t, const char *text, size_t len)
{
    const struct special *s = len ? specials_here(&t->specials, text, len) : NULL;

    return s && s->len == len ? s->id : -1;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return specials_of(&t->specials, id) != NULL;
}

size_t tokenizer_bytes(const struct tokenizer *t)
{
    size_t pattern = 0, jit = 0;

    pcre2_pattern_info(t->pattern, PCRE2_INFO_SIZE, &pattern);
    pcre2_pattern_info(t->pattern, PCRE2_INFO_JITSIZE, &jit);
    return sizeof(*t) + ranks_bytes(&t->ranks) + specials_bytes(&t->specials) + pattern + jit;
}

const char *tokenizer_unicode_version(void)
{
    static _Thread_local char text[32];

    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) > (int)sizeof(text) ||
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text) < 0)
        return "unknown";
    return text;
}
