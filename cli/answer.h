/* cli/answer.h - token bytes on their way to a reader: cut at stop strings, then whole characters.
 *
 * Held back is only what can still become a stop string or a character.
 */
#ifndef CLI_ANSWER_H
#define CLI_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "waste.h"

struct answer {
    waste_stops *stops;
    waste_utf8 utf8;
    char *bytes; /* past the stop strings */
    size_t room; /* of token bytes, that bytes and text were made for */
    char *text;  /* what the last answer_feed let go: whole characters */
    size_t len;
    int32_t matched; /* index of the stop string that ended it; -1 */
    bool keep;       /* collect everything in `whole` */
    struct buf whole;
};

/* Stop strings are copied. ERR_ARG: an empty one; ERR_NOMEM. */
int answer_open(struct answer *a, const char *const *stops, unsigned n, bool keep, struct err *e);
void answer_close(struct answer *a); /* fine on a zeroed one */

/* Take the next token's bytes; a->text, a->len are what may be shown. last: let go of everything.
 * After a match (a->matched) nothing more may be fed. ERR_NOMEM. */
int answer_feed(struct answer *a, const char *bytes, size_t len, bool last, struct err *e);

#endif
