/* model/gbnf.h - a grammar written as text -> rules (docs/CONSTRAINED.md has the language). */
#ifndef MODEL_GBNF_H
#define MODEL_GBNF_H

#include "model/rules.h"
#include "model/tokenizer.h"

/* The rule "root" becomes r->root. ERR_FORMAT: with the line. */
int gbnf_read(struct rules *r, const char *text, size_t len, const struct tokenizer *tokenizer,
              struct err *e);

#endif
