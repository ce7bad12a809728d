/* model/sampler.h - logits -> id. Deterministic: the draw depends on seed, stream and position.
 *
 * Order: bias, repetition penalties, masks, top_k, temperature, top_p, min_p, draw; each is off by
 * default, and one that removes nothing changes nothing.
 */
#ifndef MODEL_SAMPLER_H
#define MODEL_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { SAMPLER_BIAS_MAX = 1024, SAMPLER_STOP_MAX = 256, SAMPLER_TOP_MAX = 20 };

struct sampler {
    float temperature; /* <= 0: greedy */
    float top_p, min_p;
    unsigned top_k;
    uint64_t seed;
    uint32_t stream;
    float repeat_penalty, presence_penalty, frequency_penalty;
    unsigned repeat_window;
    unsigned n_bias, n_stop, n_top;
    int32_t bias_id[SAMPLER_BIAS_MAX];
    float bias[SAMPLER_BIAS_MAX];
    int32_t stop[SAMPLER_STOP_MAX];
    const uint8_t *never; /* [vocab]: 1 for ids that are never chosen; NULL: all may be. Borrowed */
    const uint64_t
        *allowed; /* [(vocab + 63) / 64] bits: ids that may be chosen; NULL: all. Borrowed */
    const uint8_t *spared; /* [vocab]: 1 for structural ids, which no penalty touches; or NULL */
};

void sampler_init(struct sampler *s); /* greedy, everything off */

/* Scratch floats sampler_choose needs. */
size_t sampler_scratch_floats(unsigned vocab);

/* Choose the id of position `pos`. logits: [vocab], kept. recent: the ids chosen before, newest
 * last. *logprob: of the model's own distribution. ERR_CORRUPT: a logit is not finite, or nothing
 * may be chosen. */
int sampler_choose(const struct sampler *s, const float *logits, unsigned vocab,
                   const int32_t *recent, unsigned n_recent, unsigned pos, float *scratch,
                   int32_t *id, float *logprob, struct err *e);

/* -inf for ids without a bit in `allowed`, [(vocab + 63) / 64]. */
void sampler_mask(float *v, unsigned vocab, const uint64_t *allowed);

/* log p(id) of the model's own distribution. logits: [vocab], all finite. The exponentials are
 * added in f64, ids ascending: the same bits for the same logits, whoever asks. */
float sampler_logprob(const float *logits, unsigned vocab, int32_t id);

/* The n likeliest ids, likeliest first, the lower one among equals, with their log probabilities,
 * those of sampler_logprob. n <= SAMPLER_TOP_MAX. Returns how many: n, or vocab. */
unsigned sampler_top(const float *logits, unsigned vocab, unsigned n, int32_t *id, float *logprob);

/* Uniform in [0, 1) by Philox4x32-10. */
double sampler_uniform(uint64_t seed, uint32_t stream, uint32_t pos);
/* The generator itself: key and counter in, four words out. */
void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

#endif
