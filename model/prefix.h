/* model/prefix.h - states that were kept, to go on from where a prompt was met before.
 *
 * A recurrent state cannot be cut: what a prompt shares with an earlier one is saved only where a
 * checkpoint was taken at or before the place at which they part. So checkpoints are kept while
 * prompts go in, at the ends of messages and every so many positions, in memory and in files, and
 * the longest one that is a prefix is taken up. What is let go first is what saves least: positions
 * to the next shorter one, by bytes, by time since it was used (docs/STATE.md). One thread.
 */
#ifndef MODEL_PREFIX_H
#define MODEL_PREFIX_H

#include "model/checkpoint.h"
#include "model/room.h"

struct prefix_config {
    const struct state_kind *kind; /* borrowed, as all here, for the store's life */
    const struct hparams *hp;
    struct room *room; /* for those in memory; may be empty */
    unsigned ctx, every;
    const char *dir;    /* for files; copied. NULL: none */
    uint64_t dir_bytes; /* of files of states in it, whoever's; 0: no limit */
};

struct prefix_stats {
    unsigned n_memory, n_files; /* kept now */
    uint64_t memory_bytes, file_bytes;
    uint64_t kept, dropped, refused; /* refused: files that were damaged, gone or of no use */
    uint64_t resumed, positions;     /* prompts that began with one, and the positions it saved */
};

struct prefix_store;

/* Reads the headers of what is in dir; makes dir. ERR_IO. */
int prefix_open(struct prefix_store **out, const struct prefix_config *c, struct err *e);
void prefix_close(struct prefix_store *p); /* NULL-safe; files stay */

/* Keep what s has committed. tag: at most STATE_TAG_BYTES, whose it is: only the same tag finds it.
 * pinned: let go last. Where memory is full of more useful ones only the file is kept, and the
 * other way round. ERR_IO: the file could not be written; memory has it if it has room. */
int prefix_keep(struct prefix_store *p, const struct session *s, const char *tag, bool pinned,
                struct err *e);

/* Bring s to the longest state that is kept of ids[0...k), k < n, or that s has itself; empty when
 * there is none. Returns k. What s had is gone. `e` has code 0, or says why a better one was of no
 * use. As in a session that was fed these ids, none of them counts as its own choice. */
unsigned prefix_resume(struct prefix_store *p, struct session *s, const int32_t *ids, size_t n,
                       const char *tag, struct err *e);
/* How many of the ids such a state would save, without doing anything. */
unsigned prefix_find(struct prefix_store *p, const struct session *s, const int32_t *ids, size_t n,
                     const char *tag);

/* The next place after pos, at most n, at which to keep: an end of a message (ends: ascending), a
 * multiple of `every`, or n. */
size_t prefix_cut(const struct prefix_store *p, size_t pos, const size_t *ends, size_t n_ends,
                  size_t n);

void prefix_stats(const struct prefix_store *p, struct prefix_stats *out);

#endif
