/* model/image_codec.h - one decoder per format, all of one shape; used by image.c alone.
 *
 * `head` looks at no more than the header and fills all but upright_*; `pixels` writes
 * [height][width][channels] as stored, after image.c has held the head against the limits. A file
 * that ends early or is damaged is an error, never a picture with grey below: what the libraries
 * only warn of counts as damage.
 */
#ifndef MODEL_IMAGE_CODEC_H
#define MODEL_IMAGE_CODEC_H

#include "model/image.h"

struct image_clock { /* pictures that are valid and slow end, too */
    uint64_t begun_ns;
    uint32_t ms;
};

/* Between scan lines. `at` of `all` lines or bytes, for the text. ERR_LIMIT: the time is over. */
int image_clock_check(const struct image_clock *c, const char *format, const char *unit, size_t at,
                      size_t all, struct err *e);

struct image_codec {
    const char *name;
    bool (*is)(const uint8_t *data, size_t n);
    int (*head)(struct image_head *out, const uint8_t *data, size_t n, struct err *e);
    int (*pixels)(uint8_t *out, const struct image_head *head, const uint8_t *data, size_t n,
                  const struct image_clock *clock, struct err *e);
};

extern const struct image_codec image_jpeg, image_png, image_webp;

/* image_exif.c: the orientation that a TIFF directory states (with "Exif\0\0" before it or not); 1
 * if none does or it makes no sense. */
unsigned image_orientation(const uint8_t *exif, size_t n);

/* image_resize.c: pixels with any strides, so that turning a picture costs no copy. */
struct image_view {
    const uint8_t *at; /* of pixel (0, 0) */
    ptrdiff_t dx, dy;  /* bytes to the next pixel right, below */
    uint32_t width, height;
    unsigned channels; /* 3, 4 */
};

/* Bytes of scratch that image_resize needs. */
uint64_t image_resize_bytes(uint32_t from_w, uint32_t from_h, unsigned channels, uint32_t to_w,
                            uint32_t to_h);
/* Pillow's Image.resize(BICUBIC), to the byte: along rows, then along columns, rounded to 8 bits
 * after each. out: [to_h] rows of out_stride bytes, to_w pixels of the view's channels. Channels
 * are treated alike: alpha must have been multiplied in. scratch: image_resize_bytes. */
void image_resize(uint8_t *out, size_t out_stride, uint32_t to_w, uint32_t to_h,
                  const struct image_view *from, void *scratch);

#endif
