#include "storage/pool.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/frames.h"
#include "storage/io.h"
#include "storage/page_index.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { REAP_BATCH = 32, EVICTED = 0xa5 };

enum state { FREE, LOADING, READY, FAILED };

struct frame {
    struct io_read read; /* first, so that a completion leads back here; read.at is the page */
    enum state state;
    uint32_t pins;
    unsigned retries; /* left for this read */
    bool guessed;     /* a guess made us read it */
    bool warm;        /* that guess was pool_warm */
    bool fresh;       /* not pinned since it was read */
    bool forgotten;   /* dropped under another pin: out of the index, leaves with the last pin */
    bool on_trial;    /* a guess, and its hint still stands */
    uint64_t ahead;   /* the sure hint it was read for, until it is pinned */
};

/* Frame sets, one bit per frame. The first two follow from the frames' states and are kept so
 * that finding a frame is a few word operations. */
enum set {
    IS_FREE,
    IS_IDLE, /* READY and not pinned */
    IS_LOADING,
    IS_WANTED, /* a sure hint or a pin waits for it */
    IS_RECENT, /* pinned since the last sure hint */
    IS_ASKED,  /* on the last guess list */
    MAY_GO,    /* scratch */
    SETS
};

struct wishes { /* what a hint asked for; [next, n) is not yet started */
    unsigned next, n;
    struct extent *want; /* [POOL_HINT_MAX]; of pool_warm, [frames at open] */
};

/* How hard a read tries to get a frame. */
enum claim {
    CLAIM_WARM,  /* takes no page */
    CLAIM_GUESS, /* takes no page that is, was lately, or may soon be in demand */
    CLAIM_SURE,  /* takes no page that is about to be; one that may soon be if there is no other */
    CLAIM_PIN,   /* the same, or else any that is not pinned */
};

struct pool {
    struct io *io;
    struct frames *frames;
    struct policy *policy;
    unsigned depth, in_flight;
    unsigned retries; /* of a read */
    unsigned n;       /* frames */
    struct frame *frame;
    unsigned words;
    uint64_t *set[SETS];
    struct page_index index; /* of the pages that a pin may find */
    struct io_read **batch;  /* [depth] loads about to be submitted */
    unsigned n_batch;
    unsigned n_failed;
    struct wishes sure, guess, warm;
    uint64_t n_hints;          /* sure ones */
    unsigned n_sure, n_ahead;  /* of the last one: pages named; read or begun and not pinned */
    unsigned n_begun;          /* reads for the current guess list, and warm ones beside it */
    unsigned guess_max;        /* most of them */
    unsigned n_tried, n_right; /* guesses since the last verdict */
    uint64_t n_refused;        /* since guesses are refused; 0: they are not */
    uint64_t flight_from_ns;   /* since when there are reads in flight, if there are any */
    struct pool_stats stats;
};

static bool set_has(const struct pool *p, enum set s, unsigned f)
{
    return p->set[s][f / 64] >> (f % 64) & 1;
}

static void set_put(struct pool *p, enum set s, unsigned f, bool in)
{
    uint64_t bit = UINT64_C(1) << (f % 64);

    if (in)
        p->set[s][f / 64] |= bit;
    else
        p->set[s][f / 64] &= ~bit;
}

static void set_clear(struct pool *p, enum set s)
{
    memset(p->set[s], 0, p->words * sizeof(uint64_t));
}

static unsigned set_first(const struct pool *p, enum set s)
{
    for (unsigned w = 0; w < p->words; w++)
        if (p->set[s][w])
            return w * 64 + (unsigned)__builtin_ctzll(p->set[s][w]);
    return NO_FRAME;
}

/* Under AddressSanitizer the bytes of a page can be touched while it is loaded or pinned only. */
static void open_bytes(struct pool *p, unsigned f)
{
    ASAN_UNPOISON_MEMORY_REGION(frame_at(p->frames, f), p->frame[f].read.at.length);
}

static void shut_bytes(struct pool *p, unsigned f)
{
    ASAN_POISON_MEMORY_REGION(frame_at(p->frames, f), p->frames->frame_bytes);
}

