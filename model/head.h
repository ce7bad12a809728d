/* model/head.h - behind the last layer: the last norm and the head.
 *
 * Both read the residual stream of a pass whose layers are done, and write into its act.
 */
#ifndef MODEL_HEAD_H
#define MODEL_HEAD_H

#include "model/layers.h"

/* act->logits[span] of the last row of each span that asks for logits. */
void head_logits(struct run *r);

/* act->logprob[row] of rows->score, a few rows at a time: of a row's logits one number is kept.
 * ERR_CANCELLED; ERR_CORRUPT: a logit is not finite. */
int head_scores(struct run *r, struct err *e);

#endif
