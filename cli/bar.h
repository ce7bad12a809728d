/* cli/bar.h - how far long work has come: a bar on a terminal, a line every 10 s elsewhere, or
 * nothing. Always on standard error.
 *
 * The numbers come from outside: bar_update for work that calls back, bar_watch for work that is
 * counted in a struct progress. bar_line is the text alone, for tests.
 */
#ifndef CLI_BAR_H
#define CLI_BAR_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/progress.h"
#include "cli/term.h"

enum bar_unit { BAR_BYTES, BAR_TOKENS, BAR_RECORDS, BAR_BLOCKS };

struct bar {
    struct term *term;
    enum { BAR_NONE, BAR_LINES, BAR_DRAWN } mode;
    const char *label; /* NULL: nothing is shown */
    enum bar_unit unit;
    uint64_t begun_ns, shown_ns;
    pthread_t watcher;         /* while bar_watch runs */
    bool watching, watch_ends; /* watch_ends: under `lock` */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    const struct progress *watched;
};

/* quiet: nothing at all. bar_only: nothing where a bar cannot be drawn (under --json). */
void bar_open(struct bar *b, struct term *term, bool quiet, bool bar_only);

/* Begin a stretch of work, ending the one before. label is borrowed. */
void bar_begin(struct bar *b, const char *label, enum bar_unit unit);
/* Show it, if enough time has passed since it was last shown. bytes: read or written meanwhile;
 * shown beside other units unless 0. total 0: unknown. */
void bar_update(struct bar *b, uint64_t done, uint64_t total, uint64_t bytes);
void bar_end(struct bar *b); /* erases the bar; harmless when none is begun */

/* The same from a thread of its own, until bar_unwatch. Meanwhile nobody else may write to standard
 * error. Shows nothing if the thread cannot be started. */
void bar_watch(struct bar *b, const char *label, enum bar_unit unit,
               const struct progress *watched);
void bar_unwatch(struct bar *b);

struct bar_state {
    const char *label;
    enum bar_unit unit;
    uint64_t done, total, bytes;
    double seconds; /* since it began */
};

/* What is shown, at most `columns` wide; columns 0: without the bar, of any width. Returns text. */
const char *bar_line(char *text, size_t text_bytes, const struct bar_state *s, unsigned columns);

uint64_t clock_ns(void); /* monotonic */

#endif
