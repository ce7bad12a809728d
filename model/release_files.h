/* model/release_files.h - what lies beside the weights: tokenizer, control tokens, templates, the
 * vision tower's geometry. None is required; what a release lacks is said in a notice.
 */
#ifndef MODEL_RELEASE_FILES_H
#define MODEL_RELEASE_FILES_H

#include <stddef.h>

#include "base/err.h"
#include "expertfs/writer.h"
#include "model/release.h"

enum { NOTICES_MAX = 8, NOTICE_BYTES = 200 };

struct notices {
    unsigned n;
    char text[NOTICES_MAX][NOTICE_BYTES];
};

void notice_add(struct notices *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Read dir/name; *bytes is NUL-terminated, the caller's to free, NULL when there is no such file.
 * ERR_IO, ERR_LIMIT: larger than most. */
int release_file(char **bytes, size_t *n, int dirfd, const char *name, size_t most, struct err *e);

/* Write what the release in dirfd gives into w's container. vision: its trunk has a tower. A
 * chat.json that is there stays. ERR_FORMAT names a file that is not what it should be. */
int release_files_write(struct writer *w, int dirfd, const struct release *r, bool vision,
                        struct notices *notices, struct err *e);

#endif
