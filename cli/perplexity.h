/* cli/perplexity.h - how well a model predicts a text, token by token. */
#ifndef CLI_PERPLEXITY_H
#define CLI_PERPLEXITY_H

#include "cli/prompt.h"

/* Feed the ids one by one and print what each that had a predecessor cost: bits per token and per
 * byte, perplexity. The context is emptied when it is full; the first id after that predicts and is
 * not predicted. ctx is open and its banner shown. Returns 0 or an exit code, having said why. */
int perplexity_print(struct cli *c, waste_ctx *ctx, const struct ids *text);

#endif
