/* cli/prompt.h - text in: from an argument, a file or standard input, and its token ids. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include <sys/types.h>

#include "cli/say.h"

struct text { /* any bytes; free(bytes) */
    char *bytes;
    size_t len;
    bool from_file; /* or from standard input; not an argument */
};

struct ids { /* free(id) */
    int32_t *id;
    size_t n;
};

/* Positional `index` (0 is the command; it may be absent, or "-" for standard input), or --file, or
 * what is piped in. Returns 0 or an exit code, having said why; an interrupt ends the waiting. */
int text_read(struct cli *c, unsigned index, struct text *out);

/* All of a file, or of standard input for "-". Returns as text_read. */
int text_of_file(struct cli *c, const char *name, struct text *out);

/* The pieces it is made of. name: a file, or "-". *fd is the caller's to close, unless it is 0. */
int text_open(struct cli *c, const char *name, int *fd);
/* Bytes read, 0 at the end; -1 with errno, EINTR for an interrupt while waiting. */
ssize_t text_some(int fd, char *to, size_t room);
int fail_read(struct cli *c, const char *name, int error);
/* Those at the end: editors and echo end a file with one that nobody wrote. */
void remove_newlines(struct text *t);

/* A whole file, with a NUL behind it; free() it. NULL: see e. ERR_IO: no regular file; ERR_LIMIT:
 * more than `most` bytes. */
char *file_text(const char *path, size_t most, size_t *len, struct err *e);

enum text_kind {
    TEXT_PROMPT,   /* content; newlines at the end of a file or of standard input are removed */
    TEXT_TEMPLATE, /* markup; to the byte */
};

/* The same, encoded with the tokenizer of the container at path; or --ids. --markup and --content
 * beat the kind. [BOS] comes first with --bos. May be no ids. */
int prompt_read(struct cli *c, const char *path, unsigned index, enum text_kind kind,
                struct ids *out);

#endif
