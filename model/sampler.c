#include "model/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "model/kernels/poly.h"

void sampler_init(struct sampler *s)
{
    memset(s, 0, sizeof(*s));
    s->top_p = 1;
    s->repeat_penalty = 1;
    s->repeat_window = 64;
}

/* Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011. */
void philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];

        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof(c));
}

double sampler_uniform(uint64_t seed, uint32_t stream, uint32_t pos)
{
    uint32_t counter[4] = {pos, stream, 0, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t w[4];

    philox4x32(w, counter, key);
    return (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53;
}

size_t sampler_scratch_floats(unsigned vocab)
{
    return 2 * (size_t)vocab; /* adjusted logits, then weights; and one index per id */
}

/* count: [vocab] scratch. */
static void penalise(const struct sampler *s, float *l, unsigned vocab, const int32_t *recent,
                     unsigned n, uint32_t *count)
{
    unsigned first = n > s->repeat_window ? n - s->repeat_window : 0;

    memset(count, 0, vocab * sizeof(*count));
    for (unsigned i = first; i < n; i++)
        if (recent[i] >= 0 && (unsigned)recent[i] < vocab)
            count[recent[i]]++;
    for (unsigned id = 0; id < vocab; id++) {
        if (!count[id] || (s->spared && s->spared[id]))
            continue;
        l[id] = l[id] > 0 ? l[id] / s->repeat_penalty : l[id] * s->repeat_penalty;
        l[id] -= s->presence_penalty + (float)count[id] * s->frequency_penalty;
    }
}

/* Before b: larger value first, lower id among equals. */
static bool before(const float *v, uint32_t a, uint32_t b)
{
    return v[a] > v[b] || (v[a] == v[b] && a < b);
}

static void sift(const float *v, uint32_t *heap, size_t n, size_t i)
{
    for (;;) { /* a heap whose top comes first in `before` order */
        size_t l = 2 * i + 1, best = i;
        uint32_t t;

        if (l < n && before(v, heap[l], heap[best]))
            best = l;
        if (l + 1 < n && before(v, heap[l + 1], heap[best]))
            best = l + 1;
        if (best == i)
            return;
        t = heap[i];
        heap[i] = heap[best];
        heap[best] = t;
        i = best;
    }
}

/* Ids in falling order of v, as many as asked for: heap out, so the rest is never sorted. */
struct falling {
    const float *v;
    uint32_t *heap;
    size_t n;
};

static void falling_init(struct falling *f, const float *v, uint32_t *heap, unsigned vocab)
{
    *f = (struct falling){v, heap, 0};
    for (uint32_t id = 0; id < vocab; id++)
        if (v[id] > -INFINITY)
            heap[f->n++] = id;
    for (size_t i = f->n / 2; i-- > 0;)
        sift(v, heap, f->n, i);
}

static uint32_t falling_next(struct falling *f)
{
    uint32_t top = f->heap[0];

    f->heap[0] = f->heap[--f->n];
    sift(f->v, f->heap, f->n, 0);
    return top;
}

void sampler_mask(float *v, unsigned vocab, const uint64_t *allowed)
{
    for (unsigned i = 0; i < vocab; i += 64) {
        uint64_t bits = allowed[i / 64];
        unsigned n = vocab - i < 64 ? vocab - i : 64;

        if (bits == UINT64_MAX)
            continue;
        for (unsigned k = 0; k < n && !bits; k++)
            v[i + k] = -INFINITY;
        for (unsigned k = 0; k < n && bits; k++)
            if (!(bits >> k & 1))
                v[i + k] = -INFINITY;
    }
}

static int32_t largest(const float *l, unsigned vocab)
{
    int32_t best = -1;

    for (unsigned i = 0; i < vocab; i++)
        if (l[i] > -INFINITY && (best < 0 || l[i] > l[best]))
            best = (int32_t)i;
    return best;
}

/* The largest logit, and the logarithm of the sum of e to the distances from it. */
static double log_sum(const float *logits, unsigned vocab, float *largest)
{
    float m = logits[0];
    double sum = 0;

    for (unsigned i = 1; i < vocab; i++)
        m = logits[i] > m ? logits[i] : m;
    for (unsigned i = 0; i < vocab; i++)
        sum += (double)poly_exp(logits[i] - m);
    *largest = m;
    return log(sum); /* the largest adds 1 */
}

float sampler_logprob(const float *logits, unsigned vocab, int32_t id)
{
    float m;
    double sum = log_sum(logits, vocab, &m);

    return (float)((double)(logits[id] - m) - sum);
}

unsigned sampler_top(const float *logits, unsigned vocab, unsigned n, int32_t *id, float *logprob)
{
    unsigned k = 0;
    double sum;
    float m;

    for (unsigned i = 0; i < vocab && n; i++) {
        unsigned at = k;

        if (k == n && logits[i] <= logits[id[k - 1]])
            continue;
        while (at > 0 && logits[i] > logits[id[at - 1]])
            at--;
        k += k < n;
        memmove(id + at + 1, id + at, (k - 1 - at) * sizeof(*id));
        id[at] = (int32_t)i;
    }
    sum = log_sum(logits, vocab, &m);
    for (unsigned i = 0; i < k; i++)
        logprob[i] = (float)((double)(logits[id[i]] - m) - sum);
    return k;
}

/* v: adjusted logits on entry, -inf for what is out; weights on return, 0 for what is out. */
static double weigh(const struct sampler *s, float *v, uint32_t *heap, unsigned vocab, float m)
{
    bool filter_k = s->top_k && s->top_k < vocab, filter_p = s->top_p < 1;
    double total = 0, sum = 0;
    struct falling f;

    if (filter_k) {
        float cut;
        uint32_t last = 0;

        falling_init(&f, v, heap, vocab);
        for (unsigned i = 0; i < s->top_k && f.n; i++)
            last = falling_next(&f);
        cut = v[last];
        for (uint32_t id = 0; id < vocab; id++)
            if (v[id] < cut || (v[id] == cut && id > last))
                v[id] = -INFINITY;
    }
    for (unsigned i = 0; i < vocab; i++) {
        v[i] = v[i] > -INFINITY ? poly_exp((v[i] - m) / s->temperature) : 0;
        total += (double)v[i];
    }
    if (filter_p) {
        uint32_t last = 0;
        float cut;

        for (unsigned i = 0; i < vocab; i++)
            v[i] = v[i] > 0 ? v[i] : -INFINITY;
        falling_init(&f, v, heap, vocab);
        do {
            last = falling_next(&f);
            sum += (double)v[last];
        } while (f.n && sum < (double)s->top_p * total);
        cut = v[last];
        for (uint32_t id = 0; id < vocab; id++)
            if (v[id] < cut || (v[id] == cut && id > last))
                v[id] = 0;
    }
    total = 0;
    for (unsigned i = 0; i < vocab; i++) {
        if (v[i] < s->min_p)
            v[i] = 0;
        total += (double)v[i];
    }
    return total;
}

int sampler_choose(const struct sampler *s, const float *logits, unsigned vocab,
                   const int32_t *recent, unsigned n_recent, unsigned pos, float *scratch,
                   int32_t *id, float *logprob, struct err *e)
{
    float *v = scratch;
    uint32_t *heap = (uint32_t *)(void *)(scratch + vocab);
    double total, sum = 0, u;
    int32_t best, chosen = -1;

    for (unsigned i = 0; i < vocab; i++)
        if (!isfinite(logits[i]))
            return err_set(e, ERR_CORRUPT,
                           "position %u: logit %u is not finite; some weight or state is damaged",
                           pos, i);
    memcpy(v, logits, vocab * sizeof(*v));
    for (unsigned i = 0; i < s->n_bias; i++)
        if (s->bias_id[i] >= 0 && (unsigned)s->bias_id[i] < vocab)
            v[s->bias_id[i]] += s->bias[i];
    if (s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0)
        penalise(s, v, vocab, recent, n_recent, heap);
    for (unsigned i = 0; s->never && i < vocab; i++)
        if (s->never[i])
            v[i] = -INFINITY;
    if (s->allowed)
        sampler_mask(v, vocab, s->allowed);
    best = largest(v, vocab);
    if (best < 0)
        return err_set(e, ERR_CORRUPT, "position %u: every id is masked", pos);
    if (!isfinite(v[best]))
        return err_set(e, ERR_LIMIT, "position %u: bias and penalties take id %d beyond any number",
                       pos, (int)best);
    if (s->temperature <= 0) {
        *id = best;
        *logprob = sampler_logprob(logits, vocab, best);
        return 0;
    }
    total = weigh(s, v, heap, vocab, v[best]);
    u = sampler_uniform(s->seed, s->stream, pos) * total;
    for (unsigned i = 0; i < vocab; i++) {
        sum += (double)v[i];
        if (v[i] > 0) {
            chosen = (int32_t)i;
            if (sum > u)
                break;
        }
    }
    *id = chosen;
    *logprob = sampler_logprob(logits, vocab, chosen);
    return 0;
}
