/* waste.h - run Mixture-of-Experts models whose experts stay on disk.
 *
 * A context is an open model: its trunk in memory, its experts on disk behind a bounded pool of
 * frames. A session is a conversation with it: the recurrent state, the latent cache, the ids. One
 * context has a default session, which waste_generate and waste_eval use; hosts that serve several
 * conversations open more and drive them with waste_step.
 *
 *     waste_cfg cfg;
 *     waste_cfg_init(&cfg);
 *     cfg.ram_budget_bytes = 46ULL << 30;
 *     waste_ctx *ctx;
 *     if (waste_open("/path/to/k3.waste", &cfg, &ctx) != WASTE_OK) return 1;
 *     waste_generate(ctx, ids, n, &params, on_token, user);
 *     waste_close(ctx);
 *
 * Threads: one thread at a time inside a context, its sessions included; different contexts are
 * independent. Functions marked "any thread" may be called at any time. The library prints nothing,
 * reads no environment variable and never exits.
 *
 * Callbacks (progress, log, tokens) run on the calling thread. While a pass runs, that is in
 * progress and log, every call on that context but the "any thread" ones is refused with
 * WASTE_E_BUSY; the token callback runs between passes and may make them. Never close a context
 * inside its callback. A context does not survive a fork: in the child its calls are refused,
 * waste_close does nothing, and what it holds ends with the process; open another. The calling
 * thread needs 1 MiB of stack.
 *
 * Errors: functions return a waste_status; on failure outputs are untouched (waste_open sets *out
 * to NULL) and every session is as it was before the pass that failed: a pass commits or it never
 * happened. waste_step is one pass; waste_eval and waste_generate run several, and
 * waste_session_pos says how many positions are in. waste_error_detail has the sentence.
 *
 * Structs: those with an _init function and no `size` member never change. Those that begin with
 * `uint32_t size` may grow at their end; _init sets the size, the library reads and writes only
 * that many bytes. Text is UTF-8.
 */
#ifndef WASTE_H
#define WASTE_H

#include <stddef.h>
#include <stdint.h>

#define WASTE_VERSION_MAJOR  0
#define WASTE_VERSION_MINOR  1
#define WASTE_VERSION_PATCH  0
#define WASTE_VERSION_STRING "0.1.0"
#define WASTE_VERSION_NUMBER                                                                       \
    (WASTE_VERSION_MAJOR * 10000 + WASTE_VERSION_MINOR * 100 + WASTE_VERSION_PATCH)
#define WASTE_API_VERSION 1

#if defined(__GNUC__)
#define WASTE_API __attribute__((visibility("default")))
#else
#define WASTE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct waste_ctx waste_ctx;
typedef struct waste_session waste_session;
typedef struct waste_grammar waste_grammar;
typedef struct waste_tokenizer waste_tokenizer;
typedef struct waste_checkpoint waste_checkpoint;
typedef struct waste_store waste_store;

/* What functions return; waste_error_detail has the sentence. */
typedef enum {
    WASTE_OK = 0,
    WASTE_E_IO = -1,          /* the system refused, or a read failed */
    WASTE_E_FORMAT = -2,      /* a file is malformed or inconsistent */
    WASTE_E_RAM_BUDGET = -3,  /* the model does not fit into the budget */
    WASTE_E_OOM = -4,         /* the system has no memory left */
    WASTE_E_ARG = -5,         /* the call makes no sense; nothing ran */
    WASTE_E_UNSUPPORTED = -6, /* well formed, not implemented here */
    WASTE_E_CANCELLED = -7,   /* a callback or waste_cancel stopped it */
    WASTE_E_BUSY = -8,        /* somebody else holds it */
    WASTE_E_CORRUPT = -9,     /* a check failed: bytes are not what was written */
    WASTE_E_LIMIT = -10,      /* well formed, beyond a bound of ours */
} waste_status;

/* ---- the library ------------------------------------------------------------------------- */

WASTE_API const char *waste_version(void); /* "0.1.0"; static. Any thread */
WASTE_API int waste_version_number(void);
/* "WASTE 0.1.0 (container v0, io io_uring libaio threads sync, kernels avx512, x86_64, ...)"; good
 * until the calling thread's next call */
WASTE_API const char *waste_build_info(void);
WASTE_API const char *waste_strerror(waste_status st); /* static, never NULL. Any thread */
WASTE_API uint64_t waste_physical_ram(void);           /* bytes; 0 = unknown */
WASTE_API uint64_t waste_usable_ram(void); /* min of that and every cgroup limit above us */

/* ---- configuration ----------------------------------------------------------------------- */

/* How a model is opened. waste_cfg_init first; then change what is to be another. */
typedef struct {
    uint64_t ram_budget_bytes; /* everything the engine takes; 0 = choose: the largest of floor + 3,
                                  2, 1 working sets that is under 3/4 of usable RAM, else floor */
    uint32_t ctx_tokens;       /* most positions of a session; 0 = 4096 */
    int n_threads;             /* 0 = one per physical core of the fastest kind, as far as a quota
                                  pays for them, or per entry of cpu_list; at most 64 */
    const char *cpu_list;      /* "0-3,8": threads are bound to these; NULL = to cores that are
                                  chosen where there are more than threads, else to none */
    int cache_policy;          /* 0 nextuse, an LFRU that learns its weights; 1 LRU */
    int use_direct_io;         /* 1 */
    int vision;                /* 0; 1: images, if the container has a vision tower */
    int verify_records;        /* 1: check the checksum of every expert when it is first used */
    const char *usage_path;    /* which experts were used most: read at open, written by
                                  waste_save_usage. NULL, and for reading also where there is no
                                  such file: usage.waste in the container; "": none */
    int exclusive_open;        /* 0; 1: WASTE_E_BUSY if another process has it open exclusively */
} waste_cfg;

WASTE_API void waste_cfg_init(waste_cfg *cfg); /* defaults; NULL-safe */

/* What runs now; see waste_progress_get. */
typedef struct {
    uint32_t size;
    uint32_t phase;       /* 0 idle, 1 open, 2 prefill, 3 decode, 4 an image */
    uint64_t done, total; /* bytes while opening, prompt tokens in prefill, blocks of the
                             vision tower; total 0 = unknown */
    uint64_t bytes;       /* read from disk in this phase */
} waste_progress;