/* Debug builds make a page that is used after it left look like nothing. */
static void spoil_bytes(struct pool *p, unsigned f)
{
#ifndef NDEBUG
    open_bytes(p, f);
    memset(frame_at(p->frames, f), EVICTED, p->frame[f].read.at.length);
#else
    (void)p, (void)f;
#endif
}

static uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The verdict on one guess, and from time to time on guessing. */
static void end_trial(struct pool *p, struct frame *x, bool right)
{
    if (!x->on_trial)
        return;
    x->on_trial = false;
    p->n_right += right;
    if (++p->n_tried < POOL_TRIAL)
        return;
    p->n_refused = p->n_right < POOL_TRIAL / 4;
    p->n_tried = p->n_right = 0;
}

static void not_ahead(struct pool *p, struct frame *x)
{
    p->n_ahead -= x->ahead && x->ahead == p->n_hints;
    x->ahead = 0;
}

/* The only place where a frame's state changes. */
static void frame_becomes(struct pool *p, unsigned f, enum state to)
{
    struct frame *x = &p->frame[f];
    enum state from = x->state;

    assert(!x->pins);
    assert(to == LOADING ? from == FREE : to == FREE ? from != FREE : from == LOADING);
    x->state = to;
    p->n_failed += (to == FAILED) - (from == FAILED);
    set_put(p, IS_FREE, f, to == FREE);
    set_put(p, IS_IDLE, f, to == READY);
    set_put(p, IS_LOADING, f, to == LOADING);
    if (to == LOADING) {
        page_index_add(&p->index, x->read.at, f);
        open_bytes(p, f);
        return;
    }
    if (to == FREE) {
        not_ahead(p, x);
        if (from == READY) {
            p->stats.wasted += x->guessed && x->fresh;
            end_trial(p, x, false);
        }
        x->on_trial = false;
        if (!x->forgotten)
            page_index_remove(&p->index, x->read.at);
        x->forgotten = false;
        set_put(p, IS_WANTED, f, false);
        set_put(p, IS_RECENT, f, false);
        set_put(p, IS_ASKED, f, false);
        if (from == READY)
            spoil_bytes(p, f);
    }
    shut_bytes(p, f);
}

/* Idle frames but for these: into MAY_GO, and whether there are any. */
static bool idle_but(struct pool *p, const enum set *spared, unsigned n)
{
    uint64_t any = 0;

    for (unsigned w = 0; w < p->words; w++) {
        uint64_t may = p->set[IS_IDLE][w];

        for (unsigned i = 0; i < n; i++)
            may &= ~p->set[spared[i]][w];
        any |= p->set[MAY_GO][w] = may;
    }
    return any;
}

/* Which frames may be emptied for this claim, into MAY_GO. */
static bool find_victims(struct pool *p, enum claim how)
{
    static const enum set spared[] = {IS_WANTED, IS_ASKED, IS_RECENT};

    if (how == CLAIM_GUESS)
        return idle_but(p, spared, 3);
    return idle_but(p, spared, 2) || idle_but(p, spared, 1) ||
           (how == CLAIM_PIN && idle_but(p, spared, 0));
}

/* A frame to load into, emptied; NO_FRAME if there is none to be had that way. */
static unsigned claim(struct pool *p, enum claim how)
{
    unsigned f = set_first(p, IS_FREE);

    if (f != NO_FRAME)
        return f;
    if (how == CLAIM_WARM)
        return NO_FRAME;
    if (find_victims(p, how)) {
        f = p->policy->ops->victim(p->policy, p->set[MAY_GO]);
        assert(set_has(p, MAY_GO, f));
        p->stats.evictions++;
    } else if (how == CLAIM_PIN && p->n_failed) {
        for (f = 0; p->frame[f].state != FAILED; f++)
            ;
    } else {
        return NO_FRAME;
    }
    frame_becomes(p, f, FREE);
    return f;
}

