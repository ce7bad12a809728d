/* model/release_files.h - what lies beside the weights: tokenizer, control tokens, templates, the
 * vision tower's geometry. None is required: what a release lacks is said in a notice. What it has
 * must be usable: that is checked when it is read, before anything is converted.
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

enum { SIDE_FILES_MAX = 5 };

struct release_files { /* of the container, in memory */
    struct side_file {
        const char *name;
        char *bytes; /* owned */
        size_t n;
    } file[SIDE_FILES_MAX];
    unsigned n;
    const char *no_chat; /* the architecture whose markers the release lacks, borrowed; or NULL */
};

/* What the release in dirfd gives a container; its own readers have read it. vision: the trunk has
 * a tower. ERR_FORMAT, ERR_LIMIT name a file that is not what it should be. */
int release_files_read(struct release_files *out, int dirfd, const struct release *r, bool vision,
                       struct notices *notices, struct err *e);
void release_files_release(struct release_files *f); /* of all zero, too */

/* Put them into w's container. A chat.json that is there stays. */
int release_files_write(const struct release_files *f, struct writer *w, struct notices *notices,
                        struct err *e);

#endif
