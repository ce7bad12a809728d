#include "cli/safe.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the character that begins here; 0 if none does: no overlong forms, no surrogates. */
static size_t utf8_len(const unsigned char *s, size_t len)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (!n || n > len || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

static bool is_control(const unsigned char *s, size_t n)
{
    return (n == 1 && (s[0] < 0x20 || s[0] == 0x7f)) || (n == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

/* A character of more than two bytes that deceives; 0: it does not. */
static uint32_t deceives(const unsigned char *s, size_t n)
{
    uint32_t u = 0;

    if (n == 3)
        u = (uint32_t)(s[0] & 0xf) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    else if (n == 4)
        u = (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
            (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
    return (u >= 0x202a && u <= 0x202e) || (u >= 0x2066 && u <= 0x2069) || u == 0x200b ||
                   u == 0x2060 || u == 0xfeff || (u >= 0xe0000 && u <= 0xe007f)
               ? u
               : 0;
}

size_t safe_next(char out[SAFE_UNIT], size_t *n, const char *bytes, size_t len, const char *keep)
{
    const unsigned char *s = (const unsigned char *)bytes;
    size_t taken = utf8_len(s, len);
    uint32_t hidden = deceives(s, taken);

    if (hidden) {
        *n = (size_t)snprintf(out, SAFE_UNIT, "\\u{%x}", hidden);
        return taken;
    }
    if (taken && (!is_control(s, taken) || (taken == 1 && s[0] && strchr(keep, s[0])))) {
        memcpy(out, bytes, taken);
        *n = taken;
        return taken;
    }
    taken = taken ? taken : 1;
    snprintf(out, SAFE_UNIT, "\\x%02x", s[taken - 1]); /* U+0080...9f end in their number */
    *n = 4;
    return taken;
}

const char *safe_text(char *text, size_t text_bytes, const char *bytes, size_t len,
                      const char *keep)
{
    size_t at = 0, n, taken;
    char unit[SAFE_UNIT];

    for (size_t i = 0; i < len; i += taken) {
        taken = safe_next(unit, &n, bytes + i, len - i, keep);
        if (at + n >= text_bytes)
            break;
        memcpy(text + at, unit, n);
        at += n;
    }
    text[at] = '\0';
    return text;
}

bool safe_as_is(const char *bytes, size_t len)
{
    size_t n, taken;
    char unit[SAFE_UNIT];

    for (size_t i = 0; i < len; i += taken) {
        taken = safe_next(unit, &n, bytes + i, len - i, "");
        if (n != taken || memcmp(unit, bytes + i, n) != 0)
            return false;
    }
    return true;
}