/* Begin to load a page that is not in memory; submit_batch hands it to the engine. */
static bool load(struct pool *p, struct extent at, enum claim how)
{
    enum hint kind = how == CLAIM_WARM ? HINT_WARM : how == CLAIM_GUESS ? HINT_GUESS : HINT_SURE;
    unsigned f = claim(p, how);
    struct frame *x;

    if (f == NO_FRAME)
        return false;
    x = &p->frame[f];
    x->read = (struct io_read){.at = at, .dst = frame_at(p->frames, f)};
    x->guessed = kind != HINT_SURE;
    x->on_trial = how == CLAIM_GUESS;
    x->warm = how == CLAIM_WARM;
    x->fresh = true;
    x->retries = p->retries;
    p->n_begun += how == CLAIM_GUESS || (how == CLAIM_WARM && p->n_hints);
    if (kind == HINT_SURE) {
        x->ahead = p->n_hints;
        p->n_ahead += p->n_hints != 0;
    }
    frame_becomes(p, f, LOADING);
    set_put(p, x->guessed ? IS_ASKED : IS_WANTED, f, true);
    p->policy->ops->loaded(p->policy, f, at, kind);
    p->batch[p->n_batch++] = &x->read;
    return true;
}

static bool queue_has_room(const struct pool *p)
{
    return p->in_flight + p->n_batch < p->depth;
}

static unsigned frame_of(const struct pool *p, const struct io_read *r)
{
    return (unsigned)((const struct frame *)r - p->frame);
}

/* Returns false when the engine did not take all of them. Those are as if they had never been
 * asked for; the first of them is left in batch[0]. */
static bool submit_batch(struct pool *p)
{
    unsigned n = p->n_batch, taken = 0;

    p->n_batch = 0;
    if (n)
        taken = p->io->ops->submit(p->io, p->batch, n);
    if (taken && !p->in_flight)
        p->flight_from_ns = clock_ns();
    p->in_flight += taken;
    for (unsigned i = taken; i < n; i++)
        frame_becomes(p, frame_of(p, p->batch[i]), FREE);
    if (taken < n)
        p->batch[0] = p->batch[taken];
    return taken == n;
}

/* Pages that a sure hint may have in frames before they are pinned. */
static unsigned ahead_max(const struct pool *p)
{
    unsigned share = p->n / 8, queue = 4 * p->depth;

    if (p->n_sure <= p->n / 4)
        return p->n;
    return share > queue ? share : queue;
}

/* May one more read be begun for this reason? Half of the queue is kept for whoever comes while
 * pages are warmed. */
static bool may_begin(const struct pool *p, enum claim how)
{
    if (!queue_has_room(p))
        return false;
    if (how == CLAIM_SURE)
        return p->n_ahead < ahead_max(p);
    return p->n_begun < p->guess_max &&
           (how == CLAIM_GUESS || p->in_flight + p->n_batch < (p->depth + 1) / 2);
}

static void start_wishes(struct pool *p, struct wishes *w, enum claim how)
{
    while (w->next < w->n && may_begin(p, how)) {
        unsigned f = page_index_find(&p->index, w->want[w->next]);

        if (f != NO_FRAME && how != CLAIM_WARM)
            set_put(p, how == CLAIM_GUESS ? IS_ASKED : IS_WANTED, f, true);
        else if (f == NO_FRAME && !load(p, w->want[w->next], how))
            break;
        w->next++;
    }
    if (submit_batch(p))
        return;
    do
        w->next--;
    while (!extent_equal(w->want[w->next], p->batch[0]->at));
}

/* Frames that are in both. */
static unsigned set_count(const struct pool *p, enum set a, enum set b)
{
    unsigned n = 0;

    for (unsigned w = 0; w < p->words; w++)
        n += (unsigned)__builtin_popcountll(p->set[a][w] & p->set[b][w]);
    return n;
}

static bool all_started(const struct wishes *w)
{
    return w->next == w->n;
}

/* Every sure wish that can start, and when they have all arrived, guesses: before, a guess would
 * take its share of the drive from what somebody waits for. Last, what is merely warmed. */
static void pump(struct pool *p)
{
    start_wishes(p, &p->sure, CLAIM_SURE);
    if (!all_started(&p->sure) || (all_started(&p->guess) && all_started(&p->warm)) ||
        set_count(p, IS_LOADING, IS_WANTED))
        return;
    start_wishes(p, &p->guess, CLAIM_GUESS);
    if (!all_started(&p->guess))
        return;
    if (set_first(p, IS_FREE) == NO_FRAME)
        p->warm.n = p->warm.next; /* over for good */
    start_wishes(p, &p->warm, CLAIM_WARM);
}

