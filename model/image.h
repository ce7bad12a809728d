/* model/image.h - bytes of a picture -> what the vision tower is shown.
 *
 * JPEG, PNG and WebP, decoded within limits that are checked from the header, before memory is
 * taken; turned upright (EXIF); shrunk by the released rule with Pillow's antialiased bicubic
 * filter, to the byte; transparency laid over a chessboard; padded with black to whole merged
 * patches. Nothing is ever enlarged. docs/IMAGES.md has the rules and their sources.
 */
#ifndef MODEL_IMAGE_H
#define MODEL_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum {
    IMAGE_PATCH = 14,                              /* pixels along a patch */
    IMAGE_TILE = 2 * IMAGE_PATCH,                  /* along what becomes one token */
    IMAGE_COLUMNS = 3 * IMAGE_PATCH * IMAGE_PATCH, /* values of a patch */
    IMAGE_SIDE_MAX = 65535,
    IMAGE_PIXELS_MAX = 64 << 20,
    IMAGE_FILE_MAX = 64 << 20, /* bytes */
    IMAGE_SCANS_MAX = 100,     /* of a progressive JPEG; times pixels: IMAGE_WORK_MAX */
    IMAGE_WORK_MAX = 1 << 30,
    IMAGE_MS_MAX = 10000, /* of decoding, by the clock of the thread that does it */
    IMAGE_PATCHES_DEFAULT = 1024,
    IMAGE_PATCHES_RELEASE = 65536,
    IMAGE_SIDE_PATCHES = 512,
};

/* What the header says; nothing is decoded and no memory taken. */
struct image_head {
    const char *format;            /* "JPEG", "PNG", "WebP" */
    uint32_t width, height;        /* as stored; at most IMAGE_PIXELS_MAX together */
    unsigned orientation;          /* EXIF, 1...8: 5 and above exchange the sides */
    unsigned channels;             /* decoded to: 3, or 4 with alpha, not premultiplied */
    uint64_t scratch;              /* bytes the library takes beside the pixels */
    uint32_t upright_w, upright_h; /* what a viewer shows, and what the prompt is told */
};

struct image_fit {                 /* the released rule, applied to a size */
    uint32_t width, height;        /* after the resize */
    uint32_t padded_w, padded_h;   /* multiples of IMAGE_TILE */
    uint32_t patches_x, patches_y; /* even */
    uint32_t tokens;               /* positions in the prompt */
};

struct image_rule {
    uint32_t max_patches;  /* before padding, which may exceed it slightly */
    uint32_t side_patches; /* along a side */
    uint32_t ms;           /* milliseconds that decoding may take; 0: IMAGE_MS_MAX */
};

struct image { /* a picture as the tower sees it */
    struct image_head head;
    struct image_fit fit;
    uint8_t *rgb; /* [padded_h][padded_w][3] */
    struct mem *mem;
};

/* max_patches: before padding, which may exceed it slightly; side_patches: along a side. */
void image_fit(struct image_fit *out, uint32_t width, uint32_t height, uint32_t max_patches,
               uint32_t side_patches);

/* ERR_FORMAT: no picture, or a damaged header; ERR_UNSUPPORTED: a format that is not read here;
 * ERR_LIMIT: more bytes or pixels than the limits above. */
int image_head(struct image_head *out, const void *data, size_t n, struct err *e);

/* Bytes image_open takes at its peak. */
uint64_t image_peak_bytes(const struct image_head *head, const struct image_fit *fit);

/* Decode. Memory is taken from `mem` (MEM_OTHER), whose limit is a bound on the peak. ERR_CORRUPT:
 * the pixels end early or are damaged; ERR_LIMIT: it takes too long; ERR_BUDGET, ERR_NOMEM; and as
 * image_head. */
int image_open(struct image *out, struct mem *mem, const void *data, size_t n,
               const struct image_rule *rule, struct err *e);
void image_close(struct image *image);

/* One patch as the tower reads it: x[channel][y][x] = (pixel / 255 - mean) / std. patch: row-major
 * over patches_x, patches_y. */
void image_patch(float x[IMAGE_COLUMNS], const struct image *image, uint32_t patch,
                 const float mean[3], const float std[3]);

#endif