/* More of it; waste_opts_init first. */
typedef struct {
    uint32_t size;
    uint32_t max_sessions; /* 1; memory for all of them is planned at open */
    uint32_t
        max_rows;      /* 512; most tokens in one pass; halved, to no less than 64, until the
                          growth of scratch is at most half of what the budget has above the floor */
    int32_t lookahead; /* -1 = 6; experts of the next layer asked for early in decode; 0 = off */
    const char *io_engine; /* NULL = the best that works: "io_uring", "libaio", "threads", "sync" */
    const char *numeric;   /* NULL = best for this CPU: "f32", "direct", "i16", "i8" */
    const char
        *cpu_level;     /* NULL = best: highest kernel level used, "c", "avx2", "avx512", "neon" */
    const char *policy; /* NULL = cfg.cache_policy: "nextuse", "lfru", "lru", "s3fifo" */
    uint32_t io_depth;  /* 0 = chosen: reads in flight */
    uint32_t checkpoints;    /* 0; memory for so many saved states of a full context is planned at
                                open: for waste_checkpoint_take and waste_store. Shorter ones take
                                less, so that more of them fit */
    const char *route_trace; /* NULL, or a file; a line is added per decode token and MoE layer */
    /* Called between tensors and layers on the calling thread, at most every 100 ms; non-zero
     * cancels. NULL = never. */
    int (*progress)(const waste_progress *p, void *user);
    void (*log)(int level, const char *text, void *user); /* level 0 error, 1 warning, 2 info */
    void *user;
    /* NULL, or a file that keeps how many reads in flight each drive was found to want, so that it
     * is measured once: by reading experts for a quarter of a second while opening, when io_depth
     * is 0, all reads are direct and the experts take more than 256 MiB. Made if it is not there.
     * NULL: nothing is measured or written, and 32 MiB are in flight. */
    const char *drive_notes;
    uint32_t image_patches; /* 0 = the container's max_patches; 4...65536: an image with more
                               patches of 14 x 14 pixels is shrunk to about as many */
    uint32_t vision_free;   /* 0: the vision tower is read at open and kept; 1: read when a picture
                               needs it, and given back. The plan has room for it either way */
} waste_opts;

WASTE_API void waste_opts_init(waste_opts *o); /* size and defaults; NULL-safe, as all _init */

/* ---- planning ---------------------------------------------------------------------------- */

typedef struct { /* bytes */
    uint64_t trunk_bytes;
    uint64_t state_bytes;
    uint64_t scratch_bytes;
    uint64_t min_expert_cache;  /* 2 * top_k records; in waste_memory_used: the pool as allocated */
    uint64_t floor_bytes;       /* the sum of the above: less than this and the model is refused */
    uint64_t recommended_bytes; /* floor + min(3 working sets, all experts) */
    uint64_t vision_bytes;      /* with cfg.vision; part of the floor */
    uint64_t working_set_bytes; /* what one token touches: top_k records of each MoE layer */
} waste_memplan;

/* A plan from manifest.json alone; no weights are read. path: a container, or (waste_plan_ex only)
 * a release's config.json or the directory that has it, before anything else is downloaded. */
WASTE_API waste_status waste_plan_memory(const char *path, uint32_t ctx_tokens, waste_memplan *out);

/* What a model would take, and what there is: everything that `waste plan` prints. The host sets
 * size. */
typedef struct {
    uint32_t size;
    uint32_t ctx_tokens, max_sessions, max_rows; /* max_rows after halving */
    waste_memplan mem;
    uint64_t physical_ram_bytes, usable_ram_bytes;
    char usable_why[120];  /* which limit decided */
    uint64_t budget_bytes; /* as given, or as chosen */
    int32_t budget_chosen; /* 1: by us */
    int32_t fits;          /* 0: budget_bytes is below the floor */
    uint64_t pool_bytes;   /* what is left for experts under this budget */
    uint64_t record_bytes; /* one expert on disk; 0: a model without experts */
    uint64_t expert_bytes; /* all of them */
    uint64_t disk_bytes;   /* the whole container */
    uint64_t trunk_file_bytes;
    uint32_t n_layers, n_moe_layers, n_experts, top_k;
    uint64_t params_total, params_active;
    int32_t
        from_config; /* 1: a release's config.json; file sizes are as our converter makes them */
    char arch[64];
    uint64_t scratch_growth_bytes; /* what passes longer than 64 rows take beyond the floor */
    uint64_t checkpoint_bytes;     /* part of mem.state_bytes: opts.checkpoints of them */
    uint64_t session_bytes;        /* part of it: one session */
    uint64_t state_fixed_bytes;    /* a saved state takes this, */
    uint64_t state_token_bytes;    /* and this for each position */
    uint32_t vision_tower;         /* 1: the container has one, whether or not cfg.vision asks */
    uint32_t reserved0;
} waste_plan;

/* cfg and opts may be NULL: defaults. WASTE_OK also where it does not fit: see fits. The detail:
 * waste_error_detail(NULL). */
WASTE_API waste_status waste_plan_ex(const char *path, const waste_cfg *cfg, const waste_opts *opts,
                                     waste_plan *out);

/* ---- opening ----------------------------------------------------------------------------- */

/* Load a model. Strings in cfg and opts are only needed during the call; opts->progress, ->log and
 * ->user are kept. cfg and opts may be NULL: defaults. */
WASTE_API waste_status waste_open(const char *path, const waste_cfg *cfg, waste_ctx **out);
WASTE_API waste_status waste_open_ex(const char *path, const waste_cfg *cfg, const waste_opts *opts,
                                     waste_ctx **out);
WASTE_API void waste_close(waste_ctx *ctx); /* NULL-safe; closes its sessions */

/* What the last failed call says: "layer 3 expert 17: checksum ...". With NULL: the calling
 * thread's last failed waste_open, waste_plan_*, waste_tokenizer_open. NULL if nothing failed.
 * Valid until the next call on that context (thread). */
WASTE_API const char *waste_error_detail(const waste_ctx *ctx);

/* The plan that the context was opened with, and of the pool and the scratch what was taken. */
WASTE_API waste_status waste_memory_used(const waste_ctx *ctx, waste_memplan *out);

/* What model this is. */
typedef struct {
    uint32_t n_layers, n_experts, top_k, hidden, ctx_max;
    uint64_t params_total; /* of the language model */
    uint64_t
        params_active; /* per token: trunk without the embedding table, top_k experts a layer */
    const char *arch, *quant_summary; /* owned by the context */
} waste_model_info;

/* Fixed at open. */
WASTE_API waste_status waste_model_get_info(const waste_ctx *ctx, waste_model_info *out);

