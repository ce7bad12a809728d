/* storage/pool.h - the frame pool: a fixed set of frames that hold pages.
 *
 * A pinned page stays where it is; an unpinned one may be evicted by any later call. Frames are
 * allocated once, at open. One thread owns the pool and makes every call here; other threads may
 * read a pinned page's bytes and do nothing else. The extent is the key. Demand reads always go to
 * the engine before speculative ones; speculative reads never evict a pinned page, one that a sure
 * hint waits for, or one in demand since the last sure hint.
 *
 *     FREE --load--> LOADING --reap--> READY --evict--> FREE       pins > 0 only when READY
 *                       '------reap--> FAILED --pin reports it--> FREE
 */
#ifndef STORAGE_POOL_H
#define STORAGE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/extent.h"
#include "storage/policy.h"

struct frames;
struct io;
struct pool;

enum {
    POOL_HINT_MAX = 1024, /* wishes kept of one kind; later ones are dropped */
    POOL_TRIAL = 128,
    POOL_REFUSED = 4096,
};

/* Retries of a read that most engines' owners want: a glitch on the way passes at once; of what the
 * drive itself gave up on after its own attempts, a third one will not make more. */
enum { POOL_RETRIES = 2 };

struct pool_config {
    struct io *io;         /* borrowed; depth as below; arena: the frames, or NULL */
    struct frames *frames; /* borrowed; at least 1 frame */
    const struct policy_ops *policy;
    unsigned depth;   /* most reads in flight, as given to the engine */
    unsigned retries; /* of a demanded read that failed, at once; POOL_RETRIES, or 0 for none */
    uint64_t seed;    /* of the policy */
    struct policy_known known; /* for the policy; all zero where nothing is */
};

/* Counters since open. Every pin is in one of the first three; every guess that was read is a hit,
 * wasted, or still in memory and not pinned. */
struct pool_stats {
    uint64_t hits_resident; /* pins of a page that was in memory, and already demanded before */
    uint64_t hits_guess;    /* first pins of a page that a guess had read or begun to read */
    uint64_t misses;        /* first pins of a page read because it was demanded */
    uint64_t late_guess;    /* of hits_guess: the pin had to wait for the rest of the read */
    uint64_t late_miss;   /* of misses: the same; the others were read in time after a sure hint */
    uint64_t guesses;     /* reads that completed and were begun for a guess */
    uint64_t wasted;      /* of those, pages that left without a pin */
    uint64_t warm;        /* of guesses: those of pool_warm */
    uint64_t hits_warm;   /* of hits_guess: of pages that pool_warm had read or begun to read */
    uint64_t refused;     /* guesses not wanted while guessing was found useless */
    uint64_t bytes;       /* completed reads, guesses included */
    uint64_t bytes_guess; /* of those, read for guesses */
    uint64_t wait_ns;     /* exposed: time pins spent waiting for completions */
    uint64_t flight_ns;   /* time with reads in flight, as our calls saw it; less wait_ns: hidden */
    uint64_t evictions;
    uint64_t retries; /* reads begun again because they had failed */
    uint64_t failed;  /* demanded reads that failed for good */
    uint64_t dropped; /* pages that came with bad bytes: pool_drop */
};

struct page {             /* a pin; give it back exactly once */
    const uint8_t *bytes; /* extent.length bytes, IO_ALIGN-aligned */
    uint32_t frame;
    bool fresh;   /* first pin since these bytes came from disk: check them now */
    bool guessed; /* fresh, and a guess had begun the read */
};

int pool_open(struct pool **out, const struct pool_config *cfg, struct err *e);
void pool_close(struct pool *p); /* waits for reads in flight; NULL-safe; nothing may be pinned */

/* Say what comes next. Never blocks, never fails: reads start now, or as frames and queue allow,
 * and guesses when no sure read is left or on its way. Replaces the last hint of its kind; a sure
 * hint also ends what was guessed and not begun, which it has proven right or wrong. A page larger
 * than a frame is left out.
 *
 * A sure hint for more than a quarter of the pool streams through: few of its pages are read ahead
 * of their pins, so that what the pool holds is not driven out by a window of pages used once.
 *
 * So many guesses of a list are begun as lately came in before the next sure hint, and one more.
 * Guesses are on trial: when fewer than a quarter of the last POOL_TRIAL were demanded while their
 * hint stood, guesses are refused; after POOL_REFUSED of them, a few are tried again. */
void pool_hint(struct pool *p, const struct extent *want, unsigned n, enum hint kind);

/* Say what is likely to be used some day, likeliest first; a pool's frames full of it are kept,
 * and their number is returned. Replaces the last such list. Nothing is read yet: the pages come
 * after all other wishes, at the pace of guesses, with at most half of the queue, and only into
 * frames that are free: none is emptied for them, and when none is free it is over. They count as
 * guesses, are on no trial, and one whose read fails is forgotten. */
unsigned pool_warm(struct pool *p, const struct extent *want, unsigned n);

/* Whoever owns the pool has nothing else to do: begin what wishes are left and wait until a read
 * comes in. False: none is on its way. */
bool pool_idle(struct pool *p);

/* Pin whichever of these n >= 1 pages is ready first, reading and waiting if none is; *which says
 * which. A page already in memory comes before one that must be waited for, want[0] before want[1].
 * What it began to read for the others is kept as after a sure hint.
 * ERR_IO (ERR_NOMEM where the system said that): the read of want[*which] failed, and again as
 * often as it was retried (a file that ends too early is not); the page is forgotten, so that a
 * later pin reads again. The text names the bytes and not the file, which whoever asked knows. A
 * read that failed for a guess is not reported: the pin reads again. The errors that are no page's
 * fault leave *which alone, so set it to n before to know them. ERR_BUSY: every frame is pinned.
 * ERR_ARG: a page is larger than a frame. ERR_IO: the engine takes no reads, though none is in
 * flight. */
int pool_pin_any(struct pool *p, const struct extent *want, unsigned n, unsigned *which,
                 struct page *out, struct err *e);
int pool_pin(struct pool *p, struct extent at, struct page *out, struct err *e); /* n = 1 */
void pool_unpin(struct pool *p, struct page *page);
void pool_drop(struct pool *p, struct page *page); /* unpin and forget: the bytes were bad */

/* Memory is short: up to `bytes` of unpinned frames leave for good, from the arena's end up to the
 * first pinned one; at least `keep` frames (and one) stay. Waits for reads into those frames.
 * Returns bytes given back. */
size_t pool_trim(struct pool *p, size_t bytes, unsigned keep);

/* Forget every unpinned page (a cold start for a measurement). Counters stay. */
void pool_purge(struct pool *p);

/* Is this page in memory, or on its way? Changes nothing. */
enum pool_has { POOL_ABSENT, POOL_READING, POOL_RESIDENT };
enum pool_has pool_has(const struct pool *p, struct extent at);

void pool_get_stats(const struct pool *p, struct pool_stats *out);
unsigned pool_frames(const struct pool *p);

#endif
