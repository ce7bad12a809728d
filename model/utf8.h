/* model/utf8.h - UTF-8: what is valid, and a decoder for text that arrives in fragments.
 *
 * Valid is Unicode's table 3-7: no overlong form, no surrogate, nothing above U+10FFFF. A token's
 * bytes need not be whole characters, so each stream of tokens owns one `struct utf8`: it passes
 * on what is whole, holds back what may still become a character, and replaces only what no
 * longer can. Nothing here allocates or fails; streams are independent of each other.
 */
#ifndef MODEL_UTF8_H
#define MODEL_UTF8_H

#include <stddef.h>
#include <stdint.h>

struct utf8 {      /* one stream; all zero is a fresh one */
    char held[3];  /* the beginning of one character */
    size_t n_held; /* 0 to 3 */
};

/* The most that utf8_feed makes of len bytes. */
#define UTF8_FEED_MAX(len) (3 * (size_t)(len) + 3)
#define UTF8_FLUSH_MAX     3
#define UTF8_CHAR_MAX      4 /* bytes of a character */

/* Take the next len bytes of the stream. Writes every character that is now whole, and one U+FFFD
 * per maximal subpart (Unicode 3.9, D93b) that cannot become one; holds back at most 3 bytes.
 * out: room for UTF8_FEED_MAX(len), apart from in. Returns the bytes written: always valid. */
size_t utf8_feed(struct utf8 *u, const char *in, size_t len, char *out);

/* The stream ends here, or is interrupted: a held beginning becomes one U+FFFD, and the stream is
 * fresh again. out: room for UTF8_FLUSH_MAX. Returns the bytes written. */
size_t utf8_flush(struct utf8 *u, char *out);

/* Length of the longest prefix of s that is whole, valid characters. */
size_t utf8_valid_prefix(const char *s, size_t len);

/* Length, 1 to 4, of the character at s, and its code point; 0 if no valid one begins there. */
size_t utf8_char(const char *s, size_t len, uint32_t *code_point);

/* The bytes of a code point up to U+10FFFF. out: room for UTF8_CHAR_MAX. Returns how many. */
size_t utf8_put(char *out, uint32_t code_point);

#endif
