/* cli/bench/kernel_task.h - calls of model/kernels on the sizes of a real model, ready to be timed.
 *
 * A task is one call: its inputs, how much work it is, and the bytes it must read and the
 * multiply-adds it must do at least, which give its ceilings. With several copies, each has inputs
 * of its own and calls go round them, so that they come from memory and not from a cache.
 */
#ifndef CLI_BENCH_KERNEL_TASK_H
#define CLI_BENCH_KERNEL_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/bench/store.h"
#include "expertfs/record.h"
#include "model/kernels/kernels.h"

struct kernel_shape {
    const char *name;
    uint32_t hidden, expert_cols, expert_rows; /* gate and up: [expert_rows][expert_cols] */
    uint32_t heads, kv_lora, rope, nope, kda_heads, kda_dim;
    uint32_t vocab, n_experts;
};

/* "demo" or a name of expertfs/shapes.h. ERR_ARG lists them. */
int kernel_shape_find(struct kernel_shape *out, const char *name, struct err *e);

struct task {
    char name[96];
    const char *unit;  /* "GB/s": what a second has of `units` */
    double units;      /* per call */
    double fmas;       /* per call, at least; 0: arithmetic is no ceiling */
    size_t read_bytes; /* per call, at least; 0: memory is no ceiling */
    double weights;    /* encoded per call; 0: this is no encoding */
    enum profile profile;
    unsigned copies;
    void (*call)(const struct task *t, const struct kernels *k, unsigned copy);
    /* Before and after the calls of a sample, not timed; may be NULL. */
    void (*begin)(const struct task *t, const struct kernels *k);
    void (*finish)(const struct task *t, const struct kernels *k);
    uint8_t *out; /* copies * out_bytes: what the calls leave, for the digest */
    size_t out_bytes;

    /* for the calls; each uses what it needs */
    uint8_t *data; /* copies * data_bytes: indices, codes, states, keys. read_bytes of each count */
    size_t data_bytes, scale_at; /* scale_at: offset of f16 scales in a copy's data */
    const float *a, *b, *c, *d, *e, *book;
    void *scratch;
    size_t scratch_bytes;
    uint32_t n, T;
    struct rvq_shape rvq;
    struct delta_shape delta;
    struct attend_shape attend;
    struct record_layout layout;
    struct tensor tensor;
    const struct vec_case *vec;
};

/* Bytes of the store that the tasks of this shape need at most. */
size_t task_store_bytes(const struct kernel_shape *s, size_t ram_bytes);

struct task_walk {
    const struct kernel_shape *shape;
    const char *families; /* names separated by commas; NULL: all */
    size_t ram_bytes;     /* that a round of copies reads */
    bool quick;
    unsigned maker, variant; /* the next task; 0 at first */
};

/* The next task, made in the store; false after the last one. */
bool task_next(struct task *out, struct task_walk *w, struct store *s);

/* ERR_ARG: a name that is no family. */
int task_families_check(const char *families, struct err *e);

#endif
