/* model/chat_grammar.h - what an answer to a request may be: its tools, their arguments, the form
 * of the response, as a grammar (gbnf.h) over the markers of the chat format.
 *
 * A prompt keeps what its request says of the answer when it is rendered; the grammar is made when
 * it is asked for. Reasoning is free until its close; control tokens are where the format has them
 * and nowhere else; the end of the message comes last. docs/CONSTRAINED.md has the rules.
 */
#ifndef MODEL_CHAT_GRAMMAR_H
#define MODEL_CHAT_GRAMMAR_H

#include "model/chat.h"

struct chat_constraint {        /* beside the request */
    bool lenient;               /* only what a request insists on */
    struct str schema, grammar; /* of the response; s NULL: none */
};

/* What the request says, copied. Failure sticks in p. */
void chat_grammar_keep(struct prompt *p, const struct conversation *c);

/* *text is p's until the next call, with a NUL behind it; s NULL: nothing is asked of the answer.
 * ERR_UNSUPPORTED and others name the tool, its place in the request, and the keyword. */
int chat_grammar(struct prompt *p, const struct chat_constraint *k, struct str *text,
                 struct err *e);

#endif
