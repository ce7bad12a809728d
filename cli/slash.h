/* cli/slash.h - what `waste chat` knows, and its slash commands. */
#ifndef CLI_SLASH_H
#define CLI_SLASH_H

#include "cli/lines.h"
#include "cli/talk.h"
#include "cli/turn.h"

struct chat {
    struct cli *c;
    const char *path; /* of the container */
    struct speaker by;
    struct talk talk;
    struct lines *lines;
    char *prefill;    /* the next line begins as this; NULL */
    uint32_t n_tries; /* answers to the last message so far */
    bool interrupted; /* and nothing was typed since */
    bool leave;
    struct profile profile; /* of all answers */
    uint64_t n_answers, n_prompt, n_reused, n_fed, n_generated;
};

/* Carry out a line that begins with a slash; an unknown one is refused. Returns an exit code, of
 * which the conversation only takes notice. */
int chat_command(struct chat *chat, char *line);

/* Say something and let it be answered; answer what was said last. */
int chat_ask(struct chat *chat, const char *text, size_t len);
int chat_answer(struct chat *chat);

void chat_stats(struct chat *chat);

#endif
