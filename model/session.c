#include "model/session.h"

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
