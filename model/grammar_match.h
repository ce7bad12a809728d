/* model/grammar_match.h - a match, shared by the files that walk a grammar with it:
 * grammar_tables.c (stacks and keys, kept and swept), grammar_step.c (one byte further),
 * grammar_mask.c (all tokens at once), grammar_match.c (places, tokens).
 *
 * What fails for want of memory says so in no_memory and goes on with what there is; whoever
 * was called from outside asks once.
 */
#ifndef MODEL_GRAMMAR_MATCH_H
#define MODEL_GRAMMAR_MATCH_H

#include "model/grammar_net.h"
#include "model/intern.h"
#include "model/token_trie.h"

#define LEAF_OF_TOKEN ((uint32_t)1 << 31) /* spot.leaf: an edge that takes a whole token */
#define KEY_NEW       (UINT32_MAX - 1)    /* the beginning of no key that is known */
#define SERIAL_MASK   (UINT32_MAX - 1)    /* of keys that end inside the tokens of a mask */

enum {
    STACK_ROOT = 0,         /* the stack that ends the answer when it is returned to */
    TABLES_BYTES = 6 << 20, /* of stacks and keys; swept when full */
    CACHE_ENTRIES = 1 << 10,
};

/* A leaf in progress. stack: frames to return to when it ends, any of them. */
struct spot {
    uint32_t leaf, state;
    uint32_t count; /* LEAF_STRING: characters; LEAF_KEY: the key so far */
    uint32_t stack;
};

struct spots {
    struct spot *at;
    uint32_t n, cap;
};

struct place {
    struct spots spots;
    bool complete;
};

struct item { /* a node reached inside an activation */
    uint32_t node, reg, stack;
};

struct activation { /* a rule that is entered now, by any number of callers */
    uint32_t rule, depth;
    uint32_t first; /* of the callers, a list through `caller` */
};

struct caller {
    uint32_t frame, next;
};

/* What tokens do to one leaf in one state, whatever its stack. */
struct inside {
    uint32_t dfa, state, need, room; /* LEAF_STRING: characters that must and may still come */
    bool key;
    uint64_t *mask; /* tokens that stay in it, or end just with it (not so with keys) */
    uint32_t *out;  /* nodes of the tree where it can end */
    uint32_t n_out;
};

struct grammar_match {
    const struct grammar *g;
    const struct token_trie *trie;
    size_t n_words; /* of a mask */
    struct place place[MATCH_PLACES];

    struct intern frames; /* node, register, stack it returns to, depth */
    struct intern stacks; /* frames, ascending */
    struct intern keys;   /* key without its last byte, that byte, length */
    struct intern lists;  /* keys of an object: key, the list before, serial */
    struct intern taken;  /* leaf, key that it must not be */
    struct intern known;  /* keys that are one, or the beginning of one */
    uint32_t serial;      /* of the token being consumed */
    size_t sweep_at;      /* bytes of these tables */

    /* scratch of expand */
    struct item *item;
    struct activation *act;
    struct caller *caller;
    uint32_t *heap, *frame;
    size_t n_item, cap_item, n_act, cap_act, n_caller, cap_caller, n_heap, cap_heap, n_frame,
        cap_frame;
    struct intern seen, acts;

    struct intern returns;    /* stack, key or not */
    struct spots returned;    /* of all of them */
    uint32_t *returned_begin; /* [returns.n + 1] */
    bool *returned_complete;
    size_t cap_returned, cap_returned_complete;

    struct spots level[TOKEN_BYTES_MAX + 1], step, after_key;
    struct inside *inside;
    uint64_t **whole; /* masks, each of spot_sets' list with the same number */
    uint32_t n_inside, n_whole;
    size_t cap_whole;
    struct intern spot_sets;
    size_t cache_bytes;
    size_t work; /* of the mask being made */
    bool no_memory;
};

enum { FRAME_NODE, FRAME_REG, FRAME_STACK, FRAME_DEPTH, FRAME_WORDS };
enum { KEY_BEFORE, KEY_BYTE, KEY_LENGTH, KEY_WORDS };
enum { LIST_KEY, LIST_BEFORE, LIST_SERIAL, LIST_WORDS }; /* list 0 is the empty one */

/* Is there room for one more behind `used`? Grows *list, of *cap elements. */
bool match_room(struct grammar_match *m, void *list, size_t *cap, size_t used, size_t size);

static inline void spots_add(struct grammar_match *m, struct spots *s, struct spot x)
{
    size_t cap = s->cap;

    if (!match_room(m, &s->at, &cap, s->n, sizeof(*s->at)))
        return;
    s->cap = (uint32_t)cap;
    s->at[s->n++] = x;
}

void spots_copy(struct grammar_match *m, struct spots *to, const struct spots *from);
int match_no_memory(struct err *e);

/* grammar_tables.c */
uint32_t match_put(struct grammar_match *m, struct intern *in, const uint32_t *word, uint32_t n);
uint32_t frame_put(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack,
                   uint32_t depth);

/* Activations that run on this stack are so deep. */
static inline uint32_t stack_depth(const struct grammar_match *m, uint32_t stack)
{
    return intern_at(&m->frames, intern_at(&m->stacks, stack)[0])[FRAME_DEPTH] + 1;
}

/* The stack of these frames, which are of one depth; those that return to the same node and
 * register become one. Sorts the list. */
uint32_t stack_of(struct grammar_match *m, uint32_t *frame, uint32_t n);
uint32_t stack_join(struct grammar_match *m, uint32_t a, uint32_t b);
uint32_t stack_push(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack);

uint32_t key_put(struct grammar_match *m, uint32_t key, uint8_t byte);
uint32_t key_find(const struct grammar_match *m, uint32_t key, uint8_t byte);
/* May this key end here, in an object that has these? One key of an object and token at most. */
bool key_allowed(const struct grammar_match *m, uint32_t leaf, uint32_t key, uint32_t list,
                 uint32_t serial);

/* With what is in the tables of every match: the root's stack, the empty key, the empty list,
 * names. */
int tables_open(struct grammar_match *m, struct err *e);
void tables_close(struct grammar_match *m);
size_t tables_bytes(const struct grammar_match *m);
/* Forgets what no place needs any more, once the tables are large. */
int tables_sweep(struct grammar_match *m, struct err *e);

/* grammar_step.c. From nodes to the leaves that can come next, without a byte: begin, push, expand
 * into `out`. */
void expand_begin(struct grammar_match *m);
void item_push(struct grammar_match *m, uint32_t node, uint32_t reg, uint32_t stack);
void item_return(struct grammar_match *m, uint32_t stack, bool *complete);
void key_return(struct grammar_match *m, const struct spot *s, uint32_t serial);
void expand_items(struct grammar_match *m, struct spots *out, bool *complete);
/* What follows when a leaf with this stack ends; kept. */
void stack_return(struct grammar_match *m, uint32_t stack, struct spots *out, bool *complete);
/* out = in after one more byte. known: keys that nobody knows stay so. complete: the answer may end
 * there. */
void spots_step(struct grammar_match *m, const struct spots *in, uint8_t byte, bool known,
                struct spots *out, bool *complete);

/* grammar_mask.c. A leaf that most tokens may go on with: what they do to it is worth keeping. */
bool spot_broad(const struct grammar *g, const struct spot *s);
void masks_clear(struct grammar_match *m);

#endif
