/* model/session.h - what a conversation has left behind: KDA state, conv windows, latent cache,
 * ids.
 *
 * KDA state and windows are double: a pass reads the committed side and writes the other; the
 * latent cache is appended past the committed end. session_commit moves on, so a pass that does
 * not reach it never happened. Memory is planned and taken at open.
 */
#ifndef MODEL_SESSION_H
#define MODEL_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/hparams.h"
#include "model/sampler.h"

struct session {
    const struct hparams *hp;
    unsigned ctx;       /* most positions */
    unsigned pos;       /* committed positions */
    unsigned side;      /* the committed side of state and window */
    float *state[2];    /* [n_kda][heads][dim][dim], key axis rows */
    float *window[2];   /* [n_kda][q, k, v][taps - 1][channels], oldest first */
    float *latent;      /* [n_mla][ctx][stride]: normed c, then k_r, then zeros */
    int32_t *ids;       /* [ctx] */
    uint8_t *made;      /* [ctx] 1 where the id was our own choice, 0 where the host's */
    int32_t *recent;    /* [ctx] scratch: our own choices inside the penalty window */
    int32_t choice;     /* the id chosen last and not yet fed; -1: none */
    atomic_bool cancel; /* this session's rows are not wanted any more */
    bool open;          /* handed out to a host */
    struct sampler sampler;
};

/* Bytes of memory one session takes. */
uint64_t session_bytes(const struct hparams *hp, unsigned ctx);
/* memory: session_bytes of zeroed, 64-byte aligned bytes, borrowed. */
void session_init(struct session *s, const struct hparams *hp, unsigned ctx, void *memory);
/* Empty: as after session_init, sampling settings kept. */
void session_reset(struct session *s);
/* The pass that wrote the other side is done: n more positions, these ids. */
void session_commit(struct session *s, const int32_t *ids, unsigned n);
/* Positions from pos on are gone; pos <= s->pos. Only where there is no recurrent state, or pos is
 * 0 or s->pos (asserted): a state has no positions that could be cut off. */
void session_truncate(struct session *s, unsigned pos);

/* What the first `pos` positions have left behind, as pieces of memory in one fixed order: ids,
 * who chose them, states, windows, the latent rows of each MLA layer. Their concatenation is a
 * checkpoint. side: of states and windows. */
struct session_part {
    void *at;
    size_t bytes;
};
unsigned session_n_parts(const struct hparams *hp);
struct session_part session_part(const struct session *s, unsigned i, unsigned pos, unsigned side);
uint64_t session_parts_bytes(const struct hparams *hp, unsigned pos);
/* The parts of pos positions have been written, with states and windows on the side that was not
 * committed: from here on they are what is committed. */
void session_adopt(struct session *s, unsigned pos, int32_t choice);

static inline size_t session_state_floats(const struct hparams *hp)
{
    return (size_t)hp->kda_heads * hp->kda_dim * hp->kda_dim;
}

static inline size_t session_window_floats(const struct hparams *hp) /* of q, k or v */
{
    return (size_t)(hp->conv_taps - 1) * hparams_kda_channels(hp);
}

/* Layer number `nth` among the KDA (MLA) layers. from: committed; to: what the pass writes. */
static inline const float *session_state_from(const struct session *s, unsigned nth)
{
    return s->state[s->side] + nth * session_state_floats(s->hp);
}

static inline float *session_state_to(struct session *s, unsigned nth)
{
    return s->state[!s->side] + nth * session_state_floats(s->hp);
}

static inline float *session_window(struct session *s, unsigned nth, unsigned qkv, bool committed)
{
    float *side = s->window[committed ? s->side : !s->side];

    return side + (nth * 3 + qkv) * session_window_floats(s->hp);
}

static inline float *session_latent(struct session *s, unsigned nth, unsigned pos)
{
    return s->latent + ((size_t)nth * s->ctx + pos) * hparams_latent_stride(s->hp);
}

#endif