/* How it runs: what was chosen at open, and why not something better. The host sets size. */
typedef struct {
    uint32_t size;
    uint32_t n_threads, n_frames, io_depth, lookahead, max_rows;
    uint64_t frame_bytes, budget_bytes;
    uint32_t n_banks, n_banks_direct;
    const char *io_engine;  /* borrowed from the context, as all texts here */
    const char *io_steps;   /* why not the rungs above; "" */
    const char *direct_why; /* why the first buffered bank is not direct; "" */
    const char *numeric, *kernels, *policy;
    int32_t verify;
    const char *io_note; /* whether the pool's memory is registered with the engine; "" */
    uint32_t vocab;      /* ids are below this */
    uint32_t n_preload;  /* experts of the hotlist that are read while nothing else is */
    const char *usage;   /* where that was read; "usage.waste" in the container; "": nowhere */
    /* io_depth: 0 chosen by size, 1 given, 2 measured now, 3 measured before */
    uint32_t depth_from, reserved0;
    uint64_t drive_bytes_per_s; /* of the drives together, as measured; 0: not */
    const char *placement;      /* threads and their CPUs, in words */
} waste_engine;

/* n_frames falls when the pool shrinks under memory pressure. */
WASTE_API waste_status waste_engine_info(const waste_ctx *ctx, waste_engine *out);

/* Since open, as published; waste_counters has more. */
typedef struct {
    uint64_t tokens_generated, experts_hit, experts_missed, bytes_read;
    double sec_total; /* in passes, prefill included */
    double sec_io;    /* of that, waiting for reads */
    int direct_io;    /* 1: every bank is read past the page cache */
} waste_stats;

/* Between passes: not any thread. */
WASTE_API waste_status waste_get_stats(const waste_ctx *ctx, waste_stats *out);

typedef struct { /* since open */
    uint32_t size;
    uint32_t reserved0;
    uint64_t prefill_tokens, decode_tokens; /* rows of passes with more rows than sessions; the
                                              others */
    double sec_prefill, sec_decode, sec_io;
    uint64_t hits_resident, hits_prefetch, misses; /* expert pins */
    uint64_t bytes_read, bytes_prefetch;
    uint64_t preloaded, hits_preload; /* experts read for the hotlist; of hits_prefetch, theirs */
    /* Of the above: pins that waited although a guess had begun the read; misses that waited, the
     * others were read in time after the router's choice. */
    uint64_t late_prefetch, late_misses;
    uint64_t guesses; /* experts read for guesses: used, wasted, or still waiting for a use */
    uint64_t guesses_wasted;              /* left memory without a use */
    uint64_t guesses_refused;             /* not read while guessing was found useless */
    uint64_t reads_retried, reads_failed; /* begun again after a failure; failed for good */
    uint64_t records_refused; /* bytes that were not the expert: read again, once each */
    double sec_in_flight;     /* with reads in flight; what is beyond sec_io hid behind computing */
    /* With sec_io, where sec_prefill + sec_decode went: */
    double sec_mix;     /* attention of any kind, norms, residuals */
    double sec_mlp;     /* dense layers and shared experts */
    double sec_route;   /* routers, guesses, handing over reads */
    double sec_checks;  /* of experts that came: checksums, bookkeeping */
    double sec_experts; /* routed experts */
    double sec_head;    /* logits */
    double sec_other;   /* embeddings, choosing tokens, callbacks */
    uint64_t images;    /* that the vision tower saw */
    double sec_images;  /* of the tower, before the passes: in none of the above */
} waste_counters;

/* The host sets size. Differences of two calls say what happened between them. */
WASTE_API waste_status waste_get_counters(const waste_ctx *ctx, waste_counters *out);

/* Where an expert is: on disk only, on its way, in a frame. */
enum { WASTE_EXPERT_ABSENT, WASTE_EXPERT_READING, WASTE_EXPERT_RESIDENT };

/* What one layer's experts did; the host sets size. */
typedef struct {
    uint32_t size;
    uint32_t n_experts;                            /* of this layer; 0: it has none */
    uint64_t hits_resident, hits_prefetch, misses; /* pins since open */
    uint32_t n_resident, n_reading;                /* now; only if a map was asked for */
} waste_layer_use;

/* What a layer (0...n_layers - 1) found in memory, and what of it is there now. map: NULL, or room
 * for cap values of WASTE_EXPERT_*, one for each expert. WASTE_E_ARG: no such layer, or cap is less
 * than n_experts. It costs a look-up for each expert. */
WASTE_API waste_status waste_layer_get_use(waste_ctx *ctx, uint32_t layer, waste_layer_use *out,
                                           uint8_t *map, size_t cap);

/* Learn: write which experts were used since open or the last save into usage_path, on top of half
 * of what is there. The next open asks for the hottest until the first pass comes, and later only
 * where the drive has nothing else to do and the pool has room. The file is replaced as a whole or
 * not at all, and nothing depends on it but time. WASTE_E_IO: it cannot be written; the uses are
 * kept for the next save. WASTE_E_ARG: usage_path ends in no name, or in one of over 251 bytes. */
WASTE_API waste_status waste_save_usage(waste_ctx *ctx);

/* ---- text and ids ------------------------------------------------------------------------ */

/* How control texts such as "<|im_end|>" are encoded: as ordinary tokens, as their control ids. */
enum { WASTE_CONTENT = 0, WASTE_MARKUP = 1 };

/* A tokenizer needs no model: a container's directory is enough. Immutable; any thread.
 * WASTE_E_UNSUPPORTED: the container has no tokenizer. */
WASTE_API waste_status waste_tokenizer_open(const char *path, waste_tokenizer **out);
WASTE_API void waste_tokenizer_close(waste_tokenizer *t);      /* NULL-safe */
WASTE_API waste_tokenizer *waste_tokenizer_of(waste_ctx *ctx); /* NULL: none. Owned by ctx */
/* mode WASTE_CONTENT: control texts are ordinary tokens (anything a user, tool or model wrote).
 * WASTE_MARKUP: they are their control ids (what a template's author wrote). *n_out is the number
 * of ids, also when cap is too small (WASTE_E_ARG, out untouched beyond cap). */
WASTE_API waste_status waste_encode(const waste_tokenizer *t, int mode, const char *text,
                                    size_t len, int32_t *out, size_t cap, size_t *n_out);
/* For texts that come in parts: how many of the first bytes are encoded the same whatever follows
 * (whole blocks of 400,000 characters). Encode these alone and go on behind them: the ids, one
 * after the other, are those of the whole text. 0: more must be seen first. end: nothing follows,
 * and everything is taken, a block at a time. Any thread. */
WASTE_API size_t waste_encode_block(const char *text, size_t len, int end);
/* Bytes, not NUL-terminated; may hold any byte and cut characters at both ends. */
WASTE_API waste_status waste_decode(const waste_tokenizer *t, const int32_t *ids, size_t n,
                                    char *out, size_t cap, size_t *n_out);
