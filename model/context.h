/* model/context.h - what waste_ctx is, shared by the files that implement waste.h: api.c
 * (statuses, information), api_plan.c, api_open.c, api_session.c, api_step.c, api_generate.c
 * (sessions and passes), api_grammar.c (what limits an answer), api_state.c (saved states),
 * api_image.c (pictures), api_text.c (text and ids), api_chat.c (conversations), api_usage.c (the
 * hotlist). */
#ifndef MODEL_CONTEXT_H
#define MODEL_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/cpu_place.h"
#include "base/pressure.h"
#include "expertfs/container.h"
#include "include/waste.h"
#include "model/budget.h"
#include "model/checkpoint.h"
#include "model/forward.h"
#include "model/image_queue.h"
#include "model/prefix.h"
#include "model/room.h"
#include "model/grammar.h"
#include "model/route_trace.h"
#include "model/session.h"
#include "model/think_limit.h"
#include "model/tokenizer.h"
#include "model/vision.h"
#include "model/weights.h"
#include "storage/frames.h"
#include "storage/io.h"
#include "storage/pool.h"

struct waste_session { /* the public handle */
    struct session s;
    waste_ctx *ctx;
    void *memory;
    struct waste_grammar *grammar; /* NULL: none */
    struct grammar_match *match;
    struct image_queue images;
    struct think_limit limit;
};

struct waste_checkpoint { /* the public handle */
    waste_ctx *ctx;
    struct cell cell;
    unsigned pos;
    int32_t choice;
    waste_checkpoint *next;
};

struct waste_store { /* the public handle */
    waste_ctx *ctx;
    struct prefix_store *prefix;
};

/* Until the first pass a thread of ours owns the pool and reads what the hotlist names. */
struct preload {
    pthread_t thread;
    bool running; /* there is a thread to be joined */
    atomic_bool stop;
    pthread_mutex_t lock;
    struct pool_stats stats; /* as the thread saw them last; under the lock */
};

struct waste_ctx {
    struct err error; /* what the last failed call said; code 0: nothing */
    struct mem mem;
    struct container *container;
    struct trunk *trunk;
    struct codebooks *books;
    void *extra; /* weights_extra_bytes */
    struct model model;
    struct vision *vision;   /* NULL: not asked for, or given back (opts.vision_free) */
    struct mem vision_mem;   /* the plan's part for it: tower, buffers, rows that wait */
    int32_t media_id;        /* the place of a row of an image; -1: the container has none */
    const float **image_row; /* [plan.rows], with vision */
    struct act act;
    struct team *team;
    struct frames frames;
    struct io *io;
    struct pool *pool;
    struct expert_source *experts;
    struct preload preload;
    char *usage_path;            /* as the host named it, or NULL */
    const char *usage_read;      /* which hotlist was read at open; "": none */
    unsigned n_preload;          /* experts of it that were asked for */
    struct tokenizer *tokenizer; /* NULL: none */
    struct err no_tokenizer;     /* why */
    struct plan plan;
    struct facts facts;
    struct io_report io_report;

    waste_session *session; /* [n_sessions]; the first is the default one */
    unsigned n_sessions;
    void *checkpoint_memory; /* plan.checkpoints bytes, or NULL */
    struct room room;
    waste_checkpoint *checkpoint; /* those that are open */
    struct state_kind kind;
    int32_t *token, *score;  /* [plan.rows] */
    struct span *span;       /* [n_sessions] */
    waste_logprob *top;      /* [n_sessions][SAMPLER_TOP_MAX] */
    uint8_t *never, *spared; /* [vocab], or NULL without a tokenizer */
    struct token_trie *trie; /* made for the first grammar */
    uint64_t *allowed;       /* [(vocab + 63) / 64] scratch: a grammar's mask with the end ids */
    int32_t stop[EOS_MAX];   /* ids that end a turn in this container */
    unsigned n_stop;

    waste_cfg cfg; /* as resolved; texts not kept */
    waste_opts opts;
    enum profile profile;
    struct cpu_place placement;
    unsigned ctx_tokens, lookahead, depth, n_direct, n_banks;
    enum depth_from { DEPTH_CHOSEN, DEPTH_GIVEN, DEPTH_MEASURED, DEPTH_KNOWN } depth_from;
    uint64_t drive_bytes_per_s;
    char direct_why[128], arch[64], quant[96];
    struct progress progress;
    struct pressure pressure;
    struct route_trace *trace;
    waste_counters counters;
    struct laps laps; /* of all passes */
    uint64_t last_poll_ns;
    const waste_item *items; /* of the running step, for cancellation */
    size_t n_items, item_stride;
    uint64_t bytes0; /* read before the running call, for its progress */
    bool running;    /* a pass runs: a callback that comes back in is refused */
    long pid;        /* the process that opened it: threads do not survive a fork */
};

