/* Whatever the bytes of a picture: refused with words, or shown within its limits; and its memory
 * is given back.
 *
 * Input: the file. At most 4 Mi pixels are decoded here, so that a fuzzer goes on quickly. */
#include <stdlib.h>

#include "model/image.h"

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct image_rule rule = {IMAGE_PATCHES_DEFAULT, IMAGE_SIDE_PATCHES, 0};
    struct image_head head;
    struct image m;
    struct mem mem;
    struct err e = {0};

    mem_init(&mem, 0);
    if (image_head(&head, data, size, &e)) {
        require(e.code < 0 && e.text[0]);
        return 0;
    }
    require((uint64_t)head.width * head.height <= IMAGE_PIXELS_MAX);
    require(head.orientation >= 1 && head.orientation <= 8);
    if ((uint64_t)head.width * head.height > 4 << 20)
        return 0;
    if (!image_open(&m, &mem, data, size, &rule, &e)) {
        require(mem.peak_total <= image_peak_bytes(&m.head, &m.fit));
        image_close(&m);
    } else {
        require(e.code < 0 && e.text[0]);
    }
    require(!mem.used_total);
    return 0;
}