/* A read that failed, begun again in its frame? Not what cannot change: a file that ends. */
static bool retry(struct pool *p, struct frame *x)
{
    struct io_read *r = &x->read;
    int status = r->status;

    if (status == -ENODATA || !x->retries)
        return false;
    x->retries--;
    r->status = 0;
    if (p->io->ops->submit(p->io, &r, 1)) {
        p->stats.retries++;
        return true;
    }
    r->status = status;
    return false;
}

/* A guess that fails has cost nothing yet: whoever needs the page reads it again. True: it goes on.
 */
static bool failed(struct pool *p, unsigned f)
{
    bool wanted = set_has(p, IS_WANTED, f);

    if (wanted && retry(p, &p->frame[f]))
        return true;
    p->stats.failed += wanted;
    frame_becomes(p, f, wanted ? FAILED : FREE);
    return false;
}

static void landed(struct pool *p, struct io_read *r)
{
    unsigned f = frame_of(p, r);
    struct frame *x = &p->frame[f];

    if (r->status && failed(p, f))
        return;
    if (!--p->in_flight)
        p->stats.flight_ns += clock_ns() - p->flight_from_ns;
    if (r->status)
        return;
    p->stats.bytes += r->at.length;
    if (x->guessed) {
        p->stats.bytes_guess += r->at.length;
        p->stats.guesses++;
        p->stats.warm += p->frame[f].warm;
    }
    frame_becomes(p, f, READY);
}

static void collect(struct pool *p, bool wait)
{
    struct io_read *done[REAP_BATCH];
    unsigned n;

    do {
        n = p->in_flight ? p->io->ops->reap(p->io, done, REAP_BATCH, wait) : 0;
        for (unsigned i = 0; i < n; i++)
            landed(p, done[i]);
        wait = false;
    } while (n == REAP_BATCH);
}

static void collect_timed(struct pool *p)
{
    uint64_t from = clock_ns();

    if (!p->in_flight)
        return;
    collect(p, true);
    p->stats.wait_ns += clock_ns() - from;
}

static bool pool_alloc(struct pool *p)
{
    p->words = (p->n + 63) / 64;
    p->frame = calloc(p->n, sizeof(*p->frame));
    p->batch = calloc(p->depth, sizeof(struct io_read *));
    p->set[0] = calloc((size_t)p->words * SETS, sizeof(uint64_t));
    p->sure.want = calloc(POOL_HINT_MAX, sizeof(*p->sure.want));
    p->guess.want = calloc(POOL_HINT_MAX, sizeof(*p->guess.want));
    p->warm.want = calloc(p->n, sizeof(*p->warm.want));
    if (!page_index_init(&p->index, p->n) || !p->frame || !p->batch || !p->set[0] ||
        !p->sure.want || !p->guess.want || !p->warm.want)
        return false;
    for (unsigned s = 1; s < SETS; s++)
        p->set[s] = p->set[0] + (size_t)s * p->words;
    return true;
}

static void pool_free(struct pool *p)
{
    if (p->policy)
        p->policy->ops->close(p->policy);
    free(p->warm.want);
    free(p->guess.want);
    free(p->sure.want);
    free(p->set[0]);
    free(p->batch);
    page_index_release(&p->index);
    free(p->frame);
    free(p);
}

