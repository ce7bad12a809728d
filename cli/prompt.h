/* cli/prompt.h - text in: from an argument, a file or standard input, and its token ids. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "cli/say.h"

struct text { /* any bytes; free(bytes) */
    char *bytes;
    size_t len;
};

struct ids { /* free(id) */
    int32_t *id;
    size_t n;
};

/* Positional `index` (0 is the command; it may be absent, or "-" for standard input), or --file, or
 * what is piped in. Newlines at its end are removed. Returns 0 or an exit code, having said why. */
int text_read(struct cli *c, unsigned index, struct text *out);

/* The same, encoded with the tokenizer of the container at path; or --ids. markup_default: how text
 * is read unless --markup or --content says. [BOS] comes first with --bos. May be no ids. */
int prompt_read(struct cli *c, const char *path, unsigned index, bool markup_default,
                struct ids *out);

#endif
