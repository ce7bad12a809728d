/* model/tokenizer.h - text to token ids and back: a tiktoken rank file, the Kimi split pattern,
 * byte-pair merges, and control tokens.
 *
 * A tokenizer never changes after it is opened: any number of threads may use one at once. Every
 * string is counted; NUL is an ordinary byte and so is invalid UTF-8, and decoding what was encoded
 * gives the same bytes back, whatever they were. A token's id is its rank; control tokens have ids
 * of their own, found by their text, never by a number: the families disagree on the numbers.
 *
 * A prompt is a list of (text, mode) segments. Encode each one by itself and concatenate the ids:
 * joining first changes the ids, and joining content to markup hands control to whoever wrote it.
 */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

enum token_mode {
    TOKEN_CONTENT, /* whatever a user, document, tool or model wrote: never a control token */
    TOKEN_MARKUP,  /* what a template's author wrote: the texts of control tokens are those */
};

/* Read tokenizer.model (or else tiktoken.model) and specials.json (may be absent) of a container.
 * vocab_size: the number of embedding rows, every id is below it; 0 if unknown.
 * ERR_UNSUPPORTED: there is no such file. ERR_FORMAT: names the line, or the entry, and why. */
int tokenizer_open(struct tokenizer **out, const char *dir, unsigned vocab_size, struct err *e);

/* The same from memory: the bytes of a rank file, and of specials.json (NULL: none). Both may be
 * freed afterwards. */
int tokenizer_parse(struct tokenizer **out, const char *ranks, size_t ranks_len,
                    const char *specials, size_t specials_len, unsigned vocab_size, struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

/* Text to ids. *n_out is the number of ids. With out NULL they are only counted. ERR_ARG: more than
 * cap; *n_out says how many are needed, and the first cap are in out.
 *
 * As the model's own tokenizer does, the text is first cut into chunks of 400,000 characters and
 * those where more than 25,000 whitespace or other characters follow each other; then control
 * tokens are found (leftmost, the longest of those), and what lies between is split by the pattern.
 * A maximal run of bytes that are not UTF-8 is a piece of its own. */
int tokenizer_encode(const struct tokenizer *t, enum token_mode mode, const char *text, size_t len,
                     int32_t *out, size_t cap, size_t *n_out, struct err *e);

/* For a text that comes in parts: bytes of its first chunk, of which len bytes are known. Chunks
 * encoded one by one give the ids of the whole. 0: too few bytes to say; never with `end`. */
size_t tokenizer_chunk(const char *text, size_t len, bool end);

/* The lengths of the pieces that TOKEN_CONTENT merges separately, in order; they add up to len.
 * For diagnosis and tests. out NULL and cap as in tokenizer_encode. */
int tokenizer_split(const struct tokenizer *t, const char *text, size_t len, size_t *out,
                    size_t cap, size_t *n_out, struct err *e);

/* Ids to bytes, not necessarily whole characters. A control token becomes its text, an unknown id
 * nothing. *n_out is the number of bytes. out NULL and cap as in tokenizer_encode. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, char *out, size_t cap,
                     size_t *n_out, struct err *e);

/* The bytes of one token, borrowed from t. false: no such id, and the bytes are empty. */
bool tokenizer_token_bytes(const struct tokenizer *t, int32_t id, const char **bytes, size_t *len);

unsigned tokenizer_n_ranks(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* the first id after the ranks, by convention */

/* Control tokens, ascending by id; i < n_specials. The text is borrowed from t. */
unsigned tokenizer_n_specials(const struct tokenizer *t);
void tokenizer_special(const struct tokenizer *t, unsigned i, int32_t *id, const char **text,
                       size_t *len);
int32_t tokenizer_special_id(const struct tokenizer *t, const char *text, size_t len); /* or -1 */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

size_t tokenizer_bytes(const struct tokenizer *t); /* memory held */

/* The Unicode version of the pattern's character classes: PCRE2's. Good in the calling thread. */
const char *tokenizer_unicode_version(void);

#endif
