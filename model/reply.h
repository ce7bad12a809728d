/* model/reply.h - a reply, read id by id: reasoning, answer, tool calls.
 *
 * Structure is decided by token id: the same text spelled in ordinary tokens is text. Control
 * tokens that mean nothing in the format are left out. Events carry whole characters; a marker ends
 * the text before it, and what was held of a character becomes U+FFFD. Whatever the ids are, the
 * reading ends in a defined state: a call is complete exactly when its own end came.
 */
#ifndef MODEL_REPLY_H
#define MODEL_REPLY_H

#include "model/chat.h"
#include "model/utf8.h"

struct reply_call {
    struct buf name, arguments;
    int32_t number; /* as the model counts; -1: it did not say */
    enum { CALL_OPEN, CALL_COMPLETE, CALL_CUT } state;
    char id[40];
};

enum { ELEMENTS_MAX = 64 };

struct xtml_reader {
    struct buf header, value, scratch;
    enum { HEADER_NONE, HEADER_OPEN, HEADER_CLOSE } in_header;
    struct buf names;         /* of the open elements, one after the other */
    size_t end[ELEMENTS_MAX]; /* in names */
    unsigned depth;
    enum { ARGUMENT_NONE, ARGUMENT_DROPPED, ARGUMENT_STRING, ARGUMENT_VALUE } argument;
    struct buf key, type, keys; /* of the argument; of all of this call */
    bool has_raw, in_raw, has_arguments;
};

struct k2_reader {
    struct buf header;
    enum { K2_TEXT, K2_SECTION, K2_HEADER, K2_ARGUMENTS } state;
};

struct reply {
    const struct tokenizer *tokenizer;
    int32_t ids[N_MARKERS], end_id;
    uint32_t format;
    uint64_t hash; /* of the prompt's ids: no other turn of the conversation has it */
    struct utf8 utf8;
    struct buf chars; /* what a token made whole */
    struct xtml_reader xtml;
    struct k2_reader k2;

    struct buf reasoning, response;
    struct reply_call *calls;
    uint32_t n_calls;
    size_t calls_cap;
    bool call_open; /* the last one */
    bool done, failed;
    bool held; /* by a grammar: the half of a character or of markup before a cut is no text */

    struct buf text; /* of this call's events; their `len` is right, `text` an offset */
    waste_event *events;
    size_t n_events, events_cap, at_cap;
    size_t *at; /* [n_events] where in text an event's begins */
    struct buf message;
};

int reply_open(struct reply **out, const struct prompt *p, struct err *e);
void reply_close(struct reply *r); /* NULL is fine */
int reply_feed(struct reply *r, int32_t id, const waste_event **events, size_t *n, struct err *e);
int reply_end(struct reply *r, const waste_event **events, size_t *n, struct err *e);
int reply_message(struct reply *r, struct str *json, struct err *e);

/* For the readers of the formats. Failure sticks in r. */
void reply_text(struct reply *r, uint32_t kind, struct str text);
void reply_call_begin(struct reply *r, struct str name, int32_t number);
void reply_call_arguments(struct reply *r, struct str part);
void reply_call_end(struct reply *r); /* does nothing when no call is open */
void reply_call_cut(struct reply *r); /* the same */

/* reply_xtml.c: a control token; whole characters; the reply has ended. */
int xtml_reader_init(struct reply *r, uint32_t begins);
void xtml_reader_mark(struct reply *r, int32_t id);
void xtml_reader_text(struct reply *r, struct str text);
void xtml_reader_end(struct reply *r);
void xtml_reader_release(struct xtml_reader *x);

/* reply_k2.c: the same. */
void k2_reader_mark(struct reply *r, int32_t id);
void k2_reader_text(struct reply *r, struct str text);
void k2_reader_end(struct reply *r);

#endif
