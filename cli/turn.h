/* cli/turn.h - one answer: a prompt goes in, from the longest part of it that is kept already, and
 * tokens come out until something ends them, each one on its way to a reader before it is fed.
 *
 * `run`, `run --out` and `chat` differ in what they show. A turn is opened on a prompt, run once,
 * looked at, closed.
 */
#ifndef CLI_TURN_H
#define CLI_TURN_H

#include "cli/answer.h"
#include "cli/prompt.h"
#include "cli/say.h"
#include "cli/tally.h"

/* An open model, and how it speaks. */
struct speaker {
    struct cli *c;
    waste_ctx *ctx;
    waste_session *session;
    const waste_tokenizer *tokenizer; /* NULL: ids are printed */
    waste_chat *chat;                 /* NULL: texts are continued */
    waste_chat_info format;           /* if chat */
    waste_store *store;               /* NULL: every prompt goes in from its beginning */
    uint32_t ctx_max;
    bool keep_failed;    /* and that was said */
    struct text grammar; /* what answers may be, with a NUL behind it; bytes NULL: anything */
};

enum end {
    END_NONE,
    END_LENGTH,      /* -n */
    END_ID,          /* the model ended its turn */
    END_STRING,      /* --stop */
    END_GRAMMAR,     /* the grammar allows nothing more */
    END_CONTEXT,     /* no position left */
    END_INTERRUPTED, /* Ctrl-C */
    END_OUTPUT,      /* nobody reads any more */
    END_ERROR,
    N_ENDS,
};

const char *end_name(enum end end); /* for programs: "stop_id" */
const char *end_text(enum end end); /* for people: "the model" */

enum { TOKENS_DEFAULT = 128 }; /* of `run`, without -n */

struct turn {
    struct speaker *by;
    const int32_t *ids; /* the prompt */
    size_t n_ids;
    waste_prompt *prompt; /* NULL: a text is continued, and `ids` are the caller's */
    const char *grammar;  /* prompt's, what its answer may be; NULL: anything */
    waste_reply *reply;   /* reads the answer, if prompt */
    int32_t *seen;        /* ids with a place for each row of a picture; NULL: there are none */
    size_t *ends, n_ends; /* where messages end */
    size_t n_system;      /* ids of the system prompt: kept for long */
    uint32_t n_max;
    /* Called for each token, and with item NULL once more if something was held back at an end that
     * no token brought. What is new: reasoning, and answer.text. ms: what the token took.
     * false: nobody reads any more. */
    bool (*show)(struct turn *t, const waste_item *item, double ms);
    void *user;

    size_t n_reused, n_fed; /* positions that were kept already; that went in now */
    uint32_t n_generated;
    struct answer answer;           /* kept whole */
    struct buf reasoning, response; /* of this token; response: before the stop strings */
    bool thinking;                  /* is being shown */
    enum end end;
    double prefill_s, decode_s;
    waste_counters before;          /* the running step */
    struct tally begun, fed, ended; /* at the start; when the prompt was in; at the end */
    waste_status status;            /* what ended it, if END_ERROR; OK: see err */
    struct err err;
    char detail[512]; /* the library's words for it */
};

/* On ids. stop: n texts that end the answer. ERR_ARG, ERR_NOMEM. */
int turn_open_ids(struct turn *t, struct speaker *by, const int32_t *ids, size_t n,
                  const char *const *stop, unsigned n_stop, struct err *e);
/* On a request (waste_chat_render). Errors are the library's, too. */
int turn_open_request(struct turn *t, struct speaker *by, const char *json, size_t len,
                      const char *const *stop, unsigned n_stop, struct err *e);
/* Up to the end of this message others will begin like this, too: a system prompt. */
void turn_keep_long(struct turn *t, int32_t message);
void turn_close(struct turn *t); /* fine on a zeroed one */

/* The prompt's pictures to the session, which reads their files, and their places to as many as
 * they have rows: n_ids is final then. turn_run does it, too, if it was not done. */
int turn_see(struct turn *t, struct err *e);
/* Feed, choose, show; t->end says how it ended. The session has the prompt and the answer then, but
 * for its last token. */
void turn_run(struct turn *t);

/* What a `show` does with reasoning: on standard error, dimmed where that can be; nothing under
 * --quiet, --json and --hide-thinking. The first text of the answer ends it; call the second at the
 * end. */
void turn_show_reasoning(struct turn *t);
void turn_end_reasoning(struct turn *t);

/* Tokens per second of the answer, without the first one, which is the prompt's; 0: no other. */
double turn_rate(const struct turn *t);

/* END_ERROR: say so; returns an exit code. */
int turn_fail(const struct turn *t, const char *what);

/* The answer as a message for the next request, cut where the turn was; NULL without memory. */
json_t *turn_message(struct turn *t);

/* Keep the session's state, if there is a store. A failure is noted once. */
void speaker_keep(struct speaker *s, uint32_t flags);

/* On an open model, s->ctx: its default session. Returns 0 or an exit code. */
int speaker_open(struct speaker *s, struct cli *c);
/* The chat format of the container at path into s->chat; it stays NULL if there is none, and `why`
 * has the reason. effort: --think, or NULL. Returns 0 or an exit code. */
int speaker_chat(struct speaker *s, const char *path, const char *effort, char why[256]);
/* --think and --think-limit, where there is no thinking: an error as a flag, otherwise without
 * effect. */
int speaker_check_thinking(struct speaker *s);
void speaker_close(struct speaker *s); /* chat and store */

/* Keep states: in memory, as far as --checkpoints has room, and in files in dir, unless it is NULL.
 * One that cannot be used is an error if it is --state-dir, and otherwise done without. */
int speaker_store(struct speaker *s, const char *dir);
/* --checkpoints, if it was not given: `most`, or as many as there is room for. */
void choose_checkpoints(struct cli *c, const char *path, int most);

/* How the session chooses tokens in this turn, from the options. stream numbers the answers to one
 * request. */
int speaker_sampling(struct speaker *s, const struct turn *t, const struct opts *o, uint32_t stream,
                     struct err *e);
/* What --grammar or --json-schema names, into s->grammar, before a turn is opened. In a chat format
 * it says what the response is, and nothing of reasoning and calls. Returns 0 or an exit code. */
int speaker_grammar(struct speaker *s, struct cli *c);
bool speaker_held(const struct speaker *s); /* a grammar limits the answer */
/* The answer is only the beginning of what the grammar allows. */
bool speaker_cut(const struct speaker *s);
void banner_sampling(struct cli *c);
/* One that was not given, where one is needed: 53 bits, so that every JSON reader gives it back. */
int draw_seed(struct cli *c, struct opts *o);

#endif
