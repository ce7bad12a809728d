#include "model/pieces.h"

#include "model/utf8.h"

#include <assert.h>
#include <stdint.h>

#define CHUNK_CHARS   400000u
#define RUN_CHARS     25000u
#define JIT_STACK_MAX (4u << 20)

#define HAN "\\p{sc:Han}" /* \p{Han} would be Script_Extensions: punctuation as well */
#define SPACE                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}" /* White_Space; \s would add U+180E */
#define LEAD     "[^\\r\\n\\p{L}\\p{N}]?"
#define UPPERISH "(?:(?!" HAN ")[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWERISH "(?:(?!" HAN ")[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define SHORT    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

/* The first alternative that matches wins. */
static const char pattern_text[] =
    HAN "+|"                                      /* Chinese never merges with its neighbours */
    LEAD UPPERISH "*" LOWERISH "+" SHORT "|"      /* a word, capitalised or not, with its space */
    LEAD UPPERISH "+" LOWERISH "*" SHORT "|"      /* a word in capitals */
        "\\p{N}{1,3}|"                            /* digits, never with a leading space */
        "[ ]?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|" /* punctuation, with the line ends after it */
        "[" SPACE "]*[\\r\\n]+|"                  /* whitespace up to its last line end */
        "[" SPACE "]+(?![^" SPACE "])|"           /* before a word it leaves one character */
        "[" SPACE "]+";

int pattern_compile(pcre2_code **out, struct err *e)
{
    PCRE2_UCHAR why[128];
    PCRE2_SIZE at;
    int code;

    /* Anchored here and not at each match, where the option would turn the JIT off. */
    *out = pcre2_compile((PCRE2_SPTR)pattern_text, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_EXTENDED | PCRE2_ANCHORED, &code, &at, NULL);
    if (!*out && code == PCRE2_ERROR_HEAP_FAILED)
        return err_set(e, ERR_NOMEM, "the split pattern");
    if (!*out) {
        pcre2_get_error_message(code, why, sizeof(why));
        return err_set(e, ERR_UNSUPPORTED, "PCRE2 refuses the split pattern at %zu: %s", at,
                       (const char *)why);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it, only slower */
    return 0;
}

/* As Python's str.isspace. */
static bool is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* One character, or one byte that is part of none: counted like one, and not a space. */
static size_t char_length(const char *s, size_t len, uint32_t *c)
{
    size_t n = utf8_char(s, len, c);

    if (n)
        return n;
    *c = 0xfffd;
    return 1;
}

size_t pieces_chunk(const char *s, size_t len, bool end)
{
    size_t at = 0, n = 0;
    uint32_t c;

    for (; at < len && n < CHUNK_CHARS; n++) {
        if (!end && len - at < UTF8_CHAR_MAX) /* what looks invalid may be the beginning of one */
            return 0;
        at += char_length(s + at, len - at, &c);
    }
    return end || n == CHUNK_CHARS ? at : 0;
}

/* Up to where a run of one class, whitespace or not, would exceed RUN_CHARS. */
static size_t stretch_length(const char *s, size_t len)
{
    bool space = false;
    size_t at = 0, run = 0, n;
    uint32_t c;

    for (; at < len; at += n) {
        n = char_length(s + at, len - at, &c);
        run = is_space(c) == space ? run + 1 : 1;
        space = is_space(c);
        if (run > RUN_CHARS)
            break;
    }
    return at;
}

static size_t invalid_length(const char *s, size_t len)
{
    size_t n = 1;
    uint32_t c;

    while (n < len && !utf8_char(s + n, len - n, &c))
        n++;
    return n;
}

int pieces_init(struct pieces *p, const pcre2_code *pattern, const struct specials *specials,
                const char *text, size_t len, struct err *e)
{
    if (!len)
        text = ""; /* NULL is a legal empty text */
    *p = (struct pieces){.pattern = pattern, .specials = specials, .at = text, .end = text + len};
    p->chunk_end = p->stretch_end = p->plain_end = p->run = p->run_end = text;
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->match || !p->context)
        return err_set(e, ERR_NOMEM, "splitting %zu bytes", len);
    return 0;
}

void pieces_release(struct pieces *p)
{
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->context);
    pcre2_jit_stack_free(p->stack);
}

bool pieces_more(const struct pieces *p)
{
    return p->at < p->end;
}

static void plain_find(struct pieces *p)
{
    p->special = NULL;
    p->plain_end = p->specials && p->specials->n ? p->at : p->stretch_end;
    for (; p->plain_end < p->stretch_end; p->plain_end++) {
        p->special =
            specials_here(p->specials, p->plain_end, (size_t)(p->stretch_end - p->plain_end));
        if (p->special)
            return;
    }
}

/* The run was validated when it was found; PCRE2 would do that again for each piece. */
static int run_match(struct pieces *p, uint32_t options)
{
    return pcre2_match(p->pattern, (PCRE2_SPTR)p->run, (size_t)(p->run_end - p->run),
                       (size_t)(p->at - p->run), options | PCRE2_NO_UTF_CHECK, p->match,
                       p->context);
}

/* The length of the piece at p->at, by the pattern. */
static int piece_match(struct pieces *p, size_t *len, struct err *e)
{
    size_t at = (size_t)(p->at - p->run), run_len = (size_t)(p->run_end - p->run);
    int rc = run_match(p, 0);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !p->stack) { /* some thousand letters in one word */
        p->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, NULL);
        pcre2_jit_stack_assign(p->context, NULL, p->stack);
        rc = run_match(p, 0);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = run_match(p, PCRE2_NO_JIT);
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return err_set(e, ERR_NOMEM, "splitting at byte %zu of %zu", at, run_len);
    if (rc < 0) /* our mistake: the pattern matches at every character, and in linear time */
        return err_set(e, ERR_LIMIT, "splitting at byte %zu of %zu: PCRE2 error %d", at, run_len,
                       rc);
    *len = pcre2_get_ovector_pointer(p->match)[1] - at;
    assert(*len && *len <= run_len - at);
    return 0;
}

int pieces_next(struct pieces *p, struct piece *out, struct err *e)
{
    struct piece piece = {.s = p->at};

    if (p->at == p->chunk_end)
        p->chunk_end += pieces_chunk(p->at, (size_t)(p->end - p->at), true);
    if (p->at == p->stretch_end) {
        p->stretch_end += stretch_length(p->at, (size_t)(p->chunk_end - p->at));
        plain_find(p);
    }
    if (p->at == p->plain_end) {
        piece.special = p->special;
        piece.len = p->special->len;
        p->run_end = p->at + piece.len;
    } else if (p->at == p->run_end) {
        p->run = p->at;
        p->run_end += utf8_valid_prefix(p->at, (size_t)(p->plain_end - p->at));
        if (p->at == p->run_end) {
            piece.len = invalid_length(p->at, (size_t)(p->plain_end - p->at));
            p->run_end += piece.len;
        }
    }
    if (!piece.len && piece_match(p, &piece.len, e))
        return e->code;
    p->at += piece.len;
    if (piece.special)
        plain_find(p);
    *out = piece;
    return 0;
}