/* Borrowed from t; WASTE_E_ARG for an id that has no bytes. */
WASTE_API waste_status waste_token_bytes(const waste_tokenizer *t, int32_t id, const char **bytes,
                                         size_t *len);
/* The id that begins a text, for models that want one; -1: t is NULL. Chat formats do not. */
WASTE_API int32_t waste_token_bos(const waste_tokenizer *t);
WASTE_API int waste_token_is_control(const waste_tokenizer *t, int32_t id);
/* Whole characters out of token bytes. */
typedef struct {
    uint8_t held[4];
    uint32_t n_held;
} waste_utf8; /* zero it to begin */
/* Feed bytes; out, the caller's, gets the longest run of whole characters, at most 3 * (len + 3)
 * bytes; what can still become a character is held back; U+FFFD stands for what cannot. end: flush.
 * Returns bytes written. Any thread, one per stream. */
WASTE_API size_t waste_utf8_feed(waste_utf8 *u, const char *bytes, size_t len, int end, char *out);

/* Stop strings, several at once, in bytes that arrive in fragments. What is held back is what can
 * still become one of them, and nothing else. */
typedef struct {
    const char *text;
    size_t len;
} waste_text;
typedef struct waste_stops waste_stops;
/* Copied; n may be 0. WASTE_E_ARG: an empty one. The detail: waste_error_detail(NULL). */
WASTE_API waste_status waste_stops_open(const waste_text *strings, size_t n, waste_stops **out);
WASTE_API void waste_stops_close(waste_stops *s); /* NULL-safe */
/* The most that feeding len bytes can give. */
WASTE_API size_t waste_stops_room(const waste_stops *s, size_t len);
/* Take bytes; out, the caller's, gets what can no longer belong to a stop string. end: nothing
 * follows, and all of it is given. *matched: -1, or which string is complete (of those that end
 * here, the longest): out ends right before it, the rest is dropped. Returns bytes written. */
WASTE_API size_t waste_stops_feed(waste_stops *s, const char *bytes, size_t len, int end, char *out,
                                  int32_t *matched);

/* NUL-terminated forms, as published. waste_detokenize adds a NUL. */
WASTE_API waste_status waste_tokenize(waste_ctx *ctx, const char *text, int add_bos, int32_t *out,
                                      size_t cap, size_t *n_out);
WASTE_API waste_status waste_tokenize_markup(waste_ctx *ctx, const char *text, int add_bos,
                                             int32_t *out, size_t cap, size_t *n_out);
WASTE_API waste_status waste_detokenize(waste_ctx *ctx, const int32_t *ids, size_t n, char *out,
                                        size_t cap, size_t *n_out);

/* ---- generating -------------------------------------------------------------------------- */

/* How waste_generate chooses tokens; waste_sampling has more. */
typedef struct {
    float temperature;          /* <= 0: the largest logit, lowest id on ties */
    float top_p;                /* >= 1: off */
    int top_k;                  /* 0: off */
    uint64_t seed;              /* used as it is; draw one yourself for variety */
    uint32_t max_tokens;        /* 256 */
    const char *grammar;        /* NULL, or a grammar of kind WASTE_GRAMMAR_TEXT: see below */
    const int32_t *stop_tokens; /* besides the container's own end ids */
    size_t n_stop;
} waste_gen_params;

WASTE_API void waste_gen_params_init(waste_gen_params *p); /* the likeliest token, 256 of them */

/* A token that was chosen, and what its pass cost. */
typedef struct {
    uint32_t token_index; /* 0, 1, ... */
    int32_t token;
    float logprob; /* of the model's own distribution, before temperature and filters */
    uint32_t experts_hit, experts_missed; /* in the pass that chose this token */
    uint64_t bytes_read;
    double ms_total, ms_io;
} waste_token_info;

/* piece: the token's bytes as whole characters, NUL-terminated; may be "" while a character is
 * incomplete. Non-zero stops: WASTE_E_CANCELLED. */
typedef int (*waste_token_cb)(const waste_token_info *info, const char *piece, void *user);

/* Feed ids to the default session, then choose and feed tokens until a stop id, max_tokens, or the
 * context is full (WASTE_OK; waste_error_detail says so). Each token is delivered as soon as it is
 * chosen, and fed afterwards; at return every delivered token is in the session, but for the last
 * one when the context is full or when feeding it failed. params become the default session's
 * sampling. WASTE_E_ARG: an id outside the vocabulary, or a prompt that leaves no position. */
WASTE_API waste_status waste_generate(waste_ctx *ctx, const int32_t *ids, size_t n,
                                      const waste_gen_params *params, waste_token_cb cb,
                                      void *user);

/* Feed ids to the default session; logits of the last position, [vocab], the engine's until the
 * next call. May fill the context exactly. */
WASTE_API waste_status waste_eval(waste_ctx *ctx, const int32_t *ids, size_t n,
                                  const float **logits_out, size_t *vocab_out);
WASTE_API waste_status waste_state_reset(waste_ctx *ctx); /* empty the default session */

/* ---- sessions ---------------------------------------------------------------------------- */

typedef struct { /* added to the logit of an id */
    int32_t id;
    float value;
} waste_bias;

typedef struct {
    int32_t id;
    float logprob; /* of the model's own distribution: before bias, penalties and temperature */
} waste_logprob;

/* Order: bias, penalties, grammar, top_k, temperature, top_p, min_p, draw. Each is off by default.
 */
typedef struct {
    uint32_t size;
    float temperature, top_p;
    int32_t top_k;
    uint64_t seed;
    uint32_t stream; /* numbers the alternatives of one request */
    float min_p;
    float repeat_penalty;   /* 1 = off */
    uint32_t repeat_window; /* 64; ids chosen in the last so many positions */
    float presence_penalty, frequency_penalty;
    const waste_bias *logit_bias;
    size_t n_logit_bias;
    const int32_t *stop_tokens; /* besides the container's own end ids */
    size_t n_stop;
    uint32_t n_logprobs; /* 0...20: in waste_item.top, the likeliest ids of each choice */
    uint32_t reserved0;
    /* What an answer may be; NULL: anything. Copied and compiled; an answer begins with the call
     * that sets it, with waste_session_reset or with going to a state (waste_checkpoint_restore
     * and what follows it), and is what the session chose and was fed: other ids that the host
     * feeds (a prompt, markup) are not matched. An end id may be chosen exactly where the grammar
     * may end. docs/CONSTRAINED.md has both languages. */
    const char *grammar;
    int32_t grammar_kind;  /* WASTE_GRAMMAR_* */
    int32_t grammar_after; /* -1, or a control id: until it is chosen, everything is allowed */
    /* A limit on reasoning; NULL: none. Where close_ids[0] is not among the first close_after
     * choices of an answer, the next ones are close_ids, in order, whatever the logits say; after
     * them it is free again. Copied, at most 16; waste_prompt_info has those of the format. An
     * answer begins as for grammars. A grammar must allow them where they come: waste_step fails
     * with WASTE_E_ARG otherwise, and nothing is committed. */
    const int32_t *close_ids;
    uint32_t n_close, close_after;
    /* NULL, or a grammar of waste_grammar_open, in the place of the three members above that say
     * one. The session keeps what it needs of it: the host may close it at once. WASTE_E_ARG: it
     * was compiled with the tokenizer of another model. */
    waste_grammar *compiled;
} waste_sampling;

