/* model/plain.h - turns: a prefix, what is said, a suffix. Those of chat.json, and of K2, which has
 * tools besides.
 */
#ifndef MODEL_PLAIN_H
#define MODEL_PLAIN_H

#include "model/chat.h"

/* ERR_UNSUPPORTED names what the format has no words for. */
int plain_render(struct prompt *p, const struct chat *chat, const struct conversation *c,
                 struct err *e);

#endif
