/* storage/policy.h - who leaves. Pure: frame numbers in and out, no clock, no I/O, so that trace
 * replay runs the same code. One instance per pool; the same calls give the same victims. */
#ifndef STORAGE_POLICY_H
#define STORAGE_POLICY_H

#include <stdint.h>

#include "base/err.h"
#include "storage/extent.h"

enum hint {
    HINT_SURE,  /* comes next: kept until pinned, unless a pin finds no other frame */
    HINT_GUESS, /* may come: waits for every sure read, takes a cold frame, is not demand */
};

struct policy; /* an implementation's own; it begins with the ops pointer */

struct policy_ops {
    const char *name;
    int (*open)(struct policy **out, unsigned n_frames, uint64_t seed, struct err *e);
    void (*loaded)(struct policy *p, unsigned frame, struct extent at, enum hint kind);
    void (*used)(struct policy *p, unsigned frame); /* pinned again */
    /* One bit per frame that may go, at least one set; returns one of them. */
    unsigned (*victim)(struct policy *p, const uint64_t *free_to_go);
    void (*close)(struct policy *p);
};

struct policy {
    const struct policy_ops *ops;
};

extern const struct policy_ops policy_lfru, policy_lru;

/* NULL when there is none of that name. */
const struct policy_ops *policy_named(const char *name);

#endif
