/* model/vision.h - a picture -> rows that take the place of embeddings: K3's tower and projector.
 *
 * Its weights lie apart from the language model's, so that they can be there or not. Everything is
 * computed in f32 by the model's kernels; the bits of a row depend on the tower and the picture
 * alone, not on threads or CPU (docs/IMAGES.md). One thread owns it and makes every call.
 */
#ifndef MODEL_VISION_H
#define MODEL_VISION_H

#include "model/image.h"
#include "model/kernels/kernels.h"
#include "model/team.h"
#include "model/vision_shape.h"

struct vision;

/* Bytes of the buffers that vision_encode has while it runs, for a picture of so many patches. */
uint64_t vision_scratch_bytes(const struct vision_shape *s, uint32_t patches, unsigned threads);

/* Load the tower. c, k: borrowed. ERR_FORMAT, ERR_UNSUPPORTED as in vision_shape.h; ERR_CORRUPT,
 * ERR_IO; ERR_BUDGET, ERR_NOMEM: `mem` (MEM_TRUNK, MEM_SCRATCH). */
int vision_open(struct vision **out, const struct container *c, const struct vision_shape *s,
                const struct kernels *k, struct mem *mem, struct progress *progress, struct err *e);
void vision_close(struct vision *v); /* NULL-safe */
const struct vision_shape *vision_shape(const struct vision *v);

struct vision_watch {          /* all may be NULL */
    struct progress *progress; /* counts blocks */
    void (*poll)(void *arg);   /* between blocks */
    void *poll_arg;
};

/* rows: [image->fit.tokens][text]. ERR_CANCELLED; ERR_CORRUPT: a value is not finite; ERR_BUDGET,
 * ERR_NOMEM. */
int vision_encode(struct vision *v, const struct image *image, float *rows, struct team *team,
                  const struct vision_watch *watch, struct err *e);

#endif
