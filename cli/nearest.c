#include "cli/nearest.h"

#include <stddef.h>
#include <string.h>

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;

    return m < c ? m : c;
}

enum { NAME_MAX_BYTES = 40 };

/* Levenshtein's distance, over the first NAME_MAX_BYTES bytes. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[NAME_MAX_BYTES + 1];
    size_t la = strnlen(a, NAME_MAX_BYTES), lb = strnlen(b, NAME_MAX_BYTES);

    for (unsigned j = 0; j <= lb; j++)
        row[j] = j;
    for (unsigned i = 1; i <= la; i++) {
        unsigned diagonal = row[0];

        row[0] = i;
        for (unsigned j = 1; j <= lb; j++) {
            unsigned up = row[j];

            row[j] = min3(up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = up;
        }
    }
    return row[lb];
}

const char *nearest_name(const char *name, const char *const *names, unsigned n)
{
    const char *best = NULL;
    unsigned len = (unsigned)strnlen(name, NAME_MAX_BYTES);
    unsigned best_distance = 0, most = 1 + len / 4;

    for (unsigned i = 0; i < n; i++) {
        unsigned d = distance(name, names[i]);

        if (d <= most && d < len && (!best || d < best_distance)) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}
