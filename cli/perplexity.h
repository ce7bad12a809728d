/* cli/perplexity.h - `waste eval MODEL --perplexity FILE`: how well a model predicts a text. */
#ifndef CLI_PERPLEXITY_H
#define CLI_PERPLEXITY_H

#include "cli/say.h"

/* Feed the text in passes as long as a prompt's and print what every token cost that had one before
 * it: bits per token and per byte, perplexity. The text is cut into stretches of as many positions
 * as the context has (--ctx). Each begins with an empty session, so its first id predicts and is
 * predicted by the last of the stretch before. Text is read, encoded and fed a block at a time. */
int perplexity(struct cli *c);

#endif