int pool_open(struct pool **out, const struct pool_config *cfg, struct err *e)
{
    struct pool *p;

    if (!cfg->frames->n || !cfg->depth)
        return err_set(e, ERR_ARG, "a pool of %u frames with %u reads in flight", cfg->frames->n,
                       cfg->depth);
    p = calloc(1, sizeof(*p));
    if (!p)
        return err_set(e, ERR_NOMEM, "pool of %u frames", cfg->frames->n);
    p->io = cfg->io;
    p->frames = cfg->frames;
    p->depth = cfg->depth;
    p->retries = cfg->retries;
    p->n = cfg->frames->n;
    p->guess_max = cfg->depth;
    if (!pool_alloc(p)) {
        pool_free(p);
        return err_set(e, ERR_NOMEM, "pool of %u frames", cfg->frames->n);
    }
    if (cfg->policy->open(&p->policy, p->n, cfg->seed, &cfg->known, e)) {
        pool_free(p);
        return err_wrap(e, "pool of %u frames", cfg->frames->n);
    }
    for (unsigned f = 0; f < p->n; f++) {
        set_put(p, IS_FREE, f, true);
        shut_bytes(p, f);
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    while (p->in_flight)
        collect(p, true);
    for (unsigned f = 0; f < p->n; f++)
        assert(!p->frame[f].pins);
    ASAN_UNPOISON_MEMORY_REGION(p->frames->base, p->frames->frame_bytes * p->n);
    pool_free(p);
}

/* As many guesses are begun as come in before the sure hint that shows whether they were right,
 * and one more: what is still on its way then may be wrong, and in the way. */
static void pace_guesses(struct pool *p)
{
    unsigned unfinished = set_count(p, IS_LOADING, IS_ASKED);

    if (!p->n_begun)
        return;
    if (unfinished > 1)
        p->guess_max = p->n_begun > unfinished ? p->n_begun - unfinished + 1 : 1;
    else if (!unfinished && p->n_begun >= p->guess_max)
        p->guess_max = p->n_begun + 1;
    p->n_begun = 0;
}

static void hint_sure(struct pool *p, const struct extent *want, unsigned n)
{
    pace_guesses(p);
    set_clear(p, IS_WANTED);
    set_clear(p, IS_RECENT);
    p->sure.next = p->sure.n = 0;
    p->guess.next = p->guess.n = 0;
    p->n_hints++;
    p->n_sure = n;
    p->n_ahead = 0;
    for (unsigned f = 0; p->n_failed && f < p->n; f++)
        if (p->frame[f].state == FAILED)
            frame_becomes(p, f, FREE); /* nobody asked how it went; if somebody will, read again */
    for (unsigned i = 0; i < n; i++) {
        unsigned f = page_index_find(&p->index, want[i]);

        if (f != NO_FRAME)
            set_put(p, IS_WANTED, f, true);
        else if (p->sure.n < POOL_HINT_MAX && want[i].length <= p->frames->frame_bytes)
            p->sure.want[p->sure.n++] = want[i];
    }
}

/* Of the guess list before this one, in `before`: which that it had read were right? */
static void judge_guesses(struct pool *p, enum set before)
{
    for (unsigned w = 0; w < p->words; w++)
        for (uint64_t bits = p->set[before][w] & ~p->set[IS_ASKED][w]; bits; bits &= bits - 1) {
            unsigned f = w * 64 + (unsigned)__builtin_ctzll(bits);

            end_trial(p, &p->frame[f], !p->frame[f].fresh || set_has(p, IS_WANTED, f));
        }
}

static bool refuse_guesses(struct pool *p, unsigned n)
{
    if (!p->n_refused)
        return false;
    p->stats.refused += n;
    p->n_refused += n;
    if (p->n_refused > POOL_REFUSED) {
        p->n_refused = 0;
        p->n_tried = POOL_TRIAL / 2; /* a short trial: it needs a quarter of the whole */
    }
    return true;
}

static void hint_guess(struct pool *p, const struct extent *want, unsigned n)
{
    p->n_begun = 0;
    memcpy(p->set[MAY_GO], p->set[IS_ASKED], p->words * sizeof(uint64_t));
    set_clear(p, IS_ASKED);
    p->guess.next = p->guess.n = 0;
    if (refuse_guesses(p, n))
        n = 0;
    for (unsigned i = 0; i < n && p->guess.n < POOL_HINT_MAX; i++) {
        unsigned f = page_index_find(&p->index, want[i]);

        if (f != NO_FRAME)
            set_put(p, IS_ASKED, f, true);
        else if (want[i].length <= p->frames->frame_bytes)
            p->guess.want[p->guess.n++] = want[i];
    }
    judge_guesses(p, MAY_GO);
}

void pool_hint(struct pool *p, const struct extent *want, unsigned n, enum hint kind)
{
    assert(kind != HINT_WARM);
    collect(p, false);
    if (kind == HINT_SURE)
        hint_sure(p, want, n);
    else
        hint_guess(p, want, n);
    pump(p);
}

unsigned pool_warm(struct pool *p, const struct extent *want, unsigned n)
{
    p->warm.next = p->warm.n = 0;
    for (unsigned i = 0; i < n && p->warm.n < p->n; i++)
        if (want[i].length <= p->frames->frame_bytes)
            p->warm.want[p->warm.n++] = want[i];
    return p->warm.n;
}

bool pool_idle(struct pool *p)
{
    pump(p);
    if (!p->in_flight)
        return false;
    collect(p, true);
    return true;
}

/* The wish for this page is fulfilled. */
static void forget_wish(struct pool *p, struct extent at)
{
    struct wishes *w = &p->sure;
    unsigned kept = w->next;

    for (unsigned i = w->next; i < w->n; i++)
        if (!extent_equal(w->want[i], at))
            w->want[kept++] = w->want[i];
    w->n = kept;
}

static void pin_frame(struct pool *p, unsigned f, bool waited, struct page *out)
{
    struct frame *x = &p->frame[f];

    if (!x->pins++) {
        set_put(p, IS_IDLE, f, false);
        open_bytes(p, f);
    }
    if (!x->fresh) {
        p->stats.hits_resident++;
    } else if (x->guessed) {
        p->stats.hits_guess++;
        p->stats.hits_warm += x->warm;
        p->stats.late_guess += waited;
    } else {
        p->stats.misses++;
        p->stats.late_miss += waited;
    }
    not_ahead(p, x);
    if (!x->fresh || x->guessed) /* a demanded page was counted by its load */
        p->policy->ops->used(p->policy, f);
    set_put(p, IS_WANTED, f, false);
    set_put(p, IS_RECENT, f, true);
    forget_wish(p, x->read.at);
    *out = (struct page){
        .bytes = x->read.dst, .frame = f, .fresh = x->fresh, .guessed = x->fresh && x->guessed};
    x->fresh = false;
}

static int report_failure(struct pool *p, unsigned f, struct err *e)
{
    struct io_read r = p->frame[f].read;

    frame_becomes(p, f, FREE);
    forget_wish(p, r.at);
    if (r.status == -ENODATA)
        return err_set(e, ERR_IO,
                       "read of %" PRIu32 " bytes at %" PRIu64
                       ": the file ended before byte %" PRIu64,
                       r.at.length, r.at.offset, r.at.offset + r.at.length);
    return err_sys(e, -r.status, "read of %" PRIu32 " bytes at %" PRIu64, r.at.length, r.at.offset);
}

/* The first of n pages that is in that state; NO_FRAME, or its frame and *which. */
static unsigned first_in_state(const struct pool *p, const struct extent *want, unsigned n,
                               enum state state, unsigned *which)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned f = page_index_find(&p->index, want[i]);

        if (f != NO_FRAME && p->frame[f].state == state) {
            *which = i;
            return f;
        }
    }
    return NO_FRAME;
}

