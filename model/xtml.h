/* model/xtml.h - Kimi K3's chat format: elements made of four control tokens.
 *
 *   open(tag, attributes) = <|open|> tag { key="value"} <|sep|>      close(tag) = <|close|> tag
 * <|sep|>
 *
 * Only the four are markup; tags, attributes and texts are content, cut into segments exactly as
 * the model's own encoder cuts them.
 */
#ifndef MODEL_XTML_H
#define MODEL_XTML_H

#include "model/chat.h"

/* As the value of an attribute: & and " are what could end one, nothing else is escaped. */
void xtml_attribute(struct buf *b, struct str v);

/* ERR_UNSUPPORTED: an image, and the container has no control tokens for images. */
int xtml_render(struct prompt *p, const struct chat *chat, const struct conversation *c,
                struct err *e);

#endif
