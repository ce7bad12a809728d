/* model/pieces.h - text cut into the pieces that are merged separately.
 *
 * The text is cut as the model's own tokenizer does it: into chunks of 400,000 characters; those
 * where more than 25,000 whitespace or other characters follow each other; those around control
 * tokens; the rest by the pattern. A maximal run of bytes that are not UTF-8 is a piece of its own.
 *
 *     struct pieces p;
 *     struct piece piece;
 *     int rc = pieces_init(&p, pattern, NULL, text, len, e);
 *
 *     while (!rc && pieces_more(&p))
 *         rc = pieces_next(&p, &piece, e);
 *     pieces_release(&p);
 */
#ifndef MODEL_PIECES_H
#define MODEL_PIECES_H

#include "base/err.h"
#include "model/specials.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdbool.h>
#include <stddef.h>

struct piece {
    const char *s;                 /* in the text */
    size_t len;                    /* at least 1 */
    const struct special *special; /* NULL: bytes to merge */
};

/* Each part ends inside the one before it: text, chunk, stretch, plain (what lies between control
 * tokens), run (valid UTF-8, the string that the pattern sees), piece. */
struct pieces {
    const pcre2_code *pattern;
    const struct specials *specials; /* NULL: content, nothing in it is a control token */
    const char *at, *end, *chunk_end, *stretch_end, *plain_end, *run, *run_end;
    const struct special *special; /* at plain_end, unless the stretch ends there */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Bytes of the first chunk of a text of which len bytes are known; 0: too few to say. end: there is
 * no more, so the last chunk may be a short one. */
size_t pieces_chunk(const char *text, size_t len, bool end);

/* The compiled pattern can be shared by threads; free it with pcre2_code_free. */
int pattern_compile(pcre2_code **out, struct err *e);

/* Begin with len bytes of text; it is borrowed, like pattern and specials. */
int pieces_init(struct pieces *p, const pcre2_code *pattern, const struct specials *specials,
                const char *text, size_t len, struct err *e);
void pieces_release(struct pieces *p); /* also after pieces_init failed */

bool pieces_more(const struct pieces *p);
int pieces_next(struct pieces *p, struct piece *out, struct err *e); /* only if pieces_more */

#endif
