/* cli/pictures.h - --image: pictures into a prompt, and what they will cost. */
#ifndef CLI_PICTURES_H
#define CLI_PICTURES_H

#include "cli/prompt.h"
#include "waste.h"

/* Encode every --image, in order, and give each its places: where the prompt says <|media_pad|> (as
 * markup or --ids) once for each, else in front, behind [BOS]. Returns 0 or an exit code, having
 * said why. Nothing to do without --image. */
int pictures_place(struct cli *c, waste_ctx *ctx, struct ids *prompt);

/* Refuse pictures that cannot be read, and a model that sees none, before anything is loaded. */
int pictures_check(struct cli *c, const char *model);

/* The whole of a file; free(*bytes). */
int picture_read(struct cli *c, const char *path, void **bytes, size_t *len);

/* What a file will be to the model at `container` (NULL: to any with the usual rule). */
int picture_look(struct cli *c, const char *container, const char *path, waste_image_info *out);

#endif
