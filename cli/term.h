/* cli/term.h - the terminal, or whatever stands in for it: printing, colours, interrupts.
 *
 * One per process. Results go to standard output through term_print, everything else to standard
 * error. A write that fails is remembered, so that a reader who went away ends the work and not
 * the process.
 */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "waste.h"

struct term {
    bool out_tty, err_tty;
    bool color;      /* on standard error */
    bool line_drawn; /* a bar is on the last line of standard error */
    int out_errno;   /* of the first failed write to standard output; 0 */
};

enum style { STYLE_PLAIN, STYLE_DIM, STYLE_BOLD, STYLE_RED, STYLES };

/* First thing in main: gives closed standard descriptors a place, ignores SIGPIPE and SIGXFSZ (a
 * write says so instead), catches SIGINT, allows as many open files as the system lets us have.
 * color: 1 always, 0 never, -1 on a terminal unless NO_COLOR is set. */
void term_open(struct term *t);
void term_color(struct term *t, int color);

/* Columns of the terminal behind standard error; 80 if it has none. */
unsigned term_columns(void);

/* Write n bytes to standard output and flush. false: this or an earlier write failed. */
bool term_print(struct term *t, const char *bytes, size_t n);
/* The same for text that we did not write: on a terminal, control characters but for newlines and
 * tabs become \xNN. bytes: whole characters. */
bool term_print_text(struct term *t, const char *bytes, size_t n);
/* Flush what stdio still holds. */
bool term_flush(struct term *t);

/* The escape that begins a style; STYLE_PLAIN ends it. "" without colours. */
const char *term_style(const struct term *t, enum style style);

/* Erase the bar, if one is drawn, before something else is written to standard error. */
void term_clear_line(struct term *t);

/* The first SIGINT sets the flag that term_interrupted reads, calls waste_cancel on ctx and sets
 * *cancel (each may be NULL); the second ends the process with 130. Any thread. */
void term_cancels(waste_ctx *ctx, atomic_bool *cancel);
bool term_interrupted(void);
/* What was interrupted has ended; the next interrupt is a first one again. */
void term_go_on(void);

/* The terminal on standard input is as it should be left: however the process is ended by SIGINT,
 * SIGTERM, SIGHUP or SIGQUIT from now on, it is again as it is now. */
void term_restores(void);

/* Wait until fd can be read. false: an interrupt came, before or meanwhile. */
bool term_wait_input(int fd);

#endif