/* waste_sampling.grammar_kind */
enum { WASTE_GRAMMAR_TEXT = 0, WASTE_GRAMMAR_JSON_SCHEMA = 1 };

/* Compiling takes from a fraction of a millisecond to seconds, which settings with a text take of
 * the thread that runs the passes. Here it is done apart, by any thread and without a context;
 * whatever the text, in bounded time and with at most 32 MiB as a result. kind, after: as
 * grammar_kind and grammar_after. Errors: as waste_session_sampling has them, the detail is
 * waste_error_detail(NULL), and *out is NULL. Any thread may use it and close it; a context counts
 * it while it is in a session. */
WASTE_API waste_status waste_grammar_open(const waste_tokenizer *t, int32_t kind, const char *text,
                                          int32_t after, waste_grammar **out);
WASTE_API size_t waste_grammar_bytes(const waste_grammar *g); /* memory held */
WASTE_API void waste_grammar_close(waste_grammar *g);         /* NULL-safe */

WASTE_API void waste_sampling_init(waste_sampling *p); /* size and defaults: the likeliest token */

/* WASTE_E_BUSY when max_sessions are open. */
WASTE_API waste_status waste_session_open(waste_ctx *ctx, waste_session **out);
WASTE_API void waste_session_close(waste_session *s); /* NULL-safe; not the default one */
WASTE_API waste_session *waste_session_default(waste_ctx *ctx);
WASTE_API waste_status waste_session_reset(waste_session *s);
WASTE_API size_t waste_session_pos(const waste_session *s); /* committed positions */
WASTE_API waste_status waste_session_ids(const waste_session *s, int32_t *out, size_t cap,
                                         size_t *n_out);
/* Copied. WASTE_E_ARG names the field. A grammar that does not compile: WASTE_E_FORMAT,
 * WASTE_E_UNSUPPORTED (a keyword that is not understood), WASTE_E_LIMIT; the settings are as they
 * were. */
WASTE_API waste_status waste_session_sampling(waste_session *s, const waste_sampling *p);
/* Where the answer stands with its grammar, the token chosen last included. */
enum {
    WASTE_GRAMMAR_NONE = 0,     /* there is none */
    WASTE_GRAMMAR_CUT = 1,      /* the beginning of an answer: if it ends here, it was cut */
    WASTE_GRAMMAR_COMPLETE = 2, /* may end here, and may go on */
    WASTE_GRAMMAR_DONE = 3,     /* may end here, and nothing can follow */
};
WASTE_API int waste_session_grammar(const waste_session *s);
/* Any thread. Sticky until one item of that session reports WASTE_E_CANCELLED. */
WASTE_API void waste_session_cancel(waste_session *s);
/* Any thread, and from a signal handler: the running call ends within one layer. If none runs, the
 * next one does not begin. */
WASTE_API void waste_cancel(waste_ctx *ctx);
WASTE_API void waste_progress_get(const waste_ctx *ctx, waste_progress *out); /* any thread */

/* waste_item.want; waste_item.stop */
enum { WASTE_WANT_TOKEN = 1, WASTE_WANT_LOGITS = 2, WASTE_WANT_ID_LOGPROBS = 4 };
enum { WASTE_STOP_ID = 1, WASTE_STOP_CONTEXT = 2, WASTE_STOP_GRAMMAR = 3 };

/* One session's part of a pass. */
typedef struct {
    uint32_t size;
    uint32_t want;          /* in: any of WASTE_WANT_*, or 0 */
    waste_session *session; /* in: at most one item per session */
    const int32_t *ids;     /* in: what to feed, in order; read during the call only */
    size_t n_ids;
    size_t n_done;       /* out: ids of this item that are now in the session; a long prompt takes
                            several steps */
    waste_status status; /* out: OK, CANCELLED, or why the call was refused */
    int32_t token;       /* out, once all ids are in: the id chosen, not yet fed; -1 before */
    float logprob;
    uint32_t stop;       /* out: 0; WASTE_STOP_ID: `token` ends the turn; WASTE_STOP_CONTEXT: the
                            ids do not fit into the context, nothing was fed; WASTE_STOP_GRAMMAR:
                            nothing can follow `token`, and the model has no end id to say so */
    const float *logits; /* out: [vocab], the engine's until the next step; NULL if not wanted */
    /* For WASTE_WANT_ID_LOGPROBS, and not looked at without it: how likely was what came next, at
     * every position (scoring; for the perplexity of a text, next_ids = ids + 1). id_logprobs[i] =
     * ln p(next_ids[i] | everything up to and with ids[i]), of the model's own distribution: before
     * bias, penalties and temperature. It costs the output head for every row. */
    const int32_t *next_ids; /* in: [n_next], read during the call only; -1: nothing is asked */
    float *id_logprobs;      /* out: the caller's [n_next]; written where asked in [0, n_done), when
                                the pass is in; the rest is left alone */
    size_t n_next;           /* in: at least n_ids */
    const waste_logprob
        *top; /* out, with `token`: the session's n_logprobs likeliest ids, likeliest
                 first, the lower id among equals; the engine's until the next step */
    size_t n_top;
} waste_item;

/* One pass over rows of these sessions. Rows are taken from the items in order until max_rows are
 * full; what did not fit has n_done 0 and waits for the next call (rotate the items, or the last
 * ones starve). A session's bits depend on its own ids alone, not on the cut or the company.
 * `ids` may point at `token`. The stride of the array is items[0].size; one that ends before
 * next_ids or top, as in older hosts, will do. IO, CORRUPT (also: a logit that is not finite), OOM,
 * CANCELLED, LIMIT (bias and penalties leave no finite logit): nothing was committed for any item,
 * no logprob written. ARG: nothing was either; items[i].status says which is to blame, and the
 * others go on without it. */
WASTE_API waste_status waste_step(waste_ctx *ctx, waste_item *items, size_t n_items);

/* ---- states: rewinding, saving, going on from a prefix -------------------------------------- */

