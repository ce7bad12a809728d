/* model/specials.h - the control tokens: specials.json, found by id and by text.
 *
 * Plain data after specials_parse; any thread may read it.
 */
#ifndef MODEL_SPECIALS_H
#define MODEL_SPECIALS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct special {
    const char *text; /* len bytes, at least one, NUL may be among them */
    size_t len;
    int32_t id;
};

struct specials {
    uint32_t n;
    struct special *list;           /* ascending by id */
    const struct special **by_text; /* by first byte, and of those the longest first */
    uint32_t first[257];            /* first byte -> where in by_text */
    char *text;                     /* of all of them */
    size_t text_bytes;
};

/* Read the bytes of specials.json: an array of {"id": integer, "text": string}. Ids lie in
 * [id_min, id_end), ids and texts are unique. s must be all zero; release it also after a failure.
 * ERR_FORMAT names the entry, counted from 0. */
int specials_parse(struct specials *s, const char *json, size_t len, uint32_t id_min,
                   uint32_t id_end, struct err *e);
void specials_release(struct specials *s);

/* The longest one that text begins with, and the one with this id; NULL if none. len >= 1. */
const struct special *specials_here(const struct specials *s, const char *text, size_t len);
const struct special *specials_of(const struct specials *s, int32_t id);

size_t specials_bytes(const struct specials *s); /* memory held */

#endif
