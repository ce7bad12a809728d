/* model/vision_shape.h - the vision tower's geometry and its weights by name, before any is read.
 *
 * vision.json is untrusted like every file of a container; nothing of it is believed that is not
 * checked here.
 */
#ifndef MODEL_VISION_SHAPE_H
#define MODEL_VISION_SHAPE_H

#include "expertfs/manifest.h"
#include "model/weights.h"

enum { VISION_BLOCKS_MAX = 256 };

struct vision_shape {
    uint32_t hidden, heads, dim; /* heads * dim is the attention's width, which is not hidden */
    uint32_t inter, blocks;
    uint32_t pos_h, pos_w; /* the learned grid of positions */
    uint32_t text;         /* hidden of the language model */
    int32_t media_id;      /* the placeholder of a row */
    uint32_t max_patches, side_patches;
    float mean[3], std[3];
    float eps;
};

struct vision_block {
    const float *norm0, *norm1; /* [hidden] */
    struct tensor qkv;          /* [q, k, v][heads][dim] rows */
    struct tensor o, fc0, fc1;
};

struct vision_weights {
    struct tensor patch; /* [hidden][588] F32 whatever it is stored as */
    const float *pos;    /* [pos_h][pos_w][hidden] */
    struct vision_block block[VISION_BLOCKS_MAX];
    const float *norm; /* [hidden] */
    struct tensor proj0, proj2;
    const float *post_norm; /* [text] */
};

/* From vision.json in dirfd. m: the model's hidden size and vocabulary, which must agree.
 * ERR_UNSUPPORTED: there is no such file; ERR_FORMAT: a member is out of range. */
int vision_shape_read(struct vision_shape *out, const struct manifest *m, int dirfd, struct err *e);

/* Visit every tensor of the tower but the patch kernel and the grid (vision_dense); as
 * weights_each. `to` may be NULL. */
int vision_each(const struct vision_shape *s, struct vision_weights *to, weight_fn *fn, void *arg,
                struct err *e);

/* The two that are decoded to F32, from any format and either rank: [d0][d1][d2][d3] or flattened.
 */
struct vision_dense {
    const struct trunk_entry *patch, *pos;
};
int vision_dense_find(struct vision_dense *out, const struct vision_shape *s,
                      const struct manifest *m, struct err *e);

/* Bytes of the weights in memory, and that all are there in the right shapes. ERR_UNSUPPORTED: the
 * container has no tower; ERR_FORMAT: it has a part of one. */
int vision_weight_bytes(uint64_t *out, const struct vision_shape *s, const struct manifest *m,
                        struct err *e);
/* Of the decoded two. */
uint64_t vision_dense_bytes(const struct vision_shape *s);

/* The most patches, padding included, that a picture can have under the rule of image_fit. */
uint32_t vision_patches_max(const struct vision_shape *s);

/* Multiply-adds of tower and projector for a picture of so many patches. */
uint64_t vision_macs(const struct vision_shape *s, uint32_t patches);

#endif
