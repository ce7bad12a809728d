/* model/intern.h - lists of words, each kept once and known by a number from 0 on. */
#ifndef MODEL_INTERN_H
#define MODEL_INTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct intern {
    uint32_t *word, *begin; /* list i: word[begin[i]...begin[i + 1]) */
    uint32_t *table;        /* open addressing; INTERN_NONE: free */
    uint32_t n, n_words, cap, mask;
    size_t cap_words;
};

#define INTERN_NONE UINT32_MAX

bool intern_open(struct intern *in); /* false: no memory */
void intern_close(struct intern *in);
void intern_clear(struct intern *in); /* empty, memory kept */
size_t intern_bytes(const struct intern *in);

/* The number of this list; *fresh (or NULL): it was not there before. INTERN_NONE: no memory. */
uint32_t intern_put(struct intern *in, const uint32_t *word, uint32_t n, bool *fresh);
/* The same without putting it there; INTERN_NONE: it is not. */
uint32_t intern_find(const struct intern *in, const uint32_t *word, uint32_t n);

static inline const uint32_t *intern_list(const struct intern *in, uint32_t i, uint32_t *n)
{
    *n = in->begin[i + 1] - in->begin[i];
    return in->word + in->begin[i];
}

static inline const uint32_t *intern_at(const struct intern *in, uint32_t i)
{
    return in->word + in->begin[i];
}

#endif
