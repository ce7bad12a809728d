/* cli/talk.h - a conversation: who said what, as requests and saved files have it.
 *
 * Messages are JSON as waste_chat_render reads them; the system prompt is apart, so that a reset
 * keeps it. The last message may be the user's: it was not answered.
 */
#ifndef CLI_TALK_H
#define CLI_TALK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct talk {
    char *system, *effort; /* owned; NULL: none, the format's own */
    json_t *messages;
    json_t *tools;    /* NULL: none */
    json_t *attached; /* pictures that go with the next message of the user */
};

int talk_open(struct talk *t, const char *system, const char *effort, struct err *e);
void talk_close(struct talk *t);

/* The conversation as a request: its JSON text, free() it; NULL without memory. asks: the turn is
 * the model's. */
char *talk_request(const struct talk *t, bool asks);

int talk_say(struct talk *t, const char *role, const char *text, size_t len, struct err *e);
/* A picture by the path of its file, with its size in pixels. */
int talk_attach(struct talk *t, const char *path, uint32_t width, uint32_t height, struct err *e);
/* The pictures of the user's last message, if it is the last or the last but one, go with the next
 * one, too. */
void talk_attach_again(struct talk *t);
unsigned talk_pictures(const struct talk *t);             /* in all messages, and attached */
int talk_set(char **text, const char *to, struct err *e); /* system or effort; NULL: none */
/* Take back the last message, if it is this role's. Returns whether it was. */
bool talk_take_back(struct talk *t, const char *role);
/* Text of the last message of this role that is the last or the last but one; NULL: there is none.
 * Borrowed. */
const char *talk_last(const struct talk *t, const char *role, size_t *len);
bool talk_waits(const struct talk *t); /* for an answer */

/* What is saved beside a state: the conversation and what made it; free() it. */
char *talk_note(const struct talk *t, const char *model);
/* ERR_FORMAT: it is no conversation of ours. The talk is as it was then. */
int talk_from_note(struct talk *t, const char *note, size_t len, struct err *e);

#endif
