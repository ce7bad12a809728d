/* model/rules.h - a grammar as it is written: rules of expressions over bytes, characters, control
 * tokens and JSON strings. What json_schema.c and gbnf.c make and grammar.c compiles.
 *
 * Expressions are numbers; making one never fails: the first failure (memory, a limit) is kept in
 * `failed`, and whatever is made afterwards is number 0, which means nothing. One thread, plain
 * data.
 */
#ifndef MODEL_RULES_H
#define MODEL_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/dfa.h"
#include "model/intern.h"

enum {
    RULES_EXPRS_MAX = 1 << 20,
    RULES_BYTES_MAX = 1 << 24, /* of literals */
    REPEAT_MAX = 65536,        /* of an expression, a string's characters, an array's items */
    REPEAT_ANY = UINT32_MAX,   /* no upper bound */
};

enum expr_kind {
    EXPR_NEVER,  /* matches nothing */
    EXPR_BYTES,  /* bytes[a, a + n); n = 0: the empty text */
    EXPR_CHARS,  /* one character of ranges[a, a + n), as UTF-8 */
    EXPR_SEQ,    /* kids[a, a + n), one after the other */
    EXPR_ALT,    /* one of them */
    EXPR_REPEAT, /* kids[a], min to max times */
    EXPR_RULE,   /* rule number a */
    EXPR_DFA,    /* what dfas[a] matches, the empty text perhaps */
    EXPR_STRING, /* a JSON string of min to max characters */
    EXPR_KEY,    /* a JSON string that no key of this object was before; names: kids[a, a + n) are
                    EXPR_BYTES of keys (as in the text, without quotes) that are taken.
                    min = 1: one without escapes, backslashes and &, as attributes have them */
    EXPR_TOKEN,  /* the control token with id a */
    EXPR_OTHER,  /* any one token but the control token a */
};

struct expr {
    enum expr_kind kind;
    uint32_t a, n, min, max;
};

struct char_range {
    uint32_t lo, hi;
};

/* Sorts n ranges and turns them into those between them, up to `most`; there is room for one more.
 * Returns how many they are. */
unsigned char_ranges_negate(struct char_range *range, unsigned n, uint32_t most);

struct rule {
    uint32_t expr;  /* EXPR_UNSET until it has one */
    uint32_t label; /* EXPR_BYTES: its name, for messages */
};

struct rules {
    struct expr *expr;
    uint32_t *kid;
    struct char_range *range;
    uint8_t *byte;
    struct rule *rule;
    struct dfa **dfa;
    size_t n_expr, n_kid, n_range, n_byte, n_rule, n_dfa;
    size_t cap_expr, cap_kid, cap_range, cap_byte, cap_rule, cap_dfa;
    struct intern schemas; /* small ones that refer to nothing, as text: equal ones have one rule */
    uint32_t *rule_of_schema;
    size_t cap_schema;
    uint32_t root; /* a rule */
    struct err failed;
};

#define EXPR_UNSET UINT32_MAX

void rules_release(struct rules *r);
int rules_fail(struct rules *r, const struct err *e); /* keep it, if it is the first */

uint32_t rule_new(struct rules *r, const char *label, size_t len);
uint32_t expr_never(struct rules *r);
uint32_t expr_bytes(struct rules *r, const void *bytes, size_t n);
uint32_t expr_text(struct rules *r, const char *text); /* NUL-terminated */
uint32_t expr_chars(struct rules *r, const struct char_range *range, size_t n);
uint32_t expr_seq(struct rules *r, const uint32_t *kid, size_t n);
uint32_t expr_alt(struct rules *r, const uint32_t *kid, size_t n);
uint32_t expr_repeat(struct rules *r, uint32_t kid, uint32_t min, uint32_t max);
uint32_t expr_rule(struct rules *r, uint32_t rule);
uint32_t expr_dfa(struct rules *r, struct dfa *owned);
uint32_t expr_string(struct rules *r, uint32_t min, uint32_t max);
uint32_t expr_key(struct rules *r, const uint32_t *names, size_t n, bool attribute);
uint32_t expr_token(struct rules *r, enum expr_kind kind, int32_t id);

#define EXPR_SEQ(r, ...)                                                                           \
    expr_seq(r, (const uint32_t[]){__VA_ARGS__},                                                   \
             sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define EXPR_ALT(r, ...)                                                                           \
    expr_alt(r, (const uint32_t[]){__VA_ARGS__},                                                   \
             sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* The automaton of an expression without rules, strings, keys and tokens in it, or with rules that
 * have none. *out NULL and 0: it has, or it would need more than `states` states; *work, what may
 * still be spent, is taken from. ERR_NOMEM. */
int rules_dfa(struct dfa **out, const struct rules *r, const struct expr *x, unsigned states,
              uint64_t *work, struct err *e);

#endif
