/* cli/asked.h - what a line of a batch asks: a request for the chat format, or ids to go on from,
 * and how tokens are chosen for it.
 */
#ifndef CLI_ASKED_H
#define CLI_ASKED_H

#include "cli/turn.h"

struct asked {
    json_t *line;     /* as it came */
    struct opts opts; /* of this line: begin with the command's; strings are of either */
    char *request;    /* NULL: the prompt is continued */
    struct ids ids;   /* then */
    bool has_system;  /* its messages begin with one */
};

/* a->opts are the command's, all else is zero. ERR_ARG names the member. The line is kept if it is
 * JSON, whatever else is wrong with it. */
int asked_parse(struct asked *a, const char *text, size_t len, struct err *e);
/* a->request or a->ids, as this model is spoken to. ERR_UNSUPPORTED: it has no words for a member.
 */
int asked_prepare(struct asked *a, const struct speaker *s, struct err *e);
void asked_release(struct asked *a);

#endif
