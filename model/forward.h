/* model/forward.h - one pass: rows of sessions through every layer. */
#ifndef MODEL_FORWARD_H
#define MODEL_FORWARD_H

#include "model/layers.h"

/* Run rows through the model. Logits of spans that want them are in act->logits[span][vocab], log
 * probabilities of rows->score in act->logprob[row]. ERR_CORRUPT names a logit of a scored row that
 * is not finite; those of spans are the caller's to check. Sessions are not moved on: the caller
 * commits, or does not (session.h). ERR_IO, ERR_CORRUPT, ERR_FORMAT, ERR_CANCELLED: every session
 * is as it was. */
int forward(struct run *r, struct err *e);

#endif
