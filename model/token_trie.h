/* model/token_trie.h - the bytes of all ordinary tokens as a tree, flat and in depth first order:
 * the subtree of node i is [i, skip). */
#ifndef MODEL_TOKEN_TRIE_H
#define MODEL_TOKEN_TRIE_H

#include "model/grammar.h"

struct trie_node {
    uint32_t skip; /* the first node that is not below this one */
    int32_t token; /* whose bytes end here; -1: none */
    uint8_t byte;
    uint16_t depth; /* bytes up to and with this one; 0: the root */
};

struct token_trie {
    const struct tokenizer *tokenizer;
    struct trie_node *node; /* node[0] is the root */
    uint32_t n;
    unsigned vocab, n_ranks, depth_max;
};

#endif
