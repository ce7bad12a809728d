/* model/kernels/level.h - one source, a build per instruction set.
 *
 * Every *_c.c here is compiled once plainly, which is the reference, and on x86-64 again with
 * -DKERNEL_LEVEL=avx2 and =avx512 and the matching instruction set; where there is a *_x86.c, or
 * attend_four.c, that takes its place. Level neon is what takes a place on aarch64, and the
 * reference otherwise. A build exports its fill function and nothing else, under a
 * name that ends in the level; all the rest is static, so that no code of a higher level can be
 * linked into a lower one.
 */
#ifndef MODEL_KERNELS_LEVEL_H
#define MODEL_KERNELS_LEVEL_H

#include "model/kernels/kernels.h"

#ifndef KERNEL_LEVEL
#define KERNEL_LEVEL c
#endif
#define LEVEL_JOIN(name, level)   name##_##level
#define LEVEL_EXPAND(name, level) LEVEL_JOIN(name, level)
#define K(name)                   LEVEL_EXPAND(name, KERNEL_LEVEL)

/* Each sets its slots; rvq_fill reads k->profile. */
#define LEVEL_FILLS(level)                                                                         \
    void vec_fill_##level(struct kernels *k);                                                      \
    void gemv_fill_##level(struct kernels *k);                                                     \
    void rvq_fill_##level(struct kernels *k);                                                      \
    void delta_fill_##level(struct kernels *k);                                                    \
    void attend_fill_##level(struct kernels *k);                                                   \
    void assign_fill_##level(struct kernels *k)

LEVEL_FILLS(c);
LEVEL_FILLS(avx2);
LEVEL_FILLS(avx512);
LEVEL_FILLS(neon);

#endif
