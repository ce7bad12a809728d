/* model/dfa.h - finite automata over bytes: built from a nondeterministic one, intersected,
 * trimmed.
 *
 * State 0 is the start. Every state can still reach a final one: what cannot has become DFA_DEAD.
 */
#ifndef MODEL_DFA_H
#define MODEL_DFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DFA_DEAD = 0xffff, DFA_STATES_MAX = 0xfffe };

struct dfa {
    uint8_t class_of[256]; /* bytes that behave alike everywhere */
    unsigned n, n_classes;
    uint16_t *next; /* [n][n_classes] */
    uint8_t *final; /* [n] */
};

static inline uint16_t dfa_next(const struct dfa *d, unsigned state, uint8_t byte)
{
    return d->next[(size_t)state * d->n_classes + d->class_of[byte]];
}

/* A nondeterministic automaton under construction: edges over byte ranges, and empty ones. */
struct nfa_edge {
    uint32_t to, next; /* next: of the same state; NFA_NONE ends the list */
    uint8_t lo, hi;
    bool empty;
};
struct nfa {
    uint32_t *first; /* state -> its edges */
    struct nfa_edge *edge;
    uint32_t n, n_edges;
    size_t cap, cap_edges;
    bool no_memory;
};
#define NFA_NONE UINT32_MAX

uint32_t nfa_state(struct nfa *a);
void nfa_edge(struct nfa *a, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi);
void nfa_empty(struct nfa *a, uint32_t from, uint32_t to);
/* One character of [lo, hi], as UTF-8; surrogates are left out. */
void nfa_chars(struct nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi);
void nfa_release(struct nfa *a);

/* *out NULL and 0: more than `states` states, or *work is used up. An automaton that matches
 * nothing has n = 0. ERR_NOMEM. */
int dfa_of_nfa(struct dfa **out, const struct nfa *a, uint32_t start, uint32_t final,
               unsigned states, uint64_t *work, struct err *e);
/* What both match. Limits and errors as above. */
int dfa_both(struct dfa **out, const struct dfa *a, const struct dfa *b, unsigned states,
             uint64_t *work, struct err *e);

/* By hand: states and edges, then trimmed. All edges dead at first. */
struct dfa *dfa_new(unsigned n, unsigned n_classes); /* NULL: no memory */
struct dfa *dfa_copy(const struct dfa *d);           /* the same */
int dfa_trim(struct dfa *d, struct err *e);
void dfa_close(struct dfa *d); /* NULL is fine */
size_t dfa_bytes(const struct dfa *d);

#endif
