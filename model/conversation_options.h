/* model/conversation_options.h - what a request asks for beside its messages: thinking, which tools
 * may or must be called, the form of the answer. A part of conversation.c. */
#ifndef MODEL_CONVERSATION_OPTIONS_H
#define MODEL_CONVERSATION_OPTIONS_H

#include "model/conversation.h"

/* The messages and tools of c have been read. */
int conversation_options(struct conversation *c, const struct node *request,
                         const struct thinking_rules *rules, struct err *e);

#endif
