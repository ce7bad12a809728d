#include "model/intern.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"

enum { FIRST = 256 };

bool intern_open(struct intern *in)
{
    *in = (struct intern){.cap = FIRST, .cap_words = 4 * FIRST, .mask = 2 * FIRST - 1};
    in->word = malloc(in->cap_words * sizeof(*in->word));
    in->begin = calloc(in->cap + 1, sizeof(*in->begin));
    in->table = malloc((in->mask + 1) * sizeof(*in->table));
    if (!in->word || !in->begin || !in->table) {
        intern_close(in);
        return false;
    }
    memset(in->table, 0xff, (in->mask + 1) * sizeof(*in->table));
    return true;
}

void intern_close(struct intern *in)
{
    free(in->word);
    free(in->begin);
    free(in->table);
    *in = (struct intern){0};
}

void intern_clear(struct intern *in)
{
    if (in->n)
        memset(in->table, 0xff, (in->mask + 1) * sizeof(*in->table));
    in->n = in->n_words = 0;
}

size_t intern_bytes(const struct intern *in)
{
    return sizeof(uint32_t) * (in->cap_words + in->cap + in->mask);
}

static uint32_t hash(const uint32_t *word, uint32_t n)
{
    uint64_t h = n;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ word[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

/* Where the list is, or the free place that it would take. */
static uint32_t seek(const struct intern *in, const uint32_t *word, uint32_t n)
{
    uint32_t at = hash(word, n) & in->mask;

    for (; in->table[at] != INTERN_NONE; at = (at + 1) & in->mask) {
        uint32_t len;
        const uint32_t *have = intern_list(in, in->table[at], &len);

        if (len == n && !memcmp(have, word, n * sizeof(*word)))
            break;
    }
    return at;
}

static bool grow(struct intern *in, uint32_t n)
{
    if (!list_room(&in->word, &in->cap_words, (size_t)in->n_words + n, sizeof(*in->word)))
        return false;
    if (in->n == in->cap) {
        uint32_t cap = 2 * in->cap, mask = 2 * cap - 1;
        uint32_t *begin = realloc(in->begin, (cap + 1) * sizeof(*begin));
        uint32_t *table = malloc((mask + 1) * sizeof(*table));

        if (begin)
            in->begin = begin;
        if (!begin || !table) {
            free(table);
            return false;
        }
        free(in->table);
        in->table = table;
        in->mask = mask;
        in->cap = cap;
        memset(table, 0xff, (mask + 1) * sizeof(*table));
        for (uint32_t i = 0; i < in->n; i++) {
            uint32_t len;
            const uint32_t *have = intern_list(in, i, &len);

            table[seek(in, have, len)] = i;
        }
    }
    return true;
}

uint32_t intern_find(const struct intern *in, const uint32_t *word, uint32_t n)
{
    return in->table[seek(in, word, n)];
}

uint32_t intern_put(struct intern *in, const uint32_t *word, uint32_t n, bool *fresh)
{
    uint32_t at = seek(in, word, n);

    if (fresh)
        *fresh = in->table[at] == INTERN_NONE;
    if (in->table[at] != INTERN_NONE)
        return in->table[at];
    if (!grow(in, n))
        return INTERN_NONE;
    at = seek(in, word, n);
    if (n)
        memcpy(in->word + in->n_words, word, n * sizeof(*word));
    in->n_words += n;
    in->begin[in->n + 1] = in->n_words;
    in->table[at] = in->n;
    return in->n++;
}
