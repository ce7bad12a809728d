#include "model/token_trie.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const uint8_t *bytes;
    size_t len;
    int32_t token;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);

    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static size_t shared(const struct entry *x, const struct entry *y)
{
    size_t n = 0;

    while (n < x->len && n < y->len && x->bytes[n] == y->bytes[n])
        n++;
    return n;
}

/* entries: sorted. */
static void fill(struct token_trie *t, const struct entry *entry, unsigned n)
{
    uint32_t open[TOKEN_BYTES_MAX + 1] = {0}; /* depth -> the node there that is not closed */
    size_t depth = 0;

    t->node[t->n++] = (struct trie_node){.token = -1};
    for (unsigned i = 0; i < n; i++) {
        size_t common = i ? shared(&entry[i - 1], &entry[i]) : 0;

        for (; depth > common; depth--)
            t->node[open[depth]].skip = t->n;
        for (; depth < entry[i].len;) {
            uint8_t byte = entry[i].bytes[depth++];

            open[depth] = t->n;
            t->node[t->n++] =
                (struct trie_node){.token = -1, .byte = byte, .depth = (uint16_t)depth};
        }
        t->node[open[depth]].token = entry[i].token;
        t->depth_max = depth > t->depth_max ? (unsigned)depth : t->depth_max;
    }
    for (; depth > 0; depth--)
        t->node[open[depth]].skip = t->n;
    t->node[0].skip = t->n;
}

int token_trie_open(struct token_trie **out, const struct tokenizer *tokenizer, unsigned vocab,
                    struct err *e)
{
    unsigned n_ranks = tokenizer_n_ranks(tokenizer), n = 0;
    struct entry *entry = malloc((n_ranks + 1) * sizeof(*entry));
    struct token_trie *t = calloc(1, sizeof(*t));
    size_t nodes = 1;

    if (!entry || !t)
        goto no_memory;
    for (unsigned id = 0; id < n_ranks; id++) {
        const char *bytes;
        size_t len;

        tokenizer_token_bytes(tokenizer, (int32_t)id, &bytes, &len);
        if (len && len <= TOKEN_BYTES_MAX)
            entry[n++] = (struct entry){(const uint8_t *)bytes, len, (int32_t)id};
    }
    qsort(entry, n, sizeof(*entry), by_bytes);
    for (unsigned i = 0; i < n; i++)
        nodes += entry[i].len - (i ? shared(&entry[i - 1], &entry[i]) : 0);
    t->node = malloc(nodes * sizeof(*t->node));
    if (!t->node)
        goto no_memory;
    t->tokenizer = tokenizer;
    t->vocab = vocab;
    t->n_ranks = n_ranks;
    fill(t, entry, n);
    free(entry);
    *out = t;
    return 0;

no_memory:
    free(entry);
    token_trie_close(t);
    return err_set(e, ERR_NOMEM, "tree of %u tokens", n_ranks);
}

void token_trie_close(struct token_trie *t)
{
    if (t)
        free(t->node);
    free(t);
}

size_t token_trie_bytes(const struct token_trie *t)
{
    return sizeof(*t) + t->n * sizeof(*t->node);
}