struct wish { /* cfg and opts, resolved against this machine */
    waste_cfg cfg;
    waste_opts opts;
    struct cpu_place placement;
    unsigned ctx, cpu;
    enum profile profile;
    const struct policy_ops *policy;
};

/* api_plan.c */
int wish_of(struct wish *w, const waste_cfg *cfg, const waste_opts *opts, struct err *e);
/* why: which limit decided how much RAM is usable. */
struct plan_request request_of(const struct wish *w, char *why, unsigned why_bytes);
void memplan_of(waste_memplan *out, const struct plan *p);
/* Parameters of n experts in each MoE layer. */
uint64_t expert_params(const struct hparams *hp, unsigned n);

/* api_step.c: feed all of an item's ids, in as many passes as it takes; the last one brings what it
 * wants. A call that ran passes ends with step_end, which spends a cancellation. */
int step_feed(waste_ctx *ctx, waste_item *it, struct err *e);
waste_status step_end(waste_ctx *ctx, int rc, struct err *e);

/* api_image.c: none wait any more, and nobody needs the tower for them. */
void images_drop(waste_session *s);
/* Are there rows for the places among ids? all: and places for the rows. */
int images_check(const waste_session *s, const int32_t *ids, size_t n, bool all, struct err *e);
/* Places to the negative ids of the rows that wait, as many as there are; row (may be NULL): [n],
 * where they lie. */
void images_name(const waste_session *s, int32_t *ids, size_t n, const float **row);
/* ids with names are in the session now: their rows have been used. */
void images_committed(waste_session *s, const int32_t *ids, size_t n);
/* Rows for the places among ids: the tower, on those pictures that it has not seen. ERR_CANCELLED:
 * the context is; a session that is learns it from the pass. */
int images_encode(waste_session *s, const int32_t *ids, size_t n, struct err *e);

/* api_state.c: when weights and sessions are there; before they go. */
int states_open(waste_ctx *ctx, struct err *e);
void states_close(waste_ctx *ctx);
/* api_session.c: an answer begins, for the grammar and for the limit on reasoning: wherever the
 * positions of a session change. Before they do: it can fail. */
int answer_begin(waste_session *s, struct err *e);
/* api_grammar.c: what a grammar has to say in a pass. */
int grammar_set(waste_session *s, const waste_sampling *p, struct err *e); /* or NULL: none */
void grammar_drop(waste_session *s);
/* Before a choice: the mask, into the sampler. fed: the choice before is being fed. */
int grammar_before(waste_session *s, bool fed, struct err *e);
/* After it: *done: nothing can follow and no end id can be chosen. */
int grammar_after(waste_session *s, bool fed, int32_t token, bool *done, struct err *e);
void grammar_commit(waste_session *s, bool fed, bool chosen);
/* Ends the turn of this session. */
bool ctx_ends_turn(const waste_ctx *ctx, const struct session *se, int32_t id);

/* api_usage.c: at the end of open; before anything else touches the pool. */
void preload_begin(waste_ctx *ctx);
void preload_end(waste_ctx *ctx);
/* At any time between passes. All zero for a model without experts. */
void ctx_pool_stats(const waste_ctx *ctx, struct pool_stats *out);

/* Count memory that is taken after open. A budget that was chosen by us grows by it; of one that
 * was given, frames of the pool are given back for good. ERR_BUDGET: not even that is enough. */
int ctx_reserve(waste_ctx *ctx, uint64_t bytes, const char *what, struct err *e);
/* After a pass: give frames of the pool back for good while memory is short. */
void ctx_relieve(waste_ctx *ctx);

waste_status status_of(int code);
/* Begin a call on ctx: forgets the last error. WASTE_E_BUSY inside a callback of a running pass,
 * and in a forked child. */
waste_status ctx_enter(waste_ctx *ctx);
/* Keep the error for waste_error_detail; returns its status. */
waste_status ctx_fail(waste_ctx *ctx, const struct err *e);
/* Copy `bytes` of a sized answer into the host's struct, however old: all but its size.
 * WASTE_E_ARG: out is NULL, or its size was not set. */
waste_status give_sized(void *out, const void *from, size_t bytes);
/* The same for a call that makes no sense. */
waste_status ctx_refuse(waste_ctx *ctx, const char *what);
waste_status thread_fail(const struct err *e); /* for calls without a context */
uint64_t now_ns(void);
/* The host's progress callback, at most every 100 ms; a non-zero answer cancels. */
void ctx_poll(void *ctx);

#endif
