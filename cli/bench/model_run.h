/* cli/bench/model_run.h - a model that is opened, fed and counted, through include/waste.h.
 *
 * Every sample opens the model anew, so that arms do not hold memory beside each other and each
 * begins with an empty pool. What is fed is the same for all of them, whatever they would choose
 * themselves: ids of a text, or invented ones.
 */
#ifndef CLI_BENCH_MODEL_RUN_H
#define CLI_BENCH_MODEL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/bench/flags.h"
#include "waste.h"

struct model_choice { /* what the user chose for all arms; zero or NULL is the library's choice */
    const char *text, *numeric, *policy, *engine, *cpus;
    int64_t threads, lookahead;
};
extern struct model_choice model_choice; /* of this process: a command has one */

/* Rows of a flag table. */
/* clang-format off */
#define MODEL_FLAGS                                                                                \
    {"text", FLAG_TEXT, &model_choice.text, 0, 0, "FILE",                                          \
     "what is fed (invented ids, whose routing is no property of the model)"},                     \
    {"threads", FLAG_INT, &model_choice.threads, 0, 64, "N", "that compute (one a core)"},         \
    {"cpus", FLAG_TEXT, &model_choice.cpus, 0, 0, "LIST", "they are bound to these: 0-3,8"},       \
    {"lookahead", FLAG_INT, &model_choice.lookahead, -1, 64, "N",                                  \
     "experts of the next layer asked for early (6)"},                                             \
    {"cache", FLAG_CHOICE, &model_choice.policy, 0, 0, "nextuse|lfru|lru|s3fifo",                  \
     "replacement policy"},                                                                        \
    {"io", FLAG_CHOICE, &model_choice.engine, 0, 0, "io_uring|libaio|kqueue|threads|sync",         \
     "engine"}
/* clang-format on */

struct model_way { /* of one arm */
    const char *path;
    uint64_t budget;                 /* 0: the library chooses */
    const char *numeric, *cpu_level; /* NULL: model_choice's, the best */
    const char *route_trace;         /* NULL: none */
    uint32_t positions;              /* that will be fed */
};

struct model_run {
    waste_ctx *ctx;
    waste_engine engine;
    waste_memplan used;
};

/* Texts of errors are the library's own. */
int model_run_open(struct model_run *m, const struct model_way *way, struct err *e);
void model_run_close(struct model_run *m); /* safe on a zeroed one */

/* What it would take; reads no weights. */
int model_run_plan(waste_plan *out, const struct model_way *way, struct err *e);

/* n ids to feed; free with free(). ERR_ARG: the text has fewer. */
int model_run_ids(int32_t **out, size_t n, const char *path, struct err *e);

struct model_took { /* by one call of model_feed */
    double seconds, wait_s;
    double experts_s, trunk_s;  /* of seconds: routed experts; attention, dense layers, head */
    double hits, early, misses; /* pins of experts: resident; read for a guess; the others */
    double bytes;               /* read, guesses that nobody wanted with them */
    double from_device;         /* bytes that this process had read; NaN: nobody knows */
    uint64_t digest;            /* of the likeliest ids and their log-probabilities */
};

/* Feed n ids, in passes as long as the model takes them or one by one. */
int model_feed(struct model_run *m, const int32_t *ids, size_t n, bool one_by_one,
               struct model_took *out, struct err *e);

/* "not direct: ..." and the like, "" for nothing: what an arm is worth noting for. */
void model_run_note(char *note, size_t note_bytes, const struct model_run *m);

#endif
