/* storage/policy.h - who leaves. Pure: frame numbers in and out, no clock, no I/O, so that trace
 * replay runs the same code. One instance per pool; the same calls give the same victims. Nothing
 * is allocated after open. */
#ifndef STORAGE_POLICY_H
#define STORAGE_POLICY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/extent.h"

enum hint {
    HINT_SURE,  /* comes next: kept until pinned, unless a pin finds no other frame */
    HINT_GUESS, /* may come: waits for every sure read, takes a cold frame, is not demand */
    HINT_WARM,  /* may come some day: of pool_warm and not of pool_hint; takes free frames only */
};

/* What is known of the pages beforehand. All zero: nothing. Borrowed during open. */
struct policy_known {
    unsigned n_pages;      /* there are so many: no more of them need to be remembered. 0 = 8 per
                              frame. At most POLICY_PAGES_MAX, but for the frames, are */
    unsigned n_files;      /* extent.file is below this, or anything with 0 */
    const uint16_t *group; /* [n_files] below n_files. Pages of a group are asked for together, and
                              the groups in turn. NULL: a group is a file */
    const struct extent *future; /* [n_future] what will be asked for; only belady needs to know */
    size_t n_future;
};

enum { POLICY_PAGES_MAX = 1 << 17 };

struct policy; /* an implementation's own; it begins with the ops pointer */

struct policy_ops {
    const char *name;
    int (*open)(struct policy **out, unsigned n_frames, uint64_t seed,
                const struct policy_known *known, struct err *e);
    void (*loaded)(struct policy *p, unsigned frame, struct extent at, enum hint kind);
    void (*used)(struct policy *p, unsigned frame); /* pinned again */
    /* One bit per frame that may go, at least one set; returns one of them. Frames without a page
     * are not among them. */
    unsigned (*victim)(struct policy *p, const uint64_t *free_to_go);
    void (*close)(struct policy *p); /* NULL-safe */
};

struct policy {
    const struct policy_ops *ops;
};

extern const struct policy_ops policy_lfru, policy_nextuse, policy_lru, policy_s3fifo;
/* The optimum, for replay: open needs the future, and policy_named does not know it. */
extern const struct policy_ops policy_belady;

/* Those that a pool can run on; NULL-terminated. */
const struct policy_ops *const *policies(void);

/* NULL when there is none of that name. */
const struct policy_ops *policy_named(const char *name);

#endif
