#include "model/utf8.h"

#include "base/bytes.h"

#include <string.h>

static const char replacement[3] = "\xef\xbf\xbd"; /* U+FFFD */

/* How many of the bytes at s begin a character, 0 to 4. *need is the length of that character,
 * so it is whole if they are equal, and may become whole if the bytes end at len. Only the second
 * byte has ranges of its own: those exclude overlong forms, surrogates and U+110000 upward. */
static size_t character_begin(const char *s, size_t len, size_t *need)
{
    const unsigned char *b = (const unsigned char *)s;
    unsigned low = 0x80, high = 0xbf;
    size_t n = 1;

    *need = 1;
    if (!len)
        return 0;
    if (b[0] < 0x80)
        return 1;
    if (b[0] < 0xc2 || b[0] > 0xf4)
        return 0;
    *need = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    if (b[0] == 0xe0)
        low = 0xa0;
    else if (b[0] == 0xed)
        high = 0x9f;
    else if (b[0] == 0xf0)
        low = 0x90;
    else if (b[0] == 0xf4)
        high = 0x8f;
    for (; n < *need && n < len && b[n] >= low && b[n] <= high; n++) {
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

size_t utf8_valid_prefix(const char *s, size_t len)
{
    size_t at = 0, need;

    for (;;) {
        while (len - at >= 8 && !(load_le64((const uint8_t *)s + at) & 0x8080808080808080u))
            at += 8;
        if (at == len || character_begin(s + at, len - at, &need) != need)
            return at;
        at += need;
    }
}

size_t utf8_char(const char *s, size_t len, uint32_t *code_point)
{
    const unsigned char *b = (const unsigned char *)s;
    size_t need;

    if (character_begin(s, len, &need) != need)
        return 0;
    *code_point = need == 1 ? b[0] : b[0] & (0x7fu >> need);
    for (size_t i = 1; i < need; i++)
        *code_point = *code_point << 6 | (b[i] & 0x3fu);
    return need;
}

size_t utf8_flush(struct utf8 *u, char *out)
{
    if (!u->n_held)
        return 0;
    memcpy(out, replacement, sizeof(replacement));
    u->n_held = 0;
    return sizeof(replacement);
}

size_t utf8_feed(struct utf8 *u, const char *in, size_t len, char *out)
{
    size_t at = 0, n = 0, got, need;

    while (u->n_held && at < len) {
        char joined[4];

        memcpy(joined, u->held, u->n_held);
        joined[u->n_held] = in[at];
        got = character_begin(joined, u->n_held + 1, &need);
        if (got == u->n_held) { /* the new byte does not belong to it */
            n += utf8_flush(u, out + n);
            continue;
        }
        at++;
        u->n_held = got < need ? got : 0;
        memcpy(u->held, joined, u->n_held);
        if (got == need) {
            memcpy(out + n, joined, need);
            n += need;
        }
    }
    while (at < len) {
        size_t whole = utf8_valid_prefix(in + at, len - at);

        memcpy(out + n, in + at, whole);
        n += whole;
        at += whole;
        got = character_begin(in + at, len - at, &need);
        if (at + got == len) { /* nothing is left, or a beginning that more bytes may complete */
            memcpy(u->held, in + at, got);
            u->n_held = got;
            break;
        }
        memcpy(out + n, replacement, sizeof(replacement));
        n += sizeof(replacement);
        at += got ? got : 1;
    }
    return n;
}

size_t utf8_put(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}
