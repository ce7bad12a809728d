#include "model/router.h"

#include <math.h>
#include <stdbool.h>

/* The n largest of v[0...count) in falling order, lower index first among equals; -inf is out. */
static unsigned best(const float *v, unsigned count, unsigned n, uint16_t *id)
{
    unsigned have = 0;

    for (unsigned i = 0; i < count; i++) {
        unsigned at = have;

        if (!n || !(v[i] > -INFINITY) || (have == n && !(v[i] > v[id[n - 1]])))
            continue;
        while (at && v[i] > v[id[at - 1]])
            at--;
        for (unsigned j = have < n ? have++ : n - 1; j > at; j--)
            id[j] = id[j - 1];
        id[at] = (uint16_t)i;
    }
    return have;
}

/* Keep the topk_group groups with the largest sum of their two largest scores. sum: [n_group]. */
static void limit_groups(const struct hparams *hp, float *biased, float *sum)
{
    unsigned size = hp->n_experts / hp->n_group;

    for (unsigned g = 0; g < hp->n_group; g++) {
        uint16_t top[2];

        best(biased + g * size, size, 2, top);
        sum[g] = biased[g * size + top[0]] + biased[g * size + top[1]];
    }
    for (unsigned n = 0; n < hp->topk_group; n++) {
        unsigned g = 0;

        for (unsigned i = 1; i < hp->n_group; i++)
            if (isnan(sum[g]) || sum[i] > sum[g])
                g = i;
        sum[g] = NAN; /* kept */
    }
    for (unsigned i = 0; i < hp->n_experts; i++)
        if (!isnan(sum[i / size]))
            biased[i] = -INFINITY;
}

int router_select(const struct hparams *hp, const struct kernels *k, float *score,
                  const float *bias, float *scratch, uint16_t *id, float *weight, struct err *e)
{
    float *biased = scratch, total = 0;

    k->sigmoid(score, score, hp->n_experts);
    for (unsigned i = 0; i < hp->n_experts; i++) {
        biased[i] = bias ? score[i] + bias[i] : score[i];
        if (!isfinite(biased[i]))
            return err_set(e, ERR_CORRUPT, "router: score of expert %u is not finite", i);
    }
    if (hp->n_group > 1)
        limit_groups(hp, biased, scratch + hp->n_experts);
    best(biased, hp->n_experts, hp->top_k, id);
    for (unsigned i = 0; i < hp->top_k; i++)
        total += score[id[i]];
    for (unsigned i = 0; i < hp->top_k; i++) {
        float s = score[id[i]];

        if (hp->renormalize && hp->top_k > 1)
            s = s / (total + 1e-20f);
        weight[i] = s * hp->routed_scale;
    }
    return 0;
}

unsigned router_guess(const struct hparams *hp, const struct kernels *k, float *score,
                      const float *bias, uint16_t *id, unsigned n)
{
    k->sigmoid(score, score, hp->n_experts);
    for (unsigned i = 0; i < hp->n_experts; i++) {
        score[i] = bias ? score[i] + bias[i] : score[i];
        if (!isfinite(score[i]))
            return 0;
    }
    return best(score, hp->n_experts, n < hp->n_experts ? n : hp->n_experts, id);
}
