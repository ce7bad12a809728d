/* expertfs/unfinished.h - a directory in which a container is being made: may this run go on there?
 *
 * While it is unfinished a container has no manifest, but a small file that says what is being
 * made; the sealed one says the same in a private member of its manifest.
 */
#ifndef EXPERTFS_UNFINISHED_H
#define EXPERTFS_UNFINISHED_H

#include "base/err.h"
#include "base/json.h"

enum found { FOUND_NOTHING, FOUND_UNFINISHED, FOUND_SEALED };

struct unfinished {
    enum found found;
    json_t *state; /* FOUND_UNFINISHED: the small file; FOUND_SEALED: the manifest; owned */
};

/* state_file: the small file, an object. member: of it, and of the manifest; it equals `identity`
 * when it is this run's work. A directory that does not exist, or is empty (a chat.json may be
 * there), is FOUND_NOTHING. ERR_ARG: it holds something else, made of other parameters perhaps;
 * otherwise: what it then is, such as "not by waste synth". */
int unfinished_look(struct unfinished *out, const char *dir, const char *state_file,
                    const char *member, const json_t *identity, const char *otherwise,
                    struct err *e);

#endif
