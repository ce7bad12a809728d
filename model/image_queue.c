#include "model/image_queue.h"

#include <string.h>

static uint64_t bytes_of_rows(const struct image_queue *q, uint32_t n)
{
    return (uint64_t)n * q->width * sizeof(float);
}

void images_init(struct image_queue *q, struct mem *mem, uint32_t width)
{
    memset(q, 0, sizeof(*q));
    q->mem = mem;
    q->width = width;
}

static void drop(struct image_queue *q, unsigned i)
{
    image_close(&q->item[i].picture);
    mem_unmap(q->mem, MEM_STATE, q->item[i].rows, bytes_of_rows(q, q->item[i].n));
    q->n--;
    memmove(&q->item[i], &q->item[i + 1], (q->n - i) * sizeof(q->item[0]));
}

void images_clear(struct image_queue *q)
{
    while (q->n)
        drop(q, q->n - 1);
    q->used = 0;
}

int images_push(struct image_queue *q, const struct image *picture, struct err *e)
{
    uint32_t n = picture->fit.tokens;
    void *p;

    if (mem_map(q->mem, MEM_STATE, bytes_of_rows(q, n), false, &p, e))
        return err_wrap(e, "%u rows of an image, with %zu waiting", n, images_pending(q));
    q->item[q->n++] =
        (struct waiting){.picture = *picture, .rows = p, .n = n, .hash = image_hash(picture)};
    return 0;
}

struct waiting *images_unseen(struct image_queue *q, size_t n)
{
    size_t at = 0;

    for (unsigned i = 0; i < q->n && at < n; i++) {
        if (q->item[i].picture.rgb)
            return &q->item[i];
        at += q->item[i].n - (i ? 0 : q->used);
    }
    return NULL;
}

void images_seen(struct waiting *w)
{
    image_close(&w->picture);
}

size_t images_pending(const struct image_queue *q)
{
    size_t n = 0;

    for (unsigned i = 0; i < q->n; i++)
        n += q->item[i].n;
    return n - q->used;
}

/* Picture and row of the k-th that waits. */
static unsigned locate(const struct image_queue *q, size_t k, uint32_t *row)
{
    unsigned i = 0;

    for (k += q->used; k >= q->item[i].n; i++)
        k -= q->item[i].n;
    *row = (uint32_t)k;
    return i;
}

const float *images_row(const struct image_queue *q, size_t k)
{
    uint32_t row;
    unsigned i = locate(q, k, &row);

    return q->item[i].rows + (size_t)row * q->width;
}

/* The finisher of MurmurHash3. */
static uint64_t mix(uint64_t h)
{
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

int32_t images_id(const struct image_queue *q, size_t k)
{
    uint32_t row;
    unsigned i = locate(q, k, &row);

    return (int32_t)(mix(q->item[i].hash + row * 0x9e3779b97f4a7c15u) >> 33) - INT32_MAX - 1;
}

void images_use(struct image_queue *q, size_t n)
{
    while (n && q->n) {
        size_t left = q->item[0].n - q->used, here = n < left ? n : left;

        q->used += (uint32_t)here;
        n -= here;
        if (q->used == q->item[0].n) {
            drop(q, 0);
            q->used = 0;
        }
    }
}

uint64_t image_hash(const struct image *image)
{
    size_t n = (size_t)image->fit.padded_w * image->fit.padded_h * 3, i;
    uint64_t h = mix((uint64_t)image->fit.padded_w << 32 | image->fit.padded_h), word;

    for (i = 0; i + 8 <= n; i += 8) {
        memcpy(&word, image->rgb + i, 8);
        h = mix(h ^ mix(word + i));
    }
    for (; i < n; i++)
        h = mix(h ^ (image->rgb[i] + i));
    return h;
}
