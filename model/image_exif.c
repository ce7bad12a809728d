#include <string.h>

#include "base/bytes.h"
#include "model/image_codec.h"

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, ENTRY_BYTES = 12 };

static unsigned load16(const uint8_t *p, bool big)
{
    return big ? (unsigned)p[0] << 8 | p[1] : load_le16(p);
}

static uint32_t load32(const uint8_t *p, bool big)
{
    return big ? load_be32(p) : load_le32(p);
}

/* In the directory at b: a count, then entries of tag, type, count and value. */
static unsigned find_orientation(struct bytes b, bool big)
{
    const uint8_t *p = bytes_take(&b, 2);
    unsigned n = p ? load16(p, big) : 0;

    for (; n && (p = bytes_take(&b, ENTRY_BYTES)); n--)
        if (load16(p, big) == TAG_ORIENTATION)
            return load16(p + 2, big) == TYPE_SHORT ? load16(p + 8, big) : 1;
    return 1;
}

unsigned image_orientation(const uint8_t *exif, size_t n)
{
    size_t prefix = n >= 6 && !memcmp(exif, "Exif\0", 5) ? 6 : 0;
    struct bytes b = bytes_of(exif + prefix, n - prefix);
    const uint8_t *tiff = bytes_take(&b, 8);
    bool big = tiff && tiff[0] == 'M';
    unsigned value;

    if (!tiff || memcmp(tiff, big ? "MM\0*" : "II*\0", 4) != 0)
        return 1;
    n -= prefix;
    if (load32(tiff + 4, big) > n)
        return 1;
    b = bytes_of(tiff + load32(tiff + 4, big), n - load32(tiff + 4, big));
    value = find_orientation(b, big);
    return value >= 1 && value <= 8 ? value : 1;
}
