/* cli/stream.h - a text of any length as token ids, a block at a time.
 *
 * The ids are those of the whole text, newlines at its end removed as prompt.h does it; memory is
 * taken for one block (400,000 characters) and its ids. Interrupts end the waiting for input.
 */
#ifndef CLI_STREAM_H
#define CLI_STREAM_H

#include "cli/prompt.h"

struct stream {
    struct cli *c;
    const char *name; /* for errors */
    int fd;
    struct text text;        /* read, but not encoded yet */
    size_t room;             /* of text */
    bool end;                /* everything is read */
    uint64_t size;           /* bytes of the file; 0: not known */
    uint64_t n_bytes, n_ids; /* encoded so far */
};

/* name: a file, or "-" for standard input. Returns 0 or an exit code, having said why; then there
 * is nothing to close. */
int stream_open(struct stream *s, struct cli *c, const char *name);
void stream_close(struct stream *s);

/* Append the ids of the next block to *ids. Without any: the text is at its end. */
int stream_more(struct stream *s, const waste_tokenizer *t, struct ids *ids);
/* Ids of the whole text, as far as one can tell: exact at the end, 0 for a pipe before. */
uint64_t stream_total(const struct stream *s);

#endif
