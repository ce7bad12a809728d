/* cli/lines.h - what a person types: lines edited on a terminal, or read as they come.
 *
 * With libedit, and a terminal on standard input and standard error: line editing, and a history
 * that is kept in a file for the owner's eyes only. Without either, lines are read plainly.
 *
 * A message is a line, or several: a line that ends in a backslash goes on, and """ begins a text
 * that ends with """.
 */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct lines;

enum lines_got {
    LINES_MESSAGE,
    LINES_END,
    LINES_INTERRUPT, /* where nothing was typed */
    LINES_CLEARED,   /* an interrupt, and what was typed is gone */
    LINES_ERROR,
};

/* history: a file, made if it is not there; NULL: none. One that cannot be used is none: *why has
 * the reason then, or "". ERR_NOMEM. */
int lines_open(struct lines **out, const char *history, char why[256], struct err *e);
void lines_close(struct lines *l); /* NULL-safe */

/* Whether lines can be edited, and so be filled in before. */
bool lines_edits(const struct lines *l);

/* The next message, bytes of any kind, with a NUL behind; free(*text). prefill: what stands there
 * to be edited; NULL: nothing. LINES_ERROR: errno. */
enum lines_got lines_read(struct lines *l, const char *prefill, char **text, size_t *len);

#endif
