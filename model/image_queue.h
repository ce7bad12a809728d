/* model/image_queue.h - pictures that wait for their places in a session's prompt.
 *
 * A picture waits as pixels, and becomes rows when the first of its places is fed: one that is only
 * compared with what is in a session already costs no tower. Rows are used in order, one by each
 * placeholder that is fed, when the pass that fed it is committed. In a session's ids the place has
 * a negative id, which names the picture and the row: so states and prefixes, which are compared by
 * ids, are never taken for those of another picture.
 */
#ifndef MODEL_IMAGE_QUEUE_H
#define MODEL_IMAGE_QUEUE_H

#include "base/mem.h"
#include "include/waste.h"
#include "model/image.h"

struct image_queue {
    struct waiting {
        struct image picture; /* until it is encoded; rgb NULL: it is */
        float *rows;          /* [n][width]; there from the beginning, filled then */
        uint32_t n;
        uint64_t hash;
    } item[WASTE_IMAGES_MAX];
    unsigned n;
    uint32_t used;  /* rows of the first */
    uint32_t width; /* of a row; init sets both */
    struct mem *mem;
};

void images_init(struct image_queue *q, struct mem *mem, uint32_t width);
void images_clear(struct image_queue *q);

/* A picture behind what waits, fewer than WASTE_IMAGES_MAX, and room for its rows: the queue's from
 * then on. ERR_BUDGET, ERR_NOMEM: it is still the caller's. */
int images_push(struct image_queue *q, const struct image *picture, struct err *e);
/* The first of those that the next n rows are of and that was not encoded; NULL: all were. */
struct waiting *images_unseen(struct image_queue *q, size_t n);
void images_seen(struct waiting *w); /* its rows are filled; the pixels go */

size_t images_pending(const struct image_queue *q); /* rows */
/* The k-th that waits, k < images_pending. */
const float *images_row(const struct image_queue *q, size_t k);
int32_t images_id(const struct image_queue *q, size_t k); /* negative */
void images_use(struct image_queue *q, size_t n);         /* the next n, or all */

/* Of what the tower is shown: two files with the same pixels are one picture. It tells pictures
 * apart that nobody made to be confused. */
uint64_t image_hash(const struct image *image);

#endif