/* None of the n pages is in memory: start reading them, before anything that was merely hinted.
 * With nothing on the way at all, one of them may take a frame that a sure hint was given.
 * ERR_BUSY: there is no frame, and no read whose end would make one. */
static int demand(struct pool *p, const struct extent *want, unsigned n, struct err *e)
{
    unsigned coming = 0;

    for (unsigned i = 0; i < n; i++) {
        unsigned f = page_index_find(&p->index, want[i]);

        if (f != NO_FRAME)
            set_put(p, IS_WANTED, f, true); /* perhaps a guess so far */
        else if (!queue_has_room(p) || !load(p, want[i], CLAIM_SURE))
            continue;
        coming++;
    }
    if (!coming && queue_has_room(p) && !load(p, want[0], CLAIM_PIN) && !p->in_flight)
        return err_set(e, ERR_BUSY, "all %u frames are pinned", p->n);
    if (!submit_batch(p) && !p->in_flight)
        return err_set(e, ERR_IO, "the %s engine takes no reads", p->io->ops->name);
    return 0;
}

static bool all_begun(const struct pool *p, const struct extent *want, unsigned n)
{
    while (n && page_index_find(&p->index, want[n - 1]) != NO_FRAME)
        n--;
    return !n;
}

int pool_pin_any(struct pool *p, const struct extent *want, unsigned n, unsigned *which,
                 struct page *out, struct err *e)
{
    bool waited = false;
    unsigned f;

