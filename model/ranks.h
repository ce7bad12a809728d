/* model/ranks.h - the ordinary tokens: a tiktoken rank file, as a table of bytes -> rank.
 *
 * A token's rank is its id. The ranks are 0 to n - 1 and every single byte is among the tokens, so
 * any text can be encoded: a file that says otherwise is refused, with the number of its line.
 * Plain data after ranks_parse; any thread may read it.
 */
#ifndef MODEL_RANKS_H
#define MODEL_RANKS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define NO_RANK         UINT32_MAX
#define RANKS_BYTES_MAX (64u << 20) /* of a file */

struct ranks {
    uint32_t n;
    char *blob;       /* the bytes of every token, in order of rank */
    uint32_t *at;     /* [n + 1] offsets into blob */
    uint32_t *slots;  /* [n_slots] open addressing: 8 bits of hash, 24 of rank; or EMPTY_SLOT */
    uint32_t n_slots; /* a power of two */
    uint32_t longest; /* bytes of the longest token */
    uint32_t of_byte[256];
};

/* Read the bytes of a rank file; they may be freed afterwards. r must be all zero; release it
 * also after a failure. ERR_FORMAT and ERR_LIMIT name the line. */
int ranks_parse(struct ranks *r, const char *text, size_t len, struct err *e);
void ranks_release(struct ranks *r);

/* The rank of the token with these n bytes, or NO_RANK. */
uint32_t ranks_find(const struct ranks *r, const char *s, size_t n);

size_t ranks_bytes(const struct ranks *r); /* memory held */

#endif
