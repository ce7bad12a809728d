#include "model/session.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

static size_t kda_bytes(const struct hparams *hp)
{
    return align_up(hp->n_kda * session_state_floats(hp) * sizeof(float), 64);
}

static size_t window_bytes(const struct hparams *hp)
{
    return align_up((size_t)hp->n_kda * 3 * session_window_floats(hp) * sizeof(float), 64);
}

static size_t latent_bytes(const struct hparams *hp, unsigned ctx)
{
    return align_up((size_t)hp->n_mla * ctx * hparams_latent_stride(hp) * sizeof(float), 64);
}

uint64_t session_bytes(const struct hparams *hp, unsigned ctx)
{
    return 2 * (kda_bytes(hp) + window_bytes(hp)) + latent_bytes(hp, ctx) +
           2 * align_up(ctx * sizeof(int32_t), 64) + align_up(ctx, 64);
}

void session_init(struct session *s, const struct hparams *hp, unsigned ctx, void *memory)
{
    uint8_t *at = memory;

    memset(s, 0, sizeof(*s));
    s->hp = hp;
    s->ctx = ctx;
    for (unsigned i = 0; i < 2; i++) {
        s->state[i] = (float *)(void *)at;
        at += kda_bytes(hp);
        s->window[i] = (float *)(void *)at;
        at += window_bytes(hp);
    }
    s->latent = (float *)(void *)at;
    at += latent_bytes(hp, ctx);
    s->ids = (int32_t *)(void *)at;
    at += align_up(ctx * sizeof(int32_t), 64);
    s->recent = (int32_t *)(void *)at;
    s->made = at + align_up(ctx * sizeof(int32_t), 64);
    s->choice = -1;
    sampler_init(&s->sampler);
}

void session_reset(struct session *s)
{
    memset(s->state[s->side], 0, kda_bytes(s->hp));
    memset(s->window[s->side], 0, window_bytes(s->hp));
    s->choice = -1;
    s->pos = 0; /* latents past pos are never read before they are written */
}

void session_commit(struct session *s, const int32_t *ids, unsigned n)
{
    memcpy(s->ids + s->pos, ids, n * sizeof(*ids));
    memset(s->made + s->pos, 0, n);
    s->made[s->pos] = n && ids[0] == s->choice;
    s->choice = -1;
    s->pos += n;
    s->side = !s->side;
}

void session_truncate(struct session *s, unsigned pos)
{
    assert(pos <= s->pos);
    if (pos == 0) {
        session_reset(s);
        return;
    }
    assert(pos == s->pos || !s->hp->n_kda);
    s->pos = pos;
    s->choice = -1;
}

enum { PART_IDS, PART_MADE, PART_STATE, PART_WINDOW, PART_LATENT };

unsigned session_n_parts(const struct hparams *hp)
{
    return PART_LATENT + hp->n_mla;
}

static size_t part_bytes(const struct hparams *hp, unsigned i, unsigned pos)
{
    switch (i) {
    case PART_IDS:
        return pos * sizeof(int32_t);
    case PART_MADE:
        return pos;
    case PART_STATE:
        return hp->n_kda * session_state_floats(hp) * sizeof(float);
    case PART_WINDOW:
        return (size_t)hp->n_kda * 3 * session_window_floats(hp) * sizeof(float);
    default:
        return (size_t)pos * hparams_latent_stride(hp) * sizeof(float);
    }
}

struct session_part session_part(const struct session *s, unsigned i, unsigned pos, unsigned side)
{
    void *at[] = {s->ids, s->made, s->state[side], s->window[side]};

    return (struct session_part){
        .at = i < PART_LATENT ? at[i] : session_latent((struct session *)s, i - PART_LATENT, 0),
        .bytes = part_bytes(s->hp, i, pos),
    };
}

uint64_t session_parts_bytes(const struct hparams *hp, unsigned pos)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < session_n_parts(hp); i++)
        n += part_bytes(hp, i, pos);
    return n;
}

void session_adopt(struct session *s, unsigned pos, int32_t choice)
{
    s->side = !s->side;
    s->pos = pos;
    s->choice = choice;
}