    assert(n);
    for (unsigned i = 0; i < n; i++)
        if (want[i].length > p->frames->frame_bytes)
            return err_set(e, ERR_ARG, "a page of %" PRIu32 " bytes: frames hold %zu",
                           want[i].length, p->frames->frame_bytes);
    collect(p, false);
    for (;;) {
        f = first_in_state(p, want, n, READY, which);
        if (f != NO_FRAME) {
            pin_frame(p, f, waited, out);
            pump(p); /* keep the disk busy while the caller computes */
            return 0;
        }
        f = first_in_state(p, want, n, FAILED, which);
        if (f != NO_FRAME)
            return report_failure(p, f, e);
        if (demand(p, want, n, e))
            return e->code;
        if (all_begun(p, want, n))
            pump(p);
        collect_timed(p);
        waited = true;
    }
}

int pool_pin(struct pool *p, struct extent at, struct page *out, struct err *e)
{
    unsigned which;

    return pool_pin_any(p, &at, 1, &which, out, e);
}

/* Give one pin back; true when it was the last. */
static bool unpin(struct pool *p, unsigned f)
{
    struct frame *x = &p->frame[f];

    assert(f < p->n && x->state == READY && x->pins);
    if (--x->pins)
        return false;
    set_put(p, IS_IDLE, f, true);
    set_put(p, IS_RECENT, f, true); /* also when a sure hint came while it was pinned */
    if (x->forgotten)
        frame_becomes(p, f, FREE);
    else
        shut_bytes(p, f);
    return true;
}

/* A frame may have become available. */
static void after_unpin(struct pool *p)
{
    if (all_started(&p->sure) && all_started(&p->guess) && all_started(&p->warm))
        return;
    collect(p, false);
    pump(p);
}

void pool_unpin(struct pool *p, struct page *page)
{
    unpin(p, page->frame);
    page->bytes = NULL;
    after_unpin(p);
}

void pool_drop(struct pool *p, struct page *page)
{
    unsigned f = page->frame;
    struct frame *x = &p->frame[f];

    p->stats.dropped++;
    if (!x->forgotten) {
        x->forgotten = true;
        page_index_remove(&p->index, x->read.at);
    }
    unpin(p, f);
    page->bytes = NULL;
    after_unpin(p);
}

/* Empty a frame whose page nobody holds; false if somebody does. May wait for its read. */
static bool vacate(struct pool *p, unsigned f)
{
    struct frame *x = &p->frame[f];

    while (x->state == LOADING)
        collect(p, true);
    if (x->pins)
        return false;
    if (x->state != FREE)
        frame_becomes(p, f, FREE);
    return true;
}

size_t pool_trim(struct pool *p, size_t bytes, unsigned keep)
{
    size_t frame_bytes = p->frames->frame_bytes;
    unsigned gone = 0;

    if (!keep)
        keep = 1;
    while ((gone + 1) * frame_bytes <= bytes && p->n > keep && vacate(p, p->n - 1)) {
        p->n--;
        gone++;
        set_put(p, IS_FREE, p->n, false);
    }
    if (!gone)
        return 0;
    if (p->io->ops->shrink)
        p->io->ops->shrink(p->io, frame_bytes * p->n);
    ASAN_UNPOISON_MEMORY_REGION(frame_at(p->frames, p->n), frame_bytes * gone);
    frames_give_back(p->frames, gone);
    return frame_bytes * gone;
}

void pool_purge(struct pool *p)
{
    p->sure.next = p->sure.n = 0;
    p->guess.next = p->guess.n = 0;
    p->warm.next = p->warm.n = 0;
    for (unsigned f = 0; f < p->n; f++)
        vacate(p, f);
    set_clear(p, IS_WANTED);
    set_clear(p, IS_RECENT);
    set_clear(p, IS_ASKED);
}

enum pool_has pool_has(const struct pool *p, struct extent at)
{
    unsigned f = page_index_find(&p->index, at);

    if (f == NO_FRAME || (p->frame[f].state != LOADING && p->frame[f].state != READY))
        return POOL_ABSENT;
    return p->frame[f].state == READY ? POOL_RESIDENT : POOL_READING;
}

void pool_get_stats(const struct pool *p, struct pool_stats *out)
{
    *out = p->stats;
    if (p->in_flight)
        out->flight_ns += clock_ns() - p->flight_from_ns;
}

unsigned pool_frames(const struct pool *p)
{
    return p->n;
}
