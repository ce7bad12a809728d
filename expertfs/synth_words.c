#include "expertfs/synth_words.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONSONANTS = 20, VOWELS = 5, SYLLABLES_MAX = CONSONANTS * VOWELS, LINE_BYTES = 24 };
enum { STEP = 618041 }; /* a prime above every s: stepping by it visits all s^3 triples, mixed */

static const char consonant[CONSONANTS + 1] = "tnrsldmkpbgfhvwzjcyx";
static const char vowel[VOWELS + 1] = "aeiou";

struct out {
    char *text;
    size_t len;
    unsigned rank, n_ranks;
};

static void put_token(struct out *o, const unsigned char *bytes, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *at = o->text + o->len;

    if (o->rank == o->n_ranks)
        return;
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)bytes[i] << 16 | (i + 1 < n ? bytes[i + 1] << 8 : 0) |
                     (i + 2 < n ? bytes[i + 2] : 0);

        *at++ = digit[v >> 18];
        *at++ = digit[v >> 12 & 63];
        *at++ = i + 1 < n ? digit[v >> 6 & 63] : '=';
        *at++ = i + 2 < n ? digit[v & 63] : '=';
    }
    at += sprintf(at, " %u\n", o->rank++);
    o->len = (size_t)(at - o->text);
}

/* Syllables a, b, c (the first n of them), perhaps after a space. */
static void put_word(struct out *o, const unsigned *syllable, unsigned n, bool space)
{
    unsigned char bytes[8];
    size_t len = 0;

    if (space)
        bytes[len++] = ' ';
    for (unsigned i = 0; i < n; i++) {
        bytes[len++] = (unsigned char)consonant[syllable[i] / VOWELS];
        bytes[len++] = (unsigned char)vowel[syllable[i] % VOWELS];
    }
    put_token(o, bytes, len);
}

/* How many syllables, so that all pairs fit, with and without the space. */
static unsigned syllables_for(unsigned n_ranks)
{
    unsigned s = 0;

    while (s < SYLLABLES_MAX && 256 + 2 * (s + 1) + 2 * (s + 1) * (s + 1) <= n_ranks)
        s++;
    return s;
}

static void put_all(struct out *o, unsigned s)
{
    unsigned w[3], triples = s * s * s;

    for (unsigned i = 0; i < 256; i++)
        put_token(o, &(unsigned char){(unsigned char)i}, 1);
    for (unsigned space = 0; space < 2; space++)
        for (w[0] = 0; w[0] < s; w[0]++)
            put_word(o, w, 1, space);
    for (unsigned space = 0; space < 2; space++)
        for (w[0] = 0; w[0] < s; w[0]++)
            for (w[1] = 0; w[1] < s; w[1]++)
                put_word(o, w, 2, space);
    for (unsigned i = 0; i < triples && o->rank < o->n_ranks; i++) {
        unsigned t = (unsigned)((unsigned long long)i * STEP % triples);

        w[0] = t % s;
        w[1] = t / s % s;
        w[2] = t / (s * s);
        put_word(o, w, 3, false);
        put_word(o, w, 3, true);
    }
}

int synth_words(char **text, size_t *len, unsigned n_ranks, struct err *e)
{
    struct out o = {.n_ranks = n_ranks};
    unsigned s = syllables_for(n_ranks);

    if (n_ranks < SYNTH_RANKS_MIN || n_ranks > SYNTH_RANKS_MAX)
        return err_set(e, ERR_ARG, "a vocabulary of %u tokens; %d...%d can be made", n_ranks,
                       SYNTH_RANKS_MIN, SYNTH_RANKS_MAX);
    o.text = malloc((size_t)n_ranks * LINE_BYTES);
    if (!o.text)
        return err_set(e, ERR_NOMEM, "a vocabulary of %u tokens", n_ranks);
    put_all(&o, s);
    if (o.rank < n_ranks) {
        free(o.text);
        return err_set(e, ERR_ARG, "a vocabulary of %u tokens; only %u can be made", n_ranks,
                       o.rank);
    }
    *text = o.text;
    *len = o.len;
    return 0;
}
