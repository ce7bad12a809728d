/* model/grammar.h - JSON schema or text grammar -> the set of tokens allowed next.
 *
 *     text --json_schema.c, gbnf.c--> rules --grammar.c--> struct grammar --grammar_match.c--> mask
 *
 * A grammar is a network of rules that call each other; every byte is consumed by a leaf, an
 * automaton (dfa.h) or a literal. A match is where an answer stands in it: a set of leaves in
 * progress, each with the stacks of calls it returns to. Stacks are shared and merged, so that an
 * ambiguous grammar costs the number of its places and not the number of its readings.
 *
 * Promises: whatever is allowed can be finished, by bytes alone (every byte is a token); a control
 * token is allowed only where the grammar names it; a grammar takes GRAMMAR_BYTES_MAX at most, a
 * match some 20 MiB beside the free keys of the answer, and a mask bounded time. A grammar never
 * changes once it is compiled; a match belongs to one thread.
 */
#ifndef MODEL_GRAMMAR_H
#define MODEL_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/tokenizer.h"

enum {
    GRAMMAR_TEXT_MAX = 4 << 20,   /* bytes of a schema or grammar */
    GRAMMAR_BYTES_MAX = 32 << 20, /* compiled */
    GRAMMAR_DEPTH_MAX = 120,      /* calls inside each other: how deep an answer may nest */
    MATCH_BYTES_MAX = 20 << 20,   /* of a match: masks, stacks, keys */
    TOKEN_BYTES_MAX = 256,        /* longer tokens are never allowed under a grammar */
};

enum grammar_kind { GRAMMAR_JSON_SCHEMA, GRAMMAR_TEXT };

struct grammar;
struct grammar_match;
struct token_trie;

/* tokenizer: for control tokens named in the text; NULL: there are none. after: -1, or the id of a
 * control token: until it comes, everything is allowed. ERR_FORMAT, ERR_UNSUPPORTED (a keyword that
 * is not understood), ERR_LIMIT: with the place and the two values. */
int grammar_compile(struct grammar **out, enum grammar_kind kind, const char *text, size_t len,
                    const struct tokenizer *tokenizer, int32_t after, struct err *e);
void grammar_close(struct grammar *g);
size_t grammar_bytes(const struct grammar *g);

/* The bytes of every ordinary token, as a tree. The tokenizer is borrowed. */
int token_trie_open(struct token_trie **out, const struct tokenizer *tokenizer, unsigned vocab,
                    struct err *e);
void token_trie_close(struct token_trie *t);
size_t token_trie_bytes(const struct token_trie *t);

/* g and trie are borrowed. At the beginning. */
int match_open(struct grammar_match **out, const struct grammar *g, const struct token_trie *trie,
               struct err *e);
void match_close(struct grammar_match *m);
int match_reset(struct grammar_match *m, struct err *e);

/* Where the answer may stand: three places, kept apart so that a pass can fail. A token is tried on
 * one and the result put in another; `from` may be `to`. ERR_ARG: the token is not allowed there,
 * and `to` is as it was. */
enum match_place { MATCH_BASE, MATCH_AFTER, MATCH_TRIAL, MATCH_PLACES };
int match_advance(struct grammar_match *m, enum match_place from, enum match_place to,
                  int32_t token, struct err *e);
void match_copy(struct grammar_match *m, enum match_place from, enum match_place to);

bool match_complete(const struct grammar_match *m, enum match_place at);  /* may end here */
bool match_exhausted(const struct grammar_match *m, enum match_place at); /* nothing may follow */

/* The allowed tokens as bits, [(vocab + 63) / 64] words, good until the next call. End ids are the
 * caller's affair: allowed when match_complete says so. */
int match_mask(struct grammar_match *m, enum match_place at, const uint64_t **mask, struct err *e);

#endif