/* A checkpoint is what a session has committed, ids included, in the memory planned by
 * opts.checkpoints. Restoring it into a session of the same context is rewinding, or forking: what
 * follows is what would have followed, to the bit. Sampling settings stay the session's, and the
 * answer that its grammar and its close_ids limit begins anew; so with every call below that gives
 * a session other positions.
 * WASTE_E_LIMIT: they take more than is left (close one). */
WASTE_API waste_status waste_checkpoint_take(waste_session *s, waste_checkpoint **out);
WASTE_API waste_status waste_checkpoint_restore(const waste_checkpoint *c, waste_session *s);
WASTE_API size_t waste_checkpoint_pos(const waste_checkpoint *c);
WASTE_API void waste_checkpoint_close(waste_checkpoint *c); /* NULL-safe; waste_close does it too */

/* Positions from pos on are gone. WASTE_E_UNSUPPORTED: the model has a recurrent state, which
 * cannot be cut, and pos is neither 0 nor the end. */
WASTE_API waste_status waste_session_truncate(waste_session *s, size_t pos);

/* A session's state in a file, with a note of the host's (at most 64 MiB; NULL: none). Written
 * beside, synced and renamed, for the owner's eyes only; another kind of file is not replaced. */
WASTE_API waste_status waste_session_save(waste_session *s, const char *path, const void *note,
                                          size_t n_note);
/* Refused with both values: FORMAT for another model, other weights, another numeric profile; LIMIT
 * for more positions than the context has; CORRUPT for bytes that are not what was written;
 * UNSUPPORTED for another version. The session is as it was; only if the file changes or fails
 * after it was checked is it empty, and the sentence says so. */
WASTE_API waste_status waste_session_load(waste_session *s, const char *path);
WASTE_API waste_status waste_state_save(waste_ctx *ctx, const char *path); /* the default session */
WASTE_API waste_status waste_state_load(waste_ctx *ctx, const char *path);

/* The header of a state's file. The host sets size. */
typedef struct {
    uint32_t size;
    uint32_t pos;
    uint64_t created; /* seconds since 1970 */
    uint64_t bytes, note_bytes;
    char arch[64], numeric[16], engine[32]; /* what it was made with */
} waste_state_info;

/* What a file says, without a model. note: NULL, or room for `cap` bytes of the note; WASTE_E_ARG
 * when it is longer (out is filled in). Any thread. */
WASTE_API waste_status waste_state_read(const char *path, waste_state_info *out, void *note,
                                        size_t cap);

/* A store keeps states while prompts go in, and finds the longest that a prompt begins with: in
 * memory (opts.checkpoints) and in files, which survive a restart and may be shared by processes.
 * What is let go first is what saves least. Damaged or foreign files are never used. Used on its
 * context's thread; closed before the context. */
typedef struct {
    uint32_t size;
    uint32_t every;     /* 512: also keep at multiples of so many positions; 0: never */
    const char *dir;    /* for files, made if it is not there; NULL: memory only */
    uint64_t dir_bytes; /* at most so many bytes of them; 0: no limit */
} waste_store_cfg;

WASTE_API void waste_store_cfg_init(waste_store_cfg *c); /* size and defaults */
/* c may be NULL: memory only. WASTE_E_IO: the directory cannot be made or read. */
WASTE_API waste_status waste_store_open(waste_ctx *ctx, const waste_store_cfg *c,
                                        waste_store **out);
WASTE_API void waste_store_close(waste_store *st); /* NULL-safe; files stay */

/* Flags of waste_store_keep. */
enum { WASTE_KEEP_LONG = 1 }; /* let go last: what many conversations begin with */

/* Keep what the session has committed. tag: NULL, or text of at most 32 bytes: only the same tag
 * finds it again. WASTE_E_IO: the file could not be written; memory has it if there was room. */
WASTE_API waste_status waste_store_keep(waste_store *st, waste_session *s, const char *tag,
                                        uint32_t flags);
/* Bring a session to the longest kept state that ids begin with, at most n - 1 positions long: its
 * own, or one of the store. *n_reused (0: it is empty now) says where to go on feeding; the logits
 * are those of a session fed from the beginning. WASTE_OK also when a file was of no use:
 * waste_error_detail says why. */
WASTE_API waste_status waste_store_resume(waste_store *st, waste_session *s, const int32_t *ids,
                                          size_t n, const char *tag, size_t *n_reused);
/* How many positions that would be. */
WASTE_API size_t waste_store_find(waste_store *st, const waste_session *s, const int32_t *ids,
                                  size_t n, const char *tag);
/* Feed up to here, keep, and ask again: the next place after pos. ends: ascending, where messages
 * end; NULL: none. Returns n when nothing comes before. */
WASTE_API size_t waste_store_cut(const waste_store *st, size_t pos, const size_t *ends,
                                 size_t n_ends, size_t n);

/* What a store holds and did. */
typedef struct {
    uint32_t size;
    uint32_t n_memory, n_files, reserved0; /* states kept now */
    uint64_t memory_bytes, file_bytes;
    uint64_t kept, dropped, refused; /* since open; refused: files found damaged or foreign */
    uint64_t resumed, positions_saved;
} waste_store_info;

/* The host sets size. */
WASTE_API waste_status waste_store_get_info(const waste_store *st, waste_store_info *out);

/* ---- conversations ----------------------------------------------------------------------- */

/* How a container writes conversations. Content never becomes structure: a prompt is a list of
 * segments, each one markup (written by the format) or content (written by users, tools, models),
 * each one encoded by itself; a reply is read by token id, never by text. See docs/CHAT.md.
 *
 * A chat is immutable; any thread. A prompt is too, once rendered. A reply is one stream and
 * belongs to one thread at a time. The tokenizer must outlive the chat, the chat its prompts and
 * replies. Failures are in waste_error_detail(NULL) of the calling thread, and name the offending
 * member by its path: "messages[2].content[0].type: ...". */
typedef struct waste_chat waste_chat;
typedef struct waste_prompt waste_prompt;
typedef struct waste_reply waste_reply;

/* waste_chat_info.format */
enum {
    WASTE_CHAT_XTML = 1,  /* Kimi K3: thinking, tools, images, notes on the form of answers */
    WASTE_CHAT_PLAIN = 2, /* as chat.json says: system, user and assistant turns, nothing else */
    WASTE_CHAT_K2 = 3,    /* Kimi K2, Kimi-Linear: turns and, where has_tools, tools */
};

