/* model/router.h - scores -> ids and weights, for the MoE block and the lookahead alike.
 *
 * s = sigmoid(logits), s' = s + bias. The k experts with the largest s' are selected, in falling
 * order of s', lower id first among equals; with groups, only from the topk_group groups whose two
 * best sum highest. The bias selects and never weighs: weights are s, normalised over the selected
 * if asked for, times the scaling factor. Source: DeepSeek-V3, arXiv:2412.19437.
 */
#ifndef MODEL_ROUTER_H
#define MODEL_ROUTER_H

#include <stdint.h>

#include "base/err.h"
#include "model/hparams.h"
#include "model/kernels/kernels.h"

/* score: [E] router logits on entry, sigmoids on return. bias: [E] or NULL. scratch: [2 E].
 * ERR_CORRUPT: a score is not finite. */
int router_select(const struct hparams *hp, const struct kernels *k, float *score,
                  const float *bias, float *scratch, uint16_t *id, float *weight, struct err *e);

/* The n best of s' alone, groups ignored: a guess. Returns how many (non-finite scores: none). */
unsigned router_guess(const struct hparams *hp, const struct kernels *k, float *score,
                      const float *bias, uint16_t *id, unsigned n);

#endif
