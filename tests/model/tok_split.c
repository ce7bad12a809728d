/* tests/model/tok_split.c - the splitter as a filter, for pattern_oracle.py.
 *
 *     tok_split              stdin: texts, each a 32-bit length and that many bytes
 *                            stdout: for each its number of pieces, and then their lengths, 32 bits
 *     tok_split --unicode    the Unicode version of the splitter's tables
 *     tok_split --categories ranges of code points, "Lu 41 5a", by the same tables
 * Numbers have the machine's byte order.
 */
#include "model/tokenizer.h"

#include "tests/model/rank_file.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static int fail(const char *what)
{
    fprintf(stderr, "tok_split: %s\n", what);
    return 1;
}

static int split_all(const struct tokenizer *t)
{
    uint32_t len;
    size_t n;
    struct err e;

    while (fread(&len, sizeof(len), 1, stdin) == 1) {
        char *text = malloc((size_t)len + 1);
        size_t *lens = malloc(((size_t)len + 1) * sizeof(*lens)); /* a piece has a byte at least */

        if (!text || !lens || fread(text, 1, len, stdin) != len)
            return fail("a text is cut short");
        if (tokenizer_split(t, text, len, lens, len, &n, &e))
            return fail(e.text);
        for (size_t i = 0; i <= n; i++) {
            uint32_t number = (uint32_t)(i ? lens[i - 1] : n);

            if (fwrite(&number, sizeof(number), 1, stdout) != 1)
                return fail("cannot write");
        }
        free(lens);
        free(text);
    }
    return 0;
}

/* Every code point as UTF-8, four bytes each and so at its number; surrogates are left zero. */
static char *all_code_points(void)
{
    unsigned char *s = calloc(0x110000, 4);

    for (uint32_t c = 0; s && c < 0x110000; c++) {
        unsigned char *b = s + 4 * (size_t)c;

        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        if (c < 0x80) {
            b[3] = (unsigned char)c;
        } else {
            b[3] = 0x80 | (c & 0x3f);
            b[2] = c < 0x800 ? 0xc0 | c >> 6 : 0x80 | (c >> 6 & 0x3f);
            if (c >= 0x800)
                b[1] = c < 0x10000 ? 0xe0 | c >> 12 : 0x80 | (c >> 12 & 0x3f);
            if (c >= 0x10000)
                b[0] = 0xf0 | c >> 18;
        }
    }
    return (char *)s;
}

static int categories(void)
{
    static const char names[] = "CcCfCnCoLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";
    char *s = all_code_points();
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);

    if (!s || !match)
        return fail("no memory");
    for (const char *name = names; *name; name += 2) {
        char pattern[16];
        PCRE2_SIZE at;
        pcre2_code *code;
        int rc;

        snprintf(pattern, sizeof(pattern), "^\\p{%.2s}$", name);
        code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &rc, &at, NULL);
        if (!code)
            return fail(pattern);
        pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
        for (uint32_t c = 0, from = 0; c <= 0x110000; c++) {
            size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
            bool in = c < 0x110000 && (c < 0xd800 || c > 0xdfff) &&
                      pcre2_match(code, (PCRE2_SPTR)s + 4 * (size_t)c + 4 - n, n, 0,
                                  PCRE2_NO_UTF_CHECK, match, NULL) >= 0;

            if (in)
                continue;
            if (from < c)
                printf("%.2s %x %x\n", name, (unsigned)from, (unsigned)c - 1);
            from = c + 1;
        }
        pcre2_code_free(code);
    }
    pcre2_match_data_free(match);
    free(s);
    return 0;
}

int main(int argc, char **argv)
{
    struct rank_file f;
    struct tokenizer *t;
    struct err e;
    int rc;

    if (argc == 2 && !strcmp(argv[1], "--unicode"))
        return puts(tokenizer_unicode_version()) < 0;
    if (argc == 2 && !strcmp(argv[1], "--categories"))
        return categories();
    if (argc != 1)
        return fail("usage: tok_split [--unicode | --categories]");
    f = rank_file_of(NULL);
    if (tokenizer_parse(&t, f.text, f.len, NULL, 0, 0, &e))
        return fail(e.text);
    rc = split_all(t);
    tokenizer_close(t);
    free(f.text);
    return rc || fflush(stdout);
}
