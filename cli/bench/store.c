#include "cli/bench/store.h"

#include <assert.h>
#include <string.h>

enum { LINE = 64 };

uint64_t random_next(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void *take(struct store *s, size_t bytes)
{
    uint8_t *p = s->base + s->used;

    s->used += (bytes + LINE + LINE - 1) / LINE * LINE;
    assert(s->used <= s->bytes);
    return p;
}

void *store_zeros(struct store *s, size_t bytes)
{
    return memset(take(s, bytes), 0, bytes);
}

uint8_t *store_random(struct store *s, size_t bytes)
{
    uint8_t *p = take(s, bytes);

    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = random_next(&s->seed);

        memcpy(p + at, &word, bytes - at < sizeof(word) ? bytes - at : sizeof(word));
    }
    return p;
}

float *store_floats(struct store *s, size_t n, float lo, float hi)
{
    float *p = take(s, n * sizeof(*p));

    for (size_t i = 0; i < n; i++)
        p[i] = lo + (hi - lo) * ((float)(random_next(&s->seed) >> 40) * 0x1p-24f);
    return p;
}

void fill_scales(struct store *s, uint16_t *scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        scale[i] = (uint16_t)(0x1400 + random_next(&s->seed) % 0x1800);
}
