/* model/chat.h - which chat format a container speaks, and a request rendered in it.
 *
 * Decided once, for every kind of host, by the control tokens of the container (found by their
 * texts: the families use the same numbers for different ones) and by its chat.json:
 *
 *   XTML   <|open|> <|close|> <|sep|> <|end_of_msg|> are control tokens; chat.json is not read
 *   plain  chat.json says how turns begin and end
 *   K2     <|im_user|> and its four companions are control tokens, and chat.json, if there is one,
 *          says just what K2's turns are; with the five of tool calls: tools
 *
 * Immutable once open; any thread. The tokenizer must outlive it.
 */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include "model/conversation.h"
#include "model/chat_prompt.h"
#include "model/think_limit.h"

enum marker { /* of both families; chat_marker_text has the texts */
              MARK_OPEN,
              MARK_CLOSE,
              MARK_SEP,
              MARK_END_OF_MSG,
              MARK_MEDIA_BEGIN,
              MARK_MEDIA_CONTENT,
              MARK_MEDIA_PAD,
              MARK_MEDIA_END,
              MARK_IM_USER,
              MARK_IM_ASSISTANT,
              MARK_IM_SYSTEM,
              MARK_IM_MIDDLE,
              MARK_IM_END,
              MARK_CALLS_BEGIN,
              MARK_CALLS_END,
              MARK_CALL_BEGIN,
              MARK_CALL_ARGUMENT,
              MARK_CALL_END,
              N_MARKERS,
};

struct chat_turn {
    struct str before, after; /* markup around what is said; before.s NULL: no such turns */
};

struct chat {
    const struct tokenizer *tokenizer;
    uint32_t format;        /* WASTE_CHAT_* */
    int32_t ids[N_MARKERS]; /* -1: not a control token of this container */
    int32_t end_id;
    int32_t think_close[THINK_CLOSE_MAX]; /* ends the reasoning; n_think_close 0: there is none */
    unsigned n_think_close;
    bool has_tools, has_images;
    bool constrains; /* the host does: a response_format needs no words */
    struct thinking_rules rules;
    struct chat_turn turns[3]; /* by role: system, user, assistant. Not of XTML */
    struct str open;           /* hands the turn to the model */
    struct buf text;           /* what these point at, if it came from chat.json */
};

/* dir: the container; NULL: without a chat.json. ERR_UNSUPPORTED: it speaks none; says why. */
int chat_open(struct chat **out, const struct tokenizer *t, const char *dir,
              const struct thinking_rules *rules, struct err *e);
void chat_close(struct chat *c); /* NULL is fine */

struct str chat_marker_text(enum marker m);

/* A request (conversation.h) to a prompt. ERR_UNSUPPORTED: the format has no words for a member. */
int chat_render(const struct chat *c, struct prompt **out, const char *json, size_t len,
                struct err *e);
void prompt_close(struct prompt *p); /* NULL is fine */

#endif
