/* model/checkpoint.h - the committed state of a session, in memory and in a file.
 *
 * Both are the parts of session.h, one after the other. A file has a header in front that says what
 * it was made with, and behind the parts a note of the host's. What a file says is believed when
 * its checksums hold, its shape is this model's and its size is what they come to: docs/STATE.md.
 */
#ifndef MODEL_CHECKPOINT_H
#define MODEL_CHECKPOINT_H

#include "base/err.h"
#include "model/session.h"

enum {
    STATE_HEADER_BYTES = 4096,
    STATE_TAG_BYTES = 32,
    STATE_NOTE_MAX = 64 << 20,
    STATE_VERSION = 1,
    ARITHMETIC_VERSION = 1, /* another one: the same weights and ids leave other bits behind */
};

/* Copy out of a session, and into one: its positions, states and the id that was chosen and not
 * fed. Settings of sampling stay the session's. */
void checkpoint_copy(const struct session *s, void *out);
void checkpoint_apply(struct session *s, const void *bytes, unsigned pos, int32_t choice);

struct state_kind {            /* what must agree */
    uint32_t container, trunk; /* container_fingerprint, trunk_crc */
    char numeric[16], arch[64];
};

struct state_head {
    struct state_kind kind;
    uint32_t shape[8]; /* vocab, KDA layers, heads, dim, taps, channels; MLA layers, stride */
    uint32_t pos;
    int32_t choice;
    uint64_t created;     /* seconds since 1970 */
    uint64_t key, parent; /* prefix.h: of these ids, and of the checkpoint before; 0: none */
    uint32_t parent_pos;
    char engine[32];
    char tag[STATE_TAG_BYTES]; /* whose it is; padded with 0 */
    uint64_t parts_bytes, note_bytes;
    uint32_t parts_crc, note_crc;
};

void state_head_of(struct state_head *h, const struct session *s, const struct state_kind *kind);
uint64_t state_file_bytes(const struct state_head *h);

/* Write beside and rename; 0600. parts_bytes, note_bytes and both CRCs are filled in. For a person
 * it waits for the disk, and does not replace another kind of file; a cache does without. */
enum state_for { STATE_FOR_PERSON, STATE_FOR_CACHE };
int state_write(const char *path, const struct session *s, struct state_head *h, const void *note,
                size_t n_note, enum state_for whom, struct err *e);

/* The header alone, checked by itself: any model's. fd stays the caller's. */
int state_read_head(int fd, const char *path, struct state_head *h, struct err *e);
/* Is it a state of this kind and shape, that fits? The sentence names both values. */
int state_fits(const struct state_head *h, const char *path, const struct state_kind *kind,
               const struct hparams *hp, unsigned ctx, struct err *e);
/* Everything behind the header against its checksums, and every id against the vocabulary. */
int state_verify(int fd, const char *path, const struct state_head *h, struct err *e);
/* The parts into a session. It is untouched on failure, but for ERR_CORRUPT and ERR_IO after a
 * state_verify that succeeded: then the file changed or failed in between, and it is empty. */
int state_load(int fd, const char *path, const struct state_head *h, struct session *s,
               struct err *e);
/* The host's note into out[h->note_bytes]. */
int state_read_note(int fd, const char *path, const struct state_head *h, void *out, struct err *e);
/* The ids alone into out[h->pos], unchecked: to compare with. */
int state_read_ids(int fd, const char *path, const struct state_head *h, int32_t *out,
                   struct err *e);

#endif
