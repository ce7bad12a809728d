/* expertfs/synth_words.h - a rank file (tokenizer.model) of pseudo-words.
 *
 * 256 bytes, then syllables ("ka"), syllables after a space, all pairs of syllables, the same after
 * a space, then triples with and without a space. Every token of two bytes or more is two earlier
 * ones, and byte-pair merging reaches each of them whatever it merges first: every pair of
 * neighbouring parts of a triple is a token too. So what a random model says looks like words.
 */
#ifndef EXPERTFS_SYNTH_WORDS_H
#define EXPERTFS_SYNTH_WORDS_H

#include <stddef.h>

#include "base/err.h"

enum { SYNTH_RANKS_MIN = 256, SYNTH_RANKS_MAX = 2000000 };

/* n_ranks lines "base64 rank"; *text is malloc'ed, *len bytes. */
int synth_words(char **text, size_t *len, unsigned n_ranks, struct err *e);

#endif
