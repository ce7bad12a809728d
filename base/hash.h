/* base/hash.h - FNV-1a of 64 bits: for tables and for names, where nobody is an adversary. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* The published function takes bytes; larger words are a step each here, which is faster and still
 * tells them apart. */
static inline uint64_t hash_step(uint64_t h, uint64_t word)
{
    return (h ^ word) * UINT64_C(0x100000001b3);
}

static inline uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n; i++)
        h = hash_step(h, b[i]);
    return h;
}

#endif
