/* cli/pictures.h - pictures into prompts, by the paths of their files, and what they will cost. */
#ifndef CLI_PICTURES_H
#define CLI_PICTURES_H

#include "cli/prompt.h"
#include "cli/talk.h"
#include "waste.h"

/* Encode every --image, in order, and give each its places: where the prompt says <|media_pad|> (as
 * markup or --ids) once for each, else in front, behind [BOS]. Returns 0 or an exit code, having
 * said why. Nothing to do without --image. */
int pictures_place(struct cli *c, waste_ctx *ctx, struct ids *prompt);

/* Refuse pictures that cannot be read, and a model that sees none, before anything is loaded. */
int pictures_check(struct cli *c, const char *model);

/* Every --image to the next message. Returns 0 or an exit code, having said why. */
int pictures_attach(struct cli *c, const char *model, struct talk *talk);

/* Give the pictures among the parts of messages (waste_chat_render) their width and height, where
 * they do not say. ERR_ARG, and what their files say. */
int pictures_measure(json_t *messages, struct err *e);

/* The pictures of a rendered prompt into the default session, in the place of what waits there:
 * rows[i], i < WASTE_IMAGES_MAX, is how many positions each has; *ids, free() it, the prompt with
 * all of them. */
int pictures_see(waste_ctx *ctx, const waste_prompt_info *p, uint32_t *rows, int32_t **ids,
                 size_t *n, struct err *e);

/* The whole of a file; free(*bytes). */
int picture_read(struct cli *c, const char *path, void **bytes, size_t *len);

/* What a file will be to the model at `container` (NULL: to any with the usual rule). */
int picture_look(struct cli *c, const char *container, const char *path, waste_image_info *out);

#endif
