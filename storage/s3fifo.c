/* s3fifo.c - S3-FIFO: a small queue through which every new page passes, so that pages asked for
 * once are gone soon; a main queue for those that were asked for again, and for those that come
 * back soon after they left the small one. Source: Yang et al., "FIFO queues are all you need for
 * cache eviction", SOSP 2023, algorithm 1.
 *
 * Frames that may not go are passed over and stay where they stand. */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "storage/history.h"

enum { SMALL_SHARE = 10, USES_MAX = 3 };

enum queue { SMALL, MAIN, NONE };

struct s3fifo_frame {
    enum queue queue;
    uint8_t uses;          /* since it was put there, at most USES_MAX */
    uint32_t older, newer; /* in its queue */
};

struct s3fifo {
    struct policy policy;
    unsigned n_frames;
    struct history history; /* of as many pages that left as there are frames */
    bool *ghost;            /* [history.n_max] it left from the small queue */
    struct {
        uint32_t oldest, newest;
        unsigned n;
    } queue[2];
    struct s3fifo_frame *frame;
};

static void s3fifo_close(struct policy *p)
{
    struct s3fifo *s = (struct s3fifo *)p;

    if (!s)
        return;
    free(s->frame);
    free(s->ghost);
    history_release(&s->history);
    free(s);
}

static int s3fifo_open(struct policy **out, unsigned n_frames, uint64_t seed,
                       const struct policy_known *known, struct err *e)
{
    struct s3fifo *s = calloc(1, sizeof(*s));

    (void)seed, (void)known;
    if (s) {
        s->ghost = calloc((size_t)n_frames * 2, sizeof(*s->ghost));
        s->frame = calloc(n_frames, sizeof(*s->frame));
    }
    if (!s || !s->ghost || !s->frame || !history_init(&s->history, n_frames, n_frames * 2)) {
        s3fifo_close((struct policy *)s);
        return err_set(e, ERR_NOMEM, "policy s3fifo: %u frames", n_frames);
    }
    s->policy.ops = &policy_s3fifo;
    s->n_frames = n_frames;
    for (enum queue q = SMALL; q <= MAIN; q++)
        s->queue[q].oldest = s->queue[q].newest = NO_FRAME;
    for (unsigned f = 0; f < n_frames; f++)
        s->frame[f].queue = NONE;
    *out = &s->policy;
    return 0;
}

static void take_out(struct s3fifo *s, unsigned f)
{
    struct s3fifo_frame *x = &s->frame[f];
    enum queue q = x->queue;

    if (q == NONE)
        return;
    *(x->older != NO_FRAME ? &s->frame[x->older].newer : &s->queue[q].oldest) = x->newer;
    *(x->newer != NO_FRAME ? &s->frame[x->newer].older : &s->queue[q].newest) = x->older;
    s->queue[q].n--;
    x->queue = NONE;
}

static void put_in(struct s3fifo *s, unsigned f, enum queue q)
{
    struct s3fifo_frame *x = &s->frame[f];

    x->queue = q;
    x->older = s->queue[q].newest;
    x->newer = NO_FRAME;
    *(x->older != NO_FRAME ? &s->frame[x->older].newer : &s->queue[q].oldest) = f;
    s->queue[q].newest = f;
    s->queue[q].n++;
}

static void s3fifo_loaded(struct policy *p, unsigned frame, struct extent at, enum hint kind)
{
    struct s3fifo *s = (struct s3fifo *)p;
    bool is_new;
    uint32_t page = history_loaded(&s->history, frame, at, &is_new);

    (void)kind;
    take_out(s, frame);
    put_in(s, frame, !is_new && s->ghost[page] ? MAIN : SMALL);
    s->frame[frame].uses = 0;
    s->ghost[page] = false;
}

static void s3fifo_used(struct policy *p, unsigned frame)
{
    struct s3fifo_frame *x = &((struct s3fifo *)p)->frame[frame];

    x->uses += x->uses < USES_MAX;
}

static bool may_go(const uint64_t *free_to_go, unsigned f)
{
    return free_to_go[f / 64] >> (f % 64) & 1;
}

/* The oldest page of the small queue that was asked for once at most; those before it that were
 * asked for more often move on to the main queue. */
static unsigned leaves_small(struct s3fifo *s, const uint64_t *free_to_go)
{
    for (unsigned f = s->queue[SMALL].oldest, newer; f != NO_FRAME; f = newer) {
        newer = s->frame[f].newer;
        if (!may_go(free_to_go, f))
            continue;
        if (s->frame[f].uses <= 1) {
            s->ghost[s->history.of_frame[f]] = true;
            return f;
        }
        take_out(s, f);
        put_in(s, f, MAIN);
        s->frame[f].uses = 0;
    }
    return NO_FRAME;
}

/* The oldest page of the main queue not asked for since it last passed; the others go round. */
static unsigned leaves_main(struct s3fifo *s, const uint64_t *free_to_go)
{
    for (unsigned round = 0; round <= USES_MAX; round++) {
        unsigned left = s->queue[MAIN].n;

        for (unsigned f = s->queue[MAIN].oldest, newer; left--; f = newer) {
            newer = s->frame[f].newer;
            if (!may_go(free_to_go, f))
                continue;
            if (!s->frame[f].uses)
                return f;
            s->frame[f].uses--;
            take_out(s, f);
            put_in(s, f, MAIN);
        }
    }
    return NO_FRAME;
}

static unsigned s3fifo_victim(struct policy *p, const uint64_t *free_to_go)
{
    struct s3fifo *s = (struct s3fifo *)p;
    unsigned f = NO_FRAME;

    if (s->queue[SMALL].n * SMALL_SHARE >= s->n_frames)
        f = leaves_small(s, free_to_go);
    if (f == NO_FRAME)
        f = leaves_main(s, free_to_go);
    if (f == NO_FRAME)
        f = leaves_small(s, free_to_go);
    if (f == NO_FRAME) /* they have all just moved on */
        f = leaves_main(s, free_to_go);
    assert(f != NO_FRAME);
    return f;
}

const struct policy_ops policy_s3fifo = {
    .name = "s3fifo",
    .open = s3fifo_open,
    .loaded = s3fifo_loaded,
    .used = s3fifo_used,
    .victim = s3fifo_victim,
    .close = s3fifo_close,
};
