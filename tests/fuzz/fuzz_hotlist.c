/* tests/fuzz/fuzz_hotlist.c - the input as a usage.waste: whatever it says, the list names experts
 * that there are, each once and in order, and survives a merge. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "expertfs/hotlist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_order(const struct hotlist *h, unsigned n_max)
{
    struct hot *hot;
    unsigned n = hotlist_hottest(h, n_max, &hot);

    require(hot && n <= n_max);
    for (unsigned i = 0; i < n; i++) {
        const struct hot *x = &hot[i], *before = &hot[i - (i > 0)];

        require(manifest_is_moe(h->m, x->layer) && x->expert < h->m->n_experts && x->heat.uses);
        require(!i || before->heat.uses > x->heat.uses ||
                (before->heat.uses == x->heat.uses &&
                 (before->layer < x->layer ||
                  (before->layer == x->layer && before->expert < x->expert))));
    }
    free(hot);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct manifest m = {.n_layers = 5, .first_dense = 2, .n_experts = 7};
    struct hotlist h, more;
    char path[32];
    struct err e;
    int fd = memfd_create("usage", MFD_CLOEXEC);

    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    require(!hotlist_open(&h, &m, &e) && !hotlist_open(&more, &m, &e));
    require(hotlist_read(&h, AT_FDCWD, path) || !h.clock);
    check_order(&h, 21);
    check_order(&h, 3);
    for (unsigned i = 0; i < 21; i++)
        hotlist_use(&more, 2 + i % 3, i / 3);
    hotlist_merge(&h, &more);
    for (unsigned i = 0; i < 21; i++)
        require(hotlist_of(&h, 2 + i % 3, i / 3)->uses);
    check_order(&h, 21);
    hotlist_close(&more);
    hotlist_close(&h);
    close(fd);
    return 0;
}