/* How a host wants requests to be read. */
typedef struct {
    uint32_t size;
    int32_t lenient_effort; /* 0; 1: efforts "medium" and "xhigh" are "high" and "max" */
    const char *effort;     /* how much to think when a request does not say: NULL = "low", "high",
                               "max", "none". Only of formats that think */
    int32_t constrains; /* 0; 1: the host limits answers with waste_prompt_grammar, so that formats
                           without words for a response_format take one, too */
    uint32_t reserved0;
} waste_chat_opts;

WASTE_API void waste_chat_opts_init(waste_chat_opts *o); /* size and defaults */

/* What a format can say. The host sets size. */
typedef struct {
    uint32_t size;
    uint32_t format; /* WASTE_CHAT_* */
    int32_t has_thinking, has_tools, has_images, has_answer_formats;
    int32_t end_id; /* ends a message; the host's stop ids are to include it */
    uint32_t reserved0;
    const char *name; /* "XTML", "chat.json", "K2"; static */
} waste_chat_info;

/* Which format a container speaks is decided by its control tokens, found by their texts, and by
 * its chat.json. path: its directory; NULL: there is no chat.json. opts may be NULL.
 * WASTE_E_UNSUPPORTED: none; the detail says why for each. WASTE_E_FORMAT, WASTE_E_IO,
 * WASTE_E_LIMIT: there is a chat.json, and it cannot be used. Either way the container still
 * continues texts. */
WASTE_API waste_status waste_chat_open(const waste_tokenizer *t, const char *path,
                                       const waste_chat_opts *opts, waste_chat **out);
WASTE_API void waste_chat_close(waste_chat *c); /* NULL-safe */
WASTE_API waste_status waste_chat_get_info(const waste_chat *c, waste_chat_info *out);

/* One piece of a prompt. */
typedef struct {
    const char *text; /* len bytes, any of them */
    size_t len;
    size_t first_id; /* where its ids begin */
    int32_t mode;    /* WASTE_CONTENT or WASTE_MARKUP */
    uint32_t reserved0;
} waste_segment;

/* A place where the prompt could have ended: good for a snapshot of the session. */
typedef struct {
    size_t n_ids;    /* ids up to and with the end of this message */
    int32_t message; /* its index in `messages`; -1: a note of the format's own */
    uint32_t reserved0;
} waste_message_end;

/* A place for an image: the id at `at` stands for all of its rows. */
typedef struct {
    size_t at;
    uint32_t message, part; /* messages[message].content[part] */
    uint32_t width, height; /* as given, in pixels */
    const char *source;     /* its address as given, len bytes */
    size_t len;
} waste_image_place;

/* A rendered request. The host sets size. */
typedef struct {
    uint32_t size;
    uint32_t begins; /* what the reply begins with: WASTE_REASONING, WASTE_RESPONSE; 0: the turn was
                        not handed over */
    const int32_t *ids; /* all arrays are borrowed from the prompt */
    size_t n_ids;
    const waste_segment *segments;
    size_t n_segments;
    const waste_message_end *ends;
    size_t n_ends;
    const waste_image_place *images;
    size_t n_images;
    const char *effort;          /* "low", "high", "max"; "": no thinking */
    const char *note;            /* a sentence for a log; "" */
    int32_t may_call, must_call; /* 1: tools may be called; must. waste_prompt_grammar enforces
                                    it */
    waste_text must_call_name;   /* the one that must be; len 0: any */
    const int32_t *close_ids;    /* end the reasoning that the reply begins with; NULL: there is
                                    none. For waste_sampling.close_ids */
    size_t n_close;
} waste_prompt_info;

/* A request to ids. json, one object, UTF-8: `messages`; and optionally `tools`, `tool_choice`,
 * `parallel_tool_calls` (true; false: one call at most, if the grammar is used), `response_format`,
 * `add_generation_prompt` (true: hand the turn to the model), `reasoning_effort` or
 * `thinking_effort` or `reasoning.effort`, `thinking` or `enable_thinking`, these also in
 * `chat_template_kwargs`, and `effort_note`. docs/CHAT.md has what each may be. Other members are
 * ignored, so that a host may pass on what it was sent. WASTE_E_ARG: a member is not as it should
 * be. WASTE_E_UNSUPPORTED: this format has no words for one. WASTE_E_LIMIT: too large, too deep. */
WASTE_API waste_status waste_chat_render(const waste_chat *c, const char *json, size_t len,
                                         waste_prompt **out);
WASTE_API void waste_prompt_close(waste_prompt *p); /* NULL-safe */
WASTE_API waste_status waste_prompt_get_info(const waste_prompt *p, waste_prompt_info *out);

typedef struct { /* of answers, beside what the request says */
    uint32_t size;
    int32_t lenient;     /* 0; 1: without a response_format and a tool with `strict`, tool_choice
                            "auto" constrains nothing */
    const char *schema;  /* NULL, or the response is JSON that satisfies this JSON schema */
    const char *grammar; /* NULL, or a text of this grammar (WASTE_GRAMMAR_TEXT) */
} waste_constraint;

WASTE_API void waste_constraint_init(waste_constraint *c); /* size and defaults */

/* The grammar of the answers to this prompt: *text for waste_sampling.grammar, WASTE_GRAMMAR_TEXT;
 * NULL: nothing is to be constrained. Reasoning is free until it is closed. A response_format
 * holds; only declared tools are called, as tool_choice and parallel_tool_calls say, with arguments
 * that satisfy their `parameters`; the end of the message comes last. A schema that is not
 * understood is refused with the place of its tool, its name and the keyword (WASTE_E_UNSUPPORTED),
 * if the tool is `strict`; another tool takes any arguments then, and waste_prompt_info.note says
 * so. c may be NULL. Borrowed from p until the next call of this kind on it, or its end; this one
 * call is not for several threads at a time. WASTE_E_ARG: the request and c both say what the
 * response is. */
WASTE_API waste_status waste_prompt_grammar(waste_prompt *p, const waste_constraint *c,
                                            const char **text, size_t *len);

/* waste_event.kind */
enum {
    WASTE_REASONING = 1,      /* text of the model's reasoning */
    WASTE_RESPONSE = 2,       /* text of its answer */
    WASTE_CALL_BEGIN = 3,     /* a tool is called: text is its name */
    WASTE_CALL_ARGUMENTS = 4, /* the next part of the arguments' JSON */
    WASTE_CALL_END = 5,       /* the call is complete: it may be carried out */
    WASTE_CALL_CUT = 6,       /* it will never be: it must not be carried out */
    WASTE_MESSAGE_END = 7,
};

/* What an id of a reply brought. */
typedef struct {
    uint32_t kind;
    uint32_t call;    /* WASTE_CALL_*: 0, 1, ... */
    const char *text; /* len bytes, whole characters */
    size_t len;
    const char *id;    /* WASTE_CALL_BEGIN: NUL-terminated, no other call of this conversation has
                          it; else NULL */
    int32_t number;    /* WASTE_CALL_BEGIN: the model's own for it, -1: none */
    uint32_t complete; /* WASTE_MESSAGE_END: 1: the model ended the message, 0: it was cut */
} waste_event;

