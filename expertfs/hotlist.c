#include "expertfs/hotlist.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"

enum {
    MAGIC = 0x47535557, /* "WUSG" */
    VERSION = 1,
    HEADER_BYTES = 16,
    ENTRY_BYTES = 16,
    PIECE = 4096,
    FILE_BYTES_MAX = 16 << 20, /* looked at */
};

static size_t n_heats(const struct hotlist *h)
{
    return (size_t)manifest_moe_layers(h->m) * h->m->n_experts;
}

int hotlist_open(struct hotlist *h, const struct manifest *m, struct err *e)
{
    struct hotlist x = {.m = m};

    x.heat = calloc(n_heats(&x) + 1, sizeof(*x.heat));
    if (!x.heat)
        return err_set(e, ERR_NOMEM, "uses of %zu experts", n_heats(&x));
    *h = x;
    return 0;
}

void hotlist_close(struct hotlist *h)
{
    free(h->heat);
    h->heat = NULL;
}

/* As much as there is, up to n; less also after an error. */
static size_t read_some(int fd, uint8_t *to, size_t n, off_t at)
{
    size_t have = 0;

    while (have < n) {
        ssize_t got = pread(fd, to + have, n - have, at + (off_t)have);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    return have;
}

static void take_entry(struct hotlist *h, const uint8_t *p)
{
    unsigned layer = load_le16(p), expert = load_le16(p + 2);
    struct heat *x;

    if (!manifest_is_moe(h->m, layer) || expert >= h->m->n_experts)
        return;
    x = hotlist_of(h, layer, expert);
    if (!x->uses)
        *x = (struct heat){.uses = load_le32(p + 4), .last = load_le32(p + 8)};
}

static bool take_file(struct hotlist *h, int fd)
{
    uint8_t piece[PIECE];
    size_t n = read_some(fd, piece, HEADER_BYTES, 0);
    off_t at = HEADER_BYTES;

    if (n < HEADER_BYTES || load_le32(piece) != MAGIC || load_le32(piece + 4) != VERSION)
        return false;
    h->clock = load_le64(piece + 8);
    do {
        n = read_some(fd, piece, PIECE, at);
        for (size_t i = 0; i + ENTRY_BYTES <= n; i += ENTRY_BYTES)
            take_entry(h, piece + i);
        at += PIECE;
    } while (n == PIECE && at < FILE_BYTES_MAX);
    return true;
}

bool hotlist_read(struct hotlist *h, int dir, const char *path)
{
    int fd = openat(dir, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO must not hold us up */
    struct stat st;
    bool is_one;

    if (fd < 0)
        return false;
    is_one = !fstat(fd, &st) && S_ISREG(st.st_mode) && take_file(h, fd);
    close(fd);
    return is_one;
}

void hotlist_cool(struct hotlist *h)
{
    h->clock = 0;
    memset(h->heat, 0, n_heats(h) * sizeof(*h->heat));
}

void hotlist_merge(struct hotlist *h, const struct hotlist *more)
{
    for (size_t i = 0; i < n_heats(h); i++) {
        struct heat *x = &h->heat[i];
        uint32_t uses = more->heat[i].uses;

        x->uses /= 2;
        if (!uses)
            continue;
        x->uses = uses < UINT32_MAX - x->uses ? x->uses + uses : UINT32_MAX;
        x->last = (uint32_t)(h->clock + more->heat[i].last);
    }
    h->clock += more->clock;
}

static int hotter(const void *a, const void *b)
{
    const struct hot *x = a, *y = b;

    if (x->heat.uses != y->heat.uses)
        return x->heat.uses > y->heat.uses ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

unsigned hotlist_hottest(const struct hotlist *h, unsigned n_max, struct hot **out)
{
    struct hot *hot = malloc((n_heats(h) + 1) * sizeof(*hot));
    unsigned n = 0;

    *out = hot;
    if (!hot)
        return 0;
    for (size_t i = 0; i < n_heats(h); i++)
        if (h->heat[i].uses)
            hot[n++] = (struct hot){.layer = (uint16_t)(h->m->first_dense + i / h->m->n_experts),
                                    .expert = (uint16_t)(i % h->m->n_experts),
                                    .heat = h->heat[i]};
    qsort(hot, n, sizeof(*hot), hotter);
    return n < n_max ? n : n_max;
}

static void put_entry(uint8_t *p, const struct hot *x)
{
    store_le16(p, x->layer);
    store_le16(p + 2, x->expert);
    store_le32(p + 4, x->heat.uses);
    store_le32(p + 8, x->heat.last);
}

int hotlist_write(const struct hotlist *h, unsigned n_max, const struct out_dir *d,
                  const char *name, struct err *e)
{
    struct hot *hot;
    unsigned n = hotlist_hottest(h, n_max, &hot);
    size_t bytes = HEADER_BYTES + (size_t)n * ENTRY_BYTES;
    uint8_t *file = calloc(1, bytes);
    int rc;

    if (!hot || !file) {
        free(file);
        free(hot);
        return err_set(e, ERR_NOMEM, "%s: %u entries", name, n);
    }
    store_le32(file, MAGIC);
    store_le32(file + 4, VERSION);
    store_le64(file + 8, h->clock);
    for (unsigned i = 0; i < n; i++)
        put_entry(file + HEADER_BYTES + (size_t)i * ENTRY_BYTES, &hot[i]);
    rc = out_file(d, name, file, bytes, e);
    free(file);
    free(hot);
    return rc;
}
