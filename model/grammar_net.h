/* model/grammar_net.h - the compiled grammar, shared by grammar.c, grammar_properties.c (make it)
 * and whoever walks it (grammar_match.h).
 *
 * A rule is a piece of network from `start` to an end node. The activation of a rule has one
 * register: the count of a repetition, or the list of an object's keys.
 */
#ifndef MODEL_GRAMMAR_NET_H
#define MODEL_GRAMMAR_NET_H

#include "model/dfa.h"
#include "model/grammar.h"
#include "model/json_text.h"
#include "model/rules.h"

enum edge_kind {
    EDGE_EMPTY,
    EDGE_CALL,   /* rule arg */
    EDGE_LEAF,   /* leaf arg */
    EDGE_TOKEN,  /* control token arg */
    EDGE_OTHER,  /* any token but arg */
    EDGE_ENOUGH, /* if the register is at least arg */
    EDGE_BELOW,  /* if it is less than arg */
    EDGE_COUNT,  /* register + 1, at most arg */
};

struct net_edge {
    uint8_t kind;
    bool whole; /* a call that must not be skipped although its rule may be empty */
    uint16_t height;
    uint32_t to, arg, next;
};

#define NET_NONE UINT32_MAX

struct net_node {
    uint32_t first;  /* edge */
    uint16_t height; /* calls that must still fit inside each other to reach the end */
    bool end;
    bool keys; /* of a rule whose register is a list of keys */
};

struct net_rule {
    uint32_t start, rank; /* rank: above that of every rule that can begin with it */
    uint16_t height;
    bool nullable;
};

enum leaf_kind { LEAF_BYTES, LEAF_DFA, LEAF_STRING, LEAF_KEY };

struct leaf {
    enum leaf_kind kind;
    bool nullable;
    uint32_t dfa;  /* but for LEAF_BYTES */
    uint32_t a, n; /* LEAF_BYTES: bytes; LEAF_KEY: names, expressions in kid */
    uint32_t min, max;
};

struct grammar {
    struct net_node *node;
    struct net_edge *edge;
    struct net_rule *rule;
    struct leaf *leaf;
    struct dfa **dfa;
    size_t n_node, n_edge, n_rule, n_leaf, n_dfa;
    size_t cap_node, cap_edge, cap_rule, cap_leaf, cap_dfa;
    struct rules source; /* bytes, kids and expressions that leaves refer to */
    uint32_t root;
    size_t bytes;
};

enum { HEIGHT_NEVER = 0x7fff };

/* Heights, nullable, rank, keys of a network that is built. ERR_UNSUPPORTED: a rule may begin with
 * itself; ERR_FORMAT: nothing finite satisfies it; ERR_LIMIT: what does nests too deep. */
int net_properties(struct grammar *g, struct err *e);

#endif