/* Read a reply to this prompt, id by id, as they are chosen. The prompt may be closed. */
WASTE_API waste_status waste_reply_open(const waste_prompt *p, waste_reply **out);
WASTE_API void waste_reply_close(waste_reply *r); /* NULL-safe */
/* The next id, that of the message's end included. *events, borrowed until the next call on r, are
 * what it brought; often none. What follows the end of the message is ignored. WASTE_E_OOM: the
 * reply is lost. */
WASTE_API waste_status waste_reply_feed(waste_reply *r, int32_t id, const waste_event **events,
                                        size_t *n_events);
/* No more ids will come. Brings what was held back, and WASTE_MESSAGE_END unless it was there. */
WASTE_API waste_status waste_reply_end(waste_reply *r, const waste_event **events,
                                       size_t *n_events);
/* What came so far, as a message for the next request: {"role": "assistant", "content": ...}, with
 * `reasoning_content` if there was any and `tool_calls` if there were complete ones. Borrowed until
 * the next call on r. */
WASTE_API waste_status waste_reply_message(waste_reply *r, const char **json, size_t *len);

/* ---- images ------------------------------------------------------------------------------ */

/* Pictures in prompts, for containers with a vision tower opened with cfg.vision: JPEG, PNG and
 * WebP. Each is decoded when it is added and waits, in order, for the places that are fed: ids
 * equal to <|media_pad|>, one per row. The tower sees it when the first of them is, and not at all
 * if a store has them all. In waste_session_ids such a place is negative, and names the
 * picture and the row: prefixes are only shared where the pictures are the same. See
 * docs/IMAGES.md. */
#define WASTE_IMAGES_MAX 32 /* that wait in a session */

/* A picture as the rule has it. The host sets size. */
typedef struct {
    uint32_t size;
    uint32_t width, height;               /* upright, in pixels: what the prompt is told */
    uint32_t fit_width, fit_height;       /* after shrinking */
    uint32_t padded_width, padded_height; /* multiples of 28 */
    uint32_t patches_x, patches_y;
    uint32_t n_rows;                    /* positions in the prompt */
    uint32_t max_patches, side_patches; /* the rule's limits */
    uint32_t reserved0, reserved1;
    uint64_t decode_bytes; /* memory while it is read */
    uint64_t tower_macs;   /* multiply-adds of the container's tower; 0 without one */
    char format[8];        /* "JPEG", "PNG", "WebP" */
} waste_image_info;

/* What the model would see, from the header alone. container: whose rule to apply; NULL: 1024
 * patches. max_patches: another limit, 4...65536; 0: the rule's. Any thread; failures are in
 * waste_error_detail(NULL). WASTE_E_UNSUPPORTED: the container has no tower; of the picture, as of
 * waste_session_image_add. */
WASTE_API waste_status waste_image_look(const char *container, uint32_t max_patches,
                                        const void *bytes, size_t len, waste_image_info *out);
/* Width and height, upright, from the header of a file. Any thread. */
WASTE_API waste_status waste_image_dimensions(const char *path, uint32_t *width, uint32_t *height);

/* Decode a picture; its rows, *n_rows (may be NULL), are to come behind those of earlier ones.
 * WASTE_E_UNSUPPORTED: without cfg.vision, or another format; WASTE_E_ARG: WASTE_IMAGES_MAX wait
 * already; WASTE_E_FORMAT, _CORRUPT, _LIMIT: the picture; WASTE_E_RAM_BUDGET: it does not fit into
 * what was planned. */
WASTE_API waste_status waste_session_image_add(waste_session *s, const void *bytes, size_t len,
                                               uint32_t *n_rows);
WASTE_API waste_status waste_image_add(waste_ctx *ctx, const char *path, uint32_t *n_rows);
/* Each place among ids, one per picture, to as many as the picture has rows. WASTE_E_ARG: places
 * and pictures that wait differ in number, or out (which may be ids) has less than *n_out, which
 * says what is needed. */
WASTE_API waste_status waste_session_image_expand(const waste_session *s, const int32_t *ids,
                                                  size_t n, int32_t *out, size_t cap,
                                                  size_t *n_out);
WASTE_API waste_status waste_image_expand(waste_ctx *ctx, const int32_t *ids, size_t n,
                                          int32_t *out, size_t cap, size_t *n_out);
/* ids, expanded, as waste_session_ids will have them: each place as the name of its row, out[n].
 * waste_store_find and waste_store_resume take such ids, too: of another session, in which these
 * pictures do not wait. WASTE_E_ARG: places and rows that wait differ in number. */
WASTE_API waste_status waste_session_image_ids(const waste_session *s, const int32_t *ids, size_t n,
                                               int32_t *out);
/* Forget what waits. A reset of the session does not. */
WASTE_API waste_status waste_session_image_clear(waste_session *s);
WASTE_API waste_status waste_image_clear(waste_ctx *ctx);

/* ---- for bindings ------------------------------------------------------------------------ */

/* Kinds of structs for waste_abi. New ones come at the end. */
enum {
    WASTE_ABI_CFG,
    WASTE_ABI_MEMPLAN,
    WASTE_ABI_GEN_PARAMS,
    WASTE_ABI_TOKEN_INFO,
    WASTE_ABI_MODEL_INFO,
    WASTE_ABI_STATS,
    WASTE_ABI_OPTS,
    WASTE_ABI_PLAN,
    WASTE_ABI_ENGINE,
    WASTE_ABI_COUNTERS,
    WASTE_ABI_SAMPLING,
    WASTE_ABI_ITEM,
    WASTE_ABI_PROGRESS,
    WASTE_ABI_STATE_INFO,
    WASTE_ABI_STORE_CFG,
    WASTE_ABI_STORE_INFO,
    WASTE_ABI_CHAT_OPTS,
    WASTE_ABI_CHAT_INFO,
    WASTE_ABI_SEGMENT,
    WASTE_ABI_MESSAGE_END,
    WASTE_ABI_IMAGE_PLACE,
    WASTE_ABI_PROMPT_INFO,
    WASTE_ABI_EVENT,
    WASTE_ABI_LAYER_USE,
    WASTE_ABI_CONSTRAINT,
    WASTE_ABI_IMAGE_INFO
};
WASTE_API size_t waste_abi(int kind); /* sizeof; 0 for an unknown kind. Any thread */

#ifdef __cplusplus
}
#endif
#endif
