/* cli/batch.h - many requests, one a line, to many answers, one a line.
 *
 * An answer is appended and synced when it is complete, so that a run that was killed goes on where
 * it was: answers are recognised by a hash of their request and of the settings, a torn last line
 * is cut. All of a file are made by one model, grammar, numeric profile and version. A bad line has
 * an error in the place of its answer, and the work goes on.
 */
#ifndef CLI_BATCH_H
#define CLI_BATCH_H

#include "cli/turn.h"

struct batch;

/* Read the requests (positional 2, --file, or standard input) and the answers that --out has
 * already. Before the model at path is opened: what is wrong with either is said now. grammar: its
 * text, bytes NULL: none. Returns 0 or an exit code. */
int batch_open(struct batch **out, struct cli *c, const char *path, const struct text *grammar);
void batch_close(struct batch *b); /* NULL-safe */

/* Answers that are missing yet. */
size_t batch_left(const struct batch *b);

/* Answer them. Returns an exit code: 1 when some failed. */
int batch_run(struct batch *b, struct speaker *s);

#endif
