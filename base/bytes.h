/* base/bytes.h - a bounded little-endian cursor over untrusted bytes.
 *
 * Reads past the end give zero and set `bad`, so a parser may read a whole header and ask once.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    const uint8_t *at, *end;
    bool bad; /* something was read past the end */
};

static inline uint16_t load_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t load_le64(const uint8_t *p)
{
    return load_le32(p) | (uint64_t)load_le32(p + 4) << 32;
}

static inline void store_le16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void store_le32(uint8_t *p, uint32_t v)
{
    store_le16(p, (uint16_t)v);
    store_le16(p + 2, (uint16_t)(v >> 16));
}

static inline void store_le64(uint8_t *p, uint64_t v)
{
    store_le32(p, (uint32_t)v);
    store_le32(p + 4, (uint32_t)(v >> 32));
}

static inline struct bytes bytes_of(const void *p, size_t n)
{
    return (struct bytes){.at = p, .end = (const uint8_t *)p + n};
}

/* The next n bytes, or NULL when fewer are left. */
static inline const uint8_t *bytes_take(struct bytes *b, size_t n)
{
    const uint8_t *p = b->at;

    if ((size_t)(b->end - b->at) < n) {
        b->at = b->end;
        b->bad = true;
        return NULL;
    }
    b->at += n;
    return p;
}

static inline uint8_t bytes_u8(struct bytes *b)
{
    const uint8_t *p = bytes_take(b, 1);

    return p ? *p : 0;
}

static inline uint16_t bytes_u16(struct bytes *b)
{
    const uint8_t *p = bytes_take(b, 2);

    return p ? load_le16(p) : 0;
}

static inline uint32_t bytes_u32(struct bytes *b)
{
    const uint8_t *p = bytes_take(b, 4);

    return p ? load_le32(p) : 0;
}

static inline uint64_t bytes_u64(struct bytes *b)
{
    const uint8_t *p = bytes_take(b, 8);

    return p ? load_le64(p) : 0;
}

#endif
