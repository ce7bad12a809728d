/* model/image_queue.h - rows of pictures that wait for their places in a session's prompt.
 *
 * They are used in order, one by each placeholder that is fed, when the pass that fed it is
 * committed. In a session's ids the place has a negative id, which names the picture and the row:
 * so states and prefixes, which are compared by ids, are never taken for those of another picture.
 */
#ifndef MODEL_IMAGE_QUEUE_H
#define MODEL_IMAGE_QUEUE_H

#include "base/mem.h"
#include "model/image.h"

enum { IMAGES_MAX = 32 };

struct image_queue {
    struct {
        float *rows; /* [n][width] */
        uint32_t n;
        uint64_t hash;
    } item[IMAGES_MAX];
    unsigned n;
    uint32_t used;  /* rows of the first */
    uint32_t width; /* of a row; init sets both */
    struct mem *mem;
};

void images_init(struct image_queue *q, struct mem *mem, uint32_t width);
void images_clear(struct image_queue *q);

/* Room for n more rows behind what waits; the caller fills them, and drops them with images_pop if
 * it cannot. ERR_LIMIT: IMAGES_MAX wait; ERR_BUDGET, ERR_NOMEM. */
int images_push(struct image_queue *q, uint32_t n, uint64_t hash, float **rows, struct err *e);
void images_pop(struct image_queue *q);

size_t images_pending(const struct image_queue *q); /* rows */
/* The k-th that waits, k < images_pending. */
const float *images_row(const struct image_queue *q, size_t k);
int32_t images_id(const struct image_queue *q, size_t k); /* negative */
void images_use(struct image_queue *q, size_t n);

/* Of what the tower is shown: two files with the same pixels are one picture. It tells pictures
 * apart that nobody made to be confused. */
uint64_t image_hash(const struct image *image);

#endif
